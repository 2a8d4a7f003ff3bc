#!/usr/bin/env python3
"""The view "read" shows the text. Each word is tinted by its attention weight from the chosen word, or to the chosen word.

    read_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import re

from session import colours_of, encoded, exported, reload, run

ARABIC = "الانتباه يسمح لكل كلمة بالنظر"
ARABIC_PIECES = ["[CLS]", "الا", "##نتباه", "يسمح", "لكل", "كلمة", "بال", "##نظر", "[SEP]", "[PAD]", "[PAD]"]
CHINESE = "每个词看其他词。"
CHINESE_BYTES = ["[CLS]", "每", "个", "\\xE8", "\\xAF", "\\x8D", *"看其他词。"]
MIXED_BYTES = ["[CLS]", "▁a", "▁", "\\xE5", "\\xA5", "\\xBD", "▁ok", "[SEP]", "[PAD]", "[PAD]", "[PAD]"]
HOSTILE = ["first", "\u202eabc", "after", "<img src=x onerror=alert(1)>", "</p><script>alert(2)</script>", "&lt;", "\u2067x", "__proto__", '"', "{{data}}", "last"]
BYTES = ["Don", "'t", "Ġlook", "Ġback", ",", "Ġsaid", "ĠOr", "pheus", ".", "Ċ", "He"]

# Returns [index, background colour, is the word chosen?] of each word of a paragraph.
WORDS = """(paragraph) => [...paragraph.querySelectorAll('.piece')].map(
    (piece) => [Number(piece.dataset.index), getComputedStyle(piece).backgroundColor, piece.classList.contains('lit')])"""


def colours(session):
    return [colour[:3] for colour in colours_of(session.page.locator("#legend"))]


def wrong_tints(ramp, words, weight):
    """Returns the words with a wrong background. The right colour is colour number 255 sqrt(weight) of the legend. Weights are stored in 16 bits and rounded, so the
    colours next to it are right, too."""
    wrong = []
    for index, background, _ in words:
        shown, level = tuple(map(int, re.findall(r"\d+", background)[:3])), round(255 * weight(index) ** 0.5)
        if background.startswith("rgba") or shown not in ramp[max(0, level - 1):level + 2]:
            wrong.append((index, background, weight(index)))
    return wrong


def text_of(session, place=0):
    return session.page.locator(".read-body .running").nth(place)


def word_at(session, index, place=0):
    return text_of(session, place).locator(f'.piece[data-index="{index}"]')


def check_read(checks, session, choose):
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    page.locator('[data-view="read"]').click()
    ramp = colours(session)
    mean = lambda s: sum(expected.weight(layer, head, t, s) for t in range(expected.rows)) / expected.rows
    wrong = wrong_tints(ramp, text_of(session).evaluate(WORDS), mean)
    checks.that(not wrong and "mean attention" in session.text(".read > .quiet"), "if no word is chosen, the background of each word shows the mean attention that it receives", wrong)
    for t, s in choose.cells(3):
        if t == s:
            continue
        word_at(session, t).click()
        words = text_of(session).evaluate(WORDS)
        wrong = wrong_tints(ramp, words, lambda s: expected.weight(layer, head, t, s))
        checks.that(not wrong, f"after a click on word {t}, the background of each word shows the attention weight that word {t} gives it", wrong)
        checks.that([index for index, _, lit in words if lit] == [t], "the chosen word has a frame", words)
        wrong = []
        for other in range(expected.heads):
            wrong += wrong_tints(ramp, page.locator(".card .running").nth(other).evaluate(WORDS), lambda s: expected.weight(layer, other, t, s))
        checks.that(not wrong and page.locator(".card").count() == expected.heads, "below, each head of the layer has a small copy of the text, coloured by its weights", wrong[:3])
        word_at(session, s).hover()
        wrong = session.right(layer, head, t, s)
        checks.that(not wrong, "pointing at another word shows the weight between the two words", wrong)
        page.locator('[data-reading="looked"]').click()
        wrong = wrong_tints(ramp, text_of(session).evaluate(WORDS), lambda s: expected.weight(layer, head, s, t))
        checks.that(not wrong, f"in the other direction, the background of each word shows the attention weight that it gives word {t}", wrong)
        word_at(session, s).hover()
        wrong = session.right(layer, head, s, t)
        checks.that(not wrong, "in the other direction, pointing at a word shows its weight for the chosen word", wrong)
        page.locator('[data-reading="looks"]').click()
        word_at(session, t).click()
        checks.that("mean attention" in session.text(".read > .quiet"), "a second click on the chosen word ends the choice")


def check_kept(checks, session, choose):
    expected, page = session.expected, session.page
    heads = []
    while len(set(heads)) < 2:
        heads = choose.heads(2)
    for layer, head in heads:
        session.open(layer, head)
        page.locator('[data-view="read"]').click()
        page.locator(".read button", has_text="Keep this head").click()
    page.locator(".read select").select_option("kept")
    titles = lambda: page.locator(".card h3").all_text_contents()
    wanted = [f"Layer {layer} · Head {head}" for layer, head in heads]
    checks.that(titles() == wanted, "kept heads of any layer are shown", titles())
    reload(page)
    session.drawn()
    checks.that(titles() == wanted and page.locator('[data-view="read"][aria-pressed="true"]').count() == 1, "a reload keeps them and the view", titles())
    t = choose.cells(1)[0][0]
    word_at(session, t).click()
    wrong = []
    for place, (layer, head) in enumerate(heads):
        wrong += wrong_tints(colours(session), page.locator(".card .running").nth(place).evaluate(WORDS), lambda s: expected.weight(layer, head, t, s))
    checks.that(not wrong, "each kept head has its own tints", wrong)
    page.locator(".card h3 button").first.click()
    checks.that(session.text("#head-title") == wanted[0], "a click on its name opens a head", session.text("#head-title"))


def check_keys(checks, session, choose):
    expected, page = session.expected, session.page
    session.open(*choose.heads(1)[0])
    page.locator('[data-view="read"]').click()
    page.locator(".read-body").focus()
    chosen = lambda: [index for index, _, lit in text_of(session).evaluate(WORDS) if lit]
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        seen += chosen()
    last = expected.columns - 1
    checks.that(seen == [0, 1, 2, 1, last, last, 0], "arrow keys, End and Home move between words", seen)
    session.resize(390)
    page.keyboard.press("ArrowDown")
    low, first = (word_at(session, index).bounding_box() for index in (chosen()[0], 0))
    checks.that(low["y"] > first["y"] and abs(low["x"] - first["x"]) < 60, "arrow down chooses the word below", (first, low))
    checks.that("Where “" in session.text("#status"), "a screen reader speaks the words to which the chosen word attends", session.text("#status"))


def check_spelling(checks, session, text, pieces):
    """Although tokens are pieces, the view shows the text as it was written, with its spaces, its case and its direction."""
    session.open(0, 0)
    session.page.locator('[data-view="read"]').click()
    shown = text_of(session).evaluate("(p) => { const copy = p.cloneNode(true); copy.querySelectorAll('.special').forEach((chip) => chip.remove()); return copy.textContent.replaceAll('\\u200b', ''); }")
    checks.that(shown == text, "the pieces together are the text as it was written", shown)
    chips = session.page.locator(".read-body .piece.special").all_text_contents()
    checks.that(chips == [piece for piece in pieces if piece.startswith("[")], "special tokens, and no other tokens, have the style of special tokens", chips)
    first, last = (word_at(session, index).bounding_box()["x"] for index in (0, 2))
    checks.that((first > last) == (text == ARABIC), "Arabic text runs from right to left, other texts do not", (first, last))


def check_hostile(checks, session):
    session.open(0, 0)
    session.page.locator('[data-view="read"]').click()
    shown = text_of(session).locator(".piece").all_text_contents()
    elements = text_of(session).evaluate("(p) => [...p.querySelectorAll('*')].map((element) => element.tagName)")
    checks.that(shown == HOSTILE and set(elements) <= {"SPAN", "BDI"}, "the page does not run or render HTML in words", (shown, elements))
    first, after = (word_at(session, index).bounding_box()["x"] for index in (0, 2))
    checks.that(first < after, "a word that changes the writing direction does not change it for its neighbours", (first, after))


def check_two(checks, session, choose):
    """If queries and keys are different texts, the view shows both. Choosing a word of one text colours the words of the other by their attention weights."""
    expected, page = session.expected, session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    page.locator('[data-view="read"]').click()
    ramp = colours(session)
    t, s = choose.cells(1)[0]
    word_at(session, t, 0).click()
    wrong = wrong_tints(ramp, text_of(session, 1).evaluate(WORDS), lambda s: expected.weight(layer, head, t, s))
    checks.that(not wrong, "choosing a word of the queries colours the words of the keys by its weights", wrong)
    word_at(session, s, 1).hover()
    wrong = session.right(layer, head, t, s)
    checks.that(not wrong, "pointing at a word of the other text shows the weight between the two words", wrong)
    word_at(session, s, 1).click()
    wrong = wrong_tints(ramp, text_of(session, 0).evaluate(WORDS), lambda t: expected.weight(layer, head, t, s))
    checks.that(not wrong, "choosing a word of the keys colours the words of the queries by their weights for it", wrong)


def check_long(checks, session, view):
    session.open(0, 0)
    pressed = session.page.locator('[data-view][aria-pressed="true"]').get_attribute("data-view")
    checks.that(pressed == view, f"a page with {session.page.locator('.thumb').count()} maps opens a head in the view '{view}'", pressed)


def check_export(checks, session, choose):
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator('[data-view="read"]').click()
    word_at(session, choose.cells(1)[0][0]).click()
    svg = exported(page, "svg")[1].decode()
    tints = {background for _, background, _ in text_of(session).evaluate(WORDS)}
    missing = [tint for tint in tints if "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", tint)[:3]) not in svg]
    checks.that(not missing, "the exported figure has the background colour of every word", missing)
    words = [piece for piece in text_of(session).locator(".piece").all_text_contents() if f">{piece}</text>" not in svg]
    checks.that(not words, "the exported figure has every word", words)


def spelled(text, pieces):
    def edit(data):
        entry = data["texts"][0]
        entry["text"], entry["queries"] = text, {"pieces": pieces, "special": [at for at, piece in enumerate(pieces) if piece.startswith("[")]}
    return edit


def of_length(count):
    """Returns an edit to a page with one head of one layer and `count` words, each of which attends only to itself."""
    def edit(data):
        codes = encoded([t == s for t in range(count) for s in range(count)])
        data["encoding"] = "linear16"
        data["texts"][0] = {"text": "", "queries": {"pieces": [f"w{t}" for t in range(count)], "special": []}, "layers": 1, "heads": 1, "weights": [[codes]]}
    return edit


def two_sides(data):
    entry = data["texts"][0]
    entry["keys"] = dict(entry["queries"])


def rounds(test):
    choose = test.choose
    count = choose.expected.rows
    chinese = ["[CLS]", *CHINESE, "[SEP]", "[PAD]"][:count]
    both = []
    for name, text, pieces in (("arabic", ARABIC, ARABIC_PIECES), ("chinese", CHINESE, chinese), ("chinese bytes", CHINESE, CHINESE_BYTES)):
        both.append((name, check_spelling, [text, pieces], test.made(spelled(text, pieces))))
        both.append((f"{name} without its text", check_spelling, [text, pieces], test.made(lambda data: (spelled(text, pieces)(data), data["texts"][0].update(text="")))))
    return [
        ("read", check_read, [choose], {}),
        ("kept", check_kept, [choose], {}),
        ("keys", check_keys, [choose], {}),
        *both,
        ("bytes", check_spelling, ["Don't look back, said Orpheus.\n↵He", BYTES], test.made(spelled("", BYTES))),
        ("mixed bytes", check_spelling, ["A 好 OK", MIXED_BYTES], test.made(spelled("A 好 OK", MIXED_BYTES))),
        ("hostile", check_hostile, [], test.made(lambda data: (spelled("", HOSTILE)(data), data["texts"][0]["queries"].update(special=[])))),
        ("two", check_two, [choose], test.made(two_sides)),
        ("127", check_long, ["matrix"], test.made(of_length(127))),
        ("128", check_long, ["read"], test.made(of_length(128))),
        ("export", check_export, [choose], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
