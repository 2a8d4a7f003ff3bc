"""Functions that the other modules of polyhead.torch use: attention and attention maps of tensors, and the casts of torch.autocast."""

from __future__ import annotations

from types import NoneType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._options import RelativeBias, require_flags
from . import _eager, _ops, _seed, _transforms
from ._inputs import require, require_one_device
from ._rules import Options, keywords


def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Casts tensors as torch.autocast does for torch's scaled_dot_product_attention: floating tensors other than float64 are cast to the dtype of autocast."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")

    def eligible(tensor: Tensor) -> bool:
        return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == "cpu"

    return tuple(tensor.to(dtype) if tensor is not None and eligible(tensor) else tensor for tensor in tensors)


def has_tangent(*tensors: Tensor | None) -> bool:
    """True if one of the tensors is a dual tensor, which has a tangent in forward mode."""
    return forward_ad._current_level >= 0 and any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _refuse_forward_mode() -> None:
    """Raises NotImplementedError for forward mode under torch.compile. There custom operators do not receive the tangents of dual tensors, so the derivatives
    would be 0."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "polyhead's attention has no forward-mode derivative (torch.func.jvp, jacfwd, hessian, dual tensors) under torch.compile; call it outside of compiled code"
        )


def refuse_script(layer: str) -> None:
    """Raises the error for torch.jit.script of a layer."""
    raise NotImplementedError(f"{layer}: torch.jit.script does not compile polyhead's layers; use torch.compile, torch.export or torch.jit.trace")


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Options]:
    """`polyhead.sdpa` with gradients: q ``[*,N,T,H]``, k ``[*,K,S,H]``, v ``[*,K,S,V]``. Returns out ``[*,N,T,V]``, and the options, to which a seed is added
    if there is dropout."""
    options = with_seed(q, options)
    return attend_all(q, k, v, options)[0], options


def with_seed(q: Tensor, options: Options) -> Options:
    """Adds a new seed to the options if there is dropout and no seed yet."""
    if not options.dropout > 0 or options.seed is not None:
        return options
    return options._replace(seed=_seed.draw(q.device))


def attend_all(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``(out, lse, attention weights)`` with gradients; attention weights that are not wanted are None or have the shape ``[0]``. options: must have
    the seed if there is dropout."""
    # The fast path cannot compute the gradient of "offset" for rows without keys (see `_offset`), and a mask may lead to such rows.
    if type(q) in _eager.PLAIN and q.is_cpu and not _eager.watched() and (options.empty_rows != "offset" or options.attend is None):
        found = _eager.attention(q, k, v, keywords(q, options), True, options.attention_weights)
        if found is not None:
            return found  # type: ignore[no-any-return]
    result: tuple[Tensor, Tensor, Tensor]
    if _transforms.active():
        result = _transforms.attention(q, k, v, *options)
    else:
        _refuse_forward_mode()
        result = _ops.attention(q, k, v, *options)
    return result


def sink_logits(sink: Tensor, q: Tensor, where: str) -> Tensor:
    """Casts the sink to a dtype that the operators accept: float32 if q has a 16-bit dtype, else the dtype of q."""
    return _beside(q, where, sink=sink)


def _beside(q: Tensor, where: str, **named: Tensor) -> Tensor:
    # named: one tensor; its keyword is its name in errors. Casts the tensor to the dtype of q, except that a float32 tensor stays float32 if q has a 16-bit
    # dtype.
    ((name, tensor),) = named.items()
    require(where, also=(), **{name: tensor})
    require_one_device(where, query=q, **named)
    wide = tensor.dtype == torch.float32 and q.dtype in (torch.float16, torch.bfloat16)
    return tensor if wide else tensor.to(q.dtype)


def with_relative_bias(options: Options, relative: RelativeBias, q: Tensor, where: str) -> Options:
    """Checks the relative bias, and returns the options to which it is added."""
    if not isinstance(relative, RelativeBias):
        raise TypeError(f"{where}: relative_bias is of type {type(relative).__name__}; it must be a polyhead.RelativeBias")
    diagonal = relative.diagonal
    if isinstance(diagonal, bool) or not isinstance(diagonal, (int, str, NoneType)):
        raise TypeError(f"{where}: relative_bias.diagonal is of type {type(diagonal).__name__}; it must be 'top_left', 'bottom_right', an int or None")
    if isinstance(diagonal, str) and diagonal not in ("top_left", "bottom_right"):
        raise ValueError(f"{where}: relative_bias.diagonal is {diagonal!r}; it must be 'top_left', 'bottom_right', an int or None")
    causal = options.causal if options.offset is None else options.offset
    if causal is not None:
        if diagonal not in (None, causal):
            raise ValueError(f"{where}: relative_bias.diagonal is {diagonal!r} and the causal diagonal {causal!r}; they must be the same")
        diagonal = None  # None means the diagonal of causal
    require_flags(where, **{"relative_bias.bidirectional": relative.bidirectional})
    if isinstance(relative.max_distance, bool) or not isinstance(relative.max_distance, int):
        raise TypeError(f"{where}: relative_bias.max_distance is of type {type(relative.max_distance).__name__}; it must be an int")
    diagonal = 0 if diagonal == "top_left" else diagonal if isinstance(diagonal, int) else None
    slopes = None if relative.slopes is None else _beside(q, where, slopes=relative.slopes)  # type: ignore[arg-type]
    table = None if relative.table is None else _beside(q, where, table=relative.table)  # type: ignore[arg-type]
    if slopes is None and table is None:
        raise ValueError(f"{where}: relative_bias has neither slopes nor a table; one of them must be given")
    usual = RelativeBias()
    if table is None and (relative.bidirectional, relative.max_distance) != (usual.bidirectional, usual.max_distance):  # an export does not call the library, which checks this too
        name = "bidirectional" if relative.bidirectional != usual.bidirectional else "max_distance"
        raise ValueError(f"{where}: relative_bias.{name} is {getattr(relative, name)} without a table, whose buckets it describes")
    if options.bias is not None:
        bias = "a floating attn_mask" if where == "scaled_dot_product_attention" else "bias"
        raise ValueError(f"{where}: {bias} and relative_bias are both given; only one of them may be")
    return options._replace(slopes=slopes, table=table, bidirectional=relative.bidirectional, max_distance=relative.max_distance, diagonal=diagonal)


def maps(q: Tensor, k: Tensor, options: Options) -> Tensor:
    """The attention weights ``[*,N,T,S]`` after dropout, with gradients. options: as returned by `attend`."""
    result: Tensor
    if _transforms.active():
        result = _transforms.attention_map(q, k, *options)
    else:
        _refuse_forward_mode()
        result = _ops.attention_map(q, k, *options)
    return result
