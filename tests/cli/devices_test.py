import json
import os
import unittest

from program import ProgramTest


class Devices(ProgramTest):
    def test_json_agrees_with_the_system(self):
        told = json.loads(self.succeeds("devices", "--json").stdout)
        self.assertEqual(told["usable"], len(os.sched_getaffinity(0)))
        architecture = os.environ.get("POLYHEAD_TEST_ARCHITECTURE", os.uname().machine)  # under an emulator the program has another architecture than the system
        self.assertEqual(told["architecture"].replace("-", "_"), architecture)
        self.assertGreaterEqual(told["threads"], 1)
        self.assertIn("reference", told["backends"])
        for cache in told["caches"]:
            self.assertGreater(cache["bytes"], 0)

    def test_the_environment_forces_a_set_of_kernels_or_is_refused(self):
        told = json.loads(self.succeeds("devices", "--json").stdout)
        self.assertEqual([k["used"] for k in told["kernels"]].count(True), 1)
        (default,) = [k["name"] for k in told["kernels"] if k["used"]]
        for kernels in told["kernels"]:
            self.assertEqual(kernels["why_not_used"] == "", kernels["used"], kernels)
            if not kernels["available"]:
                self.assertRegex(kernels["why_not_used"], "lacks|for tests")
        for kernels in told["kernels"]:
            if kernels["available"]:
                forced = json.loads(self.succeeds("devices", "--json", env={"POLYHEAD_ISA": kernels["name"]}).stdout)
                self.assertEqual([k["name"] for k in forced["kernels"] if k["used"]], [kernels["name"]])
                for other in forced["kernels"]:
                    if other["name"] == default and other["name"] != kernels["name"]:
                        self.assertEqual(other["why_not_used"], f"{kernels['name']} was asked for")
        self.fails(1, "devices", env={"POLYHEAD_ISA": "mmx"}, mentions=["'mmx'", told["kernels"][-1]["name"]])

    def test_text_names_the_same_things(self):
        told = json.loads(self.succeeds("devices", "--json").stdout)
        text = self.succeeds("devices", env={"COLUMNS": "200"}).stdout.decode()
        for name in [told["processor"], told["architecture"], *told["backends"], *(s["name"] for s in told["instruction_sets"])]:
            self.assertIn(name, text)

    def test_text_names_each_cache_or_says_that_it_is_unknown(self):
        told = json.loads(self.succeeds("devices", "--json").stdout)
        lines = self.succeeds("devices", env={"COLUMNS": "200"}).stdout.decode().splitlines()
        for level, name in ((1, "L1 data"), (2, "L2"), (3, "L3")):
            rows = [line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} ")]
            found = [cache for cache in told["caches"] if cache["level"] == level and cache["kind"] != "instruction"]
            self.assertEqual(len(rows), max(1, len(found)), lines)
            self.assertEqual(rows == ["unknown"], not found, lines)

    def test_fits_a_narrow_terminal(self):
        for line in self.succeeds("devices", env={"COLUMNS": "40"}).stdout.decode().splitlines():
            self.assertLessEqual(len(line), 40, line)


if __name__ == "__main__":
    unittest.main()
