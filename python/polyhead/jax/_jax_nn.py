"""A function with the arguments of jax.nn.dot_product_attention, which calls `attention`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .._options import Precision, require_flags
from ._attention import array, attention, beside_bias


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
    precision: Precision = "native",
) -> Any:
    """`jax.nn.dot_product_attention` on the CPU, without a tensor of scores. Arguments and results are those of jax.nn; the last paragraph lists the differences.

    Args:
        query, key, value: ``[B,T,N,H]``, ``[B,S,K,H]``, ``[B,S,K,V]``, or without B.
        bias: added to the scores, broadcasts to ``[B,N,T,S]``; float32, bfloat16, float16 or float64. If the dtypes of bias and query differ, everything is
            computed in the wider dtype, and out is rounded once. The gradient of bias has the shape and dtype of bias.
        mask: bool, broadcasts to ``[B,N,T,S]``; True = may attend.
        scale: factor of the scores; None is ``1 / sqrt(H)``.
        is_causal: query t attends to keys ``s <= t``.
        query_seq_lengths: integers ``[B]``; rows ``t >= length`` of out are 0.
        key_value_seq_lengths: integers ``[B]``; queries attend to keys ``s < length``.
        local_window_size: ``(left, right)``, or one int for both.
        implementation: must be None: jax.nn's other values select its own implementations.
        return_residual: also return lse ``[B,T,N]`` in the dtype of key, without a gradient. With any mask, lse needs a second pass.
        precision: precision of bfloat16 products, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`; jax.nn has no such argument.

    Returns:
        ``[B,T,N,V]``; with return_residual a tuple. A query whose keys are all masked gives the mean of all values, as in jax.nn.

    Raises:
        ValueError, TypeError, NotImplementedError: for the same reasons as `attention`. Also ValueError for an implementation other than None, and for lengths
            together with inputs without B.

    Differences from jax.nn: NaN in a masked key has no effect. The residual of a query whose keys are all masked, or that query_seq_lengths leaves out, is
    -inf; in jax.nn it is a large negative number. For a query whose attended keys all have a bias of -inf, out is 0; if these biases are near finfo.min, the
    attention weights of these keys sum to 1. For such queries jax.nn gives a part of the attention to masked keys, or NaN for -inf without a mask.
    """
    where = "dot_product_attention"
    if implementation is not None:
        raise ValueError(f"{where}: implementation is {implementation!r}; it must be None, because polyhead has only its own implementation")
    require_flags(where, is_causal=is_causal, return_residual=return_residual)
    query, key, value = (array(where, name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    unbatched = query.ndim == 3
    if unbatched:
        query, key, value = (jnp.expand_dims(x, 0) if x.ndim == 3 else x for x in (query, key, value))
    if query.ndim != 4:
        raise ValueError(f"{where}: query is {list(query.shape)}; it must be [B,T,N,H] or [T,N,H]")
    batch, queries = query.shape[:2]
    bias, mask = (None if x is None else array(where, name, x) for name, x in (("bias", bias), ("mask", mask)))
    lengths = {"query_seq_lengths": query_seq_lengths, "key_value_seq_lengths": key_value_seq_lengths}
    for name, x in lengths.items():
        if x is None:
            continue
        lengths[name] = x = array(where, name, x)
        if x.shape != (batch,) or not jnp.issubdtype(x.dtype, np.integer):
            raise ValueError(f"{where}: {name} is {x.dtype} {list(x.shape)}; it must be integers [B] = [{batch}]")
    options: dict[str, Any] = {"precision": precision}
    if local_window_size is not None:
        if not isinstance(local_window_size, (int, tuple, list)) or isinstance(local_window_size, bool):
            raise TypeError(f"{where}: local_window_size is of type {type(local_window_size).__name__}; it must be an int or (left, right)")
        window = local_window_size if isinstance(local_window_size, (tuple, list)) else (local_window_size, local_window_size)
        options["window"] = tuple(window)
        if not is_causal:  # without causal, a window's diagonal begins at the top left corner in jax.nn, and at the bottom right corner in polyhead
            options["diagonal_offsets"] = np.zeros(batch, np.int32) if isinstance(batch, int) else jnp.zeros(batch, np.int32)
    masked = is_causal or mask is not None or local_window_size is not None or any(x is not None for x in lengths.values())
    options |= {"attend": mask, "scale": scale, "causal": "top_left" if is_causal else None, "key_lengths": lengths["key_value_seq_lengths"]}
    own = query.dtype, key.dtype
    query, key, value, options["bias"] = beside_bias(where, query, key, value, bias)
    out, lse = attention(query, key, value, layout="TNH", empty_rows="uniform" if masked else "zero", return_lse=True, **options)
    out, residual = out.astype(own[0]), None
    if return_residual:
        if masked:  # with empty_rows "uniform", lse is log S for a query without keys, but also for a query with S scores of 0; a second pass distinguishes them
            lse = attention(query, key, value[..., :1], layout="TNH", return_lse=True, **options)[1]
        residual = jax.lax.stop_gradient(jnp.swapaxes(lse, -1, -2)).astype(own[1])
    if (given := lengths["query_seq_lengths"]) is not None:
        real = (jnp.arange(queries) < given[:, None])[:, :, None]
        out = jnp.where(real[..., None], out, jnp.zeros((), out.dtype))
        residual = None if residual is None else jnp.where(real, residual, jnp.full((), -np.inf, residual.dtype))
    if unbatched:
        out, residual = out[0], None if residual is None else residual[0]
    return out if residual is None else (out, residual)
