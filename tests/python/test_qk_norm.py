"""Compares layers with norms of each head's q and k (qk_norm) with the same formulas in PyTorch, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyhead

torch = pytest.importorskip("torch")

RULES: dict[str, dict[str, Any]] = {
    "self-attention": {},
    "grouped heads of their own width": {"kv_heads": 2, "head_width": 6, "value_head_width": 5, "bias": False, "output_bias": False},
    "gate and another scale": {"gate": True, "scale": 0.7},
}


def normed(x: Any, weight: Any) -> Any:
    """Normalises x [B,T,N,H] for each head and returns [B,N,T,H]."""
    return (x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight).transpose(1, 2)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_outputs_maps_and_gradients_are_those_of_the_formula(name: str, rotary: bool) -> None:
    rng = np.random.default_rng(3)
    layer = polyhead.MultiHeadAttention(16, 4, qk_norm=True, dtype="float64", seed=1, **RULES[name])
    c = layer.config
    assert c["qk_norm"] and "qk_norm=True" in repr(layer)
    for weights in layer.parameters.values():
        weights[...] += 0.3 * rng.standard_normal(weights.shape)
    x, d_out = rng.standard_normal((2, 7, 16)), rng.standard_normal((2, 7, 16))
    angles = np.arange(7)[:, None] * 0.3 ** np.arange(c["head_width"] // 2)
    tables = polyhead.Rotary(cos=np.cos(angles), sin=np.sin(angles)) if rotary else None
    out, saved = layer.forward(x, causal="top_left", **({"rotary": tables} if rotary else {}))
    gradients = saved.backward(d_out)

    p = {key: torch.tensor(array, requires_grad=True) for key, array in layer.parameters.items()}
    of_x = torch.tensor(x, requires_grad=True)

    def linear(of: str, count: int) -> Any:
        return torch.nn.functional.linear(of_x, p[f"{of}.weight"], p.get(f"{of}.bias")).unflatten(-1, (count, -1))

    q, k = normed(linear("q", 4), p["q_norm.weight"]), normed(linear("k", c["kv_heads"]), p["k_norm.weight"])
    v = linear("v", c["kv_heads"]).transpose(1, 2)
    if rotary:
        q, k = (rotated(part, torch.tensor(np.cos(angles)), torch.tensor(np.sin(angles))) for part in (q, k))
    k, v = (part.repeat_interleave(4 // c["kv_heads"], 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) * (c["scale"] or c["head_width"] ** -0.5)
    maps = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    heads = (maps @ v).transpose(1, 2).flatten(2)
    if c["gate"]:
        heads = heads * linear("gate", 1).squeeze(-2).sigmoid()
    expected = torch.nn.functional.linear(heads, p["output.weight"], p.get("output.bias"))
    expected.backward(torch.tensor(d_out))

    def close(ours: Any, theirs: Any) -> None:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * max(1.0, np.abs(theirs).max()))

    close(out, expected.detach().numpy())
    close(saved.maps(), maps.detach().numpy())
    close(gradients.query, of_x.grad.numpy())
    assert gradients.parameters is not None and gradients.parameters.keys() == p.keys()
    for key, parameter in p.items():
        close(gradients.parameters[key], parameter.grad.numpy())


def test_a_cache_holds_normed_keys() -> None:
    layer = polyhead.MultiHeadAttention(16, 4, kv_heads=2, qk_norm=True, seed=1)
    layer.parameters["k_norm.weight"][...] = [0.5, 2, 1, 3]
    x = np.random.default_rng(3).standard_normal((2, 7, 16)).astype(np.float32)
    cache = polyhead.KeyValueCache(2, 2, 7, 4)
    parts = [layer(x[:, first:last], causal="top_left", cache=cache) for first, last in ((0, 4), (4, 5), (5, 7))]
    np.testing.assert_array_equal(np.concatenate(parts, 1), layer(x, causal="top_left"))


def test_a_layout_without_a_place_for_the_norms_is_an_error() -> None:
    layer = polyhead.MultiHeadAttention(16, 4, qk_norm=True)
    with pytest.raises(ValueError, match="layout \"llama\" has no place for k_norm.weight"):
        layer.state("llama")
