"""Traces a score_mod into the instructions of a score program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._score_program import Trace
from . import _score_functions as _score_functions  # fills the functions of traced numbers
from ._score_values import Indexed, Value, call, is_method, name_of, value_of


class _Indices(TorchFunctionMode):
    """Handles calls of torch while a score_mod is traced. Without it torch would index ``captured[h, q_idx]`` itself, and fail, because the indices are traced numbers."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
        if function is Tensor.__getitem__:
            tensor, index = arguments
            if any(isinstance(one, Value) for one in (index if isinstance(index, tuple) else (index,))):
                return Indexed(self._trace, tensor, ())[index]
        if any(isinstance(x, (Value, Indexed)) for x in (*arguments, *(keywords or {}).values())):
            return call(name_of(function), arguments, keywords or {}, is_method(function))
        return function(*arguments, **(keywords or {}))


def trace_score_mod(score_mod: Callable[..., Any], *, float64: bool) -> tuple[Trace, int]:
    """Traces ``score_mod(score, b, h, q_idx, kv_idx)``. Returns the instructions and the register of the result. float64: whether the scores are of float64."""
    trace = Trace(float64=float64)
    arguments = [Value(trace, trace.emit(name), kind) for name, kind in (("score", "float"), ("batch", "int"), ("head", "int"), ("query", "int"), ("key", "int"))]
    with _Indices(trace):
        result = score_mod(*arguments)
        return trace, value_of(trace, result).register


