"""torch.fx.symbolic_trace records each call of polyhead.torch as one node. NumPy's numbers are accepted as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import polyhead.torch as ours  # noqa: E402


class Uses(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, call: Any, layer: Any = None) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.call(self.layer, x, mask)


def draw(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def both_outputs(m: Any, x: Any, mask: Any) -> Any:
    out, p = m(x, x, x, average_attn_weights=False)
    return out + 1, p


MHA = {"embed_dim": 12, "num_heads": 3, "batch_first": True, "dtype": torch.float64}
FUNCTIONS = {
    "sdpa": lambda _, x, mask: ours.scaled_dot_product_attention(x, x, x) * 2,
    "sdpa, masked": lambda _, x, mask: ours.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=0.5),
    "attention": lambda _, x, mask: ours.attention(x, x, x, causal="top_left", softcap=3.0),
    "attention, two outputs": lambda _, x, mask: ours.attention(x, x, x, bias=mask, return_lse=True)[1],
}
MODULES = {
    "multi-head": (lambda: ours.MultiheadAttention(**MHA), lambda m, x, mask: x + m(x, x, x, need_weights=False)[0]),
    "multi-head, both outputs": (lambda: ours.MultiheadAttention(**MHA), both_outputs),
    "multi-head, mask": (lambda: ours.MultiheadAttention(**MHA), lambda m, x, mask: m(x, x, x, attn_mask=mask)[1]),
    "gated": (lambda: ours.GatedAttention(12, 4, heads=3, dtype=torch.float64), lambda m, x, mask: m(x) * 2),
}


def compare(model: Any, x: Any, mask: Any) -> Any:
    traced = torch.fx.symbolic_trace(model)
    theirs, given = traced(x, mask), model(x, mask)
    for a, b in zip(*((value if isinstance(value, tuple) else (value,)) for value in (theirs, given))):
        assert torch.equal(a, b)
    return traced


@pytest.mark.parametrize("name", FUNCTIONS)
def test_symbolic_tracing_records_a_function_as_one_node(name: str) -> None:
    traced = compare(Uses(FUNCTIONS[name]), draw(2, 3, 5, 4), draw(5, 5))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"][0] in (ours.attention, ours.scaled_dot_product_attention)


@pytest.mark.parametrize("name", MODULES)
def test_symbolic_tracing_records_a_layer_as_one_node(name: str) -> None:
    make, call = MODULES[name]
    traced = compare(Uses(call, make()), draw(2, 5, 12), draw(5, 5))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer"]


def test_a_mask_alone_may_be_symbolic_and_a_root_layer_is_refused() -> None:
    x, layer = draw(2, 5, 12), ours.MultiheadAttention(**MHA)
    heads = draw(2, 3, 5, 4)
    compare(Uses(lambda m, mask, _: m(x, x, x, attn_mask=mask)[0], layer), draw(5, 5), None)
    compare(Uses(lambda _, mask, __: ours.scaled_dot_product_attention(heads, heads, heads, mask)), draw(5, 5), None)
    with pytest.raises(TypeError, match="MultiheadAttention: torch.fx cannot trace the inside of this layer; trace a module that holds it"):
        torch.fx.symbolic_trace(layer)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float16(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    x = draw(2, 3, 5, 4)
    assert torch.equal(ours.scaled_dot_product_attention(x, x, x, scale=number), ours.scaled_dot_product_attention(x, x, x, scale=0.5))
    assert torch.equal(ours.attention(x, x, x, scale=number, softcap=np.int64(3)), ours.attention(x, x, x, scale=0.5, softcap=3.0))
    torch.manual_seed(1)
    dropped = ours.attention(x, x, x, dropout=number)
    torch.manual_seed(1)
    assert torch.equal(dropped, ours.attention(x, x, x, dropout=0.5))
    with pytest.raises(TypeError, match="scale is of type bool; it must be a number"):
        ours.attention(x, x, x, scale=np.bool_(True))
