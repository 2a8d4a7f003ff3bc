"""How much work the sweeps do: POLYHEAD_TEST_EFFORT=quick, as set by scripts/test; without the variable a test does its full work."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

QUICK = os.environ.get("POLYHEAD_TEST_EFFORT") == "quick"


def combinations(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The product of lists of parameters. In quick as many combinations as the longest list is long, which hold each value of each list: the i-th of them
    has the (i+j)-th value of the j-th list, so that lists of the same values do not meet themselves."""
    lists = [list(values) for values in parameters]
    if not QUICK:
        return list(itertools.product(*lists))
    return [tuple(values[(i + j) % len(values)] for j, values in enumerate(lists)) for i in range(max(map(len, lists)))]
