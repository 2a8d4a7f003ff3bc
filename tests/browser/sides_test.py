#!/usr/bin/env python3
"""A page with several sets of maps has a tab for each set. Also tested: the blocks of a pair of texts, known links, masked keys, gates and names of axes.

    sides_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math
import re

from session import Expected, axe_violations, colours_of, encoded, exported, reload, run

SURE, POSSIBLE = [(1, 1), (2, 3), (3, 2)], [(3, 4), (4, 5)]
WITH_SPECIAL = SURE + [(0, 0), (4, 6)]  # The last two links have special tokens. The page outlines them, but does not count them in the alignment error rate.
SPECIAL_ROWS, SPECIAL_COLUMNS, MASKED = [0], [0, 6], [5]
GERMAN, ENGLISH = ["<s>", "Katzen", "saßen", "auf", "Matten"], ["<s>", "Cats", "on", "sat", "the", "mats", "</s>"]


class Made(Expected):
    """A set of random attention maps, and what the page must show of them."""

    def __init__(self, source, index, queries, keys, layers, heads):
        self.text, self.queries, self.keys = index, {"pieces": queries}, {"pieces": keys or queries}
        self.layers, self.heads, self.rows, self.columns = layers, heads, len(queries), len(keys or queries)
        self.approximate = False
        self.weights = []
        for _ in range(layers * heads * self.rows):
            row = [math.exp(source.gauss(0, 2)) for _ in range(self.columns)]
            self.weights += [x / sum(row) for x in row]

    def entry(self, **more):
        size = self.rows * self.columns
        weights = [[encoded(self.weights[(layer * self.heads + head) * size:][:size]) for head in range(self.heads)] for layer in range(self.layers)]
        sides = {"queries": {"special": [], **self.queries}, **({"keys": {"special": [], **self.keys}} if self.keys["pieces"] is not self.queries["pieces"] else {})}
        return {"text": "", "layers": self.layers, "heads": self.heads, "weights": weights, **sides, **more}


def error_rate(cross, layer, head):
    """Returns the alignment error rate (Och and Ney 2003). A head links each word to the word with the largest weight; special tokens are left out."""
    own = set()
    for t in set(range(cross.rows)) - set(SPECIAL_ROWS):
        own.add((t, max(set(range(cross.columns)) - set(SPECIAL_COLUMNS), key=lambda s: cross.weight(layer, head, t, s))))
    sure, possible = set(SURE), set(SURE + POSSIBLE)
    return 1 - (len(own & sure) + len(own & possible)) / (len(own) + len(sure))


def check_access(checks, session, where):
    wrong = [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in axe_violations(session.page)]
    checks.that(not wrong, f"axe-core finds nothing: {where}", wrong)


def tab(session, name):
    session.page.locator("#tabs button", has_text=re.compile(f"^{name}$")).click()
    session.drawn()


def check_tabs(checks, session, sets, choose):
    page, (fox, cross, _, _) = session.page, sets
    names = lambda: page.locator("#tabs button").all_text_contents()
    checks.that(names() == ["Encoder", "Cross-attention"], "the page has a tab for each set of maps", names())
    checks.that(page.locator("#text option").count() == 2, "a text with several sets of maps is a single entry of the list of texts")
    session.open(5, 11)
    tab(session, "Cross-attention")
    checks.that(page.locator("#head").is_hidden() and page.locator(".thumb").count() == 2 * 4 + 1, "the other set has its own layers and heads")
    session.open(1, 2)
    t, s = choose.random.randrange(5), choose.random.randrange(7)
    session.hover(t, s)
    session.expected = cross
    wrong = session.right(1, 2, t, s)
    checks.that(not wrong, "the other set has its own words and weights", wrong)
    labels = page.locator(".keys .label").all_text_contents()
    checks.that([re.sub("[₀-₉]", "", label) for label in labels] == ENGLISH, "the keys of the other set are other words", labels)
    reload(page)
    session.drawn()
    checks.that(page.locator('#tabs [aria-pressed="true"]').text_content() == "Cross-attention" and page.locator(".keys .label").count() == 7, "a reload keeps the tab")
    page.locator("#text").select_option(index=1)
    session.drawn()
    checks.that(names() == ["With the pair bias", "Without the pair bias"] and page.locator('#tabs [aria-pressed="true"]').text_content() == "Without the pair bias", "another text has its own tabs", names())


def check_links(checks, session, sets, choose):
    page, cross = session.page, sets[1]
    page.locator("#measure").select_option("errors")
    wrong = []
    for layer in range(2):
        for head in range(3):
            said = page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').get_attribute("aria-label")
            if abs(float(said.split()[-1]) - error_rate(cross, layer, head)) > 0.0005:
                wrong.append((said, error_rate(cross, layer, head)))
    checks.that(not wrong, "the page shows the alignment error rate of each head's links", wrong)
    layer, head = choose.random.randrange(2), choose.random.randrange(3)
    session.open(layer, head)
    note = session.text("#links-note")
    a, b, c, d, rate = map(float, re.search(r"1 − \((\d+) \+ (\d+)\) / \((\d+) \+ (\d+)\) = ([\d.-]+)", note).groups())
    checks.that(abs(1 - (a + b) / (c + d) - rate) < 0.0005 and abs(rate - error_rate(cross, layer, head)) < 0.0005 and (c, d) == (4, 3), "the note shows how the rate is computed; links of special tokens do not count", note)
    for hidden in (False, True):
        page.locator("#special").select_option("hide" if hidden else "show")
        rows, columns = ([place for place in range(count) if not (hidden and place in special)] for count, special in ((5, SPECIAL_ROWS), (7, SPECIAL_COLUMNS)))
        wanted = sorted((rows.index(t), columns.index(s), "gold" if (t, s) in WITH_SPECIAL else "gold possible") for t, s in WITH_SPECIAL + POSSIBLE if t in rows and s in columns)
        shown = page.evaluate("""() => {
          const cells = document.querySelector('.cells').getBoundingClientRect();
          const columns = document.querySelectorAll('.keys .label').length, side = cells.width / columns;
          return [...document.querySelectorAll('.gold')].map((mark) => {
            const box = mark.getBoundingClientRect();
            return [Math.round((box.top - cells.top) / side), Math.round((box.left - cells.left) / side), mark.className];
          });
        }""")
        checks.that(sorted(map(tuple, shown)) == wanted, f"the cells of the known links are outlined{'; special tokens are hidden' if hidden else ''}", (shown, wanted))
    svg = exported(page, "svg")[1].decode()
    checks.that(svg.count('stroke="#ffb800"') == 5 and "Cross-attention" in svg, "the exported figure has the known links, and the name of the set", svg.count('stroke="#ffb800"'))
    page.locator('[data-view="lines"]').click()
    gold = sum(red > 150 and green > 90 and blue < 60 and opacity > 150 for red, green, blue, opacity in colours_of(page.locator(".lines canvas")))
    checks.that(gold > 500, "the view Lines draws known links in gold", gold)
    page.locator('[data-view="read"]').click()
    page.locator('.read-body .running').first.locator('[data-index="3"]').click()
    linked = page.locator(".read-body .piece.linked").all_text_contents()
    check_access(checks, session, "text of two sides with known links")
    checks.that(sorted(linked) == sorted(ENGLISH[s] for t, s in SURE + POSSIBLE if t == 3), "the view Text underlines the words that known links join to the chosen word", linked)


def check_masked(checks, session, sets):
    page = session.page
    session.open(0, 0)
    boxes = page.evaluate("""() => {
      const cells = document.querySelector('.cells').getBoundingClientRect();
      return [...document.querySelectorAll('.blocked-shade')].map((shade) => [(shade.getBoundingClientRect().left - cells.left) / cells.width * 7, shade.getBoundingClientRect().height / cells.height]);
    }""")
    checks.that([[round(at), round(part)] for at, part in boxes] == [[5, 1]], "a masked key is shaded from top to bottom", boxes)
    check_access(checks, session, "a map with known links and a masked key")
    struck = [label.text_content() for label in page.locator(".keys .label.blocked").all()]
    checks.that(struck == [ENGLISH[5]] and page.locator("#blocked-legend").is_visible(), "the masked key's word is struck through, and the legend explains it", struck)


def check_layer(checks, session, sets, gates, choose):
    page, (_, _, biased, plain) = session.page, sets
    head, t = 1, choose.random.randrange(6)  # head 1, because a strip that always shows the gates of head 0 must fail
    session.open(0, head)
    axes = page.locator(".strip-corner").text_content()
    checks.that(axes == "residue j →residue i ↓", "the axes have their names", axes)
    ramp = colours_of(page.locator("#legend"))
    colours = colours_of(page.locator(".gate canvas"))
    wrong = []
    for row in range(6):
        for column in range(4):
            level = round(255 * gates[head][row][column] ** 0.5)
            colour = colours[row * 4 + column]
            if colour[:3] not in [one[:3] for one in ramp[max(0, level - 1):level + 2]]:
                wrong.append((row, column, colour))
    checks.that(not wrong and len(colours) == 24, "the strip beside the map shows the gates of the open head", wrong)
    session.hover(t, 1)
    check_access(checks, session, "a map with a gate")
    numbers = [float(x) for x in re.findall(r"\d\.\d+", session.text("#gate-note"))]
    wanted = [sum(gates[head][t]) / 4, min(gates[head][t]), max(gates[head][t])]
    checks.that(len(numbers) == 3 and all(abs(a - b) < 1e-4 for a, b in zip(numbers, wanted)), "the page shows the mean, the smallest and the largest number of the row's gate", (numbers, wanted))
    cells, gate = (page.locator(name).bounding_box() for name in (".cells", ".gate"))
    checks.that(gate["x"] > cells["x"] + cells["width"] and abs(gate["y"] - cells["y"]) < 1 and abs(gate["height"] - cells["height"]) < 1, "the strip of gates is right of the map and as high as the map", (cells, gate))
    for name, expected in (("With", biased), ("Without", plain)):
        tab(session, f"{name} the pair bias")
        session.hover(t, 3)
        session.expected = expected
        wrong = session.right(0, head, t, 3)
        checks.that(not wrong, f"the tab {name.lower()} the pair bias shows its own weights of the same head", wrong)


def check_blocks(checks, session):
    expected, page = session.expected, session.page
    pieces = expected.queries["pieces"]
    parts = {"A": list(range(5)), "B": list(range(5, len(pieces)))}
    names = page.locator("#block option").all_text_contents()
    checks.that(names == ["whole map", "A → A", "A → B", "B → A", "B → B"], "a pair has four blocks", names)
    for name in names[1:]:
        rows, columns = (parts[part] for part in name.split(" → "))
        page.locator("#block").select_option(label=name)
        session.drawn()
        page.wait_for_function("([w, h]) => [...document.querySelectorAll('.thumb img')].every((image) => image.naturalWidth === w && image.naturalHeight === h)", arg=[len(columns), len(rows)])
        if page.locator("#head").is_hidden():
            session.open(3, 4)
        session.hover(len(rows) - 1, 1)
        wrong = session.right(3, 4, rows[-1], columns[1])
        checks.that(not wrong and page.locator(".queries .label").count() == len(rows) and page.locator("#block-note").is_visible(), f"block {name}: all heads show the words and weights of the block", wrong)
    page.locator("#block").select_option("0-1")
    page.locator('[data-view="read"]').click()
    shown = [[int(piece.get_attribute("data-index")) for piece in text.locator(".piece").all()] for text in page.locator(".read-body .running").all()]
    checks.that(shown == [parts["A"], parts["B"]], "the view Text shows the words of part A as queries and those of part B as keys", shown)
    page.locator('.read-body .piece[data-index="2"]').click()
    page.locator('.read-body .piece[data-index="6"]').hover()
    wrong = session.right(3, 4, 2, 6)
    checks.that(not wrong, "the view Text shows the weights from part A to part B", wrong)
    page.locator('[data-view="matrix"]').click()
    page.locator("#block").select_option("1-1")
    reload(page)
    session.drawn()
    checks.that(page.locator("#block").input_value() == "1-1" and page.locator(".queries .label").count() == len(parts["B"]), "a reload keeps the block")
    page.locator("#block").select_option("all")
    checks.that(page.locator(".queries .label").count() == len(pieces) and page.locator("#block-note").is_hidden(), "the whole map can be chosen again")


def rounds(test):
    fox, choose = test.expected, test.choose
    cross = Made(choose.random, 1, GERMAN, ENGLISH, 2, 3)
    residues = list("MKTAYI")
    biased, plain = Made(choose.random, 2, residues, None, 1, 2), Made(choose.random, 3, residues, None, 1, 2)
    gates = [[[choose.random.random() for _ in range(4)] for _ in range(6)] for _ in range(2)]
    sets = (fox, cross, biased, plain)

    def edit(data):
        first = data["texts"][0]
        first.update(name="Encoder", group=0)
        first["queries"]["segment"] = [0 if place < 5 else 1 for place in range(fox.rows)]
        second = cross.entry(name="Cross-attention", group=0, links={"sure": WITH_SPECIAL, "possible": POSSIBLE}, blocked=MASKED)
        second["queries"]["special"], second["keys"]["special"] = SPECIAL_ROWS, SPECIAL_COLUMNS
        layer = {"group": 1, "axes": ["residue i", "residue j"], "gate": [[encoded([x for row in gate for x in row]) for gate in gates]], "gate_width": 4}
        data["texts"] = [first, second, biased.entry(bias="with", **layer), plain.entry(bias="without", **layer)]

    page = test.made(edit)
    return [
        ("tabs", check_tabs, [sets, choose], page),
        ("blocks", check_blocks, [], page),
        ("links", check_links, [sets, choose], {**page, "address": "text=1"}),
        ("masked", check_masked, [sets], {**page, "address": "text=1"}),
        ("layer", check_layer, [sets, gates, choose], {**page, "address": "text=2"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
