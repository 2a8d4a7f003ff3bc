"""Attention of arrays over several ranks: forward, backward, and the plan."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, overload

from .. import _core
from .._attention import Gradients, require_gradients
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
    """`polyhead.sdpa` of a sequence that several ranks share (ring attention, Liu et al. 2023, arXiv 2310.01889; DeepSpeed-Ulysses, Jacobs et al. 2023,
    arXiv 2309.14509; both together, Fang and Zhao 2024). All ranks call it, each with its own part.

    Args:
        q: ``[*,N,T_r,H]``, the rank's T_r queries.
        k: ``[*,K,S_r,H]``, the rank's S_r keys. T and S without a letter are those of the whole sequence.
        v: ``[*,K,S_r,V]``.
        group: a `Communicator`; a ProcessGroup of torch.distributed, or None for its default group.
        return_lse: also return lse ``[*,N,T_r]``.
        out: ``[*,N,T_r,V]``, written in place and returned.
        order: how the positions of queries and keys are divided, as in `slice_of`. ``"contiguous"``: slices of any lengths in the order of the ranks.
            ``"zigzag"``: exactly as `slice_of` cuts them.
        plan: ``(head_ranks, ring_ranks)``, whose product is the number of ranks: groups of head_ranks consecutive ranks share heads, and keys travel between
            groups. None: chosen by sizes; `explain` says how.
        timeout: seconds that a rank may be silent. If it has to compute before it can answer, 4 times the time that its work would take on this rank is added.
        one_row: the meaning of a bias or sink with one row if every rank has one query: the rank's ``"own"`` row, or one that is ``"shared"`` by all ranks.
            Only the gradient differs; `sdpa_backward` raises an error if it is needed and missing.
        ranks_per_machine: for the choice of the plan, which shares heads inside a machine only. None: torchrun's number for torch's default group, else 1.
        attend, block, bias, dropout_keep: broadcast to ``[*,N,T_r,S]``: the rank's queries and all keys. With one row instead of T_r they are
            shared: all ranks give the same.
        attend_keys, block_keys: ``[*,S]``, all keys; the same on all ranks.
        key_lengths: ``[*]``, or ``[*,T_r]`` of the rank's queries; lengths count in the whole sequence.
        sink: ``[N]``, shared by all ranks, or broadcasts to ``[*,N,T_r]``.
        causal, window, diagonal_offsets, query_offsets, key_offsets, relative_bias: as for the whole sequence on one machine; the same on all ranks.
            scale, softcap, dropout, seed and precision must be the same on all ranks, too.
        scale, softcap, dropout, seed, precision, backend, num_threads: as given to `polyhead.sdpa`. Dropout has the bits of one machine.
        blocks, block_size: as given to `polyhead.sdpa`; not supported over several ranks, a ValueError.
        empty_rows: as given to `polyhead.sdpa`; other than ``"zero"`` only without a ring.

    Returns:
        out ``[*,N,T_r,V]``; with return_lse ``(out, lse)``. Without a ring they have the bits of one machine. With a ring they agree with one machine within
        rounding of float32 and are the same from run to run; bfloat16 and float16 are converted to float32, and results rounded once.

    Raises:
        ValueError, TypeError: as `polyhead.sdpa`; also for int8 keys, and where ranks give different sizes or rules, which all ranks name. Later calls work.
            A communicator that had a ConnectionError is refused.
        ConnectionError: a rank is silent, gone, or cannot be reached; the message names it.
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
    """Gradients of `polyhead.distributed.sdpa` (Dao et al. 2022, appendix B; over a ring, Liu et al. 2023, arXiv 2310.01889). All ranks call it, each with its own part.

    Args:
        q: ``[*,N,T_r,H]``, the rank's queries.
        k: ``[*,K,S_r,H]``, the rank's keys.
        v: ``[*,K,S_r,V]``.
        out, lse: ``[*,N,T_r,V]`` and ``[*,N,T_r]``, as ``sdpa(..., return_lse=True)`` returned them.
        d_out: ``[*,N,T_r,V]``, the gradient of the sum of all ranks' losses with respect to out.
        gradients: which of ``"q"``, ``"k"``, ``"v"``, ``"bias"``, ``"sink"``, ``"relative_bias"`` to compute; the same on all ranks.
        d_bias: shaped as bias, written in place and returned. Its elements may not share memory.
        group, order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`.
        options: as given to `polyhead.distributed.sdpa`.

    Returns:
        `Gradients`, each shaped as its input: of the rank's own q, k and v, and of its own rows of bias and sink. The gradient of a tensor that ranks
        share is the sum over all of them, on every rank.

    Raises:
        ValueError, TypeError, ConnectionError: as `polyhead.distributed.sdpa`.
    """
    require_gradients(gradients, Gradients._fields)
    if d_bias is not None and "bias" not in gradients:
        raise ValueError(f"d_bias is given, and gradients is {gradients!r}; it must contain 'bias'")
    where = "distributed.sdpa_backward"
    communicator = communicator_of(where, group)
    settings = Settings(order, plan, timeout, one_row, ranks_per_machine).on(communicator)
    wanted = tuple(name in gradients for name in Gradients._fields)
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
    """Describes how the ranks would share `polyhead.distributed.sdpa` of these arguments: the plan and its reason, sizes and steps. All ranks call it. Computes nothing.

    Args:
        q, k, v: as given to `polyhead.distributed.sdpa`.
        group, order, plan, timeout, one_row, ranks_per_machine: as given to `polyhead.distributed.sdpa`.
        options: as given to `polyhead.distributed.sdpa`.

    Returns:
        One fact per line.

    Raises:
        ValueError, TypeError, ConnectionError: as `polyhead.distributed.sdpa`.
    """
    where = "distributed.explain"
    communicator = communicator_of(where, group)
    settings = Settings(order, plan, timeout, one_row, ranks_per_machine).on(communicator)
    return _core.distributed_explain(ranks_of(where, communicator), communicator, q, k, v, options, settings)
