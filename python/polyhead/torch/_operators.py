"""Translates calls of torch's attention operators to q, k and options of `polyhead.sdpa`, for `polyhead.capture`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ._rules import Options, keywords
from ._sdpa import _heads as heads_of


class Problem(NamedTuple):
    operation: str
    q: Tensor  # [*,N,T,H]
    k: Tensor  # [*,K,S,H]
    options: dict[str, Any]


def _problem(name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, grouped: bool) -> Problem:
    q, k, _, _ = heads_of(q, k, v, grouped, name)
    options: dict[str, Any] = {}
    if causal:
        options["causal"] = "top_left"
    if mask is not None:
        options["attend" if mask.dtype == torch.bool else "bias"] = mask
    if scale is not None:
        options["scale"] = scale
    return Problem(name, q, k, options)


def _sdpa(
    name: str, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *_: Any,
    scale: float | None = None, enable_gqa: bool = False, **__: Any,
) -> Problem:  # fmt: skip
    return _problem(name, q, k, v, attn_mask, is_causal, scale, enable_gqa)


def _flash(
    name: str, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, attn_mask: Tensor | None = None,
    scale: float | None = None, **__: Any,
) -> Problem:  # fmt: skip
    return _problem(name, q, k, v, attn_mask, is_causal, scale, True)


def _with_bias(
    name: str, q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool = False, dropout_p: float = 0.0, is_causal: bool = False,
    *_: Any, scale: float | None = None, **__: Any,
) -> Problem:  # fmt: skip
    return _problem(name, q, k, v, attn_bias, is_causal, scale, True)


def _overridden(
    name: str, q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *_: Any,
    scale: float | None = None, **__: Any,
) -> Problem:  # fmt: skip
    return _problem(name, q, k, v, attn_bias, is_causal, scale, True)


def _polyhead(name: str, q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any) -> Problem:
    return Problem("polyhead.attention", q, k, keywords(q, Options(*given, **named)))


def _padded(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Pads the sequences of a nested tensor to ``[B,T,E]``. Also returns a mask ``[B,T]``, False for padding."""
    if sequences.layout != torch.strided:
        raise ValueError("polyhead.capture cannot compute maps of nested tensors with the layout torch.jagged")
    lengths = torch.tensor([x.size(0) for x in sequences.unbind()], device=sequences.device)
    padded = sequences.to_padded_tensor(0.0)
    return padded, torch.arange(padded.size(1), device=padded.device) < lengths[:, None]


def _projected(name: str, query: Tensor, key: Tensor, heads: int, weight: Tensor, bias: Tensor, mask: Tensor | None, kind: int | None) -> Problem:
    """Projects query and key, and converts the mask. kind tells the shape of the mask: 0 is [T,S], 1 is [B,S] (a mask of keys), 2 is [B,N,T,S]. In a boolean
    mask, True = may not attend."""
    there = None
    if query.is_nested or key.is_nested:
        if mask is not None:
            raise ValueError("polyhead.capture cannot compute maps of nested tensors if a mask is given; pass padded tensors and a padding mask")
        (query, of_query), (key, of_key) = _padded(query), _padded(key)
        there = (of_query[:, :, None] & of_key[:, None, :])[:, None]  # the rows of padding are 0
    weights, biases = weight.chunk(3), bias.chunk(3)
    q, k = (F.linear(x, weights[i], biases[i]).unflatten(-1, (heads, -1)).transpose(1, 2) for i, x in enumerate((query, key)))
    options: dict[str, Any] = {} if there is None else {"attend": there}
    if mask is not None:
        mask = mask[:, None, None, :] if kind == 1 or kind is None and mask.shape == (query.size(0), key.size(1)) != (query.size(1), key.size(1)) else mask
        # nn.MultiheadAttention may convert a boolean mask to numbers. The fused kernels treat every number other than 0 as masked.
        options["block"] = mask != 0
    return Problem(name, q, k, options)


def _multi_head(
    name: str, query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None, **_: Any,
) -> Problem:  # fmt: skip
    return _projected("nn.MultiheadAttention", query, key, heads, weight, bias, mask, mask_type)


def _encoder_layer(
    name: str, x: Tensor, width: int, heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor, use_gelu: bool, norm_first: bool,
    eps: float, norm_weight: Tensor, norm_bias: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, linear_weight: Tensor, linear_bias: Tensor,
    linear_weight_2: Tensor, linear_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None, **_: Any,
) -> Problem:  # fmt: skip
    if x.is_nested and norm_first:
        raise ValueError("polyhead.capture cannot compute maps of a nested tensor in a layer with norm_first=True; pass a padded tensor and a padding mask")
    x = F.layer_norm(x, (width,), norm_weight, norm_bias, eps) if norm_first else x
    return _projected("nn.TransformerEncoderLayer", x, x, heads, weight, bias, mask, mask_type)


FUSED: dict[tuple[str, str], Callable[..., Problem]] = {
    ("aten", "scaled_dot_product_attention"): _sdpa,
    ("aten", "_scaled_dot_product_attention_math"): _sdpa,
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"): _flash,
    ("aten", "_scaled_dot_product_flash_attention"): _flash,
    ("aten", "_scaled_dot_product_efficient_attention"): _with_bias,
    ("aten", "_scaled_dot_product_cudnn_attention"): _with_bias,
    ("aten", "_scaled_dot_product_fused_attention_overrideable"): _overridden,
    ("aten", "_native_multi_head_attention"): _multi_head,
    ("aten", "_transformer_encoder_layer_fwd"): _encoder_layer,
    ("polyhead", "attention"): _polyhead,
}
