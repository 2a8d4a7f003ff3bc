"""Attention as primitives of JAX: the forward pass, the backward pass, and its derivative, which JAX transposes into the backward pass and never evaluates.

They are primitives, and not a `jax.custom_vjp` of `jax.ffi.ffi_call`, because of `vmap`: a bias that is not mapped stays one array, and its gradient one
sum. A custom_vjp would make a gradient of each example first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _core
from . import _scores

_TARGET = "polyhead_attention"
jax.ffi.register_ffi_target(_TARGET, _core.jax_handler(), platform="cpu")

GRADIENTS = ("q", "k", "v", "bias", "sink", "slopes", "table")
_SHARED = ("query_offsets", "key_offsets", "slopes", "table")  # one array serves all sequences of a call
_SECOND = "polyhead.jax has no second derivatives and no forward mode (jax.hessian, jax.jvp, jax.jacfwd); jax.grad, jax.vjp and jax.jacrev work"


class Call(NamedTuple):
    """What a primitive computes, besides its arrays. bindings/jax.cc reads the same from a text."""

    operands: tuple[str, ...]  # their names, q, k and v first
    options: tuple[tuple[str, Any], ...]  # those of `polyhead.sdpa` that are no arrays
    layout: str = "NTH"  # or "TNH", of q, k, v and out
    attention_weights: bool = False
    levels: int = 0  # of jax.vmap: each array has so many dimensions more in front, of extent 1 where it is not mapped

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return dict(self.options).get(name, default)

    def without(self, *names: str) -> Call:
        """The call without some operands and options."""
        return self._replace(
            operands=tuple(name for name in self.operands if name not in names), options=tuple(item for item in self.options if item[0] not in names)
        )


def _word(value: Any) -> str:
    if isinstance(value, tuple):  # a window, or the numbers of a relative bias
        return ",".join("" if part is None else _word(part) for part in value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _text(call: Call, operands: Sequence[str], results: Sequence[str]) -> str:
    words = {"operands": tuple(operands), "results": tuple(results), "levels": call.levels, "layout": call.layout, **dict(call.options)}
    return " ".join(f"{name}={_word(value)}" for name, value in words.items())


def _extents(arrays: Sequence[Any], levels: int) -> tuple[int, ...]:
    return tuple(next((x.shape[level] for x in arrays if x.shape[level] != 1), 1) for level in range(levels))


def _results(call: Call) -> tuple[str, ...]:
    return ("out", "lse", "attention_weights") if call.attention_weights else ("out", "lse")


def _forward_shapes(*arrays: Any, call: Call) -> list[Any]:
    q, k, v = arrays[:3]
    *lead, first, second, _ = q.shape[call.levels :]
    rows = (second, first) if call.layout == "TNH" else (first, second)
    keys = k.shape[-3 if call.layout == "TNH" else -2]
    extents = _extents(arrays, call.levels)
    lse = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
    shapes = [((*lead, first, second, v.shape[-1]), q.dtype), ((*lead, *rows), lse), ((*lead, *rows, keys), q.dtype)]
    return [jax.core.ShapedArray((*extents, *shape), dtype) for shape, dtype in shapes[: len(_results(call))]]


def _forward_text(call: Call) -> str:
    return _text(call, call.operands, _results(call))


def _backward_shapes(*arrays: Any, call: Call, wanted: tuple[str, ...], extents: tuple[tuple[int, ...], ...]) -> list[Any]:
    of = dict(zip(call.operands, arrays))
    return [jax.core.ShapedArray((*front, *of[name].shape[call.levels :]), of[name].dtype) for name, front in zip(wanted, extents)]


def _backward_text(call: Call, wanted: tuple[str, ...], extents: tuple[tuple[int, ...], ...]) -> str:
    return _text(call, (*call.operands, "out", "lse", "d_out"), [f"d_{name}" for name in wanted])


def _tangent_shapes(*arrays: Any, call: Call, wanted: tuple[str, ...]) -> list[Any]:
    extents = _extents(arrays, call.levels)
    results = arrays[len(call.operands) :]
    return [jax.core.ShapedArray((*extents, *x.shape[call.levels :]), x.dtype) for x, _ in zip(results, _results(call))]


def _primitive(name: str, shapes: Callable[..., Any], text: Callable[..., str]) -> Any:
    primitive: Any = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)

    @functools.lru_cache(maxsize=4096)
    def compiled(params: tuple[tuple[str, Any], ...]) -> Any:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    def evaluate(*arrays: Any, **params: Any) -> Any:
        return compiled(tuple(params.items()))(*arrays)

    primitive.def_impl(evaluate)

    def lower(context: Any, *arrays: Any, **params: Any) -> Any:
        return jax.ffi.ffi_lowering(_TARGET)(context, *arrays, call=text(**params))

    def lower_elsewhere(context: Any, *arrays: Any, **params: Any) -> Any:
        raise NotImplementedError(f"polyhead.jax computes on the CPU, and this is compiled for {', '.join(context.module_context.platforms)}; put the arrays on jax.devices('cpu')")

    mlir.register_lowering(primitive, lower, platform="cpu")
    mlir.register_lowering(primitive, lower_elsewhere)
    return primitive


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(_SECOND)


forward_p = _primitive("polyhead_attention", _forward_shapes, _forward_text)
backward_p = _primitive("polyhead_attention_backward", _backward_shapes, _backward_text)
tangent_p = _primitive("polyhead_attention_tangent", _tangent_shapes, _refuse)
tangent_p.def_impl(_refuse)


def _with_level(arrays: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], int]:
    size = next(x.shape[dim] for x, dim in zip(arrays, dims) if dim is not None)
    return [jnp.expand_dims(x, 0) if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims)], size


def _batched(primitive: Any) -> Callable[..., Any]:
    def rule(arrays: Sequence[Any], dims: Sequence[int | None], *, call: Call, **params: Any) -> Any:
        arrays, size = _with_level(arrays, dims)
        if "extents" in params:  # each example has its own gradients
            params["extents"] = tuple((size, *front) for front in params["extents"])
        results = primitive.bind(*arrays, call=call._replace(levels=call.levels + 1), **params)
        return results, [0] * len(results)

    return rule


for _p in (forward_p, backward_p, tangent_p):
    batching.primitive_batchers[_p] = _batched(_p)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    results = forward_p.bind(*primals, call=call)
    given = {name: t for name, t in zip(call.operands, tangents) if type(t) is not ad.Zero and t.dtype != jax.dtypes.float0}
    for name in ("k_scale", "v_scale"):
        if name in given:
            raise NotImplementedError(f"attention: {name} is differentiated; polyhead has no gradient of the scales of int8 keys and values")
    return results, tangent_p.bind(*primals, *results, *given.values(), call=call, wanted=tuple(given))


ad.primitive_jvps[forward_p] = _jvp
ad.primitive_jvps[backward_p] = _refuse
ad.primitive_jvps[tangent_p] = _refuse


def _transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, wanted: tuple[str, ...]) -> list[Any]:
    count = len(call.operands)
    known = count + len(_results(call))
    of, (out, lse, *p) = dict(zip(call.operands, arrays)), arrays[count:known]
    targets = {name: t.aval for name, t in zip(wanted, arrays[known:]) if isinstance(t, ad.UndefinedPrimal)}
    d_out, d_lse, *d_p = (None if type(ct) is ad.Zero else ct for ct in cotangents)
    parts = []
    if d_out is not None:
        parts.append(_backward(call, of, out, lse, d_out, targets))
    if d_lse is not None:
        parts.append(_of_lse(call, of, lse, d_lse, targets))
    if p and d_p[0] is not None:
        parts.append(_of_weights(call, of, p[0], d_p[0], targets))
    sums: dict[str, Any] = {}
    for part in parts:
        for name, gradient in part.items():
            gradient = gradient.astype(targets[name].dtype)
            sums[name] = sums[name] + gradient if name in sums else gradient
    gradients = [sums.get(name, ad.Zero(targets[name])) if name in targets else None for name in wanted]
    return [None] * known + gradients


ad.primitive_transposes[tangent_p] = _transpose


def _summed(gradients: dict[str, Any], targets: dict[str, Any], levels: int) -> dict[str, Any]:
    """Sums over the levels of vmap where the input of a gradient is not mapped."""
    return {name: _scores.sum_to(x, (*targets[name].shape[:levels], *x.shape[levels:])) for name, x in gradients.items()}


def _in_one_dtype(call: Call, of: dict[str, Any], *others: Any) -> tuple[Call, dict[str, Any], tuple[Any, ...]]:
    """As `polyhead.sdpa_backward` needs them: keys and values of another dtype than q make all of them float32, in which each is exact."""
    if all(x.dtype == of["q"].dtype for x in (of["k"], of["v"], *others)):
        return call, of, others
    wide = jnp.promote_types(of["q"].dtype, jnp.float32)
    of = dict(of)
    for name in ("k", "v"):
        of[name] = of[name].astype(wide)
        if f"{name}_scale" in of:
            scale = of.pop(f"{name}_scale")
            of[name] *= jnp.expand_dims(jnp.swapaxes(scale, -1, -2) if call.layout == "TNH" else scale, -1)
    for name in ("q", *GRADIENTS[3:]):
        if name in of:
            of[name] = of[name].astype(wide)
    return call.without("k_scale", "v_scale"), of, tuple(x.astype(wide) for x in others)


def _backward(call: Call, of: dict[str, Any], out: Any, lse: Any, d_out: Any, targets: dict[str, Any]) -> dict[str, Any]:
    if not targets:
        return {}
    call, of, (out, d_out) = _in_one_dtype(call, of, out, d_out)
    arrays = [*(of[name] for name in call.operands), out, lse, d_out]
    full = _extents(arrays, call.levels)
    shared = [x for arrays in (of, targets) for name, x in arrays.items() if name in _SHARED]
    # As in bindings/jax.cc, which then has a gradient of each example.
    loops = [extent != 1 and ("seed" in of or any(x.shape[level] != 1 for x in shared)) for level, extent in enumerate(full)]

    def front(name: str) -> tuple[int, ...]:
        own = targets[name].shape
        return tuple(1 if own[level] == 1 and not loops[level] and name not in ("q", "k", "v") else extent for level, extent in enumerate(full))

    found = backward_p.bind(*arrays, call=call._replace(attention_weights=False), wanted=tuple(targets), extents=tuple(map(front, targets)))
    return _summed(dict(zip(targets, found)), targets, call.levels)


def _rows_of(call: Call, rows: Any) -> Any:
    """``[*,N,T]`` in the layout of out, with a width of 1."""
    return jnp.expand_dims(jnp.swapaxes(rows, -1, -2) if call.layout == "TNH" else rows, -1)


def _of_lse(call: Call, of: dict[str, Any], lse: Any, d_lse: Any, targets: dict[str, Any]) -> dict[str, Any]:
    # d_score = p d_lse (docs/maths.md, equation 7b). sdpa_backward gives it for another problem: a sink halves p, and one value of 1 for every key gives
    # d_score = p / 2 (d - d sum p / 2), where d, the gradient of that output, is chosen so that d_lse stands before p.
    rule = call.option("empty_rows")
    if rule == "uniform":
        raise NotImplementedError("polyhead has no gradient of lse with empty_rows='uniform'")
    call = call.without("dropout", "seed", "dropout_keep")
    if rule == "unmasked":  # refuses a sink
        p = forward_p.bind(*(of[name] for name in call.operands), call=call._replace(attention_weights=True))[2]
        return _of_scores(call, of, {"p": p, "d_lse": d_lse}, targets)
    sink, share = of.get("sink"), jnp.zeros_like(lse)  # share: of the sink in the sum of the softmax
    if sink is not None:
        rows = jnp.expand_dims(sink, -1) if sink.ndim == call.levels + 1 else sink
        rows = rows.reshape(*rows.shape[: call.levels], *(1,) * (lse.ndim - rows.ndim), *rows.shape[call.levels :])
        share = jnp.where(lse == -jnp.inf, 0, jnp.exp(rows - lse))
    halved = {**of, "v": jnp.ones((*of["v"].shape[:-1], 1), lse.dtype), "sink": lse + jnp.log1p(share)}
    half_call = call.without("v_scale", "sink")
    half_call = half_call._replace(operands=(*half_call.operands, "sink"))
    halved = {name: halved[name] for name in half_call.operands}
    inputs = {name: aval for name, aval in targets.items() if name not in ("v", "sink")}
    gradients = _backward(half_call, halved, _rows_of(call, (1 - share) / 2), lse + math.log(2), _rows_of(call, 4 * d_lse / (1 + share)), inputs)
    if sink is not None and "sink" in targets:
        gradients["sink"] = _scores.sum_to(share * d_lse, (*targets["sink"].shape[: call.levels], *rows.shape[call.levels :])).reshape(targets["sink"].shape)
    return gradients


def _of_weights(call: Call, of: dict[str, Any], p: Any, d_p: Any, targets: dict[str, Any]) -> dict[str, Any]:
    if call.option("empty_rows") == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention weights with empty_rows='uniform'")
    return _of_scores(call, of, {"p": p, "d_p": d_p}, targets)


def _of_scores(call: Call, of: dict[str, Any], pairs: dict[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """Gradients through a tensor of all pairs, of each example."""
    every = of | pairs
    full = _extents(list(every.values()), call.levels)

    def example(level: int, arrays: dict[str, Any]) -> dict[str, Any]:
        if level == call.levels:
            return _scores.gradients(arrays, call, tuple(targets))
        axes = {name: 0 if x.shape[0] == full[level] else None for name, x in arrays.items()}
        arrays = {name: x if axes[name] == 0 else x[0] for name, x in arrays.items()}
        return jax.vmap(functools.partial(example, level + 1), in_axes=(axes,))(arrays)

    return _summed(example(0, every), targets, call.levels)
