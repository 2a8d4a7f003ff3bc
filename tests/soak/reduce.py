"""Reduces a failing case to a smaller case that still fails, and writes that case as a script."""

from __future__ import annotations

import json
import pprint
from collections.abc import Callable
from typing import Any

# Every case needs these entries. They may be made smaller, but not removed.
_NEEDED = {"seed", "kind", "dtype", "lead", "N", "K", "T", "S", "H", "V", "spread", "empty_rows", "threads", "E", "Ek", "Ev", "Eo", "C", "self", "axis", "stored", "pieces", "samples", "mask", "kept",
           "weight", "norm_bias", "projection_bias", "gate_bias", "output_bias", "return_bias", "queries", "keys", "rule", "layer", "count", "M", "hidden",
           "activation", "norm", "norm_position"}  # fmt: skip


def smaller(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns simpler cases, each of which differs from this case by one change."""
    result = [{name: value for name, value in case.items() if name != dropped} for dropped in case if dropped not in _NEEDED or (case.get("kind") == "windows" and dropped == "bias")]
    for name, simple in (("lead", ()), ("empty_rows", "zero"), ("threads", 1), ("spread", 1.0)):
        if case[name] != simple and not (name == "lead" and "kind" in case):
            result.append({**case, name: simple})
    if len(case["lead"]) > 1 and "kind" not in case:
        result.append({**case, "lead": case["lead"][:1]})
    if "kind" in case and case["lead"] and max(case["lead"]) > 1:
        result.append({**case, "lead": (1,) * len(case["lead"])})
    if case["N"] != case["K"]:
        result.append({**case, "N": case["K"]})
    if case["K"] > 1 and case.get("kind") != "stack":
        result.append({**case, "N": case["N"] // case["K"], "K": 1})
    for name in ("T", "S", "H", "V", "E", "Ek", "Ev", "Eo", "C", "M", "hidden", "count"):
        for extent in (case[name] // 2, case[name] - 1) if name in case else ():
            if 1 <= extent < case[name] and not ("query_offsets" in case and name in "TS"):
                same = [other for other in ("T", "S") if case.get("self") == "query" and name in "TS"] or [other for other in ("E", "Ek", "Ev") if case.get("self") == "query" and name == "E" and other in case]
                result.append({**case, **{other: extent for other in same}, name: extent})
    return result


def reduced(case: dict[str, Any], fails: Callable[[dict[str, Any]], bool], most: int = 300) -> dict[str, Any]:
    """Returns the smallest failing case that it finds with at most `most` calls of `fails`."""
    found = True
    while found and most > 0:
        found = False
        for candidate in smaller(case):
            if (most := most - 1) <= 0:
                break
            if fails(candidate):
                case, found = candidate, True
                break
    return case


def script(case: dict[str, Any], kernel: str, findings: list[str], folder: str, module: str = "check") -> str:
    said = "\n".join(f"# {line}" for line in findings)
    return f"""# POLYHEAD_ISA={kernel} build/venv/bin/python THIS_FILE
{said}
import sys
sys.path.insert(0, {json.dumps(folder)})
from {module} import check

case = {pprint.pformat(case, width=140, sort_dicts=False)}
findings = check(case).findings  # Built(case) of cases.py has the arrays: inputs, options, and the oracle's
print(*findings or ["passes"], sep="\\n")
sys.exit(bool(findings))
"""
