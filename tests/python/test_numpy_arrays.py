"""Tests arrays with any strides, read-only arrays, arrays of other libraries, and which arrays are refused with which reason."""

from __future__ import annotations

import ctypes
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import polyhead

Array = np.ndarray


def problem(rng: np.random.Generator, dtype: Any = np.float64) -> tuple[Array, Array, Array]:
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)])


# Functions that return an array with the numbers of x in another memory layout.
def fortran(x: Array) -> Array:
    return np.asfortranarray(x)


def reversed_memory(x: Array) -> Array:
    """Returns the array with all strides negative."""
    every = (slice(None, None, -1),) * x.ndim
    return np.ascontiguousarray(x[every])[every]


def every_third(x: Array) -> Array:
    wide = np.full((*x.shape[:-1], 3 * x.shape[-1]), np.nan, x.dtype)
    wide[..., 1::3] = x
    return wide[..., 1::3]


def heads_inside(x: Array) -> Array:
    """Returns [B,N,T,H] as a view of [B,T,N,H], the layout in which layers hold heads."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def slice_of_larger(x: Array) -> Array:
    larger = np.full([extent + 3 for extent in x.shape], np.nan, x.dtype)
    inner = tuple(slice(2, 2 + extent) for extent in x.shape)
    larger[inner] = x
    return larger[inner]


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


def memory_mapped_bytes(x: Array) -> Array:
    return np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)


def subclass(x: Array) -> Array:
    class Mine(np.ndarray):
        pass

    return x.view(Mine)


VIEWS = [fortran, reversed_memory, every_third, heads_inside, slice_of_larger, read_only, memory_mapped_bytes, subclass]


def test_key_masks_are_masks_of_all_queries_and_heads(rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((3, 2, 3, 5, 4))
    keys = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], bool)
    d_out = rng.standard_normal(q.shape)

    def everything(**masks: Any) -> list[np.ndarray]:
        out, lse = polyhead.sdpa(q, k, v, return_lse=True, **masks)
        gradients = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **masks)
        statistics = polyhead.head_statistics(q, k, **masks)
        return [out, lse, *gradients[:3], polyhead.maps(q, k, **masks), polyhead.pooled_map(q, k, 2, 2, **masks), *statistics.values()]

    expected = everything(attend=keys[:, None, None])
    for masks in ({"attend_keys": keys}, {"block_keys": ~keys}):
        for ours, theirs in zip(everything(**masks), expected, strict=True):
            assert np.array_equal(ours, theirs)
    assert not np.array_equal(everything()[0], expected[0])


@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_documents_have_the_bits_of_each_alone(causal: Any, rng: np.random.Generator) -> None:
    q, d_out = rng.standard_normal((2, 2, 3, 9, 4))
    k, v = rng.standard_normal((2, 2, 3, 12, 4))
    queries, keys = np.array([0, 4, 4, 9]), np.array([0, 3, 5, 12])
    packed = {"query_offsets": queries, "key_offsets": keys, "causal": causal}
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **packed)
    d_q, d_k, d_v, *_ = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **packed)
    p = polyhead.maps(q, k, **packed)
    for t, s in zip(map(slice, queries, queries[1:]), map(slice, keys, keys[1:])):
        one = q[:, :, t], k[:, :, s], v[:, :, s]
        out_one, lse_one = polyhead.sdpa(*one, return_lse=True, causal=causal)
        alone = polyhead.sdpa_backward(*one, out_one, lse_one, d_out[:, :, t], causal=causal)
        assert np.array_equal(out[:, :, t], out_one) and np.array_equal(lse[:, :, t], lse_one)
        assert np.array_equal(d_q[:, :, t], alone.q) and np.array_equal(d_k[:, :, s], alone.k) and np.array_equal(d_v[:, :, s], alone.v)
        assert np.array_equal(p[:, :, t, s], polyhead.maps(*one[:2], causal=causal))
    assert (p > 0).sum() == (p[:, :, :4, :3] > 0).sum() + (p[:, :, 4:, 5:] > 0).sum()


@pytest.mark.parametrize("window", [None, (3, 0)])
def test_diagonal_offsets_have_the_bits_of_each_sequence_alone(window: Any, rng: np.random.Generator) -> None:
    q, d_out = rng.standard_normal((2, 3, 4, 5, 8))
    k, v = rng.standard_normal((2, 3, 2, 12, 8))
    offsets, lengths = np.array([0, 7, -2], np.int32), np.array([5, 12, 3])
    options = {"causal": "top_left", "window": window}
    batch = options | {"diagonal_offsets": offsets, "key_lengths": lengths}
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **batch)
    d_q, d_k, d_v, *_ = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **batch)
    p = polyhead.maps(q, k, **batch)
    for b, offset in enumerate(offsets):
        one, own = (q[b], k[b], v[b]), options | {"causal": int(offset), "key_lengths": np.array(lengths[b])}
        out_one, lse_one = polyhead.sdpa(*one, return_lse=True, **own)
        alone = polyhead.sdpa_backward(*one, out_one, lse_one, d_out[b], **own)
        assert np.array_equal(out[b], out_one) and np.array_equal(lse[b], lse_one)
        assert np.array_equal(d_q[b], alone.q) and np.array_equal(d_k[b], alone.k) and np.array_equal(d_v[b], alone.v)
        assert np.array_equal(p[b], polyhead.maps(*one[:2], **own))
    assert (p[1, 0, 0] > 0).sum() == (4 if window else 8) and not (p[2, 0, :2] > 0).any()


@pytest.mark.parametrize("per_query", [False, True])
def test_key_starts_mask_the_padding_before_a_text(per_query: bool, rng: np.random.Generator) -> None:
    q, d_out = rng.standard_normal((2, 2, 4, 9, 8))
    k, v = rng.standard_normal((2, 2, 2, 9, 8))
    k[0, :, :5], v[0, :, :5] = np.nan, np.nan
    starts = np.array([5, 0], np.int32)
    options = {"causal": "top_left", "key_starts": np.repeat(starts[:, None], 9, 1) if per_query else starts}
    keep = np.arange(9) >= starts[:, None]
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    other, other_lse = polyhead.sdpa(q, k, v, return_lse=True, causal="top_left", attend_keys=keep)
    assert np.array_equal(out, other) and np.array_equal(lse, other_lse)
    assert not out[0, :, :5].any() and np.isneginf(lse[0, :, :5]).all()
    np.testing.assert_allclose(out[:1, :, 5:], polyhead.sdpa(q[:1, :, 5:], k[:1, :, 5:], v[:1, :, 5:], causal="top_left"), rtol=0, atol=1e-14)
    np.testing.assert_allclose(polyhead.maps(q, k, **options), polyhead.maps(q, k, causal="top_left", attend_keys=keep), rtol=0, atol=1e-15)
    for ours, theirs in zip(polyhead.sdpa_backward(q, k, v, out, lse, d_out, **options)[:3], polyhead.sdpa_backward(q, k, v, out, lse, d_out, causal="top_left", attend_keys=keep)[:3]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_a_layer_takes_key_starts_also_with_a_cache(rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(8, 2, dtype="float64", seed=1)
    x, starts = rng.standard_normal((2, 7, 8)), np.array([3, 0])
    whole = layer(x, causal="top_left", key_starts=starts)
    np.testing.assert_allclose(whole[0, 3:], layer(x[:1, 3:], causal="top_left")[0], rtol=0, atol=1e-14)
    cache = polyhead.KeyValueCache(2, 2, 7, 4, dtype="float64")
    parts = [layer(x[:, t:end], causal="top_left", key_starts=starts, cache=cache) for t, end in ((0, 2), (2, 4), (4, 5), (5, 7))]
    assert np.array_equal(np.concatenate(parts, 1), whole)


def test_a_layer_takes_documents(rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(8, 2, dtype="float64", seed=1)
    x = rng.standard_normal((2, 9, 8))
    out, saved = layer.forward(x, query_offsets=np.array([0, 4, 9]))
    np.testing.assert_allclose(out, np.concatenate([layer(x[:, :4]), layer(x[:, 4:])], 1), rtol=0, atol=1e-14)
    assert not saved.maps()[:, :, :4, 4:].any() and not saved.maps()[:, :, 4:, :4].any()



def test_backward_and_maps_of_a_pass_have_the_same_bits_with_any_number_of_threads(rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(32, 4, seed=1)
    out, saved = layer.forward(rng.standard_normal((2, 40, 32), dtype=np.float32))
    one, two = (saved.backward(out, num_threads=count) for count in (1, 2))
    assert np.array_equal(one.query, two.query) and np.array_equal(saved.maps(num_threads=1), saved.maps("probability", num_threads=2))



@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_strides_of_inputs_do_not_change_a_bit(view: Any, dtype: Any, rng: np.random.Generator) -> None:
    q, k, v = problem(rng, dtype)
    bias, attend = rng.standard_normal((2, 4, 5, 7)).astype(dtype), rng.random((2, 4, 5, 7)) < 0.8
    d_out = rng.standard_normal((2, 4, 5, 6)).astype(dtype)
    options, viewed = {"bias": bias, "attend": attend}, {"bias": view(bias), "attend": view(attend)}
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    out2, lse2 = polyhead.sdpa(view(q), view(k), view(v), return_lse=True, **viewed)
    assert np.array_equal(out, out2) and np.array_equal(lse, lse2)
    gradients = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **options)
    gradients2 = polyhead.sdpa_backward(view(q), view(k), view(v), view(out), lse, view(d_out), **viewed)
    assert all(np.array_equal(a, b) for a, b in zip(gradients, gradients2))
    assert np.array_equal(polyhead.maps(q, k, **options), polyhead.maps(view(q), view(k), **viewed))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_weights_come_with_the_output_and_do_not_change_it(dtype: Any, rng: np.random.Generator) -> None:
    q, k, v = problem(rng, dtype)
    options = {"attend": rng.random((2, 4, 5, 7)) < 0.8, "dropout": 0.3, "seed": 5}
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    out2, lse2, weights = polyhead.sdpa(q, k, v, return_lse=True, return_attention_weights=True, **options)
    assert np.array_equal(out, out2) and np.array_equal(lse, lse2)
    assert weights.dtype == dtype and weights.shape == (2, 4, 5, 7)
    rounding = np.finfo(dtype).eps
    assert np.allclose(weights, polyhead.maps(q, k, **options), rtol=8 * rounding, atol=rounding)  # attention weights are those before dropout, like maps
    assert np.allclose(weights.sum(-1, dtype=np.float64), 1, atol=8 * rounding)
    given = np.full((2, 4, 7, 5), np.nan, dtype).swapaxes(2, 3)
    out3, weights3 = polyhead.sdpa(q, k, v, attention_weights=given, **options)
    assert weights3 is given and np.array_equal(weights3, weights) and np.array_equal(out3, out)


@pytest.mark.parametrize("axis", range(4))
def test_zero_strides_mean_the_broadcast_array(axis: int, rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    one = tuple(slice(0, 1) if a == axis else slice(None) for a in range(4))
    spread = [np.broadcast_to(x[one], x.shape) for x in (q, k, v)]
    assert all(x.strides[axis] == 0 for x in spread)
    assert np.array_equal(polyhead.sdpa(*spread), polyhead.sdpa(*(x.copy() for x in spread)))


def test_relative_position_bias_is_a_view_with_strides_plus_and_minus_one(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    table = rng.standard_normal(5 + 7 - 1)
    bias = as_strided(table[4:], shape=(5, 7), strides=(-8, 8))  # bias[t, s] = table[4 + s - t]
    assert np.array_equal(polyhead.sdpa(q, k, v, bias=bias), polyhead.sdpa(q, k, v, bias=bias.copy()))


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "width", "value_width"])
def test_any_extent_may_be_zero(empty: str) -> None:
    sizes = {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "width": 6, "value_width": 7} | {empty: 0}
    b, n, t, s, h, w = sizes.values()
    q, k, v = np.ones((b, n, t, h)), np.ones((b, n, s, h)), np.ones((b, n, s, w))
    out, lse = polyhead.sdpa(q, k, v, scale=1.0, return_lse=True)
    assert out.shape == (b, n, t, w) and lse.shape == (b, n, t)
    assert (out == (0 if empty == "keys" else 1)).all()
    gradients = polyhead.sdpa_backward(q, k, v, out, lse, np.ones_like(out), scale=1.0)
    assert [g.shape for g in gradients[:3]] == [q.shape, k.shape, v.shape] and not np.isnan(gradients.k).any()
    assert polyhead.maps(q, k, scale=1.0).shape == (b, n, t, s)


def test_leading_dimensions_may_be_absent_or_many(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    expected = polyhead.sdpa(q, k, v)
    assert np.array_equal(polyhead.sdpa(q[0], k[0], v[0]), expected[0])
    deep = polyhead.sdpa(*(x.reshape(1, 2, 1, 1, *x.shape[1:]) for x in (q, k, v)))
    assert np.array_equal(deep.reshape(expected.shape), expected)


def test_the_result_has_the_dtype_and_kind_of_q(rng: np.random.Generator) -> None:
    for dtype, lse_dtype in [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]:
        out, lse = polyhead.sdpa(*problem(rng, dtype), return_lse=True)
        assert type(out) is np.ndarray and out.dtype == dtype and lse.dtype == lse_dtype


def test_bfloat16_of_ml_dtypes_comes_back_as_such(rng: np.random.Generator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays of NumPy need ml_dtypes")
    exact = problem(rng, np.float32)
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in exact)
    out = polyhead.sdpa(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    expected = polyhead.sdpa(*(x.astype(np.float32) for x in (q, k, v)))
    np.testing.assert_allclose(polyhead.sdpa(q, k, v, precision="exact").astype(np.float32), expected, rtol=2**-8)
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=2**-8, atol=2**-8 * np.abs(exact[2]).max())  # with native products p is also rounded
    assert np.array_equal(polyhead.sdpa(q[..., ::-1, :], k, v), out[..., ::-1, :])


# --- what is refused

Q, K, V = (np.ones(shape) for shape in [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)])


@pytest.mark.parametrize(
    "dtype", [">f8", ">f4", "complex64", "complex128", "longdouble", "object", "S4", "U4", "M8[s]", "m8[s]", [("a", "f4"), ("b", "f4")], "V8"], ids=str
)
@pytest.mark.parametrize("argument", ["q", "k", "v", "bias", "attend", "key_lengths", "dropout_keep", "out"])
def test_dtypes_that_are_not_read_are_a_type_error_that_names_the_argument(argument: str, dtype: Any) -> None:
    array = np.zeros((1, 2, 3, 4), dtype)
    with pytest.raises(TypeError, match=rf"^{argument} .*dtype"):
        polyhead.sdpa(**({"q": Q, "k": K, "v": V} | {argument: array}))


def test_the_mask_of_a_masked_array_is_not_lost_silently() -> None:
    q = np.ma.masked_less(np.ones((1, 2, 3, 4), np.float32), 2)
    with pytest.raises(TypeError, match="q is a masked array.*q.data"):
        polyhead.sdpa(q, q.data, q.data)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8", "?"])
def test_integers_are_no_queries(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"q is (u?int|bool)"):
        polyhead.sdpa(Q.astype(dtype), K.astype(dtype), V.astype(dtype))


def test_dtypes_are_never_mixed_silently() -> None:
    with pytest.raises(ValueError, match="k.*float32.*float64"):
        polyhead.sdpa(Q, K.astype(np.float32), V)
    with pytest.raises(ValueError, match="bias.*float32.*float64"):
        polyhead.sdpa(Q, K, V, bias=np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match="attend"):
        polyhead.sdpa(Q, K, V, attend=np.ones((3, 5)))


def test_unaligned_memory_is_refused() -> None:
    raw = np.zeros(Q.nbytes + 1, np.uint8)[1:]
    unaligned = raw.view(np.float64).reshape(Q.shape)
    assert not unaligned.flags.aligned
    with pytest.raises(ValueError, match="q is not aligned"):
        polyhead.sdpa(unaligned, K, V)


def test_strides_that_are_no_multiple_of_an_element_are_refused() -> None:
    packed = np.zeros((1, 2, 3, 4), [("flag", "i4"), ("x", "f8")])["x"]
    assert packed.strides[-1] == 12
    with pytest.raises(ValueError, match="q has a stride of 12 bytes|q is not aligned"):
        polyhead.sdpa(packed, K, V)


def test_too_many_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="q has 20 dimensions; at most 16"):
        polyhead.sdpa(Q.reshape((1,) * 16 + Q.shape), K, V)


@pytest.mark.parametrize("thing", [[[1.0]], 1.0, "q", {}, object(), range(3), np.float64(1), lambda: 0], ids=lambda thing: type(thing).__name__)
def test_an_object_that_is_no_array_is_an_error(thing: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"(^|sdpa_forward: )q is "):
        polyhead.sdpa(thing, K, V)


# --- out=

def test_out_is_written_in_place_whatever_its_strides(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    expected = polyhead.sdpa(q, k, v)
    for view in (fortran, reversed_memory, every_third, heads_inside, slice_of_larger):
        out = view(np.zeros_like(expected))
        address = out.__array_interface__["data"][0]
        assert polyhead.sdpa(q, k, v, out=out) is out
        assert out.__array_interface__["data"][0] == address and np.array_equal(out, expected)


def test_out_touches_nothing_beside_its_elements(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    larger = np.full((2, 4, 5, 18), 42.0)
    polyhead.sdpa(q, k, v, out=larger[..., 1::3])
    assert (larger[..., 0::3] == 42).all() and (larger[..., 2::3] == 42).all()


def test_out_that_overlaps_an_input_is_refused(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 5, 8))
    with pytest.raises(ValueError, match="out.*overlap"):
        polyhead.sdpa(x, x, x, out=x)
    memory = rng.standard_normal((2, 3, 9, 8))
    with pytest.raises(ValueError, match="out.*overlap"):
        polyhead.sdpa(memory[:, :, :5], x, x, out=memory[:, :, 4:])
    # The output interleaves with an input in memory, but shares no element with it.
    pair = rng.standard_normal((2, 3, 5, 16))
    expected = polyhead.sdpa(pair[..., ::2].copy(), x, x)
    assert np.array_equal(polyhead.sdpa(pair[..., ::2], x, x, out=pair[..., 1::2]), expected)


def test_out_that_cannot_be_written_is_refused(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    with pytest.raises(ValueError, match="out is read-only"):
        polyhead.sdpa(q, k, v, out=read_only(np.zeros((2, 4, 5, 6))))
    with pytest.raises(ValueError, match="out"):
        polyhead.sdpa(q, k, v, out=np.broadcast_to(np.zeros(6), (2, 4, 5, 6)))
    with pytest.raises(ValueError, match="out"):  # elements of an output may not share memory
        polyhead.sdpa(q, k, v, out=as_strided(np.zeros((2, 4, 5, 6)), (2, 4, 5, 6), (0, 240, 48, 8)))
    with pytest.raises(ValueError, match="out"):
        polyhead.sdpa(q, k, v, out=np.zeros((2, 4, 5, 7)))
    with pytest.raises(ValueError, match="out.*float32"):
        polyhead.sdpa(q, k, v, out=np.zeros((2, 4, 5, 6), np.float32))


# --- without a copy

def spread_problem(queries: int, keys: int, rng: np.random.Generator) -> tuple[list[Array], dict[str, Any]]:
    """Returns q, k, v, and options with a bias and a mask of 16 * queries * keys elements, which are broadcast views of a few bytes. By the window, query t attends only to key t."""
    heads = 16
    q, k = (np.broadcast_to(rng.standard_normal(4).astype(np.float32), (1, heads, extent, 4)) for extent in (queries, keys))
    v = np.broadcast_to(rng.standard_normal((keys, 1)).astype(np.float32), (1, heads, keys, 1))
    bias = np.broadcast_to(rng.standard_normal(keys).astype(np.float32), (1, heads, queries, keys))
    return [q, k, v], {"bias": bias, "attend": np.broadcast_to(np.True_, bias.shape), "causal": "top_left", "window": (0, 0)}


def test_large_broadcast_arrays_are_read_where_they_are(rng: np.random.Generator) -> None:
    huge, huge_options = spread_problem(2**16, 2**20, rng)
    assert huge_options["bias"].size == 2**40
    tensors, options = spread_problem(2**7, 2**10, rng)
    tracemalloc.start()
    try:
        assert "backend" in polyhead.explain(*huge, **huge_options)  # explain() reads no element, so a bias of 4 TB takes no memory and no time
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        out = polyhead.sdpa(*tensors, **options)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert np.array_equal(out, tensors[2][:, :, : 2**7])
    assert peak < out.nbytes + 2**16 < options["bias"].nbytes // 64


def test_python_allocates_the_output_and_nothing_else(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, 4, 256, 64)).astype(np.float32)[..., ::-1] for _ in range(3))
    out = np.empty((2, 4, 256, 64), np.float32)
    polyhead.sdpa(q, k, v, out=out)
    tracemalloc.start()
    try:
        polyhead.sdpa(q, k, v, out=out)
        in_place = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        polyhead.sdpa(q, k, v)
        fresh = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert in_place < 2**16 and fresh - in_place < out.nbytes + 2**16  # tracemalloc counts the memory of NumPy's arrays


def test_parameters_are_the_layers_own_memory() -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    x = np.ones((1, 3, 8), np.float32)
    before = layer(x)
    layer.parameters["output.bias"][...] += 1
    np.testing.assert_allclose(layer(x), before + 1, rtol=1e-6)
    weight = layer.parameters["q.weight"]
    layer.parameters["output.bias"] -= 1
    np.testing.assert_allclose(layer(x), before, atol=1e-6)
    other = np.zeros((8, 8), np.float32)
    for assign in (
        lambda p: p.__setitem__("q.weight", other),
        lambda p: p.update({"q.weight": other}),
        lambda p: p.update(new=other),
        lambda p: p.__ior__({"q.weight": other}),
    ):
        with pytest.raises(TypeError, match=r"does not change the layer; write into its memory: parameters\['(q.weight|new)'\]\[...\] = ..."):
            assign(layer.parameters)
    assert type(pickle.loads(pickle.dumps(layer.parameters))) is dict
    del layer
    assert weight.shape == (8, 8) and np.isfinite(weight).all()  # the array keeps the memory alive after the layer is deleted


# --- other libraries

def test_objects_with_the_buffer_protocol_are_arrays() -> None:
    memory = memoryview(bytearray(Q.tobytes())).cast("d", Q.shape)
    assert np.array_equal(polyhead.sdpa(memory, K, V), polyhead.sdpa(Q, K, V))
    native = ((ctypes.c_double * 4) * 3 * 2 * 1)()
    assert polyhead.sdpa(native, K, V).shape == (1, 2, 3, 4)


class Exporter:
    """An object that can be read only through DLPack. `device`: the device that it claims to be on."""

    def __init__(self, array: Array, device: tuple[int, int] | None = None) -> None:
        self.array, self.place = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.place is not None:
            raise AssertionError("memory of another device must not be exported")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place or self.array.__dlpack_device__()


def test_dlpack_objects_are_arrays(rng: np.random.Generator) -> None:
    q, k, v = problem(rng)
    exported = [Exporter(view(x)) for view, x in [(reversed_memory, q), (heads_inside, k), (fortran, v)]]
    out = np.zeros((2, 4, 5, 6))
    assert np.array_equal(polyhead.sdpa(*exported), polyhead.sdpa(q, k, v))
    target = Exporter(out)
    assert polyhead.sdpa(q, k, v, out=target) is target and np.array_equal(out, polyhead.sdpa(q, k, v))
    with pytest.raises(ValueError, match="out is read-only"):
        polyhead.sdpa(q, k, v, out=Exporter(read_only(out)))


def test_memory_of_another_device_is_refused_without_touching_it() -> None:
    with pytest.raises(TypeError, match="q is on device .*CPU"):
        polyhead.sdpa(Exporter(Q, device=(2, 0)), K, V)


def test_a_failing_export_says_why() -> None:
    class Broken:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("the memory has been given away")

    class Malformed:
        def __dlpack__(self, **options: Any) -> Any:
            return 3

    with pytest.raises(TypeError, match="k cannot be read through DLPack.*the memory has been given away"):
        polyhead.sdpa(Q, Broken(), V)
    with pytest.raises(TypeError, match="v cannot be read through DLPack"):
        polyhead.sdpa(Q, K, Malformed())


def test_torch_tensors_come_back_as_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional")
    q, k, v = (torch.from_numpy(x) for x in problem(rng))
    out, lse = polyhead.sdpa(q, k, v, return_lse=True)
    assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor)
    assert torch.equal(out, torch.from_numpy(polyhead.sdpa(q.numpy(), k.numpy(), v.numpy())))
    # Tensors of torch that are transposed or expanded, and a subclass of Tensor.
    swapped = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(polyhead.sdpa(torch.nn.Parameter(swapped, requires_grad=False), k, v), out)
    spread = k[:, :1].expand(2, 2, 7, 8)
    assert torch.equal(polyhead.sdpa(q, spread, v), polyhead.sdpa(q, spread.contiguous(), v))
    gradients = polyhead.sdpa_backward(q, k, v, out, lse, torch.ones_like(out))
    assert all(isinstance(g, torch.Tensor) for g in gradients[:3])
    place = torch.zeros_like(out)
    assert polyhead.sdpa(q, k, v, out=place) is place and torch.equal(place, out)
    halves = [x.to(torch.bfloat16) for x in (q, k, v)]
    assert polyhead.sdpa(*halves).dtype == torch.bfloat16


def test_torch_tensors_that_record_gradients_or_have_no_memory_are_refused(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional")
    q, k, v = (torch.from_numpy(x) for x in problem(rng))
    with pytest.raises(TypeError, match=r"k requires grad.*polyhead.torch.*k.detach\(\)"):
        polyhead.sdpa(q, k.clone().requires_grad_(), v)
    with pytest.raises(TypeError, match="q .*(device|DLPack)"):
        polyhead.sdpa(q.to("meta"), k, v)
    with pytest.raises(TypeError, match="q cannot be read through DLPack"):
        polyhead.sdpa(torch.eye(4, dtype=torch.float64).to_sparse(), k, v)
    with pytest.raises(TypeError, match="q .*dtype torch.complex64"):
        polyhead.sdpa(torch.zeros(1, 2, 3, 4, dtype=torch.complex64), k, v)


def test_jax_arrays_are_read(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    q, k, v = problem(rng, np.float32)
    out = polyhead.sdpa(*(jax.numpy.asarray(x) for x in (q, k, v)))
    assert np.array_equal(out, polyhead.sdpa(q, k, v))
    with pytest.raises(ValueError, match="out is read-only"):
        polyhead.sdpa(q, k, v, out=jax.numpy.zeros((2, 4, 5, 6)))


def test_torch_tensors_that_are_negated_lazily_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional")
    lazy = torch.randn(1, 1, 3, 4, dtype=torch.complex64).conj().imag
    assert lazy.is_neg()
    with pytest.raises(TypeError, match="resolve_neg"):
        polyhead.sdpa(lazy, lazy, lazy)
