"""Compares language models with transformers, for tiny random checkpoints of each family and of each kind of rotary scaling that transformers saved."""

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
from checkpoint_support import change_config, close, saved  # noqa: E402

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
GEMMA = GROUPED | {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 5}
EXPERTS = {"num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 5, "moe_intermediate_size": 12}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# {name: (configuration class, its settings)}. Texts have 20 tokens: more than the windows, and more than the original lengths of some rotary scalings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": None, "eos_token_id": None}),
    "gpt2, other scales": ("GPT2Config", {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 24, "bos_token_id": None, "eos_token_id": None,
                                          "activation_function": "relu", "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}),  # fmt: skip
    "llama": ("LlamaConfig", GROUPED),
    "llama, biases": ("LlamaConfig", GROUPED | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10, "rms_norm_eps": 1e-3}),
    "llama, linear": ("LlamaConfig", GROUPED | rope(rope_type="linear", factor=3.0)),
    "llama, llama3": ("LlamaConfig", GROUPED | rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "llama, yarn": ("LlamaConfig", GROUPED | rope(**YARN)),
    "llama, yarn of DeepSeek": ("LlamaConfig", GROUPED | rope(**YARN, mscale=0.7, mscale_all_dim=0.4, beta_fast=16.0, beta_slow=2.0, truncate=False)),
    "llama, yarn, mscale alone": ("LlamaConfig", GROUPED | rope(**YARN, mscale=0.7)),
    "llama, yarn, mscale of 0": ("LlamaConfig", GROUPED | rope(**YARN, mscale=0.0, mscale_all_dim=0.7)),
    "llama, yarn, mscale and attention_factor": ("LlamaConfig", GROUPED | rope(**YARN, mscale=0.7, mscale_all_dim=0.4, attention_factor=1.3)),
    "llama, dynamic, short": ("LlamaConfig", GROUPED | rope(rope_type="dynamic", factor=4.0)),
    "llama, dynamic, long": ("LlamaConfig", GROUPED | {"max_position_embeddings": 12} | rope(rope_type="dynamic", factor=4.0)),
    "llama, longrope, short": ("LlamaConfig", GROUPED | rope(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[2.0, 3.0, 5.0, 8.0], original_max_position_embeddings=32)),
    "llama, longrope, long": ("LlamaConfig", GROUPED | rope(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[2.0, 3.0, 5.0, 8.0], original_max_position_embeddings=8, factor=4.0)),
    "llama, proportional": ("LlamaConfig", GROUPED | rope(rope_type="proportional", partial_rotary_factor=0.5, factor=2.0)),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 6, "head_dim": 12}),
    "mistral without a window": ("MistralConfig", GROUPED | {"sliding_window": None}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2 with windows": ("Qwen2Config", GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", GROUPED | {"head_dim": 12}),
    "gemma": ("GemmaConfig", GROUPED | {"head_dim": 12}),
    "gemma2": ("Gemma2Config", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3, linear": ("Gemma3TextConfig", GEMMA | {"num_hidden_layers": 6, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}}),  # fmt: skip
    "phi3": ("Phi3Config", GROUPED | {"sliding_window": 7}),
    "phi3, part of the features": ("Phi3Config", GROUPED | rope(rope_type="default", partial_rotary_factor=0.5)),
    "phi3, longrope": ("Phi3Config", GROUPED | {"original_max_position_embeddings": 16} | rope(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[2.0, 3.0, 5.0, 8.0], partial_rotary_factor=1.0)),
    "mixtral": ("MixtralConfig", GROUPED | EXPERTS | {"num_local_experts": 5}),
    "mixtral with a window": ("MixtralConfig", GROUPED | EXPERTS | {"num_local_experts": 5, "sliding_window": 6, "tie_word_embeddings": True}),
    "qwen2_moe": ("Qwen2MoeConfig", GROUPED | EXPERTS | QWEN_EXPERTS | {"shared_expert_intermediate_size": 20, "decoder_sparse_step": 2}),
    "qwen2_moe without biases": ("Qwen2MoeConfig", GROUPED | EXPERTS | QWEN_EXPERTS | {"shared_expert_intermediate_size": 9, "qkv_bias": False, "norm_topk_prob": True}),
    "qwen3_moe": ("Qwen3MoeConfig", GROUPED | EXPERTS | QWEN_EXPERTS | {"head_dim": 12, "mlp_only_layers": [1]}),
    "qwen3_moe, normalised": ("Qwen3MoeConfig", GROUPED | EXPERTS | QWEN_EXPERTS | {"head_dim": 8, "norm_topk_prob": True}),
    "gpt_oss": ("GptOssConfig", GROUPED | EXPERTS | {"num_local_experts": 5, "head_dim": 12, "sliding_window": 6, "swiglu_limit": 0.2}),
    "gpt_oss, all experts": ("GptOssConfig", GROUPED | {"num_experts_per_tok": 4, "num_local_experts": 4, "head_dim": 8, "sliding_window": 6, "swiglu_limit": 0.2}),
    "gpt_oss, another slope": ("GptOssConfig", GROUPED | EXPERTS | {"num_local_experts": 3, "head_dim": 8, "sliding_window": 4, "swiglu_alpha": 3.0} | rope(rope_type="default")),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "gpt_neox, one after the other": ("GPTNeoXConfig", SIZES | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"} | rope(rope_type="default", partial_rotary_factor=1.0)),
}  # fmt: skip


def saved_model(case: str, folder: Path, dtype: Any = torch.float32, **settings: Any) -> Any:
    """Makes a random model of transformers and saves it in the folder."""
    config, own = CASES[case]
    torch.manual_seed(sum(case.encode()))
    made = getattr(transformers, config)(**own, **settings)
    made._experts_implementation = "eager"  # other implementations of experts refuse float64 and float16
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    return saved(model, folder, dtype, lambda name: 0.1 if "norm" in name or "ln_" in name or name.endswith(("bias", "sinks")) else 0.05)


def texts(count: int = 2, length: int = 20) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 61, (count, length))


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_and_answers_what_transformers_does(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.LanguageModel)
    ids = texts()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True, output_attentions=True)
    result = ours.run(ids, outputs=["logits", "hidden", "all_hidden", "attentions"])
    close(result.logits, expected.logits)
    for layer, hidden in enumerate(expected.hidden_states):
        close(result.all_hidden[layer], hidden)
    assert np.array_equal(result.hidden, result.all_hidden[-1])
    assert len(result.attentions) == len(expected.attentions)
    for layer, attention in enumerate(expected.attentions):
        close(result.attentions[layer], attention)
    prompt = texts(1, 9)
    # transformers generates without its cache: with "dynamic" scaling, a new token changes the rotary angles of all tokens, but cached keys would keep their old angles.
    with torch.no_grad():
        expected = theirs.generate(torch.from_numpy(prompt), max_new_tokens=16, do_sample=False, use_cache=False)[0, 9:].tolist()
    assert ours.generate(prompt[0], 16) == expected


@pytest.mark.parametrize("case", ["gpt2", "llama", "gemma2", "gemma3", "gpt_neox", "gpt_oss"])
def test_padding_is_not_read(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    ids, attend = texts(), np.ones((2, 20), bool)
    attend[1, 13:] = False
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(attend.astype(np.int64)), output_attentions=True)
    result = ours.run(ids, attend_keys=attend, outputs=["logits", "attentions"])
    close(result.logits[0], expected.logits[0])
    close(result.logits[1, :13], expected.logits[1, :13])
    close(result.attentions[:, 1, :, :13], torch.stack(expected.attentions)[:, 1, :, :13])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ["gpt2", "llama", "qwen3", "gemma3", "phi3", "gpt_neox", "gpt_oss, all experts"])  # if only some experts are chosen, rounding may change the choice
def test_checkpoints_of_other_dtypes(case: str, dtype: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path, getattr(torch, dtype))
    ids = texts()
    with torch.no_grad():
        exact = theirs.to(torch.float64)(torch.from_numpy(ids)).logits
    # The tolerance is the error of rounding each of about 30 intermediate tensors.
    close(polyhead.models.load(tmp_path).run(ids).logits, exact, {"bfloat16": 0.03, "float16": 0.004, "float64": 1e-6}[dtype])


def test_shards_and_the_bare_model(tmp_path: Path) -> None:
    theirs = saved_model("llama, biases", tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    theirs.model.save_pretrained(tmp_path / "bare")  # in this file names lack the prefix "model.", and the output is tied
    (tmp_path / "bare" / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    logits = [polyhead.models.load(tmp_path / name).run(texts()).logits for name in ("whole", "shards", "bare")]
    assert np.array_equal(logits[0], logits[1]) and np.array_equal(logits[0], logits[2])


# Settings of config.json as transformers 4 wrote them.
OLD: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, llama3": ("llama, llama3", {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
    "llama, linear": ("llama, linear", {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    "gemma3": ("gemma3", {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "rope_scaling": None}),
    "phi3": ("phi3, longrope", {"rope_theta": 10000.0, "rope_scaling": {"type": "su", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 5.0, 8.0]}}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 10000}),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_configurations_of_transformers_4(name: str, tmp_path: Path) -> None:
    case, keys = OLD[name]
    saved_model(case, tmp_path)
    expected = polyhead.models.load(tmp_path).run(texts()).logits
    change_config(tmp_path, "rope_parameters", **keys, torch_dtype="float32", use_cache=True)
    assert np.array_equal(polyhead.models.load(tmp_path).run(texts()).logits, expected)


def test_a_truncate_of_null_is_false(tmp_path: Path) -> None:
    theirs = saved_model("llama, yarn of DeepSeek", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["truncate"] = None
    path.write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(texts())).logits
    close(polyhead.models.load(tmp_path).run(texts()).logits, expected)


def test_what_would_change_results_is_refused_by_name(tmp_path: Path) -> None:
    saved_model("llama", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for change, message in {
        (("model_type", "lama"),): "model_type is 'lama'; known encoders are bert, .*; known decoders are gpt2, llama, .*; the nearest is 'llama'",
        (("model_type", "dbrx"),): "model_type is 'dbrx'; known encoders are",
        (("router", 3),): 'config.json: "router" is the number 3; models of the type llama are not known to have this key',
        (("quantization_config", "{}"),): "quantization_config",
        (("use_sliding_window", True),): "use_sliding_window is true; with models of the type llama only false is supported",
        (("hidden_act", "gelu_fast"),): "hidden_act is 'gelu_fast'; gelu, gelu_new",
        (("rope_parameters", (("rope_type", "mrope"),)),): "rope_parameters.rope_type is 'mrope'; default, linear",
        (("rope_parameters", (("rope_type", "linear"), ("factor", 2.0), ("beta_fast", 3.0))),): "rope_parameters has \"beta_fast\", which rope_type 'linear' does not read; it reads factor",
        (("rope_parameters", (("rope_type", "linear"),)),): "rope_parameters.factor is missing",
        (("num_key_value_heads", 3),): "num_key_value_heads is 3; it must divide num_attention_heads = 4",
        (("attention_bias", True),): "has no tensor 'model.layers.0.self_attn.q_proj.bias', which config.json implies",
        (("num_hidden_layers", 2),): "'model.layers.2.*' .* has no place in a model of the type llama",
        (("num_hidden_layers", 2**40),): r"num_hidden_layers is 1099511627776; it must be in \[1, 65536\]",
        (("vocab_size", 2**29),): r"'model.embed_tokens.weight' is \[61,32\]; config.json makes it \[536870912,32\]",
        (("tie_word_embeddings", True),): "'lm_head.weight' differs from the embedding",
    }.items():
        path.write_text(json.dumps(config | {key: dict(value) if isinstance(value, tuple) else value for key, value in change}))
        with pytest.raises(ValueError, match=message):
            polyhead.models.load(tmp_path)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("gpt_neox", {"rope_theta": 500.0}, r"rope_theta is 500 and rotary_emb_base \(by default\) 10000; models of the type gpt_neox need the same value in both"),
        ("gpt_neox", {"rope_theta": 500.0, "rotary_emb_base": 600}, "rope_theta is 500 and rotary_emb_base 600"),
        ("gpt_neox", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0.5 and rotary_pct \(by default\) 0.25"),
        ("gemma3", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping is 5, but transformers ignores it in models of the type gemma3_text; only null is supported"),
    ],
)
def test_keys_that_transformers_does_not_read_are_refused_if_they_ask_for_another_result(case: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    if case == "gpt_neox":
        del config["rope_parameters"]
        path.write_text(json.dumps(config | {"rope_theta": 10000, "partial_rotary_factor": 0.25}))  # as transformers 4.57 writes them
        polyhead.models.load(tmp_path)
    path.write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        polyhead.models.load(tmp_path)


def test_mixtures_of_experts_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    def refused(case: str, message: str, remove: tuple[str, ...] = (), **changes: Any) -> None:
        folder = tmp_path / case
        if not folder.exists():
            saved_model(case, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "changed").mkdir(exist_ok=True)
        (folder / "changed" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        (folder / "changed" / "config.json").write_text(json.dumps({key: value for key, value in (config | changes).items() if key not in remove}))
        with pytest.raises(ValueError, match=message):
            polyhead.models.load(folder / "changed")

    convert = r"the weights are MXFP4, which polyhead does not read\. This line converts them: python -c .*Mxfp4Config\(dequantize=True\)"
    refused("gpt_oss", convert, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    refused("gpt_oss", '"quantization_config" is an object', quantization_config={"quant_method": "fp8"})
    refused("gpt_oss", "rope_parameters is missing, and so is rope_scaling; models of the type gpt_oss need one of them", remove=("rope_parameters",))
    refused("gpt_oss", "hidden_act is not 'silu'", hidden_act="gelu")
    refused("gpt_oss", r"'model.layers.0.mlp.router.weight' is \[5,32\]; config.json makes it \[6,32\]", num_local_experts=6)
    refused("mixtral", "num_experts_per_tok is 6; it may be at most num_local_experts = 5", num_experts_per_tok=6)
    refused("mixtral", "num_experts_per_tok is missing", remove=("num_experts_per_tok",))
    refused("mixtral", r"'model.layers.0.block_sparse_moe.gate.weight' is \[5,32\]; config.json makes it \[4,32\]", num_local_experts=4)
    refused("qwen3_moe", "use_sliding_window is true; with models of the type qwen3_moe only false is supported", use_sliding_window=True)
    refused("qwen3_moe", "num_local_experts is 5 and num_experts is 4; both keys must have the same value", num_experts=4)
    refused("qwen3_moe", r"mlp_only_layers has the number 3; layers are integers in \[0, 3\)", mlp_only_layers=[3])
    refused("qwen3_moe", "has no tensor 'model.layers.1.mlp.gate.weight'", mlp_only_layers=[])
    folder = tmp_path / "qwen3_moe"
    config = json.loads((folder / "config.json").read_text())
    expected = polyhead.models.load(folder).run(texts()).logits
    (folder / "config.json").write_text(json.dumps({("num_experts" if key == "num_local_experts" else key): value for key, value in config.items()}))
    assert np.array_equal(polyhead.models.load(folder).run(texts()).logits, expected)


def test_answers_end_and_are_drawn_as_asked(tmp_path: Path) -> None:
    saved_model("llama", tmp_path)
    model = polyhead.models.load(tmp_path)
    prompt = texts(1, 5)[0]
    whole = model.generate(prompt, 12)
    assert len(whole) == 12
    seen: list[int] = []
    assert model.generate(prompt, 12, on_token=seen.append) == seen == whole
    assert model.generate(prompt, 12, on_token=lambda token: len(seen) > 100) == whole[:1]
    for twin in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.config == model.config and repr(twin) == repr(model) and twin.generate(prompt, 12) == whole
    first = next(i for i, token in enumerate(whole) if token not in whole[:i] and i > 2) if len(set(whole)) > 3 else 0
    assert model.generate(prompt, 12, stop_tokens=[whole[first]]) == whole[: first + 1]
    change_config(tmp_path, eos_token_id=[60, whole[first]])
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    ending = polyhead.models.load(tmp_path)
    assert ending.generate(prompt, 12) == whole[: first + 1] and ending.generate(prompt, 12, ignore_end=True) == whole
    draws = {seed: model.generate(prompt, 12, temperature=3.0, seed=seed) for seed in (1, 2)}
    assert draws[1] != draws[2] and draws[1] == model.generate(prompt, 12, temperature=3.0, seed=1)
    assert model.generate(prompt, 12, temperature=3.0, top_k=1, seed=1) == whole
    for dtype in ("bfloat16", "int8"):
        assert len(model.generate(prompt, 12, cache_dtype=dtype)) == 12
    with pytest.raises(ZeroDivisionError):
        model.generate(prompt, 12, on_token=lambda token: 1 / 0)
    assert repr(model).startswith("LanguageModel(model='llama', layers=3, heads=4, kv_heads=2")
    assert model.parameters["stack.layers.0.attention.q.weight"].shape == (32, 32)


def test_answers_follow_the_rules_of_generation_config(tmp_path: Path) -> None:
    theirs = saved_model("llama", tmp_path)
    prompt = texts(1, 5)
    free = polyhead.models.load(tmp_path).generate(prompt[0], 12)
    rules: dict[str, Any] = {"suppress_tokens": free[1:3], "begin_suppress_tokens": [free[0]], "bad_words_ids": [[free[3]], [9]], "forced_eos_token_id": 9, "forced_bos_token_id": 7, "eos_token_id": 9}
    for names in (["suppress_tokens"], ["begin_suppress_tokens", "forced_bos_token_id"], ["bad_words_ids"], ["bad_words_ids", "eos_token_id"], ["forced_eos_token_id"]):
        (tmp_path / "generation_config.json").write_text(json.dumps({"transformers_version": "5.24.0"} | {name: rules[name] for name in names}))
        theirs.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
        ours = polyhead.models.load(tmp_path)
        for ids in (prompt, prompt[:, :1]):  # forced_bos_token_id forces the token after a prompt of one token
            with torch.no_grad():
                expected = theirs.generate(torch.from_numpy(ids), max_new_tokens=12, do_sample=False, use_cache=False)[0, ids.shape[1] :].tolist()
            assert ours.generate(ids[0], 12) == expected, names
        assert ours.generate(prompt[0], 12) != free, names


OTHER_RULES: dict[str, Any] = {
    "sequence_bias": [[[3], 1.5]], "exponential_decay_length_penalty": [3, 1.1], "force_words_ids": [[3]], "stop_strings": ["a"], "watermarking_config": {"bias": 2.0}, "dola_layers": "high", "max_time": 1.5,
    "constraints": [3],
}  # fmt: skip


@pytest.mark.parametrize("name", [*OTHER_RULES, "bad_words_ids"])
def test_rules_that_are_not_followed_are_named(name: str, tmp_path: Path) -> None:
    saved_model("llama", tmp_path)
    prompt = texts(1, 5)[0]
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 1, name: OTHER_RULES.get(name, [[3, 4]])}))
    with pytest.warns(UserWarning, match=f"ignores these rules of generation_config.json .*: {name}{'' if name in OTHER_RULES else ' of several tokens'}$"):
        polyhead.models.load(tmp_path).generate(prompt, 2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"bad_words_ids": [3]}))
    with pytest.raises(ValueError, match="generation_config.json: bad_words_ids has the number 3; lists of tokens are needed"):
        polyhead.models.load(tmp_path)


def test_options_of_answers_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    saved_model("llama", tmp_path)
    model = polyhead.models.load(tmp_path)
    with pytest.raises(ValueError, match="LanguageModel.generate: seed is given without a temperature; the likeliest token needs no seed"):
        model.generate([3], 2, seed=1)
    for wrong in (10**6, -3, 61):
        with pytest.raises(ValueError, match=rf"LanguageModel.generate: stop_tokens has {wrong}; tokens are in \[0, 61\), the vocabulary"):
            model.generate([3], 2, stop_tokens=[1, wrong])
    assert model.generate([3], 4, ignore_end=True) == model.generate([3], 4)  # this model has no end tokens, so there is none to ignore


def test_keys_can_be_ignored(tmp_path: Path) -> None:
    saved_model("llama", tmp_path)
    logits = polyhead.models.load(tmp_path).run([3, 1]).logits
    change_config(tmp_path, router=3)
    with pytest.raises(ValueError, match=r"LanguageLoadOptions::ignored_keys \(in Python ignored_keys=\) skips keys that do not"):
        polyhead.models.load(tmp_path, ignored_keys=["routers"])
    model = polyhead.models.load(tmp_path, ignored_keys=iter(["router"]))
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(twin.run([3, 1]).logits, logits)
    for wrong in ("router", 3, None, [3]):
        with pytest.raises(TypeError, match="ignored_keys"):
            polyhead.models.load(tmp_path, ignored_keys=wrong)
    with pytest.raises(ValueError, match="ignored_keys is given; 'sentiment' is no language model"):
        polyhead.models.load("sentiment", ignored_keys=["router"])


def test_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    saved_model("gpt2", tmp_path)
    model = polyhead.models.load(tmp_path)
    with pytest.raises(ValueError, match=r"id.* 61"):
        model.run([3, 61])
    with pytest.raises(ValueError, match="attend_keys is int64; it must be bool$"):
        model.run([3, 4], attend_keys=np.ones(2, np.int64))
    with pytest.raises(ValueError, match="outputs has 'weights'; logits, hidden"):
        model.run([3], outputs=["weights"])
    with pytest.raises(ValueError, match="the text has 65 tokens; the model has positions for 64"):
        model.run(np.zeros(65, np.int64))
    with pytest.raises(ValueError, match="a prompt of 60 and an answer of up to 6 tokens need 65 positions .the last token needs none.; the model has 64"):
        model.generate([0] * 60, 6)
    with pytest.raises(ValueError, match="the prompt is empty"):
        model.generate([], 6)
    with pytest.raises(ValueError, match="a temperature needs a seed"):
        model.generate([1], 6, temperature=1.0)
    with pytest.raises(ValueError, match="top_k or top_p is given without a temperature"):
        model.generate([1], 6, top_k=3)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        model.generate([1], 0)
    with pytest.raises(TypeError, match="on_token must be a function"):
        model.generate([1], 2, on_token=3)
