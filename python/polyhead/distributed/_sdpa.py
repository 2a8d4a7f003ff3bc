"""Attention on arrays over several ranks: forward pass, backward pass, and a description of how the ranks divide the work."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, overload

from .. import _core
from .._attention import Gradients, wanted_gradients
from .._options import A, Array, SdpaOptions, Unpack, takes
from ._communicator import Group, OneRow, Plan, Settings, SliceOrder, communicator_of, ranks_of


@overload
def sdpa(
    q: A, k: Array, v: Array, group: Group = None, *, return_lse: Literal[False] = False, out: A | None = None, order: SliceOrder = "contiguous", plan: Plan = None,
    timeout: float = 30.0, one_row: OneRow = None, ranks_per_machine: int | None = None, **options: Unpack[SdpaOptions],
) -> A: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, group: Group = None, *, return_lse: Literal[True], out: A | None = None, order: SliceOrder = "contiguous", plan: Plan = None,
    timeout: float = 30.0, one_row: OneRow = None, ranks_per_machine: int | None = None, **options: Unpack[SdpaOptions],
) -> tuple[A, A]: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, group: Group = None, *, return_lse: bool = False, out: A | None = None, order: SliceOrder = "contiguous", plan: Plan = None,
    timeout: float = 30.0, one_row: OneRow = None, ranks_per_machine: int | None = None, **options: Unpack[SdpaOptions],
) -> A | tuple[A, A]: ...  # fmt: skip
@takes(SdpaOptions, "distributed.sdpa")
def sdpa(
    q: A,
    k: Array,
    v: Array,
    group: Group = None,
    *,
    return_lse: bool = False,
    out: A | None = None,
    order: SliceOrder = "contiguous",
    plan: Plan = None,
    timeout: float = 30.0,
    one_row: OneRow = None,
    ranks_per_machine: int | None = None,
    **options: Unpack[SdpaOptions],
) -> A | tuple[A, A]:
    """`polyhead.sdpa` of one sequence that several ranks compute together (ring attention, Liu et al. 2023, arXiv 2310.01889; DeepSpeed-Ulysses, Jacobs et al.
    2023, arXiv 2309.14509; both combined, Fang and Zhao 2024). All ranks call this function, each with its own slice of the sequence.

    Args:
        q: ``[*,N,T_r,H]``, the rank's T_r queries.
        k: ``[*,K,S_r,H]``, the rank's S_r keys. In the texts below, T and S are the numbers of queries and keys of the whole sequence.
        v: ``[*,K,S_r,V]``.
        group: a `Communicator`; a ProcessGroup of torch.distributed, or None for its default group.
        return_lse: also return lse ``[*,N,T_r]``.
        out: ``[*,N,T_r,V]``, memory for the result: written in place and returned.
        order: how the positions of queries and keys are divided, as in `slice_of`. ``"contiguous"``: slices of any lengths in the order of the ranks.
            ``"zigzag"``: exactly as `slice_of` cuts them.
        plan: ``(head_ranks, ring_ranks)``, whose product is the number of ranks: the ranks form groups of head_ranks consecutive ranks. The ranks of a group
            divide the heads among themselves, and keys are sent around the ring of groups. None: the sizes decide; `explain` says which plan is chosen and why.
        timeout: how many seconds a rank may be silent. If a rank has to compute before it can answer, it has more time: 4 times the time that its work would
            take on this rank is added.
        one_row: needed if every rank has one query, and a bias or sink has one row. ``"own"``: the row belongs to the rank's query. ``"shared"``: all ranks
            give the same row. Only the gradient differs. `sdpa_backward` raises an error if one_row is needed and missing.
        ranks_per_machine: the number of ranks on each machine. It only affects the choice of the plan: heads are divided only among ranks of one machine. None:
            torchrun's number for torch's default group, else 1.
        attend, block, bias, dropout_keep: broadcast to ``[*,N,T_r,S]``: the rank's queries and all keys. An array with one row instead of T_r is shared: all ranks must
            give the same values.
        attend_keys, block_keys: ``[*,S]``, for the keys of the whole sequence; the same on all ranks.
        key_starts, key_lengths: ``[*]``, or ``[*,T_r]`` for the rank's queries; they count keys of the whole sequence.
        sink: ``[N]``, shared by all ranks, or an array that broadcasts to ``[*,N,T_r]``.
        causal, window, diagonal_offsets, query_offsets, key_offsets, relative_bias: as for the whole sequence on one machine; the same on all ranks.
        scale, softcap, dropout, seed, precision: as given to `polyhead.sdpa`; the same on all ranks. The dropout bits are the same as on one machine.
        backend, num_threads: as given to `polyhead.sdpa`; they may differ between ranks.
        blocks, block_size: as given to `polyhead.sdpa`; not supported over several ranks: they raise a ValueError.
        empty_rows: as given to `polyhead.sdpa`; with a ring only ``"zero"``.

    Returns:
        out ``[*,N,T_r,V]``; with return_lse ``(out, lse)``. Without a ring, the results have the same bits as on one machine. With a ring, they differ from those by
        float32 rounding, and are the same from run to run; bfloat16 and float16 are converted to float32, and results are rounded once.

    Raises:
        ValueError, TypeError: for the same reasons as `polyhead.sdpa`; also for int8 keys, and if ranks give different sizes or options. In the latter case all
            ranks raise the error, and later calls work. After a ConnectionError, every call with the same communicator raises a ValueError.
        ConnectionError: a rank is silent, has ended, or cannot be reached; the message names the rank.
    """
    where = "distributed.sdpa"
    communicator = communicator_of(where, group)
    settings = Settings(order, plan, timeout, one_row, ranks_per_machine).on(communicator)
    result, lse = _core.distributed_sdpa(ranks_of(where, communicator), communicator, q, k, v, options, settings, return_lse, out, False, False)
    return result if lse is None else (result, lse)


@takes(SdpaOptions, "distributed.sdpa_backward")
def sdpa_backward(
    q: A,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    d_out: Array,
    group: Group = None,
    *,
    gradients: Collection[str] = ("q", "k", "v", "bias", "sink", "relative_bias"),
    d_bias: A | None = None,
    order: SliceOrder = "contiguous",
    plan: Plan = None,
    timeout: float = 30.0,
    one_row: OneRow = None,
    ranks_per_machine: int | None = None,
    **options: Unpack[SdpaOptions],
) -> Gradients[A]:
    """Gradients of `polyhead.distributed.sdpa` (Dao et al. 2022, appendix B; over a ring, Liu et al. 2023, arXiv 2310.01889). All ranks call this function, each with
    its own slice of the sequence.

    Args:
        q: ``[*,N,T_r,H]``, the rank's queries.
        k: ``[*,K,S_r,H]``, the rank's keys.
        v: ``[*,K,S_r,V]``.
        out, lse: ``[*,N,T_r,V]`` and ``[*,N,T_r]``, as ``sdpa(..., return_lse=True)`` returned them.
        d_out: ``[*,N,T_r,V]``, the gradient of the sum of all ranks' losses with respect to out.
        gradients: which of ``"q"``, ``"k"``, ``"v"``, ``"bias"``, ``"sink"``, ``"relative_bias"`` to compute; the same on all ranks.
        d_bias: memory for the gradient of bias, shaped as bias: written in place and returned. Its elements may not share memory.
        group, order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`.
        options: as given to `polyhead.distributed.sdpa`.

    Returns:
        `Gradients`, each shaped as its input: the gradients of the rank's own q, k and v, and of the rank's own rows of bias and sink. For a bias, sink or
        relative_bias that the ranks share, every rank gets the sum of all ranks' gradients.

    Raises:
        ValueError, TypeError, ConnectionError: for the same reasons as `polyhead.distributed.sdpa`.
    """
    wanted = wanted_gradients(gradients, Gradients._fields)
    if d_bias is not None and "bias" not in gradients:
        raise ValueError(f"d_bias is given, and gradients is {gradients!r}; it must contain 'bias'")
    where = "distributed.sdpa_backward"
    communicator = communicator_of(where, group)
    settings = Settings(order, plan, timeout, one_row, ranks_per_machine).on(communicator)
    return Gradients(*_core.distributed_sdpa_backward(ranks_of(where, communicator), communicator, q, k, v, out, lse, d_out, options, settings, d_bias, wanted))


@takes(SdpaOptions, "distributed.explain")
def explain(
    q: Array,
    k: Array,
    v: Array,
    group: Group = None,
    *,
    order: SliceOrder = "contiguous",
    plan: Plan = None,
    timeout: float = 30.0,
    one_row: OneRow = None,
    ranks_per_machine: int | None = None,
    **options: Unpack[SdpaOptions],
) -> str:
    """Describes how the ranks would divide a call of `polyhead.distributed.sdpa` with these arguments among themselves: the plan and the reason for it, sizes
    and steps. All ranks must call this function. It computes nothing.

    Args:
        q, k, v: as given to `polyhead.distributed.sdpa`.
        group, order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`.
        options: as given to `polyhead.distributed.sdpa`.

    Returns:
        One fact per line.

    Raises:
        ValueError, TypeError, ConnectionError: for the same reasons as `polyhead.distributed.sdpa`.
    """
    where = "distributed.explain"
    communicator = communicator_of(where, group)
    settings = Settings(order, plan, timeout, one_row, ranks_per_machine).on(communicator)
    return _core.distributed_explain(ranks_of(where, communicator), communicator, q, k, v, options, settings)
