"""Tests `precision` of bfloat16 products in every function and layer: "exact" gives the float32 result for the same numbers, rounded once; "native" uses the processor's
bfloat16 products.

Layers have identity projections, so that functions and layers all compute the same problem."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import Tensor, nn

import polyhead
import polyhead.patch
from polyhead.torch import GatedAttention, MultiheadAttention, attention, scaled_dot_product_attention, triangle_attention
from test_patch_openfold import openfold  # noqa: F401

HEADS, WIDTH = 3, 16
Door = Callable[[Tensor, Any], Tensor]  # A way to call polyhead. It takes x [B,T,N*H] and a precision, and returns the self-attention of x, [B,T,N*H].


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def problem(recorded: bool = False) -> Tensor:
    return torch.randn(2, 70, HEADS * WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_(recorded)


def has_native_products() -> bool:
    x = heads(problem())
    return "products: bfloat16" in polyhead.explain(x, x, x)


def identity(module: nn.Module) -> Any:
    """Makes the projections of a module identities."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_() if parameter.dim() < 2 else parameter.copy_(torch.eye(parameter.size(1)).repeat(parameter.size(0) // parameter.size(1), 1))
    return module.bfloat16()


def of_function(function: Callable[..., Tensor], **options: Any) -> Door:
    return lambda x, precision: merged(function(heads(x), heads(x), heads(x), precision=precision, **options))


def triangle(x: Tensor, precision: Any) -> Tensor:
    q = heads(x).unsqueeze(1)
    return merged(triangle_attention(q, q, q, q.new_zeros(2, 1, HEADS, 70, 70), precision=precision).squeeze(1))


def multihead(x: Tensor, precision: Any, hooked: bool = False) -> Tensor:
    layer = identity(MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True, precision=precision))
    if hooked:  # because of the hook, torch computes the projections
        layer.out_proj.register_forward_hook(lambda *_: None)
    return layer(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def gated(x: Tensor, precision: Any, hooked: bool = False) -> Tensor:
    layer = identity(GatedAttention(HEADS * WIDTH, WIDTH, HEADS, precision=precision))
    if hooked:
        layer.linear_o.register_forward_hook(lambda *_: None)
    return layer(x)  # type: ignore[no-any-return]


def transformers_model(x: Tensor, precision: Any) -> Tensor:
    modeling = pytest.importorskip("transformers.modeling_utils")
    import polyhead.transformers

    polyhead.transformers.register(precision=precision)
    try:
        module = nn.Module()
        module.is_causal = False  # type: ignore[assignment]
        out, _ = modeling.ALL_ATTENTION_FUNCTIONS["polyhead"](module, heads(x), heads(x), heads(x), None)
    finally:
        polyhead.transformers.register(precision="native")
    return out.flatten(2)  # type: ignore[no-any-return]


def patched_esm(x: Tensor, precision: Any) -> Tensor:
    layer = identity(pytest.importorskip("esm.multihead_attention").MultiheadAttention(HEADS * WIDTH, HEADS, self_attention=True))
    y = x.transpose(0, 1)
    with polyhead.patch.esm(precision=precision):
        return layer(y, y, y, need_weights=False, need_head_weights=False)[0].transpose(0, 1)  # type: ignore[no-any-return]


def patched_openfold(x: Tensor, precision: Any) -> Tensor:
    import sys

    layer = identity(sys.modules["openfold.model.primitives"].Attention(HEADS * WIDTH, HEADS * WIDTH, HEADS * WIDTH, WIDTH, HEADS, gating=False))
    with polyhead.patch.openfold(precision=precision):
        return layer(x, x)  # type: ignore[no-any-return]


def numpy_layer(x: Tensor, precision: Any) -> Tensor:
    layer = identity(nn.MultiheadAttention(HEADS * WIDTH, HEADS))
    return polyhead.load(layer.state_dict(), heads=HEADS, precision=precision)(x)


TORCH_DOORS: dict[str, Door] = {
    "torch.attention": of_function(attention),
    "torch.scaled_dot_product_attention": of_function(scaled_dot_product_attention),
    # exp(-inf) = 0, so this sink does not change the result. A call with a sink cannot take the fast path of scaled_dot_product_attention.
    "torch.scaled_dot_product_attention, with a sink of -inf": of_function(scaled_dot_product_attention, sink=torch.full((HEADS,), -torch.inf)),
    "torch.triangle_attention": triangle,
    "torch.MultiheadAttention": multihead,
    "torch.MultiheadAttention, projections of torch": lambda x, precision: multihead(x, precision, hooked=True),
    "torch.GatedAttention": gated,
    "torch.GatedAttention, projections of torch": lambda x, precision: gated(x, precision, hooked=True),
    "transformers.register": transformers_model,
    "patch.esm": patched_esm,
    "patch.openfold": patched_openfold,
}


def jax_door(name: str) -> Door:
    def door(x: Tensor, precision: Any) -> Tensor:
        jax = pytest.importorskip("jax", minversion="0.5")
        import polyhead.jax

        q = jax.numpy.asarray(x.unflatten(-1, (HEADS, WIDTH)).float().numpy()).astype(jax.numpy.bfloat16)
        given = precision
        if name == "attention_fn":  # Flax has other values of `precision`
            given = {"exact": jax.lax.Precision.HIGHEST, "native": None}[precision]
        layout = {"layout": "TNH"} if name == "attention" else {}
        out = jax.jit(lambda q: getattr(polyhead.jax, name)(q, q, q, precision=given, **layout))(q)
        return torch.from_numpy(np.array(out.astype(jax.numpy.float32))).bfloat16().flatten(2)

    return door


DOORS = TORCH_DOORS | {
    "sdpa": of_function(polyhead.sdpa),
    "load": numpy_layer,
    **{f"jax.{name}": jax_door(name) for name in ("attention", "dot_product_attention", "attention_fn")},
}


@pytest.mark.parametrize("door", DOORS)
def test_exact_products_are_those_of_float32_and_native_ones_those_of_the_processor(door: str, openfold: Any) -> None:  # noqa: F811
    x = problem()
    exact, native = DOORS[door](x, "exact"), DOORS[door](x, "native")
    wide = merged(polyhead.sdpa(*(heads(x.float()),) * 3))
    assert torch.equal(exact, wide.bfloat16())
    assert torch.equal(native, exact) != has_native_products()
    assert (native.float() - wide).abs().max() < 2**-7 * wide.abs().max()


@pytest.mark.parametrize("door", TORCH_DOORS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_backward_passes_have_the_precision_of_the_forward_pass(door: str, create_graph: bool, openfold: Any) -> None:  # noqa: F811
    grads = {}
    for precision in ("exact", "native"):
        x = problem(recorded=True)
        (grads[precision],) = torch.autograd.grad(DOORS[door](x, precision).float().square().sum(), x, create_graph=create_graph)
    assert torch.equal(grads["exact"], grads["native"]) != has_native_products()
    wide = problem().float().requires_grad_()
    (wanted,) = torch.autograd.grad(merged(attention(heads(wide), heads(wide), heads(wide))).square().sum(), wide)
    for found in grads.values():
        assert (found.float() - wanted).abs().max() < 2**-5 * wanted.abs().max()


def test_second_derivatives_have_exact_products_with_either() -> None:
    found = []
    for precision in ("exact", "native"):
        q, k, v, out, lse = (x.detach() for x in (*(heads(problem()),) * 3, *attention(*(heads(problem()),) * 3, return_lse=True)))
        moving = (q, k, v, None, None, None)
        found.append(polyhead._core.sdpa_jvp(q, k, v, out, lse, moving, {"precision": precision}, True))
    assert all(torch.equal(*(torch.as_tensor(side) for side in sides)) for sides in zip(*found))


REFUSING: dict[str, Callable[[Any], Any]] = {
    "attention: ": lambda precision: attention(*(heads(problem()),) * 3, precision=precision),
    "scaled_dot_product_attention: ": lambda precision: scaled_dot_product_attention(*(heads(problem()),) * 3, precision=precision),
    "triangle_attention: ": lambda precision: triangle(problem(), precision),
    "MultiheadAttention: ": lambda precision: MultiheadAttention(8, 2, precision=precision),
    "GatedAttention: ": lambda precision: GatedAttention(8, 4, 2, precision=precision),
    "polyhead.transformers.register: ": lambda precision: transformers_model(problem(), precision),
    "polyhead.patch.esm: ": lambda precision: polyhead.patch.esm(precision=precision),
    "polyhead.patch.boltz: ": lambda precision: polyhead.patch.boltz(precision=precision),
    "polyhead.patch.openfold: ": lambda precision: polyhead.patch.openfold(precision=precision),
}


# None is left out for register(), where it means: keep the precision that is registered.
@pytest.mark.parametrize(("door", "precision"), [(door, x) for door in REFUSING for x in ("Exact", "", None, 3, ["exact"], np.zeros(2)) if x is not None or "register" not in door])
def test_a_wrong_precision_is_refused_by_name(door: str, precision: Any) -> None:
    with pytest.raises(ValueError, match=f"{door}precision is .*; it must be 'exact' or 'native'"):
        REFUSING[door](precision)


def test_patches_that_overlap_have_one_precision(openfold: Any) -> None:  # noqa: F811
    with polyhead.patch.openfold(precision="exact"):
        with pytest.raises(ValueError, match="polyhead.patch.openfold: precision is 'native', and a patch with 'exact' is applied; give that precision"):
            polyhead.patch.openfold()
        with polyhead.patch.openfold(precision="exact"):
            pass
    with polyhead.patch.openfold():
        pass


def test_registering_again_keeps_the_precision_unless_it_is_given_one() -> None:
    exact = transformers_model(problem(), "exact")
    assert torch.equal(transformers_model(problem(), None), transformers_model(problem(), "native"))
    import polyhead.transformers

    polyhead.transformers.register(precision="exact")
    assert torch.equal(transformers_model(problem(), None), exact)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_precisions_of_jax_above_the_default_are_exact() -> None:
    from jax import lax

    from polyhead.jax._flax import _of_products

    for given in (None, "default", "fastest", "bfloat16", lax.Precision.DEFAULT, (None, "default")):
        assert _of_products("", given) == "native"
    for given in ("high", "highest", "bfloat16_3x", "tensorfloat32", "float32", lax.Precision.HIGH, lax.Precision.HIGHEST, (None, "high")):
        assert _of_products("", given) == "exact"


@pytest.mark.parametrize("layer", [MultiheadAttention(8, 2, precision="exact"), GatedAttention(8, 4, 2, precision="exact")])
def test_a_layer_keeps_its_precision(layer: Any) -> None:
    assert copy.deepcopy(layer).precision == pickle.loads(pickle.dumps(layer)).precision == "exact"
    del layer.precision  # like a layer that an older version pickled
    assert pickle.loads(pickle.dumps(layer)).precision == "native"


def test_the_configuration_of_a_layer_has_its_precision() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, precision="exact")
    assert layer.config["precision"] == pickle.loads(pickle.dumps(layer)).config["precision"] == "exact"
    assert polyhead.MultiHeadAttention(8, 2).config["precision"] == "native"
