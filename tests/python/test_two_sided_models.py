"""Models with two sides against transformers: a tiny random checkpoint of each family, saved by transformers."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy  # noqa: E402
import json  # noqa: E402
import pickle  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import polyhead  # noqa: E402

WORDS = 61
NO_END = {"eos_token_id": None, "pad_token_id": 3, "bos_token_id": None}
T5 = NO_END | {"vocab_size": WORDS, "d_model": 32, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0,
               "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}  # fmt: skip

BART = NO_END | {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40,
                 "decoder_ffn_dim": 36, "max_position_embeddings": 24, "decoder_start_token_id": 2, "forced_eos_token_id": None}  # fmt: skip

# Name: (configuration, its settings). Sources have 17 tokens and targets 13, more than the distances that T5's biases tell apart.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Config", T5),
    "t5, another epsilon": ("T5Config", T5 | {"num_decoder_layers": 2, "layer_norm_epsilon": 1e-2}),
    "t5 v1.1": ("T5Config", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, gated silu": ("T5Config", T5 | {"feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5Config", T5),
    "bart": ("BartConfig", BART),
    "bart, scaled embeddings": ("BartConfig", BART | {"scale_embedding": True, "activation_function": "gelu_new"}),
    "mbart": ("MBartConfig", BART | {"scale_embedding": True}),
    "marian": ("MarianConfig", BART | {"activation_function": "swish", "scale_embedding": True}),
    "marian, two vocabularies": ("MarianConfig", BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 67}),
    "pegasus": ("PegasusConfig", BART | {"activation_function": "relu"}),
}  # fmt: skip


def saved_model(case: str, folder: Path, dtype: Any = torch.float32, **settings: Any) -> Any:
    """A random model of transformers, which is also saved in the folder. No parameter is 0 or 1, which would hide one that is not read."""
    config, own = CASES[case]
    torch.manual_seed(sum(case.encode()))
    model = transformers.AutoModelForSeq2SeqLM.from_config(getattr(transformers, config)(**(own | settings)), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # positions that are a formula, which Marian does not save
            small = "norm" not in name and not name.endswith("bias")
            parameter += (0.05 if small else 0.3) * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer += torch.randn_like(buffer)
    model = model.to(dtype).eval()
    model.save_pretrained(folder)
    return model


def texts(count: int, length: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, WORDS, (count, length))


def close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    theirs = theirs.detach().float().numpy()
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max()))


ALL = ["logits", "memory", "encoder_hidden", "decoder_hidden", "encoder_attentions", "decoder_attentions", "cross_attentions"]


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.SequenceToSequenceModel)
    source, target = texts(2, 17), texts(2, 13, 8)
    # The second source has 11 tokens, the second target 9.
    sources, targets = np.ones((2, 17), bool), np.ones((2, 13), bool)
    sources[1, 11:] = targets[1, 9:] = False
    for masks in ({}, {"attend_source": sources, "attend_target": targets}):
        names = {"attend_source": "attention_mask", "attend_target": "decoder_attention_mask"}
        given = {names[name]: torch.from_numpy(mask).long() for name, mask in masks.items()}
        with torch.no_grad():
            expected = theirs(input_ids=torch.from_numpy(source), decoder_input_ids=torch.from_numpy(target), output_hidden_states=True, output_attentions=True, **given)
        result = ours.run(source, target, outputs=ALL, **masks)
        for text in (0, 1):
            # Rows of padding are nobody's.
            s, t = (sources[text].sum(), targets[text].sum()) if masks else (17, 13)
            close(result.logits[text, :t], expected.logits[text, :t])
            close(result.encoder_hidden[:, text, :s], torch.stack(expected.encoder_hidden_states)[:, text, :s])
            close(result.decoder_hidden[:, text, :t], torch.stack(expected.decoder_hidden_states)[:, text, :t])
            close(result.encoder_attentions[:, text, :, :s], torch.stack(expected.encoder_attentions)[:, text, :, :s])
            close(result.decoder_attentions[:, text, :, :t], torch.stack(expected.decoder_attentions)[:, text, :, :t])
            close(result.cross_attentions[:, text, :, :t], torch.stack(expected.cross_attentions)[:, text, :, :t])
        assert np.array_equal(result.memory, result.encoder_hidden[-1])


@pytest.mark.parametrize("case", CASES)
def test_a_family_answers_as_transformers_does(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    source = texts(1, 11)
    with torch.no_grad():
        expected = theirs.generate(torch.from_numpy(source), max_new_tokens=14, do_sample=False, num_beams=1)[0, 1:].tolist()
    assert polyhead.models.load(tmp_path).generate(source[0], 14) == expected
