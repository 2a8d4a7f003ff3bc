"""Converts attention's arguments to the form of torch's operators, which take only tensors, numbers and words. So a window, which is one argument of
`polyhead.sdpa`, becomes several arguments of an operator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._arguments import ARGUMENTS, Argument
from .._options import EMPTY_ROWS, RelativeBias, require_precision


def lse_dtype(q: Tensor) -> torch.dtype:
    """The dtype in which lse is computed for this q."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


class Options(NamedTuple):
    """The arguments of the operators after q, k and v, in the order of the schemas. Names are those of `polyhead.sdpa`; `RULES` names the arguments into which a rule is
    split. sink, slopes and table have the dtype of q or of lse. empty_rows may also be "offset": the result that subtracting 1e9 from the masked scores, in
    their dtype, would give. "offset" requires attend and excludes block and causal."""

    # arguments: options of the operators
    attend: Tensor | None = None
    block: Tensor | None = None
    attend_keys: Tensor | None = None
    block_keys: Tensor | None = None
    key_starts: Tensor | None = None
    key_lengths: Tensor | None = None
    diagonal_offsets: Tensor | None = None
    query_offsets: Tensor | None = None
    key_offsets: Tensor | None = None
    blocks: Tensor | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None
    slopes: Tensor | None = None
    table: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    seed: Tensor | None = None  # int64 [], given when dropout > 0
    causal: str | None = None
    offset: int | None = None
    window_left: int | None = None
    window_right: int | None = None
    block_rows: int = 128
    block_columns: int = 128
    bidirectional: bool = True
    max_distance: int = 128
    diagonal: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    empty_rows: str = "zero"
    precision: str = "native"
    attention_weights: bool = False  # whether the operator `attention` returns the attention weights
    # end of arguments


class Rule(NamedTuple):
    """How arguments with a certain annotation, which are not tensors, are converted to arguments of the operators, called parts."""

    fields: Callable[[Argument], list[tuple[str, str, Any]]]  # returns (name, annotation, default) of each part
    check: Callable[[str, str, Any], None]  # called with (where, name, value): raises ValueError or TypeError for a wrong value
    split: Callable[[Any], tuple[Any, ...]]  # converts a value, as a user gives it, to parts
    join: Callable[..., Any]  # converts parts to a value; None: the argument was not given


_NUMPY_NUMBERS = (np.floating, np.integer)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _check_number(where: str, name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat, *_NUMPY_NUMBERS))):
        raise TypeError(f"{where}: {name} is of type {type(value).__name__}; it must be a number")


def _check_present_number(where: str, name: str, value: Any) -> None:
    if value is None:
        raise TypeError(f"{where}: {name} is of type NoneType; it must be a number")
    _check_number(where, name, value)


def _check_empty_rows(where: str, name: str, value: Any) -> None:
    if value not in EMPTY_ROWS:
        raise ValueError(f"{where}: empty_rows is {value!r}; it must be {', '.join(map(repr, EMPTY_ROWS[:-1]))} or {EMPTY_ROWS[-1]!r}")


def _check_diagonal(where: str, name: str, value: Any) -> None:
    if value is None or isinstance(value, str):
        if value not in (None, "top_left", "bottom_right"):
            raise ValueError(f"{where}: {name} is {value!r}; it must be 'top_left', 'bottom_right', an int or None")
    elif not _is_integer(value):
        raise TypeError(f"{where}: {name} is of type {type(value).__name__}; it must be 'top_left', 'bottom_right', an int or None")


def _check_window(where: str, name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, (tuple, list)) or len(value) != 2 or any(side is not None and not _is_integer(side) for side in value)):
        raise TypeError(f"{where}: window must be (left, right): how many keys before and after the diagonal to attend to; None means all keys of that side")
    if value is not None and value[0] is value[1] is None:
        raise ValueError(f"{where}: window is (None, None), which bounds no side; give a number for one side, or no window")


def _check_block_size(where: str, name: str, value: Any) -> None:
    if value is None:
        return
    parts = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
    if not all(map(_is_integer, parts)):
        raise TypeError(f"{where}: {name} is of type {type(value).__name__}; it must be an int, (queries, keys) or None")
    if min(parts) < 1:
        raise ValueError(f"{where}: {name} is {value}; blocks have at least 1 query and 1 key")


_BLOCK_SIZE = (128, 128)


def _split_block_size(value: Any) -> tuple[Any, ...]:
    return _BLOCK_SIZE if value is None else tuple(map(int, value)) if isinstance(value, (tuple, list)) else (int(value), int(value))


def _whole(annotation: str | None = None) -> Callable[[Argument], list[tuple[str, str, Any]]]:
    return lambda argument: [(argument.name, annotation or argument.annotation, argument.default)]


def _alone(value: Any) -> tuple[Any, ...]:
    return (value,)


def _number(value: Any) -> tuple[Any, ...]:
    return (float(value),) if isinstance(value, _NUMPY_NUMBERS) else (value,)


def _itself(value: Any) -> Any:
    return value


def _of_relative_bias(_: Argument) -> list[tuple[str, str, Any]]:
    return [
        (field.name, "int | None" if field.annotation == "Causal" else field.annotation, field.default)
        for field in ARGUMENTS
        if field.group == "relative_bias" and not field.extent
    ]


RULES = {
    "float | None": Rule(_whole(), _check_number, _number, _itself),
    "float": Rule(_whole(), _check_present_number, _number, _itself),
    "EmptyRows": Rule(_whole("str"), _check_empty_rows, _alone, _itself),
    "Precision": Rule(_whole("str"), lambda where, name, value: require_precision(where, value), _alone, _itself),
    # Two parts: one for a corner, one for an offset of the diagonal. The offset may be a symbol, because the length of a cache changes with every token.
    "Causal": Rule(
        lambda argument: [(argument.name, "str | None", None), ("offset", "int | None", None)],
        _check_diagonal,
        lambda value: (value, None) if value is None or isinstance(value, str) else (None, value),
        lambda corner, offset: corner if offset is None else offset,
    ),
    "Window": Rule(
        lambda argument: [(f"{argument.name}_left", "int | None", None), (f"{argument.name}_right", "int | None", None)],
        _check_window,
        lambda value: (None, None) if value is None else tuple(value),
        lambda left, right: None if left is None and right is None else (left, right),
    ),
    "BlockSize": Rule(
        lambda argument: [("block_rows", "int", _BLOCK_SIZE[0]), ("block_columns", "int", _BLOCK_SIZE[1])],
        _check_block_size,
        _split_block_size,
        lambda rows, columns: None if (rows, columns) == _BLOCK_SIZE else (rows, columns),
    ),
    # The tensors of a relative bias are separate arguments. `with_relative_bias` checks a relative bias and splits it into parts, because both steps need the
    # diagonal of causal too.
    "RelativeBias | None": Rule(_of_relative_bias, lambda where, name, value: None, _alone, _itself),
}
"""The rule for each annotation of an argument."""

NOT_OF_TORCH = ("seed", "dropout_keep", "backend", "num_threads")
"""Arguments of `polyhead.sdpa` that `attention` of polyhead.torch does not have. torch's generator draws the seed of dropout, and torch sets the number of
threads."""

TAKEN = tuple(argument for argument in ARGUMENTS if argument.group in ("pass", "sdpa") and argument.name not in NOT_OF_TORCH)
"""The arguments of `attention` of polyhead.torch that are also keywords of `polyhead.sdpa`."""


class _Parts(NamedTuple):
    name: str
    default: Any
    rule: Rule
    fields: tuple[str, ...]
    of: Callable[[Any], Any]  # returns the values of a rule's parts in an `Options`


def _parts(argument: Argument) -> _Parts:
    rule = RULES[argument.annotation]
    fields = tuple(name for name, _, _ in rule.fields(argument))
    return _Parts(argument.name, argument.default, rule, fields, operator.attrgetter(*fields))


_RULES = {argument.name: _parts(argument) for argument in TAKEN if not argument.extent and argument.name != "relative_bias"}
_IN_PARTS = [parts for parts in _RULES.values() if len(parts.fields) > 1]
_AS_THEY_ARE = tuple(argument.name for argument in TAKEN if argument.extent or (argument.name in _RULES and len(_RULES[argument.name].fields) == 1))
_AS_THEY_ARE += tuple(argument.name for argument in ARGUMENTS if argument.extent == "scales")
_values_as_they_are: Any = operator.attrgetter(*_AS_THEY_ARE)
_parts_of_relative_bias: Any = operator.attrgetter(*RelativeBias._fields)


def split_rules(where: str, given: dict[str, Any]) -> dict[str, Any]:
    """Checks those arguments of `attention` that have a rule, and converts them to parts; relative_bias is not converted here."""
    fields = {name: value for name, value in given.items() if name not in _RULES}
    for name, parts in _RULES.items():
        value = given.get(name, parts.default)
        parts.rule.check(where, name, value)
        for field, part in zip(parts.fields, parts.rule.split(value)):
            fields[field] = part
    return fields


def keywords(q: Tensor, options: Options) -> dict[str, Any]:
    """Converts `Options` to keyword arguments of `polyhead.sdpa`, including k_scale and v_scale."""
    if options.empty_rows == "offset":
        options = options._replace(empty_rows="unmasked" if q.dtype == torch.float64 else "uniform")
    given: dict[str, Any] = {name: value for name, value in zip(_AS_THEY_ARE, _values_as_they_are(options)) if value is not None}
    for name, _, rule, _, of in _IN_PARTS:
        value = rule.join(*of(options))
        if value is not None:
            given[name] = value
    if options.slopes is not None or options.table is not None:
        given["relative_bias"] = RelativeBias(*_parts_of_relative_bias(options))
    if options.seed is not None:
        given["seed"] = int(options.seed) % 2**64
    if options.blocks is None:  # if the operator is called directly, a block size may be given without blocks
        given.pop("block_size", None)
    return given


def options_of(given: dict[str, Any]) -> Options:
    """The inverse of `keywords`."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        parts = _RULES.get(name)
        if parts is not None:
            fields.update(zip(parts.fields, parts.rule.split(value)))
        elif name == "relative_bias":
            fields.update(value._asdict())
            named = {"top_left": 0, "bottom_right": None}
            fields["diagonal"] = None if "causal" in given else named.get(value.diagonal, value.diagonal)
        elif name == "seed":
            fields[name] = None if value is None else torch.tensor(value % 2**63, dtype=torch.int64)
        elif name != "num_threads":
            fields[name] = value
    return Options(**fields)
