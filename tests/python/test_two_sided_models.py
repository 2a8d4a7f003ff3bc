"""Compares models with encoder and decoder with transformers, for a tiny random checkpoint of each family that transformers saved."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy  # noqa: E402
import json  # noqa: E402
import pickle  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import polyhead  # noqa: E402
from checkpoint_support import close, saved  # noqa: E402

WORDS = 61
NO_END = {"eos_token_id": None, "pad_token_id": 3, "bos_token_id": None}
T5 = NO_END | {"vocab_size": WORDS, "d_model": 32, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0,
               "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}  # fmt: skip

BART = NO_END | {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40,
                 "decoder_ffn_dim": 36, "max_position_embeddings": 24, "decoder_start_token_id": 2, "forced_eos_token_id": None}  # fmt: skip

# {name: (configuration class, its settings)}. Sources have 17 tokens and targets 13, so some distances share the last bucket of T5's biases.
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
    "blenderbot": ("BlenderbotConfig", BART | {"scale_embedding": True}),
    "pegasus": ("PegasusConfig", BART | {"activation_function": "relu"}),
}  # fmt: skip


def saved_model(case: str, folder: Path, dtype: Any = torch.float32, **settings: Any) -> Any:
    """Makes a random model of transformers and saves it in the folder. No parameter is 0 or 1: with such a value, a parameter that is not read would not be noticed."""
    config, own = CASES[case]
    torch.manual_seed(sum(case.encode()))
    model = transformers.AutoModelForSeq2SeqLM.from_config(getattr(transformers, config)(**(own | settings)), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # Marian's sinusoidal positions are not saved
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


ALL = ["logits", "memory", "encoder_hidden", "decoder_hidden", "encoder_attentions", "decoder_attentions", "cross_attentions"]


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_and_answers_what_transformers_does(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.SequenceToSequenceModel)
    source, target = texts(2, 17), texts(2, 13, 8)
    # The second source has 11 tokens and the second target 9; the rest is padding.
    sources, targets = np.ones((2, 17), bool), np.ones((2, 13), bool)
    sources[1, 11:] = targets[1, 9:] = False
    for masks in ({}, {"attend_source": sources, "attend_target": targets}):
        names = {"attend_source": "attention_mask", "attend_target": "decoder_attention_mask"}
        given = {names[name]: torch.from_numpy(mask).long() for name, mask in masks.items()}
        with torch.no_grad():
            expected = theirs(input_ids=torch.from_numpy(source), decoder_input_ids=torch.from_numpy(target), output_hidden_states=True, output_attentions=True, **given)
        result = ours.run(source, target, outputs=ALL, **masks)
        for text in (0, 1):
            # Rows of padding are not compared.
            s, t = (sources[text].sum(), targets[text].sum()) if masks else (17, 13)
            close(result.logits[text, :t], expected.logits[text, :t])
            close(result.encoder_hidden[:, text, :s], torch.stack(expected.encoder_hidden_states)[:, text, :s])
            close(result.decoder_hidden[:, text, :t], torch.stack(expected.decoder_hidden_states)[:, text, :t])
            close(result.encoder_attentions[:, text, :, :s], torch.stack(expected.encoder_attentions)[:, text, :, :s])
            close(result.decoder_attentions[:, text, :, :t], torch.stack(expected.decoder_attentions)[:, text, :, :t])
            close(result.cross_attentions[:, text, :, :t], torch.stack(expected.cross_attentions)[:, text, :, :t])
        assert np.array_equal(result.memory, result.encoder_hidden[-1])
    source = texts(1, 11)
    # transformers generates without its cache, which has too few layers if the decoder has more layers than the encoder.
    with torch.no_grad():
        expected = theirs.generate(torch.from_numpy(source), max_new_tokens=14, do_sample=False, num_beams=1, use_cache=False)[0, 1:].tolist()
    assert ours.generate(source[0], 14) == expected


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_answers_follow_the_rules_of_generation_config(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    source = texts(1, 11)
    free = polyhead.models.load(tmp_path).generate(source[0], 12)
    rules = {"forced_bos_token_id": 7, "forced_eos_token_id": 9, "suppress_tokens": free[1:3], "begin_suppress_tokens": [free[0]], "bad_words_ids": [[free[3]]], "decoder_start_token_id": 5}
    path = tmp_path / "generation_config.json"
    for names in (["forced_bos_token_id", "forced_eos_token_id"], ["forced_bos_token_id", "begin_suppress_tokens"], ["suppress_tokens", "begin_suppress_tokens"], ["bad_words_ids", "decoder_start_token_id"]):
        chosen = {name: rules[name] for name in names}
        path.write_text(json.dumps({"decoder_start_token_id": 2, "transformers_version": "5.24.0"} | chosen))
        theirs.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
        with torch.no_grad():
            expected = theirs.generate(torch.from_numpy(source), max_new_tokens=12, do_sample=False, num_beams=1, use_cache=False)[0, 1:].tolist()
        assert polyhead.models.load(tmp_path).generate(source[0], 12) == expected != free, names
        prompt = [chosen.get("decoder_start_token_id", 2), 17, 5]
        with torch.no_grad():
            expected = theirs.generate(torch.from_numpy(source), decoder_input_ids=torch.tensor([prompt]), max_new_tokens=6, do_sample=False, num_beams=1, use_cache=False)[0, 3:].tolist()
        assert polyhead.models.load(tmp_path).generate(source[0], 6, prompt=prompt) == expected, names
    path.write_text(json.dumps({"decoder_start_token_id": 2, "num_beams": 1, "repetition_penalty": 1.0}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        greedy = polyhead.models.load(tmp_path).generate(source[0], 12)
    path.write_text(json.dumps({"decoder_start_token_id": 2, "num_beams": 4, "min_length": 0, "repetition_penalty": 1.3, "no_repeat_ngram_size": None}))
    searched = polyhead.models.load(tmp_path)
    with pytest.warns(UserWarning, match=r"SequenceToSequenceModel.generate: each token .* ignores these rules of generation_config.json .*: num_beams = 4, repetition_penalty = 1.3$"):
        assert searched.generate(source[0], 12) == greedy
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        searched.generate(source[0], 2)  # the warning is given only once
    path.write_text(json.dumps({"decoder_start_token_id": 2, "bad_words_ids": [[3, 4]]}))
    with pytest.warns(UserWarning, match="bad_words_ids of several tokens$"):
        polyhead.models.load(tmp_path).generate(source[0], 2)
    path.write_text("{}")
    model = polyhead.models.load(tmp_path)
    with pytest.raises(ValueError, match="neither generation_config.json nor config.json has decoder_start_token_id or bos_token_id; give a prompt"):
        model.generate(source[0], 3)
    assert len(model.generate(source[0], 3, prompt=[2])) == 3


@pytest.mark.parametrize("case", ["t5 v1.1", "bart", "marian"])
def test_an_answer_has_the_bits_of_a_whole_pass(case: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    model = polyhead.models.load(tmp_path)
    source, prompt = texts(1, 11)[0], [2, 17, 5]
    answer = model.generate(source, 9, prompt=prompt)
    logits = model.run(source, prompt + answer).logits
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer  # only the largest logit is compared here; src/models/sequence_to_sequence_model_test.cc compares bits
    assert model.generate(source, 9, prompt=prompt + answer[:4])[:5] == answer[4:]
    draws = [model.generate(source, 9, prompt=prompt, temperature=3.0, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    seen: list[int] = []
    assert model.generate(source, 9, prompt=prompt, on_token=seen.append, cache_dtype="bfloat16") == seen
    for twin in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.config == model.config and repr(twin) == repr(model) and twin.generate(source, 9, prompt=prompt) == answer


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ["t5", "mbart", "marian"])
def test_checkpoints_of_other_dtypes(case: str, dtype: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path, getattr(torch, dtype))
    source, target = texts(2, 17), texts(2, 13, 8)
    with torch.no_grad():
        exact = theirs.to(torch.float64)(input_ids=torch.from_numpy(source), decoder_input_ids=torch.from_numpy(target)).logits
    close(polyhead.models.load(tmp_path).run(source, target).logits, exact, {"bfloat16": 0.05, "float16": 0.006, "float64": 1e-6}[dtype])


def test_output_projections_of_t5(tmp_path: Path) -> None:
    """T5's output projection is the embedding, that of T5 1.1 a separate matrix. The tensors of model.safetensors decide, or tie_word_embeddings in a config.json of
    transformers 4."""
    from safetensors.numpy import load_file, save_file

    theirs = saved_model("t5", tmp_path)
    source, target = texts(1, 9), texts(1, 5, 8)
    own = np.random.default_rng(1).standard_normal((WORDS, 32)).astype(np.float32)
    save_file(load_file(tmp_path / "model.safetensors") | {"lm_head.weight": own}, tmp_path / "model.safetensors")
    with torch.no_grad():
        states = theirs(input_ids=torch.from_numpy(source), decoder_input_ids=torch.from_numpy(target), output_hidden_states=True).decoder_hidden_states[-1]
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("scale_decoder_outputs", None)
    for change, scale in (({"scale_decoder_outputs": True}, 32**-0.5), ({"scale_decoder_outputs": False}, 1), ({"tie_word_embeddings": False}, 1)):
        path.write_text(json.dumps(config | change))
        close(polyhead.models.load(tmp_path).run(source, target).logits, states * scale @ torch.from_numpy(own).T)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from the embedding, and config.json ties them"):
        polyhead.models.load(tmp_path)


def test_shards_copies_of_the_embedding_and_the_bare_model(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    theirs = saved_model("bart", tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    words = tensors["model.shared.weight"]
    files = {
        "copies": tensors | {"lm_head.weight": words, "model.encoder.embed_tokens.weight": words},
        "one side": {name: tensor for name, tensor in tensors.items() if name != "model.shared.weight"} | {"model.decoder.embed_tokens.weight": words},
        "bare": {name.removeprefix("model."): tensor for name, tensor in tensors.items()},
        "another": tensors | {"model.encoder.embed_tokens.weight": words + 1},
    }
    for name, contents in files.items():
        (tmp_path / name).mkdir()
        save_file(contents, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    source, target = texts(1, 9), texts(1, 5, 8)
    logits = [polyhead.models.load(tmp_path / name).run(source, target).logits for name in ("whole", "shards", "copies", "one side", "bare")]
    assert all(np.array_equal(logits[0], other) for other in logits)
    with pytest.raises(ValueError, match="'model.encoder.embed_tokens.weight' differs from the embedding that it shares"):
        polyhead.models.load(tmp_path / "another")


def test_what_would_change_results_is_refused_by_name(tmp_path: Path) -> None:
    for case, changes in {
        "t5": {
            (("model_type", "umt5"),): "model_type is 'umt5', which is not supported: each of its layers has its own relative bias",
            (("model_type", "t6"),): "known models with an encoder and a decoder are t5, mt5, bart, .*; the nearest is",
            (("router", 3),): 'config.json: "router" is the number 3; models of the type t5 are not known to have this key',
            (("is_encoder_decoder", False),): "is_encoder_decoder is false; models of the type t5 have an encoder and a decoder",
            (("is_gated_act", None),): "is_gated_act is null; a value is needed, or no key",
            (("scale_decoder_outputs", None),): "scale_decoder_outputs is null; a value is needed, or no key",
            (("feed_forward_proj", "gated-relu6"), ("dense_act_fn", None), ("is_gated_act", None)): "feed_forward_proj is 'relu6'; gelu, gelu_new",
            (("dense_act_fn", "gelu"),): "dense_act_fn is 'gelu'; feed_forward_proj = 'relu' makes it 'relu'",
            (("relative_attention_num_buckets", 7),): "relative_attention_num_buckets is 7; it must be even and at least 4",
            (("relative_attention_max_distance", 4),): "relative_attention_max_distance is 4; it must be above half of relative_attention_num_buckets = 8",
            (("num_layers", 1),): "'encoder.block.1.*' .* has no place in a model of the type t5",
            (("d_kv", 9),): r"'encoder.block.0.layer.0.SelfAttention.q.weight' is \[40,32\]; config.json makes it \[36,32\]",
            (("num_decoder_layers", 2**40),): r"num_decoder_layers is 1099511627776; it must be in \[1, 65536\]",
        },
        "bart": {
            (("encoder_attention_heads", 5),): "encoder_attention_heads is 5; it must divide d_model = 32",
            (("tie_word_embeddings", False),): "tie_word_embeddings is false; with models of the type bart only true is supported",
            (("model_type", "mbart"),): "has no tensor 'model.encoder.layer_norm.weight', which config.json implies",
            (("forced_bos_token_id", (3, 4)),): "forced_bos_token_id has 2 tokens; one or none is supported",
        },
        "bart": {(("num_hidden_layers", 7),): "num_hidden_layers is 7 and encoder_layers is .; both keys must have the same value"},
        "marian": {(("decoder_vocab_size", 50),): "decoder_vocab_size is 50; with share_encoder_decoder_embeddings it must be vocab_size = 61"},
    }.items():
        saved_model(case, tmp_path / case)
        (tmp_path / case / "generation_config.json").unlink()
        path = tmp_path / case / "config.json"
        config = json.loads(path.read_text())
        for change, message in changes.items():
            path.write_text(json.dumps(config | dict(change)))
            with pytest.raises(ValueError, match=message):
                polyhead.models.load(path.parent)
        path.write_text(json.dumps(config | {"router": 3}))
        assert polyhead.models.load(path.parent, ignored_keys=["router"]).config["model"] == case


def test_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    saved_model("bart", tmp_path)
    model = polyhead.models.load(tmp_path)
    with pytest.raises(ValueError, match=r"id.* 61"):
        model.run([61], [3])
    with pytest.raises(ValueError, match="outputs has 'weights'; logits, memory, encoder_hidden, .* and cross_attentions are known"):
        model.run([3], [3], outputs=["weights"])
    with pytest.raises(ValueError, match="target is missing; only memory, encoder_hidden and encoder_attentions need none"):
        model.run([3])
    assert model.run([3, 4], outputs=["memory"]).memory.shape == (2, 32)
    for outputs in (["memory"], ["encoder_hidden", "encoder_attentions"]):
        with pytest.raises(ValueError, match="attend_target is given without a target"):
            model.run([3], attend_target=np.ones(1, bool), outputs=outputs)
        with pytest.raises(ValueError, match="target is given, but no entry of outputs needs a target; logits, decoder_hidden, decoder_attentions and cross_attentions do"):
            model.run([3], [3], outputs=outputs)
    with pytest.raises(ValueError, match="source is .2,3. and target .1,4.; their leading dimensions must be the same"):
        model.run(texts(2, 3), texts(1, 4))
    with pytest.raises(ValueError, match="the text has 25 tokens; the model has positions for 24"):
        model.run(np.zeros(25, np.int64), [3])
    with pytest.raises(ValueError, match="a prompt of 1 and an answer of up to 25 tokens need 25 positions .the last token needs none.; the model has 24"):
        model.generate([3], 25)
    with pytest.raises(ValueError, match="the source is empty"):
        model.generate([], 6)
    with pytest.raises(ValueError, match="a temperature needs a seed"):
        model.generate([1], 6, temperature=1.0)
    with pytest.raises(ValueError, match="SequenceToSequenceModel.generate: seed is given without a temperature"):
        model.generate([1], 6, seed=1)
    with pytest.raises(ValueError, match=r"SequenceToSequenceModel.generate: stop_tokens has 61; tokens are in \[0, 61\), the vocabulary"):
        model.generate([1], 6, stop_tokens=[61])
    with pytest.raises(TypeError, match="on_token must be a function"):
        model.generate([1], 2, on_token=3)


WHISPER = {"vocab_size": WORDS, "num_mel_bins": 6, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40,
           "decoder_ffn_dim": 36, "max_source_positions": 9, "max_target_positions": 20, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 3, "decoder_start_token_id": 5,
           "begin_suppress_tokens": [7, 8]}  # fmt: skip


def test_whisper_computes_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(9)
    theirs = saved(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER, attn_implementation="eager")), tmp_path)
    ours = polyhead.models.load(tmp_path)
    features = np.random.default_rng(3).standard_normal((2, 6, 18)).astype(np.float32)
    target = texts(2, 13, 8)
    with torch.no_grad():
        expected = theirs(input_features=torch.from_numpy(features), decoder_input_ids=torch.from_numpy(target), output_hidden_states=True, output_attentions=True)
    result = ours.run(features, target, outputs=ALL)
    close(result.logits, expected.logits)
    for name, theirs_of in {"encoder_hidden": expected.encoder_hidden_states, "decoder_hidden": expected.decoder_hidden_states, "encoder_attentions": expected.encoder_attentions,
                            "decoder_attentions": expected.decoder_attentions, "cross_attentions": expected.cross_attentions}.items():  # fmt: skip
        close(getattr(result, name), torch.stack(theirs_of))
    # transformers' generate() for Whisper also cuts the sound and detects the language. Only its greedy step is written here.
    answer: list[int] = []
    for count in range(9):
        with torch.no_grad():
            logits = theirs(input_features=torch.from_numpy(features[:1]), decoder_input_ids=torch.tensor([[5, *answer]])).logits[0, -1]
        if count == 0:
            logits[WHISPER["begin_suppress_tokens"]] = -np.inf
        answer.append(int(logits.argmax()))
    assert ours.generate(features[0], 9) == answer
    assert ours.generate(features[0].astype(np.float64), 5, prompt=[5, *answer[:4]]) == answer[4:]
    with pytest.raises(ValueError, match="models of the type whisper read features of sound, not a text"):
        polyhead.view(tmp_path, "a text")
    for call, message in {
        lambda: ours.run(features[:, :5], target): r"features is float32 \[2,5,18\]; it must be floating \[\*,6,18\]",
        lambda: ours.run(features[..., :16], target): r"it must be floating \[\*,6,18\]",
        lambda: ours.run(features, target, attend_source=np.ones((2, 9), bool)): "attend_keys is given; models of the type whisper read all features, which are padded to 18 frames",
        lambda: ours.generate(features, 3): r"features must be of one source, \[M,F\]",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
