"""Runs polyhead as WebAssembly under node, and compares results and gradients with the golden vectors, which PyTorch computed in float64.

    python3 tests/live/golden_test.py VECTORS MODULES

VECTORS: tests/golden/vectors. MODULES: the folder of polyhead_golden.wasm, which `scripts/live-engine` builds. If the module or node is missing, says so and exits with 77.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

import modules

EXPECTED = 137  # the number of golden vectors (it is checked, because otherwise an empty folder would pass)
here = pathlib.Path(__file__).parent


def packed(files):
    """Packs files as apps/polyhead/page_files.h says."""
    data = bytearray()
    for file in files:
        name, contents = file.name.encode(), file.read_bytes()
        data += struct.pack("<II", len(name), len(contents)) + name
        data += bytes(-len(data) % 64) + contents
        data += bytes(-len(data) % 4)
    return data


def main(vectors, folder_of_modules):
    node, module = modules.found(folder_of_modules, "polyhead_golden.wasm")
    failed = 0
    with tempfile.TemporaryFile() as files:
        files.write(packed(sorted(pathlib.Path(vectors).glob("*.safetensors"))))
        # wasm_simd128 has no fused multiply-add, so float32 results have the wider bounds for processors without it.
        for backend, dtype in (("", "f64"), ("", "f32"), ("reference", "f64")):
            files.seek(0)
            done = subprocess.run([node, "--no-warnings", str(here / "run.mjs"), str(module), backend, dtype], stdin=files, capture_output=True, text=True)
            lines = done.stdout.splitlines()
            print("\n".join(line for line in lines if "FAILED" in line))
            print(f"{backend or 'chosen'} {dtype}: {lines[-1] if lines else done.stderr}")
            failed += not lines or lines[-1] != f"{EXPECTED} passed, 0 failed"
    sys.exit(failed)


main(*sys.argv[1:])
