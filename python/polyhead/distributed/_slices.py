"""Which positions of a sequence a rank holds."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np

from .. import _core
from .._options import A
from ._communicator import SliceOrder


def slice_of(order: SliceOrder, length: int, rank: int, ranks: int) -> list[range]:
    """The positions of a rank if a sequence is cut into n ranges of about the same length: range i is ``[length i / n, length (i + 1) / n)``, with bounds
    rounded down.

    Args:
        order: ``"contiguous"``: n is the number R of ranks, and rank r holds range r. ``"zigzag"``: n is 2 R, and rank r holds ranges r and 2 R - 1 - r, one
            after the other. With a causal mask all ranks then have the same work (as in striped attention, Brandon et al. 2023, and llama 3's context
            parallelism).
        length: number of positions of the sequence.
        rank: r, in ``[0, ranks)``.
        ranks: R, the number of ranks.

    Returns:
        At most two Python ranges of positions, in ascending order; adjacent ranges are joined to one.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """
    return [range(first, last) for first, last in _core.slice_of(order, length, rank, ranks)]


def take_slice(x: A, axis: int, order: SliceOrder, rank: int, ranks: int) -> A:
    """Cuts a rank's slice out of an array that holds the whole sequence.

    Args:
        x: of any shape ``[..]``: a NumPy array or a PyTorch tensor.
        axis: the axis of the sequence.
        order, rank, ranks: as given to `slice_of`.

    Returns:
        The slice, shaped as x except along the axis. A view of x if the slice is one range, else a copy. Gradients flow back to a tensor x.

    Raises:
        ValueError, TypeError: for the same reasons as `slice_of`; also if x does not have the axis.
    """
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(x, torch.Tensor)
    if not is_tensor and not isinstance(x, np.ndarray):
        raise TypeError(f"take_slice: x is of type {type(x).__name__}; it must be a NumPy array or a torch.Tensor")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"take_slice: axis is of type {type(axis).__name__}; it must be an int")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"take_slice: axis is {axis}, and x has {x.ndim} dimensions")
    before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
    ranges = slice_of(order, x.shape[axis], rank, ranks) or [range(0)]
    parts = [x[(*before, slice(part.start, part.stop))] for part in ranges]
    if len(parts) == 1:
        return parts[0]
    joined: Any = torch.cat(parts, axis) if torch is not None and is_tensor else np.concatenate(parts, axis)
    return cast("A", joined)
