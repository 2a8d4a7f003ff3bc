"""`polyhead view MODEL_DIR --live` refuses by name what a live page does not take, before it looks for the engine; tests/live has the pages."""
import json
import struct
import sys
import unittest
from pathlib import Path

from program import ProgramTest
import tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
import small_models  # noqa: E402

NO_ENGINE = "scripts/live-engine"


class Live(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write(self.folder / "model")
        self.page = self.folder / "page.html"

    def refuses(self, *arguments, status=1, mentions=()):
        return self.fails(status, "view", self.model, "--live", "-o", self.page, *arguments, mentions=mentions)

    def change_config(self, **config):
        file = self.model / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))

    def test_models_of_other_kinds_are_refused_by_name(self):
        for family, kind in (("gpt2", "is a decoder (gpt2)"), ("llama", "is a decoder (llama)"), ("t5", "has an encoder and a decoder (t5)"), ("vit", "reads images (vit)"), ("clip", "reads images (clip)"),
                             ("polyhead-text-classifier", "was made by `polyhead train` (polyhead-text-classifier)")):
            with self.subTest(family):
                self.change_config(model_type=family)
                self.refuses(mentions=[str(self.model), kind, "albert", "roberta", "72.0 MB"])

    def test_a_model_that_is_too_large_is_refused_with_its_size_and_what_is_allowed(self):
        rows = 9_100_000
        file = self.model / "model.safetensors"
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        words = rows * tiny_model.WIDTH * 4
        header["embeddings.word_embeddings.weight"] = {"dtype": "F32", "shape": [rows, tiny_model.WIDTH], "data_offsets": [end, end + words]}
        (first,) = (entry["data_offsets"][0] for name, entry in header.items() if name == "embeddings.position_embeddings.weight")
        for name, entry in header.items():  # the old word embeddings, which come first in the file, are left out
            if name not in ("__metadata__", "embeddings.word_embeddings.weight"):
                entry["data_offsets"] = [offset - first for offset in entry["data_offsets"]]
        header["embeddings.word_embeddings.weight"]["data_offsets"] = [end - first, end - first + words]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with file.open("wb") as out:  # the new word embeddings are a hole of the file: they take no space on the disk
            out.write(struct.pack("<Q", len(text)) + text + content[8 + length + first:8 + length + end])
            out.truncate(8 + len(text) + end - first + words)
        self.change_config(vocab_size=rows)
        self.refuses(mentions=["has 728", "parameters", "72.8 MB", "at most 72.0 MB"])

    def test_a_tokenizer_with_a_pattern_that_the_page_does_not_have_is_refused(self):
        small_models.write(self.folder / "model", small_models.unigram)
        file = self.model / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        tokenizer["normalizer"]["normalizers"][2]["pattern"] = {"Regex": "[0-9]+"}
        file.write_text(json.dumps(tokenizer))
        self.refuses(mentions=["[0-9]+", "normalizer.normalizers.pattern", " {2,}", str(self.model)])

    def test_a_model_that_fits_lacks_the_engine_alone(self):
        for tokenizer in (None, small_models.byte_pairs, small_models.unigram):
            self.model = small_models.write(self.folder / (tokenizer.__name__ if tokenizer else "words"), tokenizer)
            self.refuses(status=2, mentions=[NO_ENGINE])
        self.succeeds("quantise", self.model, "-o", self.folder / "small")
        self.model = self.folder / "small"
        self.refuses(status=2, mentions=[NO_ENGINE])

    def test_usage(self):
        self.fails(2, "view", self.model, "--live", "--engine", "x", mentions=["-o"])
        self.refuses("--layer", "1", status=2, mentions=["--layer", "MODEL_DIR"])
        self.model = self.folder / "nowhere"
        self.refuses(mentions=["there is no folder", "nowhere"])

    def test_quantised_encoders_have_the_same_tokens_and_nearly_the_same_maps(self):
        small = self.folder / "small"
        self.succeeds("quantise", self.model, "-o", small)
        self.assertEqual(sorted(path.name for path in small.iterdir()), ["config.json", "model.safetensors", "vocab.txt"])
        answers = [json.loads(self.succeeds("view", folder, "--text", "the quick brown fox", "--json").stdout)["texts"][0] for folder in (self.model, small)]
        self.assertEqual(answers[0]["ids"], answers[1]["ids"])
        self.assertNotEqual(answers[0]["map"], answers[1]["map"])
        for before, after in zip(answers[0]["map"], answers[1]["map"]):
            for one, other in zip(before, after):
                self.assertAlmostEqual(one, other, delta=0.02)
        self.fails(1, "quantise", small, "-o", self.folder / "smaller", mentions=["is quantised already"])

    def test_a_tokenizer_in_one_file_is_the_only_one_that_is_copied(self):
        small_models.write(self.model, small_models.byte_pairs)
        (self.model / "special_tokens_map.json").write_text("{}")
        self.succeeds("quantise", self.model, "-o", self.folder / "small")
        self.assertEqual(sorted(path.name for path in (self.folder / "small").iterdir()), ["config.json", "model.safetensors", "tokenizer.json"])


if __name__ == "__main__":
    unittest.main()
