"""Compares ALiBi and T5's buckets with a full bias [N,T,S], with gradients of PyTorch's autograd, and with the bucket function of transformers."""

import numpy as np
import pytest

import polyhead
from polyhead import RelativeBias

RNG = np.random.default_rng


def pairs(slopes, queries, keys, offset):
    distance = np.arange(keys)[None, :] - (np.arange(queries)[:, None] + offset)
    return -slopes[:, None, None] * np.abs(distance)


def bucketed(table, queries, keys, offset, **rule):
    buckets = [[polyhead.relative_bucket(s - t - offset, table.shape[1], **rule) for s in range(keys)] for t in range(queries)]
    return table[:, np.array(buckets)]


@pytest.fixture
def problem():
    rng = RNG(3)
    return [rng.standard_normal((2, 4, rows, 8)) for rows in (5, 9, 9, 5)]


@pytest.mark.parametrize("options, offset", [({}, 4), ({"causal": "bottom_right"}, 4), ({"causal": 2}, 2), ({"window": (3, 2)}, 4)])
@pytest.mark.parametrize("kind", ["slopes", "table", "table, one direction"])
def test_a_relative_bias_is_the_bias_of_every_pair(problem, options, offset, kind):
    q, k, v, d_out = problem
    if kind == "slopes":
        slopes = RNG(1).uniform(0, 1, 4)
        relative, bias = RelativeBias(slopes=slopes), pairs(slopes, 5, 9, offset)
    else:
        table, rule = RNG(1).standard_normal((4, 8)), {"bidirectional": kind == "table", "max_distance": 6}
        relative, bias = RelativeBias(table=table, **rule), bucketed(table, 5, 9, offset, **rule)
    out, lse = polyhead.sdpa(q, k, v, relative_bias=relative, return_lse=True, **options)
    expected, expected_lse = polyhead.sdpa(q, k, v, bias=bias, return_lse=True, **options)
    assert np.array_equal(out, expected) and np.array_equal(lse, expected_lse)
    assert np.array_equal(polyhead.maps(q, k, relative_bias=relative, **options), polyhead.maps(q, k, bias=bias, **options))

    gradients = polyhead.sdpa_backward(q, k, v, out, lse, d_out, relative_bias=relative, **options)
    wanted = polyhead.sdpa_backward(q, k, v, out, lse, d_out, bias=bias, **options)
    np.testing.assert_allclose(gradients.q, wanted.q, rtol=0, atol=1e-13)
    if kind == "slopes":
        d_given = (wanted.bias * pairs(np.ones(4), 5, 9, offset)).sum((1, 2))
    else:
        d_given = np.stack([(wanted.bias * (bucketed(np.tile(np.arange(8.0), (4, 1)), 5, 9, offset, **rule) == i)).sum((1, 2)) for i in range(8)], 1)
    np.testing.assert_allclose(gradients.relative_bias, d_given, rtol=0, atol=1e-12)
    assert gradients.bias is None and wanted.relative_bias is None


def test_buckets_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distances = list(range(-2100, 2101, 1))
    for bidirectional in (True, False):
        for buckets, max_distance in ((32, 128), (32, 20), (64, 128), (320, 800), (16, 1000)):
            theirs = attention._relative_position_bucket(torch.tensor(distances), bidirectional, buckets, max_distance).tolist()
            ours = [polyhead.relative_bucket(x, buckets, bidirectional=bidirectional, max_distance=max_distance) for x in distances]
            assert ours == theirs, (bidirectional, buckets, max_distance)


def test_slopes_are_those_of_bloom():
    torch = pytest.importorskip("torch")
    build = pytest.importorskip("transformers.models.bloom.modeling_bloom").build_alibi_tensor
    for heads in (1, 4, 7, 8, 12, 16, 112):
        theirs = build(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].numpy()  # Bloom's bias of the key at position 1 is the slope
        np.testing.assert_allclose(polyhead.alibi_slopes(heads), theirs, rtol=1e-6)


def test_a_layer_with_a_cache_counts_distances_from_each_sequence():
    layer = polyhead.MultiHeadAttention(16, heads=4)
    x, alibi = RNG(2).standard_normal((2, 6, 16), dtype=np.float32), RelativeBias(slopes=polyhead.alibi_slopes(4))
    whole = layer(x, causal="top_left", relative_bias=alibi)
    cache = polyhead.KeyValueCache(2, kv_heads=4, capacity=8, head_width=4)
    parts = [layer(x[:, t : t + 2], causal="top_left", relative_bias=alibi, cache=cache) for t in (0, 2, 4)]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    _, saved = layer.forward(x, causal="top_left", relative_bias=alibi)
    assert saved.backward(x).relative_bias.shape == (4,)


@pytest.mark.parametrize(
    "relative, message",
    [
        (RelativeBias(), "neither slopes nor a table"),
        (RelativeBias(slopes=np.zeros(3)), r"relative_bias.slopes is \[3\]; it must be \[N\] = \[4\]"),
        (RelativeBias(table=np.zeros((8, 4))), r"relative_bias.table is \[8,4\]; it must be \[N,buckets\] = \[4,buckets\]"),
        (RelativeBias(slopes=np.zeros(4), table=np.zeros((4, 8))), "slopes and a table"),
        (RelativeBias(table=np.zeros((4, 8)), max_distance=2), "max_distance 2; the first 2 buckets"),
        (RelativeBias(slopes=np.zeros(4, np.float32)), "relative_bias.slopes is float32; it must be float64 as q"),
    ],
)
def test_what_does_not_fit_is_refused(problem, relative, message):
    q, k, v, _ = problem
    with pytest.raises(ValueError, match=message):
        polyhead.sdpa(q, k, v, relative_bias=relative)


def test_a_relative_bias_of_another_type_is_refused(problem):
    q, k, v, _ = problem
    with pytest.raises(TypeError, match="relative_bias is of type ndarray; it must be a polyhead.RelativeBias"):
        polyhead.sdpa(q, k, v, relative_bias=np.zeros(4))
    with pytest.raises(ValueError, match="bias and relative_bias are both given"):
        polyhead.sdpa(q, k, v, bias=np.zeros((5, 9)), relative_bias=RelativeBias(slopes=np.zeros(4)))


def test_torch_gradients_are_those_of_the_bias_of_every_pair():
    torch = pytest.importorskip("torch")
    from polyhead.torch import scaled_dot_product_attention

    q, k, v = (torch.randn(2, 4, rows, 8, dtype=torch.float64, requires_grad=True) for rows in (5, 9, 9))
    slopes = torch.rand(4, dtype=torch.float64, requires_grad=True)
    distance = (torch.arange(9) - (torch.arange(5)[:, None] + 4)).abs()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=-slopes[:, None, None] * distance)
    out = scaled_dot_product_attention(q, k, v, relative_bias=RelativeBias(slopes=slopes))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    d_out = torch.randn_like(out)
    for ours, theirs in zip(torch.autograd.grad(out, (q, k, v, slopes), d_out), torch.autograd.grad(expected, (q, k, v, slopes), d_out, retain_graph=True)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    narrow = scaled_dot_product_attention(*(x.detach().bfloat16() for x in (q, k, v)), relative_bias=RelativeBias(slopes=slopes.detach().float()))
    torch.testing.assert_close(narrow.double(), expected, rtol=0, atol=0.06)
    with pytest.raises(ValueError, match="a floating attn_mask and relative_bias are both given"):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(5, 9), relative_bias=RelativeBias(slopes=slopes))
    mixed = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    wide = slopes.detach().float().requires_grad_()
    scaled_dot_product_attention(*mixed, relative_bias=RelativeBias(slopes=wide)).backward(d_out.bfloat16())
    torch.testing.assert_close(wide.grad.double(), torch.autograd.grad(expected, slopes, d_out, retain_graph=True)[0], rtol=0.05, atol=0.2)
    for diagonal, error in (("bottom_right", ValueError), (3, ValueError), ("topleft", ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="relative_bias.diagonal is "):
            scaled_dot_product_attention(q, k, v, is_causal=True, relative_bias=RelativeBias(slopes=slopes, diagonal=diagonal))
    named = scaled_dot_product_attention(q, k, v, is_causal=True, relative_bias=RelativeBias(slopes=slopes, diagonal="top_left"))
    assert torch.equal(named, scaled_dot_product_attention(q, k, v, is_causal=True, relative_bias=RelativeBias(slopes=slopes)))
    with pytest.raises(TypeError, match="relative_bias is of type Tensor"):
        scaled_dot_product_attention(q, k, v, relative_bias=slopes)
