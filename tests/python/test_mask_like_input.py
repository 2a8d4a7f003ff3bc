"""If polyhead.MultiHeadAttention attends along another axis than the last but one, a key mask may be [*,S], or be laid out like the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyhead


@pytest.mark.parametrize("name", ["attend_keys", "block_keys"])
@pytest.mark.parametrize("shape", [(2, 5, 5, 8), (2, 5, 4, 8), (5, 5, 8)])
def test_a_mask_like_the_input_is_that_with_the_axis_moved_last(shape: tuple[int, ...], name: str) -> None:
    rng = np.random.default_rng(4)
    layer = polyhead.MultiHeadAttention(8, 2, axis=-3, empty_rows="uniform", dtype="float64", seed=1)
    x, mask = rng.standard_normal(shape), rng.random(shape[:-1]) < 0.6
    moved = np.moveaxis(mask, -2, -1)
    like: dict[str, Any] = {name: mask, "mask_like_input": True}
    keys_last: dict[str, Any] = {name: moved, "mask_like_input": False}
    out = layer(x, **like)
    assert np.array_equal(out, layer(x, **keys_last))
    forward, saved = layer.forward(x, **like)
    expected, saved_expected = layer.forward(x, **keys_last)
    assert np.array_equal(forward, expected) and np.array_equal(saved.maps(), saved_expected.maps())
    assert np.array_equal(saved.backward(x).query, saved_expected.backward(x).query)
    if shape[1] == shape[2]:
        assert not np.array_equal(out, layer(x, **like | {"mask_like_input": False}))
        with pytest.raises(ValueError, match=f"{name} is .*, which may be .*mask_like_input"):
            layer(x, **{name: mask})
        with pytest.raises(ValueError, match=f"{name} is .*, which may be .*mask_like_input"):
            layer.forward(x, **{name: mask})
    elif shape[0] == 2:
        assert np.array_equal(out, layer(x, **{name: moved}))  # the mask's shape fits one of the two layouts only
        with pytest.raises(ValueError, match=f"{name} is .* It fits the layout of the input"):
            layer(x, **{name: mask})


def test_a_wrong_mask_like_input_is_refused() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, axis=-3)
    with pytest.raises(TypeError, match="mask_like_input is ndarray; it must be True, False or None"):
        layer(np.zeros((2, 5, 5, 8), np.float32), mask_like_input=np.ones((2, 5, 5), bool))  # type: ignore[arg-type]
    cache = polyhead.KeyValueCache(2, 2, 9, 4)
    with pytest.raises(ValueError, match="mask_like_input cannot be true with a cache"):
        polyhead.MultiHeadAttention(8, 2)(np.zeros((2, 5, 8), np.float32), cache=cache, attend_keys=np.ones((2, 5), bool), mask_like_input=True)


def test_an_alphafold_layer_of_a_file_has_the_rule_too() -> None:
    source = polyhead.MultiHeadAttention(8, 2, gate=True, bias=False, axis=-3, dtype="float64", seed=3)
    layer = polyhead.load(source.state("alphafold", without=["axis", "empty_rows"]), "alphafold", heads=2, axis=-3)
    pair = np.random.default_rng(4).standard_normal((5, 5, 8))
    mask = np.tril(np.ones((5, 5), bool))
    with pytest.raises(ValueError, match="mask_like_input"):
        layer(pair, attend_keys=mask)
    assert np.array_equal(layer(pair, attend_keys=mask, mask_like_input=True), layer(pair, attend_keys=mask.T, mask_like_input=False))
