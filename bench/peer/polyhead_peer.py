"""polyhead through its NumPy interface."""

from __future__ import annotations

import numpy as np
import polyhead

from .cases import Case, relative_view
from .runner import Work

name = "polyhead"
version = polyhead.__version__


def start(threads: int) -> None:
    polyhead.set_num_threads(threads)


def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    return _layer(case, arrays) if case.layer else _attention(case, arrays)


def _attention(case: Case, a: dict[str, np.ndarray]) -> Work:
    q, k, v, d_out = a["q"], a["k"], a["v"], a.get("d_out")
    bias, d_bias = a.get("bias"), None
    if case.bias == "relative":
        bias, d_bias = (relative_view(table, case.T) for table in (a["bias_table"], np.empty_like(a["bias_table"])))
    options = {"attend": a.get("attend"), "bias": bias, "causal": "top_left" if case.causal else None, "dropout": case.dropout, "seed": 1}
    out = np.empty(case.output_shape, case.dtype)

    def forward() -> object:
        if case.maps:
            _, lse = polyhead.sdpa(q, k, v, out=out, return_lse=True, **options)
            return out, polyhead.maps(q, k, lse, **options)
        return (polyhead.sdpa(q, k, v, out=out, **options),)

    def both() -> object:
        _, lse = polyhead.sdpa(q, k, v, out=out, return_lse=True, **options)
        return out, polyhead.sdpa_backward(q, k, v, out, lse, d_out, d_bias=d_bias, **options)

    return Work(both if case.backward else forward, lambda result: result[0])


def _layer(case: Case, a: dict[str, np.ndarray]) -> Work:
    gated = case.layer == "gated"
    layer = polyhead.MultiHeadAttention(case.width, case.N, head_width=case.H, bias=False, output_bias=False, gate=gated)
    weights = {"q.weight": "w_q", "k.weight": "w_k", "v.weight": "w_v", "output.weight": "w_o"}
    if gated:
        weights |= {"gate.weight": "w_g", "gate.bias": "b_g"}
    for parameter, source in weights.items():
        layer.parameters[parameter][...] = a[source]
    options = {"bias": a["bias"], "attend_keys": np.ascontiguousarray(a["attend_keys"][:, 0, 0])} if gated else {}
    out = np.empty(case.output_shape, np.float32)
    x, d_out = a["x"], a.get("d_out")

    def forward() -> object:
        return (layer(x, out=out, **options),)

    def both() -> object:
        _, saved = layer.forward(x, out=out, **options)
        return out, saved.backward(d_out)

    return Work(both if case.backward else forward, lambda result: result[0])
