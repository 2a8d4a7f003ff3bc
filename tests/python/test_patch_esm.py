"""Compares outputs, attention weights and gradients of the installed fair-esm's classes with and without polyhead.patch.esm."""

from __future__ import annotations

import argparse
import contextlib
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import polyhead.patch
from patch_support import Counter, counter, randomize, require_same  # noqa: F401

pytest.importorskip("esm", reason="fair-esm is not installed: pip install fair-esm==2.0.0")
import esm  # noqa: E402
from esm.axial_attention import ColumnSelfAttention, RowSelfAttention  # noqa: E402
from esm.multihead_attention import MultiheadAttention  # noqa: E402

PATCH = polyhead.patch.esm
KINDS = {"plain": {}, "rotary": {"use_rotary_embeddings": True}, "key and value biases": {"add_bias_kv": True}, "zero": {"add_zero_attn": True}}


@pytest.mark.parametrize("kind", KINDS)
def test_multihead_attention(kind: str, counter: Counter) -> None:  # noqa: F811
    """Query, key and value are different tensors, also for self-attention. Which of the three tensors esm reads depends on need_head_weights. The patch must read the same tensors."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(60):
        heads, batch, extent = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 12)
        flag = draw.choice([{}, {"self_attention": True}, {"encoder_decoder_attention": True}])
        keys = extent if "self_attention" in flag or kind == "rotary" else draw.randint(1, 12)
        layer = randomize(MultiheadAttention(heads * 4, heads, **flag, **KINDS[kind]), generator).train(draw.random() < 0.5)
        query, key, value = (torch.randn(n, batch, heads * 4, generator=generator, requires_grad=True) for n in (extent, keys, keys))
        padding = None
        if draw.random() < 0.5:
            padding = torch.rand(batch, keys, generator=generator) < 0.4
            padding[:, 0] = False
        mask = draw.choice([None, torch.randn(extent, keys, generator=generator), torch.full((extent, keys), -torch.inf).triu(1)])
        weights = {"need_weights": draw.random() < 0.7, "need_head_weights": draw.random() < 0.5}

        def call() -> Any:
            return layer(query, key, value, key_padding_mask=padding, attn_mask=mask, **weights)

        require_same(PATCH, call, {"query": query, "key": key, "value": value}, layer, counter, calls=1, grad=draw.random() < 0.7)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_a_mask_of_keys_that_is_not_boolean(dtype: torch.dtype, weights: bool, counter: Counter) -> None:  # noqa: F811
    """torch's function adds a floating key mask to the scores, but esm's own code masks the keys where the mask is not 0. Both refuse other dtypes."""
    layer = randomize(MultiheadAttention(8, 2))
    x = torch.randn(5, 2, 8)
    padding = torch.tensor([[0, 1, 0, 2, 0], [0, 0, 0, 1, 1]]).to(dtype)

    def call() -> Any:
        try:
            return layer(x, x, x, key_padding_mask=padding, need_head_weights=weights)
        except (AssertionError, RuntimeError) as error:
            return str(error)

    refused = call()
    with PATCH():
        found = call()
    assert isinstance(found, str) is isinstance(refused, str) and (not isinstance(found, str) or found == refused)
    require_same(PATCH, call, {}, layer, counter, calls=0, grad=False)
    padding = torch.tensor([[False, True, False, False, False]])  # a padding mask of one sequence, which is used for a batch of several sequences
    assert isinstance(call(), str)
    with PATCH():
        assert isinstance(call(), str)
    assert counter.calls == 0


def test_projections_without_biases_are_refused_by_esm(counter: Counter) -> None:  # noqa: F811
    """esm concatenates the biases of the three projections for torch's function, so it needs all of them."""
    layer, x = randomize(MultiheadAttention(8, 2, bias=False)), torch.randn(5, 2, 8)
    for patched in (False, True):
        with PATCH() if patched else contextlib.nullcontext(), pytest.raises(TypeError):
            layer(x, x, x)
    require_same(PATCH, lambda: layer(x, x, x, need_head_weights=True), {}, layer, counter, calls=1)


def test_calls_that_esm_reads_differently_are_left_to_esm(counter: Counter) -> None:  # noqa: F811
    """If keys have more sequences than queries, esm's view turns them into more keys. A mask of pairs may have another dtype. Both calls are left to esm."""
    layer, x = randomize(MultiheadAttention(8, 2)), torch.randn(5, 2, 8)
    other, mask = torch.randn(5, 4, 8), torch.randn(5, 5, dtype=torch.float64)
    require_same(PATCH, lambda: layer(x, other, other, need_head_weights=True), {}, layer, counter, calls=0)
    require_same(PATCH, lambda: layer(x, x, x, attn_mask=mask, need_head_weights=True), {}, layer, counter, calls=0)


def test_layers_that_torch_does_not_call(counter: Counter) -> None:  # noqa: F811
    """torch's function reads the weights of the projections without calling them. So hooks on projections act only with need_head_weights, where esm calls them."""
    layer, x = randomize(MultiheadAttention(8, 2)), torch.randn(5, 2, 8)
    layer.k_proj.register_forward_hook(lambda module, inputs, output: 2 * output)
    require_same(PATCH, lambda: layer(x, x, x), {}, layer, counter, calls=0)
    require_same(PATCH, lambda: layer(x, x, x, need_head_weights=True), {}, layer, counter, calls=1)


@pytest.mark.parametrize("part", ["rot_emb", "a further module", "a further parameter", "sparse"])
def test_a_changed_module_is_left_to_esm(part: str, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    layer, x = randomize(MultiheadAttention(8, 2, use_rotary_embeddings=True)), torch.randn(5, 2, 8)
    if part == "rot_emb":
        layer.rot_emb.register_forward_hook(lambda module, inputs, output: (output[0], 2 * output[1]))
    elif part == "sparse":
        monkeypatch.setattr(MultiheadAttention, "apply_sparse_mask", lambda scores, *_: scores.relu())
    else:
        layer.q_norm = torch.nn.LayerNorm(8) if part == "a further module" else torch.nn.Parameter(torch.ones(8))
    require_same(PATCH, lambda: layer(x, x, x), {}, layer, counter, calls=0)


def test_a_hook_on_the_dropout_of_columns_is_called(counter: Counter) -> None:  # noqa: F811
    layer, x = randomize(ColumnSelfAttention(8, 2)), torch.randn(3, 4, 2, 8)
    layer.dropout_module.register_forward_hook(lambda module, inputs, output: output * 3)
    require_same(PATCH, lambda: layer(x), {}, layer, counter, calls=0)


def test_dropout_and_padding_of_columns(counter: Counter) -> None:  # noqa: F811
    """Whether dropout is active depends on the mode of the dropout module. If the padding mask has one alignment and the batch two, esm's own code runs."""
    layer, x = randomize(ColumnSelfAttention(8, 2, dropout=0.4)).train(), torch.randn(3, 4, 2, 8)
    require_same(PATCH, lambda: layer(x), {}, layer, counter, calls=0)
    layer.dropout_module.eval()
    require_same(PATCH, lambda: layer(x), {}, layer, counter, calls=1)
    layer.eval().dropout_module.train()
    require_same(PATCH, lambda: layer(x), {}, layer, counter, calls=0)
    layer.dropout_module.eval()
    padding = torch.zeros(1, 3, 4, dtype=torch.bool)
    padding[0, 2, 1:] = True
    require_same(PATCH, lambda: layer(x, self_attn_padding_mask=padding), {}, layer, counter, calls=0)


CASES: dict[str, dict[str, Any]] = {
    "a boolean mask of pairs": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "a sequence of padding": {"key_padding_mask": torch.tensor([[False] * 5, [True] * 5])},
    "a query without a key": {"attn_mask": torch.full((5, 5), -torch.inf).triu(0)},
    "a mask and padding without a key": {"attn_mask": torch.full((5, 5), -torch.inf).triu(1), "key_padding_mask": torch.tensor([[True] + [False] * 4] * 2)},
    "scores": {"before_softmax": True, "need_head_weights": True},
}


@pytest.mark.parametrize("name", CASES)
def test_calls_that_are_left_to_esm(name: str, counter: Counter) -> None:  # noqa: F811
    layer = randomize(MultiheadAttention(8, 2, use_rotary_embeddings=name == "scores"))
    x = torch.randn(5, 2, 8)
    require_same(PATCH, lambda: layer(x, x, x, **CASES[name]), {}, layer, counter, calls=0, grad=False)


def test_incremental_decoding_is_left_to_esm(counter: Counter) -> None:  # noqa: F811
    layer = randomize(MultiheadAttention(8, 2, self_attention=True))
    x = torch.randn(4, 2, 8)

    def call() -> list[Tensor]:
        state: dict[str, Any] = {}
        return [layer(token[None], token[None], token[None], incremental_state=state)[0] for token in x]

    require_same(PATCH, call, {}, layer, counter, calls=0, grad=False)


def test_dropout(counter: Counter) -> None:  # noqa: F811
    """Calls with dropout that return attention weights are left to esm. Without weights, polyhead draws other dropout bits: the mean over many calls must be the output without
    dropout."""
    layer = randomize(MultiheadAttention(8, 2, dropout=0.3))
    x = torch.randn(6, 2, 8)
    require_same(PATCH, lambda: layer(x, x, x), {}, layer, counter, calls=0)
    layer.eval()
    exact = layer(x, x, x, need_weights=False)[0]
    layer.train()
    with PATCH(), torch.no_grad():
        torch.manual_seed(0)
        draws = torch.stack([layer(x, x, x, need_weights=False)[0] for _ in range(4000)])
        torch.manual_seed(0)
        assert torch.equal(draws[0], layer(x, x, x, need_weights=False)[0])
    assert counter.calls == 4001
    deviation = draws.std(0)
    assert deviation.min() > 0 and ((draws.mean(0) - exact).abs() < 6 * deviation / 4000**0.5).all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_columns_of_an_alignment(rows: int, padded: bool, counter: Counter) -> None:  # noqa: F811
    layer = randomize(ColumnSelfAttention(8, 2, max_tokens_per_msa=12))
    x = torch.randn(rows, 6, 2, 8, requires_grad=True)
    padding = None
    if padded:
        padding = torch.rand(2, rows, 6) < 0.3
        padding[1, :, 4:] = True  # the last columns hold only padding
    for grad in (False, True):
        calls = 0 if rows == 1 else 3 if rows == 5 and not grad else 1  # without gradients esm computes 12 // 5 = 2 columns at a time, which takes 3 calls
        for weights in (False, True) if not (grad and padded) else (False,):

            def call() -> Any:
                found = layer(x, self_attn_padding_mask=padding)
                return found if weights else found[0]

            require_same(PATCH, call, {"x": x}, layer, counter, calls=calls, grad=grad)
    if padded and rows > 1:
        with PATCH(), pytest.raises(NotImplementedError, match="no gradient of attention weights"):
            layer(x, self_attn_padding_mask=padding)[1].pow(2).sum().backward()


def tokens(alphabet: Any, lengths: list[int]) -> Tensor:
    result = torch.full((len(lengths), max(lengths) + 2), alphabet.padding_idx)
    for row, length in zip(result, lengths):
        row[: length + 2] = torch.tensor([alphabet.cls_idx, *random.choices(range(4, 24), k=length), alphabet.eos_idx])
    return result


def test_esm_2_with_contacts(counter: Counter) -> None:  # noqa: F811
    model = randomize(esm.ESM2(num_layers=3, embed_dim=32, attention_heads=4)).eval()
    given = tokens(model.alphabet, [9, 5])
    require_same(PATCH, lambda: model(given, repr_layers=[0, 2, 3], return_contacts=True), {}, model, counter, tolerance=3e-6)
    require_same(PATCH, lambda: model(given[:1, :11], repr_layers=[3], need_head_weights=True), {}, model, counter, calls=3, grad=False)


def test_esm_1(counter: Counter) -> None:  # noqa: F811
    """Tests ESM-1, whose layers have learned keys and values, and ESM-1b."""
    arguments = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "max_positions": 64, "emb_layer_norm_before": True}
    for arch in ("protein_bert_base", "roberta_large"):
        alphabet = esm.data.Alphabet.from_architecture("ESM-1" if arch == "protein_bert_base" else "ESM-1b")
        options = argparse.Namespace(arch=arch, final_bias=True, token_dropout=False, **arguments)
        model = randomize(esm.ProteinBertModel(options, alphabet)).eval()
        given = tokens(alphabet, [7, 4])
        require_same(PATCH, lambda: model(given, repr_layers=[1, 2], return_contacts=arch == "roberta_large"), {}, model, counter, tolerance=3e-6, grad=False)


def test_msa_transformer(counter: Counter) -> None:  # noqa: F811
    """polyhead computes attention along columns. Attention along rows, whose scores are sums over the alignment, is left to esm."""
    alphabet = esm.data.Alphabet.from_architecture("msa_transformer")
    options = argparse.Namespace(
        layers=2, embed_dim=16, ffn_embed_dim=32, attention_heads=2, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, max_positions=64, max_tokens=2**14,
        embed_positions_msa=True, embed_positions_msa_dim=16,
    )  # fmt: skip
    model = randomize(esm.MSATransformer(options, alphabet)).eval()
    given = torch.randint(4, 24, (2, 4, 9))
    given[1, :, 7:] = alphabet.padding_idx
    given[0, 3] = alphabet.padding_idx
    require_same(PATCH, lambda: model(given, repr_layers=[2], need_head_weights=True), {}, model, counter, calls=2, grad=False, tolerance=3e-6)
    with PATCH():
        assert RowSelfAttention.forward.__module__ == "esm.axial_attention" and not hasattr(RowSelfAttention.forward, "__wrapped__")


def test_float64_keeps_the_softmax_of_esm(counter: Counter) -> None:  # noqa: F811
    """esm computes softmax in float32 even for float64 inputs, polyhead in float64. The results agree within float32 rounding."""
    layer = randomize(MultiheadAttention(16, 2, use_rotary_embeddings=True)).double()
    x = torch.randn(9, 2, 16, dtype=torch.float64, requires_grad=True)
    require_same(PATCH, lambda: layer(x, x, x, need_head_weights=True), {"x": x}, layer, counter)
