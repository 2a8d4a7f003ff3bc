"""Replacements for the attention modules of protenix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._options import Precision
from ._layer import LINEARS, SIGMOID, of_module

_SCALED = ("torch", "triattention")  # kernels of triangle attention to which protenix gives queries that are already scaled
# Kernels that scale the queries themselves. For at most _FEW queries protenix calls torch's code instead, and the queries stay unscaled.
_SCALING = ("deepspeed", "cuequivariance")
_FEW = 16


def triangle(
    own: Callable[..., Tensor], precision: Precision, self: Any, q_x: Tensor, kv_x: Tensor, biases: list[Tensor] | None = None, triangle_attention: str = "torch"
) -> Tensor:
    """Replaces forward of the Attention that computes triangle attention."""
    given, out = biases or [], None
    if triangle_attention in _SCALED or (triangle_attention in _SCALING and q_x.size(-2) > _FEW):

        def by_protenix(index: tuple[Tensor, ...]) -> Tensor:
            return own(self, q_x[index], kv_x[index], [x.expand(*q_x.shape[:-2], *x.shape[-3:])[index] for x in given])

        out = of_module(self, self.no_heads, self.linear_g, precision, q_x, kv_x, given, by_protenix)
    return own(self, q_x, kv_x, biases, triangle_attention) if out is None else out


def attention(
    own: Callable[..., Tensor], precision: Precision, self: Any, q_x: Tensor, kv_x: Tensor, attn_bias: Tensor | None = None, trunked_attn_bias: Tensor | None = None, n_queries: int | None = None,
    n_keys: int | None = None, inf: float | None = 1e10, inplace_safe: bool = False, chunk_size: int | None = None,
) -> Tensor:  # fmt: skip
    """Replaces forward of the Attention of AlphaFold 3 (algorithm 24), for attention between all tokens. protenix' own code still computes the attention of
    atoms in windows (algorithm 7). It also computes all dtypes except float32, because protenix computes scores in float32."""
    out = None
    if not (n_queries and n_keys) and trunked_attn_bias is None and q_x.dtype == kv_x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        biases = [] if attn_bias is None else [attn_bias if attn_bias.dim() == q_x.dim() + 1 else attn_bias.unsqueeze(-3)]

        def by_protenix(index: tuple[Tensor, ...]) -> Tensor:
            return own(self, q_x[index], kv_x[index], None if not biases else biases[0].expand(*q_x.shape[:-2], *biases[0].shape[-3:])[index])

        out = of_module(self, self.num_heads, self.linear_g, precision, q_x, kv_x, biases, by_protenix)
    return own(self, q_x, kv_x, attn_bias, trunked_attn_bias, n_queries, n_keys, inf, inplace_safe, chunk_size) if out is None else out


_PAIR = ("q_x", "kv_x", "attn_bias", "trunked_attn_bias", "n_queries", "n_keys", "inf", "inplace_safe", "chunk_size")
METHODS: tuple[tuple[Any, ...], ...] = (
    ("protenix.model.triangular.layers", "Attention", "forward", ("q_x", "kv_x", "biases", "triangle_attention"), (), triangle, ("_prep_qkv", "_wrap_up"), LINEARS, SIGMOID),
    ("protenix.model.modules.primitives", "Attention", "forward", _PAIR, (), attention, ("_prep_qkv", "_wrap_up"), LINEARS, SIGMOID),
)
