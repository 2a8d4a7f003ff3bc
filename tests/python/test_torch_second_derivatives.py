"""Compares second derivatives and forward mode of polyhead.torch with a formula in torch's operators, and with torch's math path."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.autograd.functional as autograd_functional
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.library import opcheck

import polyhead
from conftest import SEED
from effort import QUICK
from formulas import buckets_of, formula
from polyhead._arguments import GRADIENTS
from polyhead.torch import GatedAttention, MultiheadAttention, _dispatch, _ops, attention, scaled_dot_product_attention, triangle_attention
from test_torch_gated import formula as gated_formula
from test_torch_ops import CASES, CASES_OF_GRADCHECK, OF_BFLOAT16, case
from torch_support import error, math_path

FORCE_FIELD = Path(__file__).resolve().parents[2] / "examples" / "python" / "force_field.py"
ROUNDS = 20 if QUICK else 60


def setting(rng: random.Random) -> tuple[dict[str, Tensor], Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor]]]:
    """Returns a random setting: (differentiable tensors by name, polyhead's function of these tensors, the formula as a function of them). Both functions return out and lse."""

    def flag(p: float = 0.5) -> bool:
        return rng.random() < p

    groups, group = rng.randint(1, 2), rng.randint(1, 2)
    heads, queries, keys, width, value = groups * group, rng.randint(1, 5), rng.randint(1, 6), rng.randint(1, 4), rng.randint(1, 4)
    lead = [(), (2,), (2, 1)][rng.randrange(3)]

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    tensors = {"q": randn(*lead, heads, queries, width), "k": randn(*lead, groups, keys, width), "v": randn(*lead, groups, keys, value)}
    pairs = (*lead, heads, queries, keys)
    ours: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    mask = torch.ones(pairs, dtype=torch.bool)
    if flag():
        at = [extent if flag() else 1 for extent in pairs[rng.randrange(len(pairs)) :]]
        tensors["bias"] = randn(*at)
    elif flag():
        relative = {"slopes": randn(heads)} if flag() else {"table": randn(heads, 4)}
        tensors |= relative
    if flag(0.4):
        tensors["sink"] = randn(heads) if flag() else randn(*pairs[:-1])
    if flag(0.4):
        ours["softcap"] = exact["softcap"] = 1.5
    if flag(0.3):
        ours["scale"] = exact["scale"] = 0.7
    if flag(0.4):
        chosen = torch.rand(pairs[rng.randrange(len(pairs) - 1) :]) < 0.7
        ours["attend" if flag() else "block"] = chosen
        mask = mask & (chosen if "attend" in ours else ~chosen)
    if flag(0.3):
        chosen = torch.rand(*lead, keys) < 0.7
        ours["attend_keys"] = chosen
        mask = mask & chosen[..., None, None, :]
    offset = keys - queries
    if flag(0.4):
        ours["causal"] = rng.choice(["top_left", "bottom_right", 1])
        offset = {"top_left": 0, "bottom_right": keys - queries, 1: 1}[ours["causal"]]
    distance = torch.arange(keys) - (torch.arange(queries)[:, None] + offset)
    if "causal" in ours:
        mask = mask & (distance <= 0)
    if flag(0.3):
        ours["window"] = (2, None if flag() else 1)
        mask = mask & (distance >= -2) & (distance <= (keys + queries if ours["window"][1] is None else 1))
    if flag(0.3) and not {"slopes", "table"} & tensors.keys() and "causal" not in ours and "window" not in ours and queries > 1 and keys > 1:
        ours["query_offsets"], ours["key_offsets"] = torch.tensor([0, 1, queries]), torch.tensor([0, 1, keys])
        mask = mask & ((torch.arange(queries)[:, None] < 1) == (torch.arange(keys) < 1))
    elif flag(0.3):
        ours["key_lengths"] = lengths = torch.randint(0, keys + 1, lead)
        mask = mask & (torch.arange(keys) < lengths[..., None, None, None])
    if flag(0.3):
        ours["dropout"] = exact["dropout"] = 0.4
        torch.manual_seed(3)
        seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
        exact["keep"] = torch.empty(pairs, dtype=torch.bool)
        polyhead.dropout_keep_bits(0.4, seed, exact["keep"].numpy())
    if "slopes" in tensors:
        exact["distance"] = distance
    if "table" in tensors:
        exact["buckets"] = torch.from_numpy(buckets_of(distance, 4, bidirectional=True, max_distance=128))
    if (mask.sum(-1) == 0).any() and flag(0.3):
        ours["empty_rows"] = "zero"
    exact["mask"] = mask

    def of_polyhead(**given: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)  # every call has the same dropout bits
        relative = {name: given.pop(name) for name in ("slopes", "table") if name in given}
        options: dict[str, Any] = given | ours | ({"relative_bias": polyhead.RelativeBias(**relative)} if relative else {})
        out, lse = attention(return_lse=True, **options)
        return out, lse.masked_fill(lse == -math.inf, 0)

    return tensors, of_polyhead, lambda **given: formula(**given, **exact)[:2]


def derivatives(function: Callable[..., tuple[Tensor, Tensor]], tensors: dict[str, Tensor], with_lse: bool) -> dict[str, Tensor]:
    """Returns the gradients of a loss, and the products of its second derivatives with tangents, computed in the four orders of forward and reverse mode."""
    generator = torch.Generator().manual_seed(11)

    def random_like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)

    names, values = list(tensors), tuple(tensors.values())
    shapes = function(**tensors)
    weights, tangents = [random_like(x) for x in shapes], tuple(map(random_like, values))

    def loss(*given: Tensor) -> Tensor:
        out, lse = function(**dict(zip(names, given)))
        total = (out.sin() * weights[0]).sum()
        return total + (lse.cos() * weights[1]).sum() if with_lse else total

    every = tuple(range(len(names)))
    primals = tuple(x.clone().requires_grad_() for x in values)
    first = torch.autograd.grad(loss(*primals), primals, create_graph=True)
    second = torch.autograd.grad(first, primals, tangents, allow_unused=True)
    results = {f"d_{name}": x.detach() for name, x in zip(names, first)}
    results |= {f"dd_{name}": torch.zeros_like(x) if d is None else d for name, x, d in zip(names, values, second)}
    _, results["jvp"] = jvp(loss, values, tangents)
    _, forward_over_reverse = jvp(grad(loss, every), values, tangents)
    reverse_over_forward = grad(lambda *x: jvp(loss, x, tangents)[1], every)(*values)
    by_tangents = grad(lambda *x: jvp(loss, values, x)[1], every)(*tangents)
    for kind, found in (("forward over reverse", forward_over_reverse), ("reverse over forward", reverse_over_forward), ("by tangents", by_tangents)):
        results |= {f"{kind} {name}": x for name, x in zip(names, found)}
    return results


def require_close(ours: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == exact.keys()
    largest = max(float(x.abs().max()) for x in exact.values() if x.numel())
    for name, x in exact.items():
        # Some derivatives are exactly 0, such as that of a softmax by a number that is added to all scores. The error of such a derivative is relative to the
        # largest derivative.
        found = error(ours[name], x, floor=1e-2 * largest)
        assert found <= tolerance, f"{name}: error {found:.3g}"


def test_random_options_have_the_derivatives_of_the_formula() -> None:
    for round in range(ROUNDS):
        seed = SEED * ROUNDS + round
        print("seed", seed)
        rng = random.Random(seed)
        torch.manual_seed(seed)
        tensors, ours, exact = setting(rng)
        with_lse = rng.random() < 0.5
        require_close(derivatives(ours, tensors, with_lse), derivatives(exact, tensors, with_lse), 1e-10)


@pytest.mark.parametrize("name", CASES_OF_GRADCHECK)
def test_gradcheck_of_second_order_and_forward_mode(name: str) -> None:
    arguments = case(name)
    tensors = {key: value for key, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad}

    def every(*given: Tensor) -> tuple[Tensor, ...]:
        results = _dispatch.operators().attention(*(arguments | dict(zip(tensors, given))).values())
        wanted = (True, name != "offset", arguments["attention_weights"])
        return tuple(result.masked_fill(result == -math.inf, 0) for result, want in zip(results, wanted) if want)

    gradcheck(every, list(tensors.values()), check_forward_ad=True, check_backward_ad=False, fast_mode=QUICK)
    gradgradcheck(every, list(tensors.values()), check_fwd_over_rev=True, fast_mode=QUICK)


@pytest.mark.parametrize(("dtype", "name"), [(torch.float64, name) for name in CASES] + [(torch.bfloat16, name) for name in OF_BFLOAT16])
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    if name == "offset" and dtype == torch.bfloat16:
        return  # this dtype is refused
    arguments = {key: x.detach() if isinstance(x, Tensor) else x for key, x in case(name, dtype).items()}
    out, lse, _ = _ops.attention(*arguments.values())
    q, k, v, *rest = arguments.values()
    tangents = [None if arguments[key] is None else torch.randn_like(arguments[key]) for key in GRADIENTS]
    checks = {"test_utils": ("test_schema", "test_faketensor")}
    opcheck(_ops.attention_jvp, (q, k, v, out, lse, *tangents, *rest), **checks)
    for wanted in ([True] * 8, [True, False, True, False, True, True, True, False])[: 1 if QUICK and dtype == torch.bfloat16 else 2]:
        opcheck(_ops.attention_backward_backward, (torch.randn_like(out), q, k, v, out, lse, *tangents, *rest, wanted), **checks)


# --- precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_in_low_precision_are_those_of_the_math_path(dtype: torch.dtype) -> None:
    ratios: dict[str, list[float]] = {}
    for seed in range(12):
        torch.manual_seed(SEED * 12 + seed)
        shapes = dict.fromkeys("qkv", (2, 3, 17, 16)) | {"bias": (3, 17, 17)}
        tensors = {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}

        def results(function: Callable[..., Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return derivatives(lambda q, k, v, bias: (function(q, k, v, bias), q.new_zeros(())), tensors, False)

        exact = results(lambda q, k, v, bias: formula(q, k, v, bias=bias)[0], {name: x.double() for name, x in tensors.items()})
        ours = results(scaled_dot_product_attention, tensors)
        with math_path():
            theirs = results(F.scaled_dot_product_attention, tensors)
        for name, x in exact.items():
            ratios.setdefault(name, []).append(error(ours[name], x) / error(theirs[name], x))
    medians = {name: statistics.median(found) for name, found in ratios.items() if name != "jvp"}  # the jvp of the loss is a single number, and the ratio of two single errors says little
    assert max(medians.values()) <= 2, medians


# --- torch.func


def require_equal(ours: Any, exact: Any, tolerance: float = 1e-10) -> None:
    for x, y in zip(*map(torch.utils._pytree.tree_leaves, (ours, exact)), strict=True):
        assert error(x, y) <= tolerance


@pytest.mark.parametrize("options", [{}, {"softcap": 1.5}, {"sink": torch.tensor([0.3, -0.5], dtype=torch.float64)}], ids=["plain", "softcap", "sink"])
def test_hessians(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    q, k, v, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 2, 3, 2), (2, 1, 4, 2), (2, 1, 4, 2), (2, 3, 4)))

    def loss(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
        def of(*given: Tensor) -> Tensor:
            out, lse = function(*given[:3], bias=given[3], **options)
            return out.sin().square().sum() + lse.cos().sum()

        return of

    ours, exact = loss(partial(attention, return_lse=True)), loss(lambda *x, **named: formula(*x, **named)[:2])
    every = (0, 1, 2, 3)
    expected = hessian(exact, every)(q, k, v, bias)
    require_equal(hessian(ours, every)(q, k, v, bias), expected)
    require_equal(jacrev(jacrev(ours, every), every)(q, k, v, bias), expected)
    require_equal(jacrev(jacfwd(ours, every), every)(q, k, v, bias), expected)
    for arguments in ({}, {"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}):
        require_equal(autograd_functional.hessian(lambda x: ours(x, k, v, bias), q, **arguments), hessian(lambda x: exact(x, k, v, bias))(q))
    direction = torch.randn_like(q)
    product = jvp(grad(lambda x: exact(x, k, v, bias)), (q,), (direction,))[1]
    for function in (autograd_functional.hvp, autograd_functional.vhp):
        require_equal(function(lambda x: ours(x, k, v, bias), q, direction)[1], product)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)])
def test_vmap_of_second_order(in_dims: tuple[int | None, ...]) -> None:
    torch.manual_seed(2)
    k, v, sink = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 1, 4, 2), (2, 1, 4, 3), (2,)))
    given = [torch.randn((*([3] if dim == 0 else []), *shape), dtype=torch.float64) for dim, shape in zip(in_dims, ((2, 2, 3, 2), (2, 3, 4), (2, 2, 3, 2)))]

    def products(function: Callable[..., Tensor]) -> Callable[..., Any]:
        def of(q: Tensor, bias: Tensor, direction: Tensor) -> Any:
            first = lambda x, b: grad(lambda y: function(y, k, v, bias=b, sink=sink).sin().sum())(x)  # noqa: E731
            backward = grad(lambda x, b: (first(x, b) * direction).sum(), (0, 1))(q, bias)
            return backward, jvp(first, (q, bias), (direction, bias.cos())), jvp(lambda x: function(x, k, v, bias=bias, sink=sink), (q,), (direction,))

        return of

    exact = products(lambda *x, **named: formula(*x, **named)[0])
    require_equal(vmap(products(attention), in_dims)(*given), vmap(exact, in_dims)(*given))


def test_every_function_takes_dual_tensors() -> None:
    torch.manual_seed(3)
    q, k, v, moved = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(4))
    plain = lambda x: formula(x, k, v)[0]  # noqa: E731
    expected = jvp(plain, (q,), (moved,))[1]
    merged = lambda x: x.transpose(1, 2).flatten(2).unflatten(-1, (2, 4)).transpose(1, 2)  # noqa: E731
    with forward_ad.dual_level():
        for function in (lambda x: attention(x, k, v), lambda x: scaled_dot_product_attention(x, k, v), lambda x: attention(merged(x), k, v)):
            found = forward_ad.unpack_dual(function(forward_ad.make_dual(q, moved))).tangent
            assert found is not None
            require_equal(found, expected)
        assert forward_ad.unpack_dual(attention(q, k, v)).tangent is None  # no input has a tangent
    # The graph is recorded outside of forward mode, and then the gradient that backward gets is a dual tensor.
    x = q.clone().requires_grad_()
    out = attention(x, k, v)
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(out, x, forward_ad.make_dual(v, moved), retain_graph=True)
        require_equal(forward_ad.unpack_dual(found).tangent, torch.autograd.grad(out, x, moved)[0])


def test_triangle_attention_has_second_derivatives() -> None:
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 3, 2, 4, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    gradgradcheck(triangle_attention, (q, k, v, bias), check_fwd_over_rev=True, fast_mode=QUICK)


# --- layers


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", ["none", "bias", "padding"])
def test_multihead_attention_is_torchs(need_weights: bool, mask: str) -> None:
    torch.manual_seed(5)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True).double()
    ours = MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True).double()
    ours.load_state_dict(theirs.state_dict())
    x, moved = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    given = {"none": {}, "bias": {"attn_mask": torch.randn(5, 5, dtype=torch.float64)}, "padding": {"key_padding_mask": torch.rand(3, 5) < 0.4}}[mask]

    def loss(layer: torch.nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        with math_path():
            out, weights = torch.func.functional_call(layer, parameters, (x, x, x), {"need_weights": need_weights} | given)
        total: Tensor = out.sin().sum() + (weights.square().sum() if need_weights else 0)
        return total

    def results(layer: torch.nn.Module) -> Any:
        parameters = {name: p.detach() for name, p in layer.named_parameters()}
        own = [x.clone().requires_grad_(), *layer.parameters()]
        out, weights = layer(own[0], own[0], own[0], need_weights=need_weights, **given)
        total = out.sin().sum() + (weights.square().sum() if need_weights else 0)
        first = torch.autograd.grad(total, own, create_graph=True)
        second = torch.autograd.grad([g.square().sum() for g in first], own)

        def of_x(y: Tensor) -> Tensor:
            return loss(layer, parameters, y)

        return first, second, jvp(of_x, (x,), (moved,)), jvp(grad(of_x), (x,), (moved,)), hessian(lambda y: of_x(torch.cat([y[None], x[1:]])))(x[0])

    with math_path():
        expected = results(theirs)
    require_equal(results(ours), expected)


@pytest.mark.parametrize("is_global", [False, True])
def test_gated_attention_is_its_formula(is_global: bool) -> None:
    torch.manual_seed(6)
    layer = GatedAttention(8, 4, 2, gated=True, is_global=is_global).double()
    x, moved = torch.randn(2, 2, 3, 5, 8, dtype=torch.float64)
    bias = torch.randn(2, 2, 1 if is_global else 5, 5, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(2, 3, 5) < 0.7
    keep[0, 0] = False

    def results(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
        own = [x.clone().requires_grad_(), bias, *layer.parameters()]
        first = torch.autograd.grad(function(own[0], bias).sin().sum(), own, create_graph=True)
        second = torch.autograd.grad([g.square().sum() for g in first], own)
        of_x = lambda y: function(y, bias.detach()).sin().sum()  # noqa: E731
        return first, second, jvp(of_x, (x,), (moved,)), jvp(grad(of_x), (x,), (moved,))

    # AlphaFold's code subtracts 1e9 from masked scores, so results of a sequence without keys lose 7 digits.
    require_equal(results(lambda x, b: layer(x, b, keep)), results(lambda x, b: gated_formula(layer, x, b, keep)), 1e-6)


# --- a model that is trained on forces


def test_training_on_forces_is_that_of_the_math_path() -> None:
    spec = importlib.util.spec_from_file_location("force_field", FORCE_FIELD)
    assert spec is not None and spec.loader is not None
    example: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def by_torch(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor, sink: Tensor) -> Tensor:
        # The sink becomes a key of zeros whose bias is the sink logit and whose value is 0.
        zero = q.new_zeros(*k.shape[:-2], 1, k.size(-1))
        bias = torch.cat([bias, sink[:, None, None].expand(*bias.shape[:-1], 1)], -1)
        with math_path():
            return F.scaled_dot_product_attention(q, torch.cat([k, zero], -2), torch.cat([v, zero], -2), bias)

    *_, ours = example.train(20, torch.float64)
    *_, theirs = example.train(20, torch.float64, by_torch)
    assert ours[-1] < ours[0]
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-9, atol=0)


# --- what is refused


def loss_of(x: Tensor, **options: Any) -> Tensor:
    out: Tensor = attention(x, x, x, **options)
    return out.sin().sum()


def test_third_derivatives_are_refused() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(loss_of(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)  # create_graph alone must not raise: only a third derivative is refused
    with pytest.raises(NotImplementedError, match="no third derivative"):
        torch.autograd.grad(second.square().sum(), x, retain_graph=True)
    with pytest.raises(NotImplementedError, match="no third derivative"):
        second.square().sum().backward()
    x = x.detach()
    for function in (jacrev(hessian(loss_of)), jacfwd(jacrev(jacrev(loss_of))), grad(lambda y: hessian(loss_of)(y).sum())):
        with pytest.raises(NotImplementedError, match="no third derivative"):
            function(x)
    with pytest.raises(NotImplementedError, match="no forward mode of forward mode"):
        jacfwd(jacfwd(loss_of))(x)


def test_second_derivatives_that_do_not_exist_are_refused_by_name() -> None:
    x = torch.randn(1, 2, 3, 4)
    attend = torch.tensor([[True, True, False]] * 2 + [[False] * 3])
    uniform: dict[str, Any] = {"attend": attend, "empty_rows": "uniform"}
    with pytest.raises(NotImplementedError, match="no gradient of lse with empty_rows='uniform'"):
        jvp(lambda y: attention(y, y, y, return_lse=True, **uniform), (x,), (x,))
    with pytest.raises(NotImplementedError, match="no gradient of attention weights with empty_rows='uniform'"):
        jvp(lambda y: attention(y, y, y, return_attention_weights=True, **uniform), (x,), (x,))
    with pytest.raises(NotImplementedError, match="q is a dual tensor, and a cache has no forward mode"):
        jvp(lambda y: attention(y, x, x, cache=polyhead.KeyValueCache(1, 2, 8, 4)), (x,), (x,))
    layer = GatedAttention(4, 2, 2)
    keep = torch.tensor([True, False, True]).expand(2, 3).clone()
    keep[0] = False
    inputs = torch.randn(2, 3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(layer(inputs, attend_keys=keep).square().sum(), inputs, create_graph=True)
    for function in (lambda: first.sum().backward(), lambda: jvp(lambda y: layer(y, attend_keys=keep), (inputs.detach(),), (inputs.detach(),))):
        with pytest.raises(NotImplementedError, match="a row whose keys are all masked with empty_rows='offset'"):
            function()
    keep[0] = True
    gradgradcheck(lambda y: layer.double()(y, attend_keys=keep), (inputs.detach().double().requires_grad_(),))
    scale = torch.rand(1, 2, 3, requires_grad=True)
    int8 = torch.randint(-100, 100, (1, 2, 3, 4), dtype=torch.int8)
    with pytest.raises(NotImplementedError, match="k_scale requires grad"):
        attention(x, int8, int8, k_scale=scale, v_scale=scale)


def test_int8_keys_have_second_derivatives_by_the_rest() -> None:
    torch.manual_seed(7)
    q = torch.randn(1, 2, 3, 4)
    int8 = torch.randint(-100, 100, (1, 2, 3, 4), dtype=torch.int8)
    scale = torch.rand(1, 2, 3) / 100
    ours = lambda x: attention(x, int8, int8, k_scale=scale, v_scale=scale).sin().sum()  # noqa: E731
    wide = int8.double() * scale.double().unsqueeze(-1)
    exact = lambda x: formula(x, wide, wide)[0].sin().sum()  # noqa: E731
    require_equal(hessian(ours)(q), hessian(exact)(q.double()), 1e-4)


def test_torch_compile_refuses_what_it_cannot_do() -> None:
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    compiled = torch.compile(loss_of, backend="aot_eager")
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):  # the message is torch's
        first.square().sum().backward()
    torch.compiler.reset()
    compiled = torch.compile(loss_of, backend="eager")
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative .* under torch.compile"):
        compiled(forward_ad.make_dual(x.detach(), x.detach()))


def test_without_create_graph_nothing_of_second_order_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """backward() calls the kernel directly, without an operator of torch's dispatcher."""

    def refuse(*_: Any) -> Sequence[Tensor]:
        raise AssertionError("an operator of torch's dispatcher was called")

    for name in ("attention", "attention_backward", "attention_backward_backward", "attention_jvp"):
        monkeypatch.setattr(_ops, name, refuse)
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    loss_of(x).backward()
    assert x.grad is not None
