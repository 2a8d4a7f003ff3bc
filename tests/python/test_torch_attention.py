"""Compares polyhead.torch.attention with the formula in torch's operators for every option, and with the bits of polyhead.sdpa. Also tests decoding, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import polyhead
from effort import QUICK
from formulas import buckets_of, distances_and_mask, formula as dense
from polyhead.torch import attention
from test_torch_ops import needs_compiler
from torch_support import gradients, require_equal

Given = dict[str, Any]


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], Given]:
    """Draws q, k, v and options. Over many seeds every option of `attention` occurs. Options that exclude each other are not drawn together."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < 0.7

    batch, kv_heads, group, queries, keys = pick(1, 2, 3), pick(1, 2), pick(1, 2), pick(1, 3, 6), pick(1, 5, 9)
    heads = kv_heads * group
    tensors = {"q": randn(batch, heads, queries, 4), "k": randn(batch, kv_heads, keys, 4), "v": randn(batch, kv_heads, keys, 3)}
    given: Given = {"softcap": pick(0.0, 0.0, 1.5), "scale": pick(None, None, 0.3)}
    given |= pick({}, {"attend": some(batch, 1, queries, keys)}, {"block": some(queries, keys)})
    given |= pick({}, {"attend_keys": some(batch, keys)}, {"block_keys": some(keys)})
    given |= pick({}, {}, {"bias": randn(heads, queries, keys)}, {"bias": randn(batch, 1, 1, keys)}, {"slopes": randn(heads)}, {"table": randn(heads, 8)})
    given |= pick({}, {"sink": randn(heads)}, {"sink": randn(batch, 1, queries)})
    given |= pick({}, {"causal": "top_left"}, {"causal": "bottom_right"}, {"causal": int(torch.randint(-2, 4, (), generator=generator))})
    given |= pick({}, {"window": (2, None)}, {"window": (None, 1)}, {"window": (1, 2)})
    if pick(False, True):
        given["key_lengths"] = torch.randint(keys + 1, pick((batch,), (batch, queries)), generator=generator)
    if pick(False, False, True) and "key_lengths" not in given:
        given |= {name: torch.tensor([0, int(torch.randint(n + 1, (), generator=generator)), n]) for name, n in (("query_offsets", queries), ("key_offsets", keys))}
    elif given.get("causal") == "top_left" or ("window" in given and "causal" not in given):
        given["diagonal_offsets"] = torch.randint(-1, 4, (batch,), generator=generator)
    if pick(False, False, True):
        given["key_starts"] = torch.randint(keys + 1, (batch, queries) if "query_offsets" in given else pick((batch,), (batch, queries)), generator=generator)
    return tensors, given


def split(given: Given) -> tuple[Given, dict[str, Tensor]]:
    """Returns the arguments of `attention`, and by name its tensors that have gradients (without q, k and v)."""
    relative = {name: given[name] for name in ("slopes", "table") if name in given}
    arguments = {name: value for name, value in given.items() if name not in relative}
    if relative:
        arguments["relative_bias"] = polyhead.RelativeBias(**relative, **({"max_distance": 6} if "table" in relative else {}))
    return arguments, {name: given[name] for name in ("bias", "sink", "slopes", "table") if name in given}


def formula(q: Tensor, k: Tensor, v: Tensor, given: Given) -> dict[str, Tensor]:
    """Computes out, lse and p as defined in docs/maths.md, with dense matrices. lse is 0 in rows without a key and sink, which are those of `empty`."""
    distance, mask = map(torch.tensor, distances_and_mask(given, given, (*q.shape[:3], k.size(-2))))
    rest = {name: given[name] for name in ("scale", "softcap", "bias", "sink", "slopes", "table") if name in given}
    out, lse, p = dense(q, k, v, mask=mask, distance=distance, buckets=torch.from_numpy(buckets_of(distance, 8, max_distance=6)), **rest)
    return {"out": out, "lse": lse, "p": p, "empty": ~mask.any(-1) & ("sink" not in given)}


def test_every_option_is_the_formula(summary: list[str]) -> None:
    seen: dict[str, int] = {}
    seeds = range(240 if QUICK else 600)
    for seed in seeds:
        tensors, given = drawn(seed)
        arguments, others = split(given)
        outputs = [{"out", "lse", "p"}, {"out"}, {"lse"}, {"p"}][seed % 4]
        if "p" in outputs and {"slopes", "table"} & others.keys() and {"query_offsets", "diagonal_offsets"} & given.keys():
            outputs = outputs - {"p"}  # polyhead refuses gradients of attention weights if a relative bias is given with one of these offsets
        exact = formula(*tensors.values(), given)
        out, lse, p = attention(*tensors.values(), return_lse=True, return_attention_weights=True, **arguments)
        assert torch.equal(lse == -math.inf, exact["empty"]), seed
        ours = {"out": out, "lse": torch.where(exact["empty"], 0.0, lse), "p": p}
        for name in ("out", "lse", "p"):
            torch.testing.assert_close(ours[name], exact[name], rtol=0, atol=1e-12, msg=lambda text: f"seed {seed}: {name}: {text}")
        if outputs:
            try:
                require_equal(*(gradients({name: of[name] for name in outputs}, tensors | others, seed) for of in (ours, exact)), 1e-10)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {sorted(given)}: {error}") from None
        for name in given:
            seen[name] = seen.get(name, 0) + 1
    summary.append(f"polyhead.torch.attention: {len(seeds)} random problems compared with the formula; times each option came up: {seen}")
    assert min(seen.values()) > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("recorded", [False, True])
def test_the_bits_are_those_of_sdpa(dtype: torch.dtype, recorded: bool) -> None:
    for seed in range(40 if QUICK else 100):
        tensors, given = drawn(seed, dtype)
        arguments, _ = split(given)
        plain = {name: value.detach() if isinstance(value, Tensor) else value for name, value in arguments.items()}
        if "relative_bias" in arguments:
            plain["relative_bias"] = arguments["relative_bias"]._replace(**{name: given[name].detach() for name in ("slopes", "table") if name in given})
        expected = polyhead.sdpa(*(x.detach() for x in tensors.values()), return_lse=True, return_attention_weights=True, **plain)
        with torch.set_grad_enabled(recorded):
            found = attention(*tensors.values(), return_lse=True, return_attention_weights=True, **arguments)
            alone = attention(*tensors.values(), **arguments)
        assert torch.equal(found[0], alone) and alone.requires_grad == recorded
        for ours, theirs in zip(found, expected):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype, seed


@pytest.mark.parametrize("recorded", [False, True])
def test_exact_products_of_bfloat16_are_those_of_float32(recorded: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 2, 70, 32, generator=generator).bfloat16().requires_grad_(recorded) for _ in range(3))
    exact, native, default = attention(q, k, v, precision="exact"), attention(q, k, v, precision="native"), attention(q, k, v)
    wide = attention(q.float(), k.float(), v.float())
    assert torch.equal(exact, wide.bfloat16()) and torch.equal(native, default)
    assert (native.float() - wide).abs().max() < 2**-8
    if recorded:
        for of, wanted in zip(torch.autograd.grad(exact.sum(), (q, k, v)), torch.autograd.grad(wide.sum(), (q, k, v))):
            assert (of.float() - wanted.float()).abs().max() <= 2**-8 * wanted.float().abs().max()  # they differ slightly, because the backward pass reads `out`, which is rounded


def test_keys_in_another_storage_type_have_the_gradients_of_their_numbers() -> None:
    torch.manual_seed(2)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6)
    for storage in (torch.bfloat16, torch.float16, torch.int8):
        bias = torch.randn(5, 9, requires_grad=True)
        mine = {"q": q.clone().requires_grad_()}
        scales: dict[str, Tensor] = {}
        if storage == torch.int8:
            (k_given, scales["k_scale"]), (v_given, scales["v_scale"]) = polyhead.quantize_rows(k), polyhead.quantize_rows(v)
            k_wide, v_wide = k_given * scales["k_scale"][..., None], v_given * scales["v_scale"][..., None]
        else:
            k_given, v_given = k.to(storage).requires_grad_(), v.to(storage).requires_grad_()
            k_wide, v_wide = k_given.float(), v_given.float()
            mine |= {"k": k_given, "v": v_given}
        for outputs in (("out",), ("out", "lse", "p")):
            names = ("out", "lse", "p")
            found = dict(zip(names, attention(mine["q"], k_given, v_given, bias=bias, return_lse=True, return_attention_weights=True, **scales)))
            exact = dict(zip(names, attention(mine["q"], k_wide, v_wide, bias=bias, return_lse=True, return_attention_weights=True)))
            for name in names:
                assert torch.equal(found[name], exact[name])
            ours, theirs = (gradients({name: of[name] for name in outputs}, mine | {"bias": bias}, 3) for of in (found, exact))
            assert {name: x.dtype for name, x in ours.items()} == {name: x.dtype for name, x in theirs.items()}
            require_equal(ours, theirs, 1e-6 if storage == torch.int8 else 4e-3)  # d_k and d_v are rounded to the dtype of k and v
    scales["k_scale"].requires_grad_()
    with pytest.raises(NotImplementedError, match="k_scale requires grad; polyhead has no gradient of the scales"):
        attention(q, k_given, v_given, **scales)


def test_half_precision_lse_has_a_gradient() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(4)
        tensors = {name: torch.randn(2, 3, 7, 8).to(dtype).requires_grad_() for name in ("q", "k", "v")}
        exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
        ours, theirs = (gradients({"lse": attention(*of.values(), return_lse=True)[1]}, of, 1) for of in (tensors, exact))
        for name in ("lse", "d_q", "d_k"):
            torch.testing.assert_close(ours[name].double(), theirs[name].double(), rtol=0.01, atol=0.01)
        assert ours["d_q"].dtype == dtype and (ours["d_v"] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("given", [{"causal": "top_left"}, {"window": (3, 0)}, {"causal": "bottom_right", "relative_bias": True}, {}])
def test_decoding_with_a_cache_is_the_whole_sequence(dtype: str, given: Given) -> None:
    torch.manual_seed(5)
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    if given.get("relative_bias"):
        given = given | {"relative_bias": polyhead.RelativeBias(slopes=torch.from_numpy(polyhead.alibi_slopes(4)))}
    cache = polyhead.KeyValueCache(2, 2, 9, 8, dtype=dtype)
    if dtype == "int8":
        (k8, k_scale), (v8, v_scale) = polyhead.quantize_rows(k), polyhead.quantize_rows(v)
        stored: Given = {"k": k8, "v": v8, "k_scale": k_scale, "v_scale": v_scale}
    else:
        stored = {"k": k.to(getattr(torch, dtype)), "v": v.to(getattr(torch, dtype))}
    parts = []
    for first, last in ((0, 4), (4, 5), (5, 9)):
        parts.append(attention(q[:, :, first:last], k[:, :, first:last], v[:, :, first:last], cache=cache, **given))
        if not given:  # without a mask, a query attends to all tokens of the cache
            so_far = {name: x[:, :, :last] for name, x in stored.items()}
            assert torch.equal(parts[-1], attention(q[:, :, first:last], **so_far))
    if given:
        diagonal = {"causal": "top_left"} if "causal" in given else {"diagonal_offsets": torch.zeros(2, dtype=torch.int64)}
        assert torch.equal(torch.cat(parts, 2), attention(q, **stored, **(given | diagonal)))
    assert cache.lengths.tolist() == [9, 9]


def test_decoding_sequences_of_unequal_lengths() -> None:
    torch.manual_seed(6)
    q, k, v = (torch.randn(3, 2, 8, 4) for _ in range(3))
    whole = attention(q, k, v, causal="top_left")
    cache = polyhead.KeyValueCache(3, 2, 8, 4)
    counts, first = torch.tensor([3, 0, 5]), [0, 0, 0]
    for new in (counts, torch.tensor([1, 1, 1]), torch.tensor([4, 7, 2])):
        tokens = int(new.max())
        chunk = [torch.stack([torch.nn.functional.pad(x[b, :, first[b] : first[b] + int(n)], (0, 0, 0, tokens - int(n))) for b, n in enumerate(new)]) for x in (q, k, v)]
        found = attention(*chunk, cache=cache, new_tokens=new, causal="top_left")
        for b, n in enumerate(new.tolist()):
            assert torch.equal(found[b, :, :n], whole[b, :, first[b] : first[b] + n])
            first[b] += n


def test_a_call_that_fails_leaves_the_cache_as_it_was() -> None:
    cache = polyhead.KeyValueCache(1, 2, 4, 4)
    q = torch.randn(1, 2, 1, 4)
    attention(q, q, q, cache=cache)
    for wrong in ({"bias": torch.zeros(3, 3)}, {"empty_rows": "other"}, {"causal": 3}, {"key_lengths": torch.ones(1, dtype=torch.int64)}, {"out": torch.empty(5)}):
        with pytest.raises(ValueError):
            attention(q, q, q, cache=cache, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="k requires grad, and a cache records no gradient"):
        attention(q, q.clone().requires_grad_(), q, cache=cache)
    with pytest.raises(TypeError, match="cache is of type list"):
        attention(q, q, q, cache=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="new_tokens is given without a cache"):
        attention(q, q, q, new_tokens=torch.tensor([1]))
    assert cache.lengths.tolist() == [1]


@needs_compiler
def test_decoding_from_tensors_is_one_graph() -> None:
    torch._dynamo.reset()
    torch.manual_seed(7)
    q, k, v = torch.randn(2, 4, 8, 8), torch.randn(2, 2, 8, 8), torch.randn(2, 2, 8, 8)
    whole = attention(q, k, v, causal="top_left")

    def step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        places = lengths.view(-1, 1, 1, 1).expand(*k.shape)
        keys.scatter_(2, places, k)
        values.scatter_(2, places, v)
        result: Tensor = attention(q, keys, values, causal="top_left", key_lengths=lengths + 1, diagonal_offsets=lengths)
        return result

    compiled = torch.compile(step, fullgraph=True)
    keys, values, lengths = torch.zeros(2, 2, 16, 8), torch.zeros(2, 2, 16, 8), torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for t in range(8):
            row = slice(t, t + 1)
            assert torch.equal(compiled(q[:, :, row], k[:, :, row], v[:, :, row], keys, values, lengths), whole[:, :, row])
            lengths += 1
    (k8, k_scale), (v8, v_scale) = polyhead.quantize_rows(k), polyhead.quantize_rows(v)
    stored = torch.compile(lambda q: attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale, window=(3, 0), causal=2, return_lse=True), fullgraph=True, backend="aot_eager" if QUICK else "inductor")
    for ours, theirs in zip(stored(q), attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale, window=(3, 0), causal=2, return_lse=True)):
        assert torch.equal(ours, theirs)


@needs_compiler
@pytest.mark.parametrize("dynamic", [True] if QUICK else [False, True])
def test_gradients_of_every_output_in_one_graph(dynamic: bool) -> None:
    torch._dynamo.reset()

    def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keep: Tensor, slopes: Tensor) -> Tensor:
        out, lse, p = attention(q, k, v, bias=bias, attend=keep, window=(2, 1), return_lse=True, return_attention_weights=True)
        other, second = attention(q, k, v, block=~keep, relative_bias=polyhead.RelativeBias(slopes=slopes), causal=1, return_lse=True)
        return out.cos().sum() + lse.nan_to_num(0, 0, 0).sin().sum() + (p * p).sum() + other.square().sum() + second.nan_to_num(0, 0, 0).sum()

    # The operators that inductor calls do not depend on the options. A quick run uses inductor only in test_torch_ops.py.
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager" if dynamic else "inductor")
    for keys in (5, 7):
        generator = torch.Generator().manual_seed(keys)
        shapes = ((2, 4, 6, 3), (2, 2, keys, 3), (2, 2, keys, 3), (6, keys))
        q, k, v, bias = (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes)
        slopes = torch.rand(4, generator=generator, dtype=torch.float64).requires_grad_()
        keep = torch.rand(2, 1, 6, keys, generator=generator) < 0.8
        inputs = (q, k, v, bias, slopes)
        eager, mine = (torch.autograd.grad(f(q, k, v, bias, keep, slopes), inputs) for f in (loss, compiled))
        for expected, found in zip(eager, mine):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_no_tensor_of_all_pairs_is_made_for_a_mask_and_a_bias() -> None:
    batch, rows, heads, length = 2, 24, 4, 96  # a full bias [B,I,H,J,J] would have 1.8 million numbers
    q, k, v = (torch.randn(batch, rows, heads, length, 8, requires_grad=True) for _ in range(3))
    bias = torch.randn(batch, 1, heads, length, length, requires_grad=True)
    attend = torch.rand(batch, rows, 1, 1, length) < 0.9
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return result

    with Watch():
        attention(q, k, v, attend=attend, bias=bias).sum().backward()
    assert 0 < largest <= q.numel()
    assert bias.grad is not None and bias.grad.shape == bias.shape


def test_out_is_written_and_returned() -> None:
    q = torch.randn(1, 2, 5, 4)
    out = torch.empty(1, 2, 5, 4)
    version = out._version
    assert attention(q, q, q, out=out) is out and torch.equal(out, attention(q, q, q)) and out._version > version
    result, lse = attention(q, q, q, out=out, return_lse=True)
    assert result is out and lse.shape == (1, 2, 5)
    leaf = q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="out is given, and a gradient is recorded"):
        attention(leaf, q, q, out=out)
    with torch.no_grad():
        assert attention(leaf, q, q, out=out) is out


def test_dropout_is_that_of_the_generator_and_in_the_gradients() -> None:
    q, eye = torch.randn(1, 2, 6, 4), torch.eye(6).expand(1, 2, 6, 6).clone().requires_grad_()
    torch.manual_seed(1)
    first, weights = attention(q, q, eye, dropout=0.5, return_attention_weights=True)
    torch.manual_seed(1)
    assert torch.equal(first, attention(q, q, eye, dropout=0.5)) and not torch.equal(first, weights)
    assert ((first == 0) | torch.isclose(first, 2 * weights)).all()
    (gradient,) = torch.autograd.grad(first.sum(), eye)
    torch.testing.assert_close(gradient[..., 0], first.detach().sum(-2))


Wrong = tuple[dict[str, Any], type[Exception], str]
WRONG: dict[str, list[Wrong]] = {
    "tensors": [
        ({name: value}, TypeError, name)
        for name in ("q", "k", "v", "attend", "block", "attend_keys", "block_keys", "key_starts", "key_lengths", "diagonal_offsets", "query_offsets", "key_offsets", "bias", "sink")
        for value in (3, "x", [1.0], object())
    ],
    "shapes": [
        ({"k": torch.zeros(1, 2, 7, 3)}, ValueError, "k is"),
        ({"v": torch.zeros(1, 2, 6, 4)}, ValueError, "v is"),
        ({"q": torch.zeros(5, 4)}, ValueError, "q is"),
        ({"attend": torch.ones(5, 6, dtype=torch.bool)}, ValueError, "attend is"),
        ({"attend": torch.ones(5, 7)}, ValueError, "attend is"),
        ({"attend_keys": torch.ones(2, 6, dtype=torch.bool)}, ValueError, "attend_keys is"),
        ({"key_starts": torch.tensor([-8])}, ValueError, "key start is -8"),
        ({"key_starts": torch.tensor([1.0])}, ValueError, "key_starts"),
        ({"key_lengths": torch.tensor([8])}, ValueError, "key length is 8"),
        ({"key_lengths": torch.tensor([1.0])}, ValueError, "key_lengths"),
        ({"diagonal_offsets": torch.tensor([1])}, ValueError, "diagonal_offsets"),
        ({"query_offsets": torch.tensor([0, 4])}, ValueError, "query_offsets"),
        ({"bias": torch.zeros(5, 6)}, ValueError, "bias is"),
        ({"bias": torch.zeros(5, 7, dtype=torch.float64)}, ValueError, "bias is"),
        ({"sink": torch.zeros(3)}, ValueError, "sink is"),
        ({"k_scale": torch.ones(1, 2, 7)}, ValueError, "k_scale"),
        ({"k": torch.zeros(1, 2, 7, 4, dtype=torch.int8)}, ValueError, "k "),
        ({"attend": torch.ones(5, 7, dtype=torch.bool), "block": torch.ones(5, 7, dtype=torch.bool)}, ValueError, "attend and block"),
    ],
    "words and numbers": [
        ({"causal": True}, TypeError, "causal is of type bool"),
        ({"causal": 1.5}, TypeError, "causal is of type float"),
        ({"causal": "left"}, ValueError, "causal is 'left'"),
        ({"window": 3}, TypeError, "window must be"),
        ({"window": (1, 2, 3)}, TypeError, "window must be"),
        ({"window": (1.5, None)}, TypeError, "window must be"),
        ({"window": (-1, None)}, ValueError, "window"),
        ({"scale": "1"}, TypeError, "scale is of type str"),
        ({"scale": math.nan}, ValueError, "scale"),
        ({"softcap": None}, TypeError, "softcap is of type NoneType"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"dropout": True}, TypeError, "dropout is of type bool"),
        ({"dropout": 1.5}, ValueError, "dropout"),
        ({"empty_rows": "offset"}, ValueError, "empty_rows is 'offset'"),
        ({"empty_rows": 3}, ValueError, "empty_rows is 3"),
        ({"empty_rows": None}, ValueError, "empty_rows is None"),
        ({"precision": "Exact"}, ValueError, "precision is 'Exact'; it must be 'exact' or 'native'"),
        ({"precision": None}, ValueError, "precision is None"),
        ({"return_lse": 1}, TypeError, "return_lse is of type int"),
        ({"return_attention_weights": None}, TypeError, "return_attention_weights is of type NoneType"),
        ({"relative_bias": torch.ones(2)}, TypeError, "relative_bias is of type Tensor"),
        ({"relative_bias": polyhead.RelativeBias()}, ValueError, "neither slopes nor a table"),
        ({"relative_bias": polyhead.RelativeBias(slopes=torch.ones(3))}, ValueError, "relative_bias.slopes is"),
        ({"relative_bias": polyhead.RelativeBias(slopes=torch.ones(2)), "bias": torch.zeros(5, 7)}, ValueError, "bias and relative_bias are both given"),
        ({"relative_bias": polyhead.RelativeBias(slopes=torch.ones(2), max_distance=6)}, ValueError, "relative_bias.max_distance is 6 without a table"),
        ({"relative_bias": polyhead.RelativeBias(slopes=torch.ones(2), bidirectional=False)}, ValueError, "relative_bias.bidirectional is [Ff]alse without a table"),
        ({"relative_bias": polyhead.RelativeBias(table=torch.ones(2, 8), max_distance="x")}, TypeError, "relative_bias.max_distance"),  # type: ignore[arg-type]
        ({"relative_bias": polyhead.RelativeBias(table=torch.ones(2, 8), bidirectional=1)}, TypeError, "relative_bias.bidirectional"),  # type: ignore[arg-type]
        ({"out": torch.empty(1, 2, 5, 3)}, ValueError, r"out is \[1,2,5,3\]; it must be"),
        ({"out": [1.0]}, TypeError, "out is of type list"),
    ],
}


@pytest.mark.parametrize(("given", "kind", "message"), [case for cases in WRONG.values() for case in cases])
def test_a_wrong_argument_is_refused_by_name(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = {"q": torch.zeros(1, 2, 5, 4), "k": torch.zeros(1, 2, 7, 4), "v": torch.zeros(1, 2, 7, 4)}
    attention(**good)  # type: ignore[arg-type]
    with pytest.raises(kind, match=message):
        attention(**(good | given))


def test_gradients_that_do_not_exist_are_refused_by_name() -> None:
    q = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    attend = torch.zeros(5, 5, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="no gradient of lse with empty_rows='uniform'"):
        attention(q, q, q, attend=attend, empty_rows="uniform", return_lse=True)
    _, p = attention(q, q, q, attend=attend, empty_rows="uniform", return_attention_weights=True)
    with pytest.raises(NotImplementedError, match="no gradient of attention weights with empty_rows='uniform'"):
        p.sum().backward()
    slopes = torch.ones(2, dtype=torch.float64, requires_grad=True)
    _, p = attention(
        q, q, q, relative_bias=polyhead.RelativeBias(slopes=slopes), diagonal_offsets=torch.tensor([2]), causal="top_left", return_attention_weights=True
    )
    with pytest.raises(NotImplementedError, match="relative_bias together with diagonal_offsets"):
        p.sum().backward()


def test_empty_rows_have_their_gradients() -> None:
    torch.manual_seed(8)
    tensors = {name: torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for name in ("q", "k", "v")}
    attend = torch.rand(5, 5) < 0.7
    attend[2] = False
    filled = attend.clone()
    filled[2] = True
    named: Callable[..., dict[str, Tensor]] = lambda results: dict(zip(("out", "lse", "p"), results))  # noqa: E731
    ours = named(attention(*tensors.values(), attend=attend, empty_rows="unmasked", return_lse=True, return_attention_weights=True))
    exact = named(attention(*tensors.values(), attend=filled, return_lse=True, return_attention_weights=True))
    require_equal(gradients(ours, tensors, 1), gradients(exact, tensors, 1), 1e-12)


@needs_compiler
def test_compiled_autograd_of_lse_alone() -> None:
    """q, k and v are the same tensor, but lse does not depend on v, so only q and k give it a gradient."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 3, 4, requires_grad=True)

    def gradient() -> Tensor:
        x.grad = None
        attention(x, x, x, return_lse=True)[1].sum().backward()
        assert x.grad is not None
        return x.grad

    expected = gradient()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        torch.testing.assert_close(gradient(), expected)
