"""Attention of one sequence on several processes, forward and backward, compared with attention in one process.

torchrun --nproc-per-node 4 ring_attention.py [--tokens 4096]
"""

# %%
from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor

    import polyhead.torch
    from polyhead.distributed import attention, explain, slice_of, take_slice
except ImportError as error:
    sys.exit(f"this example needs polyhead and torch (pip install torch): {error}")

parser = argparse.ArgumentParser(description="Attention of one sequence on several processes; start it with torchrun --nproc-per-node 4 ring_attention.py")
parser.add_argument("--tokens", type=int, default=4096, help="length of the whole sequence (4096)")
TOKENS = parser.parse_args().tokens
if TOKENS < 1:
    parser.exit(2, f"--tokens is {TOKENS}; it must be 1 or more\n")
if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
    parser.exit(2, f"start this example with torchrun --nproc-per-node 4 ring_attention.py, which sets {', '.join(missing)}\n")
HEADS, WIDTH = 8, 64


def whole(seed: int) -> Tensor:
    return torch.randn(1, HEADS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


# %% Zigzag order: each rank has a piece of the beginning and one of the end, so that all have the same work under a causal mask.
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
q, k, v, weight = (take_slice(whole(seed), -2, "zigzag", rank, ranks).clone() for seed in range(4))
for x in (q, k, v):
    x.requires_grad_()

plan = explain(q.detach(), k.detach(), v.detach(), order="zigzag", plan=(1, ranks), causal="top_left")
begin = time.perf_counter()
out = attention(q, k, v, order="zigzag", plan=(1, ranks), causal="top_left")  # plan=None lets polyhead choose
(out * weight).sum().backward()
seconds = time.perf_counter() - begin

# %% Rank 0 collects the slices and compares.
rows = [row for part in slice_of("zigzag", TOKENS, rank, ranks) for row in part]
collected: list[Any] | None = [None] * ranks if rank == 0 else None
dist.gather_object((rows, [out.detach(), q.grad, k.grad, v.grad]), collected)
if collected is not None:
    leaves = [whole(seed).requires_grad_() for seed in range(3)]
    begin = time.perf_counter()
    one = polyhead.torch.attention(*leaves, causal="top_left")
    (one * whole(3)).sum().backward()
    alone = time.perf_counter() - begin
    exact = [one.detach(), *(leaf.grad for leaf in leaves)]
    difference = max((x[..., rows, :] - part).abs().max().item() for rows, parts in collected for x, part in zip(exact, parts) if x is not None)
    print(plan)
    print(f"{ranks} ranks: {seconds:.3f} s, one process: {alone:.3f} s, largest difference {difference:.1e}")
    assert difference < 1e-4
dist.destroy_process_group()
