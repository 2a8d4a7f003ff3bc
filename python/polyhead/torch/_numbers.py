"""Statistics, strongest keys and pooled maps of attention weights that a model has computed. `head_statistics`, `maps` and `pooled_map` compute the same from q
and k."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._attention import TopKeys


def numbers_of(p: Tensor, kind: str, top_k: int, pooled: tuple[int, int]) -> Any:
    """One kind of numbers (statistics, top_keys or pooled_map) that describes the attention weights p, ``[*,N,T,S]`` in host memory, before dropout."""
    if kind == "statistics":
        return _statistics(p)
    if kind == "top_keys":
        probability, key = p.sort(dim=-1, descending=True, stable=True)
        count = min(top_k, p.size(-1))
        return TopKeys(probability[..., :count].clone(), key[..., :count].clone())
    return _pooled(p, min(pooled[0], p.size(-2)), min(pooled[1], p.size(-1)))


def _statistics(p: Tensor) -> dict[str, Tensor]:
    queries, keys = p.shape[-2:]
    away = (torch.arange(keys) - torch.arange(queries)[:, None]).abs().to(p.dtype)
    rows = (p.sum(-1) > 0).sum(-1).clamp(min=1)  # number of queries that attend to a key

    def mean(of_rows: Tensor) -> Tensor:
        return of_rows.sum(-1) / rows

    def diagonal(offset: int) -> Tensor:
        return p.diagonal(offset, -2, -1).sum(-1) / rows

    one_head = [(matrix, away) for matrix in p.reshape(-1, queries, keys)]  # one head at a time, to save memory
    return {
        "entropy": mean(torch.stack([-torch.xlogy(m, m).sum(-1) for m, _ in one_head]).view(p.shape[:-1])),
        "largest": mean(p.amax(-1)),
        "distance": mean(torch.stack([(m * d).sum(-1) for m, d in one_head]).view(p.shape[:-1])),
        "first_key": mean(p[..., 0]),
        "previous_key": diagonal(-1),
        "same_key": diagonal(0),
        "next_key": diagonal(1),
    }


def _pooled(p: Tensor, height: int, width: int) -> Tensor:
    def edges(extent: int, blocks: int) -> list[int]:
        return [i * extent // blocks for i in range(blocks + 1)]

    rows, columns = edges(p.size(-2), height), edges(p.size(-1), width)
    bands = [p[..., first:last, :].mean(-2) for first, last in zip(rows, rows[1:])]
    return torch.stack([torch.stack([band[..., first:last].mean(-1) for first, last in zip(columns, columns[1:])], -1) for band in bands], -2)
