"""polyhead as operators of torch: one for attention, one for its gradients, one for its maps.

The only place that knows the dispatcher. Shapes: ``q [*,N,T,H]``, ``k [*,K,S,H]``, ``v [*,K,S,V]``, masks and bias broadcast to ``[*,N,T,S]``; one
dtype, on the CPU. Everything about torch's own calling conventions is settled before, in `_functional`.
"""

from typing import Any, Optional

import torch
from torch import Tensor
from torch.library import custom_op

import polyhead


def _view(tensor: Optional[Tensor]) -> Any:
    # Under autograd the operator gets the caller's own tensor, whose requires_grad the bindings refuse, as they would lose the gradient.
    if tensor is None:
        return None
    tensor = tensor.detach().resolve_neg()
    # The buffer protocol costs a tenth of DLPack, which takes 10 us a tensor; NumPy has no bfloat16.
    return tensor if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _options(
    attend: Optional[Tensor],
    block: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    causal: bool,
    scale: Optional[float],
    softcap: float,
    dropout: float,
    empty_rows: str,
) -> dict[str, Any]:
    return {
        "attend": _view(attend),
        "block": _view(block),
        "bias": _view(bias),
        "seed": None if seed is None else int(seed) % 2**64,
        "causal": "top_left" if causal else None,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "empty_rows": empty_rows,
    }


def _like_q(q: Tensor, last: Any) -> Tensor:
    """``[*,N,T,last]`` whose dimensions lie in memory as q's do, the last one innermost: heads that were split from a layer's width by a view merge
    again without a copy."""
    shape = [*q.shape[:-1], last]
    leading = q.dim() - 1
    # A stride says nothing about a dimension of extent 0 or 1, and 0 is a broadcast one.
    if any(q.stride(i) == 0 and q.size(i) > 1 for i in range(leading)):
        return q.new_empty(shape)
    order = sorted((i for i in range(leading) if q.size(i) > 1), key=lambda i: q.stride(i), reverse=True)
    order = [i for i in range(leading) if q.size(i) <= 1] + order + [leading]
    place = sorted(range(q.dim()), key=order.__getitem__)
    return q.new_empty([shape[i] for i in order]).permute(place)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@custom_op("polyhead::attention", mutates_args=(), device_types="cpu")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attend: Optional[Tensor],
    block: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    causal: bool,
    scale: Optional[float],
    softcap: float,
    dropout: float,
    empty_rows: str,
) -> tuple[Tensor, Tensor]:
    """``(out [*,N,T,V], lse [*,N,T])`` of `polyhead.sdpa`. seed: int64 ``[]``, there when dropout > 0. lse carries no gradient."""
    options = _options(attend, block, bias, seed, causal, scale, softcap, dropout, empty_rows)
    out = _like_q(q, v.size(-1))
    _, lse = polyhead.sdpa(_view(q), _view(k), _view(v), out=_view(out), return_lse=True, **options)
    return out, _tensor(lse)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like_q(q, v.size(-1)), q.new_empty(q.shape[:-1], dtype=_lse_dtype(q))


@custom_op("polyhead::attention_backward", mutates_args=(), device_types="cpu")
def attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    attend: Optional[Tensor],
    block: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    causal: bool,
    scale: Optional[float],
    softcap: float,
    dropout: float,
    empty_rows: str,
    want_q: bool,
    want_k: bool,
    want_v: bool,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(d_q, d_k, d_v, d_bias)`` of `polyhead.sdpa_backward`; ``[0]`` where not wanted."""
    options = _options(attend, block, bias, seed, causal, scale, softcap, dropout, empty_rows)
    wanted = [name for name, want in zip(("q", "k", "v", "bias"), (want_q, want_k, want_v, want_bias)) if want]
    given = (_view(tensor) for tensor in (q, k, v, out, lse, d_out))
    grads = polyhead.sdpa_backward(*given, gradients=wanted, **options)
    d_q, d_k, d_v, d_bias = (q.new_empty(0) if grad is None else _tensor(grad) for grad in grads)
    return d_q, d_k, d_v, d_bias


@attention_backward.register_fake
def _(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    attend: Optional[Tensor],
    block: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    causal: bool,
    scale: Optional[float],
    softcap: float,
    dropout: float,
    empty_rows: str,
    want_q: bool,
    want_k: bool,
    want_v: bool,
    want_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def gradient(of: Optional[Tensor], want: bool) -> Tensor:
        return q.new_empty(of.shape) if want and of is not None else q.new_empty(0)

    return gradient(q, want_q), gradient(k, want_k), gradient(v, want_v), gradient(bias, want_bias)


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, causal, scale, softcap, dropout, empty_rows = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, out, lse)
    ctx.options = (causal, scale, softcap, dropout, empty_rows)


def _attention_gradient(ctx: Any, d_out: Tensor, _: Any) -> tuple[Optional[Tensor], ...]:
    q, k, v, attend, block, bias, seed, out, lse = ctx.saved_tensors
    want_q, want_k, want_v, _, _, want_bias = ctx.needs_input_grad[:6]
    d_q, d_k, d_v, d_bias = attention_backward(
        d_out, q, k, v, out, lse, attend, block, bias, seed, *ctx.options, want_q, want_k, want_v, want_bias
    )
    none = (None,) * 6  # of the seed and the five options
    return d_q if want_q else None, d_k if want_k else None, d_v if want_v else None, None, None, d_bias if want_bias else None, *none


attention.register_autograd(_attention_gradient, setup_context=_attention_context)


def _no_second_gradient(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(
        "polyhead's attention has no second derivative (create_graph=True); "
        "for that use torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_backward.register_autograd(_no_second_gradient)


@custom_op("polyhead::attention_map", mutates_args=(), device_types="cpu")
def attention_map(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    attend: Optional[Tensor],
    block: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    causal: bool,
    scale: Optional[float],
    softcap: float,
    dropout: float,
) -> Tensor:
    """``[*,N,T,S]``: the probabilities as they multiply v, that is after dropout. A function of q, k and bias; lse says that `attention` ran
    with them. Empty rows are 0."""
    options = _options(attend, block, bias, seed, causal, scale, softcap, dropout, "zero")
    return _tensor(polyhead.maps(_view(q), _view(k), _view(lse), value="dropped" if dropout > 0 else "probability", **options))


@attention_map.register_fake
def _(q: Tensor, k: Tensor, *_: Any) -> Tensor:
    return q.new_empty((*q.shape[:-1], k.size(-2)))


def _map_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, causal, scale, softcap, dropout = inputs
    ctx.save_for_backward(*tensors, output)
    ctx.options = (causal, scale, softcap, dropout)


def _map_gradient(ctx: Any, d_map: Tensor) -> tuple[Optional[Tensor], ...]:
    # Equation (7) of docs/maths.md. The map holds T x S numbers per head already, and so does its gradient: torch's own operators do.
    q, k, lse, attend, block, bias, seed, dropped = ctx.saved_tensors
    causal, scale, softcap, dropout = ctx.options
    want_q, want_k, _, _, _, want_bias = ctx.needs_input_grad[:6]
    p = dropped if dropout == 0 else attention_map(q, k, lse, attend, block, bias, None, causal, scale, softcap, 0.0)
    d_score = torch.where(dropped == 0, 0, dropped * d_map)
    d_score = torch.where(p == 0, 0, d_score - p * d_score.sum(-1, keepdim=True))
    d_bias = d_score.sum_to_size(bias.shape) if want_bias else None
    if not (want_q or want_k):
        return None, None, None, None, None, d_bias, *(None,) * 5
    factor = scale if scale is not None else q.size(-1) ** -0.5 if q.size(-1) > 0 else 0.0
    # The query heads of a group below one another, [*,K,g*T,..]: they share a key head.
    group = q.size(-3) // max(k.size(-3), 1)
    stacked = (*q.shape[:-3], k.size(-3), group * q.size(-2))
    rows, d_x = q.reshape(*stacked, q.size(-1)), d_score.reshape(*stacked, k.size(-2))
    if attend is not None or block is not None or causal:
        # A key that does not exist is not used, not even times 0; one that does has made d_x NaN. Likewise a query.
        k, rows = k.nan_to_num(0, 0, 0), rows.nan_to_num(0, 0, 0)
    if softcap > 0:
        d_x = d_x * (1 - torch.tanh(rows @ k.mT * (factor / softcap)) ** 2)
    d_x = d_x * factor
    d_q = (d_x @ k).reshape(q.shape) if want_q else None
    d_k = d_x.mT @ rows if want_k else None
    return d_q, d_k, None, None, None, d_bias, *(None,) * 5


attention_map.register_autograd(_map_gradient, setup_context=_map_context)
