"""Passes wrong values for every argument of every public function. Each must raise an exception of the documented class whose message names the argument, and never crash."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyhead
from effort import QUICK
from wrong_arguments import LSE, TABLE, Hostile, K, Q

# {(function, argument): a pattern for the words by which messages may call the argument, if not only by its name}.
SPOKEN = {
    ("rollout", "rows"): "rows|query",
    ("", "key_starts"): "key_starts|key start",
    ("", "key_lengths"): "key_lengths|key length",
    ("MultiHeadAttention", "kv_heads"): "kv_heads|key/value heads",
    ("Rotary", "key_cos"): "key_cos|rotary tables",
    ("Rotary", "key_sin"): "key_sin|rotary tables",
    ("backward", "d_bias"): "d_bias|gradient of bias",
    ("load", "heads"): "heads",
    ("load", "source"): "source|mapping|no path",
    ("load", "layout"): "layout|naming",
    ("load", "prefix"): "prefix|encoder",
    ("save", "path"): "path|layer.txt",
    ("save", "layout"): "layout|naming",
    ("state", "layout"): "layout|naming",
    ("Annotations", "links"): "links|sure link",
    ("view", "source"): "source|weights|attentions",
    ("view", "tokens"): "tokens|words|queries",
    ("view", "keys"): "keys|words|key tokens",
    # Messages may instead name the option of sdpa to which the argument is passed on.
    **{(f"jax.{door}", "query"): r"query|\bq\b" for door in ("dot_product_attention", "attention_fn")},
    **{(f"jax.{door}", "key"): r"key|\bk\b" for door in ("dot_product_attention", "attention_fn")},
    **{(f"jax.{door}", "value"): r"value|\bv\b" for door in ("dot_product_attention", "attention_fn")},
    **{(f"jax.{door}", "mask"): "mask|attend" for door in ("dot_product_attention", "attention_fn")},
    ("jax.dot_product_attention", "local_window_size"): "window",
    ("set_num_threads", "count"): "count|num_threads",
}


def show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    try:
        return repr(value)[:20].encode("ascii", "backslashreplace").decode()
    except RuntimeError:
        return "Hostile"


# (function, argument, value, class of exception).
CASES = [
    (function, argument, value, kind)
    for function, (_, _, wrong) in TABLE.items()
    for argument, (types, values) in wrong.items()
    for kind, value in [(TypeError, t) for t in types] + [(ValueError, v) for v in values]
]


def complaint(function: str, argument: str, value: Any, kind: type[Exception], path: Path) -> str:
    """Returns what is wrong with how the function treats the value; "" if nothing is."""
    call, good, _ = TABLE[function]
    if function == "save" and argument != "path":
        good = good | {"path": path}
    # A value of a wrong type may also raise ValueError: for example, an array of a wrong dtype has a right type and a wrong value.
    allowed = (kind,) if kind is ValueError else (TypeError, ValueError)
    if isinstance(value, Hostile):
        allowed = (*allowed, RuntimeError)  # exceptions of the caller's code are passed on
    try:
        call(**(good | {argument: value}))
    except allowed as error:
        message = str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "is taken"
    if message == "hostile":
        return ""
    if "incompatible function arguments" in message or "bad_cast" in message:
        return message
    return "" if re.search(SPOKEN.get((function, argument)) or SPOKEN.get(("", argument), argument), message) else f"not named: {message}"


# One test has all values of an argument, because pytest needs more time for a test than most of these calls.
@pytest.mark.parametrize(("function", "argument"), [(name, argument) for name, (_, _, wrong) in TABLE.items() for argument, values in wrong.items() if any(values)])
def test_a_wrong_argument_is_refused_by_name(function: str, argument: str, tmp_path: Path) -> None:
    types, values = TABLE[function][2][argument]
    cases = [(value, TypeError) for value in types] + [(value, ValueError) for value in values]
    answers = [(show(value), complaint(function, argument, value, kind, tmp_path / "layer.npz")) for value, kind in cases]
    assert not any(answer for _, answer in answers), [one for one in answers if one[1]]


def test_wrong_types_are_type_errors_wherever_the_object_is_no_array_at_all() -> None:
    loose = [case for case in CASES if case[3] is TypeError and not isinstance(case[2], Hostile)]
    by_class: dict[str, int] = {}
    for case in loose:
        function, argument, value, _ = case
        call, good, _ = TABLE[function]
        try:
            call(**(good | {argument: value}))
        except (TypeError, ValueError) as error:
            by_class[type(error).__name__] = by_class.get(type(error).__name__, 0) + 1
    assert by_class["TypeError"] > 0.9 * len(loose), by_class


def test_the_table_has_every_public_function_and_every_argument(summary: list[str]) -> None:
    summary.append(f"wrong arguments: {len(CASES)} calls of {len(TABLE)} functions")
    for name, (function, _, wrong) in TABLE.items():
        missing = set(inspect.signature(function).parameters) - wrong.keys()
        assert not missing, (name, missing)
    functions = {name for name in polyhead.__all__ if callable(getattr(polyhead, name)) and inspect.signature(getattr(polyhead, name)).parameters}
    results_of_calls = {"Gradients", "SecondGradients", "LayerGradients", "TopKeys", "Saved", "Page", "Capture", "CapturedCall", "MissedCall"}
    assert functions - results_of_calls <= TABLE.keys()


@pytest.mark.parametrize("function", TABLE)
def test_the_valid_arguments_of_the_table_are_accepted(function: str, tmp_path: Path) -> None:
    call, good, _ = TABLE[function]
    call(**(good | ({"path": tmp_path / "layer.npz"} if function == "save" else {})))


# Random objects of any kind, for any argument.
ARRAYS = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    st.lists(st.integers(0, 4), max_size=6).map(tuple),
    st.sampled_from(["f2", "f4", "f8", "?", "i4", "i8", "u1", ">f4", "c8", "O", "S3"]),
)
OBJECTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 8),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["zero", "uniform", "top_left", "bottom_right", "score", "reference", "float32", "torch", "\ud800", Hostile(), object(), int, np, Q, K, LSE]),
    st.binary(max_size=8),
    ARRAYS,
    st.lists(st.one_of(st.integers(), st.text(max_size=2), st.none()), max_size=3),
    st.tuples(st.one_of(st.none(), st.integers()), st.one_of(st.none(), st.integers())),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.complex_numbers(),
)
FUZZED = [name for name in TABLE if name not in ("save", "set_num_threads", "set_score_compiler")]


@pytest.mark.parametrize("function", FUZZED)
@settings(max_examples=24 if QUICK else 60)
@given(data=st.data())
def test_any_objects_for_any_arguments_give_a_result_or_a_clear_error(function: str, data: st.DataObject) -> None:
    call, good, wrong = TABLE[function]
    arguments = sorted(wrong.keys() - {"path"})
    chosen = data.draw(st.lists(st.sampled_from(arguments), min_size=1, max_size=4, unique=True))
    given_values = {name: data.draw(OBJECTS, label=name) for name in chosen}
    if isinstance(given_values.get("source"), (str, bytes)):
        return  # the path might exist; tests of files test paths
    try:
        call(**(good | given_values))
    except (TypeError, ValueError, OSError) as error:
        assert "incompatible function arguments" not in str(error) and "bad_cast" not in str(error)
    except RuntimeError as error:
        assert str(error) == "hostile"
    except MemoryError:
        pass  # for a huge width or number of threads, running out of memory is allowed
