"""Runs a model's attention over several ranks, without changing the model."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias

from .._options import Precision, require_precision
from ..torch._replacements import Replacement, Replacements
from ..torch._sdpa import read_arguments
from ._attention import attention
from ._communicator import Group, OneRow, Plan, SliceOrder, communicator_of
from ._transport import Communicator

_WHERE = "sequence_parallel"


class _Block:
    """The state of an active ``with`` block of `sequence_parallel`."""

    def __init__(self, communicator: Communicator, settings: dict[str, Any]) -> None:
        self.communicator, self.settings = communicator, settings
        self.calls = 0

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Replaces torch's scaled_dot_product_attention. The tensors are this rank's slices of the sequence."""
        self.calls += 1
        if isinstance(attn_mask, CausalBias):
            raise NotImplementedError(f"{_WHERE}: attn_mask is a CausalBias, which has the sizes of one rank; give is_causal=True")
        problem = read_arguments(_WHERE, query, key, value, attn_mask, is_causal, enable_gqa, has_all_keys=False)
        out: Tensor = attention(
            *problem.qkv, self.communicator, attend=problem.attend, bias=problem.bias, causal=problem.causal, scale=scale, dropout=dropout_p, **self.settings
        ).to(problem.dtype)
        return out.squeeze(0) if problem.is_unbatched else out


_blocks: list[_Block] = []  # the active `with` blocks; the last one is the innermost
_replacements = Replacements()


def _replaced() -> list[Replacement]:
    own, own_multihead = F.scaled_dot_product_attention, F.multi_head_attention_forward
    parameters = inspect.signature(own_multihead)

    @functools.wraps(own)
    def scaled_dot_product_attention(*arguments: Any, **keywords: Any) -> Tensor:
        return _blocks[-1].attention(*arguments, **keywords) if _blocks else own(*arguments, **keywords)

    @functools.wraps(own_multihead)
    def multi_head_attention_forward(*arguments: Any, **keywords: Any) -> Any:
        if _blocks:
            _require_sliceable(parameters.bind(*arguments, **keywords))
        return own_multihead(*arguments, **keywords)

    return [
        (F, "scaled_dot_product_attention", own, scaled_dot_product_attention),
        (F, "multi_head_attention_forward", own_multihead, multi_head_attention_forward),
    ]


def _require_sliceable(call: inspect.BoundArguments) -> None:
    """Raises NotImplementedError for calls of nn.MultiheadAttention that cannot be computed from slices: with attention weights, added keys, or a mask of this
    rank's keys."""
    call.apply_defaults()
    given = call.arguments
    if given["need_weights"]:
        raise NotImplementedError(f"{_WHERE}: nn.MultiheadAttention with need_weights=True computes attention of this rank's keys alone; give need_weights=False")
    for name in ("bias_k", "bias_v", "key_padding_mask"):
        if given[name] is not None:
            raise NotImplementedError(f"{_WHERE}: nn.MultiheadAttention with {name} is not supported over several ranks")
    if given["add_zero_attn"]:
        raise NotImplementedError(f"{_WHERE}: nn.MultiheadAttention with add_zero_attn is not supported over several ranks")


@contextlib.contextmanager
def sequence_parallel(
    group: Group = None,
    *,
    order: SliceOrder = "contiguous",
    plan: Plan = None,
    timeout: float = 30.0,
    one_row: OneRow = None,
    ranks_per_machine: int | None = None,
    precision: Precision = "native",
) -> Iterator[None]:
    """Inside a ``with`` block of this function, calls of torch's scaled_dot_product_attention run over several ranks (ring attention, Liu et al. 2023, arXiv 2310.01889;
    DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509). Each rank gives the model its slice of the sequence, which `take_slice` cuts.

    ::

        with sequence_parallel(order="zigzag"):
            y = model(take_slice(x, 1, "zigzag", rank, ranks))     # [B,T_r,E]
            loss(y).backward()                                      # parameters: sum their gradients over the ranks

    In the block, the arguments of a call are this rank's slices of query, key and value. is_causal is the causal mask of the whole sequence. attn_mask is
    ``[..,T_r,S]``, for the rank's queries and all keys. The model must use the positions that `slice_of` returns for its position embeddings.

    The attribute scaled_dot_product_attention of ``torch.nn.functional`` is replaced in the whole process. Models, ``nn.MultiheadAttention`` (with
    need_weights=False) and ``nn.TransformerEncoderLayer`` call this attribute; the fused kernels of these two layers are switched off. Attention that is
    computed in another way still attends only to the rank's own keys. This is true of calls through a name that was imported from torch.nn.functional before
    the block, products of a softmax and values, FlexAttention, the functions and layers of polyhead, and models compiled before the block. At the end of a
    block in which the replaced function was not called, a warning is given. If torch.utils.checkpoint repeats a forward pass, the backward pass that repeats it
    must run in the block. Blocks may be nested; the innermost block applies.

    Args:
        group: a ProcessGroup of torch.distributed, None for the default one, or a `Communicator`.
        order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`.
        precision: precision of bfloat16 products, as in `polyhead.sdpa`.

    Returns:
        A context manager. The end of the block restores torch's functions, also after an exception.

    Raises:
        ValueError, TypeError: group is not a process group; in the block, for the same reasons as `polyhead.distributed.attention`.
        ConnectionError: in the block: a rank is silent, has ended, or cannot be reached; the message names the rank.
        NotImplementedError: in the block: a call with a CausalBias as attn_mask, or of nn.MultiheadAttention with need_weights=True, bias_k, bias_v,
            add_zero_attn or key_padding_mask.
    """
    require_precision(_WHERE, precision)
    settings = {"order": order, "plan": plan, "timeout": timeout, "one_row": one_row, "ranks_per_machine": ranks_per_machine, "precision": precision}
    block = _Block(communicator_of(_WHERE, group), settings)
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    _replacements.apply(_replaced)
    _blocks.append(block)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
        if block.calls == 0:
            warnings.warn(f"{_WHERE}: no call of torch.nn.functional.scaled_dot_product_attention was seen in the block", RuntimeWarning, stacklevel=3)
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fast_path)
        _blocks.remove(block)
        _replacements.undo()
