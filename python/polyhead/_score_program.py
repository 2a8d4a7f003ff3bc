"""Score programs (`polyhead::ScoreProgram`): the instructions traced from a Python function of a score for torch and JAX, their derivatives, and
where a backward pass's sums hold the gradient of each captured array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from . import _core

Instruction = tuple[str, int, int, int, int, int, float]  # op, table, a, b, c, d, value

OPS = tuple(_core.score_ops())  # in the order of polyhead::ScoreOp


class Trace:
    """The instructions of a score program. Instruction i writes register i. Equal instructions are stored once."""

    def __init__(self, *, float64: bool = False) -> None:
        self.float64 = float64  # whether the program is computed in float64; else in float32
        self.instructions: list[Instruction] = []
        self.tables: list[Any] = []  # the captured arrays
        self.integers: set[int] = set()  # the integer constants in the function
        self.partials: dict[int, tuple[tuple[int, int], ...]] = {}  # register -> ((operand, derivative by the operand), ...), for registers whose derivatives differ from those of their operation
        self._known: dict[tuple[Any, ...], int] = {}

    def copy(self) -> Trace:
        other = Trace(float64=self.float64)
        other.instructions, other.tables, other.integers = self.instructions.copy(), self.tables.copy(), self.integers.copy()
        other.partials, other._known = self.partials.copy(), self._known.copy()
        return other

    def emit(self, op: str, *operands: int, table: int = -1, value: float = 0.0) -> int:
        a, b, c, d = (*operands, *[-1] * (4 - len(operands)))
        instruction = (op, table, a, b, c, d, value)
        key: tuple[Any, ...] = instruction if op != "constant" else (*instruction, str(value))  # the text distinguishes -0.0 from 0.0 and makes NaN equal to NaN
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
        """For each register that ``result`` depends on, the register of the derivative of ``result`` by that register."""
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
            elif op in _DERIVATIVES:
                add(a, times(_DERIVATIVES[op](Number(self, a), Number(self, y)).register))
            elif op == "select":
                add(b, self.emit("select", a, g, zero()))
                add(c, self.emit("select", a, zero(), g))
        return found


class Number:
    """A register with the operators of Python, for formulas."""

    def __init__(self, trace: Trace, register: int) -> None:
        self.trace, self.register = trace, register

    def of(self, op: str, *others: Number | float) -> Number:
        return Number(self.trace, self.trace.emit(op, self.register, *(x.register if isinstance(x, Number) else self.trace.constant(x) for x in others)))

    def like(self, value: float) -> Number:
        return Number(self.trace, self.trace.constant(value))

    def __add__(self, other: Number | float) -> Number:
        return self.of("add", other)

    def __sub__(self, other: Number | float) -> Number:
        return self.of("subtract", other)

    def __rsub__(self, other: float) -> Number:
        return self.like(other).of("subtract", self)

    def __mul__(self, other: Number | float) -> Number:
        return self.of("multiply", other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Number | float) -> Number:
        return self.of("divide", other)

    def __rtruediv__(self, other: float) -> Number:
        return self.like(other).of("divide", self)

    def __neg__(self) -> Number:
        return self.of("negate")

    def __lt__(self, other: Number | float) -> Number:
        return self.of("less", other)

    def __gt__(self, other: Number | float) -> Number:
        return (other if isinstance(other, Number) else self.like(other)).of("less", self)

    def where(self, a: Number | float, b: Number | float) -> Number:
        return self.of("select", a, b)

    def with_derivatives(self, *pairs: tuple[Number, Number | float]) -> Number:
        """A copy of the number with the given derivatives, which are pairs (operand, derivative)."""
        partials = [(x.register, d.register if isinstance(d, Number) else self.trace.constant(d)) for x, d in pairs]
        return Number(self.trace, self.trace.with_partials(self.register, partials))


# The derivatives of the operations of one number x with the result y. An operation that is neither here nor in Trace.gradients has the derivative 0.
_DERIVATIVES: dict[str, Callable[[Number, Number], Number]] = {
    "square_root": lambda x, y: 0.5 / y,
    "exp": lambda x, y: y,
    "log": lambda x, y: 1 / x,
    "tanh": lambda x, y: 1 - y * y,
    "sigmoid": lambda x, y: y * (1 - y),
    "sine": lambda x, y: x.of("cosine"),
    "cosine": lambda x, y: -x.of("sine"),
    "arctangent": lambda x, y: 1 / (1 + x * x),
    "error_function": lambda x, y: (-x * x).of("exp") * (2 / math.sqrt(math.pi)),
    "complementary_error": lambda x, y: (-x * x).of("exp") * (-2 / math.sqrt(math.pi)),
}


def _log1p(x: Number) -> Number:
    u = 1 + x
    rounded, log = u - 1, u.of("log")
    exact = rounded.of("equal", x).where(log, log * (x / rounded))  # Kahan's formula: log(u) and u - 1 both have the rounding error of u, which cancels in their quotient
    return u.of("equal", 1).where(x, exact).with_derivatives((x, 1 / u))


def _expm1(x: Number) -> Number:
    power = x.of("exp")
    return ((x * 0.5).of("tanh") * (power + 1)).with_derivatives((x, power))  # tanh(x/2) (e^x + 1)


def softplus_of(x: Number) -> Number:
    return (x.of("maximum", 0) + _log1p((-x.of("absolute")).of("exp"))).with_derivatives((x, x.of("sigmoid")))


def truncated(x: Number) -> Number:
    magnitude = x.of("absolute").of("floor")
    return (x < 0).where(-magnitude, magnitude)


def sign_of(x: Number) -> Number:
    """The sign of x; that of NaN is 0, as in torch."""
    return (x > 0).where(1, (x < 0).where(-1, 0)).with_derivatives()


def _tangent(x: Number) -> Number:
    y = x.of("sine") / x.of("cosine")
    return y.with_derivatives((x, 1 + y * y))


def _arcsine(x: Number) -> Number:
    root = ((1 - x) * (1 + x)).of("square_root")
    return ((x / (1 + root)).of("arctangent") * 2).with_derivatives((x, 1 / root))


def _arccosine(x: Number) -> Number:
    root = ((1 - x) * (1 + x)).of("square_root")
    return (((1 - x) / (1 + x)).of("square_root").of("arctangent") * 2).with_derivatives((x, -1 / root))


def _hyperbolic(x: Number, *, is_sine: bool) -> Number:
    plus, minus = x.of("exp"), (-x).of("exp")
    sine, cosine = (_expm1(x) - _expm1(-x)) * 0.5, (plus + minus) * 0.5
    return (sine if is_sine else cosine).with_derivatives((x, cosine if is_sine else sine))


_LARGE = 1e9  # for larger x, sqrt(x^2 + 1) rounds to x in float64


def _hyperbolic_arcsine(x: Number) -> Number:
    magnitude, square = x.of("absolute"), x * x
    small = _log1p(magnitude + square / (1 + (1 + square).of("square_root")))
    y = (magnitude > _LARGE).where(magnitude.of("log") + math.log(2), small)
    return (x < 0).where(-y, (x > 0).where(y, x)).with_derivatives((x, 1 / (1 + square).of("square_root")))  # for 0 and NaN return x itself, which keeps the sign of -0


def _hyperbolic_arccosine(x: Number) -> Number:
    above = x - 1
    product = above * (x + 1)
    y = (x > _LARGE).where(x.of("log") + math.log(2), _log1p(above + product.of("square_root")))
    return (x < 1).where(math.nan, y).with_derivatives((x, 1 / (x < 1).where(math.nan, product).of("square_root")))


def floor_of_quotient(a: Number, b: Number, bits: int) -> Number:
    """The floor of the exact quotient a / b. bits: number of bits of the mantissa. The floor of the rounded quotient may be too large by 1, as for 1 / 0.1; the sign of the
    remainder tells whether it is. A quotient of 2^bits or more is a whole number already, so the rounded quotient is returned."""
    quotient = (a / b).of("floor")
    product = quotient * b
    high = [_high_half(x, bits) for x in (quotient, b)]
    low = [x - half for x, half in zip((quotient, b), high)]
    rest = ((high[0] * high[1] - product) + high[0] * low[1] + low[0] * high[1]) + low[0] * low[1]  # quotient b - product, exactly (Dekker 1971)
    remainder = quotient.of("equal", 0).where(a, (a - product) - rest)
    too_large = (b < 0).where(remainder > 0, remainder < 0)
    infinite = a.of("absolute").of("equal", math.inf).where(b.of("equal", 0).of("logical_not"), 0)  # an infinite a divided by a number other than 0: torch and NumPy give NaN
    return infinite.where(math.nan, too_large.where(quotient - 1, quotient)).with_derivatives()


def _high_half(x: Number, bits: int) -> Number:
    scaled = x * (2.0 ** ((bits + 1) // 2) + 1)
    return scaled - (scaled - x)


def _gelu(x: Number) -> Number:
    cumulative = (x * -math.sqrt(0.5)).of("complementary_error") * 0.5  # erfc, because 1 + erf would lose digits by cancellation for negative x
    return (x * cumulative).with_derivatives((x, cumulative + x * (x * x * -0.5).of("exp") * (0.5 * math.sqrt(2 / math.pi))))


def _gelu_tanh(x: Number) -> Number:
    return x * ((x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi))).of("sigmoid")  # (1 + tanh u) / 2 is the sigmoid of 2 u


GELUS: dict[str, Callable[[Number], Number]] = {"none": _gelu, "tanh": _gelu_tanh}


def arctangent_of_two(y: Number, x: Number) -> Number:
    """The angle of the point (x, y). -0 is treated as 0."""
    pi = (y < 0).where(-math.pi, math.pi)
    sign = (x < 0).of("equal", y < 0).where(1, -1)
    ratio = x.of("absolute").of("equal", y.of("absolute")).where(sign, y / x)  # y / x of two infinities is NaN
    beside = ratio.of("arctangent") + (x < 0).where(pi, 0)
    above = y.of("equal", 0).where((x < 0).where(math.pi, 0), pi * 0.5)
    square = x * x + y * y
    return x.of("equal", 0).where(above, beside).with_derivatives((y, x / square), (x, -y / square))


def hypotenuse(a: Number, b: Number) -> Number:
    """sqrt(a^2 + b^2), without the overflow and underflow of the squares."""
    large, small = (a.of("absolute").of(op, b.of("absolute")) for op in ("maximum", "minimum"))
    ratio = small.of("equal", large).where(1, small / large)  # the quotient of two zeros or two infinities is NaN
    y = large * (1 + ratio * ratio).of("square_root")
    return y.with_derivatives((a, a / y), (b, b / y))


def power_of(x: Number, exponent: float) -> Number:
    """x ** exponent of a constant. Negative numbers have powers with whole exponents only; others give NaN."""
    if exponent == 0:
        return x.like(1)
    if exponent != int(exponent):
        if abs(exponent) == 0.5:
            return x.of("square_root") if exponent > 0 else 1 / x.of("square_root")
        log = x.of("log")
        return (log * exponent).of("exp").with_derivatives((x, (log * (exponent - 1)).of("exp") * exponent))
    if exponent < 0:
        whole = int(-exponent)
        # Two factors, because x^(1 - exponent) may overflow where the derivative does not.
        derivative = _inverse_power(x, (whole + 1) // 2) * _inverse_power(x, (whole + 2) // 2) * exponent
        return _inverse_power(x, whole).with_derivatives((x, derivative))  # the derivative of the quotient would be 0 times infinity where x^-exponent overflows
    return _whole_power(x, int(exponent))


def _inverse_power(x: Number, exponent: int) -> Number:
    return 1 / _whole_power(x, exponent)


def _whole_power(x: Number, exponent: int) -> Number:
    result, square, left = None, x, exponent
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        if left:
            square = square * square
    assert result is not None
    return result


class Function(NamedTuple):
    """A function of one floating-point number: its formula, and how torch and JAX call it."""

    formula: Callable[[Number], Number]
    torch: tuple[str, ...] = ()
    primitives: tuple[str, ...] = ()  # of JAX


FUNCTIONS: tuple[Function, ...] = (
    Function(lambda x: x.of("square_root"), ("sqrt",), ("sqrt",)),
    Function(lambda x: 1 / x.of("square_root"), ("rsqrt",), ("rsqrt",)),
    Function(lambda x: x.of("exp"), ("exp",), ("exp",)),
    Function(lambda x: (x * math.log(2)).of("exp"), ("exp2",), ("exp2",)),
    Function(_expm1, ("expm1",), ("expm1",)),
    Function(lambda x: x.of("log"), ("log",), ("log",)),
    Function(lambda x: x.of("log") / math.log(2), ("log2",), ()),
    Function(lambda x: x.of("log") / math.log(10), ("log10",), ()),
    Function(_log1p, ("log1p",), ("log1p",)),
    Function(lambda x: x.of("sine"), ("sin",), ("sin",)),
    Function(lambda x: x.of("cosine"), ("cos",), ("cos",)),
    Function(_tangent, ("tan",), ("tan",)),
    Function(_arcsine, ("asin", "arcsin"), ("asin",)),
    Function(_arccosine, ("acos", "arccos"), ("acos",)),
    Function(lambda x: x.of("arctangent"), ("atan", "arctan"), ("atan",)),
    Function(lambda x: _hyperbolic(x, is_sine=True), ("sinh",), ("sinh",)),
    Function(lambda x: _hyperbolic(x, is_sine=False), ("cosh",), ("cosh",)),
    Function(lambda x: x.of("tanh"), ("tanh",), ("tanh",)),
    Function(lambda x: _log1p(2 * x / (1 - x)) * 0.5, ("atanh", "arctanh"), ("atanh",)),
    Function(_hyperbolic_arcsine, ("asinh", "arcsinh"), ("asinh",)),
    Function(_hyperbolic_arccosine, ("acosh", "arccosh"), ("acosh",)),
    Function(lambda x: x.of("sigmoid"), ("sigmoid", "expit"), ("logistic",)),
    Function(lambda x: x.of("error_function"), ("erf",), ("erf",)),
    Function(lambda x: x.of("complementary_error"), ("erfc",), ("erfc",)),
    Function(lambda x: x * x.of("sigmoid"), ("silu",), ()),
    Function(lambda x: -softplus_of(-x), ("logsigmoid", "log_sigmoid"), ()),
    Function(lambda x: x * softplus_of(x).of("tanh"), ("mish",), ()),
    Function(lambda x: x / (1 + x.of("absolute")), ("softsign",), ()),
    Function(lambda x: x - x.of("tanh"), ("tanhshrink",), ()),
)


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


def _pruned(instructions: Sequence[Instruction], roots: Iterable[int]) -> tuple[list[Instruction], dict[int, int]]:
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


def program_of(trace: Trace, result: int, slope: int, sums: Sums, *, name: str, differentiated: bool) -> tuple[list[Instruction], dict[int, int]]:
    """The instructions that the result, the slope (-1: none) and the sums need, and old register number -> new register number. Raises NotImplementedError if they are
    too many for a score program. name: score_mod or score_fn."""
    roots = [result, *([] if slope < 0 else [slope]), *(register for row in sums.rows for register in row[:2])]
    instructions, numbers = _pruned(trace.instructions, roots)
    if len(instructions) > _core.most_score_instructions:
        what = " with its derivatives" if differentiated else ""
        raise NotImplementedError(f"attention: {name} has {len(instructions)} instructions{what}; at most {_core.most_score_instructions} are allowed")
    return instructions, numbers


def slope_of(trace: Trace, derivatives: dict[int, int]) -> int:
    """The register of the derivative of the new score by the old score. It holds 0 if the new score does not depend on the old score."""
    score = next(i for i, row in enumerate(trace.instructions) if row[0] == "score")
    return derivatives[score] if score in derivatives else trace.constant(0)
