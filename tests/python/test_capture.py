"""Compares the maps of polyhead.capture with the formula in float64 and with the attentions that models return. A capture must not change a bit of a model's results."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import polyhead
import polyhead.torch

MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]
B, N, T, S, H = 2, 4, 5, 7, 8


def softmax64(q: Tensor, k: Tensor, bias: Tensor | None = None, causal: bool = False, scale: float | None = None) -> Tensor:
    """Computes the attention weights in float64. bias: -inf where a key is masked."""
    k = k.repeat_interleave(q.size(-3) // k.size(-3), -3)
    score = q.double() @ k.double().mT * (q.size(-1) ** -0.5 if scale is None else scale)
    score = score if bias is None else score + bias.double()
    score = score if not causal else score.masked_fill(torch.ones(score.shape[-2:]).triu(1).bool(), -math.inf)
    return score.softmax(-1)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if hasattr(value, "values") else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def same_bits(a: Any, b: Any) -> bool:
    first, second = tensors(a), tensors(b)
    return len(first) == len(second) and all(x.dtype == y.dtype and torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(first, second))


def captured_of(run: Callable[[], Any], model: nn.Module | None = None, **options: Any) -> polyhead.Capture:
    """Captures a run, and checks that its results and random numbers have the same bits as without the capture."""
    torch.manual_seed(1)
    plain, drawn = run(), torch.rand(3)
    torch.manual_seed(1)
    with polyhead.capture(model, **options) as captured:
        result = run()
    assert torch.equal(torch.rand(3), drawn)
    assert same_bits(plain, result)
    return captured


@contextlib.contextmanager
def fast_path(wanted: bool) -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(wanted)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, polyhead.torch.scaled_dot_product_attention])
def test_functions_have_the_maps_of_the_formula(function: Any, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(B, N, T, H, dtype=dtype), torch.randn(B, N, S, H, dtype=dtype), torch.randn(B, N, S, H, dtype=dtype)
    attend = torch.rand(B, 1, T, S) < 0.6
    attend[..., 0] = True
    bias = torch.randn(N, T, S).to(dtype)
    added = torch.zeros(attend.shape).masked_fill(~attend, -math.inf)
    bound = 1e-12 if dtype == torch.float64 else 1e-6
    cases: list[tuple[dict[str, Any], Tensor]] = [
        ({}, softmax64(q, k)),
        ({"is_causal": True}, softmax64(q, k, causal=True)),
        ({"scale": 0.7}, softmax64(q, k, scale=0.7)),
        ({"attn_mask": attend}, softmax64(q, k, added)),
        ({"attn_mask": bias}, softmax64(q, k, bias)),
        ({"attn_mask": bias, "dropout_p": 0.4}, softmax64(q, k, bias)),  # maps are the attention weights before dropout
    ]
    for options, expected in cases:
        for mode in MODES:
            with mode():
                captured = captured_of(lambda: function(q, k, v, **options))
            (call,) = captured
            assert call.shape == (B, N, T, S) and captured.missed == []
            assert call.maps.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            # With bfloat16 inputs, a map that is computed from q and k is float32. If torch computes attention by separate operators, the map is torch's softmax,
            # rounded to bfloat16.
            is_coarse = dtype == torch.bfloat16 and call.operation == "softmax"
            assert (call.maps - expected).abs().max() <= (2**-6 if is_coarse else bound), (options, mode, call.operation)


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, polyhead.torch.scaled_dot_product_attention])
def test_shared_key_heads_and_other_numbers_of_dimensions(function: Any) -> None:
    q, k = torch.randn(B, N, T, H), torch.randn(B, 2, S, H)
    (call,) = captured_of(lambda: function(q, k, k, enable_gqa=True))
    assert (call.maps - softmax64(q, k)).abs().max() <= 1e-6
    five = torch.randn(3, B, N, T, H)
    (call,) = captured_of(lambda: function(five, five, five))
    assert call.shape == (3, B, N, T, T) and (call.maps - softmax64(five, five)).abs().max() <= 1e-6
    (call,) = captured_of(lambda: function(five[0, 0, 0], five[0, 0, 0], five[0, 0, 0]))
    assert call.shape == (1, 1, T, T)


def test_products_of_a_softmax_and_values() -> None:
    q = torch.randn(B, N, T, H)
    expected = softmax64(q, q, scale=1.0)

    def product(dropout: float) -> Tensor:
        return F.dropout(torch.softmax(q @ q.mT, -1), dropout, True) @ q

    def cast_after_dropout() -> Tensor:
        return F.dropout(torch.softmax(q @ q.mT, -1), 0.5, True).double() @ q.double()

    def einsum() -> Tensor:
        return torch.einsum("bnts,bnsv->btnv", torch.softmax(torch.einsum("bnth,bnsh->bnts", q, q), -1), q)

    def transposed() -> Tensor:
        return (q.mT @ torch.softmax(q @ q.mT, -1).mT).mT

    def with_sink() -> Tensor:
        p = torch.softmax(torch.cat([q @ q.mT, torch.zeros(B, N, T, 1)], -1), -1)
        return p[..., :-1].to(q.dtype) @ q

    def two_at_once() -> Tensor:
        first, second = torch.softmax(q @ q.mT, -1), torch.softmax(q @ q.mT, -1)
        return second @ q + first @ q

    for mode in MODES:
        with mode():
            for run in (lambda: product(0), lambda: product(0.5), cast_after_dropout, einsum, transposed):
                (call,) = captured_of(run)
                assert call.operation == "softmax" and (call.maps - expected).abs().max() <= 1e-6
            (call,) = captured_of(with_sink)
            zero = torch.cat([q @ q.mT, torch.zeros(B, N, T, 1)], -1).double().softmax(-1)[..., :-1]
            assert (call.maps - zero).abs().max() <= 1e-6
            assert len(captured_of(two_at_once)) == 2
            gated = captured_of(lambda: (torch.softmax(q @ q.mT, -1) * expected.float()) @ q)
            assert (gated[0].maps - expected**2).abs().max() <= 1e-6
            late = captured_of(lambda: (F.dropout(torch.softmax(q @ q.mT, -1), 0.5, True) * expected.float()) @ q)
            assert late.calls == [] and "after dropout" in late.missed[0].reason


class Written(nn.Module):
    """A module that computes attention by separate operators: products, a softmax and dropout."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor], heads: int | None = None) -> None:
        super().__init__()
        self.product, self.softmax, self.dropout = product, nn.Softmax(dim=-1), nn.Dropout(0.5, inplace=True)
        if heads is not None:
            self.num_heads = heads

    def forward(self, q: Tensor) -> Tensor:
        return self.product(self.softmax(q @ q.mT), q)


@pytest.mark.parametrize(
    "aside",
    [
        lambda p: (p * p.log()).sum(), lambda p: p * torch.arange(T), lambda p: p[:, :, 0, 1:].clone(), lambda p: torch.where(p > 0.3, p, 0.0),
        lambda p: p / p.max(), lambda p: p.masked_fill(p < 0.1, 0), lambda p: p[..., :3].sum(), lambda p: p + 1,
    ],
)  # fmt: skip
def test_other_uses_of_a_softmax_do_not_change_the_captured_map(aside: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(5)
    q = torch.randn(B, N, T, H)

    def product(p: Tensor, v: Tensor) -> Tensor:
        aside(p)
        return p @ v

    with torch.no_grad(), polyhead.capture(model := Written(product)) as captured:
        model(q)
    assert not captured.missed
    (call,) = captured
    assert (call.maps - softmax64(q, q, scale=1.0)).abs().max() <= 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda p: 0.5 * p, lambda p: torch.where(p < 0.1, 0.0, p), lambda p: p + 0.1, lambda p: p**2, lambda p: p.flip(1), lambda p: p[:, 1:2],
        lambda p: p.chunk(2, 1)[0], lambda p: p[..., 1:], lambda p: p.mT, lambda p: F.dropout(p, 0.5, True) * 2,
    ],
)  # fmt: skip
def test_weights_that_are_changed_are_seen_or_missed(change: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(5)
    q = torch.randn(B, N, T, H)

    def product(p: Tensor, v: Tensor) -> Tensor:
        weights = change(p)
        return weights @ v[:, : weights.size(1), : weights.size(-1)]

    with torch.no_grad(), polyhead.capture(model := Written(product)) as captured:
        model(q)
    assert len(captured) + len(captured.missed) == 1
    for call in captured:
        assert (call.maps - change(softmax64(q, q, scale=1.0))).abs().max() <= 1e-6


def test_weights_are_those_before_a_dropout_in_place() -> None:
    torch.manual_seed(5)
    q = torch.randn(B, N, T, H)
    for product in (lambda p, v: model.dropout(p) @ v, lambda p, v: F.dropout(p, 0.5, True, inplace=True) @ v):
        for record in (torch.no_grad, torch.enable_grad):
            with record(), polyhead.capture(model := Written(product)) as captured:
                model(q)
            (call,) = captured
            assert not captured.missed and (call.maps - softmax64(q, q, scale=1.0)).abs().max() <= 1e-6


def test_a_batch_is_not_taken_for_heads() -> None:
    """A user's module may fold heads and sequences into one dimension in either order, so the capture does not guess how to unfold them."""
    torch.manual_seed(5)
    q = torch.randn(2 * B, T, H)
    with torch.no_grad(), polyhead.capture(model := Written(lambda p, v: p @ v, heads=2)) as captured:
        model(q)
    (call,) = captured
    assert call.shape == (2 * B, 1, T, T) and (call.maps[:, 0] - softmax64(q, q, scale=1.0)).abs().max() <= 1e-6


def test_many_heads_one_after_another() -> None:
    torch.manual_seed(5)
    q = torch.randn(1, 12, T, H)

    def heads() -> Tensor:
        weights = [torch.softmax(q[:, i] @ q[:, i].mT, -1) for i in range(12)]
        return torch.cat([p @ q[:, i] for i, p in enumerate(weights)])

    captured = captured_of(heads)
    assert len(captured) == 12 and all((call.maps[0] - softmax64(q[:, i : i + 1], q[:, i : i + 1], scale=1.0)).abs().max() <= 1e-6 for i, call in enumerate(captured))


def test_a_capture_runs_once_at_a_time() -> None:
    call = nn.Module.__call__
    with polyhead.capture(nn.Identity()) as captured, pytest.raises(RuntimeError, match="running already"), captured:
        pass
    assert nn.Module.__call__ is call


def test_a_softmax_that_is_no_attention_is_not_taken() -> None:
    x = torch.randn(B, T, H)
    gate = nn.Sequential(nn.Linear(H, H), nn.Softmax(-1), nn.Linear(H, H, bias=False))
    for mode in MODES:
        with mode():
            for run in (lambda: gate(x), lambda: torch.softmax(x, -2) @ x.mT, lambda: torch.softmax(x, -1) * x, lambda: (torch.softmax(x, -1) * 2, x @ x.mT)):
                captured = captured_of(run, gate)
                assert (captured.calls, captured.missed) == ([], [])


@pytest.mark.parametrize("layer", [nn.MultiheadAttention, polyhead.torch.MultiheadAttention])
def test_multihead_attention_on_each_of_its_paths(layer: Any) -> None:
    x, memory = torch.randn(B, T, 16), torch.randn(B, S, 16)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[1, 3:] = True
    block = torch.ones(T, T).triu(1).bool()
    one = layer(16, N, batch_first=True).eval()
    training = layer(16, N, batch_first=True, dropout=0.3)
    extra = layer(16, N, batch_first=True, add_bias_kv=True, add_zero_attn=True).eval()
    cases: list[tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]] = [
        (one, (x, x, x), {}),
        (one, (x, x, x), {"key_padding_mask": padding}),
        (one, (x, x, x), {"attn_mask": block}),
        (one, (x, x, x), {"attn_mask": block, "key_padding_mask": padding}),
        (one, (x, x, x), {"attn_mask": torch.randn(B * N, T, T)}),
        (one, (x, memory, memory), {}),
        (extra, (x, x, x), {}),
        (training, (x, x, x), {}),
    ]
    for model, inputs, options in cases:
        model_64 = type(model)(16, N, batch_first=True, add_bias_kv=model is extra, add_zero_attn=model is extra).double().eval()
        model_64.load_state_dict(model.state_dict())
        with fast_path(False):
            wide = {name: mask.double() if mask.is_floating_point() else mask for name, mask in options.items()}
            expected = model_64(*(x.double() for x in inputs), average_attn_weights=False, **wide)[1]
        for mode in MODES:
            for need_weights in (False, True):
                with mode():
                    captured = captured_of(lambda: model(*inputs, need_weights=need_weights, **options), model)
                (call,) = captured
                assert captured.missed == []
                assert call.maps.shape == expected.shape
                assert (call.maps - expected).abs().max() <= 2e-6, (model is extra, options.keys(), mode, need_weights, call.operation)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_in_one_kernel(norm_first: bool) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, N, 32, batch_first=True, norm_first=norm_first), 2, enable_nested_tensor=False).eval()
    x = torch.randn(B, T, 16)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[1, 3:] = True
    for mask in (None, padding):
        with torch.inference_mode():
            fused = captured_of(lambda: model(x, src_key_padding_mask=mask), model)
            with fast_path(False):
                by_steps = captured_of(lambda: model(x, src_key_padding_mask=mask), model)
        assert [call.operation for call in fused] == ["nn.TransformerEncoderLayer"] * 2
        assert [call.name for call in fused] == ["layers.0", "layers.1"]
        assert [call.name for call in by_steps] == ["layers.0.self_attn", "layers.1.self_attn"]
        for one, other in zip(fused, by_steps):
            real = ~padding if mask is not None else torch.ones(B, T, dtype=torch.bool)  # rows of padded queries are not compared, because their values depend on torch's kernel
            assert ((one.maps - other.maps).mT.abs().amax((1, 2)) * real).max() <= 1e-6


@pytest.mark.parametrize("layer", ["torch", "polyhead"])
def test_encoders_that_make_nested_tensors_of_padded_texts(layer: str) -> None:
    """In evaluation, torch.nn.TransformerEncoder makes nested tensors of padded texts by default."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, N, 32, batch_first=True), 2).eval()
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, N, 32, batch_first=True), 2, enable_nested_tensor=False).eval()
    plain.load_state_dict(model.state_dict())
    if layer == "polyhead":
        for one in (*model.layers, *plain.layers):
            own = polyhead.torch.MultiheadAttention(16, N, batch_first=True).eval()
            own.load_state_dict(one.self_attn.state_dict())
            one.self_attn = own
    x = torch.randn(B, T, 16)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.inference_mode():
        captured = captured_of(lambda: model(x, src_key_padding_mask=padding), model)
        expected = captured_of(lambda: plain(x, src_key_padding_mask=padding), plain)
    assert captured.missed == [] and len(captured) == 2
    real = (~padding)[:, None, :, None]
    for one, other in zip(captured, expected):
        assert one.shape == (B, N, T, T) == other.shape
        assert ((one.maps - other.maps) * real).abs().max() <= 1e-6
        assert one.maps[1, :, :3, 3:].abs().max() == 0
        if layer == "torch":
            assert (one.maps * ~real).abs().max() == 0, "the rows of padding must be 0"


def test_gradients_have_the_same_bits_and_a_repeated_forward_pass_is_not_taken_twice() -> None:
    model = nn.TransformerDecoderLayer(16, N, 32, batch_first=True)
    x, memory = torch.randn(B, T, 16), torch.randn(B, S, 16)

    def step() -> list[Tensor]:
        model.zero_grad()
        model(x, memory).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    captured = captured_of(step, model)
    assert [(call.name, call.shape) for call in captured] == [("self_attn", (B, N, T, T)), ("multihead_attn", (B, N, T, S))]
    again = captured_of(lambda: torch.utils.checkpoint.checkpoint(lambda a: F.scaled_dot_product_attention(a, a, a), x.clone().requires_grad_(), use_reentrant=False).sum().backward())
    assert len(again) == 1


FAMILIES = ["bert", "gpt2", "t5", "llama", "gpt_oss", "vit", "deberta-v2", "xlnet", "bloom"]


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    tiny_families = pytest.importorskip("tiny_families")
    import polyhead.transformers

    polyhead.transformers.register()
    transformers.logging.set_verbosity_error()
    built = tiny_families.build(family)
    assert not isinstance(built, str), built
    model = built.model
    with torch.no_grad():
        outputs = model(**built.inputs, output_attentions=True)
    kinds = {name: list(value) for name, value in outputs.items() if "attentions" in name and value}
    assert kinds
    for implementation in ("eager", "sdpa", "polyhead"):
        try:
            model.set_attn_implementation(implementation)
        except (ValueError, NotImplementedError):
            assert implementation != "eager"
            continue
        # With eager, a captured map is the very tensor that the model returns. With other implementations, inputs of a layer differ by rounding errors of earlier layers, and scores are
        # as large as 20.
        bound = 0 if implementation == "eager" else 5e-6
        for mode in (torch.inference_mode, torch.enable_grad):
            with mode():
                captured = captured_of(lambda: model(**built.inputs), model)
            assert captured.missed == [] and len(captured) == sum(map(len, kinds.values()))
            is_cross = {call.name: any(word in call.name.lower() for word in ("encoder_attn", "encdecattention", "crossattention")) for call in captured}
            for kind, attentions in kinds.items():
                if len(kinds) == 1:
                    calls = captured.calls
                elif kind == "cross_attentions":
                    calls = [call for call in captured if is_cross[call.name]]
                else:
                    calls = [call for call in captured if f"{kind.split('_')[0]}." in call.name and not is_cross[call.name]]
                assert len(calls) == len(attentions)
                for call, own in zip(calls, attentions):
                    assert call.maps.shape == own.shape
                    assert (call.maps - own).abs().max() <= bound, (implementation, mode, call.name)


def test_numbers_about_a_softmax_are_those_about_q_and_k() -> None:
    q, k = torch.randn(B, N, 11, H, dtype=torch.float64), torch.randn(B, N, 9, H, dtype=torch.float64)
    kept = {"keep": polyhead.capture.__kwdefaults__["keep"] + ("statistics", "top_keys", "pooled_map"), "top_k": 3, "pooled": (4, 5)}
    (fused,) = captured_of(lambda: F.scaled_dot_product_attention(q, k, k, scale=1.0), **kept)
    (steps,) = captured_of(lambda: torch.softmax(q @ k.mT, -1) @ k, **kept)
    assert fused.operation != steps.operation == "softmax"
    assert fused.statistics.keys() == steps.statistics.keys() == polyhead.head_statistics(q.numpy(), k.numpy()).keys()
    for name, values in polyhead.head_statistics(q.numpy(), k.numpy(), scale=1.0).items():
        for call in (fused, steps):
            assert call.statistics[name].shape == (B, N) and (call.statistics[name] - torch.from_numpy(values)).abs().max() <= 1e-12
    for call in (fused, steps):
        assert call.top_keys.key.shape == (B, N, 11, 3)
        assert torch.equal(call.top_keys.key, call.maps.sort(dim=-1, descending=True, stable=True)[1][..., :3])
        assert (call.top_keys.probability - call.maps.sort(dim=-1, descending=True)[0][..., :3]).abs().max() <= 1e-12
        rows, columns = [0, 2, 5, 8, 11], [0, 1, 3, 5, 7, 9]
        for i in range(4):
            for j in range(5):
                block = call.maps[..., rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
                assert (call.pooled_map[..., i, j] - block.mean((-2, -1))).abs().max() <= 1e-12


def test_a_row_without_a_key_counts_in_no_statistic() -> None:
    q = torch.randn(1, 1, 3, H, dtype=torch.float64)
    attend = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    (fused,) = captured_of(lambda: F.scaled_dot_product_attention(q, q, q, attend, scale=1.0), keep=["statistics"])
    added = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~attend, -math.inf)
    (steps,) = captured_of(lambda: torch.softmax(q @ q.mT + added, -1).nan_to_num(0.0) @ q, keep=["statistics"])
    for name, values in fused.statistics.items():
        assert (values - steps.statistics[name]).abs().max() <= 1e-12, name


def test_maps_stop_at_the_budget_and_the_other_numbers_do_not() -> None:
    q, small = torch.randn(1, 2, 64, H), torch.randn(1, 2, 8, H)

    def run() -> Tensor:
        first = F.scaled_dot_product_attention(q, q, q)
        return first.sum() + F.scaled_dot_product_attention(small, small, small).sum() + (torch.softmax(q @ q.mT, -1) @ q).sum()

    captured = captured_of(run, budget=2 * 64 * 64 * 4 + 2 * 8 * 8 * 4)
    assert [call.maps is not None for call in captured] == [True, True, False]
    assert [call.is_over_budget for call in captured] == [False, False, True]
    assert captured[2].statistics["entropy"].shape == (1, 2) and captured[2].top_keys.key.shape == (1, 2, 64, 16) and captured[2].pooled_map.shape == (1, 2, 64, 64)
    assert [call.maps is not None for call in captured_of(run, budget=2 * 64 * 64 * 4 - 1)] == [False, True, False]
    with pytest.raises(ValueError, match="no maps of .*budget"):
        captured.layers()


def test_modules_that_are_not_captured_are_named() -> None:
    class SigmoidAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x @ x.mT) @ x

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.usual = SigmoidAttention(), nn.MultiheadAttention(H, 2, batch_first=True)
            self.unused_attention = SigmoidAttention()

        def forward(self, x: Tensor) -> Tensor:
            return self.usual(self.own(x), x, x)[0]

    block, x = Block().eval(), torch.randn(B, T, H)
    captured = captured_of(lambda: block(x), block)
    assert [call.name for call in captured] == ["usual"]
    assert [missed.name for missed in captured.missed] == ["own"] and "SigmoidAttention" in captured.missed[0].reason
    assert "missed: own: SigmoidAttention" in repr(captured)

    nested = torch.nested.nested_tensor([torch.randn(N, 3, H), torch.randn(N, T, H)])
    captured = captured_of(lambda: F.scaled_dot_product_attention(nested, nested, nested).to_padded_tensor(0.0))
    assert captured.calls == [] and "nested" in captured.missed[0].reason

    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, H)
    captured = captured_of(lambda: flex_attention(q, q, q))
    assert captured.calls == [] and "flex_attention" in captured.missed[0].reason
    captured = captured_of(lambda: [F.scaled_dot_product_attention(*[q.to("meta")] * 3).size(0)] and q)
    assert captured.calls == [] and "without memory" in captured.missed[0].reason


def test_compiled_models_are_refused_by_name() -> None:
    layer = nn.TransformerEncoderLayer(16, N, 32, batch_first=True)
    with pytest.raises(NotImplementedError, match="OptimizedModule is compiled"):
        polyhead.capture(torch.compile(layer))
    layer.self_attn.compile()
    with pytest.raises(NotImplementedError, match="module 'self_attn' is compiled"):
        polyhead.capture(layer)


def test_captures_end_with_their_block_and_go_inside_of_one_another() -> None:
    q = torch.randn(B, N, T, H)
    layer = nn.Linear(H, H)
    call = nn.Module.__call__
    with polyhead.capture(layer) as outer:
        F.scaled_dot_product_attention(q, q, q)
        with polyhead.capture() as inner:
            polyhead.torch.attention(layer(q), q, q)
        thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(q, q, q))
        thread.start()
        thread.join()
    F.scaled_dot_product_attention(q, q, q)
    assert (len(outer), len(inner)) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        with polyhead.capture() as captured:
            F.scaled_dot_product_attention(q, q, q)
            raise ZeroDivisionError
    polyhead.torch.attention(q, q, q)
    assert len(captured) == 1
    assert nn.Module.__call__ is call and torch._C._len_torch_dispatch_stack() == 0
    with pytest.raises(RuntimeError, match="no model"):
        with polyhead.Capture():
            pass


def test_the_page_is_that_of_the_maps() -> None:
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, N, 32, batch_first=True), 2).eval()
    x, memory = torch.randn(1, T, 16), torch.randn(1, S, 16)
    with torch.no_grad():
        captured = captured_of(lambda: model(x, memory), model)
    with pytest.raises(ValueError, match=r"different shapes, \[1, 4, 5, 5\]: layers.0.self_attn, layers.1.self_attn; \[1, 4, 5, 7\]: layers.0.multihead_attn"):
        captured.layers()
    first = captured.select("layers.0.self")
    assert polyhead.view(first, tokens=list("abcde")).html == polyhead.view([captured[0].maps], tokens=list("abcde")).html
    with pytest.raises(ValueError, match="no call of attention"):
        polyhead.view(captured.select("layers.9"))
    with pytest.raises(ValueError, match="keep did not name 'maps'"):
        polyhead.view(captured_of(lambda: model(x, memory), model, keep=["statistics"]))
