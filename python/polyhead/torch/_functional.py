"""torch's scaled_dot_product_attention, computed by polyhead's operators, and what the modules share with it."""

from __future__ import annotations

from types import NoneType

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias

from .._options import RelativeBias
from . import _ops
from ._inputs import causal_diagonal, require, require_memory, require_one_device
from ._ops import Options

def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors as torch.autocast passes them to torch's scaled_dot_product_attention: floating ones other than float64 in its lower precision."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")

    def eligible(tensor: Tensor) -> bool:
        return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == "cpu"

    return tuple(tensor.to(dtype) if tensor is not None and eligible(tensor) else tensor for tensor in tensors)


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Refuses tensors with forward-mode tangents: torch's custom operators ignore tangents, so the derivative would be 0."""
    if forward_ad._current_level < 0:
        return
    if any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError("polyhead's attention has no forward-mode derivative (torch.func.jvp, jacfwd, dual tensors); use backward(), or torch's own operator")


def refuse_script(layer: str) -> None:
    """What torch.jit.script is told by a layer."""
    raise NotImplementedError(f"{layer}: torch.jit.script does not compile polyhead's layers; use torch.compile, torch.export or torch.jit.trace")


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Options]:
    """`polyhead.sdpa` with gradients: q ``[*,N,T,H]``, k ``[*,K,S,H]``, v ``[*,K,S,V]``. Returns out ``[*,N,T,V]``, and the options with the seed
    of dropout."""
    _refuse_tangents(q, k, v, options.bias, options.sink, options.slopes, options.table)
    if options.dropout > 0:
        # torch's generator gives the seed, so that torch.manual_seed, fork_rng and checkpoint's recomputation act as on torch's own dropout.
        options = options._replace(seed=torch.randint(2**63 - 1, (), dtype=torch.int64, device=q.device))
    return _ops.attention(q, k, v, *options)[0], options


def sink_logits(sink: Tensor, q: Tensor, where: str) -> Tensor:
    """The sink in a dtype that goes with q."""
    return _beside(q, where, sink=sink)


def _beside(q: Tensor, where: str, **named: Tensor) -> Tensor:
    # One tensor by its name, in a dtype that goes with q.
    ((name, tensor),) = named.items()
    require(where, **named)
    require_one_device(where, query=q, **named)
    wide = tensor.dtype == torch.float32 and q.dtype in (torch.float16, torch.bfloat16)
    return tensor if wide else tensor.to(q.dtype)


def _with_relative_bias(options: Options, relative: RelativeBias, q: Tensor, where: str) -> Options:
    if not isinstance(relative, RelativeBias):
        raise TypeError(f"{where}: relative_bias is of type {type(relative).__name__}; it must be a polyhead.RelativeBias")
    diagonal = relative.diagonal
    if isinstance(diagonal, bool) or not isinstance(diagonal, (int, str, NoneType)):
        raise TypeError(f"{where}: relative_bias.diagonal is of type {type(diagonal).__name__}; it must be 'top_left', 'bottom_right', an int or None")
    if isinstance(diagonal, str) and diagonal not in ("top_left", "bottom_right"):
        raise ValueError(f"{where}: relative_bias.diagonal is {diagonal!r}; it must be 'top_left', 'bottom_right', an int or None")
    if options.causal is not None:
        if diagonal not in (None, options.causal):
            raise ValueError(f"{where}: relative_bias.diagonal is {diagonal!r} and the causal diagonal {options.causal!r}; they must be the same")
        diagonal = None  # the causal one
    diagonal = 0 if diagonal == "top_left" else diagonal if isinstance(diagonal, int) else None
    slopes = None if relative.slopes is None else _beside(q, where, slopes=relative.slopes)
    table = None if relative.table is None else _beside(q, where, table=relative.table)
    if slopes is None and table is None:
        raise ValueError(f"{where}: relative_bias has neither slopes nor a table; one of them must be given")
    if options.bias is not None:
        raise ValueError(f"{where}: a floating attn_mask and relative_bias are both given; only one of them may be")
    return options._replace(slopes=slopes, table=table, bidirectional=relative.bidirectional, max_distance=relative.max_distance, diagonal=diagonal)


def maps(q: Tensor, k: Tensor, options: Options) -> Tensor:
    """The probabilities ``[*,N,T,S]`` after dropout, with gradients. options: as returned by `attend`."""
    _refuse_tangents(q, k, options.bias, options.sink, options.slopes, options.table)
    result: Tensor = _ops.attention_map(q, k, *options[:-1])
    return result


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
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by polyhead (Vaswani et al. 2017, equation 1).

    Args:
        query: ``[*,N,T,H]`` or ``[T,H]``; float32, float64, float16 or bfloat16, on the CPU.
        key: ``[*,K,S,H]``.
        value: ``[*,K,S,V]``. The leading dimensions of query, key and value broadcast; N and K too, or ``N % K == 0`` with enable_gqa.
        attn_mask: broadcasts to ``[*,N,T,S]``. bool: True = may attend. Floating: added to the scores. Or torch's CausalBias ``[T,S]``. Not together with
            is_causal.
        dropout_p: probability in ``[0, 1]`` that an attention weight is dropped, in training or not. torch's generator draws the seed of the bits; the bits
            differ from those of torch's own operator.
        is_causal: query t attends to the keys ``s <= t``, whatever T and S are.
        scale: of the scores; None is ``1 / sqrt(H)``.
        enable_gqa: query head n attends to key/value head ``n // (N // K)``.
        sink: sink logits (as learned in gpt-oss; torch has none): ``[N]``, or of another rank that broadcasts to ``[*,N,T]``; dtype of the query, or float32
            beside float16 and bfloat16. ``exp(sink)`` is added to the sum of the softmax.
        relative_bias: a `polyhead.RelativeBias` of tensors: ALiBi's slopes or T5's table, with gradients; a dtype as sink. Not together with a floating
            attn_mask.

    Returns:
        ``[*,N,T,V]`` or ``[T,V]``, dtype of the query. Its dimensions lie in memory in the order of the query's, so that heads that are views of
        ``[B,T,N*H]`` merge without a copy.

    Raises:
        TypeError: a dtype, device or type that polyhead does not compute with, tensors on several devices, a subclass of Tensor with a __torch_function__
            of its own; q, k and v of unequal dtypes.
        ValueError: shapes that do not fit; attn_mask together with is_causal; dropout_p outside of ``[0, 1]``.

    What differs from torch: a key that a boolean mask or is_causal excludes does not exist (torch multiplies it by 0, and 0 times NaN is NaN). No
    ``[T,S]`` tensor is made, except as the gradient of a mask of that shape. The gradient of a floating mask has the mask's own shape. There is no
    second derivative and no forward mode: both raise NotImplementedError. A row without a key is 0, as in torch. At most torch.get_num_threads()
    threads compute.
    """
    where = "scaled_dot_product_attention"
    require(where, query=query, key=key, value=value)
    diagonal = "top_left" if is_causal else None
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
        pairs = (*q.shape[:-1], k.size(-2))
        if attn_mask.dim() > len(pairs) or any(given not in (1, extent) for given, extent in zip(reversed(attn_mask.shape), reversed(pairs))):
            raise ValueError(f"{where}: attn_mask is {list(attn_mask.shape)}; it must broadcast to [*,N,T,S] = {list(pairs)}")
    options = Options(causal=diagonal, scale=scale, dropout=dropout_p, sink=None if sink is None else sink_logits(sink, q, where))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        options = options._replace(attend=attn_mask)
    elif attn_mask is not None:
        # A float32 mask stays float32 and q, k, v are converted to it: in float16 -3e38, a common fill, would be infinite.
        options = options._replace(bias=attn_mask)
        q, k, v = (x.to(attn_mask.dtype) for x in (q, k, v))
    if relative_bias is not None:
        options = _with_relative_bias(options, relative_bias, q, where)
    out = attend(q, k, v, options)[0].to(query.dtype)
    return out.squeeze(0) if unbatched else out


def _heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, where: str) -> tuple[Tensor, Tensor, Tensor, bool]:
    """q ``[*,N,T,H]``, k ``[*,K,S,H]`` and v ``[*,K,S,V]``, as views if possible, and True if no input had a dimension of heads."""
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
    else:  # repeat heads, because polyhead's key and value have the same number of them
        k, v = (_lead(x if x.size(-3) == count else x.repeat_interleave(count // x.size(-3), -3), lead) for x in (k, v))
    return q, k, v, rank == 2
