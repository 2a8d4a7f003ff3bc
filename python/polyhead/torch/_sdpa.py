"""A function with the arguments of torch's scaled_dot_product_attention, which calls `attention`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias

from .. import _core
from .._options import Causal, Precision, RelativeBias
from . import _eager
from . import _symbolic as symbolic
from ._attention import attention_of
from ._functional import autocast
from ._inputs import causal_diagonal, require, require_memory, require_one_device
from ._shapes import broadcasts


_is_compiling = torch.compiler.is_compiling


def _lead(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor.expand(*shape, *tensor.shape[len(shape) :])


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    # torch.broadcast_shapes takes longer than a small attention, and most calls broadcast nothing.
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return tuple(torch.broadcast_shapes(*shapes))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    sink: Tensor | None = None,
    relative_bias: RelativeBias | None = None,
    precision: Precision = "native",
) -> Tensor:
    """The function torch.nn.functional.scaled_dot_product_attention, computed by polyhead (Vaswani et al. 2017, equation 1).

    Args:
        query: ``[*,N,T,H]`` or ``[T,H]``; float32, float64, float16 or bfloat16, on the CPU.
        key: ``[*,K,S,H]``.
        value: ``[*,K,S,V]``. The leading dimensions of query, key and value broadcast to one another. N and K must be equal, or one of them 1; with enable_gqa,
            ``N % K == 0`` suffices.
        attn_mask: broadcasts to ``[*,N,T,S]``. bool: True = may attend. Floating: added to the scores. Or torch's CausalBias ``[T,S]``. Not together with
            is_causal.
        dropout_p: probability in ``[0, 1]`` that an attention weight is dropped, in training or not. torch's generator draws the seed. torch's own
            operator would drop other attention weights with the same seed.
        is_causal: query t attends to the keys ``s <= t``, also if T and S differ.
        scale: factor of the scores; None is ``1 / sqrt(H)``.
        enable_gqa: query head n attends to key/value head ``n // (N // K)``.
        sink: an argument that torch's function does not have: sink logits (as learned in gpt-oss), ``[N]`` or a tensor of another rank that broadcasts to
            ``[*,N,T]``. ``exp(sink)`` is added to the sum of the softmax. In the dtype of the query, or in float32 if the query is float16 or bfloat16.
        relative_bias: an argument that torch's function does not have: a `polyhead.RelativeBias` of tensors, ALiBi's slopes or T5's table, with gradients. The
            dtypes are those of sink. Not together with a floating attn_mask.
        precision: precision of bfloat16 products, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.

    Returns:
        ``[*,N,T,V]`` or ``[T,V]``, in the dtype of the query. The dimensions have the same order in memory as those of the query. So if the query is a view of
        a tensor ``[B,T,N*H]``, the heads of the result merge without a copy.

    Raises:
        TypeError: a dtype, device or type that polyhead does not support; tensors on several devices; a subclass of Tensor with its own __torch_function__;
            query, key and value in different dtypes.
        ValueError: shapes that do not fit; attn_mask together with is_causal; dropout_p outside of ``[0, 1]``; an unknown word.

    Differences from torch: NaN or infinity in a key that a boolean mask or is_causal excludes has no effect (torch multiplies the key's value by 0, and 0 times
    NaN is NaN). No ``[T,S]`` tensor is made, except the gradient of a mask of that shape. The gradient of a floating mask has the shape of the mask. Second
    derivatives and forward mode work; third derivatives, forward mode of forward mode and forward mode under torch.compile raise NotImplementedError. The
    result of a query without a key is 0, as in torch. At most torch.get_num_threads() threads compute.
    """
    # Try the fast path, which computes calls that need no conversion. The code below computes all other calls, and raises the errors.
    if sink is None and relative_bias is None and _eager._READ_BY_C and not _is_compiling():
        found: Any = _core.eager_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, precision)
        if found is not None:
            return found  # type: ignore[no-any-return]
    if symbolic.is_traced((query, key, value, attn_mask, sink)):
        return symbolic.node_of_function(  # type: ignore[no-any-return]
            scaled_dot_product_attention, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, sink=sink, relative_bias=relative_bias, precision=precision
        )  # fmt: skip
    where = "scaled_dot_product_attention"
    problem = read_arguments(where, query, key, value, attn_mask, is_causal, enable_gqa)
    out = attention_of(
        where, *problem.qkv, attend=problem.attend, bias=problem.bias, causal=problem.causal, scale=scale, dropout=dropout_p, sink=sink,
        relative_bias=relative_bias, precision=precision,
    )[0].to(problem.dtype)  # fmt: skip
    return out.squeeze(0) if problem.is_unbatched else out


class Arguments(NamedTuple):
    """The arguments of torch's function, in the form that `attention` takes."""

    qkv: tuple[Tensor, Tensor, Tensor]
    attend: Tensor | None
    bias: Tensor | None
    causal: Causal
    dtype: torch.dtype  # the dtype of the result
    is_unbatched: bool  # True: the caller's tensors have no dimension for heads, so the first dimension of the result must be removed


def read_arguments(
    where: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool, *, has_all_keys: bool = True
) -> Arguments:
    """Checks and converts the arguments. has_all_keys: False if other ranks hold further keys. Then this function does not check the S of attn_mask; the
    distributed call does."""
    require(where, query=query, key=key, value=value)
    diagonal: Causal = "top_left" if is_causal else None
    if attn_mask is not None:
        if not isinstance(attn_mask, Tensor):
            raise TypeError(f"{where}: attn_mask is of type {type(attn_mask).__name__}; it must be a torch.Tensor")
        if is_causal:
            raise ValueError(f"{where}: attn_mask and is_causal exclude each other; put the causal part into the mask")
        if isinstance(attn_mask, CausalBias):
            diagonal, attn_mask = causal_diagonal(where, attn_mask, query.size(-2), key.size(-2)), None
    require_memory(where, attn_mask=attn_mask)
    require_one_device(where, query=query, key=key, value=value, attn_mask=attn_mask)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)  # type: ignore[assignment]
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        own = "" if query.dtype == torch.float32 else f" or the query's {query.dtype}"
        raise TypeError(f"{where}: attn_mask has dtype {attn_mask.dtype}; it must be bool or torch.float32{own}")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"{where}: query, key and value are {query.dtype}, {key.dtype} and {value.dtype}; they must have one dtype")
    for tensor, name in ((query, "query"), (key, "key"), (value, "value")):
        if tensor.dim() < 2:
            raise ValueError(f"{where}: {name} is {list(tensor.shape)}; it must have two dimensions or more")
    q, k, v, unbatched = _heads(query, key, value, enable_gqa, where)
    if attn_mask is not None:
        pairs = (*q.shape[:-1], k.size(-2) if has_all_keys or attn_mask.dim() == 0 else attn_mask.size(-1))
        if not broadcasts(attn_mask.shape, pairs):
            raise ValueError(f"{where}: attn_mask is {list(attn_mask.shape)}; it must broadcast to [*,N,T,S] = {list(pairs)}")
    attend = bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attend = attn_mask
    elif attn_mask is not None:
        # A float32 mask stays float32, and q, k and v are converted to float32: in float16 the number -3e38, a common fill of masks, would become -inf.
        bias = attn_mask
        q, k, v = (x.to(attn_mask.dtype) for x in (q, k, v))
    return Arguments((q, k, v), attend, bias, diagonal, query.dtype, unbatched)


def _heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, where: str) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Returns q ``[*,N,T,H]``, k ``[*,K,S,H]`` and v ``[*,K,S,V]``, as views if possible, and True if no input had a dimension for heads."""
    given = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
    rank = max(query.dim(), key.dim(), value.dim())
    q, k, v = (tensor.reshape((1,) * (max(rank, 3) - tensor.dim()) + tensor.shape) for tensor in (query, key, value))
    heads = (q.size(-3), k.size(-3), v.size(-3))
    try:
        lead = _broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        count = heads[0] if enable_gqa else _broadcast(*((h,) for h in heads))[0]
    except RuntimeError:
        grouped = any(h and heads[0] % h == 0 and h != heads[0] for h in heads[1:])
        hint = "; give enable_gqa=True if several query heads share a key/value head" if grouped and not enable_gqa else ""
        raise ValueError(f"{where}: {given} do not broadcast to one another in their leading dimensions{hint}") from None
    if enable_gqa and (rank < 3 or any(h == 0 or count % h != 0 for h in heads[1:]) and count > 0):
        raise ValueError(f"{where}: {given}; with enable_gqa the heads of the query must be a multiple of those of key and value")
    q = _lead(q, (*lead, count))
    if heads[1] == heads[2]:
        k, v = _lead(k, lead), _lead(v, lead)
    else:  # repeat heads, because `attention` requires the same number of heads in key and value
        k, v = (_lead(x if x.size(-3) == count else x.repeat_interleave(count // x.size(-3), -3), lead) for x in (k, v))
    return q, k, v, rank == 2
