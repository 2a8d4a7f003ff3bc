#!/usr/bin/env python3
"""The map of distances between heads agrees with the arrays; its order puts similar heads beside each other; a click on a cell compares two heads.

    distances_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math
import random

from session import colours_of, divergence, encoded, exported_rows, middle_of, reload, run, title


def distances(expected):
    rows = [t for t in range(expected.rows) if t not in expected.queries["special"]]
    heads = [[[expected.weight(layer, head, t, s) for s in range(expected.columns)] for t in rows] for layer in range(expected.layers) for head in range(expected.heads)]
    table = [[0.0] * len(heads) for _ in heads]
    for i, mine in enumerate(heads):
        for j, theirs in enumerate(heads[:i]):
            table[i][j] = table[j][i] = math.fsum(map(divergence, mine, theirs)) / len(rows)
    return table


def shown(session):
    session.page.locator('[data-heads="distances"]').click()
    session.page.locator("#distances .cells").wait_for()


def point(session, row, column, click=False):
    cells = session.page.locator("#distances .cells")
    (cells.click if click else cells.hover)(position=middle_of(cells, row, column))


def check_numbers(checks, session, choose, table):
    expected, page = session.expected, session.page
    shown(session)
    rows = exported_rows(page)
    # A weight stored in 16 bits has an error of up to 7.7e-6. The derivative of the divergence with respect to a weight is the log2 of a ratio of weights, so the
    # error of a distance is less than 5e-4.
    worst = max(abs(float(rows[i + 1][j + 1]) - table[i][j]) for i in range(len(table)) for j in range(len(table)))
    checks.that(len(rows) == len(table) + 1 and worst < 5e-4, f"{len(table)} x {len(table)} distances, error at most {worst:.1e} bits")
    wrong = []
    for i, j in [(choose.random.randrange(len(table)), choose.random.randrange(len(table))) for _ in range(12)]:
        point(session, i, j)
        wanted = f"{title(*divmod(i, expected.heads))} and {title(*divmod(j, expected.heads))}: "
        said = session.text("#distances .told")
        if not said.startswith(wanted) or abs(float(said.split(": ")[1].split()[0]) - table[i][j]) > 1e-3:
            wrong.append((said, wanted, table[i][j]))
    checks.that(not wrong, "the page names the two heads under the pointer and shows their distance", wrong[:3])
    legend = colours_of(page.locator("#distances .bar-of-colours"))
    colours = colours_of(page.locator("#distances .cells canvas"))
    largest = max(map(max, table))
    wrong = []
    for i, row in enumerate(table):
        for j, bits in enumerate(row):
            at = 255 * (1 - math.sqrt(bits / largest))
            if colours[i * len(table) + j] not in legend[max(0, math.floor(at - 1)):math.ceil(at + 1) + 1]:
                wrong.append((i, j, at))
    checks.that(not wrong, "the cell of every two heads has the colour of their distance", wrong[:3])
    ticks = page.locator("#distances .ticks span").all_text_contents()
    checks.that(ticks == [f"{largest:.2f} bits: unlike", f"{largest / 4:.2f}", "0: alike"], "the legend shows the colours of the distances", ticks)


def check_click(checks, session, choose, table):
    expected, page = session.expected, session.page
    shown(session)
    i, j = choose.random.sample(range(len(table)), 2)
    point(session, i, j, click=True)
    heads = lambda: (session.text(".pane.a h3"), session.text(".pane.b h3"))
    named = lambda i, j: (f"A: {title(*divmod(i, expected.heads))}", f"B: {title(*divmod(j, expected.heads))}")
    checks.that(heads() == named(i, j), "a click compares the two heads", heads())
    bits = float(session.text(".pane.difference .told").split()[1])
    checks.that(abs(bits - table[i][j]) < 1e-3, "the comparison shows the same distance", (bits, table[i][j]))
    reload(page)
    session.drawn()
    page.locator("#distances .cells").wait_for()
    checks.that(heads() == named(i, j) and page.locator("#distances .cell-band").is_visible(), "a reload keeps the compared heads, and the cursor on their cell of the map of distances")
    page.locator("#back").click()
    page.locator("#order").uncheck()
    page.locator("#distances .cells").focus()
    page.mouse.move(0, 0)
    for key in ["ArrowUp"] * len(table) + ["ArrowLeft"] * len(table) + ["ArrowDown", "ArrowRight", "ArrowRight", "Enter"]:
        page.keyboard.press(key)
    checks.that(heads() == named(1, 2), "arrow keys and Enter open a comparison too", heads())


def check_order(checks, session, groups, order):
    """Heads that plant() gave the same pattern are beside each other in the ordered map."""
    page = session.page
    shown(session)
    labels = lambda: page.locator("#distances .queries .label").all_text_contents()
    heads = session.expected.heads
    checks.that(labels() == [f"{at // heads}·{at % heads}" for at in range(len(groups))], "heads are ordered by layer at first")
    page.locator("#order").check()
    places = [int(layer) * heads + int(head) for layer, head in (label.split("·") for label in labels())]
    found = [groups[at] for at in places]
    changes = sum(a != b for a, b in zip(found, found[1:]))
    checks.that(sorted(places) == list(range(len(groups))) and changes == len(set(groups)) - 1, f"{order}: the map has every head once, and heads of the same pattern are neighbours", found)
    reload(page)
    session.drawn()
    page.locator("#distances .cells").wait_for()
    checks.that(page.locator("#order").is_checked() and len(labels()) == len(groups), "a reload keeps the order")
    session.resize(390)
    wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    checks.that(wide <= 0, "the map fits into 390 pixels", wide)


def plant(generator, expected, groups):
    """Returns an edit that gives each head the attention map of its group, with some noise."""
    def rows():
        return [[generator.random() ** 4 for _ in range(expected.columns)] for _ in range(expected.rows)]
    patterns = {group: rows() for group in set(groups)}

    def edit(data):
        weights = []
        for group in groups:
            noisy = [[weight + 0.1 * other for weight, other in zip(*pair)] for pair in zip(patterns[group], rows())]
            weights.append(encoded([weight / math.fsum(row) for row in noisy for weight in row]))
        data["texts"][0]["weights"] = [weights[at:at + expected.heads] for at in range(0, len(weights), expected.heads)]
    return edit


def rounds(test):
    expected, choose = test.expected, test.choose
    table = distances(expected)
    groups = [choose.random.randrange(5) for _ in range(expected.layers * expected.heads)]
    return [
        ("numbers", check_numbers, [choose, table], {"viewport": {"width": 1200, "height": 1400}}),
        ("click", check_click, [choose, table], {"viewport": {"width": 1600, "height": 1400}}),
        ("order", check_order, [groups, "5 planted groups"], test.made(plant(random.Random(test.seed), expected, groups))),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
