"""The peer polyhead, called by its NumPy interface; the whole model is called by C functions (polyhead_encoder.cc)."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from typing import Any

import numpy as np
import polyhead

from . import encoder, rules
from .cases import Case, relative_view
from .runner import Unsupported, Work

name = "polyhead"
version = polyhead.__version__


def start(threads: int) -> None:
    polyhead.set_num_threads(threads)


def prepare(case: Case, arrays: dict[str, np.ndarray], **more: Any) -> Work:
    """more: further options of polyhead's function, for cases of attention without a layer."""
    if case.rule:
        return _score_rule(case, arrays)
    return {"attention": _attention, "layer": _layer, "encoder": _encoder}[case.kind](case, arrays, **more)


def _score_rule(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    """Calls polyhead.torch with a score_mod. In each call it is traced and interpreted."""
    import torch
    from polyhead.torch import attention

    torch.set_num_threads(polyhead.num_threads())
    return rules.torch_work(case, arrays, lambda q, k, v, score_mod: attention(q, k, v, score_mod=score_mod))


def _attention(case: Case, a: dict[str, np.ndarray], **more: Any) -> Work:
    q, k, v, d_out = a["q"], a["k"], a["v"], a.get("d_out")
    bias, d_bias = a.get("bias"), None
    if case.bias == "relative":
        bias, d_bias = (relative_view(table, case.T) for table in (a["bias_table"], np.empty_like(a["bias_table"])))
    relative = polyhead.RelativeBias(slopes=a["slopes"]) if case.bias == "alibi" else None
    offsets = np.cumsum([0, *case.lengths]) if case.lengths else None
    options = {"query_offsets": offsets, "relative_bias": relative, "attend": a.get("attend"), "bias": bias, "sink": a.get("sink"), "causal": "top_left" if case.causal else None, "dropout": case.dropout, "seed": 1} | more
    out = np.empty(case.output_shape, case.dtype)
    weights = np.empty((*case.output_shape[:-1], k.shape[-2]), case.dtype) if case.maps else None

    def forward() -> object:
        if case.maps:
            return polyhead.sdpa(q, k, v, out=out, attention_weights=weights, **options)
        return (polyhead.sdpa(q, k, v, out=out, **options),)

    def both() -> object:
        _, lse = polyhead.sdpa(q, k, v, out=out, return_lse=True, **options)
        return out, polyhead.sdpa_backward(q, k, v, out, lse, d_out, d_bias=d_bias, **options)

    d_gradients = polyhead.Tangents(**{name: a.get(f"d_d_{name}") for name in ("q", "k", "v", "bias")})

    def second() -> object:
        _, lse = polyhead.sdpa(q, k, v, out=out, return_lse=True, **options)
        gradients = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **options)
        return out, gradients, polyhead.sdpa_backward_backward(q, k, v, out, lse, d_out, d_gradients, **options)

    return Work(second if case.second else both if case.backward else forward, lambda result: result[0])


def _layer(case: Case, a: dict[str, np.ndarray]) -> Work:
    gated = case.layer == "gated"
    layer = polyhead.MultiHeadAttention(case.width, case.N, head_width=case.H, bias=False, output_bias=False, gate=gated)
    weights = {"q.weight": "w_q", "k.weight": "w_k", "v.weight": "w_v", "output.weight": "w_o"}
    if gated:
        weights |= {"gate.weight": "w_g", "gate.bias": "b_g"}
    for parameter, source in weights.items():
        layer.parameters[parameter][...] = a[source]
    if not case.backward:
        layer = layer.frozen()  # make the parameters constant: peers that build a graph also have constant parameters
    options = {"bias": a["bias"], "attend_keys": np.ascontiguousarray(a["attend_keys"][:, 0, 0])} if gated else {}
    out = np.empty(case.output_shape, np.float32)
    x, d_out = a["x"], a.get("d_out")

    def forward() -> object:
        return (layer(x, out=out, **options),)

    def both() -> object:
        _, saved = layer.forward(x, out=out, **options)
        return out, saved.backward(d_out)

    return Work(both if case.backward else forward, lambda result: result[0])


LIBRARY = pathlib.Path(__file__).parents[2] / "build/release/bench/libbench_encoder.so"


@functools.cache
def _library() -> ctypes.CDLL:
    if not LIBRARY.exists():
        raise Unsupported("build it first: cmake --preset release -DPOLYHEAD_BUILD_BENCH=ON && cmake --build --preset release --target bench_encoder")
    library = ctypes.CDLL(str(LIBRARY))
    library.encoder_load.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)]
    library.encoder_embed.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    for function in (library.encoder_load, library.encoder_embed):
        function.restype, function.errcheck = ctypes.c_char_p, _check
    library.encoder_free.argtypes, library.encoder_free.restype = [ctypes.c_void_p], None
    return library


def _check(wrong: bytes | None, *_: object) -> None:
    if wrong is not None:
        raise RuntimeError(wrong.decode())


class _LoadedEncoder:
    def __init__(self) -> None:
        self.handle, self.library = ctypes.c_void_p(), _library()
        self.library.encoder_load(str(encoder.folder()).encode(), polyhead.num_threads(), self.handle)

    def __del__(self) -> None:
        if hasattr(self, "library"):
            self.library.encoder_free(self.handle)


def _encoder(case: Case, a: dict[str, np.ndarray]) -> Work:
    model, ids, out = _LoadedEncoder(), a["ids"], np.empty(case.output_shape, np.float32)

    def run() -> object:
        model.library.encoder_embed(model.handle, ids.ctypes.data, *ids.shape, out.ctypes.data)
        return out

    return Work(run, lambda result: np.array(result))
