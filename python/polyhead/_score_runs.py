"""Compiles parts of score programs, if llvmlite (numba's binding of LLVM) is installed. Such a part, a run, is a sequence of arithmetic instructions (see
`polyhead::provide_score_run`). A run that is not compiled is interpreted, with the same bits. A compiled function lives as long as the process, so equal runs
are compiled only once."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _core

__all__ = ["score_compiler", "set_score_compiler"]


class ScoreCompiler(NamedTuple):
    """Which compiler compiles score rules (``score_mod``, ``score_fn``) in this process, and how much it has compiled.

    Args:
        name: the compiler, such as "llvmlite 0.50.0"; empty if score rules are interpreted.
        reason: why score rules are interpreted; empty if they are compiled.
        functions: number of functions compiled so far.
        seconds: time in seconds that loading the compiler and compiling the functions took.
    """

    name: str
    reason: str
    functions: int
    seconds: float


# This lock is held while llvmlite works, and a fork waits for the lock. Otherwise llvmlite's own lock could stay locked forever in the forked process, because
# the thread that holds it does not exist there.
_lock = threading.RLock()  # reentrant, because a signal handler may fork in the thread that compiles
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_engines: list[Any] = []  # the engines that own the machine code of the functions
_OLDEST = (0, 45)  # the first version of llvmlite that has untyped pointers and create_pass_builder
_provided: set[str] = set()  # texts of the runs for which the library has a function
_wanted = True
_functions, _seconds = 0, 0.0
_failure = ""


@functools.cache
def _compiler() -> Any:
    """Returns (llvmlite.binding, a function that makes a target machine), or a text that says why there is no compiler."""
    global _seconds
    start = time.perf_counter()
    try:
        import llvmlite
        import llvmlite.binding as llvm
    except Exception as error:  # for example OSError, if LLVM's library cannot be loaded
        return "llvmlite is not installed" if isinstance(error, ModuleNotFoundError) and error.name == "llvmlite" else f"llvmlite cannot be imported ({error})"
    try:
        if tuple(map(int, llvmlite.__version__.split(".")[:2])) < _OLDEST:
            return f"llvmlite {llvmlite.__version__} is installed, which is older than {'.'.join(map(str, _OLDEST))}"
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        machine = functools.partial(target.create_target_machine, cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True)
        machine()
        llvm.check_jit_execution()
    except Exception as error:
        return f"llvmlite {llvmlite.__version__} does not compile for this machine ({error})"
    _seconds += time.perf_counter() - start
    return llvm, machine


def set_score_compiler(wanted: bool) -> None:
    """Sets whether later calls compile score rules (``score_mod``, ``score_fn``). By default they do, if llvmlite is installed.

    Args:
        wanted: True: score rules are compiled if llvmlite is installed. False: they are interpreted, except those that are compiled already.

    Raises:
        TypeError: wanted is not a bool.
    """
    global _wanted
    if not isinstance(wanted, bool):
        raise TypeError(f"set_score_compiler: wanted is of type {type(wanted).__name__}; it must be a bool")
    _wanted = wanted


def score_compiler() -> ScoreCompiler:
    """Which compiler compiles each ``score_mod`` and ``score_fn`` in this process, and how much time that has taken so far. Results have the same bits with and
    without a compiler.

    Returns:
        The name of the compiler, or the reason why there is none; the number of compiled functions; the time in seconds.
    """
    with _lock:
        found = _compiler() if _wanted else "set_score_compiler(False) was called"
    if isinstance(found, str):
        return ScoreCompiler("", found, _functions, _seconds)
    if _failure:
        return ScoreCompiler("", _failure, _functions, _seconds)
    import llvmlite

    return ScoreCompiler(f"llvmlite {llvmlite.__version__}", "", _functions, _seconds)


def compile_runs(texts: Sequence[str]) -> bool:
    """Compiles the runs that have no function yet, up to the library's limit on functions. Returns True if at least one of the runs has a function now. If
    there is no compiler, or if the compiler fails, nothing is compiled."""
    global _functions, _seconds, _failure
    if not texts or not _wanted or _failure:
        return False
    if _missing(texts):
        with _lock:
            found = _compiler()
            start = time.perf_counter()
            missing = _missing(texts)  # another thread may have compiled some of them meanwhile
            if isinstance(found, str):
                return False
            llvm, new_machine = found
            if missing:
                try:
                    engine = _compiled(llvm, new_machine, [_function(f"run{i}", text) for i, text in enumerate(missing)])
                    _engines.append(engine)  # append it before the library gets an address: an exception in between, such as that of Ctrl-C, would free the code
                    for i, text in enumerate(missing):
                        _functions += _core.provide_score_run(text, engine.get_function_address(f"run{i}"))
                        _provided.add(text)
                except Exception as error:  # if the compiler fails in any way, the interpreter computes the same results
                    _failure = f"llvmlite failed: {error}"
                    return False
                _seconds += time.perf_counter() - start
    return not _provided.isdisjoint(texts)


def _missing(texts: Sequence[str]) -> list[str]:
    """The texts of runs without a function, but not more of them than the library still accepts functions."""
    return [text for text in dict.fromkeys(texts) if text not in _provided][: _core.most_score_run_functions - len(_provided)]


def _compiled(llvm: Any, new_machine: Callable[[], Any], functions: list[str]) -> Any:
    llvm.check_jit_execution()  # raises an error if executable memory is forbidden; MCJIT would not, and a call of its function would end the process
    machine = new_machine()  # each engine needs a new machine, because the engine owns it
    module = llvm.parse_assembly("\n".join((*_DECLARATIONS, *functions)))
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False  # the code is vectorised already
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


_DECLARATIONS = ("declare <16 x float> @llvm.sqrt.v16f32(<16 x float>)", "declare <8 x double> @llvm.sqrt.v8f64(<8 x double>)")


class _Writer:
    """Writes a function in LLVM's language. The operations have no flags for fast arithmetic, so each operation rounds once, as in the interpreter."""

    def __init__(self, float64: bool) -> None:
        self.float64 = float64
        self.element, self.lanes = ("double", 8) if float64 else ("float", 16)  # vectors of polyhead::kScoreRunBytes
        self.type, self.flags = f"<{self.lanes} x {self.element}>", f"<{self.lanes} x i1>"
        self.lines: list[str] = []

    def add(self, text: str) -> str:
        self.lines.append(f"  %t{len(self.lines)} = {text}")
        return f"%t{len(self.lines) - 1}"

    def number(self, value: float) -> str:
        bits = ctypes.c_uint64.from_buffer(ctypes.c_double(value)).value  # LLVM writes a float as the bits of the double with the same value
        return f"<{', '.join([f'{self.element} 0x{bits:016X}'] * self.lanes)}>"

    def binary(self, op: str, a: str, b: str) -> str:
        return self.add(f"{op} {self.type} {a}, {b}")

    def compare(self, relation: str, a: str, b: str) -> str:
        return self.add(f"fcmp {relation} {self.type} {a}, {b}")

    def choose(self, flags: str, a: str, b: str) -> str:
        return self.add(f"select {self.flags} {flags}, {self.type} {a}, {self.type} {b}")

    def truth(self, flags: str) -> str:
        return self.choose(flags, self.number(1), self.number(0))

    def negative(self, a: str) -> str:
        return self.add(f"fneg {self.type} {a}")

    def magnitude(self, a: str) -> str:
        return self.choose(self.compare("olt", a, self.number(0)), self.negative(a), a)

    def nearest(self, a: str) -> str:
        whole = self.number(2.0**52 if self.float64 else 2.0**23)
        magnitude = self.magnitude(a)
        rounded = self.binary("fsub", self.binary("fadd", magnitude, whole), whole)
        signed = self.choose(self.compare("olt", a, self.number(0)), self.negative(rounded), rounded)
        return self.choose(self.compare("olt", magnitude, whole), signed, a)

    def floor(self, a: str) -> str:
        nearest = self.nearest(a)
        return self.choose(self.compare("ogt", nearest, a), self.binary("fsub", nearest, self.number(1)), nearest)

    def extreme(self, relation: str, a: str, b: str) -> str:
        other = self.choose(self.compare("ord", a, a), b, a)
        return self.choose(self.compare(relation, a, b), a, self.choose(self.compare("ord", b, b), other, b))

    def both(self, op: str, a: str, b: str) -> str:
        return self.truth(self.add(f"{op} {self.flags} {self.compare('une', a, self.number(0))}, {self.compare('une', b, self.number(0))}"))


_OPERATIONS: dict[str, Callable[..., str]] = {
    "add": lambda w, a, b: w.binary("fadd", a, b), "subtract": lambda w, a, b: w.binary("fsub", a, b), "multiply": lambda w, a, b: w.binary("fmul", a, b),
    "divide": lambda w, a, b: w.binary("fdiv", a, b), "maximum": lambda w, a, b: w.extreme("ogt", a, b), "minimum": lambda w, a, b: w.extreme("olt", a, b),
    "less": lambda w, a, b: w.truth(w.compare("olt", a, b)), "less_equal": lambda w, a, b: w.truth(w.compare("ole", a, b)), "equal": lambda w, a, b: w.truth(w.compare("oeq", a, b)),
    "logical_and": lambda w, a, b: w.both("and", a, b), "logical_or": lambda w, a, b: w.both("or", a, b), "logical_not": lambda w, a: w.truth(w.compare("oeq", a, w.number(0))),
    "negate": lambda w, a: w.negative(a), "absolute": lambda w, a: w.magnitude(a), "floor": lambda w, a: w.floor(a), "round": lambda w, a: w.nearest(a),
    "square_root": lambda w, a: w.add(f"call {w.type} @llvm.sqrt.v{w.lanes}f{64 if w.float64 else 32}({w.type} {a})"),
    "select": lambda w, a, b, c: w.choose(w.compare("une", a, w.number(0)), b, c),
}  # fmt: skip


def _function(name: str, text: str) -> str:
    """Writes the function of a run: a loop over vectors of 64 bytes. include/polyhead/score_program.h describes the form of `text`."""
    head, *rows, outputs = text.split(";")
    kind, inputs = head.split()
    before, body = _Writer(kind == "float64"), _Writer(kind == "float64")
    body.lines = before.lines  # both writers share one list of lines, because the number of a value is that of its line

    def pointer(table: str, i: int) -> str:
        return before.add(f"load ptr, ptr {before.add(f'getelementptr ptr, ptr %{table}, i64 {i}')}")

    sources = [pointer("inputs", i) for i in range(len(inputs))]
    targets = [pointer("outputs", i) for i in range(len(outputs.split()))]
    values: list[str] = []
    for source, letter in zip(sources, inputs):
        if letter == "s":
            number = before.add(f"load {before.element}, ptr {source}")
            first = before.add(f"insertelement {before.type} poison, {before.element} {number}, i64 0")
            values.append(before.add(f"shufflevector {before.type} {first}, {before.type} poison, <{before.lanes} x i32> zeroinitializer"))
        else:
            values.append("")
    entry = len(before.lines)
    align = 8 if before.float64 else 4
    for i, letter in enumerate(inputs):
        if letter == "v":
            place = body.add(f"getelementptr {body.type}, ptr {sources[i]}, i64 %i")
            values[i] = body.add(f"load {body.type}, ptr {place}, align {align}")
    for row in rows:
        op, *operands = row.split()
        values.append(_OPERATIONS[op](body, *(values[int(x)] for x in operands)))
    for target, x in zip(targets, outputs.split()):
        place = body.add(f"getelementptr {body.type}, ptr {target}, i64 %i")
        body.lines.append(f"  store {body.type} {values[int(x)]}, ptr {place}, align {align}")
    lines = body.lines
    return "\n".join(
        (f"define void @{name}(ptr %inputs, ptr %outputs, i64 %vectors) {{", "entry:", *lines[:entry], "  %some = icmp sgt i64 %vectors, 0", "  br i1 %some, label %loop, label %done",
         "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]", *lines[entry:], "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %vectors", "  br i1 %more, label %loop, label %done",
         "done:", "  ret void", "}")
    )  # fmt: skip
