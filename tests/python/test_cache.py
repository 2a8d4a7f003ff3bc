"""Tests KeyValueCache and RotaryEmbedding: decoding gives the results of whole sequences, a cache may use the caller's memory, rotary frequencies follow the published formulas."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import polyhead


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_chunks_through_a_cache_are_the_whole_sequence(rng: np.random.Generator) -> None:
    q = rng.standard_normal((2, 4, 9, 8))
    k, v = rng.standard_normal((2, 2, 2, 9, 8))
    whole = polyhead.sdpa(q, k, v, causal="top_left")
    cache = polyhead.KeyValueCache(2, 2, 9, 8, dtype="float64")
    for first, last in ((0, 4), (4, 5), (5, 9)):
        cache.append(k[:, :, first:last], v[:, :, first:last])
        out = polyhead.sdpa(q[:, :, first:last], cache.keys, cache.values, **cache.mask())
        np.testing.assert_allclose(out, whole[:, :, first:last], rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        polyhead.sdpa(q, cache.keys, cache.values, **cache.mask(causal=False)), polyhead.sdpa(q, k, v), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("order", ["halves", "pairs"])
def test_a_layer_fed_unequal_chunks_is_the_layer_over_whole_sequences(order: Any, rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(16, 4, kv_heads=2, dtype="float64", seed=1)
    embedding = polyhead.RotaryEmbedding(4, order=order)
    x = rng.standard_normal((3, 11, 16))
    whole = layer(x, causal="top_left", rotary=embedding(np.arange(11), dtype="float64"))
    cache = polyhead.KeyValueCache(3, 2, 12, 4, dtype=np.float64)
    out = np.zeros_like(x)
    for counts in ([3, 0, 5], [1, 1, 1], [0, 9, 2], [7, 1, 3]):
        tokens, first = max(counts), cache.lengths
        some = np.zeros((3, tokens, 16))
        for b, count in enumerate(counts):
            some[b, :count] = x[b, first[b] : first[b] + count]
        rotary = embedding(first[:, None] + np.arange(tokens), dtype="float64")
        result = layer(some, cache=cache, new_tokens=np.array(counts), rotary=rotary, causal="bottom_right")
        for b, count in enumerate(counts):
            out[b, first[b] : first[b] + count] = result[b, :count]
    np.testing.assert_array_equal(cache.lengths, [11, 11, 11])
    np.testing.assert_allclose(out, whole, rtol=0, atol=1e-13)


def test_a_frozen_causal_layer_decodes_float32(rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(32, 4, seed=2).frozen()
    layer.causal = True
    x = rng.standard_normal((2, 6, 32), dtype=np.float32)
    cache = polyhead.KeyValueCache(2, 4, 6, 8)
    out = np.concatenate([layer(x[:, t : t + 1], cache=cache) for t in range(6)], 1)
    np.testing.assert_allclose(out, layer(x), rtol=0, atol=2e-6)


def test_reorder_copy_and_truncate(rng: np.random.Generator) -> None:
    cache = polyhead.KeyValueCache(3, 1, 5, 2, value_head_width=3)
    k, v = rng.standard_normal((3, 1, 3, 2), dtype=np.float32), rng.standard_normal((3, 1, 3, 3), dtype=np.float32)
    cache.append(k, v, np.array([3, 1, 2], np.uint8))
    cache.reorder(np.array([2, 0, 0]))
    np.testing.assert_array_equal(cache.lengths, [2, 3, 3])
    np.testing.assert_array_equal(cache.keys[1], k[0])
    np.testing.assert_array_equal(cache.values[0, :, :2], v[2, :, :2])
    cache.truncate([2, 1, 0])
    cache.copy_sequence(1, 2)
    np.testing.assert_array_equal(cache.lengths, [2, 1, 1])
    np.testing.assert_array_equal(cache.keys[2, :, :1], k[0, :, :1])
    cache.clear()
    assert cache.keys.shape == (3, 1, 0, 2) and not cache.lengths.any()


def test_views_outlive_the_cache_and_are_read_only() -> None:
    cache = polyhead.KeyValueCache(1, 1, 4, 2)
    cache.append(np.full((1, 1, 2, 2), 5, np.float32), np.full((1, 1, 2, 2), 6, np.float32))
    keys, values, address = cache.keys, cache.values, cache.keys.__array_interface__["data"][0]
    cache.append(np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 2), np.float32))
    assert cache.keys.__array_interface__["data"][0] == address
    del cache
    gc.collect()
    assert (keys == 5).all() and (values == 6).all() and not keys.flags.writeable


def test_a_cache_on_the_callers_memory(rng: np.random.Generator) -> None:
    keys, values = np.zeros((2, 3, 6, 4), np.float16), np.zeros((2, 6, 3, 5), np.float16).swapaxes(1, 2)
    cache = polyhead.KeyValueCache.on(keys, values, [1, 0])
    k, v = rng.standard_normal((2, 3, 2, 4)), rng.standard_normal((2, 3, 2, 5))
    cache.append(k, v)
    np.testing.assert_array_equal(keys[0, :, 1:3], k[0].astype(np.float16))
    np.testing.assert_array_equal(values[1, :, :2], v[1].astype(np.float16))
    assert cache.config["capacity"] == 6 and cache.config["dtype"] == "float16" and np.shares_memory(cache.keys, keys)
    keys.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        polyhead.KeyValueCache.on(keys, values)


@pytest.mark.parametrize(("dtype", "error"), [("int8", 1e-2), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_a_narrow_cache_of_a_float32_layer(dtype: str, error: float, rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(32, 4, seed=2)
    x = rng.standard_normal((2, 7, 32), dtype=np.float32)
    cache = polyhead.KeyValueCache(2, 4, 8, 8, dtype=dtype)
    out = np.concatenate([layer(some, cache=cache, causal="top_left") for some in np.split(x, [3, 4], axis=1)], 1)
    np.testing.assert_allclose(out, layer(x, causal="top_left"), rtol=0, atol=error)
    if dtype == "int8":
        q = rng.standard_normal((2, 4, 3, 8), dtype=np.float32)
        scaled = [np.float32(scale[..., None] * held) for held, scale in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))]
        ours = polyhead.sdpa(q, cache.keys, cache.values, k_scale=cache.key_scales, v_scale=cache.value_scales, **cache.mask())
        np.testing.assert_array_equal(ours, polyhead.sdpa(q, *scaled, **cache.mask()))


def test_int8_on_the_callers_memory(rng: np.random.Generator) -> None:
    keys, values, key_scales, value_scales = np.zeros((1, 2, 4, 8), np.int8), np.zeros((1, 2, 4, 8), np.int8), *np.zeros((2, 1, 2, 4), np.float32)
    cache = polyhead.KeyValueCache.on(keys, values, key_scales=key_scales, value_scales=value_scales)
    k = rng.standard_normal((1, 2, 3, 8))
    cache.append(k, -k)
    np.testing.assert_allclose(keys[:, :, :3] * key_scales[:, :, :3, None], k, rtol=0, atol=np.abs(k).max() / 250)
    np.testing.assert_array_equal(values, -keys)
    assert polyhead.KeyValueCache(1, 1, 1, 1).key_scales is None and np.shares_memory(cache.value_scales, value_scales)


def test_a_refused_call_does_not_change_the_cache() -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    cache = polyhead.KeyValueCache(2, 2, 3, 4)
    x = np.ones((2, 2, 8), np.float32)
    layer(x, cache=cache)
    for call, words in (
        (lambda: layer(x, cache=cache), "sequence 0 has 2 tokens and gets 2; the capacity is 3"),
        (lambda: layer.forward(x, cache=cache), "a cache cannot be combined with saved activations"),
        (lambda: layer(x, key_lengths=np.array([1, 2]), cache=cache), "a cache cannot be combined with key_lengths"),
        (lambda: layer(x, new_tokens=np.array([1, 2])), "new_tokens is given without a cache"),
        (lambda: cache.append(x, x), "k is float32"),
        (lambda: cache.reorder([0, 2]), "sequence 2"),
        (lambda: cache.truncate([3, 0]), "cannot be cut to 3"),
        (lambda: polyhead.KeyValueCache(1, 1, 4, 2, dtype="bfloat16").keys, "bfloat16"),
        (lambda: polyhead.KeyValueCache.on(np.zeros((2, 1, 3, 4)), np.zeros((2, 1, 3, 4)), lengths=[]), "lengths has 0 numbers; there must be one for each of 2 sequences"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()
        np.testing.assert_array_equal(cache.lengths, [2, 2])


def test_a_cache_in_use_by_another_thread_is_refused() -> None:
    cache = polyhead.KeyValueCache(1, 8, 60_000, 64)
    k = np.ones((1, 8, 1000, 64), np.float32)
    outcomes: list[str] = []

    def fill() -> None:
        for _ in range(30):
            try:
                cache.append(k, k)
                outcomes.append("appended")
            except RuntimeError as error:
                assert "in use" in str(error)
                outcomes.append("refused")

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.lengths[0] == 1000 * outcomes.count("appended") and len(outcomes) == 60


def test_rotary_frequencies_are_the_published_ones() -> None:
    f = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(polyhead.RotaryEmbedding(16).frequencies, f, rtol=1e-14)
    np.testing.assert_allclose(polyhead.RotaryEmbedding(16, scaling="linear", factor=4).frequencies, f / 4, rtol=1e-14)
    larger = (10000.0 * 4 ** (16 / 14)) ** (-np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(polyhead.RotaryEmbedding(16, scaling="ntk", factor=4).frequencies, larger, rtol=1e-14)

    # Llama 3's scaling, written as in transformers: three ranges of the wavelength are scaled differently.
    f, old, low, high = 500000.0 ** (-np.arange(0, 64, 2) / 64), 8192, 1, 4
    wavelength = 2 * np.pi / f
    smooth = (old / wavelength - low) / (high - low)
    llama = np.where(wavelength > old / low, f / 8, np.where(wavelength < old / high, f, (1 - smooth) * f / 8 + smooth * f))
    ours = polyhead.RotaryEmbedding(64, base=500000, scaling="llama3", factor=8, original_max_position_embeddings=8192)
    np.testing.assert_allclose(ours.frequencies, llama, rtol=1e-13)
    assert ours.attention_factor == 1

    # YaRN's scaling in the form of its paper and code.
    f = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    first, last = (64 * np.log(2048 / (turns * 2 * np.pi)) / (2 * np.log(10000.0)) for turns in (32, 1))
    for truncate in (True, False):
        a, b = (np.floor(first), np.ceil(last)) if truncate else (first, last)
        ramp = np.clip((np.arange(32) - max(a, 0)) / (min(b, 63) - max(a, 0)), 0, 1)
        ours = polyhead.RotaryEmbedding(64, scaling="yarn", factor=4, original_max_position_embeddings=2048, truncate=truncate)
        np.testing.assert_allclose(ours.frequencies, f / 4 * ramp + f * (1 - ramp), rtol=1e-13)
        np.testing.assert_allclose(ours.attention_factor, 0.1 * np.log(4) + 1, rtol=1e-15)


def test_longrope_and_proportional_frequencies_are_the_published_ones() -> None:
    f, factors = 10000.0 ** (-np.arange(0, 8, 2) / 8), [1.0, 1.25, 3.0, 9.5]
    ours = polyhead.RotaryEmbedding(8, scaling="longrope", factor=32, original_max_position_embeddings=4096, factors=factors)
    np.testing.assert_allclose(ours.frequencies, f / factors, rtol=1e-14)
    np.testing.assert_allclose(ours.attention_factor, np.sqrt(1 + np.log(32) / np.log(4096)), rtol=1e-15)
    ours = polyhead.RotaryEmbedding(8, scaling="proportional", factor=2, proportion=0.5)
    np.testing.assert_allclose(ours.frequencies, [*f[:2] / 2, 0, 0], rtol=1e-14)


def test_rotary_tables_are_of_the_positions() -> None:
    embedding = polyhead.RotaryEmbedding(6, order="pairs", base=100)
    positions = np.array([[5, 0, -3], [100, 7, 2]], np.int32)
    rotary = embedding(positions, dtype=np.float64)
    angles = positions[..., None] * np.array(embedding.frequencies)
    np.testing.assert_allclose(rotary.cos, np.cos(angles), rtol=0, atol=1e-14)
    np.testing.assert_allclose(rotary.sin, np.sin(angles), rtol=0, atol=1e-14)
    assert (rotary.order, rotary.width, rotary.key_cos) == ("pairs", 6, None)
    assert embedding(positions).cos.dtype == np.float32
    assert repr(embedding) == "RotaryEmbedding(width=6, base=100, order='pairs')"
    assert repr(polyhead.KeyValueCache(1, 2, 3, 4)) == "KeyValueCache(sequences=1, kv_heads=2, capacity=3, lengths=[0])"


def test_a_cache_and_tables_of_torch() -> None:
    torch = pytest.importorskip("torch")
    keys, values = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16), torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    cache = polyhead.KeyValueCache.on(keys, values)
    k = torch.randn(1, 2, 3, 8)
    cache.append(k, k)
    assert torch.equal(keys[:, :, :3], k.bfloat16()) and torch.equal(values, keys)
    assert isinstance(polyhead.RotaryEmbedding(4)(torch.arange(3)).cos, torch.Tensor)
