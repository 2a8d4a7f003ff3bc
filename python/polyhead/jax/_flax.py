"""A function with the arguments of Flax's attention_fn, which calls `attention`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .._options import Precision, require_flags
from ._attention import array, attention, beside_bias, require_plain

_PRECISIONS = {"default", "fastest", "bfloat16", "bfloat16_3x", "tensorfloat32", "high", "float32", "highest"}


def attention_fn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: None = None,
    qk_attn_weights_einsum: None = None,
    attn_weights_value_einsum: None = None,
    is_causal: bool = False,
) -> Any:
    """An `attention_fn` for Flax's MultiHeadDotProductAttention (linen) and MultiHeadAttention (nnx). Its arguments are those of Flax's dot_product_attention.

    Args:
        query, key, value: ``[*,T,N,H]``, ``[*,S,K,H]``, ``[*,S,K,V]``.
        bias, mask: broadcast to ``[*,N,T,S]``. If the dtype of bias is wider than that of q, k and v, everything is computed in the dtype of bias, and out is rounded
            once. A query attends to the keys where mask is not 0.
        broadcast_dropout: True: one plane ``[T,S]`` of dropout bits for all sequences and heads, the same bits as in Flax. False: a separate bit for each
            attention weight, which polyhead draws with dropout_rng; the bits differ from Flax's.
        dropout_rng: a key of jax.random. Needed with dropout_rate.
        dropout_rate: probability in ``[0, 1]`` that an attention weight is dropped.
        deterministic: True: nothing is dropped.
        dtype: the dtype to which q, k and v are cast; None: the dtype to which JAX promotes them.
        precision: a jax.lax.Precision, the name of one, or a pair of these. If one of the pair is above DEFAULT (``"high"``, ``"highest"``, ``"bfloat16_3x"``,
            ``"tensorfloat32"``, ``"float32"``), bfloat16 products are exact, else native (`precision` of `polyhead.sdpa`). Other dtypes are always exact.
        module: the Flax module into which the attention weights before dropout are sown (its method ``sow``).
        force_fp32_for_softmax: ignored; the softmax is always float32 or wider.
        einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum: must be None, because polyhead does not compute by einsum; any other value raises
            a ValueError.
        is_causal: query t attends to keys ``s <= t``. With one query and several keys, as in Flax's decoding with a cache, this means only the first key, and a
            warning says so.

    Returns:
        ``[*,T,N,V]``. A query whose keys are all masked gives the mean of all values, as in Flax. Results differ from Flax for a query whose attended keys all
        have a bias of -inf (here out is 0) or near finfo.min (here the attention weights of these keys sum to 1). Flax gives a part of the attention to masked
        keys too, or NaN for -inf without a mask.

    Raises:
        ValueError, TypeError, NotImplementedError: for the same reasons as `attention`.
    """
    einsums = {"einsum_dot_general": einsum_dot_general, "qk_attn_weights_einsum": qk_attn_weights_einsum, "attn_weights_value_einsum": attn_weights_value_einsum}
    for name, function in einsums.items():
        if function is not None:
            raise ValueError(f"attention_fn: {name} is given, and polyhead computes without an einsum; it must be None")
    where = "attention_fn"
    require_flags(
        where, broadcast_dropout=broadcast_dropout, deterministic=deterministic, force_fp32_for_softmax=force_fp32_for_softmax, is_causal=is_causal
    )  # fmt: skip
    if isinstance(dropout_rate, bool) or not isinstance(dropout_rate, (int, float, np.floating)):
        raise TypeError(f"{where}: dropout_rate is of type {type(dropout_rate).__name__}; it must be a number")
    if not 0 <= dropout_rate <= 1:
        raise ValueError(f"{where}: dropout_rate is {dropout_rate}; it must lie in [0,1]")
    if module is not None and not hasattr(module, "sow"):
        raise TypeError(f"{where}: module is of type {type(module).__name__}; it must be a module of Flax, which has `sow`")
    query, key, value = (array(where, name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    bias, mask = (None if x is None else array(where, name, x) for name, x in (("bias", bias), ("mask", mask)))
    dtype = jnp.result_type(query, key, value) if dtype is None else _floating(where, dtype)
    if query.ndim < 3 or key.ndim < 3:
        raise ValueError(f"{where}: query is {list(query.shape)} and key is {list(key.shape)}; they must be [*,T,N,H] and [*,S,K,H]")
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    attend = None if mask is None else mask.astype(bool)
    options: dict[str, Any] = {"precision": _of_products(where, precision)}
    if not deterministic and dropout_rate > 0:
        if dropout_rng is None:
            raise ValueError(f"{where}: dropout_rate is {dropout_rate} and dropout_rng is missing")
        options["dropout"] = dropout_rate
        if isinstance(dropout_rng, jax.Array):
            require_plain(where, "dropout_rng", dropout_rng)
        if broadcast_dropout:
            plane = (*(1,) * (query.ndim - 2), query.shape[-3], key.shape[-3])
            options["dropout_keep"] = jax.random.bernoulli(dropout_rng, 1 - dropout_rate, plane)
        else:
            options["seed"] = dropout_rng
    if is_causal and query.shape[-3] == 1 and key.shape[-3] != 1:
        warnings.warn(
            f"{where}: is_causal with one query and {key.shape[-3]} keys attends to the first key alone, as in Flax. Where Flax decodes with a cache, leave "
            "is_causal out: the mask that Flax passes is causal already", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    masked = is_causal or mask is not None
    query, key, value, bias = beside_bias(where, query, key, value, bias)
    result = attention(
        query, key, value, layout="TNH", bias=bias, attend=attend, causal="top_left" if is_causal else None, empty_rows="uniform" if masked else "zero",
        return_attention_weights=module is not None, **options,
    )  # fmt: skip
    if isinstance(result, jax.Array):  # module is None, so the result is only out
        return result.astype(dtype)
    out, p = (x.astype(dtype) for x in result)
    assert module is not None
    nnx = sys.modules.get("flax.nnx")
    module.sow(nnx.Intermediate if nnx is not None and isinstance(module, nnx.Module) else "intermediates", "attention_weights", p)
    return out


def _of_products(where: str, precision: Any) -> Precision:
    """Converts JAX's precision to polyhead's. Every precision above JAX's default becomes "exact"."""
    parts = precision if isinstance(precision, tuple) else (precision,)
    if not all(part is None or isinstance(part, jax.lax.Precision) or (isinstance(part, str) and part in _PRECISIONS) for part in parts):
        raise ValueError(f"{where}: precision is {precision!r}; it must be one of jax.lax.Precision or None")
    default = jax.lax.Precision.DEFAULT
    return "native" if all(part is None or jax.lax.Precision(part) is default for part in parts) else "exact"


def _floating(where: str, dtype: Any) -> Any:
    try:
        known = jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"{where}: dtype is {dtype!r}; it must be a dtype of JAX") from None
    if not jnp.issubdtype(known, jnp.floating) or jax.dtypes.canonicalize_dtype(known) != known:
        raise ValueError(f"{where}: dtype is {known}; it must be float32, bfloat16, float16, or float64 with jax_enable_x64")
    return known
