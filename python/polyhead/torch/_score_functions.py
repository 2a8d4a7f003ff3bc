"""The functions of torch that a score_mod may use, as instructions of a score program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._score_program import FUNCTIONS, GELUS, Number, Trace, arctangent_of_two, floor_of_quotient, hypotenuse, power_of, sign_of, softplus_of, truncated
from ._score_values import NUMBERS, Value, functions, refuse, value_of

_BOOLEAN = {"less", "less_equal", "equal", "logical_and", "logical_or", "logical_not"}


def _kind(*values: Value) -> str:
    kinds = {value.kind for value in values}
    return "float" if "float" in kinds else "int" if "int" in kinds else "bool"


def _binary(op: str, kind: str | None = None) -> Callable[..., Value]:
    def apply(trace: Trace, a: Any, b: Any) -> Value:
        x, y = value_of(trace, a), value_of(trace, b)
        return Value(trace, trace.emit(op, x.register, y.register), kind or ("bool" if op in _BOOLEAN else _kind(x, y)))

    return apply


def _of_booleans(op: Callable[..., Value], of_two: str) -> Callable[..., Value]:
    """The operation op; if both operands are bool, the logical operation of_two instead. Used for the sum and the product."""

    def apply(trace: Trace, a: Any, b: Any) -> Value:
        x, y = value_of(trace, a), value_of(trace, b)
        return _binary(of_two)(trace, x, y) if x.kind == y.kind == "bool" else op(trace, x, y)

    return apply


def _of_numbers(op: Callable[..., Value], name: str, *, one_may_be_bool: bool = False) -> Callable[..., Value]:
    def apply(trace: Trace, *arguments: Any) -> Value:
        values = [value_of(trace, x) for x in arguments]
        if (all if one_may_be_bool else any)(value.kind == "bool" for value in values):
            raise refuse(f"{name} of bool")
        return op(trace, *values)

    return apply


def _unary(op: str, kind: str | None = "float") -> Callable[..., Value]:
    def apply(trace: Trace, a: Any) -> Value:
        x = value_of(trace, a)
        return Value(trace, trace.emit(op, x.register), kind or x.kind)

    return apply


_ADD, _MULTIPLY = _of_booleans(_binary("add"), "logical_or"), _of_booleans(_binary("multiply"), "logical_and")
_SUBTRACT, _DIVIDE, _NEGATE = _of_numbers(_binary("subtract"), "a difference"), _binary("divide", "float"), _of_numbers(_unary("negate", None), "the negative")
_ABSOLUTE = _of_numbers(_unary("absolute", None), "abs")
_FLOOR, _NOT, _LESS, _LESS_EQUAL, _EQUAL = _unary("floor", None), _unary("logical_not", "bool"), _binary("less"), _binary("less_equal"), _binary("equal")
_MAXIMUM, _MINIMUM, _AND, _OR = _binary("maximum"), _binary("minimum"), _binary("logical_and"), _binary("logical_or")


def _where(trace: Trace, condition: Any, a: Any, b: Any) -> Value:
    c, x, y = value_of(trace, condition), value_of(trace, a), value_of(trace, b)
    if c.kind != "bool":
        raise refuse("a condition of where that is not bool")
    return Value(trace, trace.emit("select", c.register, x.register, y.register), _kind(x, y))


def _masked_fill(trace: Trace, a: Any, mask: Any, value: Any) -> Value:
    x, y = value_of(trace, a), value_of(trace, value)
    if _kind(x, y) != x.kind:
        raise refuse(f"masked_fill of {x.kind} with {y.kind}")
    return _where(trace, mask, y, x)


def _number(trace: Trace, a: Any) -> Number:
    return Number(trace, value_of(trace, a).register)


def _float(number: Number) -> Value:
    return Value(number.trace, number.register, "float")


def _of_one(formula: Callable[[Number], Number]) -> Callable[..., Value]:
    def apply(trace: Trace, a: Any, inplace: bool = False) -> Value:
        if inplace:
            raise refuse("a function with inplace=True")
        return _float(formula(_number(trace, a)))

    return apply


def _power(trace: Trace, a: Any, exponent: Any) -> Value:
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        raise refuse(f"the power of an exponent of type {type(exponent).__name__}")
    base = value_of(trace, a)
    kind = _kind(base, value_of(trace, exponent))
    if not abs(exponent) <= (64 if kind == "float" else 16):
        raise refuse(f"the power {exponent} of {kind}")
    if exponent < 0 and kind != "float":
        raise refuse(f"the power {exponent} of {base.kind}")
    return Value(trace, power_of(Number(trace, base.register), exponent).register, kind)


def _exponential(trace: Trace, base: Any, a: Any) -> Value:
    """base ** a for a positive constant base."""
    x = value_of(trace, a)
    if not isinstance(base, (int, float)) or isinstance(base, bool) or not 0 < base < math.inf or (x.kind != "float" and isinstance(base, int)):
        raise refuse(f"the power of a base of type {type(base).__name__} and an exponent of {x.kind}")
    return _unary("exp")(trace, _MULTIPLY(trace, x, math.log(base)))


def _gelu(trace: Trace, a: Any, approximate: str = "none") -> Value:
    if approximate not in GELUS:
        raise refuse(f"gelu with approximate={approximate!r}")
    return _float(GELUS[approximate](_number(trace, a)))


def _softplus(trace: Trace, a: Any, beta: float = 1, threshold: float = 20) -> Value:
    x = _number(trace, a)
    scaled = x * beta
    return _float((scaled > threshold).where(x, softplus_of(scaled) / beta))


def _elu(trace: Trace, a: Any, alpha: float = 1.0, inplace: bool = False, *, scale: float = 1.0, of: float = 1.0) -> Value:
    """scale (x if x > 0 else alpha (exp(x / of) - 1))"""
    if inplace:
        raise refuse("a function with inplace=True")
    x = _number(trace, a)
    positive = x > 0
    below = positive.where(0, x) / of  # exp of a large number would make the other branch's derivative NaN
    expm1 = next(function.formula for function in FUNCTIONS if "expm1" in function.torch)
    return _float(positive.where(x * scale, expm1(below) * (alpha * scale)))


def _hardtanh(trace: Trace, a: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    if inplace:
        raise refuse("a function with inplace=True")
    x = value_of(trace, a)
    return _where(trace, _LESS_EQUAL(trace, x, min_val), float(min_val), _where(trace, _LESS_EQUAL(trace, max_val, x), float(max_val), x))


def _leaky_relu(trace: Trace, a: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    if inplace:
        raise refuse("a function with inplace=True")
    x = _number(trace, a)
    return _float((x > 0).where(x, x * negative_slope))


def _hardsigmoid(trace: Trace, a: Any, inplace: bool = False) -> Value:
    return _hardtanh(trace, _float(_number(trace, a) / 6 + 0.5), 0.0, 1.0, inplace)


def _hardswish(trace: Trace, a: Any, inplace: bool = False) -> Value:
    return _MULTIPLY(trace, a, _hardsigmoid(trace, a, inplace))


def _whole(name: str, formula: Callable[[Number], Number]) -> Callable[..., Value]:
    """An operation such as floor: the result has the type of the argument. The result of an integer is a new Value, because it may be changed in place."""

    def apply(trace: Trace, a: Any) -> Value:
        x = value_of(trace, a)
        if x.kind == "bool":
            raise refuse(f"{name} of bool")
        return Value(trace, x.register, "int") if x.kind == "int" else _float(formula(Number(trace, x.register)))

    return apply


def _sign(trace: Trace, a: Any) -> Value:
    x = value_of(trace, a)
    return Value(trace, x.register if x.kind == "bool" else sign_of(Number(trace, x.register)).register, x.kind)


_WITHOUT_REMAINDER = {"bool": "bool", "float": "floating-point numbers"}  # kinds of numbers whose remainder is refused: for floating-point numbers, x - y floor(x / y) may be wrong by y


def _fmod(trace: Trace, a: Any, b: Any) -> Value:
    x, y = value_of(trace, a), value_of(trace, b)
    kind = _kind(x, y)
    if kind != "int":
        raise refuse(f"fmod of {_WITHOUT_REMAINDER[kind]}")
    quotient = truncated(Number(trace, x.register) / Number(trace, y.register))
    return Value(trace, (Number(trace, x.register) - quotient * Number(trace, y.register)).register, "int")


def _nan_to_num(trace: Trace, a: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    largest = torch.finfo(torch.float64 if trace.float64 else torch.float32).max
    x = value_of(trace, a)
    for infinity, value in ((math.inf, posinf), (-math.inf, neginf)):
        x = _where(trace, _EQUAL(trace, x, infinity), math.copysign(largest, infinity) if value is None else float(value), x)
    return _where(trace, _EQUAL(trace, x, x), x, float(nan or 0))


def _arctangent_of_two(y: Number, x: Number) -> Number:
    """atan2, whose derivatives are 0 where 1 / (x^2 + y^2) is infinite, as torch's are at (0, 0). JAX gives NaN there."""
    inverse = 1 / (x * x + y * y)
    too_near = inverse.of("equal", math.inf)
    return arctangent_of_two(y, x).with_derivatives((y, too_near.where(0, x * inverse)), (x, too_near.where(0, -y * inverse)))


def _of_two(formula: Callable[[Number, Number], Number]) -> Callable[..., Value]:
    return lambda trace, a, b: _float(formula(_number(trace, a), _number(trace, b)))


def _isfinite(trace: Trace, a: Any) -> Value:
    x = _number(trace, a)
    return Value(trace, (x - x).of("equal", 0).register, "bool")


def _logaddexp(trace: Trace, a: Any, b: Any) -> Value:
    x, y = _number(trace, a), _number(trace, b)
    difference = x.of("equal", y).where(0, x - y)  # 0 also for two equal infinities, whose difference would be NaN
    largest = x.of("maximum", y)
    sum_ = largest + softplus_of(-difference.of("absolute"))
    return _float(sum_.with_derivatives((x, difference.of("sigmoid")), (y, (-difference).of("sigmoid"))))


def _exclusive(trace: Trace, a: Any, b: Any) -> Value:
    return _NOT(trace, _EQUAL(trace, a, b))


def _full_like(trace: Trace, a: Any, value: float, *, dtype: torch.dtype | None = None) -> Value:
    return _to(trace, value_of(trace, value), dtype=dtype or value_of(trace, a).dtype)


def _new(trace: Trace, a: Any, size: Any, value: float, *, dtype: torch.dtype | None = None) -> Value:
    if tuple(size) != ():
        raise refuse(f"a new tensor of shape {list(size)}")
    return _full_like(trace, a, value, dtype=dtype)


def _boolean(op: Callable[..., Value], name: str) -> Callable[..., Value]:
    def apply(trace: Trace, *arguments: Any) -> Value:
        values = [value_of(trace, x) for x in arguments]
        if any(value.kind != "bool" for value in values):
            raise refuse(f"{name} of numbers that are not bool")
        return op(trace, *values)

    return apply


def _floor_divide(trace: Trace, a: Any, b: Any) -> Value:
    kind = _kind(value_of(trace, a), value_of(trace, b))
    if kind == "bool":
        raise refuse("a division with floor of bool")
    if kind == "float":
        return _float(floor_of_quotient(_number(trace, a), _number(trace, b), 53 if trace.float64 else 24))
    return _FLOOR(trace, Value(trace, _DIVIDE(trace, a, b).register, kind))


def _remainder(trace: Trace, a: Any, b: Any) -> Value:
    kind = _kind(value_of(trace, a), value_of(trace, b))
    if kind != "int":
        raise refuse(f"the remainder of {_WITHOUT_REMAINDER[kind]}")
    return _SUBTRACT(trace, a, _MULTIPLY(trace, _floor_divide(trace, a, b), b))


def _divide(trace: Trace, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode not in (None, "floor"):
        raise refuse(f"a division with rounding_mode {rounding_mode!r}")
    return _DIVIDE(trace, a, b) if rounding_mode is None else _floor_divide(trace, a, b)


def _bounded(trace: Trace, x: Value, bound: Any, *, is_lower: bool) -> Value:
    """x, bounded below or above. Where x equals the bound the gradient goes to x alone, as in torch's clamp, while maximum and minimum would share it."""
    y = value_of(trace, bound)
    beyond = _LESS(trace, x, y) if is_lower else _LESS(trace, y, x)
    if not (isinstance(bound, NUMBERS) and bound == bound):  # the bound may be NaN; then the result is NaN
        beyond = _OR(trace, beyond, _NOT(trace, _EQUAL(trace, y, y)))
    return _where(trace, beyond, y, x)


def _clamp(trace: Trace, a: Any, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    x = value_of(trace, a)
    if x.kind == "bool" or (min is None and max is None):
        raise refuse("clamp of bool" if x.kind == "bool" else "clamp without a bound")
    x = x if min is None else _bounded(trace, x, min, is_lower=True)
    return x if max is None else _bounded(trace, x, max, is_lower=False)


def _relu(trace: Trace, a: Any, inplace: bool = False) -> Value:
    if inplace:
        raise refuse("relu with inplace=True")
    x = value_of(trace, a)
    if x.kind == "bool":
        raise refuse("relu of bool")
    zero = Value(trace, trace.constant(0), x.kind)
    return _where(trace, _LESS_EQUAL(trace, x, zero), zero, x)


def _same(trace: Trace, a: Any) -> Value:
    """A value with the same numbers. In torch the result may share memory with `a`, so both are marked."""
    x = value_of(trace, a)
    x.may_share = True
    result = Value(trace, x.register, x.kind)
    result.may_share = True
    return result


_DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)


def _to(trace: Trace, a: Any, *arguments: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    x = value_of(trace, a)
    wanted = dtype or next((y for y in arguments if isinstance(y, torch.dtype)), None) or next((y.dtype for y in arguments if isinstance(y, (Tensor, Value))), None) or x.dtype
    if wanted not in _DTYPES:
        raise refuse(f"a conversion to {wanted}")
    kind = "float" if wanted.is_floating_point else "bool" if wanted == torch.bool else "int"
    if kind == x.kind:
        return _same(trace, x)
    if kind == "bool":
        return _NOT(trace, _EQUAL(trace, x, 0))
    if kind == "int" and x.kind == "float":  # round towards zero
        inner = _FLOOR(trace, _ABSOLUTE(trace, x))
        return Value(trace, _where(trace, _LESS(trace, x, 0), _NEGATE(trace, inner), inner).register, "int")
    return Value(trace, x.register, kind)


def _scaled(op: Callable[..., Value]) -> Callable[..., Value]:
    def apply(trace: Trace, a: Any, b: Any, *, alpha: float = 1) -> Value:
        if alpha == 1:
            return op(trace, a, b)
        return op(trace, a, _of_numbers(_MULTIPLY, "alpha")(trace, b, alpha))

    return apply


functions.update({
    "add": _scaled(_ADD), "radd": lambda t, a, b: _ADD(t, b, a), "sub": _scaled(_SUBTRACT), "subtract": _scaled(_SUBTRACT), "rsub": lambda t, a, b: _SUBTRACT(t, b, a),
    "mul": _MULTIPLY, "multiply": _MULTIPLY, "rmul": lambda t, a, b: _MULTIPLY(t, b, a), "div": _divide, "divide": _divide, "true_divide": _divide, "truediv": _divide,
    "rtruediv": lambda t, a, b: _DIVIDE(t, b, a), "rdiv": lambda t, a, b: _DIVIDE(t, b, a), "floor_divide": _floor_divide, "floordiv": _floor_divide,
    "rfloordiv": lambda t, a, b: _floor_divide(t, b, a), "mod": _remainder, "remainder": _remainder, "rmod": lambda t, a, b: _remainder(t, b, a),
    "neg": _NEGATE, "negative": _NEGATE, "pos": _same, "abs": _ABSOLUTE, "absolute": _ABSOLUTE,
    **{name: _of_one(function.formula) for function in FUNCTIONS for name in function.torch},
    "gelu": _gelu, "softplus": _softplus, "elu": _elu, "celu": lambda t, a, alpha=1.0, inplace=False: _elu(t, a, alpha, inplace, of=alpha),
    "selu": lambda t, a, inplace=False: _elu(t, a, 1.6732632423543772, inplace, scale=1.0507009873554805), "leaky_relu": _leaky_relu, "hardtanh": _hardtanh,
    "relu6": lambda t, a, inplace=False: _hardtanh(t, a, 0.0, 6.0, inplace), "hardsigmoid": _hardsigmoid, "hardswish": _hardswish,
    "floor": _whole("floor", lambda x: x.of("floor")), "ceil": _whole("ceil", lambda x: -(-x).of("floor")), "round": _whole("round", lambda x: x.of("round")),
    "trunc": _whole("trunc", truncated), "fix": _whole("trunc", truncated), "frac": _of_one(lambda x: x - truncated(x)), "sign": _sign, "sgn": _sign, "fmod": _fmod,
    "atan2": _of_two(_arctangent_of_two), "arctan2": _of_two(_arctangent_of_two), "hypot": _of_two(hypotenuse), "logaddexp": _logaddexp, "nan_to_num": _nan_to_num,
    "isnan": lambda t, a: _NOT(t, _EQUAL(t, a, a)), "isfinite": _isfinite, "isinf": lambda t, a: _EQUAL(t, _ABSOLUTE(t, a), math.inf),
    "clamp_min": lambda t, a, min: _clamp(t, a, min), "clamp_max": lambda t, a, max: _clamp(t, a, None, max),
    "reciprocal": lambda t, a: _DIVIDE(t, 1, a), "square": lambda t, a: _power(t, a, 2), "pow": _power, "rpow": lambda t, a, b: _exponential(t, b, a),
    "relu": _relu, "clamp": _clamp, "clip": _clamp, "maximum": _MAXIMUM, "minimum": _MINIMUM, "max": _MAXIMUM, "min": _MINIMUM,
    "lt": _LESS, "less": _LESS, "le": _LESS_EQUAL, "less_equal": _LESS_EQUAL, "gt": lambda t, a, b: _LESS(t, b, a), "greater": lambda t, a, b: _LESS(t, b, a),
    "ge": lambda t, a, b: _LESS_EQUAL(t, b, a), "greater_equal": lambda t, a, b: _LESS_EQUAL(t, b, a), "eq": _EQUAL, "ne": lambda t, a, b: _NOT(t, _EQUAL(t, a, b)),
    "logical_and": _AND, "logical_or": _OR, "logical_not": _NOT, "and": _boolean(_AND, "&"), "or": _boolean(_OR, "|"), "rand": _boolean(_AND, "&"), "ror": _boolean(_OR, "|"),
    "xor": _boolean(_exclusive, "^"), "rxor": _boolean(_exclusive, "^"), "bitwise_xor": _boolean(_exclusive, "^"), "logical_xor": _boolean(_exclusive, "logical_xor"),
    "full_like": _full_like, "zeros_like": lambda t, a, **k: _full_like(t, a, 0, **k), "ones_like": lambda t, a, **k: _full_like(t, a, 1, **k),
    "new_full": _new, "new_zeros": lambda t, a, size, **k: _new(t, a, size, 0, **k), "new_ones": lambda t, a, size, **k: _new(t, a, size, 1, **k),
    "invert": _boolean(_NOT, "~"), "bitwise_and": _boolean(_AND, "&"), "bitwise_or": _boolean(_OR, "|"), "bitwise_not": _boolean(_NOT, "~"), "where": _where, "masked_fill": _masked_fill,
    "to": _to, "type": _to, "type_as": _to, "float": lambda t, a: _to(t, a, torch.float32), "double": lambda t, a: _to(t, a, torch.float32), "int": lambda t, a: _to(t, a, torch.int32),
    "long": lambda t, a: _to(t, a, torch.int32), "bool": lambda t, a: _to(t, a, torch.bool), "contiguous": _same,
    "clone": lambda t, a: Value(t, value_of(t, a).register, value_of(t, a).kind),
})  # fmt: skip
# detach is left out on purpose, because derivatives of the program do not support a stopped gradient.
