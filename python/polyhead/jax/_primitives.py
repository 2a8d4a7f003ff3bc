"""Attention as primitives of JAX: the calls of the library, and linear primitives that JAX evaluates in forward mode and transposes in reverse mode.

The reason for primitives, instead of a `jax.custom_vjp` of `jax.ffi.ffi_call`, is `vmap`: with primitives, a bias that is not mapped stays one array, and the
library sums its gradient. A custom_vjp would make a gradient for each example first, and has no forward mode. The derivatives of the primitives are in
_derivatives.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .. import _core
from .._arguments import GRADIENTS, names_of
from . import _scores
from ._call import Call

TARGET = "polyhead_attention"
jax.ffi.register_ffi_target(TARGET, _core.jax_handler(), platform="cpu")

SHARED = names_of("documents", "heads")  # names of arguments that are one array for all sequences of a call
Extents = tuple[tuple[int, ...], ...]


def _word(value: Any) -> str:
    if isinstance(value, tuple):  # a value that consists of several integers: a window, or the numbers of a relative bias
        return ",".join("" if part is None else _word(part) for part in value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _text(call: Call, operands: Sequence[str], results: Sequence[str]) -> str:
    words = {"operands": tuple(operands), "results": tuple(results), "levels": call.levels, "layout": call.layout, **dict(call.options)}
    if call.rule is not None:
        words |= call.rule.words(results if "d_out" in operands else None)
    return " ".join(f"{name}={_word(value)}" for name, value in words.items())


def extents_of(arrays: Sequence[Any], levels: int) -> tuple[int, ...]:
    return tuple(next((x.shape[level] for x in arrays if x.shape[level] != 1), 1) for level in range(levels))


def _results(call: Call) -> tuple[str, ...]:
    return ("out", "lse", "attention_weights") if call.attention_weights else ("out", "lse")


def _forward_shapes(*arrays: Any, call: Call) -> list[Any]:
    q, k, v = arrays[:3]
    *lead, first, second, _ = q.shape[call.levels :]
    rows = (second, first) if call.layout == "TNH" else (first, second)
    keys = k.shape[-3 if call.layout == "TNH" else -2]
    extents = extents_of(arrays, call.levels)
    lse = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
    shapes = [((*lead, first, second, v.shape[-1]), q.dtype), ((*lead, *rows), lse), ((*lead, *rows, keys), q.dtype)]
    return [jax.core.ShapedArray((*extents, *shape), dtype) for shape, dtype in shapes[: len(_results(call))]]


def _forward_text(call: Call) -> str:
    return _text(call, call.operands, _results(call))


def _backward_shapes(*arrays: Any, call: Call, wanted: tuple[str, ...], extents: Extents, given: tuple[str, ...] = ()) -> list[Any]:
    of = dict(zip((*call.operands, "d_out"), arrays))  # because the gradient of d_out has the shape of out
    return [jax.core.ShapedArray((*front, *of[name].shape[call.levels :]), of[name].dtype) for name, front in zip(wanted, extents)]


def _backward_text(call: Call, wanted: tuple[str, ...], extents: Extents, given: tuple[str, ...] = ()) -> str:
    return _text(call, (*call.operands, "out", "lse", "d_out", *(f"t_{name}" for name in given)), [f"d_{name}" for name in wanted])


def _like(results: Sequence[Any], arrays: Sequence[Any], levels: int) -> list[Any]:
    extents = extents_of(arrays, levels)
    return [jax.core.ShapedArray((*extents, *x.shape[levels:]), x.dtype) for x in results]


def _tangent_shapes(*arrays: Any, call: Call, given: tuple[str, ...]) -> list[Any]:
    return _like(arrays[len(call.operands) :][:2], arrays, call.levels)


def _tangent_text(call: Call, given: tuple[str, ...]) -> str:
    return _text(call, (*call.operands, "out", "lse", *(f"t_{name}" for name in given)), ("t_out", "t_lse"))


def _second_tangent_shapes(*arrays: Any, call: Call, given: tuple[str, ...], moved: tuple[str, ...]) -> list[Any]:
    return _tangent_shapes(*arrays, call=call, given=given)


def _map_tangent_shapes(*arrays: Any, call: Call, given: tuple[str, ...]) -> list[Any]:
    return _like(arrays[len(call.operands) + 1 :][:1], arrays, call.levels)


def _lower_elsewhere(context: Any, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"polyhead.jax computes on the CPU, and the function is compiled for {', '.join(context.module_context.platforms)}; put the arrays on jax.devices('cpu')")


def _primitive(name: str, shapes: Callable[..., Any], lower: Callable[..., Any]) -> Any:
    primitive: Any = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)

    @functools.lru_cache(maxsize=4096)
    def compiled(params: tuple[tuple[str, Any], ...]) -> Any:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    def evaluate(*arrays: Any, **params: Any) -> Any:
        call = compiled(tuple(params.items()))
        if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return call(*arrays)
        with jax.disable_jit(False):  # if jit is disabled, the jitted function would call this function again, without end
            return call(*arrays)

    primitive.def_impl(evaluate)
    mlir.register_lowering(primitive, lower, platform="cpu")
    mlir.register_lowering(primitive, _lower_elsewhere)
    return primitive


def _library(name: str, shapes: Callable[..., Any], text: Callable[..., str]) -> Any:
    """A primitive that XLA computes by one call of the library."""

    def lower(context: Any, *arrays: Any, **params: Any) -> Any:
        return jax.ffi.ffi_lowering(TARGET)(context, *arrays, call=text(**params))

    return _primitive(name, shapes, lower)


def _composite(name: str, shapes: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """A primitive that is computed by `function` from other JAX operations, and whose derivatives are registered separately."""

    def lower(context: Any, *arrays: Any, **params: Any) -> Any:
        return mlir.lower_fun(functools.partial(function, **params), multiple_results=True)(context, *arrays)

    return _primitive(name, shapes, lower)


forward_p = _library("polyhead_attention", _forward_shapes, _forward_text)
backward_p = _library("polyhead_attention_backward", _backward_shapes, _backward_text)
# The derivative of the backward pass along the tangents `given`. If "d_out" is wanted, also the derivative of out along these tangents.
second_p = _library("polyhead_attention_backward_backward", _backward_shapes, _backward_text)
_jvp_p = _library("polyhead_attention_jvp", _tangent_shapes, _tangent_text)  # the pass needs k and v in the dtype of q


def refuse_with_score_fn(call: Call, what: str) -> None:
    if call.rule is not None:
        raise NotImplementedError(f"attention: polyhead has no {what} with a score_fn")


SECOND = "second derivative (jax.hessian, jax.grad of jax.grad)"


def _tangent(*arrays: Any, call: Call, given: tuple[str, ...]) -> Any:
    refuse_with_score_fn(call, "forward mode (jax.jvp, jax.jacfwd, jax.linearize)")
    count = len(call.operands)
    of, (out, lse), moves = dict(zip(call.operands, arrays)), arrays[count : count + 2], dict(zip(given, arrays[count + 2 :]))
    call, of, (wide,) = in_one_dtype(call, of, out)
    moved, lse_moved = _jvp_p.bind(*of.values(), wide, lse, *as_inputs(of, moves).values(), call=call, given=given)
    return [moved.astype(out.dtype), lse_moved]


def _backward_tangent(*arrays: Any, call: Call, given: tuple[str, ...], wanted: tuple[str, ...], extents: Extents) -> Any:
    count = len(call.operands) + 3
    known, moves = arrays[:count], dict(zip(given, arrays[count:]))
    d_out = moves.pop("d_out", None)
    parts = []
    if moves:
        parts.append(second_p.bind(*known, *moves.values(), call=call, given=tuple(moves), wanted=wanted, extents=extents))
    if d_out is not None:
        parts.append(backward_p.bind(*known[:-1], d_out, call=call, wanted=wanted, extents=extents))
    return [functools.reduce(jnp.add, each) for each in zip(*parts)]


def map_tangent(*arrays: Any, call: Call, given: tuple[str, ...]) -> Any:
    refuse_with_score_fn(call, "derivative of attention weights")
    if call.option("empty_rows") == "uniform":
        raise NotImplementedError("polyhead has no derivative of attention weights with empty_rows='uniform'")
    count = len(call.operands)
    every = dict(zip(call.operands, arrays)) | {"lse": arrays[count], "p": arrays[count + 1]} | {f"t_{name}": x for name, x in zip(given, arrays[count + 2 :])}
    return [each_example(lambda of: _scores.tangent(of, call), every, call.levels)]


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "polyhead.jax has no forward mode of forward mode (jax.jvp of jax.jvp, jax.jacfwd of jax.jacfwd); jax.hessian, jax.jvp of jax.grad and jax.grad of jax.jvp work"
    )


# These primitives and `second_p` are linear in the arrays `given`, which are the last operands; `backward_p` is linear in d_out.
tangent_p = _composite("polyhead_attention_tangent", _tangent_shapes, _tangent)
map_tangent_p = _composite("polyhead_attention_weights_tangent", _map_tangent_shapes, map_tangent)
backward_tangent_p = _composite("polyhead_attention_backward_tangent", _backward_shapes, _backward_tangent)
second_tangent_p = _composite("polyhead_attention_second_tangent", _second_tangent_shapes, _refuse)  # never evaluated: JAX computes only the transpose of this primitive


def _with_level(arrays: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], int]:
    size = next(x.shape[dim] for x, dim in zip(arrays, dims) if dim is not None)
    return [jnp.expand_dims(x, 0) if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims)], size


def _batched(primitive: Any) -> Callable[..., Any]:
    def rule(arrays: Sequence[Any], dims: Sequence[int | None], *, call: Call, **params: Any) -> Any:
        arrays, size = _with_level(arrays, dims)
        if "extents" in params:  # this vmap gets one gradient for each example
            params["extents"] = tuple((size, *front) for front in params["extents"])
        results = primitive.bind(*arrays, call=call._replace(levels=call.levels + 1), **params)
        return results, [0] * len(results)

    return rule


for _p in (forward_p, backward_p, second_p, tangent_p, map_tangent_p, backward_tangent_p, second_tangent_p):
    batching.primitive_batchers[_p] = _batched(_p)


def in_one_dtype(call: Call, of: dict[str, Any], *others: Any) -> tuple[Call, dict[str, Any], tuple[Any, ...]]:
    """Converts the arrays to one dtype for `polyhead.sdpa_backward`: if their dtypes differ, all become float32, which represents the numbers of each exactly."""
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


def as_inputs(of: dict[str, Any], moves: dict[str, Any]) -> dict[str, Any]:
    """Casts each tangent to the dtype of its input."""
    return {name: x.astype(of[name].dtype) for name, x in moves.items()}


def each_example(f: Callable[[dict[str, Any]], Any], arrays: dict[str, Any], levels: int) -> Any:
    """Calls f for each example of the arrays, whose first `levels` dimensions belong to jax.vmap."""
    full = extents_of(list(arrays.values()), levels)

    def example(level: int, arrays: dict[str, Any]) -> Any:
        if level == levels:
            return f(arrays)
        axes = {name: 0 if x.shape[0] == full[level] else None for name, x in arrays.items()}
        arrays = {name: x if axes[name] == 0 else x[0] for name, x in arrays.items()}
        return jax.vmap(functools.partial(example, level + 1), in_axes=(axes,))(arrays)

    return example(0, arrays)
