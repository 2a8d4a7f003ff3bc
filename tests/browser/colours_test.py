#!/usr/bin/env python3
"""Colours: the view "lines" draws the lines of each of several heads in the head's colour, and weak attention weights stand out from the background of a map.

    colours_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math
import xml.etree.ElementTree as xml

from session import encoded, exported, pixels_of, reload, run, title


def lines_of(session):
    """Returns {colour: number of lines of this colour in the exported figure}, and {text in the figure, such as a head's name: its colour}."""
    root = xml.fromstring(exported(session.page, "svg")[1])
    count = {}
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("stroke-opacity"):
            count[path.get("stroke")] = count.get(path.get("stroke"), 0) + 1
    return count, {text.text: text.get("fill") for text in root.iter("{http://www.w3.org/2000/svg}text")}


def check_colours(checks, session, choose):
    expected, page = session.expected, session.page
    every = [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]
    heads = choose.random.sample(every, 3)
    session.open(*heads[0])
    page.locator('[data-view="lines"]').click()
    for layer, head in heads[1:]:
        page.locator(".heads select").select_option(f"{layer}.{head}")
    names = [" ".join(one.split()).removesuffix("×").strip() for one in page.locator(".heads li:has(.swatch)").all_text_contents()]
    checks.that(names == [title(*head) for head in heads], "three heads are named", names)
    count, fills = lines_of(session)
    shown = {title(*head): count.get(fills.get(title(*head))) for head in heads}
    wanted = {title(layer, head): sum(expected.weight(layer, head, t, s) >= 0.01 for t in range(expected.rows) for s in range(expected.columns)) for layer, head in heads}
    checks.that(len(count) == 3 and all(abs((shown[name] or 0) - wanted[name]) <= 1 for name in wanted), "each head has its lines in its colour", (shown, wanted))
    swatches = page.locator(".heads .swatch").evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))")
    checks.that(["#%02x%02x%02x" % tuple(one) for one in swatches] == [fills[name] for name in names], "the names on the page have the same colours", swatches)
    checks.that(min(math.dist(a, b) for i, a in enumerate(swatches) for b in swatches[:i]) > 60, "the colours differ")
    reload(page)
    session.drawn()
    checks.that(page.locator(".heads .swatch").count() == 3, "a reload keeps the heads")
    page.locator(".heads button").first.click()
    count, _ = lines_of(session)
    checks.that(page.locator(".heads .swatch").count() == 2 and len(count) == 2, "a head can be removed", count)


def lightness(red, green, blue):
    """Returns the lightness of a colour in Oklab (Björn Ottosson, 2020), from 0 to 1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red / 255, green / 255, blue / 255)]
    cones = [math.cbrt(sum(a * b for a, b in zip(row, linear))) for row in ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566), (0.0883024619, 0.2817188376, 0.6299787005))]
    return sum(a * b for a, b in zip((0.2104542553, 0.793617785, -0.0040720468), cones))


WEAK, STEP = 0.02, 0.02  # WEAK is an attention weight. Its colour and that of the smallest weight above 0 must differ in lightness by STEP.


def one_weak(data):
    data["encoding"] = "linear16"
    data["texts"] = [{"text": "a b c", "queries": {"pieces": ["a", "b", "c"], "special": []}, "layers": 1, "heads": 1, "weights": [[encoded([1e-9, WEAK, 1 - WEAK] * 3)]]}]


def check_weak(checks, session):
    for place, open_ in ((".thumb img", lambda: None), (".cells canvas", lambda: session.open(0, 0))):
        open_()
        for scale in ("one", "root", "log"):
            session.page.locator("#scale").select_option(scale)
            session.drawn()
            session.settled()
            pixels = pixels_of(session.page.locator(place).first)
            ground, weak = (lightness(*pixels[at:at + 3]) for at in (0, 4))
            checks.that(abs(weak - ground) >= STEP, f"{place}, scale {scale}: the colours of the weights {WEAK} and (nearly) 0 differ in lightness by {STEP} or more", (ground, weak))


def rounds(test):
    choose = test.choose
    weak = test.made(one_weak)
    return [
        ("weak weights, light", check_weak, [], weak),
        ("weak weights, dark", check_weak, [], {**weak, "color_scheme": "dark"}),
        ("light", check_colours, [choose], {}),
        ("dark", check_colours, [choose], {"color_scheme": "dark"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
