"""A score_mod, traced once into the instructions of a score program, and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# In the order of polyhead::ScoreOp.
OPS = (
    "constant", "score", "batch", "head", "query", "key", "load", "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "less_equal", "equal",
    "logical_and", "logical_or", "negate", "absolute", "square_root", "exp", "log", "tanh", "sigmoid", "floor", "logical_not", "select",
)  # fmt: skip
_NUMBERS = (int, float, bool)
_BOOLEAN = {"less", "less_equal", "equal", "logical_and", "logical_or", "logical_not"}


def _refuse(name: str) -> NotImplementedError:
    return NotImplementedError(f"attention: score_mod uses {name}, which polyhead cannot trace; docs/flex_attention.md lists what it can")


class Trace:
    """Instructions ``(op, table, a, b, c, d, value)``; instruction i writes register i. Equal instructions are one."""

    def __init__(self) -> None:
        self.instructions: list[tuple[str, int, int, int, int, int, float]] = []
        self.tables: list[Tensor] = []  # as captured
        self._known: dict[tuple[Any, ...], int] = {}
        self._loads: dict[int, int] = {}

    def emit(self, op: str, *operands: int, table: int = -1, value: float = 0.0) -> int:
        a, b, c, d = (*operands, *[-1] * (4 - len(operands)))
        instruction = (op, table, a, b, c, d, value)
        key = (*instruction, str(value))  # -0.0 and NaN too
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

    def table(self, tensor: Tensor) -> int:
        for i, known in enumerate(self.tables):
            if known is tensor:
                return i
        self.tables.append(tensor)
        return len(self.tables) - 1

    def gradients(self, result: int) -> dict[int, int]:
        """Registers of the derivatives of ``result`` by the registers that it depends on."""
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

            zero = lambda: self.constant(0)  # noqa: E731
            if op == "add":
                add(a, g), add(b, g)
            elif op == "subtract":
                add(a, g), add(b, self.emit("negate", g))
            elif op == "multiply":
                add(a, times(b)), add(b, times(a))
            elif op == "divide":
                add(a, self.emit("divide", g, b)), add(b, self.emit("negate", self.emit("divide", times(y), b)))
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
                add(b, self.emit("select", a, g, zero())), add(c, self.emit("select", a, zero(), g))
        return found


class Value:
    """A number of each pair while a score_mod is traced."""

    def __init__(self, trace: Trace, register: int, kind: str) -> None:
        self.trace, self.register, self.kind = trace, register, kind

    shape = torch.Size([])
    ndim = 0
    device = torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return {"float": torch.float32, "int": torch.int32, "bool": torch.bool}[self.kind]

    def __bool__(self) -> bool:
        raise _refuse("a condition of Python on a traced number (use torch.where)")

    def __index__(self) -> int:
        raise _refuse("a traced number as an int")

    __int__ = __index__

    def __float__(self) -> float:
        raise _refuse("a traced number as a float")

    def __iter__(self) -> Any:
        raise _refuse("iteration over a traced number")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **keywords: _call(name, (self, *arguments), keywords)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
        return _call(_name_of(function), arguments, keywords or {})


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", function))


class Indexed:
    """A captured tensor with its first indices."""

    def __init__(self, trace: Trace, tensor: Tensor, indices: tuple[int, ...]) -> None:
        self.trace, self.tensor, self.indices = trace, tensor, indices

    def __getitem__(self, index: Any) -> Value | Indexed:
        given = index if isinstance(index, tuple) else (index,)
        indices = self.indices
        for one in given:
            if isinstance(one, Value) and one.kind == "int":
                indices += (one.register,)
            elif isinstance(one, int) and not isinstance(one, bool):
                indices += (self.trace.constant(one),)
            elif isinstance(one, Tensor) and one.dim() == 0 and not one.is_floating_point() and one.dtype != torch.bool:
                indices += (_value(self.trace, one).register,)
            else:
                raise _refuse(f"an index of type {type(one).__name__}")
        if len(indices) > self.tensor.dim():
            raise IndexError(f"attention: score_mod gives {len(indices)} indices to a tensor of shape {list(self.tensor.shape)}")
        if len(indices) < self.tensor.dim():
            return Indexed(self.trace, self.tensor, indices)
        if len(indices) > 4:
            raise _refuse("a captured tensor of more than 4 dimensions")
        kind = "bool" if self.tensor.dtype == torch.bool else "float" if self.tensor.is_floating_point() else "int"
        return Value(self.trace, self.trace.emit("load", *indices, table=self.trace.table(self.tensor)), kind)


def _value(trace: Trace, x: Any) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, _NUMBERS):
        return Value(trace, trace.constant(x), "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "float")
    if isinstance(x, Tensor) and x.dim() == 0:
        return Indexed(trace, x, ())[()]  # type: ignore[return-value]
    if isinstance(x, Tensor) and x.numel() == 1:
        return Indexed(trace, x, ())[(0,) * x.dim()]  # type: ignore[return-value]
    if isinstance(x, (Tensor, Indexed)):
        shape = list(x.shape if isinstance(x, Tensor) else x.tensor.shape[len(x.indices) :])
        raise _refuse(f"a tensor of shape {shape} without an index for each dimension")
    raise _refuse(f"an argument of type {type(x).__name__}")


def _kind(*values: Value) -> str:
    kinds = {value.kind for value in values}
    return "float" if "float" in kinds else "int" if "int" in kinds else "bool"


def _binary(op: str, kind: str | None = None) -> Callable[..., Value]:
    def apply(trace: Trace, a: Any, b: Any) -> Value:
        x, y = _value(trace, a), _value(trace, b)
        return Value(trace, trace.emit(op, x.register, y.register), kind or ("bool" if op in _BOOLEAN else _kind(x, y)))

    return apply


def _unary(op: str, kind: str | None = "float") -> Callable[..., Value]:
    def apply(trace: Trace, a: Any) -> Value:
        x = _value(trace, a)
        return Value(trace, trace.emit(op, x.register), kind or x.kind)

    return apply


_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = _binary("add"), _binary("subtract"), _binary("multiply"), _binary("divide", "float")
_FLOOR, _NOT, _LESS, _LESS_EQUAL, _EQUAL = _unary("floor", None), _unary("logical_not", "bool"), _binary("less"), _binary("less_equal"), _binary("equal")
_MAXIMUM, _MINIMUM, _AND, _OR = _binary("maximum"), _binary("minimum"), _binary("logical_and"), _binary("logical_or")


def _where(trace: Trace, condition: Any, a: Any, b: Any) -> Value:
    c, x, y = _value(trace, condition), _value(trace, a), _value(trace, b)
    return Value(trace, trace.emit("select", c.register, x.register, y.register), _kind(x, y))


def _power(trace: Trace, a: Any, exponent: Any) -> Value:
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        raise _refuse(f"the power of an exponent of type {type(exponent).__name__}")
    if exponent == 0.5:
        return _unary("square_root")(trace, a)
    if exponent != int(exponent) or not 0 < abs(exponent) <= 16:
        raise _refuse(f"the power {exponent}")
    result = base = _value(trace, a)
    for _ in range(abs(int(exponent)) - 1):
        result = _MULTIPLY(trace, result, base)
    return result if exponent > 0 else _DIVIDE(trace, 1, result)


def _boolean(op: Callable[..., Value], name: str) -> Callable[..., Value]:
    def apply(trace: Trace, *arguments: Any) -> Value:
        values = [_value(trace, x) for x in arguments]
        if any(value.kind != "bool" for value in values):
            raise _refuse(f"{name} of numbers that are not bool")
        return op(trace, *values)

    return apply


def _floor_divide(trace: Trace, a: Any, b: Any) -> Value:
    return _FLOOR(trace, Value(trace, _DIVIDE(trace, a, b).register, _kind(_value(trace, a), _value(trace, b))))


def _divide(trace: Trace, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode not in (None, "floor"):
        raise _refuse(f"a division with rounding_mode {rounding_mode!r}")
    return _DIVIDE(trace, a, b) if rounding_mode is None else _floor_divide(trace, a, b)


def _clamp(trace: Trace, x: Any, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    x = x if min is None else _MAXIMUM(trace, x, min)
    return _value(trace, x if max is None else _MINIMUM(trace, x, max))


def _to(trace: Trace, x: Value, *arguments: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    wanted = dtype or next((a for a in arguments if isinstance(a, torch.dtype)), None) or next((a.dtype for a in arguments if isinstance(a, (Tensor, Value))), None) or x.dtype
    if wanted.is_floating_point:
        return Value(trace, x.register, "float")
    if wanted == torch.bool:
        return x if x.kind == "bool" else _NOT(trace, _EQUAL(trace, x, 0))
    if x.kind == "float":  # towards zero
        inner = _FLOOR(trace, _unary("absolute")(trace, x))
        return Value(trace, _where(trace, _LESS(trace, x, 0), _unary("negate")(trace, inner), inner).register, "int")
    return Value(trace, x.register, "int")


def _scaled(op: Callable[..., Value]) -> Callable[..., Value]:
    def apply(trace: Trace, a: Any, b: Any, *, alpha: float = 1) -> Value:
        return op(trace, a, b if alpha == 1 else _MULTIPLY(trace, b, alpha))

    return apply


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _scaled(_ADD), "radd": lambda t, a, b: _ADD(t, b, a), "sub": _scaled(_SUBTRACT), "subtract": _scaled(_SUBTRACT), "rsub": lambda t, a, b: _SUBTRACT(t, b, a),
    "mul": _MULTIPLY, "multiply": _MULTIPLY, "rmul": lambda t, a, b: _MULTIPLY(t, b, a), "div": _divide, "divide": _divide, "true_divide": _divide, "truediv": _divide,
    "rtruediv": lambda t, a, b: _DIVIDE(t, b, a), "rdiv": lambda t, a, b: _DIVIDE(t, b, a), "floor_divide": _floor_divide, "floordiv": _floor_divide,
    "rfloordiv": lambda t, a, b: _floor_divide(t, b, a), "mod": lambda t, a, b: _SUBTRACT(t, a, _MULTIPLY(t, _floor_divide(t, a, b), b)),
    "neg": _unary("negate", None), "negative": _unary("negate", None), "pos": lambda t, a: _value(t, a), "abs": _unary("absolute", None), "absolute": _unary("absolute", None),
    "sqrt": _unary("square_root"), "rsqrt": lambda t, a: _DIVIDE(t, 1, _unary("square_root")(t, a)), "exp": _unary("exp"), "log": _unary("log"), "tanh": _unary("tanh"),
    "sigmoid": _unary("sigmoid"), "floor": _FLOOR, "reciprocal": lambda t, a: _DIVIDE(t, 1, a), "square": lambda t, a: _MULTIPLY(t, a, a), "pow": _power,
    "relu": lambda t, a: _MAXIMUM(t, a, 0), "clamp": _clamp, "clip": _clamp, "maximum": _MAXIMUM, "minimum": _MINIMUM, "max": _MAXIMUM, "min": _MINIMUM,
    "lt": _LESS, "less": _LESS, "le": _LESS_EQUAL, "less_equal": _LESS_EQUAL, "gt": lambda t, a, b: _LESS(t, b, a), "greater": lambda t, a, b: _LESS(t, b, a),
    "ge": lambda t, a, b: _LESS_EQUAL(t, b, a), "greater_equal": lambda t, a, b: _LESS_EQUAL(t, b, a), "eq": _EQUAL, "ne": lambda t, a, b: _NOT(t, _EQUAL(t, a, b)),
    "logical_and": _AND, "logical_or": _OR, "logical_not": _NOT, "and": _boolean(_AND, "&"), "or": _boolean(_OR, "|"), "rand": _boolean(_AND, "&"), "ror": _boolean(_OR, "|"),
    "invert": _boolean(_NOT, "~"), "bitwise_and": _boolean(_AND, "&"), "bitwise_or": _boolean(_OR, "|"), "bitwise_not": _boolean(_NOT, "~"), "where": _where,
    "to": _to, "type": _to, "type_as": _to, "float": lambda t, a: _to(t, a, torch.float32), "double": lambda t, a: _to(t, a, torch.float32), "int": lambda t, a: _to(t, a, torch.int32),
    "long": lambda t, a: _to(t, a, torch.int32), "bool": lambda t, a: _to(t, a, torch.bool), "clone": lambda t, a: a, "detach": None, "contiguous": lambda t, a: a,
}  # fmt: skip
del _FUNCTIONS["detach"]  # a gradient that stops inside of a rule is not traced


def _call(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    function = _FUNCTIONS.get(name.strip("_"))
    trace = next((x.trace for x in (*arguments, *keywords.values()) if isinstance(x, (Value, Indexed))), None)
    if function is None or trace is None:
        raise _refuse(name)
    if name.strip("_") == "where" and arguments and isinstance(arguments[0], Value) and arguments[0].kind != "bool":
        # value.where(condition, other)
        arguments = (arguments[1], arguments[0], *arguments[2:])
    try:
        return function(trace, *arguments, **{{"input": "a", "other": "b"}.get(key, key): value for key, value in keywords.items()})
    except TypeError as error:
        raise _refuse(f"{name} with these arguments ({error})") from None


def _operator(name: str) -> Any:
    def apply(self: Value, *others: Any) -> Any:
        return _call(name, (self, *others), {})

    return apply


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "pow", "neg", "pos", "abs", "invert", "and", "rand", "or", "ror",
              "lt", "le", "gt", "ge", "eq", "ne"):  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_name))
Value.__hash__ = object.__hash__  # type: ignore[method-assign,assignment]


class _Indices(TorchFunctionMode):
    """Sees ``captured[h, q_idx]``, whose indices torch cannot read."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
        if function is Tensor.__getitem__:
            tensor, index = arguments
            if any(isinstance(one, Value) for one in (index if isinstance(index, tuple) else (index,))):
                return Indexed(self._trace, tensor, ())[index]
        if any(isinstance(x, (Value, Indexed)) for x in (*arguments, *(keywords or {}).values())):
            return _call(_name_of(function), arguments, keywords or {})
        return function(*arguments, **(keywords or {}))


def trace_score_mod(score_mod: Callable[..., Any]) -> tuple[Trace, int]:
    """The instructions of ``score_mod(score, b, h, q_idx, kv_idx)`` and the register of its result."""
    trace = Trace()
    arguments = [Value(trace, trace.emit(name), kind) for name, kind in (("score", "float"), ("batch", "int"), ("head", "int"), ("query", "int"), ("key", "int"))]
    with _Indices(trace):
        result = score_mod(*arguments)
        return trace, _value(trace, result).register


