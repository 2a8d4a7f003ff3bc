"""Compares polyhead.torch.scaled_dot_product_attention with torch's function: outputs and all gradients over random settings. Also tests what else docs promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyhead.torch import _eager, scaled_dot_product_attention
from torch_support import EXAMPLES, Ratios, Results, both, gradients, math_path


@dataclass(frozen=True)
class Setting:
    q_lead: tuple[int, ...]
    k_lead: tuple[int, ...]
    v_lead: tuple[int, ...]
    gqa: bool
    queries: int
    keys: int
    width: int
    value_width: int
    mask: str  # none, causal, bool, float
    mask_shape: tuple[int, ...]
    scale: float | None
    wanted: tuple[bool, bool, bool, bool]
    transposed: bool
    seed: int

    def inputs(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            if self.transposed and len(shape) >= 3:  # the memory has the layout [*,T,N,H], like the result of a layer's projection
                return torch.randn(*shape[:-3], shape[-2], shape[-3], shape[-1], generator=generator, dtype=torch.float64).transpose(-3, -2)
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        tensors = {
            "q": randn(*self.q_lead, self.queries, self.width),
            "k": randn(*self.k_lead, self.keys, self.width),
            "v": randn(*self.v_lead, self.keys, self.value_width),
        }
        # Results of float32 and float64 are compared, so the inputs are numbers that both represent.
        tensors = {name: tensor.float().double() for name, tensor in tensors.items()}
        if self.mask == "bool":
            tensors["mask"] = torch.rand(self.mask_shape, generator=generator) < 0.7
        if self.mask == "float":
            mask = torch.randn(self.mask_shape, generator=generator, dtype=torch.float64).float().double()
            tensors["mask"] = torch.where(torch.rand(self.mask_shape, generator=generator) < 0.15, -math.inf, mask)
        for name, wanted in zip(("q", "k", "v", "mask"), self.wanted):
            if name in tensors and tensors[name].is_floating_point():
                tensors[name].requires_grad_(wanted)
        return tensors


@st.composite
def make_settings(draw: st.DrawFn) -> Setting:
    extent = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 0))
    queries, keys, width, value_width = draw(extent), draw(extent), draw(extent), draw(extent)
    rank = draw(st.sampled_from((2, 3, 4, 4, 4, 5)))
    lead = tuple(draw(st.integers(1, 3)) for _ in range(rank - 2))
    gqa = len(lead) > 0 and draw(st.booleans())
    if gqa:
        k_lead = v_lead = lead
        lead = (*lead[:-1], lead[-1] * draw(st.integers(1, 3)))
        q_lead = lead
    else:

        def broadcast() -> tuple[int, ...]:
            kept = tuple(1 if draw(st.integers(0, 5)) == 0 else extent for extent in lead)
            return kept[draw(st.sampled_from((0, 0, 0, 0, len(kept)))) :]

        q_lead, k_lead, v_lead = lead, broadcast(), broadcast()
    mask = draw(st.sampled_from(("none", "causal", "bool", "float", "float")))
    full = (*lead, queries, keys)
    mask_shape = tuple(1 if draw(st.booleans()) else extent for extent in full)[draw(st.integers(0, len(lead))) :]
    return Setting(
        q_lead,
        k_lead,
        v_lead,
        gqa,
        queries,
        keys,
        width,
        value_width,
        mask,
        mask_shape,
        draw(st.sampled_from((None, None, 1.0, 0.3, 0.0, -0.5))),
        tuple(draw(st.integers(0, 3)) > 0 for _ in range(4)),  # type: ignore[arg-type]
        draw(st.booleans()),
        draw(st.integers(0, 2**31)),
    )


def call(function: object, setting: Setting, tensors: Mapping[str, Tensor]) -> Results:
    out = function(  # type: ignore[operator]
        tensors["q"],
        tensors["k"],
        tensors["v"],
        tensors.get("mask"),
        is_causal=setting.mask == "causal",
        scale=setting.scale,
        enable_gqa=setting.gqa,
    )
    return gradients({"out": out}, tensors, setting.seed)


def terms_of_mask(setting: Setting) -> dict[str, float]:
    """Each element of the mask's gradient is a sum over pairs. Returns the largest of these sums with the magnitudes of its terms."""
    inputs = setting.inputs()
    if setting.mask != "float" or not inputs["mask"].requires_grad or 0 in setting.mask_shape:
        return {}
    lead = torch.broadcast_shapes(setting.q_lead, *(() if setting.gqa else (setting.k_lead, setting.v_lead)), setting.mask_shape[:-2])
    inputs["mask"] = inputs["mask"].detach().expand(*lead, setting.queries, setting.keys).clone().requires_grad_()
    per_pair = call(F.scaled_dot_product_attention, setting, inputs)["d_mask"]
    return {"d_mask": per_pair.abs().sum_to_size(setting.mask_shape).max().item()}


def test_equals_torch_on_random_settings(summary: list[str]) -> None:
    ratios = Ratios()
    count = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(make_settings())
    def sweep(setting: Setting) -> None:
        nonlocal count
        count += 1
        with math_path():
            both(
                lambda tensors: call(scaled_dot_product_attention, setting, tensors),
                lambda tensors: call(F.scaled_dot_product_attention, setting, tensors),
                setting.inputs(),
                ratios,
                terms_of_mask(setting),
            )

    sweep()
    assert count >= EXAMPLES
    summary.append(ratios.report("scaled_dot_product_attention"))
    assert {"out", "d_q", "d_k", "d_v", "d_mask"} <= set(ratios.of)
    assert max(ratios.medians().values()) <= 1.0, ratios.report("scaled_dot_product_attention")


def randn(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def test_gradient_of_a_mask_has_its_own_shape_and_dtype() -> None:
    q, k, v = (randn(2, 3, 4, 5) for _ in range(3))
    for shape in ((4, 4), (1, 1, 4, 1), (2, 1, 1, 4), (2, 3, 4, 4), (4,), ()):
        mask = torch.randn(shape, dtype=torch.float32, requires_grad=True)
        scaled_dot_product_attention(q, k, v, mask).square().sum().backward()
        with math_path():
            (expected,) = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, mask).square().sum(), mask)
        assert mask.grad is not None and mask.grad.shape == mask.shape and mask.grad.dtype == torch.float32
        torch.testing.assert_close(mask.grad, expected)


def test_only_requested_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    backward = _eager._Attention.backward

    def spy(*args: Any) -> Any:
        found = backward(*args)
        asked.append({name for name, gradient in zip(("q", "k", "v", "bias"), found[2:]) if gradient is not None})
        return found

    monkeypatch.setattr(_eager._Attention, "backward", staticmethod(spy))
    for wanted in ("q", "k", "v", "bias"):
        tensors = {name: randn(1, 2, 3, 4, grad=name == wanted) for name in ("q", "k", "v")}
        mask = randn(3, 3, grad=wanted == "bias")
        scaled_dot_product_attention(*tensors.values(), mask).sum().backward()
        assert asked.pop() == {wanted}
        for name, tensor in (*tensors.items(), ("bias", mask)):
            assert (tensor.grad is not None) == (name == wanted)
    scaled_dot_product_attention(*(randn(1, 2, 3, 4) for _ in range(3)))
    assert asked == []


def test_a_masked_key_does_not_exist() -> None:
    q, k, v = (randn(2, 3, 4, 5, grad=True) for _ in range(3))
    keep = torch.tensor([True, True, False, True])
    exact = scaled_dot_product_attention(q, k, v, keep)
    poisoned = [x.detach().clone() for x in (k, v)]
    for x in poisoned:
        x[:, :, 2] = math.nan
        x.requires_grad_()
    out = scaled_dot_product_attention(q, *poisoned, keep)
    assert torch.equal(out, exact)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, *poisoned))


def test_a_row_without_a_key_is_zero_and_has_no_gradient() -> None:
    for mask in (torch.zeros(4, 4, dtype=torch.bool), torch.full((4, 4), -math.inf, dtype=torch.float64)):
        q, k, v = (randn(2, 3, 4, 5, grad=True) for _ in range(3))
        out = scaled_dot_product_attention(q, k, v, mask)
        out.sum().backward()
        assert (out == 0).all() and all((x.grad == 0).all() for x in (q, k, v))


def test_output_lies_in_memory_as_the_query() -> None:
    layer = randn(2, 7, 3 * 5)
    heads = layer.unflatten(-1, (3, 5)).transpose(1, 2)
    out = scaled_dot_product_attention(heads, heads, heads)
    assert out.transpose(1, 2).is_contiguous()
    assert scaled_dot_product_attention(*(randn(2, 3, 4, 5) for _ in range(3))).is_contiguous()


def test_half_precision_is_as_good_as_torch() -> None:
    dtype = torch.float16
    q, k, v = (randn(2, 3, 33, 16).to(dtype).requires_grad_() for _ in range(3))
    mask = randn(33, 33).to(dtype).requires_grad_()
    tensors = {"q": q, "k": k, "v": v, "mask": mask}
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}

    def run(function: object, of: dict[str, Tensor]) -> Results:
        return gradients({"out": function(*of.values())}, of, 1)  # type: ignore[operator]

    with math_path():
        reference, theirs = run(F.scaled_dot_product_attention, exact), run(F.scaled_dot_product_attention, tensors)
    ours = run(scaled_dot_product_attention, tensors)
    for name, tensor in ours.items():
        assert tensor.dtype == dtype
        mine, other = ((result[name].double() - reference[name]).abs().max() for result in (ours, theirs))
        assert mine <= 1.5 * other, name


# polyhead is compared with torch's fused bfloat16 kernel, which torch uses if the mask has no gradient, and not with the math path, which computes in float32.
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "keys", "width", "size"), [(100, 100, 64, 1), (300, 777, 32, 2), (64, 1000, 128, 1), (200, 200, 64, 3)])
def test_bfloat16_is_as_good_as_torchs_kernel(rows: int, keys: int, width: int, size: float, masked: bool) -> None:
    mask = randn(rows, keys).bfloat16() if masked else None
    q, k, v, d_out = (randn(2, 3, n, width) for n in (rows, keys, keys, rows))
    tensors = {"q": (size * q).bfloat16(), "k": (size * k).bfloat16(), "v": v.bfloat16()}

    def run(function: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        given = {name: x.to(dtype).requires_grad_() for name, x in tensors.items()}
        out = function(*given.values(), None if mask is None else mask.to(dtype))
        out.backward(d_out.bfloat16().to(dtype))
        return {"out": out.detach()} | {f"d_{name}": x.grad for name, x in given.items() if x.grad is not None}

    def errors(results: dict[str, Tensor], name: str) -> tuple[float, float]:
        error = (results[name].double() - reference[name]).abs()
        return error.median().item(), error.max().item()

    with math_path():
        reference = run(F.scaled_dot_product_attention, torch.float64)
    theirs, ours = run(F.scaled_dot_product_attention, torch.bfloat16), run(scaled_dot_product_attention, torch.bfloat16)
    assert set(ours) == {"out", "d_q", "d_k", "d_v"}
    for name in ours:
        (median, largest), (their_median, their_largest) = errors(ours, name), errors(theirs, name)
        assert median <= 1.03 * their_median and largest <= 1.5 * their_largest, (name, median, their_median, largest, their_largest)


ERRORS = [
    (lambda q: (q, q.float(), q), {}, TypeError, "one dtype"),
    (lambda q: (q.int(), q.int(), q.int()), {}, TypeError, "int32"),
    (lambda q: (q.to(torch.complex64),) * 3, {}, TypeError, "complex64"),
    (lambda q: (q.numpy(), q, q), {}, TypeError, "ndarray"),
    (lambda q: (q.to_sparse(), q, q), {}, TypeError, "dense"),
    (lambda q: (torch.nested.nested_tensor([q[0]]),) * 3, {}, TypeError, "nested"),
    (lambda q: (q[0, 0, 0], q, q), {}, ValueError, "two dimensions"),
    (lambda q: (q, q[..., :3], q), {}, ValueError, "H = 4"),
    (lambda q: (q, q[..., :2, :], q), {}, ValueError, "S = 2"),
    (lambda q: (q[:, :1].expand(2, 3, 3, 4)[:, :3], q, q), {}, ValueError, "leading dimensions$"),
    (lambda q: (q.repeat(1, 2, 1, 1), q, q), {}, ValueError, "leading dimensions; give enable_gqa=True"),
    (lambda q: (q, q.repeat(1, 2, 1, 1), q), {"enable_gqa": True}, ValueError, "multiple"),
    (lambda q: (q[0, 0], q[0, 0], q[0, 0]), {"enable_gqa": True}, ValueError, "multiple"),
    (lambda q: (q, q, q), {"attn_mask": torch.ones(3, 4, dtype=torch.bool)}, ValueError, r"attn_mask is \[3, 4\].* \[2, 2, 3, 3\]"),
    (lambda q: (q, q, q), {"attn_mask": torch.ones(5, 2, 2, 3, 3)}, ValueError, "attn_mask is"),
    (lambda q: (q, q, q), {"attn_mask": torch.ones(3, 3, dtype=torch.int64)}, TypeError, "int64; it must be bool or torch.float32 or the query.s torch.float64$"),
    (lambda q: (q, q, q), {"attn_mask": [[True]]}, TypeError, "list"),
    (lambda q: (q, q, q), {"attn_mask": torch.ones(3, 3), "is_causal": True}, ValueError, "exclude"),
    (lambda q: (q, q, q), {"dropout_p": 1.5}, ValueError, "1.5"),
    (lambda q: (q, q, q), {"dropout_p": -0.5}, ValueError, "-0.5"),
]


@pytest.mark.parametrize(("make", "options", "kind", "message"), ERRORS)
def test_a_wrong_call_is_a_clear_error(make: object, options: dict[str, object], kind: type[Exception], message: str) -> None:
    q = randn(2, 2, 3, 4)
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(*make(q), **options)  # type: ignore[operator]


def test_another_device_is_a_clear_error() -> None:
    q = torch.empty(1, 2, 3, 4, device="meta")
    assert scaled_dot_product_attention(q, q, q).device.type == "meta"  # tensors of the meta device have only shapes
    if torch.cuda.is_available():
        with pytest.raises(TypeError, match="computes on the CPU"):
            scaled_dot_product_attention(q.cuda(), q.cuda(), q.cuda())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_mask_keeps_its_precision_beside_a_half(dtype: torch.dtype) -> None:
    q, v = torch.zeros(1, 1, 1, 4, dtype=dtype), torch.tensor([0.0, 1.0], dtype=dtype).view(1, 1, 2, 1)
    for numbers in ([256.0, 257.0], [torch.finfo(torch.float32).min] * 2):
        mask = torch.tensor(numbers).view(1, 1, 1, 2).requires_grad_()
        out = scaled_dot_product_attention(q, q.expand(1, 1, 2, 4), v, mask)
        assert out.dtype == dtype
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q.expand(1, 1, 2, 4), v, mask))
        (gradient,) = torch.autograd.grad(out.sum(), mask)
        assert gradient.dtype == torch.float32


def test_autocast_takes_a_mask_of_its_own_dtype() -> None:
    q, mask = torch.randn(1, 2, 3, 4), torch.randn(3, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(scaled_dot_product_attention(q, q, q, mask), F.scaled_dot_product_attention(q, q, q, mask), rtol=0.02, atol=0.02)
