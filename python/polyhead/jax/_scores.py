"""Gradients from those of the attention weights, whose tensor of all pairs the caller has made already: plain functions of jax.numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp

from .._attention import relative_bucket

if TYPE_CHECKING:
    from ._primitives import Call

_MASKS = ("attend", "block", "attend_keys", "block_keys", "key_lengths", "query_offsets")


def gradients(of: dict[str, Any], call: Call, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Gradients of the wanted inputs, from ``p [*,N,T,S]`` and d_p or d_lse (docs/maths.md, equations 7 to 9a). v has none."""
    p, result = of["p"], {}
    with jax.numpy_dtype_promotion("standard"):
        if "d_lse" in of:
            d_score = jnp.where(p == 0, 0, p * of["d_lse"][..., None])
        else:
            p_d_p = jnp.where(p == 0, 0, p * of["d_p"])
            delta = jnp.sum(p_d_p, -1, keepdims=True)
            d_score = jnp.where(p == 0, 0, p_d_p - p * delta)
            if "sink" in wanted:  # it has what the keys' p lack to 1
                sink = of["sink"]
                rows = sink[:, None] if sink.ndim == 1 else sink
                d_rows = jnp.where(rows == -jnp.inf, 0, (jnp.sum(p, -1) - 1) * delta[..., 0])
                result["sink"] = sum_to(d_rows, rows.shape).reshape(sink.shape)
        if "bias" in wanted:
            result["bias"] = sum_to(d_score, of["bias"].shape)
        if "slopes" in wanted or "table" in wanted:
            result |= _of_relative_bias(d_score, of, call)
        if "q" in wanted or "k" in wanted:
            result |= _of_operands(d_score, of, call)
    return {name: x for name, x in result.items() if name in wanted}


def sum_to(x: Any, shape: Sequence[int]) -> Any:
    """The sum over the dimensions along which `shape` broadcasts to x."""
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + axis for axis, want in enumerate(shape) if x.shape[lead + axis] != want))
    return jnp.sum(x, axes, keepdims=True).reshape(shape) if axes else x


def _of_operands(d_score: Any, of: dict[str, Any], call: Call) -> dict[str, Any]:
    q, k = of["q"], of["k"]
    if call.layout == "TNH":
        q, k = jnp.swapaxes(q, -2, -3), jnp.swapaxes(k, -2, -3)
    if k.dtype != q.dtype:
        k = (k * of["k_scale"][..., None] if "k_scale" in of else k).astype(q.dtype)
    width = q.shape[-1]
    factor = call.option("scale", width**-0.5 if width > 0 else 0.0)
    # The g query heads that share a key head are stacked along the queries: [*,K,g*T,..].
    group = q.shape[-3] // max(k.shape[-3], 1)
    stacked = (*q.shape[:-3], k.shape[-3], group * q.shape[-2])
    rows, d_x = q.reshape(*stacked, width), d_score.reshape(*stacked, k.shape[-2])
    if any(name in of for name in _MASKS) or call.option("causal") is not None or call.option("window") is not None:
        # Replace NaN by 0: the 0 of a masked key times NaN would be NaN. A NaN in an attended key or its query is in d_x already.
        k, rows = (jnp.where(jnp.isfinite(x), x, 0) for x in (k, rows))
    softcap = call.option("softcap", 0.0)
    if softcap > 0:
        d_x = d_x * (1 - jnp.tanh(_product(rows, jnp.swapaxes(k, -1, -2)) * (factor / softcap)) ** 2)
    d_x = d_x * factor
    d_q = _product(d_x, k).reshape(q.shape)
    d_k = _product(jnp.swapaxes(d_x, -1, -2), rows)
    if call.layout == "TNH":
        d_q, d_k = jnp.swapaxes(d_q, -2, -3), jnp.swapaxes(d_k, -2, -3)
    return {"q": d_q, "k": d_k}


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _of_relative_bias(d_score: Any, of: dict[str, Any], call: Call) -> dict[str, Any]:
    if "diagonal_offsets" in of or "query_offsets" in of:
        raise NotImplementedError("polyhead has no gradient of attention weights for a relative_bias together with diagonal_offsets or documents")
    bidirectional, max_distance, *diagonal = call.option("relative_bias")
    queries, keys = d_score.shape[-2:]
    corner = call.option("causal", *diagonal)
    offset = 0 if corner == "top_left" else keys - queries if corner in (None, "bottom_right") else corner
    d = sum_to(d_score.astype(jnp.promote_types(d_score.dtype, jnp.float32)), d_score.shape[-3:])
    distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    if "slopes" in of:
        return {"slopes": -jnp.sum(d * np.abs(distance), (1, 2))}
    table = of["table"]
    buckets = {x: relative_bucket(x, table.shape[1], bidirectional=bidirectional, max_distance=max_distance) for x in map(int, np.unique(distance))}
    of_pairs = np.vectorize(buckets.get, otypes=[np.int64])(distance).ravel() if distance.size else np.zeros(0, np.int64)
    return {"table": jnp.zeros(table.shape, d.dtype).at[:, of_pairs].add(d.reshape(d.shape[0], -1))}
