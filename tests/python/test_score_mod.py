"""Compares score_mod and block_mask of polyhead.torch.attention with FlexAttention's eager result, and their gradients with those that torch computes for the dense formula."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

import polyhead
from polyhead.torch import attention, explain_score_mod
from polyhead.torch._score_mod import attend_of
from test_flex_attention import EXAMPLES, SECTIONS, dense, flex_attention

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
    with torch.no_grad():
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
    mask = None if mask_mod is None else create_block_mask(mask_mod, b, n, t, s, device="cpu")
    exact = flex_attention(q, k, v, score_mod, mask, enable_gqa=kv_heads < n)
    torch.testing.assert_close(attention(q, k, v, score_mod=score_mod, block_mask=mask), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spoilt", ["nothing", "v", "d_out"])
def test_blocks_that_a_rule_masks_by_minus_infinity(spoilt: str) -> None:
    """Most blocks of 64 x 64 pairs have the score -inf, and polyhead skips them where that changes no result: 0 times NaN is NaN, in skipped blocks too."""
    torch.manual_seed(5)
    length = 300
    documents, slopes = torch.arange(length) // 70, torch.randn(N, dtype=torch.float64, requires_grad=True)

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where((documents[q] == documents[k]) & (q >= k), score + slopes[h] * (k - q), -float("inf"))

    for _ in range(2):
        tensors = {name: torch.randn(B, N, length, H, dtype=torch.float64) for name in ("q", "k", "v", "d_out")}
        if spoilt in tensors:
            tensors[spoilt][1, 2, 7, 3] = torch.nan
        *given, d_out = (tensors[name].requires_grad_(name != "d_out") for name in tensors)
        out, wanted = attention(*given, score_mod=score_mod), dense(*given, score_mod, None)[0]
        torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-11, equal_nan=True)
        for mine, theirs in zip(torch.autograd.grad(out, [*given, slopes], d_out), torch.autograd.grad(wanted, [*given, slopes], d_out)):
            finite = theirs.isfinite()  # torch's formula has NaN in more places: the gradient of softmax is NaN for a whole row
            torch.testing.assert_close(mine[finite], theirs[finite], rtol=1e-8, atol=1e-9)
        documents += (torch.arange(length) % 100 == 0).cumsum(0)  # the next call must read the changed tensor
    assert "masks by -inf are skipped" in explain_score_mod(score_mod)
    assert "skipped" not in explain_score_mod(lambda score, b, h, q, k: score + slopes[h])


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
        (lambda score, b, h, q, k: score.lgamma(), "lgamma"),
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


def is_as_in_flex_attention(score_mod: Callable[..., Any], dtype: torch.dtype = torch.float64) -> None:
    torch.manual_seed(5)
    q, k, v = (x.detach() for x in inputs(dtype))
    exact = flex_attention(q, k, v, score_mod)
    tolerance = {"rtol": 1e-10, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(attention(q, k, v, score_mod=score_mod), exact, **tolerance)


def is_refused(score_mod: Callable[..., Any], message: str, error: type[Exception] = NotImplementedError, dtype: torch.dtype = torch.float64) -> None:
    q, k, v = (x.detach() for x in inputs(dtype))
    with pytest.raises(error, match=re.escape(message)):
        attention(q, k, v, score_mod=score_mod)


def test_instructions_that_no_result_needs_do_not_count() -> None:
    """Without gradients the derivatives of formulas are not part of the program."""
    functions = (F.gelu, F.softplus, F.mish, F.logsigmoid, F.elu, torch.sinh, torch.cosh, torch.tan, torch.asin, torch.acos)
    is_as_in_flex_attention(lambda score, b, h, q, k: sum((function(torch.tanh(score) * factor) for function in functions for factor in (0.4, 0.9)), score))  # 287 instructions, 248 of them needed

    def long(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return sum((torch.tanh(score * i) for i in range(50)), score)

    wanted = inputs()
    with torch.no_grad():
        attention(*wanted, score_mod=long)
    with pytest.raises(NotImplementedError, match=r"attention: score_mod has \d+ instructions with its derivatives; at most 256 are allowed"):
        attention(*wanted, score_mod=long)
    is_refused(lambda score, b, h, q, k: sum((torch.tanh(score * i) for i in range(200)), score), "attention: score_mod has 801 instructions; at most 256 are allowed")


def test_methods_in_place_are_refused() -> None:
    def added(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        score.add_(5.0 * k)
        return score

    is_refused(added, "score_mod uses add_")
    is_refused(lambda score, b, h, q, k: torch.relu_(score), "score_mod uses relu_")
    is_refused(lambda score, b, h, q, k: F.relu(score, inplace=True), "relu with inplace=True")


def test_assignments_with_an_operator_change_every_name_of_the_number() -> None:
    def both(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        same, old = score, score.clone()
        score *= 2
        score += q - k
        return same + old

    def cast(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        same = score.to(score.dtype)
        same += k
        return score

    def narrowed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        q += 0.5
        return score + q

    is_as_in_flex_attention(both)
    is_refused(cast, "__iadd__ of a number with two names")
    is_refused(narrowed, "__iadd__ of int with float")


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda score, b, h, q, k: score * ((q > k) + (k > 3) + True),
        lambda score, b, h, q, k: score * ((q > k) + (k > 3)),
        lambda score, b, h, q, k: score * (((q > k) + (k > 3)) * (h > 1)).float(),
        lambda score, b, h, q, k: torch.where((q > k) * (k > 3), score, (q > k) + 1),
        lambda score, b, h, q, k: score + (q > k) ** 2 * 3,
    ],
)
def test_sums_and_products_of_bool_are_logical(score_mod: Callable[..., Any]) -> None:
    is_as_in_flex_attention(score_mod)


@pytest.mark.parametrize(
    "score_mod, message",
    [
        (lambda score, b, h, q, k: score * ((q > k) - (k > 3)), "a difference of bool"),
        (lambda score, b, h, q, k: score * (1 - (k > 3)), "a difference of bool"),
        (lambda score, b, h, q, k: score * -(k > 3), "the negative of bool"),
        (lambda score, b, h, q, k: score * torch.add(q > k, k > 3, alpha=2), "alpha of bool"),
        (lambda score, b, h, q, k: score * ((q > k) % (k > 3)), "the remainder of bool"),
    ],
)
def test_what_torch_refuses_of_bool_is_refused(score_mod: Callable[..., Any], message: str) -> None:
    is_refused(score_mod, message)


@pytest.mark.parametrize(
    "score_mod, message",
    [
        (lambda score, b, h, q, k: torch.fmod(score, 0.7), "fmod of floating-point numbers"),
        (lambda score, b, h, q, k: score + torch.fmod(q, 2.0), "fmod of floating-point numbers"),
        (lambda score, b, h, q, k: torch.remainder(score, 2), "the remainder of floating-point numbers"),
        (lambda score, b, h, q, k: score + q % 2.5, "the remainder of floating-point numbers"),
        (lambda score, b, h, q, k: 3 % score, "the remainder of floating-point numbers"),
    ],
)
def test_remainders_of_floating_point_numbers_are_refused(score_mod: Callable[..., Any], message: str) -> None:
    """If the quotient of two floating-point numbers is rounded to another integer, the remainder is wrong by a whole divisor."""
    is_refused(score_mod, message)


def test_integers_that_the_dtype_of_q_has_not_are_refused() -> None:
    big = torch.full((S,), 2**24 + 1)
    big[::2] += 1
    is_refused(lambda score, b, h, q, k: score + (big[k] - 2**24), "an integer tensor with 16777217; integers up to 2^24 = 16777216 are", ValueError, torch.float32)
    is_as_in_flex_attention(lambda score, b, h, q, k: score + (big[k] - 2**24))
    is_refused(lambda score, b, h, q, k: score + (k + (2**24 + 1) - 2**24), "uses the integer 16777217", ValueError, torch.float32)
    is_as_in_flex_attention(lambda score, b, h, q, k: torch.where(q >= k, score, -(10**9)), torch.float32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.complex64])
def test_captured_tensors_of_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    few = torch.full((S,), 100).to(dtype)
    is_refused(lambda score, b, h, q, k: score + (few[k] + few[k]), f"a tensor of {dtype}; convert it by .to(torch.int64)")
    is_refused(lambda score, b, h, q, k: score + (k * 10).to(dtype), f"a conversion to {dtype}")


@pytest.mark.parametrize("name", ["attend", "key_lengths", "slopes", "table"])
def test_a_mask_that_changes_before_the_backward_pass_is_noticed(name: str) -> None:
    q, k, v = inputs()
    tensor = {
        "attend": torch.ones(T, S, dtype=torch.bool), "key_lengths": torch.tensor([S, 9]), "slopes": torch.ones(N, dtype=torch.float64),
        "table": torch.ones(N, 8, dtype=torch.float64),
    }[name]  # fmt: skip
    options: dict[str, Any] = {name: tensor} if name in ("attend", "key_lengths") else {"relative_bias": polyhead.RelativeBias(**{name: tensor})}
    out = attention(q, k, v, score_mod=lambda score, b, h, q, k: 2 * score, **options)
    out.sum().backward(retain_graph=True)
    tensor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_dual_relative_bias_is_refused() -> None:
    q, k, v = (x.detach() for x in inputs())
    slopes = torch.ones(N, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(slopes, slopes)
        with pytest.raises(NotImplementedError, match="relative_bias.slopes is a dual tensor"):
            attention(q, k, v, score_mod=lambda score, b, h, q, k: 2 * score, relative_bias=polyhead.RelativeBias(slopes=dual))
        with pytest.raises(NotImplementedError, match="captures a dual tensor"):
            attention(q, k, v, score_mod=lambda score, b, h, q, k: dual[h] * score)


def test_a_capture_names_the_call_that_it_misses() -> None:
    q, k, v = (x.detach() for x in inputs())
    with polyhead.capture(None) as found:
        attention(q, k, v, score_mod=lambda score, b, h, q, k: 2 * score)
    assert [missed.reason for missed in found.missed] == ["attention with a score_mod is not captured"]


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda score, b, h, q, k: torch.relu(score),
        lambda score, b, h, q, k: score.clamp(0, 1) * 3,
        lambda score, b, h, q, k: score.clamp(max=0) + torch.clamp(score, min=-1.0),
    ],
)
def test_gradients_at_ties_are_those_of_torch(score_mod: Callable[..., Any]) -> None:
    torch.manual_seed(6)
    wanted = inputs()
    with torch.no_grad():
        wanted[0][:, :, ::2] = 0  # these queries have scores of exactly 0, where the arguments of clamp and maximum are equal
    out = attention(*wanted, score_mod=score_mod)
    d_out = torch.randn_like(out)
    exact = torch.autograd.grad(dense(*wanted, score_mod, None)[0], wanted, d_out)
    for mine, theirs in zip(torch.autograd.grad(out, wanted, d_out), exact):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


def test_attributes_that_are_not_traced_are_refused() -> None:
    is_refused(lambda score, b, h, q, k: score * 2 if score.requires_grad else score, "score_mod uses requires_grad")
    is_refused(lambda score, b, h, q, k: score * 2 if score.is_cuda else score, "score_mod uses is_cuda")


def test_where_as_a_method_takes_the_condition_second() -> None:
    is_as_in_flex_attention(lambda score, b, h, q, k: score * (q >= k).where(h == 0, True))
    is_as_in_flex_attention(lambda score, b, h, q, k: score.where(q >= k, -2.0))
    is_refused(lambda score, b, h, q, k: torch.where(k, score, 0.0), "a condition of where that is not bool")


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16), (torch.float32, torch.float16)])
def test_keys_of_another_dtype_have_gradients(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    torch.manual_seed(7)
    wanted = [x.detach().to(dtype).requires_grad_() for x, dtype in zip(inputs(torch.float32), (dtypes[0], dtypes[1], dtypes[1]))]
    score_mod = lambda score, b, h, q, k: 2 * torch.tanh(score)  # noqa: E731
    out = attention(*wanted, score_mod=score_mod)
    assert out.dtype == dtypes[0]
    d_out = torch.randn_like(out)
    exact = torch.autograd.grad(dense(*(x.float() for x in wanted), score_mod, None)[0], wanted, d_out.float())
    for mine, theirs, x in zip(torch.autograd.grad(out, wanted, d_out), exact, wanted):
        assert mine.dtype == x.dtype
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_more_functions_are_what_flex_attention_computes(dtype: torch.dtype) -> None:
    is_as_in_flex_attention(lambda score, b, h, q, k: score - torch.exp2(-(h + 1).double() / 4) * (q - k).abs(), dtype)
    is_as_in_flex_attention(lambda score, b, h, q, k: score + torch.log2(1 + k.double()) + 0.5 ** (score + 1), dtype)
    is_as_in_flex_attention(lambda score, b, h, q, k: score + torch.remainder(q - k, 5) + 7 % (k + 1) + torch.fmod(q - k, 5), dtype)
    is_as_in_flex_attention(lambda score, b, h, q, k: F.relu(score).masked_fill(q < k, -torch.inf), dtype)
    is_refused(lambda score, b, h, q, k: score + 2**q, "the power of a base of type int and an exponent of int")
    is_refused(lambda score, b, h, q, k: score + k.masked_fill(q < k, 0.5), "masked_fill of int with float")


@pytest.mark.parametrize("batch", [1, 2])
def test_the_mask_of_a_block_mask_is_that_of_its_mask_mod(batch: int) -> None:
    """The mask has full, partial and empty blocks, its extents are no multiple of the block size, and its mask_mod compares the vectors of a query and a key."""
    queries, keys = 75, 100
    vectors = torch.randint(0, 2, (keys, 3))

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k >= 20 * h) | ((vectors[q] == vectors[k]).all() & (k < 40 + 10 * b) & (q > 50))

    mask = create_block_mask(mask_mod, batch, 2, queries, keys, device="cpu", BLOCK_SIZE=16)
    found = attend_of(mask, torch.zeros(batch, 2, queries, 4), torch.zeros(batch, 2, keys, 4))
    assert torch.equal(found, create_mask(mask_mod, batch, 2, queries, keys, device="cpu"))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("counts", "lists", "message"),
    [
        ([1], [[0, 0]], r"NAME_num_blocks of block_mask has the shape \[1, 1, 1\] and NAME_indices \[1, 1, 1, 2\]; 32 queries in blocks of 16 need \[B,H,2\] and \[B,H,2,length\]"),
        ([1, 1, 1], [[0, 0]] * 3, r"NAME_num_blocks of block_mask has the shape \[1, 1, 3\]"),
        ([1, 2], [[0, 0], [0, 2]], r"NAME_indices of block_mask has key blocks from 0 to 2; 32 keys in blocks of 16 are the blocks 0 to 1"),
        ([1, 1], [[-1, 0], [0, 0]], r"NAME_indices of block_mask has key blocks from -1 to 0"),
        ([1, 3], [[0, 0], [0, 1]], r"NAME_num_blocks of block_mask has numbers from 1 to 3; the lists in NAME_indices have places for 0 to 2 blocks"),
    ],
)
def test_a_block_mask_without_a_list_for_each_row_is_refused(counts: list[int], lists: list[list[int]], message: str, full: bool) -> None:
    """A row without a list would have no key, and its output would be 0. Therefore such block masks are refused."""
    given = torch.tensor([[counts]]), torch.tensor([[lists]])
    empty = torch.zeros(1, 1, 2, dtype=torch.long), torch.zeros(1, 1, 2, 2, dtype=torch.long)
    # from_kv_blocks refuses some of these itself, so the lists of a mask are replaced.
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 32, 32, device="cpu", BLOCK_SIZE=16)
    (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices) = (empty, given) if full else (given, empty)
    q = torch.randn(1, 1, 32, 8)
    with pytest.raises(ValueError, match="^attention: " + message.replace("NAME", "full_kv" if full else "kv")):
        attention(q, q, q, block_mask=mask)


def test_lists_of_full_blocks_have_the_shape_of_the_others() -> None:
    mask = create_block_mask(lambda b, h, q, k: q >= k, 2, 1, 32, 32, device="cpu", BLOCK_SIZE=16)
    mask.full_kv_num_blocks, mask.full_kv_indices = mask.full_kv_num_blocks[:1], mask.full_kv_indices[:1]
    q = torch.randn(2, 1, 32, 8)
    with pytest.raises(ValueError, match=r"full_kv_num_blocks of block_mask is \[1, 1, 2\]; it must be \[2, 1, 2\], as kv_num_blocks"):
        attention(q, q, q, block_mask=mask)


def test_a_block_mask_made_of_too_few_lists_is_refused() -> None:
    mask = BlockMask.from_kv_blocks(torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 2, dtype=torch.int32), BLOCK_SIZE=16, seq_lengths=(32, 32))
    q = torch.randn(1, 1, 32, 8)
    with pytest.raises(ValueError, match="32 queries in blocks of 16"):
        attention(q, q, q, block_mask=mask)


def test_out_has_the_order_of_q_in_memory() -> None:
    def add_distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + (i - j)

    for order in itertools.permutations(range(3)):
        for requires_grad in (False, True):
            q, k, v = (torch.randn(*[(4, 2, 17)[i] for i in order], 16).permute(*[order.index(i) for i in range(3)], 3).requires_grad_(requires_grad) for _ in range(3))
            assert q.shape == (4, 2, 17, 16)
            out = attention(q, k, v, score_mod=add_distance)
            plain = attention(q, k, v)
            assert out.stride() == plain.stride(), order
            assert torch.equal(out, attention(q.contiguous(), k.contiguous(), v.contiguous(), score_mod=add_distance))
