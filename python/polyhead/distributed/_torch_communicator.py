"""A communicator whose messages are sent through a process group of torch.distributed."""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist

from .._options import NumPyArray
from ._transport import Transfer

# Added to the tags of this module's messages, to keep them apart from messages that the program sends through the group. The upper 16 bits are "PH".
_TAGS = 0x50480000

# With gloo only Work.wait() tells whether a message is done: is_completed() is False until wait() was called. But a wait() that times out closes all connections
# of the group ("Application timeout caused pair closure"), and a wait() without an argument uses the group's timeout. So a thread calls wait() with a timeout
# that never ends, and the caller waits for that thread.
_NO_TIMEOUT = datetime.timedelta(days=3650)


class _Waiter(threading.Thread):
    """A thread that waits for messages, one after the other. It is a daemon thread, so a message that never arrives does not keep the process alive."""

    idle: list[_Waiter] = []

    def __init__(self) -> None:
        super().__init__(name="polyhead-message", daemon=True)
        self.messages: queue.SimpleQueue[_TorchTransfer] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            message = self.messages.get()
            try:
                message.work.wait(_NO_TIMEOUT)
            except Exception as error:
                message.error = error
            message.done.set()
            del message
            _Waiter.idle.append(self)


def _end(under_way: set[_TorchTransfer], process: int) -> None:
    """Ends the waits of the threads for messages: for those of a group that no longer exists, and for those of all groups before the interpreter ends. A thread
    that returned from torch after the end of the interpreter would abort the process."""
    waited_for = [transfer for transfer in under_way if transfer.has_waiter and not transfer.done.is_set()]
    if not waited_for or os.getpid() != process:  # a forked process inherits the sockets but not these threads, so it has nothing to end
        return
    for transfer in waited_for:
        with contextlib.suppress(Exception):
            transfer.work.wait(datetime.timedelta(milliseconds=1))  # closes the connections
    for transfer in waited_for:
        transfer.done.wait(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Waiter.idle.clear)  # A forked process has no copies of the threads.


class _TorchTransfer:
    def __init__(self, work: Any, buffer: NumPyArray, under_way: set[_TorchTransfer]) -> None:
        self.work, self.buffer = work, buffer
        self.done = threading.Event()
        self.error: Exception | None = None
        self.has_waiter = False
        self._under_way = under_way
        under_way.add(self)

    def wait(self, seconds: float) -> bool:
        if not self.has_waiter:
            try:
                waiter = _Waiter.idle.pop()
            except IndexError:
                waiter = _Waiter()
            waiter.messages.put(self)
            self.has_waiter = True
        if not self.done.wait(seconds):
            return False
        self._under_way.discard(self)
        if self.error is not None:
            raise self.error
        return True


class TorchCommunicator:
    """The ranks of a process group of torch.distributed, as a `Communicator`. The group's backend for the CPU must be gloo, or another backend that has isend
    and irecv.

    `polyhead.distributed.attention` makes a communicator for each group that it is given, and keeps it. If a rank ends, the others get an error at once,
    because gloo's connections to that rank close. The group's own timeout has no effect; the timeout of the distributed call applies.

    Args:
        group: a process group; None: the default group.

    Raises:
        ValueError: torch.distributed is not initialised, this process is not in the group, or the group has no backend for the CPU.
        TypeError: group is not a ProcessGroup.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        found = _found("TorchCommunicator", group)
        # A weak reference, so that the group's connections close when the program destroys the group.
        self._group = weakref.ref(found)
        self._ranks = dist.get_process_group_ranks(found)
        self._rank = dist.get_rank(found)
        self._under_way: set[_TorchTransfer] = set()
        weakref.finalize(found, _end, self._under_way, os.getpid())
        local = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun sets it
        self.ranks_per_machine = int(local) if local.isdecimal() and int(local) > 0 and len(self._ranks) == dist.get_world_size() else None
        """The number of ranks on each machine, as torchrun sets it; None without torchrun, or if only some of the processes are in the group."""

    def __reduce__(self) -> Any:
        raise TypeError("a TorchCommunicator cannot be copied or pickled, as its connections belong to this process; make a new TorchCommunicator of the group in each process that needs one")

    def rank(self) -> int:
        """This process' number in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks of the group."""
        return len(self._ranks)

    def send(self, buffer: NumPyArray, to: int, tag: int) -> Transfer:
        """Begins to send a message by ``torch.distributed.isend``.

        Args:
            buffer, to, tag: as given to `Communicator.send`.

        Returns:
            A `Transfer`, which says when the message is done.

        Raises:
            RuntimeError: torch's error, for example if a connection is closed or the group was destroyed.
        """
        return self._begun(buffer, dist.isend(torch.from_numpy(buffer), self._ranks[to], self._live_group(), _TAGS + tag))

    def receive(self, buffer: NumPyArray, source: int, tag: int) -> Transfer:
        """Begins to receive a message by ``torch.distributed.irecv``. gloo does not report a message that is shorter than the buffer.

        Args:
            buffer, source, tag: as given to `Communicator.receive`.

        Returns:
            A `Transfer`, which says when the message is done.

        Raises:
            RuntimeError: torch's error, for example if a connection is closed or the group was destroyed.
        """
        return self._begun(buffer, dist.irecv(torch.from_numpy(buffer), self._ranks[source], self._live_group(), _TAGS + tag))

    def progress(self) -> None:
        """Does nothing, because gloo has a thread that moves messages."""

    def _begun(self, buffer: NumPyArray, work: Any) -> Transfer:
        return _TorchTransfer(work, buffer, self._under_way)

    def _live_group(self) -> dist.ProcessGroup:
        group = self._group()
        if group is None:
            raise RuntimeError("the process group was destroyed")
        return group


def _found(where: str, group: Any) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"{where}: torch.distributed is not initialised; call torch.distributed.init_process_group, or give a Communicator as group")
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{where}: this process (rank {dist.get_rank()}) is not in the group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"{where}: group is of type {type(group).__name__}; it must be a ProcessGroup of torch.distributed, None or a Communicator")
    if dist.get_rank(group) < 0:
        raise ValueError(f"{where}: this process (rank {dist.get_rank()}) is not in the group")
    if "cpu" not in dist.get_backend_config(group):
        raise ValueError(f"{where}: the group's backend is {dist.get_backend(group)}, which cannot send CPU tensors; init_process_group('cpu:gloo,cuda:nccl') has both")
    return group


_communicators: weakref.WeakKeyDictionary[dist.ProcessGroup, TorchCommunicator] = weakref.WeakKeyDictionary()


def of_group(where: str, group: Any) -> TorchCommunicator:
    """Returns the communicator of a group. It is the same object in every call, because the object counts the calls."""
    found = _found(where, group)
    if found not in _communicators:
        _communicators[found] = TorchCommunicator(found)
    return _communicators[found]
