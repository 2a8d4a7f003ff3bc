"""Runs ONNX's own test cases of the operator `Attention`, which the package onnx generates in memory."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX's test cases come with the package onnx")

import onnx.backend.test.case.node.attention  # noqa: E402, F401  -- the import makes the cases of Attention; making those of all operators takes 20 s
from onnx.backend.test.case.node import _NodeTestCases  # noqa: E402
from onnx.backend.test.case.test_case import TestCase  # noqa: E402
from onnx_backend import run_attention  # noqa: E402

# {opset: number of cases} in onnx 1.23.2. A later release may have more.
EXPECTED_CASES = {23: 69, 24: 13, 25: 11}


def _attention_cases() -> list[TestCase]:
    # onnx also has each case with the node expanded into primitive operators. These cases have no Attention node and are left out.
    return [case for case in _NodeTestCases if [node.op_type for node in case.model.graph.node] == ["Attention"]]


CASES = _attention_cases()


def test_every_case_of_the_release_is_here(summary: list[str]) -> None:
    opsets = [case.model.opset_import[0].version for case in CASES]
    counts = {version: opsets.count(version) for version in sorted(set(opsets))}
    summary.append(f"ONNX Attention cases: {len(CASES)} ({', '.join(f'{count} of opset {version}' for version, count in counts.items())})")
    for version, count in EXPECTED_CASES.items():
        assert counts.get(version, 0) >= count
    assert len({case.name for case in CASES}) == len(CASES)


def _as_float32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_case_gives_the_expected_outputs(case: TestCase) -> None:
    node = case.model.graph.node[0]
    assert case.data_sets
    for inputs, expected in case.data_sets:
        actual = run_attention(node, inputs)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            assert a.dtype == e.dtype and a.shape == e.shape
            # In float32 the tolerance is a tenth of ONNX's. In bfloat16 it is that of ONNX's own runner, two units in the last place.
            rtol, atol = {"float32": (1e-4, 1e-6), "bfloat16": (2**-6, case.atol)}.get(a.dtype.name, (case.rtol, case.atol))
            np.testing.assert_allclose(_as_float32(a), _as_float32(e), rtol=rtol, atol=atol)
