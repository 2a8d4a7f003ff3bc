"""The peer ONNX Runtime, inference only: the operator Attention of ONNX opset 23; for one query of grouped heads ONNX Runtime's operator GroupQueryAttention."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from . import encoder
from .cases import Case, Encoder
from .runner import Unsupported, Work, adds_alibi, pads, refuse, refuse_too_many_scores

name = "onnxruntime"
version = onnxruntime.__version__
_threads = 1


def start(threads: int) -> None:
    global _threads
    _threads = threads


@pads
@adds_alibi
def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    refuse(case, backward="it computes no gradients", rule="ONNX Runtime has no score rules", sink="the Attention operator has no sink logits", dropout="the Attention operator has no dropout")
    if case.dtype != "float32":
        raise Unsupported(f"the Attention operator has no {case.dtype} on a CPU")
    if len(case.leading) > 1:
        raise Unsupported("the Attention operator takes one leading dimension")
    refuse_too_many_scores(case)
    if case.kind == "attention" and case.T == 1 and case.K:
        return _one_query(case, arrays)
    nodes, feeds, constants = {"attention": _attention, "layer": _layer, "encoder": _encoder}[case.kind](case, arrays)
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL, np.dtype(np.int64): TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        case.name,
        [helper.make_tensor_value_info(key, kinds[array.dtype], array.shape) for key, array in feeds.items()],
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in (("out", "weights") if case.maps else ("out",))],
        [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    model.ir_version = min(model.ir_version, 11)
    session = _session(model)
    return Work(lambda: session.run(None, feeds), lambda result: result[0])


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _one_query(case: Case, a: dict[str, np.ndarray]) -> Work:
    """The case of one query. The last key and value are new inputs; all others are in a cache, to which the operator appends the new ones in place."""
    B, N, K, S, H = case.B, case.N, case.K, case.keys, case.H
    shapes = {"q": (B, 1, N * H), "k": (B, 1, K * H), "v": (B, 1, K * H), "past_k": (B, K, S, H), "past_v": (B, K, S, H)}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    given += [helper.make_tensor_value_info("before", TensorProto.INT32, (B,)), helper.make_tensor_value_info("total", TensorProto.INT32, ())]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("out", (B, 1, N * H)), ("k_all", (B, K, S, H)), ("v_all", (B, K, S, H)))]
    node = helper.make_node(
        "GroupQueryAttention", [*shapes, "before", "total"], ["out", "k_all", "v_all"], domain="com.microsoft", num_heads=N, kv_num_heads=K, scale=case.scale
    )
    graph = helper.make_graph([node], case.name, given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = min(model.ir_version, 10)
    session = _session(model)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    rows = {name: a[name][:, :, -1:].transpose(0, 2, 1, 3).reshape(B, 1, -1) for name in ("q", "k", "v")}
    for name, array in rows.items():
        binding.bind_ortvalue_input(name, value(np.ascontiguousarray(array)))
    for name in ("k", "v"):
        cache = value(np.ascontiguousarray(a[name]))
        binding.bind_ortvalue_input(f"past_{name}", cache)
        binding.bind_ortvalue_output(f"{name}_all", cache)
    binding.bind_ortvalue_input("before", value(np.full(B, S - 1, np.int32)))
    binding.bind_ortvalue_input("total", value(np.array(S, np.int32)))
    out = value(np.empty((B, 1, N * H), np.float32))
    binding.bind_ortvalue_output("out", out)
    return Work(lambda: session.run_with_iobinding(binding), lambda _: out.numpy().reshape(B, 1, N, H).transpose(0, 2, 1, 3))


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


class _Graph:
    """Implements the encoder's operations as nodes of a graph. A value is the name of a node's output; a parameter is an array, which becomes a constant."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def _node(self, operation: str, *inputs: str | np.ndarray, **attributes: object) -> str:
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"w{len(self.constants)}")
            if not isinstance(value, str):
                self.constants[names[-1]] = value
        self.nodes.append(helper.make_node(operation, names, [f"x{len(self.nodes)}"], **attributes))
        return f"x{len(self.nodes) - 1}"

    def rows(self, table: np.ndarray, ids: str) -> str:
        return self._node("Gather", table, ids)

    def add(self, x: str, y: str | np.ndarray) -> str:
        return self._node("Add", x, y)

    def linear(self, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        return self._node("Add", self._node("MatMul", x, np.ascontiguousarray(weight.T)), bias)

    def norm(self, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        return self._node("LayerNormalization", x, weight, bias, epsilon=encoder.EPSILON)

    def gelu(self, x: str) -> str:
        return self._node("Gelu", x)

    def attend(self, *qkv: str) -> str:
        return self._node("Attention", *qkv, q_num_heads=self.case.N, kv_num_heads=self.case.N)

    def pool(self, x: str) -> str:
        return self._node("LpNormalization", self._node("ReduceMean", x, np.array([1]), keepdims=0), axis=-1)


def _encoder(case: Case, a: dict[str, np.ndarray]) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    assert isinstance(case, Encoder)
    graph = _Graph(case)
    last = encoder.forward(case, a | {"ids": "ids"}, graph)
    return [*graph.nodes, helper.make_node("Identity", [last], ["out"])], {"ids": a["ids"]}, graph.constants
