import json
import time
import unittest

from program import ProgramTest


def facts(result):
    pairs = [line.split(": ", 1) for line in result.stdout.decode().splitlines() if ": " in line]
    return dict(pairs)


class Explain(ProgramTest):
    def explain(self, *arguments):
        return facts(self.succeeds("explain", *arguments, env={"COLUMNS": "200"}))

    def test_names_the_backend_and_the_problem(self):
        told = self.explain("--q", "1,8,512,64", "--k", "1,8,512,64")
        self.assertTrue(told["backend"])
        self.assertEqual(told["problem"], "float32, B 1, N 8, K 8, T 512, S 512, H 64, V 64")
        self.assertEqual(told["mask"], "none")
        self.assertEqual(told["bias"], "none")

    def test_names_the_machine(self):
        found = json.loads(self.succeeds("devices", "--json").stdout)
        told = self.explain("--q", "1,8,512,64", "--k", "1,8,512,64")
        self.assertEqual(told["processors"], f"{found['usable']} of {found['online']} online")
        sets = " ".join(s["name"] for s in found["instruction_sets"] if s["available"]) or "unknown"
        self.assertEqual(told["instruction sets"], sets + "; kernels for " + next(k["name"] for k in found["kernels"] if k["used"]))
        better = found["kernels"][:[k["used"] for k in found["kernels"]].index(True)]
        lacking = " ".join(k["name"] for k in better if not k["available"])
        self.assertEqual(told.get("kernels not used", ""), "; ".join([f"not in this processor: {lacking}"] * bool(lacking) + [f"{k['name']}: {k['why_not_used']}" for k in better if k["available"]]))
        for name, level in (("L1d", 1), ("L2", 2), ("L3", 3)):
            known = any(cache["level"] == level and cache["kind"] != "instruction" for cache in found["caches"])
            self.assertRegex(told["caches"], rf"{name} [0-9]+ [KM]iB\b" if known else f"{name} unknown")

    def test_every_option_reaches_the_problem(self):
        told = self.explain("--q", "2,8,5,4", "--k", "2,4,7,4", "--v", "2,4,7,3", "--dtype", "bf16", "--scale", "0.25", "--softcap", "30", "--bias",
                            "8,1,7", "--dropout", "0.1", "--causal", "bottom_right", "--window", "3,", "--key-lengths", "query", "--key-starts", "sequence", "--attend", "5,7",
                            "--block-keys", "7", "--backend", "reference", "--lse", "--empty-rows", "uniform")
        self.assertEqual(told["backend"], "reference (asked for)")
        self.assertEqual(told["problem"], "bfloat16, B 2, N 8, K 4, T 5, S 7, H 4, V 3")
        self.assertEqual(told["scale"], "0.25, softcap 30")
        self.assertEqual(told["bias"], "[8,1,7]")
        self.assertTrue(told["dropout"].startswith("0.1"))
        for part in ("keys [t-1, t+3)", "key starts per sequence, key lengths per query", "[5,7]", "key mask"):
            self.assertIn(part, told["mask"])

    def test_rules_are_those_of_attend(self):
        square, narrow = ("--q", "1,8,5,4", "--k", "1,8,5,4"), ("--q", "1,8,5,4", "--k", "1,8,7,4")
        self.assertEqual(self.explain(*square, "--causal"), self.explain(*square, "--causal", "top_left"))
        self.fails(2, "explain", *narrow, "--causal", mentions=["5 queries", "7 keys"])
        self.assertEqual(self.explain(*narrow, "--causal", "off")["mask"], "none")
        self.assertIn("2 documents", self.explain(*square, "--query-offsets", "0,2,5")["mask"])
        self.assertIn("3 documents", self.explain(*narrow, "--query-offsets", "0,2,2,5", "--key-offsets", "0,1,4,7")["mask"])
        self.fails(1, "explain", *square, "--query-offsets", "0,2,4", mentions=["query_offsets"])
        self.assertIn("offset for each sequence", self.explain(*narrow, "--causal", "--diagonal-offsets=-1")["mask"])
        self.fails(2, "explain", *narrow, "--causal", "--diagonal-offsets", "1,2", mentions=["2 offsets", "1, one for each sequence"])
        self.fails(2, "explain", *narrow, "--causal", "--diagonal-offsets", "1,x", mentions=["--diagonal-offsets", "'1,x'"])
        self.fails(1, "explain", *narrow, "--diagonal-offsets", "1", mentions=["diagonal_offsets", "causal"])

    def test_precision(self):
        bf16 = ("--q", "1,8,64,64", "--k", "1,8,64,64", "--dtype", "bf16")
        native = self.explain(*bf16)
        self.assertEqual("products" in native, "bf16" in native["kernel"].split(",")[0])
        self.assertEqual(self.explain(*bf16, "--precision", "native"), native)
        self.assertNotIn("products", self.explain(*bf16, "--precision", "exact"))
        self.fails(2, "explain", *bf16, "--precision", "Exact", mentions=["'Exact'", "exact"])

    def test_derivatives(self):
        shapes = ("--q", "1,2,5,4", "--k", "1,2,7,4")
        self.assertEqual(self.explain(*shapes)["derivatives"], "cpu: backward, jvp, backward_backward")
        self.assertEqual(self.explain(*shapes, "--backend", "reference")["derivatives"], "reference: backward, jvp, backward_backward")
        self.assertEqual(self.explain(*shapes, "--scale", "1e30")["derivatives"], "reference: backward, jvp, backward_backward")
        self.assertEqual(self.explain(*shapes, "--dtype", "bf16")["derivatives"], "cpu: backward, jvp, backward_backward; the last two with exact products")

    def test_large_problems_take_neither_memory_nor_time(self):
        began = time.monotonic()
        told = self.explain("--q", "8,64,1048576,128", "--k", "8,64,1048576,128")  # each tensor would have 275 GB
        self.assertIn("T 1048576", told["problem"])
        self.assertLess(time.monotonic() - began, 60)

    def test_extents_of_zero_and_one(self):
        self.assertIn("T 0, S 0", self.explain("--q", "1,1,0,1", "--k", "1,1,0,1")["problem"])
        self.assertIn("B 0", self.explain("--q", "0,1,1,1", "--k", "0,1,1,1")["problem"])
        self.assertIn("B 1", self.explain("--q", "1,1,1", "--k", "1,1,1")["problem"])

    def test_json_has_the_same_facts(self):
        arguments = ("explain", "--q", "1,8,512,64", "--k", "1,8,512,64", "--causal", "2")
        listed = json.loads(self.succeeds(*arguments, "--json").stdout)["facts"]
        self.assertEqual({f["fact"]: f["value"] for f in listed}, facts(self.succeeds(*arguments, env={"COLUMNS": "200"})))

    def test_refused_problems_are_one_sentence_with_the_numbers(self):
        self.fails(1, "explain", "--q", "1,8,512,64", "--k", "1,8,512,32", mentions=["[1,8,512,32]", "64"])
        self.fails(1, "explain", "--q", "1,8,512,64", "--k", "1,3,512,64", mentions=["8", "3", "heads"])
        self.fails(1, "explain", "--q", "512,64", "--k", "512,64", mentions=["[512,64]"])
        self.fails(1, "explain", "--q", "1,8,512,64", "--k", "1,8,512,64", "--bias", "3,512,512", mentions=["bias", "[3,512,512]"])
        self.fails(1, "explain", "--q", "1,8,512,64", "--k", "1,8,512,64", "--dropout", "1.5", mentions=["1.5"])
        huge = "1,1,4611686018427387904,1"
        self.fails(1, "explain", "--q", huge, "--k", huge, mentions=["does not fit"])

    def test_malformed_values_are_wrong_usage(self):
        good = ("--q", "1,1,1,1", "--k", "1,1,1,1")
        self.fails(2, "explain", *good, "--dtype", "u8", mentions=["'u8'", "choose from f32, float32, f64, float64, bf16, bfloat16, f16, float16\n"])
        self.fails(2, "explain", *good, "--scale", "inf", mentions=["'inf' is not a finite number"])
        for option, needed, value in (("--dropout-seed", "--dropout", "1"), ("--dropout-keep", "--dropout", "1,1"), ("--window-diagonal", "--window", "1")):
            self.fails(2, "explain", *good, option, value, mentions=[f"{option} requires {needed}"])
        self.fails(2, "explain", "--q", "1,8", mentions=["--k is required"])
        for shape in ("1,,2", "1,2,", "a,b", "1;2", "-1,2", "1,2.5"):
            self.fails(2, "explain", "--q", shape, "--k", "1,1,1,1", mentions=["--q", f"'{shape}'"])
        self.fails(2, "explain", "--q", ",".join("1" * 17), "--k", "1,1,1,1", mentions=["17", "16"])
        self.fails(2, "explain", *good, "--window", "3", mentions=["--window", "LEFT,RIGHT"])
        self.fails(2, "explain", *good, "--window", ",", mentions=["--window", "','", "bounds no side"])
        self.fails(1, "explain", *good, "--dropout", "0", "--dropout-keep", "1,1", mentions=["dropout.keep is given and the dropout probability is 0"])
        self.fails(2, "explain", *good, "--causal", "left", mentions=["--causal", "top_left"])
        self.fails(2, "explain", *good, "--scale", "nan", mentions=["--scale", "'nan'"])


if __name__ == "__main__":
    unittest.main()
