"""How much work the sweeps do: POLYHEAD_TEST_EFFORT=quick, as set by scripts/test; without the variable a test does its full work."""

from __future__ import annotations

import os

QUICK = os.environ.get("POLYHEAD_TEST_EFFORT") == "quick"
