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
import layer_cases  # noqa: E402
import layer_oracle  # noqa: E402
import layers  # noqa: E402
import reduce  # noqa: E402
import stacks  # noqa: E402
import strict  # noqa: E402
from cases import Built, draw  # noqa: E402

CASES = 150 if QUICK else 600


@pytest.mark.parametrize(
    ("kind", "module", "draw_case", "cases", "most_refused"),
    [("attention", check, draw, CASES, CASES // 20 - 1), ("layers", layers, layer_cases.draw, 40 if QUICK else 400, 9)],
    ids=["attention", "layers"],
)
def test_random_problems_are_within_their_bounds(kind: str, module: Any, draw_case: Any, cases: int, most_refused: int, summary: list[str]) -> None:
    worst, compared, refused, left_out = 0.0, 0, 0, 0
    for seed in range(cases):
        case = draw_case(seed)
        if QUICK and kind == "attention" and seed % 3 and np.prod([*case["lead"], case["N"], case["T"], case["S"]], dtype=int) > 2**14:
            left_out += 1  # leave out the fifth of the cases that takes nine tenths of the time
            continue
        try:
            report = module.check(case)
        except module.Refused:
            refused += 1
            continue
        assert not report.findings, (seed, report.findings)
        worst, compared = max(worst, report.worst), compared + report.compared
    summary.append(f"soak: {cases - left_out} problems of {kind}, {compared} numbers, worst error {worst:.2f} of its bound")
    assert refused <= most_refused


# Without the program there is nothing to test: a package that pip installs has no build folder. scripts/test builds the program first.
@pytest.mark.skipif(not Path(stacks.PROGRAM[0]).exists(), reason="polyhead_run_stack has not been built")
def test_random_stacks_are_within_their_bounds(summary: list[str]) -> None:
    reports = [(seed, stacks.check(stacks.draw(seed))) for seed in range(20 if QUICK else 150)]
    assert not [(seed, report.findings) for seed, report in reports if report.findings]
    summary.append(f"soak: stacks, {sum(report.compared for _, report in reports)} numbers, worst error {max(report.worst for _, report in reports):.2f} of its bound")


LAYER = {"seed": 4, "kind": "attention", "dtype": "float64", "lead": (2,), "N": 4, "K": 2, "T": 7, "S": 9, "H": 4, "V": 5, "E": 6, "Ek": 5, "Ev": 8, "Eo": 3, "self": "", "axis": 1, "spread": 1.0, "threads": 2,
         "empty_rows": "zero", "gate": True, "qk_norm": True, "add_bias_kv": True, "own_sink": True, "softcap": 5.0, "rotary": {"order": "pairs", "width": 2, "lead": True}, "causal": "top_left"}  # fmt: skip


@pytest.mark.parametrize("name", ["linear", "rms_norm", "rotate", "merged"])
def test_a_wrong_formula_of_a_layer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not layers.check(LAYER).findings
    right = getattr(layer_oracle, name)
    monkeypatch.setattr(layer_oracle, name, lambda *arguments: right(*arguments) * (1 + 1e-9))
    findings = layers.check(LAYER).findings
    assert any(finding.startswith("out") for finding in findings) and any(finding.startswith("d_parameter q.weight") for finding in findings), findings


@pytest.mark.parametrize("kind", ["cache", "pair_bias", "windows", "score_mod"])
def test_wrong_attention_of_a_layer_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in map(layer_cases.draw, range(500)) if case["kind"] == kind and case["dtype"] == "float64" and case["T"] > 4 and case["S"] > 4)
    assert not layers.check(case).findings
    right = layer_oracle.attend
    monkeypatch.setattr(layer_oracle, "attend", lambda *a, **named: right(*a, **{**named, "scale": named["scale"] * (1 + 1e-9)}))
    assert any("out" in finding for finding in layers.check(case).findings)


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
    layer = reduce.reduced({**LAYER, "lead": (2,)}, lambda c: c["H"] >= 3 and c["Ek"] >= 2 and "gate" in c)
    assert layer["H"] == 3 and layer["Ek"] == 2 and layer["lead"] == (1,) and layer["N"] == 1 and "qk_norm" not in layer and not layers.check(layer).findings
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
