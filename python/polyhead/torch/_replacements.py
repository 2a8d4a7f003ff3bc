"""Replaces functions of another package by polyhead's as long as a patch or replacement is applied, and then restores them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

Replacement = tuple[Any, str, Any, Any]  # class or module, name of the attribute, old value, new value


class Replacements:
    """A set of attributes that are replaced in the whole process as long as the set has at least one user, such as a `Patch`."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = threading.RLock()
        self._replaced: list[Replacement] = []

    def apply(self, find: Callable[[], Iterable[Replacement]]) -> None:
        """Adds a user. The first user makes the replacements that find() returns."""
        with self.lock:
            if self.users == 0:
                self._replaced = list(find())
                for owner, name, _, new in self._replaced:
                    setattr(owner, name, new)
            self.users += 1

    def undo(self) -> None:
        """Removes a user. After the last user, restores the old values."""
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for owner, name, own, new in self._replaced:
                    # If another function is there now, it wraps polyhead's function. Leave it there: polyhead's function, without users, calls the package's
                    # own.
                    if owner.__dict__.get(name) is new:
                        setattr(owner, name, own)


_Applied = TypeVar("_Applied", bound="Applied")


class Applied:
    """A user of `Replacements`, from _apply() to undo(). The end of a ``with`` block calls undo(); entering another ``with`` block calls _apply()."""

    _kind = _made_by = ""  # for messages: what the object is, and which function makes it

    def __init__(self, replacements: Replacements) -> None:
        self._replacements = replacements
        self._is_applied = False
        self._blocks = 0

    def __reduce__(self) -> Any:
        raise TypeError(f"a {self._kind} cannot be copied or pickled, as it belongs to this process; call {self._made_by} again for another one")

    @property
    def applied(self) -> bool:
        """True while this patch or replacement is applied."""
        return self._is_applied

    def _apply(self) -> None:
        with self._replacements.lock:
            if not self._is_applied:
                self._begin()
                self._is_applied = True

    def undo(self) -> None:
        """Undoes this patch or replacement; a second call changes nothing."""
        with self._replacements.lock:
            if self._is_applied:
                self._is_applied = False
                self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        self._replacements.undo()

    def __enter__(self: _Applied) -> _Applied:
        self._apply()
        self._blocks += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blocks = max(0, self._blocks - 1)  # ExitStack.push calls __exit__ without __enter__
        if self._blocks == 0:
            self.undo()
