"""Traces a score_fn to a jaxpr, and translates the jaxpr to the instructions of a score program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Literal

from .. import _core
from .._score_program import FUNCTIONS, OPS, Number, Sums, Trace, arctangent_of_two, gradient_sums, power_of, program_of, slope_of, truncated
from .._score_runs import compile_runs

_MOST_ELEMENTS = 64  # most elements of an array that is computed element by element
_ARGUMENTS = ("score", "batch", "head", "query", "key")
_TABLES = tuple(map(np.dtype, (np.float32, np.float64, np.float16, jnp.bfloat16, np.int32, np.int64, np.bool_)))
_INLINED = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}
_UNBOUNDED = (-math.inf, math.inf)


def _refuse(name: str) -> NotImplementedError:
    return NotImplementedError(f"attention: score_fn uses {name}, which polyhead cannot trace; docs/flex_attention.md lists what it can")


class Rule:
    """The score program of a score_fn, without the captured arrays. It is hashable, so it can be a parameter of JAX's primitives."""

    def __init__(self, trace: Trace, result: int, shapes: tuple[tuple[int, ...], ...], heads: int) -> None:
        self._trace, self._result, self._shapes, self._heads = trace, result, shapes, heads
        instructions = tuple((*row[:6], repr(row[6])) for row in trace.instructions)
        self._key = (instructions, tuple(trace.partials.items()), result, shapes, heads)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def words(self, results: Sequence[str] | None = None) -> dict[str, str]:
        """The words that describe the program to bindings/jax.cc, for the forward pass or, if `results` is given, for a backward pass with these results."""
        trace, slope, sums = self._trace, -1, Sums([], [], 0)
        if results is not None:
            trace = trace.copy()
            derivatives = trace.gradients(self._result)
            wanted = [f"d_captured{i}" in results for i in range(len(self._shapes))]
            sums, slope = gradient_sums(trace, derivatives, self._shapes, wanted, self._heads), slope_of(trace, derivatives)
        instructions, numbers = program_of(trace, self._result, slope, sums, name="score_fn", differentiated=results is not None)
        rows = [(numbers[self._result], numbers.get(slope, -1), sums.total), *((OPS.index(op), *rest[:5], repr(rest[5])) for op, *rest in instructions)]
        # Compiles the runs now. The program that bindings/jax.cc makes of the words finds them; where it does not, as in another process, they are interpreted.
        gradients: list[tuple[int, int, int, list[int]]] = [(numbers[load], numbers[derivative], 0, []) for load, derivative, _, _ in sums.rows]
        tables = [np.zeros((1,) * len(shape), np.float32) for shape in self._shapes]
        code = [(OPS.index(op), *rest) for op, *rest in instructions]
        compile_runs(_core.ScoreProgram(code, tables, numbers[self._result], numbers.get(slope, -1), gradients, 1).interpreted_runs(trace.float64))
        words = {
            "program": _list(rows),
            "sums": _list([(numbers[load], numbers[derivative], first, *strides) for load, derivative, first, strides in sums.rows]),
            "places": _list([(first, count, int(per_head)) for first, count, per_head in sums.places]),
        }
        return {name: word for name, word in words.items() if word}


def _list(rows: Sequence[Sequence[Any]]) -> str:
    return ";".join(",".join(map(str, row)) for row in rows)


def _evaluate(equation: Any, *arrays: Any) -> Any:
    bound = equation.primitive.get_bind_params(equation.params)
    if isinstance(bound, tuple):  # before jax 0.10 get_bind_params returns (functions, parameters)
        return equation.primitive.bind(*bound[0], *arrays, **bound[1])
    return equation.primitive.bind(*arrays, **bound)


class _View(NamedTuple):
    """A rectangular part of a captured array that starts at computed indices. `starts` has, for each dimension of `captured`, the register with the first index, or
    None for index 0. Dimension i of the part is dimension dims[i] of `captured`; dims[i] is None for a dimension of extent 1 that broadcasting added."""

    captured: Any
    starts: tuple[int | None, ...]
    dims: tuple[int | None, ...]
    shape: tuple[int, ...]


class _Reader:
    """Translates a jaxpr. A value that depends on the arguments is a NumPy array of registers, or a `_View`. A value that does not is an array of JAX, which JAX
    computes and differentiates."""

    def __init__(self, extents: Sequence[Any], float64: bool) -> None:
        self.trace = Trace(float64=float64)
        self.bits = 53 if float64 else 24
        self.ranges: dict[int, tuple[float, float]] = {}  # smallest and largest value of registers that hold integers or booleans, also after a conversion to floating point
        self.integer = True  # whether all operands and results of the current equation are integers or booleans
        self.in_derivative = False  # whether the rule of a jax.custom_jvp is being read
        arguments = [self.trace.emit(name) for name in _ARGUMENTS]
        for register, extent in zip(arguments[1:], extents):
            self.ranges[register] = (0, max(0, extent - 1) if isinstance(extent, int) else math.inf)
        self.arguments = [np.array(register) for register in arguments]

    # Reading of jaxprs

    def read(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(jnp.asarray, consts))) | dict(zip(jaxpr.invars, inputs))

        def value_of(atom: Any) -> Any:
            return self.literal(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            found = self.equation(equation, [value_of(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, found))
        return [value_of(atom) for atom in jaxpr.outvars]

    def literal(self, value: Any, aval: Any) -> Any:
        if aval.shape == () and np.dtype(aval.dtype) in _TABLES:
            return np.array(self.constant(value, integer=not jnp.issubdtype(aval.dtype, jnp.floating)))
        return jnp.asarray(value)

    def constant(self, value: Any, *, integer: bool) -> int:
        register = self.trace.constant(float(value))
        if integer:
            if int(value) != float(value) or (self.bits == 24 and int(np.float32(value)) != int(value)):
                raise ValueError(f"attention: score_fn uses the integer {int(value)}, which is no number of the precision of the scores; compute in float64")
            self.ranges[register] = (float(value), float(value))
        return register

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        known = [self.known(value, atom.aval) for value, atom in zip(inputs, equation.invars)]
        few = inputs and all(isinstance(value, np.ndarray) for value in inputs) and all(math.prod(atom.aval.shape) <= _MOST_ELEMENTS for atom in equation.outvars)
        if all(value is not None for value in known) and not few:
            found = _evaluate(equation, *known)
            return list(found) if equation.primitive.multiple_results else [found]
        if name in _INLINED:
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            return self.read(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if name == "custom_jvp_call":
            return self.with_own_derivative(equation, inputs)
        function, result = _STRUCTURE.get(name), equation.outvars[0].aval
        integer = self.integer = not any(jnp.issubdtype(aval.dtype, jnp.floating) for aval in (result, *(atom.aval for atom in equation.invars)))
        if function is not None:
            return [function(self, params, equation, *inputs)]
        if name not in _ELEMENTWISE:
            raise _refuse(f"the primitive {name}")
        of = np.broadcast_arrays(*(self.registers(value) for value in inputs))
        for aval in (result, *(atom.aval for atom in equation.invars)):
            if np.dtype(aval.dtype) not in _TABLES:
                raise _refuse(f"{name} of {aval.dtype}")
        self.integer = integer  # self.registers() above may have set self.integer to True, if an operand is an index
        registers = np.empty(of[0].shape, np.int64)
        for index in np.ndindex(registers.shape):
            register = _ELEMENTWISE[name](self, params, equation, *(int(x[index]) for x in of))
            registers[index] = register
            largest = max(map(abs, self.range(register)))
            if self.integer and name in ("add", "sub", "mul", "integer_pow") and 2**self.bits < largest < math.inf:
                raise ValueError(f"attention: an integer of score_fn ({name}) may be beyond 2^{self.bits} = {2**self.bits}; integers up to it are exact in the dtype of q")
        return [registers]

    def known(self, value: Any, aval: Any) -> Any:
        """The value as an array of JAX, or None if it depends on the arguments."""
        if isinstance(value, _View):
            return None
        if not isinstance(value, np.ndarray):
            return value
        rows = [self.trace.instructions[register] for register in value.flat]
        if any(row[0] != "constant" for row in rows):
            return None
        return np.array([row[6] for row in rows], np.float64).reshape(value.shape).astype(aval.dtype)

    def with_own_derivative(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """A function with jax.custom_jvp: its value, with the derivatives that the function's own rule gives."""
        avals = [atom.aval for atom in equation.invars]
        if any(aval.shape != () for aval in avals):
            raise _refuse(f"{equation.params.get('name', 'a function')} with a jax.custom_jvp of arrays")
        inner = equation.params["call_jaxpr"]
        results = self.read(inner.jaxpr, inner.consts, inputs)
        if self.in_derivative:  # derivatives of a derivative are not needed
            return results
        partials: list[list[tuple[int, int]]] = [[] for _ in results]
        for i, (aval, value) in enumerate(zip(avals, inputs)):
            register = int(self.registers(value))
            if not jnp.issubdtype(aval.dtype, jnp.floating) or self.trace.instructions[register][0] == "constant":
                continue

            def along(*xs: Any, i: int = i, aval: Any = aval) -> Any:
                one = lambda x: _evaluate(equation, *xs[:i], x, *xs[i + 1 :])  # noqa: E731
                return jax.jvp(one, (xs[i],), (jnp.ones((), aval.dtype),))[1]

            traced = jax.make_jaxpr(along)(*(jax.ShapeDtypeStruct((), aval.dtype) for aval in avals))
            self.in_derivative = True
            tangents = self.read(traced.jaxpr, traced.consts, inputs)
            self.in_derivative = False
            for to, tangent, atom in zip(partials, tangents, equation.outvars):
                if jnp.issubdtype(atom.aval.dtype, jnp.floating):
                    to.append((register, int(self.registers(tangent))))
        return [np.array(self.trace.with_partials(int(self.registers(x)), of)) if of else x for x, of in zip(results, partials)]

    # Arrays

    def registers(self, value: Any) -> Any:
        """The register of each element of the value."""
        if isinstance(value, np.ndarray):
            return value
        view = self.view(value)
        if math.prod(view.shape) > _MOST_ELEMENTS:
            raise _refuse(f"an array of shape {list(view.shape)}, more than {_MOST_ELEMENTS} elements, without an index for each dimension")
        found = np.empty(view.shape, np.int64)
        for index in np.ndindex(view.shape):
            found[index] = self.load(view, index)
        return found

    def view(self, value: Any) -> _View:
        if isinstance(value, _View):
            return value
        return _View(value, (None,) * value.ndim, tuple(range(value.ndim)), tuple(value.shape))

    def load(self, view: _View, index: tuple[int, ...]) -> int:
        self.integer = True  # the equations below compute indices
        captured, starts = view.captured, list(view.starts)
        dtype = np.dtype(captured.dtype) if not jnp.issubdtype(captured.dtype, jax.dtypes.extended) else None
        if dtype not in _TABLES:  # integers of fewer than 32 bits wrap around in JAX's arithmetic, but not in polyhead's
            raise NotImplementedError(f"attention: score_fn captures an array of {captured.dtype}; convert it by .astype(jnp.int32) or .astype(jnp.float32)")
        if captured.ndim > 4:
            raise _refuse("a captured array of more than 4 dimensions")
        for at, dim in zip(index, view.dims):
            if dim is not None and at:
                step = self.constant(at, integer=True)
                start = starts[dim]
                starts[dim] = step if start is None else self.add(start, step)
        indices = [self.constant(0, integer=True) if start is None else start for start in starts]
        register = self.trace.emit("load", *indices, table=self.trace.table(captured))
        if not jnp.issubdtype(captured.dtype, jnp.floating):
            self.ranges[register] = (0, 1) if dtype == np.bool_ else _UNBOUNDED
        return register

    def part(self, value: Any, starts: Sequence[int], sizes: Sequence[int], *, mode: str) -> _View:
        """The part of extents `sizes` that starts at the registers `starts`. mode: how indices outside of the array are treated: "clip" or "fill" (the result is NaN)."""
        self.integer = True  # the equations below compute indices
        view = self.view(value)
        of = list(view.starts)
        for axis, (start, size) in enumerate(zip(starts, sizes)):
            dim, last = view.dims[axis], view.shape[axis] - size
            if dim is None or last == 0 == self.range(start)[0] == self.range(start)[1]:
                continue
            low, high = self.range(start)
            if mode == "clip":
                start = self.minimum(self.maximum(start, self.constant(0, integer=True)), self.constant(last, integer=True))
            elif low < 0 or high > last:  # a load beyond the end gives NaN, but a load counts a negative index from the end
                if size != 1 or view.shape[axis] != view.captured.shape[dim] or not jnp.issubdtype(view.captured.dtype, jnp.floating):
                    raise _refuse("an index that may be outside of its array, with mode='fill' (use mode='clip')")
                beyond = self.constant(view.captured.shape[dim], integer=True)
                start = self.select(self.less(start, self.constant(0, integer=True)), beyond, start)
            before = of[dim]
            of[dim] = start if before is None else self.add(before, start)
        return view._replace(starts=tuple(of), shape=tuple(sizes))

    # Arithmetic of single registers

    def range(self, register: int) -> tuple[float, float]:
        return self.ranges.get(register, _UNBOUNDED)

    def emit(self, op: str, *operands: int, range: tuple[float, float] | None = None) -> int:  # noqa: A002
        """range: smallest and largest value of an integer or boolean result. If both are equal, a constant is emitted instead."""
        if range is not None and range[0] == range[1]:
            return self.constant(range[0], integer=True)
        register = self.trace.emit(op, *operands)
        if range is not None:
            low, high = self.ranges.get(register, _UNBOUNDED)
            self.ranges[register] = (max(low, range[0]), min(high, range[1]))
        return register

    def are_integers(self, *registers: int) -> bool:
        return self.integer and all(register in self.ranges for register in registers)

    def add(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("add", a, b)
        if self.range(a) == (0, 0) or self.range(b) == (0, 0):
            return b if self.range(a) == (0, 0) else a
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        return self.emit("add", a, b, range=(al + bl, ah + bh))

    def subtract(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("subtract", a, b)
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        return a if (bl, bh) == (0, 0) else self.emit("subtract", a, b, range=(al - bh, ah - bl))

    def multiply(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("multiply", a, b)
        products = [0.0 if 0 in (x, y) else x * y for x in self.range(a) for y in self.range(b)]
        return self.emit("multiply", a, b, range=(min(products), max(products)))

    def negate(self, a: int) -> int:
        low, high = self.range(a)
        return self.emit("negate", a, range=(-high, -low) if self.are_integers(a) else None)

    def absolute(self, a: int) -> int:
        low, high = self.range(a)
        if self.are_integers(a) and low >= 0:
            return a
        return self.emit("absolute", a, range=(0, max(-low, high)) if self.are_integers(a) else None)

    def maximum(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("maximum", a, b)
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        return a if al >= bh else b if bl >= ah else self.emit("maximum", a, b, range=(max(al, bl), max(ah, bh)))

    def minimum(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("minimum", a, b)
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        return a if ah <= bl else b if bh <= al else self.emit("minimum", a, b, range=(min(al, bl), min(ah, bh)))

    def less(self, a: int, b: int, *, or_equal: bool = False) -> int:
        known = (0.0, 1.0)
        if self.are_integers(a, b):
            (al, ah), (bl, bh) = self.range(a), self.range(b)
            if ah < bl or (or_equal and ah == bl):
                known = (1, 1)
            elif al > bh or (not or_equal and al == bh):
                known = (0, 0)
        return self.emit("less_equal" if or_equal else "less", a, b, range=known)

    def equal(self, a: int, b: int) -> int:
        known = (0.0, 1.0)
        if self.are_integers(a, b):
            (al, ah), (bl, bh) = self.range(a), self.range(b)
            known = (0, 0) if ah < bl or bh < al else (1, 1) if al == ah == bl == bh else known
        return self.emit("equal", a, b, range=known)

    def logical(self, op: str, a: int, b: int) -> int:
        absorbing = 0.0 if op == "logical_and" else 1.0
        for x, y in ((a, b), (b, a)):
            if self.range(x) == (absorbing, absorbing):
                return x
            if self.range(x) == (1 - absorbing, 1 - absorbing):
                return y
        return self.emit(op, a, b, range=(0, 1))

    def negation(self, a: int) -> int:
        low, high = self.range(a)
        return self.emit("logical_not", a, range=(1 - high, 1 - low))

    def select(self, condition: int, a: int, b: int) -> int:
        if a == b or self.range(condition) == (1, 1):
            return a
        if self.range(condition) == (0, 0):
            return b
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        return self.emit("select", condition, a, b, range=(min(al, bl), max(ah, bh)) if self.are_integers(a, b) else None)

    def divide(self, a: int, b: int) -> int:
        if not self.are_integers(a, b):
            return self.emit("divide", a, b)
        if self.range(b) == (1, 1):
            return a
        quotient, (al, ah), (bl, _) = self.emit("divide", a, b), self.range(a), self.range(b)
        if al >= 0 and bl > 0:
            return self.emit("floor", quotient, range=(al // self.range(b)[1] if self.range(b)[1] < math.inf else 0, ah // bl if ah < math.inf else ah))
        magnitude = self.emit("floor", self.emit("absolute", quotient))  # round towards 0
        most = max(-al, ah)
        negative = self.emit("less", quotient, self.constant(0, integer=True), range=(0, 1))
        return self.select(negative, self.whole(self.trace.emit("negate", magnitude), most), self.whole(magnitude, most))

    def whole(self, register: int, most: float) -> int:
        self.ranges.setdefault(register, (-most, most))
        return register

    def remainder(self, a: int, b: int) -> int:
        """The remainder of a / b for integers, with the sign of a."""
        if not self.are_integers(a, b):
            raise _refuse("the primitive rem of floating-point numbers")
        (al, ah), (bl, bh) = self.range(a), self.range(b)
        if al >= 0 and ah < bl:
            return a
        register = self.trace.emit("subtract", a, self.trace.emit("multiply", self.divide(a, b), b))
        most = max(-bl, bh) - 1
        self.ranges[register] = (0 if al >= 0 else -most, 0 if ah <= 0 else most)
        return register

    def sign(self, a: int) -> int:
        zero, one, minus = (self.constant(x, integer=True) for x in (0, 1, -1))
        if self.are_integers(a):
            return self.select(self.less(zero, a), one, self.select(self.less(a, zero), minus, zero))
        below = self.emit("select", self.less(a, zero), minus, a)  # the value if a is not positive: -1, or a itself for 0 and NaN
        return self.trace.with_partials(self.emit("select", self.less(zero, a), one, below), ())

    def power(self, a: int, exponent: float) -> int:
        if not self.are_integers(a):
            if not abs(exponent) <= 64:
                raise _refuse(f"the power {exponent}")
            return power_of(Number(self.trace, a), exponent).register
        if exponent != int(exponent) or not 0 <= exponent <= 16:
            raise _refuse(f"the power {exponent} of an integer")
        result = self.constant(1, integer=True) if exponent == 0 else a
        for _ in range(int(exponent) - 1):
            result = self.multiply(result, a)
        return result

    def clamp(self, low: int, a: int, high: int) -> int:
        if self.are_integers(low, a, high):
            return self.minimum(self.maximum(a, low), high)
        one, zero = self.trace.constant(1), self.trace.constant(0)
        above, below = self.emit("less", low, a), self.emit("less", a, high)
        partials = [
            (a, self.emit("select", self.emit("logical_and", above, below), one, zero)),
            (low, self.emit("select", self.emit("less", a, low), one, zero)),
            (high, self.emit("select", self.emit("less", high, a), one, zero)),
        ]
        return self.trace.with_partials(self.emit("minimum", self.emit("maximum", a, low), high), partials)

    def converted(self, a: int, before: Any, wanted: Any) -> int:
        before, wanted = np.dtype(before), np.dtype(wanted)
        if wanted not in _TABLES or (wanted.itemsize < 4 and wanted != np.bool_ and wanted != before):
            raise _refuse(f"a conversion to {wanted}")
        if wanted == np.bool_:
            return a if before == np.bool_ else self.negation(self.equal(a, self.constant(0, integer=True)))
        if jnp.issubdtype(wanted, jnp.integer) and jnp.issubdtype(before, jnp.floating):
            return self.whole(truncated(Number(self.trace, a)).register, math.inf)
        return a


def _bool_only(function: Callable[..., int]) -> Callable[..., int]:
    def apply(reader: _Reader, params: Any, equation: Any, *registers: int) -> int:
        if equation.invars[0].aval.dtype != np.bool_:
            raise _refuse(f"the primitive {equation.primitive.name} of numbers that are not bool")
        return function(reader, *registers)

    return apply


def _select_n(reader: _Reader, params: Any, equation: Any, which: int, *cases: int) -> int:
    if len(cases) != 2 or equation.invars[0].aval.dtype != np.bool_:
        raise _refuse(f"the primitive select_n of {len(cases)} cases with {equation.invars[0].aval.dtype}")
    return reader.select(which, cases[1], cases[0])


def _pow(reader: _Reader, params: Any, equation: Any, a: int, b: int) -> int:
    rows = reader.trace.instructions
    if rows[b][0] == "constant":
        return reader.power(a, rows[b][6])
    if rows[a][0] == "constant" and 0 < rows[a][6] < math.inf:
        return reader.emit("exp", reader.emit("multiply", b, reader.trace.constant(math.log(rows[a][6]))))
    raise _refuse("the primitive pow with neither a constant exponent nor a positive constant base")


def _of(function: Callable[..., int]) -> Callable[..., int]:
    return lambda reader, params, equation, *registers: function(reader, *registers)


def _formula(function: Callable[..., Number]) -> Callable[..., int]:
    return lambda reader, params, equation, *registers: function(*(Number(reader.trace, register) for register in registers)).register


def _round(reader: _Reader, params: Any, equation: Any, a: int) -> int:
    x = Number(reader.trace, a)
    if params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return x.of("round").register
    magnitude = x.of("absolute")
    nearest = magnitude.of("round")
    away = nearest + (magnitude - nearest).of("equal", 0.5)  # |x| + 0.5 would round up the number below 0.5
    return (x < 0).where(-away, away).register


_ELEMENTWISE: dict[str, Callable[..., int]] = {
    "add": _of(_Reader.add), "add_any": _of(_Reader.add), "sub": _of(_Reader.subtract), "mul": _of(_Reader.multiply), "div": _of(_Reader.divide),
    "rem": _of(_Reader.remainder), "neg": _of(_Reader.negate), "abs": _of(_Reader.absolute), "sign": _of(_Reader.sign), "max": _of(_Reader.maximum),
    **{name: _formula(function.formula) for function in FUNCTIONS for name in function.primitives},
    "min": _of(_Reader.minimum), "clamp": _of(_Reader.clamp), "floor": _formula(lambda x: x.of("floor")), "round": _round, "atan2": _formula(arctangent_of_two), "pow": _pow,
    "integer_pow": lambda r, params, e, a: r.power(a, params["y"]), "square": lambda r, p, e, a: r.multiply(a, a),
    "ceil": _formula(lambda x: -(-x).of("floor")),
    "is_finite": lambda r, p, e, a: r.equal(r.emit("subtract", a, a), r.trace.constant(0)),
    "lt": _of(_Reader.less), "le": lambda r, p, e, a, b: r.less(a, b, or_equal=True), "gt": lambda r, p, e, a, b: r.less(b, a),
    "ge": lambda r, p, e, a, b: r.less(b, a, or_equal=True), "eq": _of(_Reader.equal), "ne": lambda r, p, e, a, b: r.negation(r.equal(a, b)),
    "and": _bool_only(lambda r, a, b: r.logical("logical_and", a, b)), "or": _bool_only(lambda r, a, b: r.logical("logical_or", a, b)),
    "not": _bool_only(_Reader.negation), "xor": _bool_only(lambda r, a, b: r.negation(r.equal(a, b))), "select_n": _select_n,
    "convert_element_type": lambda r, params, e, a: r.converted(a, e.invars[0].aval.dtype, params["new_dtype"]),
    "stop_gradient": lambda r, p, e, a: a if r.are_integers(a) else r.trace.with_partials(a, ()), "copy": lambda r, p, e, a: a, "copy_p": lambda r, p, e, a: a,
}  # fmt: skip


def _stored(reader: _Reader, equation: Any, value: Any) -> Any:
    """The array that is indexed: a captured array, or an array made of constant registers."""
    if not isinstance(value, np.ndarray):
        return value
    constants = reader.known(value, equation.invars[0].aval)
    if constants is None:
        raise _refuse("an index into an array that depends on the position")
    return jnp.asarray(constants)


def _dynamic_slice(reader: _Reader, params: Any, equation: Any, value: Any, *starts: Any) -> Any:
    indices = [int(reader.registers(start)) for start in starts]
    return reader.part(_stored(reader, equation, value), indices, params["slice_sizes"], mode="clip")


def _gather(reader: _Reader, params: Any, equation: Any, value: Any, indices: Any) -> Any:
    numbers, mode, of = params["dimension_numbers"], str(params["mode"]).lower(), reader.registers(indices)
    if of.ndim != 1 or numbers.operand_batching_dims:
        raise _refuse("the primitive gather of more than one index")
    fill = params.get("fill_value")
    if "one_hot" in mode or ("fill" in mode and fill is not None and not np.isnan(fill)):
        raise _refuse("an index with mode='one_hot', or with mode='fill' and a fill_value (use mode='clip')")
    stored = _stored(reader, equation, value)
    view = reader.view(stored)
    starts = [reader.constant(0, integer=True)] * len(view.shape)
    for register, axis in zip(of, numbers.start_index_map):
        starts[axis] = int(register)
    part = reader.part(stored, starts, params["slice_sizes"], mode="clip" if "clip" in mode or "promise" in mode else "fill")
    return _squeezed(part, numbers.collapsed_slice_dims)


def _squeezed(view: _View, dimensions: Sequence[int]) -> _View:
    kept = [axis for axis in range(len(view.shape)) if axis not in dimensions]
    return view._replace(dims=tuple(view.dims[axis] for axis in kept), shape=tuple(view.shape[axis] for axis in kept))


def _reshaped(reader: _Reader, value: Any, shape: Sequence[int]) -> Any:
    if not isinstance(value, _View):
        return reader.registers(value).reshape(shape)
    kept = _squeezed(value, [axis for axis, extent in enumerate(value.shape) if extent == 1])
    if [extent for extent in shape if extent != 1] != list(kept.shape):
        return reader.registers(value).reshape(shape)
    dims = iter(kept.dims)
    return kept._replace(dims=tuple(None if extent == 1 else next(dims) for extent in shape), shape=tuple(shape))


def _broadcast_in_dim(reader: _Reader, params: Any, equation: Any, value: Any, *_: Any) -> Any:
    shape = params["shape"]
    if math.prod(shape) > _MOST_ELEMENTS:
        raise _refuse(f"an array of shape {list(shape)}")
    of, dimensions = reader.registers(value), params["broadcast_dimensions"]
    inner = [of.shape[dimensions.index(axis)] if axis in dimensions else 1 for axis in range(len(shape))]
    return np.broadcast_to(of.reshape(inner), shape)


def _squeeze(reader: _Reader, params: Any, equation: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape([extent for axis, extent in enumerate(value.shape) if axis not in params["dimensions"]])
    return _squeezed(reader.view(value), params["dimensions"])


def _transpose(reader: _Reader, params: Any, equation: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.transpose(params["permutation"])
    view = reader.view(value)
    return view._replace(dims=tuple(view.dims[axis] for axis in params["permutation"]), shape=tuple(view.shape[axis] for axis in params["permutation"]))


def _slice(reader: _Reader, params: Any, equation: Any, value: Any) -> Any:
    steps = params["strides"] or (1,) * len(params["start_indices"])
    return reader.registers(value)[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _reduce(function: Callable[..., int]) -> Callable[..., Any]:
    def apply(reader: _Reader, params: Any, equation: Any, value: Any) -> Any:
        of, axes = reader.registers(value), params["axes"]
        kept = [axis for axis in range(of.ndim) if axis not in axes]
        rows = of.transpose([*kept, *axes]).reshape(*(of.shape[axis] for axis in kept), -1)
        if rows.shape[-1] == 0:
            raise _refuse(f"the primitive {equation.primitive.name} of no numbers")
        result = rows[..., 0].copy()
        for index in np.ndindex(result.shape):
            for register in rows[index][1:]:
                result[index] = function(reader, int(result[index]), int(register))
            # Equal elements share the gradient equally, as in JAX. Derivatives of a chain of pairwise maxima would give three or more equal elements unequal
            # shares.
            if function in (_Reader.maximum, _Reader.minimum) and rows.shape[-1] > 2 and not reader.are_integers(*map(int, rows[index])):
                each = [reader.emit("equal", int(x), int(result[index])) for x in rows[index]]
                count = functools.reduce(lambda x, y: reader.emit("add", x, y), each)
                result[index] = reader.trace.with_partials(int(result[index]), [(int(x), reader.emit("divide", equal, count)) for x, equal in zip(rows[index], each)])
        return result

    return apply


def _dot_general(reader: _Reader, params: Any, equation: Any, a: Any, b: Any) -> Any:
    x, y = reader.registers(a), reader.registers(b)
    if x.ndim != 1 or y.ndim != 1 or params["dimension_numbers"] != (((0,), (0,)), ((), ())):
        raise _refuse("the primitive dot_general of matrices")
    products = [reader.multiply(int(i), int(j)) for i, j in zip(x, y)]
    total = products[0]
    for product in products[1:]:
        total = reader.add(total, product)
    return np.array(total)


_STRUCTURE: dict[str, Callable[..., Any]] = {
    "dynamic_slice": _dynamic_slice, "gather": _gather, "squeeze": _squeeze, "broadcast_in_dim": _broadcast_in_dim, "transpose": _transpose, "slice": _slice,
    "reshape": lambda r, params, e, value, *_: _reshaped(r, value, params["new_sizes"]), "reduce_sum": _reduce(_Reader.add), "reduce_max": _reduce(_Reader.maximum),
    "reduce_min": _reduce(_Reader.minimum), "dot_general": _dot_general,
    "stack": lambda r, params, e, *values: np.stack([r.registers(value) for value in values], params["axis"]),
    "concatenate": lambda r, params, e, *values: np.concatenate([r.registers(value) for value in values], params["dimension"]),
}  # fmt: skip


def trace_score_fn(score_fn: Callable[..., Any], q: Any, k: Any, layout: str) -> tuple[Rule, list[Any]]:
    """The rule of ``score_fn(score, batch, head, q_idx, kv_idx)``, and the arrays that score_fn captures."""
    if not callable(score_fn):
        raise TypeError(f"attention: score_fn is of type {type(score_fn).__name__}; it must be a function score_fn(score, batch, head, q_idx, kv_idx)")
    *lead, first, second, _ = q.shape
    heads, queries = (second, first) if layout == "TNH" else (first, second)
    keys = k.shape[-3 if layout == "TNH" else -2]
    batch = math.prod(lead) if all(isinstance(extent, int) for extent in lead) else None
    float64 = q.dtype == np.float64
    index = jax.ShapeDtypeStruct((), np.int32)
    traced = jax.make_jaxpr(score_fn)(jax.ShapeDtypeStruct((), np.float64 if float64 else np.float32), index, index, index, index)
    if len(traced.out_avals) != 1 or traced.out_avals[0].shape != ():
        raise ValueError(f"attention: score_fn returns {', '.join(map(str, traced.out_avals)) or 'nothing'}; it must return one number")
    if traced.effects:
        raise _refuse(f"effects ({', '.join(map(str, traced.effects))})")
    reader = _Reader((batch, heads, queries, keys), float64)
    (result,) = reader.read(traced.jaxpr, traced.consts, reader.arguments)
    register = int(reader.registers(result))
    captured = [jnp.asarray(x) for x in reader.trace.tables]
    shapes = tuple(x.shape for x in captured)
    if any(not isinstance(extent, int) for shape in shapes for extent in shape):
        raise NotImplementedError("attention: score_fn captures an array with symbolic extents")
    captured = [x.astype(np.float32) if x.dtype in (np.dtype(np.float16), np.dtype(jnp.bfloat16)) else x for x in captured]
    rule = Rule(reader.trace, register, shapes, heads if isinstance(heads, int) else -1)
    rule.words()  # raises the error for too many instructions now
    return rule, captured
