"""ONNX Runtime's own Attention beside the custom operator of apps/onnxruntime, in one process: calls alternate, and the smallest time of each counts.

    python bench/onnxruntime_operator.py LIBRARY [THREADS]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
import onnxruntime

import polyhead.onnx

library, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


print(f"onnxruntime {onnxruntime.__version__}, polyhead {polyhead.__version__}, {threads} threads, float32, 8 heads, T = S, width 64\ncase,T,onnxruntime ms,polyhead ms,ratio,largest difference")
rng = np.random.default_rng(0)
info = onnx.helper.make_tensor_value_info
for length in (512, 2048):
    for case in ("plain", "causal", "bias", "window 256"):
        a = {name: rng.standard_normal((1, 8, length, 64)).astype(np.float32) for name in "QKV"}
        attributes = {"is_causal": 1} if case == "causal" else {}
        if case == "bias":
            a["attn_mask"] = rng.standard_normal((1, 8, length, length)).astype(np.float32)
        if case.startswith("window"):  # ONNX Runtime's operator gets the window as a mask; polyhead's operator has attributes for a window
            distance = np.arange(length) - np.arange(length)[:, None]
            a["attn_mask"] = (distance <= 0) & (distance >= -256)
        node = onnx.helper.make_node("Attention", list(a), ["Y"], **attributes)
        inputs = [info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in a.items()]
        graph = onnx.helper.make_graph([node], "graph", inputs, [info("Y", onnx.TensorProto.FLOAT, None)])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11)
        other, own_inputs = polyhead.onnx.replace_attention(model).model, dict(a)
        if case.startswith("window"):
            changed = other.graph.node[0]
            del changed.input[3:], other.graph.input[3:]
            changed.attribute.extend([onnx.helper.make_attribute("left_window_size", 256), onnx.helper.make_attribute("right_window_size", 0)])
            del own_inputs["attn_mask"]
        runs = [(session(model), a), (session(other), own_inputs)]
        results, best = [s.run(None, x)[0] for s, x in runs], [np.inf, np.inf]
        end = time.perf_counter() + 3
        while time.perf_counter() < end:
            for i, (s, x) in enumerate(runs):
                start = time.perf_counter()
                s.run(None, x)
                best[i] = min(best[i], time.perf_counter() - start)
        print(f"{case},{length},{best[0] * 1e3:.2f},{best[1] * 1e3:.2f},{best[0] / best[1]:.2f},{np.abs(results[0] - results[1]).max():.1e}")
