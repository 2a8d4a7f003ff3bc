"""Compiled score rules: the same bits as interpreted ones, and the numbers of torch in float64. Skipped without llvmlite."""

from __future__ import annotations

import builtins
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import polyhead
from effort import QUICK
from polyhead import _core, _score_runs
from polyhead.torch import attention, explain_score_mod
from test_flex_attention import dense

B, N, T, S, H = 2, 3, 37, 150, 8

needs_llvmlite = pytest.mark.skipif(not polyhead.score_compiler().name, reason=f"score rules are interpreted: {polyhead.score_compiler().reason}")


@pytest.fixture(autouse=True)
def compiled_again() -> Iterator[None]:
    yield
    polyhead.set_score_compiler(True)
    assert not _score_runs._failure


def inputs(dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, N, length, H, dtype=torch.float64, generator=generator).to(dtype) * 1.2 for length in (T, S, S)]


def results(score_mod: Callable[..., Any], seed: int, captured: list[Tensor], dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Returns out, lse, and the gradients of q, k, v and the captured tensors."""
    leaves = [x.requires_grad_() for x in inputs(dtype, seed)] + captured
    out, lse = attention(*leaves[:3], score_mod=score_mod, return_lse=True, **options)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    return [out, lse, *torch.autograd.grad(out, leaves, d_out, allow_unused=True, materialize_grads=True)]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x.nan_to_num(nan=12345.0), y.nan_to_num(nan=12345.0)) for x, y in zip(a, b, strict=True))


class Graph:
    """A random score_mod of smooth and other operations, with captured tables. Every value stays small, so that float64 errors are small, too."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.slopes, self.table, self.pairs = (torch.rand(*shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for shape in ((N,), (N, T + S - 1), (T, S)))
        self.document = torch.randint(0, 4, (S,), generator=generator)
        self.choices = [self.draw.random() for _ in range(60)]
        self.depth = self.draw.randint(3, 9)

    def captured(self) -> list[Tensor]:
        return [self.slopes, self.table, self.pairs]

    def __call__(self, score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        pick = iter(self.choices * 8)

        def one_of(*values: Callable[[], Any]) -> Any:
            return values[int(next(pick) * len(values))]()

        values = [score, (q - k) * 0.01, (k - q).abs() * 0.02 + score * 0.5]
        for _ in range(self.depth):
            x, y = (values[int(next(pick) * len(values))] for _ in range(2))
            values.append(
                one_of(
                    lambda: x + y, lambda: x - 0.5 * y, lambda: torch.tanh(x) * torch.tanh(y), lambda: x / (1 + y * y), lambda: torch.maximum(x, y), lambda: torch.minimum(x, -y),
                    lambda: torch.where(x < y, x, y * 0.25), lambda: (x.abs() + 0.1).sqrt(), lambda: x.abs() - y, lambda: torch.sigmoid(x) + y, lambda: x * self.slopes[h], lambda: x + self.table[h, k - q + T - 1],
                    lambda: x - self.table[h, q - k + S - 1], lambda: x + self.pairs[q, k], lambda: torch.where((self.document[k] == b) & (x > -1), y, x), lambda: x - torch.floor(y) * 0.1,
                    lambda: torch.exp(-x * x) + y, lambda: x.clamp(-1, 1.5) + torch.round(y) * 0.1, lambda: torch.where(~(x <= y) | (k > q), x * 0.5, y), lambda: torch.erf(x) + torch.sin(y),
                )  # fmt: skip
            )
            values[-1] = torch.tanh(values[-1] * 0.2) * 4 if self.draw.random() < 0.3 else values[-1]
        return score * 0.3 + values[-1]


@needs_llvmlite
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(12 if QUICK else 60))
def test_random_graphs(seed: int, dtype: torch.dtype) -> None:
    graph = Graph(seed, dtype)
    options: dict[str, Any] = random.Random(seed).choice([{}, {"causal": "bottom_right"}, {"key_lengths": torch.tensor([S, 91])}, {"window": (20, 9)}, {"softcap": 3.0}])
    graph.draw.seed(seed)
    polyhead.set_score_compiler(False)
    interpreted = results(graph, seed, graph.captured(), dtype, **options)
    polyhead.set_score_compiler(True)
    graph.draw.seed(seed)
    compiled = results(graph, seed, graph.captured(), dtype, **options)
    assert same_bits(interpreted, compiled)
    graph.draw.seed(seed)
    assert ", 0 interpreted" in explain_score_mod(graph, dtype=dtype, heads=N) or len(_score_runs._provided) == _core.most_score_run_functions
    graph.draw.seed(seed)
    threads = polyhead.num_threads()
    polyhead.set_num_threads(1)
    try:
        assert same_bits(compiled, results(graph, seed, graph.captured(), dtype, **options))
    finally:
        polyhead.set_num_threads(threads)
    if dtype == torch.float64 and not options:
        graph.draw.seed(seed)
        leaves = [x.requires_grad_() for x in inputs(dtype, seed)] + graph.captured()
        torch.set_default_dtype(torch.float64)  # eager torch computes the product of an integer tensor and a Python number in the default dtype
        try:
            exact, _ = dense(*leaves[:3], graph, None)
        finally:
            torch.set_default_dtype(torch.float32)
        d_out = torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
        theirs = torch.autograd.grad(exact, leaves, d_out, allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(compiled[0], exact.detach(), rtol=1e-11, atol=1e-12)
        for mine, other in zip(compiled[2:], theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


@needs_llvmlite
def test_errors_of_arithmetic_follow_ieee() -> None:
    """Divisions by zero, infinities, NaN and roots of negative numbers, some of which are masked."""

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(k == 3, score / (q - q), torch.where(k == 5, (score - 9).sqrt(), torch.where(k == 7, score - float("inf"), score)))

    for options in ({}, {"key_lengths": torch.tensor([3, 8])}):
        polyhead.set_score_compiler(False)
        interpreted = results(score_mod, 1, [], torch.float32, **options)
        polyhead.set_score_compiler(True)
        assert same_bits(interpreted, results(score_mod, 1, [], torch.float32, **options))


@needs_llvmlite
def test_functions_are_kept_for_equal_graphs_and_other_constants() -> None:
    def rule(factor: float) -> Callable[..., Any]:
        return lambda score, b, h, q, k: score * factor - (q - k).abs() * 0.5 * factor + (score * score) / (3 + score * score)

    results(rule(0.3), 1, [], torch.float32)
    before = polyhead.score_compiler()
    results(rule(0.4), 1, [], torch.float32)
    assert polyhead.score_compiler() == before and before.functions > 0 and before.seconds > 0


@needs_llvmlite
def test_explain_says_what_is_compiled() -> None:
    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (score * 1.25 + 2) / (1 + (score - 0.375) * score)

    polyhead.set_score_compiler(False)
    text = explain_score_mod(score_mod)
    assert "0 compiled, 2 interpreted" in text and "compiler: none, because set_score_compiler(False) was called" in text
    polyhead.set_score_compiler(True)
    text = explain_score_mod(score_mod)
    assert "2 compiled, 0 interpreted" in text and "compiler: llvmlite" in text and "compiled now: 2 in" in text
    assert "compiled now" not in explain_score_mod(score_mod)


@needs_llvmlite
def test_a_compiler_that_fails_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory may be executed")

    monkeypatch.setattr(_score_runs, "_compiled", fail)
    monkeypatch.setattr(_score_runs, "_failure", "")
    out = results(lambda score, b, h, q, k: score * 1.5 + 0.125 * score * (score + 7), 1, [], torch.float32)
    assert out[0].isfinite().all() and polyhead.score_compiler().reason == "llvmlite failed: no memory may be executed"


def test_without_llvmlite_rules_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_score_runs, "_compiler", lambda: "llvmlite is not installed")
    assert polyhead.score_compiler()[:2] == ("", "llvmlite is not installed")
    assert results(lambda score, b, h, q, k: score * 1.75 + 0.25 * score * (score + 5), 1, [], torch.float32)[0].isfinite().all()


@needs_llvmlite
def test_every_operation_of_runs_is_compiled() -> None:
    """The compiler knows every operation that the library puts into runs."""
    arithmetic = _core.score_run_ops()
    assert set(arithmetic) == set(_score_runs._OPERATIONS)
    rows, tables = [(_core.score_ops().index(name), -1, -1, -1, -1, -1, 0.0) for name in ("score", "key")], []
    for op in arithmetic:
        rows += [(_core.score_ops().index(op), -1, len(rows) - 1, 0, 1, -1, 0.0)] if op == "select" else [(_core.score_ops().index(op), -1, len(rows) - 1, 0, -1, -1, 0.0)]
    program = _core.ScoreProgram(rows, tables, len(rows) - 1, -1, [], 0)
    (run,) = program.runs(False)
    assert all(f"; {op} " in run for op in arithmetic) and len(arithmetic) == 18


def in_process(code: str, timeout: int = 300) -> str:
    """Runs the code in a new Python process and returns what it prints. Fails unless the process exits with 0: a faulty compiled function would crash it, not raise an exception."""
    head = "from polyhead import _core, _score_runs\nimport polyhead\n"
    found = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=timeout, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert found.returncode == 0, (found.returncode, found.stdout, found.stderr[-2000:])
    return found.stdout.strip()


FIRST, SECOND, THIRD = '"float32 vv; add 0 1; multiply 2 0; 3"', '"float32 vv; add 0 1; multiply 2 1; 3"', '"float32 vv; add 0 1; multiply 2 2; 3"'


@needs_llvmlite
def test_an_engine_that_is_freed_leaves_the_others() -> None:
    """llvmlite frees the target machine together with its engine, so each engine must have a separate target machine."""
    assert in_process(
        f"""
import gc
found = _score_runs._compiler()
for i in range(3):
    engine = _score_runs._compiled(*found, [_score_runs._function("run0", {FIRST})])
    assert engine.get_function_address("run0")
    del engine
    gc.collect()
print(_score_runs.compile_runs([{SECOND}]), _score_runs.compile_runs([{SECOND}, {THIRD}]), _score_runs.compile_runs([{THIRD}]), polyhead.score_compiler().functions)
"""
    ) == "True True True 2"


@needs_llvmlite
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_MDWE is of Linux")
def test_rules_are_interpreted_where_memory_may_not_become_executable() -> None:
    for earlier in ("", "polyhead.score_compiler()\n"):  # with and without a use of the compiler before executable memory is forbidden
        found = in_process(
            f"""
import ctypes
{earlier}if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0) != 0:  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    print("refused by the kernel")
else:
    print(_score_runs.compile_runs([{FIRST}]), polyhead.score_compiler().name == "", polyhead.score_compiler().reason)
"""
        )
        if found == "refused by the kernel":
            pytest.skip("Linux before 6.3 has no PR_SET_MDWE")
        assert found.startswith("False True llvmlite") and "cannot allocate executable memory" in found


@needs_llvmlite
def test_code_stays_if_an_exception_interrupts_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an exception interrupts the compiler, the library may already have the address of a compiled function, so the function must not be freed."""
    provided, engines = _core.provide_score_run, len(_score_runs._engines)

    def interrupted(text: str, address: int) -> bool:
        provided(text, address)
        raise KeyboardInterrupt

    monkeypatch.setattr(_core, "provide_score_run", interrupted)
    text = "float32 vs; subtract 0 1; multiply 2 2; add 3 1; minimum 4 0; 5"
    with pytest.raises(KeyboardInterrupt):
        _score_runs.compile_runs([text])
    assert len(_score_runs._engines) == engines + 1
    monkeypatch.undo()
    assert _score_runs.compile_runs([text])


@needs_llvmlite
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_while_a_thread_compiles_compiles_too() -> None:
    assert in_process(
        f"""
import os, threading, time
own, entered = _score_runs._compiled, threading.Event()
def slow(*given):
    entered.set()
    time.sleep(0.5)
    return own(*given)
_score_runs._compiled = slow
thread = threading.Thread(target=_score_runs.compile_runs, args=([{FIRST}],))
thread.start()
entered.wait()
child = os.fork()
if child == 0:
    _score_runs._compiled = own
    os._exit(0 if _score_runs.compile_runs([{SECOND}]) else 3)
for _ in range(300):
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
thread.join()
print(pid == child, status)
"""
    ) == "True 0"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite"), "llvmlite is not installed"),
        (ModuleNotFoundError("No module named 'other'", name="other"), "llvmlite cannot be imported (No module named 'other')"),
        (OSError("Could not find/load shared object file"), "llvmlite cannot be imported (Could not find/load shared object file)"),
    ],
)
def test_a_broken_llvmlite_is_not_needed(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.__import__

    def fail(name: str, *given: Any, **more: Any) -> Any:
        if name.split(".")[0] == "llvmlite":
            raise error
        return own(name, *given, **more)

    monkeypatch.setattr(_score_runs, "_compiler", _score_runs._compiler.__wrapped__)
    monkeypatch.setattr(builtins, "__import__", fail)
    assert polyhead.score_compiler()[:2] == ("", reason)
    assert _score_runs.compile_runs([f"float32 vs; {error.__class__.__name__}"]) is False


@needs_llvmlite
def test_no_more_functions_are_compiled_than_the_library_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of compiled functions is limited. If one more is allowed, only the first of three texts is compiled, and a second call compiles nothing."""
    monkeypatch.setattr(_score_runs._core, "most_score_run_functions", len(_score_runs._provided) + 1)
    texts = [f"float64 vs; add 0 1; {op} 2 1; subtract 3 1; maximum 4 0; 5" for op in ("minimum", "add", "divide")]
    assert _score_runs.compile_runs(texts) and texts[0] in _score_runs._provided and texts[1] not in _score_runs._provided

    def fail(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(_score_runs, "_compiled", fail)
    assert _score_runs.compile_runs(texts) and not _score_runs.compile_runs(texts[1:])


@needs_llvmlite
def test_each_of_threads_with_one_rule_gets_its_function() -> None:
    found: list[bool] = []
    start = threading.Barrier(4)
    text = "float32 vs; divide 0 1; subtract 2 0; add 3 1; maximum 4 0; 5"

    def work() -> None:
        start.wait()
        found.append(_score_runs.compile_runs([text]))

    before = polyhead.score_compiler().functions
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4 and polyhead.score_compiler().functions == before + 1
