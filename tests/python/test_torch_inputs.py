"""Tests which tensors polyhead.torch reads. torch's CausalBias is read as the mask that it means; subclasses whose memory is not their contents, and mixed devices, are refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import polyhead
from polyhead.torch import GatedAttention, MultiheadAttention, _ops, scaled_dot_product_attention
from polyhead.torch._rules import Options
from torch_support import gradients, math_path, require_equal

CORNERS = [causal_upper_left, causal_lower_right]
LENGTHS = [(5, 5), (3, 7), (1, 6), (6, 4)]


def filled(corner: Callable[..., Tensor], queries: int, keys: int) -> Tensor:
    """Returns the boolean mask that a CausalBias means by torch's documentation."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(0 if corner is causal_upper_left else keys - queries)


def bias_of(corner: Callable[..., Tensor], queries: int, keys: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of NaN in rows without a key, although they are 0
        return corner(queries, keys)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_a_causal_bias_is_its_mask(corner: Callable[..., Tensor], queries: int, keys: int) -> None:
    tensors = {name: torch.randn(2, 4, length, 8, dtype=torch.float64, requires_grad=True) for name, length in (("q", queries), ("k", keys), ("v", keys))}
    ours = gradients({"out": scaled_dot_product_attention(*tensors.values(), attn_mask=bias_of(corner, queries, keys))}, tensors, 1)
    with math_path():
        exact = gradients({"out": F.scaled_dot_product_attention(*tensors.values(), attn_mask=filled(corner, queries, keys))}, tensors, 1)
    require_equal(ours, {name: tensor.nan_to_num(0) for name, tensor in exact.items()}, 1e-12)
    if queries <= keys:
        with math_path():
            require_equal(ours, gradients({"out": F.scaled_dot_product_attention(*tensors.values(), attn_mask=corner(queries, keys))}, tensors, 1), 1e-12)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"add_zero_attn": True, "add_bias_kv": True}])
def test_a_layer_takes_a_causal_bias(corner: Callable[..., Tensor], queries: int, keys: int, options: dict[str, bool]) -> None:
    layer = MultiheadAttention(8, 2, **options)
    shape = (lambda length: (3, length, 8)) if options.get("batch_first") else (lambda length: (length, 3, 8))
    x, y = torch.randn(shape(queries)), torch.randn(shape(keys))
    blocked = ~filled(corner, queries, keys)
    for rest in ({"need_weights": False}, {"need_weights": False, "is_causal": True}, {"key_padding_mask": torch.zeros(3, keys, dtype=torch.bool)}):
        exact, _ = layer(x, y, y, attn_mask=blocked, **{name: value for name, value in rest.items() if name != "is_causal"})
        assert torch.equal(layer(x, y, y, attn_mask=bias_of(corner, queries, keys), **rest)[0], exact)
    without_batch, _ = layer(x[:, 0], y[:, 0], y[:, 0], attn_mask=bias_of(corner, x.size(0), y.size(0)))
    assert torch.equal(without_batch, layer(x[:, 0], y[:, 0], y[:, 0], attn_mask=~filled(corner, x.size(0), y.size(0)))[0])


def test_a_causal_bias_that_does_not_fit_is_refused() -> None:
    q = torch.randn(1, 2, 5, 4)
    layer, x = MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    for bias, kind, message in (
        (causal_upper_left(5, 6), ValueError, r"CausalBias of \[5, 6\]; it must be of \[T,S\] = \[5, 5\]"),
        (copy.copy(causal_upper_left(5, 5)).clone(), TypeError, "without a variant"),
    ):
        with pytest.raises(kind, match=message):
            scaled_dot_product_attention(q, q, q, bias)
        with pytest.raises(kind, match=message):
            layer(x, x, x, attn_mask=bias)
    with pytest.raises(ValueError, match="exclude"):
        scaled_dot_product_attention(q, q, q, causal_upper_left(5, 5), is_causal=True)
    with pytest.raises(TypeError, match="bias is of type CausalBias"):
        GatedAttention(8, 4, 2)(x, causal_upper_left(5, 5))
    with pytest.raises(TypeError, match="bias is of type CausalBias"):
        polyhead.sdpa(q, q, q, bias=causal_upper_left(5, 5))


class Hidden(torch.Tensor):
    """A subclass of Tensor with its own __torch_function__: its memory may hold other numbers than its values."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return super().__torch_function__(function, types, args, kwargs or {})


class Named(torch.Tensor):
    """A subclass of Tensor that overrides nothing: its memory holds its values."""


def test_a_subclass_that_is_not_known_is_refused() -> None:
    q, x = torch.randn(1, 2, 5, 4), torch.randn(3, 5, 8)
    layer, gated = MultiheadAttention(8, 2, batch_first=True), GatedAttention(8, 4, 2)
    square, keys = torch.ones(5, 5), torch.ones(3, 5, dtype=torch.bool)
    hide: Callable[[Tensor], Tensor] = lambda tensor: tensor.as_subclass(Hidden)  # noqa: E731
    calls: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {
        "query": lambda f: scaled_dot_product_attention(f(q), q, q),
        "value": lambda f: scaled_dot_product_attention(q, q, f(q)),
        "attn_mask": lambda f: scaled_dot_product_attention(q, q, q, f(square)),
        "sink": lambda f: scaled_dot_product_attention(q, q, q, sink=f(torch.zeros(2))),
        "key": lambda f: layer(x, f(x), x)[0],
        "attn_mask ": lambda f: layer(x, x, x, attn_mask=f(square))[0],
        "key_padding_mask": lambda f: layer(x, x, x, key_padding_mask=f(~keys))[0],
        "x": lambda f: gated(f(x)),
        "bias": lambda f: gated(x, f(square)),
        "attend_keys": lambda f: gated(x, None, f(keys)),
        "k": lambda f: polyhead.sdpa(q, f(q), q),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name.strip()} is of type Hidden, a subclass of torch.Tensor that polyhead does not know"):
            call(hide)
        torch.testing.assert_close(call(lambda tensor: tensor.as_subclass(Named)), call(lambda tensor: tensor))
    parameter = torch.nn.Parameter(square)
    assert torch.equal(scaled_dot_product_attention(q, q, q, parameter), scaled_dot_product_attention(q, q, q, square))


def calls_with_one_elsewhere() -> dict[str, Callable[[Callable[[Tensor], Tensor]], object]]:
    """Returns {name in the message: call with one tensor on another device, while the others are on the CPU}."""
    q, x, square = torch.randn(1, 2, 5, 4), torch.randn(3, 5, 8), torch.zeros(5, 5)
    blocked, keys = square.bool(), torch.ones(3, 5, dtype=torch.bool)
    layer, gated = MultiheadAttention(8, 2, batch_first=True), GatedAttention(8, 4, 2)
    out, lse, _ = _ops.attention(q, q, q, *Options())
    d_out = torch.randn_like(out)

    def backward(place: int, f: Callable[[Tensor], Tensor]) -> object:
        given = [d_out, q, q, q, out, lse]
        given[place] = f(given[place])
        return _ops.attention_backward(*given, *Options(), [True] * 7)

    def parameters(of: torch.nn.Module, f: Callable[[Tensor], Tensor], *args: Tensor) -> object:
        of = copy.deepcopy(of)
        of._apply(f)
        return of(*args)

    return {
        "attention: query": lambda f: scaled_dot_product_attention(f(q), q, q),
        "attention: key": lambda f: scaled_dot_product_attention(q, f(q), q),
        "attention: value": lambda f: scaled_dot_product_attention(q, q, f(q)),
        "attention: attn_mask": lambda f: scaled_dot_product_attention(q, q, q, f(square)),
        "attention: attn_mask ": lambda f: scaled_dot_product_attention(q, q, q, f(~blocked)),
        "attention: sink": lambda f: scaled_dot_product_attention(q, q, q, sink=f(torch.zeros(2))),
        "attention: slopes": lambda f: scaled_dot_product_attention(q, q, q, relative_bias=polyhead.RelativeBias(slopes=f(torch.ones(2)))),
        "attention: table": lambda f: scaled_dot_product_attention(q, q, q, relative_bias=polyhead.RelativeBias(table=f(torch.ones(2, 8)))),
        "polyhead::attention: q": lambda f: _ops.attention(f(q), q, q, *Options()),
        "polyhead::attention: k": lambda f: _ops.attention(q, f(q), q, *Options()),
        "polyhead::attention: v": lambda f: _ops.attention(q, q, f(q), *Options()),
        "polyhead::attention: attend": lambda f: _ops.attention(q, q, q, *Options(attend=f(~blocked))),
        "polyhead::attention: block": lambda f: _ops.attention(q, q, q, *Options(block=f(blocked))),
        "polyhead::attention: bias": lambda f: _ops.attention(q, q, q, *Options(bias=f(square))),
        "polyhead::attention: sink": lambda f: _ops.attention(q, q, q, *Options(sink=f(torch.zeros(2)))),
        "polyhead::attention: slopes": lambda f: _ops.attention(q, q, q, *Options(slopes=f(torch.ones(2)))),
        "polyhead::attention: table": lambda f: _ops.attention(q, q, q, *Options(table=f(torch.ones(2, 8)))),
        "polyhead::attention: seed": lambda f: _ops.attention(q, q, q, *Options(dropout=0.5, seed=f(torch.tensor(3)))),
        "polyhead::attention_backward: d_out": lambda f: backward(0, f),
        "polyhead::attention_backward: k": lambda f: backward(2, f),
        "polyhead::attention_backward: out": lambda f: backward(4, f),
        "polyhead::attention_backward: lse": lambda f: backward(5, f),
        "polyhead::attention_map: k": lambda f: _ops.attention_map(q, f(q), *Options()),
        "polyhead::attention_map: bias": lambda f: _ops.attention_map(q, q, *Options(bias=f(square))),
        "MultiheadAttention: query": lambda f: layer(f(x), x, x),
        "MultiheadAttention: key": lambda f: layer(x, f(x), x),
        "MultiheadAttention: value": lambda f: layer(x, x, f(x)),
        "MultiheadAttention: key_padding_mask": lambda f: layer(x, x, x, key_padding_mask=f(~keys)),
        "MultiheadAttention: attn_mask": lambda f: layer(x, x, x, attn_mask=f(blocked)),
        "MultiheadAttention: in_proj_weight": lambda f: parameters(layer, f, x, x, x),
        "GatedAttention: x": lambda f: gated(f(x)),
        "GatedAttention: bias": lambda f: gated(x, f(square)),
        "GatedAttention: attend_keys": lambda f: gated(x, None, f(keys)),
        "GatedAttention: linear_q.weight": lambda f: parameters(gated, f, x),
        "k": lambda f: polyhead.sdpa(q, f(q), q),
        "bias": lambda f: polyhead.sdpa(q, q, q, bias=f(square)),
        "relative_bias.slopes": lambda f: polyhead.sdpa(q, q, q, relative_bias=polyhead.RelativeBias(slopes=f(torch.ones(2)))),
        "out": lambda f: polyhead.sdpa(q, q, q, out=f(torch.empty_like(q))),
    }


@pytest.mark.parametrize("name", calls_with_one_elsewhere())
def test_a_tensor_elsewhere_is_refused_by_name(name: str) -> None:
    call = calls_with_one_elsewhere()[name]
    call(lambda tensor: tensor)
    with pytest.raises(TypeError, match=f"{name.strip()} is on device meta"):
        call(lambda tensor: tensor.to("meta"))
    if torch.cuda.is_available():
        with pytest.raises(TypeError, match=f"{name.strip()} is on device cuda:0"):
            call(lambda tensor: tensor.cuda())


def test_fake_tensors_of_another_device_are_refused_by_name() -> None:
    with FakeTensorMode():
        here, there = torch.empty(1, 2, 5, 4), torch.empty(1, 2, 5, 4, device="cuda")
        assert scaled_dot_product_attention(here, here, here).shape == here.shape
        with pytest.raises(TypeError, match="key is on device cuda:0"):
            scaled_dot_product_attention(here, there, here)
        with pytest.raises(TypeError, match="attn_mask is on device cuda:0"):
            scaled_dot_product_attention(here, here, here, torch.empty(5, 5, device="cuda"))
        for q, k in ((here, there), (there, here), (there, there)):
            with pytest.raises(TypeError, match="is on device cuda:0"):
                _ops.attention(q, k, q, *Options())
            with pytest.raises(TypeError, match="is on device cuda:0"):
                _ops.attention_map(q, k, *Options())


def test_shapes_alone_are_served() -> None:
    q, x = torch.empty(1, 2, 5, 4, device="meta"), torch.empty(3, 5, 8, device="meta")
    square = torch.empty(5, 5, device="meta", dtype=torch.bool)
    assert scaled_dot_product_attention(q, q, q, square).device.type == "meta"
    assert scaled_dot_product_attention(q, q, q, causal_lower_right(5, 5), dropout_p=0.5).device.type == "meta"
    layer, gated = MultiheadAttention(8, 2, batch_first=True, device="meta"), GatedAttention(8, 4, 2, device="meta")
    assert layer(x, x, x, attn_mask=square)[0].shape == x.shape
    out = gated(x, torch.empty(5, 5, device="meta", requires_grad=True))
    out.sum().backward()
    assert out.device.type == "meta" and gated.linear_q.weight.grad.device.type == "meta"


def test_a_default_device_does_not_reach_the_seed() -> None:
    q = torch.randn(1, 2, 5, 4)
    torch.manual_seed(5)
    expected = scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(5)
    with torch.device("meta"):
        assert torch.equal(scaled_dot_product_attention(q, q, q, dropout_p=0.5), expected)
