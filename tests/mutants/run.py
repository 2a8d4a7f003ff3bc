#!/usr/bin/env python3
"""Breaks one line at a time in a copy of the sources and checks that a test fails.

    python3 tests/mutants/run.py [--only WORD] [--scratch DIR] [--jobs N] [--write | --check]

The copy and its build stay in DIR, so that a second run builds only what changed. A mutant fails if its text is not found exactly once, if it does
not compile, or if no test notices it. At last prints `N passed, N failed`. --write also writes the table docs/mutants.md. --check only looks whether
each text is found, and needs no build. Mutants of the Python package need an interpreter with the package and the packages of its tests, such as that of
build/venv, which scripts/test makes: `build/venv/bin/python tests/mutants/run.py --only python/`.
"""
import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from mutants import MUTANTS
from python_mutants import PYTHON_MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("CMakeLists.txt", "cmake", "include", "src", "viewer", "tests", "python", "pyproject.toml")

# Fast programs come first, because a mutant is finished when the first program fails.
PROGRAMS = {
    "core": ("test_core", ["src/core/test_core"]),
    "parallel": ("test_parallel", ["src/core/test_parallel"]),
    "golden": ("polyhead_golden", ["tests/golden/polyhead_golden", "{tree}/tests/golden/vectors", "--dtype", "f64"]),
    "golden_reference": ("polyhead_golden", ["tests/golden/polyhead_golden", "{tree}/tests/golden/vectors", "--dtype", "f64", "--backend", "reference"]),
    "cpu": ("test_cpu", ["src/cpu/test_cpu"]),
    "sdpa": ("test_sdpa", ["src/sdpa/test_sdpa"]),
    "cpu_sdpa": ("test_cpu_sdpa", ["src/sdpa/test_cpu_sdpa"]),
    "score_rule": ("test_score_rule", ["src/sdpa/test_score_rule"]),
    "nn_attention": ("test_nn_attention", ["src/nn/test_nn_attention"]),
    "nn_layers": ("test_nn_layers", ["src/nn/test_nn_layers"]),
    "models": ("test_models", ["src/models/test_models"]),
    "failed_allocations": ("test_failed_allocations", ["src/models/test_failed_allocations"]),
    "training": ("test_training", ["tests/training/test_training"]),
    "io": ("test_io", ["src/io/test_io"]),
    "tokenizer": ("test_tokenizer", ["src/models/test_tokenizer"]),
    "byte_pairs": ("test_byte_pair_tokenizer", ["src/models/test_byte_pair_tokenizer"]),
    "reference": ("test_reference", ["src/reference/test_reference"]),
    "distributed": ("test_distributed", ["src/distributed/test_distributed"]),
}


def copy_changed(source, target):
    """Updates the copy of the sources. Unchanged files keep their time stamps, so that they are not compiled again."""
    wanted = set()
    for part in PARTS:
        start = source / part
        for path in [start] if start.is_file() else sorted(p for p in start.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            copy = target / path.relative_to(source)
            wanted.add(copy)
            if copy.exists() and copy.read_bytes() == path.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    for path in target.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()


def is_python(name):
    return name.endswith(".py")


def in_order(names):
    """Sorts the names of test programs: fast programs first, files of tests/python last."""
    return sorted(names, key=lambda name: (is_python(name), 0 if is_python(name) else list(PROGRAMS).index(name)))


def missing(mutant, text):
    """Returns why the mutant cannot be applied to the text of its file; '' if it can."""
    for name in mutant.tests:
        if name not in PROGRAMS and not (is_python(name) and (ROOT / "tests" / "python" / name).exists()):
            return f"there is no test program {name!r}"
    count = text.count(mutant.old)
    return "" if count == 1 else f"its text is found {count} times in {mutant.file}"


def check(mutants):
    found = {mutant: missing(mutant, (ROOT / mutant.file).read_text()) for mutant in mutants}
    for mutant, why in found.items():
        if why:
            print(f"{mutant.name}: {why}")
    return len(mutants), sum(map(bool, found.values()))


class Scratch:
    def __init__(self, folder, jobs):
        self.tree, self.build, self.jobs = folder / "tree", folder / "build", str(jobs)

    def prepare(self, names):
        copy_changed(ROOT, self.tree)
        python, names = [name for name in names if is_python(name)], [name for name in names if not is_python(name)]
        if python:
            self.take_extension()
        if names:
            self.configure(names)
        for name in names + python:
            if not self.passes(name):
                sys.exit(f"{name} fails without any mutant")

    def take_extension(self):
        """Copies the compiled module of the installed package to the copied Python sources."""
        package = importlib.util.find_spec("polyhead")
        if package is None:
            sys.exit(f"{sys.executable} has no package polyhead; mutants of Python need an interpreter that has it (scripts/test makes build/venv)")
        for path in pathlib.Path(package.origin).parent.glob("_core*"):
            shutil.copy2(path, self.tree / "python" / "polyhead" / path.name)

    def configure(self, names):
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        self.must(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_CXX_FLAGS=-O0", "-DPOLYHEAD_EMULATE_AMX=ON", "-DPOLYHEAD_BUILD_APP=OFF",
                   "-DPOLYHEAD_BUILD_EXAMPLES=OFF", "-DPOLYHEAD_WARNINGS_AS_ERRORS=OFF", *launcher])
        self.must(["ninja", "-C", self.build, "-j", self.jobs, *(PROGRAMS[name][0] for name in names)])

    def must(self, command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")

    def compiles(self, name):
        return is_python(name) or subprocess.run(["ninja", "-C", self.build, "-j", self.jobs, PROGRAMS[name][0]], stdout=subprocess.DEVNULL).returncode == 0

    def passes(self, name):
        if is_python(name):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", self.tree / "tests" / "python" / name]
        else:
            program, *arguments = (part.format(tree=self.tree) for part in PROGRAMS[name][1])
            command = [self.build / program, *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.tree / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            return subprocess.run(command, cwd=self.tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def judge(self, mutant):
        """Returns (the program that noticed the mutant, or None; the reason why none did, or '')."""
        path = self.tree / mutant.file
        original = path.read_text()
        if why := missing(mutant, original):
            return None, why
        path.write_text(original.replace(mutant.old, mutant.new))
        try:
            for name in in_order(mutant.tests):
                if not self.compiles(name):
                    return None, "it does not compile"
                if not self.passes(name):
                    return name, ""
            return None, "SURVIVED"
        finally:
            path.write_text(original)


def table(rows):
    lines = ["# Mutants", "",
             "Each mutant is a defect that is put into one line of a copy of the library, and a test must then fail. `python3 tests/mutants/run.py --write` wrote this table. The table is from an earlier run, and `tests/mutants/mutants.py` has all present mutants.",
             "The column \"noticed by\" names the first test program that fails, and later ones are not run. `golden` compares the kernels with the vectors of tests/golden/vectors, and `golden_reference` compares the reference with them. All other names in this column are test programs (`test_<name>`) or files of tests/python.",
             "Mutants whose name begins with `precision native` change kernels of `avx512_bf16` or `amx_bf16_emulated`. Tests notice mutants of `amx_bf16_emulated` on any processor with AVX2, and mutants of `avx512_bf16` only on a processor with AVX512-BF16.",
             "", "| mutant | file | what the unchanged line ensures | noticed by |", "|---|---|---|---|"]
    lines += [f"| {m.name} | {m.file} | {m.claim} | {noticed or 'NOBODY: ' + why} |" for m, noticed, why in rows]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="run only the mutants whose name or file contains this text")
    arguments.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "polyhead-mutants")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--write", action="store_true", help="write docs/mutants.md; only for a run over all mutants")
    arguments.add_argument("--check", action="store_true", help="only check that the text of each mutant occurs exactly once in its file")
    arguments = arguments.parse_args()
    if arguments.write and arguments.only:
        sys.exit("--write needs a run over all mutants, not --only")
    chosen = [m for m in MUTANTS + PYTHON_MUTANTS if arguments.only in m.name or arguments.only in m.file]
    if not chosen:
        sys.exit(f"no mutant has '{arguments.only}' in its name or file")
    if arguments.check:
        count, failed = check(chosen)
        print(f"{count - failed} passed, {failed} failed")
        sys.exit(failed > 0)
    scratch = Scratch(arguments.scratch, arguments.jobs)
    scratch.prepare(in_order({name for m in chosen for name in m.tests}))
    rows = []
    for mutant in chosen:
        noticed, why = scratch.judge(mutant)
        rows.append((mutant, noticed, why))
        print(f"{mutant.name:45} {'caught by ' + noticed if noticed else 'FAILED: ' + why}", flush=True)
    failed = sum(not noticed for _, noticed, _ in rows)
    if arguments.write:
        (ROOT / "docs" / "mutants.md").write_text(table(rows))
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
