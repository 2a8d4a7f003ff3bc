"""What a peer gives: for a case, a function to time, or the reason why there is none."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from .cases import Case, alibi_bias, packed, padded


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


Prepare = Callable[[Case, dict[str, np.ndarray]], Work]


def pads(prepare: Prepare) -> Prepare:
    """For a peer without packed sequences: it gets them padded, before the time that counts."""

    @functools.wraps(prepare)
    def of_padded(case: Case, arrays: dict[str, np.ndarray]) -> Work:
        if not case.lengths:
            return prepare(case, arrays)
        work = prepare(*padded(case, arrays))
        return Work(work.run, lambda result: packed(case, work.output(result)))

    return of_padded


def adds_alibi(prepare: Prepare) -> Prepare:
    """For a peer without ALiBi: it gets a bias of every pair, made before the time that counts."""

    @functools.wraps(prepare)
    def of_bias(case: Case, arrays: dict[str, np.ndarray]) -> Work:
        if case.bias != "alibi":
            return prepare(case, arrays)
        arrays = {key: array for key, array in arrays.items() if key != "slopes"} | {"bias": alibi_bias(case, arrays["slopes"])}
        return prepare(dataclasses.replace(case, bias="shared", causal=False), arrays)

    return of_bias


class Peer(Protocol):
    name: str
    version: str

    def prepare(self, case: Case, arrays: dict[str, np.ndarray]) -> Work: ...
