#!/usr/bin/env python3
"""The page can show only the strongest links of each row, and can merge pieces into words.

    links_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""

from session import encoded, pixels_of, reload, run

PIECES = ["[CLS]", "the", "qui", "##ck", "bro", "##w", "##n", "the", "la", "##zy", "[SEP]"]
GROUPS = [[0], [1], [2, 3], [4, 5, 6], [7], [8, 9], [10]]
WORDS = ["[CLS]", "the₁", "quick", "brown", "the₂", "lazy", "[SEP]"]


def strongest(weights, part):
    """Returns the places of the largest weights, as many as are needed to cover `part` of their sum."""
    kept, covered = [], 0
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):
        if covered >= part * sum(weights):
            break
        kept.append(place)
        covered += weights[place]
    return set(kept)


def check_cover(checks, session, choose):
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    row = lambda t: [expected.weight(layer, head, t, s) for s in range(expected.columns)]
    first = pixels_of(page.locator("#legend"))[:3]
    before = pixels_of(page.locator(".cells canvas"))
    for percent in (90, 50):
        page.locator("#cover").fill(str(percent))
        wanted = [strongest(row(t), percent / 100) for t in range(expected.rows)]
        count = sum(map(len, wanted))
        said = session.text("#cover-value")
        checks.that(said == f"{percent} % of each row: {count} of {expected.rows * expected.columns} links", f"{percent} % of each row: the page counts {count} links", said)
        pixels = pixels_of(page.locator(".cells canvas"))
        wrong = []
        for t in range(expected.rows):
            for s in range(expected.columns):
                at = 4 * (t * expected.columns + s)
                if pixels[at:at + 3] != (before[at:at + 3] if s in wanted[t] else first) and pixels[at + 3]:
                    wrong.append((t, s))
        checks.that(not wrong, f"{percent} % of each row: only the cells of the strongest links keep their colour", wrong)
    t, s = choose.cells(1)[0]
    session.hover(t, s)
    wrong = session.right(layer, head, t, s)
    checks.that(not wrong, "the headline also shows the weight of a cell without colour", wrong)
    reload(page)
    session.drawn()
    checks.that(session.text("#cover-value").startswith("50 %"), "a reload keeps the percentage")


def check_merge(checks, session, choose):
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    page.locator("#merge").check()
    labels = page.locator(".queries .label").all_text_contents()
    checks.that(labels == WORDS and page.locator("#merge-note").is_visible(), "the pieces of a word are merged, and a note says how", labels)
    wrong = []
    for i, rows in enumerate(GROUPS):
        for j, columns in enumerate(GROUPS):
            session.hover(i, j)
            wanted = sum(expected.weight(layer, head, t, s) for t in rows for s in columns) / len(rows)
            if abs(float(session.shown_weight()) - wanted) > 1e-4:
                wrong.append((i, j, session.shown_weight(), wanted))
    checks.that(not wrong, "attention to a word is the sum over its pieces; attention from a word is the mean over its pieces", wrong)
    page.locator("#special").select_option("hide")
    checks.that(page.locator(".queries .label").all_text_contents() == WORDS[1:-1], "special tokens can be hidden too")
    page.locator("#merge").uncheck()
    checks.that(page.locator(".queries .label").count() == expected.rows - 2, "the words become pieces again")


def check_whole(checks, session):
    checks.that(not session.page.locator("#merge").is_visible(), "if no word has several pieces, the page does not offer to merge them")


def check_many(checks, session):
    """90 words that all look at each other: 8,100 links of 0.0111. Without the limit every word has lines."""
    session.open(0, 0)
    session.page.locator('[data-view="lines"]').click()
    note = session.text(".lines > .quiet")
    checks.that("Only the 2000 strongest links are drawn" in note, "the page says that it draws only the 2000 strongest links", note)
    inked = session.page.locator(".lines canvas").evaluate("""(canvas) => { const rows = new Set(), { width, height } = canvas, data = canvas.getContext("2d").getImageData(0, 0, 4, height).data;
        for (let y = 0; y < height; y++) if ([0, 1, 2, 3].some((x) => data[4 * (4 * y + x) + 3])) rows.add(Math.floor(90 * y / height)); return rows.size; }""")
    checks.that(20 <= inked <= 30, "2000 links come from 23 words", inked)


def many(data):
    names = [f"word{i}" for i in range(90)]
    data["texts"] = [{"text": "", "layers": 1, "heads": 1, "queries": {"pieces": names, "special": []}, "weights": [[encoded([1 / 90] * 8100)]]}]


def pieces(data):
    data["texts"][0]["queries"]["pieces"] = PIECES


def rounds(test):
    choose = test.choose
    return [
        ("cover", check_cover, [choose], {}),
        ("merge", check_merge, [choose], test.made(pieces)),
        ("whole", check_whole, [], {}),
        ("many", check_many, [], test.made(many)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
