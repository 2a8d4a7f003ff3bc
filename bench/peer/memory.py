"""Measures the peak memory of one call without its inputs: outputs, copies and temporaries. Linux only.

Each measured call runs in a separate process, which is forked from a process that has imported the peer and computed nothing. In a process with earlier calls, the call
could use memory that an allocator had kept, and the measured peak would be too small.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from . import cases
from .cases import Case
from .process_memory import field, restart_peak

CHECKED_BYTES = 64 << 20


def _measure(peer: Any, threads: int, name: str) -> dict[str, Any]:
    peer.start(threads)
    case = next(case for case in cases.CASES if case.name == name)
    small = dataclasses.replace(case, leading=(1,) * len(case.leading), T=min(case.T, 32), S=min(case.S, 32), lengths=())
    peer.prepare(small, cases.inputs(small)).run()  # call the peer on a small case first, which loads its code and starts its threads
    before = _resident()
    arrays = cases.inputs(case)
    given = sum(array.nbytes for array in arrays.values())
    work = peer.prepare(case, arrays)
    del arrays  # free the arrays: otherwise the parameters would be counted twice for a peer that holds copies of them
    work.run()  # the first call also allocates memory that later calls do not need, so measure the second
    return {"megabytes": max(0, _peak(work.run) - before - given) / 2**20}


def _check() -> str:
    """The reason why memory cannot be measured on this machine; empty if it can."""
    try:
        before = _resident()
        counted = _peak(lambda: np.ones(CHECKED_BYTES, np.uint8)) - before
    except (OSError, AttributeError) as error:
        return str(error)
    return "" if abs(counted / CHECKED_BYTES - 1) < 0.05 else f"{CHECKED_BYTES} bytes were counted as {counted}"


def _resident() -> int:
    """Resident bytes of this process, after its allocator has returned free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return field("VmRSS")


def _peak(run: Callable[[], object]) -> int:
    """The largest number of resident bytes of this process while `run` ran."""
    _resident()
    restart_peak()
    run()
    return field("VmHWM")


def _forked(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs `measure` in a fork of this process and returns its result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, json.dumps(measure()).encode())
        except BaseException as error:
            os.write(write, json.dumps({"note": f"{type(error).__name__}: {error}"}).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read()
    status = os.waitpid(child, 0)[1]
    return dict(json.loads(told)) if told else {"note": f"its process ended with status {os.waitstatus_to_exitcode(status)}"}


class Meter:
    """A process that measures the calls of one peer."""

    def __init__(self, peer: str, threads: int) -> None:
        command = [sys.executable, "-m", "peer.memory", peer, str(threads)]
        folder = pathlib.Path(__file__).parents[1]
        self._process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.note = self._ask("").get("note", "")
        """The reason why memory is not measured; empty if it is."""

    def measure(self, case: Case) -> dict[str, Any]:
        """The megabytes, or a note that says why there are none."""
        return {} if self.note else self._ask(case.name)

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._process.stdout.readline()
        return dict(json.loads(answer)) if answer else {"note": "its process does not answer"}


def main() -> None:
    peer, threads = importlib.import_module(f"peer.{sys.argv[1]}_peer"), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # answers are not written to stdout, because a peer may print there
    os.dup2(2, 1)
    for line in sys.stdin:
        name = line.rstrip("\n")
        told = _forked(lambda: _measure(peer, threads, name) if name else {"note": _check()})
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
