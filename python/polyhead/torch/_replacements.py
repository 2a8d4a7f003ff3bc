"""Replaces functions of another package by polyhead's while at least one user needs that, and then restores them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

Replacement = tuple[Any, str, Any, Any]  # class or module, name of the attribute, old value, new value


class Replacements:
    """A set of replacements in the whole process, which is applied while it has at least one user."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = threading.RLock()
        self._replaced: list[Replacement] = []

    def apply(self, find: Callable[[], Iterable[Replacement]]) -> None:
        """Adds a user. For the first user, makes the replacements that find() returns."""
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
                    # If another function is there now, it wraps polyhead's. Leave it: without users polyhead's function calls the package's own.
                    if owner.__dict__.get(name) is new:
                        setattr(owner, name, own)
