"""Helpers of the tests that run the program on tiny checkpoints."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(os.environ.get("POLYHEAD_PROGRAM", Path(__file__).parents[2] / "build/dev/apps/polyhead/polyhead"))
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the program has not been built")


def run(command: str, *arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([PROGRAM, command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def view(*arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run("view", *arguments, status=status)


def page_data(html: str) -> Any:
    """The decoded data element of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script', html, re.S).group(1))  # type: ignore[union-attr]


def telling_head(maps: Any, queries: Any, keys: Any, *, same_text: bool) -> list[str]:
    """What the terminal may say of the head that it shows of attention maps ``[L,N,T,S]``, as docs/viewer.md says it: one head, or several whose scores agree to a
    float32's rounding. queries, keys: whether a token is special."""
    counted = ~np.asarray(queries, bool)[:, None] & ~np.asarray(keys, bool)
    if same_text:
        t, s = np.arange(maps.shape[2])[:, None], np.arange(maps.shape[3])
        counted = counted & (abs(t - s) > 1) & (s > 0)
    if not counted.any():  # the text of a small model may consist of special tokens only
        return [f"mean of its {maps.shape[1]} heads"]
    scores = np.where(counted, maps, 0).max(-1).mean(-1)
    return [f"layer {layer}, head {head}, which looks most at single other words of all {scores.size} heads" for layer, head in np.argwhere(scores >= (1 - 1e-6) * scores.max())]


def save(at: Path, model: Any, tokenizer: Any) -> Any:
    """Saves a model in a folder and returns the model in evaluation mode."""
    model.eval().save_pretrained(at)
    tokenizer.save_pretrained(at)
    return model
