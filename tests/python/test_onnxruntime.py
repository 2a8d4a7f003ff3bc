"""Compares the custom operator of apps/onnxruntime with float64 formulas and with ONNX Runtime's own Attention and MultiHeadAttention, and tests what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SEED

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import polyhead.onnx  # noqa: E402

LIBRARY = Path(os.environ.get("POLYHEAD_ONNXRUNTIME_LIBRARY", Path(__file__).resolve().parents[2] / "build/dev/apps/onnxruntime/libpolyhead_onnxruntime.so"))
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY.name} is not built: -DPOLYHEAD_BUILD_ONNXRUNTIME=ON needs the headers of ONNX Runtime")

NAMES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]


def model_of(arrays: dict[str, np.ndarray], outputs: int = 1, op: str = "Attention", domain: str = "", names: list[str] = NAMES, opset: int = 24, **attributes: Any) -> Any:
    inputs = [name if name in arrays else "" for name in names]
    while not inputs[-1]:
        inputs.pop()
    made = ["Y", "present_key", "present_value", "qk"][:outputs]
    node = onnx.helper.make_node(op, inputs, made, name="attention", domain=domain, **attributes)
    info = onnx.helper.make_tensor_value_info
    kind = onnx.helper.np_dtype_to_tensor_dtype
    dtype = kind(next(iter(arrays.values())).dtype)
    graph = onnx.helper.make_graph([node], "graph", [info(n, kind(a.dtype), a.shape) for n, a in arrays.items()], [info(n, dtype, None) for n in made])
    opsets = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 11
    return model


def session(model: Any, threads: int = 2) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(LIBRARY))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ours(arrays: dict[str, np.ndarray], outputs: int = 1, threads: int = 2, **attributes: Any) -> list[np.ndarray]:
    return session(model_of(arrays, outputs, domain="polyhead", **attributes), threads).run(None, arrays)  # type: ignore[no-any-return]


def formula(a: dict[str, np.ndarray], is_causal: int = 0, scale: float | None = None, softcap: float = 0.0, left: int = -1, right: int = -1) -> np.ndarray:
    """ONNX's Attention in float64, with heads in four dimensions; rows without keys are 0."""
    q, k, v = (a[name].astype(np.float64) for name in "QKV")
    past = 0
    if "past_key" in a:
        past = a["past_key"].shape[2]
        k, v = np.concatenate([a["past_key"], k], axis=2), np.concatenate([a["past_value"], v], axis=2)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    score = np.einsum("bntd,bnsd->bnts", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    score = softcap * np.tanh(score / softcap) if softcap else score
    batch, _, queries, keys = score.shape
    lengths = a.get("nonpad_kv_seqlen", np.full(batch, keys))
    offset = lengths - queries if "nonpad_kv_seqlen" in a else np.full(batch, past)
    distance = np.arange(keys) - (np.arange(queries)[:, None] + offset[:, None, None, None])
    allowed = (np.arange(keys) < lengths[:, None, None, None]) & ((distance <= 0) | (not is_causal))
    allowed &= ((distance >= -left) | (left < 0)) & ((distance <= right) | (right < 0))
    if "attn_mask" in a:
        mask = a["attn_mask"]
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        if mask.dtype == np.bool_:
            allowed = allowed & np.pad(mask, missing)
        else:
            score = score + np.pad(mask.astype(np.float64), missing, constant_values=-np.inf)
    score = np.where(allowed, score, -np.inf)
    top = score.max(-1, keepdims=True)
    p = np.exp(score - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return np.asarray((p / np.where(total == 0, 1, total)) @ v)


def split(x: np.ndarray) -> np.ndarray:
    """[B,N,T,H] as [B,T,N*H]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)


TOLERANCE = {"float64": 2e-7, "float32": 3e-6, "float16": 3e-3}  # 2e-7 for float64, because ONNX stores the scale as float32


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("draw", range(24))
def test_random_calls_are_the_formula(draw: int, dtype: str) -> None:
    rng = np.random.default_rng([SEED, draw, *dtype.encode()])
    batch, kv, group, queries, keys, width, v_width = (int(x) for x in rng.integers([1, 1, 1, 1, 2, 1, 1], [4, 4, 4, 40, 70, 33, 33]))
    a = {name: rng.standard_normal(shape).astype(dtype) for name, shape in {"Q": (batch, kv * group, queries, width), "K": (batch, kv, keys, width), "V": (batch, kv, keys, v_width)}.items()}
    options: dict[str, Any] = {}
    total, past = keys, 0
    if draw % 4 == 1:
        past = int(rng.integers(1, 9))
        a |= {"past_key": rng.standard_normal((batch, kv, past, width)).astype(dtype), "past_value": rng.standard_normal((batch, kv, past, v_width)).astype(dtype)}
        total += past
    if draw % 4 == 2:
        a["nonpad_kv_seqlen"] = rng.integers(0, keys + 1, batch)
    if draw % 3:
        lead = [(), (kv * group,), (batch, 1), (1, kv * group), (batch, kv * group)][int(rng.integers(5))]
        covered = total if rng.random() < 0.7 else int(rng.integers(2, total + 1))
        shape = (*lead, queries, covered)
        a["attn_mask"] = rng.random(shape) < 0.6 if draw % 3 == 1 else rng.standard_normal(shape).astype(dtype)
    if rng.random() < 0.5:
        options["is_causal"] = 1
    window = {"left": int(rng.integers(-1, 9)), "right": int(rng.integers(-1, 9))} if rng.random() < 0.5 else {}
    options |= {"scale": 0.25} if rng.random() < 0.5 else {}
    options |= {"softcap": 2.0} if rng.random() < 0.3 else {}
    wanted = formula(a, **options, **window)
    given, attributes = dict(a), options | {f"{side}_window_size": size for side, size in window.items()}
    if draw % 2:
        given |= {name: split(a[name]) for name in "QKV"}
        attributes |= {"q_num_heads": kv * group, "kv_num_heads": kv}
        wanted = split(wanted)
    results = [ours(given, 3, threads, **attributes) for threads in (1, 2)]
    got = results[0]
    assert np.abs(got[0] - wanted).max() <= TOLERANCE[dtype] * max(1.0, np.abs(a["V"]).max())
    assert all(np.array_equal(x, y) for x, y in zip(*results)), "the number of threads changes the result"
    for x, new, old in ((got[1], "K", "past_key"), (got[2], "V", "past_value")):
        np.testing.assert_array_equal(x, np.concatenate([a[old], a[new]], axis=2) if past else a[new])


def test_bfloat16_is_float32_rounded() -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    a = {name: np.random.default_rng(SEED).standard_normal((1, 2, 5, 8)).astype(dtype) for name in "QKV"}
    model = model_of(a, domain="polyhead")
    cast = [onnx.helper.make_node("Cast", [f"{name}32"], [name], to=onnx.TensorProto.BFLOAT16) for name in "QKV"]
    graph = onnx.helper.make_graph(
        [*cast, *model.graph.node, onnx.helper.make_node("Cast", ["Y"], ["Y32"], to=onnx.TensorProto.FLOAT)],
        "graph",
        [onnx.helper.make_tensor_value_info(f"{name}32", onnx.TensorProto.FLOAT, a[name].shape) for name in "QKV"],
        [onnx.helper.make_tensor_value_info("Y32", onnx.TensorProto.FLOAT, None)],
    )
    model.graph.CopyFrom(graph)
    got = session(model).run(None, {f"{name}32": a[name].astype(np.float32) for name in "QKV"})[0]
    assert np.abs(got - formula(a)).max() < 2e-2


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "bias", "bias of four", "past", "softcap", "three dimensions"])
def test_replaced_attention_gives_what_onnxruntime_gives(kind: str) -> None:
    rng = np.random.default_rng([SEED, *kind.encode()])
    a: dict[str, Any] = {name: rng.standard_normal((2, 4 if name == "Q" else 2, 6, 16)).astype(np.float32) for name in "QKV"}
    attributes: dict[str, Any] = {"is_causal": int(kind == "causal")}
    if kind == "bool":
        a["attn_mask"] = (rng.random((6, 6)) < 0.6) | np.eye(6, dtype=bool)
    if kind.startswith("bias"):
        a["attn_mask"] = rng.standard_normal((2, 4, 6, 6) if "four" in kind else (6, 6)).astype(np.float32)
    if kind == "past":
        a |= {f"past_{name}": rng.standard_normal((2, 2, 3, 16)).astype(np.float32) for name in ("key", "value")}
    if kind == "softcap":
        attributes["softcap"] = 1.5
    if kind == "three dimensions":
        a = {name: split(x) for name, x in a.items()}
        attributes |= {"q_num_heads": 4, "kv_num_heads": 2}
    model = model_of(a, 3 if kind == "past" else 1, opset=23, **attributes)
    result = polyhead.onnx.replace_attention(model)
    assert (result.replaced, result.kept) == (["attention"], {}) and model.graph.node[0].domain == "" and result.model.graph.node[0].domain == "polyhead"
    for got, own in zip(session(result.model).run(None, a), session(model).run(None, a)):
        np.testing.assert_allclose(got, own, atol=3e-6, rtol=0)


MICROSOFT = list(polyhead.onnx._INPUTS)[:8]


@pytest.mark.parametrize("kind", ["plain", "bias", "bias of one head", "scale", "past"])
def test_replaced_multi_head_attention_gives_what_onnxruntime_gives(kind: str) -> None:
    rng = np.random.default_rng([SEED, *kind.encode()])
    a = {name: rng.standard_normal((2, 7, 32)).astype(np.float32) for name in ("query", "key", "value")}
    total = 7
    if kind == "past":
        a |= {name: rng.standard_normal((2, 4, 5, 8)).astype(np.float32) for name in ("past_key", "past_value")}
        total = 12
    if kind.startswith("bias") or kind == "past":
        a["attention_bias"] = rng.standard_normal((1 if "one" in kind else 2, 1 if "one" in kind else 4, 7, total)).astype(np.float32)
    attributes = {"num_heads": 4} | ({"scale": 0.5} if kind == "scale" else {})
    model = model_of(a, 3 if kind == "past" else 1, "MultiHeadAttention", "com.microsoft", MICROSOFT, 23, **attributes)
    result = polyhead.onnx.replace_attention(model)
    assert (result.replaced, result.kept) == (["attention"], {})
    for got, own in zip(session(result.model).run(None, a), session(model).run(None, a)):
        np.testing.assert_allclose(got, own, atol=3e-6, rtol=0)


@pytest.mark.parametrize(
    ("given", "outputs", "attributes", "why"),
    [
        ({"bias": (96,)}, 1, {}, "it has the input bias"),
        ({"key_padding_mask": (2,)}, 1, {}, "it has the input key_padding_mask"),
        ({}, 1, {"unidirectional": 1}, "it is unidirectional"),
        ({}, 4, {}, "it has the output qk"),
    ],
)
def test_nodes_of_multi_head_attention_that_polyhead_cannot_compute_stay(given: dict[str, Any], outputs: int, attributes: dict[str, Any], why: str) -> None:
    a = {name: np.zeros((2, 7, 32), np.float32) for name in ("query", "key", "value")} | {name: np.zeros(shape, np.float32) for name, shape in given.items()}
    model = model_of(a, outputs, "MultiHeadAttention", "com.microsoft", MICROSOFT, 23, num_heads=4, **attributes)
    result = polyhead.onnx.replace_attention(model)
    assert result == (model, [], {"attention": why})


@pytest.mark.parametrize(("outputs", "attributes", "why"), [(4, {}, "it has the output qk_matmul_output"), (1, {"softmax_precision": 11}, "its softmax_precision is DOUBLE"), (1, {"other": 1}, "it has the attribute other"), (1, {"softcap": -1.0}, "its softcap is -1")])
def test_nodes_of_attention_that_polyhead_cannot_compute_stay(outputs: int, attributes: dict[str, Any], why: str) -> None:
    model = model_of({name: np.zeros((1, 1, 2, 4), np.float32) for name in "QKV"}, outputs, **attributes)
    assert polyhead.onnx.replace_attention(model) == (model, [], {"attention": why})
    with pytest.raises(TypeError, match="model is str; it must be an onnx.ModelProto"):
        polyhead.onnx.replace_attention("model.onnx")


def test_functions_and_subgraphs() -> None:
    """A node inside of a model's function is replaced if its attributes are numbers. A node inside of an If is replaced, too."""
    rng = np.random.default_rng(SEED)
    arrays = {name: rng.standard_normal((2, 7, 32), dtype=np.float32) for name in "QKV"}
    info = [onnx.helper.make_tensor_value_info(name, 1, [2, 7, 32]) for name in "QKV"]
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in (("", 24), ("com.microsoft", 1), ("own", 1))]
    out = [onnx.helper.make_tensor_value_info("Y", 1, None)]
    for referenced in (None, "num_heads", "scale", "unidirectional"):
        given = {"num_heads": 4, "scale": 2.0, "unidirectional": 0 if referenced != "unidirectional" else 1}
        attributes = {name: value for name, value in given.items() if name != referenced and (name != "unidirectional" or value == 0)}
        inner = onnx.helper.make_node("MultiHeadAttention", ["Q", "K", "V"], ["Y"], name="attention", domain="com.microsoft", **attributes)
        if referenced:
            reference = onnx.AttributeProto(name=referenced, ref_attr_name="handed_on", type=onnx.AttributeProto.FLOAT if referenced == "scale" else onnx.AttributeProto.INT)
            inner.attribute.append(reference)
        function = onnx.helper.make_function("own", "block", ["Q", "K", "V"], ["Y"], [inner], opsets[:2], ["handed_on"] if referenced else [])
        call = onnx.helper.make_node("block", ["Q", "K", "V"], ["Y"], domain="own", **({"handed_on": given[referenced]} if referenced else {}))
        model = onnx.helper.make_model(onnx.helper.make_graph([call], "graph", info, out), opset_imports=opsets, functions=[function])
        model.ir_version = 11
        result = polyhead.onnx.replace_attention(model)
        assert result[1:] == (([], {"block/attention": f"its {referenced} refers to an attribute of the function"}) if referenced else (["block/attention"], {}))
        np.testing.assert_allclose(session(result.model).run(None, arrays)[0], session(model).run(None, arrays)[0], rtol=0, atol=2e-6)
    branch = [onnx.helper.make_graph([onnx.helper.make_node("Attention", ["Q", "K", "V"], ["Z"], name=f"in_{which}", q_num_heads=4, kv_num_heads=4, scale=scale)], which, [], [onnx.helper.make_tensor_value_info("Z", 1, None)]) for which, scale in (("then", 2.0), ("else", 0.5))]
    choice = onnx.helper.make_node("If", ["which"], ["Y"], then_branch=branch[0], else_branch=branch[1])
    model = onnx.helper.make_model(onnx.helper.make_graph([choice], "graph", [*info, onnx.helper.make_tensor_value_info("which", 9, [])], out), opset_imports=opsets[:1])
    model.ir_version = 11
    result = polyhead.onnx.replace_attention(model)
    assert sorted(result.replaced) == ["in_else", "in_then"]
    for which in (True, False):
        given = arrays | {"which": np.array(which)}
        np.testing.assert_allclose(session(result.model).run(None, given)[0], session(model).run(None, given)[0], rtol=0, atol=2e-6)


def test_other_attention_operators_are_listed() -> None:
    node = onnx.helper.make_node("GroupQueryAttention", ["Q", "K", "V"], ["Y"], name="grouped", domain="com.microsoft", num_heads=4, kv_num_heads=2)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "graph", [], []))
    assert polyhead.onnx.replace_attention(model)[1:] == ([], {"grouped": "it is GroupQueryAttention of com.microsoft"})


@pytest.mark.parametrize("batch, queries, keys, width", [(0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4), (2, 3, 5, 0)])
def test_extents_of_zero(batch: int, queries: int, keys: int, width: int) -> None:
    out = ours({"Q": f32(batch, 2, queries, 4), "K": f32(batch, 2, keys, 4), "V": f32(batch, 2, keys, width)})[0]
    np.testing.assert_array_equal(out, np.full((batch, 2, queries, width), 1.0 if keys else 0.0, np.float32))


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({"Q": f32(1, 3, 8)}, {}, r"Q is \[1,3,8\]; three dimensions need the attribute q_num_heads"),
        ({"Q": f32(1, 3, 8)}, {"q_num_heads": 3}, r"Q is \[1,3,8\]; its last extent must be a multiple of q_num_heads = 3"),
        ({}, {"q_num_heads": 3}, "which has 2 heads; q_num_heads is 3"),
        ({"K": f32(1, 2, 5, 6)}, {}, r"k is \[1,2,5,6\]; its last extent must be H = 4"),
        ({"K": f32(8, 8)}, {}, r"K is \[8,8\]; it must be"),
        ({"attn_mask": f32(3, 7)}, {}, r"bias is \[3,7\]"),
        ({"attn_mask": f32(3, 1)}, {}, "a last extent of 1 could mean"),
        ({"attn_mask": np.ones((3, 5), np.int32)}, {}, "attn_mask has ONNX's element type 6"),
        ({"attn_mask": np.ones((3, 5), np.float64)}, {}, "bias is float64"),
        ({"past_key": f32(1, 2, 3, 4)}, {}, "past_key and past_value must be given together"),
        ({"past_key": f32(1, 2, 3, 4), "past_value": f32(1, 1, 3, 4)}, {}, r"the past is \[1,1,3,4\]"),
        ({"past_key": f32(1, 2, 3, 4), "past_value": f32(1, 2, 3, 4), "nonpad_kv_seqlen": np.ones(1, np.int64)}, {}, "only one of them"),
        ({"nonpad_kv_seqlen": np.array([6])}, {}, r"a key length is 6; it must lie in \[0,S\]"),
        ({"attn_mask": np.ones((3, 4), np.int64)}, {}, "attn_mask is int64; it must be bool"),
        ({"nonpad_kv_seqlen": np.array([1, 1])}, {}, r"nonpad_kv_seqlen is \[2\]"),
        ({}, {"is_causal": 2}, "is_causal is 2; it must be 0 or 1"),
        ({}, {"left_window_size": -2}, "left_window_size is -2"),
        ({}, {"softmax_precision": 11}, "softmax_precision is DOUBLE"),
        ({}, {"softcap": -1.0}, "softcap"),
        ({}, {"scale": 1}, "attribute scale: Attribute name and type don't match"),
    ],
)
def test_refusals(change: dict[str, np.ndarray], attributes: dict[str, Any], message: str) -> None:
    a = {"Q": f32(1, 2, 3, 4), "K": f32(1, 2, 5, 4), "V": f32(1, 2, 5, 4)} | change
    with pytest.raises(Exception, match=message):
        ours(a, **attributes)


def test_the_library_exports_one_name() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["RegisterCustomOps"]
