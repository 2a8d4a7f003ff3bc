#!/usr/bin/env python3
"""The page works without a mouse, with low vision, on paper, and on small and large screens (WCAG 2.2, AA).

    access_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import re

from session import axe_violations, colours_of, pixels_of, prints, reload, run, title

# Sets of rules of axe-core, which checks accessibility. COLOURS and OTHERS each take half as long as ALL. A dark page differs from a light page in its colours only,
# so COLOURS is enough for the dark page. A small page has the same colours as a large one, so OTHERS is enough for it.
ALL, COLOURS, OTHERS = {}, {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}, {"rules": {"color-contrast": {"enabled": False}}}


def luminance(colour):
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (float(part) / 255 for part in colour[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    a, b = luminance(a), luminance(b)
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def colours(text):
    return [[float(part) for part in re.findall(r"[\d.]+", colour)] for colour in re.findall(r"rgba?\([^)]*\)", text)]


def style(session, selector, name):
    return session.page.locator(selector).first.evaluate("(element, name) => getComputedStyle(element)[name]", name)


def check_axe(checks, session, choose, rules=ALL):
    """Brings the page into each of its states. In none of them may axe-core find a violation of `rules`."""
    def clean(state):
        wrong = [f"{one['id']}: {one['nodes'][0]['html'][:120]} {one['nodes'][0]['failureSummary'][:200]}" for one in axe_violations(session.page, rules)]
        checks.that(not wrong, f"axe-core finds nothing: {state}", wrong)

    page = session.page
    clean("all heads")
    page.locator("#menu summary").click()
    clean("menu")
    for dialog in ("about", "help"):
        if page.locator("#menu[open]").count() == 0:
            page.locator("#menu summary").click()
        page.locator(f'#menu [data-dialog="{dialog}"]').click()
        clean(dialog)
        page.keyboard.press("Escape")
    page.locator("#measure").select_option("previous")
    page.locator("#least").fill("30")
    clean("heads that look at the previous token")
    page.locator("#sort").check()
    clean("heads sorted")
    page.locator("#sort").uncheck()
    session.open(*choose.heads(1)[0])
    clean("a head")
    page.locator("#cover").fill("60")
    clean("the strongest links")
    session.hover(*choose.cells(1)[0])
    clean("a head, with the pointer on a cell")
    page.locator(".cells").click()
    clean("a pinned cell: how its weight is computed, and the weight of its two words in every head")
    page.locator("#special").select_option("hide")
    clean("a head without special tokens")
    page.locator('[data-view="lines"]').click()
    clean("lines")
    page.locator('[data-view="read"]').click()
    page.locator(".read-body .piece").nth(3).click()
    clean("the text, with a chosen word")
    page.locator('[data-view="compare"]').click()
    page.locator(".pane.b .cells").hover()
    clean("two heads compared")
    page.locator("#back").click()
    session.open("rollout", "mean")
    clean("rollout")
    page.locator("#back").click()
    page.locator('[data-heads="distances"]').click()
    page.locator("#distances .cells").hover()
    clean("distances between heads")
    expected = session.expected
    page.goto(session.url + "#view=lines")
    reload(page)
    session.drawn()
    largest = max(range(len(expected.weights)), key=lambda at: expected.weights[at])
    head, cell = divmod(largest, expected.rows * expected.columns)
    session.open(*divmod(head, expected.heads))
    page.locator(".words.left .label").nth(cell // expected.columns).hover()
    clean("lines, with the pointer on the query word of the largest attention weight")
    page.locator(".words.right .label").nth(cell % expected.columns).hover()
    clean("lines, with the pointer on the key word of the largest attention weight")


def check_borders(checks, session, choose):
    session.open(*choose.heads(1)[0])
    ground = colours(style(session, "body", "backgroundColor"))[0]
    found = session.page.evaluate("""() => [...document.querySelectorAll('button, select, summary')].filter((one) => one.checkVisibility() && !one.disabled).map(
        (one) => [one.id || one.textContent || one.className, getComputedStyle(one).borderColor])""")
    weak = [(name, round(contrast(colours(colour)[0], ground), 2)) for name, colour in found if contrast(colours(colour)[0], ground) < 3]
    checks.that(len(found) > 8 and not weak, f"the borders of {len(found)} controls have a contrast of 3 or more", weak[:5])
    session.hover(*choose.cells(1)[0])
    cursor = colours(style(session, ".cell-band", "boxShadow")) + colours(style(session, ".cell-band", "outlineColor"))[:1] * (style(session, ".cell-band", "outlineStyle") != "none")
    ramp = [colour[:3] for colour in colours_of(session.page.locator("#legend"))]
    worst = min(max(contrast(colour, line) for line in cursor) for colour in ramp)
    checks.that(worst >= 3, "the cursor has a contrast of 3 or more on every colour of the scale", round(worst, 2))


def check_keys(checks, session, choose):
    page, expected = session.page, session.expected
    layer, head = 0, 0
    session.open(layer, head)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("n")
    layer, head = (0, 1) if expected.heads > 1 else (1, 0)
    spoken = page.locator("#status").text_content()
    wanted = f"{title(layer, head)}: {expected.pair(0, 0)} {page.locator('#readout .weight').text_content()}"
    checks.that(spoken == wanted, "after the key n, a screen reader speaks the next head and its weight of the same two words", (spoken, wanted))
    checks.that(page.title().startswith(title(layer, head)), "the tab's title names the head", page.title())
    page.keyboard.press("N")
    checks.that(session.text("#head-title") == title(layer + 1, head), "N shows the same head of the next layer", session.text("#head-title"))
    page.keyboard.press("P")
    before = page.evaluate("() => scrollY")
    page.keyboard.press("PageDown")
    page.wait_for_function("(before) => scrollY > before", arg=before)
    checks.that(page.evaluate("() => scrollY") > before and session.text("#head-title") == title(layer, head), "PageDown scrolls the page",
                (before, page.evaluate("() => scrollY")))
    page.keyboard.press("?")
    page.locator("#letters").uncheck()
    page.keyboard.press("Escape")
    shown = lambda: (session.text("#head-title"), style(session, "html", "backgroundColor"), page.locator("#special").input_value(), page.locator(".matrix").is_visible())
    for round_ in ("switched off", "switched off, after a reload"):
        was = shown()
        for key in ("n", "p", "N", "m", "s", "t", "v", "?", "+"):
            page.keyboard.press(key)
        checks.that(shown() == was and not page.locator("#help").is_visible(), f"letters do nothing when {round_}", (was, shown()))
        reload(page)
        session.drawn()
    page.keyboard.press("Escape")
    checks.that(not page.locator("#head").is_visible(), "Escape still works")


def check_forced(checks, session, choose):
    session.open(*choose.heads(1)[0])
    pressed, other = (style(session, f'[data-view="{view}"]', "backgroundColor") for view in ("matrix", "lines"))
    checks.that(pressed != other, "forced colours: of the buttons Matrix and Lines, the pressed one looks pressed", (pressed, other))


def check_print(checks, session, choose):
    if not prints(session.page):
        return
    session.open(*choose.heads(1)[0])
    dark = pixels_of(session.page.locator(".cells canvas"))
    session.page.emulate_media(media="print")
    session.page.wait_for_timeout(500)
    session.drawn()
    light = pixels_of(session.page.locator(".cells canvas"))
    visible = session.page.evaluate("() => [...document.querySelectorAll('button, select, summary, input, footer')].filter((one) => one.checkVisibility()).length")
    checks.that(visible == 0, "print: no controls", visible)
    checks.that(session.page.locator("#legend").is_visible() and session.page.locator("#head-title").is_visible(), "print: legend and the head's name")
    checks.that(sum(light) > 1.5 * sum(dark) and luminance(colours(style(session, "body", "backgroundColor"))[0]) > 0.9, "print: a dark page prints light", (sum(dark), sum(light)))
    session.page.emulate_media(media="screen")
    session.page.wait_for_timeout(300)
    checks.that(pixels_of(session.page.locator(".cells canvas")) == dark, "after printing, the page is dark again")


def check_legend(checks, session, choose):
    session.open(*choose.heads(1)[0])
    checks.that(session.page.locator("#legend").is_visible(), "on a page of 800 pixels, an open head has its colour legend")


def check_wide(checks, session, choose):
    width = session.page.evaluate("() => document.body.clientWidth / innerWidth")
    session.open(*choose.heads(1)[0])
    checks.that(width > 0.98, "1920 pixels are used", width)


# The controls that are narrower or lower than 44 pixels. Links and buttons within a sentence may be smaller, and so may thumbnails of a page that is not narrow.
SMALL_TARGETS = """() => [...document.querySelectorAll('button, select, summary, .button, input')].filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches('.unseen, .names button')).map((one) => {
  const box = (one.matches('[type=checkbox]') ? one.closest('label') : one).getBoundingClientRect();
  return [one.id || one.className || one.textContent.trim(), box.width, box.height];
}).filter(([, width, height]) => width > 0 && Math.min(width, height) < 43.9)"""


def check_targets(checks, session, choose):
    page = session.page
    def large(state):
        small = page.evaluate(SMALL_TARGETS)
        checks.that(not small, f"targets for fingers have 44 pixels: {state}", small)

    large("all heads")
    page.locator("#menu summary").click()
    large("menu")
    page.keyboard.press("Escape")
    page.locator('[data-heads="distances"]').click()
    large("distances")
    page.locator('[data-heads="maps"]').click()
    session.open(*choose.heads(1)[0])
    row, column = choose.cells(1)[0]
    page.goto(f"{page.url}&row={row}&column={column}")
    page.reload()
    session.drawn()
    page.evaluate("() => document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
    for view in ("matrix", "lines", "read", "compare"):
        page.locator(f'[data-view="{view}"]').click()
        large(f"a head, {view}")


def rounds(test):
    choose = test.choose
    dark = {"color_scheme": "dark"}
    small = {"viewport": {"width": 390, "height": 844}}
    return [
        ("axe light", check_axe, [choose], {}),
        ("axe dark", check_axe, [choose, COLOURS], dark),
        ("axe small and Chinese", check_axe, [choose, OTHERS], {**small, "locale": "zh-CN"}),
        ("contrast light", check_borders, [choose], {}),
        ("contrast dark", check_borders, [choose], dark),
        ("keys", check_keys, [choose], {"viewport": {"width": 1200, "height": 400}}),
        ("forced colours", check_forced, [choose], {"forced_colors": "active"}),
        ("print", check_print, [choose], dark),
        ("legend", check_legend, [choose], {"viewport": {"width": 800, "height": 800}}),
        ("targets of fingers", check_targets, [choose], small),
        ("wide", check_wide, [choose], {"viewport": {"width": 1920, "height": 1080}}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
