import json
import math
import random
import shutil
import signal
import subprocess
import time
import unittest

from program import BINARY, VECTORS, ProgramTest, environment
from tensor_files import adapted, load_npz, load_safetensors, save_safetensors
import tiny_model

def largest(tensor):
    return max((abs(x) for x in tensor[1] if math.isfinite(x)), default=0)


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def options_of(case):
    """Converts the rules in a golden file's metadata to command-line arguments."""
    arguments = []
    if case.get("causal"):
        arguments += ["--causal", case["causal"]]
    if case.get("causal_offset") is not None:
        arguments += ["--causal", str(case["causal_offset"])]
    if case.get("window"):
        arguments += ["--window", ",".join(map(str, case["window"]))]
    lengths = case.get("key_lengths") or case.get("valid_lens")
    if lengths:
        rows = [",".join(map(str, row)) if isinstance(row, list) else str(row) for row in lengths]
        arguments += ["--key-lengths", (";" if isinstance(lengths[0], list) else ",").join(rows)]
    if case.get("diagonal_offsets"):
        arguments += ["--diagonal-offsets=" + ",".join(map(str, case["diagonal_offsets"]))]
    for key, option in [("query_offsets", "--query-offsets"), ("key_offsets", "--key-offsets")]:
        if case.get(key):
            arguments += [option, ",".join(map(str, case[key]))]
    for key, option in [("scale", "--scale"), ("softcap", "--softcap"), ("dropout", "--dropout"), ("empty_rows", "--empty-rows"),
                        ("max_distance", "--max-distance")]:
        if case.get(key):
            arguments += [option, str(case[key])]
    if "relative_diagonal" in case:
        arguments += [f"--bias-diagonal={case['relative_diagonal']}"]
    if "bidirectional" in case:
        arguments += ["--bidirectional", "on" if case["bidirectional"] else "off"]
    if case["op"] == "layer":
        arguments += ["--heads", str(case["heads"])]
        if "axis" in case:
            arguments += ["--axis", str(case["axis"])]
        if case.get("add_zero_attn"):
            arguments += ["--add-zero-attn"]
    return arguments


class Attend(ProgramTest):
    def attend(self, *arguments, output="out.safetensors", **options):
        result = self.succeeds("attend", *arguments, "-o", self.folder / output, **options)
        return result, (load_npz if output.endswith("npz") else load_safetensors)(self.folder / output)

    def assert_close(self, name, actual, expected, magnitude=None):
        self.assertEqual(actual[0], expected[0], name)
        bound = 1e-12 * (largest(expected) if magnitude is None else magnitude)
        for a, e in zip(actual[1], expected[1]):
            self.assertTrue(a == e or abs(a - e) <= bound, f"{name}: {a}, expected {e}")

    def golden(self, pattern):
        paths = sorted(VECTORS.glob(pattern))
        self.assertTrue(paths, f"no golden vectors in {VECTORS}")
        for path in paths:
            with self.subTest(path.stem):
                path = adapted(path, self.folder)
                expected = load_safetensors(path)
                case = json.loads(expected.pop("__metadata__")["case"])
                parameters = ["--parameters", path] if case["op"] == "layer" else []
                result, actual = self.attend(*parameters, "--tensors", path, "--attention-weights", "--gradients", *options_of(case))
                self.assertEqual(result.stderr, b"")  # there must be no note, for example about an unused tensor
                results = {name for name in expected if name in ("out", "attention_weights", "lse") or name.startswith("d_") and name != "d_out"}
                self.assertEqual(set(actual) - {"__metadata__"}, results | {"lse"})
                of_all_gradients = max(largest(expected[name]) for name in results if name.startswith("d_"))
                for name in results:
                    # The gradient of the key projection's bias is 0 in exact arithmetic, because the bias adds the same number to all scores of a row. Both results
                    # are then rounding errors.
                    noise = name.startswith("d_") and largest(expected[name]) < 1e-13 * of_all_gradients
                    self.assert_close(name, actual[name], expected[name], of_all_gradients if noise else None)

    def test_layers_agree_with_the_golden_vectors_in_every_output_attention_weight_and_gradient(self):
        for source in ("axis_*", "cross_*", "self_*", "multi_*", "torch_*", "valid_*"):
            self.golden(source + ".safetensors")

    def test_attention_itself_agrees_with_the_golden_vectors(self):
        self.golden("sdpa_*.safetensors")

    def test_without_options_there_is_the_output_only(self):
        result, tensors = self.attend("--tensors", VECTORS / "sdpa_plain.safetensors", output="out.npz")
        self.assertEqual(set(tensors), {"out"})
        self.assertIn("float64  [2,3,5,4]  out", result.stdout.decode())

    def test_top_keys_are_the_largest_weights(self):
        path = VECTORS / "sdpa_plain.safetensors"
        _, tensors = self.attend("--tensors", path, "--attention-weights", "--top-keys", "3")
        shape, weights = tensors["attention_weights"]
        keys = shape[-1]
        self.assertEqual(tensors["top_keys"][0], (*shape[:-1], 3))
        for row in range(len(weights) // keys):
            values = weights[row * keys:(row + 1) * keys]
            order = sorted(range(keys), key=lambda s: -values[s])[:3]
            self.assertEqual(list(tensors["top_keys"][1][row * 3:row * 3 + 3]), order)
            self.assertEqual(list(tensors["top_attention_weights"][1][row * 3:row * 3 + 3]), [values[s] for s in order])

    def test_reduced_maps_are_those_of_the_whole_map(self):
        path = VECTORS / "sdpa_plain.safetensors"
        _, tensors = self.attend("--tensors", path, "--attention-weights", "--pooled-map", "2,3", "--key-sums", "--statistics", "--divergence")
        (*lead, heads, queries, keys), weights = tensors["attention_weights"]
        count = math.prod(lead) * heads
        rows = [weights[i * keys:(i + 1) * keys] for i in range(count * queries)]
        of_head = [rows[n * queries:(n + 1) * queries] for n in range(count)]

        def close(name, shape, expected):
            self.assertEqual(tensors[name][0], (*lead, heads, *shape))
            for got, value in zip(tensors[name][1], expected, strict=True):
                self.assertAlmostEqual(got, value, delta=1e-12)

        def entropy(p):
            return -sum(x * math.log(x) for x in p if x > 0)

        def block(p, i, j):
            part = [x for row in p[i * queries // 2:(i + 1) * queries // 2] for x in row[j * keys // 3:(j + 1) * keys // 3]]
            return sum(part) / len(part)

        close("pooled_map", (2, 3), [block(p, i, j) for p in of_head for i in range(2) for j in range(3)])
        close("key_sums", (keys,), [sum(column) for p in of_head for column in zip(*p, strict=True)])
        close("statistics.entropy", (), [sum(map(entropy, p)) / queries for p in of_head])
        close("statistics.distance", (), [sum(x * abs(s - t) for t, row in enumerate(p) for s, x in enumerate(row)) / queries for p in of_head])
        divergences = [sum(entropy([(x + y) / 2 for x, y in zip(a, b, strict=True)]) - (entropy(a) + entropy(b)) / 2 for a, b in zip(p, of_head[n // heads * heads + m], strict=True)) / queries
                       for n, p in enumerate(of_head) for m in range(heads)]
        close("head_divergence", (heads,), divergences)

    def test_json_lists_what_was_written(self):
        result, tensors = self.attend("--parameters", VECTORS / "torch_mha_cross.safetensors", "--heads", "4", "--tensors", VECTORS / "torch_mha_cross.safetensors",
                                      "--gradients", "--json")
        told = json.loads(result.stdout)
        self.assertEqual(told["operation"], "layer of layout torch, 4 heads")
        self.assertEqual({t["name"]: (t["dtype"], tuple(t["shape"])) for t in told["tensors"]},
                         {name: ("float64", tensor[0]) for name, tensor in tensors.items() if name != "__metadata__"})

    def test_a_layer_of_a_model_is_named_by_its_prefix(self):
        tensors = load_safetensors(VECTORS / "torch_mha_cross.safetensors")
        tensors.pop("__metadata__")
        parameters = {name: tensors[name] for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")}
        model = {f"layers.{i}.attention.{name}": ("F64", shape, [x * (i + 1) for x in values]) for i in range(2) for name, (shape, values) in parameters.items()}
        weights, inputs = self.folder / "model.safetensors", VECTORS / "torch_mha_cross.safetensors"
        save_safetensors(weights, model)
        self.fails(1, "attend", "--parameters", weights, "--heads", "4", "--tensors", inputs, "-o", self.folder / "out.npz", mentions=["layers.0", "layers.1"])
        _, written = self.attend("--parameters", weights, "--heads", "4", "--tensors", inputs, "--prefix", "layers.0.attention", "--gradients")
        self.assertIn("d_layers.0.attention.in_proj_weight", written)
        self.assert_close("out", written["out"], tensors["out"])

    def test_layers_that_are_causal_in_their_source_are_so_here(self):
        path = self.folder / "gpt2.safetensors"
        numbers = [((7 * i) % 11 - 5) / 5 for i in range(48)]
        save_safetensors(path, {"attn.c_attn.weight": ("F64", (4, 12), numbers), "attn.c_proj.weight": ("F64", (4, 4), numbers[:16]), "attn.c_attn.bias":
                                ("F64", (12,), numbers[:12]), "attn.c_proj.bias": ("F64", (4,), numbers[:4]), "query": ("F64", (1, 3, 4), numbers[:12])})
        weights = lambda *options: list(self.attend("--parameters", path, "--heads", "2", "--tensors", path, "--attention-weights", *options)[1]["attention_weights"][1])
        self.assertEqual([weights()[i] for i in (1, 2, 5)], [0, 0, 0])
        self.assertEqual(weights(), weights("--causal"))
        self.assertTrue(all(x > 0 for x in weights("--causal", "off")))

    def test_a_layer_of_llama_rotates_queries_and_keys_by_their_positions(self):
        tokens, heads, width, base = 3, 2, 4, 100.0
        inputs = 8
        seeds = random.Random(3)
        numbers = lambda *shape: ("F64", shape, [seeds.gauss(0, 0.5) for _ in range(math.prod(shape))])
        parameters = {name: numbers(*shape) for name, shape in {
            "q_proj": (heads * width, inputs), "k_proj": (width, inputs), "v_proj": (width, inputs), "o_proj": (inputs, heads * width)}.items()}
        query = numbers(1, tokens, inputs)
        model = self.folder / "llama.safetensors"
        save_safetensors(model, {f"model.layers.0.self_attn.{name}.weight": tensor for name, tensor in parameters.items()} | {"query": query})
        arguments = ("--parameters", model, "--heads", str(heads), "--tensors", model)
        self.fails(2, "attend", *arguments, "-o", self.folder / "o.npz", mentions=["--rotary", "llama", "rope_theta", "off"])
        self.fails(2, "attend", *arguments, "--rotary", "-1", "-o", self.folder / "o.npz", mentions=["--rotary", "above 0"])

        def project(rows, name):
            _, (out, into), weight = parameters[name]
            return [[sum(weight[o * into + i] * row[i] for i in range(into)) for o in range(out)] for row in rows]

        def rotate(row, position):
            half = width // 2
            angles = [position * base ** (-2 * i / width) for i in range(half)]
            return [row[i] * math.cos(angles[i]) - row[i + half] * math.sin(angles[i]) for i in range(half)] + \
                   [row[i + half] * math.cos(angles[i]) + row[i] * math.sin(angles[i]) for i in range(half)]

        def expected(rotated):
            rows = [query[2][t * inputs:(t + 1) * inputs] for t in range(tokens)]
            turn = rotate if rotated else lambda row, position: row
            q, v = project(rows, "q_proj"), project(rows, "v_proj")
            k = [turn(row, s) for s, row in enumerate(project(rows, "k_proj"))]
            merged = []
            for t in range(tokens):
                merged.append([])
                for head in range(heads):
                    mine = turn(q[t][head * width:(head + 1) * width], t)
                    exps = [math.exp(sum(a * b for a, b in zip(mine, k[s])) / math.sqrt(width)) for s in range(t + 1)]  # the mask is causal: query t attends to keys 0..t
                    merged[-1] += [sum(e * v[s][i] for s, e in enumerate(exps)) / sum(exps) for i in range(width)]
            return (1, tokens, inputs), [x for row in project(merged, "o_proj") for x in row]

        for rotated in (True, False):
            _, tensors = self.attend(*arguments, "--rotary", str(base) if rotated else "off")
            self.assert_close("out", tensors["out"], expected(rotated))
        steps = json.loads(self.succeeds("trace", "--parameters", model, "--heads", str(heads), "--input", model, "--rotary", str(base), "--json").stdout)
        self.assertIn("rotary q", json.dumps(steps))

    def test_a_layer_takes_sink_logits_and_gives_their_gradient(self):
        tensors = load_safetensors(VECTORS / "torch_mha_cross.safetensors")
        tensors.pop("__metadata__")
        tensors.pop("weights")
        path = self.folder / "sink.safetensors"
        options = ("--heads", "4", "--tensors", path, "--attention-weights", "--gradients")
        save_safetensors(path, {name: ("F64", *tensor) for name, tensor in tensors.items()} | {"sink": ("F64", (4,), [0.5, -1.0, 2.0, 0.0])})
        result, written = self.attend("--parameters", path, *options)
        self.assertEqual(result.stderr, b"")
        self.assertEqual(written["d_sink"][0], (4,))
        shape, weights = written["attention_weights"]
        for row, lse in enumerate(written["lse"][1]):
            sink = [0.5, -1.0, 2.0, 0.0][row // shape[-2] % 4]
            self.assertAlmostEqual(sum(weights[row * shape[-1]:(row + 1) * shape[-1]]), 1 - math.exp(sink - lse), delta=1e-12)

    def test_a_relative_bias_is_that_of_every_pair(self):
        source = load_safetensors(VECTORS / "torch_mha_cross.safetensors")
        tensors = {name: ("F64", *tensor) for name, tensor in source.items() if name not in ("__metadata__", "weights")}
        slopes, queries, keys = [0.5, -0.25, 2.0, 0.0], tensors["query"][1][1], tensors["key"][1][1]
        pairs = [-slope * abs(s - t - (keys - queries)) for slope in slopes for t in range(queries) for s in range(keys)]
        path, options = self.folder / "in.safetensors", ("--heads", "4", "--attention-weights", "--gradients")
        save_safetensors(path, tensors | {"bias": ("F64", (1, 4, queries, keys), pairs)})
        _, expected = self.attend("--parameters", path, *options, "--tensors", path)
        d_bias = expected.pop("d_bias")[1]
        save_safetensors(path, tensors | {"relative_bias.slopes": ("F64", (4,), slopes)})
        result, written = self.attend("--parameters", path, *options, "--tensors", path)
        self.assertEqual(result.stderr, b"")
        shape, d_slopes = written.pop("d_relative_bias.slopes")
        self.assertEqual((shape, set(written)), ((4,), set(expected)))
        for name in written.keys() - {"__metadata__"}:
            self.assert_close(name, written[name], expected[name], 1 + largest(expected[name]))
        for head, d_slope in enumerate(d_slopes):
            at = [(t * keys + s, abs(s - t - (keys - queries))) for t in range(queries) for s in range(keys)]
            self.assertAlmostEqual(d_slope, sum(-x * d_bias[head * queries * keys + i] for i, x in at), delta=1e-12)
        out = self.folder / "out.npz"
        arguments = ("attend", "--parameters", path, "--heads", "4", "--tensors", path, "-o", out)
        self.fails(2, *arguments, "--max-distance", "9", mentions=["--max-distance", "relative_bias.table"])
        self.fails(2, *arguments, "--bidirectional", "no", mentions=["--bidirectional", "not a switch"])
        save_safetensors(path, tensors | {"relative_bias.table": ("F64", (4, 5), [0.0] * 20)})
        self.fails(1, *arguments, mentions=["5 buckets"])
        save_safetensors(path, tensors)
        self.fails(2, *arguments, "--bias-diagonal", "top_left", mentions=["--bias-diagonal", "relative_bias.slopes"])

    def test_one_key_head_can_be_shared_without_a_global_query(self):
        path = VECTORS / "axis_global.safetensors"
        for kind, queries in (("mean", 1), ("off", 5)):
            _, tensors = self.attend("--parameters", path, "--heads", "4", "--tensors", path, "--global-query", kind, "--attention-weights")
            self.assertEqual(tensors["attention_weights"][0], (3, 4, queries, 5))

    def test_a_name_that_is_nearly_right_is_pointed_out(self):
        q = ("F32", (1, 1, 2), [0.5, 1.0])
        path = self.folder / "in.safetensors"
        save_safetensors(path, {"q": q, "k": q, "v": q, "atend": ("BOOL", (1, 1), [1]), "attn_mask": ("BOOL", (1, 1), [1]), "picture": q})
        result, _ = self.attend("--tensors", path)
        self.assertIn("note: 'atend'", result.stderr.decode())
        self.assertIn("did you mean 'attend'?", result.stderr.decode())
        self.assertRegex(result.stderr.decode(), "note: 'attn_mask' .* not used; .* attend .* block")
        self.assertIn("1 tensor of", result.stderr.decode())
        self.assertIn("picture", result.stderr.decode())

    def test_tensors_without_a_layer_take_the_dtype_of_q_with_a_note(self):
        path, one = self.folder / "in.safetensors", (1, 1, 2)
        save_safetensors(path, {"q": ("F32", one, [0.5, 1.0]), "k": ("F64", one, [0.5, 1.0]), "v": ("F32", one, [0.5, 1.0])})
        self.assertIn("k is float64; it is converted to float32, the dtype of q\n", self.attend("--tensors", path)[0].stderr.decode())

    def test_inputs_take_the_dtype_of_the_parameters_with_a_note(self):
        tensors = load_safetensors(VECTORS / "torch_mha_cross.safetensors")
        tensors.pop("__metadata__")
        weights = self.folder / "weights.safetensors"
        save_safetensors(weights, {name: ("F32", *tensors[name]) for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")})
        result, written = self.attend("--parameters", weights, "--heads", "4", "--tensors", VECTORS / "torch_mha_cross.safetensors")
        self.assertRegex(result.stderr.decode(), r"note: query is float64; it is converted to float32")
        for a, e in zip(written["out"][1], tensors["out"][1]):
            self.assertAlmostEqual(a, e, delta=1e-4)

    def test_documents_equal_each_document_alone(self):
        def tensor(first, rows):  # returns rows [first, first + rows) of two heads: [1,2,rows,4]
            return "F32", (1, 2, rows, 4), [math.sin(1.7 * (40 * head + 4 * (first + row) + i)) for head in range(2) for row in range(rows) for i in range(4)]

        def attend(name, ranges, *options, **more):
            path = self.folder / f"{name}.safetensors"
            save_safetensors(path, {**{x: tensor(100 * i + first, rows) for i, (x, (first, rows)) in enumerate(zip("qkv", ranges))}, **more})
            shape, out = self.attend("--tensors", path, "--causal", "bottom_right", *options)[1]["out"]
            return [list(out[4 * row:4 * row + 4]) for row in range(shape[1] * shape[2])]  # the rows of head 0, then those of head 1

        queries, keys = (0, 2, 5), (0, 3, 7)
        whole = ((0, 5), (0, 7), (0, 7))
        alone = [attend("alone", ((t, t_end - t), (s, s_end - s), (s, s_end - s)))
                 for t, t_end, s, s_end in zip(queries, queries[1:], keys, keys[1:])]
        expected = [row for head in range(2) for rows in alone for row in rows[head * len(rows) // 2:(head + 1) * len(rows) // 2]]
        text = lambda offsets: ",".join(map(str, offsets))
        self.assertEqual(attend("packed", whole, "--query-offsets", text(queries), "--key-offsets", text(keys)), expected)
        of_file = {"query_offsets": ("I64", (3,), queries), "key_offsets": ("I64", (3,), keys)}
        self.assertEqual(attend("file", whole, **of_file), expected)
        self.assertNotEqual(attend("one", whole), expected)
        square = ((0, 5), (0, 5), (0, 5))
        self.assertEqual(attend("square", square, "--query-offsets", "0,2,5"), attend("both", square, "--query-offsets", "0,2,5", "--key-offsets", "0,2,5"))
        packed, out = self.folder / "packed.safetensors", self.folder / "refused.npz"
        for offsets, word in (("0,2,4", "5"), ("1,5", "0"), ("0,3,2,5", "2")):
            self.fails(1, "attend", "--tensors", packed, "-o", out, "--query-offsets", offsets, "--key-offsets", "0,7", mentions=["query_offsets", word])
        self.fails(1, "attend", "--tensors", packed, "-o", out, "--query-offsets", "0,2,5", mentions=["key_offsets"])
        self.fails(2, "attend", "--tensors", packed, "-o", out, "--query-offsets", "0,x", mentions=["--query-offsets", "'0,x'"])
        self.fails(1, "attend", "--tensors", self.folder / "file.safetensors", "-o", out, "--query-offsets", "0,5", mentions=["query_offsets", "once"])

    def test_block_lists_are_the_booleans_of_their_pairs(self):
        def tensor(rows):
            return "F32", (1, 2, rows, 4), [math.sin(1.7 * i + rows) for i in range(8 * rows)]

        def attend(name, *options, **more):
            path = self.folder / f"{name}.safetensors"
            save_safetensors(path, {"q": tensor(5), "k": tensor(7), "v": tensor(7), **more})
            return self.attend("--tensors", path, *options)[1]["out"]

        lists = [[[0, 2], [-1, 1], [-1, -1]], [[1, 1], [2, 0], [0, 1]]]  # block lists for 3 blocks of 2 queries and 3 blocks of 3 keys; -1 means no block
        pairs = [int(s // 3 in lists[head][t // 2]) for head in range(2) for t in range(5) for s in range(7)]
        listed = {"blocks": ("I32", (2, 3, 2), [block for head in lists for row in head for block in row])}
        self.assertEqual(attend("lists", "--block-size", "2,3", **listed), attend("pairs", attend=("BOOL", (2, 5, 7), pairs)))
        self.fails(1, "attend", "--tensors", self.folder / "lists.safetensors", "-o", self.folder / "refused.npz", mentions=["blocks", "128 queries"])
        self.fails(2, "attend", "--tensors", self.folder / "lists.safetensors", "-o", self.folder / "refused.npz", "--block-size", "2,x", mentions=["--block-size", "'x'"])

    def test_key_starts_are_a_tensor_of_the_file_or_an_option(self):
        path = self.folder / "in.safetensors"
        numbers = [((7 * i) % 11 - 5) / 4 for i in range(2 * 2 * 3 * 4)]
        tensors = {name: ("F64", [2, 2, 3, 4], numbers[i:] + numbers[:i]) for i, name in enumerate("qkv")}
        save_safetensors(path, tensors | {"attend_keys": ("BOOL", [2, 3], [False, True, True, True, True, True])})
        expected = self.attend("--tensors", path, "--attention-weights", "--causal")[1]
        save_safetensors(path, tensors | {"key_starts": ("I64", [2], [1, 0])})
        self.assertEqual(self.attend("--tensors", path, "--attention-weights", "--causal")[1], expected)
        save_safetensors(path, tensors)
        self.assertEqual(self.attend("--tensors", path, "--attention-weights", "--causal", "--key-starts", "1,0")[1], expected)
        self.assertEqual(self.attend("--tensors", path, "--attention-weights", "--causal", "--key-starts", "1,1,1;0,0,0")[1], expected)
        self.fails(2, "attend", "--tensors", path, "-o", self.folder / "no.safetensors", "--key-starts", "1,0,0", mentions=["3 starts", "2, one for each sequence"])
        save_safetensors(path, tensors | {"key_starts": ("I64", [2], [1, -4])})
        self.fails(1, "attend", "--tensors", path, "-o", self.folder / "no.safetensors", mentions=["key start is -4", "0 or more"])

    def test_a_key_mask_may_lie_like_the_input(self):
        parameters, tensors = VECTORS / "axis_column.safetensors", self.folder / "pair.safetensors"
        pair = [math.sin(i) for i in range(5 * 5 * 8)]
        mask = [row <= column for row in range(5) for column in range(5)]
        turned = [row >= column for row in range(5) for column in range(5)]

        def outputs(given, *arguments):
            save_safetensors(tensors, {"query": ("F64", [1, 5, 5, 8], pair), "attend_keys": ("BOOL", [1, 5, 5], given)})
            _, found = self.attend("--parameters", parameters, "--heads", "4", "--axis", "-3", "--tensors", tensors, *arguments)
            return found["out"]

        like_input = outputs(mask, "--mask-like-input", "on")
        self.assertEqual(like_input, outputs(turned, "--mask-like-input", "off"))
        self.assertNotEqual(like_input, outputs(mask, "--mask-like-input", "off"))
        self.fails(1, "attend", "--parameters", parameters, "--heads", "4", "--axis", "-3", "--tensors", tensors, "-o", self.folder / "out.npz",
                   mentions=["attend_keys", "[1,5,5]", "--mask-like-input"])

    def test_errors_are_one_sentence_and_leave_nothing_behind(self):
        plain, cross, out = VECTORS / "sdpa_plain.safetensors", VECTORS / "torch_mha_cross.safetensors", self.folder / "out.safetensors"
        self.fails(2, "attend", "-o", out, mentions=["--tensors"])
        self.fails(2, "attend", "--tensors", plain, mentions=["--output"])
        self.fails(2, "attend", "--tensors", plain, "-o", self.folder / "out.json", mentions=[".safetensors"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--axis", "0", mentions=["--parameters"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--causal", mentions=["5 queries", "7 keys"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--causal", "left", mentions=["top_left"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--key-lengths", "3,2,1", mentions=["3 lengths", "2, one for each sequence", "10"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--key-lengths", "nan,1", mentions=["nan,1"])
        self.fails(1, "attend", "--tensors", plain, "-o", out, "--key-lengths", "3,8", mentions=["8"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--top-keys", "8", mentions=["7 keys"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--pooled-map", "2,8", mentions=["7 keys"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--pooled-map", "2", mentions=["HEIGHT,WIDTH"])
        self.fails(2, "attend", "--tensors", plain, "-o", out, "--empty-rows", "unifrom", mentions=["uniform"])
        self.fails(2, "attend", "--parameters", cross, "--layout", "torhc", "--tensors", cross, "-o", out, mentions=["'torch'"])
        self.fails(2, "attend", "--parameters", cross, "--tensors", cross, "-o", out, mentions=["--heads"])
        self.fails(2, "attend", "--parameters", cross, "--heads", "4", "--axis", "-1", "--tensors", cross, "-o", out, mentions=["--axis", "width"])
        self.fails(1, "attend", "--parameters", cross, "--heads", "5", "--tensors", cross, "-o", out, mentions=["24", "5"])
        self.fails(1, "attend", "--parameters", plain, "--heads", "5", "--tensors", cross, "-o", out)
        self.fails(1, "attend", "--parameters", cross, "--heads", "4", "--tensors", plain, "-o", out, mentions=["'query'"])
        self.fails(1, "attend", "--tensors", cross, "-o", out, mentions=["'q'", "--parameters"])
        self.fails(1, "attend", "--tensors", self.folder / "missing.safetensors", "-o", out, mentions=["missing.safetensors"])
        self.fails(1, "attend", "--tensors", plain, "-o", self.folder / "missing" / "out.npz", mentions=["missing"])
        path = self.folder / "in.safetensors"
        q = ("F32", (1, 1, 2), [0.5, 1.0])
        save_safetensors(path, {"q": q, "k": q, "v": q, "attend": ("BOOL", (3,), [1, 1, 1])})
        self.fails(1, "attend", "--tensors", path, "-o", out, mentions=["attend is [3]"])
        save_safetensors(path, {"q": q, "k": q, "v": q})
        self.fails(1, "attend", "--tensors", path, "-o", out, "--gradients", mentions=["'d_out'"])
        save_safetensors(path, {"q": q, "k": q, "v": ("I32", (1, 1, 2), [1, 2])})
        self.fails(1, "attend", "--tensors", path, "-o", out, mentions=["int32"])
        save_safetensors(path, {"q": ("I32", (1, 1, 2), [1, 2]), "k": q, "v": q})
        self.fails(1, "attend", "--tensors", path, "-o", out, mentions=["q is int32; it must be floating"])

    def test_the_output_never_replaces_an_input(self):
        path = self.folder / "w.safetensors"
        shutil.copy(VECTORS / "torch_mha_cross.safetensors", path)
        before = path.read_bytes()
        self.fails(2, "attend", "--parameters", path, "--heads", "4", "--tensors", path, "-o", path, mentions=["w.safetensors", "read by this command"])
        self.fails(2, "attend", "--parameters", path, "--heads", "4", "--tensors", VECTORS / "torch_mha_cross.safetensors", "-o", path)
        self.assertEqual(path.read_bytes(), before)

    def test_a_signal_while_writing_leaves_nothing_behind(self):
        path, count = self.folder / "in.safetensors", 3000
        save_safetensors(path, {name: ("F32", (1, count, 1), [0.0] * count) for name in "qkv"})
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                command = [BINARY, "attend", "--tensors", path, "-o", self.folder / "out.safetensors", "--attention-weights"]  # the attention weights are 36 MB, so writing takes long enough to be interrupted
                # Restore the default action: a test that a shell runs in the background ignores SIGINT, and the program would inherit that.
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
                                           preexec_fn=lambda number=number: signal.signal(number, signal.SIG_DFL))
                deadline = time.monotonic() + 600
                while process.poll() is None and time.monotonic() < deadline:
                    if any(size_of(temporary) > 0 for temporary in self.folder.glob(".polyhead-*")):
                        process.send_signal(number)
                        break
                self.assertEqual(process.wait(timeout=600), -number)
                self.assertEqual([entry.name for entry in self.folder.iterdir()], ["in.safetensors"])

    def test_the_heads_of_a_models_folder_are_in_its_configuration(self):
        model, path = tiny_model.write(self.folder / "model"), self.folder / "in.safetensors"
        save_safetensors(path, {"query": ("F32", (1, 3, 8), tiny_model.values(24, 1))})
        arguments = ("--parameters", model, "--prefix", "encoder.layer.0", "--tensors", path)
        result, found = self.attend(*arguments)
        self.assertIn("2 heads", result.stdout.decode())
        self.assertEqual(found, self.attend(*arguments, "--heads", "2")[1])
        self.fails(2, "attend", *arguments, "--heads", "4", "-o", self.folder / "other.safetensors", mentions=["--heads is 4", "config.json", "says 2"])
        self.assertEqual(found, self.attend(*arguments, "--heads", "2")[1])

    def test_a_layer_of_t5_is_not_computed_without_its_bias(self):
        path, numbers = self.folder / "t5.safetensors", tiny_model.values(128, 3)
        square = ("F32", (4, 4), numbers[:16])
        tensors = {"q.weight": square, "k.weight": square, "v.weight": square, "o.weight": square,
                   "relative_attention_bias.weight": ("F32", (32, 2), numbers[:64]), "query": ("F32", (1, 3, 4), numbers[:12])}
        save_safetensors(path, tensors)
        arguments = ("--parameters", path, "--heads", "2", "--tensors", path)
        self.fails(1, "attend", *arguments, "-o", self.folder / "out.npz", mentions=["relative_attention_bias", "'bias'", "[1,2,3,3]"])
        self.fails(1, "trace", "--parameters", path, "--heads", "2", "--length", "3", mentions=["relative_attention_bias", "'bias'"])
        self.fails(1, "attend", *arguments, "-o", self.folder / "out.npz", mentions=["'relative_bias.table'"])
        save_safetensors(path, {**tensors, "bias": ("F32", (1, 2, 3, 3), numbers[:18])})
        self.assertEqual(self.attend(*arguments)[0].stderr, b"")
        transposed = [numbers[2 * bucket + head] for head in range(2) for bucket in range(32)]
        save_safetensors(path, {**tensors, "relative_bias.table": ("F32", (2, 32), transposed)})
        result, written = self.attend(*arguments, "--attention-weights", "--bidirectional", "off")
        self.assertEqual(result.stderr, b"")
        self.assertNotEqual(written["attention_weights"], self.attend(*arguments, "--attention-weights")[1]["attention_weights"])

    def test_an_existing_output_survives_a_failure(self):
        out = self.folder / "out.safetensors"
        shutil.copy(VECTORS / "sdpa_plain.safetensors", out)
        before = out.read_bytes()
        self.fails(1, "attend", "--tensors", VECTORS / "sdpa_plain.safetensors", "-o", out, "--key-lengths", "3,8")
        self.assertEqual(out.read_bytes(), before)

    def test_extents_of_zero(self):
        path = self.folder / "in.safetensors"
        save_safetensors(path, {"q": ("F32", (2, 0, 3), []), "k": ("F32", (2, 0, 3), []), "v": ("F32", (2, 0, 1), []), "d_out": ("F32", (2, 0, 1), [])})
        _, tensors = self.attend("--tensors", path, "--attention-weights", "--gradients", "--top-keys", "0")
        self.assertEqual(tensors["out"][0], (2, 0, 1))
        self.assertEqual(tensors["attention_weights"][0], (2, 0, 0))


if __name__ == "__main__":
    unittest.main()
