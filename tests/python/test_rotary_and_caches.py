"""Compares layers with rotary positions, and layers that get projected keys and values, with the formula in NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyhead

Rng = np.random.Generator
Tables = tuple[np.ndarray, np.ndarray]
HEADS, KV_HEADS, HEAD_WIDTH = 4, 2, 6


def tables(positions: Any, width: int) -> Tables:
    """Returns cosines and sines ``[positions, width/2]`` of the rotary angles (Su et al. 2021, section 3.2.2)."""
    angles = np.multiply.outer(np.asarray(positions, float), 10000.0 ** -(np.arange(width // 2) / (width // 2)))
    return np.cos(angles), np.sin(angles)


def rotated(x: np.ndarray, table: Tables, order: str) -> np.ndarray:
    """Rotates the first features of x ``[*,N,T,H]`` as in equation 34 of Su et al. 2021."""
    cos, sin = table
    pairs = cos.shape[-1]
    first = np.arange(pairs) if order == "halves" else 2 * np.arange(pairs)
    second = first + (pairs if order == "halves" else 1)
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result


def split(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, HEAD_WIDTH), -2, -3)


def attend(p: dict[str, np.ndarray], q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Computes a layer's output from its heads q ``[*,N,T,H]``, k and v ``[*,K,S,H]``."""
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=-3) for x in (k, v))
    score = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(HEAD_WIDTH))
    heads = score / score.sum(-1, keepdims=True) @ v
    merged = np.moveaxis(heads, -3, -2)
    return merged.reshape(*merged.shape[:-2], -1) @ p["output.weight"].T + p["output.bias"]


def project(p: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return split(x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def gradient(loss: Callable[[np.ndarray], Any], x: np.ndarray) -> np.ndarray:
    """Computes the gradient by complex steps: Im loss(x + i h) / h has no cancellation, so its only error is rounding."""
    result = np.empty_like(x)
    for index in np.ndindex(x.shape):
        step = x.astype(complex)
        step[index] += 1e-40j
        result[index] = loss(step).imag / 1e-40
    return result


def layer_of(rng: Rng) -> polyhead.MultiHeadAttention:
    layer = polyhead.MultiHeadAttention(5, HEADS, kv_heads=KV_HEADS, head_width=HEAD_WIDTH, dtype="float64")
    for array in layer.parameters.values():
        array[...] = rng.normal(size=array.shape)
    return layer


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


@pytest.mark.parametrize("order", ["halves", "pairs"])
@pytest.mark.parametrize("width", [None, 4])
def test_rotary_positions_are_those_of_the_formula(order: Any, width: int | None, rng: Rng) -> None:
    layer = layer_of(rng)
    p = layer.parameters
    x, memory, d_out = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 3, 5))
    of_queries, of_keys = tables([4, 5, 6], width or HEAD_WIDTH), tables([0, 1, 2, 9], width or HEAD_WIDTH)

    def formula(x: np.ndarray, memory: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
        q, k = rotated(project(p, "q", x), of_queries, order), rotated(project(p, "k", memory), of_keys, order)
        return attend(p, q, k, project(p, "v", memory))

    out, saved = layer.forward(x, memory, rotary=polyhead.Rotary(*of_queries, *of_keys, order, width))
    close(out, formula(x, memory, p))
    grads = saved.backward(d_out)
    close(grads.query, gradient(lambda x: (formula(x, memory, p) * d_out).sum(), x))
    close(grads.key, gradient(lambda memory: (formula(x, memory, p) * d_out).sum(), memory))
    assert grads.parameters is not None
    for name in ("q.weight", "k.weight", "k.bias", "v.weight"):
        close(grads.parameters[name], gradient(lambda given: (formula(x, memory, p | {name: given}) * d_out).sum(), p[name]))


def test_one_table_serves_queries_and_keys_and_may_differ_by_sequence(rng: Rng) -> None:
    layer = layer_of(rng)
    x = rng.normal(size=(2, 3, 5))
    by_sequence = tables([[0, 1, 2], [7, 8, 9]], HEAD_WIDTH)
    whole = layer(x, rotary=polyhead.Rotary(*by_sequence))
    for b in range(2):
        cos, sin = (table[b] for table in by_sequence)
        close(whole[b], layer(x[b], rotary=polyhead.Rotary(cos, sin, cos, sin)))
    close(whole, layer(x, rotary=polyhead.Rotary(*tables([0, 1, 2], HEAD_WIDTH))))  # scores depend only on the distance of positions
    assert not np.allclose(whole, layer(x))


@pytest.mark.parametrize("rotary", [False, True])
def test_projected_keys_and_values_stand_for_key_and_value(rotary: bool, rng: Rng) -> None:
    layer = layer_of(rng)
    p = layer.parameters
    x, memory, d_out = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 3, 5))
    of_queries, of_keys = tables([4, 5, 6], HEAD_WIDTH), tables([0, 1, 2, 3], HEAD_WIDTH)
    turn = rotated if rotary else lambda x, table, order: x
    k, v = turn(project(p, "k", memory), of_keys, "halves"), project(p, "v", memory)

    def loss(x: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        return (attend(p, turn(project(p, "q", x), of_queries, "halves"), k, v) * d_out).sum()

    out, saved = layer.forward(x, projected_key=k, projected_value=v, rotary=polyhead.Rotary(*of_queries) if rotary else None)
    close(out, layer(x, memory, rotary=polyhead.Rotary(*of_queries, *of_keys) if rotary else None))
    assert saved.maps().shape == (2, HEADS, 3, 4)
    grads = saved.backward(d_out)
    assert grads.key is None and grads.value is None and grads.parameters is not None
    close(grads.query, gradient(lambda x: loss(x, k, v), x))
    close(grads.projected_key, gradient(lambda k: loss(x, k, v), k))
    close(grads.projected_value, gradient(lambda v: loss(x, k, v), v))
    assert not any(grads.parameters[name].any() for name in ("k.weight", "k.bias", "v.weight", "v.bias"))
    assert saved.backward(d_out, inputs=False).projected_key is None


def test_arrays_that_the_gradients_need_stay_alive(rng: Rng) -> None:
    layer = layer_of(rng)
    x, d_out, k, v = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5)), *rng.normal(size=(2, 2, KV_HEADS, 4, HEAD_WIDTH))
    cos, sin = tables([4, 5, 6], HEAD_WIDTH)
    expected = layer.forward(x, projected_key=k, projected_value=v, rotary=polyhead.Rotary(cos, sin))[1].backward(d_out)
    _, saved = layer.forward(x.copy(), projected_key=k.copy(), projected_value=v.copy(), rotary=polyhead.Rotary(cos.copy(), sin.copy()))
    reused = [np.full(array.shape, np.nan) for array in (x, k, v, cos, sin) for _ in range(20)]  # would overwrite inputs whose memory was freed
    again = saved.backward(d_out)
    assert reused and np.array_equal(again.query, expected.query) and np.array_equal(again.projected_key, expected.projected_key)


def test_arguments_that_do_not_fit_together_are_refused(rng: Rng) -> None:
    layer = layer_of(rng)
    x, k = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, KV_HEADS, 4, HEAD_WIDTH))
    cos, sin = tables([0, 1, 2], HEAD_WIDTH)
    with pytest.raises(ValueError, match="projected_key and projected_value must be given together"):
        layer(x, projected_key=k)
    with pytest.raises(ValueError, match="both key and projected_key"):
        layer(x, x, projected_key=k, projected_value=k)
    with pytest.raises(ValueError, match=r"rotary.cos is float64 \[3,6\]"):  # tables that hold each angle twice have the wrong width
        layer(x, rotary=polyhead.Rotary(np.concatenate([cos, cos], -1), np.concatenate([sin, sin], -1)))
    with pytest.raises(ValueError, match="no key_cos"):
        layer(x, x[:, :2], rotary=polyhead.Rotary(cos, sin))
    with pytest.raises(TypeError, match="rotary is of type tuple; it must be a polyhead.Rotary"):
        layer(x, rotary=(cos, sin))  # type: ignore[arg-type]
