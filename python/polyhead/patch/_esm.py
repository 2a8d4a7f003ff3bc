"""Replacements for the attention modules of fair-esm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .._options import Precision
from ..torch import _layer_pass as passes
from ..torch import attention
from ._layer import is_ours


def multihead(
    own: Callable[..., Any], precision: Precision, self: Any, query: Tensor, key: Tensor | None, value: Tensor | None,
    key_padding_mask: Tensor | None = None, incremental_state: Any = None, need_weights: bool = True, static_kv: bool = False, attn_mask: Tensor | None = None, before_softmax: bool = False,
    need_head_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Replaces forward of esm's MultiheadAttention, for inputs [T,B,E]. esm's own code still computes incremental decoding, and calls that request scores
    before the softmax, that have an attn_mask of bool, a key_padding_mask of numbers or a query without a key (esm's result is NaN), or that request
    attention weights together with dropout."""
    arguments = (query, key, value, key_padding_mask, incremental_state, need_weights, static_kv, attn_mask, before_softmax, need_head_weights)
    by_esm = incremental_state is not None or static_kv or before_softmax or self.onnx_trace or torch.is_autocast_enabled("cpu")
    found = None
    if not by_esm and key is not None and value is not None:
        found = _of_module(self, precision, query, key, value, key_padding_mask, attn_mask, need_weights, need_head_weights)
    return own(self, *arguments) if found is None else found


def _of_module(
    self: Any, precision: Precision, query: Tensor, key: Tensor, value: Tensor, blocked: Tensor | None, mask: Tensor | None, need_weights: bool,
    need_head_weights: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Computes a call; returns None if esm must compute it. `blocked` is the call's key_padding_mask."""
    dropout = float(self.dropout) if self.training else 0.0
    weights = need_weights or need_head_weights
    if (dropout > 0 and weights) or not is_ours(query, key, value):
        return None
    projections = (self.q_proj, self.k_proj, self.v_proj)
    if not self.rot_emb and self.enable_torch_version and not need_head_weights:
        # esm gives key, value and the parameters of the projections to torch's function, and does not call the projection layers. So polyhead computes the call only
        # if these layers are plain linear layers without hooks.
        if passes.is_watched(*projections, self.out_proj) or any(layer.bias is None for layer in projections):
            return None
        sources = (query, key, value)
    else:
        sources = (query, query, query) if self.self_attention else (query, key, key) if self.encoder_decoder_attention else (query, key, value)
    if any(x.dim() != 3 or x.size(1) != query.size(1) for x in sources) or sources[1].size(0) != sources[2].size(0):
        return None
    queries, batch, keys = query.size(0), query.size(1), sources[1].size(0)
    if mask is not None and (not is_ours(mask) or mask.dtype != query.dtype or mask.shape != (queries, keys)):
        return None
    # The meaning of a floating mask of keys is not unique: torch's function adds the numbers to the scores, but esm's own code reads them as booleans.
    if blocked is not None and (not passes.are_plain_masks((blocked,)) or blocked.shape != (batch, keys)):
        return None
    k_bias, v_bias = self.bias_k, self.bias_v
    added = (k_bias is not None) + bool(self.add_zero_attn)
    if not added and _has_empty_row(blocked, mask):
        return None
    q, k, v = (linear(x) for linear, x in zip(projections, sources))
    if k_bias is not None:
        k, v = (torch.cat([x, bias.expand(1, x.size(1), -1).to(x.dtype)]) for x, bias in ((k, k_bias), (v, v_bias)))
    if self.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (k, v))
    if added:  # every query attends to the added keys
        blocked = None if blocked is None else torch.nn.functional.pad(blocked, (0, added), value=False)
        mask = None if mask is None else torch.nn.functional.pad(mask, (0, added))
    q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3) for x in (q, k, v))  # [B,N,T,H]
    if self.rot_emb:
        q, k = self.rot_emb(q, k)
    if q.dtype != v.dtype:  # the rotary positions of esm gave q and k another dtype than v
        return None
    bias = None if mask is None else mask.to(q.dtype)
    found = attention(q, k, v, block_keys=blocked, bias=bias, scale=self.scaling, dropout=dropout, precision=precision, return_attention_weights=weights)
    out, p = found if isinstance(found, tuple) else (found, None)
    out = self.out_proj(out.permute(2, 0, 1, 3).flatten(-2))
    if p is not None:
        p = p.transpose(0, 1).to(out.dtype)
        p = p if need_head_weights else p.mean(0)
    return out, p


def _has_empty_row(blocked: Tensor | None, mask: Tensor | None) -> bool:
    """Whether some query has no key. mask: numbers [T,S], -inf where the query may not attend to the key."""
    if mask is None or not bool((mask == -torch.inf).any()):
        return blocked is not None and bool(blocked.all(-1).any())
    none = mask == -torch.inf
    return bool((none if blocked is None else none | blocked[:, None, :]).all(-1).any())


def column(
    own: Callable[..., Any], precision: Precision, self: Any, x: Tensor, self_attn_mask: Tensor | None = None, self_attn_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Replaces forward of esm's ColumnSelfAttention, for inputs [rows, columns, B, E]: attention along the rows. esm's own code still computes calls with one
    row, and calls in training with dropout. It also splits large calls into smaller calls of the module, which this function computes."""
    # Whether dropout is applied depends on the training flag of the submodule dropout_module, not of the module.
    by_esm = self_attn_mask is not None or not is_ours(x) or x.dim() != 4 or x.size(0) == 1 or torch.is_autocast_enabled("cpu")
    by_esm = by_esm or self.dropout_module.training and self.dropout_module.p > 0
    by_esm = by_esm or x.size(0) * x.size(1) > self.max_tokens_per_msa and not torch.is_grad_enabled()
    padding = self_attn_padding_mask
    if by_esm or padding is not None and (not passes.are_plain_masks((padding,)) or padding.shape != (x.size(2), x.size(0), x.size(1))):
        return own(self, x, self_attn_mask, padding)  # type: ignore[no-any-return]
    q, k, v = (linear(x).unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 3, 0, 4) for linear in (self.q_proj, self.k_proj, self.v_proj))
    blocked = None if padding is None else padding.permute(2, 0, 1)  # [columns, B, rows]
    # esm replaces the scores of masked keys by one number. So in a column with only masked keys all attention weights are equal, and the scores have no
    # gradient.
    empty_rows: Literal["uniform", "zero"] = "uniform" if blocked is not None and bool(blocked.all(-1).any()) else "zero"
    out, p = attention(q, k, v, block_keys=blocked, scale=self.scaling, empty_rows=empty_rows, precision=precision, return_attention_weights=True)
    return self.out_proj(out.permute(3, 0, 1, 2, 4).flatten(-2)), p.permute(2, 0, 1, 3, 4)


_MULTIHEAD = (
    "query", "key", "value", "key_padding_mask", "incremental_state", "need_weights", "static_kv", "attn_mask", "before_softmax", "need_head_weights"
)  # fmt: skip
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
METHODS: tuple[tuple[Any, ...], ...] = (
    (
        "esm.multihead_attention", "MultiheadAttention", "forward", _MULTIHEAD, (), multihead, ("apply_sparse_mask",), (*_PROJECTIONS, "bias_k", "bias_v"),
        {"rot_emb": "esm.rotary_embedding.RotaryEmbedding"},  # only this class: the replacement calls rot_emb with other dimensions of q and k than esm's method does
    ),
    (
        "esm.axial_attention", "ColumnSelfAttention", "forward", ("x", "self_attn_mask", "self_attn_padding_mask"), (), column,
        ("compute_attention_update",), _PROJECTIONS, {"dropout_module": "torch.nn.modules.dropout.Dropout"},
    ),
)  # fmt: skip
