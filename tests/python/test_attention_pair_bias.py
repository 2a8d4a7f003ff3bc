"""Compares polyhead.torch.attention_pair_bias with the formula in the documentation of cuEquivariance's function, written with torch's operators."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polyhead.torch import attention_pair_bias

LEAVES = ("s", "q", "k", "v", "z", "w_proj_z", "w_proj_g", "w_proj_o", "w_ln_z", "b_ln_z", "b_proj_z", "b_proj_g", "b_proj_o")


def formula(x: dict[str, Any], mask: Tensor | None, scale: float | None) -> tuple[Tensor, Tensor]:
    bias = F.linear(F.layer_norm(x["z"], x["z"].shape[-1:], x["w_ln_z"], x["b_ln_z"]), x["w_proj_z"], x["b_proj_z"]).permute(0, 3, 1, 2)
    samples, times = x["q"].size(0), x["q"].size(0) // bias.size(0)
    score = x["q"] @ x["k"].mT * (x["q"].size(-1) ** -0.5 if scale is None else scale) + bias.repeat_interleave(times, 0)
    if mask is not None:
        keep = mask.bool() if mask.size(0) == samples else mask.bool().repeat_interleave(times, 0)
        keep = keep | ~keep.any(-1, keepdim=True)
        score = score.masked_fill(~keep[:, None, None, :], -torch.inf)
    y = (score.softmax(-1) @ x["v"]).transpose(1, 2).flatten(2)
    return F.linear(torch.sigmoid(F.linear(x["s"], x["w_proj_g"], x["b_proj_g"])) * y, x["w_proj_o"], x["b_proj_o"]), bias


def draw_case(draw: random.Random, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Any], Tensor | None]:
    structures, times = draw.randint(1, 3), draw.randint(1, 3)
    heads, queries, keys, width, pair_width, model = draw.randint(1, 4), draw.randint(1, 12), draw.randint(1, 12), draw.randint(1, 6), draw.randint(2, 9), draw.randint(1, 7)
    samples = structures * times
    shapes = {
        "s": [samples, queries, model], "q": [samples, heads, queries, width], "k": [samples, heads, keys, width], "v": [samples, heads, keys, width],
        "z": [structures, queries, keys, pair_width], "w_proj_z": [heads, pair_width], "w_proj_g": [heads * width, model],
        "w_proj_o": [model, heads * width], "w_ln_z": [pair_width], "b_ln_z": [pair_width], "b_proj_z": [heads], "b_proj_g": [heads * width], "b_proj_o": [model],
    }  # fmt: skip
    given: dict[str, Any] = {name: torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}
    for name in LEAVES[8:]:
        if draw.random() < 0.3:
            given[name] = None
    mask = None
    if draw.random() < 0.7:
        mask = torch.rand(draw.choice([structures, samples]), keys, generator=generator) < draw.choice([0.2, 0.8])
        mask = draw.choice([mask, mask.double(), mask.long()])
    return given, mask


def leaves(given: dict[str, Any]) -> list[Tensor]:
    return [x for x in given.values() if x is not None]


def call(given: dict[str, Any], mask: Tensor | None, **more: Any) -> tuple[Tensor, Tensor | None]:
    return attention_pair_bias(num_heads=given["q"].size(1), mask=mask, **given, **more)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_random_settings_equal_the_formula() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(120):
        given, mask = draw_case(draw, generator)
        scale = draw.choice([None, 0.3])
        expected, bias = formula(given, mask, scale)
        d_out = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
        d_expected = torch.autograd.grad(expected, leaves(given), d_out)
        for return_z_proj in (True, False):
            out, z_proj = call(given, mask, attn_scale=scale, return_z_proj=return_z_proj)
            close(out, expected)
            for found, of in zip(torch.autograd.grad(out, leaves(given), d_out), d_expected):
                close(found, of)
            assert (z_proj is not None) == return_z_proj
            if z_proj is not None:
                close(z_proj, bias)
                kept = {**given, "z": z_proj, "w_proj_z": None, "w_ln_z": None, "b_ln_z": None, "b_proj_z": None}
                again = call(kept, mask, attn_scale=scale, is_cached_z_proj=True)
                assert again[1] is z_proj
                close(again[0], expected)


def test_arguments_by_place_are_those_of_cuequivariance() -> None:
    given, _ = draw_case(random.Random(1), torch.Generator().manual_seed(1))
    x, mask = given, torch.ones(given["z"].size(0), given["k"].size(2))
    by_place = attention_pair_bias(
        x["s"], x["q"], x["k"], x["v"], x["z"], mask, x["q"].size(1), x["w_proj_z"], x["w_proj_g"], x["w_proj_o"], x["w_ln_z"], x["b_ln_z"], x["b_proj_z"],
        x["b_proj_g"], x["b_proj_o"], 1e6, 1e-5, None, False, False,
    )  # fmt: skip
    assert by_place[1] is None
    close(by_place[0], formula(x, mask, None)[0])


def test_operators_pass_opcheck() -> None:
    generator = torch.Generator().manual_seed(2)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, requires_grad=True)

    q, k, z = some(2, 1, 2, 3, 4), some(2, 1, 2, 5, 4), some(2, 1, 3, 5, 6)
    keep = torch.ones(2, 1, 5, dtype=torch.bool)
    parameters = (some(6), None, some(2, 6), some(2), 1e-5)
    torch.library.opcheck(torch.ops.polyhead.pair_bias.default, (z, *parameters))
    torch.library.opcheck(torch.ops.polyhead.pair_bias_attention.default, (q, k, k, keep, None, "zero", z, *parameters))


def test_a_compiled_call_has_the_same_result() -> None:
    given, mask = draw_case(random.Random(3), torch.Generator().manual_seed(3))
    out, _ = call(given, mask, return_z_proj=False)
    compiled = torch.compile(lambda: call(given, mask, return_z_proj=False)[0], backend="aot_eager", fullgraph=True)()
    assert torch.equal(compiled, out)
    d_out = torch.ones_like(out)
    for found, expected in zip(torch.autograd.grad(compiled, leaves(given), d_out), torch.autograd.grad(out, leaves(given), d_out)):
        close(found, expected)


def test_transforms_and_second_derivatives() -> None:
    given, mask = draw_case(random.Random(4), torch.Generator().manual_seed(4))
    given = {name: None if x is None else x.detach() for name, x in given.items()}
    tangent = torch.randn_like(given["z"])
    results = [
        torch.func.jvp(lambda z: f({**given, "z": z}), (given["z"],), (tangent,))  # type: ignore[arg-type]
        for f in (lambda x: call(x, mask, return_z_proj=False)[0], lambda x: formula(x, mask, None)[0])
    ]
    for found, expected in zip(*results):
        close(found, expected)
    given["z"].requires_grad_()
    (d_z,) = torch.autograd.grad(call(given, mask, return_z_proj=False)[0].sum(), given["z"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        d_z.square().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    given, mask = draw_case(random.Random(5), torch.Generator().manual_seed(5))
    narrow = {name: None if x is None else x.detach().to(dtype) for name, x in given.items()}
    expected = formula({name: None if x is None else x.double() for name, x in narrow.items()}, mask, None)[0]
    for return_z_proj in (True, False):
        out = call(narrow, mask, return_z_proj=return_z_proj)[0]
        assert out.dtype == dtype
        assert float((out.double() - expected).abs().max()) < (1e-5 if dtype == torch.float32 else 0.06) * float(expected.abs().max())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"inf": 100.0}, ValueError, "inf is 100.0"),
        ({"w_proj_z": None}, ValueError, "w_proj_z is None"),
        ({"num_heads": 7}, ValueError, "it must have num_heads = 7 heads"),
        ({"mask": torch.ones(1, 99)}, ValueError, "mask is"),
        ({"mask": 3}, TypeError, "mask is of type int"),
        ({"z": torch.zeros(1, 2, 3)}, ValueError, "z \\[1, 2, 3\\]"),
        ({"w_ln_z": torch.zeros(77, dtype=torch.float64)}, ValueError, "w_ln_z is \\[77\\]"),
        ({"w_proj_z": "half"}, ValueError, "they must have one dtype"),
        ({"return_z_proj": 1}, TypeError, "return_z_proj is of type int"),
        ({"s": None}, TypeError, "s is of type NoneType"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given, mask = draw_case(random.Random(6), torch.Generator().manual_seed(6))
    arguments = {**given, "num_heads": given["q"].size(1), "mask": mask, **change}
    if change.get("w_proj_z") == "half":
        arguments["w_proj_z"] = given["w_proj_z"].half()
    with pytest.raises(error, match=message):
        attention_pair_bias(**arguments)
