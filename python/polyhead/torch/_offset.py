"""For models that mask keys by subtracting a large number from the scores: the gradients of the scores of rows whose keys are all masked.

In float32, scores are negligible beside 1e9, so all differences in such a row are rounded to the same number, and p = 1/S. But the subtraction passes gradients
on unchanged: d_score = p (d_p - sum p d_p), equation (7) of docs/maths.md, flows to q, k and the bias. empty_rows="uniform" of `polyhead.sdpa` has the same p,
but no gradient of the scores. This module adds the missing gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

import polyhead
from ._rules import lse_dtype


def add_score_gradients(
    grads: tuple[Tensor, ...], wanted: list[bool], d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *, attend: Tensor, bias: Tensor | None, scale: float,
    dropout: float, seed: int | None,
) -> None:  # fmt: skip
    """Adds the gradients of the scores of empty rows to d_q, d_k and d_bias, one sequence at a time, so that no floating tensor ``[*,N,T,S]`` is made.
    With dropout, a boolean tensor ``[*,N,T,S]`` of the dropout bits is made."""
    d_q, d_k, _, d_bias, *_ = grads
    lead, rank = q.shape[:-3], q.dim()
    heads, queries, keys = q.size(-3), q.size(-2), k.size(-2)
    group = heads // max(k.size(-3), 1)
    empty = ~attend.any(-1, keepdim=True)
    if keys == 0 or not empty.any():
        return
    empty = empty.expand(*lead, heads, queries, 1)
    kept = None
    if dropout > 0:
        kept = torch.empty(*q.shape[:-1], keys, dtype=torch.bool)
        polyhead.dropout_keep_bits(dropout, seed or 0, kept.numpy())
    wide = lse_dtype(q)
    sums = None if bias is None or not wanted[3] else torch.zeros(bias.shape, dtype=wide)
    for index in empty.flatten(-3).any(-1).nonzero().tolist():
        at = tuple(index)
        rows, k_at, v_at = q[at].to(wide), k[at].to(wide), v[at].to(wide)
        k_at, v_at = (x.repeat_interleave(group, 0) for x in (k_at, v_at))
        d_p = torch.where(empty[at], d_out[at], 0).to(wide) @ v_at.mT
        if kept is not None:
            d_p = d_p * kept[at] / (1 - dropout) if dropout < 1 else torch.zeros_like(d_p)
        d_score = (d_p - d_p.mean(-1, keepdim=True)) / keys
        if wanted[0]:
            d_q[at] += (d_score @ k_at * scale).to(q.dtype)
        if wanted[1]:
            d_k[at] += (d_score.mT @ rows * scale).unflatten(0, (-1, group)).sum(1).to(k.dtype)
        if sums is not None:
            target = sums[tuple(0 if sums.size(i - rank) == 1 else at[i] for i in range(rank - 3) if rank - i <= sums.dim())]
            target += d_score.sum_to_size(target.shape)
    if sums is not None:
        d_bias += sums.to(d_bias.dtype)
