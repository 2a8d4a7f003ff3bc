"""Compares maps, answers and arrays of `polyhead view` on models with encoder and decoder with transformers, for tiny checkpoints with a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyhead
from program_support import needs_program, run, save, telling_head, view

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = needs_program

TEXT = "The quick brown fox jumps over the lazy dog."


def tokenizer() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    made.train_from_iterator([TEXT, "a lazy fox", "quick dogs jump"] * 3, tokenizers.trainers.UnigramTrainer(vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def model(kind: str, words: int) -> Any:
    t = transformers
    # The embedding of this BART has more rows than the tokenizer has tokens: the tokenizer cannot name these ids.
    sizes: dict[str, Any] = dict(vocab_size=words + (3 if kind == "bart" else 0), attn_implementation="eager", eos_token_id=1, pad_token_id=0, decoder_start_token_id=0)
    if kind == "t5":
        return t.T5ForConditionalGeneration(t.T5Config(d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=3, **sizes))
    return t.BartForConditionalGeneration(t.BartConfig(d_model=24, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
                                                       max_position_embeddings=40, forced_eos_token_id=None, init_std=0.5, **sizes))  # fmt: skip


@pytest.fixture(scope="module", params=["t5", "bart"])
def folder(request: Any, tmp_path_factory: Any) -> Any:
    torch.manual_seed(4)
    at = tmp_path_factory.mktemp(request.param)
    words = tokenizer()
    made = save(at, model(request.param, len(words)), words)
    return request.param, at, made, words


def test_maps_and_answer_are_those_of_transformers(folder: Any, tmp_path: Path) -> None:
    kind, at, made, words = folder
    told = json.loads(view(at, "--text", TEXT, "--generate", "6", "--arrays", tmp_path / "out.npz", "--json").stdout)
    source = words(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        whole = made.generate(source, max_new_tokens=6, do_sample=False, num_beams=1)
        outputs = made(input_ids=source, decoder_input_ids=whole, output_attentions=True)
    arrays = np.load(tmp_path / "out.npz")
    assert arrays["ids"].tolist() == source[0].tolist() and arrays["target_ids"].tolist() == whole[0].tolist()
    for name, theirs in {"attentions": outputs.encoder_attentions, "target_attentions": outputs.decoder_attentions, "cross_attentions": outputs.cross_attentions}.items():
        np.testing.assert_allclose(arrays[name], torch.cat(theirs).numpy(), atol=1e-4)
    np.testing.assert_allclose(arrays["hidden"], outputs.encoder_last_hidden_state[0].numpy(), atol=1e-4 * float(outputs.encoder_last_hidden_state.abs().max()))
    text = told["texts"][0]
    assert text["tokens"] == words.convert_ids_to_tokens(source[0]) and text["target_ids"] == whole[0].tolist()
    known = [token for token in whole[0, 1:].tolist() if token < len(words)]
    assert text["generated"] == words.decode(known, skip_special_tokens=True)
    np.testing.assert_allclose(np.array(text["map"]), outputs.cross_attentions[-1][0].mean(0).numpy(), atol=1e-4)
    # Without --generate, the program shows the encoder.
    alone = json.loads(view(at, "--text", TEXT, "--json").stdout)["texts"][0]
    np.testing.assert_allclose(np.array(alone["map"]), outputs.encoder_attentions[-1][0].mean(0).numpy(), atol=1e-4)
    assert "generated" not in alone and "target_tokens" not in alone


def test_the_terminal_shows_the_head_that_looks_most_at_single_words(folder: Any, tmp_path: Path) -> None:
    kind, at, _, words = folder
    # The tokenizer does not name every id of this BART, so the program does not know which of its targets are special.
    for more in ((), ("--generate", "6")) if kind == "t5" else ((),):
        told = json.loads(view(at, "--text", TEXT, *more, "--arrays", tmp_path / "out.npz", "--json").stdout)["texts"][0]
        arrays = np.load(tmp_path / "out.npz")
        maps = arrays["cross_attentions" if more else "attentions"]
        queries = [token in words.all_special_ids for token in told["target_ids"]] if more else told["special"]
        shown = " ".join(view(at, "--text", TEXT, *more).stdout.split())
        wanted = telling_head(maps, queries, told["special"], same_text=not more)
        assert any(one in shown for one in wanted), (wanted, shown[:300], told)


def test_pages_have_all_three_kinds_of_maps(folder: Any, tmp_path: Path) -> None:
    _, at, _, _ = folder
    view(at, "--text", TEXT, "--generate", "5", "-o", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    for name in ("Cross-attention", "Encoder", "Decoder"):
        assert f'"name":"{name}"' in html
    page = polyhead.view(at, TEXT, call=polyhead.ModelCall(generate=5))
    assert '"name":"Cross-attention"' in page.html
    assert '"name":"Cross-attention"' not in polyhead.view(at, TEXT).html
    assert "generated:" in view(at, "--text", TEXT, "--generate", "5").stdout


def test_inspect_names_the_family_and_tells_the_heads_of_both_sides(folder: Any) -> None:
    kind, at, _, _ = folder
    told = json.loads(run("inspect", at, "--json").stdout)
    config = told["config"]
    assert config["model"] == kind and config["decoder_layers"] == 2
    if kind == "bart":
        assert (config["encoder_heads"], config["decoder_heads"]) == (3, 4) and "heads" not in config
    else:
        assert config["heads"] == 3


def test_what_does_not_fit_is_refused_by_name(folder: Any) -> None:
    kind, at, _, _ = folder
    for arguments, message in {
        ("--text-pair", "a dog"): "--text-pair is for encoders",
        ("--without", "all"): "--without compares embeddings of texts, which this model does not have",
        ("--generate", "5", "--layer", "2"): "layer",
    }.items():
        assert message in view(at, "--text", TEXT, *arguments, status=2).stderr
    if kind == "bart":
        assert "40 tokens shall be generated; the model has positions for 40, the start token included" in view(at, "--text", TEXT, "--generate", "40", status=1).stderr
