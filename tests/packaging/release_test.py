"""Tests scripts/release --check in a clone: it refuses what is wrong, and accepts a version in which all files agree. Also runs scripts/sbom.py on the components.json of a build.

    python3 tests/packaging/release_test.py REPOSITORY COMPONENTS.JSON
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, COMPONENTS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
VERSION = "91.2.3"


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments], check=True, capture_output=True)


def edit(path, pattern, text):
    before = path.read_text()
    after = re.sub(pattern, text, before, count=1, flags=re.M)
    assert after != before, (path, pattern)
    path.write_text(after)


@unittest.skipUnless((ROOT / ".git").exists(), "this copy of the sources has no history")
class Release(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.clone = pathlib.Path(cls.temporary.name, "clone")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(cls.clone)], check=True, capture_output=True)
        # The clone gets these files as they are in the work tree, committed or not.
        for name in ("scripts/release", "scripts/sbom.py", "scripts/common.sh", "tests/packaging/versions.py", "CHANGELOG.md", "CITATION.cff", "CMakeLists.txt",
                     "packaging/conda/recipe.yaml", "packaging/vcpkg/polyhead/vcpkg.json"):
            (cls.clone / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.clone / name).write_bytes((ROOT / name).read_bytes())
            (cls.clone / name).chmod((ROOT / name).stat().st_mode)
        git(cls.clone, "add", "-A")
        git(cls.clone, "commit", "-qm", "work", "--allow-empty")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def check(self, *arguments):
        return subprocess.run([str(self.clone / "scripts/release"), *arguments], capture_output=True, text=True)

    def test_1_what_is_not_ready_is_refused(self):
        (self.clone / "stray").write_text("x")
        done = self.check(VERSION, "--check")
        self.assertEqual(done.returncode, 1)
        for problem in ("not committed", "versions differ: CMakeLists.txt", f"## {VERSION} - DATE", "tests of C\\+\\+: there is no", "tests of the Python package"):
            self.assertRegex(done.stderr, problem)
        (self.clone / "stray").unlink()

    def test_2_a_version_whose_files_agree_is_accepted(self):
        edit(self.clone / "CMakeLists.txt", r"polyhead VERSION [0-9.]+", f"polyhead VERSION {VERSION}")
        edit(self.clone / "CITATION.cff", r"^version: .*", f"version: {VERSION}")
        edit(self.clone / "CITATION.cff", r"^date-released: .*", 'date-released: "2026-12-24"')
        edit(self.clone / "packaging/conda/recipe.yaml", r"^  version: .*", f"  version: {VERSION}")
        edit(self.clone / "packaging/vcpkg/polyhead/vcpkg.json", r'"version": "[^"]*"', f'"version": "{VERSION}"')
        edit(self.clone / "CHANGELOG.md", r"^## Unreleased$", f"## Unreleased\n\n## {VERSION} - 2026-12-24")
        git(self.clone, "commit", "-qam", VERSION)
        done = self.check(VERSION, "--check", "--untested")
        self.assertEqual((done.returncode, "is ready" in done.stderr, "were not checked" in done.stderr), (0, True, True), done.stderr)

    def test_3_failed_and_old_tests_are_refused(self):
        (self.clone / "build/dev").mkdir(parents=True)
        ctest, pytest = self.clone / "build/dev/ctest.log", self.clone / "build/pytest.log"
        ctest.write_text("100% tests passed, 0 tests failed out of 9\n")
        pytest.write_text("== 7 passed, 1 skipped in 3.21s ==\n")
        self.assertEqual(self.check(VERSION, "--check").returncode, 0)
        pytest.write_text("== 1 failed, 7 passed in 3.21s ==\n")
        self.assertIn("tests of the Python package", self.check(VERSION, "--check").stderr)
        pytest.write_text("== 7 passed in 3.21s ==\n")
        ctest.write_text("89% tests passed, 1 tests failed out of 9\n")
        self.assertIn("tests of C++", self.check(VERSION, "--check").stderr)

    def test_4_arguments(self):
        for arguments in ([], ["0.3"], ["0.3.0", "--publish"], ["0.3.0", "--wheels"]):
            done = self.check(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("usage: scripts/release", done.stderr)


class BillOfMaterials(unittest.TestCase):
    def bill(self, path, *arguments):
        return subprocess.run([sys.executable, "-B", str(ROOT / "scripts/sbom.py"), str(path), "--commit", "c0ffee", "--time", "1764000000", *arguments], capture_output=True, text=True)

    def test_of_this_build(self):
        told = json.loads(COMPONENTS.read_text())
        done = self.bill(COMPONENTS, "--static-runtime")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.bill(COMPONENTS, "--static-runtime").stdout)
        found = json.loads(done.stdout)
        self.assertEqual({part["name"] for part in found["components"]}, {part["name"] for part in told["components"]} | {"libstdc++"})
        for part in found["components"]:
            self.assertTrue(part["licenses"][0]["expression"])
            if part["name"] not in ("MPI", "libstdc++"):
                self.assertRegex(part["version"], r"^[0-9]+\.")
        self.assertEqual((found["bomFormat"], found["specVersion"], found["metadata"]["component"]["version"]), ("CycloneDX", "1.5", told["version"]))
        self.assertEqual(found["metadata"]["timestamp"], "2025-11-24T16:00:00Z")
        references = [found["metadata"]["component"]["bom-ref"], *(part["bom-ref"] for part in found["components"])]
        self.assertEqual(sorted(references), sorted({one["ref"] for one in found["dependencies"]}))

    def test_a_component_without_a_known_licence_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "components.json")
            path.write_text(json.dumps({"version": "1.0.0", "compiler": {"name": "GNU", "version": "12"}, "components": [{"name": "left_pad", "version": "1", "linked": "archive"}]}))
            self.assertIn("licence of left_pad", self.bill(path).stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
