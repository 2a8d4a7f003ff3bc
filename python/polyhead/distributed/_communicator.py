"""How the ranks of a distributed call exchange bytes, and what polyhead keeps for each communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Union, cast

from .. import _core
from .._options import NumPyArray

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SliceOrder = Literal["contiguous", "zigzag"]
Plan = Union[tuple[int, int], None]
OneRow = Literal["own", "shared", None]


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
    """Ranks 0 to size() - 1, one for each process, and messages between them. `TorchCommunicator` and `MpiCommunicator` implement this interface, and a
    program may do so too.

    An object belongs to one rank. polyhead stores its count of calls in the object's ``__dict__``, so an object without ``__dict__`` cannot be used. Its methods are called by
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
            buffer: uint8 ``[bytes]``, the message's own memory. The transfer keeps it until the message has left, even if the caller stops waiting.
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


# The types that the functions accept: a Communicator, a process group of torch, or None for torch's default group.
Group = Union[Communicator, "ProcessGroup", None]

_METHODS = ("rank", "size", "send", "receive", "progress")


def communicator_of(where: str, group: Group) -> Communicator:
    """Returns the communicator itself, or the one that belongs to a process group."""
    if group is not None and all(callable(getattr(group, name, None)) for name in _METHODS):
        return cast("Communicator", group)
    if group is not None and not any(kind.__module__.partition(".")[0] == "torch" for kind in type(group).__mro__):
        missing = [name for name in _METHODS if not callable(getattr(group, name, None))]
        raise TypeError(
            f"{where}: group is of type {type(group).__name__}; it must be a ProcessGroup of torch.distributed, None for the default one, or a Communicator, "
            f"of which it lacks {', '.join(f'{name}()' for name in missing)}"
        )
    from ._torch_communicator import of_group

    return of_group(where, group)


def ranks_of(where: str, communicator: Communicator) -> _core.Ranks:
    """The state that the calls of a communicator share: their number so far, and the error after which calls are refused."""
    try:
        ranks: _core.Ranks = communicator.__dict__.setdefault("_polyhead_ranks", _core.Ranks())
    except AttributeError:
        raise TypeError(f"{where}: {type(communicator).__name__} has __slots__ and no __dict__, where polyhead counts the calls of a communicator") from None
    return ranks


class Settings(NamedTuple):
    """The arguments of a call that say how the ranks share it, in the order of the bindings."""

    order: SliceOrder
    plan: Plan
    timeout: float
    one_row: OneRow
    ranks_per_machine: int | None

    def on(self, communicator: Communicator) -> Settings:
        """Returns the settings, where ranks_per_machine defaults to the communicator's own number, if it knows one."""
        known = getattr(communicator, "ranks_per_machine", None)
        return self if self.ranks_per_machine is not None or known is None else self._replace(ranks_per_machine=known)
