"""Tests how files are handled that are missing, damaged or oddly named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyhead
from wrong_arguments import LAYER, shaped

def test_files_that_are_not_there_are_os_errors(tmp_path: Path) -> None:
    for name in ("none.safetensors", "none.npz", "folder"):
        with pytest.raises(OSError, match=name):
            polyhead.load(tmp_path / name)
    with pytest.raises(OSError, match="none"):
        polyhead.save(LAYER, tmp_path / "none" / "layer.npz")
    with pytest.raises(OSError, match="none"):
        polyhead.view(shaped(1, 1, 2, 2) / np.float32(2), path=tmp_path / "none" / "page.html")


@settings(max_examples=60)
@given(content=st.binary(max_size=200), name=st.sampled_from(["x.safetensors", "x.npz"]))
def test_damaged_files_are_value_or_os_errors(content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(content)
    with pytest.raises((ValueError, OSError)):
        polyhead.load(path)


def test_truncated_npz_files_are_value_or_os_errors(tmp_path: Path) -> None:
    polyhead.save(LAYER, tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    for position in range(0, len(whole), 97):
        (tmp_path / "part.npz").write_bytes(whole[:position])
        with pytest.raises((ValueError, OSError)):
            polyhead.load(tmp_path / "part.npz", heads=2)


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX systems only")
def test_paths_may_have_names_that_are_no_utf_8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.safetensors"
    polyhead.save(LAYER, path)
    for given_path in (path, os.fsdecode(path), Path(os.fsdecode(path))):
        assert polyhead.load(given_path, heads=2).config["query_width"] == 8
    with pytest.raises(OSError, match="none"):
        polyhead.load(os.fsencode(tmp_path) + b"/\xff/none.safetensors")
