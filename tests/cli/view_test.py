"""Tests what `polyhead view` writes for a small model: JSON, pages, arrays, several texts."""
import json
import re
import unittest

from program import ModelTest, page_data
from tensor_files import load_npz, load_safetensors, save_safetensors
import tiny_model

FOX = "the quick brown fox jumps over the lazy dog"
FOX_TOKENS = ["[CLS]", "the", "quick", "brown", "fox", "jump", "##s", "over", "the", "lazy", "dog", "[SEP]"]


class ViewTest(ModelTest):
    def json(self, *arguments, **options):
        return json.loads(self.succeeds("view", self.model, *arguments, "--json", **options).stdout)


class Json(ViewTest):
    def test_the_schema_that_help_describes(self):
        told = self.json("--text", FOX)
        self.assertEqual(sorted(told), ["files", "map", "model", "texts"])
        self.assertEqual(told["model"], {"path": str(self.model), "layers": 2, "heads": 2, "width": 8})
        self.assertEqual(told["files"], {})
        (text,) = told["texts"]
        self.assertEqual(sorted(text), sorted(["text", "pair", "tokens", "ids", "segments", "special", "replaced_bytes", "dropped_tokens", "map", "embedding"]))
        self.assertEqual(text["text"], FOX)
        self.assertIsNone(text["pair"])
        self.assertEqual(text["tokens"], FOX_TOKENS)
        self.assertEqual(text["ids"], [tiny_model.WORDS.index(t) for t in FOX_TOKENS])
        self.assertEqual(text["special"], [True] + [False] * 10 + [True])
        self.assertEqual(text["segments"], [0] * 12)
        self.assertEqual(len(text["map"]), 12)
        for row in text["map"]:
            self.assertEqual(len(row), 12)
            self.assertAlmostEqual(sum(row), 1, places=5)
        self.assertEqual(len(text["embedding"]), 8)
        self.assertAlmostEqual(sum(x * x for x in text["embedding"]), 1, places=5)

    def test_a_folder_that_transformers_5_saves_has_no_vocab_txt(self):
        expected = self.json("--text", "the Jumps, études")
        (self.model / "vocab.txt").unlink()
        special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        tokenizer = {"version": "1.0", "added_tokens": [{"id": i, "content": tiny_model.WORDS[i], **special} for i in range(4)], "normalizer": {"type": "BertNormalizer"},
                     "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
                     "model": {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(tiny_model.WORDS)}}}
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.assertEqual(self.json("--text", "the Jumps, études"), expected)
        tokenizer["pre_tokenizer"] = {"type": "UnicodeScripts"}
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.fails(1, "view", self.model, "--text", "the fox", mentions=[str(self.model), "pre_tokenizer.type is 'UnicodeScripts'", "BertPreTokenizer"])

    def test_link_ranks_all_heads_by_the_weight_between_two_words(self):
        arrays = self.folder / "a.npz"
        self.succeeds("view", self.model, "--text", FOX, "--arrays", arrays, "--json")
        shape, attentions = load_npz(arrays)["attentions"][-2:]
        length = shape[-1]
        weight = lambda layer, head, t, s: attentions[((layer * 2 + head) * length + t) * length + s]
        for given, query, key in (("quick,fox", 2, 4), ("4,2", 4, 2), ("Brown,brown", 3, 3), ("0,11", 0, 11)):
            link = self.json("--text", FOX, "--link", given)["texts"][0]["link"]
            self.assertEqual((link["query"], link["key"], len(link["heads"])), (query, key, 4))
            self.assertEqual(link["heads"], sorted(link["heads"], key=lambda one: -one["weight"]))
            special = {0, 11} & {query, key}
            for one in link["heads"]:
                self.assertAlmostEqual(one["weight"], weight(one["layer"], one["head"], query, key), places=6)
                others = [weight(one["layer"], one["head"], t, t + key - query) for t in range(length)
                          if t != query and 0 <= t + key - query < length and (special or not {0, 11} & {t, t + key - query})]
                if others:
                    self.assertAlmostEqual(one["usual"], sum(others) / len(others), places=6)
                else:
                    self.assertIsNone(one["usual"])
        lines = self.succeeds("view", self.model, "--text", FOX, "--link", "quick,fox").stdout.decode().splitlines()
        best = max((weight(layer, head, 2, 4), f"{layer}.{head}") for layer in range(2) for head in range(2))
        self.assertEqual(lines[0], FOX)
        self.assertRegex(" ".join(lines[1:3]), "from quick to fox; usual: .* 2 tokens ahead")
        self.assertTrue(next(line for line in lines if line[:1].isdigit()).startswith(f"{best[1]}   {best[0]:.4f}"), lines)
        page = self.folder / "p.html"
        self.succeeds("view", self.model, "--text", FOX, "--link", "quick,fox", "-o", page)
        self.assertIn('"start":"#row=2&column=4"', page.read_text())

    def test_link_takes_numbers_that_are_words(self):
        vocabulary = [{"w8": "2024", "w9": "3"}.get(word, word) for word in tiny_model.WORDS]
        (self.model / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        text = "2024 the fox 3"  # token 0 is [CLS], so the word 3 is token 4
        for given, query, key in (("2024,fox", 1, 3), ("fox,2024", 3, 1), ("2,1", 2, 1), ("03,fox", 3, 3), ("04,fox", 4, 3)):
            link = self.json("--text", text, "--link", given)["texts"][0]["link"]
            self.assertEqual((link["query"], link["key"]), (query, key), given)
        self.fails(2, "view", self.model, "--text", text, "--link", "3,fox", mentions=["'3' is a place, and also a word of the text, which is at 4", "give 03 for the token at place 3", "or 04 for the word"])
        self.fails(2, "view", self.model, "--text", text, "--link", "2025,fox", mentions=["the query 2025 is not a token of the text, which has 0 to 5"])

    def test_a_page_of_pooled_maps_says_that_it_does_not_open_at_the_link(self):
        positions = 4200
        tensors = tiny_model.tensors()
        tensors["embeddings.position_embeddings.weight"] = ("F32", (positions, tiny_model.WIDTH), tiny_model.values(positions * tiny_model.WIDTH, 1))
        tiny_model.write(self.model, max_position_embeddings=positions)
        save_safetensors(self.model / "model.safetensors", tensors)
        page = self.folder / "p.html"
        told = self.succeeds("view", self.model, "--text", "quick fox" + " the" * (positions - 4), "--link", "quick,fox", "-o", page).stderr.decode()
        self.assertIn("the page does not open at the words of --link", told)
        self.assertNotIn('"start":"#row', page.read_text())

    def test_link_is_refused_by_name_where_it_cannot_be_read(self):
        for given, said in (("quick", "QUERY,KEY"), ("", "QUERY,KEY"), ("quick,", "QUERY,KEY"), ("the,fox", "more than once; give its place: 1 or 8"), ("cat,fox", "'cat' is not a token of the text; its tokens are 0 [CLS]"), ("2,12", "12 is not a token of the text, which has 0 to 11")):
            self.fails(2, "view", self.model, "--text", FOX, "--link", given, mentions=["--link", said])
        self.fails(2, "view", self.model, "--text", FOX, "--link", "2,4", "--layer", "1", mentions=["--link ranks all heads"])
        self.fails(2, "view", self.model, "--text", FOX, "--text", FOX, "--link", "2,4", mentions=["--link is for two words of one text"])

    def test_unknown_tokens_are_counted_in_a_note(self):
        told = self.succeeds("view", self.model, "--text", "the Ω fox Ж", "--json")
        self.assertIn("2 of 6 tokens of the text are unknown to this model", told.stderr.decode())
        self.assertNotIn("unknown", self.succeeds("view", self.model, "--text", FOX, "--json").stderr.decode())

    def test_the_map_is_the_head_that_was_asked_for(self):
        arrays = self.folder / "a.safetensors"
        self.succeeds("view", self.model, "--text", FOX, "--arrays", arrays)
        shape, weights = load_safetensors(arrays)["attentions"]
        self.assertEqual(shape, (2, 2, 12, 12))

        def head(layer, n):
            first = (layer * 2 + n) * 144
            return weights[first:first + 144]

        def mean(*heads):
            return [sum(row) / len(row) for row in zip(*heads)]

        every = {(): mean(head(1, 0), head(1, 1)),
                 ("--layer", "0", "--head", "1"): head(0, 1),
                 ("--head", "0"): head(1, 0),
                 ("--layer", "0"): mean(head(0, 0), head(0, 1)),
                 ("--layer", "0", "--mean"): mean(head(0, 0), head(0, 1)),
                 ("--mean",): mean(head(0, 0), head(0, 1), head(1, 0), head(1, 1))}
        for arguments, expected in every.items():
            with self.subTest(arguments):
                found = [w for row in self.json("--text", FOX, *arguments)["texts"][0]["map"] for w in row]
                self.assertLess(max(abs(a - b) for a, b in zip(found, expected, strict=True)), 1e-6)
        self.assertGreater(max(abs(a - b) for a, b in zip(head(0, 0), head(0, 1))), 1e-3, "the two heads must differ, because otherwise this test could not fail")

    def test_the_weighting_norm_multiplies_by_the_norms_of_the_values(self):
        arrays = self.folder / "a.safetensors"
        told = self.json("--text", FOX, "--weighting", "norm", "--layer", "0", "--head", "1", "--arrays", arrays)
        self.assertEqual(told["map"]["weighting"], "norm")
        loaded = load_safetensors(arrays)
        (shape, norms), weights = loaded["value_norms"], loaded["attentions"][1][144:288]
        self.assertEqual(shape, (2, 2, 12))
        norms = norms[12:24]
        for t, row in enumerate(told["texts"][0]["map"]):
            for s, number in enumerate(row):
                self.assertAlmostEqual(number, weights[t * 12 + s] * norms[s], places=5)
        self.assertGreater(max(norms) / min(norms), 1.01, "the norms must differ, because otherwise this test could not fail")
        drawn = self.succeeds("view", self.model, "--text", FOX, "--weighting", "norm").stdout.decode()
        self.assertIn("times the norms of the transformed values", " ".join(drawn.split()))
        page = self.folder / "norm.html"
        self.succeeds("view", self.model, "--text", FOX, "--weighting", "norm", "-o", page)
        self.assertIn('"start":"#weighting=norm"', page.read_text())
        self.succeeds("view", self.model, "--text", FOX, "-o", page)
        self.assertIn('"value_norms":', page.read_text())
        self.fails(2, "view", self.model, "--text", FOX, "--weighting", "norm", "--link", "2,4", mentions=["--link ranks heads by their attention weights"])
        drawn, over_all = (self.json("--text", FOX, "--weighting", "norm", *chosen)["texts"][0]["map"] for chosen in (["--layer", "0"], ["--mean"]))
        (_, every), (_, all_norms) = loaded["attentions"], loaded["value_norms"]
        product = lambda layer, head, t, s: every[((layer * 2 + head) * 12 + t) * 12 + s] * all_norms[(layer * 2 + head) * 12 + s]
        for t in range(12):
            for s in range(12):
                self.assertAlmostEqual(drawn[t][s], sum(product(0, head, t, s) for head in range(2)) / 2, places=5)
                self.assertAlmostEqual(over_all[t][s], sum(product(layer, head, t, s) for layer in range(2) for head in range(2)) / 4, places=5)
        self.fails(2, "view", self.model, "--text", FOX, "--weighting", "norms", mentions=["--weighting", "did you mean 'norm'"])

    def test_options_of_a_shown_map_are_refused_if_texts_are_only_measured(self):
        path = self.folder / "measured.txt"
        path.write_text("the fox\nlazy dog\n")
        for options in (["--without", "all"], ["--layer", "0"], ["--head", "0"], ["--mean"], ["--weighting", "norm"]):
            self.fails(2, "view", self.model, "--texts", path, *options, mentions=[options[0], "--texts alone shows none; it needs --text, --file, -o or --arrays"])
            self.fails(2, "view", self.model, "--texts", path, "--json", *options, mentions=[options[0]])
            self.succeeds("view", self.model, "--texts", path, "--text", FOX, *options)
        self.succeeds("view", self.model, "--texts", path, "--weighting", "norm", "--without", "all", "-o", self.folder / "page.html")
        self.assertIn('"start":"#heads=scatter&weighting=norm"', (self.folder / "page.html").read_text())
        path.write_text("the fox\n" + "fox " * 300 + "\n")
        self.fails(1, "view", self.model, "--text", FOX, "--texts", path, mentions=["line 2 of --texts has 302 tokens"])
        path.write_text("fox " * 300 + "\n")
        self.fails(1, "view", self.model, "--text", FOX, "--texts", path, mentions=["the text of --texts has 302 tokens"])

    def test_numbers_that_json_lacks_are_words_as_everywhere(self):
        tensors = tiny_model.tensors()
        name = "encoder.layer.1.output.dense.bias"
        tensors[name] = ("F32", (8,), [float("nan")] * 8)
        save_safetensors(self.model / "model.safetensors", tensors)
        self.assertEqual(self.json("--text", "the fox")["texts"][0]["embedding"], ["nan"] * 8)

    def test_the_map_names_its_layer_and_head(self):
        self.assertEqual(self.json("--text", "a")["map"], {"layer": 1, "head": None, "description": "layer 1, mean of its 2 heads", "weighting": "attention"}, )
        self.assertEqual(self.json("--text", "a", "--layer", "0", "--head", "1")["map"], {"layer": 0, "head": 1, "description": "layer 0, head 1", "weighting": "attention"})
        self.assertIsNone(self.json("--text", "a", "--mean")["map"]["layer"])

    def test_a_pair_has_two_segments(self):
        (text,) = self.json("--text", "the fox", "--text-pair", "lazy dog")["texts"]
        self.assertEqual(text["tokens"], ["[CLS]", "the", "fox", "[SEP]", "lazy", "dog", "[SEP]"])
        self.assertEqual(text["segments"], [0, 0, 0, 0, 1, 1, 1])
        self.assertEqual(text["pair"], "lazy dog")
        (alone,) = self.json("--text", "the fox")["texts"]
        self.assertNotEqual(alone["embedding"], text["embedding"])

    def test_words_are_taken_as_they_are(self):
        for text in ("", " ", "[a,b]", "{}", "--json", "-", "a,b", "%s %d", "'\"", "a\\b", "[]"):
            with self.subTest(text):
                self.assertEqual([t["text"] for t in self.json("--text", text)["texts"]], [text])
        self.assertEqual(self.json("--text", "")["texts"][0]["tokens"], ["[CLS]", "[SEP]"])
        self.assertEqual([t["text"] for t in self.json("--text", "[a,b]", "--text", "", "--text", "c")["texts"]], ["[a,b]", "", "c"])


class Texts(ViewTest):
    def test_a_file_has_one_text_in_each_line(self):
        path = self.folder / "texts.txt"
        path.write_bytes("the fox\r\n\n  \nlazy dog\n東京".encode())
        self.assertEqual([t["text"] for t in self.json("--file", path)["texts"]], ["the fox", "lazy dog", "東京"])
        self.assertEqual(self.json("--file", path), self.json(path), "the second argument means the same as --file")

    def test_standard_input(self):
        for arguments in (("-",), ("--file", "-")):
            told = self.json(*arguments, stdin=b"the fox\nlazy dog\n")
            self.assertEqual([t["tokens"][1:-1] for t in told["texts"]], [["the", "fox"], ["lazy", "dog"]])

    def test_a_text_does_not_depend_on_the_others(self):
        alone = self.json("--text", "lazy dog")["texts"][0]
        self.assertEqual(self.json("--text", FOX, "--text", "lazy dog")["texts"][1], alone)

    def test_bytes_that_are_not_utf8_are_replaced_with_a_note(self):
        result = self.succeeds("view", self.model, "-", "--json", stdin=b"the \xff\xfe fox\n")
        self.assertEqual(result.stderr.decode(), "polyhead: note: 2 bytes of the text are not UTF-8 and read as U+FFFD\n")
        (text,) = json.loads(result.stdout)["texts"]
        self.assertEqual(text["replaced_bytes"], 2)
        self.assertEqual(text["tokens"], ["[CLS]", "the", "fox", "[SEP]"])
        self.assertEqual(text["text"], "the \ufffd\ufffd fox")
        self.assertEqual(self.succeeds("view", self.model, "--text", b"\xff the fox", "--json").returncode, 0)

    def test_truncate_leaves_out_the_end_and_says_so(self):
        result = self.succeeds("view", self.model, "--text", "the fox " * 40, "--truncate", "--json")
        (text,) = json.loads(result.stdout)["texts"]
        self.assertEqual(len(text["ids"]), tiny_model.POSITIONS)
        self.assertEqual(text["tokens"][-1], "[SEP]")
        self.assertEqual(text["dropped_tokens"], 82 - 64)
        self.assertEqual(result.stderr.decode(), "polyhead: note: the text has 82 tokens; the model takes 64, so 18 at the end are left out\n")

    def test_a_text_that_just_fits_needs_no_truncation(self):
        result = self.succeeds("view", self.model, "--text", "the " * 62, "--json")
        self.assertEqual(len(json.loads(result.stdout)["texts"][0]["ids"]), 64)
        self.assertEqual(result.stderr, b"")


class Files(ViewTest):
    def test_the_page_holds_the_words_and_asks_for_nothing(self):
        page = self.folder / "fox.html"
        result = self.succeeds("view", self.model, "--text", FOX, "-o", page)
        self.assertEqual(result.stdout, b"")
        self.assertRegex(result.stderr.decode(), r"\Apolyhead: wrote '.*fox\.html' \(4 heads, [\d.]+ KB\)\n\Z")
        html = page.read_text()
        self.assertTrue(html.lower().startswith("<!doctype html>"))
        self.assertTrue(html.rstrip().endswith("</html>"))
        for word in FOX_TOKENS:
            self.assertIn(word, html)
        self.assertIsNone(re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", html))

    def test_the_page_can_go_to_standard_output(self):
        page = self.folder / "fox.html"
        self.succeeds("view", self.model, "--text", FOX, "-o", page)
        self.assertEqual(self.succeeds("view", self.model, "--text", FOX, "-o", "-").stdout, page.read_bytes())

    def test_json_names_the_files(self):
        page, arrays = self.folder / "p.html", self.folder / "a.npz"
        self.assertEqual(self.json("--text", FOX, "-o", page, "--arrays", arrays)["files"], {"arrays": str(arrays), "page": str(page)})
        self.assertTrue(page.exists() and arrays.exists())

    def test_both_formats_of_arrays_hold_the_same(self):
        self.succeeds("view", self.model, "--text", FOX, "--arrays", self.folder / "a.safetensors")
        self.succeeds("view", self.model, "--text", FOX, "--arrays", self.folder / "a.npz")
        first, second = load_safetensors(self.folder / "a.safetensors"), load_npz(self.folder / "a.npz")
        self.assertEqual(json.loads(first.pop("__metadata__")["texts"]), [FOX])
        self.assertEqual(first, second)
        self.assertEqual({k: v[0] for k, v in first.items()}, {"ids": (12,), "attentions": (2, 2, 12, 12), "hidden": (12, 8), "embedding": (8,)})
        self.assertEqual(first["ids"][1].typecode, "q")

    def test_arrays_keep_both_parts_of_a_pair(self):
        arrays = self.folder / "a.safetensors"
        self.succeeds("view", self.model, "--text", "the fox", "--text-pair", "lazy dog", "--arrays", arrays)
        metadata = load_safetensors(arrays)["__metadata__"]
        self.assertEqual((json.loads(metadata["texts"]), json.loads(metadata["pairs"])), (["the fox"], ["lazy dog"]))
        self.succeeds("view", self.model, "--text", "the fox", "--arrays", arrays)
        self.assertNotIn("pairs", load_safetensors(arrays)["__metadata__"])

    def test_several_texts_have_numbered_arrays(self):
        arrays = self.folder / "a.safetensors"
        self.succeeds("view", self.model, "--text", FOX, "--text", "the fox", "--arrays", arrays)
        found = load_safetensors(arrays)
        self.assertEqual(found["ids_1"][0], (4,))
        self.assertEqual(found["attentions_0"][0], (2, 2, 12, 12))
        self.assertEqual(sorted(found), sorted(["__metadata__"] + [f"{n}_{i}" for n in ("ids", "attentions", "hidden", "embedding") for i in (0, 1)]))

    def test_a_file_that_was_there_is_replaced(self):
        page = self.folder / "p.html"
        page.write_text("old")
        self.succeeds("view", self.model, "--text", "a", "-o", page)
        self.assertNotEqual(page.read_text(), "old")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "p.html"])

    def test_q_k_and_v_are_in_the_page_within_their_budget(self):
        def texts(*arguments):
            page = self.succeeds("view", self.model, "--text", "the fox", "--text", "the quick brown fox", *arguments, "-o", "-").stdout.decode()
            return page_data(page)["texts"]
        numbers = [3 * 2 * tokens * tiny_model.WIDTH for tokens in (4, 6)]  # numbers of q, k and v in two layers, for texts of 4 and 6 tokens
        kept = lambda *arguments: [("vectors" in text, round(text.get("left_out", 0) * 3e6 / 16)) for text in texts(*arguments)]
        self.assertEqual(kept(), [(True, 0), (True, 0)])
        self.assertEqual(kept("--vector-megabytes", "0.0015"), [(True, 0), (False, numbers[1])])
        self.assertEqual(kept("--vector-megabytes", "0"), [(False, numbers[0]), (False, numbers[1])])
        self.fails(2, "view", self.model, "--text", "a", "--vector-megabytes", "9", mentions=["--vector-megabytes", "needs -o"])
        self.fails(2, "view", self.model, "--text", "a", "-o", "-", "--vector-megabytes", "-1", mentions=["--vector-megabytes: '-1' is below 0"])

    def test_the_page_says_its_language(self):
        for options, written in (([], None), (["--lang", "en"], "en"), (["--lang", "zh"], "zh")):
            html = self.succeeds("view", self.model, "--text", "a", "-o", "-", *options).stdout.decode()
            self.assertEqual(page_data(html).get("language"), written)

    def test_the_same_run_gives_the_same_bytes(self):
        for name in ("a", "b"):
            self.succeeds("view", self.model, "--text", FOX, "-o", self.folder / f"{name}.html", "--arrays", self.folder / f"{name}.npz")
        for ending in ("html", "npz"):
            self.assertEqual((self.folder / f"a.{ending}").read_bytes(), (self.folder / f"b.{ending}").read_bytes())


if __name__ == "__main__":
    unittest.main()
