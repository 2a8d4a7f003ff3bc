"""ONNX Runtime: the Attention operator of ONNX opset 23. Inference only."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from .cases import Case
from .runner import Unsupported, Work, refuse_too_many_scores

name = "onnxruntime"
version = onnxruntime.__version__
_threads = 1


def start(threads: int) -> None:
    global _threads
    _threads = threads


def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    if case.backward:
        raise Unsupported("onnxruntime computes no gradients")
    if case.dropout:
        raise Unsupported("the Attention operator has no dropout")
    if case.dtype != "float32":
        raise Unsupported(f"the Attention operator has no {case.dtype} on a CPU")
    if len(case.leading) > 1:
        raise Unsupported("the Attention operator takes one leading dimension")
    refuse_too_many_scores(case)
    nodes, feeds, constants = (_layer if case.layer else _attention)(case, arrays)
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL}
    graph = helper.make_graph(
        nodes,
        case.name,
        [helper.make_tensor_value_info(key, kinds[array.dtype], array.shape) for key, array in feeds.items()],
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in (("out", "weights") if case.maps else ("out",))],
        [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    model.ir_version = min(model.ir_version, 11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Work(lambda: session.run(None, feeds), lambda result: result[0])


def _attention(case: Case, a: dict[str, np.ndarray]) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    feeds = {"q": a["q"], "k": a["k"], "v": a["v"]}
    mask = a.get("attend", a.get("bias"))
    if mask is not None:
        if mask.dtype == bool and mask.ndim == 4:
            mask = np.ascontiguousarray(np.broadcast_to(mask, (case.B, 1, case.T, case.keys)))
        feeds["mask"] = mask
    outputs = ["out", "", "", "weights"] if case.maps else ["out"]
    node = helper.make_node(
        "Attention", ["q", "k", "v"] + (["mask"] if mask is not None else []), outputs, is_causal=int(case.causal), scale=case.scale, qk_matmul_output_mode=3 if case.maps else 0
    )
    return [node], feeds, {}


def _layer(case: Case, a: dict[str, np.ndarray]) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    gated = case.layer == "gated"
    constants = {key: np.ascontiguousarray(a[key].T) for key in ("w_q", "w_k", "w_v", "w_o")}
    feeds = {"x": a["x"]}
    nodes = [helper.make_node("MatMul", ["x", f"w_{n}"], [n]) for n in "qkv"]
    inputs = ["q", "k", "v"]
    if gated:
        feeds["mask"] = np.where(a["attend_keys"], a["bias"], np.float32(-np.inf)).astype(np.float32)
        inputs.append("mask")
    nodes.append(helper.make_node("Attention", inputs, ["attended"], q_num_heads=case.N, kv_num_heads=case.N, scale=case.scale))
    last = "attended"
    if gated:
        constants |= {"w_g": np.ascontiguousarray(a["w_g"].T), "b_g": a["b_g"]}
        nodes += [
            helper.make_node("MatMul", ["x", "w_g"], ["g"]),
            helper.make_node("Add", ["g", "b_g"], ["g1"]),
            helper.make_node("Sigmoid", ["g1"], ["gate"]),
            helper.make_node("Mul", ["gate", "attended"], ["gated"]),
        ]
        last = "gated"
    nodes.append(helper.make_node("MatMul", [last, "w_o"], ["out"]))
    return nodes, feeds, constants
