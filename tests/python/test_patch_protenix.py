"""Compares polyhead.patch.protenix with protenix, and polyhead.patch.esmc with EvolutionaryScale's esm. Each is skipped if its package is not installed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import polyhead.patch
from patch_support import Counter, counter, randomize, require_same  # noqa: F401


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LAYERNORM_TYPE", "torch")

    def of(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            pytest.skip(f"{name} cannot be imported: {error}")

    return of


@pytest.mark.parametrize("starting", [True, False])
def test_triangle_attention(package: Any, starting: bool, counter: Counter) -> None:  # noqa: F811
    layers = package("protenix.model.triangular.triangular")
    generator = torch.Generator().manual_seed(1)
    for extent in (5, 20):
        layer = randomize(layers.TriangleAttention(8, 4, 3, starting=starting), generator)
        z = torch.randn(extent, extent, 8, generator=generator, requires_grad=True)
        mask = (torch.rand(extent, extent, generator=generator) < 0.8).float()
        for of in (None, mask):
            require_same(polyhead.patch.protenix, lambda: layer(z, mask=of), {"z": z}, layer, counter, tolerance=1e-5)


@pytest.mark.parametrize("kernel", ["triattention", "deepspeed", "cuequivariance"])
def test_kernels_of_triangle_attention(package: Any, kernel: str, counter: Counter) -> None:  # noqa: F811
    """For at most 16 queries protenix calls its torch code, without the scale if the kernel would apply it. For more queries the kernel computes the same as the torch code."""
    layer = randomize(package("protenix.model.triangular.layers").Attention(12, 12, 12, 5, 3), torch.Generator().manual_seed(6))
    x = torch.randn(2, 16, 12, requires_grad=True)
    bias = torch.randn(2, 3, 16, 16, requires_grad=True)
    require_same(polyhead.patch.protenix, lambda: layer(x, x, [bias], kernel), {"x": x, "bias": bias}, layer, counter, calls=int(kernel == "triattention"), tolerance=1e-5)
    y = torch.randn(2, 17, 12)
    with torch.no_grad():
        exact = layer(y, y, [])
        with polyhead.patch.protenix():
            torch.testing.assert_close(layer(y, y, [], kernel), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gating", [True, False])
def test_attention_of_tokens(package: Any, gating: bool, counter: Counter) -> None:  # noqa: F811
    primitives = package("protenix.model.modules.primitives")
    layer = randomize(primitives.Attention(12, 12, 12, 5, 3, gating=gating), torch.Generator().manual_seed(2))
    x = torch.randn(2, 9, 12, requires_grad=True)
    bias = torch.randn(2, 3, 9, 9, requires_grad=True)
    for of in (None, bias, bias[:1], torch.randn(2, 9, 9)):
        require_same(polyhead.patch.protenix, lambda: layer(x, x, of), {"x": x, "bias": bias}, layer, counter, calls=1, tolerance=1e-5)
    local = primitives.Attention(12, 12, 12, 5, 3, gating=gating, local_attention_method="local_cross_attention")
    require_same(polyhead.patch.protenix, lambda: local(x, x, None, None, 4, 8), {"x": x}, local, counter, calls=0)
    with polyhead.patch.protenix(), pytest.raises(AssertionError):
        package("protenix.model.triangular.layers").Attention(12, 12, 12, 5, 3)(x, x, [], "unknown")


def test_pairformer_and_diffusion_blocks(package: Any, counter: Counter) -> None:  # noqa: F811
    pairformer, transformer = package("protenix.model.modules.pairformer"), package("protenix.model.modules.transformer")
    generator = torch.Generator().manual_seed(3)
    block = randomize(pairformer.PairformerBlock(n_heads=4, c_z=16, c_s=24, c_hidden_mul=16, c_hidden_pair_att=8, no_heads_pair=2, dropout=0.0), generator).eval()
    s, z = torch.randn(11, 24, generator=generator, requires_grad=True), torch.randn(11, 11, 16, generator=generator, requires_grad=True)
    require_same(polyhead.patch.protenix, lambda: block(s, z, pair_mask=torch.ones(11, 11)), {"s": s, "z": z}, block, counter, tolerance=1e-5)
    step = randomize(transformer.DiffusionTransformerBlock(c_a=24, c_s=20, c_z=16, n_heads=4), generator).eval()
    a, s = torch.randn(3, 11, 24, generator=generator, requires_grad=True), torch.randn(3, 11, 20, generator=generator)
    require_same(polyhead.patch.protenix, lambda: step(a, s, z[None].expand(3, -1, -1, -1))[0], {"a": a, "z": z}, step, counter, tolerance=1e-5)


@pytest.mark.parametrize("mask", ["none", "padding", "sequences"])
def test_esm_c(package: Any, mask: str, counter: Counter) -> None:  # noqa: F811
    layers = package("esm.layers.attention")
    layer = randomize(layers.MultiHeadAttention(24, 3), torch.Generator().manual_seed(4))
    x = torch.randn(2, 13, 24, requires_grad=True)
    seq_id = {"none": None, "padding": torch.arange(13) < torch.tensor([[13], [8]]), "sequences": torch.arange(13).expand(2, -1) // 5}[mask]
    require_same(polyhead.patch.esmc, lambda: layer(x, seq_id), {"x": x}, layer, counter, calls=1, tolerance=1e-5)
