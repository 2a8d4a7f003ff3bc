#!/usr/bin/env python3
"""Runs PyTorch's own tests of FlexAttention on the CPU, with polyhead in the place of the compiled FlexAttention.

The tests are test/inductor/test_flex_attention.py of PyTorch's repository, which is not part of polyhead: take the file of the release that is installed. In that file a
test compares `torch.compile(flex_attention)` with the eager FlexAttention, or with its float64 result. Here every function that the file compiles calls
`polyhead.torch.attention` instead, and the eager calls stay FlexAttention's. A test that compiles nothing runs with polyhead in its eager calls.

Tests that PyTorch skips on CPUs, because FlexAttention has no backward pass there, run too, and tests that compare gradients on GPUs compare them here. A test passes if
polyhead was called and the assertions hold. The output lists the other tests: refused (polyhead raised an error; the message follows), skipped (with the reason) and failed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import re
import sys
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch._dynamo.testing
import torch.testing._internal.common_device_type as device_types
from torch.nn.attention import flex_attention as flex

import polyhead
from polyhead.torch import attention

eager = flex.flex_attention

# What a test is about if its source matches; the first match counts.
REASONS = {
    r"run_and_get_code|FileCheck|print_readable|make_fx|EagerAndRecordGraphs|num_bytes_accessed": "reads the code or the graph that the compiler makes",
    r"InductorError|Buffers cannot be created|divisible by BLOCK_M": "expects an error of the compiler",
    r"cuda:|CUDAGraph|TEST_MULTIGPU|gpu_tensor": "needs a GPU",
    r"BACKEND|LOGGING_FILE|USE_FLEX_ATTENTION\": False|TMA\": False": "about kernel_options",
    r"_WARNINGS_SHOWN|as_strided was called|_compiled_autograd": "about warnings and the dispatch of FlexAttention",
    r"\.compile\(mode=|counters\[": "about the compiler's own counters",
    r"BlockMask q_indices is None": "expects an error of FlexAttention for what polyhead computes",
    r"selective_checkpoint": "about the checkpoints of an operator of FlexAttention",
}


class AnyCount:
    """Stands for the number of compilations, which a test compares with the one it expects of the compiler."""


class Calls:
    """Decides whether a call of flex_attention goes to polyhead, and counts the calls that did."""

    def __init__(self) -> None:
        self.inside = self.everywhere = False
        self.start()

    def start(self) -> None:
        self.calls, self.refusals, self.not_eager = 0, list[str](), ""

    @contextmanager
    def compiled(self) -> Iterator[None]:
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    def flex_attention(
        self, query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False,
        return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        if not (self.inside or self.everywhere):
            # FlexAttention refuses gradients on CPUs, though its eager formulas have them. Without gradients no compilation of the eager formulas is needed.
            gradients = torch.is_grad_enabled()
            with mock.patch.object(flex, "_validate_device", lambda *_: None), mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", not gradients):
                try:
                    return eager(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux=return_aux)
                except NotImplementedError as error:
                    self.not_eager = str(error)
                    raise
        self.calls += 1
        if return_aux is not None and return_aux.max_scores:
            raise self.refusal(NotImplementedError("attention has no max_scores (asked for by return_aux)"))
        lse = return_lse or (return_aux is not None and return_aux.lse)
        if key.size(0) == 1 and query.size(0) > 1:  # FlexAttention broadcasts keys and values of one sequence
            key, value = key.expand(query.size(0), -1, -1, -1), value.expand(query.size(0), -1, -1, -1)
        try:
            result = attention(query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale, return_lse=lse)
        except Exception as error:
            raise self.refusal(error)
        if return_aux is None:
            return result
        return (result[0], flex.AuxOutput(lse=result[1])) if lse else (result, flex.AuxOutput())

    def refusal(self, error: Exception) -> Exception:
        self.refusals.append(f"{type(error).__name__}: {error}")
        return error

    def compile(self, function: Any = None, **_: Any) -> Any:
        """In the place of torch.compile."""
        if function is None:
            return self.compile

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.compiled():
                return function(*args, **kwargs)

        return run


class CompileCounter:
    def __init__(self, *_: Any) -> None:
        self.frame_count = AnyCount()


class Torch:
    """The module torch as the test file sees it: with another compile."""

    def __init__(self, calls: Calls) -> None:
        self.compile = calls.compile

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class AllDevices:
    def __contains__(self, device: object) -> bool:
        return True


def load(path: Path, calls: Calls) -> ModuleType:
    """Imports the test file with the replacements; its classes are made for the CPU alone."""
    make_tests, skip_unless = device_types.instantiate_device_type_tests, unittest.skipUnless

    def for_cpu(generic: Any, scope: Any, **_: Any) -> None:
        make_tests(generic, scope, only_for=("cpu",))

    def unless(condition: Any, reason: str) -> Any:
        return skip_unless(condition or "A100" in reason, reason)

    def same(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda test: test

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with (
        mock.patch.object(device_types, "instantiate_device_type_tests", for_cpu),
        mock.patch.object(device_types, "skipCPUIf", same),
        mock.patch.object(device_types, "largeTensorTest", same),
        mock.patch.object(unittest, "skipUnless", unless),
        mock.patch.object(torch, "compile", calls.compile),
    ):
        spec.loader.exec_module(module)
    create = module.create_block_mask

    def uncompiled(*args: Any, _compile: bool = False, **kwargs: Any) -> Any:
        return create(*args, **kwargs)

    for name, replacement in (("torch", Torch(calls)), ("create_block_mask", uncompiled), ("DEVICE_SUPPORTS_BACKWARDS", AllDevices()), ("CompileCounterWithBackend", CompileCounter)):
        setattr(module, name, replacement)
    return module


SOURCES: dict[str, dict[str, str]] = {}


def read_sources(path: Path) -> None:
    """Finds the source of each test in the file, since the instantiated tests do not lead to it."""
    text = path.read_text()
    lines = text.splitlines()
    for kind in ast.parse(text).body:
        if isinstance(kind, ast.ClassDef):
            tests = [node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
            SOURCES[kind.name + "CPU"] = {node.name: "\n".join(lines[min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1 : node.end_lineno]) for node in tests}


def source_of(test: unittest.TestCase) -> str:
    """The source of the test in the file: its name is the longest one that the name of the instantiated test begins with."""
    names = [name for name in SOURCES.get(type(test).__name__, {}) if re.match(name + r"(_|$)", test._testMethodName)]
    return SOURCES[type(test).__name__][max(names, key=len)] if names else ""


def run_once(test: unittest.TestCase, calls: Calls, everywhere: bool) -> tuple[str, str]:
    """What became of a test, and why."""
    calls.start()
    calls.everywhere = everywhere
    result = unittest.TestResult()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    problems = result.errors + result.failures
    if not problems:
        return ("passed" if calls.calls else "no call"), "expected failure" if result.expectedFailures else ""
    text = problems[0][1].strip()
    last = next((line for line in text.splitlines()[::-1] if re.match(r"[\w.]*(Error|Exception)\b", line)), text.splitlines()[-1])
    if calls.not_eager:
        return "skipped", f"FlexAttention itself refuses on CPUs: {calls.not_eager}"
    if "does not match" in text and calls.refusals:
        return "refused", f"{calls.refusals[-1]} (the test expects an error, in other words)"
    if calls.refusals:
        return "refused", calls.refusals[-1]
    if "attention: " in last or "polyhead has no" in last:
        return "refused", last
    return "failed", text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="test_flex_attention.py of PyTorch's repository")
    parser.add_argument("-k", dest="pattern", default="", help="run the tests whose name contains this regular expression")
    parser.add_argument("--verbose", action="store_true", help="print every test and its time")
    given = parser.parse_args()

    calls = Calls()
    flex.flex_attention = calls.flex_attention
    torch._dynamo.testing.CompileCounterWithBackend = CompileCounter  # type: ignore[assignment,misc]
    read_sources(given.path)
    module = load(given.path, calls)

    counts: Counter[str] = Counter()
    reasons: dict[str, dict[str, list[str]]] = {kind: {} for kind in ("refused", "skipped", "failed")}
    tests: list[Any] = [test for name, kind in sorted(vars(module).items()) if name.endswith("CPU") and isinstance(kind, type) for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind)]
    for test in tests:
        name = f"{type(test).__name__}.{test._testMethodName}"
        if not re.search(given.pattern, name):
            continue
        equal = test.assertEqual
        test.assertEqual = lambda x, y, *args, equal=equal, **kwargs: None if AnyCount in (type(x), type(y)) else equal(x, y, *args, **kwargs)
        begin = time.perf_counter()
        why = next((reason for pattern, reason in REASONS.items() if re.search(pattern, source_of(test))), None)
        kind, text = ("skipped", why) if why else run_once(test, calls, False)
        if kind == "no call":
            kind, text = run_once(test, calls, True)
            if kind == "no call":
                kind, text = "skipped", "does not call flex_attention"
        counts[kind] += 1
        if kind in reasons:
            reasons[kind].setdefault(text, []).append(name)
        if given.verbose:
            print(f"{kind:8} {time.perf_counter() - begin:6.2f} s  {name}", flush=True)
    for kind, found in reasons.items():
        for text, names in sorted(found.items()):
            shown = names if kind == "failed" or len(names) < 4 else [*names[:3], f"and {len(names) - 3} more"]
            print(f"\n{kind} {len(names)}: {text}\n    " + "\n    ".join(shown))
    print(f"\npolyhead {polyhead.__version__}, torch {torch.__version__}: " + ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "refused", "skipped", "failed")))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
