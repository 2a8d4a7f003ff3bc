#!/usr/bin/env python3
"""Special tokens can be shown, faded, hidden, or their weights shared out over the words. Only sharing out changes numbers, and the page says so.

    special_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math

from session import exported, pixels_of, reload, run

EACH = 7.7e-6  # largest error of an attention weight that is stored in 16 bits


def check_faded(checks, session, choose):
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    before = pixels_of(page.locator(".cells canvas"))
    ground = [int(one) for one in page.evaluate("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")][:3]
    page.locator("#special").select_option("fade")
    after = pixels_of(page.locator(".cells canvas"))
    special = set(expected.queries["special"])
    wrong = []
    for t in range(expected.rows):
        for s in range(expected.columns):
            at = 4 * (t * expected.columns + s)
            wanted = before[at:at + 3] if not {t, s} & special else [(one + 3 * two) / 4 for one, two in zip(before[at:at + 3], ground)]
            if before[at + 3] and any(abs(one - two) > 1 for one, two in zip(after[at:at + 3], wanted)):
                wrong.append((t, s, after[at:at + 3], wanted))
    checks.that(not wrong, "faded: cells of special tokens have a quarter of their colour, other cells their full colour", wrong[:3])
    session.hover(0, 0)
    wrong = session.right(layer, head, 0, 0)
    checks.that(not wrong and not page.locator("#special-note").is_visible(), "faded: the weights are unchanged", wrong)
    reload(page)
    session.drawn()
    checks.that(page.locator("#special").input_value() == "fade", "a reload keeps the choice")


def check_rows(checks, session, choose, layer, head):
    """Checks the weight of a random word in each row, with the weights of special tokens shared out. The page divides a row by its sum over the words. If this sum is
    so small that the error of a weight could exceed 0.01, the page must show NaN."""
    expected, page = session.expected, session.page
    session.open(layer, head)
    page.locator("#special").select_option("share")
    words = [s for s in range(expected.columns) if s not in expected.queries["special"]]
    wrong, least = [], 100 * EACH * (len(words) + 1)
    for place, t in enumerate(words):
        row = [expected.weight(layer, head, t, s) for s in words]
        at = choose.random.randrange(len(words))
        session.hover(place, at)
        shown, total = float(session.shown_weight().lstrip("≈ ")), math.fsum(row)
        wanted, error = row[at] / total, EACH / total  # a weight of the page has an error of up to EACH
        if abs(total - least) > len(row) * EACH and (math.isnan(shown) != (total < least) or abs(shown - wanted) > 0.051 * wanted + error * (1 + len(row) * wanted)):
            wrong.append((t, words[at], shown, wanted, total))
    checks.that(not wrong, "shared out: each row is divided by its sum over the words", wrong[:3])
    checks.that(math.isnan(shown) or abs(float(session.text("#row-sum").split()[-1]) - 1) < 1e-3, "shared out: the row sums to 1", session.text("#row-sum"))


def check_shared(checks, session, choose):
    expected, page = session.expected, session.page
    checks.that(page.locator("#special").input_value() == "show", "special tokens are shown at first")
    layer, head = choose.heads(1)[0]
    check_rows(checks, session, choose, layer, head)
    words = [s for s in range(expected.columns) if s not in expected.queries["special"]]
    least = lambda place: min(math.fsum(expected.weight(*place, t, s) for s in words) for t in words)
    check_rows(checks, session, choose, *min(((layer, head) for layer in range(expected.layers) for head in range(expected.heads)), key=least))
    checks.that("below 0.0077 is NaN" in session.text("#special-note"), "shared out: the page says which rows are NaN", session.text("#special-note"))
    check_rows(checks, session, choose, layer, head)
    checks.that(session.shown_weight().startswith(("≈", "NaN")) and "not the model's attention weights" in session.text("#special-note"), "shared out: the page says that the numbers are not the model's weights", session.text("#special-note"))
    name, figure = exported(page, "svg")
    checks.that("special tokens shared out" in figure.decode() and "special-tokens" in name, "shared out: the exported figure and its file name say so", name)
    page.locator("#special").select_option("show")
    session.hover(1, 1)
    wrong = session.right(layer, head, 1, 1)
    checks.that(not wrong, "when special tokens are shown again, the page has the model's weights", wrong)


def rounds(test):
    choose = test.choose
    return [
        ("faded", check_faded, [choose], {}),
        ("faded dark", check_faded, [choose], {"color_scheme": "dark"}),
        ("shared", check_shared, [choose], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
