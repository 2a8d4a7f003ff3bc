"""Layers of polyhead.torch may be computed by one call of the library. Such calls are compared with the same layers whose projections torch computes. Also tests what torch
expects of a layer."""

from __future__ import annotations

import copy
import io
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from conftest import SEED
from effort import QUICK
from polyhead.torch import GatedAttention, MultiheadAttention
from polyhead.torch import _layer_pass as passes
from torch_support import gradients, require_equal

Layer = MultiheadAttention | GatedAttention
ROUNDS = 100 if QUICK else 300


@pytest.fixture
def one_call(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns a list that gets an entry for every pass of a whole layer: True if the pass saved activations."""
    seen: list[bool] = []
    forward = passes.forward

    def watched(this: passes.Pass, tensors: Any, save: bool) -> Any:
        seen.append(save)
        return forward(this, tensors, save)

    monkeypatch.setattr(passes, "forward", watched)
    return seen


def projected_by_torch(monkeypatch: pytest.MonkeyPatch, function: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(passes, "is_eager", lambda: False)
        return function()


def compare(monkeypatch: pytest.MonkeyPatch, one_call: list[bool], layer: Layer, call: Callable[[dict[str, Tensor]], dict[str, Tensor | None]], tensors: dict[str, Tensor]) -> None:
    """Compares outputs and all gradients of both ways to compute the layer. Dropout has the same bits in both."""
    inputs = tensors | {f"p.{name}": parameter for name, parameter in layer.named_parameters()}

    def results() -> dict[str, Tensor]:
        torch.manual_seed(5)
        return gradients(call(tensors), inputs, 7)

    before = len(one_call)
    ours = results()
    assert len(one_call) == before + 1 and one_call[-1]
    exact = projected_by_torch(monkeypatch, results)
    assert len(one_call) == before + 1
    require_equal(ours, exact, 1e-11, {"d_p.linear_k.bias": 1e-6})  # without a mask, the exact gradient of linear_k.bias is 0
    with torch.no_grad():
        torch.manual_seed(5)
        evaluated = call(tensors)
    assert one_call[-1] is False
    for name, tensor in evaluated.items():
        if tensor is not None:
            torch.testing.assert_close(tensor, exact[name].to(tensor.dtype), rtol=1e-11, atol=1e-12)


def some_mask(rng: random.Random, kind: str, *shape: int, keep_first: bool = False) -> Tensor:
    excluded = torch.rand(shape) < 0.4
    if keep_first:
        excluded[..., 0] = False
    if kind == "bool":
        return excluded
    bias = torch.randn(shape, dtype=torch.float64).masked_fill(excluded, -torch.inf)
    return bias.requires_grad_(rng.random() < 0.7)


def test_multihead_equals_itself_with_projections_of_torch(monkeypatch: pytest.MonkeyPatch, one_call: list[bool]) -> None:
    for round in range(ROUNDS):
        seed = SEED * ROUNDS + round
        print("seed", seed)
        rng = random.Random(seed)
        torch.manual_seed(seed)
        flag = lambda: rng.random() < 0.5  # noqa: E731
        heads, width, batch, queries = rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 6)
        same = rng.choice(("none", "kv", "qk", "qkv"))
        keys = queries if same in ("qk", "qkv") else rng.randint(1, 6)
        widths = {"kdim": rng.randint(1, 9), "vdim": rng.randint(1, 9)} if same == "none" and flag() else {}
        layer = MultiheadAttention(
            heads * width, heads, dropout=rng.choice((0.0, 0.0, 0.3, 1.0)), bias=flag(), add_bias_kv=flag(), add_zero_attn=flag(), batch_first=flag(), dtype=torch.float64, **widths
        )
        layer.train(flag())
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.5)
            parameter.requires_grad_(rng.random() < 0.8)
        batched = flag() or batch > 1

        def sequence(length: int, size: int) -> Tensor:
            shape = ((batch, length, size) if layer.batch_first else (length, batch, size)) if batched else (length, size)
            x = torch.randn(shape, dtype=torch.float64)
            return (x if flag() else x.mT.contiguous().mT).requires_grad_(flag())

        tensors = {"query": sequence(queries, heads * width).requires_grad_()}
        if same in ("none", "kv"):
            tensors["key"] = sequence(keys, layer.kdim)
        if same in ("none", "qk"):
            tensors["value"] = sequence(keys, layer.vdim)
        attn_mask, padding = rng.choice(("none", "bool", "float", "causal")), rng.choice(("none", "bool", "float"))
        if attn_mask == "causal":
            tensors["attn_mask"] = torch.ones(queries, keys, dtype=torch.bool).triu(1)
        elif attn_mask != "none":
            lead = (batch * heads,) if flag() else ()
            tensors["attn_mask"] = some_mask(rng, attn_mask, *lead, queries, keys)
        if padding != "none":
            tensors["key_padding_mask"] = some_mask(rng, padding, *((batch,) if batched else ()), keys)
        weights, average = flag(), flag()
        if attn_mask == "causal" and padding == "none" and not weights and (layer.add_zero_attn or layer.bias_k is not None):
            continue  # torch's causal mask masks the added keys, too, but polyhead's does not

        def call(t: dict[str, Tensor]) -> dict[str, Tensor | None]:
            key = t.get("key", t["query"])
            value = t["value"] if "value" in t else key
            masks = {name: t.get(name) for name in ("attn_mask", "key_padding_mask")}
            out, p = layer(t["query"], key, value, need_weights=weights, average_attn_weights=average, is_causal=attn_mask == "causal", **masks)
            return {"out": out, "weights": p}

        compare(monkeypatch, one_call, layer, call, tensors)


def test_gated_equals_itself_with_projections_of_torch(monkeypatch: pytest.MonkeyPatch, one_call: list[bool]) -> None:
    for round in range(ROUNDS):
        seed = SEED * ROUNDS + round
        print("seed", seed)
        rng = random.Random(seed)
        torch.manual_seed(seed)
        flag = lambda: rng.random() < 0.5  # noqa: E731
        rank = rng.randint(2, 4)
        shape = [rng.randint(1, 5) for _ in range(rank - 1)] + [rng.randint(1, 7)]
        axis = rng.randint(0, rank - 2)
        heads, is_global = rng.randint(1, 4), flag()
        layer = GatedAttention(
            shape[-1], rng.randint(1, 5), heads, axis if flag() else axis - rank, flag(), is_global, use_bias_for_embeddings=flag(),
            query_mean=rng.choice(("all", "attended")) if is_global else "all",
            dropout=rng.choice((0.0, 0.0, 0.3)), empty_rows=rng.choice(("offset", "unmasked", "uniform", "zero")), dtype=torch.float64,
        )  # fmt: skip
        layer.train(flag())
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.5)
            parameter.requires_grad_(rng.random() < 0.8)
        others, keys = shape[:axis] + shape[axis + 1 : -1], shape[axis]
        tensors = {"x": torch.randn(shape, dtype=torch.float64, requires_grad=True)}
        if flag():
            pairs = [heads, 1 if layer.is_global else keys, keys]
            lead = [rng.choice((1, extent)) for extent in others[: rng.randint(0, len(others))]]
            whole = lead + pairs if flag() else pairs[1:]
            tensors["bias"] = torch.randn([rng.choice((extent, extent, 1)) for extent in whole], dtype=torch.float64, requires_grad=flag())
        keep = torch.rand([rng.choice((extent, extent, 1)) for extent in others] + [keys]) < 0.7 if flag() else None
        compare(monkeypatch, one_call, layer, lambda t: {"out": layer(t["x"], t.get("bias"), keep, mask_like_input=False)}, tensors)


def test_float32_with_empty_rows_has_the_gradient_of_the_offset(one_call: list[bool]) -> None:
    layer, x = GatedAttention(6, 3, 2, gated=True), torch.randn(2, 5, 6)
    keep = torch.ones(2, 5, dtype=torch.bool)
    layer(x, None, keep).sum().backward()
    assert len(one_call) == 1
    keep[1] = False
    layer(x, None, keep).sum().backward()
    assert len(one_call) == 1  # the library does not compute this gradient, so torch computes the projections
    with torch.no_grad():
        layer(x, None, keep)
    assert len(one_call) == 2


def layers() -> Iterator[tuple[Layer, Callable[[Layer, Tensor], Tensor], str]]:
    """Yields (layer, function that calls it, name of a child with parameters)."""
    yield MultiheadAttention(8, 2, batch_first=True), lambda layer, x: layer(x, x, x, need_weights=False)[0], "out_proj"
    yield GatedAttention(8, 4, 2, gated=True), lambda layer, x: layer(x), "linear_v"


each_layer = pytest.mark.parametrize("which", [0, 1], ids=["multihead", "gated"])


def example(which: int) -> tuple[Layer, Callable[[Layer, Tensor], Tensor], str, Tensor]:
    return *list(layers())[which], torch.randn(3, 5, 8, requires_grad=True)


@each_layer
@pytest.mark.parametrize("grad", [True, False])
def test_a_changed_parameter_counts_at_once(which: int, grad: bool, one_call: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, call, child, x = example(which)
    weight = layer.get_submodule(child).weight
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)

    def by_optimizer() -> None:
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def in_place() -> None:
        with torch.no_grad():
            weight.mul_(-2)

    def by_data() -> None:  # a change through .data does not change _version
        weight.data.add_(1)

    def another_memory() -> None:
        weight.data = torch.randn_like(weight)

    def loaded() -> None:
        layer.load_state_dict({name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()})

    def through_numpy() -> None:
        weight.detach().numpy()[...] += 0.25

    with torch.set_grad_enabled(grad):
        last = call(layer.train(grad), x)
        for change in (by_optimizer, in_place, by_data, another_memory, loaded, through_numpy):
            change()
            out = call(layer, x)
            assert (out - last).abs().max() > 1e-3, change.__name__
            exact = projected_by_torch(monkeypatch, lambda: {"out": call(layer, x)})["out"]
            torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-5)
            last = out
    assert len(one_call) == 7


@each_layer
def test_a_changed_dropout_counts_at_once(which: int, one_call: list[bool]) -> None:
    layer, call, child, x = example(which)
    layer.dropout = torch.zeros(())  # dropout is a tensor here, so that its value can be changed in place
    bias = layer.get_submodule("out_proj" if which == 0 else "linear_o").bias
    assert not torch.equal(call(layer, x), bias.expand(3, 5, 8))
    layer.dropout.fill_(1)
    assert torch.equal(call(layer, x), bias.expand(3, 5, 8))
    assert one_call == [True, True]


@each_layer
def test_a_change_between_the_passes_is_an_error(which: int) -> None:
    layer, call, child, x = example(which)
    weight = layer.get_submodule(child).weight
    for changed in (weight, x):
        out = call(layer, x * 1 if changed is weight else x)
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    mask = torch.zeros(3, 5, dtype=torch.bool)
    out = layer(x, x, x, mask, need_weights=False)[0] if isinstance(layer, MultiheadAttention) else layer(x, None, ~mask[:1])
    if isinstance(layer, MultiheadAttention):
        mask[0, 0] = True
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@each_layer
def test_other_memory_between_the_passes_leaves_the_gradients(which: int) -> None:
    layer, call, child, x = example(which)
    out = call(layer, x).square().sum()
    exact = torch.autograd.grad(out, (x, *layer.parameters()), retain_graph=True)
    layer.get_submodule(child).weight.data = torch.zeros(8, 8)
    for a, b in zip(torch.autograd.grad(out, (x, *layer.parameters())), exact):
        assert torch.equal(a, b)
    out = call(layer, x).sum()
    layer.double()
    out.backward()


@each_layer
def test_a_graph_is_used_twice_only_if_it_is_retained(which: int) -> None:
    layer, call, _, x = example(which)
    out = call(layer, x)
    first, second = (torch.autograd.grad(out.sum(), (x, *layer.parameters()), retain_graph=keep) for keep in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


@each_layer
def test_activations_are_saved_through_torch_and_freed_with_the_graph(which: int) -> None:
    layer, call, _, x = example(which)
    exact = torch.autograd.grad(call(layer, x).sum(), (x, *layer.parameters()))
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i].clone()):
        out = call(layer, x)
    activations = [tensor for tensor in packed if not any(tensor.data_ptr() == other.data_ptr() for other in (x, *layer.parameters()))]
    assert sum(tensor.numel() for tensor in activations) >= 4 * x.numel()  # at least q, k, v and the merged heads were packed
    moved = torch.autograd.grad(out.sum(), (x, *layer.parameters()))  # the backward pass reads the copies that the hook returned
    assert all(torch.equal(a, b) for a, b in zip(moved, exact))


@each_layer
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_recomputes_with_the_same_dropout(which: int, reentrant: bool, one_call: list[bool]) -> None:
    layer, call, _, x = example(which)
    layer.dropout = 0.5
    torch.manual_seed(3)
    exact = gradients({"out": call(layer, x)}, {"x": x} | dict(layer.named_parameters()), 2)
    torch.manual_seed(3)
    y = checkpoint(lambda x: call(layer, x), x, use_reentrant=reentrant)
    again = gradients({"out": y}, {"x": x} | dict(layer.named_parameters()), 2) if not reentrant else {}
    if reentrant:  # reentrant checkpoints support only backward()
        y.backward(torch.ones_like(y))
        torch.manual_seed(3)
        again, exact = {"x": x.grad}, {"x": torch.autograd.grad(call(layer, x).sum(), x)[0]}
    assert len(one_call) == (4 if reentrant else 3)  # the plain pass, the checkpointed pass, and its recomputation
    assert all(torch.equal(again[name], exact[name]) for name in exact)


@each_layer
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_of_a_batch_of_outputs(which: int, dropout: float, one_call: list[bool]) -> None:
    layer, call, _, x = example(which)
    layer.dropout = dropout

    def output(x: Tensor) -> Tensor:
        torch.manual_seed(SEED)
        return call(layer, x)

    exact = torch.autograd.functional.jacobian(output, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(output, x, vectorize=True), exact, rtol=1e-5, atol=1e-5)
    assert one_call == [True, True]


def test_gradients_where_the_attention_weights_need_none(one_call: list[bool]) -> None:
    layer, x = MultiheadAttention(8, 2, batch_first=True, kdim=8, vdim=6), torch.randn(3, 5, 8)
    out, weights = layer(x, x, value := torch.randn(3, 5, 6, requires_grad=True))
    trained = [value, layer.v_proj_weight, *layer.out_proj.parameters()]
    exact = torch.autograd.grad(out.sum(), trained, retain_graph=True)
    for parameter in (layer.q_proj_weight, layer.k_proj_weight, layer.in_proj_bias):
        parameter.requires_grad_(False)
    out, weights = layer(x, x, value)
    found = torch.autograd.grad(out.sum() + weights.square().sum(), trained, retain_graph=True)
    for a, b in zip(found, exact):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(weights.square().sum(), trained, allow_unused=True) == (None,) * 4
    assert one_call == [True, True]


@each_layer
@pytest.mark.parametrize("create_graph", [False, True])
def test_backward_under_autocast_is_that_of_the_pass(which: int, create_graph: bool, one_call: list[bool]) -> None:
    layer, call, _, x = example(which)
    tensors, d_out = (x, *layer.parameters()), torch.randn(3, 5, 8)
    exact = torch.autograd.grad(call(layer, x), tensors, d_out)
    out = call(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, tensors, d_out, create_graph=create_graph)
    for a, b in zip(found, exact):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert one_call == [True, True]


def test_projections_with_and_without_biases(monkeypatch: pytest.MonkeyPatch, one_call: list[bool]) -> None:
    for biases in itertools.product((False, True), repeat=5):
        layer, x = GatedAttention(8, 4, 2, gated=True, use_bias_for_embeddings=True, dtype=torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
        for child, has in zip(layer.children(), biases):
            if not has:
                child.bias = None
        compare(monkeypatch, one_call, layer, lambda t, layer=layer: {"out": layer(t["x"])}, {"x": x.requires_grad_()})


def test_a_strided_bias_is_read_in_rows(one_call: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that is a permuted pair tensor has the bits of its copy, forward and backward. Each element of a broadcast view keeps its own gradient."""
    strides: list[tuple[int, ...]] = []  # of the bias of each pass
    forward = passes.forward

    def watched(this: passes.Pass, tensors: Any, save: bool) -> Any:
        strides.append(this.every(tensors)[3].stride())
        return forward(this, tensors, save)

    monkeypatch.setattr(passes, "forward", watched)
    layer, x = GatedAttention(8, 4, 2, gated=True), torch.randn(3, 5, 6, 8)
    pairs, d_out = torch.randn(3, 6, 6, 2), torch.randn(3, 5, 6, 8)
    for made in (lambda: pairs.permute(0, 3, 1, 2), lambda: pairs[0].permute(2, 0, 1), lambda: pairs[0].permute(2, 0, 1).expand(3, -1, -1, -1), lambda: pairs[0, :, :, :1].permute(2, 0, 1).expand(2, -1, -1)):
        view = made()
        copy = passes.in_rows(view, 15)
        assert view.stride(-1) > 1 and copy.stride(-1) == 1 and [n == 0 for n in copy.stride()] == [n == 0 for n in view.stride()] and torch.equal(copy, view)
        strides.clear()
        found = []
        for bias in (view, view.contiguous()):
            bias = bias.detach().requires_grad_()
            out = layer(x, bias)
            found.append((out, *torch.autograd.grad(out, (bias, *layer.parameters()), d_out), layer(x, bias.detach())))
        assert all(torch.equal(a, b) for a, b in zip(*found))
        broadcast = 0 in view.stride()
        assert [s[-1] == 1 for s in strides] == [not broadcast, True, True, True], "the bias of each pass has its keys next to each other, unless it is broadcast and has a gradient"
    row = torch.randn(2, 11)
    table = row.as_strided((2, 3, 3), (11, 2, 2))  # element (t, s) is number 2 (t + s) of the row
    assert passes.in_rows(table, 3) is table
    transposed = torch.randn(3, 2, 6, 6).mT
    assert passes.in_rows(transposed, 3) is transposed, "nothing shares this bias, so a copy saves nothing"
    assert passes.in_rows(transposed, 6).stride(-1) == 1 and passes.in_rows(transposed[0, 0], 1).stride(-1) == 1
    assert len(one_call) == 16


@pytest.mark.parametrize("rows", [16, 25, 32])
@pytest.mark.parametrize("name", ["in_proj_weight", "in_proj_bias"])
def test_an_input_projection_with_other_rows_is_refused(name: str, rows: int) -> None:
    layer, x = MultiheadAttention(8, 2), torch.randn(5, 3, 8)
    setattr(layer, name, nn.Parameter(torch.randn(rows, 8) if name == "in_proj_weight" else torch.randn(rows)))
    with pytest.raises(ValueError, match=rf"{name} is \[{rows}.*it must have 24 rows"):
        layer(x, x, x)


@each_layer
def test_second_derivatives_are_those_of_the_steps(which: int, one_call: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, call, _, x = example(which)
    tensors = {"x": x, **dict(layer.named_parameters())}

    def seconds() -> dict[str, Tensor]:
        (first,) = torch.autograd.grad(call(layer, x).square().sum(), x, create_graph=True)
        grads = torch.autograd.grad(first.square().sum(), list(tensors.values()), allow_unused=True)
        return {name: grad for name, grad in zip(tensors, grads) if grad is not None} | {"first": first.detach()}

    ours = seconds()
    assert one_call == [True] and len(ours) > 4
    require_equal(ours, projected_by_torch(monkeypatch, seconds), 1e-4)
    assert one_call == [True]


@each_layer
def test_hooks_and_replaced_children_are_called(which: int, one_call: list[bool]) -> None:
    layer, call, child, x = example(which)
    exact = call(layer, x)
    of = layer.get_submodule(child)
    linear = type(of)
    calls: list[str] = []
    for name in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook"):
        handle = getattr(of, name)(lambda *args: calls.append(name))  # noqa: B023
        out = call(layer, x)
        out.sum().backward()
        handle.remove()
        torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-6)
        assert calls.pop() == name
    handle = nn.modules.module.register_module_forward_hook(lambda module, *args: calls.append(type(module).__name__))
    call(layer, x)
    handle.remove()
    assert linear.__name__ in calls

    class Doubled(linear):  # type: ignore[misc,valid-type]
        def forward(self, y: Tensor) -> Tensor:
            return 2 * super().forward(y)

    doubled = copy.deepcopy(layer)
    doubled.get_submodule(child).__class__ = Doubled
    parent = copy.deepcopy(layer)
    forward = parent.get_submodule(child).forward
    parent.get_submodule(child).forward = lambda y: 2 * forward(y)
    torch.testing.assert_close(call(parent, x), call(doubled, x))
    assert (call(doubled, x) - exact).abs().max() > 1e-2
    halved = copy.deepcopy(layer)
    nn.utils.parametrize.register_parametrization(halved.get_submodule(child), "weight", Half())
    assert (call(halved, x) - exact).abs().max() > 1e-3
    assert len(one_call) == 1  # only the first call computed the layer in one pass


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def test_a_parametrized_layer_trains_the_original(one_call: list[bool]) -> None:
    layer, x = MultiheadAttention(8, 2), torch.randn(5, 3, 8)
    plain = copy.deepcopy(layer)
    nn.utils.parametrize.register_parametrization(layer, "in_proj_weight", Half())
    with torch.no_grad():
        plain.in_proj_weight /= 2
    out = layer(x, x, x)[0]
    assert torch.equal(out, plain(x, x, x)[0])
    out.sum().backward()
    plain(x, x, x)[0].sum().backward()
    torch.testing.assert_close(layer.parametrizations.in_proj_weight.original.grad, plain.in_proj_weight.grad / 2)
    assert len(one_call) == 3


@each_layer
def test_copies_pickles_and_functional_calls_have_their_own_parameters(which: int, one_call: list[bool]) -> None:
    layer, call, child, x = example(which)
    exact = call(layer, x)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (copy.deepcopy(layer), torch.load(stream, weights_only=False)):
        assert torch.equal(call(other, x), exact)
        with torch.no_grad():
            other.get_submodule(child).weight.zero_()
        assert not torch.equal(call(other, x), exact) and torch.equal(call(layer, x), exact)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in layer.named_parameters()}
    args, options = ((x, x, x), {"need_weights": False}) if isinstance(layer, MultiheadAttention) else ((x,), {})
    out = torch.func.functional_call(layer, zeros, args, options)
    assert (out[0] if isinstance(out, tuple) else out).abs().max() == 0
    assert torch.equal(call(layer, x), exact)
    assert len(one_call) == 9


@each_layer
@pytest.mark.filterwarnings("ignore")
def test_calls_that_are_not_plain_eager_use_torchs_operators(which: int, one_call: list[bool]) -> None:
    layer, call, _, x = example(which)
    exact = call(layer, x)
    one_call.clear()
    close = dict(rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.compile(lambda y: call(layer, y), fullgraph=True, backend="aot_eager")(x), exact, **close)
    detached = layer.requires_grad_(False)
    torch.testing.assert_close(torch.vmap(lambda y: call(detached, y))(x.detach().unsqueeze(0)).squeeze(0), exact, **close)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(layer, x).dtype == torch.bfloat16
    torch.testing.assert_close(torch.jit.trace(lambda y: call(layer, y), x.detach(), check_trace=False)(x.detach()), exact, **close)
    assert not one_call
    assert call(layer.to("meta"), x.to("meta")).shape == x.shape
    assert not one_call


@each_layer
def test_inputs_with_strides_and_no_gradient_of_the_input(which: int, one_call: list[bool]) -> None:
    layer, call, _, x = example(which)
    exact = call(layer, x)
    strided = x.detach().mT.contiguous().mT
    assert torch.equal(call(layer, strided), exact) and torch.equal(call(layer, x.detach()[:1].expand(3, 5, 8)[1:2]), exact[:1])
    call(layer, x.detach()).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    (gradient,) = torch.autograd.grad(call(layer.requires_grad_(False), x).sum(), x)
    assert gradient.shape == x.shape
    assert len(one_call) == 5


def test_a_layer_is_used_by_several_threads() -> None:
    layer, call, _, x = example(0)
    exact = torch.autograd.grad(call(layer, x).sum(), (x, *layer.parameters()))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            grads = torch.autograd.grad(call(layer, x).sum(), (x, *layer.parameters()))
            if not all(torch.equal(a, b) for a, b in zip(grads, exact)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_survived() -> None:
    layer, call, _, x = example(1)
    out = call(layer, x)
    exact = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        with torch.no_grad():
            os._exit(0 if torch.equal(call(layer, x), out) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], exact)
