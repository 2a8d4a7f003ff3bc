"""How much the sweeps look at: POLYHEAD_TEST_EFFORT=quick, as scripts/test sets it; without the variable a test does all that it can."""

from __future__ import annotations

import os

QUICK = os.environ.get("POLYHEAD_TEST_EFFORT") == "quick"
