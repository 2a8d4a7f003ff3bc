"""Tests calls with arguments that are missing, unknown, equal to their defaults or contradictory, and which function the error names."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyhead
from wrong_arguments import LAYER, TABLE, K, Q, V, X, shaped

def test_a_missing_argument_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="'v'"):
        polyhead.sdpa(Q, K)  # type: ignore[call-arg]


TAKES_OPTIONS = {name: call for name, call in TABLE.items() if "block" in inspect.signature(call[0]).parameters and name != "MultiHeadAttention"}


def test_the_functions_with_options_are_found() -> None:
    of_jax = {"jax.attention"} & TABLE.keys()
    assert TAKES_OPTIONS.keys() == {"sdpa", "sdpa_backward", "sdpa_backward_backward", "sdpa_jvp", "maps", "head_statistics", "pooled_map", "key_sums", "key_mass", "map_windows", "head_divergence", "rollout", "explain", "forward"} | of_jax


@pytest.mark.parametrize("function", TAKES_OPTIONS)
@pytest.mark.parametrize(("wrong", "close"), [("bais", "bias"), ("atend", "attend"), ("key_length", "key_lengths"), ("num_thread", "num_threads")])
def test_an_unknown_argument_is_an_error_that_names_the_function_and_the_close_names(function: str, wrong: str, close: str) -> None:
    call, good, _ = TAKES_OPTIONS[function]
    name = getattr(call, "__qualname__", function)
    with pytest.raises(TypeError, match=rf"^{re.escape(name)}\(\) got an unexpected keyword argument '{wrong}'; did you mean .*'{close}'"):
        call(**good, **{wrong: None})


@pytest.mark.parametrize("function", TAKES_OPTIONS)
@pytest.mark.parametrize(("theirs", "ours"), [("attn_mask", "'attend'.*'block'.*'bias'"), ("attention_mask", "'attend'.*'block'.*'bias'"), ("key_padding_mask", "'block_keys'")])
def test_the_names_of_torch_are_answered_with_what_they_mean(function: str, theirs: str, ours: str) -> None:
    call, good, _ = TAKES_OPTIONS[function]
    with pytest.raises(TypeError, match=f"{theirs}'; did you mean {ours}"):
        call(**good, **{theirs: None})


def test_unknown_arguments_of_other_kinds_are_errors() -> None:
    with pytest.raises(TypeError, match="did you mean 'return_lse'"):  # return_lse is an argument of sdpa only
        polyhead.sdpa(Q, K, V, retrun_lse=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^sdpa\(\) got an unexpected keyword argument 'xyzzy'$"):  # no argument has a similar name
        polyhead.sdpa(Q, K, V, xyzzy=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^MultiHeadAttention.__call__\(\) got an unexpected keyword argument 'scale'"):  # scale belongs to the configuration of the layer
        LAYER(X, scale=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", TAKES_OPTIONS)
def test_type_hints_can_be_read_at_run_time(function: str) -> None:
    assert "return" in typing.get_type_hints(TAKES_OPTIONS[function][0])


@pytest.mark.parametrize("function", TAKES_OPTIONS)
def test_a_default_that_is_given_changes_nothing(function: str) -> None:
    """The defaults that a Python signature shows are documentation only; they must be equal to the defaults of the bindings, which are used."""
    call, good, _ = TAKES_OPTIONS[function]
    shown = inspect.signature(call).parameters
    defaults = {name: p.default for name, p in shown.items() if p.kind is p.KEYWORD_ONLY}
    assert len(defaults) > 10

    def arrays(result: Any) -> list[Any]:
        result = list(result.values()) if isinstance(result, dict) else result
        return [part for part in (result if isinstance(result, (tuple, list)) else [result]) if not isinstance(part, polyhead.Saved)]

    for ours, theirs in zip(arrays(call(**good)), arrays(call(**good, **defaults)), strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("call", [LAYER, LAYER.forward])
def test_errors_of_a_layer_name_what_was_called(call: Callable[..., Any]) -> None:
    """The message names the function that the user called, and not a function that the layer calls."""
    for wrong in ({"query": shaped(2, 5, 7)}, {"query": X, "key": shaped(2, 5, 7)}, {"query": X, "out": shaped(2, 5, 7)}, {"query": X, "attend": shaped(5, 4, dtype=bool)}):
        with pytest.raises(ValueError, match=r"^MultiHeadAttention(\.forward)?: "):
            call(**wrong)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.forward: query"):
        call(shaped(2, 5, 7), out=X.copy())


def test_contradictions_are_refused() -> None:
    attend = shaped(5, 7, dtype=bool)
    with pytest.raises(ValueError, match="attend.*block"):
        polyhead.sdpa(Q, K, V, attend=attend, block=attend)
    with pytest.raises(ValueError, match="top_k"):
        polyhead.maps(Q, K, top_k=2, rows=[0])
    with pytest.raises(ValueError, match="rows"):
        polyhead.maps(Q, K, rows=[0], out=shaped(2, 3, 1, 7))
    with pytest.raises(ValueError, match="seed"):
        polyhead.MultiHeadAttention(8, 2, dropout=0.5).forward(X, training=True)
    with pytest.raises(ValueError, match=r"bias is \[2,5,5\].*\[B,1,T,S\].*\[1,N,T,S\]"):  # the dimension of 2 could be heads or sequences
        LAYER(X, bias=shaped(2, 5, 5))
    with pytest.raises(ValueError, match="attend_keys.*block_keys"):
        polyhead.sdpa(Q, K, V, attend_keys=attend[0], block_keys=attend[0])
