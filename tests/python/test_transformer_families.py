"""Compares attn_implementation="polyhead" with "eager" in tiny models of over 50 families of transformers. sweep_families.py compares every family."""

from __future__ import annotations

import dataclasses
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402

transformers = pytest.importorskip("transformers")
if not dataclasses.is_dataclass(transformers.LlamaConfig):
    pytest.skip("the tiny configurations need transformers 5", allow_module_level=True)
from compare_families import compare, compare_with_parts  # noqa: E402
from effort import QUICK  # noqa: E402
from tiny_families import CONFIG_MAPPING, build  # noqa: E402

import polyhead.transformers  # noqa: E402

polyhead.transformers.register()

# At least one model of each kind, and models whose layers get no mask from transformers: some of these layers must be causal without a mask, others must not.
RIGHT = [
    "aimv2_text_model", "albert", "align_text_model", "bart", "bert", "clap_text_model", "clip", "codegen", "cohere2", "colpali", "deepseek_v3",
    "distilbert", "electra", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gptj", "internvl", "llama", "longt5", "mistral", "modernbert", "nllb-moe",
    "olmo2", "opt", "phi", "qwen2_moe", "qwen2_vl", "qwen3", "roberta", "siglip", "stablelm", "starcoder2", "switch_transformers", "t5",
    "videoprism_text_model", "vit", "wav2vec2", "whisper",
]  # fmt: skip

# Families that polyhead refuses, with a text that the error message must contain.
OWN, SELECTED = "of its own", "selected"
REFUSED = {
    "bigbird_pegasus": OWN, "blip": OWN, "bloom": OWN, "deepseek_v32": SELECTED, "deepseek_v4": "compressed", "falcon": OWN,
    "glm_moe_dsa": SELECTED, "gpt_neo": OWN, "groupvit": OWN, "imagegpt": OWN, "led": OWN, "megatron-bert": OWN, "mpnet": OWN, "mpt": OWN, "mvp": OWN,
    "recurrent_gemma": "padded", "rembert": OWN, "roformer": OWN, "xglm": OWN,
}  # fmt: skip

needs_family = {name: pytest.mark.skipif(name not in CONFIG_MAPPING, reason="this version of transformers does not have the family") for name in [*RIGHT, *REFUSED]}


@pytest.mark.parametrize("family", [pytest.param(name, marks=needs_family[name]) for name in RIGHT])
def test_a_family_equals_eager(family: str) -> None:
    built = build(family)
    assert not isinstance(built, str), built
    caches = ("dynamic", "static")
    result = compare(built, caches=caches[RIGHT.index(family) % 2 :][:1] if QUICK else caches)
    assert (result.verdict, result.reason) == ("right", ""), (result.reason, result.checks)
    assert family not in ("internvl", "qwen2_vl") or result.checks["images"] == "equal", result.checks
    assert result.checks["output"] == result.checks["gradients"] == "equal" and result.checks["maps"] != "missing", result.checks


# Families with an optional part (experts, cross attention, position embeddings, adapters) that reads the mask or has attention. The smallest configuration lacks this
# part. {family: the setting that adds the part}; compare_with_parts() must try this setting.
PARTS = {"beit": "use_relative_position_bias=True", "bert": "add_cross_attention=True", "nllb-moe": "encoder_sparse_step=1", "wav2vec2": "add_adapter=True"}


@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.skipif(name not in CONFIG_MAPPING, reason="this version of transformers does not have the family")) for name in PARTS])
def test_a_family_with_its_parts_equals_eager(family: str) -> None:
    built = build(family)
    assert not isinstance(built, str), built
    result = compare_with_parts(built, {PARTS[family].partition("=")[0], "is_decoder"} if QUICK else ())  # BERT has cross attention only if is_decoder is set
    assert (result.verdict, result.reason) == ("right", ""), (result.reason, result.checks)
    assert any(PARTS[family] in part and "refused" not in part for part in result.parts), result.parts
    assert result.readers == [], result.readers
    assert [check for check in result.checks if check.startswith("padded with")], result.checks


@pytest.mark.parametrize("family", [pytest.param(name, marks=needs_family[name]) for name in REFUSED])
def test_a_family_is_refused_by_its_name(family: str) -> None:
    built = build(family)
    assert not isinstance(built, str), built
    result = compare(built)
    assert result.verdict == "refused" and REFUSED[family] in result.reason and family.split("_")[0] in result.reason, (result.reason, result.checks)
