#!/usr/bin/env python3
"""If a matrix does not fit on the screen, a minimap shows all of it. A frame in the minimap marks the visible part, and a click or a drag moves the frame.

    minimap_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
from session import colours_of, prints, reload, run

# FRAME returns [left, top, width, height] of the frame as fractions of the minimap. VISIBLE returns those of the visible part as fractions of the matrix. They must be
# nearly equal.
FRAME = """() => {
  const whole = document.querySelector('#minimap canvas').getBoundingClientRect(), frame = document.querySelector('.minimap-frame').getBoundingClientRect();
  return [(frame.left - whole.left) / whole.width, (frame.top - whole.top) / whole.height, frame.width / whole.width, frame.height / whole.height];
}"""
VISIBLE = """() => {
  const stage = document.querySelector('#stage'), box = stage.getBoundingClientRect(), cells = document.querySelector('.cells').getBoundingClientRect();
  const left = document.querySelector('.strip.queries').getBoundingClientRect().right, top = document.querySelector('.strip.keys').getBoundingClientRect().bottom;
  const right = Math.min(cells.right, box.left + stage.clientWidth), bottom = Math.min(cells.bottom, box.top + stage.clientHeight);
  return [(left - cells.left) / cells.width, (top - cells.top) / cells.height, (right - left) / cells.width, (bottom - top) / cells.height];
}"""


def visible(session):
    return session.page.locator("#minimap").is_visible()


def same(session, checks, claim):
    session.settled()  # the page reacts to scrolling in the next animation frame
    frame, seen = session.page.evaluate(FRAME), session.page.evaluate(VISIBLE)
    checks.that(max(abs(a - b) for a, b in zip(frame, seen)) < 0.03, claim, (frame, seen))
    return seen


def zoom(session):
    for _ in range(20):
        session.page.locator('[data-zoom="1"]').click()


def check_minimap(checks, session, choose):
    page = session.page
    (layer, head), = choose.heads(1)
    session.open(layer, head)
    page.locator('[data-zoom="0"]').click()
    checks.that(not visible(session), "a map that fits has no minimap")
    zoom(session)
    checks.that(visible(session), "a map that does not fit has a minimap")
    at = same(session, checks, "the frame marks the visible part")
    checks.that(at[0] < 0.01 and at[1] < 0.01 and at[2] < 0.9, "at first the beginning is visible", at)
    checks.that(len({colour[:3] for colour in colours_of(page.locator("#minimap canvas"))}) > 3, "the minimap has the colours of the map")
    box = page.locator("#minimap canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    at = same(session, checks, "a click moves the frame")
    checks.that(abs(at[0] + at[2] - 1) < 0.03 and abs(at[1] + at[3] - 1) < 0.03, "a click in the last corner shows the end of the map", at)
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 1, box["y"] + 1, steps=4)
    page.mouse.up()
    at = same(session, checks, "a drag moves the frame")
    checks.that(at[0] < 0.01 and at[1] < 0.01, "a drag to the first corner shows the beginning of the map", at)
    page.locator("#stage").evaluate("(stage) => stage.scrollTo(60, 40)")
    same(session, checks, "scrolling moves the frame too")
    checks.that(page.locator("#minimap").get_attribute("aria-hidden") == "true", "the minimap is hidden from screen readers (their users move with the arrow keys)")
    page.locator('[data-view="lines"]').click()
    checks.that(not visible(session), "the view of lines has no minimap")
    page.locator('[data-view="matrix"]').click()
    if prints(page):
        page.emulate_media(media="print")
        checks.that(not visible(session), "a printed page has no minimap")
        page.emulate_media(media="screen")
    page.locator('[data-zoom="0"]').click()
    checks.that(not visible(session), "the minimap disappears when the map fits again")
    reload(page)


def check_narrow(checks, session, choose):
    session.open(*choose.heads(1)[0])
    zoom(session)
    checks.that(visible(session), "a page as narrow as a phone has a minimap too")
    same(session, checks, "on a page as narrow as a phone, the frame marks the visible part")
    wide = session.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    checks.that(wide <= 0, "the minimap does not make the page wider than the screen", wide)


def rounds(test):
    return [("wide", check_minimap, [test.choose], {}), ("narrow", check_narrow, [test.choose], {"viewport": {"width": 390, "height": 800}})]


if __name__ == "__main__":
    run(__doc__, rounds)
