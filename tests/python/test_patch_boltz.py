"""Compares outputs and gradients of the installed boltz's classes with and without polyhead.patch.boltz."""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import polyhead.patch
from polyhead.patch import _boltz
from patch_support import Counter, counter, outputs, randomize, require_same  # noqa: F401
from torch_support import gradients, require_equal

pytest.importorskip("boltz", reason="boltz is not installed: pip install --no-deps boltz==2.2.1, and einops")
from boltz.model.layers import attention, attentionv2, pairformer, triangular_attention  # noqa: E402
from boltz.model.layers.triangular_attention.attention import TriangleAttentionEndingNode, TriangleAttentionStartingNode  # noqa: E402

PATCH = polyhead.patch.boltz


def pair_mask(kind: str, batch: int, extent: int, generator: torch.Generator) -> Tensor | None:
    """Returns a mask of the table of pairs, or None for the kind "none". "padding" masks the rows and columns of padding, and "rows" is a random mask with an empty row. Other kinds
    are random masks."""
    if kind == "none":
        return None
    if kind == "padding":
        token = torch.arange(extent) < torch.randint(1, extent + 1, (batch, 1), generator=generator)
        return (token[:, :, None] & token[:, None, :]).float()
    mask = (torch.rand(batch, extent, extent, generator=generator) < 0.6).float()
    mask[:, 0, 0] = 1
    if kind == "rows":
        mask[:, extent // 2] = 0
    return mask


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("node", [TriangleAttentionStartingNode, TriangleAttentionEndingNode])
def test_triangle_attention(node: Callable[..., Any], dtype: torch.dtype, counter: Counter) -> None:  # noqa: F811
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(15):
        batch, extent, heads, width = draw.randint(1, 3), draw.randint(2, 12), draw.randint(1, 4), draw.choice([1, 4, 8])
        layer = randomize(node(8, width, heads), generator).to(dtype).train(draw.random() < 0.5)
        x = torch.randn(batch, extent, extent, 8, generator=generator, dtype=dtype, requires_grad=True)
        mask = pair_mask(draw.choice(["none", "padding", "pairs", "rows"]), batch, extent, generator)
        mask = None if mask is None else mask.to(dtype)
        chunk = draw.choice([None, None, 1, 3, 100])
        tolerance = 1e-6 if dtype == torch.float32 else 1e-11
        require_same(PATCH, lambda: layer(x, mask=mask, chunk_size=chunk), {"x": x}, layer, counter, tolerance=tolerance, grad=draw.random() < 0.7)


def test_large_scores_of_a_row_without_a_key_are_rounded_as_by_boltz(counter: Counter) -> None:  # noqa: F811
    """boltz adds -1e9 to masked scores. float32 numbers near -1e9 are 64 apart, so scores of several hundred are rounded and not lost; polyhead must round them in the same way."""
    layer = randomize(TriangleAttentionStartingNode(8, 4, 2))
    with torch.no_grad():
        layer.mha.linear_q.weight *= 100
    x = torch.randn(1, 7, 7, 8, requires_grad=True)
    mask = torch.ones(1, 7, 7)
    mask[:, 2] = 0
    with torch.no_grad():
        p = layer(x, mask=mask)[:, 2]
        assert (p - p[:, :1]).abs().max() > 1e-3  # the outputs of the row differ, so its attention weights are not uniform
    require_same(PATCH, lambda: layer(x, mask=mask), {"x": x}, layer, counter, tolerance=3e-6)


def test_a_mask_between_0_and_1_is_a_bias(counter: Counter) -> None:  # noqa: F811
    layer = randomize(TriangleAttentionStartingNode(8, 4, 2, inf=3.0))
    x, mask = torch.randn(1, 7, 7, 8, requires_grad=True), torch.rand(1, 7, 7)
    require_same(PATCH, lambda: layer(x, mask=mask), {"x": x}, layer, counter, calls=0)
    s, z, mask = torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 5, 6, requires_grad=True), 1 - 1e-6 * torch.rand(2, 5)
    first, second = randomize(attention.AttentionPairBias(8, 6, 2)), randomize(attentionv2.AttentionPairBias(8, 6, 2))
    require_same(PATCH, lambda: first(s, z, mask), {"s": s, "z": z}, first, counter, calls=0)
    require_same(PATCH, lambda: second(s, z, mask, s), {"s": s, "z": z}, second, counter, calls=0)


def test_use_kernels_is_the_formula_of_cuequivariance(counter: Counter) -> None:  # noqa: F811
    layer = randomize(TriangleAttentionStartingNode(8, 4, 2)).double()
    x = torch.randn(2, 6, 6, 8, dtype=torch.float64, requires_grad=True)
    mask = pair_mask("rows", 2, 6, torch.Generator().manual_seed(0)).double()  # type: ignore[union-attr]
    tensors = {"x": x} | dict(layer.named_parameters())
    with PATCH():
        found = gradients({"out": layer(x, mask=mask, use_kernels=True)}, tensors, 3)
    assert counter.calls == 1
    normed = layer.layer_norm(x)
    q, k, v = (f(normed).unflatten(-1, (2, 4)).transpose(-2, -3) for f in (layer.mha.linear_q, layer.mha.linear_k, layer.mha.linear_v))
    score = q @ k.mT / 2 + layer.linear(normed).permute(0, 3, 1, 2).unsqueeze(1)
    y = torch.where(mask.bool()[:, :, None, None, :], score, -1e9).softmax(-1) @ v
    exact = layer.mha.linear_o(torch.sigmoid(layer.mha.linear_g(normed)) * y.transpose(-2, -3).flatten(-2))
    require_equal(found, gradients({"out": exact}, tensors, 3), 1e-11)


def test_large_numbers_in_a_second_bias(counter: Counter) -> None:  # noqa: F811
    """boltz masks by adding a large negative number. If the pair bias is as low, masked keys have as much weight as others; if the pair bias is as large but positive, they are
    attended to. Such calls are left to boltz."""
    layer = randomize(triangular_attention.primitives.Attention(8, 8, 8, 4, 2))
    x, mask = torch.randn(1, 6, 6, 8, requires_grad=True), torch.tensor([1.0, 1, 0, 0, 0, 0]).expand(1, 6, 6)
    offsets = (1e9 * (mask - 1))[:, :, None, None, :]
    for number, keys in ((-1e9, slice(2)), (-1e4, slice(2)), (1e9, slice(2, 6))):
        bias = torch.randn(1, 1, 2, 6, 6)
        bias[..., 0, :, keys] = number
        require_same(PATCH, lambda: layer(x, x, bias, offsets, mask), {"x": x}, layer, counter, calls=0)
    bias = torch.randn(1, 1, 2, 6, 6) * 100
    require_same(PATCH, lambda: layer(x, x, bias, offsets, mask), {"x": x}, layer, counter, calls=1, tolerance=3e-6)
    # Boltz-2's layer that gets its bias from the caller.
    pairs = randomize(attentionv2.AttentionPairBias(8, num_heads=2, compute_pair_bias=False))
    s, z = torch.randn(1, 6, 8), torch.randn(1, 6, 6, 2)
    z[..., :2, 0] = -1e6
    require_same(PATCH, lambda: pairs(s, z, mask[0, :1], s), {}, pairs, counter, calls=0)


class Normed(triangular_attention.primitives.Attention):
    def _prep_qkv(self, *arguments: Any, **options: Any) -> Any:
        q, k, v = super()._prep_qkv(*arguments, **options)
        return 2 * q, k, v


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a subclass": lambda layer: setattr(layer, "__class__", Normed),
    "a method of an object": lambda layer: setattr(layer, "_wrap_up", lambda o, q_x: type(layer)._wrap_up(layer, 2 * o, q_x)),
    "a hook on the gate": lambda layer: layer.sigmoid.register_forward_hook(lambda module, inputs, output: 20 * output),
    "another gate": lambda layer: setattr(layer, "sigmoid", torch.nn.Tanh()),
    "a further module": lambda layer: setattr(layer, "norm_q", torch.nn.LayerNorm(4)),
    "a hook on all modules": lambda layer: torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output + 1 if isinstance(module, torch.nn.Sigmoid) else None
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_is_left_to_boltz(name: str, counter: Counter) -> None:  # noqa: F811
    layer = randomize(triangular_attention.primitives.Attention(8, 8, 8, 4, 2))
    x, mask = torch.randn(1, 6, 6, 8), torch.ones(1, 6, 6)
    given = (x, x, torch.randn(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), mask)
    undo = CHANGES[name](layer)
    try:
        require_same(PATCH, lambda: layer(*given), {}, layer, counter, calls=0)
    finally:
        if undo is not None:
            undo.remove()


def test_a_helper_that_was_wrapped_before_is_called(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    kind = triangular_attention.primitives.Attention
    layer, x = randomize(kind(8, 8, 8, 4, 2)), torch.randn(1, 6, 6, 8)
    own = kind._wrap_up
    monkeypatch.setattr(kind, "_wrap_up", functools.wraps(own)(lambda self, o, q_x: own(self, 2 * o, q_x)))
    require_same(PATCH, lambda: layer(x, x, torch.zeros(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), torch.ones(1, 6, 6)), {}, layer, counter, calls=0)


def test_a_dispatch_mode_sees_the_own_code(counter: Counter) -> None:  # noqa: F811
    layer, x = randomize(triangular_attention.primitives.Attention(8, 8, 8, 4, 2)), torch.randn(1, 6, 6, 8)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            return function(*arguments, **(keywords or {}))

    def call() -> Tensor:
        with Mode():
            return layer(x, x, torch.zeros(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), torch.ones(1, 6, 6))  # type: ignore[no-any-return]

    require_same(PATCH, call, {}, layer, counter, calls=0, grad=False)


def test_a_subclass_that_changes_nothing_inside_is_computed(counter: Counter) -> None:  # noqa: F811
    class Twice(triangular_attention.primitives.Attention):
        def forward(self, *arguments: Any, **options: Any) -> Tensor:
            return 2 * super().forward(*arguments, **options)  # type: ignore[no-any-return]

    layer, x = randomize(Twice(8, 8, 8, 4, 2)), torch.randn(1, 6, 6, 8)
    require_same(PATCH, lambda: layer(x, x, torch.randn(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), torch.ones(1, 6, 6)), {}, layer, counter, calls=1)


@pytest.mark.parametrize("version", [1, 2])
def test_attention_with_a_pair_bias(version: int, counter: Counter) -> None:  # noqa: F811
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    empty = 0
    for _ in range(40):
        structures, samples, extent, heads = draw.randint(1, 3), draw.choice([1, 1, 2, 3]), draw.randint(1, 12), draw.randint(1, 4)
        batch, options = structures * samples, {"initial_norm": draw.random() < 0.5} if version == 1 else {}
        kind = attention.AttentionPairBias if version == 1 else attentionv2.AttentionPairBias
        layer = randomize(kind(heads * 4, 6, heads, **options), generator)
        s = torch.randn(batch, extent, heads * 4, generator=generator, requires_grad=True)
        z = torch.randn(structures, extent, extent, 6, generator=generator, requires_grad=True)
        mask = (torch.rand(batch, extent, generator=generator) < draw.choice([0.3, 0.8, 1.0])).float()
        empty += int(not mask.any(-1).all())
        if version == 1:
            cached = draw.random() < 0.3

            def call() -> Tensor:
                cache: dict[str, Tensor] | None = {} if cached else None
                out: Tensor = layer(s, z, mask, samples, model_cache=cache)
                return out if cache is None else out + layer(s, z * 0, mask, samples, model_cache=cache)
        else:
            k_in = torch.randn(batch, extent, heads * 4, generator=generator, requires_grad=True) if draw.random() < 0.5 else s

            def call() -> Tensor:
                return layer(s, z, mask, k_in, samples)  # type: ignore[no-any-return]

        inputs = {"s": s, "z": z} | ({"k_in": k_in} if version == 2 and k_in is not s else {})
        require_same(PATCH, call, inputs, layer, counter, grad=draw.random() < 0.7)
    assert empty > 2


@pytest.mark.parametrize("version", [1, 2])
def test_exact_products_of_bfloat16_are_not_made_in_blocks(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = randomize((attention if version == 1 else attentionv2).AttentionPairBias(8, 6, 2))
    s, z, mask = torch.randn(2, 5, 8), torch.randn(2, 5, 5, 6), torch.ones(2, 5)
    exact = layer(s, z, mask) if version == 1 else layer(s, z, mask, s)
    s, z, mask = s.bfloat16(), z.bfloat16(), mask.bfloat16()
    layer.bfloat16()
    called: list[str] = []
    for name in ("heads_with_pair_bias", "attend"):

        def noted(*arguments: Any, own: Callable[..., Any] = getattr(_boltz, name), name: str = name, **keywords: Any) -> Any:
            called.append("exact" if "exact" in arguments else name)
            return own(*arguments, **keywords)

        monkeypatch.setattr(_boltz, name, noted)
    for precision, by in (("native", "heads_with_pair_bias"), ("exact", "exact")):
        called.clear()
        with PATCH(precision=precision):
            found = layer(s, z, mask) if version == 1 else layer(s, z, mask, s)
        assert called == [by] and (found.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("empty", [False, True])
def test_keys_of_windows(empty: bool, counter: Counter) -> None:  # noqa: F811
    """With to_keys, Boltz-1 has other keys than queries. If a window has no key, the call is left to boltz."""
    layer = randomize(attention.AttentionPairBias(8, 6, 2))
    s, z = torch.randn(3, 4, 8, requires_grad=True), torch.randn(3, 4, 12, 6, requires_grad=True)
    mask = torch.ones(3, 4)
    mask[1, 2:] = 0
    if empty:
        mask[2] = 0
    require_same(PATCH, lambda: layer(s, z, mask, to_keys=lambda x: x.repeat(1, 3, 1)), {"s": s, "z": z}, layer, counter, calls=0 if empty else 1)


@pytest.mark.parametrize("training", [False, True])
def test_a_pairformer_with_dropout_and_checkpoints(training: bool, counter: Counter) -> None:  # noqa: F811
    module = randomize(pairformer.PairformerModule(16, 8, 2, num_heads=2, pairwise_head_width=4, pairwise_num_heads=2, v2=True, activation_checkpointing=training))
    module.train(training)
    s, z = torch.randn(2, 9, 16, requires_grad=True), torch.randn(2, 9, 9, 8, requires_grad=True)
    token = torch.ones(2, 9)
    token[1, 6:] = 0
    pair = token[:, :, None] * token[:, None, :]
    if not training:
        require_same(PATCH, lambda: module(s, z, token, pair), {"s": s, "z": z}, module, counter, grad=False)
    else:  # boltz's activation checkpoints work only with backward() and with inputs that are leaves
        def gradients_of() -> dict[str, Tensor]:
            torch.manual_seed(3)
            s.grad = z.grad = None
            module.zero_grad()
            found = module(s, z, token, pair)
            (found[0].sum() + (found[1] ** 2).sum()).backward()
            leaves = {"s": s, "z": z} | dict(module.named_parameters())
            return outputs(found) | {f"d_{name}": x.grad.clone() for name, x in leaves.items() if x.grad is not None}

        exact = gradients_of()
        with PATCH():
            found = gradients_of()
        assert counter.calls == 2 * 2 * 3  # checkpointing computes each layer twice
        require_equal(found, exact, 1e-5, dict.fromkeys(exact, 20.0))


def test_hooks_and_adapters_on_projections_act(counter: Counter) -> None:  # noqa: F811
    layer = randomize(TriangleAttentionStartingNode(8, 4, 2))
    x = torch.randn(1, 6, 6, 8, requires_grad=True)
    layer.mha.linear_v.register_forward_hook(lambda module, inputs, output: 2 * output)
    require_same(PATCH, lambda: layer(x), {"x": x}, layer, counter)

    class Adapter(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner, self.low = inner, torch.nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.low(x)  # type: ignore[no-any-return]

    layer.mha.linear_k = Adapter(layer.mha.linear_k)
    require_same(PATCH, lambda: layer(x), {"x": x}, layer, counter)
    seen = []
    layer.mha.register_forward_hook(lambda *_: seen.append(1))
    with PATCH():
        layer(x)
    assert seen


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_near(autocast: bool, counter: Counter) -> None:  # noqa: F811
    layer = randomize(TriangleAttentionStartingNode(16, 8, 2))
    x = torch.randn(1, 12, 12, 16)
    exact = layer(x)
    with PATCH(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = layer(x) if autocast else layer.bfloat16()(x.bfloat16())
    assert counter.calls == 1 and (found.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_compiler_sees_the_own_code(counter: Counter) -> None:  # noqa: F811
    layer = randomize(TriangleAttentionStartingNode(8, 4, 2))
    x, mask = torch.randn(1, 6, 6, 8), torch.ones(1, 6, 6)
    exact = layer(x, mask=mask)
    with PATCH():
        found = torch.compile(lambda x: layer.mha(x, x, torch.zeros(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), mask), backend="aot_eager")(x)
        assert counter.calls == 0
        expected = layer.mha(x, x, torch.zeros(1, 1, 2, 6, 6), torch.zeros(1, 6, 1, 1, 6), mask)
    assert torch.allclose(found, expected, atol=1e-6) and exact.shape == found.shape


@pytest.mark.parametrize("version", [1, 2])
def test_transformers_of_tokens_and_of_atoms_in_windows(version: int, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Two samples of each structure share a bias. The 4 atoms of a window attend to 8 atoms around the middle of the window. The last atoms are padding."""
    if importlib.util.find_spec("fairscale") is None:  # boltz needs fairscale only for activation checkpointing, which is off
        for name in ("fairscale", "fairscale.nn", "fairscale.nn.checkpoint", "fairscale.nn.checkpoint.checkpoint_activations"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].checkpoint_wrapper = None  # type: ignore[attr-defined]
    modules = importlib.import_module(f"boltz.model.modules.transformers{'v2' if version == 2 else ''}")
    options = {"depth": 2, "heads": 2, "dim": 8, "dim_single_cond": 6} | ({"dim_pairwise": 5} if version == 1 else {})
    name, width = ("z", 5) if version == 1 else ("bias", 4)
    a, s = torch.randn(4, 9, 8, requires_grad=True), torch.randn(4, 9, 6, requires_grad=True)
    bias, mask = torch.randn(2, 9, 9, width, requires_grad=True), torch.ones(4, 9)
    mask[2, 5:] = mask[3] = 0
    tokens = randomize(modules.DiffusionTransformer(**options))
    require_same(
        PATCH, lambda: tokens(a, s, **{name: bias}, mask=mask, multiplicity=2), {"a": a, "s": s, "bias": bias}, tokens, counter, calls=2, tolerance=3e-6
    )
    atoms = randomize(modules.AtomTransformer(attn_window_queries=4, attn_window_keys=8, **options))
    q, c = torch.randn(4, 12, 8, requires_grad=True), torch.randn(4, 12, 6, requires_grad=True)
    windows, mask = torch.randn(2, 3, 4, 8, width, requires_grad=True), torch.ones(4, 12)
    mask[1, 7:] = 0

    def to_keys(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 2, 2)).unfold(1, 8, 4).transpose(2, 3).contiguous()

    given = {"p" if version == 1 else "bias": windows}
    require_same(PATCH, lambda: atoms(q, c, **given, to_keys=to_keys, mask=mask, multiplicity=2), {"q": q, "c": c, "bias": windows}, atoms, counter, tolerance=3e-6)
