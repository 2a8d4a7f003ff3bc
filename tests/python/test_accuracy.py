"""The float32 errors of polyhead, measured against float64, are at most those of PyTorch's operators in float32 (its math path)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyhead

SETTINGS = 300


def plain(q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
    """Computes softmax(scale q k^T + bias) v in NumPy, each step in the dtype of q."""
    score = (q * q.dtype.type(scale)) @ k.swapaxes(-1, -2)
    if bias is not None:
        score = score + bias
    p = np.exp(score - score.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def torch_math(q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = [None if x is None else torch.from_numpy(x) for x in (q, k, v, bias)]
    with sdpa_kernel(SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*tensors[:3], attn_mask=tensors[3], scale=scale)
    return out.numpy()


def error(out: Any, exact: Any) -> float:
    return float(np.sqrt(np.mean((out.astype(np.float64) - exact) ** 2)))


def sweep(rng: np.random.Generator) -> list[tuple[Any, Any, Any, Any, float]]:
    problems = []
    for _ in range(SETTINGS):
        queries, keys = (int(2 ** rng.uniform(0, 8.5)) for _ in range(2))
        width, value_width = (int(rng.choice([1, 4, 16, 32, 64, 80, 128])) for _ in range(2))
        spread = float(rng.choice([0.3, 1.0, 3.0]))  # small: attention is almost uniform; large: one key has most of the weight
        make = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        bias = make(2, queries, keys) if rng.random() < 0.4 else None
        problems.append((spread * make(2, queries, width), make(2, keys, width), make(2, keys, value_width), bias, width**-0.5))
    return problems


def test_float32_error_is_at_most_that_of_torchs_math_path(rng: np.random.Generator, summary: list[str]) -> None:
    pytest.importorskip("torch", reason="polyhead is compared with PyTorch's math path")
    ratios = []
    for q, k, v, bias, scale in sweep(rng):
        exact = plain(*(None if x is None else x.astype(np.float64) for x in (q, k, v, bias)), scale)
        own, other = error(polyhead.sdpa(q, k, v, bias=bias, scale=scale), exact), error(torch_math(q, k, v, bias, scale), exact)
        if other > 0:
            ratios.append(own / other)
    assert len(ratios) > 0.8 * SETTINGS
    median, worst = float(np.median(ratios)), max(ratios)
    backends = ", ".join(polyhead.backends())
    summary.append(f"float32 error beside torch's math path: median {median:.2f} x, largest {worst:.2f} x, {len(ratios)} settings ({backends})")
    assert median <= 1.0


@pytest.mark.parametrize("keys", [64, 250, 512, 1500])
def test_float32_errors_of_training_are_at_most_those_of_torch(keys: int, rng: np.random.Generator, summary: list[str]) -> None:
    """Compares out and the gradients of q, k and v with those of PyTorch's default kernel, which never stores the attention weights, either."""
    torch = pytest.importorskip("torch", reason="polyhead is compared with PyTorch's kernel")
    import polyhead.torch

    def pass_of(attention: Any, q: Any, k: Any, v: Any, d_out: Any) -> list[Any]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves)
        out.backward(d_out)
        return [out.detach(), *(x.grad for x in leaves)]

    ratios = []
    for width in (32, 64, 128):
        for spread in (0.3, 1.0, 3.0):
            make = lambda *shape: torch.from_numpy(rng.standard_normal((1, 2, *shape)).astype(np.float32))  # noqa: E731
            inputs = spread * make(200, width), make(keys, width), make(keys, width), make(200, width)
            exact = pass_of(torch.nn.functional.scaled_dot_product_attention, *(x.double() for x in inputs))
            own, other = (pass_of(f, *inputs) for f in (polyhead.torch.attention, torch.nn.functional.scaled_dot_product_attention))
            ratios.append([error(a.numpy(), c.numpy()) / error(b.numpy(), c.numpy()) for a, b, c in zip(own, other, exact, strict=True)])
    of_out, *of_gradients = np.exp(np.mean(np.log(ratios), axis=0))
    summary.append(
        f"float32 errors beside torch's kernel, {keys} keys, geometric means: out {of_out:.2f} x, gradients of q, k, v {', '.join(f'{x:.2f}' for x in of_gradients)} x"
    )
    assert max(of_out, *of_gradients) <= 1.1  # not 1.0, because the order in which PyTorch adds depends on the processor


def test_float64_agrees_with_the_plain_formula(rng: np.random.Generator) -> None:
    for q, k, v, bias, scale in sweep(rng)[:20]:
        wide = [None if x is None else x.astype(np.float64) for x in (q, k, v, bias)]
        exact = plain(*wide, scale)
        np.testing.assert_allclose(polyhead.sdpa(*wide[:3], bias=wide[3], scale=scale), exact, rtol=0, atol=1e-12 * np.abs(exact).max())
