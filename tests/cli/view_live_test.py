"""`polyhead view MODEL_DIR --live`: what it refuses, and which files and numbers it writes into a page. The engine here is a file without a module; tests/live opens pages."""
import gzip
import json
import re
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from program import BINARY, ModelTest, environment, run
from tensor_files import save_safetensors
import tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
import small_models  # noqa: E402


class Live(ModelTest):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "page.html"
        self.engine = self.folder / "engine.wasm.gz"
        self.engine.write_bytes(gzip.compress(b"no module"))

    def refuses(self, *arguments, status=1, mentions=()):
        return self.fails(status, "view", self.model, "--live", "--engine", self.engine, "-o", self.page, *arguments, mentions=mentions)

    def written(self, *arguments):
        """Writes a page, and returns its text."""
        self.succeeds("view", self.model, "--live", "--engine", self.engine, "-o", self.page, *arguments)
        return self.page.read_text(encoding="utf-8")

    def files(self):
        """Returns the files of the model in the page, by name."""
        return {path.name: path.read_bytes() for path in small_models.unpack(self.page, self.folder / "unpacked").iterdir()}

    def change_config(self, **config):
        file = self.model / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))

    def test_models_of_other_kinds_are_refused_by_name(self):
        for family, kind in (("gpt2", "is a decoder (gpt2)"), ("llama", "is a decoder (llama)"), ("t5", "has an encoder and a decoder (t5)"), ("vit", "reads images (vit)"), ("clip", "reads images (clip)"),
                             ("polyhead-text-classifier", "was made by `polyhead train` (polyhead-text-classifier)")):
            with self.subTest(family):
                self.change_config(model_type=family)
                self.refuses(mentions=[str(self.model), kind, "albert", "roberta", "72.0 MB"])

    def enlarge_vocabulary(self, rows):
        """Gives the model word embeddings of `rows` rows. They are a hole in a sparse file, so they take no space on the disk."""
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
        with file.open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text + content[8 + length + first:8 + length + end])
            out.truncate(8 + len(text) + end - first + words)
        self.change_config(vocab_size=rows)

    def test_a_model_that_is_too_large_is_refused_with_its_size_and_what_is_allowed(self):
        self.enlarge_vocabulary(9_100_000)
        self.refuses(mentions=["has 728", "parameters", "72.8 MB", "at most 72.0 MB"])

    def test_a_program_that_is_interrupted_leaves_no_copy_of_the_model(self):
        self.enlarge_vocabulary(8_000_000)
        temporary = self.folder / "temporary"
        temporary.mkdir()
        process = subprocess.Popen([BINARY, "view", self.model, "--live", "--engine", self.engine, "-o", self.page], stderr=subprocess.DEVNULL, env=environment(TMPDIR=str(temporary)))
        deadline = time.monotonic() + 600
        while process.poll() is None and not any(temporary.glob("*/config.json")) and time.monotonic() < deadline:
            time.sleep(0.0005)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=600), -signal.SIGINT)
        self.assertEqual(list(temporary.iterdir()), [])

    def test_a_tokenizer_with_a_pattern_that_the_page_does_not_have_is_refused(self):
        small_models.write(self.folder / "model", small_models.unigram)
        file = self.model / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        tokenizer["normalizer"]["normalizers"][2]["pattern"] = {"Regex": "[0-9]+"}
        file.write_text(json.dumps(tokenizer))
        self.refuses(mentions=["[0-9]+", "normalizer.normalizers.pattern", " {2,}", str(self.model)])
        tokenizer["normalizer"]["normalizers"][2]["pattern"] = {"String": ""}
        file.write_text(json.dumps(tokenizer))
        self.refuses(mentions=["splits by an empty text", "normalizer.normalizers.pattern", str(self.model)])

    def test_a_program_without_an_engine_says_how_to_build_one(self):
        if run("view", "--live", "-o", self.page).returncode == 0:
            self.skipTest("this polyhead contains the engine of live pages")
        self.fails(2, "view", self.model, "--live", "-o", self.page, mentions=["scripts/live-engine"])

    def test_pages_of_models_with_each_tokenizer(self):
        for tokenizer in (None, small_models.byte_pairs, small_models.unigram):
            self.model = small_models.write(self.folder / (tokenizer.__name__ if tokenizer else "words"), tokenizer)
            self.assertIn('"rounding":{', self.written())
            self.assertEqual(sorted(self.files()), ["config.json", "model.safetensors", "name", "tokenizer.json" if tokenizer else "vocab.txt"])

    def test_a_page_carries_no_other_file_of_the_folder(self):
        small = self.folder / "small"
        self.succeeds("quantise", self.model, "-o", small)
        wanted = {path.name: path.read_bytes() for path in small.iterdir()} | {"name": b"small"}
        (small / ".env").write_text("API_KEY=topsecret")
        (small / "name").write_text("another name")
        self.model, self.page = small, small / "page.html"
        for _ in range(2):  # the second time, the folder also contains the page of the first time
            self.assertNotIn('"rounding"', self.written())
            self.assertEqual(self.files(), wanted)

    def test_a_text_that_the_model_does_not_take_is_refused(self):
        self.refuses("--text", "the " * 80, mentions=["the text has 82 tokens", "at most 64", "shorter --text"])
        self.fails(1, "view", "--live", "--engine", self.engine, "-o", self.page, "--text", "good " * 300, mentions=["the model takes at most"])

    def test_without_a_text_the_page_opens_with_one_that_the_model_takes(self):
        self.assertIn('"say":"I am very happy', self.written())
        positions = 16
        tensors = tiny_model.tensors()
        tensors["embeddings.position_embeddings.weight"] = ("F32", (positions, tiny_model.WIDTH), tiny_model.values(positions * tiny_model.WIDTH, 1))
        save_safetensors(self.model / "model.safetensors", tensors)
        self.change_config(max_position_embeddings=positions)
        self.assertIn('"say":"Very nice."', self.written())

    def test_a_model_whose_results_are_not_finite_is_refused(self):
        tensors = tiny_model.tensors()
        dtype, shape, values = tensors["embeddings.LayerNorm.weight"]
        tensors["embeddings.LayerNorm.weight"] = (dtype, shape, [1e30 * value for value in values])
        save_safetensors(self.model / "model.safetensors", tensors)
        self.refuses(mentions=[str(self.model), "not finite"])

    def test_the_rounding_of_a_bfloat16_model_is_that_of_its_int8_rows_alone(self):
        def bits(value):  # the bits of the value as bfloat16, truncated
            return struct.unpack("<I", struct.pack("<f", value))[0] >> 16

        found = []
        for dtype in ("BF16", "F32"):
            save_safetensors(self.model / "model.safetensors", {name: (dtype, shape, [bits(value) if dtype == "BF16" else struct.unpack("<f", struct.pack("<I", bits(value) << 16))[0] for value in values])
                                                                for name, (_, shape, values) in tiny_model.tensors().items()})
            found.append(re.search(r'"rounding":(\{[^}]*\})', self.written())[1])
        self.assertEqual(*found)

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

    def test_a_copy_has_the_files_that_change_what_tokenizer_json_gives(self):
        small_models.write(self.model, small_models.byte_pairs)
        others = ["special_tokens_map.json", "tokenizer_config.json"]
        for name in [*others, "vocab.txt"]:
            (self.model / name).write_text("{}")
        self.succeeds("quantise", self.model, "-o", self.folder / "small")
        self.assertEqual(sorted(path.name for path in (self.folder / "small").iterdir()), sorted(["config.json", "model.safetensors", "tokenizer.json", *others]))

    def test_a_folder_with_another_embedding_than_the_mean_says_so(self):
        (self.model / "1_Pooling").mkdir()
        (self.model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
        (self.model / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]))
        self.succeeds("quantise", self.model, "-o", self.folder / "small")
        why = "1_Pooling/config.json: pooling_mode_cls_token is true"
        for folder in (self.model, self.folder / "small"):
            done = self.succeeds("view", folder, "--text", "the fox", "--json")
            self.assertNotIn("embedding", json.loads(done.stdout)["texts"][0])
            self.assertIn(f"there is no embedding: {why}", " ".join(done.stderr.decode().split()))
            self.fails(1, "view", folder, "--text", "the fox", "--without", "0.0", "-o", self.folder / "x.html", mentions=["this model has another: ", why])

    def test_the_size_before_is_that_of_the_files_that_are_read(self):
        told = []
        for name in ("one", "two"):
            told.append(self.succeeds("quantise", self.model, "-o", self.folder / name).stdout.decode().split(": ")[1])
            (self.model / "adapter.safetensors").write_bytes(bytes(100_000))
        self.assertEqual(*told)


if __name__ == "__main__":
    unittest.main()
