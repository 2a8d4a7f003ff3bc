#!/usr/bin/env python3
"""Opens a viewer page from disk in headless Chromium and holds what it shows against the arrays it was made from.

    page_test.py PAGE.html ARRAYS.safetensors [--text N] [--max-bytes N] [--seed N]

ARRAYS holds `attentions`, float32 [layers, heads, T, S], of the page's text N. Needs Chromium (CHROMIUM names another one than the one on
the path) and the PyPI package playwright, which drives it; nothing is downloaded.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import sys

from safetensors_file import read_float32

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sys.exit("page_test.py needs the Python package playwright: pip install playwright")

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script', re.S)
ABSOLUTE = 0.5e-4 + 7.7e-6   # four decimals, and what 16 bits keep (include/polyhead/viewer.h)
RELATIVE = 0.05 + 0.026      # two digits, and what 8 bits keep

# The pixels of a canvas or image, read from a copy so that the page's own canvas keeps its place on the graphics card.
PIXELS = """(image) => {
  const copy = document.createElement('canvas');
  copy.width = image.naturalWidth ?? image.width;
  copy.height = image.naturalHeight ?? image.height;
  const pen = copy.getContext('2d', { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  return [...pen.getImageData(0, 0, copy.width, copy.height).data];
}"""


class Expected:
    """What the page must show, from the arrays and the words alone."""

    def __init__(self, data, text, arrays):
        self.data = json.loads(data)
        self.text = text
        entry = self.data["texts"][text]
        self.queries = entry["queries"]
        self.keys = entry.get("keys", self.queries)
        self.weights, (self.layers, self.heads, self.rows, self.columns) = read_float32(arrays, "attentions")
        self.approximate = self.data["encoding"] != "linear16"

    def weight(self, layer, head, row, column):
        if layer == "mean":
            return sum(self.weight(one, "mean", row, column) for one in range(self.layers)) / self.layers
        if head == "mean":
            return sum(self.weight(layer, one, row, column) for one in range(self.heads)) / self.heads
        return self.weights[((layer * self.heads + head) * self.rows + row) * self.columns + column]

    @staticmethod
    def word(side, index):
        return side["pieces"][index] if side["pieces"][index].strip() else "␣"

    def pair(self, row, column):
        return f"{self.word(self.queries, row)} → {self.word(self.keys, column)}"


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def that(self, holds, claim, detail=""):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok  ' if holds else 'FAIL'} {claim}{'' if holds else f': {detail}'}", flush=True)


class Session:
    """One tab with the page open, and everything that went wrong or out in it."""

    def __init__(self, browser, path, expected, address="", **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, "color_scheme": "light", **options})
        self.context.set_default_timeout(300000)  # milliseconds; a guard only, so that a busy machine passes
        self.page = self.context.new_page()
        self.expected = expected
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.resolve().as_uri()
        entries = [f"text={expected.text}"] if expected.text else []
        self.page.goto(self.url + "#" + "&".join(entries + ([address] if address else [])))
        self.drawn()

    def drawn(self):
        """Waits until the last thumbnail is drawn."""
        self.page.wait_for_function("() => [...document.querySelectorAll('.thumb img')].every((image) => image.naturalWidth > 0)", timeout=600000)

    def text(self, selector):
        return " ".join(self.page.locator(selector).text_content().split())

    def open(self, layer, head):
        self.page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').click()

    def hover(self, row_place, column_place):
        """Points at the middle of a cell, given by its place among those shown, after bringing it into view."""
        x, y = self.page.evaluate("""([row, column]) => {
          const stage = document.querySelector('#stage'), cells = document.querySelector('.cells');
          const style = getComputedStyle(cells.parentElement);
          const side = cells.clientWidth / Number(style.getPropertyValue('--columns'));
          stage.scrollIntoView({ block: 'center' });
          stage.scrollTo((column + 0.5) * side + cells.offsetLeft / 2 - stage.clientWidth / 2,
                         (row + 0.5) * side + cells.offsetTop / 2 - stage.clientHeight / 2);
          const box = cells.getBoundingClientRect();
          return [box.left + (column + 0.5) * side, box.top + (row + 0.5) * side];
        }""", [row_place, column_place])
        self.page.mouse.move(x, y)

    def lit(self):
        return self.page.evaluate("""() => ['.queries', '.keys'].map(
            (strip) => [...document.querySelectorAll(`${strip} .label.lit`)].map((label) => Number(label.dataset.index)))""")

    def shown_weight(self):
        return self.page.locator("#readout .weight").text_content()

    def right(self, layer, head, row, column):
        """Whether the headline names this pair and its weight; else what is wrong."""
        headline, wanted = self.text("#readout"), self.expected.weight(layer, head, row, column)
        pair = " ".join(self.expected.pair(row, column).split())
        if not headline.startswith(pair + " "):
            return f"headline {headline!r}, wanted {pair!r}"
        shown = self.shown_weight().replace("≈", "").strip()
        error = abs(float(shown) - wanted)
        allowed = max(RELATIVE * wanted, 4e-6) if self.expected.approximate else ABSOLUTE
        return "" if error <= allowed else f"{pair} shows {shown}, the arrays have {wanted}"


def check_quiet(checks, session, where):
    checks.that(not session.complaints, f"{where}: nothing on the console", session.complaints)
    outside = [url for url in session.requests if url.split("#")[0] != session.url and not url.startswith("data:")]
    checks.that(not outside, f"{where}: no request but for the page itself", outside)


def check_grid(checks, session, choose):
    expected = session.expected
    thumbs = session.page.locator(".thumb:not(.mean)").count()
    checks.that(thumbs == expected.layers * expected.heads, f"one thumbnail for each of {expected.layers * expected.heads} heads", thumbs)
    checks.that(session.page.locator(".thumb.mean").count() == expected.layers + 1, "a mean for each layer and one of all")
    checks.that(session.page.locator(".thumb:not([aria-label])").count() == 0, "every thumbnail has a label")
    if max(expected.rows, expected.columns) > 96:
        return  # pooled: no longer one pixel for a cell
    for layer, head in choose.heads(4):
        pixels = session.page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"] img').evaluate(PIXELS)
        darkness = [765 - sum(pixels[i:i + 3]) for i in range(0, len(pixels), 4)]
        cells = [(expected.weight(layer, head, row, column), row * expected.columns + column)
                 for row in range(expected.rows) for column in range(expected.columns)]
        largest, smallest = max(cells), min(cells)
        checks.that(len(darkness) == len(cells) and darkness[largest[1]] == max(darkness) and darkness[smallest[1]] == min(darkness),
                    f"the thumbnail of layer {layer}, head {head} is darkest at its largest weight and lightest at its smallest")


def check_hover(checks, session, choose):
    expected = session.expected
    for layer, head in [*choose.heads(5), (choose.layer(), "mean"), ("mean", "mean")]:
        session.open(layer, head)
        wrong = []
        for row, column in choose.cells(6):
            session.hover(row, column)
            wrong.append(session.right(layer, head, row, column))
            if session.lit() != [[row], [column]]:
                wrong.append(f"row {row} and column {column} pointed at, lit are {session.lit()}")
            if session.text("#where") != f"Row {row} attends to column {column}.":
                wrong.append(session.text("#where"))
        wrong = [message for message in wrong if message]
        checks.that(not wrong, f"layer {layer}, head {head}: 6 cells show their words, their weight and light up their words", wrong)
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    row = choose.cells(1)[0][0]
    session.page.locator(f'.queries .label[data-index="{row}"]').hover()
    best = max(range(expected.columns), key=lambda column: expected.weight(layer, head, row, column))
    first = session.text("#row-list li:first-child .word")
    checks.that(session.lit() == [[row], []] and first == expected.word(expected.keys, best), "pointing at a row's word lists what it attends to most",
                (session.lit(), first))


def check_special(checks, session, choose):
    expected = session.expected
    hidden = [set(side["special"]) for side in (expected.queries, expected.keys)]
    rows = [row for row in range(expected.rows) if row not in hidden[0]]
    columns = [column for column in range(expected.columns) if column not in hidden[1]]
    if not (hidden[0] or hidden[1]) or not rows or not columns:
        return
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    session.page.locator("#hide-special").check()
    labels = session.page.locator(".strip .label")
    checks.that(labels.count() == len(rows) + len(columns), "hiding special tokens takes their rows and columns away", labels.count())
    checks.that("no longer sum to 1" in session.text("#special-note") and session.page.locator("#special-note").is_visible(),
                "the page says that rows no longer sum to 1")
    wrong = []
    for _ in range(4):
        row, column = choose.random.choice(rows), choose.random.choice(columns)
        session.hover(rows.index(row), columns.index(column))
        wrong.append(session.right(layer, head, row, column))
    checks.that(not any(wrong), "weights stay as they are when special tokens are hidden", wrong)
    session.page.locator("#hide-special").uncheck()
    checks.that(labels.count() == expected.rows + expected.columns, "special tokens come back", labels.count())


def check_keyboard(checks, session):
    expected, page = session.expected, session.page
    focused = lambda: page.evaluate("() => [document.activeElement.dataset.layer, document.activeElement.dataset.head]")
    for _ in range(12):
        if focused()[0] is not None:
            break
        page.keyboard.press("Tab")
    checks.that(focused() == ["0", "0"], "Tab reaches the first thumbnail", focused())
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth")
    checks.that(outline == "solid3px", "the focus can be seen", outline)
    layer, head = min(1, expected.layers - 1), min(1, expected.heads - 1)
    for key in ["ArrowDown"] * layer + ["ArrowRight"] * head + ["Enter"]:
        page.keyboard.press(key)
    checks.that(page.locator("#head").is_visible() and session.text("#head-title") == f"Layer {layer}, head {head}", "arrows and Enter open a head",
                session.text("#head-title"))
    page.keyboard.press("ArrowDown")
    first = session.right(layer, head, 0, 0)
    row, column = min(2, expected.rows - 1), min(1, expected.columns - 1)
    for key in ["ArrowDown"] * row + ["ArrowRight"] * column:
        page.keyboard.press(key)
    wrong = [message for message in (first, session.right(layer, head, row, column)) if message]
    checks.that(not wrong, "arrows move from pair to pair", wrong)
    spoken = page.locator("#status").text_content()
    checks.that(spoken == f"{expected.pair(row, column)} {session.shown_weight()}", "the live region speaks the pair and its weight", spoken)
    page.keyboard.press("?")
    checks.that(page.locator("#help").is_visible(), "? lists the keys")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#help").is_visible() and page.locator("#head").is_visible(), "Escape closes the list and nothing else")
    page.keyboard.press("v")
    page.keyboard.press("v")
    page.keyboard.press("s")
    page.keyboard.press("s")
    page.keyboard.press("Escape")
    checks.that(not page.locator("#head").is_visible() and focused() == [str(layer), str(head)], "Escape goes back to the same thumbnail", focused())


def check_address(checks, session, choose):
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    session.page.reload()
    session.drawn()
    row, column = choose.cells(1)[0]
    session.hover(row, column)
    wrong = session.right(layer, head, row, column)
    checks.that(not wrong, "a reload keeps text, layer and head", wrong)
    session.page.go_back()
    checks.that(not session.page.locator("#head").is_visible(), "Back leaves the head")


def check_lines(checks, session, choose):
    expected = session.expected
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    session.page.locator('[data-view="lines"]').click()
    ink = session.page.locator(".lines canvas").evaluate(f"(canvas) => ({PIXELS})(canvas).some((value) => value !== 0)")
    words = session.page.locator(".words .label").count()
    checks.that(ink and words == expected.rows + expected.columns, "the lines view has its words and lines", (ink, words))
    session.page.keyboard.press("ArrowRight")
    wrong = session.right(layer, head, 0, 0)
    checks.that(not wrong, "arrows name pairs in the lines view too", wrong)
    session.page.keyboard.press("Escape")


def luminance(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def check_theme(checks, session, dark):
    style = lambda selector, name: session.page.evaluate("([s, n]) => getComputedStyle(document.querySelector(s))[n]", [selector, name])
    for round_, is_dark in enumerate([dark, not dark]):
        how = "the system's choice" if round_ == 0 else "the t key"
        ground = luminance(style("body", "backgroundColor"))
        checks.that((ground < 0.1) == is_dark, f"{how} makes the page {'dark' if is_dark else 'light'}", ground)
        contrasts = []
        for selector in ("h1", "#heads-caption", "#hint"):
            ink = luminance(style(selector, "color"))
            contrasts.append((max(ink, ground) + 0.05) / (min(ink, ground) + 0.05))
        checks.that(min(contrasts) >= 4.5, "text has a contrast of 4.5 or more", contrasts)
        pixels = session.page.locator("#legend").evaluate(PIXELS)
        ramp = [luminance(" ".join(map(str, pixels[i:i + 3]))) for i in range(0, len(pixels), 4)]
        steps = [(after - before) * (1 if is_dark else -1) for before, after in zip(ramp, ramp[1:])]
        checks.that(min(steps) >= 0 and abs(ramp[0] - ground) < 0.1, "the colour scale starts at the page's own shade and goes steadily away from it",
                    (ramp[0], ramp[-1], min(steps)))
        session.page.keyboard.press("t")


def check_narrow(checks, session, choose):
    overflow = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    grid = session.page.evaluate(overflow)
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    checks.that(grid <= 0 and session.page.evaluate(overflow) <= 0, "400 pixels are wide enough for the page, with and without a head", grid)
    row, column = choose.cells(1)[0]
    session.hover(row, column)
    wrong = session.right(layer, head, row, column)
    checks.that(not wrong, "a narrow page shows the right weight", wrong)
    moving = session.page.evaluate("() => getComputedStyle(document.querySelector('.row-band')).transitionDuration")
    checks.that(moving == "0s", "reduced motion is respected", moving)


class Choose:
    def __init__(self, seed, expected):
        self.random, self.expected = random.Random(seed), expected

    def layer(self):
        return self.random.randrange(self.expected.layers)

    def heads(self, count):
        return [(self.layer(), self.random.randrange(self.expected.heads)) for _ in range(count)]

    def cells(self, count):
        return [(self.random.randrange(self.expected.rows), self.random.randrange(self.expected.columns)) for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("arrays", type=pathlib.Path)
    parser.add_argument("--text", type=int, default=0, help="which text of the page the arrays belong to")
    parser.add_argument("--max-bytes", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("page_test.py needs Chromium on the path (Debian and Ubuntu: apt install chromium), or CHROMIUM set to it")

    print(f"seed {arguments.seed}")
    checks = Checks()
    html = arguments.page.read_text(encoding="utf-8")
    expected = Expected(DATA.search(html).group(1), arguments.text, arguments.arrays)
    choose = Choose(arguments.seed, expected)
    size = arguments.page.stat().st_size
    checks.that(size < arguments.max_bytes, f"{size} bytes are less than {arguments.max_bytes}", size)

    # Chromium's own sandbox cannot start for root, as in a container.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright, contextlib.closing(playwright.chromium.launch(executable_path=chromium, args=flags)) as browser:
        def run(name, check, *rest, **options):
            session = Session(browser, arguments.page, expected, **options)
            try:
                check(checks, session, *rest)
            except Exception as error:  # a check that cannot be carried out has failed; the others go on
                checks.that(False, f"{name}: could be carried out", error)
            check_quiet(checks, session, name)
            session.context.close()

        run("grid", check_grid, choose)
        run("hover", check_hover, choose)
        run("special tokens", check_special, choose)
        run("keyboard", check_keyboard)
        run("address", check_address, choose)
        run("lines", check_lines, choose)
        run("light", check_theme, False)
        run("dark", check_theme, True, color_scheme="dark")
        run("narrow", check_narrow, choose, viewport={"width": 400, "height": 800}, reduced_motion="reduce")

    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
