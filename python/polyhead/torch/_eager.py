"""The fast path of attention in eager mode: tensors are passed directly to the kernel, inside an autograd.Function if a gradient is recorded.

torch's dispatcher takes longer than a small attention, and so do a few lines of Python. Therefore the checks and both passes are C++ code, in
python/bindings/torch_attention.cc. If something other than autograd observes the call (torch.compile, modes, transforms, tracing), or a tensor is not plain
memory on the CPU, the operators of `_ops` are called instead. These operators also raise the errors for arguments that the fast path cannot read; the fast path
raises the kernel's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, _C
from torch.autograd import forward_ad

from .. import _core
from .._arguments import ARGUMENTS, GRADIENTS
from . import _ops
from ._rules import options_of

PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""The types of plain tensors, whose values are only the numbers in their memory."""

_READ_BY_C = hasattr(Tensor, "__dlpack_c_exchange_api__")  # torch 2.10 and later
_RELATIVE = tuple(argument.name for argument in ARGUMENTS if argument.group == "relative_bias" and argument.extent)


recorders: list[Any] = []
"""The running captures. Each call of attention is reported to them by `record(q, k, options of polyhead.sdpa)`. `watched` ignores them."""


def watched() -> bool:
    """True if something other than autograd observes torch's operators now."""
    return (
        not _READ_BY_C
        or torch.compiler.is_compiling()
        or _C._are_functorch_transforms_active()
        or (_C._len_torch_dispatch_stack() > 0 and not _only_recorders())
        or _C._len_torch_function_stack() > 0
        or _C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


# This private function of torch tells whether autocast is enabled for any device, in half the time of torch.is_autocast_enabled.
is_autocast_enabled: Callable[[], bool] = getattr(_C, "_is_any_autocast_enabled", None) or (lambda: torch.is_autocast_enabled("cpu"))


def _only_recorders() -> bool:
    return all(_C._get_dispatch_stack_at(i) in recorders for i in range(_C._len_torch_dispatch_stack()))


def _without_tensors(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options without their tensors, because autograd saves the tensors."""
    given = {name: value for name, value in given.items() if name not in names}
    if "relative_bias" in given:
        given["relative_bias"] = given["relative_bias"]._replace(**dict.fromkeys(_RELATIVE))
    return given


def _with_tensors(given: dict[str, Any], names: tuple[str, ...], tensors: Sequence[Tensor]) -> dict[str, Any]:
    given = given | dict(zip(names, tensors))
    relative = {name: given.pop(name) for name in _RELATIVE if name in given}
    if relative:
        given["relative_bias"] = given["relative_bias"]._replace(**relative)
    return given


class _Attention(torch.autograd.Function):
    """Records a forward pass that is already computed, so that autograd can run the backward pass. The arguments are (call, results, q, k, v, *tensors), where
    call is (options without tensors, names of the tensors, number of outputs). Returns out, or a tuple with this number of outputs."""

    forward: Any = staticmethod(_core.eager_attention_save)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> Any:
        if torch.compiler.is_compiling():  # true while compiled autograd traces this function
            return _gradients(ctx, ctx.saved_tensors, d_outputs)
        return _core.eager_attention_backward(ctx, *d_outputs)


def _gradients(ctx: Any, saved: tuple[Any, ...], d_outputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Computes the result of `_Attention.backward` by the operators of `_ops`. This is needed for second derivatives, gradients through lse and attention
    weights, and mixed dtypes."""
    given, names, outputs = ctx.call
    q, k, v, out, *tensors = saved if outputs == 1 else saved[:-2]
    lse, p = (ctx.lse, None) if outputs == 1 else saved[-2:]
    d_out, d_lse, d_p = (*d_outputs, None, None)[:3]
    wanted = dict(zip(names, ctx.needs_input_grad[5:]))
    every = [*ctx.needs_input_grad[2:5], *(wanted.get(name, False) for name in GRADIENTS[3:])]
    options = options_of(_with_tensors(given, names, tensors))
    sums = _ops.gradients(d_out, d_lse, d_p, q, k, v, out, lse, p, options, every)
    return None, None, *sums[:3], *_in_order(names, sums)


def _in_order(names: tuple[str, ...], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    by_name = dict(zip(GRADIENTS, gradients))
    return [by_name.get(name) for name in names]


# Function.apply of the base class: it does not support functorch transforms, which takes time.
_apply: Any = super(torch.autograd.Function, _Attention).apply

_core.connect_eager_attention(
    ((_C._are_functorch_transforms_active, False), (_C._len_torch_dispatch_stack, 0), (_C._len_torch_function_stack, 0), (_C._get_tracing_state, None)),
    forward_ad, watched, is_autocast_enabled, torch.get_num_threads, recorders, _apply, _without_tensors, _with_tensors, _gradients,
)  # fmt: skip


def attention(
    q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any], lse: bool = False, attention_weights: bool = False, out: Tensor | None = None
) -> Any:
    """Attention by the fast path. Returns out of `polyhead.sdpa`. If lse or attention weights are wanted, returns a tuple (out, lse, attention weights), with
    None for the one that is not wanted. Returns None if the caller must call the operator of `_ops`, which computes the result or raises the error.

    Args:
        given: options of `polyhead.sdpa` by name.
    """
    if torch.compiler.is_compiling() or not _READ_BY_C:
        return None
    found = _core.eager_attention(q, k, v, given, lse, attention_weights, out)
    if out is not None and found is not None:
        torch.autograd.graph.increment_version(out)
    return found
