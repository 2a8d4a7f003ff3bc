"""Checks the tensors that are given to polyhead.torch, and reads torch's CausalBias."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def require(where: str, *, also: tuple[torch.dtype, ...] = (), **tensors: object) -> None:
    """Raises TypeError unless polyhead can compute with the tensors; the message says what is allowed. also: dtypes that are allowed besides polyhead's."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where}: {name} is of type {type(tensor).__name__}; it must be a torch.Tensor")
        require_memory(where, **{name: tensor})
        if tensor.is_nested or tensor.layout != torch.strided:
            raise TypeError(f"{where}: {name} is {'nested' if tensor.is_nested else tensor.layout}; it must be a dense tensor")
        if tensor.device.type not in ("cpu", "meta"):
            raise TypeError(f"{where}: {name} is on device {tensor.device}; polyhead computes on the CPU, so move it there first")
        if tensor.dtype not in DTYPES + also:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES + also)
            raise TypeError(f"{where}: {name} has dtype {str(tensor.dtype).removeprefix('torch.')}; it must be one of {allowed}")


def require_memory(where: str, **tensors: Tensor | None) -> None:
    """Raises TypeError for tensors of a subclass with its own __torch_function__, such as CausalBias: that function computes the values, and the memory may be unused.
    A subclass with __torch_dispatch__ is allowed, because torch's dispatcher calls that method."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        kind = type(tensor)
        if kind is Tensor or kind is torch.nn.Parameter:
            continue
        function = kind.__torch_function__
        inherited = function is torch._C._disabled_torch_function_impl or getattr(function, "__func__", None) is Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
        if not inherited and kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl:
            raise TypeError(
                f"{where}: {name} is of type {kind.__name__}, a subclass of torch.Tensor that polyhead does not know; "
                f"if its memory holds the numbers, pass {name}.as_subclass(torch.Tensor)"
            )


def require_one_device(where: str, **tensors: Tensor | None) -> None:
    """Raises TypeError unless all tensors are on the CPU, or all are meta tensors, which have only shapes."""
    away = {name: tensor for name, tensor in tensors.items() if tensor is not None and not tensor.is_cpu}
    if not away:
        return
    name, tensor = next(iter(away.items()))
    here = next((name for name, tensor in tensors.items() if tensor is not None and tensor.is_cpu), None)
    elsewhere = next((name for name, tensor in away.items() if tensor.device.type != "meta"), None)
    if here is not None:
        raise TypeError(f"{where}: {name} is on device {tensor.device}, and {here} on cpu; polyhead computes on the CPU, where all of them must be")
    if elsewhere is not None:
        raise TypeError(f"{where}: {elsewhere} is on device {away[elsewhere].device}; polyhead computes on the CPU, so move it there first")


def causal_diagonal(where: str, bias: CausalBias, queries: int, keys: int) -> Literal["top_left", "bottom_right"]:
    """The diagonal of a CausalBias for these numbers of queries and keys, as a word for the argument causal of `polyhead.sdpa`."""
    variant = getattr(bias, "variant", None)  # None if torch made the tensor as a copy of a CausalBias, because the copy loses the attribute
    if not isinstance(variant, CausalVariant):
        raise TypeError(f"{where}: attn_mask is a CausalBias without a variant; make it by causal_upper_left or causal_lower_right")
    if (bias.seq_len_q, bias.seq_len_kv) != (queries, keys):
        raise ValueError(f"{where}: attn_mask is a CausalBias of [{bias.seq_len_q}, {bias.seq_len_kv}]; it must be of [T,S] = [{queries}, {keys}]")
    return "top_left" if variant == CausalVariant.UPPER_LEFT else "bottom_right"
