"""Derivatives of the attention weights, written with jax.numpy. They need tensors [*,N,T,S], the size that the attention weights have anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .._arguments import TENSORS
from .._attention import relative_bucket
from ._call import Call

_MASKS = tuple(argument.name for argument in TENSORS if argument.group == "pass" and not argument.has_gradient and argument.name != "dropout_keep")


def gradients(of: dict[str, Any], call: Call, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Gradients of the wanted inputs, from ``p [*,N,T,S]`` and d_p or d_lse (docs/maths.md, equations 7 to 9a). v has no gradient, because p and lse do not
    depend on v."""
    p, result = of["p"], {}
    with jax.numpy_dtype_promotion("standard"):
        if "d_lse" in of:
            d_score = jnp.where(p == 0, 0, p * of["d_lse"][..., None])
        else:
            p_d_p = jnp.where(p == 0, 0, p * of["d_p"])
            delta = jnp.sum(p_d_p, -1, keepdims=True)
            d_score = jnp.where(p == 0, 0, p_d_p - p * delta)
            if "sink" in wanted:
                sink = of["sink"]
                share = _sink_share(of)
                d_rows = jnp.where(share == 0, 0, -share * delta[..., 0])
                result["sink"] = sum_to(d_rows, (*sink.shape, 1) if sink.ndim == 1 else sink.shape).reshape(sink.shape)
        if "bias" in wanted:
            result["bias"] = sum_to(d_score, of["bias"].shape)
        if "slopes" in wanted or "table" in wanted:
            result |= _of_relative_bias(d_score, of, call)
        if "q" in wanted or "k" in wanted:
            result |= _of_operands(d_score, of, call)
    return {name: x for name, x in result.items() if name in wanted}


def _sink_share(of: dict[str, Any]) -> Any:
    """The attention weight of the sink, ``[*,N,T]``, from p and lse."""
    sink, lse, p = of["sink"], of["lse"], of["p"]
    empty = lse == -jnp.inf
    share = jnp.where(empty, 0, jnp.exp((sink[:, None] if sink.ndim == 1 else sink) - jnp.where(empty, 0, lse)))  # avoids infinity - infinity, whose derivative is NaN
    # The relative error of exp(sink - lse) is |lse| eps, because lse is rounded. That of 1 - sum p is eps / share. Use the formula with the smaller error.
    rest = 1 - jnp.sum(p, -1, dtype=share.dtype)
    eps, eps_of_p = (float(jnp.finfo(dtype).eps) for dtype in (share.dtype, p.dtype))  # type: ignore[no-untyped-call]
    return jnp.where(rest * jnp.abs(lse) * eps > eps_of_p, rest, share)


def sum_to(x: Any, shape: Sequence[int]) -> Any:
    """Sums x to `shape`: over the dimensions along which an array of this shape broadcasts to x."""
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + axis for axis, want in enumerate(shape) if x.shape[lead + axis] != want))
    return jnp.sum(x, axes, keepdims=True).reshape(shape) if axes else x


def tangent(of: dict[str, Any], call: Call) -> Any:
    """The tangent of ``p [*,N,T,S]`` along the tangents t_q, t_k, t_bias, ... of the inputs (docs/maths.md, equations 8a to 8c)."""
    p = of["p"]
    with jax.numpy_dtype_promotion("standard"):
        wide = p.astype(jnp.promote_types(p.dtype, jnp.float32))
        moved = jnp.zeros_like(wide)
        if "t_q" in of or "t_k" in of:
            moved += _moved_scores(of, call)
        if "t_bias" in of:
            moved += of["t_bias"]
        if "t_slopes" in of or "t_table" in of:
            moved += _moved_relative_bias(p.shape[-2:], of, call)
        p_moved = jnp.where(wide == 0, 0, wide * moved)
        of_row = jnp.sum(p_moved, -1, keepdims=True)  # the tangent of lse
        if "t_sink" in of:
            z_moved = of["t_sink"][:, None] if of["t_sink"].ndim == 1 else of["t_sink"]
            of_row += (_sink_share(of) * z_moved)[..., None]
        return jnp.where(wide == 0, 0, p_moved - wide * of_row).astype(p.dtype)


def _moved_scores(of: dict[str, Any], call: Call) -> Any:
    rows, k, factor = _operands(of, call)
    x = jnp.zeros((), k.dtype)
    if "t_q" in of:
        x += _product(_operands(of | {"q": of["t_q"]}, call)[0], jnp.swapaxes(k, -1, -2))
    if "t_k" in of:
        x += _product(rows, jnp.swapaxes(_operands(of | {"k": of["t_k"]}, call)[1], -1, -2))
    return (x * factor * _cap_slope(rows, k, factor, call)).reshape(of["p"].shape)


def _moved_relative_bias(pairs: tuple[int, ...], of: dict[str, Any], call: Call) -> Any:
    distance = _distances(pairs, of, call)
    if "t_slopes" in of:
        return -of["t_slopes"][:, None, None] * jnp.abs(distance)
    return of["t_table"][:, _buckets(distance, of["table"].shape[1], call)]


def _operands(of: dict[str, Any], call: Call) -> tuple[Any, Any, float]:
    """Returns (q, k, scale): q as ``[*,K,g*T,H]``, where the g query heads that share a key head are stacked, and k ``[*,K,S,H]`` in the dtype of q."""
    q, k = of["q"], of["k"]
    if call.layout == "TNH":
        q, k = jnp.swapaxes(q, -2, -3), jnp.swapaxes(k, -2, -3)
    if k.dtype != q.dtype:
        k = (k * of["k_scale"][..., None] if "k_scale" in of else k).astype(q.dtype)
    width = q.shape[-1]
    group = q.shape[-3] // max(k.shape[-3], 1)
    rows = q.reshape(*q.shape[:-3], k.shape[-3], group * q.shape[-2], width)
    if any(name in of for name in _MASKS) or call.option("causal") is not None or call.option("window") is not None:
        # Replace NaN and infinity by 0, because p = 0 of a masked key times NaN would be NaN. NaN in an attended key or its query has already made p NaN.
        k, rows = (jnp.where(jnp.isfinite(x), x, 0) for x in (k, rows))
    return rows, k, call.option("scale", width**-0.5 if width > 0 else 0.0)


def _cap_slope(rows: Any, k: Any, factor: float, call: Call) -> Any:
    """The derivative of softcap at each score (docs/maths.md, equation 8)."""
    softcap = call.option("softcap", 0.0)
    return 1 - jnp.tanh(_product(rows, jnp.swapaxes(k, -1, -2)) * (factor / softcap)) ** 2 if softcap > 0 else 1


def _of_operands(d_score: Any, of: dict[str, Any], call: Call) -> dict[str, Any]:
    rows, k, factor = _operands(of, call)
    d_x = d_score.reshape(*rows.shape[:-1], k.shape[-2])
    d_x = d_x * _cap_slope(rows, k, factor, call) * factor
    result = {"q": _product(d_x, k), "k": _product(jnp.swapaxes(d_x, -1, -2), rows)}
    if call.layout == "NTH":
        return {"q": result["q"].reshape(of["q"].shape), "k": result["k"]}
    *lead, queries, heads, width = of["q"].shape
    result["q"] = result["q"].reshape(*lead, heads, queries, width)
    return {name: jnp.swapaxes(x, -2, -3) for name, x in result.items()}


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _distances(pairs: tuple[int, ...], of: dict[str, Any], call: Call) -> Any:
    """For each query t and key s, the distance s - (t + offset)."""
    if "diagonal_offsets" in of or "query_offsets" in of:
        raise NotImplementedError("polyhead has no gradient of attention weights for a relative_bias together with diagonal_offsets or documents")
    queries, keys = pairs
    corner = call.option("causal", *call.option("relative_bias")[2:])
    offset = 0 if corner == "top_left" else keys - queries if corner in (None, "bottom_right") else corner
    numbers: Any = np if isinstance(queries, int) and isinstance(keys, int) else jnp  # the symbolic extents of jax.export have no values yet
    return numbers.arange(keys) - (numbers.arange(queries)[:, None] + offset)


def _buckets(distance: Any, count: int, call: Call) -> Any:
    bidirectional, max_distance, *_ = call.option("relative_bias")
    if not isinstance(distance, np.ndarray):
        raise NotImplementedError("polyhead has no gradient of attention weights for the table of a relative_bias if the number of queries or keys is symbolic (jax.export)")
    buckets = {x: relative_bucket(x, count, bidirectional=bidirectional, max_distance=max_distance) for x in map(int, np.unique(distance))}
    return np.vectorize(buckets.get, otypes=[np.int64])(distance) if distance.size else np.zeros(distance.shape, np.int64)


def _of_relative_bias(d_score: Any, of: dict[str, Any], call: Call) -> dict[str, Any]:
    distance = _distances(d_score.shape[-2:], of, call)
    d = sum_to(d_score.astype(jnp.promote_types(d_score.dtype, jnp.float32)), d_score.shape[-3:])
    if "slopes" in of:
        return {"slopes": -jnp.sum(d * jnp.abs(distance), (1, 2))}
    table = of["table"]
    of_pairs = _buckets(distance, table.shape[1], call).ravel()
    return {"table": jnp.zeros(table.shape, d.dtype).at[:, of_pairs].add(d.reshape(d.shape[0], -1))}
