"""The interface of a peer: for each case it returns a function to time, or says why it cannot compute the case."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from .cases import Case, alibi_bias, packed, padded


class Unsupported(Exception):
    """Raised for a case that the peer cannot compute; the message is printed as a note."""


def refuse(case: Case, **reasons: str) -> None:
    """Raises Unsupported, with the reason, for a case that has one of these properties."""
    for name, reason in reasons.items():
        if getattr(case, name):
            raise Unsupported(reason)


MOST_SCORES = 1 << 28  # in float32 these scores take 1 GiB


def refuse_too_many_scores(case: Case) -> None:
    """Raises Unsupported for a case whose scores would not fit into memory. Called by peers that hold all scores, and copies of them, at the same time."""
    if case.scores > MOST_SCORES:
        raise Unsupported("it holds all scores at once")


@dataclasses.dataclass
class Work:
    # computes the case once: a forward pass or, for a case with backward, a forward and a backward pass with every gradient; returns when all results exist
    run: Callable[[], object]
    output: Callable[[object], np.ndarray]  # converts the result of run() to the output as a NumPy array


Prepare = Callable[[Case, dict[str, np.ndarray]], Work]


def pads(prepare: Prepare) -> Prepare:
    """Decorator for a peer that does not support packed sequences: the sequences are padded before the time is measured."""

    @functools.wraps(prepare)
    def of_padded(case: Case, arrays: dict[str, np.ndarray]) -> Work:
        if not case.lengths:
            return prepare(case, arrays)
        work = prepare(*padded(case, arrays))
        return Work(work.run, lambda result: packed(case, work.output(result)))

    return of_padded


def adds_alibi(prepare: Prepare) -> Prepare:
    """Decorator for a peer that does not support ALiBi: the peer gets a full bias [1,N,T,S], which is made before the time is measured."""

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
