"""The fast path in eager mode: tensors go directly to the kernel, inside an autograd.Function if a gradient is recorded.

torch's dispatcher takes longer than a small attention. If something other than autograd observes the call (torch.compile, modes, transforms, tracing), or a
tensor is not plain memory on the CPU, the operators of `_ops` are called instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, _C
from torch.autograd import forward_ad

from .. import _core
from .._options import RelativeBias
from . import _ops

PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""Types whose tensors are memory and nothing more, if the bindings can read them."""

_READ_BY_C = hasattr(Tensor, "__dlpack_c_exchange_api__")  # torch 2.10 and later
_REFUSALS = (TypeError, ValueError)
_RELATIVE = ("slopes", "table")
_SCALES = ("k_scale", "v_scale")
_NO_MORE = (False, False, False)
_NONE = (None,) * 16


recorders: list[Any] = []
"""Captures that are running. They are told of each call (`record(q, k, options of polyhead.sdpa)`), and do not count as something that looks at it."""


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


def _only_recorders() -> bool:
    return all(_C._get_dispatch_stack_at(i) in recorders for i in range(_C._len_torch_dispatch_stack()))


# What a forward pass is given besides q, k and v: options of `polyhead.sdpa`, the names of the tensors among them, and how many outputs are wanted: out; out
# and lse; or out, lse and attention weights. A tuple is made faster than an object of a class.
_Call = tuple[dict[str, Any], tuple[str, ...], int]


def _without_tensors(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options with None for tensors, which autograd saves itself."""
    given = {name: value for name, value in given.items() if name not in names}
    if "relative_bias" in given:
        given["relative_bias"] = given["relative_bias"]._replace(slopes=None, table=None)
    return given


def _with_tensors(given: dict[str, Any], names: tuple[str, ...], tensors: Sequence[Tensor]) -> dict[str, Any]:
    given = given | dict(zip(names, tensors))
    relative = {name: given.pop(name) for name in _RELATIVE if name in given}
    if relative:
        given["relative_bias"] = given["relative_bias"]._replace(**relative)
    return given


def _limit_threads(given: dict[str, Any]) -> None:
    threads = torch.get_num_threads()  # 1 in the workers of a DataLoader
    if threads < _core.num_threads():
        given["num_threads"] = threads


def _forward(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any], lse: bool, attention_weights: bool, out: Tensor | None = None) -> Any:
    _limit_threads(given)
    for recorder in recorders:
        recorder.record(q, k, given)
    if "k_scale" in given or "v_scale" in given:
        given = given.copy()
        return _core.sdpa(q, k, v, given, lse, out, attention_weights, None, given.pop("k_scale", None), given.pop("v_scale", None))
    return _core.sdpa(q, k, v, given, lse, out, attention_weights, None, None, None)


class _Attention(torch.autograd.Function):
    """Returns out, or a tuple with the number of outputs that the call wants."""

    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Any:
        given, names, outputs = call
        out, lse, p = _forward(q, k, v, given, True, outputs > 2)
        ctx.call = call if not tensors else (_without_tensors(given, names), names, outputs)
        # torch notices when a saved tensor is written to, a mask too.
        if outputs == 1:
            ctx.save_for_backward(q, k, v, out, *tensors)
            ctx.lse = lse  # not an output, so it needs no check for changes
            return out
        ctx.save_for_backward(q, k, v, out, *tensors, lse, p)
        ctx.set_materialize_grads(False)
        return (out, lse, p)[:outputs]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None = None, d_p: Tensor | None = None) -> tuple[Tensor | None, ...]:
        given, names, outputs = ctx.call
        if outputs == 1:
            q, k, v, out, *tensors = ctx.saved_tensors
            lse, p = ctx.lse, None
        else:
            q, k, v, out, *tensors, lse, p = ctx.saved_tensors
        _, d_q, d_k, d_v, *others = ctx.needs_input_grad
        more = _NO_MORE
        if tensors:
            given, wanted = _with_tensors(given, names, tensors), dict(zip(names, others))
            if True in others:
                more = wanted.get("bias", False), wanted.get("sink", False), wanted.get("slopes", False) or wanted.get("table", False)
        if d_lse is None and d_p is None and type(d_out) in PLAIN and not (torch.is_grad_enabled() or watched()):
            _limit_threads(given)
            try:
                found = _core.sdpa_backward(q, k, v, out, lse, d_out, given, None, d_q, d_k, d_v, *more)
            except _REFUSALS:  # let the operator compute it or raise the error
                pass
            else:
                if not tensors:
                    return None, found[0], found[1], found[2]
                return None, *found[:3], *_in_order(names, (*found, found[5]))
        every = [d_q, d_k, d_v, *(name in names and wanted[name] for name in _ops.GRADIENTS[3:])]
        sums = _ops.gradients(d_out, d_lse, d_p, q, k, v, out, lse, p, _ops.options_of(given), every)
        return None, *sums[:3], *_in_order(names, sums)


def _in_order(names: tuple[str, ...], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    by_name = dict(zip(_ops.GRADIENTS, gradients))
    return [by_name.get(name) for name in names]


# Function.apply without its part for transforms, which takes time.
_apply: Any = super(torch.autograd.Function, _Attention).apply


def attention(
    q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any], lse: bool = False, attention_weights: bool = False, out: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """out, lse and attention weights of `polyhead.sdpa`, which are None unless they are wanted; or None if the operator must be called, which also says
    what is wrong.

    Args:
        given: options of `polyhead.sdpa` by name. It is changed.
    """
    if type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN or watched():
        return None
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    tensors: dict[str, Tensor] = {}
    if given:
        relative = given.get("relative_bias")
        every = given if relative is None else given | {name: getattr(relative, name, None) for name in _RELATIVE}
        for name, value in every.items():
            if isinstance(value, Tensor):
                if type(value) not in PLAIN:
                    return None
                tensors[name] = value
                wanted = wanted or value.requires_grad
            elif value is not None and name in _RELATIVE:
                return None
    try:
        if not (wanted and torch.is_grad_enabled()):
            found: tuple[Tensor, Tensor | None, Tensor | None] = _forward(q, k, v, given, lse, attention_weights, out)
            if out is not None:
                torch.autograd.graph.increment_version(out)
            return found
        if tensors and any(name in tensors and tensors[name].requires_grad for name in _SCALES):
            return None  # such a gradient does not exist: let the operator raise the error
        if out is not None or (lse and given.get("empty_rows") == "uniform"):
            return None
        outputs = 3 if attention_weights else 2 if lse else 1
        result = _apply((given, tuple(tensors), outputs), q, k, v, *tensors.values())
    except _REFUSALS:
        return None
    return (result, None, None) if outputs == 1 else (*result, None) if outputs == 2 else result
