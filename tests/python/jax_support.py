"""Helpers of the tests of polyhead.jax: random arrays and comparison of results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, Any]


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32))


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def close(ours: Any, exact: Any, tolerance: float, what: str) -> None:
    ours, exact = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
    assert ours.shape == exact.shape, what
    if exact.size:
        error = np.abs(ours - exact).max() / max(np.abs(exact).max(), 1e-3)
        assert error <= tolerance, f"{what}: error {error:.3g}"


def all_close(ours: Any, exact: Any, tolerance: float, what: str) -> None:
    """Compares all gradients of one loss. Errors are relative to the largest number in all of them: a gradient that should be exactly 0 holds only rounding errors, so
    its own largest number is no scale."""
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(exact)]
    largest = max((np.abs(x).max() for x in leaves if x.size), default=0.0)
    for a, b in zip(jax.tree.leaves(ours), leaves, strict=True):
        close(np.append(np.asarray(a, np.float64), largest), np.append(b, largest), tolerance, what)
