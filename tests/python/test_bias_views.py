"""A bias may be a view in which several elements share memory, for example of a table of relative positions. Its gradient may have an element for each pair or for each number
of the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import polyhead

Array = np.ndarray
T, S = 5, 7


def sliding(table: Array) -> Array:
    """Returns a view [T,S] of a table [T + S - 1]: element (t, s) is number T - 1 + s - t of the table."""
    step = table.strides[0]
    return as_strided(table[T - 1 :], (T, S), (-step, step))


def one_per_head(table: Array) -> Array:
    """Returns a view [N,T,S] of a table [N,T + S - 1] that has a row for each head: element (n, t, s) is number T - 1 + s - t of row n."""
    return as_strided(table[:, T - 1 :], (len(table), T, S), (table.strides[0], -table.strides[1], table.strides[1]))


def per_distance(pairs: Array) -> Array:
    """Sums [..,T,S] over the pairs at each distance."""
    return np.stack([np.trace(pairs, d - T + 1, -2, -1) for d in range(T + S - 1)], -1)


def problem(rng: np.random.Generator, dtype: str) -> tuple[Array, ...]:
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in [(2, 4, T, 8), (2, 2, S, 8), (2, 2, S, 6), (2, 4, T, 6)])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("view", "shape"), [(sliding, (T + S - 1,)), (one_per_head, (4, T + S - 1))])
def test_a_table_gets_the_sum_over_the_pairs_that_read_it(view: Callable[[Array], Array], shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    q, k, v, d_out = problem(rng, dtype)
    table = rng.standard_normal(shape).astype(dtype)
    options = {"bias": view(table), "causal": "bottom_right", "softcap": 3.0}
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    pairs = polyhead.sdpa_backward(q, k, v, out, lse, d_out, **options)
    assert pairs.bias.shape == view(table).shape
    d_table = np.zeros_like(table)
    d_bias = view(d_table)
    summed = polyhead.sdpa_backward(q, k, v, out, lse, d_out, d_bias=d_bias, **options)
    assert summed.bias is d_bias
    assert all(np.array_equal(a, b) for a, b in zip(summed[:3], pairs[:3]))
    expected = per_distance(pairs.bias.astype("float64"))
    tolerance = {"float64": 1e-13, "float32": 1e-6, "float16": 4e-3}[dtype]
    np.testing.assert_allclose(d_table, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_the_gradient_of_a_table_is_the_slope_of_the_loss(rng: np.random.Generator) -> None:
    q, k, v, d_out = problem(rng, "float64")
    table = rng.standard_normal(T + S - 1)

    def loss(at: Array) -> float:
        return float((polyhead.sdpa(q, k, v, bias=sliding(at)) * d_out).sum())

    out, lse = polyhead.sdpa(q, k, v, bias=sliding(table), return_lse=True)
    d_table = np.zeros_like(table)
    polyhead.sdpa_backward(q, k, v, out, lse, d_out, bias=sliding(table), gradients=["bias"], d_bias=sliding(d_table))
    steps = 1e-6 * np.eye(len(table))
    slopes = np.array([(loss(table + step) - loss(table - step)) / 2e-6 for step in steps])
    np.testing.assert_allclose(d_table, slopes, rtol=0, atol=1e-6 * np.abs(slopes).max())


def test_numbers_of_the_table_that_no_pair_reads_are_left_alone(rng: np.random.Generator) -> None:
    q, k, v, d_out = problem(rng, "float64")
    table = rng.standard_normal(T + S + 3)
    out, lse = polyhead.sdpa(q, k, v, bias=sliding(table), return_lse=True)
    d_table = np.full_like(table, 7)
    polyhead.sdpa_backward(q, k, v, out, lse, d_out, bias=sliding(table), d_bias=sliding(d_table))
    assert (d_table[T + S - 1 :] == 7).all() and (np.abs(d_table[: T + S - 1]) < 7).all()  # the gradient has replaced the numbers 7 in its memory and was not added to them


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_a_layer_takes_a_bias_that_is_a_view_of_a_table(extra: dict[str, bool], rng: np.random.Generator) -> None:
    layer = polyhead.MultiHeadAttention(8, 2, dtype="float64", seed=3, **extra)
    x, memory, d_out = (rng.standard_normal((2, length, 8)) for length in (T, S, T))
    table = rng.standard_normal((2, T + S - 1))
    saved = layer.forward(x, memory, bias=one_per_head(table)[None])[1]
    expected = per_distance(saved.backward(d_out).bias[0])
    for inputs in (True, False):
        d_table = np.zeros_like(table)
        d_bias = one_per_head(d_table)[None]
        assert saved.backward(d_out, inputs=inputs, parameters=False, d_bias=d_bias).bias is d_bias
        np.testing.assert_allclose(d_table, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_a_place_for_the_gradient_that_does_not_fit_is_refused(rng: np.random.Generator) -> None:
    q, k, v, d_out = problem(rng, "float32")
    bias = rng.standard_normal((T, S), dtype=np.float32)
    out, lse = polyhead.sdpa(q, k, v, bias=bias, return_lse=True)
    given = (q, k, v, out, lse, d_out)
    for d_bias, message in (
        (np.zeros((4, T, S), np.float32), r"d_bias is \[4,5,7\]"),
        (np.zeros((T, S)), "d_bias .*float64"),
        (np.broadcast_to(np.float32(0), (T, S)), "d_bias is read-only"),
        (bias, "d_bias overlaps bias"),
    ):
        with pytest.raises(ValueError, match=message):
            polyhead.sdpa_backward(*given, bias=bias, d_bias=d_bias)
    with pytest.raises(ValueError, match="d_bias is given, and gradients is"):
        polyhead.sdpa_backward(*given, bias=bias, gradients=["q"], d_bias=np.zeros_like(bias))
    with pytest.raises(ValueError, match="without a bias"):
        polyhead.sdpa_backward(*given, d_bias=np.zeros_like(bias))
    x = np.ones((2, T, 8), np.float32)
    with pytest.raises(ValueError, match="gradient of bias is requested"):
        polyhead.MultiHeadAttention(8, 2).forward(x)[1].backward(x, d_bias=np.zeros((T, T), np.float32))


@pytest.mark.parametrize("shared", ["as_strided", "unfold", "expand"])
def test_autograd_sums_into_the_table(shared: str) -> None:
    torch = pytest.importorskip("torch")
    from polyhead.torch import GatedAttention, scaled_dot_product_attention

    views = {
        "as_strided": ((T + S - 1,), lambda x: x.as_strided((T, S), (1, 1))),
        "unfold": ((2, T + S - 1), lambda x: x.unfold(-1, S, 1)),
        "expand": ((2, 1, S), lambda x: x.expand(2, T, S)),
    }
    shape, view = views[shared]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, length, 3, dtype=torch.float64) for length in (T, S, S))
    table = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: scaled_dot_product_attention(q, k, v, view(x)), [table])
    layer = GatedAttention(4, 2, 2).double()
    square = torch.randn(2, T, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: layer(square, view(x)[..., :T]), [table])
