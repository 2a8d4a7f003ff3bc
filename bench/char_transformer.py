"""Compares the training of examples/char_transformer with that of the same model in PyTorch, from the same parameters and texts: the loss of each step, and the
time of a step.

    python3 bench/char_transformer.py build/dev/examples/char_transformer [--text README.md] [--steps 400] [--threads 1]

Prints the largest difference of the two losses of a step, relative to PyTorch's loss, and the time of a step in both programs, which are measured in turn.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

BATCH, LENGTH, HEADS = 16, 128, 4
root = pathlib.Path(__file__).parents[1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, default=root / "README.md")
    parser.add_argument("--steps", type=int, default=400, help="number of steps whose losses are compared")
    parser.add_argument("--timed", type=int, default=20, help="number of steps in each of 5 turns of time measurement")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def run_program(given: argparse.Namespace, steps: int, parameters: pathlib.Path) -> tuple[list[float], float]:
    begin = time.perf_counter()
    # the program starts a thread for each processor that it may use
    done = subprocess.run([given.program, given.text, str(steps), parameters], capture_output=True, check=True)
    return [float(x) for x in re.findall(rb"step \d+: loss (\S+)", done.stdout)], time.perf_counter() - begin


def layer(x: Tensor, p: dict[str, Tensor], prefix: str) -> Tensor:
    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{prefix}{name}.weight"], p[f"{prefix}{name}.bias"])

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, p[f"{prefix}{name}.weight"], p[f"{prefix}{name}.bias"])

    normed = norm("attention_norm", x)
    q, k, v = (linear(f"attention.{name}", normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    x = x + linear("attention.output", attended)
    return x + linear("feed_forward.output", F.gelu(linear("feed_forward.hidden", norm("feed_forward_norm", x))))


class PyTorch:
    def __init__(self, text: bytes, parameters: pathlib.Path) -> None:
        self.text, self.step = np.frombuffer(text, np.uint8).astype(np.int64), 0
        self.p = {name: x.requires_grad_() for name, x in load_file(parameters).items() if not name.startswith("optimizer.")}
        self.optimizer = torch.optim.AdamW(self.p.values(), lr=1e-3, weight_decay=0.01, fused=True)

    def run(self) -> float:
        starts = (self.step * BATCH + np.arange(BATCH)) * 7919 % (len(self.text) - LENGTH)
        window = torch.from_numpy(self.text[starts[:, None] + np.arange(LENGTH + 1)])
        x = F.embedding(window[:, :-1], self.p["tokens.weight"]) + self.p["positions.weight"][:LENGTH]
        for i in range(4):
            x = layer(x, self.p, f"layers.layers.{i}.")
        x = F.layer_norm(x, x.shape[-1:], self.p["layers.final_norm.weight"], self.p["layers.final_norm.bias"])
        loss = F.cross_entropy(F.linear(x, self.p["output.weight"], self.p["output.bias"]).flatten(0, 1), window[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()


def main() -> None:
    given = arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        start = pathlib.Path(folder) / "start.safetensors"
        run_program(given, 0, start)
        copy = pathlib.Path(folder) / "copy.safetensors"
        if given.steps:
            copy.write_bytes(start.read_bytes())
            ours, _ = run_program(given, given.steps, copy)
            theirs = PyTorch(given.text.read_bytes(), start)
            differences = [abs(a - b) / b for a, b in zip(ours, [theirs.run() for _ in ours], strict=True)]
            worst = int(np.argmax(differences))
            print(f"{given.steps} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}; largest relative difference {differences[worst]:.2g} in step {worst + 1}")
        theirs = PyTorch(given.text.read_bytes(), start)
        theirs.run()
        times: dict[str, list[float]] = {"polyhead": [], "PyTorch": []}
        for _ in range(5):
            _, none = run_program(given, 0, start)
            copy.write_bytes(start.read_bytes())
            times["polyhead"].append((run_program(given, given.timed, copy)[1] - none) / given.timed)
            begin = time.perf_counter()
            for _ in range(given.timed):
                theirs.run()
            times["PyTorch"].append((time.perf_counter() - begin) / given.timed)
        ours_ms, theirs_ms = (1e3 * statistics.median(times[name]) for name in times)
        print(f"a step on {given.threads} threads: polyhead {ours_ms:.1f} ms, PyTorch {theirs_ms:.1f} ms, ratio {theirs_ms / ours_ms:.2f}")


if __name__ == "__main__":
    main()
