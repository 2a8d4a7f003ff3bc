"""Compares the time of a training step of an encoder with that of PyTorch's nn.TransformerEncoder: forward, backward and AdamW, 6 layers 256 wide on 32 x 128 tokens.

    python3 bench/encoder_step.py build/release/bench/libbench_step.so [--threads 1] [--rounds 10]

The library is the target bench_step of the preset release with -DPOLYHEAD_BUILD_BENCH=ON. polyhead and PyTorch take steps in turn; the script prints the medians in milliseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--shape", type=int, nargs=3, default=[32, 128, 256], metavar=("B", "T", "E"))
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    library = ctypes.CDLL(given.library)
    library.step_new.restype = ctypes.c_void_p
    library.step_new.argtypes = [ctypes.c_int64] * 5 + [ctypes.c_int]
    library.step_run.argtypes = [ctypes.c_void_p] * 3
    step = library.step_new(*given.shape, given.heads, given.layers, given.threads)

    draw = np.random.default_rng(0)
    x, d_y = (draw.standard_normal(given.shape, dtype=np.float32) for _ in range(2))
    width = given.shape[2]
    layer = nn.TransformerEncoderLayer(width, given.heads, 4 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, given.layers, nn.LayerNorm(width), enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    torch_x, torch_d_y = torch.from_numpy(x).requires_grad_(), torch.from_numpy(d_y)

    def theirs() -> None:
        optimizer.zero_grad()
        model(torch_x).backward(torch_d_y)
        optimizer.step()

    calls: dict[str, Callable[[], None]] = {"polyhead": lambda: library.step_run(step, x.ctypes.data, d_y.ctypes.data), "PyTorch": theirs}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(given.rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin))
    ours, other = (statistics.median(times[name]) for name in calls)
    print(f"a step of {given.layers} layers on {given.shape}, {given.threads} threads: polyhead {ours:.0f} ms, PyTorch {other:.0f} ms, ratio {other / ours:.2f}")


if __name__ == "__main__":
    main()
