"""Helpers of the tests that run the program on tiny checkpoints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(os.environ.get("POLYHEAD_PROGRAM", Path(__file__).parents[2] / "build/dev/apps/polyhead/polyhead"))
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the program has not been built")


def run(command: str, *arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([PROGRAM, command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def view(*arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run("view", *arguments, status=status)


def save(at: Path, model: Any, tokenizer: Any) -> Any:
    """Saves a model in a folder and returns the model in evaluation mode."""
    model.eval().save_pretrained(at)
    tokenizer.save_pretrained(at)
    return model
