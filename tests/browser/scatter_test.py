#!/usr/bin/env python3
"""The scatter has a point for each head at the values of two measures, over the page's text or over texts that were measured when the page was made; a click opens the head; names hold over the texts.

    scatter_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import copy
import math

from measures_test import measured
from session import axe_violations, encoded, exported, reload, run, title

# Returns [layer, head, x, y] of each point. x and y are read off the axes, with the numbers that label the ticks.
POINTS = """() => {
  const texts = [...document.querySelectorAll('#scatter .plot text')].filter((one) => one.getAttribute('font-size') === '12').map((one) => [one.getAttribute('text-anchor'), Number(one.getAttribute('x')), Number(one.getAttribute('y')), one.textContent]);
  const line = (ticks) => { const [a, b] = [ticks[0], ticks.at(-1)]; return (at) => a[1] + (at - a[0]) * (b[1] - a[1]) / (b[0] - a[0]); };
  const number = (text) => (text.endsWith('%') ? parseFloat(text) / 100 : parseFloat(text));
  const x = line(texts.filter(([anchor]) => anchor === 'middle').map(([, at, , text]) => [at, number(text)]));
  const y = line(texts.filter(([anchor]) => anchor === 'end').map(([, , at, text]) => [at - 4, number(text)]));
  return [...document.querySelectorAll('#scatter circle[data-at]')].map((one) => [Number(one.dataset.layer), Number(one.dataset.head), x(Number(one.getAttribute('cx'))), y(Number(one.getAttribute('cy')))]);
}"""
STEP = 2e-3  # points are drawn to 0.01 pixels, and attention weights have 16 bits


def values_over_texts(expected):
    """Returns the measures that make_measured() writes: {name: {(layer, head): (mean, spread, count, held)}}."""
    places = [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]
    previous = {place: ((7 * at) % 101 / 100, 0.05, 20, 20 if at % 10 == 0 else 17) for at, place in enumerate(places)}
    induction = {place: ((13 * at) % 97 / 97, 0.1, 4, 4) for at, place in enumerate(places)}
    return {"previous": previous, "induction": induction}


def make_measured(expected):
    def edit(data):
        data["measured"] = {"texts": 20, "tokens": [5, 60], "layers": expected.layers, "heads": expected.heads,
                            "values": {name: [list(of) for of in values.values()] for name, values in values_over_texts(expected).items()}}
        data["start"] = "#heads=scatter"
    return edit


def make_five(expected):
    """Five texts in the page, all with the same maps, in which head 0.1 attends to the previous token. The page also has measures over five other texts."""
    def edit(data):
        make_measured(expected)(data)
        data["measured"]["texts"] = 5
        data["start"] = ""
        first = data["texts"][0]
        for name in ("vectors", "value_norms"):
            first.pop(name, None)
        first["weights"][0][1] = encoded([float(s == max(t - 1, 0)) for t in range(expected.rows) for s in range(expected.columns)])
        data["texts"] = [{**copy.deepcopy(first), "text": f"text {at}", "group": at} for at in range(5)]
    return edit


def make_tabs(expected):
    """A text with two sets of maps of the same size. The page has measures of the heads of the first set only."""
    def edit(data):
        make_measured(expected)(data)
        data["measured"]["name"] = "Encoder"
        data["texts"] = [{**copy.deepcopy(data["texts"][0]), "name": name, "group": 0} for name in ("Encoder", "Decoder")]
    return edit


def make_norms(expected):
    def edit(data):
        make_measured(expected)(data)
        data["start"] = "#heads=scatter&weighting=norm"
    return edit


def make_pooled(expected):
    def edit(data):
        make_measured(expected)(data)
        first = data["texts"][0]
        for name in ("vectors", "value_norms"):
            first.pop(name, None)
        first.update(pooled="largest", blocks=[expected.rows, expected.columns])
    return edit


def make_negative(expected):
    """A measure that the caller computed, with a number from -0.7 to 1.1 for each head."""
    def edit(data):
        data["without_measure"] = {"name": "loss", "unit": "nats"}
        data["texts"][0]["without"] = [[*place, value] for place, value in negative(expected).items()]
    return edit


def negative(expected):
    return {place: -0.7 + 1.8 * ((5 * at) % 37) / 36 for at, place in enumerate((layer, head) for layer in range(expected.layers) for head in range(expected.heads))}


def check_points(checks, session, wanted, what):
    points = session.page.evaluate(POINTS)
    found = {(layer, head): (x, y) for layer, head, x, y in points}
    far = max((math.dist(found[place], wanted[place]) for place in wanted if place in found), default=math.inf)
    largest = max(max(map(abs, place)) for place in wanted.values())
    checks.that(found.keys() == wanted.keys() and far <= STEP * max(1, largest), f"{what}: the {len(wanted)} points are at the values of their heads", (len(found), far))


def check_one_text(checks, session, choose):
    expected, page = session.expected, session.page
    page.locator('[data-heads="scatter"]').click()
    places = [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]
    for x, y in (("previous", "entropy"), ("distance", "separators")):
        page.locator("#scatter-x").select_option(x)
        page.locator("#scatter-y").select_option(y)
        names = {"previous": "previous token", "entropy": "entropy in bits", "distance": "distance in tokens", "separators": "separators"}
        check_points(checks, session, {place: tuple(measured(expected, *place)[names[one]] for one in (x, y)) for place in places}, f"{y} against {x} of one text")
    checks.that(not page.locator(".names-of-heads").is_visible() and page.locator("#scatter circle[stroke-width='1.5'][data-at]").count() == 0, "heads get no name from the measures of a single text")
    page.locator("#scatter-x").select_option("layer")
    check_points(checks, session, {place: (place[0], measured(expected, *place)["separators"]) for place in places}, "a measure against the layer")
    page.locator(".formulas summary").click()
    rows = page.locator(".formulas tr").count()
    checks.that(rows == 11 and all(len(row.strip()) > 20 for row in page.locator(".formulas tr").all_text_contents()), "each measure of this text has a formula and a source", rows)
    reload(page)
    session.drawn()
    checks.that(page.locator("#scatter-x").input_value() == "layer" and page.locator("#scatter-y").input_value() == "separators", "a reload keeps the axes")


def check_over_texts(checks, session, choose):
    expected, page = session.expected, session.page
    values = values_over_texts(expected)
    checks.that(page.locator("#scatter").is_visible() and page.locator("#over").input_value() == "file", "a page with measures over texts opens with their scatter plot")
    page.locator("#scatter-x").select_option("previous")
    page.locator("#scatter-y").select_option("induction")
    wanted = {place: (values["previous"][place][0], values["induction"][place][0]) for place in values["previous"]}
    check_points(checks, session, wanted, "induction against previous token over 20 texts")
    named = [place for place, (*_, held) in values["previous"].items() if held >= 18]
    shown = page.locator(".names-of-heads li").all_text_contents()
    checks.that(len(shown) == 1 and shown[0].startswith("previous token at least 50 % in 9 of 10 texts:") and [tuple(map(int, one.split("·"))) for one in page.locator(".names-of-heads button").all_text_contents()] == named, f"{len(named)} heads have a name, none by a measure of four texts", shown)
    place = choose.random.choice(list(wanted))
    circle = page.locator(f'#scatter circle[data-layer="{place[0]}"][data-head="{place[1]}"][data-at]')
    label = circle.get_attribute("aria-label")
    mean, spread, *_ = values["previous"][place]
    checks.that(label.startswith(f"{title(*place)}: ") and f"previous token {round(100 * mean)} % ± {round(100 * spread)} %" in label, "the label of a point has the mean and the standard deviation over the texts", label)
    circle.hover(force=True)
    checks.that(session.text("#scatter .told").startswith("Layer"), "pointing at a head names it", session.text("#scatter .told"))
    nearest = page.locator("#scatter .told").text_content().split(":")[0]
    circle.click(force=True)
    checks.that(session.text("#head-title") == nearest, "a click opens the head that was named", (session.text("#head-title"), nearest))
    page.keyboard.press("Escape")
    page.locator(".names-of-heads button").first.click()
    checks.that(session.text("#head-title") == title(*named[0]), "a name's button opens its head")
    badges = page.locator("#badges li").all_text_contents()
    checks.that(badges[0] == "previous token in 20 of 20 texts at least 50 %" and page.locator("#badges li.named").count() == 1, "the open head has its name as a badge", badges)
    page.locator("#over").select_option("text")
    checks.that(page.locator("#badges li.named").count() == 0, "when the measures of one text are chosen, the head has no badge with a name")


def check_keys(checks, session):
    page = session.page
    values = values_over_texts(session.expected)
    page.locator("#scatter-x").select_option("previous")
    page.locator("#scatter-y").select_option("induction")
    page.locator("body").click(position={"x": 1, "y": 1})
    page.keyboard.press("ArrowRight")
    at = lambda: page.evaluate("() => { const { layer, head } = document.activeElement.dataset; return [Number(layer), Number(head)]; }")
    first = tuple(at())
    checks.that(first in values["previous"], "an arrow key reaches the points", first)
    order = sorted(values["previous"], key=lambda place: values["previous"][place][0])
    page.keyboard.press("ArrowRight")
    checks.that(values["previous"][tuple(at())][0] >= values["previous"][first][0] and tuple(at()) != first, "arrow right goes to the next head in the order of x")
    up = tuple(at())
    page.keyboard.press("ArrowUp")
    checks.that(values["induction"][tuple(at())][0] >= values["induction"][up][0] and tuple(at()) != up, "arrow up goes to the next head in the order of y")
    chosen = tuple(at())
    page.keyboard.press("Enter")
    checks.that(session.text("#head-title") == title(*chosen), "Enter opens the head", len(order))
    page.keyboard.press("Escape")
    checks.that(tuple(at()) == chosen, "Escape goes back to the head's point")


def check_grid(checks, session):
    page, expected = session.page, session.expected
    page.locator('[data-heads="maps"]').click()
    session.drawn()
    notes = page.evaluate("() => [...document.querySelectorAll('#grid .thumb')].filter((one) => one.dataset.note).map((one) => [Number(one.dataset.layer), Number(one.dataset.head), one.dataset.note])")
    named = [place for place, (*_, held) in values_over_texts(expected)["previous"].items() if held >= 18]
    checks.that([tuple(one[:2]) for one in notes] == named and all(one[2] == "previous token" for one in notes), "the thumbnails of heads that have a name show it", notes[:3])
    page.locator("#measure").select_option("induction")
    note = page.locator('.thumb[data-layer="0"][data-head="1"]').get_attribute("data-note")
    checks.that(note == "13 %\n± 10 %", "a thumbnail shows the mean and the standard deviation over the texts", note)


NOTES = "() => [...document.querySelectorAll('#grid .thumb')].filter((one) => one.dataset.note).map((one) => [Number(one.dataset.layer), Number(one.dataset.head), one.dataset.note].join(' '))"


def check_sources(checks, session):
    """The names below the thumbnails follow the chosen source of the measures, also if both sources have the same number of texts."""
    page = session.page
    named = [f"{layer} {head} previous token" for (layer, head), (*_, held) in values_over_texts(session.expected)["previous"].items() if held >= 18]
    checks.that(page.evaluate(NOTES) == named, "thumbnails show the names from the measures over other texts", page.evaluate(NOTES))
    page.locator("#over").select_option("all")
    page.wait_for_function("() => document.querySelector('.thumb[data-layer=\"0\"][data-head=\"1\"]').dataset.note === 'previous token'")
    ready = page.evaluate(NOTES)
    checks.that("0 1 previous token" in ready and ready != named, "when the page's own texts are chosen, the thumbnails show the names from these texts, also if no measure is chosen", ready)
    page.locator("#over").select_option("file")
    checks.that(page.evaluate(NOTES) == named, "when the other texts are chosen again, the thumbnails show their names again", page.evaluate(NOTES))
    page.locator("#special").select_option("share")
    option = page.locator("#over option").last.text_content()
    checks.that("not merged or shared out" in option, "the page says that sharing out does not change the measures over texts that are not in the page", option)
    page.locator('[data-heads="scatter"]').click()
    checks.that("for pieces and including special tokens" in session.text("#scatter"), "the text below the scatter plot says that its measures are of pieces and include special tokens")


def check_tabs(checks, session):
    page = session.page
    options = lambda: page.locator("#over option").evaluate_all("(all) => all.map((one) => one.value)")
    checks.that(options() == ["text", "file"], "the first set of maps has the measures", options())
    page.locator("#tabs button", has_text="Decoder").click()
    checks.that("file" not in options() and page.locator(".names-of-heads button").count() == 0, "another set of maps with as many heads does not have these measures", options())


def check_norms(checks, session):
    """If the page opens with the scatter plot and norm-weighted maps, the reader can go to the maps and choose attention weights there."""
    page = session.page
    checks.that(page.locator("#scatter").is_visible() and page.locator('[data-heads="maps"]').is_visible() and not page.locator('[data-heads="distances"]').is_visible(), "the scatter plot has a button for the maps, and none for distances")
    page.locator('[data-heads="maps"]').click()
    session.drawn()
    checks.that(page.locator("#grid").is_visible() and page.locator("#weighting").input_value() == "norm", "the maps are norm-weighted")
    page.locator("#weighting").select_option("attention")
    checks.that(page.locator('[data-heads="distances"]').is_visible(), "when attention weights are chosen, the page has the button for distances")


def check_pooled(checks, session):
    page = session.page
    checks.that(page.locator("#scatter").is_visible(), "a page with pooled maps and measures opens with the scatter plot")
    page.locator('[data-heads="maps"]').click()
    session.drawn()
    checks.that(page.locator("#grid").is_visible() and not page.locator('[data-heads="distances"]').is_visible(), "the page with pooled maps has a button for the maps, and none for distances")
    page.locator("#measure").select_option("induction")
    note = page.locator('.thumb[data-layer="0"][data-head="1"]').get_attribute("data-note")
    checks.that(note == "13 %\n± 10 %", "the thumbnails of pooled maps have the measured numbers", note)


def check_negative(checks, session):
    page, wanted = session.page, negative(session.expected)
    page.locator('[data-heads="scatter"]').click()
    page.locator("#scatter-x").select_option("without")
    page.locator("#scatter-y").select_option("previous")
    check_points(checks, session, {place: (value, measured(session.expected, *place)["previous token"]) for place, value in wanted.items()}, "a measure with numbers below 0")
    outside = page.evaluate("() => { const [left, right] = document.querySelector('#scatter .plot path[fill=none]').getAttribute('d').match(/M([\\d.]+).*H([\\d.]+)/).slice(1).map(Number); return [...document.querySelectorAll('#scatter circle[data-at]')].map((one) => Number(one.getAttribute('cx'))).filter((x) => x < left || x > right); }")
    checks.that(not outside, "every point is within the axes", outside)


def check_access(checks, session):
    page = session.page
    for width in (1280, 390):
        session.resize(width)
        page.locator(".formulas").evaluate("(one) => { one.open = true; }")
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        checks.that(wide <= width, f"nothing is wider than {width} pixels", wide)
        violations = axe_violations(page)
        checks.that(not violations, f"no violation of accessibility at {width} pixels", [(one["id"], one["nodes"][0]["html"][:120]) for one in violations])


def check_figure(checks, session):
    page = session.page
    svg = exported(page, "svg")[1].decode()
    checks.that(svg.count("<circle") == session.expected.layers * session.expected.heads and "var(" not in svg, "the exported figure has all points, and its colours are no CSS variables, which other programs cannot read", svg.count("<circle"))


def rounds(test):
    choose, made = test.choose, test.made(make_measured(test.expected))
    return [
        ("one text", check_one_text, [choose], {}),
        ("over texts", check_over_texts, [choose], {**made, "drawn": False}),
        ("keys", check_keys, [], {**made, "drawn": False}),
        ("grid", check_grid, [], {**made, "drawn": False}),
        ("sources", check_sources, [], test.made(make_five(test.expected))),
        ("tabs", check_tabs, [], {**test.made(make_tabs(test.expected)), "drawn": False}),
        ("norms", check_norms, [], {**test.made(make_norms(test.expected)), "drawn": False}),
        ("pooled", check_pooled, [], {**test.made(make_pooled(test.expected)), "drawn": False}),
        ("negative", check_negative, [], test.made(make_negative(test.expected))),
        ("figure", check_figure, [], {**made, "drawn": False}),
        ("access", check_access, [], {**made, "drawn": False}),
        ("access in the dark", check_access, [], {**made, "drawn": False, "color_scheme": "dark"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
