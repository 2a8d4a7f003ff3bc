"""Compares encoders with transformers, for a tiny random checkpoint of each family that transformers saved, with and without padding and segments."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy  # noqa: E402
import pickle  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import polyhead  # noqa: E402
from checkpoint_support import change_config, close, saved  # noqa: E402

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
ROBERTA = SIZES | {"pad_token_id": 1, "type_vocab_size": 1}
ESM = SIZES | {"pad_token_id": 1, "mask_token_id": 5, "position_embedding_type": "rotary"}
MODERN = SIZES | {"pad_token_id": 1, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2, "local_attention": 6}

# {name: (class of transformers, its settings)}. Texts have 20 tokens, more than the windows of local attention.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SIZES),
    "bert, relu": ("Bert", SIZES | {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 3}),
    "roberta": ("Roberta", ROBERTA),
    "roberta, segments": ("Roberta", SIZES | {"pad_token_id": 4, "type_vocab_size": 2}),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
    "distilbert": ("DistilBert", {"vocab_size": 61, "dim": 32, "hidden_dim": 40, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64}),
    "distilbert, sinusoidal": ("DistilBert", {"vocab_size": 61, "dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "sinusoidal_pos_embds": True, "activation": "relu"}),
    "electra": ("Electra", SIZES | {"embedding_size": 12}),
    "electra of one width": ("Electra", SIZES | {"embedding_size": 32}),
    "albert": ("Albert", SIZES | {"embedding_size": 12}),
    "albert of one width": ("Albert", SIZES | {"embedding_size": 32, "hidden_act": "gelu"}),
    "albert, groups": ("Albert", SIZES | {"embedding_size": 12, "num_hidden_layers": 5, "num_hidden_groups": 2}),
    "albert, a group each": ("Albert", SIZES | {"embedding_size": 12, "num_hidden_groups": 3}),
    "albert, inner groups": ("Albert", SIZES | {"embedding_size": 12, "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2}),
    "mpnet": ("MPNet", SIZES | {"pad_token_id": 1}),
    "esm": ("Esm", ESM | {"token_dropout": True}),
    "esm, norm of the embeddings": ("Esm", ESM | {"emb_layer_norm_before": True, "rope_theta": 100.0}),
    "esm, learned positions": ("Esm", ESM | {"position_embedding_type": "absolute", "token_dropout": True, "emb_layer_norm_before": True}),
    "modernbert": ("ModernBert", MODERN | {"num_hidden_layers": 4}),
    "modernbert, biases": ("ModernBert", MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "hidden_activation": "gelu_pytorch_tanh",
                                                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                                  "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "modernbert without windows": ("ModernBert", MODERN | {"layer_types": ["full_attention"] * 3}),
}  # fmt: skip
WITH_SEGMENTS = ["bert", "bert, relu", "roberta, segments", "electra", "albert"]
FAMILIES = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert", "mpnet", "esm", "modernbert"]


def saved_model(case: str, folder: Path, head: str = "Model", dtype: Any = torch.float32, **settings: Any) -> Any:
    """Makes a random model of transformers and saves it in the folder."""
    name, own = CASES[case]
    torch.manual_seed(sum(case.encode()))
    config = getattr(transformers, f"{name}Config")(**own | settings)
    config._attn_implementation = "eager"
    return saved(getattr(transformers, f"{name}{head}")(config), folder, dtype)


def texts(count: int = 2, length: int = 20) -> np.ndarray:
    return np.random.default_rng(7).integers(6, 61, (count, length))


def padded(padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and the mask of three texts of 20, 13 and 6 tokens."""
    ids, attend = texts(3), np.ones((3, 20), bool)
    for row, length in ((1, 13), (2, 6)):
        ids[row, length:], attend[row, length:] = padding, False
    return ids, attend


def compare(theirs: Any, ours: Any, ids: np.ndarray, tolerance: float = 1e-4, attend: np.ndarray | None = None, segments: np.ndarray | None = None) -> None:
    given = {} if attend is None else {"attention_mask": torch.from_numpy(attend).long()}
    if segments is not None:
        given["token_type_ids"] = torch.from_numpy(segments)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True, output_attentions=True, **given)
    result = ours.run(ids, attend_keys=attend, segments=segments, outputs=["hidden", "all_hidden", "attentions"])
    # Rows of padding are not compared. A padding token whose window has no text attends to no key, and both implementations give arbitrary numbers.
    kept = np.ones(ids.shape, bool) if attend is None else attend
    close(result.hidden[kept], expected.last_hidden_state[torch.from_numpy(kept)], tolerance)
    assert len(result.all_hidden) == len(expected.hidden_states)
    for layer, hidden in enumerate(expected.hidden_states):
        close(result.all_hidden[layer][kept], hidden[torch.from_numpy(kept)], tolerance)
    assert len(result.attentions) == len(expected.attentions)
    for layer, attention in enumerate(expected.attentions):
        close(np.swapaxes(result.attentions[layer], 1, 2)[kept], attention.transpose(1, 2)[torch.from_numpy(kept)], tolerance)


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_does_and_reads_no_padding(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.TextEncoder) and ours.config["model"] == theirs.config.model_type
    compare(theirs, ours, texts())
    ids, attend = padded(theirs.config.pad_token_id if theirs.config.pad_token_id is not None else 0)
    compare(theirs, ours, ids, attend=attend)
    # Padding at the start, with the id of another token: only the mask says which tokens are padding.
    ids[1, :5], attend[1, :5] = 9, False
    compare(theirs, ours, ids, attend=attend)


@pytest.mark.parametrize("case", WITH_SEGMENTS)
def test_segments_are_added(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    segments = np.random.default_rng(3).integers(0, 2, (2, 20))
    compare(theirs, polyhead.models.load(tmp_path), texts(), segments=segments)


@pytest.mark.parametrize("case", ["roberta", "roberta, segments", "camembert", "mpnet", "esm, learned positions"])
def test_positions_count_the_tokens_that_are_not_padding(case: str, tmp_path: Path) -> None:
    """transformers counts tokens that are not the padding token, even if there is no mask."""
    theirs = saved_model(case, tmp_path)
    ids = texts()
    ids[0, 3:6] = ids[1, 11] = theirs.config.pad_token_id
    compare(theirs, polyhead.models.load(tmp_path), ids)


def test_mask_tokens_of_esm_are_zero_and_scale_the_others(tmp_path: Path) -> None:
    theirs = saved_model("esm", tmp_path)
    ours = polyhead.models.load(tmp_path)
    ids, attend = padded(1)
    ids[0, [2, 3, 17]] = ids[1, 4] = ids[2, :5] = 5
    compare(theirs, ours, ids, attend=attend)
    compare(theirs, ours, ids[:1])
    ids[2, :6] = 5
    with pytest.raises(ValueError, match="a text of 6 tokens has 6 mask tokens"):
        ours.run(ids, attend_keys=attend)


def test_esm_reads_the_frequencies_of_the_file(tmp_path: Path) -> None:
    """Published files hold the rotary frequencies, rounded to float16. Files of transformers 4 hold the frequencies for each layer; transformers 5.24 writes "*" for the layer."""
    theirs = saved_model("esm", tmp_path)
    theirs.rotary_embeddings.inv_freq.copy_(theirs.rotary_embeddings.inv_freq * 1.05)
    path = tmp_path / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("inv_freq")}
    for name in ("rotary_embeddings.inv_freq", "encoder.layer.0.attention.self.rotary_embeddings.inv_freq", "encoder.layer.*.attention.self.rotary_embeddings.inv_freq"):
        safetensors_torch.save_file(tensors | {name: theirs.rotary_embeddings.inv_freq}, path)
        compare(theirs, polyhead.models.load(tmp_path), texts())
    for wrong, message in ((torch.ones(3), r"float32 \[3\]; it must be floating \[4\]"), (torch.tensor([1.0, 0.1, -1.0, 0.01]), "has the value -1"), (torch.ones(4, dtype=torch.int64), "is int64")):
        safetensors_torch.save_file(tensors | {"rotary_embeddings.inv_freq": wrong}, path)
        with pytest.raises(ValueError, match=message):
            polyhead.models.load(tmp_path)


def test_a_model_of_esm_that_transformers_loads_and_saves_keeps_its_frequencies(tmp_path: Path) -> None:
    saved_model("esm", tmp_path)
    change_config(tmp_path, rope_theta=500.0)  # transformers reads the frequencies of the file, if it has them
    theirs = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    compare(theirs, polyhead.models.load(tmp_path), texts())


def test_esm_refuses_null_as_the_kind_of_positions(tmp_path: Path) -> None:
    """With null, transformers would add no positions at all. polyhead has no such encoder."""
    saved_model("esm", tmp_path)
    change_config(tmp_path, position_embedding_type=None)
    with pytest.raises(ValueError, match="position_embedding_type is null; a value is needed, or no key"):
        polyhead.models.load(tmp_path)


@pytest.mark.parametrize("case", FAMILIES)
def test_bfloat16_is_as_close_as_the_type(case: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path, dtype=torch.bfloat16)
    theirs = getattr(transformers, f"{CASES[case][0]}Model").from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    ours = polyhead.models.load(tmp_path)
    result = ours.run(texts(), outputs=["hidden", "attentions"])
    assert result.hidden.dtype == np.float32
    with torch.no_grad():
        expected = theirs(torch.from_numpy(texts()), output_attentions=True)
    close(result.hidden, expected.last_hidden_state, 0.06)
    for layer, attention in enumerate(expected.attentions):
        close(result.attentions[layer], attention, 0.06)


HEADS = [("bert", "ForMaskedLM"), ("bert", "ForPreTraining"), ("bert", "ForSequenceClassification"), ("roberta", "ForMaskedLM"), ("roberta", "ForSequenceClassification"),
         ("xlm-roberta", "ForTokenClassification"), ("camembert", "ForMaskedLM"), ("distilbert", "ForMaskedLM"), ("distilbert", "ForSequenceClassification"), ("electra", "ForPreTraining"),
         ("electra", "ForMaskedLM"), ("albert", "ForMaskedLM"), ("albert", "ForSequenceClassification"), ("mpnet", "ForMaskedLM"), ("esm", "ForMaskedLM"), ("esm", "ForTokenClassification"),
         ("modernbert", "ForMaskedLM"), ("modernbert", "ForSequenceClassification")]  # fmt: skip


@pytest.mark.parametrize(("case", "head"), HEADS)
def test_the_encoder_of_a_model_with_a_head_opens(case: str, head: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path, head)
    compare(theirs.base_model, polyhead.models.load(tmp_path), texts())


# {name: (case, keys of config.json for which tensors of the file have no place, the first of these tensors)}
WITHOUT_PLACE: dict[str, tuple[str, dict[str, Any], str]] = {
    "fewer layers": ("bert", {"num_hidden_layers": 2}, "encoder.layer.2."),
    "no biases of the feed-forward network": ("modernbert, biases", {"mlp_bias": False}, "layers.0.mlp.Wi.bias"),
    "no biases of attention": ("modernbert, biases", {"attention_bias": False}, "layers.0.attn.W"),
    "no biases of norms": ("modernbert, biases", {"norm_bias": False}, "embeddings.norm.bias"),
    "fewer groups": ("albert, a group each", {"num_hidden_groups": 1}, "encoder.albert_layer_groups.1."),
    "no norm of the embeddings": ("esm, norm of the embeddings", {"emb_layer_norm_before": False}, "embeddings.layer_norm."),
    "fewer layers by another name": ("distilbert", {"n_layers": 2}, "transformer.layer.2."),
}


@pytest.mark.parametrize("name", WITHOUT_PLACE)
def test_tensors_without_a_place_are_refused(name: str, tmp_path: Path) -> None:
    case, keys, tensor = WITHOUT_PLACE[name]
    for head in ("Model", "ForMaskedLM"):
        saved_model(case, tmp_path / head, head)
        polyhead.models.load(tmp_path / head)
        change_config(tmp_path / head, **keys)
        with pytest.raises(ValueError, match=rf"'[a-z]*\.?{tensor}.*has no place in a model of the type {case.split(',')[0]} with this config.json"):
            polyhead.models.load(tmp_path / head)


def test_tables_of_published_esm_files_are_skipped(tmp_path: Path) -> None:
    theirs = saved_model("esm", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in safetensors_torch.load_file(path).items() if not name.endswith("inv_freq")}
    frequencies = {f"encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq": theirs.rotary_embeddings.inv_freq.clone() for i in range(3)}
    tables = {"embeddings.position_embeddings.weight": torch.ones(64, 32), "embeddings.position_ids": torch.arange(64)[None]}
    safetensors_torch.save_file(tensors | frequencies | tables, path)
    compare(theirs, polyhead.models.load(tmp_path), texts())


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    saved_model("bert", tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ValueError, match=r"adapter \(PEFT\), which polyhead does not apply; merge it with merge_and_unload\(\)"):
        polyhead.models.load(tmp_path)


def test_other_names_of_keys_of_distilbert_must_agree(tmp_path: Path) -> None:
    theirs = saved_model("distilbert", tmp_path)
    change_config(tmp_path, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)
    compare(theirs, polyhead.models.load(tmp_path), texts())
    change_config(tmp_path, num_attention_heads=8)
    with pytest.raises(ValueError, match="num_attention_heads is 8 and n_heads is 4; both keys must have the same value"):
        polyhead.models.load(tmp_path)


# Keys of config.json that had other names or places in transformers 4.
OLD_KEYS: dict[str, dict[str, Any]] = {
    "modernbert": {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3, "position_embedding_type": "absolute", "rope_parameters": None, "layer_types": None},
    "esm": {"position_embedding_type": "rotary", "esmfold_config": None, "is_folding_model": False, "vocab_list": None, "emb_layer_norm_before": False, "classifier_dropout": None},
    # The last keys are of TinyBERT and of rxnmapper's ALBERT.
    "bert": {"position_embedding_type": "absolute", "gradient_checkpointing": False, "directionality": "bidi", "pooler_fc_size": 768, "use_cache": True, "emb_size": 32, "cell": {}, "structure": [], "net_structure_type": 0, "gap_size": 0},
}  # fmt: skip


@pytest.mark.parametrize("case", OLD_KEYS)
def test_keys_of_transformers_4_are_read(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    change_config(tmp_path, **OLD_KEYS[case])
    compare(theirs, polyhead.models.load(tmp_path), texts())


def test_the_bases_of_transformers_4_have_an_effect(tmp_path: Path) -> None:
    theirs = saved_model("modernbert", tmp_path, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 50.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}, layer_types=["full_attention", "sliding_attention"] * 2)  # fmt: skip
    change_config(tmp_path, global_rope_theta=50.0, local_rope_theta=20.0, global_attn_every_n_layers=2, rope_parameters=None, layer_types=None)
    compare(theirs, polyhead.models.load(tmp_path), texts())


def test_tensors_of_tensorflow_and_without_a_model_type_open(tmp_path: Path) -> None:
    theirs = saved_model("electra", tmp_path)
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in tensors.items()}
    safetensors_torch.save_file(renamed, tmp_path / "model.safetensors")
    compare(theirs, polyhead.models.load(tmp_path), texts())


@pytest.mark.parametrize(("model_type", "message"), [
    ("deberta", "model_type is 'deberta', which is not supported: its scores also contain products of contents and relative positions; known encoders are bert, roberta"),
    ("deberta-v2", "'deberta-v2', which is not supported"),
    ("longformer", "tokens with separate projections"),
    ("big_bird", "random blocks"),
    ("robertta", "model_type is 'robertta'; known encoders are bert, roberta, .*; known decoders are gpt2, .*; the nearest is 'roberta'"),
    ("llama4", "the nearest is 'llama'"),
])  # fmt: skip
def test_other_families_are_refused_by_name(model_type: str, message: str, tmp_path: Path) -> None:
    saved_model("bert", tmp_path)
    change_config(tmp_path, model_type=model_type)
    with pytest.raises(ValueError, match=message):
        polyhead.models.load(tmp_path)


def test_the_page_of_encoders_lists_the_families(tmp_path: Path) -> None:
    saved_model("bert", tmp_path)
    change_config(tmp_path, model_type="nothing")
    with pytest.raises(ValueError) as refused:
        polyhead.models.load(tmp_path)
    known = str(refused.value).split("known encoders are ")[1].split(";")[0].split(", ")
    page = Path(__file__).parents[2] / "docs" / "encoders.md"
    rows = [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `") and "model_type" not in line]
    assert rows == known == FAMILIES


def test_a_run_names_what_does_not_fit(tmp_path: Path) -> None:
    saved_model("distilbert", tmp_path)
    ours = polyhead.models.load(tmp_path)
    for given, message in (
        ({"ids": texts(), "segments": np.zeros((2, 20), np.int64)}, "segments are given; this distilbert model has none"),
        ({"ids": np.zeros((1, 65), np.int64)}, "the text has 65 tokens; the model has positions for 64"),
        ({"ids": [61]}, "61"),
        ({"ids": texts(), "outputs": ["logits"]}, "outputs has 'logits'; hidden, all_hidden"),
        ({"ids": texts(), "attend_keys": np.ones((2, 19), bool)}, r"attend_keys is \[2,19\]"),
        ({"ids": np.int64(3)}, "ids has no dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.run(**given)


def test_an_encoder_is_copied_pickled_and_shown(tmp_path: Path) -> None:
    saved_model("albert, groups", tmp_path)
    ours = polyhead.models.load(tmp_path)
    hidden = ours.run(texts()).hidden
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert np.array_equal(other.run(texts()).hidden, hidden)
    assert repr(ours).startswith("TextEncoder(model='albert', layers=5, heads=4,")
    assert sum(name.endswith("attention.q.weight") for name in ours.parameters) == 2  # the file holds two groups of parameters for the five layers
    assert np.array_equal(ours.run(texts()[0].tolist()).hidden, ours.run(texts()[0]).hidden)
