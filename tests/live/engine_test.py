"""Runs the WebAssembly modules of live pages under node, and checks that answers and results of the kernels are those of native programs.

    python3 tests/live/engine_test.py NATIVE_ANSWER NATIVE_SWEEP MODULES

MODULES: the folder of polyhead_live.wasm.gz and polyhead_sweep.wasm, which `scripts/live-engine` builds. If the modules or node are missing, says so and exits with 77.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import modules
import small_models  # this import also adds tests/cli to sys.path
from tensor_files import floats_of

ALLOWED = 1e-6  # largest allowed difference between the native build and WebAssembly for the built-in models
# Largest allowed difference for a model that the user provides. The two builds sum in float32 in different orders, so their roundings differ. With larger scores or
# more layers, the attention weights differ more: by 1.9e-6 for MiniLM (six layers) and by 1.4e-6 for a small model whose scores reach 20.
ALLOWED_OF_GIVEN = 1e-5
SENTENCES = {
    "sentiment": ["I am very happy with how it looks, but the manual is too complicated.", "Terrible. It broke after two days and nobody answered!", "good", "Die Übersetzung naïve café 中文 ﬁ Å",
                  "a" * 60, "Nice screen, but far too heavy.", "...", "", "good " * 300],
    "translate": ["The small red car is parked outside", "The big dog eats the food", "I do not see the old house.", "Do they read a book?", "ß ünïcödé", "the", "", "dog " * 60],
}
OF_ENCODERS = ["The quick brown fox jumps over the lazy dog.", "  two  spaces, don't we'll `` ''  ", "ﬁ Å ½ ① naïve café 中文 東京 ß é \u0301 \u200b😀", "x" * 40, "", "the " * 300, "the " * 600]
FAIL = {"", "good " * 300, "dog " * 60}  # texts that the models refuse, because they have no word or are too long
# Texts that each encoder refuses. Unigram has no special tokens, so an empty text has no token. MiniLM has 512 positions, the small models have 64.
FAIL_OF_ENCODERS = {"words": {"the " * 300, "the " * 600}, "pairs": {"the " * 300, "the " * 600}, "unigram": {"", "the " * 300, "the " * 600}, "MiniLM": {"the " * 600}}
here = pathlib.Path(__file__).parent


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


allowed = ALLOWED


def near(apart, path, worst):
    far = [distance for distance in apart if not distance <= allowed]  # NaN too
    assert not far, f"{path}: {far[0]} apart"
    worst.append((max(apart, default=0), path))


def compare(one, other, path, worst):
    """Compares two answers. Numbers may differ by `allowed`; everything else must be equal. Appends the largest differences to `worst`."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{path}: {one.keys()} and {other.keys()}"
        for key in one:
            compare(one[key], other[key], f"{path}.{key}", worst)
    elif isinstance(one, list):
        assert len(one) == len(other), f"{path}: {len(one)} and {len(other)} entries"
        for at, (a, b) in enumerate(zip(one, other)):
            compare(a, b, f"{path}[{at}]", worst)
    elif isinstance(one, str) and any(f".{part}[" in path for part in ("weights", "q", "k", "v", "value_norms")):
        a, b = floats_of(one), floats_of(other)
        assert len(a) == len(b), path
        # Attention weights are in [0, 1]. q, k, v and norms may be larger than 1, so their differences are divided by 4 times the largest number.
        size = 1 if ".weights[" in path else 4 * max(1, max(map(abs, b), default=1))
        near([abs(x - y) / size for x, y in zip(a, b)], path, worst)
    elif isinstance(one, float) or isinstance(other, float):
        size = 4 * max(1, abs(other)) if path.endswith(".largest_weighted") else 1  # largest_weighted is a weight times a norm, so it may be large
        near([abs(one - other) / size], path, worst)
    else:
        assert one == other, f"{path}: {one!r} and {other!r}"


def answers(node, engine, native_answer, models):
    global allowed
    passed = 0
    for task, texts, *folder in [*((task, texts) for task, texts in SENTENCES.items()), *(("model", OF_ENCODERS, folder) for folder in models)]:
        there, here_ = lines(node, "--no-warnings", str(here / "answer.mjs"), str(engine), task, *folder, *texts), lines(native_answer, task, *folder, *texts)
        assert len(there) == len(here_) == len(texts)
        allowed = ALLOWED_OF_GIVEN if folder else ALLOWED
        for text, a, b in zip(texts, map(json.loads, there), map(json.loads, here_)):
            a.pop("milliseconds", None)
            worst = []
            fails = FAIL_OF_ENCODERS.get(pathlib.Path(folder[0]).name, FAIL_OF_ENCODERS["MiniLM"]) if folder else FAIL
            assert ("error" in b) == (text in fails), f"{task} {folder} {text[:60]!r}: {b.get('error')}"
            compare(a, b, f"{task} {folder} of {text[:60]!r}", worst)
            passed += 1
            print(f"{task} {text[:40]!r}: {a.get('error') or f'{max(worst)[0]:.2g} apart'}")
    return passed


def main(native_answer, native_sweep, folder_of_modules):
    node, engine, sweep = modules.found(folder_of_modules, "polyhead_live.wasm.gz", "polyhead_sweep.wasm")
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        models = [str(small_models.write(pathlib.Path(folder) / name, tokenizer)) for name, tokenizer in (("words", None), ("pairs", small_models.byte_pairs), ("unigram", small_models.unigram))]
        if minilm := os.environ.get("POLYHEAD_MINILM_DIR"):
            models.append(minilm)
        passed += answers(node, engine, native_answer, models)
    done = lines(node, "--no-warnings", str(here / "restart.mjs"), str(engine))
    print("\n".join(done))
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", done[-1]), done
    passed += int(done[-1].split()[0])
    count = "60" if os.environ.get("POLYHEAD_TEST_EFFORT") == "quick" else "400"
    there, here_ = lines(node, "--no-warnings", str(here / "run.mjs"), str(sweep), count), lines(native_sweep, count)
    assert there[-1] == here_[-1] == f"{count} passed, 0 failed", (there[-1], here_[-1])
    for a, b in zip(there[:-1], here_[:-1]):
        (seed, dtype, *of_module, _), (_, dtype_here, *own, _) = a.split(), b.split()
        share = {"float64": 1e-10, "float32": 1e-4}.get(dtype, 5e-2)  # wide tolerances: the printed digests are sums of terms of both signs, which cancel
        assert dtype == dtype_here and all(abs(float(x) - float(y)) <= share * max(20, abs(float(y))) for x, y in zip(of_module, own)), (a, b)
        passed += 1
    print(f"{passed} passed, 0 failed")


main(*sys.argv[1:])
