#!/usr/bin/env python3
"""Opens a viewer page from disk in headless Chromium and compares what the page shows with the arrays it was made from.

    page_test.py PAGE.html ARRAYS.safetensors [--text N] [--max-bytes N] [--seed N]

ARRAYS holds `attentions`, float32 [layers, heads, T, S], of the page's text N. The test needs the PyPI package playwright and Chromium, which is
found on the path or named by the variable CHROMIUM. Nothing is downloaded.
"""
import json
import re

from session import ABSOLUTE, RELATIVE, colours_of, pixels_of, reload, run, title

def check_grid(checks, session, choose):
    expected = session.expected
    thumbs = session.page.locator(".thumb:not(.mean)").count()
    checks.that(thumbs == expected.layers * expected.heads, f"one thumbnail for each of {expected.layers * expected.heads} heads", thumbs)
    checks.that(session.page.locator(".thumb.mean").count() == expected.layers + expected.wholes, "there are thumbnails for the mean of each layer, the mean of all layers, and the rollout")
    checks.that(session.page.locator(".thumb:not([aria-label])").count() == 0, "every thumbnail has a label")
    if max(expected.rows, expected.columns) > 96:
        return  # a pixel of the thumbnail of a larger map stands for several cells
    for layer, head in choose.heads(4):
        colours = colours_of(session.page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"] img'))
        darkness = [(765 - sum(colour[:3])) * (colour[3] > 0) for colour in colours]  # a weight of exactly 0 is transparent
        cells = [(expected.weight(layer, head, row, column), row * expected.columns + column)
                 for row in range(expected.rows) for column in range(expected.columns)]
        largest, smallest = max(cells), min(cells)
        checks.that(len(darkness) == len(cells) and darkness[largest[1]] == max(darkness) and darkness[smallest[1]] == min(darkness),
                    f"the thumbnail of layer {layer}, head {head} is darkest at its largest weight and lightest at its smallest")


def check_hover(checks, session, choose):
    expected = session.expected
    for layer, head in [*choose.heads(5), (choose.layer(), "mean"), ("mean", "mean")]:
        session.open(layer, head)
        wrong = []
        for row, column in choose.cells(6):
            session.hover(row, column)
            wrong.append(session.right(layer, head, row, column))
            if session.lit() != [[row], [column]]:
                wrong.append(f"with the pointer on row {row} and column {column}, the rows and columns {session.lit()} are highlighted")
            if session.text("#where") != f"Attention from row {row} to column {column}.":
                wrong.append(session.text("#where"))
        wrong = [message for message in wrong if message]
        checks.that(not wrong, f"layer {layer}, head {head}: pointing at any of 6 cells shows its words and weight, and highlights these words", wrong)
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    row = choose.cells(1)[0][0]
    session.page.locator(f'.queries .label[data-index="{row}"]').hover()
    best = max(range(expected.columns), key=lambda column: expected.weight(layer, head, row, column))
    first = session.text("#row-list li:first-child .word")
    checks.that(session.lit() == [[row], []] and first == expected.word(expected.keys, best), "pointing at a row's word lists the words to which it attends most",
                (session.lit(), first))


def check_pinned(checks, session, choose):
    """When a cell is pinned, the headline and the lists keep showing its two words while the pointer moves, and the layout does not change."""
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    row, column = choose.cells(1)[0]
    other = ((row + 2) % expected.rows, (column + 3) % expected.columns)
    session.hover(row, column)
    page.mouse.down()
    page.mouse.up()
    lists, places = session.text("#detail"), "() => ['.cells', '#detail', '#link'].map((one) => document.querySelector(one).getBoundingClientRect().top + scrollY)"
    before = page.evaluate(places)
    session.hover(*other)
    said = session.text("#where")
    checks.that(not session.right(layer, head, row, column) and session.text("#detail") == lists, "the headline and the lists keep showing the pinned cell while the pointer is on another cell", session.text("#readout"))
    shown = said.split()[-1].replace("≈", "")
    error = abs(float(shown) - expected.weight(layer, head, *other))
    checks.that(said.startswith("Under the pointer: " + " ".join(expected.pair(*other).split())) and error <= (max(RELATIVE * float(shown), 4e-6) if expected.approximate else ABSOLUTE),
                "the line below the headline names the two words under the pointer", said)
    checks.that(session.lit() == [[other[0]], [other[1]]] and page.locator(".label.pinned").count() == 2 and page.locator(".pin-band").is_visible(), "the pinned cell and the cell under the pointer are marked", session.lit())
    checks.that(page.evaluate(places) == before, "the layout does not change while the pointer moves", (before, page.evaluate(places)))
    page.mouse.move(2, 2)
    checks.that(session.text("#where") == f"Attention from row {row} to column {column}.", "when the pointer leaves the map, only the pinned cell is named", session.text("#where"))


def check_special(checks, session, choose):
    expected = session.expected
    hidden = [set(side["special"]) for side in (expected.queries, expected.keys)]
    rows = [row for row in range(expected.rows) if row not in hidden[0]]
    columns = [column for column in range(expected.columns) if column not in hidden[1]]
    if not (hidden[0] or hidden[1]) or not rows or not columns:
        return
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    session.page.locator("#special").select_option("hide")
    labels = session.page.locator(".strip .label")
    checks.that(labels.count() == len(rows) + len(columns), "hiding special tokens removes their rows and columns", labels.count())
    checks.that("no longer sum to 1" in session.text("#special-note") and session.page.locator("#special-note").is_visible(),
                "the page says that rows no longer sum to 1")
    wrong = []
    for _ in range(4):
        row, column = choose.random.choice(rows), choose.random.choice(columns)
        session.hover(rows.index(row), columns.index(column))
        wrong.append(session.right(layer, head, row, column))
    checks.that(not any(wrong), "hiding special tokens does not change the weights of other tokens", wrong)
    session.page.locator("#special").select_option("show")
    checks.that(labels.count() == expected.rows + expected.columns, "special tokens can be shown again", labels.count())


def check_keyboard(checks, session):
    expected, page = session.expected, session.page
    focused = lambda: page.evaluate("() => [document.activeElement.dataset.layer, document.activeElement.dataset.head]")
    for _ in range(17):
        if focused()[0] is not None:
            break
        page.keyboard.press("Tab")
    checks.that(focused() == ["0", "0"], "Tab reaches the first thumbnail", focused())
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    checks.that(focused() == ["0", "0"], "an arrow key reaches the first thumbnail if nothing has the focus", focused())
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth")
    checks.that(outline == "solid3px", "the focus can be seen", outline)
    layer, head = min(1, expected.layers - 1), min(1, expected.heads - 1)
    for key in ["ArrowDown"] * layer + ["ArrowRight"] * head + ["Enter"]:
        page.keyboard.press(key)
    checks.that(page.locator("#head").is_visible() and session.text("#head-title") == title(layer, head), "arrows and Enter open a head",
                session.text("#head-title"))
    page.keyboard.press("ArrowDown")
    first = session.right(layer, head, 0, 0)
    row, column = min(2, expected.rows - 1), min(1, expected.columns - 1)
    for key in ["ArrowDown"] * row + ["ArrowRight"] * column:
        page.keyboard.press(key)
    wrong = [message for message in (first, session.right(layer, head, row, column)) if message]
    checks.that(not wrong, "arrows move from pair to pair", wrong)
    spoken = page.locator("#status").text_content()
    checks.that(spoken == f"{expected.pair(row, column)} {session.shown_weight()}", "the live region speaks the pair and its weight", spoken)
    page.keyboard.press("?")
    checks.that(page.locator("#help").is_visible(), "? lists the keys")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#help").is_visible() and page.locator("#head").is_visible(), "Escape closes the list and nothing else")
    page.keyboard.press("v")
    page.keyboard.press("v")
    page.keyboard.press("s")
    page.keyboard.press("s")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#head").is_visible() and focused() == [str(layer), str(head)], "Escape goes back to the same thumbnail", focused())


def check_address(checks, session, choose):
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    reload(session.page)
    session.drawn()
    row, column = choose.cells(1)[0]
    session.hover(row, column)
    wrong = session.right(layer, head, row, column)
    checks.that(not wrong, "a reload keeps text, layer and head", wrong)
    session.page.go_back()
    checks.that(not session.page.locator("#head").is_visible(), "Back leaves the head")
    note = session.page.locator("#address-note")
    checks.that(not note.is_visible(), "a link of this page is known")
    session.page.evaluate("() => { location.hash = 'layer=99&head=0&view=foo&scale=root&what=3'; }")
    note.wait_for()
    checks.that(note.inner_text() == "Not on this page: layer=99, head=0, view=foo, what=3.", "a link names what this page does not have", note.inner_text())
    session.open(layer, head)
    checks.that(not note.is_visible(), "the note ends with the next choice")


def check_lines(checks, session, choose):
    expected = session.expected
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    session.page.locator('[data-view="lines"]').click()
    ink = any(pixels_of(session.page.locator(".lines canvas")))
    words = session.page.locator(".words .label").count()
    checks.that(ink and words == expected.rows + expected.columns, "the lines view has its words and lines", (ink, words))
    session.page.keyboard.press("ArrowRight")
    wrong = session.right(layer, head, 0, 0)
    checks.that(not wrong, "arrows name pairs in the lines view too", wrong)
    session.page.keyboard.press("Escape")


def luminance(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def check_theme(checks, session, dark):
    style = lambda selector, name: session.page.evaluate("([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name])
    for round_, is_dark in enumerate([dark, not dark]):
        how = "the system's choice" if round_ == 0 else "the t key"
        ground = luminance(style("body", "backgroundColor"))
        checks.that((ground < 0.1) == is_dark, f"{how} makes the page {'dark' if is_dark else 'light'}", ground)
        contrasts = []
        for selector in ("h1", "#heads-caption", "#hint"):
            ink = luminance(style(selector, "color"))
            contrasts.append((max(ink, ground) + 0.05) / (min(ink, ground) + 0.05))
        checks.that(min(contrasts) >= 4.5, "text has a contrast of 4.5 or more", contrasts)
        ramp = [luminance(" ".join(map(str, colour[:3]))) for colour in colours_of(session.page.locator("#legend"))]
        steps = [(after - before) * (1 if is_dark else -1) for before, after in zip(ramp, ramp[1:])]
        checks.that(min(steps) >= 0 and abs(ramp[0] - ground) < 0.1, "the colour scale starts at the page's background, and each next colour differs more from it in brightness",
                    (ramp[0], ramp[-1], min(steps)))
        session.page.keyboard.press("t")


def check_preview(checks, session, choose):
    """The page of all heads has a preview: one larger map with its words."""
    expected, page = session.expected, session.page
    special = set(expected.queries["special"])

    def striking(layer, head):
        """Returns a sum over the rows: the largest weight on a key that is not the first, not special, and more than one position from the query."""
        keys = lambda t: [s for s in range(1, expected.columns) if s not in special and abs(t - s) > 1]
        return sum(max((expected.weight(layer, head, t, s) for s in keys(t)), default=0) for t in range(expected.rows))

    most = max(((layer, head) for layer in range(expected.layers) for head in range(expected.heads)), key=lambda place: striking(*place))
    map_of = lambda layer, head: page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"] img').get_attribute("src")
    shown = lambda: (session.text("#preview h3"), page.locator("#preview image").get_attribute("href"))
    checks.that(shown() == (title(*most), map_of(*most)), "at first, the preview shows the head whose words attend most strongly to single other words", shown()[0])
    words = page.locator("#preview text").all_text_contents()
    wanted = [expected.word(side, index) for side in (expected.queries, expected.keys) for index in range(len(side["pieces"]))]
    checks.that(sorted(words) == sorted(wanted), "the rows and columns of the preview have their words", words)
    layer, head = choose.heads(1)[0]
    page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').hover()
    checks.that(shown() == (title(layer, head), map_of(layer, head)), "the preview shows the head under the pointer", shown()[0])
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    checks.that(shown()[0] == focused, "the preview shows the head with the focus", (shown()[0], focused))
    sides = lambda: page.evaluate("() => ['#preview', '#grid'].map((one) => document.querySelector(one).getBoundingClientRect()).map((box) => [box.left, box.right, box.top, box.bottom])")
    for width, place in ((1080, "beside"), (768, "below"), (390, "above")):
        session.resize(width)
        preview, grid = sides()
        holds = {"beside": preview[0] >= grid[1], "below": preview[2] >= grid[3], "above": preview[3] <= grid[2]}[place]
        checks.that(holds and page.locator("#preview text").first.is_visible(), f"on a page of {width} pixels the preview is {place} the maps", (preview, grid))
    session.resize(1200)
    session.open(layer, head)
    checks.that(not page.locator("#preview").is_visible(), "an open head has no preview")


def check_narrow(checks, session, choose):
    overflow = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    grid = session.page.evaluate(overflow)
    shift = session.page.evaluate("""() => new Promise((done) => { let sum = 0; new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; })
        .observe({ type: "layout-shift", buffered: true }); setTimeout(() => done(sum), 200); })""")
    checks.that(shift < 0.1, "elements do not move while the page loads", shift)
    session.page.locator("#measure").select_option("previous")
    sides = session.page.evaluate("() => [...document.querySelectorAll('#grid .thumb')].map((one) => Math.min(one.offsetWidth, one.offsetHeight))")
    badges = session.page.locator("#grid .badge:visible").count()
    heads = session.page.locator("#grid .thumb:not(.mean)").count()
    checks.that(min(sides) >= 44 and badges >= heads, "thumbnails are large enough for a finger, and each head has its badge", (min(sides), badges, heads))
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    checks.that(grid <= 0 and session.page.evaluate(overflow) <= 0, "the page of all heads and the page of a head fit into 400 pixels", grid)
    row, column = choose.cells(1)[0]
    session.hover(row, column)
    wrong = session.right(layer, head, row, column)
    checks.that(not wrong, "a narrow page shows the right weight", wrong)
    session.page.evaluate("([layer, head]) => { location.hash = `layer=${layer}&head=${head}&row=1&column=1`; }", [layer, head])
    session.page.locator(".values").wait_for()
    cut = session.page.evaluate("() => [...document.querySelectorAll('.part .scroll')].map((one) => one.scrollWidth - one.clientWidth)")
    checks.that(len(cut) == 4 and max(cut) <= 0, "the tables that show how a weight is computed are not cut off", cut)
    moving = session.page.evaluate("() => getComputedStyle(document.querySelector('.row-band')).transitionDuration")
    checks.that(moving == "0s", "the page has no animations for a reader who wants less motion", moving)


def rounds(test):
    choose = test.choose
    data = choose.expected.data
    vectors = sum(len(json.dumps(text.get("vectors", ""))) for text in data["texts"])
    test.checks.that(vectors < 1e6 * data["limit"] + 1000, f"q, k and v are within their budget of {data['limit']} MB", vectors)
    size = test.page.stat().st_size - vectors
    test.checks.that(size < test.arguments.max_bytes, f"without q, k and v, the page has {size} bytes; fewer than {test.arguments.max_bytes} are allowed", size)
    return [
        ("grid", check_grid, [choose], {}),
        ("hover", check_hover, [choose], {}),
        ("pinned", check_pinned, [choose], {}),
        ("special tokens", check_special, [choose], {}),
        ("keyboard", check_keyboard, [], {}),
        ("address", check_address, [choose], {}),
        ("lines", check_lines, [choose], {}),
        ("light", check_theme, [False], {}),
        ("dark", check_theme, [True], {"color_scheme": "dark"}),
        ("preview", check_preview, [choose], {}),
        ("narrow", check_narrow, [choose], {"viewport": {"width": 400, "height": 800}, "reduced_motion": "reduce"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds, ("--max-bytes", {"type": int, "default": 400_000}))
