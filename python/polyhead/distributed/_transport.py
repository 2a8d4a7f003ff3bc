"""The interface by which the ranks of a distributed call exchange bytes."""

from __future__ import annotations

from typing import Protocol

from .._options import NumPyArray


class Transfer(Protocol):
    """A message that is being sent or received: the result of `Communicator.send` and `Communicator.receive`."""

    def wait(self, seconds: float) -> bool:
        """Waits until a received message has arrived, or until the memory of a sent message may be reused.

        Args:
            seconds: longest time to wait, up to about 0.2; 0 checks without waiting. The method is called again until it returns True.

        Returns:
            True if the message has arrived, or if the memory of the sent message may be reused.

        Raises:
            Exception: the message cannot arrive. The distributed call then raises a ConnectionError that names the other rank, with this exception as its cause.
        """
        ...


class Communicator(Protocol):
    """The interface through which polyhead sends messages between ranks. The ranks have the numbers 0 to size() - 1, and each process is one rank.
    `TorchCommunicator` and `MpiCommunicator` implement the interface; a program may implement it in a class of its own.

    An object belongs to one rank. polyhead stores the number of calls in the object's ``__dict__``, so the class must have one. The methods are called by
    the thread that makes the distributed call. If a method raises an exception, the distributed call raises a ConnectionError, and all later calls with the
    object raise a ValueError.
    """

    def rank(self) -> int:
        """This process' number."""
        ...

    def size(self) -> int:
        """The number of ranks."""
        ...

    def send(self, buffer: NumPyArray, to: int, tag: int) -> Transfer:
        """Begins to send a message, and does not wait. Messages with the same tag, sender and receiver arrive in the order in which they were sent.

        Args:
            buffer: uint8 ``[bytes]``, memory that only this message uses. The transfer keeps the buffer until the message is sent, even if wait() is not called any more.
            to: the rank that receives the message.
            tag: in ``[0, 2**15)``.

        Returns:
            A `Transfer`, which says when the message is done.

        Raises:
            Exception: see `Transfer.wait`.
        """
        ...

    def receive(self, buffer: NumPyArray, source: int, tag: int) -> Transfer:
        """Begins to receive a message, and does not wait.

        Args:
            buffer: uint8 ``[bytes]``, writable: the memory to which the message is written. The transfer keeps the buffer until the message has arrived.
            source: the rank that sends the message. The message has the same size as the buffer.
            tag: as given to `send`.

        Returns:
            A `Transfer`, which says when the message is done.

        Raises:
            Exception: see `Transfer.wait`.
        """
        ...

    def progress(self) -> None:
        """Moves messages. polyhead calls the method about every 10 ms during a computation; a communicator without threads needs that."""
        ...
