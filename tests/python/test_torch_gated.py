"""Compares polyhead.torch.GatedAttention with its formula in torch's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import polyhead
from polyhead.torch import GatedAttention
from polyhead.torch._offset import add_score_gradients
from torch_support import gradients, require_equal


def formula(layer: GatedAttention, x: Tensor, bias: Tensor | None, attend_keys: Tensor | None, keep: Tensor | None = None) -> Tensor:
    return formula_and_weights(layer, x, bias, attend_keys, keep)[0]


def formula_and_weights(
    layer: GatedAttention, x: Tensor, bias: Tensor | None, attend_keys: Tensor | None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Supplementary algorithms 7 and 19 of Jumper et al. 2021, one line for each step. -1e9 is added to masked scores, as in AlphaFold's code. keep: the dropout bits."""
    axis, heads = layer.axis % x.dim(), layer.heads
    x = x.movedim(axis, -2)
    split = lambda y: y.view(*y.shape[:-1], -1, layer.c).transpose(-3, -2)  # noqa: E731
    q, k, v = split(layer.linear_q(x)), split(layer.linear_k(x)), split(layer.linear_v(x))
    if layer.is_global:
        if layer.query_mean == "attended" and attend_keys is not None:
            weight = attend_keys.to(x.dtype).expand(x.shape[:-1])[..., None, :, None]
            q = (q * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp(min=1)
        else:
            q = q.mean(-2, keepdim=True)
    score = q @ k.mT / math.sqrt(layer.c)
    if bias is not None:
        lead = bias.shape[:-3]
        score = score + bias.reshape(*lead, *[1] * (score.dim() - max(bias.dim(), 3)), *bias.shape[-3:])
    if attend_keys is not None:
        score = score + 1e9 * (attend_keys.to(x.dtype) - 1)[..., None, None, :]
    p = dropped = score.softmax(-1)
    if keep is not None:
        dropped = p * keep / (1 - layer.dropout)
    y = (dropped @ v).transpose(-3, -2).flatten(-2)
    if layer.linear_g is not None:
        y = y * torch.sigmoid(layer.linear_g(x))
    assert y.shape[-1] == heads * layer.c
    return layer.linear_o(y).movedim(-2, axis), p


@dataclass(frozen=True)
class Case:
    x: tuple[int, ...]
    axis: int = -2
    bias: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    options: Mapping[str, object] = field(default_factory=dict)


CASES = {
    "plain": Case((3, 5, 6)),
    "one sequence": Case((5, 6)),
    "gated": Case((3, 5, 6), options={"gated": True}),
    "rows with a pair bias": Case((3, 5, 7, 6), bias=(3, 4, 7, 7), options={"gated": True}),
    "pair bias shared by rows": Case((2, 5, 7, 6), bias=(4, 7, 7), keys=(2, 5, 7), options={"gated": True}),
    "pair bias shared by the batch": Case((2, 5, 7, 6), bias=(1, 4, 7, 7), keys=(5, 7), options={"gated": True}),
    "bias for all heads": Case((2, 5, 6), bias=(5, 5)),
    "bias per sequence": Case((2, 3, 5, 6), bias=(2, 3, 4, 5, 5)),
    "bias per key": Case((2, 3, 5, 6), bias=(1, 1, 5)),
    "columns": Case((2, 5, 4, 6), axis=-3, keys=(2, 4, 5), options={"gated": True}),
    "columns from the front": Case((2, 5, 4, 6), axis=1, bias=(4, 5, 5)),
    "first axis": Case((5, 2, 3, 6), axis=0),
    "biases of the maps": Case((3, 5, 6), options={"use_bias_for_embeddings": True}),
    "global": Case((3, 5, 6), options={"is_global": True}),
    "global columns": Case((3, 7, 5, 6), axis=-3, options={"is_global": True, "gated": True}),
    "global with a key mask": Case((2, 7, 5, 6), axis=-3, keys=(2, 5, 7), options={"is_global": True, "gated": True}),
    "global over the attended": Case((2, 7, 5, 6), axis=-3, keys=(2, 5, 7), options={"is_global": True, "gated": True, "query_mean": "attended"}),
    "global with a bias": Case((2, 5, 6), bias=(4, 1, 5), options={"is_global": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula(name: str) -> None:
    case = CASES[name]
    layer = GatedAttention(6, 3, 4, case.axis, dtype=torch.float64, **case.options)  # type: ignore[arg-type]
    tensors = {"x": torch.randn(case.x, dtype=torch.float64, requires_grad=True)}
    if case.bias is not None:
        tensors["bias"] = torch.randn(case.bias, dtype=torch.float64, requires_grad=True)
    keys = None
    if case.keys is not None:
        keys = torch.rand(case.keys) < 0.7
        keys[..., 0] = True
    parameters = {f"p.{key}": parameter for key, parameter in layer.named_parameters()}
    results = [gradients({"out": f(tensors["x"], tensors.get("bias"), keys)}, tensors | parameters, 3) for f in (layer, lambda *args: formula(layer, *args))]
    require_equal(*results, 1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("name", "empty"), [(name, empty) for name, case in CASES.items() for empty in (False, True) if case.keys is not None or not empty])
def test_attention_weights_equal_the_formula(name: str, dropout: float, empty: bool, dtype: torch.dtype) -> None:
    """Tests attention weights, which are those before dropout: with gradients through output and weights, and without gradients."""
    case = CASES[name]
    layer = GatedAttention(6, 3, 4, case.axis, dtype=dtype, dropout=dropout, **case.options)  # type: ignore[arg-type]
    tensors = {"x": torch.randn(case.x, dtype=dtype, requires_grad=True)}
    if case.bias is not None:
        tensors["bias"] = torch.randn(case.bias, dtype=dtype, requires_grad=True)
    keys = None
    if case.keys is not None:
        keys = torch.rand(case.keys) < 0.7
        keys[..., 0] = True
        if empty:
            keys.view(-1, keys.size(-1))[0] = False
    parameters = {f"p.{key}": parameter for key, parameter in layer.named_parameters()}
    axis = case.axis % len(case.x)
    keep = None
    if dropout > 0:
        queries = 1 if layer.is_global else case.x[axis]
        keep = torch.empty(*case.x[:axis], *case.x[axis + 1 : -1], 4, queries, case.x[axis], dtype=torch.bool)
        torch.manual_seed(11)
        polyhead.dropout_keep_bits(dropout, int(torch.randint(2**63 - 1, (), dtype=torch.int64)), keep.numpy())
    torch.manual_seed(11)
    ours = dict(zip(("out", "weights"), layer(tensors["x"], tensors.get("bias"), keys, return_attention_weights=True)))
    exact = dict(zip(("out", "weights"), formula_and_weights(layer, tensors["x"], tensors.get("bias"), keys, keep)))
    tolerance = 1e-6 if dtype == torch.float64 else 1e-5
    both = [gradients(outputs, tensors | parameters, 3) for outputs in (ours, exact)]
    require_equal(*both, tolerance, dict.fromkeys(both[1], 1.0))
    with torch.no_grad():
        torch.manual_seed(11)
        evaluated = dict(zip(ours, layer(tensors["x"], tensors.get("bias"), keys, return_attention_weights=True)))
    require_equal(evaluated, {name: tensor.detach() for name, tensor in exact.items()}, tolerance)


@pytest.mark.parametrize("gradients_too", [False, True])
@pytest.mark.parametrize("options", [{}, {"is_global": True, "query_mean": "attended"}])
@pytest.mark.parametrize("shape", [(2, 5, 5, 6), (2, 5, 4, 6), (5, 5, 6), (2, 3, 5, 5, 6)])
def test_a_mask_that_lies_like_the_input_is_moved(shape: tuple[int, ...], options: dict[str, Any], gradients_too: bool) -> None:
    layer = GatedAttention(6, 3, 4, -3, gated=True, dtype=torch.float64, **options)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=gradients_too)
    mask = torch.rand(shape[:-1]) < 0.6
    mask[..., 0, :] = True
    moved = mask.movedim(-2, -1)
    like = layer(x, attend_keys=mask, mask_like_input=True)
    require_equal({"out": like}, {"out": formula(layer, x, None, moved)}, 1e-11)
    assert torch.equal(like, layer(x, attend_keys=moved, mask_like_input=False))
    compiled = torch.compile(layer, backend="eager")
    require_equal({"out": compiled(x, attend_keys=mask, mask_like_input=True)}, {"out": like}, 1e-11)


def test_a_mask_that_fits_both_layouts_needs_mask_like_input() -> None:
    layer = GatedAttention(6, 3, 4, axis=-3)
    pair, table = torch.randn(2, 5, 5, 6), torch.randn(2, 5, 4, 6)
    for mask in (torch.ones(2, 5, 5), torch.ones(5, 5), torch.ones(5), torch.ones(1, 5, 1), torch.ones(2, 1, 5)):
        with pytest.raises(ValueError, match=r"may be \[\*,S\] = \[2, 5, 5\].*mask_like_input=False or mask_like_input=True"):
            layer(pair, attend_keys=mask.bool())
        for named in (False, True):
            layer(pair, attend_keys=mask.bool(), mask_like_input=named)
    for mask in (torch.ones(2, 1, 1), torch.ones(1)):  # these masks mean the same in both layouts
        layer(pair, attend_keys=mask.bool())
    layer(table, attend_keys=torch.ones(2, 4, 5).bool())
    with pytest.raises(ValueError, match=r"attend_keys is \[2, 5, 4\], which is not .* but has the order of x, \[2, 5, 4\]; say so: mask_like_input=True"):
        layer(table, attend_keys=torch.ones(2, 5, 4).bool())
    with pytest.raises(ValueError, match=r"like x without its width it must broadcast to \[2, 5, 4\], S at axis 1"):
        layer(table, attend_keys=torch.ones(2, 4, 5).bool(), mask_like_input=True)
    with pytest.raises(TypeError, match="attend_keys=mask, mask_like_input=True"):
        layer(pair, mask_like_input=torch.ones(2, 5, 5).bool())
    rows = GatedAttention(6, 3, 4, axis=-2)  # for axis -2, [*,S] is the layout of x
    mask = torch.rand(2, 5, 5) < 0.7
    mask[..., 0] = True
    assert torch.equal(rows(pair, attend_keys=mask), rows(pair, attend_keys=mask, mask_like_input=True))


def test_a_bias_of_a_bias_is_reduced_where_it_is_shared() -> None:
    layer = GatedAttention(6, 3, 4, gated=True)
    bias = torch.randn(4, 7, 7, requires_grad=True)
    layer(torch.randn(2, 5, 7, 6), bias).sum().backward()
    assert bias.grad is not None and bias.grad.shape == bias.shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.keys is not None or case.bias is not None])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_sequence_without_a_key_is_what_the_offset_gives(name: str, dtype: torch.dtype, dropout: float) -> None:
    """For a sequence without a key, the default gives the outputs and gradients of code that adds -1e9 in the same dtype: uniform attention in float32, and in float64 the attention
    without a mask."""
    case = CASES[name]
    layer = GatedAttention(6, 3, 4, case.axis, dtype=dtype, dropout=dropout, **case.options)  # type: ignore[arg-type]
    x = torch.randn(case.x, dtype=dtype, requires_grad=True)
    tensors = {"x": x} | ({} if case.bias is None else {"bias": torch.randn(case.bias, dtype=dtype, requires_grad=True)})
    axis = case.axis % x.dim()
    sequences = (*x.shape[:axis], *x.shape[axis + 1 : -1])
    keys = torch.rand(*sequences, x.size(axis)) < 0.7
    keys[..., 0] = True
    keys.view(-1, x.size(axis))[::2] = False
    keep = None
    if dropout > 0:
        queries = 1 if layer.is_global else x.size(axis)
        keep = torch.empty(*sequences, 4, queries, x.size(axis), dtype=torch.bool)
        torch.manual_seed(11)
        polyhead.dropout_keep_bits(dropout, int(torch.randint(2**63 - 1, (), dtype=torch.int64)), keep.numpy())
    parameters = {f"p.{key}": parameter for key, parameter in layer.named_parameters()}
    torch.manual_seed(11)
    ours = gradients({"out": layer(x, tensors.get("bias"), keys)}, tensors | parameters, 3)
    exact = gradients({"out": formula(layer, x, tensors.get("bias"), keys, keep)}, tensors | parameters, 3)
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.08}[dtype]
    require_equal(ours, exact, tolerance, {key: 1.0 for key in exact})


def test_the_gradient_of_the_offset_makes_no_tensor_of_all_pairs() -> None:
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None) -> object:
            result = function(*args, **(kwargs or {}))  # type: ignore[operator]
            if isinstance(result, Tensor) and function is not torch.ops.aten.expand.default:
                self.elements = max(self.elements, result.numel())
            return result

    q, k, v = torch.randn(3, 5, 2, 9, 4).unbind(0)
    attend, bias = torch.zeros(5, 1, 1, 9, dtype=torch.bool), torch.randn(2, 9, 9)
    grads = tuple(torch.zeros_like(tensor) for tensor in (q, k, v, bias))
    with Largest() as largest:
        add_score_gradients(grads, [True] * 4, torch.randn(5, 2, 9, 4), q, k, v, attend=attend, bias=bias, scale=0.5, dropout=0.0, seed=None)
    assert all(grads[i].abs().max() > 0 for i in (0, 1, 3))
    assert 2 * 9 * 9 <= largest.elements < 5 * 2 * 9 * 9


def test_a_query_without_a_key_follows_empty_rows() -> None:
    x = torch.randn(2, 5, 6)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1] = False
    layer = GatedAttention(6, 3, 4, empty_rows="unmasked")
    torch.testing.assert_close(layer(x, None, keep), layer(x))
    in_float64 = GatedAttention(6, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(in_float64(x.double(), None, keep), in_float64(x.double()))
    zero = GatedAttention(6, 3, 4, empty_rows="zero")
    assert torch.equal(zero(x, None, keep)[1], zero.linear_o.bias.expand(5, 6))
    uniform = GatedAttention(6, 3, 4, empty_rows="uniform")
    mean = uniform.linear_o(uniform.linear_v(x[1]).mean(0, keepdim=True))
    torch.testing.assert_close(uniform(x, None, keep)[1], mean.expand(5, 6))
    for empty_rows, flows in (("offset", True), ("uniform", False), ("unmasked", True), ("zero", False)):
        of = GatedAttention(6, 3, 4, empty_rows=empty_rows)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(of(x[1:], None, keep[1:]).square().sum(), of.linear_k.weight)
        assert (gradient.abs().max() > 0) == flows


def test_dropout_is_on_in_training_only() -> None:
    layer = GatedAttention(6, 3, 4, dropout=0.5)
    x = torch.randn(2, 9, 6)
    torch.manual_seed(2)
    first = layer(x)
    assert not torch.equal(first, layer(x))
    torch.manual_seed(2)
    assert torch.equal(first, layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_parameters_are_those_of_the_layout_alphafold() -> None:
    """A layer that polyhead.load makes from the state_dict computes the same."""
    for options in ({}, {"gated": True}, {"gated": True, "use_bias_for_embeddings": True}):
        layer = GatedAttention(6, 3, 4, **options)  # type: ignore[arg-type]
        x = torch.randn(2, 5, 6)
        state = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
        loaded = polyhead.load(state, "alphafold", heads=4)
        np.testing.assert_allclose(loaded(x.numpy()), layer(x).detach().numpy(), rtol=1e-5, atol=1e-6)


ERRORS = [
    ({}, (torch.zeros(5, 7),), ValueError, "c_in = 6"),
    ({}, (torch.zeros(6),), ValueError, "axis -2"),
    ({"axis": -4}, (torch.zeros(2, 5, 6),), ValueError, "axis -4"),
    ({"axis": 2}, (torch.zeros(2, 5, 6),), ValueError, "axis 2"),
    ({"axis": -1}, (), ValueError, "axis is -1"),
    ({"c": 0}, (), ValueError, "at least 1"),
    ({"query_mean": "half"}, (), ValueError, "query_mean"),
    ({"query_mean": "attended"}, (), ValueError, "query_mean is 'attended' without is_global"),
    ({"empty_rows": "one"}, (), ValueError, "empty_rows"),
    ({}, (torch.zeros(2, 5, 6), torch.zeros(3, 5, 5)), ValueError, "bias is"),
    ({}, (torch.zeros(2, 5, 6), torch.zeros(5)), ValueError, "bias is"),
    ({}, (torch.zeros(2, 5, 6), None, torch.ones(2, 4, dtype=torch.bool)), ValueError, "attend_keys is"),
    ({}, (torch.zeros(2, 5, 6), None, torch.ones(2, 5)), TypeError, "attend_keys is"),
    ({}, (torch.zeros(2, 5, 6, dtype=torch.int32),), TypeError, "int32"),
]


@pytest.mark.parametrize(("options", "args", "kind", "message"), ERRORS)
def test_a_wrong_call_is_a_clear_error(options: dict[str, object], args: tuple[object, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        GatedAttention(**({"c_in": 6, "c": 3, "heads": 4} | options))(*args)  # type: ignore[arg-type]


def test_a_bias_that_is_no_number_to_add_is_refused() -> None:
    with pytest.raises(TypeError, match="bias has dtype bool"):
        GatedAttention(8, 4, 2)(torch.randn(3, 5, 8), torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_sequence_without_a_key_is_that_of_openfold(dtype: torch.dtype) -> None:
    """Compares triangle attention around the starting node with OpenFold's code, which transformers contains for ESMFold. The last residue is padding."""
    esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold")
    theirs = esmfold.EsmFoldTriangleAttention(8, 4, 2)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # some of the published initial values are 0, which would hide errors
    theirs = theirs.to(dtype)
    ours = GatedAttention(8, 4, 2, axis=-2, gated=True, dtype=dtype)
    ours.load_state_dict(theirs.mha.state_dict())
    pair, residue = torch.randn(1, 6, 6, 8, dtype=dtype, requires_grad=True), torch.tensor([True] * 5 + [False])
    mask = (residue[:, None] & residue).unsqueeze(0)

    def triangle(x: Tensor) -> Tensor:
        x = theirs.layer_norm(x)
        return ours(x, theirs.linear(x).permute(0, 3, 1, 2), mask)

    inputs = {"pair": pair, "bias": theirs.linear.weight, "norm": theirs.layer_norm.weight}

    def results(function: Callable[[Tensor], Tensor], layer: torch.nn.Module) -> dict[str, Tensor]:
        return gradients({"out": function(pair)}, inputs | {f"p.{name}": parameter for name, parameter in layer.named_parameters()}, 3)

    exact = results(lambda x: theirs(x, mask.to(dtype)), theirs.mha)
    require_equal(results(triangle, ours), exact, {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.08}[dtype])
    another = GatedAttention(8, 4, 2, axis=-2, gated=True, dtype=dtype, empty_rows="unmasked" if dtype != torch.float64 else "uniform")
    another.load_state_dict(ours.state_dict())
    normed = theirs.layer_norm(pair)
    other = another(normed, theirs.linear(normed).permute(0, 3, 1, 2), mask)
    assert (other - exact["out"]).abs().max() > 0.05  # with another empty_rows the result would differ


def test_export_does_not_read_the_key_mask() -> None:
    """An eager call looks whether a sequence has no key. An exported program must not depend on the mask of the example."""
    torch.manual_seed(0)
    layer = GatedAttention(6, 4, 3, gated=True)
    x, keep = torch.randn(2, 5, 6), torch.rand(2, 5) < 0.6
    program = torch.export.export(layer, (x,), {"attend_keys": keep})
    keep[1] = False
    torch.testing.assert_close(program.module()(x, attend_keys=keep), layer(x, attend_keys=keep))
