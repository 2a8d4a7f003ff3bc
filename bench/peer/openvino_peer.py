"""OpenVINO: ScaledDotProductAttention of opset 13. Inference only."""

from __future__ import annotations

import functools

import numpy as np
import openvino
import openvino.opset13 as ops

from .cases import Case
from .runner import Unsupported, Work

name = "openvino"
version = openvino.__version__.split("-")[0]
_threads = 1


@functools.cache
def _core() -> openvino.Core:  # at the first case: importing a peer starts nothing
    return openvino.Core()


def start(threads: int) -> None:
    global _threads
    _threads = threads


def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    if case.backward:
        raise Unsupported("openvino computes no gradients")
    if case.dropout:
        raise Unsupported("its attention has no dropout")
    if case.maps:
        raise Unsupported("its attention gives no weights")
    if case.K:
        raise Unsupported("its attention has no grouped heads")
    if case.dtype != "float32":
        raise Unsupported(f"its {case.dtype} attention is a plain loop on processors without instructions for it")
    parameters: dict[str, object] = {}

    def parameter(key: str) -> object:
        parameters[key] = ops.parameter(arrays[key].shape, arrays[key].dtype.type if arrays[key].dtype != bool else np.bool_, key)
        return parameters[key]

    scale = ops.constant(np.float32(case.scale))
    if case.layer:
        x = parameter("x")
        heads = ops.constant(np.array([case.B, case.T, case.N, case.H]))
        order = ops.constant(np.array([0, 2, 1, 3]))
        q, k, v = (ops.transpose(ops.reshape(ops.matmul(x, ops.constant(arrays[f"w_{n}"]), False, True), heads, False), order) for n in "qkv")
        mask = ops.constant(np.float32(0))
        if case.layer == "gated":
            mask = ops.add(parameter("bias"), ops.constant(np.where(arrays["attend_keys"], 0, -np.inf).astype(np.float32)))
        out = ops.scaled_dot_product_attention(q, k, v, mask, scale)
        out = ops.reshape(ops.transpose(out, order), ops.constant(np.array([case.B, case.T, case.N * case.H])), False)
        if case.layer == "gated":
            gate = ops.sigmoid(ops.add(ops.matmul(x, ops.constant(arrays["w_g"]), False, True), ops.constant(arrays["b_g"])))
            out = ops.multiply(gate, out)
        out = ops.matmul(out, ops.constant(arrays["w_o"]), False, True)
    else:
        q, k, v = (parameter(key) for key in "qkv")
        key = "attend" if "attend" in arrays else "bias" if "bias" in arrays else ""
        mask = parameter(key) if key else ops.constant(np.float32(0))
        out = ops.scaled_dot_product_attention(q, k, v, mask, scale, causal=case.causal)
    model = openvino.Model([out], list(parameters.values()), case.name)
    compiled = _core().compile_model(
        model, "CPU", {"INFERENCE_NUM_THREADS": _threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    )
    request = compiled.create_infer_request()
    shared = [np.ascontiguousarray(arrays[key]) for key in parameters]  # a tensor does not keep its array alive
    for index, array in enumerate(shared):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

    def run(_: object = shared) -> object:
        request.infer()
        return request.get_output_tensor(0).data

    return Work(run, lambda result: np.array(result))
