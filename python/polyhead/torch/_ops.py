"""polyhead as operators of torch: one for attention, one for its gradients, one for its maps.

The only module that uses torch's dispatcher. Arguments are those of `polyhead.sdpa`, on the CPU: ``q [*,N,T,H]``, ``k [*,K,S,H]``, ``v [*,K,S,V]``.
`_functional` converts torch's own arguments to this form.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

import polyhead
from .._options import MapValue, RelativeBias, annotations_of
from ._inputs import require_one_device
from ._offset import add_score_gradients


class Options(NamedTuple):
    """Arguments of the operators after q, k and v, in the order of the schemas, named as in `polyhead.sdpa`."""

    attend: Tensor | None = None
    block: Tensor | None = None
    attend_keys: Tensor | None = None
    block_keys: Tensor | None = None
    key_lengths: Tensor | None = None
    diagonal_offsets: Tensor | None = None
    query_offsets: Tensor | None = None
    key_offsets: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None  # [N], or broadcasts to [*,N,T]; dtype of q or of lse
    slopes: Tensor | None = None  # of a RelativeBias; dtype of q or of lse
    table: Tensor | None = None
    seed: Tensor | None = None  # int64 [], given when dropout > 0
    causal: str | None = None  # "top_left" or "bottom_right"
    offset: int | None = None  # of the causal diagonal, instead of a corner
    window_left: int | None = None
    window_right: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    bidirectional: bool = True  # of the table
    max_distance: int = 128
    diagonal: int | None = None  # offset where the distance is 0, without causal; None: S - T
    empty_rows: str = "zero"  # or "offset": what subtracting 1e9 from the masked scores gives in the dtype; with attend, without block and causal
    precision: str = "native"  # or "exact": of bfloat16
    attention_weights: bool = False  # whether `attention` returns them


# Types whose names in a schema differ from Python's. Integers may be symbols: the length of a cache changes with every token.
_TYPES = {"Tensor | None": "Tensor?", "float | None": "float?", "str | None": "str?", "int | None": "SymInt?"}
_SCHEMA = ", ".join(f"{_TYPES.get(annotation, annotation)} {name}" for name, annotation in annotations_of(Options).items())


def _view(tensor: Tensor | None) -> Any:
    # Detach, because under autograd the operator gets the caller's own tensor and the bindings refuse tensors with requires_grad.
    if tensor is None:
        return None
    tensor = tensor.detach().resolve_neg()
    # The buffer protocol of a NumPy array takes 1 us, DLPack 10 us. NumPy has no bfloat16.
    return tensor if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def keywords(q: Tensor, options: Options) -> dict[str, Any]:
    """`Options` as keyword arguments of `polyhead.sdpa`, the scales too."""
    if options.empty_rows == "offset":
        options = options._replace(empty_rows="unmasked" if q.dtype == torch.float64 else "uniform")
    given: dict[str, Any] = {name: value for name, value in zip(Options._fields, options) if value is not None}
    relative = RelativeBias(**{name: given.pop(name, None) for name in RelativeBias._fields})
    if relative.slopes is not None or relative.table is not None:
        given["relative_bias"] = relative
    left, right, offset = (given.pop(name, None) for name in ("window_left", "window_right", "offset"))
    if offset is not None:
        given["causal"] = offset
    if left is not None or right is not None:
        given["window"] = (left, right)
    if options.seed is not None:
        given["seed"] = int(options.seed) % 2**64
    del given["attention_weights"]
    return given


def options_of(given: dict[str, Any]) -> Options:
    """The inverse of `keywords`."""
    given = dict(given)
    given.pop("num_threads", None)
    if "relative_bias" in given:
        given |= given.pop("relative_bias")._asdict()
        named = {"top_left": 0, "bottom_right": None}
        given["diagonal"] = None if "causal" in given else named.get(given["diagonal"], given["diagonal"])
    if "window" in given:
        given["window_left"], given["window_right"] = given.pop("window")
    if not isinstance(given.get("causal"), (str, type(None))):
        given["offset"] = given.pop("causal")
    if given.get("seed") is not None:
        given["seed"] = torch.tensor(given["seed"] % 2**63, dtype=torch.int64)
    return Options(**given)


def _on_views(q: Tensor, options: Options, *without: str) -> dict[str, Any]:
    given = {name: _view(value) if isinstance(value, Tensor) else value for name, value in keywords(q, options).items() if name not in without}
    if "relative_bias" in given:
        relative = given["relative_bias"]
        given["relative_bias"] = relative._replace(slopes=_view(relative.slopes), table=_view(relative.table))
    threads = torch.get_num_threads()  # 1 in the workers of a DataLoader
    return given | {"num_threads": threads if threads < polyhead.num_threads() else None}


def _require_one_device(operator: str, names: str, *given: Any) -> None:
    # Without a device for which torch asks, the kernels get the tensors of every device, and the fake kernels any mixture with meta tensors.
    every = zip((*names.split(), *Options._fields), given)
    require_one_device(f"polyhead::{operator}", **{name: tensor for name, tensor in every if isinstance(tensor, Tensor)})


def _like_q(q: Tensor, last: Any) -> Tensor:
    """A new tensor ``[*,N,T,last]`` whose dimensions have q's order in memory, the last one innermost: heads that are views of a layer's
    output then merge without a copy."""
    shape = [*q.shape[:-1], last]
    leading = q.dim() - 1
    # The stride of a dimension of extent 0 or 1 means nothing; a stride of 0 is a broadcast.
    if any(q.stride(i) == 0 and q.size(i) > 1 for i in range(leading)):
        return q.new_empty(shape)
    order = sorted((i for i in range(leading) if q.size(i) > 1), key=lambda i: q.stride(i), reverse=True)
    order = [i for i in range(leading) if q.size(i) <= 1] + order + [leading]
    place = sorted(range(q.dim()), key=order.__getitem__)
    return q.new_empty([shape[i] for i in order]).permute(place)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@custom_op("polyhead::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor, Tensor)")
def attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``(out [*,N,T,V], lse [*,N,T], attention weights [*,N,T,S])`` of `polyhead.sdpa`; attention weights that are not wanted have the shape ``[0]``."""
    _require_one_device("attention", "q k v", q, k, v, *given)
    options = Options(*given)
    out = _like_q(q, v.size(-1))
    _, lse, *p = polyhead.sdpa(
        _view(q),
        _view(k),
        _view(v),
        out=_view(out),
        return_lse=True,
        return_attention_weights=options.attention_weights,
        **_on_views(q, options),
    )
    return out, _tensor(lse), _tensor(p[0]) if p else q.new_empty(0)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _require_one_device("attention", "q k v", q, k, v, *given)
    pairs = (*q.shape[:-1], k.size(-2)) if Options(*given).attention_weights else (0,)
    return _like_q(q, v.size(-1)), q.new_empty(q.shape[:-1], dtype=_lse_dtype(q)), q.new_empty(pairs)


GRADIENTS = ("q", "k", "v", "bias", "sink", "slopes", "table")
"""What has a gradient, in the order in which `attention_backward` returns them."""

_INPUTS = ("q", "k", "v", *Options._fields)
_SAVED = _INPUTS.index("seed") + 1  # the inputs before are tensors


def _in_one_dtype(q: Tensor, k: Tensor, v: Tensor, options: Options, *others: Tensor) -> tuple[Any, ...]:
    """As `polyhead.sdpa_backward` needs them: keys and values of another dtype than q make all of them float32, in which each is exact."""
    if q.dtype == k.dtype == v.dtype and all(other.dtype == q.dtype for other in others):
        return q, k, v, options, *others
    k, v = (x.float() if scale is None else x * scale.unsqueeze(-1) for x, scale in ((k, options.k_scale), (v, options.v_scale)))
    wide = {name: tensor.float() for name in GRADIENTS[3:] if (tensor := getattr(options, name)) is not None}
    return q.float(), k, v, options._replace(k_scale=None, v_scale=None, **wide), *(other.float() for other in others)


@custom_op(
    "polyhead::attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_SCHEMA}, bool[7] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """``(d_q, d_k, d_v, d_bias, d_sink, d_slopes, d_table)`` of `polyhead.sdpa_backward`; a gradient that is not wanted has the shape ``[0]``."""
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *options, wanted = rest
    dtypes = [(q if of is None else of).dtype for of in _differentiable(q, k, v, Options(*options))]
    q, k, v, o, out, d_out = _in_one_dtype(q, k, v, Options(*options), out, d_out)
    given = _on_views(q, o)
    names = {"relative_bias" if name in ("slopes", "table") else name for name, want in zip(GRADIENTS, wanted) if want}
    grads = polyhead.sdpa_backward(*map(_view, (q, k, v, out, lse, d_out)), gradients=names, **given)
    of_relative = (grads.relative_bias if want and of is not None else None for want, of in zip(wanted[5:], (o.slopes, o.table)))
    result = tuple(q.new_empty(0) if grad is None else _tensor(grad) for grad in (*grads[:5], *of_relative))
    if o.empty_rows == "offset" and given["empty_rows"] == "uniform" and o.attend is not None:
        scale = o.scale if o.scale is not None else q.size(-1) ** -0.5
        add_score_gradients(result, wanted, d_out, q, k, v, attend=o.attend, bias=o.bias, scale=scale, dropout=o.dropout, seed=given.get("seed"))
    return tuple(grad.to(dtype) for grad, dtype in zip(result, dtypes))


def _differentiable(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor | None, ...]:
    return (q, k, v, *(getattr(options, name) for name in GRADIENTS[3:]))


@attention_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *given, wanted = rest
    inputs = _differentiable(q, k, v, Options(*given))
    unwanted = (q.new_empty(0, dtype=q.dtype if of is None else of.dtype) for of in inputs)
    return tuple(none if of is None or not want else of.new_empty(of.shape) for of, want, none in zip(inputs, wanted, unwanted))


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """What the gradients of `attention` need."""
    ctx.options = inputs[_SAVED:]
    ctx.set_materialize_grads(False)
    options = Options(*inputs[3:])
    no_gradient = [output[1]] if options.empty_rows in ("uniform", "offset") else []
    ctx.mark_non_differentiable(*no_gradient, *([] if options.attention_weights else [output[2]]))
    ctx.save_for_backward(*inputs[:_SAVED], *output)


def input_gradients(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_p: Tensor | None, backward: Any = None) -> tuple[Tensor | None, ...]:
    """The gradient of each input of `attention`. backward: what to call instead of `attention_backward`."""
    q, k, v, *tensors, out, lse, p = ctx.saved_tensors
    refuse_gradient_of_scales(*(ctx.needs_input_grad[_INPUTS.index(name)] for name in ("k_scale", "v_scale")))
    wanted = [ctx.needs_input_grad[_INPUTS.index(name)] for name in GRADIENTS]
    options = Options(*tensors, *ctx.options)
    given = dict(zip(GRADIENTS, gradients(d_out, d_lse, d_p, q, k, v, out, lse, p, options, wanted, backward or attention_backward)))
    return tuple(given.get(name) for name in _INPUTS)


def refuse_gradient_of_scales(k_scale: bool, v_scale: bool) -> None:
    """NotImplementedError if one of them is wanted."""
    if k_scale or v_scale:
        raise NotImplementedError(f"{'k_scale' if k_scale else 'v_scale'} requires grad; polyhead has no gradient of the scales of int8 keys and values")


def gradients(
    d_out: Tensor | None, d_lse: Tensor | None, d_p: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, p: Tensor | None, options: Options,
    wanted: list[bool], backward: Any = attention_backward,
) -> list[Tensor | None]:  # fmt: skip
    """Of q, k, v, bias, sink, slopes and table, from those of out, lse and the attention weights p; None where it is not wanted."""
    parts: list[tuple[Tensor | None, ...]] = []
    if d_out is not None:
        found = backward(d_out, q, k, v, out, lse, *options, wanted)
        parts.append(tuple(grad if want else None for grad, want in zip(found, wanted)))
    if d_lse is not None:
        parts.append(_lse_gradients(d_lse, q, k, v, lse, options, wanted, backward))
    if d_p is not None and p is not None:
        parts.append(_p_gradients(p, d_p, q, k, options, wanted))
    sums: list[Tensor | None] = [None] * len(GRADIENTS)
    for part in parts:
        sums = [grad if total is None else total if grad is None else total + grad for total, grad in zip(sums, part)]
    # v has none from lse and p. Not None: compiled autograd adds it to those of q and k where they are one tensor.
    inputs = zip(sums, wanted, _differentiable(q, k, v, options))
    return [torch.zeros_like(of) if grad is None and want and of is not None else grad for grad, want, of in inputs]


attention.register_autograd(input_gradients, setup_context=save)


def refuse_second_gradient(ctx: Any, *_: Any) -> None:
    """NotImplementedError."""
    raise NotImplementedError(
        "polyhead's attention has no second derivative (create_graph=True); "
        "for that use torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_backward.register_autograd(refuse_second_gradient)


def _lse_gradients(d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, options: Options, wanted: list[bool], backward: Any) -> tuple[Tensor | None, ...]:
    # d_score = p d_lse (docs/maths.md, equation 7b). sdpa_backward gives it for another problem: a sink halves p, and one value of 1 for every key gives
    # d_score = p / 2 (d - d sum p / 2), where d, the gradient of that output, is chosen so that d_lse stands before p.
    if options.empty_rows == "unmasked":  # refuses a sink
        p = attention_map(q, k, *options._replace(dropout=0.0, seed=None))
        return _score_gradients(torch.where(p == 0, 0, p * d_lse.unsqueeze(-1)).to(q.dtype), None, q, k, options, wanted)
    share = torch.zeros_like(lse)  # of the sink in the sum of the softmax
    if options.sink is not None:
        rows = options.sink.unsqueeze(-1) if options.sink.dim() == 1 else options.sink
        share = torch.where(lse == -torch.inf, 0, torch.exp(rows - lse))
    ones = v.new_ones((*v.shape[:-1], 1), dtype=lse.dtype)
    halved = options._replace(sink=lse + torch.log1p(share), v_scale=None, dropout=0.0, seed=None, attention_weights=False)
    of_sink = GRADIENTS.index("sink")
    found = backward(
        (4 * d_lse / (1 + share)).unsqueeze(-1), q, k, ones, ((1 - share) / 2).unsqueeze(-1), lse + math.log(2), *halved,
        [want and i not in (2, of_sink) for i, want in enumerate(wanted)],
    )  # fmt: skip
    grads = [grad if want else None for grad, want in zip(found, wanted)]
    grads[2] = grads[of_sink] = None
    if options.sink is not None and wanted[of_sink]:
        grads[of_sink] = _to_sink(share * d_lse, options.sink)
    return tuple(grads)


def _p_gradients(p: Tensor, d_p: Tensor, q: Tensor, k: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    # Equation (7) of docs/maths.md.
    if options.empty_rows == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention weights with empty_rows='uniform'")
    return _softmax_gradients(p, torch.where(p == 0, 0, p * d_p), q, k, options, wanted)


@custom_op("polyhead::attention_map", mutates_args=(), schema=f"(Tensor q, Tensor k, {_SCHEMA}) -> Tensor")
def attention_map(q: Tensor, k: Tensor, *given: Any) -> Tensor:
    """``[*,N,T,S]``: the attention weights after dropout, which multiply v."""
    _require_one_device("attention_map", "q k", q, k, *given)
    options = Options(*given)
    value: MapValue = "dropped" if options.dropout > 0 else "probability"
    return _tensor(polyhead.maps(_view(q), _view(k), value=value, **_on_views(q, options, "v_scale")))


@attention_map.register_fake
def _(q: Tensor, k: Tensor, *given: Any) -> Tensor:
    _require_one_device("attention_map", "q k", q, k, *given)
    return q.new_empty((*q.shape[:-1], k.size(-2)))


def _map_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = _SAVED - 1  # without v
    ctx.options = inputs[tensors:]
    ctx.save_for_backward(*inputs[:tensors], output)


def _map_gradient(ctx: Any, d_map: Tensor) -> tuple[Tensor | None, ...]:
    q, k, *tensors, dropped = ctx.saved_tensors
    options = Options(*tensors, *ctx.options)
    names = ("q", "k", *Options._fields)
    refuse_gradient_of_scales(ctx.needs_input_grad[names.index("k_scale")], False)
    wanted = [name in names and ctx.needs_input_grad[names.index(name)] for name in GRADIENTS]
    if options.empty_rows == "uniform":
        raise NotImplementedError("polyhead has no gradient of attention maps with empty_rows='uniform'")
    p = dropped if options.dropout == 0 else attention_map(q, k, *options._replace(dropout=0.0, seed=None))
    found = dict(zip(GRADIENTS, _softmax_gradients(p, torch.where(dropped == 0, 0, dropped * d_map), q, k, options, wanted)))
    return tuple(found.get(name) for name in names)


def _to_sink(rows: Tensor, sink: Tensor) -> Tensor:
    return rows.sum_to_size((*sink.shape, 1) if sink.dim() == 1 else sink.shape).reshape(sink.shape).to(sink.dtype)


def _sink_gradient(sink: Tensor, p: Tensor, delta: Tensor) -> Tensor:
    # Equation (7a): the sink has what the keys' p lack to 1.
    rows = sink.unsqueeze(-1) if sink.dim() == 1 else sink
    return _to_sink(torch.where(rows == -torch.inf, 0, (p.sum(-1) - 1) * delta), sink)


def _relative_gradients(d_score: Tensor, o: Options, slopes: Tensor | None, table: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    # Equation (9a) of docs/maths.md.
    if slopes is None and table is None:
        return None, None
    if o.diagonal_offsets is not None or o.query_offsets is not None:
        raise NotImplementedError("polyhead has no gradient of attention weights for a relative_bias together with diagonal_offsets or documents")
    queries, keys = d_score.shape[-2:]
    given = 0 if o.causal == "top_left" else o.offset if o.offset is not None else None if o.causal else o.diagonal
    offset = keys - queries if given is None else given
    d = d_score.to(_lse_dtype(d_score)).sum_to_size(d_score.shape[-3:])
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + offset)
    d_slopes = d_table = None
    if slopes is not None:
        d_slopes = -(d * distance.abs()).sum((1, 2)).to(slopes.dtype)
    if table is not None:
        distances = range(1 - queries - offset, keys - offset)
        of_distances = [polyhead.relative_bucket(x, table.size(1), bidirectional=o.bidirectional, max_distance=o.max_distance) for x in distances]
        buckets = torch.tensor(of_distances, dtype=torch.int64)[(distance + (queries - 1 + offset)).flatten()]
        d_table = d.new_zeros(table.shape).index_add(1, buckets, d.flatten(1)).to(table.dtype)
    return d_slopes, d_table


_MASKS = ("attend", "block", "attend_keys", "block_keys", "key_lengths", "query_offsets", "causal", "offset", "window_left", "window_right")


def _softmax_gradients(p: Tensor, p_d_p: Tensor, q: Tensor, k: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    # Equation (7) of docs/maths.md, from p and p times its gradient.
    delta = p_d_p.sum(-1, keepdim=True)
    d_sink = None if options.sink is None or not wanted[4] else _sink_gradient(options.sink, p, delta.squeeze(-1))
    return _score_gradients(torch.where(p == 0, 0, p_d_p - p * delta), d_sink, q, k, options, wanted)


def _score_gradients(d_score: Tensor, d_sink: Tensor | None, q: Tensor, k: Tensor, options: Options, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    # d_score has T x S numbers per head, so this may use torch's operators, which make such tensors too.
    d_bias = None if options.bias is None or not wanted[3] else d_score.sum_to_size(options.bias.shape)
    relative = _relative_gradients(d_score, options, options.slopes if wanted[5] else None, options.table if wanted[6] else None)
    if not (wanted[0] or wanted[1]):
        return None, None, None, d_bias, d_sink, *relative
    dtype = k.dtype
    if dtype != q.dtype:
        k = k.to(q.dtype) if options.k_scale is None else (k * options.k_scale.unsqueeze(-1)).to(q.dtype)
    factor = options.scale if options.scale is not None else q.size(-1) ** -0.5 if q.size(-1) > 0 else 0.0
    # The g query heads that share a key head are stacked along the queries: [*,K,g*T,..].
    group = q.size(-3) // max(k.size(-3), 1)
    stacked = (*q.shape[:-3], k.size(-3), group * q.size(-2))
    rows, d_x = q.reshape(*stacked, q.size(-1)), d_score.reshape(*stacked, k.size(-2))
    if any(getattr(options, name) is not None for name in _MASKS):
        # Replace NaN by 0: the 0 of a masked key times NaN would be NaN. A NaN in an attended key or its query is in d_x already.
        k, rows = k.nan_to_num(0, 0, 0), rows.nan_to_num(0, 0, 0)
    if options.softcap > 0:
        d_x = d_x * (1 - torch.tanh(rows @ k.mT * (factor / options.softcap)) ** 2)
    d_x = d_x * factor
    d_q = (d_x @ k).reshape(q.shape) if wanted[0] else None
    d_k = (d_x.mT @ rows).to(dtype) if wanted[1] else None
    return d_q, d_k, None, d_bias, d_sink, *relative


attention_map.register_autograd(_map_gradient, setup_context=_map_context)
