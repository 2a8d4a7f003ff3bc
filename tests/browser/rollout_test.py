#!/usr/bin/env python3
"""Attention rollout over all layers has the right numbers, and is left out where it has no meaning.

    rollout_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
from session import ABSOLUTE, exported_rows, reload, run


def rollout(expected):
    """Returns the rows of the product A_L … A_1 in float64, where A_l is half the mean of the layer's heads plus half the identity (Abnar and Zuidema 2020)."""
    size = expected.rows
    product = [[float(t == s) for s in range(size)] for t in range(size)]
    for layer in range(expected.layers):
        step = [[0.5 * (t == s) + 0.5 * expected.weight(layer, "mean", t, s) for s in range(size)] for t in range(size)]
        step = [[x / sum(row) for x in row] for row in step]
        product = [[sum(a * product[k][s] for k, a in enumerate(row)) for s in range(size)] for row in step]
    return product


def check_numbers(checks, session, choose):
    expected, page = session.expected, session.page
    wanted = rollout(expected)
    session.open("rollout", "mean")
    checks.that(session.text("#head-title") == "Rollout over all layers" and "not what was carried" in session.text("#rollout-note") and page.locator("#rollout-note").is_visible(), "the rollout has its name, and a paragraph that says what it leaves out")
    checks.that(page.locator("#badges li").count() == 0, "the page shows no measure of a head for the rollout")
    wrong = []
    for row, column in choose.cells(6):
        session.hover(row, column)
        shown = float(session.shown_weight())
        if abs(shown - wanted[row][column]) > 2 * ABSOLUTE:
            wrong.append((row, column, shown, wanted[row][column]))
    checks.that(not wrong, "6 cells show the numbers of the rollout", wrong)
    rows = exported_rows(page)
    worst = max(abs(float(x) - wanted[t][s]) for t, row in enumerate(rows[1:]) for s, x in enumerate(row[1:]))
    checks.that(len(rows) == expected.rows + 1 and worst < 2e-5 and rows[0][0] == "rollout", f"CSV: every number, error at most {worst:.1e}", (rows[0][0], worst))
    page.mouse.click(*page.locator(".cells").evaluate("(one) => { const box = one.getBoundingClientRect(); return [box.left + 5, box.top + 5]; }"))
    checks.that("product over layers" in session.text("#worked-note"), "a note says why cells of the rollout have no q and k", session.text("#worked-note"))
    reload(page)
    session.drawn()
    checks.that(session.text("#head-title") == "Rollout over all layers", "the address keeps the rollout", session.text("#head-title"))
    page.locator("[data-head][data-layer='0']").first.click()
    page.locator('[data-view="compare"]').click()
    page.locator("#other-layer").select_option("rollout")
    checks.that(session.text(".pane.b h3") == "B: Rollout over all layers", "a head can be compared with the rollout", session.text(".pane.b h3"))
    page.locator("#measure").select_option("entropy")
    page.locator("#sort").check()
    checks.that(page.locator('.thumb[data-layer="rollout"]').count() == 0, "the list of heads sorted by a measure does not contain the rollout")


def check_none(checks, session, why):
    page = session.page
    checks.that(page.locator('.thumb[data-layer="rollout"]').count() == 0 and page.locator(".thumb").count() > 0, f"the page offers no rollout {why}")
    page.goto(session.url + "#layer=rollout")
    page.reload()
    session.drawn()
    checks.that(page.locator("#head").is_hidden(), f"the address of a rollout opens the page of all heads {why}")


def rounds(test):
    choose = test.choose

    def one_layer(text):
        text["weights"], text["layers"] = text["weights"][:1], 1
        text.pop("vectors", None)

    def long(text, size=794):  # a rollout would need 2 layers * 794^3 = 1.0e9 multiplications, more than the page computes
        codes = ("AQAA" * (size * size * 2 // 3 + 1))[:-(-size * size * 2 // 3) * 4]
        padding = -(size * size * 2) % 3
        text.update(layers=2, heads=1, weights=[[codes[:len(codes) - padding] + "=" * padding]] * 2, queries={"pieces": [f"w{i}" for i in range(size)], "special": [], "unknown": []})
        text.pop("vectors", None)

    others = {
        "between two texts": lambda text: text.update(keys={**text["queries"], "pieces": [f"k{i}" for i in range(len(text["queries"]["pieces"]))]}),
        "for one layer": one_layer,
        "for a decoder beside an encoder": lambda text: text.update(name="Decoder"),
        "without the pair bias": lambda text: text.update(bias="without"),
        "for a text that would take long": long,
    }
    return [("numbers", check_numbers, [choose], {})] + [
        (why, check_none, [why], test.made(lambda data, edit=edit: edit(data["texts"][0]))) for why, edit in others.items()]


if __name__ == "__main__":
    run(__doc__, rounds)
