"""Helpers for the tests of the viewer's page. A Session is a tab with the page open, Expected has the expected contents, and Checks counts the checks."""
import argparse
import base64
import contextlib
import csv
import io
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
from tensor_files import floats_of, load_safetensors  # noqa: E402

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Error as PlaywrightError, sync_playwright
except ImportError:
    sys.exit("the tests of the page need the Python packages playwright and axe-playwright-python: pip install playwright axe-playwright-python")

BROWSER = os.environ.get("POLYHEAD_TEST_BROWSER") or "chromium"  # or "firefox"
EMULATED = {"color_scheme", "reduced_motion", "forced_colors"}  # options of a tab that a test cannot choose in Firefox
SKIPPED = 77  # the exit code of a test that cannot run here

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script', re.S)
ABSOLUTE = 0.5e-4 + 7.7e-6   # error of a number with four decimals, plus that of a weight stored in 16 bits (include/polyhead/viewer.h)
RELATIVE = 0.05 + 0.026      # relative error of a number with two digits, plus that of a weight stored in 8 bits

# Returns the pixels of a canvas or an image. They are read from a copy, because reading would move the page's own canvas out of graphics memory. They are encoded in
# base64, because Playwright would make an object of every number of an array, which takes seconds for a canvas.
PIXELS = """(image) => {
  const copy = document.createElement('canvas');
  copy.width = image.naturalWidth ?? image.width;
  copy.height = image.naturalHeight ?? image.height;
  const pen = copy.getContext('2d', { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  const data = pen.getImageData(0, 0, copy.width, copy.height).data, parts = [];
  for (let start = 0; start < data.length; start += 32768) parts.push(String.fromCharCode(...data.subarray(start, start + 32768)));
  return btoa(parts.join(''));
}"""


def pixels_of(image):
    """Returns red, green, blue and opacity of each pixel, in one list."""
    return list(base64.b64decode(image.evaluate(PIXELS)))


def colours_of(image):
    """Returns (red, green, blue, opacity) of each pixel."""
    pixels = pixels_of(image)
    return list(zip(*(pixels[part::4] for part in range(4))))


def middle_of(cells, row, column):
    """Returns the middle of a cell of a map, in the form of `position` of Playwright's hover() and click()."""
    side = cells.evaluate("(one) => one.clientWidth / Number(getComputedStyle(one.parentElement).getPropertyValue('--columns'))")
    return {"x": (column + 0.5) * side, "y": (row + 0.5) * side}


def prints(page):
    """Returns whether a test can show the page as it is printed. In Firefox it cannot, because WebDriver BiDi does not emulate printing."""
    return page.context.browser.browser_type.name == "chromium"


def downloaded(page, click):
    """Calls click(), which starts a download. Returns (the file's name, its bytes)."""
    if page.context.browser.browser_type.name == "chromium":
        with page.expect_download() as waiting:
            click()
        return waiting.value.suggested_filename, pathlib.Path(waiting.value.path()).read_bytes()
    # Playwright does not report downloads of Firefox. Firefox creates the file of the download, and beside it a file ".part" until the download is complete.
    folder = firefox_downloads
    for path in folder.iterdir():
        path.unlink()
    click()
    before = None
    for _ in range(600):
        now = [(path.name, path.stat().st_size) for path in folder.iterdir()]
        if len(now) == 1 and now == before and not now[0][0].endswith(".part") and now[0][1]:
            return now[0][0], (folder / now[0][0]).read_bytes()
        before = now
        page.wait_for_timeout(100)
    raise AssertionError(f"no file was downloaded: {before}")


def exported(page, kind):
    """Exports a file of this kind ("svg", "png" or "csv") through the page's menu. Returns (the file's name, its bytes)."""
    page.locator("#export summary").click()
    return downloaded(page, page.locator(f'[data-export="{kind}"]').click)


def exported_rows(page):
    """Exports a CSV file. Returns its rows."""
    return list(csv.reader(io.StringIO(exported(page, "csv")[1].decode("utf-8-sig"))))


# The page adapts its layout to a new size in the next animation frame. If this moves an element, the page adapts again in the frame after that.
SETTLED = """async () => {
  const places = () => JSON.stringify([...document.querySelectorAll('body, #stage, .cells, .patches')].map((one) => one.getBoundingClientRect()));
  let before, now;
  do {
    before = now;
    await new Promise(requestAnimationFrame);
    now = places();
  } while (now !== before);
}"""


class Expected:
    """The expected contents of the page, computed only from the arrays and the words."""

    def __init__(self, data, text, arrays):
        self.data = json.loads(data)
        self.text = text
        entry = self.data["texts"][text]
        self.queries = entry["queries"]
        self.keys = entry.get("keys", self.queries)
        (self.layers, self.heads, self.rows, self.columns), self.weights = load_safetensors(arrays)["attentions"]
        self.approximate = self.data["encoding"] != "linear16"
        self.wholes = 1 + (self.layers > 1 and self.keys is self.queries)  # number of maps over all layers: the mean of all heads and, if there is one, the rollout

    @classmethod
    def of(cls, arguments):
        return cls(DATA.search(arguments.page.read_text(encoding="utf-8")).group(1), arguments.text, arguments.arrays)

    def weight(self, layer, head, row, column):
        if layer == "mean":
            return sum(self.weight(one, "mean", row, column) for one in range(self.layers)) / self.layers
        if head == "mean":
            return sum(self.weight(layer, one, row, column) for one in range(self.heads)) / self.heads
        return self.weights[((layer * self.heads + head) * self.rows + row) * self.columns + column]

    @staticmethod
    def word(side, index):
        """Returns a word as the page shows it: if the word occurs several times, with the number of this occurrence as a subscript."""
        words = [piece.strip() or "␣" for piece in side["pieces"]]
        if words.count(words[index]) == 1:
            return words[index]
        number = words[:index + 1].count(words[index])
        return words[index] + "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(number))

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


def reload(page):
    """Waits until the address holds the state of the page and the browser knows this address, then reloads."""
    # The page updates its address in a timer of up to 100 ms. On a busy machine, only a longer timer inside the page is sure to fire after that timer.
    address = page.evaluate("new Promise((written) => setTimeout(() => written(location.href), 150))")
    page.wait_for_url(lambda url: url == address)
    page.reload()


class Session:
    """One tab with the page open, and a record of its errors and of its requests to the network."""

    def __init__(self, browser, path, expected, address="", drawn=True, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, "color_scheme": "light", **options})
        self.context.set_default_timeout(300000)  # in milliseconds; so long that tests pass on a busy machine
        self.page = self.context.new_page()
        self.expected = expected
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.resolve().as_uri()
        entries = [f"text={expected.text}"] if expected.text else []
        self.page.goto(self.url + "#" + "&".join(entries + ([address] if address else [])))
        if drawn:
            self.drawn()

    def drawn(self):
        """Waits until all thumbnails are drawn."""
        self.page.wait_for_function("() => [...document.querySelectorAll('.thumb img')].every((image) => image.naturalWidth > 0)", timeout=600000)

    def settled(self):
        """Waits until two animation frames have the same layout."""
        self.page.evaluate(SETTLED)

    def resize(self, width, height=800):
        """Changes the size of the window and waits until the page has adapted to the new size."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function("([width, height]) => innerWidth === width && innerHeight === height", arg=[width, height])
        self.settled()

    def text(self, selector):
        return " ".join(self.page.locator(selector).text_content().split())

    def open(self, layer, head):
        self.page.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').click()

    def hover(self, row_place, column_place):
        """Scrolls a cell into view and moves the pointer to its middle. The cell is given by its row and column among the cells that are shown."""
        self.settled()  # otherwise a late change of the layout could move the cell away from the pointer
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
        """Returns "" if the headline names this pair and its weight, otherwise a text that says what is wrong."""
        headline, wanted = self.text("#readout"), self.expected.weight(layer, head, row, column)
        pair = " ".join(self.expected.pair(row, column).split())
        if not headline.startswith(pair + " "):
            return f"headline {headline!r}, wanted {pair!r}"
        shown = self.shown_weight().replace("≈", "").strip()
        error = abs(float(shown) - wanted)
        allowed = max(RELATIVE * wanted, 4e-6) if self.expected.approximate else ABSOLUTE
        return "" if error <= allowed else f"{pair} shows {shown}, the arrays have {wanted}"


def check_quiet(checks, session, where):
    checks.that(not session.complaints, f"{where}: the browser's console has no message", session.complaints)
    outside = [url for url in session.requests if url.split("#")[0] != session.url and not url.startswith("data:")]
    checks.that(not outside, f"{where}: the page loads nothing from the network", outside)


def axe_violations(page, options=None):
    """Returns the violations that axe-core finds. The script of axe-core, half a megabyte, is sent to each document only once."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Axe().axe_script)
    return page.evaluate("(options) => axe.run(options).then((results) => results.violations)", {"resultTypes": ["violations"], **(options or {})})


def title(layer, head):
    if layer == "mean":
        return "Mean of all heads"
    return f"Layer {layer} · Mean of its heads" if head == "mean" else f"Layer {layer} · Head {head}"


def variant(page, edit, path):
    """Writes a copy of `page` to `path` with other data: edit() changes the decoded JSON. Returns `path`."""
    html = page.read_text(encoding="utf-8")
    data = json.loads(DATA.search(html).group(1))
    edit(data)
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    path.write_text(DATA.sub(lambda match: match.group(0).replace(match.group(1), text), html), encoding="utf-8")
    return path


def encoded(weights):
    """Encodes weights in 16 bits, as viewer/encoding.h describes."""
    return base64.b64encode(struct.pack(f"<{len(weights)}H", *(0 if w == 0 else 1 + round(w * 65533) for w in weights))).decode()


def divergence(p, q):
    """Returns the Jensen-Shannon divergence of two rows in bits: the mean of the relative entropies of the rows to the mean row."""
    p, q = ([one / math.fsum(row) for one in row] for row in (p, q))
    middle = [(a + b) / 2 for a, b in zip(p, q)]
    relative = lambda row: math.fsum(one * math.log2(one / m) for one, m in zip(row, middle) if one > 0)
    return (relative(p) + relative(q)) / 2


def find_chromium():
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not chromium:
        sys.exit("this test needs Chromium on the path (Debian and Ubuntu: apt install chromium), or CHROMIUM set to it")
    return chromium


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


@contextlib.contextmanager
def started_firefox(playwright):
    """Starts the installed Firefox through WebDriver BiDi. Exits with SKIPPED if there is none or this Playwright cannot drive it."""
    global firefox_downloads
    firefox = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
    if not firefox:
        skip("Firefox is not installed (Debian: apt install firefox-esr)")
    with tempfile.TemporaryDirectory() as downloads:
        try:
            browser = playwright.firefox.launch(channel="moz-firefox", executable_path=firefox, downloads_path=downloads)
            browser.new_context().close()
        except PlaywrightError as error:
            # A "channel error" may mean that Firefox crashed. Then the test fails and is not skipped.
            if "unknown command" in str(error) or ("Unsupported" in str(error) and "channel" in str(error)):
                skip(f"this version of Playwright cannot drive this Firefox (tests/browser/requirements.txt names versions that can): {str(error).splitlines()[0]}")
            raise
        firefox_downloads = pathlib.Path(downloads)
        with contextlib.closing(browser):
            yield browser


@contextlib.contextmanager
def started_browser(name=BROWSER):
    """Starts "chromium" or "firefox"."""
    with sync_playwright() as playwright:
        if name == "firefox":
            with started_firefox(playwright) as browser:
                yield browser
            return
        # Chromium's sandbox does not work for root, who often runs tests in a container.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        with contextlib.closing(playwright.chromium.launch(executable_path=find_chromium(), args=flags)) as browser:
            yield browser


def parsed(doc, *options):
    """Parses the command line: PAGE, ARRAYS, --text, --seed, and further options as (name, keywords of add_argument)."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("arrays", type=pathlib.Path)
    parser.add_argument("--text", type=int, default=0, help="which text of the page the arrays belong to")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("POLYHEAD_TEST_SEED", "0")))
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    return arguments


class Test:
    """The command-line arguments and expected contents from which the rounds of a test are made."""

    def __init__(self, arguments, folder):
        self.arguments, self.page, self.seed, self.folder = arguments, arguments.page, arguments.seed, folder
        self.checks, self.expected = Checks(), Expected.of(arguments)
        self.choose = Choose(arguments.seed, self.expected)

    def made(self, edit, name=None):
        """Returns the options of a tab that opens a copy of the page with other data: edit() changes the decoded JSON."""
        return {"path": variant(self.page, edit, self.folder / (name or f"{len(list(self.folder.iterdir()))}.html"))}


def run_checks(arguments, checks, browser, rounds):
    """Runs all rounds. A round is (name, check, arguments, options of the tab); check(checks, session, *arguments) is called with a new session."""
    expected = Expected.of(arguments)
    for name, check, rest, tab in rounds:
        if browser.browser_type.name == "firefox" and tab.keys() & EMULATED:
            print(f"skip {name}: WebDriver BiDi cannot emulate {', '.join(tab.keys() & EMULATED)} in Firefox")
            continue
        session = Session(browser, expected=expected, **{"path": arguments.page, **tab})
        try:
            check(checks, session, *rest)
        except Exception as error:  # count the exception as a failed check, and continue with the next round
            checks.that(False, f"{name}: ends without an exception", error)
        check_quiet(checks, session, name)
        session.context.close()
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def run(doc, rounds, *options):
    """Runs a test file. rounds(test) returns the rounds for run_checks(); `options` are further command-line options for parsed()."""
    arguments = parsed(doc, *options)
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        test = Test(arguments, pathlib.Path(folder))
        code = run_checks(arguments, test.checks, browser, rounds(test))
    sys.exit(code)


class Choose:
    def __init__(self, seed, expected):
        self.random, self.expected = random.Random(seed), expected

    def layer(self):
        return self.random.randrange(self.expected.layers)

    def heads(self, count):
        return [(self.layer(), self.random.randrange(self.expected.heads)) for _ in range(count)]

    def cells(self, count):
        return [(self.random.randrange(self.expected.rows), self.random.randrange(self.expected.columns)) for _ in range(count)]
