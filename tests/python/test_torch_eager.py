"""Tests the fast path of eager mode, which does not call a torch operator. Modes and hooks of torch, and what autograd.Function provides, must work as if it called
one."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jacrev, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import polyhead
from polyhead.torch import _eager, attention, scaled_dot_product_attention
from torch_support import math_path


def inputs(*, recorded: bool = False, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), (3, 4, 4))
    return tuple(torch.randn(shape, dtype=dtype).requires_grad_(recorded) for shape in shapes)  # type: ignore[return-value]


def test_eager_calls_do_not_go_through_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the operator was called")

    monkeypatch.setattr("polyhead.torch._ops.attention", refuse)
    monkeypatch.setattr("polyhead.torch._ops.attention_backward", refuse)
    q, k, v, bias = inputs(recorded=True)
    keep = torch.rand(4, 4) < 0.8
    for call in (
        lambda: scaled_dot_product_attention(q, k, v),
        lambda: scaled_dot_product_attention(q, k, v, bias),
        lambda: scaled_dot_product_attention(q, k, v, keep, dropout_p=0.5),
        lambda: scaled_dot_product_attention(q[:, :1].expand(2, 3, 4, 5), k, v, is_causal=True),
        lambda: attention(q, k, v, attend=keep, bias=bias, sink=bias[:, 0, 0], window=(2, 1)),
        lambda: attention(q, k, v, relative_bias=polyhead.RelativeBias(slopes=bias[:, 0, 0])),
    ):
        call().sum().backward()
        with torch.no_grad():
            call()


def test_both_ways_to_call_the_library_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for direct in (True, False):
        monkeypatch.setattr(_eager, "_READ_BY_C", direct)  # False tests the path for versions of torch before 2.10
        torch.manual_seed(3)
        q, k, v, bias = inputs(recorded=True, dtype=torch.float32)
        heads = q.transpose(1, 2).contiguous().transpose(1, 2)
        outs = [
            scaled_dot_product_attention(heads, k, v, bias, dropout_p=0.3),
            attention(q, k, v, bias=bias, causal=1, return_lse=True)[1],
            attention(q, k, v, sink=bias[:, 0, 0], block=torch.rand(4, 4) < 0.3, return_attention_weights=True)[1],
            attention(q, k, v, relative_bias=polyhead.RelativeBias(table=bias[0].expand(3, 4, 4)[:, 0], bidirectional=False)),
        ]
        grads = [torch.autograd.grad((out * out.detach().cos()).sum(), (q, k, v, bias), allow_unused=True) for out in outs]
        results.append([*outs, *(g for gs in grads for g in gs if g is not None)])
        assert outs[0].transpose(1, 2).is_contiguous()  # out has the memory layout of the query
    for first, second in zip(*results):
        assert torch.equal(first, second) and first.stride() == second.stride()


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_mode_sees_the_operator(mode: Callable[[], Any], recorded: bool) -> None:
    q, k, v, _ = inputs(recorded=recorded)
    with mode() as seen:
        scaled_dot_product_attention(q, k, v)
        attention(q, k, v, causal=1)
    assert sum("polyhead" in name for name in seen.names) == 2
    if recorded:
        out = scaled_dot_product_attention(q, k, v)
        with Seen() as of_backward:
            out.sum().backward()
        assert any("attention_backward" in name for name in of_backward.names)


def test_a_trace_holds_the_operator_and_not_its_result() -> None:
    q, k, v, bias = inputs(dtype=torch.float32)
    other = inputs(dtype=torch.float32)
    expected = scaled_dot_product_attention(*other)
    assert torch.equal(torch.jit.trace(scaled_dot_product_attention, (q, k, v, bias))(*other), expected)
    assert torch.equal(make_fx(lambda *given: scaled_dot_product_attention(*given))(q, k, v, bias)(*other), expected)

    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, bias)

    for strict in (False, True):
        assert torch.equal(torch.export.export(Module(), (q, k, v, bias), strict=strict).module()(*other), expected)


class Logged(Tensor):
    """A subclass of Tensor that records operators in its __torch_dispatch__."""

    seen: list[str] = []

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(function))
        guard = torch._C._DisableTorchDispatch()
        try:
            result = function(*args, **(kwargs or {}))
            return result.as_subclass(cls) if isinstance(result, Tensor) else result
        finally:
            del guard


def test_a_subclass_is_asked_by_the_dispatcher() -> None:
    q, k, v, bias = inputs(dtype=torch.float32)
    for given in ((q.as_subclass(Logged), k, v), (q, k, v.as_subclass(Logged)), (q, k, v, bias.as_subclass(Logged))):
        Logged.seen.clear()
        out = scaled_dot_product_attention(*given)
        assert torch.equal(out, scaled_dot_product_attention(q, k, v, *([bias] if len(given) > 3 else [])))
        assert any("polyhead.attention" in name for name in Logged.seen)


def test_lazily_negated_and_zero_tensors_are_read_by_their_value() -> None:
    q, k, v, _ = inputs()
    negated = torch.complex(k, -q).conj().imag
    assert negated.is_neg() and torch.equal(negated, q)
    expected = scaled_dot_product_attention(q, k, v)
    assert torch.equal(scaled_dot_product_attention(negated, k, v), expected)
    assert torch.equal(attention(q, torch.complex(v, -k).conj().imag, v), expected)
    leaf = q.clone().requires_grad_()
    d_out = torch.complex(v, -k).conj().imag
    (ours,) = torch.autograd.grad(scaled_dot_product_attention(leaf, k, v), leaf, d_out)
    (theirs,) = torch.autograd.grad(scaled_dot_product_attention(leaf, k, v), leaf, k.clone())
    assert d_out.is_neg() and torch.equal(ours, theirs)


def test_a_change_of_what_was_saved_is_noticed() -> None:
    q, k, v, bias = inputs(recorded=True)
    for changed in ("q", "mask", "lengths", "out"):
        query, keep, lengths = q * 1, torch.ones(4, 4, dtype=torch.bool), torch.tensor([4, 3])
        out = attention(query, k, v, attend=keep, key_lengths=lengths)
        tensor = {"q": query, "mask": keep, "lengths": lengths, "out": out}[changed]
        with torch.no_grad():
            tensor[0] = 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_window_that_is_changed_before_backward() -> None:
    q, k, v, _ = inputs(recorded=True)
    window = [1, 0]
    out = attention(q, k, v, window=window)
    exact = torch.autograd.grad(out.sum(), q, retain_graph=True)
    window[:] = [4, 4]
    assert torch.equal(*exact, *torch.autograd.grad(out.sum(), q))


def test_nothing_is_kept_alive() -> None:
    gc.disable()
    try:
        q, k, v, bias = inputs(recorded=True)
        query = q * 1
        keep = torch.ones(4, 4, dtype=torch.bool)
        references = [weakref.ref(x) for x in (query, keep)]
        out, lse, p = attention(query, k, v, attend=keep, bias=bias, return_lse=True, return_attention_weights=True)
        references += [weakref.ref(x) for x in (out, lse, p)]
        (out.sum() + lse.sum() + p.square().sum()).backward()
        del query, keep, out, lse, p
        assert [reference() for reference in references] == [None] * 5
    finally:
        gc.enable()


def test_results_are_tensors_like_others() -> None:
    q, k, v, _ = inputs(recorded=True, dtype=torch.float32)
    out = scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    for tensor in (out.detach(), q.grad):
        assert type(tensor) is Tensor and tensor.is_contiguous() and not tensor.is_neg() and tensor._base is None
        again = pickle.loads(pickle.dumps(tensor))
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        assert torch.equal(again, tensor) and torch.equal(torch.load(file), tensor) and torch.equal(copy.deepcopy(tensor), tensor)
        assert torch.equal(tensor.clone().mul_(2), tensor * 2) and tensor.share_memory_().is_shared()
    with torch.inference_mode():
        assert torch.equal(scaled_dot_product_attention(q, k, v), out)
    with torch.autograd.graph.save_on_cpu():
        again = scaled_dot_product_attention(q, k, v)
    (gradient,) = torch.autograd.grad(again.sum(), q)
    assert torch.equal(gradient, q.grad)


def test_sdpa_reads_a_tensor_with_requires_grad_where_nothing_is_recorded() -> None:
    q, k, v, _ = inputs(recorded=True)
    with pytest.raises(TypeError, match="q requires grad, which this function does not record"):
        polyhead.sdpa(q, k, v)
    with torch.no_grad():
        assert torch.equal(polyhead.sdpa(q, k, v), scaled_dot_product_attention(q, k, v))


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor], tuple[Tensor, ...]], Any]] = {
    "grad": lambda f, x: grad(lambda *y: f(*y).cos().sum(), argnums=(0, 1, 2, 3))(*x),
    "vjp": lambda f, x: vjp(f, *x)[1](x[0]),
    "jacrev": lambda f, x: jacrev(f, argnums=(0, 1, 2, 3))(*(y[0] for y in x[:3]), x[3]),
    "vmap": lambda f, x: vmap(f, in_dims=(0, 0, 0, None))(*(y[:, None] for y in x[:3]), x[3]),
    "vmap over another dimension, of bias too": lambda f, x: vmap(f, in_dims=(1, None, 1, 0), out_dims=1)(
        x[0][:, None].expand(2, 3, 3, 4, 5), x[1], x[2][:, None].expand(2, 3, 3, 4, 5), torch.stack([x[3], -x[3], 2 * x[3]])
    ),
    "vmap of grad": lambda f, x: vmap(grad(lambda *y: f(*y).cos().sum(), argnums=(0, 1, 2, 3)), in_dims=(0, 0, 0, None))(*x),
    "grad of vmap": lambda f, x: grad(lambda *y: vmap(f, in_dims=(0, 0, 0, None))(*y).cos().sum(), argnums=(0, 1, 2, 3))(*x),
    "gradients in a batch": lambda f, x: torch.autograd.grad(
        f(y := x[0].clone().requires_grad_(), *x[1:]), y, torch.eye(120, dtype=torch.float64).view(120, 2, 3, 4, 5), is_grads_batched=True
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_first_order(name: str) -> None:
    torch.manual_seed(1)
    x = inputs()
    with math_path():
        expected = TRANSFORMS[name](F.scaled_dot_product_attention, x)
    torch.testing.assert_close(TRANSFORMS[name](scaled_dot_product_attention, x), expected)


def test_vmap_in_a_compiled_graph() -> None:
    torch._dynamo.reset()
    q, k, v, bias = inputs()
    mapped = vmap(lambda q, k, v, bias: attention(q, k, v, bias=bias, causal=1, return_lse=True), in_dims=(0, 0, None, None))
    compiled = torch.compile(lambda *given: mapped(*given), backend="aot_eager", fullgraph=True)
    given = (q[:, None], k[:, None], v[:1], bias)
    for ours, expected in zip(compiled(*given), mapped(*given)):
        assert torch.equal(ours, expected)


def loop(f: Callable[..., Any], in_dims: tuple[int | None, ...], *given: Tensor) -> Any:
    size = next(x.size(dim) for x, dim in zip(given, in_dims) if dim is not None)
    return [torch.stack(found) for found in zip(*(f(*(x if dim is None else x.select(dim, i) for x, dim in zip(given, in_dims))) for i in range(size)))]


def test_vmap_of_every_option_is_a_loop() -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(3, 2, 4, 5, 6, dtype=torch.float64) for _ in range(3))  # vmap over 3 examples of [2,4,5,6]
    keep, keys, lengths, diagonals = torch.rand(3, 4, 5, 5) < 0.8, torch.rand(3, 5) < 0.8, torch.randint(6, (3, 2)), torch.randint(3, (2,))
    sink, slopes, offsets = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64), torch.tensor([[0, 2, 5], [0, 1, 5], [0, 0, 5]])

    def all_of(q: Tensor, k: Tensor, keep: Tensor, keys: Tensor, lengths: Tensor, sink: Tensor) -> Any:
        return attention(
            q, k, v[0], attend=keep, attend_keys=keys, key_lengths=lengths, diagonal_offsets=diagonals, causal="top_left", sink=sink, return_lse=True,
            return_attention_weights=True,
        )  # fmt: skip

    def loss(*given: Tensor) -> Tensor:
        return sum(x.nan_to_num(0, 0, 0).cos().sum() for x in all_of(*given))  # type: ignore[return-value]

    in_dims, given = (0, None, 0, 0, 0, 0), (q, k[1], keep, keys, lengths, sink)
    torch.testing.assert_close(list(vmap(all_of, in_dims)(*given)), loop(all_of, in_dims, *given), rtol=0, atol=0)
    gradient = grad(loss, argnums=(0, 1, 5))
    torch.testing.assert_close(list(vmap(gradient, in_dims)(*given)), loop(gradient, in_dims, *given))
    assert len({int(n) for n in lengths.flatten()}) > 1

    # If each example has its own slopes, documents or dropout bits, vmap makes a call for each example.
    of_slopes = grad(lambda q, s: attention(q, k[0], v[0], relative_bias=polyhead.RelativeBias(slopes=s)).cos().sum(), argnums=(0, 1))
    torch.testing.assert_close(list(vmap(of_slopes)(q, slopes)), loop(of_slopes, (0, 0), q, slopes))
    documents = lambda q, o: (attention(q, k[0], v[0], query_offsets=o),)  # noqa: E731
    torch.testing.assert_close(list(vmap(documents)(q, offsets)), loop(documents, (0, 0), q, offsets), rtol=0, atol=0)

    def dropped(q: Tensor) -> Tensor:
        return attention(q, k[0], v[0], dropout=0.5)

    torch.manual_seed(9)
    alone = dropped(q[1])
    torch.manual_seed(9)
    same = vmap(dropped, randomness="same")(q)
    assert torch.equal(same[1], alone)
    different = vmap(dropped, randomness="different")(q[:1].expand(3, *q.shape[1:]))
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(dropped)(q)
