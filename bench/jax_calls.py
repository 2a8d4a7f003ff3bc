"""Compares the time of polyhead.jax and of jax.nn.dot_product_attention, both compiled by jax.jit, for small calls, whose time is mostly overhead, and for one
head with 2048 keys.

    python bench/jax_calls.py

The two functions are timed in turn on one processor, in JAX's layout [B,T,N,H]. The script prints the fastest of many rounds for each, in microseconds.
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from typing import Any

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # set this before JAX is imported, because the import starts threads

import jax
import jax.numpy as jnp
import polyhead
from polyhead.jax import dot_product_attention

polyhead.set_num_threads(1)
Call = Callable[..., jax.Array]


def inputs(length: int, heads: int, width: int) -> list[jax.Array]:
    return [jax.random.normal(key, (1, length, heads, width)) for key in jax.random.split(jax.random.key(0), 3)]


def forward(call: Call, length: int, heads: int, width: int, **options: Any) -> Callable[[], object]:
    q, k, v = inputs(length, heads, width)
    compiled = jax.jit(lambda q, k, v: call(q, k, v, **options))
    return lambda: compiled(q, k, v).block_until_ready()


def backward(call: Call, length: int, heads: int, width: int, bias: bool = False, **options: Any) -> Callable[[], object]:
    given = inputs(length, heads, width) + ([jnp.zeros((1, heads, length, length))] if bias else [])
    compiled = jax.jit(jax.grad(lambda *x: call(*x, **options).sum(), argnums=tuple(range(len(given)))))
    return lambda: jax.block_until_ready(compiled(*given))


CASES: dict[str, tuple[int, int, Callable[[Call], Callable[[], object]]]] = {
    "S4 N2 H8": (200, 50, lambda call: forward(call, 4, 2, 8)),
    "S4 N2 H8, causal": (200, 50, lambda call: forward(call, 4, 2, 8, is_causal=True)),
    "S4 N2 H8, f+b": (200, 50, lambda call: backward(call, 4, 2, 8)),
    "S64 N4 H32, f+b": (100, 5, lambda call: backward(call, 64, 4, 32)),
    "S2048 N1 H64": (10, 1, lambda call: forward(call, 2048, 1, 64)),
    "S2048 N1 H64, causal": (10, 1, lambda call: forward(call, 2048, 1, 64, is_causal=True)),
    "S2048 N1 H64, f+b": (6, 1, lambda call: backward(call, 2048, 1, 64)),
    "S2048 N1 H64, bias, f+b": (6, 1, lambda call: backward(call, 2048, 1, 64, bias=True)),
}

print(f"{'':26}{'polyhead':>12}{'jax.nn':>12}{'ratio':>8}")
for name, (rounds, number, make) in CASES.items():
    pair = [make(dot_product_attention), make(jax.nn.dot_product_attention)]
    for call in pair:
        call()
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, call in enumerate(pair):
            best[i] = min(best[i], timeit.timeit(call, number=number) / number * 1e6)
    print(f"{name:26}{best[0]:12.1f}{best[1]:12.1f}{best[1] / best[0]:8.2f}", flush=True)
