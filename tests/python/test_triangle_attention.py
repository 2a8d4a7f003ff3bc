"""Compares polyhead.torch.triangle_attention with the formula in the documentation of cuEquivariance's function, written with torch's operators."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from polyhead.torch import attention, triangle_attention
from torch_support import cast, gradients, require_equal


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    score = (q.size(-1) ** -0.5 if scale is None else scale) * torch.einsum("...qd,...kd->...qk", q, k) + bias
    if mask is not None:
        score = torch.where(mask.bool(), score, torch.full_like(score, -1e9))
    return score.softmax(-1) @ v, score.logsumexp(-1, keepdim=True), score.amax(-1, keepdim=True)


def test_random_settings_equal_the_formula() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    empty = 0
    for _ in range(300):
        lead = [draw.randint(1, 3), draw.randint(1, 6)][draw.randint(0, 1) :]
        heads, queries, keys, width = draw.randint(1, 4), draw.randint(1, 20), draw.randint(1, 20), draw.choice([1, 3, 8, 32])
        shapes = {
            "q": [*lead, heads, queries, width], "k": [*lead, heads, keys, width], "v": [*lead, heads, keys, width], "bias": [*lead[:-1], 1, heads, queries, keys]
        }  # fmt: skip
        inputs = {name: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for name, shape in shapes.items()}
        mask = None
        if draw.random() < 0.7:
            mask = torch.rand([*lead, 1, 1, keys], generator=generator) < draw.choice([0.2, 0.7])
            empty += int((~mask.any(-1)).any())
            mask = draw.choice([mask, mask.double(), mask.long() * 2])
        scale = draw.choice([None, 0.3, -1.0, 0])
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
            given = cast(inputs, dtype)
            ours = triangle_attention(*given.values(), mask, scale, True)
            assert not ours[1].requires_grad and not ours[2].requires_grad
            theirs = formula(*given.values(), mask, scale)
            names = ("out", "lse", "max")
            found = gradients({"out": ours[0]}, given, 5) | dict(zip(names, ours))
            expected = gradients({"out": theirs[0]}, given, 5) | dict(zip(names, theirs))
            require_equal(found, expected, tolerance, dict.fromkeys(found, 1.0) if dtype == torch.float32 else None)
            assert found["d_bias"].shape == given["bias"].shape
    assert empty > 20


def test_positions_of_the_arguments_are_those_of_cuequivariance() -> None:
    q = torch.randn(2, 3, 4, 5, 8)
    bias, mask = torch.randn(2, 1, 4, 5, 5), torch.rand(2, 3, 1, 1, 5) < 0.8
    named = triangle_attention(q=q, k=q, v=q, bias=bias, mask=mask, scale=0.5, return_aux=True)
    for found, expected in zip(triangle_attention(q, q, q, bias, mask, 0.5, True), named):
        assert torch.equal(found, expected)
    has_key = mask.any(-1)[..., 0].expand(2, 3, 4)
    assert torch.allclose(named[1][..., 0][has_key], attention(q, q, q, bias=bias, attend=mask, scale=0.5, return_lse=True)[1][has_key])


@pytest.mark.parametrize("low", [-1e9, -1e10])
def test_a_masked_key_does_not_exist_however_low_the_others_are(low: float) -> None:
    q, v = torch.zeros(1, 1, 1, 1, 4, dtype=torch.float64), torch.tensor([[1.0], [3.0]], dtype=torch.float64).expand(1, 1, 1, 2, 4)
    bias = torch.tensor([low, 0.0], dtype=torch.float64).reshape(1, 1, 1, 1, 2)
    out, lse, largest = triangle_attention(q, q.expand(1, 1, 1, 2, 4), v, bias, torch.tensor([True, False]).reshape(1, 1, 1, 1, 2), return_aux=True)
    assert torch.equal(out, torch.ones_like(out))
    assert lse.item() == largest.item() == low


def test_key_lengths_equal_a_mask_and_give_0_without_a_key() -> None:
    q, k, v = (torch.randn(2, 3, 4, 7, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 1, 4, 7, 7, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([[7, 3, 0], [1, 6, 5]], dtype=torch.int32)[..., None, None, None]
    mask = torch.arange(7) < lengths
    tensors = {"q": q, "k": k, "v": v, "bias": bias}
    found = gradients({"out": triangle_attention(q, k, v, bias, kv_lengths=lengths)}, tensors, 1)
    expected = gradients({"out": torch.where(mask.any(-1, keepdim=True), formula(q, k, v, bias, mask, None)[0], 0)}, tensors, 1)
    require_equal(found, expected, 1e-11)
    lse, largest = triangle_attention(q, k, v, bias, kv_lengths=lengths, return_aux=True)[1:]
    exact = formula(q, k, v, bias, mask, None)
    assert torch.allclose(lse, exact[1]) and torch.allclose(largest, exact[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wider_bias_keeps_its_precision(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 2, 9, 16).to(dtype).requires_grad_() for _ in range(3))
    bias = (torch.randn(2, 1, 2, 9, 9) + 300).requires_grad_()  # bfloat16 numbers near 300 are 2 apart
    out = triangle_attention(q, k, v, bias)
    exact = formula(*(x.double() for x in (q, k, v, bias)), None, None)[0]
    assert out.dtype == dtype and (out.double() - exact).abs().max() < 0.02
    out.float().sum().backward()
    assert bias.grad is not None and bias.grad.dtype == torch.float32 and q.grad is not None and q.grad.dtype == dtype


def test_under_compile_and_vmap() -> None:
    q, bias, mask = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 1, 4, 5, 5), torch.rand(2, 3, 1, 1, 5) < 0.8
    expected = triangle_attention(q, q, q, bias, mask)
    compiled = torch.compile(lambda *x: triangle_attention(*x), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(q, q, q, bias, mask), expected, atol=1e-6)
    found = torch.vmap(lambda q, bias, mask: triangle_attention(q, q, q, bias, mask))(q, bias, mask)
    assert torch.allclose(found, expected, atol=1e-6)


Q, BIAS = torch.zeros(2, 3, 4, 5, 8), torch.zeros(2, 1, 4, 5, 5)
MASK, LENGTHS = torch.ones(2, 3, 1, 1, 5), torch.ones(2, 3, 1, 1, 1, dtype=torch.int32)
WRONG: dict[str, tuple[type[Exception], str, list[Any], dict[str, Any]]] = {
    "q of three dimensions": (ValueError, "q is", [Q[0, 0], Q, Q, BIAS], {}),
    "k of another width": (ValueError, "k is", [Q, Q[..., :7], Q, BIAS], {}),
    "k of other rows": (ValueError, "k is", [Q, Q[:, :2], Q, BIAS], {}),
    "k without B": (ValueError, "k is", [Q, Q[0], Q[0], BIAS], {}),
    "v of other keys": (ValueError, "v is", [Q, Q, Q[..., :4, :], BIAS], {}),
    "v of another width": (ValueError, "v is", [Q, Q, Q[..., :4], BIAS], {}),
    "a bias of each row": (ValueError, "bias is", [Q, Q, Q, BIAS.expand(2, 3, 4, 5, 5)], {}),
    "a bias without the shared dimension": (ValueError, "bias is", [Q, Q, Q, BIAS[:, 0]], {}),
    "no bias": (TypeError, "bias is of type NoneType", [Q, Q, Q, None], {}),
    "a mask of heads": (ValueError, "mask is", [Q, Q, Q, BIAS, MASK.expand(2, 3, 4, 1, 5)], {}),
    "a mask that is a list": (TypeError, "mask is of type list", [Q, Q, Q, BIAS, [True]], {}),
    "two dtypes": (ValueError, "one dtype", [Q, Q.double(), Q, BIAS], {}),
    "integers": (TypeError, "q has dtype int64", [Q.long(), Q, Q, BIAS], {}),
    "a scale that is a word": (TypeError, "scale", [Q, Q, Q, BIAS, None, "1"], {}),
    "a flag that is a number": (TypeError, "return_aux", [Q, Q, Q, BIAS, None, None, 1], {}),
    "mask and lengths": (ValueError, "both given", [Q, Q, Q, BIAS, MASK], {"kv_lengths": LENGTHS}),
    "lengths of another shape": (ValueError, "kv_lengths is", [Q, Q, Q, BIAS], {"kv_lengths": LENGTHS[..., 0]}),
    "lengths beyond the keys": (ValueError, "a key length is 6", [Q, Q, Q, BIAS], {"kv_lengths": LENGTHS * 6}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_by_name(name: str) -> None:
    error, message, arguments, keywords = WRONG[name]
    with pytest.raises(error, match=message):
        triangle_attention(*arguments, **keywords)


def test_a_whole_table_makes_no_tensor_of_all_scores() -> None:
    q = torch.randn(1, 64, 4, 64, 8, requires_grad=True)
    bias = torch.randn(1, 1, 4, 64, 64, requires_grad=True)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.numel()) or x, lambda x: x):
        triangle_attention(q, q, q, bias, torch.rand(1, 64, 1, 1, 64) < 0.9).sum().backward()
    assert seen and max(seen) <= q.numel()
    assert math.prod((64, 4, 64, 64)) > q.numel()
