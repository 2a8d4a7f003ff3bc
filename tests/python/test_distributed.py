"""Attention over several ranks gives the results of one machine: outputs, gradients, dropout, models. If a rank fails, the errors of the others name it."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import forked_python
import polyhead
from distributed_support import PATIENCE, Group, Processes, Queues, in_threads
from polyhead import distributed
from polyhead.distributed import attention, sequence_parallel, slice_of, take_slice
from polyhead.distributed._torch_communicator import of_group
from polyhead.torch import attention as on_one_machine
from torch_support import error

# The ranks of these tests are processes of a gloo group. torch can be built without gloo, but PyPI's wheels have it.
pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo")

RANKS = 4
Case = dict[str, Any]
Results = dict[str, Any]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    made = Processes(RANKS, tmp_path_factory.mktemp("ranks"))
    yield made
    assert made.close() == [0] * RANKS


# --- problems for one machine, and their slices for ranks

ROWS = {"q": -2, "k": -2, "v": -2, "d_out": -2, "out": -2, "lse": -1}  # the axis along which a tensor is sliced over the ranks


def whole(case: Case) -> tuple[dict[str, Tensor], Case]:
    """Returns the tensors of a case for the whole sequence, and the case's options that are not tensors."""
    b, n, k, t, s, h = case["sizes"]
    g = torch.Generator().manual_seed(case.get("number", 1))
    dtype = getattr(torch, case.get("dtype", "float32"))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    tensors = {"q": draw(b, n, t, h), "k": draw(b, k, s, h), "v": draw(b, k, s, h + 2), "d_out": draw(b, n, t, h + 2)}
    makers = {
        "bias": lambda: draw(n, t, s), "bias of all heads": lambda: draw(b, 1, t, s), "bias of keys": lambda: draw(n, 1, s), "sink": lambda: draw(n),
        "sink of rows": lambda: draw(b, n, t), "attend": lambda: torch.rand(b, 1, t, s, generator=g) < 0.6, "attend_keys": lambda: torch.rand(b, s, generator=g) < 0.7,
        "key_lengths": lambda: torch.randint(0, s + 1, (b,), generator=g), "key_lengths of rows": lambda: torch.randint(0, s + 1, (b, t), generator=g),
        "key_starts": lambda: torch.randint(0, s // 2, (b,), generator=g), "key_starts of rows": lambda: torch.randint(0, s // 2, (b, t), generator=g),
        "slopes": lambda: draw(n).abs(), "table": lambda: draw(n, 8), "query_offsets": lambda: torch.tensor([0, t // 3, t]), "key_offsets": lambda: torch.tensor([0, s // 2, s]),
    }  # fmt: skip
    tensors |= {name: makers[name]() for name in case.get("tensors", ())}
    return tensors, case.get("options", {})


def axis_of(name: str) -> int | None:
    name = name if name == "d_out" else name.removeprefix("d_")
    if name in ("bias", "bias of all heads", "attend"):
        return -2
    return -1 if name.endswith(" of rows") else ROWS.get(name)


def run(call: Any, tensors: dict[str, Tensor], options: Case) -> Results:
    """Calls an attention function. Returns out and the gradient of each floating tensor."""
    leaves = {name: x.detach().clone().requires_grad_(x.is_floating_point()) for name, x in tensors.items() if name != "d_out"}
    given: Case = dict(options)
    for name, x in leaves.items():
        if name in ("slopes", "table"):
            given["relative_bias"] = polyhead.RelativeBias(**{name: x})
        elif name not in "qkv":
            given[name.partition(" of ")[0]] = x
    out, lse = call(leaves["q"], leaves["k"], leaves["v"], return_lse=True, **given)
    out.backward(tensors["d_out"])
    gradients = {f"d_{name}": x.grad for name, x in leaves.items() if x.grad is not None}
    return {name: x.detach().double().numpy() if x.dtype == torch.bfloat16 else x.detach().numpy() for name, x in ({"out": out, "lse": lse} | gradients).items()}


def cut(x: Tensor, axis: int | None, case: Case, rank: int, ranks: int) -> Tensor:
    return x if axis is None else take_slice(x, axis, case.get("order", "contiguous"), rank, ranks)


def of_rank(group: Group, case: Case) -> Results:
    tensors, options = whole(case)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sliced = {name: cut(x, axis_of(name), case, rank, ranks) for name, x in tensors.items()}

    def call(*qkv: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return attention(*qkv, group, order=case.get("order", "contiguous"), plan=case["plan"], timeout=60, return_lse=True, **given)

    return run(lambda *qkv, return_lse, **given: call(*qkv, **given), sliced, options)


def together(results: list[Results], case: Case, exact: Results) -> Results:
    """Joins the slices of all ranks to the results for the whole sequence. A result that every rank has as a whole must have the same bits on every rank."""
    found: Results = {}
    for name, of_one in exact.items():
        axis = axis_of(name)
        if axis is None:
            assert all(np.array_equal(result[name], results[0][name]) for result in results), f"{name} differs between ranks"
            found[name] = results[0][name]
            continue
        found[name] = np.full_like(of_one, np.nan)
        for rank, result in enumerate(results):
            first = 0
            for part in slice_of(case.get("order", "contiguous"), of_one.shape[axis], rank, len(results)):
                rows = (..., slice(part.start, part.stop), *[slice(None)] * (-axis - 1))
                found[name][rows] = result[name][(..., slice(first, first + len(part)), *[slice(None)] * (-axis - 1))]
                first += len(part)
            assert first == result[name].shape[axis]
    return found


CASES: dict[str, Case] = {
    "causal, zigzag, grouped heads": {"sizes": (2, 4, 2, 70, 70, 8), "order": "zigzag", "options": {"causal": "top_left"}},
    "own bias, sink, window": {"sizes": (2, 4, 4, 37, 41, 8), "tensors": ("bias", "sink"), "options": {"window": (20, 12)}},
    "one bias for all heads": {"sizes": (2, 4, 4, 33, 33, 8), "tensors": ("bias of all heads", "sink of rows"), "order": "zigzag"},
    "shared bias, key_lengths": {"sizes": (2, 4, 4, 30, 29, 8), "tensors": ("bias of keys", "key_lengths"), "options": {"softcap": 3.0}},
    "lengths of rows, attend": {"sizes": (2, 4, 1, 40, 23, 8), "tensors": ("attend", "key_lengths of rows")},
    "starts of rows, lengths": {"sizes": (2, 4, 2, 40, 23, 8), "tensors": ("key_starts of rows", "key_lengths")},
    "starts, lengths of rows": {"sizes": (2, 4, 4, 28, 31, 8), "tensors": ("key_starts", "key_lengths of rows"), "order": "zigzag"},
    "ALiBi, causal": {"sizes": (1, 4, 4, 50, 50, 8), "tensors": ("slopes",), "order": "zigzag", "options": {"causal": "bottom_right", "scale": 0.3}},
    "T5's table, attend_keys": {"sizes": (2, 4, 2, 26, 31, 8), "tensors": ("table", "attend_keys")},
    "documents": {"sizes": (1, 4, 4, 45, 60, 8), "tensors": ("query_offsets", "key_offsets", "bias"), "options": {"causal": "top_left"}},
    "fewer queries than ranks": {"sizes": (1, 4, 4, 2, 9, 8), "tensors": ("sink",)},
    "float64": {"sizes": (2, 4, 4, 21, 20, 8), "dtype": "float64", "tensors": ("bias",)},
    "bfloat16": {"sizes": (2, 4, 2, 64, 64, 16), "dtype": "bfloat16", "order": "zigzag", "options": {"causal": "top_left"}},
    "float16": {"sizes": (2, 4, 4, 40, 40, 16), "dtype": "float16", "tensors": ("bias",)},
}
PLANS = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (3, 1), (4, 1)]
# Tolerances relative to the largest magnitude. In a ring, partial sums are rounded to the dtype in which sums are computed, and the result is rounded again.
BOUNDS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def has_the_same_bits(result: str, case: Case, plan: tuple[int, int]) -> bool:
    """Returns whether a result must have the bits of one machine. That is so without a ring, except for results that are sums over ranks: gradients of shared tensors and, if ranks
    share key/value heads, d_k, d_v and 16-bit d_q."""
    heads, ring = plan
    shares_keys = case["sizes"][2] < heads
    sums = {"d_bias of all heads"} | ({"d_k", "d_v"} if shares_keys else set()) | ({"d_q"} if shares_keys and case.get("dtype", "").endswith("16") else set())
    return ring == 1 and axis_of(result) is not None and result not in sums



@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_one_machine(name: str, processes: Processes) -> None:
    case = CASES[name]
    tensors, options = whole(case)
    exact = run(on_one_machine, tensors, options)
    bound = BOUNDS[case.get("dtype", "float32")]
    for plan in PLANS:
        results = processes.run(of_rank, case | {"plan": plan}, ranks=plan[0] * plan[1])
        found = together(results, case, exact)
        for result, of_one in exact.items():
            if has_the_same_bits(result, case, plan):
                assert np.array_equal(found[result], of_one, equal_nan=True), f"{result} of plan {plan}"
            else:
                finite = np.isfinite(of_one)
                assert np.array_equal(found[result][~finite], of_one[~finite]), f"{result} of plan {plan}"
                wrong = error(torch.from_numpy(found[result][finite]), torch.from_numpy(of_one[finite]))
                assert wrong <= bound, f"{result} of plan {plan}: {wrong:.3g}"


# --- dropout


def dropped(group: Group, case: Case, seed: int | None) -> Results:
    torch.manual_seed(7 + dist.get_rank(group))  # ranks have different seeds, and all must use that of rank 0
    results = of_rank(group, case | {"options": {"dropout": 0.4} | ({} if seed is None else {"seed": seed})})
    torch.manual_seed(7 + dist.get_rank(group))
    torch.randint(2**63 - 1, ())
    results["next"] = torch.rand(1).numpy()
    return results


def test_dropout_has_the_bits_of_one_machine(processes: Processes) -> None:
    case = {"sizes": (2, 4, 4, 40, 36, 8), "order": "zigzag"}
    tensors, _ = whole(case)
    torch.manual_seed(7)
    exact = run(on_one_machine, tensors, {"dropout": 0.4})
    of_heads = together(processes.run(dropped, case | {"plan": (4, 1)}, None), case, exact)
    assert all(np.array_equal(of_heads[name], exact[name]) for name in exact)
    of_ring = together(processes.run(dropped, case | {"plan": (1, 4)}, None), case, exact)
    for name in exact:
        assert error(torch.from_numpy(of_ring[name]), torch.from_numpy(exact[name])) <= 1e-5, name
    other = together(processes.run(dropped, case | {"plan": (4, 1)}, 8), case, exact)
    q, k, v = (tensors[name].numpy() for name in "qkv")
    assert np.array_equal(other["out"], polyhead.sdpa(q, k, v, dropout=0.4, seed=8)) and not np.array_equal(other["out"], exact["out"])


# --- NumPy, and communicators that users write


def test_numpy_arrays_and_a_communicator_of_the_programs_own() -> None:
    """A communicator may keep the buffers that it was given to send, because their memory stays valid."""
    tensors, _ = whole({"sizes": (2, 4, 4, 33, 33, 8), "tensors": ("bias",)})
    q, k, v, d_out, bias = (tensors[name].numpy() for name in ("q", "k", "v", "d_out", "bias"))
    out, lse = polyhead.sdpa(q, k, v, bias=bias, causal="top_left", return_lse=True)
    exact = polyhead.sdpa_backward(q, k, v, out, lse, d_out, bias=bias, causal="top_left")

    def of_thread(ranks: Queues) -> Any:
        mine = [take_slice(x, -2, "zigzag", ranks.mine, 3) for x in (q, k, v, d_out, bias)]
        settings: Any = {"order": "zigzag", "plan": [1, 3], "timeout": 60, "causal": "top_left", "bias": mine[4], "num_threads": 1}
        result, of_lse = distributed.sdpa(*mine[:3], ranks, return_lse=True, **settings)
        into = np.empty_like(result)
        assert distributed.sdpa(*mine[:3], ranks, out=into, **settings) is into and np.array_equal(into, result)
        gradients = distributed.sdpa_backward(*mine[:3], result, of_lse, mine[3], ranks, gradients=["q", "bias"], **settings)
        assert gradients.k is None and gradients.v is None
        buffers = ranks.buffers
        assert all(x.dtype == np.uint8 and x.ndim == 1 and x.flags.writeable for x in buffers)
        gc.collect()
        assert sum(int(x.sum()) for x in buffers) > 0  # the buffers can still be read
        assert ranks.steps > 0
        return {"out": result, "lse": of_lse, "d_q": gradients.q, "d_bias": gradients.bias, "text": distributed.explain(*mine[:3], ranks, **settings)}

    results = in_threads(3, of_thread)
    assert not [result for result in results if isinstance(result, Exception)], results
    found = together(results, {"order": "zigzag"}, {"out": out, "lse": lse, "d_q": exact.q, "d_bias": exact.bias})
    for name, of_one in (("out", out), ("lse", lse), ("d_q", exact.q), ("d_bias", exact.bias)):
        assert error(torch.from_numpy(found[name]), torch.from_numpy(of_one)) <= 1e-5, name
    assert "1 head ranks x 3 ring ranks: given by the caller" in results[0]["text"] and "rank 2 of 3: 11 queries" in results[2]["text"]


def test_one_row_says_whether_a_bias_of_one_row_is_shared() -> None:
    """If every rank has one query, a rank's own row and a row shared by all ranks have the same shape."""
    q, k, v = (torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    shared = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(4))

    def of_thread(ranks: Queues) -> Any:
        mine = [take_slice(x, -2, "contiguous", ranks.mine, 3).clone().requires_grad_() for x in (q, k, v)]
        gradients = []
        for one_row in ("own", "shared"):
            bias = shared.clone().requires_grad_()
            attention(*mine, ranks, bias=bias, one_row=one_row, timeout=60).square().sum().backward()  # type: ignore[call-overload]
            gradients.append(bias.grad)
        refused = []
        for name, x in (("bias", shared.clone()), ("sink", torch.zeros(2, 1))):
            try:  # the forward pass must refuse the call, not only the backward pass
                attention(*mine, ranks, **{name: x.requires_grad_()}, timeout=60)  # type: ignore[call-overload]
            except ValueError as refusal:
                refused.append(str(refusal))
            # If the gradient is not requested, the call need not say whether the row is the rank's own or shared.
            attention(*mine, ranks, **{name: x.detach()}, timeout=60).sum().backward()  # type: ignore[call-overload]
            with torch.no_grad():
                attention(*mine, ranks, **{name: x}, timeout=60)  # type: ignore[call-overload]
        return *gradients, refused

    results = in_threads(3, of_thread)
    bias = shared.expand(2, 3, 3).clone().requires_grad_()
    on_one_machine(q, k, v, bias=bias).square().sum().backward()
    assert bias.grad is not None
    assert not [result for result in results if isinstance(result, Exception)], results
    for rank, (own, of_all, refused) in enumerate(results):
        assert error(own, bias.grad[:, rank : rank + 1]) <= 1e-5 and error(of_all, bias.grad.sum(-2, keepdim=True)) <= 1e-5
        assert len(refused) == 2 and "and bias has one row" in refused[0] and "and sink has one row" in refused[1], refused


def test_settings_that_differ_are_named() -> None:
    for name, values, said in (
        ("ranks_per_machine", (1, 3, 1), r"ranks_per_machine differs: 1 on rank 0 and 3 on rank 1"), ("plan", ((1, 3), (1, 3), (3, 1)), "head_ranks differs: 1 on rank 0 and 3 on rank 2"),
        ("order", ("zigzag", "contiguous", "zigzag"), "the order of slices differs"), ("seed", (1, 2, 1), "the seed of dropout differs: 1 on rank 0 and 2 on rank 1"),
    ):  # fmt: skip
        results = in_threads(3, lambda ranks: distributed.sdpa(X, X, X, ranks, dropout=0.5, **({"seed": 1} | {name: values[ranks.mine]})))  # noqa: B023
        assert all(isinstance(result, ValueError) and re.search(said, str(result)) for result in results), results


def silent(seconds: float) -> bool:
    time.sleep(min(seconds, 0.05))
    return False


class Broken(Queues):
    """A communicator of two ranks, where the other rank never answers."""

    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__(0, 2, {})
        self.failure = failure

    def receive(self, buffer: Any, source: int, tag: int) -> Any:
        if self.failure is not None:
            raise self.failure

        class Never:
            def wait(self, seconds: float) -> bool:
                return silent(seconds)

        return Never()


X = np.ones((1, 2, 3, 4), np.float32)


def test_an_exception_of_a_communicator_is_the_cause_of_a_connection_error() -> None:
    ranks = Broken(OSError("the cable is cut"))
    with pytest.raises(ConnectionError, match=r"a message from rank 1 failed: OSError: the cable is cut") as caught:
        distributed.sdpa(X, X, X, ranks)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ValueError, match=r"had an error.*make a new one.*the cable is cut"):
        distributed.sdpa(X, X, X, ranks)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_that_is_no_exception_is_passed_on(failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        distributed.sdpa(X, X, X, Broken(failure))


def test_a_signal_ends_the_wait() -> None:
    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that a shell runs in the background ignores SIGINT
    try:
        threading.Thread(target=interrupt).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            distributed.sdpa(X, X, X, Broken(), timeout=30)
        assert time.monotonic() - begin < 10
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_silent_rank_is_named() -> None:
    begin = time.monotonic()
    with pytest.raises(ConnectionError, match=r"rank 1 has not sent the sizes of its part for .* s \(this is rank 0 of 2; the timeout is 0.5 s\)"):
        distributed.sdpa(X, X, X, Broken(), timeout=0.5)
    assert 0.4 < time.monotonic() - begin < 10
    with pytest.raises(ConnectionError, match="rank 1 has not sent the sizes of its part"):
        attention(*map(torch.from_numpy, (X, X, X)), Broken(), dropout=0.5, timeout=0.5)


def test_two_threads_may_not_use_one_communicator_at_once() -> None:
    ranks = Broken()
    thread = threading.Thread(target=lambda: pytest.raises(ConnectionError, distributed.sdpa, X, X, X, ranks, timeout=2))
    thread.start()
    time.sleep(0.5)
    with pytest.raises(ValueError, match="another thread"):
        distributed.sdpa(X, X, X, ranks)
    thread.join()


def test_wrong_arguments_are_named() -> None:
    ranks = Queues(0, 1, {})
    x = torch.from_numpy(X)
    assert np.array_equal(distributed.sdpa(X, X, X, ranks), polyhead.sdpa(X, X, X))
    for wrong, kind, said in (
        ({"order": "random"}, ValueError, "order is 'random'; it may be 'contiguous', 'zigzag'"), ({"order": None}, TypeError, "order"),
        ({"plan": (2, 1)}, ValueError, "plan has 2 head ranks"), ({"plan": 3}, TypeError, "plan must be"), ({"plan": (1.5, 1)}, TypeError, r"plan\[0\]"),
        ({"timeout": 0}, ValueError, "timeout"), ({"timeout": "3"}, TypeError, "timeout"), ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"one_row": "mine"}, ValueError, "one_row"), ({"ranks_per_machine": 0}, ValueError, "ranks_per_machine"), ({"bais": X}, TypeError, "did you mean 'bias'"),
    ):  # fmt: skip
        for call, array in ((distributed.sdpa, X), (attention, x), (distributed.explain, X)):
            with pytest.raises(kind, match=said):
                call(array, array, array, ranks, **wrong)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"group is of type int.*lacks rank\(\), size\(\)"):
        distributed.sdpa(X, X, X, 3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="not initialised"):
        distributed.sdpa(X, X, X)
    with pytest.raises(TypeError, match="one dtype"):
        attention(x, x.double(), x.double(), ranks)
    with pytest.raises(TypeError, match="Own"):
        attention(x.as_subclass(type("Own", (Tensor,), {})), x, x, ranks)
    with pytest.raises(TypeError, match=r"distributed.sdpa\(\) got an unexpected keyword argument 'causl'.*'causal'"):
        distributed.sdpa(X, X, X, ranks, causl=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^sdpa\(\) got an unexpected keyword argument 'ordre'$|^sdpa\(\) got .*(?!'order')"):
        polyhead.sdpa(X, X, X, ordre=1)  # type: ignore[call-overload]
    assert np.array_equal(distributed.sdpa(X, X, X, ranks), polyhead.sdpa(X, X, X))  # after calls that were refused, a valid call works


def test_gradients_that_do_not_exist_are_refused() -> None:
    x = torch.from_numpy(X).requires_grad_()
    out, lse = attention(x, x, x, Queues(0, 1, {}), return_lse=True)
    for loss in (lse.sum(), out.sum() + lse.sum()):
        with pytest.raises(NotImplementedError, match="lse"):
            loss.backward(retain_graph=True)
    (gradient,) = torch.autograd.grad(attention(x, x, x, Queues(0, 1, {})).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_slices_are_those_of_the_library() -> None:
    assert slice_of("contiguous", 10, 1, 4) == [range(2, 5)] and slice_of("zigzag", 16, 1, 4) == [range(2, 4), range(12, 14)]
    assert slice_of("zigzag", 16, 3, 4) == [range(6, 10)] and slice_of("contiguous", 2, 0, 4) == []
    x = np.arange(2 * 16).reshape(2, 16)
    assert np.array_equal(take_slice(x, 1, "zigzag", 1, 4), x[:, [2, 3, 12, 13]])
    assert take_slice(x, -1, "contiguous", 0, 4).base is not None and take_slice(x[:, :2], 1, "contiguous", 0, 4).shape == (2, 0)
    tensor = torch.arange(16.0, requires_grad=True)
    part = take_slice(tensor, 0, "zigzag", 1, 4)
    assert part.tolist() == [2, 3, 12, 13]
    part.sum().backward()
    assert tensor.grad is not None and tensor.grad.nonzero().flatten().tolist() == [2, 3, 12, 13]
    for wrong in ({"axis": 2}, {"order": "random"}, {"rank": 4}):
        with pytest.raises(ValueError, match="axis|order|rank"):
            take_slice(**({"x": x, "axis": 1, "order": "zigzag", "rank": 0, "ranks": 4} | wrong))  # type: ignore[type-var]


# --- models


class Block(nn.Module):
    """An attention layer with a learned bias of each pair, which calls torch's scaled_dot_product_attention."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.pairs = nn.Parameter(torch.randn(4, length, length))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, self.pairs[:, positions])
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.block = Block(length)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        y: Tensor = self.layer(self.block(x, positions), torch.zeros(x.size(1), x.size(1)), is_causal=True)
        return y


LENGTH = 27


def modelled(model: Model, x: Tensor, positions: Tensor) -> Results:
    y = model(x, positions)
    y.square().sum().backward()
    return {"y": y.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def model_of_rank(group: Group, order: Any) -> Results:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    model = Model(LENGTH)
    x = torch.randn(2, LENGTH, 32, generator=torch.Generator().manual_seed(5))
    positions = torch.tensor([p for part in slice_of(order, LENGTH, rank, ranks) for p in part])
    own = F.scaled_dot_product_attention
    warnings.simplefilter("error", RuntimeWarning)  # sequence_parallel warns if its `with` block contains no call of attention; here the warning is an error
    with sequence_parallel(group, order=order, timeout=60):
        results = modelled(model, take_slice(x, 1, order, rank, ranks), positions)
        with torch.no_grad():
            evaluated = model.eval()(take_slice(x, 1, order, rank, ranks), positions)  # in this mode nn.TransformerEncoderLayer would use a fused kernel
    assert F.scaled_dot_product_attention is own and torch.backends.mha.get_fastpath_enabled()
    for name, parameter in results.items():
        if name != "y":
            dist.all_reduce(parameter, group=group)
    return {name: x.numpy() for name, x in results.items()} | {"evaluated": evaluated.numpy(), "positions": positions.numpy()}


@pytest.mark.parametrize(("order", "ranks"), [("zigzag", 3), ("contiguous", 4)])
def test_a_model_runs_over_ranks_without_a_change(order: str, ranks: int, processes: Processes) -> None:
    model = Model(LENGTH)
    x = torch.randn(2, LENGTH, 32, generator=torch.Generator().manual_seed(5))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
    y = model.layer(model.block(x, torch.arange(LENGTH)), mask, is_causal=True)
    y.square().sum().backward()
    for result in processes.run(model_of_rank, order, ranks=ranks):
        where = torch.from_numpy(result["positions"])
        for name in ("y", "evaluated"):
            assert error(torch.from_numpy(result[name]), y.detach()[:, where]) <= 1e-5, name
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert error(torch.from_numpy(result[name]), parameter.grad) <= 1e-5, name


def test_a_block_brings_torchs_functions_back() -> None:
    own = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
    x = torch.randn(1, 2, 5, 8)
    first, second = Queues(0, 1, {}), Queues(0, 1, {})
    with pytest.raises(ZeroDivisionError), sequence_parallel(first):
        with sequence_parallel(second, order="zigzag"):
            F.scaled_dot_product_attention(x, x, x)
            assert not first.__dict__.get("_polyhead_ranks")
        inner = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        assert torch.allclose(inner, own[0](x, x, x, is_causal=True), atol=1e-6) and first.__dict__.get("_polyhead_ranks")
        1 / 0  # noqa: B018
    assert (F.scaled_dot_product_attention, F.multi_head_attention_forward) == own and torch.backends.mha.get_fastpath_enabled()
    with pytest.warns(RuntimeWarning, match="no call"), sequence_parallel(first):
        pass


def test_calls_that_cannot_be_sliced_are_refused_by_name() -> None:
    x = torch.randn(2, 5, 8)
    layer, adding = nn.MultiheadAttention(8, 2, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
    from torch.nn.attention.bias import causal_upper_left

    with sequence_parallel(Queues(0, 1, {})):
        layer(x, x, x, need_weights=False)
        for call, said in (
            (lambda: layer(x, x, x), "need_weights=True"), (lambda: adding(x, x, x, need_weights=False), "bias_k"),
            (lambda: layer(x, x, x, need_weights=False, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool)), "key_padding_mask"),
            (lambda: F.scaled_dot_product_attention(x, x, x, causal_upper_left(5, 5)), "CausalBias"),
        ):  # fmt: skip
            with pytest.raises(NotImplementedError, match=f"sequence_parallel: .*{said}"):
                call()
        with pytest.raises(ValueError, match="attn_mask and is_causal"):
            F.scaled_dot_product_attention(x, x, x, torch.zeros(5, 5), is_causal=True)


# --- ranks that fail


def failing(group: Group, how: str) -> tuple[str, str, float, str]:
    rank = dist.get_rank(group)
    x = torch.randn(1, 4, 8, 16)
    attention(x, x, x, group, plan=(1, 3), timeout=60)
    if rank == 2:
        if how == "dies":
            os._exit(0)
        if how == "dies in a call":
            sent = 0
            communicator = of_group("test", group)
            send = communicator.send

            def mortal(buffer: Any, to: int, tag: int) -> Any:
                nonlocal sent
                sent += 1
                return send(buffer, to, tag) if sent <= 4 else os._exit(0)  # the first 4 messages compare the arguments of the ranks; the rank dies when it would send keys

            communicator.send = mortal  # type: ignore[method-assign]
        if how == "sleeps":
            time.sleep(6)
            return "", "", 0.0, ""
        if how == "has other sizes":
            x = torch.randn(1, 4, 8, 32)
    timeout = 3 if how == "sleeps" else 60
    begin = time.monotonic()
    try:
        attention(x, x, x, group, plan=(1, 3), timeout=timeout)
    except (ConnectionError, ValueError) as caught:
        seconds, kind, text, after = time.monotonic() - begin, type(caught).__name__, str(caught), "works"
        x = torch.randn(1, 4, 8, 16)
        try:
            attention(x, x, x, group, plan=(1, 3), timeout=timeout)
        except ValueError as refused:
            after = str(refused)
        return kind, text, seconds, after
    return "no error", "", 0.0, ""


@pytest.mark.parametrize("how", ["dies", "dies in a call", "sleeps", "has other sizes"])
def test_a_rank_that_fails_is_named_on_all_others(how: str, tmp_path: Path) -> None:
    processes = Processes(3, tmp_path)
    *others, last = processes.run(failing, how)
    codes = processes.close()
    for kind, text, seconds, after in others:
        if how == "has other sizes":
            assert kind == "ValueError" and "the width of a query head differs: 16 on rank 0 and 32 on rank 2" in text and after == "works"
        else:
            assert kind == "ConnectionError" and re.search(r"rank 2\b", text) and "make a new one" in after, text
            assert ("the timeout is 3 s" in text) == (how == "sleeps"), text
            assert seconds < 60, text  # the other ranks notice that a rank has ended before the timeout
    assert (last is None) == how.startswith("dies")
    assert codes == [0, 0, 0]


SLOW = """
import datetime, os, sys, time
import torch, torch.distributed as dist
from polyhead.distributed import attention
rank, store = int(sys.argv[1]), sys.argv[2]
x = torch.randn(1, 2, 4, 8)
for destroys in (True, False):
    open(f"{store}{destroys}{rank}", "w").close()
    while not os.path.exists(f"{store}{destroys}{1 - rank}"): time.sleep(0.01)  # wait for the other rank: on a busy machine, importing torch may take longer than the timeout
    dist.init_process_group("gloo", store=dist.FileStore(f"{store}{destroys}", 2), rank=rank, world_size=2, timeout=datetime.timedelta(seconds=4))
    for _ in range(2):
        if rank == 1: time.sleep(1.2)  # after 1 s, rank 0 begins to wait for the message that rank 1 would send if it left; this message never comes
        attention(x, x, x)
        time.sleep(1.5)  # the two rounds together take longer than the timeout of the group
    attention(x, x, x)
    if destroys: dist.destroy_process_group()
"""


def test_a_slow_rank_does_no_harm_even_to_the_end_of_a_process(tmp_path: Path) -> None:
    """A thread of rank 0 still waits for a message when the process ends. This thread must neither close the connections of the group nor abort the process."""
    for done in forked_python.run_together(SLOW, [((str(rank), str(tmp_path / "store")), os.environ) for rank in range(2)], PATIENCE):
        assert done.returncode == 0, done.stdout + done.stderr


MPI = """
import numpy as np, sys
import polyhead
from polyhead.distributed import MpiCommunicator, sdpa, take_slice
ranks = MpiCommunicator()
x = np.random.default_rng(0).standard_normal((2, 4, 30, 8), dtype=np.float32)
mine = take_slice(x, 2, "zigzag", ranks.rank(), ranks.size())
for plan in ((1, 3), (3, 1)):
    y = sdpa(mine, mine, mine, ranks, order="zigzag", plan=plan, causal="top_left", timeout=60)
    assert np.allclose(y, take_slice(polyhead.sdpa(x, x, x, causal="top_left"), 2, "zigzag", ranks.rank(), ranks.size()), atol=1e-6)
if ranks.rank() == 0:
    transfer = ranks.send(np.zeros(3, np.uint8), 1, 5)
elif ranks.rank() == 1:
    transfer = ranks.receive(np.zeros(4, np.uint8), 0, 5)
    try:
        while not transfer.wait(0.1): pass
    except ValueError as error:
        assert "rank 0 sent 3 bytes, and 4 were expected" in str(error)
    else:
        sys.exit("a short message is not noticed")
sys.stdout.write(f"right on rank {ranks.rank()}\\n")
"""


def test_mpi() -> None:
    try:
        from mpi4py import MPI as _  # noqa: F401
    except (ImportError, RuntimeError) as missing:
        # mpi4py is an optional dependency of polyhead and needs an MPI library. scripts/test installs both.
        pytest.skip(f"mpi4py cannot be imported: {missing}")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        # A machine may have MPI's library without mpirun, the only way to start ranks.
        pytest.skip("mpirun is not installed")
    # Settings with which Open MPI runs as root in a container, and with more ranks than processors.
    names = {"ALLOW_RUN_AS_ROOT": "1", "ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MCA_rmaps_base_oversubscribe": "1", "MCA_plm": "isolated", "MCA_btl_vader_single_copy_mechanism": "none"}
    environment = os.environ | {f"OMPI_{name}": value for name, value in names.items()}
    result = subprocess.run([mpirun, "-n", "3", sys.executable, "-c", MPI], capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == 0 and all(f"right on rank {rank}" in result.stdout for rank in range(3)), result.stdout + result.stderr
