"""Triangle attention, with the arguments of cuEquivariance's triangle_attention."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from .._options import Precision, require_flags, require_precision
from . import _inputs as inputs
from ._attention import attention
from ._rules import lse_dtype
from ._shapes import is_same


@overload
def triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None = None, scale: float | None = None, return_aux: Literal[False] = False, *,
    kv_lengths: Tensor | None = None, precision: Precision = "native",
) -> Tensor: ...  # fmt: skip
@overload
def triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, scale: float | None, return_aux: Literal[True], *, kv_lengths: Tensor | None = None,
    precision: Precision = "native",
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None = None, scale: float | None = None, *, return_aux: Literal[True],
    kv_lengths: Tensor | None = None, precision: Precision = "native",
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
    *,
    kv_lengths: Tensor | None = None,
    precision: Precision = "native",
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Attention inside each row of a table, with a bias that all rows share (Jumper et al. 2021, supplementary algorithms 13 and 14). The function has the
    arguments and results of ``cuequivariance_torch.triangle_attention``, runs on the CPU, and has gradients.

    ::

        score = scale * q k^T + bias
        out   = softmax(score, keys whose mask is True) v

    A masked key has no effect. cuEquivariance instead gives a masked key the score -1e9; the result is the same unless scores of other keys are about as low.

    Args:
        q: ``[B,N,H,Q,D]``, or ``[N,H,Q,D]`` for B = 1; float32, float64, float16 or bfloat16.
        k, v: ``[B,N,H,K,D]``, in the dtype of q.
        bias: ``[B,1,H,Q,K]``, in any floating dtype. If this dtype is wider than that of q, everything is computed in the wider dtype. The gradient of bias has
            the shape and dtype of bias; no tensor ``[B,N,H,Q,K]`` is made.
        mask: ``[B,N,1,1,K]``, bool or numbers: queries may attend to keys where the mask is True or not 0. In a row of the table whose keys are all masked, out
            is the mean of the values.
        scale: factor of ``q k^T``; None is ``1 / sqrt(D)``.
        return_aux: also return lse and max.
        kv_lengths: integers ``[B,N,1,1,1]``: queries attend to keys ``< length``. Not together with mask. In a row of the table with length 0, out is 0.
        precision: precision of bfloat16 products, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.

    Returns:
        out ``[B,N,H,Q,D]``, in the dtype of q; without B if q has no B. With return_aux ``(out, lse, max)``: lse is the logarithm of the sum of the
        exponentials of the scores of the keys that are not masked, and max is the largest of these scores. If all keys are masked, every score counts as -1e9.
        lse and max are ``[B,N,H,Q,1]``, float32 (float64 for float64), without gradients. They are computed one row of the table at a time, to save memory.

    Raises:
        ValueError: shapes that do not fit, mask and kv_lengths together, or an unknown word.
        TypeError: an argument of the wrong type; a dtype or device that polyhead does not support.
    """
    where = "triangle_attention"
    inputs.require(where, q=q, k=k, v=v, bias=bias)
    require_flags(where, return_aux=return_aux)
    require_precision(where, precision)
    for name, given in (("mask", mask), ("kv_lengths", kv_lengths)):
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"{where}: {name} is of type {type(given).__name__}; it must be a torch.Tensor or None")
    inputs.require_memory(where, mask=mask, kv_lengths=kv_lengths)
    inputs.require_one_device(where, q=q, k=k, v=v, bias=bias, mask=mask, kv_lengths=kv_lengths)
    if mask is not None and kv_lengths is not None:
        raise ValueError(f"{where}: mask and kv_lengths are both given; only one of them may be")
    rank = q.dim()
    if rank not in (4, 5):
        raise ValueError(f"{where}: q is {list(q.shape)}; it must be [B,N,H,Q,D] or [N,H,Q,D]")
    *lead, heads, queries, width = q.shape
    keys = k.size(-2) if k.dim() == rank else -1
    expected: dict[str, tuple[Tensor | None, list[int]]] = {
        "k": (k, [*lead, heads, keys, width]),
        "v": (v, [*lead, heads, keys, width]),
        "bias": (bias, [*lead[:-1], 1, heads, queries, keys]),
        "mask": (mask, [*lead, 1, 1, keys]),
        "kv_lengths": (kv_lengths, [*lead, 1, 1, 1]),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and not is_same(tensor.shape, shape):
            raise ValueError(f"{where}: {name} is {list(tensor.shape)}; with q {list(q.shape)} and k {list(k.shape)} it must be {shape}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"{where}: q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; they must have one dtype")
    dtype = torch.promote_types(q.dtype, bias.dtype)
    keep = None if mask is None else mask != 0
    lengths = None if kv_lengths is None else kv_lengths[..., 0, 0, 0]
    wide_q, wide_k, wide_v, wide_bias = (x.to(dtype) for x in (q, k, v, bias))
    out = attention(
        wide_q, wide_k, wide_v, bias=wide_bias, attend=keep, key_lengths=lengths, scale=scale, empty_rows="zero" if keep is None else "uniform",
        precision=precision,
    ).to(q.dtype)  # fmt: skip
    if not return_aux:
        return out
    with torch.no_grad():
        if keep is None and lengths is not None:
            keep = (torch.arange(keys, device=q.device) < lengths[..., None])[..., None, None, :]
        return out, *_lse_and_max(wide_q, wide_k, wide_bias, keep, 1 / math.sqrt(width) if scale is None else scale)


def _lse_and_max(q: Tensor, k: Tensor, bias: Tensor, keep: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    lead = tuple(q.shape[:-3])
    lse = q.new_empty(*q.shape[:-1], 1, dtype=lse_dtype(q))
    largest = torch.empty_like(lse)
    bias = bias.expand(*lead, *bias.shape[-3:])
    for index in torch.cartesian_prod(*(torch.arange(n) for n in lead)).reshape(-1, len(lead)).tolist():
        at = tuple(index)
        score = q[at].to(lse.dtype) @ k[at].to(lse.dtype).mT * scale + bias[at]
        if keep is not None:
            score = torch.where(keep[at], score, torch.where(keep[at].any(-1, keepdim=True), -torch.inf, -1e9))
        lse[at] = score.logsumexp(-1, keepdim=True)
        largest[at] = score.amax(-1, keepdim=True) if score.size(-1) else -torch.inf
    return lse, largest
