"""Score programs (`polyhead::ScoreProgram`): the instructions traced from a Python function of a score for torch and JAX, their derivatives, and the places of the
gradients of captured arrays among a backward pass's sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Instruction = tuple[str, int, int, int, int, int, float]  # op, table, a, b, c, d, value

# In the order of polyhead::ScoreOp.
OPS = (
    "constant", "score", "batch", "head", "query", "key", "load", "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "less_equal", "equal",
    "logical_and", "logical_or", "negate", "absolute", "square_root", "exp", "log", "tanh", "sigmoid", "floor", "logical_not", "select",
)  # fmt: skip


class Trace:
    """The instructions of a score program. Instruction i writes register i. Equal instructions are stored once."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.tables: list[Any] = []  # the captured arrays
        self.integers: set[int] = set()  # the integers that the function names
        self.partials: dict[int, tuple[tuple[int, int], ...]] = {}  # register -> ((operand, derivative by the operand), ...), where the derivatives are not those of the register's operation
        self._known: dict[tuple[Any, ...], int] = {}

    def copy(self) -> Trace:
        other = Trace()
        other.instructions, other.tables, other.integers = self.instructions.copy(), self.tables.copy(), self.integers.copy()
        other.partials, other._known = self.partials.copy(), self._known.copy()
        return other

    def emit(self, op: str, *operands: int, table: int = -1, value: float = 0.0) -> int:
        a, b, c, d = (*operands, *[-1] * (4 - len(operands)))
        instruction = (op, table, a, b, c, d, value)
        key = (*instruction, str(value))  # the text distinguishes -0.0 from 0.0 and makes NaN equal to NaN
        if key not in self._known:
            self._known[key] = len(self.instructions)
            self.instructions.append(instruction)
        return self._known[key]

    def constant(self, value: float) -> int:
        return self.emit("constant", value=float(value))

    def is_constant(self, register: int, value: float) -> bool:
        return self.instructions[register][0] == "constant" and self.instructions[register][6] == value

    def multiply(self, a: int, b: int) -> int:
        if self.is_constant(a, 1):
            return b
        return a if self.is_constant(b, 1) else self.emit("multiply", a, b)

    def table(self, captured: Any) -> int:
        for i, known in enumerate(self.tables):
            if known is captured:
                return i
        self.tables.append(captured)
        return len(self.tables) - 1

    def with_partials(self, register: int, partials: Sequence[tuple[int, int]]) -> int:
        """A copy of the register with the given derivatives: pairs (operand, derivative by the operand)."""
        key = ("copy", register, *partials)
        if key not in self._known:
            truth = self.constant(1)
            self._known[key] = len(self.instructions)
            self.instructions.append(("select", -1, truth, register, register, -1, 0.0))
            self.partials[self._known[key]] = tuple(partials)
        return self._known[key]

    def gradients(self, result: int) -> dict[int, int]:
        """For each register that ``result`` depends on, the register of the derivative of ``result`` by it."""
        found: dict[int, int] = {result: self.constant(1)}
        for register in range(result, -1, -1):
            if register not in found:
                continue
            op, _, a, b, c, _, _ = self.instructions[register]
            g, y = found[register], register

            def add(to: int, value: int) -> None:
                found[to] = self.emit("add", found[to], value) if to in found else value

            def times(x: int, g: int = g) -> int:
                return self.multiply(g, x)

            def zero() -> int:
                return self.constant(0)

            if register in self.partials:
                for operand, derivative in self.partials[register]:
                    add(operand, times(derivative))
            elif op == "add":
                add(a, g)
                add(b, g)
            elif op == "subtract":
                add(a, g)
                add(b, self.emit("negate", g))
            elif op == "multiply":
                add(a, times(b))
                add(b, times(a))
            elif op == "divide":
                add(a, self.emit("divide", g, b))
                add(b, self.emit("negate", self.emit("divide", times(y), b)))
            elif op in ("maximum", "minimum"):  # equal arguments share the gradient, as in torch
                of_a, of_b = self.emit("less", a, b), self.emit("less", b, a)
                if op == "maximum":
                    of_a, of_b = of_b, of_a
                half, shared = times(self.constant(0.5)), self.emit("equal", a, b)
                for argument, chosen in ((a, of_a), (b, of_b)):
                    add(argument, self.emit("select", shared, half, self.emit("select", chosen, g, zero())))
            elif op == "negate":
                add(a, self.emit("negate", g))
            elif op == "absolute":
                below = self.emit("select", self.emit("less", a, zero()), self.emit("negate", g), zero())
                add(a, self.emit("select", self.emit("less", zero(), a), g, below))
            elif op == "square_root":
                add(a, self.emit("divide", times(self.constant(0.5)), y))
            elif op == "exp":
                add(a, times(y))
            elif op == "log":
                add(a, self.emit("divide", g, a))
            elif op == "tanh":
                add(a, times(self.emit("subtract", self.constant(1), self.emit("multiply", y, y))))
            elif op == "sigmoid":
                add(a, times(self.emit("multiply", y, self.emit("subtract", self.constant(1), y))))
            elif op == "select":
                add(b, self.emit("select", a, g, zero()))
                add(c, self.emit("select", a, zero(), g))
        return found


class Sums(NamedTuple):
    """Describes the sums [N, count] that a backward pass makes for each query head. They are the gradients of captured arrays."""

    rows: list[tuple[int, int, int, list[int]]]  # members of polyhead::ScoreGradient: load, derivative, first, strides
    places: list[tuple[int, int, bool]]  # for each captured array: its first sum (-1: no sums), the number of sums, whether they belong to one head
    total: int


def gradient_sums(trace: Trace, derivatives: dict[int, int], shapes: Sequence[Sequence[int]], wanted: Sequence[bool], heads: int) -> Sums:
    """Assigns sums to the gradients of the wanted arrays. If the first index into an array is always the number of the head, a head has sums only for its own elements."""
    head = next(i for i, row in enumerate(trace.instructions) if row[0] == "head")
    loads = [(i, row) for i, row in enumerate(trace.instructions) if row[0] == "load"]
    sums = Sums([], [], 0)
    for number, shape in enumerate(shapes):
        own = [(i, row[2 : 2 + len(shape)]) for i, row in loads if row[1] == number]
        if not wanted[number]:
            sums.places.append((-1, 0, False))
            continue
        per_head = len(shape) > 0 and shape[0] == heads and all(indices[0] == head for _, indices in own)
        extents = [max(1, extent) for extent in (shape[1:] if per_head else shape)]
        strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
        size = math.prod(extents)
        sums.rows.extend((i, derivatives[i], sums.total, [0] * per_head + strides) for i, _ in own if i in derivatives)
        sums.places.append((sums.total, size, per_head))
        sums = sums._replace(total=sums.total + size)
    return sums


def pruned(instructions: Sequence[Instruction], roots: Iterable[int]) -> tuple[list[Instruction], dict[int, int]]:
    """Removes the instructions that the registers `roots` do not depend on. Returns the other instructions, and old register number -> new register number."""
    needed = set(roots)
    for register in range(len(instructions) - 1, -1, -1):
        if register in needed:
            needed.update(operand for operand in instructions[register][2:6] if operand >= 0)
    numbers = {register: number for number, register in enumerate(sorted(needed))}
    rows = [instructions[register] for register in numbers]

    def moved(register: int) -> int:
        return numbers.get(register, -1)

    return [(op, table, moved(a), moved(b), moved(c), moved(d), value) for op, table, a, b, c, d, value in rows], numbers


def slope_of(trace: Trace, derivatives: dict[int, int]) -> int:
    """The register of the derivative of the new score by the old score. It holds 0 if the new score does not depend on the old score."""
    score = next(i for i, row in enumerate(trace.instructions) if row[0] == "score")
    return derivatives[score] if score in derivatives else trace.constant(0)
