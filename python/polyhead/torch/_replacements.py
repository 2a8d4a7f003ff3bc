"""Functions of another package that are replaced by polyhead's while somebody needs it, and brought back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

Replacement = tuple[Any, str, Any, Any]  # class or module, name of the attribute, old value, new value


class Replacements:
    """What is replaced for at least one user, in the whole process."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = threading.RLock()
        self._replaced: list[Replacement] = []

    def apply(self, find: Callable[[], Iterable[Replacement]]) -> None:
        """Adds a user; the first one replaces what find() returns."""
        with self.lock:
            if self.users == 0:
                self._replaced = list(find())
                for owner, name, _, new in self._replaced:
                    setattr(owner, name, new)
            self.users += 1

    def undo(self) -> None:
        """Removes a user; the last one brings back what was there."""
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for owner, name, own, new in self._replaced:
                    # If someone wrapped our function, leave it: ours now calls the package's own.
                    if owner.__dict__.get(name) is new:
                        setattr(owner, name, own)
