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


SETTINGS = {"softcap": 0.3, "axis": -3, "add_zero_attn": True, "empty_rows": "uniform", "precision": "exact", "dropout": 0.5}


@pytest.mark.parametrize("name", [*SETTINGS, "masked_mean"])
@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_setting_that_no_file_holds_is_refused_unless_it_is_left_out_by_name(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"layer.{suffix}"
    own = {"global_query": "masked_mean"} if name == "masked_mean" else {name: SETTINGS[name]}
    given = {name: True} if name == "masked_mean" else own
    layout, layer = ("alphafold", polyhead.MultiHeadAttention(8, 2, empty_rows="unmasked", **own)) if name == "masked_mean" else ("torch", polyhead.MultiHeadAttention(8, 2, **own))
    for refused in (lambda: polyhead.save(layer, path, layout=layout), lambda: layer.state(layout), lambda: layer.state(layout, without=["causal"])):
        with pytest.raises(ValueError, match=rf"^{name} is .*, and load would make a layer with .* '{layout}'.* write without=\['{name}'\], and give it to load again"):
            refused()
    assert not path.exists()
    polyhead.save(layer, path, layout=layout, without=[name])
    again = polyhead.load(path, layout, heads=2, **given)
    assert repr(again) == repr(layer)
    assert repr(polyhead.load(layer.state(layout, without=(name,)), layout, heads=2, **given)) == repr(layer)


def test_a_layer_that_is_causal_in_another_way_than_its_layout_is_refused(tmp_path: Path) -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    for layout, causal in (("torch", True), ("bert", True), ("vit", True), ("gpt2", False), ("mingpt", False), ("llama", False)):
        layer.causal = causal
        with pytest.raises(ValueError, match=rf"causal is {causal}, .* with {not causal}.* set it again after load"):
            polyhead.save(layer, tmp_path / "layer.safetensors", layout=layout)
        polyhead.save(layer, tmp_path / "layer.safetensors", layout=layout, without=["causal"])
        layer.causal = not causal
        polyhead.save(layer, tmp_path / "layer.safetensors", layout=layout)
        assert polyhead.load(tmp_path / "layer.safetensors", layout, heads=2).causal == layer.causal


def test_settings_that_contradict_a_layout_are_refused() -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match="empty_rows is zero, and load would make a layer with uniform"):
        layer.state("d2l")
    with pytest.raises(ValueError, match="empty_rows is 'zero', and the layout of the parameters says 'uniform'"):
        polyhead.load(layer.state("d2l", without=["empty_rows"]), "d2l", heads=2, empty_rows="zero")
    with pytest.raises(ValueError, match="other empty_rows"):
        polyhead.load(layer.state("d2l", without=["empty_rows"]), "d2l", heads=2, empty_rows="unmasked")
    layer.causal = True
    rotated = polyhead.load(layer.state("llama"), "llama", heads=2)
    assert rotated.needs_rotary
    with pytest.raises(ValueError, match="needs_rotary is True"):
        rotated.state("bart", without=["causal"])
    rotated.state("bart", without=["causal", "needs_rotary"])


def test_names_of_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="the argument without has the entry 'scale'; each must be one of axis, "):
        LAYER.state(without=["scale"])


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
