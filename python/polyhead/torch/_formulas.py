"""Derivatives of lse and of attention weights, computed by formulas in Python.

No operator of polyhead computes these derivatives. Those of lse are computed as derivatives of the output of another attention problem, the `HalvedProblem`.
Those of attention weights are computed by torch's operators on T x S tensors; the attention weights have that size too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polyhead
from .._arguments import GRADIENTS, TENSORS
from ._dispatch import operators
from ._rules import Options, lse_dtype


class HalvedProblem(NamedTuple):
    """An attention problem from whose derivatives those of lse are computed. It differs from the given problem in two ways: v is 1 for every key; and the sink
    is another one, with which the sum of the softmax is twice as large, so that the attention weights are p / 2. Its out has the shape ``[*,N,T,1]``."""

    share: Tensor  # exp(sink) divided by the sum of the softmax, for the given problem
    arguments: tuple[Any, ...]  # the tensor arguments q, k, v, out and lse of `attention_backward`
    options: Options


def _sink_share(sink: Tensor, lse: Tensor, p: Tensor | None = None) -> Tensor:
    """The attention weight of the sink, ``[*,N,T]``. p: the attention weights of the keys, before dropout, if the caller has them."""
    rows = sink.unsqueeze(-1) if sink.dim() == 1 else sink
    empty = lse == -torch.inf
    share = torch.where(empty, 0, torch.exp(rows - torch.where(empty, 0, lse)))  # avoids infinity - infinity, whose gradient is NaN
    if p is None:
        return share
    # The relative error of exp(sink - lse) is |lse| eps, because lse is rounded. That of 1 - sum p is eps / share. Use the formula with the smaller error.
    rest = 1 - p.sum(-1, dtype=share.dtype)
    return torch.where(rest * lse.abs() * torch.finfo(share.dtype).eps > torch.finfo(p.dtype).eps, rest, share)


def _lse_of_map(q: Tensor, k: Tensor, options: Options) -> Tensor:
    """lse of a call that has no v."""
    ones = k.new_ones((*k.shape[:-1], 1))  # v has the dtype of k, which may be narrower than q
    v_scale = None if options.k_scale is None else torch.ones_like(options.k_scale)
    return operators().attention(q, k, ones, *options._replace(v_scale=v_scale, dropout=0.0, seed=None, attention_weights=False))[1]  # type: ignore[no-any-return]


def halved(q: Tensor, k: Tensor, v: Tensor, lse: Tensor, options: Options) -> HalvedProblem:
    """The problem whose output has the derivatives of lse."""
    share = torch.zeros_like(lse) if options.sink is None else _sink_share(options.sink, lse)
    ones = v.new_ones((*v.shape[:-1], 1), dtype=lse.dtype)
    other = options._replace(sink=lse + torch.log1p(share), v_scale=None, dropout=0.0, seed=None, attention_weights=False)
    return HalvedProblem(share, (q, k, ones, ((1 - share) / 2).unsqueeze(-1), lse + math.log(2)), other)


def lse_gradients(d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """The summands of `_ops.gradients` that come from d_lse."""
    # d_score = p d_lse (docs/maths.md, equation 7b). sdpa_backward computes this as the gradient of another problem, in which a sink halves p, and v is 1 for
    # every key. If d is the gradient of that problem's output, its d_score is (p / 2) (d - d sum(p) / 2). d is chosen so that this equals p d_lse.
    if options.empty_rows == "unmasked":  # a sink cannot be used, because empty_rows "unmasked" refuses sinks
        p = operators().attention_map(q, k, *options._replace(dropout=0.0, seed=None))
        return _score_gradients(torch.where(p == 0, 0, p * d_lse.unsqueeze(-1)).to(q.dtype), None, q, k, options, wanted)
    share, arguments, other = halved(q, k, v, lse, options)
    of_sink = GRADIENTS.index("sink")
    found = operators().attention_backward(
        (4 * d_lse / (1 + share)).unsqueeze(-1), *arguments, *other, [want and i not in (2, of_sink) for i, want in enumerate(wanted)]
    )
    grads = [grad if want else None for grad, want in zip(found, wanted)]
    grads[2] = grads[of_sink] = None
    if options.sink is not None and wanted[of_sink]:
        grads[of_sink] = to_sink(share * d_lse, options.sink)
    return tuple(grads)


def p_gradients(p: Tensor, d_p: Tensor, q: Tensor, k: Tensor, lse: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """The summands of `_ops.gradients` that come from d_p, the gradient of the attention weights p: equation (7) of docs/maths.md."""
    if options.empty_rows == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention weights with empty_rows='uniform'")
    return softmax_gradients(p, torch.where(p == 0, 0, p * d_p), q, k, lse, options, wanted)


def softmax_gradients(
    p: Tensor, p_d_p: Tensor, q: Tensor, k: Tensor, lse: Tensor | None, options: Options, wanted: list[bool]
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of `GRADIENTS` from p and from p times its gradient: equations (7) and (7a) of docs/maths.md. lse: None if the caller does not have lse."""
    delta, d_sink = p_d_p.sum(-1, keepdim=True), None
    if options.sink is not None and wanted[4]:
        share = _sink_share(options.sink, _lse_of_map(q, k, options) if lse is None else lse, p)
        d_sink = to_sink(torch.where(share == 0, 0, -share * delta.squeeze(-1)), options.sink)
    return _score_gradients(torch.where(p == 0, 0, p_d_p - p * delta), d_sink, q, k, options, wanted)


def map_tangent(dropped: Tensor, q: Tensor, k: Tensor, lse: Tensor | None, tangents: Sequence[Tensor | None], options: Options) -> Tensor:
    """The derivative of the attention weights along tangents of `GRADIENTS`. If options have dropout, of the attention weights after dropout. lse: None if the
    caller does not have lse."""
    # p' = p (score' - lse'): equations (8a) to (8c) of docs/maths.md. This uses torch's operators on T x S tensors; the attention weights have that size too.
    if options.empty_rows == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention weights with empty_rows='uniform'")
    of_q, of_k, _, of_bias, of_sink, of_slopes, of_table = tangents
    p = dropped if options.dropout == 0 else operators().attention_map(q, k, *options._replace(dropout=0.0, seed=None))
    d_score = torch.zeros_like(p)
    if of_q is not None or of_k is not None:
        rows, keys, factor = _stacked(q, k, options)
        d_x = rows.new_zeros(())
        if of_q is not None:
            d_x = d_x + of_q.reshape(rows.shape) @ keys.mT
        if of_k is not None:
            d_x = d_x + rows @ of_k.to(q.dtype).mT
        d_score = d_score + (d_x * _cap_derivative(rows, keys, factor, options) * factor).reshape(p.shape)
    if of_bias is not None:
        d_score = d_score + of_bias
    if of_slopes is not None or of_table is not None:
        distance, buckets = _distances(options, p.size(-2), p.size(-1))
        if of_slopes is not None:
            d_score = d_score - of_slopes[:, None, None] * distance.abs()
        if of_table is not None:
            d_score = d_score + of_table[:, buckets].unflatten(1, distance.shape)
    d_lse = torch.where(p == 0, 0, p * d_score).sum(-1, keepdim=True)
    if of_sink is not None and options.sink is not None:
        share = _sink_share(options.sink, _lse_of_map(q, k, options) if lse is None else lse, p)
        d_lse = d_lse + share.unsqueeze(-1) * (of_sink[:, None, None] if of_sink.dim() == 1 else of_sink.unsqueeze(-1))
    return torch.where(dropped == 0, 0, dropped * (d_score - d_lse)).to(dropped.dtype)


def to_sink(rows: Tensor, sink: Tensor) -> Tensor:
    """Sums the gradients of rows ``[*,N,T]`` to the shape of the sink, and converts them to the sink's dtype."""
    return rows.sum_to_size((*sink.shape, 1) if sink.dim() == 1 else sink.shape).reshape(sink.shape).to(sink.dtype)


def _distances(o: Options, queries: int, keys: int) -> tuple[Tensor, Tensor | None]:
    """For a relative bias, returns the distance of each query and key, ``[T,S]``, and the bucket of each distance, ``[T*S]``; None instead of buckets if there
    is no table."""
    if o.diagonal_offsets is not None or o.query_offsets is not None:
        raise NotImplementedError("polyhead has no gradient of attention weights for a relative_bias together with diagonal_offsets or documents")
    given = 0 if o.causal == "top_left" else o.offset if o.offset is not None else None if o.causal else o.diagonal
    offset = keys - queries if given is None else given
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + offset)
    if o.table is None:
        return distance, None
    distances = range(1 - queries - offset, keys - offset)
    of_distances = [polyhead.relative_bucket(x, o.table.size(1), bidirectional=o.bidirectional, max_distance=o.max_distance) for x in distances]
    return distance, torch.tensor(of_distances, dtype=torch.int64)[(distance + (queries - 1 + offset)).flatten()]


def _relative_gradients(d_score: Tensor, o: Options, slopes: Tensor | None, table: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    # Equation (9a) of docs/maths.md.
    if slopes is None and table is None:
        return None, None
    distance, buckets = _distances(o, *d_score.shape[-2:])
    d = d_score.to(lse_dtype(d_score)).sum_to_size(d_score.shape[-3:])
    d_slopes = None if slopes is None else -(d * distance.abs()).sum((1, 2)).to(slopes.dtype)
    d_table = None if table is None or buckets is None else d.new_zeros(table.shape).index_add(1, buckets, d.flatten(1)).to(table.dtype)
    return d_slopes, d_table


_MASKS = [argument.name for argument in TENSORS if argument.group == "pass" and not argument.has_gradient and argument.name in Options._fields]
_MASKS += ["causal", "offset", "window_left", "window_right"]


def _score_gradients(d_score: Tensor, d_sink: Tensor | None, q: Tensor, k: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    # torch's operators make T x S tensors here. The caller's d_score has that size too.
    d_bias = None if options.bias is None or not wanted[3] else d_score.sum_to_size(options.bias.shape)
    relative = _relative_gradients(d_score, options, options.slopes if wanted[5] else None, options.table if wanted[6] else None)
    if not (wanted[0] or wanted[1]):
        return None, None, None, d_bias, d_sink, *relative
    rows, keys, factor = _stacked(q, k, options)
    d_x = d_score.reshape(*rows.shape[:-1], k.size(-2))
    d_x = d_x * _cap_derivative(rows, keys, factor, options) * factor
    d_q = (d_x @ keys).reshape(q.shape) if wanted[0] else None
    d_k = (d_x.mT @ rows).to(k.dtype) if wanted[1] else None
    return d_q, d_k, None, d_bias, d_sink, *relative


def _stacked(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor, float]:
    """Returns q and k in one dtype, and the scale. q becomes ``[*,K,g*T,H]``: the g query heads that share a key head are stacked along the queries."""
    if k.dtype != q.dtype:
        k = k.to(q.dtype) if options.k_scale is None else (k * options.k_scale.unsqueeze(-1)).to(q.dtype)
    factor = options.scale if options.scale is not None else q.size(-1) ** -0.5 if q.size(-1) > 0 else 0.0
    group = q.size(-3) // max(k.size(-3), 1)
    rows = q.reshape(*q.shape[:-3], k.size(-3), group * q.size(-2), q.size(-1))
    if any(getattr(options, name) is not None for name in _MASKS):
        # Replace NaN and infinity by 0, because p = 0 of a masked key times NaN would be NaN. NaN in an attended key or its query has already made p NaN.
        k, rows = k.nan_to_num(0, 0, 0), rows.nan_to_num(0, 0, 0)
    return rows, k, factor


def _cap_derivative(rows: Tensor, keys: Tensor, factor: float, options: Options) -> Tensor | float:
    return 1 - torch.tanh(rows @ keys.mT * (factor / options.softcap)) ** 2 if options.softcap > 0 else 1.0
