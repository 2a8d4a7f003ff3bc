"""Sequence-local attention, for the atoms of AlphaFold 3: each window of queries attends to the keys around the window."""

from __future__ import annotations

import inspect
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from .._options import EmptyRows, Precision, Unpack, annotations_of, refuse, takes
from ._attention import attention


class SequenceLocalOptions(TypedDict, total=False):
    """The keyword arguments of `attention` that `sequence_local_attention` has too."""

    scale: float | None
    softcap: float
    sink: Tensor | None
    dropout: float
    empty_rows: EmptyRows
    precision: Precision


_OPTIONS = annotations_of(SequenceLocalOptions)


def _windows(x: Tensor, first: int, rows: int, step: int, count: int) -> Tensor:
    """A view ``[*,count,heads,rows,width]`` of ``x [*,heads,L,width]``: window w has the rows of x from ``first + w step`` on. Rows outside of x are zeros."""
    after = first + (count - 1) * step + rows - x.shape[-2]
    padded = F.pad(x, (0, 0, -first, max(after, 0))) if first < 0 or after > 0 else x
    return padded.unfold(-2, rows, step)[..., :count, :, :].movedim(-3, -4).mT


@takes(SequenceLocalOptions)
def sequence_local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    queries: int = 32,
    keys: int = 128,
    attend_keys: Tensor | None = None,
    **options: Unpack[SequenceLocalOptions],
) -> Tensor:
    """Attention in windows of a sequence, with a bias for each query and key of a window. AlphaFold 3 (Abramson et al. 2024, supplementary algorithm 7), Boltz
    and Protenix compute the attention of atoms in this way.

    Window w has the queries ``[w queries, (w + 1) queries)`` and the ``keys`` positions around the middle of these queries, from ``w queries - (keys - queries) / 2`` on;
    there are no keys outside of ``[0, T)``. There are ``W = ceil(T / queries)`` windows. No tensor ``[T,T]`` is made: the windows are views of q, k and v. If
    windows reach beyond the ends of a tensor (k and v if keys > queries, q if T is not a multiple of queries), the tensor is copied once, with zeros added at
    its ends.

    Args:
        q: ``[*,N,T,H]`` on the CPU, as in `attention`.
        k, v: ``[*,K,T,H]``, ``[*,K,T,V]``.
        bias: broadcasts to ``[*,W,N,queries,keys]``, with any strides. If pairs of atoms are projected to a tensor z ``[*,W,queries,keys,N]``, give
            ``z.movedim(-1, -3)``. The gradient of bias has the shape of bias.
        queries, keys: numbers of queries and keys of a window; ``keys - queries`` must be even and not negative.
        attend_keys: bool, broadcasts to ``[*,T]``: True for atoms that exist; False for padding, to which no query attends.
        options: scale, softcap, sink, dropout, empty_rows, precision, as in `polyhead.torch.attention`.

    Returns:
        out ``[*,N,T,V]``. The function does not compute the gate and the conditioning of AlphaFold's algorithm.

    q, k, v, bias and sink have gradients, second derivatives and forward mode, as in `attention`.

    Raises:
        ValueError: keys, queries or shapes that do not fit.
    """
    for name in options:
        if name not in _OPTIONS:
            refuse("sequence_local_attention", name, inspect.signature(sequence_local_attention))
    if queries < 1 or keys < queries or (keys - queries) % 2:
        raise ValueError(f"sequence_local_attention: queries = {queries} and keys = {keys}; keys - queries must be even and not negative, and queries positive")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() < 3 or x.shape[-2] != q.shape[-2] or x.shape[:-3] != q.shape[:-3]:
            raise ValueError(f"sequence_local_attention: {name} is {list(x.shape)} and q is {list(q.shape)}; [*,heads,T,width] with the same * and T is needed")
    length = q.shape[-2]
    if length == 0:
        return attention(q, k, v, **options)
    count = -(-length // queries)
    first = -((keys - queries) // 2)
    if bias is not None:
        _require_bias(bias, (*q.shape[:-3], count, q.shape[-3], queries, keys))
    own = [_windows(q, 0, queries, queries, count), *(_windows(x, first, keys, queries, count) for x in (k, v))]
    exists = torch.ones(length, dtype=torch.bool) if attend_keys is None else attend_keys
    if exists.dtype != torch.bool or exists.dim() == 0 or exists.shape[-1] not in (1, length):
        raise ValueError(f"sequence_local_attention: attend_keys is {exists.dtype} {list(exists.shape)}; bool that broadcasts to [*,T] with T = {length} is needed")
    exists = exists.expand(*exists.shape[:-1], length)
    keep = _windows(exists[..., None, :, None], first, keys, queries, count)[..., 0, :, 0]
    sink = options.get("sink")
    if sink is not None and sink.dim() > 1:  # cut a sink [*,N,T] into windows, as q; a sink [N] broadcasts
        options["sink"] = _windows(sink[..., None].expand(*sink.shape[:-1], length, 1), 0, queries, queries, count)[..., 0]
    out = attention(*own, bias=bias, attend_keys=keep, **options)
    return out.movedim(-4, -3).flatten(-3, -2)[..., :length, :]


def _require_bias(bias: Tensor, shape: tuple[int, ...]) -> None:
    if bias.dim() > len(shape) or any(own not in (1, extent) for own, extent in zip(reversed(bias.shape), reversed(shape))):
        raise ValueError(f"sequence_local_attention: bias is {list(bias.shape)}; it must broadcast to [*,W,N,queries,keys] = {list(shape)}")

