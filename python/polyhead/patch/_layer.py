"""Computes an attention module of AlphaFold's kind by one call of polyhead (Jumper et al. 2021, supplementary algorithms 7, 8, 13, 14, 19; Abramson et al.
2024, algorithm 24)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._options import Precision
from ..torch import _functional as core
from ..torch import _layer_pass as passes
from ..torch._eager import PLAIN
from ..torch._gated import mean
from ..torch._inputs import DTYPES
from ..torch._rules import Options

_PACKAGES = ("boltz", "openfold", "openfold3", "protenix")
_OFFSET = 1e4  # exp(-1e4) is 0 in every dtype. So a bias this low masks the key, unless the other scores of the row are as low.
_LARGEST = _OFFSET / 4  # largest absolute value of a bias that is given together with masks: the biases of two keys then differ by at most half of the offset
LINEARS = ("linear_q", "linear_k", "linear_v", "linear_o", "linear_g")
SIGMOID = {"sigmoid": "torch.nn.modules.activation.Sigmoid"}  # name and class of the submodule that applies the gate's sigmoid
_PIECE = 2**24  # most scores for which the package's own code is called at a time


class Projections(NamedTuple):
    """The linear layers of an attention module, the number of its heads and their width."""

    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    g: nn.Module | None
    heads: int
    width: int

    @property
    def linears(self) -> tuple[nn.Module | None, ...]:
        return self.q, self.k, self.v, self.o, self.g


def is_ours(*tensors: object) -> bool:
    """True if polyhead can compute with all of these tensors: plain tensors on the CPU, not empty, of a supported dtype."""
    return all(type(x) in PLAIN and x.is_cpu and x.dtype in DTYPES and x.numel() > 0 for x in tensors)  # type: ignore[attr-defined]


def masks_and_bias(biases: Iterable[Tensor | None], scores: tuple[int, ...]) -> tuple[list[Tensor], Tensor | None] | None:
    """Converts tensors that are added to the scores ``[*,H,Q,K]`` to boolean masks and at most one bias. A tensor without a head dimension that holds only 0 and numbers
    <= -1e4 becomes a mask; all other tensors are summed to the bias. Returns None if the sum would need more memory than the largest of its terms, if one of
    the terms has large numbers, or if a tensor does not broadcast to the scores."""
    masks, others = [], []
    for bias in biases:
        if bias is None:
            continue
        if bias.dim() > len(scores) or any(n not in (1, of) for n, of in zip(reversed(bias.shape), reversed(scores))):
            return None
        masked = None if bias.requires_grad else _as_mask(bias)
        masks.append(masked) if masked is not None else others.append(bias)
    if not all(is_small(x) for x in others):
        return None
    if len(others) < 2:
        return masks, others[0] if others else None
    total = torch.broadcast_shapes(*(x.shape for x in others))
    if math.prod(total) > max(x.numel() for x in others):
        return None
    return masks, torch.stack([x.expand(total) for x in others]).sum(0)


def is_small(bias: Tensor) -> bool:
    """True if this bias is so small that masked keys keep a weight of 0. With a large bias, the package's code may give masked keys as much weight as other keys."""
    low, high = bias.detach().aminmax()
    return -_LARGEST < float(low) and float(high) < _LARGEST


def makes_small_bias(norm: nn.LayerNorm, projection: nn.Linear) -> bool:
    """True if `is_small` holds for every bias that this norm and this projection can produce. A normalised vector of C numbers has a length of at most sqrt(C)."""
    with torch.no_grad():
        weight = projection.weight.double()
        bound = math.sqrt(weight.size(1)) * (weight * norm.weight.double()).norm(dim=1)
        for bias, of in ((norm.bias, weight), (projection.bias, None)):
            if bias is not None:
                bound = bound + (bias.double().abs() if of is None else (of @ bias.double()).abs())
        return float(bound.max()) < _LARGEST


def _as_mask(bias: Tensor) -> Tensor | None:
    # All numbers along an expanded dimension (stride 0) are the same, so only one of them is read.
    bias = bias[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in bias.stride())]
    if bias.dim() > 2 and bias.size(-3) > 1:
        return None
    keep = bias == 0
    return keep if bool((keep | (bias <= -_OFFSET)).all()) else None


class Attended(NamedTuple):
    """The keys to which queries may attend."""

    options: dict[str, Tensor]  # attend_keys ``[*,K]`` or attend ``[*,1,Q,K]``, where * are the queries' leading dimensions; empty if nothing is masked
    empty: Tensor | None  # bool ``[*]``: True for each sequence that has a query without a key; None if no sequence has one


def attended(masks: Sequence[Tensor], lead: tuple[int, ...], queries: int, keys: int) -> Attended:
    """All given masks combined by "and": bool, broadcast to ``[*,1,Q,K]``, True = may attend."""
    if not masks:
        return Attended({}, None)
    keep = masks[0]
    for more in masks[1:]:
        keep = keep & more
    if keep.dim() < 2 or keep.size(-2) == 1:
        keep = keep.expand(*lead, 1, 1, keys)[..., 0, 0, :]
        has_key = keep.any(-1)
        options = {"attend_keys": keep}
    else:
        keep = keep.expand(*lead, 1, queries, keys)
        has_key = keep.any(-1).all(-1)[..., 0]
        options = {"attend": keep}
    return Attended(options, None if bool(has_key.all()) else ~has_key)


def attend(
    to: Projections, q_x: Tensor, kv_x: Tensor, bias: Tensor | None, masks: dict[str, Tensor], precision: Precision, *, global_query: str = "off",
    empty_rows: str = "zero",
) -> Tensor:  # fmt: skip
    """The output ``[*,Q,C]`` of the attention module for q_x ``[*,Q,C]`` and kv_x ``[*,K,C]``; bias broadcasts to ``[*,H,Q,K]``. For a query without a key the
    heads' outputs are 0."""
    if bias is not None:
        bias = bias.reshape(*(1,) * (q_x.dim() + 1 - bias.dim()), *bias.shape)
    linears = to.linears
    if passes.is_eager() and all(layer is None or _is_product(layer) for layer in linears):
        layers: list[Any] = list(linears)
        parameters = (*(x for layer in layers for x in ((None, None) if layer is None else (layer.weight, layer.bias))), None, None)
        if passes.is_plain(q_x.dtype, (q_x, kv_x, bias, *parameters)):
            form = passes.form(
                query_width=q_x.size(-1), key_width=kv_x.size(-1), value_width=kv_x.size(-1), heads=to.heads, head_width=to.width, axis=-2,
                gate=to.g is not None, global_query=global_query, dropout=0.0, empty_rows=empty_rows, precision=precision,
                dtype=q_x.dtype,
            )  # fmt: skip

            def by_torch(
                q_x: Tensor, kv_x: Tensor | None, _: None, bias: Tensor | None, masks: dict[str, Tensor], parameters: tuple[Tensor | None, ...], seed: None
            ) -> tuple[Tensor, None]:
                products = [None if w is None else partial(F.linear, weight=w, bias=b) for w, b in zip(parameters[0:10:2], parameters[1:10:2])]
                return _by_torch(to, products, q_x, q_x if kv_x is None else kv_x, bias, masks, precision, global_query, empty_rows), None

            return passes.run(
                form, q_x, None if kv_x is q_x else kv_x, None, bias, parameters,
                masks=masks, causal=None, dropout=0.0, attention_weights=None, by_torch=by_torch,
            )[0]  # fmt: skip
    return _by_torch(to, linears, q_x, kv_x, bias, masks, precision, global_query, empty_rows)


def _is_product(layer: nn.Module) -> bool:
    """Whether a call of the layer computes x W^T + b and nothing else. The patched packages have their own subclasses of torch.nn.Linear. These differ in their
    initial values, and some compute in another precision."""
    known = isinstance(layer, nn.Linear) and (type(layer).forward is nn.Linear.forward or type(layer).__module__.split(".")[0] in _PACKAGES)
    return known and getattr(layer, "precision", None) is None and not passes.has_hooks(layer)


def _by_torch(
    to: Projections, linears: Sequence[Any], q_x: Tensor, kv_x: Tensor, bias: Tensor | None, masks: dict[str, Tensor],
    precision: Precision, global_query: str, empty_rows: str,
) -> Tensor:  # fmt: skip
    """Computes projections and gate by calling the module's layers, and the attention by polyhead."""
    linear_q, linear_k, linear_v, linear_o, linear_g = linears
    source = q_x if global_query == "off" else mean(q_x, q_x.dim() - 2, masks.get("attend_keys"))
    q, k, v = (linear(x).unflatten(-1, (-1, to.width)).transpose(-2, -3) for linear, x in ((linear_q, source), (linear_k, kv_x), (linear_v, kv_x)))
    dtype = q.dtype if bias is None else torch.promote_types(q.dtype, bias.dtype)
    keep = masks["attend_keys"][..., None, None, :] if "attend_keys" in masks else masks.get("attend")
    options = Options(attend=keep, bias=None if bias is None else bias.to(dtype), empty_rows=empty_rows, precision=precision)
    y = core.attend(q.to(dtype), k.to(dtype), v.to(dtype), options)[0].to(v.dtype)
    y = y.transpose(-2, -3).flatten(-2)
    if linear_g is not None:
        y = torch.sigmoid(linear_g(q_x)) * y
    out: Tensor = linear_o(y)
    return out


def with_rows(out: Tensor, empty: Tensor | None, scores: int, own: Callable[[tuple[Tensor, ...]], Tensor]) -> Tensor:
    """Replaces the sequences of out ``[*,Q,C]`` for which `empty` is True by the results of the package's own code. This is needed because that code masks by
    adding finite offsets, with which a query whose keys are all masked still attends to some of them.

    Args:
        scores: number of scores of a sequence.
        own: a function that returns the package's result for an index of the leading dimensions.
    """
    if empty is None:
        return out
    where = empty.nonzero()
    rows = [own(tuple(piece.unbind(-1))) for piece in where.split(max(1, _PIECE // max(scores, 1)))]
    return out.index_put(tuple(where.unbind(-1)), torch.cat(rows).to(out.dtype))


def of_module(
    module: Any, heads: int, gate: nn.Module | None, precision: Precision, q_x: Tensor, kv_x: Tensor, biases: Sequence[Tensor], own: Callable[[tuple[Tensor, ...]], Tensor]
) -> Tensor | None:
    """The output of an attention module of openfold or protenix; None if the package's own code must compute the call. own: a function, as for `with_rows`."""
    if not is_ours(q_x, kv_x, *biases) or q_x.shape[:-2] != kv_x.shape[:-2]:
        return None
    lead, queries, keys = tuple(q_x.shape[:-2]), q_x.size(-2), kv_x.size(-2)
    found = masks_and_bias(biases, (*lead, heads, queries, keys))
    if found is None:
        return None
    masks, bias = found
    which = attended(masks, lead, queries, keys)
    to = Projections(module.linear_q, module.linear_k, module.linear_v, module.linear_o, gate, heads, module.c_hidden)
    return with_rows(attend(to, q_x, kv_x, bias, which.options, precision), which.empty, heads * queries * keys, own)
