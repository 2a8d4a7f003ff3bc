"""Tells tests with many cases how many to run: a few with POLYHEAD_TEST_EFFORT=quick, which scripts/test sets, otherwise all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

QUICK = os.environ.get("POLYHEAD_TEST_EFFORT") == "quick"


def combinations(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns the product of lists of parameters. With POLYHEAD_TEST_EFFORT=quick, returns only as many combinations as the longest list has values, so that each value of each
    list occurs. Combination i has value i + j of list j, so two lists of the same values do not only give pairs of equal values."""
    lists = [list(values) for values in parameters]
    if not QUICK:
        return list(itertools.product(*lists))
    return [tuple(values[(i + j) % len(values)] for j, values in enumerate(lists)) for i in range(max(map(len, lists)))]
