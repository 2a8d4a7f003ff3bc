"""States the types of the results of the main calls. mypy checks this file (test_docs.py): if a result were Any, assert_type would be an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_type

import polyhead
import polyhead.distributed
import polyhead.torch

if TYPE_CHECKING:
    import jax

    import polyhead.jax

    Array = np.ndarray[Any, np.dtype[Any]]


def numpy_calls(q: Array, flag: bool) -> None:
    assert_type(polyhead.sdpa(q, q, q, causal="top_left"), Array)
    out, lse = polyhead.sdpa(q, q, q, return_lse=True)
    assert_type(lse, Array)
    assert_type(polyhead.sdpa(q, q, q, return_attention_weights=True), tuple[Array, Array])
    assert_type(polyhead.sdpa(q, q, q, return_lse=True, return_attention_weights=True), tuple[Array, Array, Array])
    assert_type(polyhead.sdpa(q, q, q, return_lse=flag), Array | tuple[Array, ...])
    assert_type(polyhead.sdpa_backward(q, q, q, out, lse, q, d_bias=q).bias, Array)
    tangents = polyhead.Tangents(q=q)
    assert_type(polyhead.sdpa_jvp(q, q, q, out, lse, tangents), Array)
    assert_type(polyhead.sdpa_jvp(q, q, q, out, lse, tangents, return_lse=True), tuple[Array, Array])
    assert_type(polyhead.sdpa_jvp(q, q, q, out, lse, tangents, return_lse=flag), Array | tuple[Array, Array])
    assert_type(polyhead.sdpa_backward_backward(q, q, q, out, lse, q, polyhead.sdpa_backward(q, q, q, out, lse, q)).d_out, Array)
    assert_type(polyhead.maps(q, q, rows=[0]), Array)
    assert_type(polyhead.maps(q, q, top_k=3).key, Array)
    assert_type(polyhead.head_statistics(q, q)["entropy"], Array)
    assert_type(polyhead.pooled_map(q, q, 2, 2), Array)
    assert_type(polyhead.quantize_rows(q), tuple[Array, Array])
    model = polyhead.models.load("sentiment")
    if isinstance(model, polyhead.models.TextClassifier):
        assert_type(model("fine").rating, float | None)
        assert_type(model("fine").pooling, Array)
    layer = polyhead.MultiHeadAttention(8, 2)
    assert_type(layer(q), Array)
    result, saved = layer.forward(q, block_keys=q)
    assert_type(saved.maps(), Array)
    assert_type(saved.backward(result).query, Array)
    polyhead.sdpa(q, q, q, attend=memoryview(b""))  # objects with the buffer protocol or DLPack are arrays
    polyhead.sdpa(q, [1.0], q)  # type: ignore[call-overload]  # a list is no array
    polyhead.sdpa(q, q, q, causal="left")  # type: ignore[call-overload]
    polyhead.sdpa(q, q, q, bais=q)  # type: ignore[call-overload]


def torch_calls(q: Tensor, flag: bool) -> None:
    assert_type(polyhead.sdpa(q, q, q), Tensor)
    assert_type(polyhead.torch.attention(q, q, q), Tensor)
    with polyhead.torch.replace_sdpa() as replaced:
        assert_type(replaced.passed_on, dict[str, int])
    polyhead.transformers.register()  # modules that are imported on first use have types, too
    assert_type(polyhead.patch.esm().applied, bool)
    polyhead.tensorflow  # type: ignore[attr-defined]
    assert_type(polyhead.torch.attention(q, q, q, return_lse=True), tuple[Tensor, Tensor])
    assert_type(polyhead.torch.attention(q, q, q, return_lse=True, return_attention_weights=True, bias=q), tuple[Tensor, Tensor, Tensor])
    assert_type(polyhead.torch.attention(q, q, q, return_attention_weights=flag), Tensor | tuple[Tensor, ...])
    assert_type(polyhead.torch.scaled_dot_product_attention(q, q, q), Tensor)
    assert_type(polyhead.torch.triangle_attention(q, q, q, q), Tensor)
    assert_type(polyhead.torch.triangle_attention(q, q, q, q, return_aux=True), tuple[Tensor, Tensor, Tensor])
    assert_type(polyhead.torch.MultiheadAttention(8, 2).forward(q, q, q), tuple[Tensor, Tensor | None])
    assert_type(polyhead.torch.MultiheadAttention(8, 2)(q, q, q, need_weights=flag), tuple[Tensor, Tensor | None])
    gated = polyhead.torch.GatedAttention(8, 4, 2, axis=-2)
    assert_type(gated.forward(q), Tensor)
    assert_type(gated(q, attend_keys=q, mask_like_input=True), Tensor)
    assert_type(gated(q, return_attention_weights=True), tuple[Tensor, Tensor])
    assert_type(gated(q, None, None, flag), Tensor | tuple[Tensor, Tensor])
    gated([1.0])  # type: ignore[call-overload]
    polyhead.torch.MultiheadAttention(8, 2)(q, q, q, mask=q)  # type: ignore[call-arg]
    polyhead.torch.attention(q, q, q, seed=3)  # type: ignore[call-overload]
    ranks = polyhead.distributed.TorchCommunicator()
    assert_type(polyhead.distributed.attention(q, q, q, order="zigzag", plan=(1, 2), bias=q), Tensor)
    assert_type(polyhead.distributed.attention(q, q, q, ranks, return_lse=True), tuple[Tensor, Tensor])
    assert_type(polyhead.distributed.sdpa(q, q, q, ranks, return_lse=flag), Tensor | tuple[Tensor, Tensor])
    assert_type(polyhead.distributed.take_slice(q, 1, "zigzag", 0, 2), Tensor)
    polyhead.distributed.attention(q, q, q, 3)  # type: ignore[call-overload]  # a number is no group
    polyhead.distributed.sdpa(q, q, q, polyhead.distributed.MpiCommunicator(), order="ring")  # type: ignore[call-overload]


def jax_calls(q: jax.Array) -> None:
    assert_type(polyhead.jax.attention(q, q, q), "jax.Array")
    assert_type(polyhead.jax.attention(q, q, q, return_lse=True), "tuple[jax.Array, jax.Array]")
