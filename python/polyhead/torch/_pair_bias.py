"""Attention whose bias is computed from a pair tensor, with the arguments of cuEquivariance's attention_pair_bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional as F

from .. import _core
from .._options import require_flags
from . import _functional as core
from . import _inputs as inputs
from . import _ops, _transforms
from ._attention import attention
from ._rules import lse_dtype
from ._shapes import is_same

_PARAMETERS = "Tensor? w_ln_z, Tensor? b_ln_z, Tensor w_proj_z, Tensor? b_proj_z, float eps"


def _views(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(_ops._view(x) for x in tensors)


def _wanted(given: Sequence[Any], want: Sequence[bool], like: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Converts gradients to the form in which an operator returns them: one that is not wanted gets the shape ``[0]``."""
    first = next(x for x in like if x is not None)
    return tuple(first.new_empty(0) if not w or of is None else _ops._tensor(x) for x, w, of in zip(given, want, like))


def _fake(want: Sequence[bool], like: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    first = next(x for x in like if x is not None)
    return tuple(first.new_empty(0) if not w or of is None else of.new_empty(of.shape) for w, of in zip(want, like))


@custom_op("polyhead::pair_bias", mutates_args=(), schema=f"(Tensor z, {_PARAMETERS}) -> Tensor")
def pair_bias(z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float) -> Tensor:
    """Computes the bias ``[*,N,T,S]`` from the pair tensor ``z [*,T,S,C]``."""
    return _ops._tensor(_core.pair_bias(_ops._view(z), _views(w_ln, b_ln, w, b), eps, _ops.thread_limit()))


@pair_bias.register_fake
def _(z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float) -> Tensor:
    return z.new_empty(*z.shape[:-3], w.size(0), *z.shape[-3:-1])


@custom_op(
    "polyhead::pair_bias_backward",
    mutates_args=(),
    schema=f"(Tensor d_bias, Tensor z, {_PARAMETERS}, bool[5] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def pair_bias_backward(
    d_bias: Tensor, z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float, wanted: Sequence[bool]
) -> tuple[Tensor, ...]:
    """The gradients of z, w_ln, b_ln, w and b."""
    d_z, of_parameters = _core.pair_bias_backward(_ops._view(z), _views(w_ln, b_ln, w, b), eps, _ops._view(d_bias), wanted[0], any(wanted[1:]), _ops.thread_limit())
    return _wanted((d_z, *of_parameters), wanted, (z, w_ln, b_ln, w, b))


@pair_bias_backward.register_fake
def _(
    d_bias: Tensor, z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float, wanted: Sequence[bool]
) -> tuple[Tensor, ...]:
    return _fake(wanted, (z, w_ln, b_ln, w, b))


_HEADS = "Tensor q, Tensor k, Tensor v, Tensor? attend_keys, float? scale, str empty_rows"


@custom_op("polyhead::pair_bias_attention", mutates_args=(), schema=f"({_HEADS}, Tensor z, {_PARAMETERS}) -> (Tensor, Tensor)")
def pair_bias_attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float | None, empty_rows: str, z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None,
    w: Tensor, b: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Computes ``(out [*,N,T,V], lse [*,N,T])`` of attention whose bias is made of z in blocks of queries. Each leading dimension of z has the extent of q's
    dimension, or 1."""
    out, lse = _core.pair_bias_attention((*_views(q, k, v, keep), scale, empty_rows), _ops._view(z), _views(w_ln, b_ln, w, b), eps, _ops.thread_limit())
    return _ops._tensor(out).contiguous(), _ops._tensor(lse)


@pair_bias_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float | None, empty_rows: str, z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None,
    w: Tensor, b: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(*q.shape[:-1], v.size(-1)), q.new_empty(q.shape[:-1], dtype=lse_dtype(q))


@custom_op(
    "polyhead::pair_bias_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor out, Tensor lse, {_HEADS}, Tensor z, {_PARAMETERS}, bool[8] wanted) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def pair_bias_attention_backward(
    d_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float | None, empty_rows: str, z: Tensor,
    w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of q, k, v, z, w_ln, b_ln, w and b."""
    heads = (*_views(q, k, v, keep), scale, empty_rows)
    want = (*wanted[:4], any(wanted[4:]))
    of_pass = _views(out, lse, d_out)
    *grads, of_parameters = _core.pair_bias_attention_backward(heads, _ops._view(z), _views(w_ln, b_ln, w, b), eps, *of_pass, want, _ops.thread_limit())  # type: ignore[call-arg]
    found = _wanted((*grads, *of_parameters), wanted, (q, k, v, z, w_ln, b_ln, w, b))
    return tuple(x.contiguous() if x.dim() > 1 else x for x in found)


@pair_bias_attention_backward.register_fake
def _(
    d_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float | None, empty_rows: str, z: Tensor,
    w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, eps: float, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    found = _fake(wanted, (q, k, v, z, w_ln, b_ln, w, b))
    return tuple(x.new_empty(tuple(x.shape)) for x in found)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _pair_bias_gradients(ctx: Any, d_bias: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [bool(x) for x in ctx.needs_input_grad[:5]]
    grads = pair_bias_backward(d_bias, *ctx.saved_tensors, ctx.eps, wanted)
    return (*(x if want else None for x, want in zip(grads, wanted)), None)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, keep, ctx.scale, ctx.empty_rows, *tensors, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, q, k, v, keep, *tensors)


def _attention_gradients(ctx: Any, d_out: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if d_out is None:
        return (None,) * 12
    out, lse, q, k, v, keep, *tensors = ctx.saved_tensors
    need = ctx.needs_input_grad
    wanted = [bool(need[i]) for i in (0, 1, 2, 6, 7, 8, 9, 10)]
    found = pair_bias_attention_backward(d_out, out, lse, q, k, v, keep, ctx.scale, ctx.empty_rows, *tensors, ctx.eps, wanted)
    d_q, d_k, d_v, *rest = (x if want else None for x, want in zip(found, wanted))
    return d_q, d_k, d_v, None, None, None, *rest, None


def _no_second_derivative(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "polyhead.torch.attention_pair_bias has no second derivative; polyhead.torch.attention with a bias that torch makes of z has one"
    )


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


pair_bias.register_autograd(_pair_bias_gradients, setup_context=_save)
pair_bias_attention.register_autograd(_attention_gradients, setup_context=_save_attention)
pair_bias_backward.register_autograd(_no_second_derivative, setup_context=_save_nothing)
pair_bias_attention_backward.register_autograd(_no_second_derivative, setup_context=_save_nothing)


def heads_with_pair_bias(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, z: Tensor, w_ln: Tensor | None, b_ln: Tensor | None, w: Tensor, b: Tensor | None, *,
    eps: float, scale: float | None, empty_rows: str,
) -> Tensor:  # fmt: skip
    """The output ``[*,N,T,V]`` of attention for q, k, v ``[*,N,.,.]`` and a pair tensor z ``[*,T,S,C]``, all in one dtype. Each leading dimension of z has the
    extent of q's dimension, or 1. keep: bool ``[*,S]``, True = all queries may attend to the key."""
    if _transforms.active():  # under torch.func and in forward mode, use operators that have the needed derivatives
        bias = F.linear(F.layer_norm(z, (z.size(-1),), w_ln, b_ln, eps), w, b).movedim(-1, -3)
        return attention(q, k, v, bias=bias, attend=None if keep is None else keep[..., None, None, :], scale=scale, empty_rows=empty_rows)  # type: ignore[call-overload,no-any-return]
    out: Tensor = pair_bias_attention(q, k, v, keep, scale, empty_rows, z, w_ln, b_ln, w, b, eps)[0]
    return out


def attention_pair_bias(
    s: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    mask: Tensor | None,
    num_heads: int,
    w_proj_z: Tensor | None,
    w_proj_g: Tensor,
    w_proj_o: Tensor,
    w_ln_z: Tensor | None = None,
    b_ln_z: Tensor | None = None,
    b_proj_z: Tensor | None = None,
    b_proj_g: Tensor | None = None,
    b_proj_o: Tensor | None = None,
    inf: float = 1e6,
    eps: float = 1e-5,
    attn_scale: float | None = None,
    return_z_proj: bool = True,
    is_cached_z_proj: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention whose bias is computed from a pair tensor z (Abramson et al. 2024, supplementary algorithm 24). The function has the arguments and results of
    ``cuequivariance_torch.attention_pair_bias`` 0.7 to 0.10, runs on the CPU, and has gradients.

    ::

        bias = linear(layer_norm(z, w_ln_z, b_ln_z), w_proj_z, b_proj_z)        [B,H,U,V], shared by the M samples of a structure
        y    = softmax(attn_scale * q k^T + bias, keys whose mask is not 0) v   merged heads
        out  = linear(sigmoid(linear(s, w_proj_g, b_proj_g)) * y, w_proj_o, b_proj_o)

    Under torch.autocast q, k, v, z and the parameters are converted to the dtype of autocast.

    A masked key has no effect. cuEquivariance instead subtracts the number inf from the scores of masked keys; this gives the same result unless scores of
    other keys are about as low. A sequence whose keys are all masked is computed without its mask. In exact arithmetic cuEquivariance's subtraction gives the
    same result; in float32, subtracting 1e6 also rounds the scores to multiples of 1/16.

    Args:
        s: ``[B*M,U,D]``.
        q: ``[B*M,H,U,DH]``.
        k: ``[B*M,H,V,DH]``.
        v: ``[B*M,H,V,DH]``.
        z: ``[B,U,V,C]``; with is_cached_z_proj ``[B,H,U,V]``, the result z_proj of an earlier call.
        mask: ``[B,V]`` or ``[B*M,V]``, bool or numbers: queries may attend to keys where the mask is not 0; None: to all keys.
        num_heads: H.
        w_proj_z: ``[H,C]``; None with is_cached_z_proj.
        w_proj_g: ``[H*DH,D]``.
        w_proj_o: ``[D,H*DH]``.
        w_ln_z: ``[C]``; None: the norm has no weight.
        b_ln_z: ``[C]``; None: the norm has no bias.
        b_proj_z: ``[H]`` or None.
        b_proj_g: ``[H*DH]`` or None.
        b_proj_o: ``[D]`` or None.
        inf: a number of at least 1e4. Its value has no effect, because the attention weight of a masked key is exactly 0 for all such numbers.
        eps: epsilon of the norm.
        attn_scale: factor of ``q k^T``; None is ``1 / sqrt(DH)``.
        return_z_proj: True: also return the bias, for further calls with the same z, such as other samples or diffusion steps. False: saves the memory of the
            bias, which is made in blocks of queries, and made again in the backward pass.
        is_cached_z_proj: True: z is the result z_proj of an earlier call.

    Returns:
        ``(out, z_proj)``: out ``[B*M,U,D]``, z_proj ``[B,H,U,V]`` or None.

    Raises:
        ValueError: shapes that do not fit, dtypes that differ, or inf below 1e4.
        TypeError: an argument of the wrong type; a dtype or device that polyhead does not support.
        NotImplementedError: second derivatives.
    """
    where = "attention_pair_bias"
    inputs.require(where, s=s, q=q, k=k, v=v, z=z, w_proj_g=w_proj_g, w_proj_o=w_proj_o)
    optional = {"w_proj_z": w_proj_z, "w_ln_z": w_ln_z, "b_ln_z": b_ln_z, "b_proj_z": b_proj_z, "b_proj_g": b_proj_g, "b_proj_o": b_proj_o}
    inputs.require(where, **{name: x for name, x in optional.items() if x is not None})  # type: ignore[arg-type]
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"{where}: mask is of type {type(mask).__name__}; it must be a torch.Tensor or None")
    require_flags(where, return_z_proj=return_z_proj, is_cached_z_proj=is_cached_z_proj)
    inputs.require_memory(where, mask=mask)
    inputs.require_one_device(where, s=s, q=q, k=k, v=v, z=z, mask=mask, w_proj_g=w_proj_g, w_proj_o=w_proj_o, **optional)
    if inf < 1e4:
        raise ValueError(f"{where}: inf is {inf}; it must be at least 1e4, because polyhead gives masked keys an attention weight of exactly 0")
    if q.dim() != 4 or z.dim() != 4 or k.dim() != 4:
        raise ValueError(f"{where}: q is {list(q.shape)}, k {list(k.shape)} and z {list(z.shape)}; q and k must be [B*M,H,.,DH], z [B,U,V,C] or [B,H,U,V]")
    samples, heads, queries, width = q.shape
    keys, structures = k.size(-2), z.size(0)
    if heads != num_heads:
        raise ValueError(f"{where}: q is {list(q.shape)}; it must have num_heads = {num_heads} heads")
    if structures == 0 or samples % structures != 0:
        raise ValueError(f"{where}: q has {samples} sequences and z {structures}; the first must be a multiple of the second")
    if w_proj_z is None and not is_cached_z_proj:
        raise ValueError(f"{where}: w_proj_z is None; it may be None only with is_cached_z_proj")
    merged = heads * v.size(-1)
    expected: dict[str, tuple[Tensor | None, list[int]]] = {
        "k": (k, [samples, heads, keys, width]),
        "v": (v, [samples, heads, keys, v.size(-1)]),
        "z": (z, [structures, heads, queries, keys] if is_cached_z_proj else [structures, queries, keys, z.size(-1)]),
        "s": (s, [samples, queries, s.size(-1)]),
        "w_proj_g": (w_proj_g, [merged, s.size(-1)]),
        "w_proj_o": (w_proj_o, [w_proj_o.size(0), merged]),
        "b_proj_g": (b_proj_g, [merged]),
        "b_proj_o": (b_proj_o, [w_proj_o.size(0)]),
    }
    if not is_cached_z_proj:
        of_z = z.size(-1)
        expected |= {"w_proj_z": (w_proj_z, [heads, of_z]), "b_proj_z": (b_proj_z, [heads]), "w_ln_z": (w_ln_z, [of_z]), "b_ln_z": (b_ln_z, [of_z])}
    for name, (tensor, shape) in expected.items():
        if tensor is not None and not is_same(tensor.shape, shape):
            raise ValueError(f"{where}: {name} is {list(tensor.shape)}; with q {list(q.shape)}, k {list(k.shape)} and z {list(z.shape)} it must be {shape}")
    if mask is not None and not (is_same(mask.shape, [structures, keys]) or is_same(mask.shape, [samples, keys])):
        raise ValueError(f"{where}: mask is {list(mask.shape)}; it must be {[structures, keys]} or {[samples, keys]}")
    q, k, v, z = core.autocast(q, k, v, z)  # type: ignore[assignment]
    optional = dict(zip(optional, core.autocast(*optional.values())))
    w_proj_z, w_ln_z, b_ln_z, b_proj_z = (optional[name] for name in ("w_proj_z", "w_ln_z", "b_ln_z", "b_proj_z"))
    for name, tensor in {"k": k, "v": v, "z": z, **({} if is_cached_z_proj else {n: optional[n] for n in ("w_proj_z", "w_ln_z", "b_ln_z", "b_proj_z")})}.items():
        if tensor is not None and tensor.dtype != q.dtype:
            raise ValueError(f"{where}: {name} is {tensor.dtype}, and q {q.dtype}; they must have one dtype")

    shared = (structures, samples // structures)
    q, k, v = (x.unflatten(0, shared) for x in (q, k, v))
    keep = None
    if mask is not None:
        keep = (mask != 0).unflatten(0, shared) if is_same(mask.shape, [samples, keys]) and samples != structures else (mask != 0).unsqueeze(1)
        keep = keep.expand(*shared, keys)
    empty_rows = "zero" if keep is None else "unmasked"
    z_proj: Tensor | None = None
    if is_cached_z_proj:
        z_proj = z
    elif return_z_proj:
        if _transforms.active():
            z_proj = F.linear(F.layer_norm(z, (z.size(-1),), w_ln_z, b_ln_z, eps), w_proj_z, b_proj_z).movedim(-1, -3)  # type: ignore[arg-type]
        else:
            z_proj = pair_bias(z, w_ln_z, b_ln_z, w_proj_z, b_proj_z, eps)
    if z_proj is not None:
        attend = None if keep is None else keep[..., None, None, :]
        y = attention(q, k, v, bias=z_proj.unsqueeze(1), attend=attend, scale=attn_scale, empty_rows=empty_rows)  # type: ignore[call-overload]
    else:
        y = heads_with_pair_bias(q, k, v, keep, z.unsqueeze(1), w_ln_z, b_ln_z, w_proj_z, b_proj_z, eps=eps, scale=attn_scale, empty_rows=empty_rows)  # type: ignore[arg-type]
    y = y.transpose(-2, -3).flatten(-2).flatten(0, 1)
    gate = torch.sigmoid(F.linear(s, w_proj_g, b_proj_g))
    return F.linear(gate * y, w_proj_o, b_proj_o), z_proj if return_z_proj else None
