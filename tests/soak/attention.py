"""Worker of scripts/soak: compares random attention problems with the oracle on one instruction set (POLYHEAD_ISA). Each worker is a process, because a process chooses its
instruction set once, and because a case may crash the process.

    attention.py FIRST_SEED SECONDS    writes a line of JSON for each event: {"start": seed}, {"done": ...}, {"finding": ...}, {"end": ...}
    attention.py --fails               reads cases as JSON from standard input and answers true or false for each
"""

from __future__ import annotations

import ast
import json
import sys
import time
import traceback
from typing import Any

from cases import draw
from check import Refused, check


def findings_of(case: dict[str, Any], check: Any = check) -> tuple[list[str], float, int]:
    try:
        report = check(case)
    except Refused:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"], 0.0, 0
    return report.findings, report.worst, report.compared


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main(draw: Any = draw, check: Any = check) -> None:
    if sys.argv[1] == "--fails":
        for line in sys.stdin:
            try:
                found, _, _ = findings_of(ast.literal_eval(json.loads(line)), check)
            except Refused:
                found = []
            tell(findings=found)
        return
    seed, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        tell(start=seed)
        case = draw(seed)
        try:
            found, worst, compared = findings_of(case, check)
            tell(done=seed, worst=worst, compared=compared, kind=case.get("kind", "attention"))
            if found:
                tell(finding=found, seed=seed)
        except Refused as error:
            tell(refused=str(error), seed=seed)
        seed += 1
    tell(end=seed)


if __name__ == "__main__":
    main()
