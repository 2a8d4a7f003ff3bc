#!/usr/bin/env python3
"""One head, step by step: shapes of the shown model, its numbers, keys, playing and pausing, and what a reader who wants less motion sees.

    walk_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import base64
import collections
import math
import struct

from cell_test import drop, number, pin
from session import axe_violations, pixels_of, reload, run

STEPS = ["Input", "Projection", "Split into heads", "q · k", "Scale", "softmax", "Times v", "Join the heads", "Output projection"]


def heading(session):
    return session.text("#walk-body h3")


def captions(session):
    return [" ".join(text.split()) for text in session.page.locator("#walk-body figcaption").all_text_contents()]


def vectors(expected, name, layer, head):
    text = base64.b64decode(expected.data["texts"][0]["vectors"][name][layer][head])
    return struct.unpack(f"<{len(text) // 4}f", text)


def check_steps(checks, session, choose):
    """The shapes of every step, with the sizes of the model, and the numbers of the chosen pair."""
    page, expected = session.page, session.expected
    entry = expected.data["texts"][0]
    layer, head = choose.heads(1)[0]
    row, column = choose.cells(1)[0]
    session.open(layer, head)
    pin(session, row, column)
    checks.that(page.locator("#walk-open").is_visible() and not page.locator("#walk-body").is_visible(), "the walk is closed at first")
    page.locator("#walk-open").click()
    T, N, E = expected.rows, expected.heads, entry["width"]
    H = len(vectors(expected, "q", layer, head)) // T
    of_head, both = f"this head: [{T}, {H}]", f"[B, N, T, S] = [1, {N}, {T}, {T}]this head: [{T}, {T}]"
    qkv = [f"q [B, N, T, H] = [1, {N}, {T}, {H}]{of_head}", f"k [B, K, S, H] = [1, {N}, {T}, {H}]{of_head}", f"v [B, K, S, V] = [1, {N}, {T}, {H}]{of_head}"]
    out, joined, y = f"out [B, N, T, V] = [1, {N}, {T}, {H}]{of_head}", f"joined [B, T, N·V] = [1, {T}, {N * H}]", f"y [B, T, E] = [1, {T}, {E}]"
    wanted = [[f"x [B, T, E] = [1, {T}, {E}]"], [f"q [B, T, N·H] = [1, {T}, {N * H}]", f"k [B, S, K·H] = [1, {T}, {N * H}]", f"v [B, S, K·V] = [1, {T}, {N * H}]"], qkv,
              [*qkv[:2], f"q · k {both}"], [f"q · k {both}", f"scaled {both}"], [f"score {both}", f"p {both}"], [f"p {both}", qkv[2], out], [out, joined], [joined, y]]
    for at, name in enumerate(STEPS):
        checks.that(heading(session) == f"{at + 1} of {len(STEPS)}: {name}", f"step {at + 1} is called {name}", heading(session))
        checks.that(captions(session) == wanted[at], "its matrices have the shapes of the model", (captions(session), wanted[at]))
        if name == "q · k":
            q, k = vectors(expected, "q", layer, head), vectors(expected, "k", layer, head)
            dot = sum(q[row * H + i] * k[column * H + i] for i in range(H))
            checks.that(abs(number(session.text(".told").rsplit("= ", 1)[1]) - dot) <= 1e-5, "the number of the chosen pair", session.text(".told"))
        if name == "softmax":
            checks.that(abs(number(session.text(".told").rsplit(": ", 1)[1]) - expected.weight(layer, head, row, column)) <= 1e-5, "its attention weight", session.text(".told"))
        if name == "Times v":
            v = vectors(expected, "v", layer, head)
            outputs = [math.fsum(expected.weight(layer, head, t, s) * v[s * H + i] for s in range(T)) for t in range(T) for i in range(H)]
            pixels, bound = pixels_of(page.locator("#walk-body figure").last.locator("canvas")), max(map(abs, outputs))
            colours = collections.defaultdict(collections.Counter)  # by the place on the scale of 256 colours
            for at_pixel, output in enumerate(outputs):
                colours[round(127.5 + 127.5 * output / bound)][tuple(pixels[4 * at_pixel:4 * at_pixel + 3])] += 1
            alike = sum(max(found.values()) for found in colours.values()) / len(outputs)
            checks.that(len(pixels) == 4 * len(outputs) and alike > 0.95 and len(colours) > 30, "the colours of the output are those of the sums of weight × v", (alike, len(colours)))
        if at + 1 < len(STEPS):
            page.locator("#walk-next").click()
    checks.that(page.locator("#walk-next").is_disabled() and page.locator("#walk-body").evaluate("(body) => body === document.activeElement"), "the last step has no next, and the focus goes on to the body")
    checks.that("walk=8" in page.url or page.evaluate("new Promise((done) => setTimeout(() => done(location.hash), 200))").find("walk=8") >= 0, "the address keeps the step", page.url)
    reload(page)
    session.drawn()
    checks.that(heading(session) == f"9 of 9: {STEPS[-1]}", "and brings it back", heading(session))
    violations = axe_violations(page)
    checks.that(not violations, "no violation of accessibility", [violation["id"] for violation in violations])


def check_keys(checks, session, choose):
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator("#walk-body").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    checks.that(heading(session).startswith("3 of"), "arrow keys change the step", heading(session))
    before = session.text("#readout")
    page.keyboard.press("ArrowLeft")
    checks.that(heading(session).startswith("2 of") and session.text("#readout") == before, "and do not move the cell of the map", heading(session))
    page.keyboard.press("End")
    page.keyboard.press("Home")
    checks.that(heading(session).startswith("1 of"), "Home and End are the ends", heading(session))
    checks.that(STEPS[0] in session.text("#status"), "a screen reader hears the step", session.text("#status"))
    page.locator('#walk-steps [data-place="3"]').click()
    checks.that(heading(session).startswith("4 of") and page.locator("#walk-steps [aria-current]").text_content() == "4. q · k", "the list opens a step")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#walk").is_visible(), "Escape still leaves the head")


def check_playing(checks, session, choose):
    """Playing fills the numbers key by key and goes on to the next step; it stops at the end, when paused and when the reader takes a step."""
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="3"]').click()
    whole = pixels_of(page.locator("#walk-body canvas").last)
    page.locator("#walk-play").click()
    checks.that(session.text("#walk-play") == "Pause", "the button pauses while it plays")
    filled = lambda: sum(1 for opacity in pixels_of(page.locator("#walk-body canvas").last)[3::4] if opacity)
    first = filled()
    checks.that(0 < first < len(whole) // 4, "it begins with a part of the row", first)
    while filled() <= first + 2:
        page.wait_for_timeout(50)
    page.locator("#walk-body").focus()
    page.keyboard.press(" ")
    paused = filled()
    page.wait_for_timeout(900)
    checks.that(filled() == paused and session.text("#walk-play") == "Play" and heading(session).startswith("4 of"), "a paused walk stays where it is", (filled(), paused))
    page.keyboard.press(" ")
    page.wait_for_function("() => document.querySelector('#walk-body h3').textContent.startsWith('5 of')")
    page.keyboard.press("ArrowRight")
    checks.that(heading(session).startswith("6 of") and session.text("#walk-play") == "Play" and pixels_of(page.locator("#walk-body canvas").last)[3::4].count(0) < session.expected.rows, "a step by hand stops it, and shows the whole step", heading(session))
    page.locator('#walk-steps [data-place="8"]').click()
    page.locator("#walk-play").click()
    checks.that(heading(session).startswith("1 of"), "from the end it starts again", heading(session))
    page.locator("#walk-open").click()
    page.wait_for_timeout(2500)
    checks.that(not page.locator("#walk-body").is_visible() and page.evaluate("location.hash").find("walk=") < 0, "closing ends it")


def check_still(checks, session, choose):
    """A reader who wants less motion: each step is whole at once."""
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="2"]').click()
    page.locator("#walk-play").click()
    page.wait_for_function("() => document.querySelector('#walk-body h3').textContent.startsWith('4 of')")
    pixels = pixels_of(page.locator("#walk-body canvas").last)
    page.wait_for_timeout(700)
    checks.that(pixels[3::4].count(0) == 0 and pixels_of(page.locator("#walk-body canvas").last) == pixels, "nothing moves within a step")


def check_without(checks, session, choose):
    """Without q, k and v: letters for unknown sizes, and the attention weights."""
    page, expected = session.page, session.expected
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="2"]').click()
    T, N = expected.rows, expected.heads
    checks.that(captions(session)[0] == f"q [B, N, T, H] = [1, {N}, {T}, H]this head: [{T}, H]" and "no q, k and v" in session.text("#walk-body .quiet >> nth=-1"), "shapes with letters, and the reason", captions(session))
    page.locator('#walk-steps [data-place="5"]').click()
    checks.that(pixels_of(page.locator("#walk-body canvas").last)[3::4].count(255) > T, "the attention weights are there")
    page.keyboard.press("m")
    checks.that("mean over heads" in session.text("#walk-note") and page.locator("#walk-open").is_disabled(), "a mean says why it has no steps", session.text("#walk-note"))


def rounds(test):
    choose = test.choose
    return [
        ("steps", check_steps, [choose], {}),
        ("steps, dark and narrow", check_steps, [choose], {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}),
        ("keys", check_keys, [choose], {}),
        ("playing", check_playing, [choose], {}),
        ("less motion", check_still, [choose], {"reduced_motion": "reduce"}),
        ("weights only", check_without, [choose], test.made(drop)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
