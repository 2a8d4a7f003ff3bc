"""The library's table of attention's arguments (include/polyhead/attention_arguments.h), from which lists of names in this package are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core


class Argument(NamedTuple):
    name: str
    annotation: str  # the type, written with names of `_options`
    extent: str  # for a tensor: a value of ArgumentExtent in attention_arguments.h; else ""
    has_gradient: bool  # True: the argument has a gradient and a tangent
    default: Any
    group: str  # "inputs": q, k, v and scales; "pass": keywords of `sdpa` and of a layer; "sdpa", "layer": keywords of only one; "relative_bias": fields of RelativeBias


ARGUMENTS = tuple(Argument(*row) for row in _core.arguments())

TENSORS = tuple(argument for argument in ARGUMENTS if argument.extent and argument.group != "layer")
"""The arguments that are tensors; the slopes and the table of a relative bias are listed separately."""

GRADIENTS = tuple(argument.name for argument in TENSORS if argument.has_gradient)
"""Names of the tensors that have a gradient and a tangent: q, k, v, bias, sink, slopes, table."""

DEFAULTS = {argument.name: argument.default for argument in ARGUMENTS if argument.default is not None and argument.group != "relative_bias"}
"""The defaults of keywords. A keyword that is missing here has the default None."""


def names_of(*extents: str) -> tuple[str, ...]:
    """The names of the tensors whose extent is one of `extents`."""
    return tuple(argument.name for argument in TENSORS if argument.extent in extents)
