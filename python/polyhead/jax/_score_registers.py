"""Arithmetic on the registers of a score program. A register stands for a number that is known only when the program runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import numpy as jnp

from .._score_program import Number, Trace, power_of, truncated

TABLES = tuple(map(np.dtype, (np.float32, np.float64, np.float16, jnp.bfloat16, np.int32, np.int64, np.bool_)))  # dtypes of captured arrays
UNBOUNDED = (-math.inf, math.inf)


def refuse(name: str) -> NotImplementedError:
    return NotImplementedError(f"attention: score_fn uses {name}, which polyhead cannot trace; docs/flex_attention.md lists what it can")


class Registers:
    """Arithmetic on registers. The smallest and the largest possible value of each integer and boolean are recorded. An integer that may be too large to be
    exact raises an error. Instructions whose result is already known are left out."""

    def __init__(self, float64: bool) -> None:
        self.trace = Trace(float64=float64)
        self.bits = 53 if float64 else 24
        self.ranges: dict[int, tuple[float, float]] = {}  # smallest and largest possible value of registers that hold integers or booleans (also converted to floating point)
        self.integer = True  # whether all operands and results of the current equation are integers or booleans

    def constant(self, value: Any, *, integer: bool) -> int:
        register = self.trace.constant(float(value))
        if integer:
            if int(value) != float(value) or (self.bits == 24 and int(np.float32(value)) != int(value)):
                raise ValueError(f"attention: score_fn uses the integer {int(value)}, which the precision of the scores cannot represent; compute in float64")
            self.ranges[register] = (float(value), float(value))
        return register

    def range(self, register: int) -> tuple[float, float]:
        return self.ranges.get(register, UNBOUNDED)

    def emit(self, op: str, *operands: int, range: tuple[float, float] | None = None) -> int:  # noqa: A002
        """range: smallest and largest possible value of an integer or boolean result. If the two are equal, the result is a constant."""
        if range is not None and range[0] == range[1]:
            return self.constant(range[0], integer=True)
        register = self.trace.emit(op, *operands)
        if range is not None:
            low, high = self.ranges.get(register, UNBOUNDED)
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
            raise refuse("the primitive rem of floating-point numbers")
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
        below = self.emit("select", self.less(a, zero), minus, a)  # the sign if a is not positive: -1, or a itself for 0 and NaN
        return self.trace.with_partials(self.emit("select", self.less(zero, a), one, below), ())

    def power(self, a: int, exponent: float) -> int:
        if not self.are_integers(a):
            if not abs(exponent) <= 64:
                raise refuse(f"the power {exponent}")
            return power_of(Number(self.trace, a), exponent).register
        if exponent != int(exponent) or not 0 <= exponent <= 16:
            raise refuse(f"the power {exponent} of an integer")
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
        if wanted not in TABLES or (wanted.itemsize < 4 and wanted != np.bool_ and wanted != before):
            raise refuse(f"a conversion to {wanted}")
        if wanted == np.bool_:
            return a if before == np.bool_ else self.negation(self.equal(a, self.constant(0, integer=True)))
        if jnp.issubdtype(wanted, jnp.integer) and jnp.issubdtype(before, jnp.floating):
            return self.whole(truncated(Number(self.trace, a)).register, math.inf)
        return a
