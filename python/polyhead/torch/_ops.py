"""Defines the operators of torch that call polyhead: attention, its gradients, the gradients of these gradients, its forward mode, and its maps.

Only this module and `_pair_bias` define operators for torch's dispatcher. The operators take the arguments of `polyhead.sdpa`, on the CPU: ``q [*,N,T,H]``,
``k [*,K,S,H]``, ``v [*,K,S,V]``. Other modules convert the arguments of torch's own functions to this form.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, _C
from torch.library import custom_op

import polyhead
from .. import _core
from .._arguments import GRADIENTS, wanted_fields
from .._options import MapValue, annotations_of
from . import _dispatch, _formulas
from ._dispatch import operators
from ._inputs import require_one_device
from ._offset import add_score_gradients
from ._rules import Options, keywords, lse_dtype
from ._shapes import guard_or_false, guard_or_true


# Annotations of Python, and their names in the schema of an operator, where these differ. An int becomes SymInt, because it may be a symbol: the length of a
# cache changes with every token.
_TYPES = {"Tensor | None": "Tensor?", "float | None": "float?", "str | None": "str?", "int | None": "SymInt?"}
_SCHEMA = ", ".join(f"{_TYPES.get(annotation, annotation)} {name}" for name, annotation in annotations_of(Options).items())


def _view(tensor: Tensor | None) -> Any:
    # Detach: under autograd the operator receives the caller's tensor, and the bindings refuse tensors with requires_grad.
    if tensor is None:
        return None
    tensor = tensor.detach().resolve_neg()
    # Pass a NumPy array if possible: reading it by the buffer protocol takes 1 us, and reading a tensor by DLPack 10 us. NumPy has no bfloat16.
    return tensor if tensor.dtype == torch.bfloat16 else tensor.numpy()


def thread_limit() -> int | None:
    """torch's number of threads if it is lower than polyhead's, else None. In the workers of a DataLoader, torch's number is 1."""
    threads = torch.get_num_threads()
    return threads if threads < _core.num_threads() else None


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _on_views(q: Tensor, options: Options, *without: str) -> dict[str, Any]:
    given = {name: _view(value) if isinstance(value, Tensor) else value for name, value in keywords(q, options).items() if name not in without}
    if "relative_bias" in given:
        relative = given["relative_bias"]
        given["relative_bias"] = relative._replace(slopes=_view(relative.slopes), table=_view(relative.table))
    return given | {"num_threads": thread_limit()}


def _require_one_device(operator: str, names: str, *given: Any) -> None:
    # The operators are registered for no particular device. So torch calls the kernels with tensors of any device, and the fake kernels with any mixture of
    # meta tensors and other tensors.
    every = zip((*names.split(), *Options._fields), given)
    require_one_device(f"polyhead::{operator}", **{name: tensor for name, tensor in every if isinstance(tensor, Tensor)})


def _like_q(q: Tensor, last: Any) -> Tensor:
    """A new tensor ``[*,N,T,last]``. Its dimensions have the same order in memory as those of q, except that the last dimension is always innermost. So if q is
    a view of a tensor ``[*,T,N*H]``, the heads of the result merge without a copy."""
    shape = [*q.shape[:-1], last]
    leading = q.dim() - 1
    # large[i]: whether dimension i has more than one element; only then its stride has a meaning. An extent that depends on data counts as larger than 1. If a
    # dimension with large[i] has stride 0 (a broadcast), the new tensor is row-major.
    large = [guard_or_true(q.size(i) > 1) for i in range(leading)]
    if any(large[i] and guard_or_false(q.stride(i) == 0) for i in range(leading)):
        return q.new_empty(shape)

    def compare(i: int, j: int) -> int:
        return guard_or_false(q.stride(i) < q.stride(j)) - guard_or_false(q.stride(i) > q.stride(j))

    order = sorted((i for i in range(leading) if large[i]), key=functools.cmp_to_key(compare))
    order = [i for i in range(leading) if not large[i]] + order + [leading]
    strides, stride = [0] * q.dim(), 1
    for i in reversed(order):
        strides[i] = stride
        stride = stride * torch.sym_max(shape[i], 1)
    return q.new_empty_strided(shape, strides)  # empty_strided instead of a permuted view, because dual tensors refuse a result that is a view


@custom_op("polyhead::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor, Tensor)")
def attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``(out [*,N,T,V], lse [*,N,T], attention weights [*,N,T,S])`` by `polyhead.sdpa`; attention weights that are not wanted have the shape
    ``[0]``."""
    _require_one_device("attention", "q k v", q, k, v, *given)
    options = Options(*given)
    out = _like_q(q, v.size(-1))
    _, lse, *p = polyhead.sdpa(
        _view(q),
        _view(k),
        _view(v),
        out=_view(out),
        return_lse=True,
        return_attention_weights=options.attention_weights,
        **_on_views(q, options),
    )
    return out, _tensor(lse), _tensor(p[0]) if p else q.new_empty(0)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _require_one_device("attention", "q k v", q, k, v, *given)
    pairs = (*q.shape[:-1], k.size(-2)) if Options(*given).attention_weights else (0,)
    return _like_q(q, v.size(-1)), q.new_empty(q.shape[:-1], dtype=lse_dtype(q)), q.new_empty(pairs)


INPUTS = ("q", "k", "v", *Options._fields)
_SAVED = INPUTS.index("seed") + 1  # number of inputs that are tensors: these come first, and the seed is the last of them


def _in_one_dtype(q: Tensor, k: Tensor, v: Tensor, options: Options, *others: Tensor) -> tuple[Any, ...]:
    """Converts the tensors to one dtype for `polyhead.sdpa_backward`: if their dtypes differ, all become float32, which represents the numbers of each exactly."""
    if q.dtype == k.dtype == v.dtype and all(other.dtype == q.dtype for other in others):
        return q, k, v, options, *others
    k, v = (x.float() if scale is None else x * scale.unsqueeze(-1) for x, scale in ((k, options.k_scale), (v, options.v_scale)))
    wide = {name: tensor.float() for name in GRADIENTS[3:] if (tensor := getattr(options, name)) is not None}
    return q.float(), k, v, options._replace(k_scale=None, v_scale=None, **wide), *(other.float() for other in others)


@custom_op(
    "polyhead::attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_SCHEMA}, bool[{len(GRADIENTS)}] wanted) -> ({', '.join(['Tensor'] * len(GRADIENTS))})",
)
def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Computes ``(d_q, d_k, d_v, d_bias, d_sink, d_slopes, d_table)`` by `polyhead.sdpa_backward`; a gradient that is not wanted has the shape ``[0]``."""
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *options, wanted = rest
    dtypes = [(q if of is None else of).dtype for of in _differentiable(q, k, v, Options(*options))]
    q, k, v, o, out, d_out = _in_one_dtype(q, k, v, Options(*options), out, d_out)
    given = _on_views(q, o)
    names = {"relative_bias" if name in ("slopes", "table") else name for name, want in zip(GRADIENTS, wanted) if want}
    grads = polyhead.sdpa_backward(*map(_view, (q, k, v, out, lse, d_out)), gradients=names, **given)
    of_relative = (grads.relative_bias if want and of is not None else None for want, of in zip(wanted[5:], (o.slopes, o.table)))
    result = tuple(q.new_empty(0) if grad is None else _tensor(grad) for grad in (*grads[:5], *of_relative))
    if o.empty_rows == "offset" and given["empty_rows"] == "uniform" and o.attend is not None:
        scale = o.scale if o.scale is not None else q.size(-1) ** -0.5
        add_score_gradients(result, wanted, d_out, q, k, v, attend=o.attend, bias=o.bias, scale=scale, dropout=o.dropout, seed=given.get("seed"))
    return tuple(grad.to(dtype) for grad, dtype in zip(result, dtypes))


def _differentiable(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor | None, ...]:
    return (q, k, v, *(getattr(options, name) for name in GRADIENTS[3:]))


_TANGENTS = ", ".join(f"Tensor? {name}_tangent" for name in GRADIENTS)


def _as_inputs(tangents: Sequence[Tensor | None], inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The tangents in the form that the bindings read: (q, k, v, bias, sink, relative_bias), cast to the dtypes of the inputs. tangents: in the order of
    `GRADIENTS`."""
    q, k, v, bias, sink, slopes, table = (None if x is None or of is None else _view(x.to(of.dtype)) for x, of in zip(tangents, inputs))
    return q, k, v, bias, sink, table if slopes is None else slopes


@custom_op(
    "polyhead::attention_jvp",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_TANGENTS}, {_SCHEMA}) -> (Tensor, Tensor)",
)
def attention_jvp(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The derivatives of out and lse along the tangents of the inputs: equations (8c) and (8b) of docs/maths.md. A tangent that is None is 0."""
    tangents, options = rest[: len(GRADIENTS)], rest[len(GRADIENTS) :]
    _require_one_device("attention_jvp", "q k v out lse", q, k, v, out, lse, *options)
    dtype = q.dtype
    q, k, v, o, out = _in_one_dtype(q, k, v, Options(*options), out)
    _refuse_empty_rows_of_offset(q, o)
    moving = _as_inputs(tangents, _differentiable(q, k, v, o))
    found = _core.sdpa_jvp(_view(q), _view(k), _view(v), _view(out), _view(lse), moving, _on_views(q, o), True)
    return _tensor(found[0]).to(dtype).contiguous(), _tensor(found[1])  # make it row-major in every dtype, as the fake kernel promises


@attention_jvp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(out.shape), lse.new_empty(lse.shape)


@custom_op(
    "polyhead::attention_backward_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_TANGENTS}, {_SCHEMA}, bool[{len(GRADIENTS) + 1}] wanted) -> "
    f"({', '.join(['Tensor'] * (len(GRADIENTS) + 1))})",
)
def attention_backward_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The gradients of a loss with respect to q, k, v, bias, sink, slopes, table and d_out. The tangents are the gradients of the loss with respect to the
    results of `attention_backward`: equations (8e) to (8h) of docs/maths.md. out and lse are treated as functions of the inputs. A gradient that is not wanted
    has the shape ``[0]``."""
    tangents, options, wanted = rest[: len(GRADIENTS)], rest[len(GRADIENTS) : -1], rest[-1]
    _require_one_device("attention_backward_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *options)
    dtypes = [(q if of is None else of).dtype for of in (*_differentiable(q, k, v, Options(*options)), d_out)]
    q, k, v, o, out, d_out = _in_one_dtype(q, k, v, Options(*options), out, d_out)
    _refuse_empty_rows_of_offset(q, o)
    inputs = _differentiable(q, k, v, o)
    *want, of_d_out = (want and of is not None for want, of in zip(wanted, (*inputs, d_out)))
    moving = _as_inputs(tangents, inputs)
    found = _core.sdpa_backward_backward(
        _view(q), _view(k), _view(v), _view(out), _view(lse), _view(d_out), moving, _on_views(q, o), wanted_fields(zip(GRADIENTS, want)), of_d_out
    )
    every = (*found[:5], *(found[5] if w else None for w in want[5:]), found[6])
    return tuple(q.new_empty(0, dtype=dtype) if grad is None else _tensor(grad).to(dtype).contiguous() for grad, dtype in zip(every, dtypes))


@attention_backward_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    options, wanted = rest[len(GRADIENTS) : -1], rest[-1]
    inputs = (*_differentiable(q, k, v, Options(*options)), d_out)
    unwanted = (q.new_empty(0, dtype=q.dtype if of is None else of.dtype) for of in inputs)
    return tuple(none if of is None or not want else of.new_empty(of.shape) for of, want, none in zip(inputs, wanted, unwanted))


def _refuse_empty_rows_of_offset(q: Tensor, options: Options) -> None:
    if options.empty_rows == "offset" and q.dtype != torch.float64 and options.attend is not None and not bool(options.attend.any(-1).all()):
        raise NotImplementedError("polyhead has no second derivative and no forward mode of a row whose keys are all masked with empty_rows='offset'")


@attention_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *given, wanted = rest
    inputs = _differentiable(q, k, v, Options(*given))
    unwanted = (q.new_empty(0, dtype=q.dtype if of is None else of.dtype) for of in inputs)
    return tuple(none if of is None or not want else of.new_empty(of.shape) for of, want, none in zip(inputs, wanted, unwanted))


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Saves the tensors that the gradients of `attention` need."""
    ctx.options = inputs[_SAVED:]
    ctx.set_materialize_grads(False)
    options = Options(*inputs[3:])
    no_gradient = [output[1]] if options.empty_rows in ("uniform", "offset") else []
    ctx.mark_non_differentiable(*no_gradient, *([] if options.attention_weights else [output[2]]))
    ctx.save_for_backward(*inputs[:_SAVED], *output)


def input_gradients(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_p: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each input of `attention`."""
    q, k, v, *tensors, out, lse, p = ctx.saved_tensors
    refuse_gradient_of_scales(*(ctx.needs_input_grad[INPUTS.index(name)] for name in ("k_scale", "v_scale")))
    wanted = [ctx.needs_input_grad[INPUTS.index(name)] for name in GRADIENTS]
    options = Options(*tensors, *ctx.options)
    given = dict(zip(GRADIENTS, gradients(d_out, d_lse, d_p, q, k, v, out, lse, p, options, wanted)))
    return tuple(given.get(name) for name in INPUTS)


def refuse_gradient_of_scales(k_scale: bool, v_scale: bool) -> None:
    """Raises NotImplementedError if a gradient of the scales is wanted."""
    if k_scale or v_scale:
        raise NotImplementedError(f"{'k_scale' if k_scale else 'v_scale'} requires grad; polyhead has no gradient of the scales of int8 keys and values")


def gradients(
    d_out: Tensor | None, d_lse: Tensor | None, d_p: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, p: Tensor | None, options: Options,
    wanted: list[bool],
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of q, k, v, bias, sink, slopes and table, computed from d_out, d_lse and d_p, the gradients of out, lse and the attention weights p. None
    for a gradient that is not wanted."""
    parts: list[tuple[Tensor | None, ...]] = []
    if d_out is not None:
        found = operators().attention_backward(d_out, q, k, v, out, lse, *options, wanted)
        parts.append(tuple(grad if want else None for grad, want in zip(found, wanted)))
    if d_lse is not None:
        parts.append(_formulas.lse_gradients(d_lse, q, k, v, lse, options, wanted))
    if d_p is not None and p is not None:
        parts.append(_formulas.p_gradients(p, d_p, q, k, lse, options, wanted))
    sums: list[Tensor | None] = [None] * len(GRADIENTS)
    for part in parts:
        sums = [grad if total is None else total if grad is None else total + grad for total, grad in zip(sums, part)]
    # lse and p do not depend on v. Return zeros instead of None, because compiled autograd adds the three gradients if q, k and v are the same tensor.
    inputs = zip(sums, wanted, _differentiable(q, k, v, options))
    return [torch.zeros_like(of) if grad is None and want and of is not None else grad for grad, want, of in inputs]


attention.register_autograd(input_gradients, setup_context=save)


def save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Saves the tensors that the gradients of `attention_backward` need."""
    count = 3 + _SAVED
    ctx.options, ctx.wanted = inputs[count:-1], inputs[-1]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:count])


def second_gradients(ctx: Any, *d_gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each input of `attention_backward`. out and lse have none, because they are treated as functions of the other inputs."""
    d_out, q, k, v, out, lse, *tensors = ctx.saved_tensors
    names = ("d_out", "q", "k", "v", "out", "lse", *Options._fields, "wanted")
    needed = dict(zip(names, ctx.needs_input_grad))
    refuse_gradient_of_scales(needed["k_scale"], needed["v_scale"])
    tangents = [d if want else None for d, want in zip(d_gradients, ctx.wanted)]
    if all(d is None for d in tangents):
        return (None,) * len(names)
    wanted = [needed[name] for name in (*GRADIENTS, "d_out")]
    found = operators().attention_backward_backward(d_out, q, k, v, out, lse, *tangents, *tensors, *ctx.options, wanted)
    by_name = {name: grad for name, grad, want in zip((*GRADIENTS, "d_out"), found, wanted) if want}
    return tuple(by_name.get(name) for name in names)


attention_backward.register_autograd(second_gradients, setup_context=save_backward)


def save_backward_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Saves the tensors that the gradients of `attention_backward_backward` need."""
    count = 3 + len(GRADIENTS) + _SAVED
    ctx.options, ctx.wanted = inputs[count:-1], inputs[-1]
    ctx.tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:count])


def third_gradients(ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns gradients only for the tangents, the inputs in which `attention_backward_backward` is linear. Gradients of other inputs would be third
    derivatives."""
    d_out, q, k, v, out, lse, *rest = ctx.saved_tensors
    names = ("d_out", "q", "k", "v", "out", "lse", *(f"{name}_tangent" for name in GRADIENTS), *Options._fields, "wanted")
    moving = [d if want else None for d, want in zip(d_results, ctx.wanted)]
    if all(d is None for d in moving):
        return (None,) * len(names)
    needed = {names[i] for i in _needed(ctx)}
    if not needed <= {f"{name}_tangent" for name in GRADIENTS} | {"out", "lse"}:
        refuse_third_derivative()
    *tangents, of_d_out = moving
    options, wanted = [*rest[len(GRADIENTS) :], *ctx.options], [f"{name}_tangent" in needed for name in GRADIENTS]
    found: list[Tensor | None] = [None] * len(GRADIENTS)
    if any(x is not None for x in tangents):
        found = list(operators().attention_backward_backward(d_out, q, k, v, out, lse, *tangents, *options, [*wanted, False])[:-1])
    if of_d_out is not None:
        more = operators().attention_backward(of_d_out, q, k, v, out, lse, *options, wanted)
        found = [b if a is None else a + b for a, b in zip(found, more)]
    by_name = {f"{name}_tangent": grad for name, grad, want in zip(GRADIENTS, found, wanted) if want}
    return tuple(by_name.get(name) for name in names)


def _needed(ctx: Any) -> list[int]:
    """Indices of the inputs whose gradients this backward pass needs. These may be fewer than the inputs that require gradients: torch.autograd.functional.hvp
    differentiates only with respect to the tangents."""
    needed = [i for i in ctx.tensors if ctx.needs_input_grad[i]]
    if _C._current_graph_task_id() == -1 or _C._are_functorch_transforms_active():
        return needed
    nodes = dict(zip(ctx.tensors, (node for node, _ in ctx.next_functions)))

    def is_run(node: Any) -> bool:
        try:
            return bool(_C._will_engine_execute_node(node))
        except RuntimeError:  # torch raises this for a leaf whose gradient torch.autograd.grad is to return: that gradient is needed
            return True

    return [i for i in needed if nodes[i] is None or is_run(nodes[i])]


attention_backward_backward.register_autograd(third_gradients, setup_context=save_backward_backward)


def refuse_third_derivative(*_: Any) -> None:
    """Raises NotImplementedError: polyhead has no third derivative."""
    raise NotImplementedError(
        "polyhead's attention has no third derivative; "
        "for that use torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_jvp.register_autograd(refuse_third_derivative)  # the gradients of forward mode are in `_transforms`


@custom_op("polyhead::attention_map", mutates_args=(), schema=f"(Tensor q, Tensor k, {_SCHEMA}) -> Tensor")
def attention_map(q: Tensor, k: Tensor, *given: Any) -> Tensor:
    """The attention weights ``[*,N,T,S]`` after dropout, which multiply v."""
    _require_one_device("attention_map", "q k", q, k, *given)
    options = Options(*given)
    value: MapValue = "dropped" if options.dropout > 0 else "probability"
    return _tensor(polyhead.maps(_view(q), _view(k), value=value, **_on_views(q, options, "v_scale")))


@attention_map.register_fake
def _(q: Tensor, k: Tensor, *given: Any) -> Tensor:
    _require_one_device("attention_map", "q k", q, k, *given)
    return q.new_empty((*q.shape[:-1], k.size(-2)))


_MAP_INPUTS = ("q", "k", *Options._fields)


def save_map(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the tensors that the gradients of `attention_map` need."""
    tensors = _SAVED - 1  # `attention_map` has one tensor fewer than `attention`, because it has no v
    ctx.options = inputs[tensors:]
    ctx.save_for_backward(*inputs[:tensors], output)


def map_gradients(ctx: Any, d_map: Tensor) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each input of `attention_map`."""
    q, k, *tensors, dropped = ctx.saved_tensors
    options = Options(*tensors, *ctx.options)
    refuse_gradient_of_scales(ctx.needs_input_grad[_MAP_INPUTS.index("k_scale")], False)
    wanted = [name in _MAP_INPUTS and ctx.needs_input_grad[_MAP_INPUTS.index(name)] for name in GRADIENTS]
    if options.empty_rows == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention maps with empty_rows='uniform'")
    p = dropped if options.dropout == 0 else operators().attention_map(q, k, *options._replace(dropout=0.0, seed=None))
    found = dict(zip(GRADIENTS, _formulas.softmax_gradients(p, torch.where(dropped == 0, 0, dropped * d_map), q, k, None, options, wanted)))
    return tuple(found.get(name) for name in _MAP_INPUTS)


attention_map.register_autograd(map_gradients, setup_context=save_map)

_dispatch.ops = sys.modules[__name__]
