"""attn_implementation="polyhead" against "eager" in whole models of transformers."""

from __future__ import annotations

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
    # Of the words: what comes out at padding is used by nobody, and twenty times as sensitive to rounding (eager itself is 2e-5 from float64 there).
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
    "gpt2": lambda: transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoders_equal_eager(name: str, padded: bool) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(DECODERS[name](), attn_implementation="eager").eval()
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0  # on the left, as for generation: its first queries have no key at all
    results = []
    for implementation in ("eager", "polyhead"):
        model.set_attn_implementation(implementation)
        with torch.inference_mode():
            results.append(model(ids, attention_mask=mask, output_attentions=True))
    eager, ours = results
    kept = mask.bool()
    assert distance(ours.logits[kept], eager.logits[kept]) <= 1e-5
    assert ours.logits.isfinite().all()
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


def test_what_it_cannot_do_is_an_error() -> None:
    q = torch.zeros(1, 2, 3, 4)
    for name in ("s_aux", "cache", "head_mask"):
        with pytest.raises(NotImplementedError, match="eager"):
            polyhead.transformers.attention_forward(torch.nn.Module(), q, q, q, None, **{name: object()})


def test_registering_twice_changes_nothing() -> None:
    polyhead.transformers.register()
    assert transformers.AttentionInterface()["polyhead"] is polyhead.transformers.attention_forward
