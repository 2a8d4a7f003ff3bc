"""Derivatives of the primitives: forward mode (`jax.jvp`), reverse mode (`jax.grad`), and combinations of the two (docs/maths.md, section 3a).

A derivative is a linear primitive, which JAX evaluates or transposes. In the table, J is the Jacobian of out and lse by the inputs, t a tangent of the inputs, t_d_out
a tangent of d_out, and H the symmetric matrix of second derivatives of <d_out, out>. out and lse are functions of the inputs, so tangents of out and lse are ignored.

    primitive           computes                     transposed                     its derivative by the inputs
    forward_p           out, lse                                                    tangent_p
    tangent_p           J t                          backward_p                     second_tangent_p
    backward_p          J^T d_out                    tangent_p                      backward_tangent_p
    backward_tangent_p  H t + J^T t_d_out            second_p                       refused: a third derivative
    second_p            H t, J t                     backward_tangent_p             refused
    second_tangent_p    (the derivative of J t)      second_p, and formulas for lse refused; evaluating it is refused too

The tangent of the attention weights is computed by the primitive map_tangent_p. It and its transpose are formulas of jax.numpy, which JAX differentiates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.interpreters import ad

from . import _scores
from ._call import Call
from ._primitives import (
    SECOND,
    SHARED,
    Extents,
    as_inputs,
    backward_p,
    backward_tangent_p,
    each_example,
    extents_of,
    forward_p,
    in_one_dtype,
    refuse_with_score_fn,
    second_p,
    second_tangent_p,
    tangent_p,
    map_tangent,
    map_tangent_p,
)

_THIRD = "polyhead.jax has no third derivatives of attention; second derivatives (jax.hessian, jax.grad of jax.grad, jax.jvp of jax.grad) work"


def _moves(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0  # integers have tangents of dtype float0


def _moving(names: Sequence[str], tangents: Sequence[Any]) -> dict[str, Any]:
    """The tangents by name, without those that are symbolic zeros."""
    return {name: t for name, t in zip(names, tangents) if _moves(t)}


def _refuse_scales(moves: dict[str, Any]) -> None:
    for name in ("k_scale", "v_scale"):
        if name in moves:
            raise NotImplementedError(f"attention: {name} is differentiated; polyhead has no gradient of the scales of int8 keys and values")


def _targets(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    """The shapes, by name, of those linear inputs whose cotangents are wanted."""
    return {name: x.aval for name, x in zip(names, arrays) if isinstance(x, ad.UndefinedPrimal)}


def _cotangents(known: int, names: Sequence[str], targets: dict[str, Any], *parts: dict[str, Any]) -> list[Any]:
    """Adds up the gradients in `parts` that have the same name. Returns the list that JAX expects, with None for the first `known` inputs, in which the
    primitive is not linear."""
    sums: dict[str, Any] = {}
    for name, gradient in (item for part in parts for item in part.items()):
        gradient = gradient.astype(targets[name].dtype)
        sums[name] = sums[name] + gradient if name in sums else gradient
    return [None] * known + [sums.get(name, ad.Zero(targets[name])) if name in targets else None for name in names]


def _zeros(results: Sequence[Any]) -> list[Any]:
    return [ad.Zero(jax.core.ShapedArray(x.shape, x.dtype)) for x in results]


def _sum(parts: Sequence[Sequence[Any]], results: Sequence[Any]) -> list[Any]:
    """Adds up the tangents in `parts`, separately for each result."""
    if not parts:
        return _zeros(results)
    return list(parts[0]) if len(parts) == 1 else [a + b for a, b in zip(*parts)]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    results = forward_p.bind(*primals, call=call)
    moves = _moving(call.operands, tangents)
    _refuse_scales(moves)
    moved = _zeros(results)
    if moves:
        moved[:2] = tangent_p.bind(*primals, *results[:2], *moves.values(), call=call._replace(attention_weights=False), given=tuple(moves))
    if call.attention_weights and (moves := {name: t for name, t in moves.items() if name != "v"}):
        moved[2:] = map_tangent_p.bind(*primals, *results[1:], *moves.values(), call=call, given=tuple(moves))
    return results, moved


def _tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, given: tuple[str, ...]) -> Any:
    count = len(call.operands)
    known, own = primals[: count + 2], primals[count + 2 :]
    results = tangent_p.bind(*primals, call=call, given=given)
    inputs, moves = _moving(call.operands, tangents), _moving(given, tangents[count + 2 :])
    _refuse_scales(inputs)
    parts = []
    if moves:
        parts.append(tangent_p.bind(*known, *moves.values(), call=call, given=tuple(moves)))
    if inputs:
        refuse_with_score_fn(call, SECOND)
        parts.append(second_tangent_p.bind(*known, results[1], *own, *inputs.values(), call=call, moved=given, given=tuple(inputs)))
    return results, _sum(parts, results)


def _backward_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, wanted: tuple[str, ...], extents: Extents) -> Any:
    results = backward_p.bind(*primals, call=call, wanted=wanted, extents=extents)
    moves = _moving((*call.operands, "out", "lse", "d_out"), tangents)
    moves = {name: t for name, t in moves.items() if name not in ("out", "lse")}
    if not moves:
        return results, _zeros(results)
    if list(moves) == ["d_out"]:
        return results, backward_p.bind(*primals[:-1], moves["d_out"], call=call, wanted=wanted, extents=extents)
    refuse_with_score_fn(call, SECOND)
    return results, backward_tangent_p.bind(*primals, *moves.values(), call=call, given=tuple(moves), wanted=wanted, extents=extents)


def _linear_jvp(primitive: Any) -> Callable[..., Any]:
    """The jvp of a primitive that is linear in its inputs `given`. A derivative with respect to another input is a third derivative, which raises an error."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], *, given: tuple[str, ...], **params: Any) -> Any:
        results = primitive.bind(*primals, given=given, **params)
        known = len(primals) - len(given)
        if any(map(_moves, tangents[:known])):
            raise NotImplementedError(_THIRD)
        moves = _moving(given, tangents[known:])
        return results, primitive.bind(*primals[:known], *moves.values(), given=tuple(moves), **params) if moves else _zeros(results)

    return rule


def _weights_tangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    # map_tangent is a formula of jax.numpy, which JAX differentiates. `_jvp` computes the tangent of p, one of the inputs of map_tangent.
    moves = {i: t for i, t in enumerate(tangents) if _moves(t)}

    def function(moving: dict[int, Any]) -> Any:
        return map_tangent(*(moving.get(i, x) for i, x in enumerate(primals)), **params)

    return jax.jvp(function, ({i: primals[i] for i in moves},), (moves,))


ad.primitive_jvps[forward_p] = _jvp
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_jvps[map_tangent_p] = _weights_tangent_jvp
ad.primitive_jvps[backward_p] = _backward_jvp
for _p in (backward_tangent_p, second_p, second_tangent_p):
    ad.primitive_jvps[_p] = _linear_jvp(_p)


def _tangent_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, given: tuple[str, ...]) -> list[Any]:
    known = len(call.operands) + 2
    of, (out, lse) = dict(zip(call.operands, arrays)), arrays[known - 2 : known]
    targets = _targets(given, arrays[known:])
    d_out, d_lse = (None if type(ct) is ad.Zero else ct for ct in cotangents)
    of_out = {} if d_out is None else _backward(call, of, out, lse, d_out, targets)
    of_lse = {} if d_lse is None else _of_lse(call, of, lse, d_lse, targets)
    return _cotangents(known, given, targets, of_out, of_lse)


def _weights_tangent_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, given: tuple[str, ...]) -> list[Any]:
    known = len(call.operands) + 2
    targets = _targets(given, arrays[known:])
    lse, p = arrays[known - 2 : known]
    found = _of_weights(call, dict(zip(call.operands, arrays)), lse, p, cotangents[0], targets)
    return _cotangents(known, given, targets, found)


def _backward_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, wanted: tuple[str, ...], extents: Extents) -> list[Any]:
    refuse_with_score_fn(call, SECOND)
    known, moves = arrays[:-1], _moving(wanted, cotangents)
    targets = _targets(("d_out",), arrays[-1:])
    moved = tangent_p.bind(*known, *moves.values(), call=call, given=tuple(moves))[0]
    return _cotangents(len(known), ("d_out",), targets, _summed({"d_out": moved}, targets, call.levels))


def _backward_tangent_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, given: tuple[str, ...], wanted: tuple[str, ...], extents: Extents) -> list[Any]:
    known = len(call.operands) + 3
    targets = _targets(given, arrays[known:])
    return _cotangents(known, given, targets, _second(call, arrays[:known], _moving(wanted, cotangents), targets))


def _second_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, given: tuple[str, ...], wanted: tuple[str, ...], extents: Extents) -> list[Any]:
    count = len(call.operands) + 3
    known, targets, moves = arrays[:count], _targets(given, arrays[count:]), _moving(wanted, cotangents)
    fronts = _fronts(call, dict(zip(call.operands, known)), moves, known, targets)
    found = backward_tangent_p.bind(*known, *moves.values(), call=call, given=tuple(moves), wanted=tuple(targets), extents=fronts)
    return _cotangents(count, given, targets, _summed(dict(zip(targets, found)), targets, call.levels))


def _second_tangent_transpose(cotangents: Sequence[Any], *arrays: Any, call: Call, moved: tuple[str, ...], given: tuple[str, ...]) -> list[Any]:
    # Second derivatives are symmetric: <d, derivative of J t along x'> = <x', derivative of J^T d along t>. So second_p computes the transpose.
    count, known = len(call.operands), len(arrays) - len(given)
    of, (out, lse, lse_moved), moves = dict(zip(call.operands, arrays)), arrays[count : count + 3], dict(zip(moved, arrays[count + 3 :]))
    targets = _targets(given, arrays[known:])
    d_out, d_lse = (None if type(ct) is ad.Zero else ct for ct in cotangents)
    of_out = of_lse = {}
    if d_out is not None:
        wide_call, wide, others = in_one_dtype(call, of, out, d_out)
        of_out = _second(wide_call, [*wide.values(), others[0], lse, others[1]], as_inputs(wide, moves), targets)
    if d_lse is not None:
        of_lse = _of_lse_moved(call, of, lse, d_lse, moves, lse_moved, targets)
    return _cotangents(known, given, targets, of_out, of_lse)


def _of_lse_moved(call: Call, of: dict[str, Any], lse: Any, d_lse: Any, moves: dict[str, Any], lse_moved: Any, targets: dict[str, Any]) -> dict[str, Any]:
    """The derivative of the result of `_of_lse` along the tangents `moves`."""

    def alike(x: Any, other: Any) -> Any:  # broadcast x along the levels of vmap that map `other`
        return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, other.shape))

    def gradients(lse: Any, moving: dict[str, Any]) -> dict[str, Any]:
        return _of_lse(call, of | moving, lse, d_lse, targets)

    inputs = {name: alike(of[name], x) for name, x in moves.items()}
    found: dict[str, Any] = jax.jvp(gradients, (alike(lse, lse_moved), inputs), (alike(lse_moved, lse), {name: alike(x, of[name]) for name, x in moves.items()}))[1]
    return found


ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[map_tangent_p] = _weights_tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
ad.primitive_transposes[backward_tangent_p] = _backward_tangent_transpose
ad.primitive_transposes[second_p] = _second_transpose
ad.primitive_transposes[second_tangent_p] = _second_tangent_transpose


def _summed(gradients: dict[str, Any], targets: dict[str, Any], levels: int) -> dict[str, Any]:
    """Sums each gradient over the levels of vmap that do not map the gradient's input."""
    return {name: _scores.sum_to(x, (*targets[name].shape[:levels], *x.shape[levels:])) for name, x in gradients.items()}


def _backward(call: Call, of: dict[str, Any], out: Any, lse: Any, d_out: Any, targets: dict[str, Any]) -> dict[str, Any]:
    if not targets:
        return {}
    for name in ("slopes", "table"):
        if name in targets:
            refuse_with_score_fn(call, f"gradient of relative_bias.{name}")
    call, of, (out, d_out) = in_one_dtype(call, of, out, d_out)
    arrays = [*(of[name] for name in call.operands), out, lse, d_out]
    fronts = _fronts(call, of, {}, arrays, targets)
    found = backward_p.bind(*arrays, call=call._replace(attention_weights=False), wanted=tuple(targets), extents=fronts)
    return _summed(dict(zip(targets, found)), targets, call.levels)


def _second(call: Call, known: Sequence[Any], moves: dict[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """The derivative of the backward pass along the tangents `moves`. If d_out is a target, also the derivative of out along `moves`. known: operands, out, lse
    and d_out, in one dtype."""
    of = dict(zip(call.operands, known))
    fronts = _fronts(call, of, moves, known, targets)
    found = second_p.bind(*known, *moves.values(), call=call, given=tuple(moves), wanted=tuple(targets), extents=fronts)
    return _summed(dict(zip(targets, found)), targets, call.levels)


def _fronts(call: Call, of: dict[str, Any], moves: dict[str, Any], arrays: Sequence[Any], targets: dict[str, Any]) -> Extents:
    """For each gradient, the extents of its leading dimensions, one for each level of vmap. An extent is 1 if the library sums the gradient over the examples
    of that level."""
    full = extents_of([*arrays, *moves.values()], call.levels)
    shared = [x for named in (of, moves, targets) for name, x in named.items() if name in SHARED]
    # Which levels of vmap run as a loop of calls, one for each example, as find_levels() in bindings/jax.cc decides. Each example then has its own gradient.
    loops = [extent != 1 and ("seed" in of or call.rule is not None or any(x.shape[level] != 1 for x in shared)) for level, extent in enumerate(full)]

    def front(name: str) -> tuple[int, ...]:
        own = targets[name].shape
        return tuple(1 if own[level] == 1 and not loops[level] and name not in ("q", "k", "v", "d_out") else extent for level, extent in enumerate(full))

    return tuple(map(front, targets))


def _rows_of(call: Call, rows: Any) -> Any:
    """Converts rows ``[*,N,T]`` to the layout of out, with a width of 1."""
    return jnp.expand_dims(jnp.swapaxes(rows, -1, -2) if call.layout == "TNH" else rows, -1)


def _of_lse(call: Call, of: dict[str, Any], lse: Any, d_lse: Any, targets: dict[str, Any]) -> dict[str, Any]:
    # d_score = p d_lse (docs/maths.md, equation 7b). sdpa_backward computes this as the gradient of another problem, in which a sink halves p, and v is 1 for
    # every key. If d is the gradient of that problem's output, its d_score is (p / 2) (d - d sum(p) / 2). d is chosen so that this equals p d_lse.
    refuse_with_score_fn(call, "gradient of lse")
    rule = call.option("empty_rows")
    if rule == "uniform":
        raise NotImplementedError("polyhead has no gradient of lse with empty_rows='uniform'")
    call = call.without("dropout", "seed", "dropout_keep")
    if rule == "unmasked":  # a sink cannot be used, because empty_rows "unmasked" refuses sinks
        p = forward_p.bind(*(of[name] for name in call.operands), call=call._replace(attention_weights=True))[2]
        return _of_scores(call, of, {"p": p, "d_lse": d_lse}, targets)
    sink, share = of.get("sink"), jnp.zeros_like(lse)  # share: exp(sink) divided by the sum of the softmax
    if sink is not None:
        rows = jnp.expand_dims(sink, -1) if sink.ndim == call.levels + 1 else sink
        rows = rows.reshape(*rows.shape[: call.levels], *(1,) * (lse.ndim - rows.ndim), *rows.shape[call.levels :])
        empty = lse == -jnp.inf
        share = jnp.where(empty, 0, jnp.exp(rows - jnp.where(empty, 0, lse)))  # replace infinity before exp(), because the derivative would be NaN otherwise
    halved = {**of, "v": jnp.ones((*of["v"].shape[:-1], 1), lse.dtype), "sink": lse + jnp.log1p(share)}
    half_call = call.without("v_scale", "sink")
    half_call = half_call._replace(operands=(*half_call.operands, "sink"))
    halved = {name: halved[name] for name in half_call.operands}
    inputs = {name: aval for name, aval in targets.items() if name not in ("v", "sink")}
    gradients = _backward(half_call, halved, _rows_of(call, (1 - share) / 2), lse + math.log(2), _rows_of(call, 4 * d_lse / (1 + share)), inputs)
    if sink is not None and "sink" in targets:
        gradients["sink"] = _scores.sum_to(share * d_lse, (*targets["sink"].shape[: call.levels], *rows.shape[call.levels :])).reshape(targets["sink"].shape)
    return gradients


def _of_weights(call: Call, of: dict[str, Any], lse: Any, p: Any, d_p: Any, targets: dict[str, Any]) -> dict[str, Any]:
    refuse_with_score_fn(call, "gradient of attention weights")
    if call.option("empty_rows") == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention weights with empty_rows='uniform'")
    return _of_scores(call, of, {"lse": lse, "p": p, "d_p": d_p}, targets)


def _of_scores(call: Call, of: dict[str, Any], pairs: dict[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """Computes gradients for each example, by way of tensors [T,S]."""
    found = each_example(lambda of: _scores.gradients(of, call, tuple(targets)), of | pairs, call.levels)
    return _summed(found, targets, call.levels)
