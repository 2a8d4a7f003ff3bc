"""Compares sink logits with a PyTorch formula in which the sink is one more column of scores that has no value, as in gpt-oss' eager attention."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import polyhead

torch = pytest.importorskip("torch")

from polyhead.torch import scaled_dot_product_attention  # noqa: E402


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def with_column(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~keep, -torch.inf)
    column = (sink[:, None] if sink.dim() == 1 else sink).expand(scores.shape[:-1])[..., None]
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ v


@pytest.mark.parametrize("shape", [(3,), (1, 1), (3, 1), (2, 3, 5), (2, 1, 1)])
def test_output_and_gradients_are_those_of_one_more_column(shape: tuple[int, ...]) -> None:
    q, k, v, sink = randn(2, 3, 5, 4), randn(2, 3, 7, 4), randn(2, 3, 7, 6), randn(*shape)
    keep = torch.ones(5, 7, dtype=torch.bool).tril()
    expected = with_column(q, k, v, sink, keep)
    d_out = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v, sink), d_out)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, sink=sink)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    for gradient, other in zip(torch.autograd.grad(out, (q, k, v, sink), d_out), wanted):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-12)

    arrays = [x.detach().numpy() for x in (q, k, v)]
    options = {"causal": "top_left", "sink": sink.detach().numpy()}
    plain, lse, p = polyhead.sdpa(*arrays, return_lse=True, return_attention_weights=True, **options)
    gradients = polyhead.sdpa_backward(*arrays, plain, lse, d_out.numpy(), **options)
    assert gradients.sink.shape == shape and gradients.bias is None
    np.testing.assert_allclose(gradients.sink, wanted[3].numpy(), rtol=0, atol=1e-12)
    rows = options["sink"][:, None] if len(shape) == 1 else options["sink"]
    np.testing.assert_allclose(p.sum(-1), 1 - np.exp(rows - lse), rtol=0, atol=1e-13)
    np.testing.assert_allclose(polyhead.maps(*arrays[:2], **options), p, rtol=0, atol=1e-13)


def test_the_gradient_of_a_tiny_sink_from_attention_weights_keeps_its_digits() -> None:
    """The weight of a sink of -40 is less than the rounding error of 1 - sum p, so it must be computed as exp(sink - lse)."""
    from polyhead.torch import _functional, attention
    from polyhead.torch._rules import Options

    def map_of(sink: torch.Tensor) -> torch.Tensor:
        return _functional.maps(q, k, Options(sink=sink))

    q, k, v, sink = randn(1, 2, 5, 4), randn(1, 2, 7, 4), randn(1, 2, 7, 6), torch.tensor([-40.0, -50.0], dtype=torch.float64, requires_grad=True)
    tangent = torch.ones_like(sink)
    scores = torch.cat([q @ k.mT * 0.5, sink[:, None, None].expand(1, 2, 5, 1)], -1)
    exact = torch.softmax(scores, -1)[..., :-1]
    d_p = torch.randn_like(exact)
    (wanted,) = torch.autograd.grad(exact, sink, d_p)
    p = attention(q, k, v, sink=sink, return_attention_weights=True)[1]
    (found,) = torch.autograd.grad(p, sink, d_p)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)
    found_map = torch.autograd.grad(map_of(sink), sink, d_p)[0]
    torch.testing.assert_close(found_map, wanted, rtol=1e-9, atol=0)
    for function in (lambda sink: attention(q, k, v, sink=sink, return_attention_weights=True)[1], map_of):
        moved = torch.func.jvp(function, (sink.detach(),), (tangent,))[1]
        torch.testing.assert_close(moved, -exact * torch.softmax(scores, -1)[..., -1:], rtol=1e-9, atol=0)


def test_the_gradient_of_a_tiny_sink_in_jax() -> None:
    jax = pytest.importorskip("jax")
    from polyhead.jax import attention

    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 5, 4)).astype(np.float32) for i in range(3))
    sink = np.array([-40.0, -50.0], np.float32)
    d_p = np.random.default_rng(5).standard_normal((1, 2, 5, 5))
    scores = np.concatenate([np.einsum("bnth,bnsh->bnts", q, k).astype(np.float64) * 0.5, np.broadcast_to(sink[:, None, None].astype(np.float64), (1, 2, 5, 1))], -1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    wanted = -(p[..., -1] * (p[..., :-1] * d_p).sum(-1)).sum((0, 2))
    function = lambda sink: attention(q, k, v, sink=sink, return_attention_weights=True)[1]  # noqa: E731
    (found,) = jax.vjp(function, sink)[1](d_p.astype(np.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    moved = jax.jvp(function, (sink,), (np.ones_like(sink),))[1]
    np.testing.assert_allclose(moved, -p[..., :-1] * p[..., -1:], rtol=1e-4)


@pytest.mark.parametrize("level", [100.0, 1e4, 1e5])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_gradient_of_a_sink_beside_large_scores(library: str, level: float) -> None:
    """lse is rounded. Where it is large, exp(sink - lse) has a large error: at lse = 1e5 it would change the gradient by 3e-3 of its size."""
    draw = np.random.default_rng(3)
    q, k, v, bias = (draw.standard_normal(shape).astype(np.float32) for shape in ((1, 2, 5, 4), (1, 2, 7, 4), (1, 2, 7, 6), (2, 5, 7)))
    bias, sink, d_p = (bias + level).astype(np.float32), np.array([level, level - 1], np.float32), draw.standard_normal((1, 2, 5, 7)).astype(np.float32)
    q[:] = 0  # q k = 0, so each score is exactly the bias
    scores = np.broadcast_to(bias.astype(np.float64), (1, 2, 5, 7))
    rows = np.concatenate([scores, np.broadcast_to(sink[:, None, None].astype(np.float64), (1, 2, 5, 1))], -1)
    p = np.exp(rows - rows.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    wanted = -(p[..., -1] * (p[..., :-1] * d_p).sum(-1)).sum((0, 2))
    if library == "torch":
        from polyhead.torch import attention

        given = torch.from_numpy(sink).requires_grad_()
        weights = attention(*map(torch.from_numpy, (q, k, v)), bias=torch.from_numpy(bias), sink=given, return_attention_weights=True)[1]
        found = torch.autograd.grad(weights, given, torch.from_numpy(d_p))[0].numpy()
    else:
        jax = pytest.importorskip("jax")
        from polyhead.jax import attention as of_jax

        found = np.asarray(jax.vjp(lambda sink: of_jax(q, k, v, bias=bias, sink=sink, return_attention_weights=True)[1], sink)[1](d_p)[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_the_gradient_of_a_sink_through_a_map_of_narrow_keys(dtype: torch.dtype) -> None:
    from polyhead.torch import _functional
    from polyhead.torch._rules import Options

    q, sink = torch.randn(1, 2, 5, 4), torch.tensor([0.5, -1.0], requires_grad=True)
    k = torch.randint(-9, 9, (1, 2, 7, 4)).to(dtype)
    k_scale = torch.full((1, 2, 7), 0.25) if dtype == torch.int8 else None
    p = _functional.maps(q, k, Options(sink=sink, k_scale=k_scale))
    d_p = torch.randn_like(p)
    (found,) = torch.autograd.grad(p, sink, d_p)
    wide = k.float() * (0.25 if dtype == torch.int8 else 1)
    exact = torch.softmax(torch.cat([q @ wide.mT * 0.5, sink[:, None, None].expand(1, 2, 5, 1)], -1), -1)[..., :-1]
    torch.testing.assert_close(found, torch.autograd.grad(exact, sink, d_p)[0], rtol=1e-5, atol=1e-6)


def test_a_float32_sink_goes_with_narrow_inputs() -> None:
    q, k, v = (torch.randn(1, 2, 3, 8).bfloat16() for _ in range(3))
    sink = torch.tensor([0.5, -1.25], requires_grad=True)
    out = scaled_dot_product_attention(q, k, v, sink=sink)
    assert torch.equal(out, scaled_dot_product_attention(q, k, v, sink=sink.bfloat16()))  # bfloat16 represents 0.5 and -1.25 exactly
    out.sum().backward()
    assert sink.grad is not None and sink.grad.dtype == torch.float32


def test_a_layer_takes_a_sink_and_gives_its_gradient() -> None:
    rng = np.random.default_rng(0)
    layer = polyhead.MultiHeadAttention(8, 2, dtype="float64", seed=1)
    x, d_out, sink = rng.standard_normal((2, 5, 8)), rng.standard_normal((2, 5, 8)), rng.standard_normal(2)
    out, saved = layer.forward(x, sink=sink)
    gradient = saved.backward(d_out).sink
    for i in range(2):
        moved = [np.vdot(layer(x, sink=sink + step * np.eye(2)[i]), d_out) for step in (1e-5, -1e-5)]
        assert abs((moved[0] - moved[1]) / 2e-5 - gradient[i]) < 1e-8
    assert saved.maps().sum(-1).max() < 1 and not np.array_equal(out, layer(x))


def test_a_layer_learns_its_sinks() -> None:
    """As in gpt-oss, sinks may be a parameter of the layer. Output and gradients are compared with the layer written in PyTorch."""
    rng = np.random.default_rng(0)
    layer = polyhead.MultiHeadAttention(8, 4, kv_heads=2, head_width=3, sink=True, dtype="float64", seed=1)
    assert layer.config["sink"] is True and layer.parameters["sink"].tolist() == [0.0] * 4
    layer.parameters["sink"][...] = rng.standard_normal(4)
    p = {name: torch.tensor(array, requires_grad=True) for name, array in layer.parameters.items()}
    x, d_out = torch.tensor(rng.standard_normal((2, 5, 8)), requires_grad=True), torch.tensor(rng.standard_normal((2, 5, 8)))
    q, k, v = ((x @ p[f"{name}.weight"].T + p[f"{name}.bias"]).unflatten(-1, (-1, 3)).transpose(1, 2) for name in "qkv")
    attended = with_column(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), p["sink"], torch.ones(5, 5, dtype=torch.bool).tril())
    expected = attended.transpose(1, 2).flatten(-2) @ p["output.weight"].T + p["output.bias"]
    wanted = torch.autograd.grad(expected, (x, *p.values()), d_out)

    out, saved = layer.forward(x.detach().numpy(), causal="top_left")
    gradients = saved.backward(d_out.numpy())
    np.testing.assert_allclose(out, expected.detach().numpy(), rtol=0, atol=1e-13)
    assert gradients.parameters.keys() == p.keys() and gradients.sink is None
    for actual, other in zip((gradients.query, *gradients.parameters.values()), wanted):
        np.testing.assert_allclose(actual, other.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.frozen()(x.detach().numpy(), causal="top_left"), out, rtol=0, atol=1e-14)
    copied = pickle.loads(pickle.dumps(layer))
    assert np.array_equal(copied.parameters["sink"], layer.parameters["sink"]) and np.array_equal(copied(x.detach().numpy(), causal="top_left"), out)
    with pytest.raises(ValueError, match="a layer that learns its own"):
        layer(x.detach().numpy(), sink=np.zeros(4))
    with pytest.raises(ValueError, match="has no place for sink"):
        layer.state("bert")
    with pytest.raises(ValueError, match="sink cannot be combined with empty_rows uniform"):
        polyhead.MultiHeadAttention(8, 4, sink=True, empty_rows="uniform")


def test_a_text_in_a_cache_has_the_sinks_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    layer = polyhead.MultiHeadAttention(8, 2, dtype="float64", seed=1)
    x, sink = rng.standard_normal((2, 6, 8)), rng.standard_normal(2)
    cache = polyhead.KeyValueCache(2, 2, 6, 4, dtype="float64")
    steps = [layer(x[:, t : t + 1], cache=cache, causal="top_left", sink=sink) for t in range(6)]
    np.testing.assert_allclose(np.concatenate(steps, 1), layer(x, causal="top_left", sink=sink), rtol=0, atol=1e-14)
