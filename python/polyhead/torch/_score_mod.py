"""Attention with a score_mod, which has the signature of FlexAttention's. Each call traces the score_mod once, differentiates it, and runs it by an interpreter in the
kernels. If llvmlite is installed, the interpreter calls compiled functions for runs of arithmetic; no compiler is needed otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _C
from torch.autograd import Function
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from .. import _core
from .._arguments import wanted_fields
from .._score_program import OPS, Trace, gradient_sums, program_of, slope_of
from .._score_runs import compile_runs, score_compiler
from . import _eager
from . import _functional as core
from ._ops import _like_q, _on_views, _tensor, _view
from ._rules import Options
from ._score_trace import trace_score_mod


_NO_BLOCKS = 1 << 30  # BLOCK_SIZE of the BlockMask that FlexAttention makes for no mask


def attend_of(block_mask: Any, q: Tensor, k: Tensor) -> Tensor | None:
    """The boolean mask that a BlockMask describes: True for pairs in its blocks for which mask_mod is true. It takes one byte for each pair. None if it masks nothing."""
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"attention: block_mask is of type {type(block_mask).__name__}; it must be a BlockMask of torch.nn.attention.flex_attention or None")
    if block_mask.mask_mod is noop_mask and min(block_mask.BLOCK_SIZE) >= _NO_BLOCKS and bool((block_mask.kv_num_blocks == 1).all()):
        return None  # FlexAttention makes this BlockMask when none is given; its seq_lengths are (1, 1) and fit all lengths
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    queries, keys = q.shape[-2], k.shape[-2]
    if tuple(block_mask.seq_lengths) != (queries, keys):
        raise ValueError(f"attention: block_mask is for {block_mask.seq_lengths[0]} queries and {block_mask.seq_lengths[1]} keys; T is {queries} and S is {keys}")
    if batch not in (1, q.shape[0]) or heads not in (1, q.shape[-3]) or q.dim() != 4:
        raise ValueError(f"attention: block_mask is for B = {batch} and H = {heads}; q is {list(q.shape)}")
    rows, columns = block_mask.BLOCK_SIZE
    # FlexAttention does not call mask_mod for full blocks, and neither does polyhead, because calls of mask_mod for all pairs would take longer than the attention.
    partial = _blocks("kv", block_mask.kv_num_blocks, block_mask.kv_indices, queries, keys, rows, columns)
    counts, indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    full = torch.zeros_like(partial) if counts is None or indices is None else _blocks("full_kv", counts, indices, queries, keys, rows, columns)
    if counts is not None and full.shape != partial.shape:
        raise ValueError(f"attention: full_kv_num_blocks of block_mask is {list(counts.shape)}; it must be {list(block_mask.kv_num_blocks.shape)}, as kv_num_blocks")
    attend = full[..., :, None, :, None].expand(-1, -1, -1, rows, -1, columns).contiguous()
    places = partial.nonzero()
    if len(places) > 0:
        b, h, i, j = places.unbind(-1)
        q_idx, kv_idx = ((first[:, None] * size + torch.arange(size)).clamp(max=extent - 1) for first, size, extent in ((i, rows, queries), (j, columns, keys)))
        of_row = torch.vmap(block_mask.mask_mod, (None, None, None, 0))
        attend[b, h, i, :, j, :] = torch.vmap(torch.vmap(of_row, (None, None, 0, None)))(b, h, q_idx, kv_idx).bool()
    return attend.flatten(-2).flatten(-3, -2)[..., :queries, :keys]


def _blocks(name: str, counts: Tensor, indices: Tensor, queries: int, keys: int, rows: int, columns: int) -> Tensor:
    """Returns lists of blocks (`name` kv or full_kv) as a boolean tensor ``[B,H,blocks of queries, blocks of keys]``."""
    of_queries, of_keys = -(-queries // rows), -(-keys // columns)
    if indices.shape[:-1] != counts.shape or counts.shape[-1] != of_queries:
        raise ValueError(
            f"attention: {name}_num_blocks of block_mask has the shape {list(counts.shape)} and {name}_indices {list(indices.shape)}; {queries} queries in blocks of {rows} "
            f"need [B,H,{of_queries}] and [B,H,{of_queries},length]"
        )
    listed = torch.arange(indices.shape[-1]) < counts[..., None]
    used = indices[listed]
    if used.numel() > 0 and not 0 <= int(used.min()) <= int(used.max()) < of_keys:
        raise ValueError(f"attention: {name}_indices of block_mask has key blocks from {int(used.min())} to {int(used.max())}; {keys} keys in blocks of {columns} are the blocks 0 to {of_keys - 1}")
    if counts.numel() > 0 and not 0 <= int(counts.min()) <= int(counts.max()) <= indices.shape[-1]:
        raise ValueError(f"attention: {name}_num_blocks of block_mask has numbers from {int(counts.min())} to {int(counts.max())}; the lists in {name}_indices have places for 0 to {indices.shape[-1]} blocks")
    blocks = torch.zeros(*counts.shape[:2], of_queries, of_keys + 1, dtype=torch.bool)  # the last column takes the entries that are no block
    blocks.scatter_(-1, torch.where(listed, indices, blocks.shape[-1] - 1).long(), True)
    return blocks[..., :-1]


class _Program:
    """A traced score_mod, and where the backward pass's sums hold the gradients of its captured tensors."""

    def __init__(self, trace: Trace, result: int, heads: int, differentiate: bool) -> None:
        self.captured = trace.tables
        derivatives = trace.gradients(result) if differentiate else {}
        wanted = [differentiate and tensor.requires_grad for tensor in trace.tables]
        sums = gradient_sums(trace, derivatives, [tuple(tensor.shape) for tensor in trace.tables], wanted, heads)
        slope = slope_of(trace, derivatives) if differentiate else -1
        self.places = sums.places
        instructions, numbers = program_of(trace, result, slope, sums, name="score_mod", differentiated=differentiate)
        rows = [(OPS.index(op), *rest) for op, *rest in instructions]
        gradients = [(numbers[load], numbers[derivative], first, strides) for load, derivative, first, strides in sums.rows]
        tables = [self._table(tensor) for tensor in trace.tables]
        self.instructions = len(rows)
        self.float64 = trace.float64
        self.code = _core.ScoreProgram(rows, tables, numbers[result], numbers.get(slope, -1), gradients, sums.total)
        if compile_runs(self.code.interpreted_runs(trace.float64)):
            self.code = _core.ScoreProgram(rows, tables, numbers[result], numbers.get(slope, -1), gradients, sums.total)

    @staticmethod
    def _table(tensor: Tensor) -> Any:
        tensor = tensor.detach().resolve_neg()
        if tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.to(torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else torch.float64)
        return tensor.numpy()

    def gradient_of(self, number: int, sums: Tensor) -> Tensor | None:
        first, count, per_head = self.places[number]
        if first < 0:
            return None
        tensor = self.captured[number]
        if tensor.numel() == 0:
            return torch.zeros_like(tensor)
        own = sums[:, first : first + count]
        return (own if per_head else own.sum(0)).reshape(tensor.shape).to(tensor.dtype)


class _Once(Function):
    """Returns gradients as if they were recorded functions of the inputs. Differentiating them raises NotImplementedError; otherwise it would give wrong zeros."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("attention: a score_mod has no second derivative")


def _forward(program: _Program, options: Options, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    given = _on_views(q, options)
    given_out = None if q.is_contiguous() else _like_q(q.detach(), v.size(-1))
    out, lse, weights = _core.score_forward(program.code, _view(q), _view(k), _view(v), given, options.attention_weights, _view(given_out))
    return _tensor(out) if given_out is None else given_out, _tensor(lse), q.new_empty(0) if weights is None else _tensor(weights)


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, program: _Program, options: Options, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None, *captured: Tensor) -> Any:
        out, lse, weights = _forward(program, options, q, k, v)
        tensors = {name: x for name, x in options._asdict().items() if isinstance(x, Tensor) and name not in ("bias", "sink")}
        ctx.program, ctx.names = program, tuple(tensors)
        without: dict[str, Any] = dict.fromkeys(tensors)
        ctx.options = options._replace(bias=None, sink=None, **without)
        # torch saves the tensors, masks included, because torch detects later writes to saved tensors.
        ctx.save_for_backward(q, k, v, bias, sink, out, lse, *tensors.values(), *captured)
        ctx.set_materialize_grads(False)
        return out, lse, weights

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_weights: Tensor | None) -> Any:
        if d_lse is not None or d_weights is not None:
            raise NotImplementedError(f"attention: polyhead has no gradient of {'lse' if d_lse is not None else 'attention weights'} with a score_mod")
        q, k, v, bias, sink, out, lse, *rest = ctx.saved_tensors
        captured = rest[len(ctx.names) :]
        options = ctx.options._replace(bias=bias, sink=sink, **dict(zip(ctx.names, rest)))
        nothing = (None,) * (7 + len(captured))
        if d_out is None:
            return nothing
        wanted = ctx.needs_input_grad
        found = _core.score_backward(
            ctx.program.code, _view(q), _view(k), _view(v), _view(out), _view(lse), _view(d_out), _on_views(q, options), wanted_fields(zip(("q", "k", "v", "bias", "sink"), wanted[2:7])), any(wanted[7:])
        )
        *of_inputs, _, sums = (None if x is None else _tensor(x) for x in found)
        of_captured = [ctx.program.gradient_of(i, sums) if want else None for i, want in enumerate(wanted[7:])]
        results = [*of_inputs, *of_captured]
        if torch.is_grad_enabled():  # the caller passed create_graph
            recorded = iter(_Once.apply([x for x in results if x is not None], d_out, q, k, v, bias, sink, *captured))  # type: ignore[no-untyped-call]
            results = [None if x is None else next(recorded) for x in results]
        return (None, None, *results)


def _require_exact(tensor: Tensor, bits: int) -> None:
    """Raises ValueError if the precision in which a score_mod is computed cannot represent an integer of the captured tensor."""
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.numel() == 0:
        return
    for value in torch.aminmax(tensor):
        if abs(int(value)) > 2**bits:
            raise ValueError(f"attention: score_mod captures an integer tensor with {int(value)}; integers up to 2^{bits} = {2**bits} are exact in the dtype of q")


def attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Callable[..., Any], options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """``(out, lse, attention weights or [0])``. options: with the seed of dropout."""
    if not callable(score_mod):
        raise TypeError(f"attention: score_mod is of type {type(score_mod).__name__}; it must be a function score_mod(score, b, h, q_idx, kv_idx)")
    if options.k_scale is not None or options.v_scale is not None:
        raise NotImplementedError("attention: score_mod is given with k_scale and v_scale; int8 keys have no score_mod")
    if options.empty_rows == "offset":
        raise NotImplementedError("attention: score_mod is given with empty_rows='offset'; polyhead does not compute the two together")
    for name, tensor in (("q", q), ("k", k), ("v", v), ("bias", options.bias), ("sink", options.sink), ("relative_bias.slopes", options.slopes), ("relative_bias.table", options.table)):
        if core.has_tangent(tensor):
            raise NotImplementedError(f"attention: {name} is a dual tensor, and a score_mod has no forward mode")
    trace, result = trace_score_mod(score_mod, float64=q.dtype == torch.float64)
    recorded = torch.is_grad_enabled()
    for number in trace.integers:
        if int(torch.tensor(float(number), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)) != number:
            raise ValueError(f"attention: score_mod uses the integer {number}, which the precision of the scores cannot represent; compute in float64")
    for tensor in trace.tables:
        if tensor.device.type != "cpu":
            raise TypeError(f"attention: score_mod captures a tensor on {tensor.device}; polyhead computes on the CPU")
        if core.has_tangent(tensor):
            raise NotImplementedError("attention: score_mod captures a dual tensor, and a score_mod has no forward mode")
        _require_exact(tensor, 53 if q.dtype == torch.float64 else 24)
    for name, tensor in (("relative_bias.slopes", options.slopes), ("relative_bias.table", options.table)):
        if recorded and tensor is not None and tensor.requires_grad:
            raise NotImplementedError(f"attention: {name} requires grad, and a score_mod is given; use {name} inside of the score_mod, as a captured tensor, to get its gradient")
    inputs = (q, k, v, options.bias, options.sink, *trace.tables)
    differentiate = recorded and any(x is not None and x.requires_grad for x in inputs)
    program = _Program(trace, result, q.shape[-3], differentiate)
    for recorder in _eager.recorders:
        if threading.get_ident() == recorder._thread and _C._current_graph_task_id() == -1:
            recorder._miss("attention with a score_mod is not captured")
    if not differentiate and not _C._are_functorch_transforms_active():
        return _forward(program, options, q, k, v)  # a Function would take a few per cent of the time of a short call
    # The forward pass accepts keys and values of another dtype than q, but the backward pass needs one dtype, so convert all to float32 here.
    if differentiate and not q.dtype == k.dtype == v.dtype and q.dtype != torch.float64 and {k.dtype, v.dtype} <= {q.dtype, torch.float16, torch.bfloat16}:
        wide = {name: x.float() for name in ("bias", "sink", "slopes", "table") if (x := getattr(options, name)) is not None}
        options = options._replace(**wide)
        out, lse, weights = _Attention.apply(program, options, q.float(), k.float(), v.float(), options.bias, options.sink, *trace.tables)  # type: ignore[no-untyped-call]
        return out.to(q.dtype), lse, weights.to(q.dtype)
    return _Attention.apply(program, options, *inputs)  # type: ignore[no-any-return,no-untyped-call]


def explain_score_mod(score_mod: Callable[..., Any], *, dtype: torch.dtype = torch.float32, heads: int = 1, gradients: bool = True) -> str:
    """Says how `attention` computes a ``score_mod`` for q of this dtype: the number of its instructions, and how many runs of arithmetic are compiled or interpreted, and
    why. It compiles these runs, as `attention` does.

    Args:
        score_mod: the function ``score_mod(score, b, h, q_idx, kv_idx)``.
        dtype: dtype of q, which decides the precision of the scores.
        heads: number of query heads, which decides the gradients of captured tensors.
        gradients: whether to include the derivatives of the backward pass.

    Returns:
        A text of a few lines.

    Raises:
        NotImplementedError: score_mod uses an operation that polyhead cannot trace, or has too many instructions.
    """
    trace, result = trace_score_mod(score_mod, float64=dtype == torch.float64)
    before = score_compiler()
    program = _Program(trace, result, heads, gradients)
    after = score_compiler()
    runs, interpreted = len(program.code.runs(program.float64)), len(program.code.interpreted_runs(program.float64))
    text = f"score_mod: {program.instructions} instructions{' with derivatives' if gradients else ''}\nruns of arithmetic: {runs - interpreted} compiled, {interpreted} interpreted"
    if program.code.masks():
        text += "\nblocks of pairs that it masks by -inf are skipped"
    if after.functions > before.functions:
        text += f"\ncompiled now: {after.functions - before.functions} in {(after.seconds - before.seconds) * 1e3:.0f} ms"
    return text + f"\ncompiler: {after.name or f'none, because {after.reason}'}"
