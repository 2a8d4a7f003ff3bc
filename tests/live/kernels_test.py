"""Runs the kernels' own GoogleTest tests as WebAssembly under node.

    python3 tests/live/kernels_test.py MODULES

MODULES: the folder of polyhead_kernels.wasm, which `scripts/live-engine` builds. If the module or node is missing, says so and exits with 77.
"""
import os
import pathlib
import re
import subprocess
import sys

import modules

# Tests that cannot run as WebAssembly: they expect an exception, and in WebAssembly an exception ends the module (docs/decisions/0023-webassembly.md).
LEFT_OUT = {"CpuSdpa.ScalesAndCapsBeyondFloat32AreLeftToTheReference", "Gemm.WrongShapesAreErrors", "MaskBlocks.OneMaskTooManyIsRefused"}
AT_LEAST = 77  # the least number of tests that must run, so that a module without tests fails
here = pathlib.Path(__file__).parent


def run(node, module, *options):
    return subprocess.run([node, "--no-warnings", str(here / "run.mjs"), str(module), *options], capture_output=True, text=True, env={**os.environ, "POLYHEAD_TEST_EFFORT": os.environ.get("POLYHEAD_TEST_EFFORT") and "emulated" or ""})


def main(folder_of_modules):
    node, module = modules.found(folder_of_modules, "polyhead_kernels.wasm", needs=", if libgtest-dev and libgmock-dev are installed")
    suite, names = "", set()
    for line in run(node, module, "--gtest_list_tests").stdout.splitlines():
        if line.startswith(" "):
            names.add(suite + line.split()[0])
        else:
            suite = line.split()[0]
    if LEFT_OUT - names:
        sys.exit(f"FAILED: these tests are left out and do not exist: {sorted(LEFT_OUT - names)}")
    done = run(node, module, f"--gtest_filter=-{':'.join(sorted(LEFT_OUT))}")
    lines = done.stdout.splitlines()
    print("\n".join(line for line in lines if not re.match(r"\[ RUN| *OK \]|\[  *OK \]|\[---", line)))
    passed = re.search(r"^\[  PASSED  \] (\d+) tests", done.stdout, re.M)
    if done.returncode or not passed:
        begun = [line.split()[-1] for line in lines if line.startswith("[ RUN")]
        sys.exit(f"FAILED: exit code {done.returncode}; the last test that began is {begun[-1:]}. A test that expects an error ends the module; such tests are named in LEFT_OUT.\n{done.stderr}")
    if int(passed[1]) < AT_LEAST:
        sys.exit(f"FAILED: {passed[1]} tests ran; at least {AT_LEAST} are expected")


main(*sys.argv[1:])
