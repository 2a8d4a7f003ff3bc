"""Compares extents, which may be symbols while torch.compile or torch.export traces a call.

An extent may depend on data, such as the extent of ``x[mask]``. If only the data can tell whether two extents are equal, these functions treat them as equal,
because the operator checks the extents when it runs. The functions do not use ``in``, because torch.compile cannot trace ``in`` on a tuple of symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.compiler import is_compiling

if TYPE_CHECKING:

    def guard_or_false(condition: bool) -> bool: ...
    def guard_or_true(condition: bool) -> bool: ...
else:
    try:
        from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
    except ImportError:  # an older torch: it refuses extents that depend on data
        guard_or_false = guard_or_true = bool


def is_same(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether two shapes are equal."""
    if not is_compiling():
        return tuple(shape) == tuple(expected)
    return len(shape) == len(expected) and all(guard_or_true(n == m) for n, m in zip(shape, expected))


def is_one_of(shape: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a shape is equal to one of several shapes."""
    return any(is_same(shape, expected) for expected in shapes) if is_compiling() else tuple(shape) in shapes


def fits(extent: int, to: int) -> bool:
    """Whether an extent broadcasts to another extent."""
    if not is_compiling():  # bool(), because under torch.jit.trace extents are tensors
        return bool(extent == to or extent == 1)
    return guard_or_true(extent == to) or guard_or_true(extent == 1)


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another."""
    return len(shape) <= len(to) and all(map(fits, reversed(shape), reversed(to)))
