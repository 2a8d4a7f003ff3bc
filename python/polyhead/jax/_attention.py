"""Attention on JAX's arrays, with every option."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import numpy as np
from jax import numpy as jnp

from .._arguments import ARGUMENTS, DEFAULTS, names_of
from .._attention import explain
from .._options import RelativeBias, SdpaOptions, Unpack, annotations_of, refuse, require_flags, takes
from . import _derivatives  # noqa: F401  importing the module registers the derivatives of forward_p
from ._call import Call
from ._primitives import forward_p
from ._score_fn import trace_score_fn

Layout = Literal["NTH", "TNH"]
ScoreFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], Any]

_OPTIONS = annotations_of(SdpaOptions)
_ARRAYS = tuple(name for name, kind in _OPTIONS.items() if kind == "Array | None")
_OF_RELATIVE_BIAS = tuple(argument for argument in ARGUMENTS if argument.group == "relative_bias")
_INTEGERS = names_of("sequences", "documents")
_checked: set[str] = set()
_FIRST_NUMBER = 1009  # the first of the numbers that stand for symbolic extents when a call is checked


@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, layout: Layout = "NTH", return_lse: Literal[False] = False, return_attention_weights: Literal[False] = False,
    k_scale: jax.Array | None = None, v_scale: jax.Array | None = None, score_fn: ScoreFn | None = None, **options: Unpack[SdpaOptions],
) -> jax.Array: ...  # fmt: skip
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, layout: Layout = "NTH", return_lse: Literal[True], return_attention_weights: Literal[False] = False,
    k_scale: jax.Array | None = None, v_scale: jax.Array | None = None, score_fn: ScoreFn | None = None, **options: Unpack[SdpaOptions],
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, layout: Layout = "NTH", return_lse: Literal[False] = False, return_attention_weights: Literal[True],
    k_scale: jax.Array | None = None, v_scale: jax.Array | None = None, score_fn: ScoreFn | None = None, **options: Unpack[SdpaOptions],
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, layout: Layout = "NTH", return_lse: Literal[True], return_attention_weights: Literal[True],
    k_scale: jax.Array | None = None, v_scale: jax.Array | None = None, score_fn: ScoreFn | None = None, **options: Unpack[SdpaOptions],
) -> tuple[jax.Array, jax.Array, jax.Array]: ...  # fmt: skip
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, layout: Layout = "NTH", return_lse: bool = False, return_attention_weights: bool = False,
    k_scale: jax.Array | None = None, v_scale: jax.Array | None = None, score_fn: ScoreFn | None = None, **options: Unpack[SdpaOptions],
) -> jax.Array | tuple[jax.Array, ...]: ...  # fmt: skip
@takes(SdpaOptions)
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    layout: Layout = "NTH",
    return_lse: bool = False,
    return_attention_weights: bool = False,
    k_scale: jax.Array | None = None,
    v_scale: jax.Array | None = None,
    score_fn: ScoreFn | None = None,
    **options: Unpack[SdpaOptions],
) -> jax.Array | tuple[jax.Array, ...]:
    """`polyhead.sdpa` for JAX: attention with every option (Vaswani et al. 2017, equation 1), inside `jax.jit`, `jax.grad`, `jax.jvp`, `jax.vmap` and their
    combinations.

    ::

        score = softcap(f(scale * q k^T)) + bias     softcap(x) = c tanh(x / c), or x when c = 0; f: score_fn, if given
        p     = softmax of score over the attended keys
        out   = dropout(p) v                         lse = log sum exp(score) over the attended keys

    q, k, v, bias, sink and a relative_bias have gradients, through out, lse and the attention weights. The forward pass is one call of the library on XLA's own
    buffers, and so is the backward pass. Between them JAX keeps out and lse, but no tensor ``[*,N,T,S]``. Only gradients through the attention weights, and
    through lse with empty_rows "unmasked", need tensors of this size.

    Forward mode (`jax.jvp`, `jax.jacfwd`, `jax.linearize`) and second derivatives (`jax.hessian`, `jax.grad` of `jax.grad` as in a loss on forces, `jax.jvp` of
    `jax.grad`, `jax.grad` of `jax.jvp`) work for the same inputs and results, also without tensors ``[*,N,T,S]``. `jax.grad` alone is not slower because of
    them.

    Args:
        q, k, v: ``[*,N,T,H]``, ``[*,K,S,H]``, ``[*,K,S,V]``, JAX or NumPy arrays on the CPU; float32, bfloat16, float16, or float64 with jax_enable_x64; k and
            v may have a narrower dtype than q, as in `polyhead.sdpa`.
        layout: the order of dimensions of q, k, v and out: ``"NTH"``, or ``"TNH"`` for ``[*,T,N,H]`` as in jax.nn and Flax. No array is transposed in memory.
            Masks, bias and all other arrays have the order ``[*,N,T,S]`` in both cases.
        return_lse: also return lse ``[*,N,T]``, float32 (float64 for float64 inputs).
        return_attention_weights: also return p ``[*,N,T,S]``, in the dtype of q, before dropout.
        k_scale, v_scale: float32 ``[*,K,S]``, the scales of int8 keys and values.
        score_fn: a function ``score_fn(score, batch, head, q_idx, kv_idx)`` of numbers that returns the new score of a pair, like score_mod of FlexAttention. Each call
            of `attention` traces score_fn to a jaxpr and runs it on tiles of scores, forward and backward, without a tensor ``[*,N,T,S]``. Arrays that score_fn captures
            have gradients. batch counts the sequences of one vmap example in row-major order of the leading dimensions. docs/flex_attention.md lists the
            operations.
        seed: seed of the dropout bits: an int, an integer array ``[]``, or a key of jax.random. The bits are those of `polyhead.sdpa` with the same seed;
            ``jax.random.key(n)`` is the seed n. A traced integer is taken modulo 2^32, or modulo 2^64 if it has 64 bits (jax_enable_x64). Under vmap each example has
            the same bits as in a call for this example alone.
        options: as in `polyhead.sdpa`. Options that are arrays may be traced; all others must be known when JAX traces the function (`static_argnames` of
            jax.jit).

    Returns:
        out ``[*,N,T,V]``; if lse or attention weights are requested, a tuple of out and those requested, in the order out, lse, attention weights.

    Raises:
        ValueError, TypeError: for the same reasons as `polyhead.sdpa`, when JAX traces the function. The values of lengths and offsets in JAX's arrays are
            checked when the call runs; JAX then raises its own error, which contains polyhead's message.
        NotImplementedError: a score_fn with a primitive that docs/flex_attention.md does not list, or with forward mode, second derivatives, or gradients of lse, of a
            relative_bias or of the attention weights; third derivatives; forward mode of forward mode (`jax.jacfwd` of `jax.jacfwd`); a device other than the
            CPU; gradients of lse and derivatives of attention weights with empty_rows "uniform"; derivatives with respect to k_scale and v_scale; derivatives
            of attention weights with respect to a relative_bias with documents or diagonal_offsets.

    Under `jax.vmap`, an array that is not mapped stays one array. Under ``grad`` of ``vmap`` the gradient of this array is one array too, which the library
    sums over the examples. If a seed is given, or if offsets of documents, slopes or a table are mapped, a gradient is made for each example first, and these
    are summed. Results have the same bits as those of `polyhead.sdpa`.
    """
    for name in options:
        if name not in _OPTIONS:
            refuse("attention", name, inspect.signature(attention))
    if not isinstance(layout, str) or layout not in ("NTH", "TNH"):
        raise ValueError(f"attention: layout is {layout!r}; it may be 'NTH' ([*,N,T,H]) or 'TNH' ([*,T,N,H])")
    require_flags("attention", return_lse=return_lse, return_attention_weights=return_attention_weights)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None or name in DEFAULTS}
    operands: dict[str, Any] = {"q": q, "k": k, "v": v} | {name: given.pop(name) for name in _ARRAYS if name in given}
    operands |= {name: x for name, x in (("k_scale", k_scale), ("v_scale", v_scale)) if x is not None}
    relative: Any = given.pop("relative_bias", None)
    if isinstance(relative, RelativeBias):
        for field in _OF_RELATIVE_BIAS:
            value = getattr(relative, field.name)
            if not field.extent:
                _require_known(f"relative_bias.{field.name}", value)
            elif value is not None:
                operands[field.name] = value
    arrays = {name: array("attention", name, x) for name, x in operands.items()}
    seed: Any = given.pop("seed", None)
    if isinstance(seed, jax.Array):
        require_plain("attention", "seed", seed)
    words = None if seed is None else _words(seed)
    for name, value in given.items():
        _require_known(name, value)
    values = {name: operands[name] for name in _INTEGERS if isinstance(operands.get(name), np.ndarray)}
    _check(arrays, values, layout, given, relative, words is not None)
    statics = {name: float(value) if _OPTIONS[name].startswith("float") else _constant(value) for name, value in given.items()}
    statics = {name: value for name, value in statics.items() if value != DEFAULTS.get(name)}
    if relative is not None:
        diagonal = () if relative.diagonal is None else (_constant(relative.diagonal),)
        statics["relative_bias"] = (bool(relative.bidirectional), int(relative.max_distance), *diagonal)
    if "dropout" in statics and "dropout_keep" not in arrays:
        arrays["seed"] = words
    rule = None
    if score_fn is not None:
        if k_scale is not None or v_scale is not None:
            raise NotImplementedError("attention: score_fn is given with k_scale and v_scale; int8 keys have no score_fn")
        rule, captured = trace_score_fn(score_fn, arrays["q"], arrays["k"], layout)
        for i, x in enumerate(captured):
            require_plain("attention", "an array that score_fn captures", x)
            arrays[f"captured{i}"] = x
    call = Call(tuple(arrays), tuple(statics.items()), layout, return_attention_weights, rule)
    out, lse, *p = forward_p.bind(*arrays.values(), call=call)
    more = [*([lse] if return_lse else []), *p]
    return (out, *more) if more else out


def array(where: str, name: str, x: Any) -> Any:
    """Converts a JAX or NumPy array to a JAX array of the same dtype."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(f"{where}: {name} is of type {type(x).__name__}; it must be a JAX or NumPy array")
    if isinstance(x, jax.Array):
        require_plain(where, name, x)
        return x
    try:
        known = jax.dtypes.canonicalize_dtype(x.dtype)
    except TypeError:
        raise TypeError(f"{where}: {name} is an array of {x.dtype}, which JAX does not have") from None
    if known != x.dtype:
        if x.dtype.kind not in "iu":
            raise ValueError(f"{where}: {name} is {x.dtype}, which JAX makes {known} unless jax_enable_x64 is set; set it, or cast {name}")
        if x.size and not np.iinfo(known).min <= x.min() <= x.max() <= np.iinfo(known).max:
            raise ValueError(f"{where}: {name} has values beyond {known}, to which JAX casts {x.dtype} unless jax_enable_x64 is set")
    return jnp.asarray(x)


_FLOATING = tuple(map(np.dtype, (np.float32, np.float64, np.float16, jnp.bfloat16)))


def beside_bias(where: str, query: Any, key: Any, value: Any, bias: Any) -> tuple[Any, Any, Any, Any]:
    """If query and bias have different dtypes: converts them to a dtype that represents the numbers of both, and key and value with query. jax.nn and Flax
    accept such a bias, but `attention` accepts only a bias in the dtype of query."""
    if bias is None or bias.dtype == query.dtype or not all(x.dtype in _FLOATING for x in (query, key, value)):
        return query, key, value, bias
    if bias.dtype not in _FLOATING:
        raise ValueError(f"{where}: bias is {bias.dtype} {list(bias.shape)}; it must be float32, bfloat16, float16, or float64 with jax_enable_x64")
    wide = jnp.promote_types(query.dtype, bias.dtype)
    if wide != query.dtype:
        query, key, value = (x.astype(wide) for x in (query, key, value))
    return query, key, value, bias.astype(wide)


def require_plain(where: str, name: str, x: jax.Array) -> None:
    aval = jax.typeof(x) if hasattr(jax, "typeof") else x
    if getattr(aval, "vma", None) or getattr(getattr(aval, "mat", None), "varying", None):
        raise NotImplementedError(f"{where}: {name} varies over the axes of a jax.shard_map with check_vma=True; polyhead.jax needs jax.shard_map(..., check_vma=False)")


def _words(seed: Any) -> Any:
    """The seed as uint32 [2]: its high 32 bits and its low 32 bits."""
    if isinstance(seed, (jax.Array, np.ndarray)) and not isinstance(seed, jax.core.Tracer) and seed.shape == () and jnp.issubdtype(seed.dtype, np.integer):
        seed = int(seed)
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if not 0 <= int(seed) < 2**64:
            raise ValueError(f"seed is {seed}; it must lie in [0, 2^64)")
        return jnp.asarray(np.array([int(seed) >> 32, int(seed) & 0xFFFFFFFF], np.uint32))
    if isinstance(seed, (jax.Array, np.ndarray)):
        seed = jnp.asarray(seed)
        if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
            data = jax.random.key_data(seed)
            return data if data.shape == (2,) else jax.random.bits(seed, (2,), np.uint32)
        if seed.dtype == np.uint32 and seed.shape == (2,):
            return seed
        if jnp.issubdtype(seed.dtype, np.integer) and seed.shape == ():
            low = seed.astype(np.uint32)
            return jnp.stack([(seed >> 32).astype(np.uint32) if seed.dtype.itemsize == 8 else jnp.zeros_like(low), low])
        raise TypeError(f"attention: seed is {seed.dtype} {list(seed.shape)}; it must be an int, an integer array [] or a key of jax.random")
    raise TypeError(f"attention: seed is of type {type(seed).__name__}; it must be an int, an integer array [] or a key of jax.random")


def _require_known(name: str, value: Any) -> None:
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(part, jax.core.Tracer):
            raise TypeError(f"attention: {name} is a traced value; it must be known when the function is traced (static_argnames of jax.jit)")


def _constant(value: Any) -> Any:
    """Converts an option to a hashable value: a word or integers. Equal options give equal values."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_constant, value))
    return value if value is None or isinstance(value, str) else int(value)


def _check(arrays: dict[str, Any], values: dict[str, Any], layout: Layout, given: dict[str, Any], relative: Any, seeded: bool) -> None:
    """Raises the errors that `polyhead.sdpa` raises for these shapes and dtypes, and for integers whose values are known when the function is traced."""
    shapes = [(name, x.shape, x.dtype, values[name].tobytes() if name in values else None) for name, x in arrays.items()]
    key = repr([layout, seeded, given, type(relative), relative[2:] if isinstance(relative, RelativeBias) else None, shapes])
    if key in _checked:
        return
    numbers = _numbers(arrays)
    of = {name: _stand_in(name, x, arrays, layout, numbers) for name, x in arrays.items()} | values
    if isinstance(relative, RelativeBias):
        relative = relative._replace(slopes=of.pop("slopes", None), table=of.pop("table", None))
    try:
        explain(of.pop("q"), of.pop("k"), of.pop("v"), **of, **given, relative_bias=relative, seed=0 if seeded else None)
    except ValueError as error:
        order = " (shapes in the order [*,N,T,H])" if layout == "TNH" else ""
        raise ValueError(_with_symbols(str(error), numbers).replace("explain: ", "sdpa_forward: ", 1) + order) from None
    if len(_checked) > 10_000:
        _checked.clear()
    _checked.add(key)


def _numbers(arrays: dict[str, Any]) -> dict[Any, int]:
    """Assigns a different number to each symbolic extent of jax.export."""
    symbols = dict.fromkeys(extent for x in arrays.values() for extent in x.shape if not isinstance(extent, int))
    return {symbol: _FIRST_NUMBER + i for i, symbol in enumerate(symbols)}


def _with_symbols(message: str, numbers: dict[Any, int]) -> str:
    for symbol, number in numbers.items():
        message = re.sub(rf"\b{number}\b", str(symbol), message)
    return message


def _stand_in(name: str, x: Any, arrays: dict[str, Any], layout: Layout, numbers: dict[Any, int]) -> Any:
    """A NumPy array with the dtype and shape of x, in which numbers replace symbolic extents. Except for the offsets of documents, the array needs the memory
    of only one element."""
    shape = tuple(numbers.get(extent, extent) for extent in x.shape)
    if layout == "TNH" and name in ("q", "k", "v") and x.ndim >= 3:
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
    if name in ("query_offsets", "key_offsets") and x.ndim == 1 and shape[0] > 1 and np.dtype(x.dtype).kind in "iu":
        of = arrays["q" if name == "query_offsets" or "query_offsets" not in arrays else "k"]
        offsets = np.zeros(shape, np.int64)
        extent = of.shape[-3 if layout == "TNH" else -2] if of.ndim >= 3 else 0
        offsets[-1] = numbers.get(extent, extent)
        return offsets
    return np.broadcast_to(np.zeros((), x.dtype), shape)
