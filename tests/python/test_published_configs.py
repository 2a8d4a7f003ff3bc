"""Compares the config.json files of src/models/published_configs_test.cc with transformers: transformers reads the sizes that the C++ test expects, and the defaults of its
configs are those of the published models. Also tests that polyhead opens a config.json that has every key which transformers knows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

import polyhead  # noqa: E402
import test_language_models  # noqa: E402
import test_two_sided_models  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "src/models/published_configs_test.cc").read_text(encoding="utf-8")
PUBLISHED = {name: (numbers, json.loads(text)) for name, numbers, text in re.findall(r'\{"([^"]+)",([^"{}]*?)R"\((.*?)\)"\}', SOURCE, re.DOTALL)}
# Models whose settings are the defaults of transformers' config class.
DEFAULTS = ["gpt2", "Mixtral-8x7B-v0.1", "bert-base-uncased", "distilbert-base-uncased", "electra-small-discriminator", "vit-base-patch16-224", "deit-base-distilled-patch16-224", "t5-small", "mt5-small", "gemma-2-2b"]
# Keys that describe a checkpoint and not its architecture; they may differ from the defaults.
OWN = {"architectures", "transformers_version", "_name_or_path", "id2label", "label2id", "max_position_embeddings", "router_aux_loss_coef", "tie_word_embeddings"}


def test_all_configs_of_the_test_are_found() -> None:
    assert len(PUBLISHED) == SOURCE.count('R"(') - SOURCE.count(')"_json') >= 40


@pytest.mark.parametrize("name", [name for name, (_, config) in PUBLISHED.items() if "model_type" in config])
def test_transformers_reads_a_published_config_with_these_sizes(name: str) -> None:
    numbers, given = PUBLISHED[name]
    config = transformers.CONFIG_MAPPING[given["model_type"]](**given)
    sizes = [int(number) for number in re.findall(r"\d+", numbers)]
    if len(sizes) == 3 and hasattr(config, "vocab_size"):
        assert sizes == [config.hidden_size, config.num_hidden_layers, config.vocab_size]
    if name in DEFAULTS:
        default = transformers.CONFIG_MAPPING[given["model_type"]]().to_dict()
        assert {key: value for key, value in given.items() if key in default and default[key] != value and key not in OWN} == {}


def with_every_key(folder: Path, config: Any) -> None:
    (folder / "config.json").write_text(config.to_json_string(use_diff=False), encoding="utf-8")


@pytest.mark.parametrize("case", ["gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3", "phi3", "gpt_neox", "gpt_oss"])
def test_a_decoder_opens_by_every_key_that_transformers_knows(case: str, tmp_path: Path) -> None:
    names = [name for name in test_language_models.CASES if name.partition(",")[0] == case]
    assert names, f"test_language_models.py has no case of {case}"
    with_every_key(tmp_path, test_language_models.saved_model(names[0], tmp_path).config)
    polyhead.models.load(tmp_path)


@pytest.mark.parametrize("case", list(test_two_sided_models.CASES))
def test_a_model_with_two_sides_opens_by_every_key_that_transformers_knows(case: str, tmp_path: Path) -> None:
    with_every_key(tmp_path, test_two_sided_models.saved_model(case, tmp_path).config)
    polyhead.models.load(tmp_path)
