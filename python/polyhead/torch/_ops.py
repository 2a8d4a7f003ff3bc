"""polyhead as operators of torch: one for attention, one for its gradients, one for its maps.

The only module that uses torch's dispatcher. Shapes: ``q [*,N,T,H]``, ``k [*,K,S,H]``, ``v [*,K,S,V]``, masks and bias broadcast to ``[*,N,T,S]``; one
dtype, on the CPU. `_functional` converts torch's own arguments to this form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

import polyhead
from .._options import RelativeBias, annotations_of
from ._inputs import require_one_device
from ._offset import add_score_gradients


class Options(NamedTuple):
    """Arguments of the operators after q, k and v, in the order of the schemas, named as in `polyhead.sdpa`."""

    attend: Tensor | None = None
    block: Tensor | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None  # [N], or broadcasts to [*,N,T]; dtype of q or of lse
    slopes: Tensor | None = None  # of a RelativeBias; dtype of q or of lse
    table: Tensor | None = None
    seed: Tensor | None = None  # int64 [], given when dropout > 0
    causal: str | None = None  # "top_left" or "bottom_right"
    scale: float | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    bidirectional: bool = True  # of the table
    max_distance: int = 128
    diagonal: int | None = None  # offset where the distance is 0, without causal; None: S - T
    empty_rows: str = "zero"  # or "offset": what subtracting 1e9 from the masked scores gives in the dtype; with attend, without block and causal


_TYPES = {"Tensor | None": "Tensor?", "float | None": "float?", "str | None": "str?", "int | None": "int?"}  # types whose names in a schema differ from Python's
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


def _keywords(q: Tensor, *given: Any) -> dict[str, Any]:
    """`Options` as keyword arguments of `polyhead.sdpa`."""
    options = Options(*given)
    if options.empty_rows == "offset":
        options = options._replace(empty_rows="unmasked" if q.dtype == torch.float64 else "uniform")
    keywords = {name: _view(value) if isinstance(value, Tensor) else value for name, value in options._asdict().items()}
    relative = RelativeBias(**{name: keywords.pop(name) for name in RelativeBias._fields})
    if options.slopes is not None or options.table is not None:
        keywords["relative_bias"] = relative
    threads = torch.get_num_threads()  # 1 in the workers of a DataLoader
    return keywords | {"seed": None if options.seed is None else int(options.seed) % 2**64, "num_threads": threads if threads < polyhead.num_threads() else None}


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


@custom_op("polyhead::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor)")
def attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """``(out [*,N,T,V], lse [*,N,T])`` of `polyhead.sdpa`. lse carries no gradient."""
    _require_one_device("attention", "q k v", q, k, v, *options)
    out = _like_q(q, v.size(-1))
    _, lse = polyhead.sdpa(_view(q), _view(k), _view(v), out=_view(out), return_lse=True, **_keywords(q, *options))
    return out, _tensor(lse)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    _require_one_device("attention", "q k v", q, k, v, *options)
    return _like_q(q, v.size(-1)), q.new_empty(q.shape[:-1], dtype=_lse_dtype(q))


_GRADIENTS = ("q", "k", "v", "bias", "sink", "slopes", "table")
_INPUTS = ("q", "k", "v", *Options._fields)
_SAVED = _INPUTS.index("seed") + 1  # the inputs before are tensors


@custom_op(
    "polyhead::attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_SCHEMA}, bool[7] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """``(d_q, d_k, d_v, d_bias, d_sink, d_slopes, d_table)`` of `polyhead.sdpa_backward`; a gradient that is not wanted has the shape ``[0]``."""
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *options, wanted = rest
    given = (_view(tensor) for tensor in (q, k, v, out, lse, d_out))
    keywords = _keywords(q, *options)
    names = {"relative_bias" if name in ("slopes", "table") else name for name, want in zip(_GRADIENTS, wanted) if want}
    grads = polyhead.sdpa_backward(*given, gradients=names, **keywords)
    o = Options(*options)
    of_relative = (grads.relative_bias if want and given is not None else None for want, given in zip(wanted[5:], (o.slopes, o.table)))
    result = tuple(q.new_empty(0) if grad is None else _tensor(grad) for grad in (*grads[:5], *of_relative))
    if o.empty_rows == "offset" and keywords["empty_rows"] == "uniform" and o.attend is not None:
        scale = o.scale if o.scale is not None else q.size(-1) ** -0.5
        add_score_gradients(result, wanted, d_out, q, k, v, attend=o.attend, bias=o.bias, scale=scale, dropout=o.dropout, seed=keywords["seed"])
    return result


@attention_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _require_one_device("attention_backward", "d_out q k v out lse", d_out, q, k, v, out, lse, *rest)
    *options, wanted = rest
    inputs = (q, k, v, *(getattr(Options(*options), name) for name in _GRADIENTS[3:]))
    return tuple(q.new_empty(0) if of is None or not want else of.new_empty(of.shape) for of, want in zip(inputs, wanted))


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = inputs[_SAVED:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:_SAVED], *output)


def _attention_gradient(ctx: Any, d_out: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    q, k, v, *tensors, out, lse = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[_INPUTS.index(name)] for name in _GRADIENTS]
    grads = attention_backward(d_out, q, k, v, out, lse, *tensors, *ctx.options, wanted)
    given = {name: grad for name, grad, want in zip(_GRADIENTS, grads, wanted) if want}
    return tuple(given.get(name) for name in _INPUTS)


attention.register_autograd(_attention_gradient, setup_context=_attention_context)


def _no_second_gradient(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(
        "polyhead's attention has no second derivative (create_graph=True); "
        "for that use torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_backward.register_autograd(_no_second_gradient)


@custom_op(
    "polyhead::attention_map", mutates_args=(), schema=f"(Tensor q, Tensor k, {_SCHEMA.rpartition(',')[0]}) -> Tensor"
)
def attention_map(q: Tensor, k: Tensor, *options: Any) -> Tensor:
    """``[*,N,T,S]``: the attention weights after dropout, which multiply v. Empty rows are 0."""
    _require_one_device("attention_map", "q k", q, k, *options)
    keywords = _keywords(q, *options)
    return _tensor(polyhead.maps(_view(q), _view(k), value="dropped" if keywords["dropout"] > 0 else "probability", **keywords))


@attention_map.register_fake
def _(q: Tensor, k: Tensor, *options: Any) -> Tensor:
    _require_one_device("attention_map", "q k", q, k, *options)
    return q.new_empty((*q.shape[:-1], k.size(-2)))


def _map_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = _SAVED - 1  # without v
    ctx.options = inputs[tensors:]
    ctx.save_for_backward(*inputs[:tensors], output)


def _sink_gradient(sink: Tensor, p: Tensor, delta: Tensor) -> Tensor:
    # Equation (7a): the sink has what the keys' p lack to 1.
    rows = sink.unsqueeze(-1) if sink.dim() == 1 else sink
    d_rows = torch.where(rows == -torch.inf, 0, (p.sum(-1) - 1) * delta)
    return d_rows.sum_to_size(rows.shape).reshape(sink.shape).to(sink.dtype)


def _relative_gradients(
    d_score: Tensor, slopes: Tensor | None, table: Tensor | None, causal: str | None, bidirectional: bool, max_distance: int, diagonal: int | None
) -> tuple[Tensor | None, Tensor | None]:
    # Equation (9a) of docs/maths.md.
    if slopes is None and table is None:
        return None, None
    queries, keys = d_score.shape[-2:]
    offset = 0 if causal == "top_left" else keys - queries if causal or diagonal is None else diagonal
    d = d_score.to(_lse_dtype(d_score)).sum_to_size(d_score.shape[-3:])
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + offset)
    d_slopes = d_table = None
    if slopes is not None:
        d_slopes = -(d * distance.abs()).sum((1, 2)).to(slopes.dtype)
    if table is not None:
        distances = range(1 - queries - offset, keys - offset)
        of_distances = [polyhead.relative_bucket(x, table.size(1), bidirectional=bidirectional, max_distance=max_distance) for x in distances]
        buckets = torch.tensor(of_distances, dtype=torch.int64)[(distance + (queries - 1 + offset)).flatten()]
        d_table = d.new_zeros(table.shape).index_add(1, buckets, d.flatten(1)).to(table.dtype)
    return d_slopes, d_table


def _map_gradient(ctx: Any, d_map: Tensor) -> tuple[Tensor | None, ...]:
    # Equation (7) of docs/maths.md. The map has T x S numbers per head, so its gradient may use torch's operators, which make such tensors too.
    q, k, attend, block, bias, sink, slopes, table, _, dropped = ctx.saved_tensors
    causal, scale, softcap, dropout, *of_table = ctx.options
    want_q, want_k, _, _, want_bias, want_sink, want_slopes, want_table = ctx.needs_input_grad[:8]
    p = dropped if dropout == 0 else attention_map(q, k, attend, block, bias, sink, slopes, table, None, causal, scale, softcap, 0.0, *of_table)
    d_score = torch.where(dropped == 0, 0, dropped * d_map)
    delta = d_score.sum(-1, keepdim=True)
    d_score = torch.where(p == 0, 0, d_score - p * delta)
    d_bias = d_score.sum_to_size(bias.shape) if want_bias else None
    d_sink = _sink_gradient(sink, p, delta.squeeze(-1)) if want_sink else None
    d_slopes, d_table = _relative_gradients(d_score, slopes if want_slopes else None, table if want_table else None, causal, *of_table)
    if not (want_q or want_k):
        return None, None, None, None, d_bias, d_sink, d_slopes, d_table, *(None,) * 8
    factor = scale if scale is not None else q.size(-1) ** -0.5 if q.size(-1) > 0 else 0.0
    # The g query heads that share a key head are stacked along the queries: [*,K,g*T,..].
    group = q.size(-3) // max(k.size(-3), 1)
    stacked = (*q.shape[:-3], k.size(-3), group * q.size(-2))
    rows, d_x = q.reshape(*stacked, q.size(-1)), d_score.reshape(*stacked, k.size(-2))
    if attend is not None or block is not None or causal:
        # Replace NaN by 0: the 0 of a masked key times NaN would be NaN. A NaN in an attended key or its query is in d_x already.
        k, rows = k.nan_to_num(0, 0, 0), rows.nan_to_num(0, 0, 0)
    if softcap > 0:
        d_x = d_x * (1 - torch.tanh(rows @ k.mT * (factor / softcap)) ** 2)
    d_x = d_x * factor
    d_q = (d_x @ k).reshape(q.shape) if want_q else None
    d_k = d_x.mT @ rows if want_k else None
    return d_q, d_k, None, None, d_bias, d_sink, d_slopes, d_table, *(None,) * 8


attention_map.register_autograd(_map_gradient, setup_context=_map_context)
