#!/usr/bin/env python3
"""The page shows the words of every kind of tokenizer, repeated and unknown words, masked cells, and pages made from plain arrays.

    words_test.py PAGE.html ARRAYS.safetensors [--seed N]

The pages are variants of PAGE: its data with other words or weights.
"""
import base64

from session import pixels_of, run


def labels(session):
    return session.page.locator(".queries .label").all_text_contents()


def check_pieces(checks, session, wanted):
    session.open(0, 0)
    checks.that(labels(session) == wanted, f"the tokens are shown as {' '.join(wanted)}", labels(session))


def check_bytes(checks, session):
    check_pieces(checks, session, ["␣", "好 1/3", "好 2/3", "好 3/3", "ok", ",", "x", "\\xE8", "y", "z", "w"])
    session.page.locator("#merge").check()
    checks.that(labels(session) == ["好", "ok,", "x\\xE8", "y", "z", "w"], "merged bytes are characters", labels(session))


def check_merged(checks, session, wanted, what):
    session.open(0, 0)
    session.page.locator("#merge").check()
    checks.that(labels(session) == wanted, f"merged: {what}", labels(session))


def check_titles(checks, session):
    session.open(0, 0)
    session.page.locator('.queries .label[data-index="3"]').hover()
    checks.that(session.text("#row-title") == "Where “brown” looks", "the title of a row's list has the row's word", session.text("#row-title"))
    session.page.locator('.keys .label[data-index="1"]').hover()
    checks.that(session.text("#column-title") == "Who looks at “the₁”", "the title of a column's list has the column's word; a word that occurs twice has a number", session.text("#column-title"))


def check_unknown(checks, session):
    session.open(0, 0)
    note = session.text("#unknown-note")
    checks.that(note.startswith("2 of 11 tokens are unknown to this model"), "the page says how many tokens are unknown", note)
    checks.that(labels(session)[3:5] == ["棕", "狐"], "unknown tokens are shown with their characters in the text", labels(session))
    line = session.page.evaluate("() => [...document.querySelectorAll('.queries .label')].map((label) => getComputedStyle(label).textDecorationLine)")
    checks.that([at for at, one in enumerate(line) if one == "underline"] == [3, 4], "unknown tokens, and no others, are underlined", line)


def check_plain(checks, session):
    session.page.keyboard.press("s")
    session.open(0, 0)
    checks.that(not session.page.locator("#special-note").is_visible() and not session.page.locator("#special").is_visible(),
                "without special tokens, nothing is said about them")


def check_one(checks, session):
    checks.that(session.text("#heads-caption").startswith("1 layer (rows), 1 head (columns)"), "the caption says that there is 1 layer and 1 head", session.text("#heads-caption"))


def check_masked(checks, session, rows):
    """Cells above the diagonal are stored as exactly 0, which means masked. The weight of cell (2, 1) is rounded to 0 in 16 bits, but stored as not masked."""
    session.open(0, 0)
    pixels = pixels_of(session.page.locator(".cells canvas"))
    alpha = lambda row, column: pixels[(row * rows + column) * 4 + 3]
    wrong = [(row, column) for row in range(rows) for column in range(rows) if (alpha(row, column) == 0) != (column > row)]
    checks.that(not wrong, "masked cells, and no others, are transparent, so that their hatching is seen", wrong)
    first = pixels[(2 * rows + 1) * 4:][:3]
    ground, hatch = session.page.evaluate("() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.cells')).backgroundImage]")
    checks.that("gradient" in hatch, "masked cells are hatched", hatch)
    checks.that(f"rgb({', '.join(map(str, first))})" != ground, "the colour of a very small weight differs from the page's background", (first, ground))
    session.hover(0, 3)
    checks.that(session.shown_weight() == "0", "a masked cell shows 0", session.shown_weight())
    session.hover(2, 1)
    checks.that(session.shown_weight() == "0.0000", "a very small weight is shown as 0.0000", session.shown_weight())


def check_long(checks, session):
    session.open(0, 0)
    session.page.locator('[data-view="matrix"]').click()
    stage = session.page.evaluate("() => { const stage = document.querySelector('#stage'); return [stage.scrollWidth, stage.clientWidth]; }")
    checks.that(stage[0] <= stage[1], "a map of 512 tokens fits into the width", stage)
    size = lambda: session.page.evaluate("() => document.querySelector('.cells').getBoundingClientRect().width")
    sizes = [size()]
    for press in ("Larger", "Larger", "Fit"):
        session.page.get_by_role("button", name=press).click()
        sizes.append(size())
    checks.that(sizes[0] < sizes[1] < sizes[2] and sizes[3] == sizes[0], "zooming in enlarges the map, and the button Fit makes it fit again", sizes)


def words(*pieces):
    def edit(data):
        entry = data["texts"][0]
        entry["queries"] = {"pieces": list(pieces), "special": []}
    return edit


def unknown(data):
    side = data["texts"][0]["queries"]
    side["pieces"][3] = side["pieces"][4] = "[UNK]"
    side["unknown"] = [[3, "棕"], [4, "狐"]]


def one(data):
    entry = data["texts"][0]
    entry.update(layers=1, heads=1, weights=[[entry["weights"][0][0]]])


def masked(data):
    entry = data["texts"][0]
    size = len(entry["queries"]["pieces"])
    codes = bytearray(base64.b64decode(entry["weights"][0][0]))
    for row in range(size):
        for column in range(size):
            at = 2 * (row * size + column)
            codes[at:at + 2] = (0).to_bytes(2, "little") if column > row else max(1, int.from_bytes(codes[at:at + 2], "little")).to_bytes(2, "little")
    at = 2 * (2 * size + 1)
    codes[at:at + 2] = (1).to_bytes(2, "little")
    entry["weights"][0][0] = base64.b64encode(codes).decode()


def long(data):
    row = (40000).to_bytes(2, "little") + (50).to_bytes(2, "little") * 511
    data["texts"] = [{"text": "long", "queries": {"pieces": [f"w{i}" for i in range(512)], "special": []}, "layers": 1, "heads": 1,
                      "weights": [[base64.b64encode(row * 512).decode()]]}]


def rounds(test):
    gpt = words("The", "Ġquick", "Ġbrown", "Ġfox", "Ġjump", "s", "Ġover", "ĠcafÃ©", "Ċ", "Ġthe", "Ġthe")
    t5 = words("▁The", "▁quick", "▁brown", "▁fox", "▁jump", "s", "▁over", "▁the", "▁lazy", "▁the", "▁")
    maltese = words("Ġorġ", "mar", "id-dar", "u", "kiel", "il-ħobż", "ma'", "ommu", "fil-għodu", "kollu", ".")
    return [
        ("GPT-2", check_pieces, [["The", "quick", "brown", "fox", "jump", "s", "over", "café", "↵", "the₁", "the₂"]], test.made(gpt)),
        ("T5", check_pieces, [["The", "quick", "brown", "fox", "jump", "s", "over", "the₁", "lazy", "the₂", "␣"]], test.made(t5)),
        ("Maltese", check_pieces, [["Ġorġ", "mar", "id-dar", "u", "kiel", "il-ħobż", "ma'", "ommu", "fil-għodu", "kollu", "."]], test.made(maltese)),
        ("bytes", check_bytes, [], test.made(words("▁", "\\xE5", "\\xA5", "\\xBD", "▁ok", ",␣", "▁x", "\\xE8", "▁y", "▁z", "▁w"))),
        ("code", check_merged, [["print", "\\x41", "w₁", "w₂", "w₃", "w₄", "w₅", "w₆", "w₇"], "pieces of code are no bytes"], test.made(words("print", "\\", "##x", "##41", *["w"] * 7))),
        ("GPT-2's code", check_merged, [["a", "\\x41\\xC3\\xA9", "b", "c"], "pieces of code are no bytes"], test.made(words("a", "Ġ\\", "x", "41", "\\", "x", "C3", "\\", "xA9", "Ġb", "Ġc"))),
        ("a wrong byte", check_merged, [["a好\\xE8", "d\ufeffx", "c"], "characters beside a wrong byte, and a byte order mark"], test.made(words("▁a", "\\xE5", "\\xA5", "\\xBD", "\\xE8", "▁d", "\\xEF", "\\xBB", "\\xBF", "x", "▁c"))),
        ("titles", check_titles, [], {}),
        ("unknown", check_unknown, [], test.made(unknown)),
        ("plain", check_plain, [], test.made(words(*"abcdefghijk"))),
        ("one", check_one, [], test.made(one)),
        ("masked", check_masked, [11], test.made(masked)),
        ("long", check_long, [], test.made(long)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
