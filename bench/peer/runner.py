"""What a peer gives: for a case, a function to time, or the reason why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from .cases import Case


class Unsupported(Exception):
    """The peer has no such operation; the message is printed as a note."""


MOST_SCORES = 1 << 28  # 1 GiB of float32


def refuse_too_many_scores(case: Case) -> None:
    """For a peer that holds every score at once, and copies of them."""
    if case.scores > MOST_SCORES:
        raise Unsupported("it holds all scores at once")


@dataclasses.dataclass
class Work:
    run: Callable[[], object]  # one forward, or forward and backward with every gradient: all of it computed when it returns
    output: Callable[[object], np.ndarray]  # of what run() gave: the output as a NumPy array


class Peer(Protocol):
    name: str
    version: str

    def prepare(self, case: Case, arrays: dict[str, np.ndarray]) -> Work: ...
