"""A communicator whose messages are sent by MPI, through mpi4py."""

from __future__ import annotations

import time
from typing import Any

from .._options import NumPyArray
from ._transport import Transfer

_PIECE = 2**30  # largest number of bytes of one MPI message, because MPI before version 4 counts bytes in an int
_UNDER_WAY: set[_MpiTransfer] = set()
"""Transfers that may not be complete. The set keeps their memory alive, because MPI may still use this memory, even if the communicator no longer exists."""


class _MpiTransfer:
    def __init__(self, mpi: Any, buffer: NumPyArray, requests: list[Any], source: int | None) -> None:
        self._mpi, self._buffer, self._requests, self._source = mpi, buffer, requests, source
        _UNDER_WAY.add(self)

    def wait(self, seconds: float) -> bool:
        begin = time.monotonic()
        statuses = [self._mpi.Status() for _ in self._requests]
        while not self._mpi.Request.Testall(self._requests, statuses):
            waited = time.monotonic() - begin
            if waited >= seconds:
                return False
            time.sleep(0 if waited < 1e-3 else min(1e-4, seconds - waited))  # MPI has no wait with a timeout
        _UNDER_WAY.discard(self)
        if self._source is not None:
            size = sum(status.Get_count(self._mpi.BYTE) for status in statuses)
            if size != self._buffer.size:
                raise ValueError(f"rank {self._source} sent {size} bytes, and {self._buffer.size} were expected")
        return True


class MpiCommunicator:
    """The ranks of an MPI communicator of mpi4py, as a `Communicator`.

    Errors that MPI reports become exceptions. MPI may not report that a rank has ended. The call then raises an error after its timeout, which names the rank.
    The memory of messages that a failed call abandoned is never freed, because MPI may still use it.

    Args:
        comm: an ``mpi4py.MPI.Intracomm``; None: ``MPI.COMM_WORLD``. The constructor duplicates comm, which keeps the program's messages apart from those of polyhead.
            Duplication is a collective operation, so all ranks must construct this object.

    Raises:
        ImportError: mpi4py is not installed.
        TypeError: comm is not an Intracomm.
    """

    def __init__(self, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ImportError(f"MpiCommunicator needs mpi4py and an MPI library: {error}") from error
        if comm is None:
            comm = MPI.COMM_WORLD
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"MpiCommunicator: comm is of type {type(comm).__name__}; it must be an mpi4py.MPI.Intracomm or None")
        self._mpi: Any = MPI
        self._comm: Any = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)  # MPI then returns errors, which mpi4py turns into exceptions
        self._rank, self._size = self._comm.Get_rank(), self._comm.Get_size()

    def __reduce__(self) -> Any:
        raise TypeError("an MpiCommunicator cannot be copied or pickled, as its messages belong to this process; make one on every rank, with one constructor call each")

    def rank(self) -> int:
        """This process' number."""
        return int(self._rank)

    def size(self) -> int:
        """The number of ranks."""
        return int(self._size)

    def send(self, buffer: NumPyArray, to: int, tag: int) -> Transfer:
        """Begins to send a message, in pieces of 1 GiB.

        Args:
            buffer, to, tag: as given to `Communicator.send`.

        Returns:
            A `Transfer`, which says when the message is done.

        Raises:
            RuntimeError: MPI's error, an ``MPI.Exception``.
        """
        return _MpiTransfer(self._mpi, buffer, [self._comm.Isend([part, self._mpi.BYTE], to, tag) for part in _pieces(buffer)], None)

    def receive(self, buffer: NumPyArray, source: int, tag: int) -> Transfer:
        """Begins to receive a message.

        Args:
            buffer, source, tag: as given to `Communicator.receive`.

        Returns:
            A `Transfer`, which says when the message is done. Its wait() raises a ValueError if a message of another size arrives.

        Raises:
            RuntimeError: MPI's error, an ``MPI.Exception``.
        """
        return _MpiTransfer(self._mpi, buffer, [self._comm.Irecv([part, self._mpi.BYTE], source, tag) for part in _pieces(buffer)], source)

    def progress(self) -> None:
        """Lets MPI move messages: many MPI libraries do so only while the program calls them."""
        self._comm.Iprobe()


def _pieces(buffer: NumPyArray) -> list[NumPyArray]:
    return [buffer[first : first + _PIECE] for first in range(0, max(buffer.size, 1), _PIECE)]
