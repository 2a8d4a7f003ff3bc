"""Compares the attention maps that `polyhead maps` computes from q and k with a softmax that is written in this file."""
import json
import math
import random
import unittest

from program import ProgramTest, run_on_terminal, without_escapes
from tensor_files import flat, load_npz, load_safetensors, save_safetensors

SEED = 19
BATCH, HEADS, KV_HEADS, QUERIES, WIDTH = 2, 4, 2, 6, 3


def numbers(*shape):
    return ("F64", shape, [random.gauss(0, 1) for _ in range(math.prod(shape))])


def weights_of(q, k, attends):
    """Returns the attention weights p[b][n][t][s] of one layer from the flat lists q [B,N,T,H] and k [B,K,T,H]."""
    def row(values, *index):
        at = 0
        for i, extent in zip(index, (1, KV_HEADS if values is k else HEADS, QUERIES), strict=True):
            at = at * extent + i
        return values[at * WIDTH:(at + 1) * WIDTH]

    p = []
    for b in range(BATCH):
        p.append([])
        for n in range(HEADS):
            p[b].append([])
            for t in range(QUERIES):
                score = {s: sum(x * y for x, y in zip(row(q, b, n, t), row(k, b, n // (HEADS // KV_HEADS), s), strict=True)) / math.sqrt(WIDTH)
                         for s in range(QUERIES) if attends(b, t, s)}
                total = sum(map(math.exp, score.values()))
                p[b][n].append([math.exp(score[s]) / total if s in score else 0.0 for s in range(QUERIES)])
    return p


def causal(b, t, s):
    return s <= t


class Maps(ProgramTest):
    def setUp(self):
        super().setUp()
        random.seed(SEED)
        print("seed", SEED)
        self.tensors = {"q": numbers(BATCH, HEADS, QUERIES, WIDTH), "k": numbers(BATCH, KV_HEADS, QUERIES, WIDTH)}
        self.file = self.folder / "qk.safetensors"
        save_safetensors(self.file, self.tensors)
        self.p = weights_of(self.tensors["q"][2], self.tensors["k"][2], causal)

    def maps(self, *arguments, command="maps", file=None, output="out.safetensors"):
        self.succeeds(command, "--tensors", file or self.file, "-o", self.folder / output, "--causal", *arguments)
        tensors = (load_npz if output.endswith("npz") else load_safetensors)(self.folder / output)
        tensors.pop("__metadata__", None)
        return tensors

    def assert_is(self, actual, shape, nested):
        self.assertEqual(actual[0], shape)
        for got, wanted in zip(actual[1], flat(nested), strict=True):
            self.assertAlmostEqual(got, wanted, delta=1e-12)

    def test_norm_weighted_maps(self):
        values, width = 2, 5
        v, weight = numbers(BATCH, KV_HEADS, QUERIES, values), numbers(width, HEADS * values)
        file = self.folder / "qkv.safetensors"
        save_safetensors(file, self.tensors | {"v": v, "output_weight": weight})

        def norm(b, n, s):
            row = v[2][((b * KV_HEADS + n // (HEADS // KV_HEADS)) * QUERIES + s) * values:][:values]
            return math.hypot(*(sum(weight[2][e * HEADS * values + n * values + i] * row[i] for i in range(values)) for e in range(width)))

        norms = [[[norm(b, n, s) for s in range(QUERIES)] for n in range(HEADS)] for b in range(BATCH)]
        for command in ("maps", "attend"):
            found = self.maps("--attention-weights", "--weighting", "norm", "--rows", "4,1", "--keys", "3,0", command=command, file=file)
            self.assertNotIn("attention_weights", found)
            self.assert_is(found["value_norms"], (BATCH, HEADS, QUERIES), norms)
            self.assert_is(found["norm_weighted_map"], (BATCH, HEADS, 2, 2), [[[[self.p[b][n][t][s] * norms[b][n][s] for s in (3, 0)] for t in (4, 1)] for n in range(HEADS)] for b in range(BATCH)])
        out, other = self.folder / "no.npz", self.folder / "other.safetensors"
        for keys in (QUERIES + 1, QUERIES - 1):
            save_safetensors(other, self.tensors | {"v": numbers(BATCH, KV_HEADS, keys, values), "output_weight": weight})
            self.fails(1, "maps", "--tensors", other, "-o", out, "--weighting", "norm", "--attention-weights", mentions=[f"v has {keys} keys and k has {QUERIES}"])
        for command in ("maps", "attend"):  # self.file has neither v nor output_weight: the options must be refused before the program needs these tensors
            self.fails(2, command, "--tensors", self.file, "-o", out, "--weighting", "norm", "--key-sums", mentions=["--weighting norm is for the attention weights"])
        save_safetensors(other, self.tensors | {"norm_weighted_map": weight, "value_norms": weight})
        self.assertEqual(self.succeeds("maps", "--tensors", other, "-o", self.folder / "sums.npz", "--key-sums").stderr, b"")  # tensors with the names of results, from an earlier call, must not cause a note
        self.fails(1, "maps", "--tensors", self.file, "-o", out, "--weighting", "norm", "--attention-weights", mentions=["has no tensor 'v'"])

    def of_heads(self, f):
        return [[f(head) for head in heads] for heads in self.p]

    def test_whole_maps_parts_bands_and_sets_of_keys(self):
        lead = (BATCH, HEADS)
        whole = self.maps("--attention-weights")
        self.assertEqual(set(whole), {"attention_weights"})
        self.assert_is(whole["attention_weights"], (*lead, QUERIES, QUERIES), self.p)
        rectangle = self.maps("--attention-weights", "--rows", "2:4", "--keys", ":3", output="out.npz")
        self.assert_is(rectangle["attention_weights"], (*lead, 2, 3), self.of_heads(lambda p: [row[:3] for row in p[2:4]]))
        chosen = self.maps("--attention-weights", "--rows", "5,0,3:")
        self.assert_is(chosen["attention_weights"], (*lead, 5, QUERIES), self.of_heads(lambda p: [p[t] for t in (5, 0, 3, 4, 5)]))
        columns = self.maps("--attention-weights", "--keys", "4,1")
        self.assert_is(columns["attention_weights"], (*lead, QUERIES, 2), self.of_heads(lambda p: [[row[4], row[1]] for row in p]))
        band = self.maps("--map-window", "-2,1")
        self.assert_is(band["map_window"], (*lead, QUERIES, 4),
                       self.of_heads(lambda p: [[p[t][t + i] if 0 <= t + i < QUERIES else 0 for i in range(-2, 2)] for t in range(QUERIES)]))
        mass = self.maps("--key-mass", "0;1:3,5")
        expected = self.of_heads(lambda p: [[row[0], row[1] + row[2] + row[5]] for row in p])
        self.assert_is(mass["key_mass"], (*lead, QUERIES, 2), expected)
        with_sets = self.folder / "sets.safetensors"
        save_safetensors(with_sets, self.tensors | {"key_sets": ("BOOL", (2, QUERIES), [1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1])})
        self.assert_is(self.maps("--key-mass", file=with_sets)["key_mass"], (*lead, QUERIES, 2), expected)

    def test_pooled_maps(self):
        def blocks(reduce):
            return self.of_heads(lambda p: [[reduce([x for row in p[2 * i:2 * i + 2] for x in row[3 * j:3 * j + 3]]) for j in range(2)] for i in range(3)])

        for arguments, reduce in (((), lambda block: sum(block) / 6), (("--pooling", "sum"), sum), (("--pooling", "largest"), max)):
            self.assert_is(self.maps("--pooled-map", "3,2", *arguments)["pooled_map"], (BATCH, HEADS, 3, 2), blocks(reduce))

    def test_attend_writes_the_same(self):
        asked = ("--attention-weights", "--rows", "1:3", "--keys", "0,2", "--map-window=-1,0", "--key-mass", "0,1", "--pooled-map", "2,2", "--pooling", "largest", "--top-keys", "2",
                 "--key-sums", "--statistics", "--divergence")
        with_v = self.folder / "qkv.safetensors"
        save_safetensors(with_v, self.tensors | {"v": numbers(BATCH, KV_HEADS, QUERIES, 2)})
        maps, attend = self.maps(*asked, file=with_v), self.maps(*asked, command="attend", file=with_v)
        self.assertEqual(set(attend) - set(maps), {"out", "lse"})
        for name, tensor in maps.items():
            self.assertEqual(tensor, attend[name], name)

    def test_rollout(self):
        count, residual, lengths = 3, 0.3, (4, 6)
        layers = {"q": numbers(count, BATCH, HEADS, QUERIES, WIDTH), "k": numbers(count, BATCH, KV_HEADS, QUERIES, WIDTH)}
        path = self.folder / "layers.safetensors"
        save_safetensors(path, layers)

        def part(name, layer):
            values = layers[name][2]
            return values[layer * len(values) // count:(layer + 1) * len(values) // count]

        of_layers = [weights_of(part("q", layer), part("k", layer), lambda b, t, s: s <= t and s < lengths[b]) for layer in range(count)]
        expected = []
        for b in range(BATCH):
            product = [[float(t == s) for s in range(QUERIES)] for t in range(QUERIES)]
            for p in of_layers:
                mixed = [[residual * (t == s) + (1 - residual) * sum(p[b][n][t][s] for n in range(HEADS)) / HEADS for s in range(QUERIES)] for t in range(QUERIES)]
                mixed = [[x / sum(row) for x in row] for row in mixed]
                product = [[sum(mixed[t][u] * product[u][s] for u in range(QUERIES)) for s in range(QUERIES)] for t in range(QUERIES)]
            expected.append(product)
        asked = ("--rollout", "--residual", str(residual), "--key-lengths", ",".join(map(str, lengths)))
        self.assert_is(self.maps(*asked, file=path)["rollout"], (BATCH, QUERIES, QUERIES), expected)
        self.assert_is(self.maps(*asked, "--rows", "5,0:2", file=path)["rollout"], (BATCH, 3, QUERIES), [[rows[5], rows[0], rows[1]] for rows in expected])

    def test_json_lists_what_was_written(self):
        told = json.loads(self.succeeds("maps", "--tensors", self.file, "-o", self.folder / "out.npz", "--statistics", "--key-sums", "--json").stdout)
        self.assertEqual(told["operation"], "attention maps")
        self.assertIn({"name": "key_sums", "dtype": "float64", "shape": [BATCH, HEADS, QUERIES]}, told["tensors"])
        self.assertEqual(len(told["tensors"]), 8)

    def test_a_terminal_shows_a_progress_bar_and_a_pipe_does_not(self):
        long = self.folder / "long.safetensors"
        save_safetensors(long, {name: ("F32", (1, 1, 1500, 4), [0.5] * 6000) for name in "qk"})
        arguments = ("maps", "--tensors", long, "-o", self.folder / "out.safetensors", "--pooled-map", "4,4")
        status, _, err = run_on_terminal(*arguments)
        self.assertEqual(status, 0)
        self.assertRegex(without_escapes(err), r"rows of attention maps ━*─* \d+/1500")
        self.assertEqual(self.succeeds(*arguments).stderr, b"")

    def test_what_cannot_be_done_is_refused_by_name(self):
        out = ("-o", self.folder / "out.safetensors")

        def refused(*arguments, status=2, file=self.file, mentions):
            self.fails(status, "maps", "--tensors", file, *out, *arguments, mentions=mentions)

        refused(mentions=["no result is chosen", "--statistics", "--rollout"])
        refused("--rows", "0", mentions=["no result is chosen"])
        refused("--statistics", "--rows", "0", mentions=["--rows", "needs --attention-weights"])
        refused("--attention-weights", "--rows", "4:9", mentions=["--rows", "there is no row 8", "6 rows"])
        refused("--attention-weights", "--keys", "6", mentions=["--keys", "there is no key 6", "6 keys"])
        for wrong in ("1,", "3:1", "-1", "1:2:3", "a", "9223372036854775807"):
            refused("--attention-weights", f"--keys={wrong}", mentions=["--keys", f"'{wrong}'", "0,5,10:20"])
        for wrong in ("1", "2,1", "a,b", "0,1,2"):
            refused(f"--map-window={wrong}", mentions=["--map-window", f"'{wrong}'"])
        refused("--map-window=0,99", mentions=["--map-window", "too far"])
        refused("--key-mass", "0;6", mentions=["--key-mass", "there is no key 6"])
        refused("--key-mass", status=1, mentions=["key_sets", "--key-mass"])
        refused("--pooling", "sum", mentions=["--pooling"])
        refused("--pooled-map", "7,1", mentions=["--pooled-map", "6 queries"])
        refused("--pooled-map", "2,2", "--pooling", "most", mentions=["--pooling", "'most'"])
        refused("--rollout", "--statistics", mentions=["--rollout cannot be combined"])
        refused("--rollout", "--keys", "0", mentions=["--keys", "rows of the rollout have all keys"])
        refused("--residual", "0.5", "--statistics", mentions=["--residual"])
        refused("--statistics", "--dropout", "0.5", mentions=["--dropout"])
        one = self.folder / "one.safetensors"
        save_safetensors(one, {"q": numbers(1, 2, 3), "k": numbers(1, 2, 3)})
        refused("--rollout", status=1, file=one, mentions=["maps: q is [1,2,3]", "four dimensions"])
        save_safetensors(one, {"q": numbers(2, 1, 2, 3), "k": numbers(3, 1, 2, 3)})
        refused("--rollout", status=1, file=one, mentions=["the first dimension is the layer"])
        refused("--rollout", "--residual", "2", status=1, file=self.file, mentions=["residual is 2"])


if __name__ == "__main__":
    unittest.main()
