"""Passes functions like those of FlexAttention's own tests as score_mod and mask_mod to polyhead.torch.attention. Results are compared with FlexAttention's eager result,
gradients with those of the dense formula."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import _create_empty_block_mask, and_masks, create_block_mask, noop_mask, or_masks

from polyhead.torch import attention
from test_flex_attention import dense, flex_attention

B, N, T, S, H = 2, 4, 48, 48, 8
Function = Callable[..., Any]
INF = float("inf")
ROWS = torch.ones(max(T, S), 3)


def new(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def score_mods() -> dict[str, tuple[Function, list[Tensor]]]:
    head_offset, heads, temperature, factor = new(N), new(N), new(1), new()
    of_query, of_pair, of_batch, of_all, relative = new(T), new(T, S), new(B, T, S), new(B, N, T, S), new(2 * S)
    window, odd, one_row, distances = new(11), new(B, N, 1, T), new(1, 1, T), new(max(T, S))
    documents, prefix, lengths = torch.arange(S) // 13, torch.tensor([7, 30]), torch.tensor([40, 21])
    permutation, flags, whole = torch.randperm(T, generator=torch.Generator().manual_seed(1)), torch.arange(S) % 3 != 0, torch.ones((), dtype=torch.int32)
    offsets, of_sequence = torch.tensor([0, 10, 30]), torch.tensor([0] * 10 + [1] * 20 + [2] * 18)
    kinds, of_kind = torch.arange(S) % 5, new(5, 5)

    def causal(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q >= k, score, -INF)

    def relative_bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + (q - k)

    def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + (k - q) * torch.exp2(-((h + 1) * 8.0 / N))

    def dependent(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        count = prefix[b]
        return torch.where((q <= count) & (k <= count), score, causal(score, b, h, q, k))

    def natten(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        def place(index: Any) -> Any:
            return index // 8, index % 8

        (q_x, q_y), (k_x, k_y) = place(q), place(k)
        return torch.where(((q_x - k_x).abs() <= 2) | ((q_y - k_y).abs() <= 2), score, -INF)

    def nested(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        sequence = of_sequence[q]
        same = sequence == of_sequence[k]
        return torch.where(same, relative_bias(score, b, h, q - offsets[sequence], k - offsets[of_sequence[k]]), -INF)

    def composed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return alibi(2 * score, b, h, q, k) * 0.5 + head_offset[h]

    return {
        "identity": (lambda score, b, h, q, k: score, []),
        "times two": (lambda score, b, h, q, k: score * 2, []),
        "squared": (lambda score, b, h, q, k: score * score, []),
        "causal": (causal, []),
        "inverse causal": (lambda score, b, h, q, k: torch.where(q <= k, score, -INF), []),
        "relative bias": (relative_bias, []),
        "relative causal": (lambda score, b, h, q, k: torch.where(q >= k, relative_bias(score, b, h, q, k), -INF), []),
        "alibi": (alibi, []),
        "alibi causal": (lambda score, b, h, q, k: torch.where(q >= k, alibi(score, b, h, q, k), -INF), []),
        "softcap": (lambda score, b, h, q, k: 3 * torch.tanh(score / 3), []),
        "silu": (lambda score, b, h, q, k: F.silu(score), []),
        "skip odd keys": (lambda score, b, h, q, k: torch.where(k % 2 == 0, score, -INF), []),
        "padded causal": (lambda score, b, h, q, k: torch.where((k <= q) & (k < lengths[b]), score, -INF), []),
        "documents": (lambda score, b, h, q, k: torch.where(documents[q] == documents[k], score, -INF), []),
        "dependent causal": (dependent, []),
        "natten": (natten, []),
        "nested tensor": (nested, []),
        "composed": (composed, [head_offset]),
        "head offset": (lambda score, b, h, q, k: score * head_offset[h], [head_offset]),
        "bias of queries and keys": (lambda score, b, h, q, k: score + of_pair[q, k], [of_pair]),
        "bias of sequences": (lambda score, b, h, q, k: score + of_batch[b, q, k], [of_batch]),
        "bias of all": (lambda score, b, h, q, k: score + of_all[b, h, q, k], [of_all]),
        "bias of distances": (lambda score, b, h, q, k: score + relative[q - k + S], [relative]),
        "bias of absolute distances": (lambda score, b, h, q, k: score + distances[torch.abs(q - k)], [distances]),
        "bias in a window": (lambda score, b, h, q, k: score + window[torch.clamp(q - k + 5, 0, 10)], [window]),
        "multiplied by query": (lambda score, b, h, q, k: score * of_query[q], [of_query]),
        "symmetric": (lambda score, b, h, q, k: score + of_query[q] + of_query[k], [of_query]),
        "gate": (lambda score, b, h, q, k: score * torch.sigmoid(heads[h]), [heads]),
        "temperature": (lambda score, b, h, q, k: score / (1 + temperature[0] ** 2), [temperature]),
        "a number": (lambda score, b, h, q, k: score * factor + whole, [factor]),
        "odd shapes": (lambda score, b, h, q, k: score + odd[b, h, 0, q] * one_row[0, 0, k], [odd, one_row]),
        "indirect": (lambda score, b, h, q, k: score + of_query[permutation[q]], [of_query]),
        "two look-ups": (lambda score, b, h, q, k: score + of_kind[kinds[q], kinds[k]], [of_kind]),
        "a tensor that autograd makes": (lambda score, b, h, q, k: score + (heads.exp() / heads.exp().sum())[h], [heads]),
        "bool of a captured tensor": (lambda score, b, h, q, k: torch.where(flags[k], score, -INF), []),
        "bool of a number": (lambda score, b, h, q, k: torch.where((k % 3).to(torch.bool), score, -INF), []),
        "bool as a number": (lambda score, b, h, q, k: score + (q >= k).to(score.dtype) + flags[k].float() + (q > k) * 2, []),
        "exclusive or": (lambda score, b, h, q, k: torch.where((q >= k) ^ flags[k], score, -1.0), []),
        "like": (lambda score, b, h, q, k: torch.where(q >= k, torch.full_like(score, 2.0), torch.zeros_like(score) + torch.ones_like(q) * score), []),
        "new": (lambda score, b, h, q, k: score + of_batch[b, h.new_zeros(h.shape), k] + score.new_ones(()) + k.new_full((), 2), [of_batch]),
        "distance squared": (lambda score, b, h, q, k: score - 0.01 * (q - k).to(score.dtype).pow(2), []),
    }  # fmt: skip


def mask_mods() -> dict[str, Function]:
    documents, prefix, keep = torch.arange(S) // 13, torch.tensor([7, 30]), torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(2)) < 0.6

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def sliding(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() <= 9

    def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((q - k).abs() <= 12) & ((q - k) % 3 == 0)

    def natten(b: Any, h: Any, q: Any, k: Any) -> Any:
        def place(index: Any) -> Any:
            return index // 8, index % 8

        (q_x, q_y), (k_x, k_y) = place(q), place(k)
        return ((q_x.clamp(1, 4) - k_x).abs() <= 1) & ((q_y.clamp(1, 6) - k_y).abs() <= 1)

    return {
        "none": noop_mask,
        "causal": causal,
        "sliding window": sliding,
        "dilated": dilated,
        "natten": natten,
        "documents": lambda b, h, q, k: documents[q] == documents[k],
        "prefix": lambda b, h, q, k: (k < prefix[b]) | (q >= k),
        "and": and_masks(causal, sliding, dilated),
        "or": or_masks(dilated, lambda b, h, q, k: k < prefix[b]),
        "head": lambda b, h, q, k: (h % 2 == 0) & (q >= k) | (h % 2 == 1) & (q <= k),
        "stored": lambda b, h, q, k: keep[b, 0, q, k],
        "empty rows": lambda b, h, q, k: (q > 5) & (q >= k),
    }


def inputs() -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(B, N, length, H, dtype=torch.float64, requires_grad=True) for length in (T, S, S)]


def require_same(score_mod: Function | None, mask_mod: Function | None, captured: list[Tensor]) -> None:
    given = inputs()
    q, k, v = (x.detach() for x in given)
    with torch.no_grad():
        mask = None if mask_mod is None else create_block_mask(mask_mod, B, N, T, S, device="cpu", BLOCK_SIZE=16)
        exact, lse = flex_attention(q, k, v, score_mod, mask, return_lse=True)
        out, own_lse = attention(q, k, v, score_mod=score_mod, block_mask=mask, return_lse=True)
    torch.testing.assert_close(out, exact, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(own_lse, lse, rtol=1e-10, atol=1e-10)
    d_out = torch.randn_like(out)
    ours = torch.autograd.grad(attention(*given, score_mod=score_mod, block_mask=mask), given + captured, d_out)  # type: ignore[arg-type]
    theirs = torch.autograd.grad(dense(*given, score_mod, mask_mod)[0], given + captured, d_out)  # type: ignore[arg-type]
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", list(score_mods()))
def test_score_mods(name: str) -> None:
    score_mod, captured = score_mods()[name]
    require_same(score_mod, None, captured)


@pytest.mark.parametrize("name", list(mask_mods()))
def test_mask_mods_beside_a_score_mod(name: str) -> None:
    slopes = new(N)
    require_same(None, mask_mods()[name], [])
    require_same(lambda score, b, h, q, k: torch.tanh(score) - slopes[h] * (q - k).abs(), mask_mods()[name], [slopes])


def test_the_block_mask_of_flex_attention_for_no_mask() -> None:
    q, k, v = inputs()
    empty = _create_empty_block_mask(q, k)
    assert torch.equal(attention(q, k, v, block_mask=empty), attention(q, k, v))
    empty.mask_mod = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
    with pytest.raises(ValueError, match="block_mask is for 1 queries and 1 keys"):
        attention(q, k, v, block_mask=empty)


@pytest.mark.parametrize(
    ("score_mod", "name"),
    [
        (lambda score, b, h, q, k: torch.erfinv(torch.lgamma(score)) + torch.digamma(b), "lgamma"),
        (lambda score, b, h, q, k: score + torch.digamma(b), "digamma"),
        (lambda score, b, h, q, k: score + torch.randn(()) * torch.erfinv(score), "erfinv"),
        (lambda score, b, h, q, k: F.gelu(score, approximate="erf"), "gelu with approximate='erf'"),
        (lambda score, b, h, q, k: score**65, "the power 65 of float"),
        (lambda score, b, h, q, k: score**q, "the power of an exponent of type Value"),
        (lambda score, b, h, q, k: F.elu(score, inplace=True), "a function with inplace=True"),
        (lambda score, b, h, q, k: score.sin_(), "sin_"),
        (lambda score, b, h, q, k: score.new_zeros((2,)), "a new tensor of shape [2]"),
        (lambda score, b, h, q, k: score * (ROWS[q] - ROWS[k]).pow(2).sum(-1), "__sub__ of a row of a captured tensor (give an index for each dimension)"),
        (lambda score, b, h, q, k: score + 2 * ROWS[q], "__rmul__ of a row of a captured tensor (give an index for each dimension)"),
        (lambda score, b, h, q, k: score + ROWS[q].sum(-1), "sum of a row of a captured tensor (give an index for each dimension)"),
    ],
)
def test_what_is_left_is_refused_by_name(score_mod: Function, name: str) -> None:
    with pytest.raises(NotImplementedError, match=re.escape(f"score_mod uses {name}, which")):
        attention(*(x.detach() for x in inputs()), score_mod=score_mod)
