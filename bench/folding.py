"""Measures time and memory of a step of protein models, with the attention of their own packages and with polyhead's (polyhead.patch), in turns.

    python bench/folding.py [--residues 128 256 384] [--threads 1] [--rounds 5] [--seconds 60] [--only boltz]

Prints the tables of docs/folding.md. Packages that are not installed are left out. A time is the processor time divided by the number of threads, as
the median over the rounds. In each round the time of the package's step is divided by the time of the polyhead step next to it; the ratio is the median of these quotients.
Memory is the peak during a step in a separate process, minus the memory of that process before the step.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import polyhead
import polyhead.patch
from peer.process_memory import field, restart_peak

ALIGNED = 64  # number of sequences in the multiple sequence alignment


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def triangle(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("boltz.model.layers.triangular_attention.attention", "TriangleAttentionStartingNode")(128, 32, 4)
    mask = torch.ones(1, n, n)
    return layer, [torch.randn(1, n, n, 128)], lambda z: layer(z, mask=mask)


def pair_bias(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("boltz.model.layers.attentionv2", "AttentionPairBias")(384, 128, 16)
    mask = torch.ones(1, n)
    return layer, [torch.randn(1, n, 384), torch.randn(1, n, n, 128)], lambda s, z: layer(s, z, mask, s)


def pairformer(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("boltz.model.layers.pairformer", "PairformerLayer")(384, 128, v2=True, dropout=0.0)
    mask, pairs = torch.ones(1, n), torch.ones(1, n, n)
    return layer, [torch.randn(1, n, 384), torch.randn(1, n, n, 128)], lambda s, z: layer(s, z, mask, pairs)


def rows(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("openfold3.core.model.layers.msa", "MSARowAttentionWithPairBias")(256, 128, 32, 8)
    return layer, [torch.randn(1, ALIGNED, n, 256), torch.randn(1, n, n, 128)], lambda m, z: layer(m, z=z)


def columns(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("openfold3.core.model.layers.msa", "MSAColumnAttention")(256, 32, 8)
    return layer, [torch.randn(1, ALIGNED, n, 256)], lambda m: layer(m)


def esm_layer(n: int) -> tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]:
    layer = of("esm.modules", "TransformerLayer")(1280, 5120, 20, add_bias_kv=False, use_esm1b_layer_norm=True, use_rotary_embeddings=True)
    return layer, [torch.randn(n, 1, 1280)], lambda x: layer(x)


CASES = {
    "boltz: triangle attention, starting node": (triangle, polyhead.patch.boltz),
    "boltz: attention with pair bias": (pair_bias, polyhead.patch.boltz),
    "boltz: Pairformer layer": (pairformer, polyhead.patch.boltz),
    f"openfold3: rows of {ALIGNED} sequences, pair bias": (rows, polyhead.patch.openfold),
    f"openfold3: columns of {ALIGNED} sequences": (columns, polyhead.patch.openfold),
    "fair-esm: layer of ESM-2 650M": (esm_layer, polyhead.patch.esm),
}


def step(case: str, n: int, backward: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    layer, inputs, call = CASES[case][0](n)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    for x in inputs:
        x.requires_grad_(backward)
    layer.train(backward)

    def run() -> None:
        with contextlib.nullcontext() if backward else torch.no_grad():
            found = call(*inputs)
            out = found[-1] if case.startswith("boltz: Pair") else found[0] if isinstance(found, tuple) else found
            if backward:
                out.sum().backward()
        layer.zero_grad()
        for x in inputs:
            x.grad = None

    return run


def patched(case: str, wanted: bool) -> Any:
    return CASES[case][1]() if wanted else contextlib.nullcontext()


def memory_of(case: str, n: int, backward: bool, ours: bool, threads: int) -> float:
    command = [sys.executable, __file__, "--one", json.dumps([case, n, backward, ours]), "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residues", type=int, nargs="+", default=[128, 256, 384])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="each case begins new rounds for this time")
    parser.add_argument("--only", default="")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        case, n, backward, ours = json.loads(given.one)
        run = step(case, n, backward)
        with patched(case, ours):
            restart_peak()  # reset the peak here, because importing torch needs more memory than a small step
            before = field("VmRSS")
            run()
        print((field("VmHWM") - before) / 2**20)
        return
    print(f"{given.threads} thread(s), torch {torch.__version__}, polyhead {polyhead.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.1f}\n")
    print("| | N | pass | own, ms | polyhead, ms | ratio | own, MiB | polyhead, MiB |\n|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if given.only not in case:
            continue
        for n in given.residues:
            for backward in (False, True):
                try:
                    run = step(case, n, backward)
                except ImportError:
                    continue
                times: dict[bool, list[float]] = {False: [], True: []}
                began = time.perf_counter()
                while len(times[True]) < given.rounds and (not times[True] or time.perf_counter() - began < given.seconds):
                    for ours in (False, True):
                        with patched(case, ours):
                            start = time.process_time()
                            run()
                            times[ours].append(1e3 * (time.process_time() - start) / given.threads)
                ratio = statistics.median(own / mine for own, mine in zip(times[False], times[True]))
                own, mine = (statistics.median(times[ours]) for ours in (False, True))
                del run
                of_memory = [memory_of(case, n, backward, ours, given.threads) for ours in (False, True)]
                what = "forward and backward" if backward else "forward"
                print(f"| {case} | {n} | {what} | {own:.0f} | {mine:.0f} | {ratio:.2f} | {of_memory[0]:.0f} | {of_memory[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
