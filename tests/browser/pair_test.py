#!/usr/bin/env python3
"""The reader chooses two words; the page ranks the heads by their attention weight from one word to the other, beside each head's mean weight at that distance.

    pair_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""

from session import ABSOLUTE, RELATIVE, encoded, reload, run, title


def usual(expected, layer, head, row, column):
    """Returns a head's mean weight over all other pairs of words at the same distance. Pairs with a special token are left out, unless the chosen pair has one."""
    special = set() if {row, column} & set(expected.queries["special"]) else set(expected.queries["special"])
    places = [t for t in range(expected.rows) if t != row and 0 <= t + column - row < expected.columns and not {t, t + column - row} & special]
    weights = [expected.weight(layer, head, t, t + column - row) for t in places]
    return sum(weights) / len(weights) if weights else None


def listed(page):
    """Returns (layer, head, weight, mean weight of other pairs at this distance or None, text of the mark) of each line of the page's list of heads."""
    lines = page.locator("#link-list li").evaluate_all("""(lines) => lines.map((line) => [Number(line.dataset.layer), Number(line.dataset.head), line.querySelector('.number').textContent,
        line.querySelector('.mark')?.textContent ?? ''])""")
    return [(layer, head, float(text.replace("≈", "").split(" · ")[0]), float(text.replace("≈", "").split("usual ")[1]) if "usual" in text else None, mark) for layer, head, text, mark in lines]


def check_pair(checks, session, choose):
    expected, page = session.expected, session.page
    pairs = [(t, s) for t, s in choose.cells(40) if t != s and not {t, s} & set(expected.queries["special"])][:2] + [(0, 3)]
    for row, column in pairs:
        page.locator("#link-query").select_option(str(row))
        page.locator("#link-key").select_option(str(column))
        lines = listed(page)
        wrong = [line for line in lines if abs(line[2] - expected.weight(line[0], line[1], row, column)) > ABSOLUTE]
        checks.that(len(lines) == expected.layers * expected.heads and not wrong, f"{expected.pair(row, column)}: the list has every head with its weight", wrong[:3])
        checks.that([line[2] for line in lines] == sorted((line[2] for line in lines), reverse=True), "the list begins with the largest weight")
        away = [line for line in lines if (line[3] is None) != (usual(expected, *line[:2], row, column) is None) or line[3] is not None and abs(line[3] - usual(expected, *line[:2], row, column)) > ABSOLUTE]
        checks.that(not away, "beside each weight, the list has the head's mean weight of other pairs at this distance", away[:3])
        marked = [line for line in lines if bool(line[4]) != ((usual(expected, *line[:2], row, column) or 0) >= 0.5)]
        checks.that(not marked, "a head is marked if its mean weight of other pairs at this distance is 0.5 or more", marked[:3])
        page.locator("#link-rank").select_option("above")
        above = [line[2] - (line[3] or 0) for line in listed(page)]
        checks.that(all(a >= b - 2e-4 for a, b in zip(above, above[1:])), "the list can be ordered by the weight minus the mean weight of other pairs at this distance", above[:6])
        page.locator("#link-rank").select_option("weight")
        opacity = page.locator(".thumb:not(.mean)").evaluate_all("(all) => all.map((one) => [Number(one.dataset.layer), Number(one.dataset.head), Number(getComputedStyle(one.firstChild).opacity)])")
        faint = [one for one in opacity if abs(one[2] - (0.12 + 0.88 * expected.weight(*one[:2], row, column) ** 0.5)) > 0.01]
        checks.that(not faint, "the opacity of a head's thumbnail grows with the square root of the pair's weight", faint[:3])
    page.wait_for_function(f"() => location.hash.endsWith('row={row}&column={column}')")
    reload(page)
    session.drawn()
    checks.that(listed(page) == lines and page.locator("#link-key").input_value() == str(column), "the address keeps the pair")
    said = page.locator(f'.thumb[data-layer="0"][data-head="0"]').get_attribute("aria-label")
    checks.that(" ".join(expected.pair(row, column).split()) in " ".join(said.split()), "a thumbnail's label says the pair and its weight", said)
    page.locator("#link-list button").first.focus()
    page.keyboard.press("Enter")
    checks.that(session.text("#head-title") == title(*lines[0][:2]) and session.shown_weight() == f"{lines[0][2]:.4f}", "a head of the list opens with the pair pinned", session.text("#head-title"))
    page.locator("#link-clear").click()
    checks.that(page.locator(".thumb.tinted").count() == 0 and not page.locator("#link-list").is_visible() and not page.locator("#worked").is_visible(), "the button Clear unpins the pair")


def check_diagonal(checks, session, choose):
    """In head 0.0 every word attends to the previous token. The head must be marked for two neighbouring words, and not for words at another distance."""
    page = session.page
    for column, wanted in ((3, "mostly looks 1 token back"), (2, "")):
        page.locator("#link-query").select_option("4")
        page.locator("#link-key").select_option(str(column))
        mark = next(line[4] for line in listed(page) if line[:2] == (0, 0))
        checks.that(mark == wanted, f"the mark of the head for a key {4 - column} before the query is '{wanted}'", mark)


def look_back(data):
    text = data["texts"][0]
    count = len(text["queries"]["pieces"])
    text["weights"][0][0] = encoded([s == max(0, t - 1) for t in range(count) for s in range(count)])
    text.pop("vectors", None)


def other_side(data):
    text = data["texts"][0]
    text["keys"] = {**text["queries"], "pieces": [f"k{i}" for i in range(len(text["queries"]["pieces"]))]}


def check_cross(checks, session, choose):
    page = session.page
    page.locator("#link-query").select_option("3")
    page.locator("#link-key").select_option("4")
    lines = listed(page)
    checks.that(lines[0][3] is None and "no meaning" in session.text("#link-note") and "k4" in page.locator("#link-key").text_content(), "if queries and keys are different texts, the page says that a distance has no meaning", session.text("#link-note"))


def check_shared(checks, session, choose):
    """If the page shares out the weights of special tokens, the list shows each weight divided by the sum of its row over the tokens that are not special."""
    expected, page = session.expected, session.page
    words = [s for s in range(expected.columns) if s not in expected.queries["special"]]
    row, column = choose.random.sample(words, 2)
    total = lambda layer, head, t: sum(expected.weight(layer, head, t, one) for one in words)
    share = lambda layer, head, t, s: expected.weight(layer, head, t, s) / total(layer, head, t)
    page.locator("#special").select_option("share")
    page.locator("#link-query").select_option(str(row))
    page.locator("#link-key").select_option(str(column))
    lines = listed(page)
    # The page shows two digits of a quotient. Its dividend and the terms of its divisor have errors of up to 7.7e-6, so the quotient has a large relative error if the
    # divisor is small.
    near = lambda shown, wanted, least: abs(shown - wanted) <= RELATIVE * wanted + 7.7e-6 * (1 + len(words)) / least
    wrong = [(line, share(*line[:2], row, column)) for line in lines if not near(line[2], share(*line[:2], row, column), total(*line[:2], row))]
    checks.that(len(lines) == expected.layers * expected.heads and not wrong, f"{expected.pair(row, column)}: the list has every head with its weight, divided by the row's sum over the tokens that are not special", wrong[:3])
    places = [t for t in words if t != row and t + column - row in words]
    away = [line for line in lines if (line[3] is None) != (not places) or places and not near(line[3], sum(share(*line[:2], t, t + column - row) for t in places) / len(places), min(total(*line[:2], t) for t in places))]
    checks.that(not away, "beside each divided weight, the list has the mean of the divided weights at the same distance", away[:3])
    page.locator("#special").select_option("show")
    wrong = [line for line in listed(page) if abs(line[2] - expected.weight(*line[:2], row, column)) > ABSOLUTE]
    checks.that(not wrong, "when special tokens are shown again, the list has the model's weights", wrong[:3])


def check_first(checks, session, choose):
    """If the address names two words, the page first lists the weight of this pair in each head. For the list it decodes only these weights, not whole maps."""
    expected, page = session.expected, session.page
    row, column = choose.cells(1)[0]
    # Each reading of this clock advances it by 1 s. The page therefore exceeds its time budget at once and draws no thumbnail before the next frame.
    page.add_init_script("let time = 0; performance.now = () => (time += 1000); const decode = window.atob; window.longest = 0; window.atob = (codes) => { if (!document.querySelector('#link-list li')) longest = Math.max(longest, codes.length); return decode(codes); };")
    page.goto(f"{session.url}#row={row}&column={column}")
    page.reload()
    session.drawn()
    wrong = [line for line in listed(page) if abs(line[2] - expected.weight(*line[:2], row, column)) > ABSOLUTE]
    away = [line for line in listed(page) if line[3] is not None and abs(line[3] - usual(expected, *line[:2], row, column)) > ABSOLUTE]
    longest = page.evaluate("longest")
    checks.that(0 < longest <= 8, "no map was decoded for the list", longest)
    checks.that(len(listed(page)) == expected.layers * expected.heads and not wrong and not away, f"{expected.pair(row, column)}: the list is right although no map is decoded", (wrong[:3], away[:3]))


def check_merged(checks, session, choose):
    expected, page = session.expected, session.page
    page.locator("#merge").check()
    page.locator("#link-query").select_option("2")
    page.locator("#link-key").select_option("3")
    wrong = []
    for layer, head, weight, _, _ in listed(page):
        wanted = sum(expected.weight(layer, head, t, s) for t in (2, 3) for s in (4, 5, 6)) / 2
        if abs(weight - wanted) > 2 * ABSOLUTE:
            wrong.append((layer, head, weight, wanted))
    checks.that(not wrong, "for merged words, the list has the sum over the pieces of the key word, and the mean over the pieces of the query word", wrong[:3])


def pieces(data):
    data["texts"][0]["queries"]["pieces"] = ["[CLS]", "the", "qui", "##ck", "bro", "##w", "##n", "the", "la", "##zy", "[SEP]"]


def rounds(test):
    choose = test.choose
    return [
        ("pair", check_pair, [choose], {}),
        ("diagonal", check_diagonal, [choose], test.made(look_back)),
        ("cross", check_cross, [choose], test.made(other_side)),
        ("merged", check_merged, [choose], test.made(pieces)),
        ("shared out", check_shared, [choose], {}),
        ("first", check_first, [choose], {}),
        ("narrow", check_pair, [choose], {"viewport": {"width": 400, "height": 800}}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
