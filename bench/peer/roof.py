"""Measures the limits of the machine (the roof) in the same run as the peers: floating-point operations per second, and bytes read from memory per second."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable

import numpy as np

from .instruction_sets import INSTRUCTION_SETS


class Roof:
    """Measures GFLOP/s (float32) of `threads` threads at once, with one instruction set or with all that the processor has. Threads may share a core.
    Without a C++ compiler there is no measurement, and best() returns None."""

    def __init__(self, threads: int, isa: str = "") -> None:
        self._threads = threads
        self._measure = _build(INSTRUCTION_SETS[isa].flags if isa else ("-march=native",))
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)

    def best(self, seconds: float) -> float | None:
        """The best rate that is measured within these seconds. The clock rate of a processor changes, so measure the roof between the calls that are compared with it."""
        if self._measure is None:
            return None
        return float(sum(self._pool.map(self._measure, [seconds] * self._threads)))


def _build(flags: tuple[str, ...]) -> Callable[[float], float] | None:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "roof.so")
        source = pathlib.Path(__file__).with_name("roof.cc")
        subprocess.run([compiler, "-std=c++17", "-O3", *flags, "-shared", "-fPIC", "-o", library, source], check=True)
        measure = ctypes.CDLL(str(library)).fma_roof
    measure.restype, measure.argtypes = ctypes.c_double, [ctypes.c_double]
    return measure  # type: ignore[no-any-return]


def memory_gbytes(seconds: float = 0.5) -> float:
    """The best rate in GB/s at which one thread reads memory: it sums 256 MB."""
    data = np.ones(1 << 25, np.float64)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        data.sum()
        best = max(best, data.nbytes / (time.perf_counter() - start) * 1e-9)
    return best
