"""Attention on torch's tensors, with every option and with gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from .._arguments import names_of
from .._cache import KeyValueCache
from .._options import BlockSize, Causal, EmptyRows, Precision, RelativeBias, Unpack, Window, annotations_of, refuse, require_flags, takes
from . import _eager
from . import _functional as core
from . import _symbolic as symbolic
from ._inputs import require, require_memory, require_one_device
from ._rules import TAKEN, Options, split_rules


class FormulaOptions(TypedDict, total=False):
    """Keyword arguments of `attention`, except outputs, the cache, and those that `AttentionOptions` adds."""

    # arguments: keywords of torch
    attend: Tensor | None
    block: Tensor | None
    attend_keys: Tensor | None
    block_keys: Tensor | None
    causal: Causal
    window: Window
    key_starts: Tensor | None
    key_lengths: Tensor | None
    diagonal_offsets: Tensor | None
    query_offsets: Tensor | None
    key_offsets: Tensor | None
    blocks: Tensor | None
    block_size: BlockSize
    bias: Tensor | None
    sink: Tensor | None
    relative_bias: RelativeBias | None
    scale: float | None
    softcap: float
    dropout: float
    empty_rows: EmptyRows
    precision: Precision
    # end of arguments


class AttentionOptions(FormulaOptions, total=False):
    """Keyword arguments of `attention`, except outputs and the cache. To `FormulaOptions` it adds those for int8 keys and values and those of FlexAttention."""

    k_scale: Tensor | None
    v_scale: Tensor | None
    score_mod: Callable[..., Any] | None
    block_mask: Any


_OPTIONS = annotations_of(AttentionOptions)
_TENSORS = {name for name, kind in _OPTIONS.items() if kind == "Tensor | None"}
DEFAULTS: dict[str, Any] = {argument.name: argument.default for argument in TAKEN if argument.default is not None}


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None = None, new_tokens: Tensor | None = None, return_lse: Literal[False] = False,
    return_attention_weights: Literal[False] = False, out: Tensor | None = None, **options: Unpack[AttentionOptions],
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None = None, new_tokens: Tensor | None = None, return_lse: Literal[True],
    return_attention_weights: Literal[False] = False, out: Tensor | None = None, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None = None, new_tokens: Tensor | None = None, return_lse: Literal[False] = False,
    return_attention_weights: Literal[True], out: Tensor | None = None, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None = None, new_tokens: Tensor | None = None, return_lse: Literal[True],
    return_attention_weights: Literal[True], out: Tensor | None = None, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache | None = None, new_tokens: Tensor | None = None, return_lse: bool = False,
    return_attention_weights: bool = False, out: Tensor | None = None, **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, ...]: ...  # fmt: skip
@takes(AttentionOptions)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cache: KeyValueCache | None = None,
    new_tokens: Tensor | None = None,
    return_lse: bool = False,
    return_attention_weights: bool = False,
    out: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, ...]:
    """`polyhead.sdpa` for torch's tensors, with gradients: attention with every option (Vaswani et al. 2017, equation 1).

    ::

        score = softcap(scale * q k^T) + bias        softcap(x) = c tanh(x / c), or x when c = 0
        p     = softmax of score over the attended keys
        out   = dropout(p) v                         lse = log sum exp(score) over the attended keys

    q, k, v, bias, sink and a relative_bias have gradients, through out, lse and the attention weights. They also have second derivatives (create_graph,
    torch.func.hessian) and forward mode (torch.func.jvp, dual tensors). A boolean mask and a bias may be given together, without a tensor ``[*,N,T,S]`` that
    combines them.

    Args:
        q: ``[*,N,T,H]`` float32, float64, float16 or bfloat16, on the CPU.
        k: ``[*,K,S,H]``; query head n reads key/value head ``n // (N // K)``. Usually in the dtype of q. Unless q is float64, k may also be bfloat16, float16,
            or int8 with k_scale and v_scale.
        v: ``[*,K,S,V]``, in the dtype of k.
        attend, block: bool, broadcast to ``[*,N,T,S]``. attend: True = may attend. block: True = may not attend. At most one of the two.
        attend_keys, block_keys: bool, broadcast to ``[*,S]``. attend_keys: True = all queries may attend to the key. block_keys: True = no query may attend to
            the key. At most one of the two.
        causal: query t attends to keys ``s <= t + offset``: ``"top_left"`` (offset 0), ``"bottom_right"`` (offset ``S - T``) or the offset as an int.
        window: ``(left, right)``: query t attends to keys s with ``-left <= s - (t + offset) <= right``. The offset is that of causal, or ``S - T`` without causal.
            If left or right is None, that side has no limit.
        key_starts: integers from 0 on, ``[*]`` per sequence or ``[*,T]`` per query; a query attends to keys ``s >= start``.
        key_lengths: integers, ``[*]`` per sequence or ``[*,T]`` per query; a query attends to keys ``s < length``.
        diagonal_offsets: integers ``[*]``: the offset of the diagonal in each sequence, as in `polyhead.sdpa`.
        query_offsets, key_offsets: integers ``[D+1]``: documents packed one after the other (cu_seqlens), as in `polyhead.sdpa`.
        blocks, block_size: for each block of queries, the numbers of the blocks of keys to which its queries may attend: integers ``[*,N,Tb,count]``, as in
            `polyhead.sdpa`.
        bias: added to the scores, dtype of q, broadcasts to ``[*,N,T,S]``. The gradient of bias has the shape of bias.
        relative_bias: a `polyhead.RelativeBias` of tensors: ALiBi's slopes or T5's table. Not together with bias.
        scale: factor of ``q k^T``; None is ``1 / sqrt(H)``.
        softcap: ``c`` of the formula; 0 switches softcap off.
        sink: sink logits ``[N]``, or a tensor of another rank that broadcasts to ``[*,N,T]``: ``exp(sink)`` is added to the sum of the softmax. In the dtype of
            q, or in float32 if q is float16 or bfloat16.
        dropout: probability in ``[0, 1]`` that an attention weight is dropped, in training or not. torch's generator draws the seed of the bits.
        empty_rows: result of a query whose keys are all masked: ``"zero"``, ``"uniform"`` or ``"unmasked"``, as in `polyhead.sdpa`.
        precision: precision of bfloat16 products, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.
        k_scale, v_scale: float32 ``[*,K,S]``, the scales of int8 keys and values.
        score_mod: a function ``score_mod(score, b, h, q_idx, kv_idx)`` like that of FlexAttention. It receives the scaled score; softcap and bias are then
            applied to the score that it returns. The function is traced once in each call, and an interpreter runs it on tiles of scores. Tensors that
            score_mod captures and indexes have gradients. docs/flex_attention.md lists the operations that score_mod may use. An index outside of a captured
            tensor gives NaN.
        block_mask: a BlockMask of torch. polyhead converts it to a boolean mask, which takes one byte for each pair of query and key.
        cache: a `polyhead.KeyValueCache`, for texts that are computed a few tokens at a time: k and v ``[B,K,T,.]`` are appended to the cache, and q attends to all
            tokens of its sequence. With causal (either corner) or a window, the diagonal passes through each query's own token. Only without gradients. Not
            with key_lengths, diagonal_offsets, scales, documents or an offset of the diagonal. The cache is unchanged if the call fails.
        new_tokens: integers ``[B]``, with cache: how many of the T tokens belong to sequence b; None: all. The rows of out for the other tokens are undefined.
        return_lse: also return lse ``[*,N,T]``, float32 (float64 for float64 inputs).
        return_attention_weights: also return p ``[*,N,T,S]``, in the dtype of q, before dropout.
        out: ``[*,N,T,V]``, in the dtype of q: memory for the result, written in place and returned. Only without gradients.

    Returns:
        out ``[*,N,T,V]``, whose dimensions have the same order in memory as those of q. If lse or attention weights are requested, a tuple of out and those requested, in
        the order out, lse, attention weights.

    Raises:
        ValueError: a shape, dtype, value or option that does not fit; the message says what was given and what is allowed.
        TypeError: an argument of the wrong type; a dtype or device that polyhead does not support; tensors on several devices; a subclass of Tensor with its own
            __torch_function__.
        NotImplementedError: a gradient that polyhead does not have: of k_scale and v_scale; with cache or out; of lse and attention weights with empty_rows
            "uniform"; of attention weights with respect to a relative_bias with documents or diagonal_offsets. Third derivatives, forward mode of forward mode
            (jacfwd of jacfwd), and forward mode under torch.compile. An operation of score_mod that cannot be traced; with score_mod also a gradient of lse or
            of attention weights, second derivatives, forward mode, int8 keys and a cache.

    Results have the same bits as those of `polyhead.sdpa`. Under torch.autocast q, k, v and bias are converted to the dtype of autocast.
    """
    chosen = _chosen(options) if cache is None and new_tokens is None else None
    if chosen is not None and type(return_lse) is bool and type(return_attention_weights) is bool and not _eager.is_autocast_enabled():
        # Try the fast path, which computes calls that need no conversion. The code below computes all other calls, and raises the errors.
        found = _eager.attention(q, k, v, chosen, return_lse, return_attention_weights, out)
        if found is not None:
            if return_attention_weights:
                return found if return_lse else (found[0], found[2])
            return found[:2] if return_lse else found  # type: ignore[no-any-return]
    if symbolic.is_traced((q, k, v, *options.values())):
        called = dict(cache=cache, new_tokens=new_tokens, return_lse=return_lse, return_attention_weights=return_attention_weights, out=out, **options)
        return symbolic.node_of_function(attention, q, k, v, **called)  # type: ignore[no-any-return]
    given: dict[str, Any] = DEFAULTS | options
    score_mod, block_mask = given.pop("score_mod", None), given.pop("block_mask", None)
    for name in options:
        if name not in _OPTIONS:
            refuse("attention", name, inspect.signature(attention))
    if score_mod is not None or block_mask is not None:
        if cache is not None or new_tokens is not None:
            raise NotImplementedError("attention: a cache has no score_mod and no block_mask; give its keys and values as tensors")
        given["score_mod"], given["block_mask"] = score_mod, block_mask
    require_flags("attention", return_lse=return_lse, return_attention_weights=return_attention_weights)
    if cache is not None:
        result, out = _with_cache(cache, new_tokens, q, k, v, given, return_attention_weights, out), None
    elif new_tokens is not None:
        raise ValueError("attention: new_tokens is given without a cache")
    else:
        require_tensors(q, k, v, given)
        q, k, v, given["bias"] = core.autocast(q, k, v, given.get("bias"))  # type: ignore[assignment]
        result = (_with_score_mod if "score_mod" in given else attention_of)("attention", q, k, v, attention_weights=return_attention_weights, **given)
    if return_lse and given["empty_rows"] == "uniform" and (result[0].requires_grad or core.has_tangent(result[0])):
        raise NotImplementedError("attention: polyhead has no gradient of lse with empty_rows='uniform'; call attention under torch.no_grad()")
    if out is not None:
        result = (_into(out, result[0]), *result[1:])
    more = [tensor for tensor, wanted in zip(result[1:], (return_lse, return_attention_weights)) if wanted]
    return (result[0], *more) if more else result[0]


_NUMBERS = (float, int)
_OPTIONAL_NUMBERS = {name for name, kind in _OPTIONS.items() if kind == "float | None"}
_PAIRS = {name for name, kind in _OPTIONS.items() if kind in ("Window", "BlockSize")}
_CHECKED_BELOW = {name for name, kind in _OPTIONS.items() if kind in ("Causal", "RelativeBias | None")}  # names of the options that the bindings check


def _chosen(options: Any) -> dict[str, Any] | None:
    """The options that differ from their defaults, in the form that `_eager.attention` takes; None if the fast path does not support one of them."""
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name in _TENSORS:
            if value is None:
                continue
            if type(value) not in _eager.PLAIN:
                return None
        elif name in DEFAULTS:
            default = DEFAULTS[name]
            if type(value) not in _NUMBERS if type(default) is float else type(value) is not str:
                return None
            if value == default:
                continue
            if name == "dropout":
                return None
        elif name not in _OPTIONS:
            return None
        elif value is None:
            continue
        elif name in _OPTIONAL_NUMBERS:
            if type(value) not in _NUMBERS:
                return None
        elif name in _PAIRS:
            if type(value) is list:  # copy it, because the caller may change the list before backward
                value = tuple(value)
        elif name not in _CHECKED_BELOW:
            return None
        chosen[name] = value
    return chosen


def require_tensors(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> None:
    """Raises TypeError unless polyhead supports all tensors. given: the options of `attention`."""
    require("attention", q=q)
    require("attention", also=(torch.int8,), k=k, v=v)
    tensors = {"q": q, "k": k, "v": v} | {name: given.get(name) for name in _TENSORS}
    for name, tensor in tensors.items():
        if not isinstance(tensor, (Tensor, NoneType)):
            raise TypeError(f"attention: {name} is of type {type(tensor).__name__}; it must be a torch.Tensor or None")
    require_memory("attention", **tensors)
    require_one_device("attention", **tensors)


def attention_of(where: str, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``(out, lse, attention weights)`` for the arguments of `attention`, whose tensors the caller has checked. Attention weights that are not wanted
    have the shape ``[0]``."""
    return core.attend_all(q, k, v, core.with_seed(q, read_options(where, q, **given)))


@torch.compiler.disable(reason="a score_mod is traced by polyhead itself")  # type: ignore[untyped-decorator]
def _with_score_mod(where: str, q: Tensor, k: Tensor, v: Tensor, *, score_mod: Any, block_mask: Any, **given: Any) -> tuple[Tensor, Tensor, Tensor]:
    from . import _score_mod  # imported here, because the module imports FlexAttention

    if block_mask is not None:
        for name in ("attend", "block"):
            if given.get(name) is not None:
                raise ValueError(f"{where}: block_mask and {name} are both given; only one of them may be")
        given["attend"] = _score_mod.attend_of(block_mask, q, k)
    options = core.with_seed(q, read_options(where, q, **given))
    if score_mod is None:
        return core.attend_all(q, k, v, options)
    return _score_mod.attention(q, k, v, score_mod, options)


def read_options(where: str, q: Tensor, *, attention_weights: bool = False, **given: Any) -> Options:
    """Converts the arguments of `attention`, whose tensors the caller has checked, to the arguments of the operators, without a seed of dropout."""
    for name in names_of("scales"):
        if (scales := given.get(name)) is not None and scales.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"{where}: {name} requires grad; polyhead has no gradient of the scales of int8 keys and values")
    if given.get("block_size") is not None and given.get("blocks") is None:
        raise ValueError(f"{where}: block_size is given without blocks; it is the size of the blocks that the argument blocks lists")
    fields = split_rules(where, given)
    relative_bias, sink = fields.pop("relative_bias", None), fields.pop("sink", None)
    options = Options(sink=None if sink is None else core.sink_logits(sink, q, where), attention_weights=attention_weights, **fields)
    if relative_bias is not None:
        options = core.with_relative_bias(options, relative_bias, q, where)
    return options


def _into(out: Tensor, result: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"attention: out is of type {type(out).__name__}; it must be a torch.Tensor")
    require_memory("attention", out=out)
    require_one_device("attention", q=result, out=out)
    if result.requires_grad or (out.requires_grad and torch.is_grad_enabled()):
        raise NotImplementedError("attention: out is given, and a gradient is recorded; give out only under torch.no_grad() or without tensors that require grad")
    if out.shape != result.shape or out.dtype != result.dtype:
        given, wanted = (f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" for x in (out, result))
        raise ValueError(f"attention: out is {given}; it must be {wanted}")
    return out.copy_(result)


@torch.compiler.disable(reason="a KeyValueCache is no tensor; under torch.compile give its keys, values, key_lengths and diagonal_offsets as tensors")  # type: ignore[untyped-decorator]
def _with_cache(
    cache: KeyValueCache, new_tokens: Tensor | None, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any], attention_weights: bool, out: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if not isinstance(cache, KeyValueCache):
        raise TypeError(f"attention: cache is of type {type(cache).__name__}; it must be a polyhead.KeyValueCache")
    for name in ("key_lengths", "diagonal_offsets", "k_scale", "v_scale", "query_offsets", "key_offsets"):
        if given.get(name) is not None:
            raise ValueError(f"attention: cache and {name} are both given; the cache says which keys there are")
    causal, relative = given.get("causal"), given.get("relative_bias")
    if causal is not None and not isinstance(causal, str):
        raise ValueError("attention: causal is an offset, but the cache gives the offset of the diagonal; give 'top_left' or 'bottom_right', which have the same meaning with a cache")
    if isinstance(relative, RelativeBias) and relative.diagonal is not None:
        raise ValueError("attention: relative_bias.diagonal is given, but the cache gives the diagonal; relative_bias.diagonal must be None")
    require_tensors(q, k, v, given)
    differentiable = {"q": q, "k": k, "v": v, "bias": given.get("bias"), "sink": given.get("sink")}
    for name, tensor in differentiable.items():
        if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
            raise NotImplementedError(f"attention: {name} requires grad, and a cache records no gradient; call attention under torch.no_grad()")
        if core.has_tangent(tensor):
            raise NotImplementedError(f"attention: {name} is a dual tensor, and a cache has no forward mode; give the cache's keys and values as tensors")
    q, k, v, bias = core.autocast(q, k, v, given.get("bias"))  # type: ignore[assignment]
    before = cache.lengths
    cache.append(k.detach(), v.detach(), None if new_tokens is None else new_tokens)
    try:
        keys, values, k_scale, v_scale = cache._cache.tensors()
        diagonal = causal is not None or given.get("window") is not None or relative is not None
        options = given | {
            "bias": bias,
            "causal": None if causal is None else "top_left",
            "key_lengths": torch.from_numpy(cache.lengths),
            "diagonal_offsets": torch.from_numpy(before) if diagonal else None,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
        result = attention_of("attention", q, keys, values, attention_weights=attention_weights, **options)
        return result if out is None else (_into(out, result[0]), *result[1:])
    except BaseException:
        cache.truncate(before)
        raise
