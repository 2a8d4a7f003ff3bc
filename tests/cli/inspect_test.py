import json
import os
import pathlib
import struct
import sys
import unittest

from program import ProgramTest
from tensor_files import save_safetensors
import tiny_model

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "docs"))
import model_families


class Inspect(ProgramTest):
    def test_families_are_listed_as_docs_model_families_says(self):
        told = json.loads(self.succeeds("inspect", "--families", "--json").stdout)["families"]
        self.assertEqual(model_families.PAGE.read_text(), model_families.page(told), "write it again: tests/docs/model_families.py PROGRAM --write")
        text = self.succeeds("inspect", "--families").stdout.decode()
        for family in told:
            refused = f" +refused: {family['refused'][:12]}" if family["refused"] else "$"
            self.assertRegex(text, rf"(?m)^  {family['model_type']}{refused}")
        self.fails(2, "inspect", self.folder, "--families", mentions=["leave out PATH"])

    def test_a_model_folder_shows_configuration_attention_metadata_and_tensors(self):
        model = tiny_model.write(self.folder / "model")
        text = self.succeeds("inspect", model).stdout.decode()
        for pattern in (r"layers +2\n", r"hidden width +16\n", r"heads +2\n", r"width +8\n", rf"vocabulary +{len(tiny_model.WORDS)}\n",
                        r"at encoder\.layer\.\{0\.\.1\}\.attention\.?|at encoder\.layer\.\{0\.\.1\}\.", r"format +pt\n",
                        r"float32 +\[8,8\] +256 B +encoder\.layer\.0\.attention\.self\.query\.weight\n"):
            self.assertRegex(text, pattern)

    def test_json_lists_every_tensor_and_layer(self):
        model = tiny_model.write(self.folder / "model")
        found = json.loads(self.succeeds("inspect", model, "--json").stdout)
        expected = tiny_model.tensors()
        self.assertEqual({t["name"]: (t["dtype"], tuple(t["shape"])) for t in found["tensors"]},
                         {name: ("float32", shape) for name, (_, shape, _) in expected.items()})
        self.assertEqual(found["bytes"], sum(4 * len(values) for _, _, values in expected.values()))
        self.assertEqual(found["metadata"], {"format": "pt"})
        self.assertEqual(found["config"], {"model": "bert", "layers": 2, "heads": 2, "width": 8, "hidden_width": 16,
                                           "vocabulary": len(tiny_model.WORDS), "positions": 64})
        self.assertEqual(found["format"], "safetensors")
        self.assertEqual([a["prefix"] for a in found["attention"]], ["encoder.layer.0.", "encoder.layer.1."])
        self.assertEqual(len({a["layout"] for a in found["attention"]}), 1)

    def test_a_file_without_attention_says_so(self):
        path = self.folder / "x.safetensors"
        save_safetensors(path, {"a": ("F32", (2, 3), [0] * 6)})
        self.assertIn("no layer of a known layout", self.succeeds("inspect", path).stdout.decode())

    def test_an_empty_file_of_tensors(self):
        path = self.folder / "x.safetensors"
        save_safetensors(path, {})
        self.assertIn("0 tensors", self.succeeds("inspect", path).stdout.decode())

    def test_names_cannot_command_the_terminal(self):
        path = self.folder / "x.safetensors"
        save_safetensors(path, {"\x1b[2Jname": ("F32", (1,), [0])}, {"\x1b[31mkey": "a\nb\x1b[0m"})
        out = self.succeeds("inspect", path).stdout
        self.assertNotIn(b"\x1b", out)
        self.assertIn("name", out.decode())

    def test_names_are_whole_in_narrow_terminals(self):
        model = tiny_model.write(self.folder / "model")
        text = self.succeeds("inspect", model, env={"COLUMNS": "40"}).stdout.decode()
        for name in tiny_model.tensors():
            self.assertIn(name, text)
        for line in text.splitlines():
            if not any(name in line for name in tiny_model.tensors()) and "/" not in line:
                self.assertLessEqual(len(line), 40, line)

    def test_bad_files_are_one_sentence(self):
        self.fails(1, "inspect", self.folder / "nothing", mentions=["nothing"])
        self.fails(1, "inspect", self.folder, mentions=["model.safetensors"])
        model = tiny_model.write(self.folder / "model")
        whole = (model / "model.safetensors").read_bytes()
        for length in (0, 4, 8, 100, len(whole) - 1):
            bad = self.folder / f"cut{length}.safetensors"
            bad.write_bytes(whole[:length])
            with self.subTest(length):
                self.fails(1, "inspect", bad, mentions=[bad.name])
        bad = self.folder / "long.safetensors"
        bad.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
        self.fails(1, "inspect", bad, mentions=[bad.name])
        text = self.folder / "notes.txt"
        text.write_text("hello\n" * 10)
        self.fails(1, "inspect", text, mentions=["notes.txt"])

    def test_a_pipe_in_a_models_folder_is_refused(self):
        for name in ("config.json", "model.safetensors", "vocab.txt"):  # opening a pipe that has no writer would wait forever, so it must be refused
            with self.subTest(name):
                model = tiny_model.write(self.folder / name)
                (model / name).unlink()
                os.mkfifo(model / name)
                view = ("view", model, "--text", "the fox", "-o", self.folder / "page.html")
                for command in (view,) if name == "vocab.txt" else (("inspect", model), ("inspect", model, "--json"), view):
                    self.fails(1, *command, mentions=[name, "a pipe", "regular file"])

    def test_a_broken_configuration_is_named(self):
        model = tiny_model.write(self.folder / "model")
        whole = (model / "config.json").read_text()
        for text in ("{", "[]", whole + "\0", whole.replace("{", '{"n_layer": 1, "n_layer": 2, ')):
            (model / "config.json").write_text(text)
            self.fails(1, "inspect", model, mentions=["config.json"])


if __name__ == "__main__":
    unittest.main()
