"""Checks an installed wheel: the package computes, and the program runs. scripts/wheels runs this file with the Python of an environment that has the wheel and NumPy only.

POLYHEAD_TEST_PYTHON is the command that starts this Python, if it is not sys.executable. At last prints 'N passed, N failed'.
"""
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import traceback

import numpy as np

import polyhead

PYTHON = os.environ.get("POLYHEAD_TEST_PYTHON", sys.executable)
SEED = 7


def formula(q, k, v, keep):
    score = np.where(keep, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p @ v, p


def numbers(dtype, count, queries=37, keys=53):
    generator = np.random.default_rng(SEED)
    return [generator.standard_normal((2, 3, n, 24)).astype(dtype) for n in (queries, keys, keys, queries)[:count]]


def program(*arguments, **options):
    return subprocess.run([PYTHON, "-m", "polyhead", *map(str, arguments)], capture_output=True, text=True, timeout=600, **options)


def it_is_the_installed_package():
    assert "site-packages" in polyhead.__file__ or "packages" in pathlib.Path(polyhead.__file__).parts, polyhead.__file__
    assert polyhead.__version__ == importlib.metadata.version("polyhead")
    assert polyhead.device()["architecture"].replace("-", "_") == platform.machine(), polyhead.device()


def forward_and_maps_are_the_formula():
    for dtype, bound in (np.float64, 1e-12), (np.float32, 2e-5):
        q, k, v = numbers(dtype, 3)
        keep = np.arange(53) <= np.arange(37)[:, None] + 16
        out, p = formula(*(x.astype(np.float64) for x in (q, k, v)), keep)
        assert np.abs(polyhead.sdpa(q, k, v, causal="bottom_right") - out).max() < bound
        assert np.abs(polyhead.maps(q, k, causal="bottom_right") - p).max() < bound


def gradients_are_the_formula():
    q, k, v, d_out = numbers(np.float64, 4)
    out, lse = polyhead.sdpa(q, k, v, return_lse=True)
    got = polyhead.sdpa_backward(q, k, v, out, lse, d_out)
    _, p = formula(q, k, v, True)
    d_p = d_out @ v.swapaxes(-1, -2)
    d_score = p * (d_p - (p * d_p).sum(-1, keepdims=True)) / np.sqrt(24)
    for one, wanted in (got.q, d_score @ k), (got.k, d_score.swapaxes(-1, -2) @ q), (got.v, p.swapaxes(-1, -2) @ d_out):
        assert np.abs(one - wanted).max() < 1e-12


def every_instruction_set_of_this_machine_computes():
    code = "import numpy as np, polyhead; q = np.random.default_rng(7).standard_normal((1, 2, 40, 16)).astype(np.float32); print(repr(float(polyhead.sdpa(q, q, q).astype(float).sum())), polyhead.device()['kernel'])"
    sums = {}
    for name in polyhead.device()["kernels"]:
        done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, env=os.environ | {"POLYHEAD_ISA": name})
        if done.returncode == 0:
            total, used = done.stdout.split()
            assert used == name
            sums[name] = float(total)
    assert polyhead.device()["kernel"] in sums and np.ptp(list(sums.values())) < 1e-3, sums
    print("instruction sets:", *sums)


def a_layer_is_saved_and_loaded():
    layer = polyhead.MultiHeadAttention(32, 4, seed=3)
    x = np.random.default_rng(SEED).standard_normal((2, 9, 32)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "layer.safetensors")
        polyhead.save(layer, path)
        assert np.array_equal(polyhead.load(path, heads=4)(x), layer(x))
        listed = program("inspect", path, "--json")
        assert listed.returncode == 0 and json.loads(listed.stdout), listed.stderr


def a_page_shows_attention_weights():
    q, k = numbers(np.float32, 2)
    assert "<html" in polyhead.view(polyhead.maps(q, k)).html


def a_model_is_viewed():
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
    import tiny_model
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = tiny_model.write(folder / "model")
        done = program("view", model, "--text", "the fox", "-o", folder / "page.html")
        assert done.returncode == 0, done.stderr
        assert "<html" in (folder / "page.html").read_text()


def the_program_has_a_version_and_exit_codes():
    done = program("--version")
    assert (done.returncode, done.stdout) == (0, f"polyhead {polyhead.__version__}\n"), done
    done = program("veiw")
    assert done.returncode == 2 and "did you mean 'view'?" in done.stderr, done
    command = pathlib.Path(sys.executable).parent / "polyhead"
    if "POLYHEAD_TEST_PYTHON" not in os.environ:
        done = subprocess.run([command, "--version"], capture_output=True, text=True)
        assert done.stdout == f"polyhead {polyhead.__version__}\n", done


def main():
    print(f"polyhead {polyhead.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, seed {SEED}")
    checks = [value for name, value in globals().items() if callable(value) and "_" in name and value.__module__ == __name__]
    failed = 0
    for check in checks:
        try:
            check()
        except Exception:
            failed += 1
            print(f"{check.__name__}:")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
