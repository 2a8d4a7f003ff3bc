"""ONNX's own node tests of `Attention`, generated in memory by the package onnx."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX's test cases come with the package onnx")

import onnx.backend.test.case.node.attention  # noqa: E402, F401  -- makes the cases as it is imported; other operators' take 20 s
from onnx.backend.test.case.node import _NodeTestCases  # noqa: E402
from onnx.backend.test.case.test_case import TestCase  # noqa: E402
from onnx_backend import run_attention  # noqa: E402

# Of onnx 1.23.2: 69 of opset 23, 13 of 24, 11 of 25. A later release may add to them.
EXPECTED_CASES = {23: 69, 24: 13, 25: 11}


def _attention_cases() -> list[TestCase]:
    # Every case comes a second time with the node expanded into primitive operators: nothing of attention is left to run there.
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
            # Ten times tighter than the suite in float32; in half precision what its own runner asks (two units of bfloat16).
            rtol, atol = {"float32": (1e-4, 1e-6), "bfloat16": (2**-6, case.atol)}.get(a.dtype.name, (case.rtol, case.atol))
            np.testing.assert_allclose(_as_float32(a), _as_float32(e), rtol=rtol, atol=atol)
