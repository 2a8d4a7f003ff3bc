"""Runs the checks of scripts/soak for some seeds on the instruction set in use, and tests that they notice errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import QUICK

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))
import check  # noqa: E402
import files  # noqa: E402
import reduce  # noqa: E402
import strict  # noqa: E402
from cases import Built, draw  # noqa: E402

CASES = 150 if QUICK else 600


def test_random_attention_is_within_its_bounds(summary: list[str]) -> None:
    worst, compared, refused = 0.0, 0, 0
    for seed in range(CASES):
        try:
            report = check.check(draw(seed))
        except check.Refused:
            refused += 1
            continue
        assert not report.findings, (seed, report.findings)
        worst, compared = max(worst, report.worst), compared + report.compared
    summary.append(f"soak: {CASES} attention problems, {compared} numbers, worst error {worst:.2f} of its bound")
    assert refused < CASES // 20


DEFECTS = {
    "scale": lambda problem: setattr(problem, "scale", problem.scale * 1.01),
    "one pair": lambda problem: problem.allowed.__setitem__((0, 0, -1, 0), ~problem.allowed[0, 0, -1, 0]),
    "v": lambda problem: problem.v.__setitem__((0, 0, 0), problem.v[0, 0, 0] + 0.1),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_number_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"seed": 1, "dtype": "float32", "lead": (2,), "N": 2, "K": 1, "T": 9, "S": 20, "H": 8, "V": 8, "spread": 1.0, "empty_rows": "zero", "threads": 2}
    assert not check.check(case).findings
    whole = Built.problem

    def wrong(self: Any) -> Any:
        problem = whole(self)
        problem.allowed, problem.v = problem.allowed.copy(), problem.v.copy()
        DEFECTS[name](problem)
        return problem

    monkeypatch.setattr(Built, "problem", wrong)
    findings = check.check(case).findings
    assert any(finding.startswith("out") for finding in findings) and any(finding.startswith("d_q") for finding in findings), findings


def test_a_case_is_reduced_while_it_fails() -> None:
    case = draw(3) | {"softcap": 5.0, "T": 40, "query_offsets": None}
    small = reduce.reduced({name: value for name, value in case.items() if value is not None}, lambda c: c.get("softcap") == 5.0 and c["T"] >= 7)
    assert small["T"] == 7 and small["softcap"] == 5.0 and "causal" not in small and small["S"] == 1
    assert "softcap" in reduce.script(small, "avx2", ["out[0] is 1"], "tests/soak")


def test_damaged_files(tmp_path: Path) -> None:
    kinds = files.Files(tmp_path, None)
    for seed in range(60 if QUICK else 300):
        kind, wrong = kinds.one(seed)
        assert wrong is None, (seed, wrong)


def test_the_strict_reader_refuses_what_a_lenient_one_takes() -> None:
    def file(header: str, data: bytes = bytes(4)) -> bytes:
        return len(header).to_bytes(8, "little") + header.encode() + data

    good = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    np.testing.assert_array_equal(strict.safetensors_of(file(good))["a"], [0])
    twice = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    for bad in (file(twice), file(good, bytes(8)), file(good.replace("[0,4]", "[4,8]"), bytes(8)), file(good.replace("[1]", "[NaN]")), file(" " + good)):
        with pytest.raises(ValueError):
            strict.safetensors_of(bad)
