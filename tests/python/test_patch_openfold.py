"""Compares polyhead.patch.openfold with OpenFold's attention class, which transformers contains for ESMFold; with global attention as in the paper; and with the classes of
openfold3 if it is installed. openfold is not on PyPI, so this file makes modules with the signatures of its published code."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polyhead.patch
from patch_support import Counter, counter, randomize, require_same  # noqa: F401

PATCH = polyhead.patch.openfold


class GlobalAttention(nn.Module):
    """Global attention along the last but one dimension (Jumper et al. 2021, supplementary algorithm 19). Masked scores have `inf` subtracted."""

    def __init__(self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9, eps: float = 1e-10) -> None:
        super().__init__()
        self.c_in, self.c_hidden, self.no_heads, self.inf, self.eps = c_in, c_hidden, no_heads, inf, eps
        self.linear_q, self.linear_g = nn.Linear(c_in, c_hidden * no_heads, bias=False), nn.Linear(c_in, c_hidden * no_heads)
        self.linear_k, self.linear_v = (nn.Linear(c_in, c_hidden, bias=False) for _ in "kv")
        self.linear_o = nn.Linear(c_hidden * no_heads, c_in)

    def forward(self, m: Tensor, mask: Tensor, use_lma: bool = False) -> Tensor:
        share = mask / (mask.sum(-1, keepdim=True) + self.eps)
        q = self.linear_q(torch.einsum("...sc,...s->...c", m, share)).unflatten(-1, (self.no_heads, self.c_hidden))
        score = torch.einsum("...hc,...sc->...hs", q, self.linear_k(m)) / self.c_hidden**0.5
        p = (score + self.inf * (mask - 1).unsqueeze(-2)).softmax(-1)
        heads = torch.einsum("...hs,...sc->...hc", p, self.linear_v(m)).flatten(-2).unsqueeze(-2)
        out: Tensor = self.linear_o(heads * self.linear_g(m).sigmoid())
        return out


@pytest.fixture
def openfold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold")
    names = ("openfold", "openfold.model", "openfold.model.primitives")
    modules = {name: types.ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    found: Any = modules["openfold.model.primitives"]
    found.Attention, found.GlobalAttention, found.TriangleAttention = esmfold.EsmFoldAttention, GlobalAttention, esmfold.EsmFoldTriangleAttention
    yield found
    assert not hasattr(esmfold.EsmFoldAttention.forward, "__wrapped__")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_triangle_attention(openfold: Any, dtype: torch.dtype, counter: Counter) -> None:  # noqa: F811
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(20):
        batch, extent, heads, width = draw.randint(1, 3), draw.randint(2, 10), draw.randint(1, 4), draw.choice([1, 4, 8])
        layer = randomize(openfold.TriangleAttention(8, width, heads, starting=draw.random() < 0.5), generator).to(dtype)
        x = torch.randn(batch, extent, extent, 8, generator=generator, dtype=dtype, requires_grad=True)
        mask = draw.choice([None, (torch.rand(batch, extent, extent, generator=generator) < draw.choice([0.3, 0.9])).to(dtype)])
        grad = draw.random() < 0.6
        options: dict[str, Any] = {"chunk_size": draw.choice([None, 1, 3]), "use_lma": draw.random() < 0.3}
        options["inplace_safe"] = not grad and options["chunk_size"] is not None
        tolerance = 1e-6 if dtype == torch.float32 else 1e-11
        require_same(PATCH, lambda: layer(x, mask=mask, **options), {"x": x}, layer, counter, tolerance=tolerance, grad=grad)


@pytest.mark.parametrize("gating", [True, False])
def test_attention_with_any_biases(openfold: Any, gating: bool, counter: Counter) -> None:  # noqa: F811
    """Tests keys that differ from the queries, with masks of keys and of pairs, with biases that are expanded views, and without a bias (None or [])."""
    layer = randomize(openfold.Attention(6, 5, 5, 4, 2, gating=gating)).double()
    q_x, kv_x = (torch.randn(2, 3, n, c, dtype=torch.float64, requires_grad=True) for n, c in ((7, 6), (9, 5)))
    keys = 1e9 * ((torch.rand(2, 3, 1, 1, 9) < 0.7).double() - 1)
    pairs = 1e9 * ((torch.rand(2, 3, 1, 7, 9) < 0.7).double() - 1)
    pairs[1, 2, 0, 3] = -1e9  # query 3 has no key
    row = torch.randn(2, 1, 2, 7, 9, dtype=torch.float64, requires_grad=True)
    whole = torch.randn(2, 3, 2, 7, 9, dtype=torch.float64, requires_grad=True)
    learned = torch.randn(1, 9, dtype=torch.float64, requires_grad=True)
    numbers, steps = torch.randn(2, 3, 1, 1, 9, dtype=torch.float64), keys / 2e8  # biases with the shape of a mask that must not be read as masks: random numbers, and the numbers 0 and -5
    for biases in (None, [], [numbers], [numbers.abs()], [steps], [keys], [keys, row], [keys.expand(2, 3, 2, 7, 9), row], [pairs, row], [keys, pairs, whole, row], [row, learned], [learned]):
        inputs = {"q_x": q_x, "kv_x": kv_x, "row": row, "whole": whole, "learned": learned}
        require_same(PATCH, lambda: layer(q_x, kv_x, biases), inputs, layer, counter, calls=1, tolerance=1e-11)
    # Two biases whose sum has a larger shape than either of them.
    other = torch.randn(1, 3, 2, 7, 9, dtype=torch.float64, requires_grad=True)
    before = counter.calls
    for sequences, bias in (((slice(None), slice(1)), whole), ((0,), row)):  # the bias has more sequences than the input
        with PATCH(), pytest.raises(RuntimeError, match="broadcast shape"):
            layer(q_x[sequences], kv_x[sequences], [bias])
    assert counter.calls == before
    require_same(PATCH, lambda: layer(q_x, kv_x, [row, other]), {"q_x": q_x, "row": row, "other": other}, layer, counter, calls=0)


def test_calls_that_are_left_to_openfold(openfold: Any, counter: Counter) -> None:  # noqa: F811
    layer = randomize(openfold.Attention(6, 6, 6, 4, 2))
    x = torch.randn(2, 7, 6)
    require_same(PATCH, lambda: layer(x, x, use_flash=True, flash_mask=torch.ones(2, 7)), {}, layer, counter, calls=0)
    with PATCH(), pytest.raises(ValueError, match="at most one"):
        layer(x, x, [], use_lma=True, use_memory_efficient_kernel=True)
    require_same(PATCH, lambda: layer(x, x, [], False, True), {}, layer, counter, calls=0)
    with PATCH(), torch.device("meta"):
        assert layer.to("meta")(x.to("meta"), x.to("meta")).is_meta
    assert counter.calls == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_global_attention(openfold: Any, dtype: torch.dtype, counter: Counter) -> None:  # noqa: F811
    for kind in ("ones", "some", "empty"):
        layer = randomize(GlobalAttention(8, 4, 3)).to(dtype)
        m = torch.randn(2, 5, 6, 8, dtype=dtype, requires_grad=True)
        mask = (torch.rand(2, 5, 6) < (0.6 if kind != "ones" else 2)).to(dtype)
        mask[..., 0] = 1
        if kind == "empty":
            mask[1, 2:4] = 0
        require_same(PATCH, lambda: layer(m, mask), {"m": m}, layer, counter, calls=1, tolerance=1e-6 if dtype == torch.float32 else 1e-9)
    layer.eps = 0.1
    require_same(PATCH, lambda: layer(m, mask), {"m": m}, layer, counter, calls=0)
    layer.eps = 1e-10
    require_same(PATCH, lambda: layer(m, torch.rand(2, 5, 6, dtype=dtype)), {"m": m}, layer, counter, calls=0)


def test_a_hook_on_the_gate_is_called(openfold: Any, counter: Counter) -> None:  # noqa: F811
    layer, x = randomize(openfold.Attention(6, 6, 6, 4, 2)), torch.randn(2, 7, 6)
    layer.sigmoid.register_forward_hook(lambda module, inputs, output: 20 * output)
    require_same(PATCH, lambda: layer(x, x), {}, layer, counter, calls=0)


def test_nan_at_masked_positions_stays_there(openfold: Any, counter: Counter) -> None:  # noqa: F811
    """Also tests a hook on a projection: with it, torch computes the mean of the queries."""
    layer, m, mask = randomize(GlobalAttention(8, 4, 3)), torch.randn(2, 5, 6, 8), torch.ones(2, 5, 6)
    mask[..., 4:] = 0
    m[..., 4:, :] = torch.nan
    with PATCH(), torch.no_grad():
        exact = layer(m, mask)[..., :4, :]
        layer.linear_q.register_forward_hook(lambda module, inputs, output: None)
        found = layer(m, mask)[..., :4, :]
    assert counter.calls == 2 and exact.isfinite().all()
    assert torch.allclose(found, exact, atol=1e-5)


def test_a_method_with_another_signature_is_refused(openfold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attention(nn.Module):
        def forward(self, q_x: Tensor, k_x: Tensor, v_x: Tensor, biases: Any = None) -> Tensor:
            return q_x

    monkeypatch.setattr(openfold, "Attention", Attention)
    with pytest.raises(NotImplementedError, match=r"openfold\.model\.primitives\.Attention\.forward .*takes \(q_x, k_x, v_x, biases\)"):
        PATCH()
    assert Attention.forward.__name__ == "forward" and not hasattr(GlobalAttention.forward, "__wrapped__")


def openfold3(name: str) -> Any:
    try:
        return __import__(f"openfold3.core.model.layers.{name}", fromlist=["x"])
    except ImportError as error:
        pytest.skip(f"openfold3 cannot be imported: {error}; pip install --no-deps openfold3==0.5.0, and the packages that it imports")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_modules_of_openfold3(dtype: torch.dtype, counter: Counter) -> None:  # noqa: F811
    msa, triangle, pairs = (openfold3(name) for name in ("msa", "triangular_attention", "attention_pair_bias"))
    m, z = (torch.randn(2, n, 7, c, dtype=dtype, requires_grad=True) for n, c in ((5, 8), (7, 6)))
    s = torch.randn(2, 7, 9, dtype=dtype, requires_grad=True)
    token = torch.ones(2, 7, dtype=dtype)
    token[1, 4:] = 0
    of_pairs = token[:, :, None] * token[:, None, :]
    of_msa = (torch.rand(2, 5, 7) < 0.6).to(dtype)
    of_msa[0, 2] = 0
    a = torch.randn(2, 7, 8, dtype=dtype, requires_grad=True)
    calls = {
        "starting": (triangle.TriangleAttentionStartingNode(6, 4, 2), lambda f: f(z, mask=of_pairs)),
        "ending": (triangle.TriangleAttentionEndingNode(6, 4, 2), lambda f: f(z, mask=of_pairs, transpose_bias=True)),
        "low memory": (triangle.TriangleAttentionStartingNode(6, 4, 2), lambda f: f(z, mask=of_pairs, use_lma=True)),
        "cuEquivariance's kernel": (triangle.TriangleAttentionStartingNode(6, 4, 2), lambda f: f(z, mask=of_pairs)),
        "rows": (msa.MSARowAttentionWithPairBias(8, 6, 4, 2), lambda f: f(m, z=z, mask=of_msa)),
        "chunks of rows": (msa.MSARowAttentionWithPairBias(8, 6, 4, 2), lambda f: f(m, z=z, mask=of_msa, chunk_size=3)),
        "columns": (msa.MSAColumnAttention(8, 4, 2), lambda f: f(m, mask=of_msa)),
        "global": (msa.MSAColumnGlobalAttention(8, 4, 2), lambda f: f(m, mask=of_msa)),
        "pair bias": (pairs.AttentionPairBias(8, 8, 8, 9, 6, 4, 2), lambda f: f(a, z, mask=token)),
        "diffusion": (pairs.DiffusionAttentionPairBias(8, 8, 8, 9, 6, 4, 2), lambda f: f(a, z, s, mask=token, use_high_precision_attention=True)),
    }
    for name, (layer, call) in calls.items():
        print(name)
        layer = randomize(layer).to(dtype)
        tolerance = 2e-6 if dtype == torch.float32 else 1e-9
        grad = not name.startswith("chunks")
        require_same(PATCH, lambda: call(layer), {"m": m, "z": z, "s": s, "a": a}, layer, counter, tolerance=tolerance, grad=grad)
    layer, call = calls["starting"]
    layer.to(dtype)
    expected = call(layer)
    with PATCH():
        found = layer(z, mask=of_pairs, use_cueq_triangle_kernels=True)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
