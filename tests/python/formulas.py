"""The formula of attention with dense matrices, with which tests compare results and derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import polyhead

MASKS = ("attend", "block", "attend_keys", "block_keys", "key_starts", "key_lengths", "query_offsets", "key_offsets", "diagonal_offsets")


def distances_and_mask(arrays: Mapping[str, Any], options: Mapping[str, Any], shape: tuple[int, int, int, int]) -> tuple[Any, Any]:
    """Returns the distances s - (t + offset) from the diagonal, ``[B,T,S]``, and the attended pairs, ``[B,N,T,S]``, as defined in docs/maths.md."""
    batch, heads, queries, keys = shape
    given = {name: np.asarray(arrays[name]) for name in MASKS if name in arrays}
    t, s = np.arange(queries)[:, None], np.arange(keys)
    causal = options.get("causal")
    offset: Any = 0 if causal == "top_left" else causal if isinstance(causal, int) else keys - queries
    keep = np.ones((batch, queries, keys), bool)
    if "diagonal_offsets" in given:
        offset = given["diagonal_offsets"].reshape(-1, 1, 1)
    if "query_offsets" in given:
        starts = given["query_offsets"], given["key_offsets"]
        of_t, of_s = (np.searchsorted(start[1:-1], x, side="right") for start, x in zip(starts, (t[:, 0], s)))
        keep = keep & (of_t[:, None] == of_s)
        extents = [np.diff(start) for start in starts]
        own = np.full(2, offset) if causal == "top_left" or isinstance(causal, int) else extents[1] - extents[0]
        offset = (own + starts[1][:-1] - starts[0][:-1])[of_t][None, :, None]
    distance = np.broadcast_to(s - (t + offset), keep.shape)
    left, right = options.get("window", (None, None))
    keep = keep & (distance >= (-np.inf if left is None else -left)) & (distance <= (np.inf if right is None else right))
    if causal is not None:
        keep = keep & (distance <= 0)
    if "key_starts" in given:
        keep = keep & (s >= given["key_starts"].reshape(batch, -1, 1))
    if "key_lengths" in given:
        keep = keep & (s < given["key_lengths"].reshape(batch, -1, 1))
    keep = keep & given.get("attend_keys", np.True_).reshape(-1, 1, keys if "attend_keys" in given else 1) & ~given.get("block_keys", np.False_)
    return distance, np.broadcast_to(keep[:, None] & given.get("attend", np.True_) & ~given.get("block", np.False_), shape)


def buckets_of(distance: Any, count: int, **options: Any) -> Any:
    """The bucket of each distance, of `count` buckets."""
    return np.vectorize(lambda d: polyhead.relative_bucket(int(d), count, **options), otypes=[int])(distance)


def formula(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, sink: Tensor | None = None, softcap: float = 0.0,
            scale: float | None = None, keep: Tensor | None = None, dropout: float = 0.0, distance: Tensor | None = None, slopes: Tensor | None = None,
            table: Tensor | None = None, buckets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Computes out, lse, which is 0 in rows without a key and sink, and p without dropout. mask ``[*,N,T,S]``: True = attended; keep: the dropout bits; distance
    and buckets: ``[*,T,S]``."""
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    score = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        score = score + bias
    if slopes is not None and distance is not None:
        score = score - slopes[:, None, None] * distance.abs().unsqueeze(-3)
    if table is not None and buckets is not None:
        score = score + table[:, buckets.flatten()].unflatten(1, buckets.shape).movedim(0, -3)
    mask = torch.ones(score.shape, dtype=torch.bool) if mask is None else mask.expand(score.shape)
    score = score.masked_fill(~mask, -1e300 if q.dtype == torch.float64 else -1e30)
    every = score if sink is None else torch.cat([score, (sink[:, None, None] if sink.dim() == 1 else sink.unsqueeze(-1)).expand(*score.shape[:-1], 1)], -1)
    exists = mask.any(-1) | (sink is not None)
    p = every.softmax(-1)[..., : score.size(-1)].masked_fill(~mask, 0)
    dropped = p if keep is None else p * keep / (1 - dropout)
    return dropped @ v, every.logsumexp(-1).masked_fill(~exists, 0), p
