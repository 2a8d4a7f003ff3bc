"""The primitives of JAX that a score_fn may use, and how each is translated to operations on registers and arrays of registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .._score_program import FUNCTIONS, Number, arctangent_of_two
from ._score_arrays import MOST_ELEMENTS, Arrays, View
from ._score_registers import Registers, refuse


def _bool_only(function: Callable[..., int]) -> Callable[..., int]:
    def apply(reader: Arrays, params: Any, equation: Any, *registers: int) -> int:
        if equation.invars[0].aval.dtype != np.bool_:
            raise refuse(f"the primitive {equation.primitive.name} of numbers that are not bool")
        return function(reader, *registers)

    return apply


def _select_n(reader: Arrays, params: Any, equation: Any, which: int, *cases: int) -> int:
    if len(cases) != 2 or equation.invars[0].aval.dtype != np.bool_:
        raise refuse(f"the primitive select_n of {len(cases)} cases with {equation.invars[0].aval.dtype}")
    return reader.select(which, cases[1], cases[0])


def _pow(reader: Arrays, params: Any, equation: Any, a: int, b: int) -> int:
    rows = reader.trace.instructions
    if rows[b][0] == "constant":
        return reader.power(a, rows[b][6])
    if rows[a][0] == "constant" and 0 < rows[a][6] < math.inf:
        return reader.emit("exp", reader.emit("multiply", b, reader.trace.constant(math.log(rows[a][6]))))
    raise refuse("the primitive pow with neither a constant exponent nor a positive constant base")


def _of(function: Callable[..., int]) -> Callable[..., int]:
    return lambda reader, params, equation, *registers: function(reader, *registers)


def _formula(function: Callable[..., Number]) -> Callable[..., int]:
    return lambda reader, params, equation, *registers: function(*(Number(reader.trace, register) for register in registers)).register


def _round(reader: Arrays, params: Any, equation: Any, a: int) -> int:
    x = Number(reader.trace, a)
    if params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return x.of("round").register
    magnitude = x.of("absolute")
    nearest = magnitude.of("round")
    away = nearest + (magnitude - nearest).of("equal", 0.5)  # because floor(|x| + 0.5) would give 1 for the largest number below 0.5
    return (x < 0).where(-away, away).register


ELEMENTWISE: dict[str, Callable[..., int]] = {
    "add": _of(Registers.add), "add_any": _of(Registers.add), "sub": _of(Registers.subtract), "mul": _of(Registers.multiply), "div": _of(Registers.divide),
    "rem": _of(Registers.remainder), "neg": _of(Registers.negate), "abs": _of(Registers.absolute), "sign": _of(Registers.sign), "max": _of(Registers.maximum),
    **{name: _formula(function.formula) for function in FUNCTIONS for name in function.primitives},
    "min": _of(Registers.minimum), "clamp": _of(Registers.clamp), "floor": _formula(lambda x: x.of("floor")), "round": _round, "atan2": _formula(arctangent_of_two), "pow": _pow,
    "integer_pow": lambda r, params, e, a: r.power(a, params["y"]), "square": lambda r, p, e, a: r.multiply(a, a),
    "ceil": _formula(lambda x: -(-x).of("floor")),
    "is_finite": lambda r, p, e, a: r.equal(r.emit("subtract", a, a), r.trace.constant(0)),
    "lt": _of(Registers.less), "le": lambda r, p, e, a, b: r.less(a, b, or_equal=True), "gt": lambda r, p, e, a, b: r.less(b, a),
    "ge": lambda r, p, e, a, b: r.less(b, a, or_equal=True), "eq": _of(Registers.equal), "ne": lambda r, p, e, a, b: r.negation(r.equal(a, b)),
    "and": _bool_only(lambda r, a, b: r.logical("logical_and", a, b)), "or": _bool_only(lambda r, a, b: r.logical("logical_or", a, b)),
    "not": _bool_only(Registers.negation), "xor": _bool_only(lambda r, a, b: r.negation(r.equal(a, b))), "select_n": _select_n,
    "convert_element_type": lambda r, params, e, a: r.converted(a, e.invars[0].aval.dtype, params["new_dtype"]),
    "stop_gradient": lambda r, p, e, a: a if r.are_integers(a) else r.trace.with_partials(a, ()), "copy": lambda r, p, e, a: a, "copy_p": lambda r, p, e, a: a,
}  # fmt: skip


def _stored(reader: Arrays, equation: Any, value: Any) -> Any:
    """The array that is indexed: a captured array, or an array made of constant registers."""
    if not isinstance(value, np.ndarray):
        return value
    constants = reader.known(value, equation.invars[0].aval)
    if constants is None:
        raise refuse("an index into an array that depends on the position")
    return jnp.asarray(constants)


def _dynamic_slice(reader: Arrays, params: Any, equation: Any, value: Any, *starts: Any) -> Any:
    indices = [int(reader.registers(start)) for start in starts]
    return reader.part(_stored(reader, equation, value), indices, params["slice_sizes"], mode="clip")


def _gather(reader: Arrays, params: Any, equation: Any, value: Any, indices: Any) -> Any:
    numbers, mode, of = params["dimension_numbers"], str(params["mode"]).lower(), reader.registers(indices)
    if of.ndim != 1 or numbers.operand_batching_dims:
        raise refuse("the primitive gather of more than one index")
    fill = params.get("fill_value")
    if "one_hot" in mode or ("fill" in mode and fill is not None and not np.isnan(fill)):
        raise refuse("an index with mode='one_hot', or with mode='fill' and a fill_value (use mode='clip')")
    stored = _stored(reader, equation, value)
    view = reader.view(stored)
    starts = [reader.constant(0, integer=True)] * len(view.shape)
    for register, axis in zip(of, numbers.start_index_map):
        starts[axis] = int(register)
    part = reader.part(stored, starts, params["slice_sizes"], mode="clip" if "clip" in mode or "promise" in mode else "fill")
    return _squeezed(part, numbers.collapsed_slice_dims)


def _squeezed(view: View, dimensions: Sequence[int]) -> View:
    kept = [axis for axis in range(len(view.shape)) if axis not in dimensions]
    return view._replace(dims=tuple(view.dims[axis] for axis in kept), shape=tuple(view.shape[axis] for axis in kept))


def _reshaped(reader: Arrays, value: Any, shape: Sequence[int]) -> Any:
    if not isinstance(value, View):
        return reader.registers(value).reshape(shape)
    kept = _squeezed(value, [axis for axis, extent in enumerate(value.shape) if extent == 1])
    if [extent for extent in shape if extent != 1] != list(kept.shape):
        return reader.registers(value).reshape(shape)
    dims = iter(kept.dims)
    return kept._replace(dims=tuple(None if extent == 1 else next(dims) for extent in shape), shape=tuple(shape))


def _broadcast_in_dim(reader: Arrays, params: Any, equation: Any, value: Any, *_: Any) -> Any:
    shape = params["shape"]
    if math.prod(shape) > MOST_ELEMENTS:
        raise refuse(f"an array of shape {list(shape)}")
    of, dimensions = reader.registers(value), params["broadcast_dimensions"]
    inner = [of.shape[dimensions.index(axis)] if axis in dimensions else 1 for axis in range(len(shape))]
    return np.broadcast_to(of.reshape(inner), shape)


def _squeeze(reader: Arrays, params: Any, equation: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape([extent for axis, extent in enumerate(value.shape) if axis not in params["dimensions"]])
    return _squeezed(reader.view(value), params["dimensions"])


def _transpose(reader: Arrays, params: Any, equation: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.transpose(params["permutation"])
    view = reader.view(value)
    return view._replace(dims=tuple(view.dims[axis] for axis in params["permutation"]), shape=tuple(view.shape[axis] for axis in params["permutation"]))


def _slice(reader: Arrays, params: Any, equation: Any, value: Any) -> Any:
    steps = params["strides"] or (1,) * len(params["start_indices"])
    return reader.registers(value)[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _reduce(function: Callable[..., int]) -> Callable[..., Any]:
    def apply(reader: Arrays, params: Any, equation: Any, value: Any) -> Any:
        of, axes = reader.registers(value), params["axes"]
        kept = [axis for axis in range(of.ndim) if axis not in axes]
        rows = of.transpose([*kept, *axes]).reshape(*(of.shape[axis] for axis in kept), -1)
        if rows.shape[-1] == 0:
            raise refuse(f"the primitive {equation.primitive.name} of no numbers")
        result = rows[..., 0].copy()
        for index in np.ndindex(result.shape):
            for register in rows[index][1:]:
                result[index] = function(reader, int(result[index]), int(register))
            # Equal elements share the gradient equally, as in JAX. A chain of pairwise maxima would give unequal shares to three or more equal elements.
            if function in (Registers.maximum, Registers.minimum) and rows.shape[-1] > 2 and not reader.are_integers(*map(int, rows[index])):
                each = [reader.emit("equal", int(x), int(result[index])) for x in rows[index]]
                count = functools.reduce(lambda x, y: reader.emit("add", x, y), each)
                result[index] = reader.trace.with_partials(int(result[index]), [(int(x), reader.emit("divide", equal, count)) for x, equal in zip(rows[index], each)])
        return result

    return apply


def _dot_general(reader: Arrays, params: Any, equation: Any, a: Any, b: Any) -> Any:
    x, y = reader.registers(a), reader.registers(b)
    if x.ndim != 1 or y.ndim != 1 or params["dimension_numbers"] != (((0,), (0,)), ((), ())):
        raise refuse("the primitive dot_general of matrices")
    products = [reader.multiply(int(i), int(j)) for i, j in zip(x, y)]
    total = products[0]
    for product in products[1:]:
        total = reader.add(total, product)
    return np.array(total)


STRUCTURE: dict[str, Callable[..., Any]] = {
    "dynamic_slice": _dynamic_slice, "gather": _gather, "squeeze": _squeeze, "broadcast_in_dim": _broadcast_in_dim, "transpose": _transpose, "slice": _slice,
    "reshape": lambda r, params, e, value, *_: _reshaped(r, value, params["new_sizes"]), "reduce_sum": _reduce(Registers.add), "reduce_max": _reduce(Registers.maximum),
    "reduce_min": _reduce(Registers.minimum), "dot_general": _dot_general,
    "stack": lambda r, params, e, *values: np.stack([r.registers(value) for value in values], params["axis"]),
    "concatenate": lambda r, params, e, *values: np.concatenate([r.registers(value) for value in values], params["dimension"]),
}  # fmt: skip
