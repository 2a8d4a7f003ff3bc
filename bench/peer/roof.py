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

import numpy as np

from .instruction_sets import INSTRUCTION_SETS


def fma_gflops(threads: int, isa: str = "", seconds: float = 1.0) -> float | None:
    """Best GFLOP/s (float32) of that many threads at once, which may share a core, with an instruction set or all that there are; None without a C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        return None
    flags = INSTRUCTION_SETS[isa].flags if isa else ("-march=native",)
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "roof.so")
        source = pathlib.Path(__file__).with_name("roof.cc")
        subprocess.run([compiler, "-std=c++17", "-O3", *flags, "-shared", "-fPIC", "-o", library, source], check=True)
        measure = ctypes.CDLL(str(library)).fma_roof
        measure.restype, measure.argtypes = ctypes.c_double, [ctypes.c_double]
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return float(sum(pool.map(measure, [seconds] * threads)))


def memory_gbytes(seconds: float = 0.5) -> float:
    """Best GB/s that one thread reads, summing 256 MB."""
    data = np.ones(1 << 25, np.float64)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        data.sum()
        best = max(best, data.nbytes / (time.perf_counter() - start) * 1e-9)
    return best
