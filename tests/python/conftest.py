"""What all tests of the Python package share: random numbers from a seed, and lines that are printed after the tests."""

from __future__ import annotations

import gc
import os
import random
from typing import Any

import hypothesis
import numpy as np
import pytest

import polyhead

SEED = int(os.environ.get("POLYHEAD_TEST_SEED", "0"))

hypothesis.settings.register_profile("polyhead", deadline=None, derandomize=SEED == 0, print_blob=True)
hypothesis.settings.load_profile("polyhead")


def pytest_report_header(config: pytest.Config) -> list[str]:
    numbers = f"NumPy {np.__version__}, seed {SEED} (POLYHEAD_TEST_SEED)"
    return [f"polyhead {polyhead.__version__} from {os.path.dirname(polyhead.__file__)}", numbers]


def pytest_collection_finish() -> None:
    """Excludes the millions of objects of the imported packages from garbage collection, which would otherwise search them again and again during the tests."""
    gc.collect()
    gc.freeze()


_summary: list[str] = []


@pytest.fixture
def summary() -> list[str]:
    """A list to which tests append lines with counts and measurements. They are printed at the end of the report, even if all tests pass."""
    return _summary


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With pytest-xdist, each worker sends its lines to the process that writes the report."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["summary"] = _summary


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    _summary.extend(getattr(node, "workeroutput", {}).get("summary", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _summary:
        terminalreporter.write_line(line)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend only on the seed and on the test's name, not on the tests that ran before."""
    name = np.frombuffer(request.node.nodeid.encode(), np.uint8)
    print(f"seed {SEED}, {request.node.nodeid}")
    return np.random.default_rng([SEED, *name])


@pytest.fixture(autouse=True)
def _seed_everything() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
