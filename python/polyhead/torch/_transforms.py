"""The operators of `_ops` in a form for calls under torch.func and with dual tensors. They have vmap and forward mode, which the operators of `_ops` do not
have.

Second derivatives are supported as gradients of gradients, forward mode of gradients (torch.func.hessian) and gradients of forward mode. Forward mode of
forward mode is not supported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, _C
from torch.autograd import forward_ad

from .._arguments import GRADIENTS, names_of
from . import _dispatch, _formulas, _ops
from ._rules import Options

_PAIRS = {*names_of("pairs", "query_blocks")}  # names of arguments that broadcast to [*,N,..]
_KEYS = {*names_of("keys")}  # names of arguments that broadcast to [*,S]
_ROWS = {*names_of("rows")}  # names of arguments that are [N], or broadcast to [*,N,T]
_SEQUENCES = {"d_out", "out", "lse", *names_of("sequences", "scales", "query_heads", "key_heads")}  # names of arguments that must have all leading dimensions

_TANGENTS = tuple(f"{name}_tangent" for name in GRADIENTS)
_FORWARD = ("q", "k", "v", *Options._fields)
_MAP = ("q", "k", *Options._fields)
_BACKWARD = ("d_out", "q", "k", "v", "out", "lse", *Options._fields, "wanted")
_JVP = ("q", "k", "v", "out", "lse", *_TANGENTS, *Options._fields)
_BACKWARD_BACKWARD = ("d_out", "q", "k", "v", "out", "lse", *_TANGENTS, *Options._fields, "wanted")


def active() -> bool:
    """Whether a transform of torch.func is active, or dual tensors are possible. False while torch.compile traces."""
    return not torch.compiler.is_compiling() and (_C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def _one_by_one(call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> Any:
    results = [call(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims))) for i in range(info.batch_size)]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])


def _with_first(size: int, dim: int | None, tensor: Tensor, rank: int) -> Tensor:
    """Moves the vmap dimension of the tensor to the front, or adds one, and inserts extents of 1 after it until the tensor has the given rank."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.reshape(size, *(1,) * (rank - tensor.dim()), *tensor.shape[1:])


def _together(size: int, names: tuple[str, ...], in_dims: tuple[int | None, ...], arguments: tuple[Any, ...], wanted: set[str]) -> list[Any] | None:
    """The arguments of a single call that computes all examples of a vmap as further sequences of the batch; None if a single call is impossible. wanted: names
    of the inputs that need a separate gradient for each example, and therefore may not be shared by the examples."""
    dims, given = dict(zip(names, in_dims)), dict(zip(names, arguments))
    if given["dropout"] > 0:  # dropout bits depend on the position of a sequence in the batch
        return None
    # A tangent must have the shape of its input. So if the input or the tangent is mapped by the vmap, both get the vmap dimension.
    wanted = wanted | {of for name in GRADIENTS for of in (name, f"{name}_tangent") if dims[name] is not None or dims.get(f"{name}_tangent") is not None}
    rank = given["q"].dim() + (dims["q"] is None)
    result = []
    for name, x in given.items():
        dim, of = dims[name], name.removesuffix("_tangent")
        if isinstance(x, Tensor) and (dim is not None or name in wanted or of in wanted or of in _SEQUENCES):
            if of in _SEQUENCES:
                x = _with_first(size, dim, x, 0)
            elif of in _PAIRS:
                x = _with_first(size, dim, x, rank)
            elif of in _KEYS:
                x = _with_first(size, dim, x, rank - 2)
            elif of in _ROWS:
                x = _with_first(size, dim, x, 0)
                x = _with_first(size, 0, x.unsqueeze(-1) if x.dim() == 2 else x, rank - 1)
            else:
                return None
        result.append(x)
    return result


def _in_a_batch(call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> Any:
    together = _together(info.batch_size, _FORWARD, in_dims, inputs, set())
    if together is None:
        return _one_by_one(call, info, in_dims, inputs)
    return call(*together), (0, 0, 0 if Options(*inputs[3:]).attention_weights else None)


def _gradients_in_a_batch(
    names: tuple[str, ...], results: tuple[str, ...], call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]
) -> Any:
    """The vmap rule of an operator that returns gradients, and whose last argument says which gradients are wanted. results: names of the inputs whose
    gradients the operator returns."""
    in_dims = (*in_dims[: len(names) - 1], None)  # torch gives a list of dimensions for the last argument, which is a list of bools; replace it by one None
    wanted = {name for name, want in zip(results, inputs[-1]) if want}
    together = _together(info.batch_size, names, in_dims, inputs, wanted)
    if together is None:
        return _one_by_one(call, info, in_dims, inputs)
    found = call(*together)
    shapes = {name: [x.size(i) for i in range(x.dim()) if i != dim] for name, x, dim in zip(names, inputs, in_dims) if isinstance(x, Tensor)}
    grads = tuple(grad.reshape(info.batch_size, *shapes[name]) if name in wanted and name in shapes else grad for name, grad in zip(results, found))
    return grads, tuple(0 if name in wanted and name in shapes else None for name in results)


def _moving(names: tuple[str, ...], tangents: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Selects the tangents of the inputs in `GRADIENTS` from the tangents of all inputs."""
    by_name = dict(zip(names, tangents))
    _ops.refuse_gradient_of_scales(by_name.get("k_scale") is not None, by_name.get("v_scale") is not None)
    return [by_name.get(name) for name in GRADIENTS]


@dataclass(frozen=True)
class _Rule:
    """An operator of `_ops`, and the functions that torch needs to run the operator under transforms. ctx is the context of `_Operator`; inputs are the
    operator's arguments."""

    operator: Callable[..., Any]
    save: Callable[..., None]  # (ctx, inputs, output) -> None
    backward: Callable[..., Any]  # (ctx, gradients of the outputs) -> gradients of the inputs
    jvp: Callable[..., Any]  # (ctx, tangents of the inputs) -> tangents of the outputs
    vmap: Callable[..., Any]  # (the operator under transforms, info, in_dims, inputs) -> (outputs, index of the vmap dimension of each output)


class _Operator(torch.autograd.Function):
    """The autograd.Function that runs every operator. Its arguments are those of the operator and, last, the operator's _Rule."""

    @staticmethod
    def forward(*given: Any) -> Any:
        *inputs, rule = given
        return rule.operator(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rule = inputs[-1]
        ctx.rule.save(ctx, inputs[:-1], output)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> Any:
        return *ctx.rule.backward(ctx, *d_outputs), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        return ctx.rule.jvp(ctx, *tangents[:-1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        *inputs, rule = given
        return rule.vmap(_operator(rule), info, in_dims[:-1], tuple(inputs))


def _operator(rule: _Rule) -> Callable[..., Any]:
    """Makes a function that runs the operator of a rule, under any transform."""

    def operator(*inputs: Any) -> Any:
        return _Operator.apply(*inputs, rule)  # type: ignore[no-untyped-call]

    return operator


def _for_both_modes(save: Callable[..., None]) -> Callable[..., None]:
    def save_both(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        save(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    return save_both


def _tangents_of_attention(ctx: Any, *tangents: Tensor | None) -> Any:
    q, k, v, *tensors, out, lse, p = ctx.saved_tensors
    options, moving = Options(*tensors, *ctx.options), _moving(_FORWARD, tangents)
    of_out, of_lse = attention_jvp(q, k, v, out, lse, *moving, *options)
    of_p = _formulas.map_tangent(p, q, k, lse, moving, options._replace(dropout=0.0, seed=None)) if options.attention_weights else None
    return of_out, None if options.empty_rows in ("uniform", "offset") else of_lse, of_p


def _tangents_of_map(ctx: Any, *tangents: Tensor | None) -> Any:
    q, k, *tensors, weights = ctx.saved_tensors
    return _formulas.map_tangent(weights, q, k, None, _moving(_MAP, tangents), Options(*tensors, *ctx.options))


def _tangents_of_backward(ctx: Any, *tangents: Tensor | None) -> Any:
    # The gradients g(x, d_out) are linear in d_out. Second derivatives are symmetric. So the derivative of g along a tangent x' of x is the gradient of <x', g>
    # with respect to x.
    d_out, q, k, v, out, lse, *tensors = ctx.saved_tensors
    options, moving, of_d_out = [*tensors, *ctx.options], _moving(_BACKWARD, tangents), tangents[0]
    parts = []
    if of_d_out is not None:
        parts.append(attention_backward(of_d_out, q, k, v, out, lse, *options, ctx.wanted))
    if any(x is not None for x in moving):
        parts.append(attention_backward_backward(d_out, q, k, v, out, lse, *moving, *options, [*ctx.wanted, False])[:-1])
    if not parts:
        return (None,) * len(GRADIENTS)
    sums = parts[0] if len(parts) == 1 else [a + b for a, b in zip(*parts)]
    return tuple(x if x.is_floating_point() else None for x in sums)  # the operator returns an empty integer tensor for int8 keys; torch requires None


def _save_jvp(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    count = len(_JVP) - len(Options._fields) + Options._fields.index("seed") + 1
    ctx.options = inputs[count:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:count], output[1])


def _gradients_of_jvp(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> Any:
    q, k, v, out, lse, *rest, of_lse = ctx.saved_tensors
    moving, options = rest[: len(GRADIENTS)], Options(*rest[len(GRADIENTS) :], *ctx.options)
    needed = dict(zip(_JVP, ctx.needs_input_grad))
    _ops.refuse_gradient_of_scales(needed["k_scale"], needed["v_scale"])
    wanted, of_tangents = [needed[name] for name in GRADIENTS], [needed[name] for name in _TANGENTS]
    sums: dict[str, Tensor] = {}

    def add(names: tuple[str, ...], found: tuple[Tensor | None, ...], wanted: list[bool]) -> None:
        for name, grad, want in zip(names, found, wanted):
            if want and grad is not None:
                sums[name] = sums[name] + grad if name in sums else grad

    if d_out is not None:
        if any(wanted):
            add(GRADIENTS, attention_backward_backward(d_out, q, k, v, out, lse, *moving, *options, [*wanted, False]), wanted)
        if any(of_tangents):
            add(_TANGENTS, attention_backward(d_out, q, k, v, out, lse, *options, of_tangents), of_tangents)
    if d_lse is not None:
        if any(of_tangents):
            add(_TANGENTS, _formulas.lse_gradients(d_lse, q, k, v, lse, options, of_tangents), of_tangents)
        if any(wanted):
            add(GRADIENTS, _gradients_of_lse_tangent(d_lse, of_lse, q, k, v, lse, moving, options, wanted), wanted)
    return tuple(sums.get(name) for name in _JVP)


def _refuse_jvp_of_jvp(ctx: Any, *tangents: Tensor | None) -> Any:
    raise NotImplementedError("polyhead's attention has no forward mode of forward mode (jacfwd of jacfwd); torch.func.hessian, jacfwd of jacrev, works")


def _jvp_in_a_batch(call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> Any:
    together = _together(info.batch_size, _JVP, in_dims, inputs, set())
    if together is None:
        return _one_by_one(call, info, in_dims, inputs)
    return call(*together), (0, 0)


def _gradients_of_lse_tangent(
    d: Tensor, of_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, tangents: list[Tensor | None], options: Options, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    # Let s be the sink's share of the softmax, z the sink, and out1 the output of the problem of `_formulas.halved`. Then lse' = 4 out1' / (1 + s) + s z'.
    # The gradient of lse' with respect to the inputs other than z has two terms: 4 / (1 + s) times the gradient of out1', in which the sink of the halved
    # problem is constant; and -4 s z' / (1 + s) times the gradient of out1, which accounts for the changes of the factors. The gradient with respect to z is -s
    # (lse' - z').
    if options.empty_rows == "unmasked":  # the halved problem needs a sink, which empty_rows "unmasked" refuses
        raise NotImplementedError("polyhead has no gradient of the forward mode of lse with empty_rows='unmasked'")
    share, arguments, other = _formulas.halved(q, k, v, lse, options)
    of_sink = GRADIENTS.index("sink")
    sink, sink_tangent = options.sink, tangents[of_sink]
    moving = [None if i in (2, of_sink) else x for i, x in enumerate(tangents)]
    want = [w and i not in (2, of_sink) for i, w in enumerate(wanted)]
    d_1 = (4 * d / (1 + share)).unsqueeze(-1)
    found = attention_backward_backward(d_1, *arguments, *moving, *other, [*want, False])[:-1]
    grads: list[Tensor | None] = [grad if w else None for grad, w in zip(found, want)]
    if sink is None:
        return tuple(grads)
    rows: Any = 0 if sink_tangent is None else sink_tangent.unsqueeze(-1) if sink_tangent.dim() == 1 else sink_tangent
    if sink_tangent is not None:
        more = attention_backward(-d_1 * (share * rows).unsqueeze(-1), *arguments, *other, want)
        grads = [a if a is None else a + b for a, b in zip(grads, more)]
    grads[of_sink] = _formulas.to_sink(-d * share * (of_lse - rows), sink) if wanted[of_sink] else None
    return tuple(grads)


# The operators of `_ops`, in the form that can be called under any transform.
attention = _operator(_Rule(_ops.attention, _for_both_modes(_ops.save), _ops.input_gradients, _tangents_of_attention, _in_a_batch))
attention_map = _operator(_Rule(_ops.attention_map, _for_both_modes(_ops.save_map), _ops.map_gradients, _tangents_of_map, _one_by_one))
attention_jvp = _operator(_Rule(_ops.attention_jvp, _save_jvp, _gradients_of_jvp, _refuse_jvp_of_jvp, _jvp_in_a_batch))
attention_backward = _operator(
    _Rule(_ops.attention_backward, _for_both_modes(_ops.save_backward), _ops.second_gradients, _tangents_of_backward, partial(_gradients_in_a_batch, _BACKWARD, GRADIENTS))
)
attention_backward_backward = _operator(
    _Rule(
        _ops.attention_backward_backward,
        _ops.save_backward_backward,
        _ops.third_gradients,
        _ops.refuse_third_derivative,
        partial(_gradients_in_a_batch, _BACKWARD_BACKWARD, (*GRADIENTS, "d_out")),
    )
)


@_ops.attention.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:  # vmap inside of code that torch.compile traces
    return _in_a_batch(_ops.attention, info, in_dims, inputs)


_dispatch.transforms = sys.modules[__name__]
