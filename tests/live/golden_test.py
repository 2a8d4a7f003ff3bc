"""The golden vectors as WebAssembly under node: results and gradients beside float64 PyTorch.

    python3 tests/live/golden_test.py VECTORS MODULES

VECTORS: tests/golden/vectors. MODULES: the folder of polyhead_golden.wasm, which `scripts/live-engine` builds. Exits with 77, and says why, where it or node are missing.
"""
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

EXPECTED = 137  # all of them: an empty or thinned folder would pass too
here = pathlib.Path(__file__).parent


def packed(files):
    """As apps/polyhead/page_files.h has them."""
    data = bytearray()
    for file in files:
        name, contents = file.name.encode(), file.read_bytes()
        data += struct.pack("<II", len(name), len(contents)) + name
        data += bytes(-len(data) % 64) + contents
        data += bytes(-len(data) % 4)
    return data


def main(vectors, modules):
    node, module = shutil.which("node"), pathlib.Path(modules) / "polyhead_golden.wasm"
    if node is None or not module.exists():
        print(f"skipped: {'there is no node on the path' if node is None else f'{module} is not there; `scripts/live-engine` builds it'}")
        sys.exit(77)
    failed = 0
    with tempfile.TemporaryFile() as files:
        files.write(packed(sorted(pathlib.Path(vectors).glob("*.safetensors"))))
        # float32: the bounds that do not take PyTorch's fused multiplications for granted, which wasm_simd128 has not.
        for backend, dtype in (("", "f64"), ("", "f32"), ("reference", "f64")):
            files.seek(0)
            done = subprocess.run([node, "--no-warnings", str(here / "run.mjs"), str(module), backend, dtype], stdin=files, capture_output=True, text=True)
            lines = done.stdout.splitlines()
            print("\n".join(line for line in lines if "FAILED" in line))
            print(f"{backend or 'chosen'} {dtype}: {lines[-1] if lines else done.stderr}")
            failed += not lines or lines[-1] != f"{EXPECTED} passed, 0 failed"
    sys.exit(failed)


main(*sys.argv[1:])
