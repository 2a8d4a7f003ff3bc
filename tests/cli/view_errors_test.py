"""For bad models, texts and output paths, `polyhead view` must print one sentence, exit with the right status, and leave no file behind."""
import contextlib
import json
import os
import resource
import struct
import subprocess
import time
import unittest
from pathlib import Path

from program import BINARY, HAS_ASAN, ModelTest, environment, limited
from tensor_files import save_safetensors
import tiny_model


class Errors(ModelTest):
    def refuses(self, *arguments, status=1, **options):
        return self.fails(status, "view", self.model, *arguments, **options)


class Long(Errors):
    def test_megabytes_are_refused_before_they_are_split_into_tokens(self):
        text = self.folder / "long.txt"
        text.write_text("the fox " * 2_500_000)
        begin = time.monotonic()
        self.refuses("--file", text, mentions=["the text has 20.0 MB", "at most 64 tokens", "64.0 KB of text", "--truncate"])
        self.assertLess(time.monotonic() - begin, 3)
        text.write_text("the fox " * 8_100)
        self.refuses("--file", text, mentions=["64.8 KB"])
        text.write_text("the fox " * 7_900)
        self.refuses("--file", text, mentions=["15802 tokens"])


class Models(Errors):
    def test_each_missing_file_is_named(self):
        for name in ("config.json", "vocab.txt", "model.safetensors"):
            content = (self.model / name).read_bytes()
            (self.model / name).unlink()
            self.refuses("--text", "a", mentions=[name, str(self.model)])
            (self.model / name).write_bytes(content)

    def test_a_folder_with_a_model_of_sentencepiece_alone_says_how_to_convert_it(self):
        (self.model / "vocab.txt").rename(self.model / "spiece.model")
        self.refuses("--text", "a", mentions=["spiece.model", "sentencepiece", "save_pretrained"])

    def test_the_folder_above_names_the_one_that_was_meant(self):
        self.fails(1, "view", self.folder, "--text", "a", mentions=["lacks config.json", f"did you mean '{self.model}'?"])

    def test_no_folder(self):
        self.fails(1, "view", self.folder / "none", "--text", "a", mentions=["no folder", "none"])
        self.fails(1, "view", self.model / "config.json", "--text", "a", mentions=["not a folder"])

    def test_truncated_weights(self):
        weights = self.model / "model.safetensors"
        whole = weights.read_bytes()
        for length in (0, 7, 8, 200, len(whole) // 2, len(whole) - 1):
            weights.write_bytes(whole[:length])
            with self.subTest(length):
                self.refuses("--text", "a", mentions=["model.safetensors"])

    def test_malformed_headers(self):
        weights = self.model / "model.safetensors"
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        headers = {"overlap": {"a": entry, "b": entry}, "out of range": {"a": {**entry, "data_offsets": [0, 800]}},
                   "gap": {"a": entry, "b": {**entry, "data_offsets": [12, 20]}}, "unknown dtype": {"a": {**entry, "dtype": "F31"}},
                   "huge shape": {"a": {**entry, "shape": [1 << 62, 1 << 62]}}, "negative": {"a": {**entry, "shape": [-2]}}, "no object": [1]}
        texts = {name: json.dumps(header) for name, header in headers.items()}
        texts["duplicate keys"] = '{"a": %s, "a": %s}' % (json.dumps(entry), json.dumps({**entry, "data_offsets": [8, 16]}))
        texts["no json"] = "{" * 50
        for name, text in texts.items():
            weights.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(20 if name in ("gap",) else 8 if name != "duplicate keys" else 16))
            with self.subTest(name):
                self.refuses("--text", "a", mentions=["model.safetensors"])
        weights.write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
        self.refuses("--text", "a", mentions=["model.safetensors"])

    def test_a_file_that_is_shortened_while_it_is_read_is_an_error(self):
        # The program maps the model's file into memory, prints a note about the text, and then reads the weights. A full pipe stops it at the note, so the test can
        # shorten the file before the weights are read.
        weights = self.model / "model.safetensors"
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" ")
        os.set_blocking(writer, True)
        command = [BINARY, "view", str(self.model), "-", "-o", str(self.folder / "p.html")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=writer, env=environment())
        os.close(writer)
        process.stdin.write(b"\xff the fox\n")
        process.stdin.close()
        waiting = Path(f"/proc/{process.pid}/wchan")
        while process.poll() is None and "pipe_write" not in waiting.read_text():
            time.sleep(0.01)
        os.truncate(weights, 0)
        said = b""
        while piece := os.read(reader, 65536):
            said += piece
        self.assertEqual(process.wait(timeout=60), 1, said.strip())
        self.assertTrue(said.endswith(b"\npolyhead: a file became shorter while it was read\n"), said.strip())
        self.assertEqual(os.listdir(self.folder), ["model"])

    def test_weights_that_do_not_fit_the_configuration(self):
        tiny_model.write(self.model, hidden_size=6)
        self.refuses("--text", "a", mentions=["model.safetensors"])
        tiny_model.write(self.model, num_hidden_layers=3)
        self.refuses("--text", "a", mentions=["encoder.layer.2."])
        tiny_model.write(self.model, num_attention_heads=3)
        self.refuses("--text", "a", mentions=["num_attention_heads", "3", "8"])
        tiny_model.write(self.model, hidden_act="hardswish")
        self.refuses("--text", "a", mentions=["hardswish"])
        tiny_model.write(self.model, model_type="deberta")
        self.refuses("--text", "a", mentions=["deberta"])
        tensors = tiny_model.tensors()
        del tensors["encoder.layer.1.output.dense.bias"]
        tiny_model.write(self.model)
        save_safetensors(self.model / "model.safetensors", tensors)
        self.refuses("--text", "a", mentions=["encoder.layer.1.output.dense.bias"])

    def test_a_broken_configuration_or_vocabulary(self):
        for text in ("", "{", "[]", "null", '{"model_type": 3}', json.dumps({**tiny_model.CONFIG, "hidden_size": "8"}),
                     json.dumps({**tiny_model.CONFIG, "hidden_size": -8}), json.dumps({**tiny_model.CONFIG, "num_hidden_layers": 10**12})):
            (self.model / "config.json").write_text(text)
            with self.subTest(text):
                self.refuses("--text", "a", mentions=["config.json"])
        tiny_model.write(self.model)
        for text in ("", "the\nfox\n", "\n".join(tiny_model.WORDS + ["the"])):
            (self.model / "vocab.txt").write_text(text)
            self.refuses("--text", "a", mentions=["vocab", str(self.model)])
        (self.model / "vocab.txt").write_text("\n".join(tiny_model.WORDS + ["another"]))  # the word's id has no row in the embedding
        self.refuses("--text", "another")


class Texts(Errors):
    def test_a_language_of_the_page(self):
        self.refuses("--text", "a", "-o", self.folder / "p.html", "--lang", "de", status=2, mentions=["--lang", "'de'", "en", "zh"])
        self.refuses("--text", "a", "--lang", "zh", status=2, mentions=["--lang is the language of the page; it needs -o"])

    def test_a_text_that_is_too_long_names_both_lengths_and_the_way_out(self):
        self.refuses("--text", "the fox " * 40, mentions=["the text has 82 tokens; the model takes at most 64; --truncate"])
        self.refuses("--text", "a", "--text", "fox " * 100, mentions=["text 2 has 102 tokens", "64"])
        said = self.refuses("-", stdin=b"the\n\n\n" + b"fox " * 100, mentions=["line 4 has 102 tokens", "64"])
        self.assertEqual(said.count("too long") + said.count("has 102 tokens"), 1, said)
        page = self.folder / "p.html"
        self.refuses("--text", "the fox " * 40, "-o", page)
        self.assertFalse(page.exists())

    def test_no_text(self):
        self.refuses("-", stdin=b"\n \n", mentions=["standard input", "no text"])
        self.refuses("--file", self.folder / "none.txt", mentions=["none.txt"])
        self.refuses("the fox", mentions=["'the fox'", "--text"])
        self.refuses("--file", self.folder, mentions=["cannot read"])

    def test_a_source_without_end_is_refused(self):
        limit = 1 << 30  # limit of the address space: a program that read without a bound would run out of memory, with another message
        options = {} if HAS_ASAN else {"preexec_fn": limited(limit)}
        self.refuses("--file", "/dev/zero", mentions=["/dev/zero", "longer than 64 MiB"], **options)
        self.refuses("-", stdin=b"\n" * ((64 << 20) + 1), mentions=["standard input is longer than 64 MiB"])
        self.refuses("-", stdin=b"\n" * (64 << 20), mentions=["no text"])  # exactly 64 MiB are allowed

    def test_texts_from_one_place_only(self):
        self.refuses("-", "--text", "a", status=2)
        self.refuses("-", "--file", "b", status=2)
        self.refuses("--text", "a", "--text", "b", "--text-pair", "c", status=2, mentions=["--text-pair"])
        self.refuses("-", "--text-pair", "c", status=2, mentions=["--text-pair"])

    def test_layers_and_heads_that_the_model_lacks(self):
        self.refuses("--text", "a", "--layer", "2", status=2, mentions=["--layer 2", "0 to 1"])
        self.refuses("--text", "a", "--head", "7", status=2, mentions=["--head 7", "0 to 1"])


class Outputs(Errors):
    def test_a_folder_that_is_not_there(self):
        missing = self.folder / "none" / "p.html"
        self.refuses("--text", "a", "-o", missing, mentions=[str(missing)])
        self.refuses("--text", "a", "--arrays", self.folder / "none" / "a.npz", mentions=["a.npz"])

    def test_an_output_that_cannot_be_written_is_told_before_the_texts_are_read(self):
        # Standard input never ends here, so the program must check the output path before it reads the text.
        reader, writer = os.pipe()
        began = time.monotonic()
        process = subprocess.run([BINARY, "view", str(self.model), "-", "-o", str(self.folder / "none" / "p.html")], stdin=reader,
                                 stderr=subprocess.PIPE, env=environment(), timeout=600)
        os.close(reader)
        os.close(writer)
        self.assertEqual(process.returncode, 1)
        self.assertLess(time.monotonic() - began, 600)

    def test_a_folder_in_place_of_a_file(self):
        self.refuses("--text", "a", "-o", self.folder, mentions=[str(self.folder)])

    def test_a_folder_that_takes_no_files(self):
        self.refuses("--text", "a", "-o", "/proc/polyhead.html", mentions=["/proc/polyhead.html"])  # nobody can write this path, not even root

    def test_a_file_beyond_the_limit_of_file_sizes_is_an_error(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # like `ulimit -f`: by default, the signal SIGXFSZ ends a program that exceeds the limit
        page = self.folder / "p.html"
        self.refuses("--text", "the fox " * 20, "-o", page, mentions=["p.html", "File too large"], preexec_fn=limit)
        for name in ("a.npz", "a.safetensors"):
            self.refuses("--text", "the fox " * 20, "-o", page, "--arrays", self.folder / name, mentions=[name, "File too large"], preexec_fn=limit)

    def test_a_failure_leaves_the_file_that_was_there(self):
        page = self.folder / "p.html"
        page.write_text("old")
        (self.model / "model.safetensors").write_bytes(b"")
        self.refuses("--text", "a", "-o", page)
        self.assertEqual(page.read_text(), "old")

    def test_more_weights_than_a_page_holds_are_refused_before_the_model_runs(self):
        texts = (b"fox " * 62 + b"\n") * 4097  # 4097 texts * 2 layers * 2 heads * 64 * 64 weights are 2^26 + 16384, more than a page may hold
        self.refuses("-", "-o", self.folder / "p.html", stdin=texts, mentions=["67108864", "67125248", "4097 texts"])

    def test_an_output_never_replaces_what_is_read(self):
        texts, link = self.folder / "t.txt", self.folder / "link"
        texts.write_text("the fox")
        link.symlink_to(self.model)
        before = {path: path.read_bytes() for path in [texts, *self.model.iterdir()]}
        self.refuses("--file", texts, "-o", texts, status=2, mentions=[str(texts), "read by this command"])
        self.refuses(texts, "-o", self.folder / "model" / ".." / "t.txt", status=2)
        for name in ("vocab.txt", "config.json", "model.safetensors"):
            self.refuses("--text", "a", "-o", link / name, status=2, mentions=[name])
        self.refuses("--text", "a", "--arrays", self.model / "model.safetensors", status=2, mentions=["read by this command"])
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_a_page_in_the_models_folder_may_be_written_twice(self):
        for _ in range(2):
            self.succeeds("view", self.model, "--text", "a", "-o", self.model / "page.html")

    @unittest.skipIf(HAS_ASAN, "AddressSanitizer reserves more than any limit")
    def test_more_arrays_than_there_is_memory_are_refused_before_the_model_runs(self):
        limit = 1 << 30
        texts = (b"fox " * 62 + b"\n") * 16000  # each text has 2 layers * 2 heads * 64 * 64 weights and 64 * 8 hidden numbers, of 4 bytes each
        self.refuses("-", "--arrays", self.folder / "a.npz", stdin=texts, mentions=["16000 texts", "1.1 GB of memory"],
                     preexec_fn=limited(limit))

    def test_outputs_that_exclude_each_other(self):
        same = self.folder / "x.npz"
        self.refuses("--text", "a", "-o", same, "--arrays", same, status=2, mentions=["two outputs"])
        self.refuses("--text", "a", "-o", "-", "--json", status=2)

    def test_an_ending_that_names_no_format(self):
        self.refuses("--text", "a", "--arrays", self.folder / "a.txt", status=2, mentions=[".safetensors", ".npz"])
        self.refuses("--text", "a", "--arrays", self.folder / "a.npy", status=2, mentions=[".npz"])
        self.refuses("--text", "a", "--arrays", self.folder / "a", status=2)


if __name__ == "__main__":
    unittest.main()
