"""Finds the communicator of a distributed call, and what polyhead remembers of each communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Union, cast

from .. import _core
from ._transport import Communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SliceOrder = Literal["contiguous", "zigzag"]
Plan = Union[tuple[int, int], None]
OneRow = Literal["own", "shared", None]


# The types that the argument `group` may have: a Communicator, a process group of torch, or None for torch's default group.
Group = Union[Communicator, "ProcessGroup", None]

_METHODS = ("rank", "size", "send", "receive", "progress")


def communicator_of(where: str, group: Group) -> Communicator:
    """Returns `group` if it is a communicator, else the communicator of this process group."""
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
    """What polyhead remembers of a communicator between calls: the number of calls so far, and an error of an earlier call, after which all further calls are
    refused."""
    try:
        ranks: _core.Ranks = communicator.__dict__.setdefault("_polyhead_ranks", _core.Ranks())
    except AttributeError:
        raise TypeError(f"{where}: {type(communicator).__name__} has __slots__ and no __dict__, where polyhead counts the calls of a communicator") from None
    return ranks


class Settings(NamedTuple):
    """The arguments that say how the ranks divide the work of a call, in the order in which the bindings read them."""

    order: SliceOrder
    plan: Plan
    timeout: float
    one_row: OneRow
    ranks_per_machine: int | None

    def on(self, communicator: Communicator) -> Settings:
        """Returns the settings. If ranks_per_machine is None, the communicator's attribute of that name is used, if there is one."""
        known = getattr(communicator, "ranks_per_machine", None)
        return self if self.ranks_per_machine is not None or known is None else self._replace(ranks_per_machine=known)
