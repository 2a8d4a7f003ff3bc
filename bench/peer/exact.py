"""The exact result with which every peer's result is compared: the formula in float64 with NumPy, head by head. Cases with dropout have no exact result, because each peer
draws its own dropout bits."""

from __future__ import annotations

import numpy as np
from scipy.special import erf

from . import encoder, rules
from .cases import Case, Encoder, alibi_bias, relative_view


ROWS = 2048  # this many queries are computed at a time, because all scores of 16384 queries and keys would take 2 GB


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: np.ndarray | None, keep: np.ndarray | None, sink: float = -np.inf) -> np.ndarray:
    if len(q) > ROWS:
        parts = [slice(first, first + ROWS) for first in range(0, len(q), ROWS)]
        of = lambda x, rows: None if x is None else x[rows] if len(x) == len(q) else x  # noqa: E731
        return np.concatenate([_attend(q[rows], k, v, scale, of(bias, rows), of(keep, rows), sink) for rows in parts])
    score = scale * (q @ k.T)
    if bias is not None:
        score += bias
    if keep is not None:
        score[~np.broadcast_to(keep, score.shape)] = -np.inf
    largest = np.maximum(score.max(-1, keepdims=True), sink)
    score -= largest
    np.exp(score, out=score)
    return (score @ v) / (score.sum(-1, keepdims=True) + np.exp(sink - largest))


class _Encoder(encoder.ArrayOperations):
    def norm(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + encoder.EPSILON) * weight + bias

    def gelu(self, x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + erf(x * 2**-0.5))

    def attend(self, *qkv: np.ndarray) -> np.ndarray:
        out = np.empty_like(qkv[0])
        for b in range(self.case.B):
            for n in range(self.case.N):
                head = slice(n * self.case.H, (n + 1) * self.case.H)
                out[b, :, head] = _attend(*(x[b, :, head] for x in qkv), self.case.scale, None, None)
        return out

    def pool(self, x: np.ndarray) -> np.ndarray:
        mean = x.mean(1)
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def _with_rule(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    a = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in arrays.items()}
    rule = rules.RULES[case.rule].make(np, a)
    queries, keys = np.arange(case.T)[:, None], np.arange(case.keys)[None, :]
    out = np.empty((case.B, case.N, case.T, case.value_width))
    for b in range(case.B):
        for n in range(case.N):
            score = rule(case.scale * (a["q"][b, n] @ a["k"][b, n].T), b, n, queries, keys)
            p = np.exp(score - score.max(-1, keepdims=True))
            out[b, n] = p @ a["v"][b, n] / p.sum(-1, keepdims=True)
    return out.reshape(case.output_shape)


def forward(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """The output in float64; None for a case with dropout, whose result is random."""
    if case.dropout:
        return None
    a = {name: array if array.dtype in (bool, np.int64) else array.astype(np.float64) for name, array in arrays.items()}
    if isinstance(case, Encoder):
        return encoder.forward(case, a, _Encoder(case))
    if case.layer:
        heads = lambda x: x.reshape(case.B, case.T, case.N, case.H).transpose(0, 2, 1, 3)  # noqa: E731
        q, k, v = (heads(a["x"] @ a[f"w_{name}"].T) for name in ("q", "k", "v"))
        keep = a.get("attend_keys")
    else:
        q, k, v = (a[name].reshape(case.B, *a[name].shape[-3:]) for name in ("q", "k", "v"))
        keep = a.get("attend")
    bias = relative_view(a["bias_table"], case.T)[None] if case.bias == "relative" else a.get("bias")
    if case.bias == "alibi":
        bias = alibi_bias(case, a["slopes"])
    out = np.empty((case.B, case.N, case.T, case.value_width))
    ends = np.cumsum(case.lengths)
    document = np.searchsorted(ends, np.arange(case.T), side="right") if case.lengths else None
    if case.rule:
        return _with_rule(case, arrays)
    triangle = np.tri(case.T, case.keys, dtype=bool) if case.causal else None
    group = case.N // case.kv_heads
    for b in range(case.B):
        for n in range(case.N):
            row_keep = triangle if keep is None and document is None else document[:, None] == document if document is not None else (keep if keep.ndim == 2 else keep[b, 0])
            out[b, n] = _attend(q[b, n], k[b, n // group], v[b, n // group], case.scale, None if bias is None else bias[0, n], row_keep, a["sink"][n] if case.sink else -np.inf)
    if not case.layer:
        return out.reshape(case.output_shape)
    merged = out.transpose(0, 2, 1, 3).reshape(case.B, case.T, -1)
    if case.layer == "gated":
        merged = merged / (1 + np.exp(-(a["x"] @ a["w_g"].T + a["b_g"])))
    return merged @ a["w_o"].T
