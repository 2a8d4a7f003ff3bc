"""score_mod and block_mask of polyhead.torch.attention: against FlexAttention's eager result, and gradients against torch's own of the dense formula."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from polyhead.torch import attention
from test_flex_attention import EXAMPLES, SECTIONS, dense

B, N, T, S, H = 2, 4, 37, 45, 16


def inputs(dtype: torch.dtype = torch.float64, kv_heads: int = N) -> list[Tensor]:
    return [torch.randn(B, heads, length, H, dtype=dtype, requires_grad=True) for heads, length in ((N, T), (kv_heads, S), (kv_heads, S))]


def rules() -> dict[str, tuple[Callable[..., Any], list[Tensor]]]:
    def new(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    slopes, table, pairs, factor, per_batch, flat = new(N), new(N, T + S), new(N, T, S), new(), new(B, N), new(T + S)
    documents = torch.arange(S) // 9
    return {
        "identity": (lambda score, b, h, q, k: score, []),
        "softcap": (lambda score, b, h, q, k: 2 * torch.tanh(score / 2), []),
        "alibi": (lambda score, b, h, q, k: score - slopes[h] * (q - k).abs(), [slopes]),
        "relative table": (lambda score, b, h, q, k: score + table[h, q - k + S - 1], [table]),
        "table without heads": (lambda score, b, h, q, k: score * (1 + flat[q - k + S - 1]), [flat]),
        "pair bias": (lambda score, b, h, q, k: score + pairs[h, q, k], [pairs]),
        "a factor": (lambda score, b, h, q, k: factor * score + per_batch[b, h], [factor, per_batch]),
        "documents": (lambda score, b, h, q, k: torch.where(documents[q] == documents[k], score, -torch.inf), []),
        "tanh of distance": (lambda score, b, h, q, k: score + torch.tanh((q - k).double() / 8), []),
        "everything": (
            lambda score, b, h, q, k: torch.where(
                (q >= k) & ~(k % 5 == 2) | (score > 0.5),
                torch.sigmoid(score).clamp(0.2, 0.8) ** 2 + torch.exp(-((q - k).double() ** 2) / 100) * (k // 3) / (1 + torch.relu(score)),
                score.abs() * h - torch.log(1 + score * score) + slopes[h].exp(),
            ),
            [slopes],
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(rules()))
def test_a_rule_is_what_flex_attention_computes(name: str) -> None:
    torch.manual_seed(1)
    score_mod, _ = rules()[name]
    q, k, v = (x.detach() for x in inputs())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exact, lse = flex_attention(q, k, v, score_mod, return_lse=True)
        ours, ours_lse = attention(q, k, v, score_mod=score_mod, return_lse=True)
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(ours_lse, lse, rtol=1e-10, atol=1e-10)
        narrow = attention(q.float(), k.float(), v.float(), score_mod=score_mod)
    torch.testing.assert_close(narrow.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [N, 2])
@pytest.mark.parametrize("causal", [None, "top_left"])
@pytest.mark.parametrize("name", list(rules()))
def test_gradients_are_those_of_the_formula(name: str, causal: str | None, kv_heads: int) -> None:
    torch.manual_seed(2)
    score_mod, captured = rules()[name]
    wanted = inputs(kv_heads=kv_heads)
    out = attention(*wanted, score_mod=score_mod, causal=causal)  # type: ignore[arg-type]
    d_out = torch.randn_like(out)
    ours = torch.autograd.grad(out, wanted + captured, d_out)
    mask_mod = None if causal is None else (lambda b, h, q, k: q >= k)
    exact = torch.autograd.grad(dense(*wanted, score_mod, mask_mod)[0], wanted + captured, d_out)  # type: ignore[arg-type]
    for mine, theirs in zip(ours, exact):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("title", [title for title in EXAMPLES if "def score_mod" in SECTIONS[title] or "def mask_mod" in SECTIONS[title]])
def test_the_functions_of_the_page_work_as_they_are(title: str) -> None:
    torch.manual_seed(3)
    names: dict[str, Any] = {}
    exec(SECTIONS["Training"] + SECTIONS[title], names)
    b, n, t, s, h = (names[letter] for letter in "BNTSH")
    kv_heads = names.get("K", n)
    q, k, v = torch.randn(b, n, t, h), torch.randn(b, kv_heads, s, h), torch.randn(b, kv_heads, s, h)
    score_mod, mask_mod = names.get("score_mod"), names.get("mask_mod")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mask = None if mask_mod is None else create_block_mask(mask_mod, b, n, t, s, device="cpu")
        exact = flex_attention(q, k, v, score_mod, mask, enable_gqa=kv_heads < n)
    torch.testing.assert_close(attention(q, k, v, score_mod=score_mod, block_mask=mask), exact, rtol=1e-5, atol=1e-6)


def test_same_bits_for_any_number_of_threads() -> None:
    torch.manual_seed(4)
    score_mod, captured = rules()["relative table"]
    threads, found = torch.get_num_threads(), []
    q, k, v = inputs(torch.float32)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            out = attention(q, k, v, score_mod=score_mod)
            found.append([out, *torch.autograd.grad(out.sum(), [q, k, v, *captured])])
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found):
        assert torch.equal(one, other)


def test_what_cannot_be_traced_is_refused_with_its_name() -> None:
    q, k, v = (x.detach() for x in inputs())
    table = torch.randn(3, 4)
    for score_mod, message in (
        (lambda score, b, h, q, k: torch.erfinv(score), "erfinv"),
        (lambda score, b, h, q, k: score.sinh(), "sinh"),
        (lambda score, b, h, q, k: score if q > k else -score, "a condition of Python"),
        (lambda score, b, h, q, k: score + table, "a tensor of shape [3, 4] without an index"),
        (lambda score, b, h, q, k: score + table[h], "a tensor of shape [4] without an index"),
        (lambda score, b, h, q, k: score**q, "the power"),
        (lambda score, b, h, q, k: score.to(torch.float32).numpy(), "numpy"),
        (lambda score, b, h, q, k: q & k, "& of numbers that are not bool"),
    ):
        with pytest.raises(NotImplementedError, match=re.escape(message)):
            attention(q, k, v, score_mod=score_mod)
    with pytest.raises(TypeError, match="score_mod is of type int"):
        attention(q, k, v, score_mod=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="block_mask is of type int"):
        attention(q, k, v, block_mask=3)
    with pytest.raises(NotImplementedError, match="gradient of lse"):
        attention(*inputs(), score_mod=lambda score, b, h, q, k: score, return_lse=True)[1].sum().backward()
    x, k, v = inputs()
    (first,) = torch.autograd.grad(attention(x, k, v, score_mod=lambda score, b, h, q, k: score * score).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        (first.sum() + x.sum()).backward()


def test_indices_may_be_given_one_by_one() -> None:
    (q, k, v), pairs = (x.detach() for x in inputs()), torch.randn(N, T, S)
    at_once = attention(q, k, v, score_mod=lambda score, b, h, t, s: score + pairs[h, t, s])
    assert torch.equal(attention(q, k, v, score_mod=lambda score, b, h, t, s: score + pairs[h][t][s]), at_once)


def test_an_index_outside_of_a_tensor_gives_nan_to_the_rows_that_use_it() -> None:
    q, k, v = (x.detach() for x in inputs())
    table = torch.randn(S - 1)
    out = attention(q, k, v, score_mod=lambda score, b, h, t, s: score + table[s], key_lengths=torch.tensor([S, S - 1]))
    assert out[0].isnan().all() and out[1].isfinite().all()
