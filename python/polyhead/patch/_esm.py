"""The attention modules of fair-esm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..torch import attention
from ._layer import is_ours


def multihead(
    own: Callable[..., Any], self: Any, query: Tensor, key: Tensor | None, value: Tensor | None, key_padding_mask: Tensor | None = None,
    incremental_state: Any = None, need_weights: bool = True, static_kv: bool = False, attn_mask: Tensor | None = None, before_softmax: bool = False,
    need_head_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """MultiheadAttention, [T,B,E]. Left to its own code: incremental decoding, scores before the softmax, masks that are not numbers, a query without a key
    (NaN there), and attention weights together with dropout."""
    arguments = (query, key, value, key_padding_mask, incremental_state, need_weights, static_kv, attn_mask, before_softmax, need_head_weights)
    dropout = float(self.dropout) if self.training else 0.0
    weights = need_weights or need_head_weights
    by_esm = incremental_state is not None or static_kv or before_softmax or self.onnx_trace or (dropout > 0 and weights)
    if by_esm or key is None or value is None or not is_ours(query, key, value) or torch.is_autocast_enabled("cpu"):
        return own(self, *arguments)  # type: ignore[no-any-return]
    mask = attn_mask
    if mask is not None and (not is_ours(mask) or mask.shape != (query.size(0), key.size(0))):
        return own(self, *arguments)  # type: ignore[no-any-return]
    sources = (query, query, query) if self.self_attention else (query, key, key) if self.encoder_decoder_attention else (query, key, value)
    k_bias, v_bias = self.bias_k, self.bias_v
    blocked = None if key_padding_mask is None or key_padding_mask.dim() == 0 else key_padding_mask.to(torch.bool)
    added = (k_bias is not None) + bool(self.add_zero_attn)
    if not added and _has_empty_row(blocked, mask):
        return own(self, *arguments)  # type: ignore[no-any-return]
    q, k, v = (linear(x) for linear, x in zip((self.q_proj, self.k_proj, self.v_proj), sources))
    if k_bias is not None:
        k, v = (torch.cat([x, bias.expand(1, x.size(1), -1).to(x.dtype)]) for x, bias in ((k, k_bias), (v, v_bias)))
    if self.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (k, v))
    if added:  # always attended to
        blocked = None if blocked is None else torch.nn.functional.pad(blocked, (0, added), value=False)
        mask = None if mask is None else torch.nn.functional.pad(mask, (0, added))
    q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3) for x in (q, k, v))  # [B,N,T,H]
    if self.rot_emb:
        q, k = self.rot_emb(q, k)
    if q.dtype != v.dtype:  # positions in another dtype than the model's
        return own(self, *arguments)  # type: ignore[no-any-return]
    found = attention(
        q, k, v, block_keys=blocked, bias=None if mask is None else mask.to(q.dtype), scale=self.scaling, dropout=dropout, return_attention_weights=weights
    )
    out, p = found if weights else (found, None)
    out = self.out_proj(out.permute(2, 0, 1, 3).flatten(-2))
    if p is not None:
        p = p.transpose(0, 1).to(out.dtype)
        p = p if need_head_weights else p.mean(0)
    return out, p


def _has_empty_row(blocked: Tensor | None, mask: Tensor | None) -> bool:
    """Whether a query has no key. mask: numbers, -inf where a pair is masked."""
    if mask is None or not bool((mask == -torch.inf).any()):
        return blocked is not None and bool(blocked.all(-1).any())
    none = mask == -torch.inf
    return bool((none if blocked is None else none | blocked[:, None, :]).all(-1).any())


def column(
    own: Callable[..., Any], self: Any, x: Tensor, self_attn_mask: Tensor | None = None, self_attn_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """ColumnSelfAttention, [rows, columns, B, E]: attention along the rows. Its own code does one row, and dropout of the attention weights that it returns."""
    dropping = self.training and self.dropout_module.p > 0
    if not is_ours(x) or self_attn_mask is not None or x.size(0) == 1 or dropping or torch.is_autocast_enabled("cpu"):
        return own(self, x, self_attn_mask, self_attn_padding_mask)  # type: ignore[no-any-return]
    q, k, v = (linear(x).unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 3, 0, 4) for linear in (self.q_proj, self.k_proj, self.v_proj))
    blocked = None if self_attn_padding_mask is None else self_attn_padding_mask.to(torch.bool).permute(2, 0, 1)  # [columns, B, rows]
    # Scores of masked keys are replaced by one number, so that a column of nothing else has equal weights and no gradient of its scores.
    empty_rows: Literal["uniform", "zero"] = "uniform" if blocked is not None and bool(blocked.all(-1).any()) else "zero"
    out, p = attention(q, k, v, block_keys=blocked, scale=self.scaling, empty_rows=empty_rows, return_attention_weights=True)
    return self.out_proj(out.permute(3, 0, 1, 2, 4).flatten(-2)), p.permute(2, 0, 1, 3, 4)


_MULTIHEAD = (
    "query", "key", "value", "key_padding_mask", "incremental_state", "need_weights", "static_kv", "attn_mask", "before_softmax", "need_head_weights"
)  # fmt: skip
METHODS = (
    ("esm.multihead_attention", "MultiheadAttention", "forward", _MULTIHEAD, (), multihead),
    ("esm.axial_attention", "ColumnSelfAttention", "forward", ("x", "self_attn_mask", "self_attn_padding_mask"), (), column),
)
