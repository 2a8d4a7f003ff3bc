"""Translates polyhead's torch operators to ONNX, for torch.onnx.export. Each operator becomes a node `Attention` (opset 23); masks and biases become the node's
input attn_mask.

The translation uses only features that all runtimes compute in the same way. A mask ``[..,T,S]`` always covers every query and key. The outputs of queries
without keys are set to 0 after the node. If there are both a softcap and a mask, separate nodes compute the scores and apply both, because runtimes before the
correction of opset 23 (2026) apply the softcap to the sum of score and mask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

import polyhead
from . import _ops
from ._rules import Options

_FIRST_OPSET = 23  # the first opset with an operator Attention
_Value = Any  # a value in the ONNX graph


def onnx_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translation table that torch.onnx.export needs for models with polyhead. Each call of attention becomes a node `Attention` of ONNX (opset 23).

    ::

        torch.onnx.export(model.eval(), inputs, "model.onnx", dynamo=True, opset_version=23, custom_translation_table=onnx_translations())

    The export needs the packages onnx and onnxscript. It supports all dtypes, extents that are not fixed (``dynamic_shapes``), and every option of `attention`
    except those listed under Raises. One node computes the output; if the model uses lse or attention weights, each needs another node. Masks and biases become
    the node's mask ``[..,T,S]``. NaN or infinity in a masked key reaches the result, because runtimes compute the key's score and add -inf. If key and value
    have another dtype than the query, or if a bfloat16 call has precision "exact", all three are converted to float32.

    Returns:
        A dict for the argument custom_translation_table of torch.onnx.export. If ONNX cannot express a call, torch.onnx.export raises an error that quotes one
        of the errors below.

    Raises:
        NotImplementedError: during the export: dropout, blocks, an extent of 0, a scale that depends on the input, or a max_distance above 2^20.
        ValueError: during the export: opset_version below 23.
    """
    return {torch.ops.polyhead.attention.default: _attention, torch.ops.polyhead.attention_map.default: _attention_map}


class _Problem(NamedTuple):
    """The inputs of a node Attention. Their leading dimensions are still those of polyhead's operator."""

    q: _Value
    k: _Value
    v: _Value
    mask: _Value | None  # broadcasts to [*,N,T,S], or with a sink to [*,N,T,S+1]
    is_causal: bool  # True: causal from the top left corner, and there is no mask
    is_floating: bool  # True: the mask holds numbers that are added to the scores; False: booleans
    any_key: _Value | None  # bool, broadcasts to [*,N,T,1]: False for rows without a key, whose result must be 0. None: every row has a key
    scale: float
    softcap: float
    keys: _Value | None  # int64 [1]: S, if the sink is appended as one more key; attention weights are cut off after key S - 1. None: no sink


def _takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # torch.onnx.export reads the names from the signature.
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in (*names, *Options._fields)])  # type: ignore[attr-defined]
        return function

    return decorate


@_takes("q", "k", "v")
def _attention(q: _Value, k: _Value, v: _Value, *given: Any) -> tuple[_Value, ...]:
    graph, options = _Graph(q), Options(*given)
    problem = graph.problem(q, k, v, options)
    p = graph.weights(problem) if options.attention_weights else graph.constant(np.empty(0), q.dtype)
    dtype = graph.ir.DataType.DOUBLE if q.dtype == graph.ir.DataType.DOUBLE else graph.ir.DataType.FLOAT
    # torch.onnx.export removes results that the model does not use; in most models this removes lse.
    serves = not problem.is_causal and problem.q.dtype == dtype
    return graph.output(problem), graph.lse(problem if serves else graph.problem(q, k, v, options, dtype)), p


@_takes("q", "k")
def _attention_map(q: _Value, k: _Value, *given: Any) -> _Value:
    graph = _Graph(q)
    return graph.weights(graph.problem(q, k, k, Options(*given)._replace(v_scale=Options(*given).k_scale)))


class _Graph:
    """Adds nodes to the graph that is being exported."""

    def __init__(self, q: _Value) -> None:
        import onnx_ir  # imported here, because only the export needs this package
        from onnxscript import evaluator

        recorder: Any = evaluator.default()
        self.ir = onnx_ir
        self.op = recorder.opset
        if self.op.version < _FIRST_OPSET:
            raise ValueError(f"polyhead: opset_version is {self.op.version}; ONNX has an operator Attention from {_FIRST_OPSET} on")
        self.rank = len(q.shape)
        self.result = q.dtype

    def constant(self, value: Any, dtype: Any = None) -> _Value:
        dtype = dtype or self.ir.DataType.INT64
        return self.op.Constant(value=self.ir.tensor(np.asarray(value, dtype.numpy()), dtype=dtype))

    def integer(self, value: int | _Value) -> _Value:
        return self.constant(value) if isinstance(value, int) else value

    def int64(self, x: _Value) -> _Value:
        return self.op.Cast(x, to=self.ir.DataType.INT64)

    def extent(self, x: _Value, dim: int) -> _Value:
        """The extent of a dimension of x, as int64 [1]. dim is counted from the end and negative; x has the rank of q."""
        return self.op.Shape(x, start=self.rank + dim, end=self.rank + dim + 1)

    def unsqueeze(self, x: _Value, *dims: int) -> _Value:
        return self.op.Unsqueeze(x, self.constant(dims))

    def squeeze(self, x: _Value, *dims: int) -> _Value:
        return self.op.Squeeze(x, self.constant(dims))

    def arange(self, x: _Value, dim: int) -> _Value:
        return self.op.Range(self.constant(0), self.squeeze(self.extent(x, dim), 0), self.constant(1))

    def problem(self, q: _Value, k: _Value, v: _Value, options: Options, for_lse: Any = None) -> _Problem:
        """Makes the inputs of a node. for_lse: the dtype of lse if the node computes lse, else None."""
        op, dtype = self.op, self.ir.DataType
        o: Any = _Reads(options)
        _refuse(q, k, v, o)
        widened = q.dtype != k.dtype or (o.precision == "exact" and q.dtype == dtype.BFLOAT16)
        wide = for_lse or (dtype.FLOAT if widened else q.dtype)
        masks = self.key_sets(q, k, o)
        causal = o.causal == "top_left" and o.window_left is None and o.window_right is None and o.diagonal_offsets is None and o.query_offsets is None
        bias = self.bias(q, k, o, wide)
        is_causal = causal and not masks and bias is None and o.sink is None and for_lse is None
        if not is_causal:
            masks += self.diagonals(q, k, o)
        mask = functools.reduce(op.And, masks) if masks else None
        if o.k_scale is not None:
            k = op.Mul(op.Cast(k, to=wide), self.unsqueeze(op.Cast(o.k_scale, to=wide), -1))
        if o.v_scale is not None:
            v = op.Mul(op.Cast(v, to=wide), self.unsqueeze(op.Cast(o.v_scale, to=wide), -1))
        width = q.shape[-1]
        q, k, v = (op.Cast(x, to=wide) for x in (q, k, v))
        scale = width**-0.5 if o.scale is None else float(o.scale)

        any_key = None
        if mask is not None:
            any_key = self.any_true(mask)
            if o.empty_rows != "zero":
                mask = op.Or(mask, op.Not(any_key))
            if o.empty_rows == "uniform" or (o.empty_rows == "offset" and self.result != dtype.DOUBLE):
                zero = self.constant(0, wide)
                q = op.Where(any_key, q, zero)
                bias = None if bias is None else op.Where(any_key, bias, zero)
            if o.empty_rows != "zero":
                any_key = None
        keys = None
        if o.sink is not None:
            keys = self.extent(k, -2)
            bias = self.with_sink(q, keys, o.sink, mask, bias, wide)
            one_more = self.constant([0] * (2 * self.rank - 2) + [1, 0])
            k, v = op.Pad(k, one_more), op.Pad(v, one_more)
        elif mask is not None and bias is not None:
            bias = op.Where(mask, bias, self.constant(-np.inf, wide))
        if bias is not None:  # a row has no key if all its biases are -inf
            any_key = op.Not(op.Equal(op.ReduceMax(bias, self.constant([-1]), keepdims=1), self.constant(-np.inf, wide)))
        if wide == dtype.DOUBLE or scale <= 0:  # multiply q instead, because the node's attribute scale is float32 and must be positive
            q, scale = op.Mul(q, self.constant(scale, wide)), 1.0
        q.dtype = wide
        problem = _Problem(q, k, v, mask if bias is None else bias, is_causal, bias is not None, any_key, scale, float(o.softcap), keys)
        o.require_all()
        return problem

    def any_true(self, mask: _Value) -> _Value:
        # Reduce integers, because some runtimes cannot reduce booleans.
        number = self.op.Cast(mask, to=self.ir.DataType.INT32)
        return self.op.Cast(self.op.ReduceMax(number, self.constant([-1]), keepdims=1), to=self.ir.DataType.BOOL)

    def key_sets(self, q: _Value, k: _Value, o: Options) -> list[_Value]:
        """All boolean masks except causal and window; True = may attend. They broadcast to [*,N,T,S]."""
        op = self.op
        masks = [] if o.attend is None else [o.attend]
        if o.block is not None:
            masks.append(op.Not(o.block))
        if o.attend_keys is not None:
            masks.append(self.unsqueeze(o.attend_keys, -3, -2))
        if o.block_keys is not None:
            masks.append(op.Not(self.unsqueeze(o.block_keys, -3, -2)))
        for bounds, compare in ((o.key_starts, op.GreaterOrEqual), (o.key_lengths, op.Less)):
            if bounds is not None:
                of_queries = len(bounds.shape) > self.rank - 3
                masks.append(compare(self.arange(k, -2), self.unsqueeze(self.int64(bounds), *((-3, -1) if of_queries else (-3, -2, -1)))))
        if o.query_offsets is not None:
            of_query, of_key = (self.unsqueeze(self.document(x, offsets), dim) for x, offsets, dim in ((q, o.query_offsets, 1), (k, _key_offsets(o), 0)))
            masks.append(op.Equal(of_query, of_key))
        return masks

    def document(self, x: _Value, offsets: _Value) -> _Value:
        """int64 [T]: the number of each position's document, which is the number of documents that end at or before the position."""
        ends = self.op.Slice(self.int64(offsets), self.constant([1]), self.constant([np.iinfo(np.int64).max]))
        ended = self.op.GreaterOrEqual(self.unsqueeze(self.arange(x, -2), 1), self.unsqueeze(ends, 0))
        return self.op.ReduceSum(self.int64(ended), self.constant([1]), keepdims=0)

    def distance(self, q: _Value, k: _Value, o: Options, offset: int | _Value | None) -> _Value:
        """The distance ``s - (t + offset)`` of each query and key: int64 [T,S], or [*,1,T,S] with diagonal_offsets. An offset of None means S - T. With
        documents, positions are counted from the start of the query's document."""
        op = self.op
        t, s = self.unsqueeze(self.arange(q, -2), 1), self.unsqueeze(self.arange(k, -2), 0)
        if o.query_offsets is not None:
            document = self.document(q, o.query_offsets)
            last = op.Add(document, self.constant(1))
            of_queries, of_keys = self.int64(o.query_offsets), self.int64(_key_offsets(o))
            q0, q1, k0, k1 = (self.unsqueeze(op.Gather(x, i), 1) for x in (of_queries, of_keys) for i in (document, last))
            shift = op.Sub(op.Sub(k1, k0), op.Sub(q1, q0)) if offset is None else self.integer(offset)
            return op.Sub(op.Sub(s, k0), op.Add(op.Sub(t, q0), shift))
        if o.diagonal_offsets is not None:
            shift = self.unsqueeze(self.int64(o.diagonal_offsets), -3, -2, -1)
        elif offset is None:
            shift = op.Sub(self.extent(k, -2), self.extent(q, -2))
        else:
            shift = self.integer(offset)
        return op.Sub(s, op.Add(t, shift))

    def diagonals(self, q: _Value, k: _Value, o: Options) -> list[_Value]:
        """The boolean masks of causal and window."""
        op = self.op
        causal = o.causal is not None or o.offset is not None
        if not causal and o.window_left is None and o.window_right is None:
            return []
        x = self.distance(q, k, o, _causal_offset(o))
        masks = [op.LessOrEqual(x, self.constant(0))] if causal else []
        if o.window_left is not None:
            masks.append(op.GreaterOrEqual(x, op.Neg(self.integer(o.window_left))))
        if o.window_right is not None:
            masks.append(op.LessOrEqual(x, self.integer(o.window_right)))
        return masks

    def bias(self, q: _Value, k: _Value, o: Options, wide: Any) -> _Value | None:
        op = self.op
        if o.bias is not None:
            return op.Cast(o.bias, to=wide)
        if o.slopes is None and o.table is None:
            return None
        x = self.distance(q, k, o, _causal_offset(o) if o.causal is not None or o.offset is not None else o.diagonal)
        total = None
        if o.slopes is not None:
            slopes = self.unsqueeze(op.Cast(o.slopes, to=wide), 1, 2)
            total = op.Neg(op.Mul(slopes, op.Cast(op.Abs(x), to=wide)))
        if o.table is not None:
            longest = max(o.max_distance, o.table.shape[1])
            buckets = [polyhead.relative_bucket(d, o.table.shape[1], bidirectional=o.bidirectional, max_distance=o.max_distance) for d in range(-longest, longest + 1)]
            place = op.Add(op.Min(op.Max(x, self.constant(-longest)), self.constant(longest)), self.constant(longest))
            bucket = op.Gather(self.constant(buckets), place)
            of_table = op.Gather(op.Cast(o.table, to=wide), bucket, axis=1)  # [N,T,S], or [N,*,1,T,S]
            if o.diagonal_offsets is not None:
                lead = self.rank - 3
                of_table = self.squeeze(op.Transpose(of_table, perm=[*range(1, lead + 1), 0, lead + 1, lead + 2, lead + 3]), lead + 1)
            total = of_table if total is None else op.Add(total, of_table)
        return total

    def with_sink(self, q: _Value, keys: _Value, sink: _Value, mask: _Value | None, bias: _Value | None, wide: Any) -> _Value:
        """A floating mask [*,N,T,S + 1] for a problem to which a key of zeros is appended. The last column of the mask is the sink, so the score of the
        appended key is the sink."""
        op = self.op
        zero = self.constant(0, wide)
        if mask is not None:
            bias = op.Where(mask, zero if bias is None else bias, self.constant(-np.inf, wide))
        rows = op.Shape(q, start=0, end=self.rank - 1)
        bias = op.Expand(zero if bias is None else bias, op.Concat(rows, keys, axis=0))
        sink = self.unsqueeze(op.Cast(sink, to=wide), *((1, 2) if len(sink.shape) == 1 else (-1,)))
        return op.Concat(bias, op.Expand(sink, op.Concat(rows, self.constant([1]), axis=0)), axis=-1)

    def outputs(self, problem: _Problem, **attributes: Any) -> tuple[_Value, _Value]:
        """Makes a node Attention. Returns its first output Y, and its fourth output, which is the scores or the attention weights. Both get the leading
        dimensions and the dtype of q."""
        if problem.is_causal:
            attributes["is_causal"] = 1
        if problem.q.dtype == self.ir.DataType.DOUBLE:
            attributes["softmax_precision"] = int(self.ir.DataType.DOUBLE)
        tensors = (self.in_4(x) for x in (problem.q, problem.k, problem.v))
        y, _, _, qk = self.op.Attention(*tensors, self.mask_in_4(problem), scale=problem.scale, **attributes)
        if self.rank != 4:
            y = self.op.Reshape(y, self.op.Concat(self.op.Shape(problem.q, start=0, end=self.rank - 1), self.extent(problem.v, -1), axis=0))
        # Reshape even if x has four dimensions, because onnx 1.23 infers an extent of 0 for S otherwise.
        qk = self.op.Reshape(qk, self.op.Concat(self.op.Shape(problem.q, start=0, end=self.rank - 1), self.extent(problem.k, -2), axis=0))
        return y, qk

    def rows_with_keys(self, problem: _Problem, x: _Value, otherwise: float) -> _Value:
        return x if problem.any_key is None else self.op.Where(problem.any_key, x, self.op.CastLike(self.constant(otherwise, self.ir.DataType.FLOAT), x))

    def output(self, problem: _Problem) -> _Value:
        if problem.softcap > 0 and problem.mask is not None:
            y = self.times_values(self.op.Softmax(self.scores(problem), axis=-1), problem)
        else:
            y, _ = self.outputs(problem, softcap=problem.softcap)
        return self.op.Cast(self.rows_with_keys(problem, y, 0.0), to=self.result)

    def weights(self, problem: _Problem) -> _Value:
        if problem.softcap > 0 and problem.mask is not None:
            p = self.op.Softmax(self.scores(problem), axis=-1)
        else:
            _, p = self.outputs(problem, softcap=problem.softcap, qk_matmul_output_mode=3)
        if problem.keys is not None:
            p = self.op.Slice(p, self.constant([0]), problem.keys, self.constant([-1]))
        return self.op.Cast(self.rows_with_keys(problem, p, 0.0), to=self.result)

    def scores(self, problem: _Problem) -> _Value:
        """The scores [*,N,T,S] after softcap and mask. In `problem`, causal must be part of the mask, not is_causal."""
        op, wide = self.op, problem.q.dtype
        _, score = self.outputs(problem, qk_matmul_output_mode=0)  # q k^T times the scale
        if problem.softcap > 0:
            softcap = self.constant(problem.softcap, wide)
            score = op.Mul(op.Tanh(op.Div(score, softcap)), softcap)
        if problem.mask is None:
            return score
        return op.Add(score, problem.mask) if problem.is_floating else op.Where(problem.mask, score, self.constant(-np.inf, wide))

    def times_values(self, p: _Value, problem: _Problem) -> _Value:
        """Computes p v. For the product, the query heads that share a value head are stacked along the queries."""
        op = self.op
        before = op.Shape(problem.v, start=0, end=self.rank - 2)
        stacked = op.Reshape(p, op.Concat(before, self.constant([-1]), self.extent(problem.k, -2), axis=0))
        return op.Reshape(op.MatMul(stacked, problem.v), op.Concat(op.Shape(problem.q, start=0, end=self.rank - 1), self.extent(problem.v, -1), axis=0))

    def lse(self, problem: _Problem) -> _Value:
        """Computes lse [*,N,T]. `problem` must have the dtype of lse, and causal as part of the mask, not as is_causal."""
        lse = self.op.ReduceLogSumExp(self.scores(problem), self.constant([-1]), keepdims=1)
        return self.squeeze(self.rows_with_keys(problem, lse, -np.inf), -1)

    def in_4(self, x: _Value) -> _Value:
        """Reshapes x to [B,N,T,H], the only rank that the operator takes."""
        if self.rank == 4:
            return x
        if self.rank == 3:
            return self.unsqueeze(x, 0)
        return self.op.Reshape(x, self.op.Concat(self.constant([-1]), self.op.Shape(x, start=self.rank - 3, end=self.rank), axis=0))

    def mask_in_4(self, problem: _Problem) -> _Value | None:
        """The mask as [B,N,T,S], where B or N is 1 if sequences or heads share the mask."""
        mask, op = problem.mask, self.op
        if mask is None:
            return None
        pairs = (self.extent(problem.q, -2), self.extent(problem.k, -2))
        if self.rank <= 4:
            return op.Expand(mask, op.Concat(self.constant([1, 1]), *pairs, axis=0))
        lead = op.Shape(problem.q, start=0, end=self.rank - 3)
        mask = op.Expand(mask, op.Concat(lead, self.constant([1]), *pairs, axis=0))
        return op.Reshape(mask, op.Concat(self.constant([-1]), op.Shape(mask, start=self.rank - 3, end=self.rank), axis=0))


class _Reads:
    """The options of a call, which record which of them are read. If an option is given but never read, it has no translation. Then the export must fail,
    instead of ignoring the option."""

    def __init__(self, options: Options) -> None:
        # These names count as read from the start: seed and attention_weights, because they are no part of the problem; and the others, because they are
        # translated but read only where they have an effect.
        self._options, self._read = options, {"seed", "attention_weights", "precision", "empty_rows", "bidirectional", "max_distance"}

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._options, name)

    def require_all(self) -> None:
        for name, value in zip(Options._fields, self._options):
            default = Options._field_defaults[name]
            if value is not default and (default is None or value != default) and name not in self._read:
                raise NotImplementedError(f"polyhead: {name} is given, and its export to ONNX's Attention is not implemented")


def _refuse(q: _Value, k: _Value, v: _Value, o: Options) -> None:
    def refuse(what: str) -> NoReturn:
        raise NotImplementedError(f"polyhead: {what}")

    if o.dropout > 0:
        refuse(f"dropout is {o.dropout}, and ONNX's Attention has none; export model.eval()")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if any(extent == 0 for extent in x.shape):
            refuse(f"{name} is {list(x.shape)}; ONNX's Attention has no extents of 0")
    if o.blocks is not None:
        refuse("blocks are given, and ONNX's Attention has no lists of blocks; export with the mask attend")
    if o.table is not None and o.max_distance > 2**20:
        refuse(f"max_distance is {o.max_distance}; it may be at most {2**20}, because the graph contains the bucket of each distance")
    if o.scale is not None and not isinstance(o.scale, (int, float)):
        refuse("scale depends on the input; in ONNX's Attention it is a constant")


def _causal_offset(o: Options) -> int | _Value | None:
    """The offset of the causal diagonal; None means S - T."""
    return 0 if o.causal == "top_left" else o.offset


def _key_offsets(o: Options) -> _Value:
    return o.query_offsets if o.key_offsets is None else o.key_offsets
