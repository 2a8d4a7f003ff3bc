"""Numbers and shapes that Keras and Dive into Deep Learning (d2l) publish with their attention layers, computed by polyhead from the same inputs.

Where a source's input is random, the test checks what holds for every input: shapes, zeros, and weights that do not depend on the input.
"""

from __future__ import annotations

import numpy as np
import pytest

import polyhead

Rng = np.random.Generator


def with_head(x: np.ndarray) -> np.ndarray:
    """Returns x [B,T,H] as [B,1,T,H], because the plain attention of d2l and Keras has one head."""
    return x[:, None]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Output [B,T,V] and weights [B,T,S] of one head."""
    q, k, v = (with_head(np.asarray(x, np.float64)) for x in (q, k, v))
    out = polyhead.sdpa(q, k, v, **options)
    return out[:, 0], polyhead.maps(q, k, **options)[:, 0]


# --- d2l


@pytest.mark.parametrize(
    "valid_lens, zeros",
    [
        ([2, 3], [[[0, 0, 1, 1], [0, 0, 1, 1]], [[0, 0, 0, 1], [0, 0, 0, 1]]]),
        ([[1, 3], [2, 4]], [[[0, 1, 1, 1], [0, 0, 0, 1]], [[0, 0, 1, 1], [0, 0, 0, 0]]]),
    ],
)
def test_d2l_masked_softmax(valid_lens: list[object], zeros: list[object], rng: Rng) -> None:
    """d2l, "Attention Scoring Functions", section "Masked Softmax Operation": random scores of shape (2, 2, 4), lengths per sequence and per query.

    The softmax of scores alone is attention with those scores as the bias. The only weight of a row of length 1 is printed as 1.0000.
    """
    scores = rng.random((2, 2, 4))
    options = {"bias": with_head(scores), "key_lengths": np.array(valid_lens)}
    _, weights = attention(np.zeros((2, 2, 1)), np.zeros((2, 4, 1)), np.zeros((2, 4, 1)), **options)
    assert weights.shape == (2, 2, 4)
    assert ((weights == 0) == np.array(zeros, bool)).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-15)
    exponentials = np.exp(scores) * (1 - np.array(zeros))
    np.testing.assert_allclose(weights, exponentials / exponentials.sum(-1, keepdims=True), rtol=1e-14)
    if np.ndim(valid_lens) == 2:
        assert weights[0, 0].tolist() == [1, 0, 0, 0]


def test_d2l_scaled_dot_product_attention(rng: Rng) -> None:
    """d2l (editions 0.17 and Chinese 2.0), "Attention Scoring Functions", section "Scaled Dot-Product Attention".

    All keys are equal, so any query gives the mean of the first 2 and of the first 6 values: printed are 2, 3, 4, 5 and 10, 11, 12, 13.
    """
    queries, keys = rng.standard_normal((2, 1, 2)), np.ones((2, 10, 2))
    values = np.broadcast_to(np.arange(40.0).reshape(1, 10, 4), (2, 10, 4))
    out, weights = attention(queries, keys, values, key_lengths=np.array([2, 6]))
    np.testing.assert_allclose(out, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]], rtol=1e-14)
    # The heat map that d2l shows below these numbers has uniform weights up to the length.
    np.testing.assert_allclose(weights, [[[1 / 2] * 2 + [0] * 8], [[1 / 6] * 6 + [0] * 4]], rtol=1e-14)


def test_d2l_scaled_dot_product_attention_of_random_keys(rng: Rng) -> None:
    """d2l (edition 1.0), "Attention Scoring Functions", section "Scaled Dot Product Attention": the output has the shape (2, 1, 4), and weights are 0 from column 2 and from column 6 on."""
    out, weights = attention(*(rng.standard_normal(s) for s in ((2, 1, 2), (2, 10, 2), (2, 10, 4))), key_lengths=np.array([2, 6]))
    assert out.shape == (2, 1, 4) and weights.reshape(1, 1, 2, 10).shape == (1, 1, 2, 10)
    assert (weights[0, 0] > 0).tolist() == [True] * 2 + [False] * 8 and (weights[1, 0] > 0).tolist() == [True] * 6 + [False] * 4


@pytest.mark.parametrize("keys", [6, 4])
def test_d2l_multi_head_attention(keys: int, rng: Rng) -> None:
    """d2l, "Multi-Head Attention", section "Implementation" (6 keys), and "Self-Attention and Positional Encoding", section "Self-Attention" (4 keys).

    num_hiddens, num_heads = 100, 5, inputs of ones, valid_lens [3, 2]: the output has the shape (2, 4, 100). Equal inputs give uniform weights, so each output is
    W_o W_v 1, where 1 is a vector of ones.
    """
    state = {f"W_{name}.weight": rng.uniform(-0.1, 0.1, (100, 100)) for name in "qkvo"}
    layer = polyhead.load(state, "d2l", heads=5, dropout=0.5)
    x, y = np.ones((2, 4, 100)), np.ones((2, keys, 100))
    out, saved = layer.forward(x, y, y, key_lengths=np.array([3, 2]))
    assert out.shape == (2, 4, 100)
    np.testing.assert_allclose(out, np.broadcast_to(state["W_o.weight"] @ state["W_v.weight"].sum(1), out.shape), rtol=1e-11, atol=1e-13)
    weights = saved.maps()
    assert weights.shape == (2, 5, 4, keys)
    for sequence, length in enumerate((3, 2)):
        np.testing.assert_allclose(weights[sequence], np.broadcast_to([1 / length] * length + [0] * (keys - length), (5, 4, keys)), rtol=1e-12)


# --- Keras: the layer Attention. It does not scale unless told to.


def test_keras_attention_scores() -> None:
    """Keras 2, layers/attention/attention_test.py: test_calculate_scores_multi_dim and test_calculate_scores_one_dim_with_scale."""
    q = np.array([[[1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]]])
    k = np.array([[[1.5, 1.6, 1.7, 1.8], [2.5, 2.6, 2.7, 2.8], [3.5, 3.6, 3.7, 3.8]]])
    scores = polyhead.maps(with_head(q), with_head(k), value="scaled_score", scale=1.0)
    np.testing.assert_allclose(scores[:, 0], [[[7.64, 12.24, 16.84], [14.24, 22.84, 31.44]]], rtol=1e-14)
    scores = polyhead.maps(np.full((1, 1, 1, 1), 1.1), np.full((1, 1, 1, 1), 1.6), value="scaled_score", scale=-2.0)
    np.testing.assert_allclose(scores, [[[[-3.52]]]], rtol=1e-14)


def test_keras_attention_of_two_unit_vectors() -> None:
    """Keras 3, layers/attention/attention_test.py, test_attention_correctness: three digits are given."""
    out, weights = attention([[[1, 0], [0, 1]]], [[[0, 1], [1, 0]]], [[[1, 2], [3, 4]]], scale=1.0)
    np.testing.assert_allclose(out, [[[2.462, 3.462], [1.538, 2.538]]], atol=5e-4)
    np.testing.assert_allclose(weights, [[[0.269, 0.731], [0.731, 0.269]]], atol=5e-4)


V_MASK = np.array([[True, True, False]])


@pytest.mark.parametrize("value, expected", [([1.6, 0.7, -0.8], 1.3561791301), ([0.5, 0.8, -0.3], 0.58127362329)])
def test_keras_attention_with_a_value_mask(value: list[float], expected: float) -> None:
    """Keras 2, layers/attention/attention_test.py: test_multi_dim (the values are the keys) and test_multi_dim_with_key."""
    key = np.reshape([1.6, 0.7, -0.8], (1, 3, 1))
    out, weights = attention([[[1.1]]], key, np.reshape(value, (1, 3, 1)), attend=V_MASK[:, None, None], scale=1.0)
    np.testing.assert_allclose(weights, [[[0.72908792234, 0.27091207765, 0]]], rtol=1e-10)
    np.testing.assert_allclose(out, [[[expected]]], rtol=1e-10)


def test_keras_attention_with_a_query_mask() -> None:
    """Keras 2, layers/attention/attention_test.py, test_multi_dim_with_query_mask: a masked query gives 0. For polyhead, a masked query is a query that may attend to no key.

    The weights that Keras reports are those of the value mask alone.
    """
    q, v = np.reshape([1.1, -0.5], (1, 2, 1)), np.reshape([1.6, 0.7, -0.8], (1, 3, 1))
    _, weights = attention(q, v, v, attend=V_MASK[:, None, None], scale=1.0)
    np.testing.assert_allclose(weights, [[[0.72908792234, 0.27091207765, 0], [0.38936076605, 0.61063923394, 0]]], rtol=1e-10)
    q_mask = np.array([[True, False]])
    out, _ = attention(q, v, v, attend=(q_mask[:, :, None] & V_MASK[:, None])[:, None], scale=1.0)
    np.testing.assert_allclose(out, [[[1.3561791301], [0]]], rtol=1e-10)


def test_keras_causal_attention() -> None:
    """Keras 2, layers/attention/attention_test.py, test_self_attention_causal."""
    q = np.reshape([0.5, 0.8, -0.3], (1, 3, 1))
    out, weights = attention(q, q, q, causal="top_left", scale=1.0)
    np.testing.assert_allclose(weights, [[[1, 0, 0], [0.44028635073, 0.55971364926, 0], [0.31395396638, 0.28693232061, 0.399113713]]], rtol=1e-9)
    np.testing.assert_allclose(out, [[[0.5], [0.66791409477], [0.26678872577]]], rtol=1e-10)


# --- Keras: the layer MultiHeadAttention


def keras_layer(width: int, heads: int, key_dim: int, rng: Rng) -> polyhead.MultiHeadAttention:
    """keras.layers.MultiHeadAttention(num_heads, key_dim) with random weights, by the names and shapes that Keras gives them."""
    state = {f"{name}.kernel": rng.standard_normal((width, heads, key_dim)) for name in ("query", "key", "value")}
    state |= {f"{name}.bias": rng.standard_normal((heads, key_dim)) for name in ("query", "key", "value")}
    state |= {"attention_output.kernel": rng.standard_normal((heads, key_dim, width)), "attention_output.bias": rng.standard_normal(width)}
    return polyhead.load(state, "keras")


def test_keras_multi_head_attention(rng: Rng) -> None:
    """keras.io, "MultiHeadAttention layer", first example: num_heads=2, key_dim=2, target (8, 16), source (4, 16).

    Printed are the shapes (None, 8, 16) of the output and (None, 2, 8, 4) of the attention scores.
    """
    layer = keras_layer(16, 2, 2, rng)
    out, saved = layer.forward(rng.standard_normal((3, 8, 16)), rng.standard_normal((3, 4, 16)))
    assert out.shape == (3, 8, 16) and saved.maps().shape == (3, 2, 8, 4)


def test_keras_multi_head_attention_over_two_axes(rng: Rng) -> None:
    """keras.io, "MultiHeadAttention layer", second example: attention_axes=(2, 3) on (5, 3, 4, 16) gives (None, 5, 3, 4, 16).

    Two attention axes that lie side by side are one axis of a view; attention over them is attention along it.
    """
    layer = keras_layer(16, 2, 2, rng)
    x = rng.standard_normal((2, 5, 3, 4, 16))
    out, saved = layer.forward(x.reshape(2, 5, 12, 16))
    out, weights = out.reshape(x.shape), saved.maps().reshape(2, 5, 2, 3, 4, 3, 4)
    assert out.shape == (2, 5, 3, 4, 16)
    # Keras computes attention over two axes by an einsum with an index for each axis.
    state = layer.state("keras")
    q, k, v = (np.einsum("abcde,enh->abcdnh", x, state[f"{name}.kernel"]) + state[f"{name}.bias"] for name in ("query", "key", "value"))
    exponentials = np.exp(np.einsum("abcdnh,abijnh->abncdij", q, k) / np.sqrt(2))
    expected = exponentials / exponentials.sum((-2, -1), keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-10)
    heads = np.einsum("abncdij,abijnh->abcdnh", expected, v)
    np.testing.assert_allclose(out, np.einsum("abcdnh,nhe->abcde", heads, state["attention_output.kernel"]) + state["attention_output.bias"], rtol=1e-9, atol=1e-11)


def test_keras_cross_attention_over_two_axes_with_a_mask(rng: Rng) -> None:
    """Keras 3, layers/attention/multi_head_attention_test.py, test_high_dim_attention, "5d_inputs_2d_attention_fullmask".

    Queries (3, 5, 3, 4, 8), values (3, 5, 3, 2, 8), mask (3, 5, 3, 4, 3, 2): the output has the queries' shape.
    """
    layer = keras_layer(8, 2, 2, rng)
    mask = rng.random((3, 5, 3, 4, 3, 2)) < 0.7
    mask[..., 0, 0] = True
    x, y = rng.standard_normal((3, 5, 12, 8)), rng.standard_normal((3, 5, 6, 8))
    out, saved = layer.forward(x, y, attend=mask.reshape(3, 5, 1, 12, 6))
    assert out.reshape(3, 5, 3, 4, 8).shape == (3, 5, 3, 4, 8)
    weights = saved.maps().reshape(3, 5, 2, 3, 4, 3, 2)
    assert ((weights > 0) == np.broadcast_to(mask[:, :, None], weights.shape)).all()


def test_keras_multi_head_attention_by_value() -> None:
    """Keras 3, layers/attention/multi_head_attention_test.py, test_correctness: projections are identities, in float16. Keras allows an error of 1e-2."""
    kernel = np.repeat(np.eye(8)[:, None], 8, axis=1)
    state = {f"{name}.kernel": kernel for name in ("query", "key", "value", "attention_output")}
    state |= {f"{name}.bias": np.zeros((8, 8)) for name in ("query", "key", "value")} | {"attention_output.bias": np.zeros(8)}
    layer = polyhead.load(state, "keras")
    out, saved = layer.forward(np.eye(8)[None], np.eye(8)[None], np.arange(64.0).reshape(1, 8, 8) / 100)
    expected = np.array([2.406, 2.440, 2.473, 2.504, 2.535, 2.568, 2.602, 2.633])
    np.testing.assert_allclose(out, np.broadcast_to(expected[:, None], (1, 8, 8)), atol=2e-3)  # a unit of float16 at 2.4 is 2^-9
    np.testing.assert_allclose(saved.maps(), np.broadcast_to(np.where(np.eye(8, dtype=bool), 0.1691, 0.1187), (1, 8, 8, 8)), atol=1e-4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_keras_sliding_window(is_causal: bool, rng: Rng) -> None:
    """Keras 3, layers/attention/multi_head_attention_test.py, test_sliding_window: a window of size 3 has the keys with |t - s| < 3; if causal, only those with s <= t."""
    layer = keras_layer(8, 2, 4, rng)
    _, saved = layer.forward(rng.standard_normal((1, 6, 8)), window=(2, 0 if is_causal else 2))
    t, s = np.indices((6, 6))
    kept = (abs(t - s) < 3) & ((s <= t) | (not is_causal))
    assert ((saved.maps() > 0) == kept).all()
