"""Opens a live page from disk, and checks that the page shows for typed sentences what the program computes.

    python3 tests/live/page_test.py POLYHEAD NATIVE_ANSWER MODULES FOLDER [BROWSER]

BROWSER: "chromium" or "firefox". MODULES: the folder of polyhead_live.wasm.gz, which `scripts/live-engine` builds. FOLDER: where the test writes its files. If the module is missing, says so and exits with 77.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "browser"))
sys.dont_write_bytecode = True
program, native_answer, modules, folder, *chosen = sys.argv[1:]
engine = pathlib.Path(modules) / "polyhead_live.wasm.gz"
if not engine.exists():
    print(f"skipped: {engine} is not there; `scripts/live-engine` builds it")
    sys.exit(77)

import small_models  # noqa: E402
from session import exported_rows, floats_of, started_browser  # noqa: E402

ALLOWED = 1e-6
ALLOWED_OF_GIVEN = 1e-5  # largest difference of attention weights for a given model; engine_test.py explains the rounding behind it
MOST_BYTES = 4_000_000
page_file = pathlib.Path(folder) / "live.html"
minilm = os.environ.get("POLYHEAD_MINILM_DIR")
# The models for which the test makes a page: (folder, number of layers, number of heads).
own_models = [(small_models.write(pathlib.Path(folder) / "live_words"), 2, 2), (small_models.write(pathlib.Path(folder) / "live_pairs", small_models.byte_pairs), 2, 2)] + ([(pathlib.Path(minilm), 6, 12)] if minilm else [])
passed, largest_difference = 0, 0


def claim(holds, what):
    global passed
    if not holds:
        sys.exit(f"FAILED: {what}")
    passed += 1


# Counts the modules that a page starts.
COUNT_MODULES = "const start = WebAssembly.instantiate; window.modules = 0; WebAssembly.instantiate = (...given) => { window.modules++; return start.apply(WebAssembly, given); };"


def opened(browser, width):
    """Returns a new page, the list of its requests and the list of its errors."""
    page, requests, errors = browser.new_page(viewport={"width": width, "height": 900}, accept_downloads=True), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.add_init_script(COUNT_MODULES)
    return page, requests, errors


def refused(*arguments):
    done = subprocess.run([program, "view", "--live", *arguments], capture_output=True, text=True)
    return done.returncode == 2 and done.stderr


def native(task, text, *model):
    return json.loads(subprocess.run([native_answer, task, *map(str, model), text], check=True, capture_output=True, text=True).stdout)


def weights(text, layer, head):
    return floats_of(text["weights"][layer][head])


subprocess.run([program, "view", "--live", "--engine", str(engine), "-o", str(page_file)], check=True)
claim(page_file.stat().st_size <= MOST_BYTES, f"the page has {page_file.stat().st_size} bytes, at most {MOST_BYTES} are allowed")
claim("-o" in refused("--engine", str(engine)), "--live without -o is refused")
claim("--json" in refused("--json", "--engine", str(engine), "-o", "x.html"), "--live --json is refused")
claim("gzip" in refused("--engine", str(page_file), "-o", "x.html"), "an engine that is no module is refused")

with started_browser(*chosen) as browser:
    for width in (1280, 390):
        page, requests, errors = opened(browser, width)

        def answer():
            return page.text_content("#live-answer")

        def say(text, wanted, task=None):
            if task:
                page.select_option("#task", task)
            page.fill("#say", text)
            page.wait_for_function("(wanted) => document.getElementById('live-answer').textContent.includes(wanted)", arg=wanted, timeout=60000)

        def check_map(task, text, tab, layer, head):
            """Compares the map of the open head, as the page exports it, with that of the program."""
            global largest_difference
            shown = [float(cell) for row in exported_rows(page)[1:] for cell in row[1:]]
            wanted = weights(native(task, text)["texts"][tab], layer, head)
            largest_difference = max(largest_difference, *(abs(a - b) for a, b in zip(shown, wanted)))
            claim(len(shown) == len(wanted) and all(abs(a - b) <= ALLOWED for a, b in zip(shown, wanted)), f"{text!r}, layer {layer}, head {head}: {shown[:3]} and {wanted[:3]}")

        page.goto(page_file.as_uri())
        page.wait_for_function("() => document.getElementById('live-answer').textContent !== ''", timeout=60000)
        claim(page.is_hidden("#failed"), "a page that works has no message of a failure")
        claim(answer().startswith("Rating 1.02, positive"), answer())
        claim("“complicated”" in page.text_content("#live-unknown"), "words without a score are named")
        claim(page.evaluate("() => document.getElementById('live-unknown').compareDocumentPosition(document.getElementById('live-answer')) === Node.DOCUMENT_POSITION_FOLLOWING"), "unknown words come before the rating")
        text = "Nice screen, but far too heavy for my small hands today."
        rating = native("sentiment", text)["answer"]["rating"]
        say(text, f"Rating {rating:.2f}")
        claim(page.evaluate("() => document.activeElement.id") == "say", "the line keeps the focus")
        check_map("sentiment", text, 0, 0, 0)
        page.click("#tabs button >> text=Encoder")
        page.evaluate("() => { location.hash = location.hash.replace(/layer=\\d+&head=\\d+/, 'layer=0&head=1'); }")
        page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 0 · Head 1'")
        check_map("sentiment", text, 1, 0, 1)
        # A pinned cell shows how its weight is computed, as in any page.
        page.click("[data-view=matrix]")
        page.locator("#stage").click(position={"x": 150, "y": 150})
        claim(page.is_visible("#worked"), "a pinned cell is worked out")
        say("The small red car is parked outside", "La petite voiture rouge", "translate")
        claim(page.is_hidden("#live-unknown"), "all words of the grammar are known")
        page.wait_for_function("() => location.href.includes('small+red+car')")  # the page updates its address at most every 100 ms
        address = page.evaluate("() => location.href")
        claim("task=translate" in address and "small+red+car" in address and "layer=1" in address, address)
        claim(page.text_content("#tabs").startswith("Cross-attention"), "the cross-attention opens")
        page.uncheck("#merge")
        check_map("translate", "The small red car is parked outside", 0, 1, 0)
        address = page.evaluate("() => location.href")
        say("The big dog eats the food", "chien")
        claim("“food”" in page.text_content("#live-unknown"), "a word outside the grammar is named")
        claim(answer() == "Le grand chien mange les [food]" and "A word in [ ] replaces" in page.text_content("#live-unknown"), "a mark replaces the invented word, and the page says what it means")
        say("dog " * 60, "at most 48")
        claim(page.is_hidden("#head"), "for a text without an answer no map is shown")
        say(" ", "Type a sentence.")
        say("The dog sleeps", "chien")
        claim(page.is_visible("#head"), "after a text that is too long, the engine answers the next text")
        claim(page.evaluate("() => window.modules") == 1, "a text that is too long does not end the module")
        claim(page.evaluate("() => document.documentElement.scrollWidth") <= width, "the page is not wider than the window")
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_function("() => document.getElementById('live-answer').textContent.includes('voiture')", timeout=60000)
        claim(page.input_value("#say") == "The small red car is parked outside", "after a reload, the page shows the sentence in its address")
        claim(page.text_content("#head-title") == "Layer 1 · Head 0", page.text_content("#head-title"))
        claim(all(url.split("#")[0] in (page_file.as_uri(), "about:blank") or url.startswith(("blob:", "data:")) for url in requests), f"requests: {requests}")
        claim(not errors, errors)
        # The page's policy forbids to load anything from the network, so this request must cause an error. It also shows that this test sees errors of the page.
        page.evaluate("() => { new Image().src = 'http://127.0.0.1:9/'; }")
        for _ in range(100):
            if errors:
                break
            page.wait_for_timeout(100)
        claim(any("http://127.0.0.1:9/" in error for error in errors), f"the browser blocks a request: {errors}")
        page.close()

    # If the page's script fails early, or the browser cannot parse it, the page must show a message.
    whole = page_file.read_text(encoding="utf-8")
    for name, before, after in (("data", '"encoding":"float32"', '"encoding":"none"'), ("script", '"use strict";', '"use strict"; let = 1;')):
        claim(before in whole, before)
        damaged = pathlib.Path(folder) / f"live_damaged_{name}.html"
        damaged.write_text(whole.replace(before, after, 1), encoding="utf-8")
        page = browser.new_page()
        page.goto(damaged.as_uri())
        claim(page.is_visible("#failed") and page.text_content("#failed bdi") != "", f"damaged {name}: {page.text_content('#failed')}")
        claim(page.is_hidden("#main"), f"damaged {name}: nothing else is shown")
        page.close()

    # Live pages of models that the user provides.
    for model, layers, heads in own_models:
        text = "The quick brown fox jumps over the lazy dog."
        own_page = pathlib.Path(folder) / "live_own.html"
        said = subprocess.run([program, "view", str(model), "--live", "--text", text, "--engine", str(engine), "-o", str(own_page)], check=True, capture_output=True, text=True).stderr
        claim("as int8 rows" in said.splitlines()[0] and "wrote" in said.splitlines()[-1], f"the program prints the size of the model before it writes the page: {said}")
        small = small_models.unpack(own_page, pathlib.Path(folder) / "live_unpacked")
        quantised, its_page = pathlib.Path(folder) / "live_quantised", pathlib.Path(folder) / "live_of_quantised.html"
        shutil.rmtree(quantised, ignore_errors=True)
        subprocess.run([program, "quantise", str(model), "-o", str(quantised)], check=True, capture_output=True)
        subprocess.run([program, "view", str(quantised), "--live", "--engine", str(engine), "-o", str(its_page)], check=True, capture_output=True)
        again = small_models.unpack(its_page, pathlib.Path(folder) / "live_again")
        claim((again / "model.safetensors").read_bytes() == (small / "model.safetensors").read_bytes(), "the page of a quantised folder has the parameters of that folder unchanged")
        page, requests, errors = opened(browser, 1280)
        page.goto(own_page.as_uri())
        for sentence in (text, "She didn't see two   old dogs, 東京 and é.", "the dog"):
            page.fill("#say", sentence)
            rounded, exact = native("model", sentence, small), native("model", sentence, model)
            page.wait_for_function("(wanted) => document.getElementById('live-answer').textContent === wanted", arg=f"{rounded['answer']['tokens']} tokens.", timeout=60000)
            claim(page.eval_on_selector_all("#grid button, #grid [role=gridcell]", "(all) => all.length") >= layers * heads, "every head has its map")
            for layer, head in ((0, 0), (layers - 1, heads - 1)):
                page.evaluate("([layer, head]) => { location.hash = `layer=${layer}&head=${head}&say=${encodeURIComponent(document.getElementById('say').value)}`; }", [layer, head])
                page.wait_for_function("(wanted) => document.getElementById('head-title').textContent === wanted", arg=f"Layer {layer} · Head {head}")
                shown = [float(cell) for row in exported_rows(page)[1:] for cell in row[1:]]
                wanted = weights(rounded["texts"][0], layer, head)
                apart = max((abs(a - b) for a, b in zip(shown, wanted)), default=9)
                claim(len(shown) == len(wanted) and apart <= ALLOWED_OF_GIVEN, f"{model.name}, {sentence!r}, layer {layer}, head {head}: {apart} apart")
            largest = max(abs(a - b) for layer in range(layers) for head in range(heads) for a, b in zip(weights(rounded["texts"][0], layer, head), weights(exact["texts"][0], layer, head)))
            claim(largest > ALLOWED, "int8 rows change the attention weights")
            if sentence == text:  # the number on the page is a maximum over several sentences, and this is one of them
                figure = re.search(r"by at most (0\.\d+)", page.text_content("#live-note"))
                claim(figure and float(figure[1]) >= largest - 1e-6, f"{page.text_content('#live-note')}: {largest} here")
        claim(page.is_visible("#live-note"), "the page says how much int8 changes the attention weights")
        for count in (600, 601, 602):
            before = page.text_content("#live-answer")
            page.fill("#say", "the " * count)
            page.wait_for_function("(before) => { const now = document.getElementById('live-answer').textContent; return now !== before && now.startsWith('No answer: the text has'); }", arg=before, timeout=60000)
        claim(page.evaluate("() => window.modules") == 1, "a text that is too long does not end the module (a new module would have to read the model again)")
        claim(page.is_hidden("#head") and page.is_hidden("#live-note"), "for a text that is too long no map is shown")
        page.fill("#say", text)
        page.wait_for_function("() => document.getElementById('live-answer').textContent.endsWith('tokens.')", timeout=60000)
        page.select_option("#task", "sentiment")
        page.wait_for_function("() => document.getElementById('live-answer').textContent.startsWith('Rating')", timeout=60000)
        claim(page.is_hidden("#live-note"), "the note about int8 is shown only for the model that the user provides")
        page.select_option("#task", "model")
        page.wait_for_function("() => document.getElementById('live-answer').textContent.endsWith('tokens.')", timeout=60000)
        page.click("#menu summary")
        page.select_option("#lang", "zh")
        page.wait_for_function("() => document.getElementById('live-note').textContent.includes('int8 存放')", timeout=60000)
        claim(all(url.split("#")[0] == own_page.as_uri() or url.startswith(("blob:", "data:")) for url in requests), f"requests: {requests}")
        claim(not errors, errors)
        page.close()
    print(f"{browser.browser_type.name} {browser.version}: the maps of typed sentences differ from the program's by at most {largest_difference:.1e}")
print(f"{passed} passed, 0 failed")
