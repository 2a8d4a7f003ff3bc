"""Bounds of the difference between a result and the oracle: the rounding errors of the formulas to first order, for each element (docs/maths.md, section 7).

A sum of n terms has an error of at most 8 eps (4 + sqrt n) times the sum of the terms' magnitudes. eps is that of float32, or of float64 for float64 tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Built, sum_to
from oracle import Backward, Forward, groups, turned


def half_unit(x: Any, dtype: Any) -> Any:
    """Returns the error of rounding x to the dtype."""
    bits, smallest = {"float64": (53, 2.0**-1075), "float32": (24, 2.0**-150), "float16": (11, 2.0**-25), "bfloat16": (8, 2.0**-134)}[np.dtype(dtype).name]
    return np.abs(x) * 2.0**-bits + smallest


class Bounds:
    def __init__(self, built: Built, native: bool) -> None:
        self.built, self.ahead = built, built.ahead
        self.eps = 2.0 ** (-52 if built.dtype == np.float64 else -23)
        self.native = 2.0**-8 if native else 0.0
        ahead = built.ahead
        self.live = ahead.used & ~ahead.more["dead"][..., None]
        self.v, self.k, self.q = (np.nan_to_num(x, nan=0, posinf=0, neginf=0) for x in (np.abs(ahead.more["v"]), np.abs(ahead.more["k"]), np.abs(built.wide["q"])))
        self.p = np.nan_to_num(np.where(self.live, ahead.p, 0))
        self.mp = ahead.more["m"] * self.p
        # Kernels may compute 0 for p below this number, because they compute exp relative to the largest score of a block of keys, and exp underflows.
        self.tiny = self.live * 2.0 ** (-1010 if built.dtype == np.float64 else -114)
        # The relative error of p, which comes from the errors of the row's scores and of the sum of exponentials.
        self.of_p = 8 * self.eps * (4 + np.sqrt(built.keys) + ahead.magnitude + np.sqrt(built.width))
        self.of_stored_lse = self.of_p + self.eps * np.abs(np.where(np.isfinite(ahead.lse), ahead.lse, 0))

    def sums(self, n: int) -> float:
        return 8 * self.eps * (4 + np.sqrt(n))

    def out(self) -> Any:
        ahead = self.ahead
        bound = self.of_p[..., None] * (self.mp @ self.v) + (ahead.more["m"] * self.tiny) @ self.v
        if self.native:
            factor = ahead.more["m"].max(initial=0)
            bound = bound + self.native * factor * np.where(self.live.any(-1, keepdims=True), _largest(self.live, self.v), 0)
        return bound + half_unit(np.nan_to_num(ahead.out), self.built.dtype)

    def lse(self) -> Any:
        return self.of_p + 2 * half_unit(np.where(np.isfinite(self.ahead.lse), self.ahead.lse, 0), self.built.lse_dtype)

    def weights(self) -> Any:
        return self.of_p[..., None] * self.p + self.tiny + half_unit(self.p, self.built.dtype)

    def gradients(self, behind: Backward, d_out: Any) -> dict[str, Any]:
        built, ahead = self.built, self.ahead
        clean = lambda x: np.nan_to_num(np.abs(x), nan=0, posinf=0, neginf=0)  # noqa: E731
        d_out = clean(d_out)
        group = built.heads // built.key_heads
        scale = abs(built.scale)
        d_score, d_x, d_p = clean(behind.d_score), clean(behind.d_x), clean(behind.d_p)
        m, of_p = ahead.more["m"], self.of_stored_lse
        of_d_p = self.sums(built.value_width) * np.where(self.live, m * (d_out @ turned(self.v)), 0)
        of_delta = (d_out * (self.out() + self.sums(built.value_width) * clean(ahead.out))).sum(-1) + (self.sums(built.keys) + of_p) * (self.p * d_p).sum(-1)
        # Products in the subnormal range are rounded to multiples of the smallest number, so their relative error may be large.
        smallest = half_unit(0.0, np.float64 if built.dtype == np.float64 else np.float32)
        of_delta = of_delta + (built.value_width + built.keys) * smallest
        of_score = smallest * self.live + (self.p * of_p[..., None] + self.tiny) * (d_p + clean(behind.delta)[..., None]) + self.p * (of_d_p + of_delta[..., None])
        # The derivative of softcap is 1 - tanh^2. It inherits the rounding error of x / c. Where it is small, its relative error is large.
        of_x = of_score + smallest * self.live + d_score * (16 * self.eps + (2 * self.of_p[..., None] if built.case.get("softcap") else 0))
        sums = lambda n: self.sums(n) + self.native  # noqa: E731
        result = {
            "q": scale * ((of_x + sums(built.keys) * d_x) @ self.k),
            "k": groups(scale * (turned(of_x + sums(built.queries * group) * d_x) @ self.q), built.key_heads),
            "v": groups(turned((of_p[..., None] + sums(built.queries * group)) * self.mp + m * self.tiny) @ d_out, built.key_heads),
        }
        expected = {"q": behind.d_q, "k": behind.d_k, "v": behind.d_v}
        for name, bound in result.items():
            result[name] = bound + half_unit(clean(expected[name]), built.dtype)
        self.pairs = of_score + 4 * self.eps * d_score
        self.d_score = d_score
        p_sink = clean(ahead.p_sink)
        self.sinks = p_sink * (of_p * clean(behind.delta) + of_delta) + self.tiny.max(initial=0) * clean(behind.delta)
        return result

    def summed(self, bound: Any, magnitudes: Any, shape: tuple[int, ...], full: tuple[int, ...], dtype: Any, expected: Any) -> Any:
        """Returns the bound of a gradient that is summed over broadcast dimensions."""
        count = max(1, int(np.prod(full, dtype=np.int64)) // max(1, int(np.prod(shape, dtype=np.int64))))
        return sum_to((bound + self.sums(count) * magnitudes).reshape(full), shape) + half_unit(np.nan_to_num(expected), dtype)


def _largest(live: Any, v: Any) -> Any:
    """Returns an upper bound of |v| over the keys of each row, [B,N,T,V]."""
    result = np.empty((*live.shape[:3], v.shape[-1]))
    for b in range(live.shape[0]):
        for n in range(live.shape[1]):
            top = v[b, n].max(-1, initial=0)  # the largest of all features of a key, so that no array [T,S,V] is needed
            result[b, n] = np.where(live[b, n], top, 0).max(-1, initial=0)[:, None]
    return result
