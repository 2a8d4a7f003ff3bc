"""Measures a live page in a headless browser: the milliseconds from a pressed key to new maps on the screen, for a sentence of 12 words.

    python3 bench/live_keys.py POLYHEAD ENGINE [MODEL_DIR]

ENGINE: polyhead_live.wasm.gz, which `scripts/live-engine` builds. MODEL_DIR: also measures a page with this encoder. A line for each model: medians over 20 keys of
the whole time and of its parts. A part starts where the part before it ends: "wait" ends when the engine is called, "engine" when the module has answered, "parse" when its answer
is read, "page" when the script has shown the answer, "maps" when all maps of heads are drawn and decoded, "frame" at the next animation frame.
POLYHEAD_TEST_BROWSER=firefox measures in Firefox.
"""
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "browser"))
sys.dont_write_bytecode = True
from session import started_browser  # noqa: E402

SENTENCES = {"sentiment": "I am happy with how it looks but the manual is bad", "translate": "I do not see the old house and the small red car", "model": "The quick brown fox jumps over the lazy dog near the river"}
KEYS = 20
PARTS = ("wait", "engine", "parse", "page", "maps", "frame")
# Records the time at which each part of the work on a pressed key last happened, without changes in the page's own script. A part that happens several times,
# such as drawing a map, keeps its last time.
WATCH = """
window.marks = {};
const mark = (name) => { window.marks[name] = performance.now(); };
addEventListener("input", (event) => { if (event.target.id === "say") window.marks = { key: event.timeStamp }; }, true);
const start = WebAssembly.instantiate;
WebAssembly.instantiate = async (...given) => {
  const { exports } = await start.apply(WebAssembly, given);
  return { exports: { ...exports, answer: (bytes) => { mark("wait"); const at = exports.answer(bytes); mark("engine"); return at; } } };
};
const parse = JSON.parse;
JSON.parse = (text) => { const json = parse(text); mark("parse"); return json; };
const source = Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, "src");
Object.defineProperty(HTMLImageElement.prototype, "src", { ...source, set(value) {
  source.set.call(this, value);
  const own = window.marks;
  this.decode().catch(() => {}).then(() => {
    if (own !== window.marks) return;
    mark("maps");
    requestAnimationFrame(() => { if (own === window.marks) mark("frame"); });
  });
} });
new MutationObserver(() => mark("page")).observe(document, { subtree: true, childList: true, characterData: true });
"""


def measure(page, task):
    page.select_option("#task", task)
    page.fill("#say", SENTENCES[task])
    page.wait_for_timeout(3000)  # by now V8 has compiled the often-called functions of the module a second time, with more optimisation
    page.focus("#say")
    page.keyboard.press("End")
    keys = []
    for key in range(KEYS + 6):  # the times of the first 6 keys are dropped
        page.keyboard.press("Backspace" if key % 2 else "s")
        page.wait_for_function("() => window.marks.frame > window.marks.engine && performance.now() > window.marks.frame + 250", timeout=60000)
        keys.append(page.evaluate("() => window.marks"))
    keys = keys[-KEYS:]
    ends = ["key", *PARTS]
    parts = {name: statistics.median(one[name] - one[ends[at]] for one in keys) for at, name in enumerate(PARTS)}
    whole = [one["frame"] - one["key"] for one in keys]
    print(f"{task:10s} whole {statistics.median(whole):6.1f} ({min(whole):.1f} to {max(whole):.1f})  " + "  ".join(f"{name} {value:.1f}" for name, value in parts.items()), flush=True)


def main(program, engine, *models):
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        print(browser.browser_type.name, browser.version)
        for model in [None, *models]:
            file = pathlib.Path(folder) / "live.html"
            subprocess.run([program, "view", *([model] if model else []), "--live", "--engine", engine, "-o", str(file)], check=True, capture_output=True)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.add_init_script(WATCH)
            page.goto(file.as_uri())
            page.wait_for_function("() => document.getElementById('live-answer').textContent !== ''", timeout=60000)
            for task in ["model"] if model else ["sentiment", "translate"]:
                measure(page, task)
            page.close()


main(*sys.argv[1:])
