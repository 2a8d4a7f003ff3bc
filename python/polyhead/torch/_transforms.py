"""Attention under torch.func: grad, vjp and jacrev of first order, and vmap, which the operators of `_ops` do not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _C

from . import _ops
from ._ops import Options

_PAIRS = {"attend", "block", "bias"}  # broadcast to [*,N,T,S]
_KEYS = {"attend_keys", "block_keys"}  # broadcast to [*,S]
_SEQUENCES = {"key_lengths", "diagonal_offsets", "k_scale", "v_scale", "d_out", "q", "k", "v", "out", "lse"}  # have every leading dimension


def active() -> bool:
    """Whether a transform of torch.func is at work."""
    return not torch.compiler.is_compiling() and _C._are_functorch_transforms_active()


def _one_by_one(function: Callable[..., Any], size: int, in_dims: tuple[int | None, ...], arguments: tuple[Any, ...]) -> Any:
    results = [function(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims))) for i in range(size)]
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])


def _with_first(size: int, dim: int | None, tensor: Tensor, rank: int) -> Tensor:
    """The tensor with the new dimension first, and extents of 1 after it up to the rank."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.reshape(size, *(1,) * (rank - tensor.dim()), *tensor.shape[1:])


def _together(size: int, names: tuple[str, ...], in_dims: tuple[int | None, ...], arguments: tuple[Any, ...], wanted: set[str]) -> list[Any] | None:
    """The arguments of one call whose sequences are those of all calls; None if there is none. wanted: has a gradient for each call."""
    dims, given = dict(zip(names, in_dims)), dict(zip(names, arguments))
    if given["dropout"] > 0:  # the bits depend on a sequence's place
        return None
    rank = given["q"].dim() + (dims["q"] is None)
    result = []
    for name, x in given.items():
        dim = dims[name]
        if isinstance(x, Tensor) and (dim is not None or name in wanted or name in _SEQUENCES):
            if name in _SEQUENCES:
                x = _with_first(size, dim, x, 0)
            elif name in _PAIRS:
                x = _with_first(size, dim, x, rank)
            elif name in _KEYS:
                x = _with_first(size, dim, x, rank - 2)
            elif name == "sink":
                x = _with_first(size, dim, x, 0)
                x = _with_first(size, 0, x.unsqueeze(-1) if x.dim() == 2 else x, rank - 1)
            else:
                return None
        result.append(x)
    return result


def _in_a_batch(call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> Any:
    together = _together(info.batch_size, ("q", "k", "v", *Options._fields), in_dims, inputs, set())
    if together is None:
        return _one_by_one(call, info.batch_size, in_dims, inputs)
    return call(*together), (0, 0, 0 if Options(*inputs[3:]).attention_weights else None)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _ops.attention(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _ops.save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_p: Tensor | None) -> Any:
        return _ops.input_gradients(ctx, d_out, d_lse, d_p, backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return _in_a_batch(attention, info, in_dims, inputs)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _ops.attention_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        _ops.refuse_second_gradient(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        names = ("d_out", "q", "k", "v", "out", "lse", *Options._fields, "wanted")
        in_dims = (*in_dims[: len(names) - 1], None)  # that of `wanted` is a list
        wanted = {name for name, want in zip(_ops.GRADIENTS, inputs[-1]) if want}
        together = _together(info.batch_size, names, in_dims, inputs, wanted)
        if together is None:
            return _one_by_one(backward, info.batch_size, in_dims, inputs)
        found = backward(*together)
        shapes = {name: [x.size(i) for i in range(x.dim()) if i != dim] for name, x, dim in zip(names, inputs, in_dims) if isinstance(x, Tensor)}
        grads = tuple(grad.reshape(info.batch_size, *shapes[name]) if name in wanted and name in shapes else grad for name, grad in zip(_ops.GRADIENTS, found))
        return grads, tuple(0 if name in wanted and name in shapes else None for name in _ops.GRADIENTS)


def attention(*inputs: Any) -> Any:
    """The operator of `_ops`, under any transform."""
    return _Attention.apply(*inputs)  # type: ignore[no-untyped-call]


@_ops.attention.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:  # inside torch.compile
    return _in_a_batch(_ops.attention, info, in_dims, inputs)


def backward(*inputs: Any) -> Any:
    """The operator `attention_backward` of `_ops`, under any transform."""
    return _Backward.apply(*inputs)  # type: ignore[no-untyped-call]
