#!/usr/bin/env python3
"""The view "compare" shows two heads and their difference. The heads may be of one text, of two texts or of two pages.

    compare_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import json
import math
import re
import xml.etree.ElementTree as xml

from session import colours_of, divergence, encoded, exported, exported_rows, middle_of, reload, run, title, variant

EACH = 7.7e-6  # largest error of an attention weight that is stored in 16 bits
HOSTILE = ["[CLS]", "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\u202eabc", '"><b>', "&lt;", "{{data}}", "__proto__", "'", "\\u003c", "[SEP]"]


class Maps:
    """The attention maps that the page must show, from the test's arrays. With shift=n, each head has the map of the head n places later."""

    def __init__(self, expected, shift=0):
        self.expected, self.shift = expected, shift

    def row(self, layer, head, t):
        whole = isinstance(layer, int) and isinstance(head, int)
        at = divmod((layer * self.expected.heads + head + self.shift) % (self.expected.layers * self.expected.heads), self.expected.heads) if whole else (layer, head)
        return [self.expected.weight(*at, t, s) for s in range(self.expected.columns)]

    def distance(self, mine, other, theirs):
        rows = [t for t in range(self.expected.rows) if t not in self.expected.queries["special"]]
        return math.fsum(divergence(self.row(*mine, t), other.row(*theirs, t)) for t in rows) / len(rows)


def weights_of(maps):
    e = maps.expected
    return [[encoded([w for t in range(e.rows) for w in maps.row(layer, head, t)]) for head in range(e.heads)] for layer in range(e.layers)]


def add_texts(expected):
    """Returns an edit that adds two texts. Text 1 has as many words as text 0, but other words, and each of its heads has the map of the head five places later. Text 2 has two words fewer."""
    def edit(data):
        first = data["texts"][0]
        other = json.loads(json.dumps(first))
        other["text"] = "Other words"
        other["queries"]["pieces"][1:4] = ["one", "grey", "cat"]
        other["weights"] = weights_of(Maps(expected, 5))
        size = expected.rows - 2
        less = json.loads(json.dumps(first))
        less["text"] = "Two words less"
        less["queries"] = {"pieces": first["queries"]["pieces"][:size], "special": [0]}
        less["weights"] = [[encoded([expected.weight(layer, head, t, s) for t in range(size) for s in range(size)]) for head in range(expected.heads)] for layer in range(expected.layers)]
        data["texts"] += [other, less]
    return edit


def hover(session, pane, row, column):
    session.page.evaluate("() => document.querySelector('#stage').scrollIntoView()")
    cells = session.page.locator(f".pane.{pane} .cells")
    cells.scroll_into_view_if_needed()
    session.settled()
    cells.hover(position=middle_of(cells, row, column))


def told(session):
    """Returns the numbers A, B and A − B of the headline, or the headline if it does not have them."""
    numbers = re.search(r"A ([\d.]+) · B ([\d.]+) · A − B ([−+]?[\d.]+)( \(B: .* → .*\))?$", session.text("#readout"))
    return [float(one.replace("−", "-")) for one in numbers.groups()[:3]] if numbers else session.text("#readout")


def check_cells(checks, session, choose, mine, theirs, other, what):
    """The headline, the lists and the colours that show the difference of the two heads agree with the arrays."""
    maps = Maps(session.expected)
    wrong = []
    for row, column in choose.cells(5):
        a, b = maps.row(*mine, row)[column], other.row(*theirs, row)[column]
        for pane in ("a", "b", "difference"):
            hover(session, pane, row, column)
            found = told(session)
            if isinstance(found, str) or any(abs(x - y) > 0.5e-4 + 2 * EACH for x, y in zip(found, (a, b, a - b))):
                wrong.append((pane, row, column, found, (a, b, a - b)))
    checks.that(not wrong, f"{what}: A, B and A − B agree with the arrays", wrong[:3])
    differences = [a - b for a, b in zip(maps.row(*mine, row), other.row(*theirs, row))]
    listed = [float(one.replace("−", "-")) for one in session.page.locator("#row-list .number").all_text_contents()]
    sizes = sorted(map(abs, differences), reverse=True)  # two keys may have differences of the same size and opposite signs, in either order
    right = all(abs(abs(x) - size) < 1e-4 and min(abs(x - y) for y in differences) < 1e-4 for x, size in zip(listed, sizes))
    checks.that(len(listed) == 6 and right, f"{what}: the list of the row has its largest differences", (listed, differences))
    bits = divergence(maps.row(*mine, row), other.row(*theirs, row))
    checks.that(abs(float(re.search(r"([\d.]+) bits", session.text("#row-sum")).group(1)) - bits) < 0.0015, f"{what}: the distance of the two rows agrees with the arrays", (session.text("#row-sum"), bits))
    said = session.text(".pane.difference .told")
    wanted = maps.distance(mine, other, theirs)
    checks.that(abs(float(re.search(r"([\d.]+) bits", said).group(1)) - wanted) < 0.0015, f"{what}: the distance of the two heads is {wanted:.3f} bits", said)
    colours = colours_of(session.page.locator(".pane.difference .cells canvas"))
    legend = colours_of(session.page.locator(".pane.difference .bar-of-colours"))
    wrong = []
    for t in range(session.expected.rows):
        for s, (a, b) in enumerate(zip(maps.row(*mine, t), other.row(*theirs, t))):
            found = colours[t * session.expected.columns + s]
            at = 255 * (0.5 + 0.5 * math.copysign(math.sqrt(abs(a - b)), a - b))
            slack = 1 + 255 * 0.5 * abs(math.sqrt(abs(a - b)) - math.sqrt(abs(a - b) + 2 * EACH))
            if not any(found == legend[i] for i in range(max(0, math.floor(at - slack)), min(255, math.ceil(at + slack)) + 1)):
                wrong.append((t, s, found, at))
    checks.that(not wrong, f"{what}: every cell of the difference has the colour of its size and sign", wrong[:3])


def check_heads(checks, session, choose):
    """The page offers the most similar heads, lets the reader choose any other head, can swap A and B, and keeps both in the address."""
    expected, page, maps = session.expected, session.page, Maps(session.expected)
    mine = choose.heads(1)[0]
    session.open(*mine)
    page.locator('[data-view="compare"]').click()
    distances = {(layer, head): maps.distance(mine, maps, (layer, head)) for layer in range(expected.layers) for head in range(expected.heads) if (layer, head) != mine}
    nearest = sorted(distances, key=lambda place: distances[place])
    offered = [tuple(map(int, one.split("."))) for one in page.locator(".near button").evaluate_all("(all) => all.map((one) => one.dataset.other)")]
    bits = [float(one.split()[-1]) for one in page.locator(".near button").all_text_contents()]
    alike = all(abs(distances[one] - distances[other]) < 1e-3 for one, other in zip(offered, nearest))  # two heads may be equally similar, in either order
    checks.that(len(offered) == 5 and alike and all(abs(x - distances[place]) < 0.0055 for x, place in zip(bits, offered)), f"the page offers the five heads that are most similar to {mine}: {offered}", (nearest[:5], bits))
    checks.that(session.text(".pane.b h3") == f"B: {title(*offered[0])}", "at first, B is the most similar head", session.text(".pane.b h3"))
    check_cells(checks, session, choose, mine, offered[0], maps, f"{mine} and {offered[0]}")
    theirs = choose.heads(1)[0]
    page.locator("#other-layer").select_option(str(theirs[0]))
    page.locator("#other-head").select_option(str(theirs[1]))
    check_cells(checks, session, choose, mine, theirs, maps, f"{mine} and {theirs}")
    page.locator("#swap").click()
    reload(page)
    session.drawn()
    checks.that((session.text(".pane.a h3"), session.text(".pane.b h3")) == (f"A: {title(*theirs)}", f"B: {title(*mine)}"), "swapped, and a reload keeps both", session.text(".pane.b h3"))
    check_cells(checks, session, choose, theirs, mine, maps, "swapped")
    page.locator("#other-layer").select_option("mean")
    check_cells(checks, session, choose, theirs, ("mean", "mean"), maps, "with the mean of all heads")
    page.locator(".pane.a .cells").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    checks.that(page.locator("#status").text_content().startswith(expected.pair(0, 0) + " A "), "arrow keys move, and the difference is spoken", page.locator("#status").text_content())


def check_level(checks, session, choose, columns):
    session.open(*choose.heads(1)[0])
    session.page.locator('[data-view="compare"]').click()
    tops = session.page.locator(".pane .cells").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")[:columns]
    checks.that(len(tops) == columns and max(tops) - min(tops) < 1, f"{columns} maps beside each other are at the same height", tops)


def check_same(checks, session, choose):
    layer, head = choose.heads(1)[0]
    session.page.goto(f"{session.url}#layer={layer}&head={head}&view=compare&with={layer}.{head}")
    reload(session.page)
    session.drawn()
    found = set(colours_of(session.page.locator(".pane.difference .cells canvas")))
    middle = colours_of(session.page.locator(".pane.difference .bar-of-colours"))[127:129]
    zero = session.expected.weights
    wanted = set(middle) | ({(0, 0, 0, 0)} if any(w == 0 for w in zero) else set())
    checks.that(found <= wanted, "a head compared with itself: every cell has the middle colour", found)
    hover(session, "difference", *choose.cells(1)[0])
    checks.that(session.text("#readout").endswith("A − B 0.0000"), "a head compared with itself: the difference is 0 and is shown without a sign", session.text("#readout"))
    checks.that("0.000 bits" in session.text(".pane.difference .told"), "a head compared with itself: the distance is 0")


def check_empty(checks, session, choose):
    """All attention weights of head 0.0 are 0, so it cannot be compared with other heads. The page must not offer it as one of the most similar heads."""
    session.open(session.expected.layers - 1, session.expected.heads - 1)
    session.page.locator('[data-view="compare"]').click()
    offered = session.page.locator(".near button").evaluate_all("(all) => all.map((one) => one.dataset.other)")
    checks.that(len(offered) == 5 and "0.0" not in offered and session.text(".pane.b h3") != f"B: {title(0, 0)}", "a head without attention weights is not among the most similar heads", offered)


def without_first_head(expected):
    return lambda data: data["texts"][0]["weights"][0].__setitem__(0, encoded([0] * (expected.rows * expected.columns)))


def check_texts(checks, session, choose):
    expected, page = session.expected, session.page
    mine, theirs = choose.heads(2)
    session.open(*mine)
    page.locator('[data-view="compare"]').click()
    page.locator("#other-text").select_option("1")
    page.locator("#other-layer").select_option(str(theirs[0]))
    page.locator("#other-head").select_option(str(theirs[1]))
    checks.that("differ in 3 words" in session.text(".compare > .note"), "the page says in how many words the texts differ", session.text(".compare > .note"))
    check_cells(checks, session, choose, mine, theirs, Maps(expected, 5), "two texts")
    hover(session, "a", 2, 3)
    checks.that("(B: grey → cat)" in session.text("#readout"), "the readout also shows the words of B", session.text("#readout"))
    page.locator("#other-text").select_option("2")
    checks.that(not page.locator(".pane.difference").is_visible() and "no difference" in session.text(".compare > .note"), "for maps of different sizes the page shows no difference and says so")
    row, column = expected.rows - 3, 1
    hover(session, "b", row, column)
    found = float(session.text(".pane.b .told").split()[-1])
    wanted = expected.weight(*theirs, row, column)
    checks.that(abs(found - wanted) < 0.6e-4, "the pane of B shows the weight of head B", (found, wanted))
    checks.that(page.locator(".pane.b .row-band").is_visible() and not page.locator(".pane.a .row-band").is_visible(), "maps of different sizes have separate cursors")


def check_still(checks, session):
    """The page does not move under the pointer, even if it is scrolled to its end."""
    session.resize(1400, session.page.evaluate("document.documentElement.scrollHeight") - 27)
    session.page.mouse.move(5, 5)
    session.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    session.settled()
    before = session.page.evaluate("scrollY")
    for pane in ("a", "b", "difference"):
        # move the pointer without hover(), which may scroll the page
        session.page.mouse.move(*session.page.evaluate("(pane) => { const box = document.querySelector(`.pane.${pane} .cells`).getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; }", pane))
        session.settled()
        checks.that(session.page.evaluate("scrollY") == before > 0, f"pointing at a cell of {pane} does not scroll", (before, session.page.evaluate("scrollY")))
    session.resize(1400, 1400)


def check_file(checks, session, choose, other, folder):
    """A second page can be opened with the file chooser or by dropping it. The page refuses a file that polyhead did not make, with a message that names the file."""
    page = session.page
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    mine = choose.heads(1)[0]
    session.open(*mine)
    page.locator('[data-view="compare"]').click()
    hostile = folder / "<b>hostile.html"
    def edit(data):
        data["texts"][0]["queries"]["pieces"] = HOSTILE
        data["texts"][0]["text"] = HOSTILE[1]
        data["texts"][0]["weights"] = weights_of(Maps(session.expected, 5))
    variant(other, edit, hostile)
    page.locator("#other-file").set_input_files(hostile)
    page.locator(".pane.b .told", has_text="hostile").wait_for()  # the pane appears before the file is read, so wait for the file's name
    checks.that(session.text(".pane.b h3") == f"B: {title(*mine)}" and "<b>hostile.html" in session.text(".pane.b .told"), "after a second page is opened, B is a head of this page", session.text(".pane.b .told"))
    check_cells(checks, session, choose, mine, mine, Maps(session.expected, 5), "two pages")
    check_still(checks, session)
    labels = page.locator(".pane.b .queries .label").all_text_contents()
    checks.that(labels[1] == HOSTILE[1] and page.locator(".pane img, .pane b, .told b").count() == 0 and not alerts, "the page does not run or render HTML in the words of the other page", (labels, alerts))
    page.locator("#text").select_option("1")
    checks.that(session.text("#sentence") == HOSTILE[1], "the other page's text can be read alone too", session.text("#sentence"))
    session.drawn()
    damaged = {"none.html": "<p>hello", "empty.html": '<script id="data">{}</script>', "json.html": '<script id="data">{"texts": [</script>'}
    for name, change in {"layers.html": lambda text: text.update(layers=99), "codes.html": lambda text: text["weights"][0].__setitem__(0, "AAAA"), "tokens.html": lambda text: text["queries"].update(special=["x"]),
                         "links.html": lambda text: text.update(links={"sure": [[0, 99]], "possible": []}), "gate.html": lambda text: text.update(gate=[["AAAA"]], gate_width=4)}.items():
        damaged[name] = variant(other, lambda data, change=change: change(data["texts"][0]), folder / name).read_text(encoding="utf-8")
    for name, text in damaged.items():
        (folder / name).write_text(text, encoding="utf-8")
        before = page.locator("#text option").count()
        page.locator("#other-file").set_input_files(folder / name)
        page.wait_for_function("(name) => document.querySelector('#partner .note').textContent.includes(name)", arg=name)
        checks.that(page.locator("#partner .note").is_visible() and page.locator("#text option").count() == before, f"{name} is refused: {session.text('#partner .note')}")
    page.evaluate("""(html) => {
      const data = new DataTransfer();
      data.items.add(new File([html], 'dropped.html', { type: 'text/html' }));
      for (const name of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
    }""", other.read_text(encoding="utf-8"))
    page.wait_for_function("() => [...document.querySelectorAll('#text option')].some((one) => one.textContent.includes('dropped.html'))")
    checks.that(not page.locator("#partner .note").is_visible(), "a dropped page is opened")


def check_export(checks, session, choose):
    mine, theirs = choose.heads(2)
    page, maps = session.page, Maps(session.expected)
    page.goto(f"{session.url}#layer={mine[0]}&head={mine[1]}&view=compare&with={theirs[0]}.{theirs[1]}")
    reload(page)
    session.drawn()
    words = [one.text for one in xml.fromstring(exported(page, "svg")[1]).iter("{http://www.w3.org/2000/svg}text")]
    checks.that({f"A: {title(*mine)}", f"B: {title(*theirs)}", "A − B", "+1", "−1"} <= set(words), "SVG: both heads, the difference and its legend", words[:12])
    rows = exported_rows(page)
    worst = 0
    for at, (_, _, a, b, difference) in enumerate(rows[1:]):
        t, s = divmod(at, session.expected.columns)
        wanted = (maps.row(*mine, t)[s], maps.row(*theirs, t)[s])
        worst = max(worst, abs(float(a) - wanted[0]), abs(float(b) - wanted[1]), abs(float(difference) - wanted[0] + wanted[1]) / 2)
    checks.that(len(rows) == 1 + session.expected.rows * session.expected.columns and worst < EACH + 1e-6, f"CSV: A, B and A − B of every pair, error at most {worst:.1e}", rows[:2])


# Matrices on linear RGB that simulate how people without one kind of cone see colours (Machado, Oliveira, Fernandes 2009, severity 1).
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(linear):
    x, y, z = (math.fsum(m * c for m, c in zip(row, linear)) / white for row, white in zip(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]], (0.95047, 1, 1.08883)))
    f = lambda t: t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def check_palette(checks, session, choose, name):
    session.open(*choose.heads(1)[0])
    session.page.locator('[data-view="compare"]').click()
    legend = colours_of(session.page.locator(".pane.difference .bar-of-colours"))
    linear = [[c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]] for colour in legend]
    for kind, matrix in BLIND.items():
        seen = [lab([min(1, max(0, math.fsum(m * c for m, c in zip(row, colour)))) for row in matrix]) for colour in linear]
        worst = min(math.dist(seen[128 + away], seen[127 - away]) for away in range(32, 128))
        checks.that(worst > 20, f"{name}, {kind}: − and + differ by {worst:.0f} (CIELAB; 2.3 is just noticeable)", worst)
        steps = [abs(seen[i][0] - seen[127 if i < 128 else 128][0]) for i in range(256)]
        checks.that(all(steps[i] <= steps[i - 1] + 0.5 for i in range(1, 128)) and all(steps[i] >= steps[i - 1] - 0.5 for i in range(129, 256)), f"{name}, {kind}: larger differences differ more in lightness from 0")


def rounds(test):
    expected, choose = test.expected, test.choose
    wide = {"viewport": {"width": 1400, "height": 1400}}
    return [
        ("heads", check_heads, [choose], wide),
        ("same", check_same, [choose], wide),
        ("empty", check_empty, [choose], {**test.made(without_first_head(expected)), **wide}),
        ("texts", check_texts, [choose], {**test.made(add_texts(expected)), **wide}),
        ("file", check_file, [choose, test.page, test.folder], wide),
        ("three", check_level, [choose, 3], {"viewport": {"width": 1920, "height": 1000}}),
        ("two", check_level, [choose, 2], {"viewport": {"width": 1280, "height": 1000}}),
        ("export", check_export, [choose], {}),
        ("light", check_palette, [choose, "light"], {}),
        ("dark", check_palette, [choose, "dark"], {"color_scheme": "dark"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
