"""Tests calls under torch.compile whose extents change or depend on data. One compiled function must serve all extents, with the results of eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from effort import QUICK
from polyhead.torch import GatedAttention, MultiheadAttention, attention, scaled_dot_product_attention, triangle_attention

BACKEND = "aot_eager"  # traces like inductor, but generates no code


@pytest.fixture(autouse=True)
def _without_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


# --- a later call has masks that the first call did not have, or other lengths


def masks_of_multihead(n: int) -> list[dict[str, Tensor]]:
    padding = torch.zeros(2, n, dtype=torch.bool)
    padding[0, -2:] = True
    each_head = torch.randn(8, n, n)
    return [{"key_padding_mask": padding}, {"attn_mask": torch.ones(n, n).triu(1) > 0}, {"attn_mask": each_head, "key_padding_mask": padding}]


def masks_of_sdpa(n: int) -> list[dict[str, Tensor]]:
    return [{"attn_mask": torch.ones(n, n).tril() > 0}, {"attn_mask": torch.randn(2, 1, n, n)}]


def masks_of_gated(n: int) -> list[dict[str, Tensor]]:
    keep = torch.ones(2, 3, n, dtype=torch.bool)
    keep[0, :, -1] = False
    return [{"bias": torch.randn(2, 4, n, n)}, {"attend_keys": keep, "bias": torch.randn(4, n, n)}]


def masks_of_triangle(n: int) -> list[dict[str, Tensor]]:
    return [{"mask": torch.ones(2, n, 1, 1, n) > 0}, {"kv_lengths": torch.full((2, n, 1, 1, 1), n - 1)}]


multihead = MultiheadAttention(16, 4, batch_first=True).eval()
gated = GatedAttention(16, 4, 4, gated=True)

LATER: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]], Callable[[int], list[dict[str, Tensor]]]]] = {
    "MultiheadAttention": (lambda x, **masks: multihead(x, x, x, need_weights=False, **masks)[0], lambda n: (torch.randn(2, n, 16),), masks_of_multihead),
    "scaled_dot_product_attention": (lambda q, **masks: scaled_dot_product_attention(q, q, q, **masks), lambda n: (torch.randn(2, 4, n, 8),), masks_of_sdpa),
    "GatedAttention": (lambda x, **masks: gated(x, **masks), lambda n: (torch.randn(2, 3, n, 16),), masks_of_gated),
    "triangle_attention": (
        lambda q, bias, **masks: triangle_attention(q, q, q, bias, **masks),
        lambda n: (torch.randn(2, n, 4, n, 8), torch.randn(2, 1, 4, n, n)),
        masks_of_triangle,
    ),
}


CALLED = [(5, False), (9, False), (5, True), (7, True)]


@pytest.mark.parametrize("name", LATER)
def test_a_mask_may_come_after_calls_without(name: str) -> None:
    call, inputs, masks = LATER[name]
    count = len(masks(5))
    for i in [count - 1] if QUICK else range(count):  # tracing takes seconds, so the quick test tries only the last case, which has the most masks
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend=BACKEND)
        for length, is_masked in CALLED[1 if QUICK else 0 :]:  # lengths that change without a mask are those of test_torch_ops.py
            given = inputs(length)
            options = masks(length)[i] if is_masked else {}
            torch.testing.assert_close(compiled(*given, **options), call(*given, **options))


@pytest.mark.parametrize("training", [True] if QUICK else [True, False])
def test_an_encoder_of_torch_may_be_given_a_padded_batch_later(training: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer.self_attn = MultiheadAttention(16, 4, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1 if QUICK else 2, enable_nested_tensor=False).train(training)
    compiled = torch.compile(encoder, fullgraph=True, backend=BACKEND)
    for length, is_padded in CALLED:
        x = torch.randn(2, length, 16)
        padding = masks_of_multihead(length)[0]["key_padding_mask"] if is_padded else None
        torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), encoder(x, src_key_padding_mask=padding))


def test_masks_of_wrong_shapes_are_refused_also_with_changing_lengths() -> None:
    compiled = torch.compile(LATER["MultiheadAttention"][0], fullgraph=True, backend=BACKEND)
    for length in (5, 9):
        compiled(torch.randn(2, length, 16), key_padding_mask=torch.zeros(2, length) > 0)
    with pytest.raises(Exception, match=r"key_padding_mask|is not equal|Observed exception"):
        compiled(torch.randn(2, 7, 16), key_padding_mask=torch.zeros(2, 6) > 0)


# --- extents that depend on data


def chosen(x: Tensor, keep: Tensor) -> Tensor:
    return x[keep.nonzero().squeeze(-1)]


def of_chosen(call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a function for the sequences that `keep` chooses, with their masks."""
    return lambda keep, *tensors: call(*(chosen(x, keep) for x in tensors))


of_layers = {
    "MultiheadAttention": lambda x, padding: multihead(x, x, x, key_padding_mask=padding),
    "MultiheadAttention without a mask": lambda x: multihead(x, x, x, need_weights=False)[0],
    "GatedAttention": lambda x, bias: gated(x, bias),
    "GatedAttention with a mask": lambda x, keep: gated(x, None, keep),
}

CHOSEN: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "attention with masks": (
        of_chosen(lambda q, keys, bias: attention(q, q, q, attend_keys=keys, bias=bias, causal="top_left", return_attention_weights=True)),
        lambda: (torch.randn(4, 2, 5, 8), torch.ones(4, 5) > 0, torch.randn(4, 1, 5, 5)),
    ),
    "scaled_dot_product_attention": (of_chosen(lambda q, mask: scaled_dot_product_attention(q, q, q, mask)), lambda: (torch.randn(4, 2, 5, 8), torch.randn(4, 1, 5, 5))),
    "grouped queries": (
        of_chosen(lambda q, k: scaled_dot_product_attention(q, k, k, enable_gqa=True)), lambda: (torch.randn(4, 2, 5, 8), torch.randn(4, 1, 5, 8))
    ),
    "chosen tokens": (lambda keep, q: scaled_dot_product_attention(*(chosen(q, keep).movedim(0, 2),) * 3), lambda: (torch.randn(4, 2, 3, 8),)),
    "chosen keys": (lambda keep, q: scaled_dot_product_attention(q, *(q[:, :, keep.nonzero().squeeze(-1)],) * 2), lambda: (torch.randn(3, 2, 4, 8),)),
    "MultiheadAttention": (of_chosen(of_layers["MultiheadAttention"]), lambda: (torch.randn(4, 5, 16), torch.zeros(4, 5) > 0)),
    "MultiheadAttention without a mask": (of_chosen(of_layers["MultiheadAttention without a mask"]), lambda: (torch.randn(4, 5, 16),)),
    "GatedAttention": (of_chosen(of_layers["GatedAttention"]), lambda: (torch.randn(4, 5, 16), torch.randn(4, 4, 5, 5))),
    "GatedAttention with a mask": (of_chosen(of_layers["GatedAttention with a mask"]), lambda: (torch.randn(4, 5, 16), torch.ones(4, 5) > 0)),
    "triangle_attention": (
        of_chosen(lambda q, bias: triangle_attention(q, q, q, bias)), lambda: (torch.randn(4, 5, 2, 5, 8), torch.randn(4, 1, 2, 5, 5))
    ),
}

KEPT = [[1, 0, 1, 1], [0, 1, 0, 0]]


class Called(torch.nn.Module):
    """Wraps a function in a module, which torch.export needs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call, self.multihead, self.gated = call, multihead, gated

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(*inputs)


# A quick run tests each call either with torch.compile or with torch.export, because both trace it with the same fake results.
@pytest.mark.parametrize("name", list(CHOSEN)[:: 2 if QUICK else 1])
def test_extents_may_depend_on_data_when_compiled(name: str) -> None:
    call, inputs = CHOSEN[name]
    compiled = torch.compile(call, fullgraph=True, backend=BACKEND)
    for kept in KEPT:
        keep, (x, *others) = torch.tensor(kept) > 0, inputs()
        results = []
        for function in (compiled, call):
            x = x.detach().requires_grad_()
            out = function(keep, x, *others)
            outs = out if isinstance(out, tuple) else (out,)
            results.append((outs, torch.autograd.grad(sum(y.sum() for y in outs), x)))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", list(CHOSEN)[1::2] if QUICK else CHOSEN)
def test_extents_may_depend_on_data_when_exported(name: str) -> None:
    call, inputs = CHOSEN[name]
    given = inputs()
    exported = torch.export.export(Called(call), (torch.tensor(KEPT[0]) > 0, *given)).module()
    for kept in [*KEPT, [0, 0, 0, 0]]:
        keep = torch.tensor(kept) > 0
        torch.testing.assert_close(exported(keep, *given), call(keep, *given))


def test_inductor_agrees_about_strides_of_extents_that_depend_on_data() -> None:
    call = of_chosen(lambda q: attention(*(q.transpose(1, 2),) * 3).transpose(1, 2).flatten(2) * 2)
    compiled = torch.compile(call, fullgraph=True)
    for kept in ([1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]):
        keep, q = torch.tensor(kept) > 0, torch.randn(4, 5, 2, 8)
        torch.testing.assert_close(compiled(keep, q), call(keep, q))
