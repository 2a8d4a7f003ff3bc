"""The library's table of attention's arguments (include/polyhead/attention_arguments.h). Lists of argument names in this package are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _core


class Argument(NamedTuple):
    name: str
    annotation: str  # the type as Python text, which uses names of `_options`
    extent: str  # for a tensor: the name of a value of ArgumentExtent in attention_arguments.h; else ""
    has_gradient: bool  # True: the argument has a gradient and a tangent
    default: Any
    group: str  # "inputs": q, k, v and scales; "pass": keywords of `sdpa` and of a layer; "sdpa", "layer": keywords of only one; "relative_bias": fields of RelativeBias


ARGUMENTS = tuple(Argument(*row) for row in _core.arguments())

TENSORS = tuple(argument for argument in ARGUMENTS if argument.extent and argument.group != "layer")
"""The arguments that are tensors. The slopes and the table of a relative bias are two entries."""

GRADIENTS = tuple(argument.name for argument in TENSORS if argument.has_gradient)
"""Names of the tensors that have a gradient and a tangent: q, k, v, bias, sink, slopes, table."""

_FIELDS = {argument.name: "relative_bias" if argument.group == "relative_bias" else argument.name for argument in TENSORS if argument.has_gradient}
GRADIENT_FIELDS = tuple(dict.fromkeys(_FIELDS.values()))
"""The fields of `polyhead.Gradients` and `polyhead.Tangents`: slopes and table share the field relative_bias, because only one of them is given."""

DEFAULTS = {argument.name: argument.default for argument in ARGUMENTS if argument.default is not None and argument.group != "relative_bias"}
"""The defaults of keywords. A keyword that is missing here has the default None."""


def wanted_fields(wanted: Iterable[tuple[str, object]]) -> tuple[bool, ...]:
    """For each field of `GRADIENT_FIELDS`, whether its gradient is wanted. wanted: pairs (a name of `GRADIENTS`, whether its gradient is wanted)."""
    names = {_FIELDS[name] for name, want in wanted if want}
    return tuple(name in names for name in GRADIENT_FIELDS)


def names_of(*extents: str) -> tuple[str, ...]:
    """The names of the tensors whose extent is one of `extents`."""
    return tuple(argument.name for argument in TENSORS if argument.extent in extents)
