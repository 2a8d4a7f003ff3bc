"""Compares attn_implementation="polyhead" with "eager" in whole models of transformers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
import transformers  # noqa: E402

import polyhead.transformers  # noqa: E402

polyhead.transformers.register()

MINILM = Path(os.environ.get("POLYHEAD_MINILM_DIR", "none"))
needs_minilm = pytest.mark.skipif(not (MINILM / "config.json").is_file(), reason="POLYHEAD_MINILM_DIR names no model folder")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Attention!",
    "A padded batch holds sentences of unequal lengths, and this is the longest of the three by a good margin.",
]


def minilm(implementation: str) -> Any:
    return transformers.AutoModel.from_pretrained(MINILM, attn_implementation=implementation).eval()


def tokens() -> Any:
    return transformers.AutoTokenizer.from_pretrained(MINILM)(SENTENCES, padding=True, return_tensors="pt")


def distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@needs_minilm
@pytest.mark.parametrize("padded", [False, True])
def test_minilm_equals_eager(padded: bool, summary: list[str]) -> None:
    inputs = tokens() if padded else {name: tensor[:1, :12] for name, tensor in tokens().items()}
    with torch.inference_mode():
        ours, eager = (minilm(name)(**inputs, output_attentions=True) for name in ("polyhead", "eager"))
    assert (inputs["attention_mask"] == 0).any() == padded
    # Outputs of padding are not compared. Nobody uses them, and they are twenty times as sensitive to rounding: even eager differs there from float64 by 2e-5.
    words = inputs["attention_mask"].bool()
    found = max(distance(ours.last_hidden_state[words], eager.last_hidden_state[words]), distance(ours.pooler_output, eager.pooler_output))
    summary.append(f"MiniLM, {'padded' if padded else 'one sentence'}: largest difference from eager {found:.1e}")
    assert found <= 1e-5
    assert len(ours.attentions) == len(eager.attentions) == 6
    for mine, other in zip(ours.attentions, eager.attentions):
        assert mine.shape == other.shape and distance(mine, other) <= 1e-5
        torch.testing.assert_close(mine.sum(-1), torch.ones(mine.shape[:-1]), rtol=1e-5, atol=1e-5)


@needs_minilm
def test_minilm_trains_as_eager() -> None:
    inputs = tokens()
    gradients = []
    for name in ("polyhead", "eager"):
        model = minilm(name)
        model(**inputs).last_hidden_state.square().mean().backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert distance(gradient, gradients[1][name]) <= 1e-5 * max(1.0, gradients[1][name].abs().max().item()), name


@needs_minilm
def test_asking_for_maps_does_not_change_the_output() -> None:
    model, inputs = minilm("polyhead"), tokens()
    with torch.inference_mode():
        plain, with_maps = model(**inputs), model(**inputs, output_attentions=True)
    assert plain.attentions is None or all(weights is None for weights in plain.attentions)
    assert torch.equal(plain.last_hidden_state, with_maps.last_hidden_state)


@needs_minilm
def test_an_implementation_can_be_changed_later() -> None:
    model, inputs = minilm("eager"), tokens()
    with torch.inference_mode():
        words = inputs["attention_mask"].bool()
        eager = model(**inputs).last_hidden_state[words]
        model.set_attn_implementation("polyhead")
        assert model.config._attn_implementation == "polyhead"
        assert distance(model(**inputs).last_hidden_state[words], eager) <= 1e-5


@needs_minilm
def test_dropout_is_repeatable_in_training() -> None:
    model, inputs = minilm("polyhead").train(), tokens()
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(model(**inputs).last_hidden_state)
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
DECODERS = {
    "llama with grouped heads": lambda: transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    "mistral with a sliding window": lambda: transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4),
    "gemma2 with softcap": lambda: transformers.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
    ),
    "gpt-oss with sinks": lambda: transformers.GptOssConfig(
        **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.1
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64),  # transformers does not pass output_attentions to GPT-2's layers
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoders_equal_eager(name: str, padded: bool) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(DECODERS[name](), attn_implementation="eager").eval()
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0  # padding on the left, as for generation: the first queries have no key
    results = []
    for implementation in ("eager", "polyhead"):
        model.set_attn_implementation(implementation)
        with torch.inference_mode():
            results.append(model(ids, attention_mask=mask, output_attentions=True))
    eager, ours = results
    kept = mask.bool()
    assert distance(ours.logits[kept], eager.logits[kept]) <= 1e-5
    assert ours.logits.isfinite().all()
    if name == "gpt2" and transformers.__version__ < "5":
        return  # this version does not tell GPT-2's layers that attention weights are requested
    assert len(ours.attentions) == len(eager.attentions) == 2
    for mine, other in zip(ours.attentions, eager.attentions):
        assert distance(mine.transpose(1, 2)[kept], other.transpose(1, 2)[kept]) <= 1e-5


def test_generation_equals_eager() -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(DECODERS["llama with grouped heads"](), attn_implementation="eager").eval()
    ids = torch.randint(1, 50, (2, 5))
    texts = []
    for implementation in ("eager", "polyhead"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0))
    assert torch.equal(*texts)


@pytest.mark.parametrize("padded", [False, True])
def test_compiled_in_one_graph_equals_eager(padded: bool) -> None:
    model = transformers.AutoModelForCausalLM.from_config(DECODERS["llama with grouped heads"](), attn_implementation="polyhead").eval()
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, : 3 * padded] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(ids, attention_mask=mask).logits
    assert distance(compiled, expected) <= 1e-6


def test_a_sliding_window_that_no_mask_contains_is_an_error() -> None:
    q, layer = torch.zeros(1, 2, 3, 4), torch.nn.Module()
    layer.config = transformers.LlamaConfig()
    for is_causal in (True, False):
        with pytest.raises(NotImplementedError, match="3 keys and sliding_window=2 without a mask"):
            polyhead.transformers.attention_forward(layer, q, q, q, None, is_causal=is_causal, sliding_window=2)
        polyhead.transformers.attention_forward(layer, q, q, q, torch.ones(3, 3, dtype=torch.bool), is_causal=is_causal, sliding_window=2)


@pytest.mark.parametrize("name", ["sinks", "cache", "head_mask", "indices", "block_indices", "something_new"])
def test_an_argument_that_attention_forward_does_not_have_is_an_error(name: str) -> None:
    q, layer = torch.zeros(1, 2, 3, 4), torch.nn.Module()
    layer.is_causal = True
    assert polyhead.transformers.attention_forward(layer, q, q, q, None, **{name: None}, use_cache=True, sliding_window=3)[1] is None
    layer.config = transformers.LlamaConfig()
    with pytest.raises(NotImplementedError, match=rf"family llama .*{name}.*eager"):
        polyhead.transformers.attention_forward(layer, q, q, q, None, **{name: torch.zeros(1)})


def test_packed_texts_need_their_mask() -> None:
    q, layer = torch.randn(1, 2, 5, 4), torch.nn.Module()
    packed = {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "cu_seq_lens_k": torch.tensor([0, 2, 5]), "max_length_q": 3, "max_length_k": 3}
    with pytest.raises(NotImplementedError, match="position_ids"):
        polyhead.transformers.attention_forward(layer, q, q, q, None, is_causal=True, **packed)
    mask = torch.tensor([[0, 0, 1, 1, 1]]) == torch.tensor([[0], [0], [1], [1], [1]])
    out = polyhead.transformers.attention_forward(layer, q, q, q, mask[None, None], **packed)[0]
    alone = polyhead.transformers.attention_forward(layer, *(q[:, :, 2:],) * 3, None, is_causal=False)[0]
    torch.testing.assert_close(out[:, 2:], alone)


def test_a_layer_without_mask_must_say_whether_it_is_causal() -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="causal"):
        polyhead.transformers.attention_forward(torch.nn.Module(), q, q, q, None)
    polyhead.transformers.attention_forward(torch.nn.Module(), q[:, :, :1], q, q, None)  # a single query attends to every key, so a missing mask is not ambiguous


def test_an_argument_is_causal_that_contradicts_a_layer_without_a_mask_is_an_error() -> None:
    q, layer = torch.randn(1, 2, 3, 4), torch.nn.Module()
    for own in (True, False):
        layer.is_causal = own
        with pytest.raises(NotImplementedError, match=rf"layers \(Module\) with is_causal={own} that get no mask and is_causal={not own}, which 'eager' ignores there"):
            polyhead.transformers.attention_forward(layer, q, q, q, None, is_causal=not own)
        polyhead.transformers.attention_forward(layer, q, q, q, None, is_causal=own)
        polyhead.transformers.attention_forward(layer, q, q, q, torch.ones(3, 3, dtype=torch.bool), is_causal=not own)
        polyhead.transformers.attention_forward(layer, q[:, :, :1], q, q, None, is_causal=not own)


@pytest.mark.parametrize(("family", "is_causal", "refused"), [("gemma3", False, True), ("altclip", True, True), ("whisper", True, True), ("clip", True, True), ("clip", None, False), ("clip_text_model", True, False),
                                                             ("llama", False, False), ("llama", True, False), ("llava", False, False), ("bert", True, False)])  # fmt: skip
def test_is_causal_of_a_call_equals_eager_or_is_refused(family: str, is_causal: bool | None, refused: bool) -> None:
    if not dataclasses.is_dataclass(transformers.LlamaConfig):
        pytest.skip("the tiny configurations need transformers 5")  # tests/python/tiny_families.py reads the dataclasses of transformers 5
    from compare_families import twin
    from tiny_families import CONFIG_MAPPING, build

    made = build(family) if family in CONFIG_MAPPING else "it has no such family"
    if isinstance(made, str):
        pytest.skip(f"this version of transformers: {made}")  # families come and go between versions of transformers
    ours = twin(made, "polyhead")
    inputs = {name: tensor for name, tensor in made.inputs.items() if name != "attention_mask"}
    given = {} if is_causal is None else {"is_causal": is_causal}

    def outputs(model: Any) -> list[Tensor]:
        with torch.no_grad():
            result = model(**inputs, **given)
        return [result[name] for name in ("logits", "last_hidden_state", "logits_per_image") if result.get(name) is not None]

    if refused:
        with pytest.raises(NotImplementedError, match="is_causal"):
            outputs(ours)
        return
    expected = outputs(made.model)
    assert expected
    for a, b in zip(outputs(ours), expected, strict=True):
        assert distance(a, b) <= 1e-4 * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wider_mask_and_position_bias_keep_their_numbers(dtype: torch.dtype) -> None:
    q, layer = torch.randn(1, 2, 5, 8).to(dtype), torch.nn.Module()
    bias, mask = 100 + torch.randn(1, 2, 5, 5), torch.zeros(1, 1, 5, 5)
    mask[..., 3:] = torch.finfo(torch.float32).min
    mask[..., 0, :] = torch.finfo(torch.float32).min  # all keys of query 0 are masked, so all have equal weights
    out, weights = polyhead.transformers.attention_forward(layer, q, q, q, mask, position_bias=bias, output_attentions=True)
    assert out.dtype == weights.dtype == dtype
    exact = torch.softmax(q.double() @ q.double().mT / 8**0.5 + (bias + mask), -1)
    assert distance(weights.double(), exact) <= torch.finfo(dtype).eps
    assert distance(out.double(), (exact @ q.double()).transpose(1, 2)) <= 2 * torch.finfo(dtype).eps


def test_a_mask_of_one_true_is_no_mask_and_of_one_false_is() -> None:
    q, layer = torch.randn(1, 2, 3, 4), torch.nn.Module()
    layer.is_causal = True
    everything, nothing = (torch.tensor(value).expand(1, 1, 3, 3) for value in (True, False))
    plain = polyhead.transformers.attention_forward(torch.nn.Module(), q, q, q, None, is_causal=False)[0]
    assert torch.equal(polyhead.transformers.attention_forward(layer, q, q, q, everything)[0], plain)
    assert not polyhead.transformers.attention_forward(layer, q, q, q, nothing)[0].any()


BLOOM = {"vocab_size": 50, "hidden_size": 32, "n_layer": 1, "n_head": 4}


# Models whose own code reads the mask: routers, position biases, layers that compute only the last queries, attention without AttentionInterface.


def both(model: Any, **inputs: Any) -> list[Any]:
    """Returns the model's results with eager and with polyhead, for the same random seed."""
    results = []
    for implementation in ("eager", "polyhead"):
        model.set_attn_implementation(implementation)
        torch.manual_seed(3)
        results.append(model(**inputs))
    return results


def randomised(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (parameter.size(-1) ** -0.5 if parameter.dim() > 1 else 0.3))
    return model.eval()


@pytest.mark.parametrize("padded", [False, True])
def test_a_router_that_reads_the_mask_equals_eager(padded: bool) -> None:
    config = transformers.NllbMoeConfig(
        vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        num_experts=4, encoder_sparse_step=1, decoder_sparse_step=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.NllbMoeForConditionalGeneration(config).eval()
    ids, mask = torch.randint(4, 99, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[0, 8:] = 1 - int(padded)
    inputs = {"input_ids": ids, "decoder_input_ids": ids} | ({"attention_mask": mask, "decoder_attention_mask": mask} if padded else {})
    gradients = []
    for out in both(model, **inputs):
        model.zero_grad()
        out.logits[mask.bool()].square().sum().backward()
        gradients.append((out.logits.detach()[mask.bool()], model.model.shared.weight.grad.clone()))
    for mine, eager in zip(*gradients):
        assert distance(mine, eager) <= 1e-5 * max(1.0, eager.abs().max().item())


@pytest.mark.parametrize("shared", [False, True])
def test_a_position_bias_that_is_added_to_the_mask_equals_eager(shared: bool) -> None:
    config = transformers.BeitConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8,
        use_relative_position_bias=not shared, use_shared_relative_position_bias=shared,
    )  # fmt: skip
    model = randomised(transformers.BeitModel(config))
    mask = torch.ones(2, 17, dtype=torch.long)
    for last in (17, 12):
        mask[0, last:] = 0
        with torch.no_grad():
            eager, ours = both(model, pixel_values=torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2)), attention_mask=mask)
        assert distance(ours.last_hidden_state, eager.last_hidden_state) <= 1e-5, last


needs_gemma4 = pytest.mark.skipif(not hasattr(transformers, "Gemma4AudioModel"), reason="this version of transformers does not have the family")


@needs_gemma4
@pytest.mark.parametrize("logits_to_keep", [0, 1, 3])
def test_layers_for_the_last_queries_alone_equal_eager(logits_to_keep: int) -> None:
    config = transformers.Gemma4TextConfig(
        vocab_size=50, vocab_size_per_layer_input=50, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, global_head_dim=8, hidden_size_per_layer_input=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2, max_position_embeddings=64,
    )  # fmt: skip
    model, ids = randomised(transformers.Gemma4ForCausalLM(config)), torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        eager, ours = both(model, input_ids=ids, logits_to_keep=logits_to_keep)
    assert distance(ours.logits, eager.logits) <= 1e-4
    texts = []
    for implementation in ("eager", "polyhead"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, cache_implementation="static", disable_compile=True))
    assert torch.equal(*texts)


@needs_gemma4
@pytest.mark.parametrize("padding", [0, 16])
def test_a_part_with_attention_of_its_own_gets_the_masks_of_eager(padding: int) -> None:
    config = transformers.Gemma4AudioConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, attention_chunk_size=4, attention_context_left=4, attention_context_right=1, output_proj_dims=24
    )
    model, mask = randomised(transformers.Gemma4AudioModel(config)), torch.ones(2, 40, dtype=torch.bool)
    mask[0, 40 - padding :] = False
    with torch.no_grad():
        eager, ours = both(model, input_features=torch.randn(2, 40, 128, generator=torch.Generator().manual_seed(2)), attention_mask=mask)
    assert distance(ours.last_hidden_state, eager.last_hidden_state) <= 1e-5


def test_a_family_with_attention_of_its_own_is_refused_when_it_is_built() -> None:
    with pytest.raises(NotImplementedError, match=r"family bloom \(BloomForCausalLM\) computes attention in code of its own.*eager"):
        transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**BLOOM), attn_implementation="polyhead")


@pytest.mark.parametrize("implementation", ["polyhead", {"": "polyhead"}])
def test_an_unsupported_family_is_refused_when_the_implementation_is_changed(implementation: Any) -> None:
    model = transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**BLOOM), attn_implementation="eager")
    with pytest.raises(NotImplementedError, match="bloom"):
        model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("eager")


@pytest.mark.skipif(transformers.__version__ < "5", reason="in this version Bloom makes its mask itself")
def test_an_unsupported_family_is_refused_when_a_mask_is_made() -> None:
    """An implementation set in the config directly avoids the check of set_attn_implementation(). A family that computes attention in its own code is then refused when
    transformers makes its mask."""
    model = transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**BLOOM), attn_implementation="eager")
    model.config._attn_implementation_internal = "polyhead"
    with pytest.raises(NotImplementedError, match="bloom"):
        model(torch.ones(1, 4, dtype=torch.long))


def test_a_table_of_attention_classes_says_why_it_has_no_polyhead() -> None:
    config = transformers.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(NotImplementedError, match="family falcon .*eager"):
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="polyhead")


def test_registering_twice_changes_nothing() -> None:
    polyhead.transformers.register()
    assert transformers.AttentionInterface()["polyhead"] is polyhead.transformers.attention_forward
    method = transformers.PreTrainedModel.set_attn_implementation
    assert method.__wrapped__ and not hasattr(method.__wrapped__, "__wrapped__")


def test_masks_that_are_not_what_they_seem_are_refused() -> None:
    from torch.nn.attention.bias import causal_upper_left

    q = torch.randn(1, 2, 5, 4)
    layer = torch.nn.Module()
    for mask, message in ((causal_upper_left(5, 5), "attention_mask is of type CausalBias"), (torch.zeros(5, 5, device="meta"), "attention_mask is on device meta")):
        with pytest.raises(TypeError, match=message):
            polyhead.transformers.attention_forward(layer, q, q, q, mask)
    with pytest.raises(TypeError, match="key is on device meta"):
        polyhead.transformers.attention_forward(layer, q, q.to("meta"), q, None, is_causal=False)
