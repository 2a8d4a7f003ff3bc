"""Compares the steps that bench/folding.py measures with and without polyhead.patch: results, and gradients of inputs and parameters. A step is skipped if its package is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from patch_support import Counter, counter, randomize, require_same  # noqa: F401

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import folding  # noqa: E402


@pytest.mark.parametrize("case", folding.CASES)
def test_step(case: str, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    build, patch = folding.CASES[case]
    monkeypatch.setattr(folding, "ALIGNED", 3)
    torch.manual_seed(5)
    try:
        layer, inputs, call = build(16)
    except (ImportError, OSError) as error:  # no environment can have all these packages (docs/folding.md); some load a library of CUDA on import
        pytest.skip(f"the package cannot be imported: {error}")
    randomize(layer, torch.Generator().manual_seed(6)).eval()
    tensors: dict[str, Any] = {f"input {i}": x.requires_grad_() for i, x in enumerate(inputs)}
    require_same(patch, lambda: call(*inputs), tensors, layer, counter, tolerance=1e-5)
