"""How the ranks of a distributed call exchange bytes."""

from __future__ import annotations

from typing import Protocol

from .._options import NumPyArray


class Transfer(Protocol):
    """A message under way, as `Communicator.send` and `Communicator.receive` return it."""

    def wait(self, seconds: float) -> bool:
        """Waits until a received message is here, or the memory of a sent one may be reused.

        Args:
            seconds: longest time to wait, up to about 0.2; 0 checks without waiting. The method is called again until it returns True.

        Returns:
            Whether the message is done.

        Raises:
            Exception: the message cannot arrive. The distributed call then raises a ConnectionError that names the other rank, with this exception as its cause.
        """
        ...


class Communicator(Protocol):
    """Ranks 0 to size() - 1, one for each process, and messages between them. `TorchCommunicator` and `MpiCommunicator` are two; a program may write another.

    An object belongs to one rank. polyhead keeps its count of calls in the object's ``__dict__``, so it must have one. Its methods are called by
    the thread that makes the distributed call. An exception that a method raises ends the call with a ConnectionError; all later calls are refused.
    """

    def rank(self) -> int:
        """This process' number."""
        ...

    def size(self) -> int:
        """The number of ranks."""
        ...

    def send(self, buffer: NumPyArray, to: int, tag: int) -> Transfer:
        """Begins to send a message, and does not wait. Messages with one tag from one rank to another arrive in the order in which they were sent.

        Args:
            buffer: uint8 ``[bytes]``, the message's own memory. The transfer keeps it until the message has left, even if nobody waits for it any more.
            to: the rank that receives it.
            tag: in ``[0, 2**15)``.

        Returns:
            The message under way.

        Raises:
            Exception: as of `Transfer.wait`.
        """
        ...

    def receive(self, buffer: NumPyArray, source: int, tag: int) -> Transfer:
        """Begins to receive a message, and does not wait.

        Args:
            buffer: uint8 ``[bytes]``, writable: the message goes to this memory. The transfer keeps it until the message is there.
            source: the rank that sends it. Its message has the buffer's size.
            tag: as given to `send`.

        Returns:
            The message under way.

        Raises:
            Exception: as of `Transfer.wait`.
        """
        ...

    def progress(self) -> None:
        """Called about every 10 ms of a computation: a transport without threads of its own moves its messages here."""
        ...
