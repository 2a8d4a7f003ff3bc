"""The roof of the machine, measured in the same run: multiply-adds per second, and bytes copied from memory per second."""

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
    """GFLOP/s (float32) of some threads at once, which may share a core, with an instruction set or all that there are; of None without a C++ compiler."""

    def __init__(self, threads: int, isa: str = "") -> None:
        self._threads = threads
        self._measure = _build(INSTRUCTION_SETS[isa].flags if isa else ("-march=native",))
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)

    def best(self, seconds: float) -> float | None:
        """The best within so many seconds. A processor's clock moves: what is compared with it is measured beside it."""
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
    """Best GB/s that one thread reads, summing 256 MB."""
    data = np.ones(1 << 25, np.float64)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        data.sum()
        best = max(best, data.nbytes / (time.perf_counter() - start) * 1e-9)
    return best
