"""Helpers of the tests that compare polyhead with transformers for checkpoints of random parameters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def saved(model: Any, folder: Path, dtype: Any = torch.float32, noise: Callable[[str], float] = lambda name: 0.1) -> Any:
    """Adds random numbers times ``noise(name)`` to each parameter and saves the model in the folder. No parameter is then 0 or 1: with such a value, a parameter
    that is not read would not be noticed."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += noise(name) * torch.randn_like(parameter)
    model = model.to(dtype).eval()
    model.save_pretrained(folder)
    return model


def close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    theirs = theirs.detach().float().numpy() if isinstance(theirs, torch.Tensor) else theirs
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max()))


def change_config(folder: Path, remove: str | None = None, **changes: Any) -> None:
    """Changes keys of config.json, and removes a key, which must be there."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if remove is not None:
        del config[remove]
    path.write_text(json.dumps(config | changes))
