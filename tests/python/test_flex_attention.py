"""Compares every example of docs/flex_attention.md with FlexAttention's eager result, and its gradients with those of the formula."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask

import polyhead
from effort import QUICK
from torch_support import gradients, require_equal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flex_attention.md").read_text()
HEADINGS = re.compile(r"^#{2,3} (.*?)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = {title: "\n".join(re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)) for title, body in HEADINGS.findall(PAGE)}
EXAMPLES = [title for title, code in SECTIONS.items() if re.search(r"^options = ", code, re.MULTILINE)]


def dense(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any) -> tuple[Tensor, Tensor]:
    """Computes attention with dense matrices; score_mod and mask_mod are called with the indices of all pairs."""
    b, h, t, s = (torch.arange(extent).view([-1 if i == axis else 1 for i in range(4)]) for axis, extent in enumerate((*q.shape[:3], k.size(2))))
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    score = q @ k.mT * q.size(-1) ** -0.5
    if score_mod is not None:
        score = score_mod(score, b, h, t, s)
    keep = torch.ones(()).bool() if mask_mod is None else mask_mod(b, h, t, s)
    score = score.masked_fill(~keep, -torch.inf)
    return score.softmax(-1).nan_to_num(0) @ v, score.logsumexp(-1)


def flex_attention(*inputs: Any, traced: bool = False, **options: Any) -> Any:
    """FlexAttention's result without torch.compile. Unless `traced`, also without tracing of score_mod, which takes most of the time and does not change the result."""
    with warnings.catch_warnings(), mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", not traced, create=True):
        warnings.simplefilter("ignore")  # FlexAttention warns that it is not compiled
        return flex.flex_attention(*inputs, **options)


def doubled(option: Any) -> Any:
    if isinstance(option, polyhead.RelativeBias):
        return option._replace(slopes=doubled(option.slopes), table=doubled(option.table))
    return option.double() if isinstance(option, Tensor) and option.is_floating_point() else option


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == 16


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_is_what_flex_attention_computes(title: str) -> None:
    torch.manual_seed(3)
    names: dict[str, Any] = {}
    exec(SECTIONS["Training"] + SECTIONS[title], names)
    B, N, T, S, H = (names[letter] for letter in "BNTSH")
    K = names.get("K", N)
    score_mod, mask_mod, options = names.get("score_mod"), names.get("mask_mod"), names["options"]
    q, k, v = torch.randn(B, N, T, H), torch.randn(B, K, S, H), torch.randn(B, K, S, H)
    mask = None if mask_mod is None else create_block_mask(mask_mod, B, N, T, S, device="cpu")
    traced = not QUICK or title in ("ALiBi", "Sliding window")
    exact, lse = flex_attention(q, k, v, score_mod, mask, enable_gqa=K < N, return_lse=True, traced=traced)
    ours, ours_lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours_lse, lse, rtol=1e-5, atol=1e-6)

    wide = {name: tensor.double().requires_grad_() for name, tensor in (("q", q), ("k", k), ("v", v))}
    options = {name: doubled(value) for name, value in options.items()}
    out = {"out": names["attention"](*wide.values(), **options)}
    require_equal(gradients(out, wide, 1), gradients({"out": dense(*wide.values(), score_mod, mask_mod)[0]}, wide, 1), 1e-9)


def test_the_gradient_of_a_table_goes_through_its_bias() -> None:
    names: dict[str, Any] = {}
    code = SECTIONS["Training"] + SECTIONS["Relative positions with other buckets"]
    exec(code.replace("torch.randn(buckets, N)", "torch.randn(buckets, N, dtype=torch.float64, requires_grad=True)"), names)
    inputs = {name: torch.randn(2, 4, 40, 16, dtype=torch.float64) for name in "qkv"}
    tables = {"table": names["table"]}
    ours = gradients({"out": names["attention"](*inputs.values(), **names["options"])}, tables, 1)
    require_equal(ours, gradients({"out": dense(*inputs.values(), names["score_mod"], None)[0]}, tables, 1), 1e-12)


@pytest.mark.parametrize(("title", "name"), [("ALiBi", "slopes"), ("Relative positions with T5's buckets", "table")])
def test_a_relative_bias_has_its_gradient(title: str, name: str) -> None:
    names: dict[str, Any] = {}
    code = SECTIONS[title].replace("def score_mod", f"{name} = {name}.double().requires_grad_()\n\ndef score_mod")
    exec(SECTIONS["Training"] + code, names)
    inputs = {letter: torch.randn(2, 4, 40, 16, dtype=torch.float64) for letter in "qkv"}
    parameters = {name: names[name]}
    ours = gradients({"out": names["attention"](*inputs.values(), **names["options"])}, parameters, 1)
    require_equal(ours, gradients({"out": dense(*inputs.values(), names["score_mod"], None)[0]}, parameters, 1), 1e-12)


def test_flex_attention_has_no_backward_pass_on_a_cpu() -> None:
    """FlexAttention has no backward pass on the CPU, as the page says. If this test fails, FlexAttention has a backward pass: change the page."""
    q = torch.randn(1, 1, 16, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="CPU"):
        flex_attention(q, q, q, traced=True)
