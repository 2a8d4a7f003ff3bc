"""Replacement for the attention module of ESM-C and ESM-3, in EvolutionaryScale's package esm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._options import Precision
from ..torch import attention
from ._layer import is_ours


def multihead(own: Callable[..., Tensor], precision: Precision, self: Any, x: Tensor, seq_id: Tensor | None) -> Tensor:
    """Replaces forward of MultiHeadAttention, for x [B,L,E]. seq_id [B,L]: a position attends to the positions with the same seq_id. A boolean seq_id marks
    padding."""
    if not is_ours(x) or x.dim() != 3 or torch.is_autocast_enabled("cpu") or (seq_id is not None and seq_id.shape != x.shape[:2]):
        return own(self, x, seq_id)
    q, k, v = self.layernorm_qkv(x).chunk(3, dim=-1)
    q, k = self.q_ln(q).to(q.dtype), self.k_ln(k).to(q.dtype)
    q, k = self._apply_rotary(q, k)
    if not q.dtype == k.dtype == v.dtype:
        return own(self, x, seq_id)
    q, k, v = (y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for y in (q, k, v))
    attend = None
    if seq_id is not None and not bool((seq_id == seq_id[:, :1]).all()):
        attend = (seq_id.unsqueeze(-1) == seq_id.unsqueeze(-2)).unsqueeze(1)
    out = attention(q, k, v, precision=precision, attend=attend)
    return self.out_proj(out.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


METHODS: tuple[tuple[Any, ...], ...] = (
    ("esm.layers.attention", "MultiHeadAttention", "forward", ("x", "seq_id"), (), multihead, (), ("layernorm_qkv", "out_proj", "q_ln", "k_ln", "rotary")),
)
