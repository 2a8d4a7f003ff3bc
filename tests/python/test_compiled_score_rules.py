"""Compiled score rules: the same bits as interpreted ones, and the numbers of torch in float64. Skipped without llvmlite."""

from __future__ import annotations

import random
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


def inputs(dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, N, length, H, dtype=torch.float64, generator=generator).to(dtype) * 1.2 for length in (T, S, S)]


def results(score_mod: Callable[..., Any], seed: int, captured: list[Tensor], dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """out, lse, and the gradients of q, k, v and of the captured tensors."""
    leaves = [x.requires_grad_() for x in inputs(dtype, seed)] + captured
    out, lse = attention(*leaves[:3], score_mod=score_mod, return_lse=True, **options)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    return [out, lse, *torch.autograd.grad(out, leaves, d_out, allow_unused=True, materialize_grads=True)]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x.nan_to_num(nan=12345.0), y.nan_to_num(nan=12345.0)) for x, y in zip(a, b, strict=True))


class Graph:
    """A random score_mod of smooth and other operations, with captured tables. Every value stays small, so that float64 errors do."""

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
    threads = polyhead.num_threads()
    polyhead.set_num_threads(1)
    try:
        assert same_bits(compiled, results(graph, seed, graph.captured(), dtype, **options))
    finally:
        polyhead.set_num_threads(threads)
    if dtype == torch.float64 and not options:
        graph.draw.seed(seed)
        leaves = [x.requires_grad_() for x in inputs(dtype, seed)] + graph.captured()
        torch.set_default_dtype(torch.float64)  # eager torch multiplies integers by a Python number in the default dtype
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
    """No operation that the library puts into runs is unknown to the compiler."""
    arithmetic = [op for op in _core.score_ops() if op in _score_runs._OPERATIONS]
    rows, tables = [(_core.score_ops().index(name), -1, -1, -1, -1, -1, 0.0) for name in ("score", "key")], []
    for op in arithmetic:
        rows += [(_core.score_ops().index(op), -1, len(rows) - 1, 0, 1, -1, 0.0)] if op == "select" else [(_core.score_ops().index(op), -1, len(rows) - 1, 0, -1, -1, 0.0)]
    program = _core.ScoreProgram(rows, tables, len(rows) - 1, -1, [], 0)
    (run,) = program.runs(False)
    assert all(f"; {op} " in run for op in arithmetic) and len(arithmetic) == 18
