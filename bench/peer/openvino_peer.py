"""The peer OpenVINO, inference only: the operator ScaledDotProductAttention of opset 13."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np
import openvino
import openvino.opset13 as ops
from openvino import Node

from . import encoder
from .cases import Case, Encoder
from .runner import Unsupported, Work, adds_alibi, pads, refuse

name = "openvino"
version = openvino.__version__.split("-")[0]
_threads = 1


@functools.cache
def _core() -> openvino.Core:  # called for the first case, so that importing this module starts no threads
    return openvino.Core()


def start(threads: int) -> None:
    global _threads
    _threads = threads


@pads
@adds_alibi
def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    refuse(case, backward="it computes no gradients", rule="OpenVINO has no score rules", sink="its attention has no sink logits", dropout="its attention has no dropout", maps="its attention gives no weights",
           K="its attention has no grouped heads")  # fmt: skip
    native = case.dtype == "bfloat16"
    if case.dtype not in ("float32", "bfloat16") or (native and not _multiplies_bfloat16()):
        raise Unsupported(f"its {case.dtype} attention is a slow plain loop on processors without instructions for this dtype")
    parameters: dict[str, Node] = {}

    def parameter(key: str) -> Node:
        kind = openvino.Type.bf16 if arrays[key].dtype == "bfloat16" else arrays[key].dtype.type if arrays[key].dtype != bool else np.bool_
        parameters[key] = ops.parameter(arrays[key].shape, kind, key)
        return parameters[key]

    out = {"attention": _attention, "layer": _layer, "encoder": _encoder}[case.kind](case, arrays, parameter)
    model = openvino.Model([out], list(parameters.values()), case.name)
    compiled = _core().compile_model(
        model, "CPU", {"INFERENCE_NUM_THREADS": _threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if native else "f32"}
    )
    request = compiled.create_infer_request()
    shared = [np.ascontiguousarray(arrays[key]) for key in parameters]  # keep the arrays alive, because OpenVINO's tensors only refer to their memory
    for index, array in enumerate(shared):
        tensor = openvino.Tensor(openvino.Type.bf16, array.shape) if array.dtype == "bfloat16" else openvino.Tensor(array, shared_memory=True)
        if array.dtype == "bfloat16":
            tensor.data.view(np.uint16)[...] = array.view(np.uint16)
        request.set_input_tensor(index, tensor)

    def run(_: object = shared) -> object:
        request.infer()
        return request.get_output_tensor(0).data

    def output(result: np.ndarray) -> np.ndarray:
        return result.view(ml_dtypes.bfloat16).astype(np.float32) if native else np.array(result)

    return Work(run, output)


@functools.cache
def _multiplies_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _attend(case: Case, q: Node, k: Node, v: Node, mask: Node | None = None) -> Node:
    def constant(x: float) -> Node:
        return ops.convert_like(ops.constant(np.float32(x)), q)

    return ops.scaled_dot_product_attention(q, k, v, constant(0) if mask is None else mask, constant(case.scale), causal=case.causal)


def _attend_merged(case: Case, qkv: Iterable[Node], mask: Node | None = None) -> Node:
    """Attention with merged heads: q, k, v [B,T,N*H] -> [B,T,N*H]."""
    heads, merged = (ops.constant(np.array(shape)) for shape in ([case.B, case.T, case.N, case.H], [case.B, case.T, case.N * case.H]))
    order = ops.constant(np.array([0, 2, 1, 3]))
    out = _attend(case, *(ops.transpose(ops.reshape(x, heads, False), order) for x in qkv), mask)
    return ops.reshape(ops.transpose(out, order), merged, False)


def _linear(x: Node, weight: np.ndarray) -> Node:
    return ops.matmul(x, ops.constant(weight), False, True)


def _attention(case: Case, a: dict[str, np.ndarray], parameter: Callable[[str], Node]) -> Node:
    q, k, v = (parameter(key) for key in "qkv")
    key = "attend" if "attend" in a else "bias" if "bias" in a else ""
    return _attend(case, q, k, v, parameter(key) if key else None)


def _layer(case: Case, a: dict[str, np.ndarray], parameter: Callable[[str], Node]) -> Node:
    x, gated = parameter("x"), case.layer == "gated"
    mask = ops.add(parameter("bias"), ops.constant(np.where(a["attend_keys"], 0, -np.inf).astype(np.float32))) if gated else None
    out = _attend_merged(case, (_linear(x, a[f"w_{n}"]) for n in "qkv"), mask)
    if gated:
        out = ops.multiply(ops.sigmoid(ops.add(_linear(x, a["w_g"]), ops.constant(a["b_g"]))), out)
    return _linear(out, a["w_o"])


def _encoder(case: Case, a: dict[str, np.ndarray], parameter: Callable[[str], Node]) -> Node:
    assert isinstance(case, Encoder)
    return encoder.forward(case, a | {"ids": parameter("ids")}, _Encoder(case))


class _Encoder:
    """Implements the encoder's operations as nodes of a graph. A parameter is an array, which becomes a constant."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def rows(self, table: np.ndarray, ids: Node) -> Node:
        return ops.gather(ops.constant(table), ids, ops.constant(0))

    def add(self, x: Node, y: Node | np.ndarray) -> Node:
        return ops.add(x, y)

    def linear(self, x: Node, weight: np.ndarray, bias: np.ndarray) -> Node:
        return ops.add(_linear(x, weight), bias)

    def norm(self, x: Node, weight: np.ndarray, bias: np.ndarray) -> Node:
        return ops.add(ops.multiply(ops.mvn(x, ops.constant([-1]), True, encoder.EPSILON, "inside_sqrt"), weight), bias)

    def gelu(self, x: Node) -> Node:
        return ops.gelu(x, "erf")

    def attend(self, *qkv: Node) -> Node:
        return _attend_merged(self.case, qkv)

    def pool(self, x: Node) -> Node:
        return ops.normalize_l2(ops.reduce_mean(x, ops.constant([1]), False), ops.constant([-1]), 1e-24, "max")
