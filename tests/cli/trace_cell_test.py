"""Compares the numbers that `polyhead trace --cell` prints for one attention weight with a forward pass in float64 that is written in this file."""
import json
import math
import re
import unittest

import tiny_model
from program import ModelTest, run_on_terminal
from tiny_model import HEADS, LAYERS, WIDTH
from view_minilm_test import FOX, model_folder

TEXT = "the quick brown fox"
IDS = [tiny_model.WORDS.index(word) for word in ["[CLS]", *TEXT.split(), "[SEP]"]]
HEAD_WIDTH = WIDTH // HEADS


class Forward:
    """A forward pass of the encoder of Devlin et al. 2018 for TEXT. Holds q, k, v [layer][head][token][feature], the attention weights and outputs of the heads, and x, the
    output of the last layer. off: a (layer, head) whose output is set to 0."""

    def __init__(self, off=None):
        arrays = {name: (shape, values) for name, (_, shape, values) in tiny_model.tensors().items()}
        row = lambda name, index: arrays[name][1][index * WIDTH:(index + 1) * WIDTH]
        x = [[a + b + c for a, b, c in zip(row("embeddings.word_embeddings.weight", token), row("embeddings.position_embeddings.weight", place), row("embeddings.token_type_embeddings.weight", 0))]
             for place, token in enumerate(IDS)]

        def linear(name, inputs):
            (out, width), weight = arrays[name + ".weight"]
            return [[arrays[name + ".bias"][1][o] + sum(weight[o * width + i] * values[i] for i in range(width)) for o in range(out)] for values in inputs]

        def norm(name, inputs):
            result = []
            for values in inputs:
                mean = sum(values) / len(values)
                deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-12)
                result.append([(value - mean) / deviation * a + b for value, a, b in zip(values, arrays[name + ".weight"][1], arrays[name + ".bias"][1])])
            return result

        added = lambda a, b: [[p + q for p, q in zip(one, other)] for one, other in zip(a, b)]
        x = norm("embeddings.LayerNorm", x)
        self.q, self.k, self.v, self.weights, self.outputs = [], [], [], [], []
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}."
            q, k, v = ([[values[n * HEAD_WIDTH:(n + 1) * HEAD_WIDTH] for values in linear(f"{at}attention.self.{name}", x)] for n in range(HEADS)] for name in ("query", "key", "value"))
            weights, outputs = [], []
            for n in range(HEADS):
                exps = [[math.exp(sum(a * b for a, b in zip(one, key)) / math.sqrt(HEAD_WIDTH)) for key in k[n]] for one in q[n]]
                weights.append([[e / sum(line) for e in line] for line in exps])
                outputs.append([[sum(w * value[i] for w, value in zip(line, v[n])) for i in range(HEAD_WIDTH)] for line in weights[n]])
                if (layer, n) == off:
                    outputs[n] = [[0.0] * HEAD_WIDTH for _ in outputs[n]]
            for kept, of_layer in zip((self.q, self.k, self.v, self.weights, self.outputs), (q, k, v, weights, outputs)):
                kept.append(of_layer)
            merged = [sum((outputs[n][t] for n in range(HEADS)), []) for t in range(len(IDS))]
            x = norm(at + "attention.output.LayerNorm", added(x, linear(at + "attention.output.dense", merged)))
            hidden = [[0.5 * a * (1 + math.erf(a / math.sqrt(2))) for a in values] for values in linear(at + "intermediate.dense", x)]
            x = norm(at + "output.LayerNorm", added(x, linear(at + "output.dense", hidden)))
        self.x = x


def numbers_of(text):
    """Parses the printed numbers. Returns [(q, k, product)], the steps of the score, [(score, exp, weight)] of the keys, and the output."""
    parts = re.split(r"\n\d\. [^\n]*(?:\n(?!feature|step|key)[^\n]+)*\n", text)
    rows = lambda part: [[float(x) for x in re.findall(r"-?\d+\.\d+", line)] for line in part.splitlines()[1:] if line.strip()]
    return rows(parts[1]), [line[-1] for line in rows(parts[2])], rows(parts[3])[:-1], [line[-1] for line in rows(parts[4])]


class TraceCell(ModelTest):
    def cell(self, cell, *arguments):
        return self.succeeds("trace", self.model, "--text", TEXT, "--cell", cell, *arguments).stdout.decode()

    def near(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertAlmostEqual(a, b, delta=1e-5)

    def test_every_number_is_that_of_a_forward_pass_in_float64(self):
        wanted = Forward()
        for layer, head, query, key in ((0, 0, 2, 3), (0, 1, 0, 5), (1, 0, 5, 0), (1, 1, 4, 4)):
            with self.subTest((layer, head, query, key)):
                told = json.loads(self.cell(f"{layer},{head},{query},{key}", "--json"))
                self.near(told["q"], wanted.q[layer][head][query])
                self.near(told["k"], wanted.k[layer][head][key])
                self.near([one["weight"] for one in told["keys"]], wanted.weights[layer][head][query])
                self.near([told["weight"]], [wanted.weights[layer][head][query][key]])
                self.near(told["output"], wanted.outputs[layer][head][query])
                for one, v in zip(told["keys"], wanted.v[layer][head]):
                    self.near(one["v"], v)

    def test_the_printed_numbers_give_the_weight_when_they_are_copied_out(self):
        wanted = Forward()
        for layer, head, query, key in ((0, 1, 2, 3), (1, 0, 1, 4)):
            products, steps, rows, output = numbers_of(self.cell(f"{layer},{head},{query},{key}"))
            dot = sum(q * k for q, k, _ in products)
            exps = [math.exp(score) for score, _, _ in rows]
            exps[key] = math.exp(dot / math.sqrt(HEAD_WIDTH))
            weight = wanted.weights[layer][head][query][key]
            self.near([exps[key] / sum(exps), steps[-1], rows[key][-1]], [weight] * 3)
            self.near([dot, steps[0] / math.sqrt(HEAD_WIDTH)], [steps[0], steps[1]])
            self.near(output, wanted.outputs[layer][head][query])

    def test_words_name_tokens(self):
        self.assertEqual(self.cell("1,0,brown,Fox"), self.cell("1,0,3,4"))
        self.assertIn("layer 1, head 0: 3 brown looks at 4 fox", self.cell("1,0,brown,fox"))

    def test_narrow_terminals_have_the_same_numbers_within_their_width(self):
        wide = re.findall(r"-?\d+\.\d+", self.cell("1,0,brown,fox"))
        for columns in (28, 40):
            status, text, _ = run_on_terminal("trace", self.model, "--text", TEXT, "--cell", "1,0,brown,fox", columns=columns)
            self.assertEqual(status, 0)
            self.assertLessEqual(max(map(len, text.splitlines())), columns)
            self.assertEqual(re.findall(r"-?\d+\.\d+", text.replace("-\n", "-")), wide)

    def test_cells_that_do_not_exist_are_refused_by_name(self):
        for cell, message in (("2,0,0,0", "there is no layer '2'; the model has the layers 0 to 1"), ("0,x,0,0", "there is no head 'x'"), ("0,0,6,0", "the query 6 is not a token of the text, which has 0 to 5"),
                              ("0,0,0,dog", "the key 'dog' is not a token of the text; its tokens are 0 [CLS], 1 the"), ("0,0,0", "is not LAYER,HEAD,QUERY,KEY")):
            with self.subTest(cell):
                self.fails(2, "trace", self.model, "--text", TEXT, "--cell", cell, mentions=[message])
        self.fails(2, "trace", self.model, "--text", "the fox the dog", "--cell", "0,0,the,fox", mentions=["give its place: 1 or 3"])
        self.fails(2, "trace", self.model, "--text", TEXT, "--cell", "0,0,0,0", "--values", mentions=["--cell cannot be combined with --values"])
        self.fails(1, "trace", self.model, "--text", "the " * 80, "--cell", "0,0,0,0", mentions=["the text has 82 tokens; the model takes at most 64; give a shorter text"])
        self.fails(2, "trace", self.model, mentions=["needs two things"])
        self.fails(2, "trace", "--text", TEXT, "--cell", "0,0,0,0", mentions=["needs three things"])

    def test_a_trained_model_has_the_weight_of_its_map(self):
        arrays = self.folder / "fox.safetensors"
        from tensor_files import load_safetensors
        self.succeeds("view", model_folder(), "--text", FOX, "--arrays", arrays)
        (_, heads, tokens, _), weights = load_safetensors(arrays)["attentions"]
        for layer, head, query, key in ((2, 8, 3, 4), (5, 11, 3, 4), (0, 0, 10, 1)):
            told = json.loads(self.succeeds("trace", model_folder(), "--text", FOX, "--cell", f"{layer},{head},{query},{key}", "--json").stdout)
            self.near([told["weight"]], [weights[((layer * heads + head) * tokens + query) * tokens + key]])


if __name__ == "__main__":
    unittest.main()
