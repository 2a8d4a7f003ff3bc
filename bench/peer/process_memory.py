"""Reads the memory of this process, on Linux. It needs only the standard library, so that benchmarks of any package can import it."""

from __future__ import annotations

import pathlib
import re


def restart_peak() -> None:
    """Resets the peak of memory that the system records."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def field(name: str) -> int:
    """The bytes of VmRSS, the memory of this process, or VmHWM, its peak since restart_peak()."""
    match = re.search(rf"{name}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    if match is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(match.group(1)) * 1024
