"""Traces a score_fn to a jaxpr, and translates the jaxpr to the instructions of a score program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Literal

from .. import _core
from .._score_program import OPS, Sums, Trace, gradient_sums, program_of, slope_of
from .._score_runs import compile_runs
from ._score_arrays import MOST_ELEMENTS, Arrays
from ._score_primitives import ELEMENTWISE, STRUCTURE
from ._score_registers import TABLES, refuse

_ARGUMENTS = ("score", "batch", "head", "query", "key")
_INLINED = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}


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
        """Describes the program as options (name -> text) that bindings/jax.cc parses. Without `results` it is the program of the forward pass, else that of a
        backward pass that returns `results`."""
        trace, slope, sums = self._trace, -1, Sums([], [], 0)
        if results is not None:
            trace = trace.copy()
            derivatives = trace.gradients(self._result)
            wanted = [f"d_captured{i}" in results for i in range(len(self._shapes))]
            sums, slope = gradient_sums(trace, derivatives, self._shapes, wanted, self._heads), slope_of(trace, derivatives)
        instructions, numbers = program_of(trace, self._result, slope, sums, name="score_fn", differentiated=results is not None)
        rows = [(numbers[self._result], numbers.get(slope, -1), sums.total), *((OPS.index(op), *rest[:5], repr(rest[5])) for op, *rest in instructions)]
        # Compile the program's runs now: bindings/jax.cc uses them when it makes the program from these options. A process that did not trace score_fn interprets them.
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


class _Reader(Arrays):
    """Translates a jaxpr."""

    def __init__(self, extents: Sequence[Any], float64: bool) -> None:
        super().__init__(float64)
        self.in_derivative = False  # whether the trace is inside of the rule of a jax.custom_jvp
        arguments = [self.trace.emit(name) for name in _ARGUMENTS]
        for register, extent in zip(arguments[1:], extents):
            self.ranges[register] = (0, max(0, extent - 1) if isinstance(extent, int) else math.inf)
        self.arguments = [np.array(register) for register in arguments]

    def read(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(jnp.asarray, consts))) | dict(zip(jaxpr.invars, inputs))

        def value_of(atom: Any) -> Any:
            return self.literal(atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            found = self.equation(equation, [value_of(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, found))
        return [value_of(atom) for atom in jaxpr.outvars]

    def literal(self, value: Any, aval: Any) -> Any:
        if aval.shape == () and np.dtype(aval.dtype) in TABLES:
            return np.array(self.constant(value, integer=not jnp.issubdtype(aval.dtype, jnp.floating)))
        return jnp.asarray(value)

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        known = [self.known(value, atom.aval) for value, atom in zip(inputs, equation.invars)]
        few = inputs and all(isinstance(value, np.ndarray) for value in inputs) and all(math.prod(atom.aval.shape) <= MOST_ELEMENTS for atom in equation.outvars)
        if all(value is not None for value in known) and not few:
            found = _evaluate(equation, *known)
            return list(found) if equation.primitive.multiple_results else [found]
        if name in _INLINED:
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            return self.read(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if name == "custom_jvp_call":
            return self.with_own_derivative(equation, inputs)
        function, result = STRUCTURE.get(name), equation.outvars[0].aval
        integer = self.integer = not any(jnp.issubdtype(aval.dtype, jnp.floating) for aval in (result, *(atom.aval for atom in equation.invars)))
        if function is not None:
            return [function(self, params, equation, *inputs)]
        if name not in ELEMENTWISE:
            raise refuse(f"the primitive {name}")
        of = np.broadcast_arrays(*(self.registers(value) for value in inputs))
        for aval in (result, *(atom.aval for atom in equation.invars)):
            if np.dtype(aval.dtype) not in TABLES:
                raise refuse(f"{name} of {aval.dtype}")
        self.integer = integer  # if an operand is an index, self.registers() above may have set self.integer to True
        registers = np.empty(of[0].shape, np.int64)
        for index in np.ndindex(registers.shape):
            register = ELEMENTWISE[name](self, params, equation, *(int(x[index]) for x in of))
            registers[index] = register
            largest = max(map(abs, self.range(register)))
            if self.integer and name in ("add", "sub", "mul", "integer_pow") and 2**self.bits < largest < math.inf:
                raise ValueError(f"attention: an integer of score_fn ({name}) may be beyond 2^{self.bits} = {2**self.bits}; integers up to it are exact in the dtype of q")
        return [registers]

    def with_own_derivative(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Translates a function with jax.custom_jvp: its value, and the derivatives that the function's own rule gives."""
        avals = [atom.aval for atom in equation.invars]
        if any(aval.shape != () for aval in avals):
            raise refuse(f"{equation.params.get('name', 'a function')} with a jax.custom_jvp of arrays")
        inner = equation.params["call_jaxpr"]
        results = self.read(inner.jaxpr, inner.consts, inputs)
        if self.in_derivative:  # derivatives of this derivative are not needed
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


def trace_score_fn(score_fn: Callable[..., Any], q: Any, k: Any, layout: str) -> tuple[Rule, list[Any]]:
    """Traces ``score_fn(score, batch, head, q_idx, kv_idx)``. Returns its score rule, and the arrays that score_fn captures."""
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
        raise refuse(f"effects ({', '.join(map(str, traced.effects))})")
    reader = _Reader((batch, heads, queries, keys), float64)
    (result,) = reader.read(traced.jaxpr, traced.consts, reader.arguments)
    register = int(reader.registers(result))
    captured = [jnp.asarray(x) for x in reader.trace.tables]
    shapes = tuple(x.shape for x in captured)
    if any(not isinstance(extent, int) for shape in shapes for extent in shape):
        raise NotImplementedError("attention: score_fn captures an array with symbolic extents")
    captured = [x.astype(np.float32) if x.dtype in (np.dtype(np.float16), np.dtype(jnp.bfloat16)) else x for x in captured]
    rule = Rule(reader.trace, register, shapes, heads if isinstance(heads, int) else -1)
    rule.words()  # so that a score_fn with too many instructions is refused while it is traced
    return rule, captured
