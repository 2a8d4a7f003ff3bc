"""Tests keys and values that are stored as int8 with scales, bfloat16 or float16 while the query is float32. Results are compared with the formula in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import polyhead

Rng = np.random.Generator


def formula(q: Any, k: Any, v: Any) -> tuple[np.ndarray, np.ndarray]:
    """Computes out and p in float64 from q ``[B,N,T,H]``, k and v ``[B,K,S,.]``."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.asarray(x, np.float64), group, 1) for x in (k, v))
    score = np.asarray(q, np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p @ v, p


def drawn(rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 6, 5, 32), (2, 2, 70, 32), (2, 2, 70, 16)))
    return q, k, v


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantises rows in NumPy, as quantize_rows is defined."""
    scale = np.abs(x).max(-1) / np.float32(127)
    return np.rint(x / scale[..., None]).astype(np.int8), scale


def test_rows_are_quantised_as_defined(rng: Rng) -> None:
    for x in drawn(rng):
        elements, scale = polyhead.quantize_rows(x)
        expected, expected_scale = quantised(x)
        assert elements.dtype == np.int8 and scale.dtype == np.float32
        assert np.array_equal(elements, expected) and np.array_equal(scale, expected_scale)
        assert (np.abs(scale[..., None] * elements - x) <= scale[..., None] * (0.5 + 2**-15)).all()
        out, given = np.empty(x.shape, np.int8), np.empty(x.shape[:-1], np.float32)
        assert polyhead.quantize_rows(x, out=out, scale=given, num_threads=1)[0] is out
        assert np.array_equal(out, expected) and np.array_equal(given, scale)
    of_torch = polyhead.quantize_rows(torch.ones(3, 4))
    assert of_torch[0].dtype == torch.int8 and of_torch[1].tolist() == [np.float32(1) / np.float32(127)] * 3


@pytest.mark.parametrize("backend", polyhead.backends())
def test_int8_with_scales_is_the_formula(backend: str, rng: Rng) -> None:
    q, k, v = drawn(rng)
    (k8, k_scale), (v8, v_scale) = quantised(k), quantised(v)
    expected, p = formula(q, k_scale[..., None] * k8, v_scale[..., None] * v8)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    out, weights = polyhead.sdpa(q, k8, v8, return_attention_weights=True, backend=backend, **scales)
    assert np.abs(out - expected).max() < 1e-5 and np.abs(weights - p).max() < 1e-6
    assert np.abs(out - formula(q, k, v)[0]).max() < 0.05
    assert np.abs(polyhead.maps(q, k8, k_scale=k_scale, backend=backend) - p).max() < 1e-6
    assert np.abs(polyhead.pooled_map(q, k8, 5, 70, k_scale=k_scale, backend=backend) - p).max() < 1e-6
    assert np.abs(polyhead.head_statistics(q, k8, k_scale=k_scale, backend=backend)["largest"] - p.max(-1).mean(-1)).max() < 1e-6
    top = polyhead.maps(q, k8, top_k=1, k_scale=k_scale, backend=backend)
    assert np.array_equal(top.key[..., 0], p.argmax(-1))
    assert "keys and values: int8 with a scale for each token and head" in polyhead.explain(q, k8, v8, **scales)


def test_int8_with_a_query_in_sixteen_bits(rng: Rng) -> None:
    q, k, v = drawn(rng)
    (k8, k_scale), (v8, v_scale) = quantised(k), quantised(v)
    half = torch.from_numpy(q).bfloat16()
    out = polyhead.sdpa(half, *map(torch.from_numpy, (k8, v8)), k_scale=torch.from_numpy(k_scale), v_scale=torch.from_numpy(v_scale))
    expected, _ = formula(half.float().numpy(), k_scale[..., None] * k8, v_scale[..., None] * v8)
    assert out.dtype == torch.bfloat16 and np.abs(out.float().numpy() - expected).max() < 0.02


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_beside_float32(dtype: Any, rng: Rng) -> None:
    q, k, v = drawn(rng)
    k16, v16 = k.astype(dtype), v.astype(dtype)
    out = polyhead.sdpa(q, k16, v16)
    assert out.dtype == np.float32
    assert np.abs(out - formula(q, k16.astype(np.float32), v16.astype(np.float32))[0]).max() < 1e-5
    assert np.array_equal(out, polyhead.sdpa(q, k16.astype(np.float32), v16.astype(np.float32)))


def test_the_operator_of_torch_takes_a_cache_in_sixteen_bits(rng: Rng) -> None:
    q, k, v = map(torch.from_numpy, drawn(rng))
    from polyhead.torch import _ops
    from polyhead.torch._rules import Options

    k, v = k.bfloat16(), v.bfloat16()
    out, _, _ = _ops.attention(q, k, v, *Options())
    assert torch.equal(out, polyhead.sdpa(q, k.float(), v.float()))


def test_a_layer_reads_projected_keys_in_int8(rng: Rng) -> None:
    layer = polyhead.MultiHeadAttention(12, heads=4, kv_heads=2, seed=1)
    x = rng.standard_normal((3, 20, 12), dtype=np.float32)
    k, v = rng.standard_normal((2, 3, 2, 9, 3), dtype=np.float32)
    (k8, k_scale), (v8, v_scale) = quantised(k), quantised(v)
    stored = {"projected_key": k8, "projected_value": v8, "projected_key_scale": k_scale, "projected_value_scale": v_scale}
    restored = {"projected_key": k_scale[..., None] * k8, "projected_value": v_scale[..., None] * v8}
    assert np.array_equal(layer(x, **stored), layer(x, **restored))
    out, saved = layer.forward(x, **stored)
    assert np.array_equal(out, layer(x, **restored))
    assert np.array_equal(saved.maps(), layer.forward(x, **restored)[1].maps())
    with pytest.raises(ValueError, match="projected_key is int8; gradients need keys and values in the dtype of the parameters, float32"):
        saved.backward(out)
    with pytest.raises(ValueError, match="projected_value_scale is missing"):
        layer(x, projected_key=k8, projected_value=v8, projected_key_scale=k_scale)
    added = polyhead.MultiHeadAttention(12, heads=4, kv_heads=2, add_zero_attn=True)
    with pytest.raises(ValueError, match="projected_key is int8 and cannot be combined with add_bias_kv or add_zero_attn"):
        added(x, **stored)
