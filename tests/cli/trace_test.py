import json
import math
import os
import unittest

import tiny_model
from program import HAS_ASAN, VECTORS, ProgramTest, limited, run_on_terminal
from tensor_files import adapted, flat, load_safetensors, save_safetensors

class Trace(ProgramTest):
    def trace(self, *arguments):
        """Returns {name of a step: the step}, in the order of the steps."""
        told = json.loads(self.succeeds("trace", *arguments, "--json").stdout)
        return {step["step"]: step for step in told["steps"]}

    def test_the_d2l_layer_has_the_shapes_of_its_chapter(self):
        arguments = ("--layer", "d2l", "--num-hiddens", "100", "--heads", "5", "--batch", "2", "--length", "10")
        steps = self.trace(*arguments)
        self.assertEqual([steps[name]["shape"] for name in ("query", "projection q", "split q", "weighted values", "merge", "output projection")],
                         [[2, 10, 100], [2, 10, 100], [2, 5, 10, 20], [2, 5, 10, 20], [2, 10, 100], [2, 10, 100]])
        for name in ("split q", "weighted values"):
            self.assertIn("the same data as (10,10,20)", steps[name]["meaning"])
        self.assertEqual(steps["projection q"]["where"], "W_q(query)")
        text = self.succeeds("trace", *arguments).stdout.decode()
        self.assertIn("num_hiddens=100, num_heads=5", text)
        for step in steps.values():
            self.assertRegex(text, rf"{step['step']} +\S.*\[{','.join(map(str, step['shape']))}\]")

    def story(self, name, *arguments):
        return json.loads(self.succeeds("trace", "--story", name, "--json", *arguments).stdout)

    def test_the_title_says_what_global_query_and_axis_make_of_the_layer(self):
        for option in ("--is-global", "--global-query=masked_mean"):
            told = json.loads(self.succeeds("trace", "--layer", "alphafold", option, "--axis", "-3", "--shape", "2,3,4,8", "--json").stdout)
            self.assertIn("attn_dim=-3", told["layer"])
            self.assertIn("is_global=true", told["layer"])
            self.assertEqual(told["config"]["kv_heads"], 1)

    def test_the_story_of_the_split_has_ten_and_twenty_in_their_heads(self):
        steps = {step["step"]: step for step in self.story("split")["steps"]}
        self.assertEqual(steps["query"]["values"], [[[10 + i for i in range(8)], [20 + i for i in range(8)]]])
        heads = [[[10, 11, 12, 13], [20, 21, 22, 23]], [[14, 15, 16, 17], [24, 25, 26, 27]]]
        self.assertEqual(steps["split q"]["values"], [heads])
        self.assertEqual([part["code"] for part in steps["split q"]["source"]], ["reshape(1,2,2,4)", "permute(0,2,1,3)", "reshape(2,2,4)"])
        self.assertEqual(steps["split q"]["source"][-1]["values"], heads)
        text = self.succeeds("trace", "--story", "split").stdout.decode()
        self.assertIn("  [0,0]\n  10 11 12 13\n  20 21 22 23\n  [0,1]\n  14 15 16 17\n  24 25 26 27\n", text)

    def test_the_story_of_global_attention_has_the_mean_of_the_queries(self):
        steps = {step["step"]: step["values"] for step in self.story("global")["steps"]}
        x = steps["query"][0]
        self.assertEqual(steps["mean query"], [[[sum(column) / len(x) for column in zip(*x)]]])
        q = steps["mean query"][0][0]
        self.assertEqual(steps["split q"], [[[q], [[-one for one in q]]]])  # the second head has the opposite query
        for head, sign in ((0, 1), (1, -1)):
            scores = [sign * sum(a * b for a, b in zip(q, key)) / math.sqrt(2) for key in x]
            p = [math.exp(score) / math.fsum(map(math.exp, scores)) for score in scores]
            for found, want in zip(steps["softmax"][0][head][0], p):
                self.assertAlmostEqual(found, want, delta=1e-6)
            for i, found in enumerate(steps["weighted values"][0][head][0]):
                self.assertAlmostEqual(found, sum(weight * value[i] for weight, value in zip(p, x)), delta=1e-6)

    def test_the_story_of_lengths_masks_from_key_3_and_from_key_2(self):
        steps = {step["step"]: step["values"] for step in self.story("lengths")["steps"]}
        for sequence, length in enumerate((3, 2)):
            for t in range(4):
                scores, masked, p = (steps[name][sequence][0][t] for name in ("scale", "mask", "softmax"))
                self.assertEqual(masked, scores[:length] + ["-inf"] * (4 - length))
                self.assertEqual(p[length:], [0] * (4 - length))
                exps = [math.exp(score) for score in scores[:length]]
                for found, want in zip(p, exps):
                    self.assertAlmostEqual(found, want / math.fsum(exps), delta=1e-6)

    def test_the_story_of_the_scale_has_variances_d_and_1(self):
        told = self.story("scale")
        self.assertEqual([row["d"] for row in told["widths"]], [1, 4, 16, 64, 256, 1024])
        # A variance that is estimated from n independent values has a relative variance of about 2 / n. The scores of a query are not independent, so n is the number of
        # rows. The bound is five standard deviations.
        close = 5 * math.sqrt(2 / told["rows"])
        for row in told["widths"]:
            self.assertAlmostEqual(row["variance"] / row["d"], 1, delta=close)
            self.assertAlmostEqual(row["scaled_variance"], row["variance"] / row["d"], delta=1e-6)
        largest, slopes = ([row[name] for row in told["widths"]] for name in ("largest", "slope"))
        self.assertEqual((largest, slopes), (sorted(largest), sorted(slopes, reverse=True)))
        self.assertGreater(largest[-1], 0.9)
        self.assertLess(slopes[-1], slopes[0] / 10)
        for row in told["widths"][1:]:
            self.assertAlmostEqual(row["scaled_largest"], told["widths"][1]["scaled_largest"], delta=0.05)
        self.assertNotEqual(self.story("scale", "--seed", "7")["widths"], told["widths"])

    def test_stories_are_listed_and_stand_alone(self):
        listed = json.loads(self.succeeds("trace", "--list", "--json").stdout)["stories"]
        self.assertEqual([one["story"] for one in listed], ["split", "global", "lengths", "scale"])
        text = self.succeeds("trace", "--list").stdout.decode()
        for one in listed:
            self.assertIn(f"\n{one['story']}\n", text)
            self.assertGreater(len(self.succeeds("trace", "--story", one["story"]).stdout), 400)
        self.fails(2, "trace", "--story", "splt", mentions=["'splt' is not a story; did you mean 'split'?"])
        self.fails(2, "trace", "--story", "split", "--layer", "d2l", mentions=["cannot be combined with --story"])
        self.fails(2, "trace", "MODEL", "--story", "split", mentions=["--story"])
        self.fails(2, "trace", "--story", "split", "--seed", "9", mentions=["--seed", "split", "no random numbers"])

    def test_identity_parameters_show_how_numbers_that_count_up_are_split_and_merged(self):
        def nested(first, *extents):
            step = math.prod(extents[1:])
            return [nested(first + i * step, *extents[1:]) if len(extents) > 1 else first + i for i in range(extents[0])]
        steps = self.trace("--layer", "d2l", "--num-hiddens", "6", "--heads", "2", "--batch", "1", "--length", "3", "--bias", "--parameters", "identity", "--count-from", "10", "--values")
        for name in ("query", "projection q", "projection k", "projection v"):
            self.assertEqual(steps[name]["values"], nested(10, 1, 3, 6))
        first, second = [[10, 11, 12], [16, 17, 18], [22, 23, 24]], [[13, 14, 15], [19, 20, 21], [25, 26, 27]]
        for name in ("split q", "split k", "split v"):
            self.assertEqual(steps[name]["values"], [[first, second]])
            self.assertEqual([(part["code"], part["shape"], part["values"]) for part in steps[name]["source"]],
                             [("reshape(1,3,2,3)", [1, 3, 2, 3], [[[a, b] for a, b in zip(first, second)]]),
                              ("permute(0,2,1,3)", [1, 2, 3, 3], [[first, second]]),
                              ("reshape(2,3,3)", [2, 3, 3], [first, second])])
            self.assertIn("in the source: reshape(1,3,2,3), permute(0,2,1,3) to [1,2,3,3], reshape(2,3,3)", steps[name]["meaning"])
        self.assertEqual(steps["scores"]["values"][0][0][0][1], 10 * 16 + 11 * 17 + 12 * 18)
        merged = steps["merge"]
        self.assertEqual([part["shape"] for part in merged["source"]], [[1, 2, 3, 3], [1, 3, 2, 3], [1, 3, 6]])
        self.assertEqual(merged["source"][-1]["values"], merged["values"])
        self.assertEqual(steps["output projection"]["values"], merged["values"])
        one = [[float(i == j) for j in range(6)] for i in range(6)]
        self.assertEqual([(p["name"], p["values"]) for p in steps["projection q"]["parameters"]], [("W_q.weight", one), ("W_q.bias", [0] * 6)])
        text = self.succeeds("trace", "--layer", "d2l", "--num-hiddens", "6", "--heads", "2", "--batch", "1", "--length", "3", "--parameters", "identity", "--count-from", "10", "--values", "--precision", "0").stdout.decode()
        self.assertIn("5  split q  [1,2,3,3]\n  [0,0]\n  10 11 12\n  16 17 18\n  22 23 24\n  [0,1]\n  13 14 15\n  19 20 21\n  25 26 27\n", text)
        self.assertIn("5  in the source: reshape(1,3,2,3)  [1,3,2,3]\n  [0,0]\n  10 11 12\n  13 14 15\n", text)
        self.assertIn("W_q.weight  [6,6]\n  1 0 0 0 0 0\n  0 1 0 0 0 0\n", text)
        self.assertNotIn("in the source", self.succeeds("trace", "--layer", "torch", "--values").stdout.decode())
        self.assertNotIn("in the source", self.succeeds("trace", "--layer", "d2l", "--shape", "2,3,4,100").stdout.decode())  # d2l's code takes only inputs of three dimensions, so the steps for an input of four dimensions do not show that code

    def test_the_steps_of_alphafolds_code(self):
        steps = self.trace("--layer", "alphafold", "--c-in", "6", "--c", "3", "--n-head", "2", "--attn-dim", "-3", "--gated", "--parameters", "identity", "--count-from", "0", "--shape", "2,4,5,6", "--values")
        self.assertEqual([(part["code"], part["shape"]) for part in steps["split q"]["source"]],
                         [("movedim(-3,-2)", [2, 5, 4, 6]), ("view(2,5,4,2,3)", [2, 5, 4, 2, 3]), ("transpose(-2,-3)", [2, 5, 2, 4, 3])])
        self.assertEqual(steps["split q"]["source"][-1]["values"], steps["split q"]["values"])
        moved = steps["split q"]["source"][0]["values"]
        query = steps["query"]["values"]
        self.assertEqual(moved, [[[query[b][i][r] for i in range(4)] for r in range(5)] for b in range(2)])
        self.assertEqual([(part["code"], part["shape"]) for part in steps["merge"]["source"]],
                         [("transpose(-2,-3)", [2, 5, 4, 2, 3]), ("flatten(-2)", [2, 5, 4, 6]), ("movedim(-2,-3)", [2, 4, 5, 6])])
        self.assertEqual(steps["merge"]["source"][-1]["values"], steps["merge"]["values"])
        columns = self.trace("--layer", "alphafold", "--attn-dim", "-3", "--is-global", "--shape", "2,7,5,8")
        self.assertEqual([(part["code"], part["shape"]) for part in columns["split k"]["source"]], [("movedim(-3,-2)", [2, 5, 7, 6]), ("unsqueeze(-3)", [2, 5, 1, 7, 6])])
        self.assertEqual(columns["split k"]["shape"], [2, 5, 1, 7, 6])
        front = self.trace("--layer", "alphafold", "--attn-dim", "1", "--shape", "2,7,5,8")  # axis 1, counted from the front
        self.assertEqual(front["split q"]["source"][0]["code"], "movedim(-3,-2)")

    def test_a_layer_of_a_model_on_a_sentence(self):
        model = tiny_model.write(self.folder / "model")
        text = "the quick brown fox"
        self.succeeds("view", model, "--text", text, "--arrays", self.folder / "fox.safetensors")
        (layers, heads, length, _), maps = load_safetensors(self.folder / "fox.safetensors")["attentions"]
        for layer in range(layers):
            told = json.loads(self.succeeds("trace", model, "--text", text, "--layer", str(layer), "--values", "--json").stdout)
            self.assertIn(f"layer {layer} of ", told["layer"])
            self.assertEqual(told["input"], "6 tokens: [CLS] the quick brown fox [SEP]")
            steps = {step["step"]: step for step in told["steps"]}
            self.assertEqual(steps["projection q"]["where"], "attention.self.query(query)")
            found, size = flat(steps["softmax"]["values"]), heads * length * length
            for a, e in zip(found, maps[layer * size:(layer + 1) * size], strict=True):
                self.assertAlmostEqual(a, e, delta=1e-6)
        first = self.succeeds("trace", model, "--text", text, "--json").stdout
        self.assertEqual(first, self.succeeds("trace", model, "--text", text, "--layer", "0", "--json").stdout)
        status, shown, said = run_on_terminal("trace", model, "--text", text, "--values", "--precision", "2", columns=60)
        self.assertEqual((status, said), (0, ""))
        self.assertLessEqual(max(map(len, shown.split("\n"))), 60)
        self.assertIn("attention.self.query.weight  [8,8]", shown)
        self.fails(2, "trace", model, "--text", text, "--layer", "2", mentions=["no layer '2'", "0 to 1"])
        self.fails(2, "trace", model, "--text", text, "--layer", "d2l", mentions=["'d2l'", "a number, 0 to 1"])
        self.fails(2, "trace", model, "--text", text, "--ones", mentions=["--text", "--ones"])
        self.fails(2, "trace", model, "--values", mentions=["needs two things"])

    def test_values_show_the_parameters_of_each_projection(self):
        steps = self.trace("--layer", "torch", "--embed-dim", "4", "--num-heads", "2", "--add-bias-kv", "--length", "2", "--batch", "1", "--values", "--dtype", "f64")
        self.assertEqual({name for name, step in steps.items() if "parameters" in step}, {"projection q", "projection k", "projection v", "added key", "added value", "output projection"})
        x = steps["query"]["values"][0]
        for letter in "qkv":
            step = steps[f"projection {letter}"]
            weight, bias = step["parameters"][0]["values"], step["parameters"][1]["values"]
            for t in range(2):
                for i in range(4):
                    self.assertAlmostEqual(step["values"][0][t][i], sum(w * a for w, a in zip(weight[i], x[t])) + bias[i], places=12)
        self.assertNotIn("values", self.trace("--layer", "torch")["projection q"]["parameters"][0])

    def test_every_listed_layer_can_be_traced_and_is_listed_with_its_arguments(self):
        listed = json.loads(self.succeeds("trace", "--list", "--json").stdout)["layers"]
        text = self.succeeds("trace", "--list").stdout.decode()
        self.assertGreaterEqual(len(listed), 12)  # one for each source in the table of layouts, or two if it has self-attention and cross-attention
        help_text = self.succeeds("trace", "--help").stdout.decode()
        for layer in listed:
            with self.subTest(layer["layer"]):
                self.assertIn(layer["layer"] + "\n", text)
                steps = self.trace("--layer", layer["layer"], "--batch", "1", "--length", "3", "--values")
                for row in steps["softmax"]["values"][0]:
                    for weights in row:
                        self.assertAlmostEqual(sum(weights), 1, places=5)
                for argument in layer["arguments"].values():
                    self.assertIn(argument["option"], help_text)

    def test_constructor_arguments_reach_the_layer(self):
        def shapes(*arguments):
            size = () if "--shape" in arguments else ("--batch", "2", "--length", "3")
            return {name: step["shape"] for name, step in self.trace(*arguments, *size).items()}
        multi = shapes("--layer", "multi_atten", "--emd-size", "10", "--q-k-size", "3", "--v-size", "4", "--head", "5")
        self.assertEqual((multi["split q"], multi["split v"], multi["merge"]), ([2, 5, 3, 3], [2, 5, 3, 4], [2, 3, 20]))
        self.assertNotIn("output projection", multi)
        cross = shapes("--layer", "cross_attention", "--input-dim", "8", "--dim-qk", "4", "--dim-v", "6", "--key-length", "5")
        self.assertEqual((cross["query"], cross["key"], cross["softmax"], cross["merge"]), ([2, 3, 8], [2, 5, 8], [2, 1, 3, 5], [2, 3, 6]))
        d2l = shapes("--layer", "d2l", "--num-hiddens", "10", "--key-size", "4", "--query-size", "6", "--value-size", "7", "--bias")
        self.assertEqual((d2l["query"], d2l["key"], d2l["value"], d2l["output projection"]), ([2, 3, 6], [2, 3, 4], [2, 3, 7], [2, 3, 10]))
        torch = shapes("--layer", "torch", "--embed-dim", "8", "--num-heads", "2", "--add-bias-kv", "--add-zero-attn", "--bias", "false")
        self.assertEqual((torch["added key"], torch["softmax"]), ([2, 5, 8], [2, 2, 3, 5]))
        column = shapes("--layer", "alphafold", "--c-in", "8", "--c", "2", "--n-head", "4", "--attn-dim", "-3", "--gated", "--is-global", "--shape", "2,7,5,8")
        self.assertEqual((column["mean query"], column["split k"], column["softmax"], column["gate"], column["output projection"]),
                         ([2, 1, 5, 8], [2, 5, 1, 7, 2], [2, 5, 4, 1, 7], [2, 7, 5, 8], [2, 7, 5, 8]))
        self.assertIn("causal", self.trace("--layer", "gpt2", "--n-embd", "8", "--n-head", "2", "--length", "3")["mask"]["where"])
        t5 = self.trace("--layer", "t5", "--d-model", "8", "--num-heads", "2", "--d-kv", "4", "--length", "3")
        self.assertNotIn("scale", t5)
        self.assertIn("bias", t5)

    def test_a_mask_of_the_tutorials_has_no_dimension_for_heads(self):
        query, block = ("F32", [2, 3, 6], [0.1 * i for i in range(36)]), [i % 5 == 4 for i in range(18)]
        given = {}
        for name, shape in (("tutorial", [2, 3, 3]), ("named", [2, 1, 3, 3])):
            save_safetensors(self.folder / f"{name}.safetensors", {"query": query, "block": ("BOOL", shape, block)})
            given[name] = self.trace("--layer", "multi_atten", "--emd-size", "6", "--head", "2", "--input", str(self.folder / f"{name}.safetensors"), "--values")
        self.assertEqual(given["tutorial"], given["named"])
        self.assertEqual([x == 0 for x in flat(given["tutorial"]["softmax"]["values"])], [*block[:9] * 2, *block[9:] * 2])

    def test_valid_lengths_mask_scores_and_weights(self):
        steps = self.trace("--layer", "d2l", "--num-hiddens", "4", "--heads", "2", "--length", "3", "--valid-lens", "2,0", "--values")
        self.assertIn("3 rows without a key: every key gets the same attention weight", steps["mask"]["meaning"])
        for head in steps["mask"]["values"][0]:
            self.assertEqual([row[2] for row in head], ["-inf"] * 3)
        for head in steps["softmax"]["values"][0]:
            self.assertEqual([row[2] for row in head], [0] * 3)
        for x in flat(steps["softmax"]["values"][1]):
            self.assertAlmostEqual(x, 1 / 3, places=6)

    def test_a_weights_file_ends_in_its_known_output(self):
        for name, options in [("torch_mha_cross", ["--heads", "4"]), ("valid_lens_per_sequence", ["--heads", "5", "--valid-lens", "3,2"]), ("torch_mha_float_mask", ["--heads", "4"]),
                              ("axis_global_gated_mask", ["--heads", "4", "--axis", "-3"]), ("multi_atten_unequal", ["--heads", "3"])]:
            with self.subTest(name):
                path = adapted(VECTORS / f"{name}.safetensors", self.folder)
                result = self.succeeds("trace", "--parameters", path, "--input", path, "--values", "--json", *options)
                self.assertEqual(result.stderr, b"")  # there must be no note, for example about an unused parameter of the layer
                steps = {step["step"]: step for step in json.loads(result.stdout)["steps"]}
                _, expected = load_safetensors(path)["out"]
                actual = flat(list(steps.values())[-1]["values"])
                self.assertEqual(len(actual), len(expected))
                for a, e in zip(actual, expected):
                    self.assertAlmostEqual(a, e, delta=1e-12 * max(map(abs, expected)))

    def test_json_has_the_shortest_digits_of_each_number(self):
        path = self.folder / "in.safetensors"
        save_safetensors(path, {"query": ("F32", (1, 1, 2), [0.1, 1.5])})
        told = self.succeeds("trace", "--layer", "self_attention", "--input-dim", "2", "--input", path, "--values", "--json").stdout.decode()
        self.assertIn('"values":[[[0.1,1.5]]]', told)

    def test_values_print_every_number_of_small_tensors_and_say_what_is_left_out_of_large_ones(self):
        path = self.folder / "in.safetensors"
        save_safetensors(path, {"query": ("F64", (1, 2, 4), [1, -2.5, 3, 0.125, 5, 6, 7, 8])})
        arguments = ("trace", "--layer", "self_attention", "--input-dim", "4", "--dim-qk", "2", "--dim-v", "2", "--input", path, "--values", "--precision", "2")
        text = self.succeeds(*arguments).stdout.decode()
        self.assertIn("query  [1,2,4]\n  [0]\n   1.00 -2.50  3.00  0.12\n   5.00  6.00  7.00  8.00\n", text)
        self.assertNotIn("shown", text)
        large = self.succeeds("trace", "--layer", "d2l", "--values").stdout.decode()
        self.assertIn("…", large)
        self.assertRegex(large, r"\(\d+ of 2000 numbers shown\)")
        self.assertNotIn("shown", self.succeeds("trace", "--layer", "d2l", "--values", "--limit", "10000").stdout.decode())

    def test_ones_give_uniform_weights(self):
        steps = self.trace("--layer", "torch", "--ones", "--length", "4", "--values")
        for x in flat(steps["softmax"]["values"]):
            self.assertAlmostEqual(x, 0.25, places=6)

    def test_a_seed_gives_the_same_numbers_and_another_seed_others(self):
        first, again, other = (self.succeeds("trace", "--layer", "torch", "--values", "--seed", seed).stdout for seed in ("1", "1", "2"))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_lines_fit_terminals(self):
        for columns in (40, 60, 80, 100, 130, 200):
            with self.subTest(columns):
                status, text, said = run_on_terminal("trace", "--layer", "alphafold", "--gated", "--valid-lens", "3,2", "--length", "4", "--values", columns=columns)
                self.assertEqual((status, said), (0, ""))
                self.assertNotIn("\x1b", text)
                self.assertLessEqual(max(map(len, text.split("\n"))), columns)
                self.assertIn("linear_g", text)

    def test_every_layer_fits_every_terminal(self):
        quick = os.environ.get("POLYHEAD_TEST_EFFORT") == "quick"
        middle = (30, 40, 50, 60, 64, 70)
        for at, layer in enumerate(json.loads(self.succeeds("trace", "--list", "--json").stdout)["layers"]):
            for columns in (20, *(middle[at % 6:][:1] if quick else middle), 80):
                with self.subTest(layer["layer"], columns=columns):
                    text = self.succeeds("trace", "--layer", layer["layer"], "--length", "3", env={"COLUMNS": str(columns)}).stdout.decode()
                    for line in text.split("\n"):
                        self.assertTrue(len(line) <= columns or len(line.split()) == 1, line)  # a single word may be longer than the line

    def test_errors_are_one_sentence(self):
        self.fails(2, "trace", mentions=["--layer", "--parameters"])
        self.fails(2, "trace", "--layer", "d2", mentions=["did you mean 'd2l'"])
        self.fails(2, "trace", "--layer", "d2l", "--num-hidden", "5", mentions=["--num-hiddens"])
        self.fails(2, "trace", "--layer", "d2l", "--dim-qk", "5", mentions=["--dim-qk", "--num-hiddens"])
        self.fails(2, "trace", "--layer", "d2l", "--head", "5", mentions=["--head is not an argument of d2l", "did you mean '--heads'?"])
        self.fails(2, "trace", "--layer", "d2l", "--num-hiddens", "7", "--heads", "2", mentions=["7", "2"])
        self.fails(2, "trace", "--layer", "d2l", "--num-hiddens", "x", mentions=["'x'"])
        self.fails(2, "trace", "--layer", "d2l", "--num-hiddens", "0", mentions=["0"])
        self.fails(2, "trace", "--layer", "d2l", "--num-heads", "5", "--heads", "4", mentions=["--num-heads"])
        self.fails(2, "trace", "--layer", "alphafold", "--attn-dim", "-3", "--axis", "-2", "--shape", "2,3,4,8", mentions=["--axis and --attn-dim differ"])
        self.fails(2, "trace", "--layer", "alphafold", "--is-global", "--global-query", "off", mentions=["--global-query and --is-global differ"])
        self.fails(2, "trace", "--layer", "alphafold", "--is-global", "false", "--global-query", "mean", mentions=["--global-query and --is-global differ"])
        self.fails(2, "trace", "--list", "--layer", "d2l", mentions=["--list", "--layer"])
        self.fails(2, "trace", "--layer", "d2l", "--parameters", "identity", "--count-from", "10", "--seed", "7", mentions=["--seed", "nothing is random"])
        self.succeeds("trace", "--layer", "d2l", "--parameters", "identity", "--seed", "7")
        self.fails(2, "trace", "--layer", "torch", "--bias", "maybe", mentions=["'maybe'"])
        self.fails(2, "trace", "--layer", "self_attention", "--heads", "2", mentions=["one head"])
        self.fails(2, "trace", "--layer", "d2l", "--parameters", "x", mentions=["not both"])
        self.fails(2, "trace", "--layer", "d2l", "--valid-lens", "3", mentions=["1 length", "2"])
        self.fails(2, "trace", "--layer", "alphafold", "--attn-dim", "-4", mentions=["--shape"])
        self.fails(2, "trace", "--layer", "alphafold", "--attn-dim", "-1", mentions=["axis -1", "width"])
        self.fails(2, "trace", "--layer", "alphafold", "--axis", "-1", mentions=["--axis", "width"])
        self.fails(2, "trace", "--layer", "d2l", "--layout", "torch", mentions=["--layout", "--parameters"])
        self.fails(2, "trace", "--layer", "d2l", "--prefix", "foo", mentions=["--prefix", "--parameters"])
        self.fails(2, "trace", "--layer", "d2l", "--values", "--precision", "99", mentions=["99"])
        self.fails(2, "trace", "--layer", "d2l", "--precision", "2", mentions=["--precision requires --values"])
        self.fails(2, "trace", "--layer", "d2l", "--limit", "2", mentions=["--limit requires --values"])
        self.fails(2, "trace", "--layer", "d2l", "--shape", "2,3,100", "--batch", "2", mentions=["--shape", "--batch"])
        self.fails(2, "trace", "--layer", "d2l", "--shape", "2,3,100", "--length", "3", mentions=["--shape", "--length"])
        self.fails(2, "trace", "--layer", "d2l", "--heads", "9" * 20, mentions=["too large"])
        self.fails(1, "trace", "--layer", "d2l", "--length", "1000000", mentions=["too large", "67108864"])
        self.fails(1, "trace", "--layer", "d2l", "--shape", "2,3,5", mentions=["[2,3,5]", "100"])
        self.fails(1, "trace", "--layer", "d2l", "--softcap", "-1", mentions=["-1"])
        self.fails(2, "trace", "--parameters", "identity", mentions=["identity", "--layer"])
        self.fails(2, "trace", "--layer", "d2l", "--parameters", "identity", "--prefix", "x", mentions=["--prefix", "identity"])
        self.fails(2, "trace", "--layer", "cross_attention", "--parameters", "identity", mentions=["identity", "32 inputs", "16 outputs"])
        self.fails(2, "trace", "--layer", "d2l", "--count-from", "10", "--ones", mentions=["--ones", "--count-from"])
        self.fails(2, "trace", "--layer", "d2l", "--count-from", "ten", mentions=["--count-from", "'ten'"])
        self.fails(2, "trace", "--layer", "d2l", "--text", "a", mentions=["MODEL_DIR"])
        path = self.folder / "in.safetensors"
        save_safetensors(path, {"quary": ("F32", (1, 2, 100), [0.0] * 200)})
        self.fails(1, "trace", "--layer", "d2l", "--input", path, mentions=["'query'", "quary"])
        self.fails(2, "trace", "--layer", "d2l", "--input", path, "--length", "3", mentions=["--length", "--input"])

    def test_extents_of_zero(self):
        self.assertEqual(self.trace("--layer", "d2l", "--length", "0", "--values")["output projection"]["shape"], [2, 0, 100])
        self.assertIn("no numbers", self.succeeds("trace", "--layer", "d2l", "--batch", "0", "--values").stdout.decode())

    @unittest.skipIf(HAS_ASAN, "AddressSanitizer reserves more than any limit")
    def test_memory_that_runs_out_in_a_destructor_ends_in_a_sentence(self):
        # This output needs 400 MiB. With less memory, growing a list fails. The destructor of nlohmann::json then allocates too, and fails unless the last list that
        # grew was large. Therefore the test tries several limits.
        ended = 0
        for limit in (192, 224, 240, 262, 272):
            result = self.fails(1, "trace", "--layer", "self_attention", "--input-dim", "2", "--dim-qk", "1", "--dim-v", "1", "--shape", "131072,1,2", "--values", "--json",
                                mentions=["not enough memory"], preexec_fn=limited(limit << 20))
            ended += "polyhead: ended by an internal error, most likely because there is not enough memory" in result
        self.assertGreater(ended, 0)


if __name__ == "__main__":
    unittest.main()
