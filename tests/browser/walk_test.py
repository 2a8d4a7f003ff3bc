#!/usr/bin/env python3
"""One head, step by step: shapes of the shown model, its numbers, keys, playing and pausing, and what a reader who wants less motion sees.

    walk_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import collections
import math

from cell_test import drop, number, pin
from compare_test import add_texts
from session import axe_violations, encoded, floats_of, pixels_of, reload, run

STEPS = ["Input", "Projection", "Split into heads", "q · k", "Scale", "softmax", "Times v", "Join the heads", "Output projection"]


def heading(session):
    return session.text("#walk-body h3")


def captions(session):
    return [" ".join(text.split()) for text in session.page.locator("#walk-body figcaption").all_text_contents()]


def vectors(expected, name, layer, head):
    return floats_of(expected.data["texts"][0]["vectors"][name][layer][head])


def outputs_of(expected, layer, head, v):
    T, H = expected.rows, len(v) // expected.rows
    return [math.fsum(expected.weight(layer, head, t, s) * v[s * H + i] for s in range(T)) for t in range(T) for i in range(H)]


def check_colours(checks, session, numbers, claim):
    """Checks that the last matrix on the page has the colours of these numbers: equal numbers must have equal colours."""
    pixels, bound = pixels_of(session.page.locator("#walk-body figure").last.locator("canvas")), max(map(abs, numbers))
    colours = collections.defaultdict(collections.Counter)  # for each place on the scale of 256 colours: {colour on the page: how often}
    for at, one in enumerate(numbers):
        colours[round(127.5 + 127.5 * one / bound)][tuple(pixels[4 * at:4 * at + 3])] += 1
    alike = sum(max(found.values()) for found in colours.values()) / len(numbers)
    checks.that(len(pixels) == 4 * len(numbers) and alike > 0.95 and len(colours) > 30, claim, (alike, len(colours)))


def check_steps(checks, session, choose):
    """Checks that every step shows its matrices' shapes with the sizes of the model, and the numbers of the chosen pair."""
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
        checks.that(captions(session) == wanted[at], "the step's matrices have the shapes of the model", (captions(session), wanted[at]))
        if name == "q · k":
            q, k = vectors(expected, "q", layer, head), vectors(expected, "k", layer, head)
            dot = sum(q[row * H + i] * k[column * H + i] for i in range(H))
            checks.that(abs(number(session.text("#walk-body .told").rsplit("= ", 1)[1]) - dot) <= 1e-5, "the step shows q · k of the chosen pair", session.text("#walk-body .told"))
        if name == "softmax":
            checks.that(abs(number(session.text("#walk-body .told").rsplit(": ", 1)[1]) - expected.weight(layer, head, row, column)) <= 1e-5, "the step shows the attention weight of the chosen pair", session.text("#walk-body .told"))
        if name == "Times v":
            v = vectors(expected, "v", layer, head)
            check_colours(checks, session, outputs_of(expected, layer, head, v), "the matrix of the output has the colours of the sums of weight × v")
        if at + 1 < len(STEPS):
            page.locator("#walk-next").click()
    checks.that(page.locator("#walk-next").is_disabled() and page.locator("#walk-body").evaluate("(body) => body === document.activeElement"), "at the last step, the button Next is disabled and the focus moves to the step")
    checks.that("walk=8" in page.url or page.evaluate("new Promise((done) => setTimeout(() => done(location.hash), 200))").find("walk=8") >= 0, "the address keeps the step", page.url)
    reload(page)
    session.drawn()
    checks.that(heading(session) == f"9 of 9: {STEPS[-1]}", "after a reload, the page shows the step in its address", heading(session))
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
    checks.that(heading(session).startswith("2 of") and session.text("#readout") == before, "arrow keys that change the step do not move the cell of the map", heading(session))
    page.keyboard.press("End")
    page.keyboard.press("Home")
    checks.that(heading(session).startswith("1 of"), "the key Home opens the first step", heading(session))
    checks.that(STEPS[0] in session.text("#status"), "a screen reader speaks the name of the step", session.text("#status"))
    page.locator('#walk-steps [data-place="3"]').click()
    checks.that(heading(session).startswith("4 of") and page.locator("#walk-steps [aria-current]").text_content() == "4. q · k", "the list opens a step")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#walk").is_visible(), "Escape still closes the head")


def check_playing(checks, session, choose):
    """Playing shows the numbers of a step key by key, and then the next step. It stops at the end, when paused, and when the reader changes the step."""
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="3"]').click()
    whole = pixels_of(page.locator("#walk-body canvas").last)
    page.locator("#walk-play").click()
    checks.that(session.text("#walk-play") == "Pause", "while the steps play, the button is called Pause")
    filled = lambda: sum(1 for opacity in pixels_of(page.locator("#walk-body canvas").last)[3::4] if opacity)
    first = filled()
    checks.that(0 < first < len(whole) // 4, "playing begins with a part of the row's numbers", first)
    while filled() <= first + 2:
        page.wait_for_timeout(50)
    page.locator("#walk-body").focus()
    page.keyboard.press(" ")
    paused = filled()
    page.wait_for_timeout(900)
    checks.that(filled() == paused and session.text("#walk-play") == "Play" and heading(session).startswith("4 of"), "after Pause, the step and its numbers stay as they are", (filled(), paused))
    page.keyboard.press(" ")
    page.wait_for_function("() => document.querySelector('#walk-body h3').textContent.startsWith('5 of')")
    page.keyboard.press("ArrowRight")
    checks.that(heading(session).startswith("6 of") and session.text("#walk-play") == "Play" and pixels_of(page.locator("#walk-body canvas").last)[3::4].count(0) < session.expected.rows, "when the reader changes the step, playing stops and the whole step is shown", heading(session))
    page.locator('#walk-steps [data-place="8"]').click()
    page.locator("#walk-play").click()
    checks.that(heading(session).startswith("1 of"), "after the last step, Play starts at the first step", heading(session))
    page.locator("#walk-open").click()
    page.wait_for_timeout(2500)
    checks.that(not page.locator("#walk-body").is_visible() and page.evaluate("location.hash").find("walk=") < 0, "closing the steps removes them from the page and from its address")


def check_still(checks, session, choose):
    """For a reader who wants less motion, each step is shown complete at once."""
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="2"]').click()
    page.locator("#walk-play").click()
    page.wait_for_function("() => document.querySelector('#walk-body h3').textContent.startsWith('4 of')")
    pixels = pixels_of(page.locator("#walk-body canvas").last)
    page.wait_for_timeout(700)
    checks.that(pixels[3::4].count(0) == 0 and pixels_of(page.locator("#walk-body canvas").last) == pixels, "each step is complete at once and does not change")


def check_without(checks, session, choose):
    """If the page has no q, k and v, it shows the attention weights, and letters instead of unknown sizes."""
    page, expected = session.page, session.expected
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="2"]').click()
    T, N = expected.rows, expected.heads
    checks.that(captions(session)[0] == f"q [B, N, T, H] = [1, {N}, {T}, H]this head: [{T}, H]" and "no q, k and v" in session.text("#walk-body .quiet >> nth=-1"), "the shapes have letters for unknown sizes, and a note says why", captions(session))
    page.locator('#walk-steps [data-place="5"]').click()
    checks.that(pixels_of(page.locator("#walk-body canvas").last)[3::4].count(255) > T, "the step softmax shows the attention weights")
    note = session.text("#walk-body .quiet >> nth=-1")
    checks.that("does not know this layer's scale, mask, bias, softcap or sink" in note, "the note says what the page does not know", note)
    checks.that("or to less" in session.text("#walk-body"), "the page does not promise that rows sum to 1", session.text("#walk-body"))
    page.locator('#walk-steps [data-place="4"]').click()
    checks.that(session.text("#walk-body .formula") == "× scale", "the page does not promise that the scale is 1/√H", session.text("#walk-body .formula"))
    page.locator('#walk-steps [data-place="1"]').click()
    checks.that("does not know how many heads of keys and values" in session.text("#walk-body") and page.locator("#walk-body .band.column").count() == 1, "the page does not know which heads share keys and values, so it marks the head's part in q only", session.text("#walk-body"))
    page.keyboard.press("m")
    checks.that("mean over heads" in session.text("#walk-note") and page.locator("#walk-open").is_disabled(), "a note says why the mean of heads has no steps", session.text("#walk-note"))


def gate(at):
    return (at % 7 + 1) / 8


def add_gate(expected):
    def edit(data):
        first = data["texts"][0]
        width = len(floats_of(first["vectors"]["v"][0][0])) // expected.rows
        first.update(gate_width=width, gate=[[encoded([gate(at + head) for at in range(expected.rows * width)]) for head in range(expected.heads)] for _ in range(expected.layers)])
    return edit


def check_gate(checks, session, choose):
    page, expected = session.page, session.expected
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    page.locator("#walk-open").click()
    names = page.locator("#walk-steps button").all_text_contents()
    wanted = [*STEPS[:7], "Gate", *STEPS[7:]]
    checks.that(names == [f"{at + 1}. {name}" for at, name in enumerate(wanted)], "the gate is a step after the output of the heads", names)
    T = expected.rows
    outs = [[x * gate(at + one) for at, x in enumerate(outputs_of(expected, layer, one, vectors(expected, "v", layer, one)))] for one in range(expected.heads)]
    page.locator('#walk-steps [data-place="7"]').click()
    check_colours(checks, session, outs[head], "the gated output is the output times the gate")
    page.locator('#walk-steps [data-place="8"]').click()
    H = len(outs[0]) // T
    check_colours(checks, session, [out[t * H + i] for t in range(T) for out in outs for i in range(H)], "all heads beside each other, each times its gate")


def learn_queries(data):
    data["texts"][0]["learned_queries"] = True
    data["texts"][0]["name"] = "Another name"


def check_learned(checks, session, choose):
    page = session.page
    session.open(*choose.heads(1)[0])
    for how in ("pieces", "merged words"):
        checks.that("learned query" in session.text("#walk-note") and page.locator("#walk-open").is_disabled(), f"heads with a learned query have no steps ({how})", session.text("#walk-note"))
        page.locator("#merge").evaluate("(one) => one.click()")


def three_texts(expected):
    def edit(data):
        add_texts(expected)(data)
        for text in data["texts"][1:]:
            del text["vectors"]
    return edit


def check_interrupted(checks, session, choose):
    """Playing goes on when the text changes to one with fewer keys, and pauses when the browser's tab is hidden."""
    page = session.page
    session.open(*choose.heads(1)[0])
    page.locator("#walk-open").click()
    page.locator('#walk-steps [data-place="3"]').click()
    page.locator("#walk-play").click()
    page.evaluate("""() => new Promise((done) => {
      const poll = setInterval(() => {
        const canvas = document.querySelector('#walk-body figure:last-child canvas');
        const copy = document.createElement('canvas'), pen = copy.getContext('2d', { willReadFrequently: true });
        [copy.width, copy.height] = [canvas.width, canvas.height];
        pen.drawImage(canvas, 0, 0);
        if (pen.getImageData(0, 0, copy.width, copy.height).data.filter((_, at) => at % 4 === 3).filter(Boolean).length < canvas.width - 1) return;
        clearInterval(poll);
        const select = document.querySelector('#text');
        select.value = 2;
        select.dispatchEvent(new Event('change'));
        done();
      }, 20);
    })""")
    page.wait_for_function("() => document.querySelector('#walk-body h3').textContent.startsWith('5 of')", timeout=60000)
    checks.that(session.text("#walk-play") == "Pause", "playing goes on when a text with fewer keys is chosen")
    page.evaluate("() => { Object.defineProperty(document, 'hidden', { get: () => true, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); delete document.hidden; }")
    checks.that(session.text("#walk-play") == "Play", "when the browser's tab is hidden, playing pauses and the button is called Play", session.text("#walk-play"))


def rounds(test):
    choose = test.choose
    return [
        ("steps", check_steps, [choose], {}),
        ("steps, dark and narrow", check_steps, [choose], {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}),
        ("keys", check_keys, [choose], {}),
        ("playing", check_playing, [choose], {}),
        ("less motion", check_still, [choose], {"reduced_motion": "reduce"}),
        ("gate", check_gate, [choose], test.made(add_gate(test.expected))),
        ("learned queries", check_learned, [choose], test.made(learn_queries)),
        ("interrupted", check_interrupted, [choose], test.made(three_texts(test.expected))),
        ("weights only", check_without, [choose], test.made(drop)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
