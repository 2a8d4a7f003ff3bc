"""Compares polyhead.torch.MultiheadAttention with torch's layer: output, weights and all gradients over random settings. Also tests what else docs promise of the layer."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyhead.torch import GatedAttention, MultiheadAttention
from torch_support import EXAMPLES, Ratios, Results, both, gradients, math_path


@dataclass(frozen=True)
class Setting:
    heads: int
    width: int
    batch: int | None
    queries: int
    keys: int
    kdim: int | None
    vdim: int | None
    bias: bool
    add_bias_kv: bool
    add_zero_attn: bool
    batch_first: bool
    same: str  # which inputs are the same tensor: "none", "kv" or "qkv"
    attn_mask: str  # "none", "bool", "float" or "causal" (a boolean mask and is_causal=True)
    per_head: bool
    padding: str  # none, bool, float
    need_weights: bool
    average: bool
    training: bool
    excluded: float  # share of the entries of a mask that are excluded
    seed: int

    def module(self, kind: type[nn.MultiheadAttention], dtype: torch.dtype) -> nn.MultiheadAttention:
        embed = self.heads * self.width
        options = {"bias": self.bias, "add_bias_kv": self.add_bias_kv, "add_zero_attn": self.add_zero_attn, "batch_first": self.batch_first}
        # The layer is on the meta device; the parameters are passed with each call.
        layer = kind(embed, self.heads, kdim=self.kdim, vdim=self.vdim, device="meta", dtype=dtype, **options)  # type: ignore[arg-type]
        return layer.train(self.training)

    def inputs(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).double()

        def sequence(length: int, width: int) -> Tensor:
            if self.batch is None:
                return randn(length, width)
            return randn(self.batch, length, width) if self.batch_first else randn(length, self.batch, width)

        tensors = {"query": sequence(self.queries, self.heads * self.width)}
        if self.same != "qkv":
            tensors["key"] = sequence(self.keys, self.kdim or self.heads * self.width)
        if self.same == "none":
            tensors["value"] = sequence(self.keys, self.vdim or self.heads * self.width)

        def mask(kind: str, *shape: int) -> Tensor:
            excluded = torch.rand(shape, generator=generator) < self.excluded
            return excluded if kind == "bool" else torch.where(excluded & (torch.rand(shape, generator=generator) < 0.5), -math.inf, randn(*shape))

        if self.attn_mask == "causal":
            tensors["attn_mask"] = torch.ones(self.queries, self.keys, dtype=torch.bool).triu(1)
        elif self.attn_mask != "none":
            lead = ((self.batch or 1) * self.heads,) if self.per_head else ()
            tensors["attn_mask"] = mask(self.attn_mask, *lead, self.queries, self.keys)
        if self.padding != "none":
            tensors["key_padding_mask"] = mask(self.padding, *(() if self.batch is None else (self.batch,)), self.keys)
        for tensor in tensors.values():
            tensor.requires_grad_(tensor.is_floating_point())
        layer = self.module(nn.MultiheadAttention, torch.float64)
        tensors |= {f"p.{name}": torch.empty(parameter.shape, dtype=torch.float64) for name, parameter in layer.named_parameters()}
        for name, tensor in tensors.items():
            if name.startswith("p."):
                tensor.copy_(randn(*tensor.shape) * (0.5 if tensor.dim() == 1 else tensor.shape[-1] ** -0.5)).requires_grad_()
        return tensors

    def has_empty_row(self, tensors: Mapping[str, Tensor]) -> bool:
        """Returns whether a query may attend to no key. torch's weights are NaN in such rows."""
        if self.add_bias_kv or self.add_zero_attn:
            return False
        masks = {name: tensor.detach() for name, tensor in tensors.items() if "mask" in name}
        excluded = {name: mask if mask.dtype == torch.bool else mask == -math.inf for name, mask in masks.items()}
        dense = torch.zeros(self.batch or 1, self.heads, self.queries, self.keys, dtype=torch.bool)
        if "attn_mask" in excluded:
            mask = excluded["attn_mask"]
            dense |= mask.unflatten(0, (-1, self.heads)) if mask.dim() == 3 else mask
        if "key_padding_mask" in excluded:
            dense |= excluded["key_padding_mask"].reshape(-1, 1, 1, self.keys)
        return bool(dense.all(-1).any())


@st.composite
def make_settings(draw: st.DrawFn) -> Setting:
    heads, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    same = draw(st.sampled_from(("none", "kv", "qkv")))
    queries = draw(st.integers(1, 7))
    widths = (draw(st.one_of(st.none(), st.integers(1, 9))), draw(st.one_of(st.none(), st.integers(1, 9)))) if same == "none" else (None, None)
    flags = st.booleans()
    return Setting(
        heads,
        width,
        draw(st.sampled_from((None, 1, 2, 3))),
        queries,
        queries if same == "qkv" else draw(st.integers(1, 7)),
        *widths,
        draw(flags),
        draw(flags),
        draw(flags),
        draw(flags),
        same,
        draw(st.sampled_from(("none", "bool", "float", "causal"))),
        draw(flags),
        draw(st.sampled_from(("none", "bool", "float"))),
        draw(flags),
        draw(flags),
        draw(flags),
        draw(st.sampled_from((0.2, 0.2, 0.6))),
        draw(st.integers(0, 2**31)),
    )


def call(kind: type[nn.MultiheadAttention], setting: Setting, tensors: Mapping[str, Tensor], need_weights: bool) -> Results:
    layer = setting.module(kind, tensors["query"].dtype)
    parameters = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("p.")}
    query = tensors["query"]
    key = query if setting.same == "qkv" else tensors["key"]
    value = key if setting.same != "none" else tensors["value"]
    output, weights = torch.func.functional_call(
        layer,
        parameters,
        (query, key, value),
        {
            "key_padding_mask": tensors.get("key_padding_mask"),
            "attn_mask": tensors.get("attn_mask"),
            "need_weights": need_weights,
            "average_attn_weights": setting.average,
            "is_causal": setting.attn_mask == "causal",
        },
        strict=True,
    )
    assert (weights is None) == (not need_weights)
    return gradients({"output": output, "weights": weights}, tensors, setting.seed)


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
def test_equals_torch_on_random_settings(summary: list[str]) -> None:
    ratios = Ratios()
    empty = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(make_settings())
    def sweep(setting: Setting) -> None:
        nonlocal empty
        inputs = setting.inputs()
        # polyhead documents this difference: if a row is empty and weights are requested, torch's weights and all of its gradients are NaN. If no weights are requested, both give 0.
        is_empty = setting.has_empty_row(inputs)
        need_weights = setting.need_weights and not is_empty
        empty += is_empty
        with math_path():
            both(
                lambda tensors: call(MultiheadAttention, setting, tensors, need_weights),
                lambda tensors: call(nn.MultiheadAttention, setting, tensors, need_weights),
                inputs,
                ratios,
            )
        if is_empty and setting.need_weights:
            require_zero_rows(setting, inputs)

    sweep()
    summary.append(ratios.report("MultiheadAttention"))
    summary.append(f"MultiheadAttention: {empty} settings with an empty row")
    assert {"output", "weights", "d_query", "d_key", "d_value", "d_attn_mask", "d_key_padding_mask", "d_p.in_proj_weight", "d_p.bias_k"} <= set(ratios.of)
    assert empty > 0
    assert max(ratios.medians().values()) <= 1.0, ratios.report("MultiheadAttention")


def require_zero_rows(setting: Setting, inputs: Mapping[str, Tensor]) -> None:
    """Checks that polyhead's weights are torch's where these are numbers, and 0 where they are NaN."""
    ours, theirs = (call(kind, setting, inputs, True) for kind in (MultiheadAttention, nn.MultiheadAttention))
    missing = theirs["weights"].isnan()
    assert missing.any()
    torch.testing.assert_close(ours["weights"][~missing], theirs["weights"][~missing], rtol=1e-11, atol=1e-12)
    if not setting.average:
        assert (ours["weights"][missing] == 0).all()
    assert all(tensor.isfinite().all() for tensor in ours.values())


def make(kind: type[nn.MultiheadAttention], *args: object, **options: object) -> nn.MultiheadAttention:
    torch.manual_seed(3)
    return kind(*args, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 7, "add_bias_kv": True}, {"bias": False, "add_zero_attn": True}])
def test_initialisation_and_state_dict_are_those_of_torch(options: dict[str, object]) -> None:
    ours, theirs = make(MultiheadAttention, 12, 3, **options), make(nn.MultiheadAttention, 12, 3, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(pickle.loads(pickle.dumps(ours)).out_proj.weight, ours.out_proj.weight)


def test_inference_equals_the_fast_path_of_torch() -> None:
    ours, theirs = (make(kind, 16, 4, batch_first=True).eval() for kind in (MultiheadAttention, nn.MultiheadAttention))
    x = torch.randn(3, 6, 16)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = True
    with torch.inference_mode():
        for mine, other in zip(ours(x, x, x, padding), theirs(x, x, x, padding)):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_layer_can_be_a_part_of_torch_models() -> None:
    encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).train()
    x = torch.randn(2, 5, 16)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    exact = encoder(x, src_key_padding_mask=padding)
    layer = MultiheadAttention(16, 4, batch_first=True)
    layer.load_state_dict(encoder.self_attn.state_dict())
    encoder.self_attn = layer
    torch.testing.assert_close(encoder(x, src_key_padding_mask=padding), exact, rtol=1e-5, atol=1e-5)


def padded_batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 5, 16)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = padding[2, 1:] = True
    return x, padding


def with_polyhead(layer: nn.TransformerEncoderLayer, calls: list[Tensor]) -> nn.TransformerEncoderLayer:
    """Replaces the layer's attention by polyhead's with the same parameters, and records its calls."""

    class Recorded(MultiheadAttention):
        def forward(self, query: Tensor, *args: object, **options: object) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
            calls.append(query)
            return super().forward(query, *args, **options)  # type: ignore[arg-type]

    attention = Recorded(16, 4, batch_first=True).eval()
    attention.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = attention
    return layer


@pytest.mark.parametrize("copied", [lambda layer: layer, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_in_evaluation_calls_the_layer(norm_first: bool, copied: Callable[[nn.Module], nn.Module]) -> None:
    encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first).eval()
    x, padding = padded_batch()
    with torch.no_grad():
        exact = encoder(x, src_key_padding_mask=padding)
        layer = copied(MultiheadAttention(16, 4, batch_first=True).eval())
        layer.load_state_dict(encoder.self_attn.state_dict())
        calls: list[str] = []
        forward = layer.forward
        layer.forward = lambda *args, **options: (calls.append("forward"), forward(*args, **options))[1]
        encoder.self_attn = layer
        for count, mode in enumerate((torch.no_grad, torch.inference_mode), 1):
            with mode():
                torch.testing.assert_close(encoder(x, src_key_padding_mask=padding)[~padding], exact[~padding], rtol=1e-5, atol=1e-5)
            assert len(calls) == count


@pytest.mark.parametrize("replaced", ["before", "after"])
def test_a_whole_encoder_in_evaluation_calls_the_layers(replaced: str) -> None:
    """If there is padding, torch passes nested tensors to the layers."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, padding = padded_batch()
    calls: list[Tensor] = []
    with torch.no_grad():
        exact = encoder(x, src_key_padding_mask=padding)
        if replaced == "before":
            encoder = nn.TransformerEncoder(with_polyhead(layer, calls), 2).eval()
        else:
            for member in encoder.layers:
                with_polyhead(member, calls)
        torch.testing.assert_close(encoder(x, src_key_padding_mask=padding), exact, rtol=1e-5, atol=1e-5)
        assert len(calls) == 2 and all(query.is_nested for query in calls)


def test_nested_tensors_are_self_attention_without_masks() -> None:
    layer, (x, padding) = MultiheadAttention(16, 4, batch_first=True), padded_batch()
    nested = torch.nested.as_nested_tensor([sequence[~hidden] for sequence, hidden in zip(x, padding)])
    out, none = layer(nested, nested, nested, need_weights=False)
    assert none is None
    torch.testing.assert_close(out.to_padded_tensor(0.0), layer(x, x, x, padding)[0].masked_fill(padding.unsqueeze(-1), 0.0), rtol=1e-5, atol=1e-6)
    for options in ({}, {"need_weights": False, "attn_mask": torch.zeros(5, 5)}, {"need_weights": False, "key_padding_mask": padding}):
        with pytest.raises(TypeError, match="query is nested"):
            layer(nested, nested, nested, **options)
    with pytest.raises(TypeError, match="query is nested"):
        layer(nested, nested, nested.clone(), need_weights=False)
    with pytest.raises(TypeError, match="query is nested"):
        MultiheadAttention(16, 4)(nested, nested, nested, need_weights=False)


def test_torch_jit_script_is_refused() -> None:
    for layer in (MultiheadAttention(16, 4), nn.Sequential(MultiheadAttention(16, 4)), nn.ModuleDict({"a": GatedAttention(8, 4, 2)})):
        with pytest.raises(NotImplementedError, match="Attention: torch.jit.script does not compile polyhead's layers"):
            torch.jit.script(layer)
    x = torch.randn(3, 5, 8)
    gated = GatedAttention(8, 4, 2)
    torch.testing.assert_close(torch.jit.trace(gated, x)(x), gated(x))


def test_asking_for_weights_does_not_change_the_output() -> None:
    layer = MultiheadAttention(12, 3, dropout=0.4).train()
    x = torch.randn(5, 2, 12)
    torch.manual_seed(7)
    output, none = layer(x, x, x, need_weights=False)
    torch.manual_seed(7)
    again, weights = layer(x, x, x, average_attn_weights=False)
    assert none is None and torch.equal(output, again)
    # The returned weights are those after dropout, which multiply the values: dropped weights are 0, the others are scaled.
    value = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)[..., 24:].unflatten(-1, (3, 4)).permute(1, 2, 0, 3)
    merged = (weights @ value).permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(layer.out_proj(merged), output)
    assert 0.1 < (weights == 0).double().mean() < 0.7


def test_dropout_is_off_in_evaluation() -> None:
    layer = MultiheadAttention(12, 3, dropout=0.4).eval()
    x = torch.randn(5, 2, 12)
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])


def test_no_batch_no_query_and_no_key_are_legal() -> None:
    layer = MultiheadAttention(12, 3)
    for batch, queries, keys in ((0, 4, 5), (2, 0, 5), (2, 4, 0), (0, 0, 0)):
        x, y = torch.randn(queries, batch, 12), torch.randn(keys, batch, 12)
        output, weights = layer(x, y, y, key_padding_mask=torch.zeros(batch, keys, dtype=torch.bool))
        assert output.shape == x.shape and weights.shape == (batch, queries, keys)
        assert keys > 0 or torch.equal(output, layer.out_proj.bias.expand_as(output))
        output.sum().backward()


def test_a_padded_key_does_not_exist() -> None:
    layer = MultiheadAttention(12, 3, batch_first=True)
    x, y = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[:, 3:] = True
    exact, _ = layer(x, y, y, padding)
    y[:, 3:] = math.nan
    output, weights = layer(x, y, y, padding)
    assert torch.equal(output, exact) and weights.isfinite().all()


@pytest.mark.parametrize("masked", ["bool", "float", "per head"])
@pytest.mark.parametrize("appended", [False, True])
def test_is_causal_does_not_hide_another_mask(masked: str, appended: bool) -> None:
    torch.manual_seed(3)
    layer = MultiheadAttention(12, 3, batch_first=True, add_zero_attn=appended).eval()
    x, mask = torch.randn(2, 5, 12), torch.rand(5, 5) < 0.4
    mask.fill_diagonal_(False)
    given = mask if masked == "bool" else mask[None].repeat(6, 1, 1) if masked == "per head" else torch.zeros(5, 5).masked_fill(mask, -math.inf)
    want = layer(x, x, x, attn_mask=given, need_weights=False)[0]
    for need_weights in (False, True):
        assert torch.allclose(layer(x, x, x, attn_mask=given, is_causal=True, need_weights=need_weights)[0], want, atol=1e-6)
    if not appended:  # a compiler cannot read the mask
        compiled = torch.compile(lambda x, given: layer(x, x, x, attn_mask=given, is_causal=True, need_weights=False)[0], backend="eager")
        assert torch.allclose(compiled(x, given), want, atol=1e-6)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for one in (causal, torch.zeros(5, 5).masked_fill(causal, -math.inf), causal.expand(6, 5, 5)):
        assert layer._masks(x, 1, one, None, False, True) == {"causal": "top_left"}


X, MASK = torch.zeros(4, 2, 12), torch.zeros(4, 4, dtype=torch.bool)
ERRORS = [
    ((X[0, 0], X, X), {}, ValueError, "query is"),
    ((X, X[0], X), {}, ValueError, "3-dimensional"),
    ((X, X, X[:3]), {}, ValueError, "value is"),
    ((X, X[:, :1], X), {}, ValueError, "key is"),
    ((X[..., :8], X, X), {}, ValueError, "T,B,E"),
    ((X, X, X), {"attn_mask": MASK[:3]}, ValueError, "attn_mask is"),
    ((X, X, X), {"attn_mask": MASK.expand(3, 4, 4)}, ValueError, "attn_mask is"),
    ((X, X, X), {"attn_mask": MASK.int()}, TypeError, "int32"),
    ((X, X, X), {"key_padding_mask": MASK}, ValueError, "key_padding_mask is"),
    ((X, X, X), {"is_causal": True}, ValueError, "attn_mask must be given"),
    ((X.numpy(), X, X), {}, TypeError, "ndarray"),
    ((X.int(), X, X), {}, TypeError, "int32"),
]


@pytest.mark.parametrize(("args", "options", "kind", "message"), ERRORS)
def test_a_wrong_call_is_a_clear_error(args: tuple[Tensor, ...], options: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MultiheadAttention(12, 3)(*args, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["attn_mask", "key_padding_mask"])
def test_a_float32_mask_keeps_its_numbers_beside_16_bits(kind: str, dtype: torch.dtype) -> None:
    """bfloat16 numbers around 100 are 1/2 apart, and float32's lowest number would be -infinity in 16 bits, so a float32 mask must not be rounded."""
    torch.manual_seed(5)
    layer, x = MultiheadAttention(32, 4, batch_first=True).to(dtype), torch.randn(2, 6, 32).to(dtype)
    mask = 100 + torch.randn(2, 6) if kind == "key_padding_mask" else 100 + torch.randn(6, 6)
    mask[..., 5] = torch.finfo(torch.float32).min
    exact = copy.deepcopy(layer).double()
    mask.requires_grad_()
    output, weights = layer(x, x, x, average_attn_weights=False, **{kind: mask})
    wide_mask = mask.detach().double().requires_grad_()
    wide_output, wide_weights = exact(*(x.double(),) * 3, average_attn_weights=False, **{kind: wide_mask})
    assert output.dtype == weights.dtype == dtype
    assert (weights - wide_weights).abs().max() <= 1e-2 and (output - wide_output).abs().max() <= 2e-2
    output.sum().backward()
    wide_output.sum().backward()
    assert mask.grad is not None and wide_mask.grad is not None and mask.grad.dtype == torch.float32
    assert (mask.grad - wide_mask.grad).abs().max() <= 2e-2 * max(1.0, wide_mask.grad.abs().max().item())


def test_masks_of_different_dtypes_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiheadAttention(12, 3)(X, X, X, key_padding_mask=torch.zeros(2, 4), attn_mask=MASK)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: MultiheadAttention(12, 3, add_bias_kv=True, device=device),
        lambda device: MultiheadAttention(12, 3, kdim=5, vdim=7, bias=False, device=device),
        lambda device: GatedAttention(8, 4, 2, gated=True, use_bias_for_embeddings=True, device=device),
    ],
)
def test_layers_of_the_meta_device_are_initialised_as_the_constructor_does(make: Callable[[str | None], nn.Module]) -> None:
    torch.manual_seed(4)
    expected = make(None)
    layer = make("meta").to_empty(device="cpu")
    for parameter in layer.parameters():
        nn.init.constant_(parameter, math.nan)
    torch.manual_seed(4)
    layer.reset_parameters()  # type: ignore[operator]
    for (name, made), reset in zip(expected.named_parameters(), layer.parameters(), strict=True):
        assert torch.equal(made, reset), name
    # FSDP calls reset_parameters() of each module, also of the children of a layer.
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    assert all(parameter.isfinite().all() for parameter in layer.parameters())
