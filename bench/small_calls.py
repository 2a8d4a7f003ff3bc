"""Compares the time of a small call of polyhead.torch (B1 N2 S4 H8: one sequence, 2 heads, 4 queries and keys, 8 wide) with that of torch's own function. In such
calls the overhead takes longer than the kernel.

    python bench/small_calls.py

The two functions are timed in turn, on one thread. A measurement is the mean of 50 calls; the script prints the fastest of 200 for each, in microseconds.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from polyhead.torch import attention, scaled_dot_product_attention

torch.set_num_threads(1)
q = torch.randn(1, 2, 4, 8)
leaves = [torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3)]
d_out = torch.randn(1, 2, 4, 8)
keep, bias = torch.rand(4, 4) < 0.8, torch.randn(2, 4, 4)
keep[:, 0] = True

Call = Callable[..., torch.Tensor]


def backward(call: Call, **options: Any) -> None:
    call(*leaves, **options).backward(d_out)


ours, theirs = scaled_dot_product_attention, F.scaled_dot_product_attention
CASES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "forward": (lambda: ours(q, q, q), lambda: theirs(q, q, q)),
    "forward, boolean mask": (lambda: ours(q, q, q, keep), lambda: theirs(q, q, q, keep)),
    "forward with a graph": (lambda: ours(*leaves), lambda: theirs(*leaves)),
    "forward and backward": (lambda: backward(ours), lambda: backward(theirs)),
    "f+b, boolean mask": (lambda: backward(ours, attn_mask=keep), lambda: backward(theirs, attn_mask=keep)),
    "attention()": (lambda: attention(q, q, q), lambda: theirs(q, q, q)),
    "attention(), mask and bias, f+b": (lambda: backward(attention, attend=keep, bias=bias), lambda: backward(theirs, attn_mask=bias.masked_fill(~keep, -torch.inf))),
}

print(f"{'':34}polyhead   torch   ratio")
for name, pair in CASES.items():
    best = [float("inf")] * 2
    for _ in range(200):
        for i, call in enumerate(pair):
            best[i] = min(best[i], timeit.timeit(call, number=50) / 50 * 1e6)
    print(f"{name:34}{best[0]:8.1f}{best[1]:8.1f}{best[0] / best[1]:8.2f}")
