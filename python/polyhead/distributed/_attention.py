"""Attention on tensors of torch over several ranks, with gradients."""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _core
from .._arguments import wanted_fields
from .._options import Unpack, annotations_of, refuse, require_flags, takes
from ..torch import _eager, _ops
from ..torch import _functional as core
from ..torch._attention import DEFAULTS, FormulaOptions, read_options, require_tensors
from ..torch._rules import keywords
from ._communicator import Group, OneRow, Plan, Settings, SliceOrder, communicator_of, ranks_of
from ._transport import Communicator

_OPTIONS = annotations_of(FormulaOptions)


class _Call(NamedTuple):
    """The arguments other than q, k and v, which a forward pass and its backward pass share."""

    communicator: Communicator
    settings: Settings
    given: dict[str, Any]  # options of `polyhead.sdpa`
    names: tuple[str, ...]  # names of the options whose values are tensors
    wanted: tuple[str, ...]  # names of the options whose gradients are wanted


class _Attention(torch.autograd.Function):
    """Returns out and lse."""

    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = _options_of(call, tensors)
        ranks = ranks_of("attention", call.communicator)
        out, lse = _core.distributed_sdpa(ranks, call.communicator, _plain(q), _plain(k), _plain(v), given, call.settings, True, None, "bias" in call.wanted, "sink" in call.wanted)
        ctx.call = call._replace(given=_eager._without_tensors(call.given, call.names))
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        if d_lse is not None or d_out is None:
            raise NotImplementedError("attention: lse over several ranks has no gradient; the loss may depend on it through lse.detach() alone")
        _, d_q, d_k, d_v, *others = ctx.needs_input_grad
        wanted = wanted_fields([("q", d_q), ("k", d_k), ("v", d_v), *zip(call.names, others)])
        given = _options_of(call, tensors)
        found = _core.distributed_sdpa_backward(
            ranks_of("attention", call.communicator), call.communicator, _plain(q), _plain(k), _plain(v), _plain(out), _plain(lse), _plain(d_out), given,
            call.settings, None, wanted,
        )  # fmt: skip
        return None, *found[:3], *_eager._in_order(call.names, (*found, found[5]))


def _options_of(call: _Call, tensors: tuple[Tensor, ...] | list[Tensor]) -> dict[str, Any]:
    return _eager._with_tensors(call.given, call.names, [_plain(x) for x in tensors]) | {"num_threads": _ops.thread_limit()}


def _plain(tensor: Tensor) -> Tensor:
    """A view of the tensor without requires_grad, because the bindings refuse tensors that require gradients."""
    return tensor.detach().resolve_neg()


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group = None, *, order: SliceOrder = "contiguous", plan: Plan = None, timeout: float = 30.0, one_row: OneRow = None,
    ranks_per_machine: int | None = None, seed: int | None = None, return_lse: Literal[False] = False, **options: Unpack[FormulaOptions],
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group = None, *, order: SliceOrder = "contiguous", plan: Plan = None, timeout: float = 30.0, one_row: OneRow = None,
    ranks_per_machine: int | None = None, seed: int | None = None, return_lse: Literal[True], **options: Unpack[FormulaOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group = None, *, order: SliceOrder = "contiguous", plan: Plan = None, timeout: float = 30.0, one_row: OneRow = None,
    ranks_per_machine: int | None = None, seed: int | None = None, return_lse: bool = False, **options: Unpack[FormulaOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@takes(FormulaOptions, "distributed.attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    *,
    order: SliceOrder = "contiguous",
    plan: Plan = None,
    timeout: float = 30.0,
    one_row: OneRow = None,
    ranks_per_machine: int | None = None,
    seed: int | None = None,
    return_lse: bool = False,
    **options: Unpack[FormulaOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """`polyhead.torch.attention` of one sequence that several ranks compute together, with gradients (ring attention, Liu et al. 2023, arXiv 2310.01889;
    DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509). All ranks call it, each with its own slice of the sequence.

    ::

        dist.init_process_group("gloo")                      # torchrun --nproc-per-node 4
        x = take_slice(whole, -2, "zigzag", dist.get_rank(), dist.get_world_size())
        attention(x, x, x, order="zigzag", causal="top_left").square().sum().backward()

    q, k, v, bias, sink and a relative_bias have gradients: the gradients of the sum of all ranks' losses. The same tensors must require gradients on all ranks.
    All ranks must run the backward pass too, because it exchanges messages. There are no second derivatives and no forward mode. torch.compile runs the call
    outside of its graph.

    Args:
        q: ``[*,N,T_r,H]``, the rank's T_r queries: float32, float64, float16 or bfloat16, on the CPU.
        k: ``[*,K,S_r,H]``, the rank's S_r keys, in the dtype of q. In the texts below, T and S are the numbers of queries and keys of the whole sequence.
        v: ``[*,K,S_r,V]``, in the dtype of q.
        group: a ProcessGroup of torch.distributed with a backend for the CPU (gloo), None for the default one, or a `Communicator`.
        order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`. If the backward pass will need one_row and one_row is
            missing, this call already raises the error.
        seed: seed of dropout, the same on all ranks. None: torch's generator draws a seed on every rank, and all ranks use the seed of rank 0.
        return_lse: also return lse ``[*,N,T_r]``, without a gradient.
        attend, block: bool, broadcast to ``[*,N,T_r,S]``. attend: True = may attend. block: True = may not attend. At most one of the two.
        attend_keys, block_keys: bool, ``[*,S]``, the same on all ranks. attend_keys: True = all queries may attend to the key. block_keys: True = no query may
            attend to the key.
        bias: broadcasts to ``[*,N,T_r,S]``, in the dtype of q. A bias with a row for each of the rank's queries belongs to this rank alone. A bias with one row
            is shared: all ranks must give the same values. The gradient of a shared bias is already summed over the ranks, so do not sum it again.
        key_starts, key_lengths: integers, ``[*]`` per sequence, the same on all ranks, or ``[*,T_r]`` per query; they count keys of the whole sequence.
        sink: ``[N]``, shared by all ranks, or an array that broadcasts to ``[*,N,T_r]``. For a shared sink every rank gets the sum of all ranks' gradients.
        relative_bias: a `polyhead.RelativeBias` of tensors, shared by all ranks; every rank gets the sum of all ranks' gradients.
        diagonal_offsets: integers ``[*]``, as in `polyhead.sdpa`, for the whole sequence.
        query_offsets, key_offsets: integers ``[D+1]``, as in `polyhead.sdpa`, for the whole sequence.
        causal, window: as in `polyhead.torch.attention`, for the whole sequence.
        dropout: probability in ``[0, 1]`` that an attention weight is dropped. The dropout bits are those of a call with the same seed and the whole sequence
            on one machine.
        scale, softcap, precision: as in `polyhead.torch.attention`.
        blocks, block_size: as in `polyhead.torch.attention`; not supported over several ranks: they raise a ValueError.
        empty_rows: as in `polyhead.torch.attention`; with a ring only ``"zero"``.

    Returns:
        out ``[*,N,T_r,V]``; with return_lse ``(out, lse)``.

    Raises:
        ValueError: for the same reasons as `polyhead.torch.attention`; also if ranks give different sizes or options. Then every rank raises the error, and its
            message names the rank that differs. Later calls work.
        TypeError: an argument with a wrong type, device or dtype; a subclass of Tensor such as DTensor (pass its local part).
        ConnectionError: a rank is silent, has ended, or cannot be reached; the message names the rank. Later calls with this group raise a ValueError.
        NotImplementedError: a gradient that flows through lse.
    """
    for name in options:
        if name not in _OPTIONS:
            refuse("distributed.attention", name, inspect.signature(attention))
    require_flags("attention", return_lse=return_lse)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"attention: seed is of type {type(seed).__name__}; it must be an int or None")
    out, lse = _attention(q, k, v, communicator_of("attention", group), Settings(order, plan, timeout, one_row, ranks_per_machine), seed, DEFAULTS | options)
    return (out, lse) if return_lse else out


@torch.compiler.disable(reason="ranks exchange messages during the call")  # type: ignore[untyped-decorator]
def _attention(q: Tensor, k: Tensor, v: Tensor, communicator: Communicator, settings: Settings, seed: int | None, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    require_tensors(q, k, v, options)
    q, k, v, options["bias"] = core.autocast(q, k, v, options.get("bias"))  # type: ignore[assignment]
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; over several ranks they must have one dtype")
    given = keywords(q, read_options("attention", q, **options))
    given = {name: value for name, value in given.items() if name != "seed"}
    relative = given.get("relative_bias")
    every = given if relative is None else given | {"slopes": relative.slopes, "table": relative.table}
    tensors = {name: value for name, value in every.items() if isinstance(value, Tensor)}
    for name, tensor in ({"q": q, "k": k, "v": v} | tensors).items():
        if type(tensor) not in _eager.PLAIN:
            raise TypeError(f"attention: {name} is a {type(tensor).__name__}; it must be a torch.Tensor itself, such as its local part")
    if given["dropout"] > 0:
        if seed is None:
            # Every rank draws a seed, although only that of rank 0 is used: so the generators of all ranks stay in the same state.
            drawn = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
            seed = _core.first_number(ranks_of("attention", communicator), communicator, drawn, settings.timeout)
        given["seed"] = seed
    wanted = tuple(name for name, tensor in tensors.items() if torch.is_grad_enabled() and tensor.requires_grad)
    call = _Call(communicator, settings.on(communicator), given, tuple(tensors), wanted)
    result: tuple[Tensor, Tensor] = _Attention.apply(call, q, k, v, *tensors.values())  # type: ignore[no-untyped-call]
    return result

