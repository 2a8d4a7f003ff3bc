"""Describes the processor, and sets the number of threads."""

from __future__ import annotations

from typing import Any

from . import _core

__all__ = ["device", "num_threads", "set_num_threads"]


def device() -> dict[str, Any]:
    """The CPU as a dict: its name and architecture, how many processors are online and usable by this process, the number of threads, and the caches as
    `{"level", "kind", "bytes", "shared_by"}` (caches that the system does not report are missing; `shared_by` is None if not known). The dict also has the
    CPU's instruction sets, the instruction sets for which polyhead has kernels (the preferred first), the one in use (``"kernel"``) and the reasons why the
    others with kernels are not used (``"why_not_used"``). The environment variable POLYHEAD_ISA selects an instruction set."""
    return _core.device()


def num_threads() -> int:
    """The number of threads that a call without the argument num_threads uses: the number given to `set_num_threads`, else the number of cores that the process
    may use."""
    return _core.num_threads()


def set_num_threads(count: int) -> None:
    """Sets the number of threads for all later calls of this process.

    Args:
        count: at least 1.

    Raises:
        ValueError, TypeError: count is less than 1 or not an int.
    """
    _core.set_num_threads(count)
