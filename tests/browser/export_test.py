#!/usr/bin/env python3
"""The files that the page exports, and its printed form, hold what is on the screen: words, legend, the head's name, numbers.

    export_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import base64
import struct
import xml.etree.ElementTree as xml

from session import colours_of, exported, exported_rows, pixels_of, run, title

NAME = "{http://www.w3.org/2000/svg}"


def check_svg(checks, session, choose):
    expected = session.expected
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    name, text = exported(session.page, "svg")
    checks.that(name.endswith(f"Layer-{layer}-Head-{head}.svg"), "the file is named after the head", name)
    root = xml.fromstring(text)
    words = [element.text for element in root.iter(NAME + "text")]
    every = [expected.word(expected.queries, row) for row in range(expected.rows)] + [expected.word(expected.keys, column) for column in range(expected.columns)]
    checks.that(words[0] == title(layer, head) and "Attention from row to column" in words and "0.25" in words and words[-len(every):] == every,
                "SVG: the head's name, the legend and all words", words)
    wanted = ["#%02x%02x%02x" % colour[:3] if colour[3] else "url(#zero)" for colour in colours_of(session.page.locator(".cells canvas"))]
    cells = [element.get("fill") for element in root.iter(NAME + "rect")][-len(wanted):]
    checks.that(cells == wanted, "SVG: every cell has its colour")
    session.page.locator("#special").select_option("hide")
    hidden = sum(element.text in ("[CLS]", "[SEP]") for element in xml.fromstring(exported(session.page, "svg")[1]).iter(NAME + "text"))
    checks.that(hidden == 0, "SVG: hidden tokens are not in the figure", hidden)
    session.page.locator('[data-view="lines"]').click()
    root = xml.fromstring(exported(session.page, "svg")[1])
    tokens = [[i for i in range(len(side["pieces"])) if i not in side["special"]] for side in (expected.queries, expected.keys)]
    lines = sum(expected.weight(layer, head, row, column) >= 0.01 for row in tokens[0] for column in tokens[1])
    drawn = sum(element.get("stroke-opacity") is not None for element in root.iter(NAME + "path"))
    checks.that(abs(drawn - lines) <= 1, "SVG: the lines of the lines view", (drawn, lines))
    session.page.locator("#back").click()
    root = xml.fromstring(exported(session.page, "svg")[1])
    images = sum(1 for _ in root.iter(NAME + "image"))
    checks.that(images == expected.layers * (expected.heads + 1) + expected.wholes, "SVG: all heads", images)


def check_png(checks, session, choose):
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    root = xml.fromstring(exported(session.page, "svg")[1])
    name, data = exported(session.page, "png")
    size = struct.unpack(">II", data[16:24])
    checks.that(data[:8] == b"\x89PNG\r\n\x1a\n" and size == (2 * int(root.get("width")), 2 * int(root.get("height"))), "PNG: twice the figure's size", size)
    pixels = pixels_of(session.page.evaluate_handle("""async (url) => {
      const image = new Image();
      image.src = url;
      await image.decode();
      return image;
    }""", "data:image/png;base64," + base64.b64encode(data).decode()).as_element())
    wrong = []
    for cell in list(root.iter(NAME + "rect"))[-session.expected.rows * session.expected.columns:]:
        x, y = (int(2 * (float(cell.get(at)) + float(cell.get("width")) / 2)) for at in "xy")
        at = 4 * (y * size[0] + x)
        if cell.get("fill") != "url(#zero)" and cell.get("fill") != "#%02x%02x%02x" % tuple(pixels[at:at + 3]):
            wrong.append((x, y, cell.get("fill"), pixels[at:at + 3]))
    checks.that(not wrong, "PNG: every cell has its colour", wrong[:3])


def check_csv(checks, session, choose):
    expected = session.expected
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    rows = exported_rows(session.page)
    checks.that(rows[0][1:] == [f"{i}: {piece}" for i, piece in enumerate(expected.keys["pieces"])] and [row[0] for row in rows[1:]] == [f"{i}: {piece}" for i, piece in enumerate(expected.queries["pieces"])],
                "CSV: words with their indices", rows[0])
    error = max(abs(float(rows[row + 1][column + 1]) - expected.weight(layer, head, row, column)) for row in range(expected.rows) for column in range(expected.columns))
    checks.that(error < 1e-5, f"CSV: every attention weight, off by at most {error:.2g}", error)


def check_hostile(checks, session, pieces):
    session.open(0, 0)
    root = xml.fromstring(exported(session.page, "svg")[1])
    words = [element.text for element in root.iter(NAME + "text")][-len(pieces):]
    checks.that({element.tag.removeprefix(NAME) for element in root.iter()} <= {"svg", "defs", "pattern", "rect", "path", "text", "image"} and words[0] == pieces[0],
                "SVG: hostile words stay words", words)
    rows = exported_rows(session.page)
    names = [row[0] for row in rows[1:]]
    checks.that(names == [f"{i}: {piece}" for i, piece in enumerate(pieces)], "CSV: hostile words come back as they were", names)
    checks.that(exported(session.page, "png")[1][:4] == b"\x89PNG", "PNG: a figure of hostile words")


def check_paper(checks, session, choose):
    session.open(*choose.heads(1)[0])
    checks.that(session.page.pdf()[:5] == b"%PDF-", "paper: the page prints")


def hostile(pieces):
    def edit(data):
        data["texts"][0]["queries"] = {"pieces": pieces, "special": []}
    return edit


def rounds(test):
    choose = test.choose
    pieces = ['</text><script>alert(1)</script>', '"quoted", with comma', "=HYPERLINK(1)", "new\nline", "\u0001\u0000", "]]>", "&amp;", "\u202eright to left", "𝔸", "-1", "@x"]
    return [
        ("SVG", check_svg, [choose], {}),
        ("SVG dark", check_svg, [choose], {"color_scheme": "dark"}),
        ("PNG", check_png, [choose], {}),
        ("CSV", check_csv, [choose], {}),
        ("hostile", check_hostile, [pieces], test.made(hostile(pieces))),
        ("paper", check_paper, [choose], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
