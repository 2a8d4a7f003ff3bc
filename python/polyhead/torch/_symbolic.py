"""Support for torch.fx.symbolic_trace: a call with symbols instead of tensors becomes one node of the graph, as a call of torch's own attention does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.fx import Proxy


def is_traced(values: Iterable[object]) -> bool:
    """True if a value is a symbol."""
    return any(isinstance(value, Proxy) for value in values)


def _tracer(values: Iterable[object]) -> Any:
    return next(value for value in values if isinstance(value, Proxy)).tracer


def node_of_function(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The symbol that stands for a call of the function, if one of the arguments is a symbol."""
    return _tracer((*args, *named.values())).create_proxy("call_function", function, args, named)


def node_of_module(module: nn.Module, *args: Any, **named: Any) -> Any:
    """The symbol that stands for a call of the module, if one of the arguments is a symbol."""
    tracer = _tracer((*args, *named.values()))
    if tracer.root is module:
        raise TypeError(f"{type(module).__name__}: torch.fx cannot trace the inside of this layer; trace a module that holds it")
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, named)
