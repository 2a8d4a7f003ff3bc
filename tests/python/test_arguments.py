"""Lists of argument names in Python agree with the library's table of arguments."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import polyhead
from polyhead._arguments import ARGUMENTS, DEFAULTS, GRADIENT_FIELDS, GRADIENTS, TENSORS, wanted_fields
from polyhead._layer import LayerOptions
from polyhead._options import SdpaOptions, annotations_of
from polyhead.torch import _ops, _rules, _transforms
from polyhead.torch._rules import Options, keywords, options_of

ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_argument_lists", ROOT / "scripts" / "make_argument_lists.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lists_are_those_of_the_table() -> None:
    maker = script()
    made = maker.lists()
    for file in maker.FILES:
        text = (ROOT / file).read_text()
        assert text.count("# arguments: ") > 0
        assert maker.written(text, made) == text, f"{file}: run scripts/make_argument_lists.py"


def test_an_argument_list_that_differs_is_written_again() -> None:
    maker = script()
    text = (ROOT / maker.FILES[0]).read_text()
    assert maker.written(text.replace("    attend: Array | None\n", "    other: int\n"), maker.lists()) == text


def test_keywords_and_defaults_follow() -> None:
    of = {group: [argument.name for argument in ARGUMENTS if argument.group == group] for group in ("inputs", "pass", "sdpa", "layer", "relative_bias")}
    assert of["inputs"] == ["q", "k", "v", "k_scale", "v_scale"]
    assert list(annotations_of(SdpaOptions)) == [*of["pass"], *of["sdpa"]]
    assert list(annotations_of(LayerOptions)) == [*of["pass"], *of["layer"]]
    assert tuple(of["relative_bias"]) == polyhead.RelativeBias._fields
    assert DEFAULTS == {"softcap": 0.0, "dropout": 0.0, "empty_rows": "zero", "precision": "native", "training": False}
    for name, parameter in inspect.signature(polyhead.sdpa).parameters.items():
        if name in annotations_of(SdpaOptions):
            assert parameter.default == DEFAULTS.get(name), name
    assert GRADIENTS == ("q", "k", "v", "bias", "sink", "slopes", "table")


def test_gradients_and_tangents_have_the_fields_of_the_table() -> None:
    assert polyhead.Gradients._fields == polyhead.Tangents._fields == GRADIENT_FIELDS
    assert polyhead.SecondGradients._fields == (*GRADIENT_FIELDS, "d_out")
    assert wanted_fields([("q", True), ("bias", False), ("table", True)]) == tuple(field in ("q", "relative_bias") for field in GRADIENT_FIELDS)
    q = np.ones((1, 2, 4), np.float32)
    out, lse = polyhead.sdpa(q, q, q, return_lse=True)
    for wanted in ((True,) * (len(GRADIENT_FIELDS) - 1), (True,) * (len(GRADIENT_FIELDS) + 1)):
        with pytest.raises(TypeError, match=f"wanted has {len(wanted)} entries; it must have {len(GRADIENT_FIELDS)}"):
            polyhead._core.sdpa_backward(q, q, q, out, lse, out, {}, None, wanted)


def example(annotation: str) -> Any:
    """Returns a value for an argument with this type. The value differs from the argument's default."""
    return {"float | None": 0.5, "float": 0.25, "EmptyRows": "unmasked", "Precision": "exact", "Causal": 3, "Window": (2, None), "BlockSize": (16, 64)}[annotation]


@pytest.mark.parametrize("argument", [argument for argument in _rules.TAKEN if argument.name != "relative_bias"], ids=lambda argument: argument.name)
def test_options_of_operators_keep_each_argument(argument: Any) -> None:
    value = torch.ones(1) if argument.extent else example(argument.annotation)
    given = {argument.name: value} | ({"blocks": torch.ones(1)} if argument.name == "block_size" else {})
    options = options_of(given)
    assert options != Options()
    assert keywords(torch.ones(1), options)[argument.name] is value if argument.extent else keywords(torch.ones(1), options)[argument.name] == value


def test_a_relative_bias_comes_back() -> None:
    relative = polyhead.RelativeBias(table=torch.ones(2, 8), bidirectional=False, max_distance=9, diagonal=-1)
    assert keywords(torch.ones(1), options_of({"relative_bias": relative}))["relative_bias"] == relative


def test_every_tensor_is_known_to_transforms() -> None:
    """The tables of the transforms contain every tensor argument: they say whether vmap can stack the examples of the tensor in one call, or all sequences of a call share it."""
    known = {*_transforms._PAIRS, *_transforms._KEYS, *_transforms._ROWS, *_transforms._SEQUENCES}
    shared = {argument.name for argument in TENSORS if argument.extent in ("documents", "heads")}
    assert {argument.name for argument in TENSORS} <= known | shared
    assert not known & shared


def test_the_schema_has_every_option() -> None:
    schema = torch.ops.polyhead.attention.default._schema
    assert [argument.name for argument in schema.arguments] == ["q", "k", "v", *Options._fields]
    assert len(torch.ops.polyhead.attention_backward.default._schema.returns) == len(GRADIENTS)
    assert _ops.INPUTS == ("q", "k", "v", *Options._fields)


def test_an_option_that_has_no_translation_to_onnx_is_refused() -> None:
    from polyhead.torch._onnx import _Reads

    o = _Reads(Options(attend=np.ones(1), softcap=2.0))
    assert o.softcap == 2.0
    with pytest.raises(NotImplementedError, match="attend is given"):
        o.require_all()
    assert o.attend is not None
    o.require_all()
