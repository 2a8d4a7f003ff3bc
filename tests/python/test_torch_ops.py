"""Tests polyhead's operators with torch's features: opcheck, gradcheck, compile, autocast, checkpoint and random generators."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import polyhead
from effort import QUICK
from polyhead.torch import GatedAttention, MultiheadAttention, _ops, attention, scaled_dot_product_attention
from polyhead.torch._rules import Options
from torch_support import error

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")) or " " in torch.__path__[0],
    reason="torch.compile needs a C++ compiler, and torch in a folder without a space, because it does not quote the folder for the linker",
)


def randn(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def case(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Returns the arguments of the operator `attention` for a named case."""
    arguments: dict[str, Any] = {
        "q": randn(2, 2, 3, 2, dtype=dtype),
        "k": randn(2, 1, 4, 2, dtype=dtype),
        "v": randn(2, 1, 4, 3, dtype=dtype),
    } | Options()._asdict()
    arguments |= {
        "plain": {},
        "bias": {"bias": randn(2, 1, 4, dtype=dtype)},
        "attend": {"attend": torch.rand(2, 1, 3, 4) < 0.7, "bias": randn(3, 4, dtype=dtype), "empty_rows": "unmasked"},
        "offset": {"attend": torch.tensor([[True] * 4, [False] * 4]).view(2, 1, 1, 4), "bias": randn(2, 1, 4, dtype=dtype), "empty_rows": "offset"},
        "block": {"block": torch.rand(3, 4) < 0.3, "causal": "top_left", "scale": 0.5},
        "softcap": {"softcap": 1.5, "bias": randn(2, 1, 1, 4, dtype=dtype)},
        "dropout": {"dropout": 0.4, "seed": torch.tensor(7), "bias": randn(1, 4, dtype=dtype)},
        "sink": {"sink": randn(2, dtype=dtype)},
        "sink of each row": {"sink": randn(2, 2, 1, dtype=dtype), "attend": torch.rand(2, 1, 3, 4) < 0.7, "dropout": 0.4, "seed": torch.tensor(7)},
        "slopes": {"slopes": randn(2, dtype=dtype), "causal": "top_left"},
        "table": {"table": randn(2, 4, dtype=dtype), "bidirectional": False, "max_distance": 3, "diagonal": 1, "softcap": 1.5},
        "weights": {"attention_weights": True, "bias": randn(2, 1, 4, dtype=dtype), "softcap": 1.5, "sink": randn(2, dtype=dtype)},
        "lengths": {"key_lengths": torch.tensor([4, 2]), "causal": "top_left", "diagonal_offsets": torch.tensor([1, 0]), "attention_weights": True},
        "documents": {"query_offsets": torch.tensor([0, 1, 3]), "key_offsets": torch.tensor([0, 2, 4]), "bias": randn(4, dtype=dtype)},
        "keys": {"attend_keys": torch.tensor([[True, False, True, True]] * 2), "window_left": 1, "offset": 1, "attention_weights": True},
        "heads of a layer": {"q": randn(2, 3, 4, dtype=dtype, grad=False).unflatten(-1, (2, 2)).transpose(1, 2).requires_grad_()},
        "broadcast": {"q": randn(1, 2, 3, 2, dtype=dtype, grad=False).expand(2, 2, 3, 2).requires_grad_()},
        "empty": {"k": randn(2, 1, 0, 2, dtype=dtype), "v": randn(2, 1, 0, 3, dtype=dtype)},
    }[name]
    return arguments


CASES = ["plain", "bias", "attend", "offset", "block", "softcap", "dropout", "sink", "sink of each row", "slopes", "table", "weights", "lengths", "documents", "keys", "heads of a layer", "broadcast", "empty"]
# "broadcast" is left out, because gradcheck changes one number at a time, and the elements of this tensor share memory. "empty" is left out, too.
CASES_OF_GRADCHECK = CASES[:-2]


OF_BFLOAT16 = ["bias", "sink of each row", "slopes", "table", "weights"] if QUICK else CASES  # in a quick run, only the cases with tensors whose dtype may differ from that of q


# Tracing takes most of the time of opcheck. In a quick run it is done for each tensor that has a gradient.
TRACED = ["offset", "sink of each row", "slopes", "table", "weights", "documents", "heads of a layer"]


@pytest.mark.parametrize(("dtype", "name"), [(torch.float64, name) for name in CASES] + [(torch.bfloat16, name) for name in OF_BFLOAT16])
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    arguments = case(name, dtype)
    some: dict[str, Any] = {"test_utils": ("test_schema", "test_faketensor")}
    checks = {} if dtype == torch.float64 and (not QUICK or name in TRACED) else some
    opcheck(_ops.attention, tuple(arguments.values()), **checks)
    out, lse, _ = _ops.attention(*arguments.values())
    q, k, v, *rest = arguments.values()
    detached = [x.detach() if isinstance(x, Tensor) else x for x in (torch.randn_like(out), q, k, v, out, lse, *rest)]  # attention_backward has no gradient
    if QUICK and name not in ("table", "weights"):
        checks = some
    opcheck(_ops.attention_backward, (*detached, [True, False, True, True, True, True, True]), **checks)
    opcheck(_ops.attention_map, (q, k, *rest), **checks)


@pytest.mark.parametrize("name", CASES_OF_GRADCHECK)
def test_gradcheck(name: str) -> None:
    arguments = case(name)
    differentiable = [key for key, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad]

    def every(*tensors: Tensor) -> list[Tensor]:
        results = _ops.attention(*(arguments | dict(zip(differentiable, tensors))).values())
        return [result.masked_fill(result == -torch.inf, 0) for result in results if result.requires_grad]  # replaces the lse of rows without a key

    assert len(every(*(arguments[key] for key in differentiable))) == 1 + (name != "offset") + arguments["attention_weights"]
    torch.autograd.gradcheck(every, [arguments[key] for key in differentiable], fast_mode=QUICK)
    arguments.pop("v")
    differentiable.remove("v")

    def weights(*tensors: Tensor) -> Tensor:
        given = arguments | dict(zip(differentiable, tensors))
        result: Tensor = _ops.attention_map(*given.values())
        return result

    torch.autograd.gradcheck(weights, [arguments[key] for key in differentiable], fast_mode=QUICK)


@pytest.mark.parametrize("name", [name for name in CASES_OF_GRADCHECK if name not in ("attend", "offset")])
def test_a_second_gradient_of_maps_is_right(name: str) -> None:
    arguments = case(name)
    del arguments["v"]
    differentiable = [key for key, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad]

    def weights(*tensors: Tensor) -> Tensor:
        result: Tensor = _ops.attention_map(*(arguments | dict(zip(differentiable, tensors))).values())
        return result

    torch.autograd.gradgradcheck(weights, [arguments[key] for key in differentiable], fast_mode=QUICK)


def test_the_fake_result_has_the_true_strides() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    shapes = {"q": (2, 4, 5, 3), "k": (2, 4, 6, 3), "v": (2, 4, 6, 7)}
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3), (2, 0, 1, 3), (0, 1, 3, 2)):
        back = [order.index(i) for i in range(4)]
        tensors = [torch.randn([shape[i] for i in order]).permute(back) for shape in shapes.values()]
        out, lse, _ = _ops.attention(*tensors, *list(case("plain").values())[3:])
        with FakeTensorMode() as mode:
            fake_out, fake_lse, _ = _ops.attention(*map(mode.from_tensor, tensors), *list(case("plain").values())[3:])
        assert (out.stride(), lse.stride()) == (fake_out.stride(), fake_lse.stride())
        assert out.stride() == attention(*tensors).stride()  # a call without autograd gets its strides from C++, and they must be the same


def block_of_a_model(x: Tensor, layer: MultiheadAttention, gated: GatedAttention, bias: Tensor, keep: Tensor) -> Tensor:
    y, weights = layer(x, x, x, key_padding_mask=~keep, average_attn_weights=False)
    z = gated(y, bias, keep)
    heads = z.unflatten(-1, (2, -1)).transpose(1, 2)
    return scaled_dot_product_attention(heads, heads, heads, bias, enable_gqa=True).sum(1) + weights.sum()


def one_layer(x: Tensor, layer: MultiheadAttention, gated: GatedAttention, bias: Tensor, keep: Tensor) -> Tensor:
    y, weights = layer(x, x, x, key_padding_mask=~keep, average_attn_weights=False)
    return y.sum(1) + weights.sum()


def require_compiled_is_eager(compiled: Any, lengths: tuple[int, ...], function: Any = block_of_a_model) -> None:
    layer, gated = MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True).double(), GatedAttention(8, 3, 2, gated=True).double()
    for length in lengths:
        bias = randn(2, length, length)
        keep = torch.rand(3, length) < 0.8
        keep[:, 0] = True
        results = []
        for each in (function, compiled):
            x = torch.arange(3 * length * 8, dtype=torch.float64).sin().view(3, length, 8).requires_grad_()
            out = each(x, layer, gated, bias, keep)
            wanted = (x, bias, *layer.parameters(), *gated.parameters())
            results.append((out, *torch.autograd.grad(out.cos().sum(), wanted, allow_unused=True, materialize_grads=True)))
        for eager, mine in zip(*results):
            torch.testing.assert_close(mine, eager, rtol=1e-10, atol=1e-12)


@needs_compiler
def test_compile_takes_the_whole_graph() -> None:
    # A quick run compiles only one layer with inductor. The next test traces all layers as one graph.
    function = one_layer if QUICK else block_of_a_model
    require_compiled_is_eager(torch.compile(function, fullgraph=True), (5,), function)


def test_compile_takes_any_length() -> None:
    # Tests that lengths may change between calls. This does not depend on inductor, so the traced graph runs without it.
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        require_compiled_is_eager(torch.compile(block_of_a_model, fullgraph=True, dynamic=True, backend="aot_eager"), (5, 7, 9))


@needs_compiler
def test_compile_with_dropout_is_repeatable_and_its_backward_drops_the_same() -> None:
    q = randn(2, 2, 6, 4)
    eye = torch.eye(6, dtype=torch.float64).expand(2, 2, 6, 6).clone().requires_grad_()

    @torch.compile(fullgraph=True)
    def weights(q: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, q, v, dropout_p=0.5)

    torch.manual_seed(5)
    first = weights(q, eye)
    torch.manual_seed(5)
    assert torch.equal(first, weights(q, eye))
    assert not torch.equal(first, weights(q, eye))
    (d_v,) = torch.autograd.grad(first.sum(), eye)
    torch.testing.assert_close(d_v[..., 0], first.detach().sum(-2))  # d_v[s] is the sum over t of the attention weights p[t,s] after dropout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_autocast_is_that_of_torch(dtype: torch.dtype, given: torch.dtype) -> None:
    q, k, v = (randn(2, 3, 9, 8, dtype=given) for _ in range(3))
    mask = randn(9, 9, dtype=given)
    with torch.autocast("cpu", dtype=dtype):
        ours, theirs = (f(q, k, v, mask) for f in (scaled_dot_product_attention, F.scaled_dot_product_attention))
    assert ours.dtype == theirs.dtype == (dtype if given == torch.float32 else given)
    exact = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v, mask)))
    assert error(ours, exact) <= 4 * torch.finfo(ours.dtype).eps
    ours.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == given for x in (q, k, v, mask))


def test_autocast_of_layers_is_that_of_torch() -> None:
    layer = MultiheadAttention(16, 4)
    theirs = torch.nn.MultiheadAttention(16, 4)
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(5, 2, 16)
    for masks in ({}, {"attn_mask": torch.randn(5, 5)}, {"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}):
        for need_weights in (True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                ours, expected = (module(x, x, x, need_weights=need_weights, **masks) for module in (layer, theirs))
            assert ours[0].dtype == expected[0].dtype == torch.bfloat16
            assert error(ours[0], expected[0]) < 0.05
            assert (ours[1] is None) == (expected[1] is None)
            if need_weights:
                assert error(ours[1], expected[1]) < 0.05
    gated = GatedAttention(16, 4, 4, gated=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = gated(x, torch.randn(4, 2, 2), torch.ones(5, 2, dtype=torch.bool))
    assert out.dtype == torch.bfloat16
    out.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_the_same_dropout(reentrant: bool) -> None:
    layer = MultiheadAttention(12, 3, dropout=0.5).double().train()
    results = []
    for again in (False, True):
        torch.manual_seed(11)
        x = torch.arange(5 * 2 * 12, dtype=torch.float64).sin().view(5, 2, 12).requires_grad_()

        def run(x: Tensor) -> Tensor:
            output: Tensor = layer(x, x, x, need_weights=False)[0]
            return output

        out = checkpoint(run, x, use_reentrant=reentrant) if again else run(x)
        layer.zero_grad()
        out.square().sum().backward()
        results.append((out, x.grad, layer.in_proj_weight.grad.clone()))
    for plain, mine in zip(*results):
        assert torch.equal(plain, mine)


def test_dropout_follows_the_generator_of_torch() -> None:
    q = randn(2, 3, 8, 4)

    def draw() -> Tensor:
        return scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    torch.manual_seed(1)
    first, second = draw(), draw()
    torch.manual_seed(1)
    assert torch.equal(draw(), first) and torch.equal(draw(), second) and not torch.equal(first, second)
    with torch.random.fork_rng():
        third = draw()
    assert torch.equal(draw(), third)
    state = torch.get_rng_state()
    scaled_dot_product_attention(q, q, q)
    assert torch.equal(torch.get_rng_state(), state)  # without dropout, no random number is drawn


def test_dropout_has_the_meaning_of_torch() -> None:
    """torch's formula with polyhead's dropout bits of the same seed gives the same result."""
    arguments = case("dropout") | {"k": randn(2, 2, 4, 2), "v": randn(2, 2, 4, 3), "bias": None}
    out, _, _ = _ops.attention(*arguments.values())
    keep = polyhead.dropout_keep_bits(0.4, 7, torch.empty(2, 2, 3, 4, dtype=torch.bool))
    q, k, v = arguments["q"], arguments["k"], arguments["v"]
    expected, _ = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, 0.4, False, keep)
    torch.testing.assert_close(out, expected)
    for mine, other in zip(torch.autograd.grad(out.cos().sum(), (q, k, v)), torch.autograd.grad(expected.cos().sum(), (q, k, v))):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1.0])
def test_dropout_drops_as_many_as_it_says(dropout: float) -> None:
    eye = torch.eye(64).expand(4, 64, 64)
    weights = scaled_dot_product_attention(torch.zeros(4, 64, 8), torch.zeros(4, 64, 8), eye, dropout_p=dropout)
    assert abs((weights == 0).double().mean().item() - dropout) < 0.02
    kept = weights[weights > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 64 / max(1 - dropout, 1e-9)))


def test_a_step_of_an_optimizer_learns() -> None:
    torch.manual_seed(0)
    layer = MultiheadAttention(8, 2, batch_first=True)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    x, target = torch.randn(4, 5, 8), torch.randn(4, 5, 8)
    losses = []
    for _ in range(40):
        loss = F.mse_loss(layer(x, x, x, need_weights=False)[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_import_polyhead_does_not_import_torch() -> None:
    program = "import sys, polyhead; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
