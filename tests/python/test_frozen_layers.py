"""Tests layers whose parameters are frozen, so that polyhead may cache packed parameters."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import polyhead

Rng = np.random.Generator
SIZES = [(1, 9), (3, 40), (40, 64)]  # (B, T): few positions; a batch that the layer computes in one chunk; a batch that it computes in several chunks


def layer_of(rng: Rng, dtype: str = "float32") -> polyhead.MultiHeadAttention:
    layer = polyhead.MultiHeadAttention(32, 4, gate=True, dtype=dtype, seed=3)
    for array in layer.parameters.values():
        array[...] = rng.normal(size=array.shape)
    return layer


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("sequences", "length"), SIZES)
def test_a_frozen_layer_gives_the_same_bits_and_gradients(sequences: int, length: int, dtype: str, rng: Rng) -> None:
    layer = layer_of(rng, dtype)
    frozen = layer.frozen()
    x = rng.normal(size=(sequences, length, 32)).astype(dtype)
    for _ in range(3):
        assert np.array_equal(frozen(x), layer(x))
        y, saved = layer.forward(x)
        frozen_y, frozen_saved = frozen.forward(x)
        assert np.array_equal(frozen_y, y)
        expected, given = saved.backward(y), frozen_saved.backward(y)
        assert np.array_equal(given.query, expected.query)
        assert expected.parameters is not None and given.parameters is not None
        for name, gradient in expected.parameters.items():
            assert np.array_equal(given.parameters[name], gradient), name
            assert given.parameters[name].flags.writeable


def test_parameters_of_a_frozen_layer_cannot_be_written(rng: Rng) -> None:
    layer = layer_of(rng)
    assert not layer.is_frozen
    frozen = layer.frozen()
    assert frozen.is_frozen and frozen.config == layer.config
    for name, array in frozen.parameters.items():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        assert np.array_equal(array, layer.parameters[name])


def test_the_layer_from_which_a_frozen_layer_was_made_may_change(rng: Rng) -> None:
    layer, x = layer_of(rng), rng.normal(size=(1, 9, 32)).astype(np.float32)
    before = layer(x)
    frozen = layer.frozen()
    layer.parameters["q.weight"][...] += 1
    assert np.array_equal(frozen(x), before)
    assert not np.array_equal(layer(x), before)
    assert np.array_equal(layer.frozen()(x), layer(x))


@pytest.mark.parametrize("how", ["copy", "pickle"])
def test_copies_of_a_frozen_layer_are_frozen(how: str, rng: Rng) -> None:
    frozen, x = layer_of(rng).frozen(), rng.normal(size=(1, 9, 32)).astype(np.float32)
    frozen.causal = True
    twin = copy.deepcopy(frozen) if how == "copy" else pickle.loads(pickle.dumps(frozen))
    assert twin.is_frozen and twin.causal and np.array_equal(twin(x), frozen(x))
    assert frozen.frozen().is_frozen
