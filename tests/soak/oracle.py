"""Attention forward and backward in NumPy float64, written from docs/maths.md without code of polyhead: one line for each equation, with arrays of all pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any


def philox_words(key: int, b: Array, n: Array, t: Array, group: Array) -> Array:
    """Returns uint32 [..., 4], the output of Philox 4x32-10 (Salmon et al. 2011) for the counter (group, t, n, b)."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(x, np.uint64) & low for x in np.broadcast_arrays(group, t, n, b))
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (second >> shift) ^ c1 ^ k0, second & low, (first >> shift) ^ c3 ^ k1, first & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], -1)


def keep_bits(dropout: float, seed: int, shape: tuple[int, ...]) -> Array:
    """Returns the dropout bits, bool [B,N,T,S]: True for attention weights that are kept."""
    b, n, t, s = np.ogrid[tuple(slice(extent) for extent in shape)]
    words = philox_words(seed, b, n, t, s // 4)
    words = np.take_along_axis(words, np.broadcast_to(s % 4, shape)[..., None], -1)[..., 0] if min(shape) else np.zeros(shape, np.uint64)
    return words >= np.uint64(int(np.floor(dropout * 2.0**32 + 0.5)))


def alibi(slopes: Array, distance: Array) -> Array:
    """Returns ALiBi's bias from slopes [N] and distances that broadcast to [B,N,T,S]."""
    return -slopes[:, None, None] * np.abs(distance)


def buckets_of(distance: Array, buckets: int, bidirectional: bool, max_distance: int) -> Array:
    """Returns the buckets of equation 4a in exact integer arithmetic: bucket E + i begins at the first d with (d / E) ^ (D - E) >= (max_distance / E) ^ i."""
    count = buckets // 2 if bidirectional else buckets
    d = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = count // 2
    table = []
    for x in range(int(d.max(initial=0)) + 1):
        if x < exact:
            table.append(x)
            continue
        i = 0
        while exact + i + 1 < count and x ** (count - exact) * exact**(i + 1) >= max_distance ** (i + 1) * exact ** (count - exact):
            i += 1
        table.append(exact + i)
    result = np.asarray(table)[d]
    return result + count * (distance > 0) if bidirectional else result


@dataclass
class Problem:
    """A problem in float64 or bool arrays with one leading dimension B. Absent inputs are None. Shapes: q [B,N,T,H], k [B,K,S,H], v [B,K,S,V]; the others have [B,N,T,S]
    unless a comment says something else."""

    q: Array
    k: Array
    v: Array
    allowed: Array  # pairs that all rules of the mask allow
    document: Array  # [T,S]: pairs whose query and key are in the same document
    scale: float
    softcap: float = 0.0
    bias: Array = None  # [B,N,T,S]: what is added to each score, by a bias or a relative bias
    sink: Array = None  # [B,N,T]
    keep: Array = None  # dropout bits; True: kept
    dropout: float = 0.0
    empty_rows: str = "zero"


@dataclass
class Forward:
    out: Array
    lse: Array
    p: Array
    score: Array  # elements of masked pairs have no meaning
    used: Array  # true for pairs whose value is used: allowed pairs and, depending on empty_rows, pairs of rows without an allowed key
    constant: Array  # [B,N,T,1]: true for empty rows if empty_rows is "uniform"
    scaled: Array  # scale <q, k>
    magnitude: Array  # the largest scale sum |q k| + |bias| of each row, for rounding bounds
    p_sink: Array
    more: dict[str, Array] = field(default_factory=dict)


def turned(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def heads_of(x: Array, heads: int) -> Array:
    """Repeats the key/value heads of [B,K,..] so that each query head has one."""
    return np.repeat(x, heads // max(x.shape[1], 1), 1) if heads else x[:, :0]


def forward(problem: Problem) -> Forward:
    with np.errstate(all="ignore"):
        heads = problem.q.shape[1]
        k, v = heads_of(problem.k, heads), heads_of(problem.v, heads)
        used = problem.allowed
        empty = ~used.any(-1, keepdims=True)
        constant = np.zeros_like(empty)
        if problem.empty_rows != "zero":
            used = np.where(empty, np.broadcast_to(problem.document, used.shape), used)
            if problem.empty_rows == "uniform":
                constant = empty & used.any(-1, keepdims=True)
        scaled = problem.scale * problem.q @ turned(k)
        score = problem.softcap * np.tanh(scaled / problem.softcap) if problem.softcap else scaled
        magnitude = abs(problem.scale) * (np.abs(problem.q) @ turned(np.abs(k)))
        if problem.bias is not None:
            score = score + problem.bias
            magnitude = magnitude + np.where(np.isfinite(problem.bias), np.abs(problem.bias), 0)
        score = np.where(constant, 0.0, score)
        counted = used & ~constant
        magnitude = np.where(counted & np.isfinite(magnitude), magnitude, 0).max(-1, initial=0)
        # The largest score of each row. NaN scores are left out of it, because they make the sum NaN anyway.
        top = np.where(used & ~np.isnan(score), score, -np.inf).max(-1, initial=-np.inf)
        if problem.sink is not None:
            top = np.fmax(top, problem.sink)
        base = np.where(np.isfinite(top), top, 0.0)[..., None]
        e = np.where(used, np.exp(score - base), 0.0)
        total = e.sum(-1)
        sink = np.zeros_like(total) if problem.sink is None else np.exp(problem.sink - base[..., 0])
        lse = base[..., 0] + np.log(total + sink)
        dead = np.isneginf(lse)  # rows without a key, or with scores of -inf only
        safe = np.where(dead, 1.0, total + sink)
        p = np.where(used, e / safe[..., None], 0.0)
        p_sink = sink / safe
        keep = np.ones_like(used) if problem.keep is None else problem.keep
        factor = 0.0 if problem.dropout >= 1 else 1 / (1 - problem.dropout)
        m = np.where(keep, factor, 0.0)
        # Values of masked keys are not used. A used value of NaN gives NaN, even if its p is 0.
        out = values_of(np.where(used, m * p, 0.0), used & ~dead[..., None], v)
        return Forward(out, lse, p, score, used, constant, scaled, magnitude, p_sink, {"m": m, "dead": dead, "v": v, "k": k, "counted": counted})


def values_of(weights: Array, used: Array, v: Array) -> Array:
    out = weights @ np.where(np.isfinite(v), v, 0.0)
    if not np.isfinite(v).all():
        bad = used.astype(float) @ (~np.isfinite(v)).astype(float) > 0
        out = np.where(bad, np.nan, out)
    return out


def groups(x: Array, key_heads: int) -> Array:
    """Sums [B,N,...] over the query heads that share a key/value head."""
    batch, heads, *rest = x.shape
    return x.reshape(batch, key_heads, heads // max(key_heads, 1) if key_heads else 0, *rest).sum(2)


@dataclass
class Backward:
    d_q: Array
    d_k: Array
    d_v: Array
    d_score: Array
    d_sink: Array
    d_x: Array
    delta: Array
    d_p: Array
    slope: Array  # 1 - tanh^2


def backward(problem: Problem, ahead: Forward, d_out: Array) -> Backward:
    """Computes section 3 of docs/maths.md."""
    with np.errstate(all="ignore"):
        m, dead, v, k = (ahead.more[name] for name in ("m", "dead", "v", "k"))
        live = ahead.used & ~dead[..., None]
        p = np.where(live, ahead.p, 0.0)
        d_out = np.where(live.any(-1, keepdims=True), d_out, 0.0)  # d_out of an empty row is not used
        d_p = np.where(live, m * (d_out @ turned(v)), 0.0)
        delta = np.where(live, p * d_p, 0.0).sum(-1)
        moving = live & ~ahead.constant
        d_score = np.where(moving, p * (d_p - delta[..., None]), 0.0)
        slope = 1 - np.tanh(ahead.scaled / problem.softcap) ** 2 if problem.softcap else np.ones_like(d_score)
        d_x = np.where(moving, d_score * slope, 0.0)
        clean_k = np.where(np.isfinite(k), k, 0.0)
        d_q = problem.scale * (d_x @ clean_k)
        key_heads = problem.k.shape[1]
        d_k = groups(problem.scale * (turned(d_x) @ np.where(np.isfinite(problem.q), problem.q, 0.0)), key_heads)
        d_v = groups(turned(np.where(live, m * p, 0.0)) @ d_out, key_heads)
        d_sink = np.where(dead | ahead.constant[..., 0], 0.0, -ahead.p_sink * delta)
        return Backward(d_q, d_k, d_v, d_score, d_sink, d_x, delta, d_p, slope)
