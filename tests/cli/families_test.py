"""Tests view, trace and inspect on folders of other encoder families. Each folder holds the parameters of the tiny BERT under the family's names, so results must be
those of the tiny BERT. tests/python/test_encoders.py compares the families with transformers."""
import json
import unittest

import tiny_model
from program import ProgramTest
from tensor_files import load_safetensors, save_safetensors
from tiny_model import HEADS, LAYERS, POSITIONS, WIDTH

TEXT = "the quick brown fox"
SHARED = {"hidden_size": WIDTH, "intermediate_size": tiny_model.HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": len(tiny_model.WORDS), "layer_norm_eps": 1e-12}
IN_LAYERS = {
    "distilbert": {"attention.self.query": "attention.q_lin", "attention.self.key": "attention.k_lin", "attention.self.value": "attention.v_lin", "attention.output.dense": "attention.out_lin",
                   "attention.output.LayerNorm": "sa_layer_norm", "intermediate.dense": "ffn.lin1", "output.dense": "ffn.lin2", "output.LayerNorm": "output_layer_norm"},
    "mpnet": {"attention.self.query": "attention.attn.q", "attention.self.key": "attention.attn.k", "attention.self.value": "attention.attn.v", "attention.output.dense": "attention.attn.o",
              "attention.output.LayerNorm": "attention.LayerNorm"},
    "albert": {"attention.self.query": "attention.query", "attention.self.key": "attention.key", "attention.self.value": "attention.value", "attention.output.dense": "attention.dense",
               "attention.output.LayerNorm": "attention.LayerNorm", "intermediate.dense": "ffn", "output.dense": "ffn_output", "output.LayerNorm": "full_layer_layer_norm"},
}
LAYER = {"distilbert": "transformer.layer.{}.", "albert": "encoder.albert_layer_groups.{}.albert_layers.0."}


def renamed(family, tensors):
    result = {}
    for name, tensor in tensors.items():
        if name.startswith("encoder.layer."):
            _, _, layer, rest = name.split(".", 3)
            module, kind = rest.rsplit(".", 1)
            if family == "albert" and layer != "0":
                continue
            name = LAYER.get(family, "encoder.layer.{}.").format(layer) + IN_LAYERS.get(family, {}).get(module, module) + "." + kind
        result[name] = tensor
    return result


def write(folder, family, tensors, **config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": family, **SHARED, "max_position_embeddings": POSITIONS, "type_vocab_size": 2, **config}))
    (folder / "vocab.txt").write_text("\n".join(tiny_model.WORDS) + "\n", encoding="utf-8")
    save_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


class Families(ProgramTest):
    def setUp(self):
        super().setUp()
        self.tensors = tiny_model.tensors()
        self.tensors["embeddings.token_type_embeddings.weight"] = ("F32", (2, WIDTH), [0.0] * (2 * WIDTH))
        for layer in range(1, LAYERS):  # ALBERT's layers share their parameters, so all layers of this BERT get the same parameters
            for name in list(self.tensors):
                if name.startswith("encoder.layer.0."):
                    self.tensors[name.replace(".0.", f".{layer}.", 1)] = self.tensors[name]
        self.bert = write(self.folder / "bert", "bert", self.tensors)

    def arrays(self, model, *arguments):
        path = self.folder / f"{model.name}.safetensors"
        self.succeeds("view", model, "--text", TEXT, "--arrays", path, *arguments)
        return load_safetensors(path)

    def family(self, family):
        tensors = renamed(family, self.tensors)
        if family in ("distilbert", "mpnet"):
            del tensors["embeddings.token_type_embeddings.weight"]
        if family in ("roberta", "mpnet"):
            dtype, (count, width), values = tensors["embeddings.position_embeddings.weight"]
            tensors["embeddings.position_embeddings.weight"] = (dtype, (count + 2, width), [9.0] * (2 * width) + list(values))
        if family == "distilbert":
            return write(self.folder / family, family, tensors, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=tiny_model.HIDDEN, activation="gelu")
        if family == "electra":
            return write(self.folder / family, family, tensors, embedding_size=WIDTH)
        if family == "albert":
            tensors["encoder.embedding_hidden_mapping_in.weight"] = ("F32", (WIDTH, WIDTH), [float(i % (WIDTH + 1) == 0) for i in range(WIDTH * WIDTH)])
            tensors["encoder.embedding_hidden_mapping_in.bias"] = ("F32", (WIDTH,), [0.0] * WIDTH)
            return write(self.folder / family, family, tensors, embedding_size=WIDTH, hidden_act="gelu")
        if family == "mpnet":
            tensors["encoder.relative_attention_bias.weight"] = ("F32", (32, HEADS), self.bias)
        return write(self.folder / family, family, tensors, max_position_embeddings=POSITIONS + 2, pad_token_id=1)

    def test_a_family_of_the_same_numbers_has_the_same_maps(self):
        self.bias = [0.0] * (32 * HEADS)
        expected = self.arrays(self.bert)
        for family in ("distilbert", "electra", "albert", "roberta", "mpnet"):
            with self.subTest(family):
                model = self.family(family)
                found = self.arrays(model)
                self.assertEqual(found.keys(), expected.keys())
                for name in ("attentions", "hidden"):
                    self.assertEqual(found[name][0], expected[name][0])
                    for a, b in zip(found[name][1], expected[name][1]):
                        self.assertAlmostEqual(a, b, delta=1e-5)
                page = self.folder / f"{family}.html"
                self.succeeds("view", model, "--text", TEXT, "-o", page, "--without", "1.0")
                self.assertGreater(page.stat().st_size, 10_000)
                self.assertIn(family, self.succeeds("inspect", model).stdout.decode())

    def test_heads_are_switched_off_as_in_bert(self):
        """A head can be switched off in one layer, also in ALBERT, whose layers share their parameters."""
        changes = [json.loads(self.succeeds("view", model, "--text", TEXT, "--json", "--without", "all").stdout)["texts"][0]["without"] for model in (self.bert, self.family("albert"))]
        self.assertEqual(len(changes[0]), LAYERS * HEADS)
        for bert, albert in zip(*changes):
            self.assertEqual((bert["layer"], bert["head"]), (albert["layer"], albert["head"]))
            self.assertAlmostEqual(bert["change"], albert["change"], delta=1e-6)

    def test_a_weight_of_mpnet_is_worked_out_with_its_bias(self):
        self.bias = [0.05 * (i % 13) - 0.2 for i in range(32 * HEADS)]
        model = self.family("mpnet")
        attentions = self.arrays(model)["attentions"]
        _, _, rows, columns = attentions[0]
        cell = json.loads(self.succeeds("trace", model, "--text", TEXT, "--cell", "1,1,3,2", "--json").stdout)
        self.assertAlmostEqual(cell["weight"], attentions[1][((1 * HEADS + 1) * rows + 3) * columns + 2], delta=1e-6)
        self.assertAlmostEqual(cell["bias"], self.bias[1 * HEADS + 1], delta=1e-6)  # the key is one token before the query, and in MPNet this distance has bucket 1
        self.assertAlmostEqual(cell["score"], cell["dot"] * cell["scale"] + cell["bias"], delta=1e-6)
        self.assertIn("the relative bias", self.succeeds("trace", model, "--text", TEXT, "--cell", "1,1,3,2").stdout.decode())
        steps = self.succeeds("trace", model, "--text", TEXT, "--layer", "1").stdout.decode()
        self.assertIn("attention.attn.q(query)", steps)
        self.assertIn(f"adds the relative bias [{HEADS},32]", steps)

    def test_a_pair_for_mpnet_needs_its_two_separators(self):
        self.bias = [0.0] * (32 * HEADS)
        model = self.family("mpnet")
        self.fails(1, "view", model, "--text", TEXT, "--text-pair", "the dog", mentions=["one separator", "tokenizer.json"])
        vocabulary = {word: index for index, word in enumerate(tiny_model.WORDS)}
        special = lambda word: {"SpecialToken": {"id": word, "type_id": 0}}
        a, b = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
        (model / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "decoder": None, "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "added_tokens": [{"id": vocabulary[word], "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for word in ("[UNK]", "[CLS]", "[SEP]")],
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": [special("[CLS]"), a, special("[SEP]")], "pair": [special("[CLS]"), a, special("[SEP]"), special("[SEP]"), b, special("[SEP]")],
                               "special_tokens": {word: {"id": word, "ids": [vocabulary[word]], "tokens": [word]} for word in ("[CLS]", "[SEP]")}},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary}}))  # fmt: skip
        self.fails(1, "view", model, "--text", TEXT, mentions=['cls_token is missing, which means "<s>", and tokenizer.json puts "[CLS]" there', "MPNetTokenizer"])
        (model / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
        text = json.loads(self.succeeds("view", model, "--text", TEXT, "--text-pair", "the dog", "--json").stdout)["texts"][0]
        self.assertEqual(text["tokens"], ["[CLS]", *TEXT.split(), "[SEP]", "[SEP]", "the", "dog", "[SEP]"])

    def test_a_family_that_is_not_supported_is_refused_by_name(self):
        model = write(self.folder / "deberta", "deberta-v2", self.tensors)
        self.fails(1, "view", model, "--text", TEXT, mentions=["deberta-v2", "is not supported", "known encoders are bert, roberta"])


if __name__ == "__main__":
    unittest.main()
