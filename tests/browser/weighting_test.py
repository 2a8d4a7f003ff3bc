#!/usr/bin/env python3
"""The page switches between attention weights and norm-weighted maps: each number is the attention weight times the norm of its key's transformed value.

    weighting_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import re

from session import exported, exported_rows, floats_of, pixels_of, reload, run


def norms_of(data):
    """Returns {(layer, head): the norms of the keys' values}."""
    entry = data["texts"][0]
    return {(layer, head): floats_of(text) for layer, heads in enumerate(entry["value_norms"]) for head, text in enumerate(heads)}


class Wanted:
    """The norm-weighted numbers that the page must show: attention weights from the arrays, times the norms of values from the page's data."""

    def __init__(self, expected):
        self.expected, self.norms = expected, norms_of(expected.data)
        places = [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]
        self.unit = max(self.number(*place, row, column) for place in places for row in range(expected.rows) for column in range(expected.columns))

    def number(self, layer, head, row, column):
        if layer == "mean":
            return sum(self.number(one, "mean", row, column) for one in range(self.expected.layers)) / self.expected.layers
        if head == "mean":
            return sum(self.number(layer, one, row, column) for one in range(self.expected.heads)) / self.expected.heads
        return self.expected.weight(layer, head, row, column) * self.norms[layer, head][column]


def check_numbers(checks, session, choose):
    page, expected = session.page, session.expected
    wanted = Wanted(expected)
    checks.that(page.locator("#weighting").is_visible() and page.locator("#weighting").input_value() == "attention", "the page opens with attention weights")
    before = page.locator(".thumb img").first.get_attribute("src")
    page.locator("#weighting").select_option("norm")
    session.drawn()
    page.wait_for_function("(before) => document.querySelector('.thumb img').src !== before", arg=before)
    checks.that("norm of the value" in session.text("#legend-caption") and "do not sum to 1" in session.text("#weighting-note"), "the legend and a note say that the numbers are norm-weighted and that rows do not sum to 1")
    tick = float(re.findall(r"[\d.e+-]+", page.locator("#legend-ticks span").last.text_content())[-1])
    checks.that(abs(tick / wanted.unit - 1) < 0.06, "the colour scale ends at the largest number of all heads", (tick, wanted.unit))
    checks.that(page.locator('.thumb[data-layer="rollout"]').count() == 0 and not page.locator('[data-heads="distances"]').is_visible(), "the page offers no rollout and no distances, which need attention weights")
    for layer, head in [*choose.heads(3), ("mean", "mean"), (choose.layer(), "mean")]:
        session.open(layer, head)
        for row, column in choose.cells(4):
            session.hover(row, column)
            shown, right = float(session.shown_weight()), wanted.number(layer, head, row, column)
            checks.that(abs(shown - right) <= 2e-3 * wanted.unit + 1e-3 * right, f"layer {layer}, head {head}, row {row}, column {column}: the page shows {right:.4g}", shown)
            if head != "mean":
                factors = [float(number) for number in re.findall(r"[\d.]+", session.text("#where"))[:2]]
                checks.that(abs(factors[0] - expected.weight(layer, head, row, column)) <= 1e-4 and abs(factors[1] / wanted.norms[layer, head][column] - 1) <= 1e-3, "the line below the headline shows the attention weight and the norm, whose product is the number", session.text("#where"))
        checks.that(not page.locator('[data-view="compare"]').is_visible(), "norm-weighted maps cannot be compared")
        page.keyboard.press("Escape")


def check_state(checks, session, choose):
    """The page's address keeps the choice of norm-weighted maps. What needs rows that sum to 1 is switched off. Measures, links and the calculation of a cell use
    attention weights."""
    page, expected = session.page, session.expected
    layer, head = choose.heads(1)[0]
    page.locator("#measure").select_option("previous")
    badges = lambda: page.locator(".cell .badge").all_text_contents()[:expected.layers]
    before = badges()
    page.locator("#weighting").select_option("norm")
    checks.that(badges() == before, "measures are still computed from attention weights", (badges(), before))
    session.open(layer, head)
    row, column = choose.cells(1)[0]
    session.hover(row, column)
    page.mouse.down()
    page.mouse.up()
    weight = float(page.locator('.steps tr[data-step="weight"] output').text_content())
    checks.that(abs(weight - expected.weight(layer, head, row, column)) <= 1e-5 and not page.locator("#worked-note").is_visible(), "the calculation of a pinned cell leads to its attention weight", weight)
    first = page.locator("#link-list .number b").first.text_content()
    heaviest = max(expected.weight(l, h, row, column) for l in range(expected.layers) for h in range(expected.heads))
    checks.that(abs(float(first) - heaviest) <= 1e-4, "the list of heads for two words has attention weights", (first, heaviest))
    reload(page)
    session.drawn()
    checks.that(page.locator("#weighting").input_value() == "norm" and "weighting=norm" in page.url, "the address keeps the choice")
    page.locator("#special").select_option("share")
    checks.that(page.locator("#weighting").input_value() == "attention", "sharing out switches back to attention weights")
    page.locator("#weighting").select_option("norm")
    checks.that(page.locator("#special").input_value() == "hide", "choosing norm-weighted maps ends sharing out: special tokens are hidden")
    table = exported_rows(page)
    wanted = Wanted(expected)
    tokens = [int(name.split(":")[0]) for name in table[0][1:]]
    wrong = [(line[0], number) for line in table[1:] for token, number in zip(tokens, line[1:]) if abs(float(number) - wanted.number(layer, head, int(line[0].split(":")[0]), token)) > 1e-4 * wanted.unit]
    checks.that("norm of the value" in table[0][0] and not wrong, "the CSV file has the norm-weighted numbers and says so", (table[0][0], wrong[:3]))


def check_merged(checks, session):
    """A merged word has the sum over the pieces of the key word, and the mean over the pieces of the query word."""
    page, expected = session.page, session.expected
    wanted = Wanted(expected)
    session.open(0, 1)
    page.locator("#merge").check()
    page.locator("#weighting").select_option("norm")
    session.page.wait_for_function("() => document.querySelector('#legend-caption').textContent.includes('norm of the value') && document.querySelector('#weighting-note').textContent.includes('do not sum')")  # the page searches for the largest number in several steps
    session.hover(0, 1)
    right = sum(wanted.number(0, 1, 0, column) for column in (1, 2))
    checks.that(abs(float(session.shown_weight()) - right) <= 2e-3 * right + 1e-3, "the number of two merged words is right", (session.shown_weight(), right))


def saved(session):
    return exported(session.page, "svg")[1].decode()


def check_words(checks, session, choose):
    """Every view and its exported figure say that the numbers are norm-weighted."""
    page = session.page
    page.locator("#weighting").select_option("norm")
    session.drawn()
    right = lambda text: "norm of the value" in text and "Attention from" not in text
    checks.that(right(svg := saved(session)), "the exported figure of all heads says that the numbers are norm-weighted", svg[:0])
    session.open(*choose.heads(1)[0])
    checks.that(right(session.text("#where")), "the text beside an open head says that the numbers are norm-weighted", session.text("#where"))
    for view, element in (("matrix", ".matrix .cells"), ("lines", ".lines-body"), ("read", ".read-body")):
        page.locator(f'[data-view="{view}"]').click()
        label = page.locator(element).get_attribute("aria-label")
        checks.that(right(saved(session)) and right(label), f"the view {view} and its exported figure say that the numbers are norm-weighted", label)
    page.keyboard.press("m")
    page.locator('[data-view="matrix"]').click()
    session.hover(*choose.cells(1)[0])
    checks.that(right(session.text("#where")), "the text beside the mean of heads says that the numbers are norm-weighted", session.text("#where"))


def check_own_scale(checks, session):
    """If each head has its own colour scale, a word with the head's largest number has the last colour of the scale in the view Text, too."""
    page, wanted = session.page, Wanted(session.expected)
    expected = session.expected
    cells = [(row, column) for row in range(expected.rows) for column in range(expected.columns)]
    largest = lambda place: max(cells, key=lambda cell: wanted.number(*place, *cell))
    place = min(((layer, head) for layer in range(expected.layers) for head in range(expected.heads)), key=lambda place: wanted.number(*place, *largest(place)))
    row, column = largest(place)
    page.locator("#weighting").select_option("norm")
    page.locator("#scale").select_option("own")
    session.open(*place)
    page.locator('[data-view="read"]').click()
    page.locator(f'.read-body .piece[data-index="{row}"]').click()
    colour = page.locator(f'.read-body .piece[data-index="{column}"]').evaluate("(one) => getComputedStyle(one).backgroundColor")
    last = tuple(pixels_of(page.locator("#legend"))[-4:-1])
    checks.that(tuple(map(int, re.findall(r"\d+", colour)[:3])) == last, "the word with the largest number of the head has the last colour of the legend", (place, colour, last))


def merge(data):
    data["texts"][0]["queries"]["pieces"][2] = "##" + data["texts"][0]["queries"]["pieces"][2]


def check_without(checks, session):
    checks.that(not session.page.locator("#weighting").is_visible() and session.text("#weighting-note") == "", "a page without norms does not offer norm-weighted maps")
    weights = session.expected.weight(1, 2, 3, 4)
    session.open(1, 2)
    session.hover(3, 4)
    checks.that(abs(float(session.shown_weight()) - weights) <= 1e-4, "a page without norms shows attention weights, whatever its address says")


def drop(data):
    del data["texts"][0]["value_norms"]


def rounds(test):
    choose = test.choose
    return [
        ("numbers", check_numbers, [choose], {}),
        ("state", check_state, [choose], {}),
        ("words", check_words, [choose], {}),
        ("own scale", check_own_scale, [], {}),
        ("merged", check_merged, [], test.made(merge)),
        ("without", check_without, [], {**test.made(drop), "address": "weighting=norm"}),
        ("dark", check_numbers, [choose], {"color_scheme": "dark"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
