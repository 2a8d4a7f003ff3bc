"""Ranks for the tests of polyhead.distributed: as processes that run the functions they are sent, or as threads that exchange messages through queues."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# The ranks are forked from a server that has imported already what the tests import, which saves seconds for each rank.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "polyhead.torch", "polyhead.distributed._attention", "torch_support", "distributed_support"])

Group = dist.ProcessGroup
PATIENCE = 120.0  # seconds until a test that hangs fails


def _serve(rank: int, ranks: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    groups: dict[int, Any] = {count: dist.new_group(list(range(count))) for count in range(1, ranks)} | {ranks: dist.group.WORLD}
    while True:
        task = pipe.recv()
        if task is None:
            return
        function, count, arguments = task
        try:
            pipe.send((True, function(groups[count], *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class Processes:
    """Processes that form gloo process groups: for each n, the first n processes are a group."""

    def __init__(self, ranks: int, folder: Path) -> None:
        pipes = [_CONTEXT.Pipe() for _ in range(ranks)]
        self.pipes = [mine for mine, _ in pipes]
        self.processes = [_CONTEXT.Process(target=_serve, args=(rank, ranks, str(folder / f"store{os.getpid()}"), pipes[rank][1])) for rank in range(ranks)]
        for process, (_, theirs) in zip(self.processes, pipes):
            process.start()
            theirs.close()  # this process closes its copy of the other end, so that the pipe closes when the rank ends

    def run(self, function: Callable[..., Any], *arguments: Any, ranks: int | None = None) -> list[Any]:
        """Calls function(group, *arguments) on each rank of a group. Returns the results; None for a rank that ended."""
        pipes = self.pipes[: ranks or len(self.pipes)]
        for pipe in pipes:
            pipe.send((function, len(pipes), arguments))
        results, errors = [], []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(PATIENCE), f"rank {rank} does not answer"
            try:
                good, result = pipe.recv()
            except (EOFError, ConnectionResetError):
                good, result = True, None
            results.append(result)
            if not good:
                errors.append(f"rank {rank}: {result}")
        assert not errors, "\n".join(errors)
        return results

    def close(self) -> list[int | None]:
        """Ends the processes and returns their exit codes."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except (BrokenPipeError, ConnectionResetError):
                pass
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]


class _Post:
    def __init__(self, take: Callable[[float], bool]) -> None:
        self.take, self.done = take, False

    def wait(self, seconds: float) -> bool:
        self.done = self.done or self.take(seconds)
        return self.done


class Queues:
    """A communicator of threads of this process, which exchange messages through queues. It is an example of a communicator that a user writes."""

    def __init__(self, mine: int, ranks: int, network: dict[tuple[int, int, int], queue.Queue[bytes]]) -> None:
        self.mine, self.ranks, self.network = mine, ranks, network
        self.buffers: list[np.ndarray[Any, Any]] = []
        self.steps = 0

    def rank(self) -> int:
        return self.mine

    def size(self) -> int:
        return self.ranks

    def send(self, buffer: np.ndarray[Any, Any], to: int, tag: int) -> _Post:
        self.buffers.append(buffer)
        self._queue(self.mine, to, tag).put(buffer.tobytes())
        return _Post(lambda seconds: True)

    def receive(self, buffer: np.ndarray[Any, Any], source: int, tag: int) -> _Post:
        self.buffers.append(buffer)

        def take(seconds: float) -> bool:
            try:
                sent = self._queue(source, self.mine, tag).get(timeout=max(seconds, 1e-4))
            except queue.Empty:
                return False
            buffer[:] = np.frombuffer(sent, np.uint8)
            return True

        return _Post(take)

    def progress(self) -> None:
        self.steps += 1

    def _queue(self, source: int, to: int, tag: int) -> queue.Queue[bytes]:
        return self.network.setdefault((source, to, tag), queue.Queue())


def in_threads(ranks: int, function: Callable[[Queues], Any]) -> list[Any]:
    """Calls the function in a thread for each rank. Returns what each call returned or raised."""
    network: dict[tuple[int, int, int], queue.Queue[bytes]] = {}
    results: list[Any] = [None] * ranks

    def work(rank: int) -> None:
        try:
            results[rank] = function(Queues(rank, ranks, network))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results
