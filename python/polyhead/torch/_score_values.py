"""Traced numbers of a score_mod, and captured tensors that such numbers index. What they do is recorded as instructions of a score program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._score_program import Trace

NUMBERS = (int, float, bool)
_TABLES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
functions: dict[str, Callable[..., Any]] = {}  # what a traced number can do, by torch's names; _score_functions.py fills it


def refuse(name: str) -> NotImplementedError:
    return NotImplementedError(f"attention: score_mod uses {name}, which polyhead cannot trace; docs/flex_attention.md lists what it can")


class Value:
    """A traced number: the value of a register, which differs from pair to pair."""

    def __init__(self, trace: Trace, register: int, kind: str) -> None:
        self.trace, self.register, self.kind = trace, register, kind
        self.may_share = False  # whether in torch another tensor might share the memory, so that writing in place would change both

    shape = torch.Size([])
    ndim = 0
    device = torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return {"float": torch.float32, "int": torch.int32, "bool": torch.bool}[self.kind]

    def __bool__(self) -> bool:
        raise refuse("a condition of Python on a traced number (use torch.where)")

    def __index__(self) -> int:
        raise refuse("a traced number as an int")

    __int__ = __index__

    def __float__(self) -> float:
        raise refuse("a traced number as a float")

    def __iter__(self) -> Any:
        raise refuse("iteration over a traced number")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in functions:
            raise refuse(name)
        return lambda *arguments, **keywords: call(name, (self, *arguments), keywords, as_method=True)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
        return call(name_of(function), arguments, keywords or {}, is_method(function))


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", function)).removeprefix("special_")  # of torch.special


def is_method(function: Any) -> bool:
    return type(function) is type(Tensor.where)


class Indexed:
    """A captured tensor to which the first indices are already applied."""

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
                indices += (value_of(self.trace, one).register,)
            else:
                raise refuse(f"an index of type {type(one).__name__}")
        if len(indices) > self.tensor.dim():
            raise IndexError(f"attention: score_mod gives {len(indices)} indices to a tensor of shape {list(self.tensor.shape)}")
        if len(indices) < self.tensor.dim():
            return Indexed(self.trace, self.tensor, indices)
        if len(indices) > 4:
            raise refuse("a captured tensor of more than 4 dimensions")
        kind = "bool" if self.tensor.dtype == torch.bool else "float" if self.tensor.is_floating_point() else "int"
        if self.tensor.dtype not in _TABLES:  # integers of fewer than 32 bits wrap around in torch's arithmetic, but not in polyhead's
            raise NotImplementedError(f"attention: score_mod captures a tensor of {self.tensor.dtype}; convert it by .to(torch.int64) or .to(torch.float32)")
        return Value(self.trace, self.trace.emit("load", *indices, table=self.trace.table(self.tensor)), kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse(f"{name} of a row of a captured tensor (give an index for each dimension)")


def value_of(trace: Trace, x: Any) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, NUMBERS):
        if isinstance(x, int):
            trace.integers.add(x)
        return Value(trace, trace.constant(x), "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "float")
    if isinstance(x, Tensor) and x.dim() == 0:
        return Indexed(trace, x, ())[()]  # type: ignore[return-value]
    if isinstance(x, Tensor) and x.numel() == 1:
        return Indexed(trace, x, ())[(0,) * x.dim()]  # type: ignore[return-value]
    if isinstance(x, (Tensor, Indexed)):
        shape = list(x.shape if isinstance(x, Tensor) else x.tensor.shape[len(x.indices) :])
        raise refuse(f"a tensor of shape {shape} without an index for each dimension")
    raise refuse(f"an argument of type {type(x).__name__}")


def call(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], as_method: bool = False) -> Any:
    is_dunder = name.startswith("__") and name.endswith("__")
    function = functions.get(name[2:-2] if is_dunder else name)  # None for a name that ends with a single _, as such functions change a tensor in place
    trace = next((x.trace for x in (*arguments, *keywords.values()) if isinstance(x, (Value, Indexed))), None)
    if function is None or trace is None:
        raise refuse(name)
    if as_method and name == "where":
        function = lambda t, a, condition, b: functions["where"](t, condition, a, b)  # noqa: E731
    try:
        return function(trace, *arguments, **{{"input": "a", "other": "b"}.get(key, key): value for key, value in keywords.items()})
    except TypeError as error:
        raise refuse(f"{name} with these arguments ({error})") from None


_ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne")


def _operator(name: str) -> Any:
    def apply(self: Value, *others: Any) -> Any:
        return call(name, (self, *others), {})

    return apply


for _name in (*_ARITHMETIC, "pos", "invert", "and", "rand", "or", "ror", "xor", "rxor"):
    setattr(Value, f"__{_name}__", _operator(_name))


def _operator_of_row(name: str) -> Any:
    def apply(self: Indexed, *_: Any) -> Any:
        raise refuse(f"{name} of a row of a captured tensor (give an index for each dimension)")

    return apply


for _name in _ARITHMETIC:
    setattr(Indexed, f"__{_name}__", _operator_of_row(f"__{_name}__"))
Indexed.__hash__ = object.__hash__  # type: ignore[method-assign]


def _operator_in_place(name: str) -> Any:
    def apply(self: Value, other: Any) -> Value:
        result = call(f"__{name}__", (self, other), {})
        if self.may_share or result.kind != self.kind:
            raise refuse(f"__i{name}__ of {self.kind} with {result.kind}" if result.kind != self.kind else f"__i{name}__ of a number with two names")
        self.register = result.register
        return self

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or"):
    setattr(Value, f"__i{_name}__", _operator_in_place(_name))
Value.__hash__ = object.__hash__  # type: ignore[method-assign]
