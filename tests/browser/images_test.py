#!/usr/bin/env python3
"""The page shows an image beside its tinted patches, and texts whose tokens are whole sentences.

    images_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import base64
import re

from session import exported, pixels_of, reload, run
from sides_test import Made, check_access

PATCHES = ["[CLS]"] + [f"{row},{column}" for row in range(1, 4) for column in range(1, 3)]
SENTENCES = [f"{start} of this small text, which is long enough to be cut." for start in ("The first sentence", "Another one", "The end")]
SIZE = (6, 8)  # height and width of the image, which has 3 x 2 patches of 2 x 4 pixels

# Returns [index, row, column, colour, has it a frame?] of each patch. Grid 0 lies over the image; grid 1, beside it, shows the colours.
SQUARES = """(at) => [...document.querySelectorAll('.read-body .patches')[at].querySelectorAll('.piece')].map((piece) => {
  const box = piece.getBoundingClientRect(), whole = piece.parentElement.getBoundingClientRect();
  return [Number(piece.dataset.index), Math.floor((box.top + box.height / 2 - whole.top) / whole.height * 3), Math.floor((box.left + box.width / 2 - whole.left) / whole.width * 2),
          getComputedStyle(piece).backgroundColor, piece.classList.contains('lit')];
})"""


def colours(session):
    return {index: [int(part) for part in re.findall(r"\d+", colour)[:3]] for index, _, _, colour, _ in session.page.evaluate(SQUARES, 1)}


def check_patches(checks, session, digit, greys):
    page, layer, head = session.page, 1, 2
    session.expected = digit
    session.open(layer, head)
    pressed = page.locator('#views [aria-pressed="true"]').text_content()
    checks.that(pressed == "Image", "the text of an image opens in the view Image", pressed)
    for at, what in enumerate(("over the image", "tinted")):
        places = [(index, row, column) for index, row, column, *_ in page.evaluate(SQUARES, at)]
        checks.that(places == [(1 + 2 * row + column, row, column) for row in range(3) for column in range(2)], f"the patches are in the order row by row ({what})", places)
    shown = pixels_of(page.locator(".patches img"))[::4]
    checks.that(shown == greys, "the image on the page has the pixels of the data", (shown, greys))
    # Click patch 3 (row 1, column 0) at its centre, in the image and not in the grid beside it.
    page.locator(".patches img").locator("xpath=following-sibling::*[3]").click()
    ramp = pixels_of(page.locator("#legend"))
    wrong = []
    for index, colour in colours(session).items():
        level = round(255 * digit.weight(layer, head, 3, index) ** 0.5)
        if colour not in [ramp[4 * i:4 * i + 3] for i in range(max(0, level - 1), min(256, level + 2))]:
            wrong.append((index, colour))
    checks.that(not wrong, "each patch has the colour of the weight that the chosen patch gives it", wrong)
    lit = [[index for index, *_, lit in page.evaluate(SQUARES, at) if lit] for at in (0, 1)]
    checks.that(lit == [[3], [3]], "the chosen patch is framed in the image and in the grid", lit)
    page.locator(".read-body .patches").nth(1).locator('[data-index="6"]').hover()
    wrong = session.right(layer, head, 3, 6)
    checks.that(not wrong, "pointing at another patch shows the weight that the chosen patch gives it", wrong)
    page.locator('.read-body').focus()
    for key, wanted in (("ArrowDown", 5), ("ArrowRight", 6), ("ArrowUp", 4), ("Home", 0)):
        page.keyboard.press(key)
        headline = session.text("#readout")
        checks.that(headline.startswith(f"{PATCHES[wanted]} →"), f"{key} chooses patch {wanted}", headline)
    page.locator('[data-reading="looked"]').click()
    page.locator(".read-body .patches").nth(1).locator('[data-index="2"]').click()
    known = session.text("#badges")
    checks.that("entropy" in known and not any(word in known for word in ("previous", "next", "sink", "positional", "distance")), "patches have no measures of a sequence", known)
    checks.that(page.locator("#link-title span").filter(visible=True).all_text_contents() == ["Which heads link two patches?"], "the page links patches, not words", session.text("#link-title"))
    page.locator("#link-query").select_option("3")
    page.locator("#link-key").select_option("6")
    said, usual = session.text("#link-note"), page.locator("#link-list .usual").count()
    checks.that(said == "Patches have no order, so there is no usual weight." and usual == 0, "two patches of one image have no usual weight", (said, usual))
    page.locator("#link-clear").click()
    page.locator(".read-body .patches").nth(1).locator('[data-index="2"]').click()
    note = session.text(".read > .quiet")
    checks.that("who looks at “1,2”" in note, "in the other direction, the note says that the colours show who looks at the patch", note)
    page.keyboard.press("n")
    reload(page)
    session.drawn()
    checks.that(session.text("#head-title") == "Layer 1 · Head 3" and [index for index, *_, lit in page.evaluate(SQUARES, 1) if lit] == [2], "a reload keeps head and patch")
    checks.that(page.locator(".card .patches").count() == digit.heads and page.locator(".card img").count() == 0, "the heads of the layer are shown below, without the image")
    for theme in ("light", "dark"):
        page.locator("#menu summary").click()
        page.locator("#theme").select_option(theme)
        page.keyboard.press("Escape")
        check_access(checks, session, f"an image, {theme}")
    svg = exported(page, "svg")[1].decode()
    checks.that("<image " in svg and svg.count("<rect") >= 96 + 2 * 6 + digit.heads * 6, "the exported figure has image and patches", svg.count("<rect"))
    for width in (390, 768, 1280):
        session.resize(width)
        session.drawn()
        boxes = page.locator(".read-body .patches").evaluate_all("(both) => both.map((one) => one.getBoundingClientRect().toJSON())")  # read both boxes in one call, because the page may move between two calls
        fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth") and all(box["x"] >= 0 and box["x"] + box["width"] <= width and box["width"] > 100 for box in boxes)
        checks.that(fits and boxes[0]["y"] == boxes[1]["y"], f"on a page of {width} pixels, image and grid are side by side", boxes)


def check_sentences(checks, session):
    page = session.page
    session.open(0, 0)
    labels = page.locator(".queries .label").all_text_contents()
    checks.that(labels == ["0: The first sentence of this…", "1: Another one of this small…", "2: The end of this small text,…"], "sentences have their number and first words", labels)
    notes = [label.get_attribute("title") for label in page.locator(".keys .label").all()]
    checks.that(notes == [f"{at}: {sentence}" for at, sentence in enumerate(SENTENCES)], "the tooltip of a sentence shows the whole sentence", notes)
    for width in (390, 1280):
        session.resize(width)
        session.hover(1, 2)
        inside = page.evaluate("""() => [...document.querySelectorAll('.queries .label, .keys .label')].every((label) => {
          const box = label.getBoundingClientRect(), strip = label.parentElement.getBoundingClientRect();
          return box.left >= strip.left - 1 && box.top >= strip.top - 1;
        })""")
        checks.that(inside, f"on a page of {width} pixels, the labels do not stick out of the row of labels")
    told = [session.text(f"#{side}-title") for side in ("row", "column")]
    checks.that(SENTENCES[1] in told[0] and SENTENCES[2] in told[1], "the lists name whole sentences", told)
    checks.that("Attention weights say where a head looks" in session.text(".names"), "the page says that attention weights do not explain the model's answer")


def rounds(test):
    choose = test.choose
    digit, sentences = Made(choose.random, 0, PATCHES, None, 2, 4), Made(choose.random, 1, SENTENCES, None, 1, 2)
    greys = [choose.random.randrange(256) for _ in range(SIZE[0] * SIZE[1])]

    def edit(data):
        image = {"height": SIZE[0], "width": SIZE[1], "rows": 3, "columns": 2, "pixels": base64.b64encode(bytes(greys)).decode()}
        first, second = digit.entry(group=0, image=image), sentences.entry(group=1)
        first["queries"]["special"] = [0]
        data["texts"] = [first, second]

    page = test.made(edit)
    return [("patches", check_patches, [digit, greys], page), ("sentences", check_sentences, [], {**page, "address": "text=1"})]


if __name__ == "__main__":
    run(__doc__, rounds)
