"""Compares maps, answers and arrays of `polyhead view` on decoders with transformers, for tiny checkpoints with a tokenizer.json."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyhead
from program_support import needs_program, page_data, run, save, telling_head, view

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = needs_program

TEXT = "The quick brown fox jumps over the lazy dog."


def tokenizer() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator([TEXT] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def model(kind: str, words: int) -> Any:
    t = transformers
    sizes: dict[str, Any] = dict(vocab_size=words, attn_implementation="eager", eos_token_id=0, bos_token_id=0)
    if kind == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=40, initializer_range=0.5, **sizes))
    sizes |= dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32, initializer_range=0.5, pad_token_id=0)
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**sizes))
    if kind == "mistral":  # the windows of this model are shorter than the text
        return t.MistralForCausalLM(t.MistralConfig(sliding_window=5, **sizes))
    return t.Gemma2ForCausalLM(t.Gemma2Config(head_dim=6, query_pre_attn_scalar=9, sliding_window=4, **sizes))  # the scores of this model have a softcap


@pytest.fixture(scope="module", params=["gpt2", "llama", "mistral", "gemma2"])
def folder(request: Any, tmp_path_factory: Any) -> Any:
    torch.manual_seed(3)
    at = tmp_path_factory.mktemp(request.param)
    words = tokenizer()
    made = save(at, model(request.param, len(words)), words)
    return request.param, at, made, words


def test_maps_and_answer_are_those_of_transformers(folder: Any, tmp_path: Path) -> None:
    _, at, made, words = folder
    told = json.loads(view(at, "--text", TEXT, "--generate", "6", "--arrays", tmp_path / "out.npz", "--json").stdout)
    prompt = words(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        whole = made.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
        outputs = made(whole, output_attentions=True, output_hidden_states=True)
    arrays = np.load(tmp_path / "out.npz")
    assert arrays["ids"].tolist() == whole[0].tolist()
    np.testing.assert_allclose(arrays["attentions"], torch.cat(outputs.attentions).numpy(), atol=1e-4)
    np.testing.assert_allclose(arrays["hidden"], outputs.hidden_states[-1][0].numpy(), atol=1e-4 * float(outputs.hidden_states[-1].abs().max()))
    assert "embedding" not in arrays
    text = told["texts"][0]
    assert text["tokens"] == words.convert_ids_to_tokens(whole[0])
    assert text["generated"] == words.decode(whole[0, prompt.shape[1] :], skip_special_tokens=True)
    assert text["segments"] == [0] * prompt.shape[1] + [1] * (whole.shape[1] - prompt.shape[1])


def test_the_page_has_the_maps_and_works_a_weight_out(folder: Any, tmp_path: Path) -> None:
    kind, at, _, _ = folder
    view(at, "--text", TEXT, "--generate", "3", "-o", tmp_path / "page.html")  # writing the page checks each weight against q, k and the mask
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "quick" in page
    assert at.name in page


def test_python_makes_the_same_page(folder: Any, tmp_path: Path) -> None:
    _, at, _, _ = folder
    view(at, "--text", TEXT, "--generate", "3", "-o", tmp_path / "page.html")
    of_program = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert polyhead.view(at, TEXT, call=polyhead.ModelCall(generate=3)).html == of_program.replace(f'"model":"{at.name}"', '"model":""')
    with pytest.raises(ValueError, match="a pair of texts is for encoders"):
        polyhead.view(at, TEXT, call=polyhead.ModelCall(pair="b"))
    with pytest.raises(ValueError, match="generate is for a model"):
        polyhead.view(np.ones((1, 2, 2), np.float32) / 2, call=polyhead.ModelCall(generate=1))
    with pytest.raises(ValueError, match="generate is -1"):
        polyhead.view(at, TEXT, call=polyhead.ModelCall(generate=-1))


def test_the_terminal_shows_one_map(folder: Any, tmp_path: Path) -> None:
    _, at, _, _ = folder
    done = view(at, "--text", "The fox jumps", "--generate", "2", "--layer", "0", "--head", "1")
    assert done.stdout.startswith("generated: ")
    assert "layer 0, head 1" in done.stdout
    told = json.loads(view(at, "--text", TEXT, "--generate", "4", "--arrays", tmp_path / "out.npz", "--json").stdout)["texts"][0]
    wanted = telling_head(np.load(tmp_path / "out.npz")["attentions"], told["special"], told["special"], same_text=True)
    shown = " ".join(view(at, "--text", TEXT, "--generate", "4").stdout.split())
    assert any(one in shown for one in wanted), (wanted, shown[:300])
    assert "\nfox " in done.stdout  # the word is shown as in the text, without its space mark


def test_an_answer_continues_the_text_also_where_spaces_are_marks(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "▁a": 1, "▁fox": 2}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(tmp_path)
    torch.manual_seed(0)
    decoder = model("llama", 9)  # the embedding has more rows than the tokenizer has tokens
    with torch.no_grad():
        decoder.lm_head.weight.normal_()
    decoder.config.eos_token_id = decoder.generation_config.eos_token_id = None
    decoder.save_pretrained(tmp_path)
    told = json.loads(view(tmp_path, "--text", "a fox", "--generate", "8", "--json").stdout)["texts"][0]
    answer = told["ids"][2:]
    assert {1, 2} & set(answer) and max(answer) > 2, answer
    assert told["generated"] == "".join({1: " a", 2: " fox"}.get(i, "") for i in answer)  # special tokens such as <unk> are left out
    assert told["tokens"][2:] == [{0: "<unk>", 1: "▁a", 2: "▁fox"}.get(i, f"<{i}>") for i in answer]


def test_options_that_a_decoder_does_not_have_are_refused_by_name(folder: Any, tmp_path: Path) -> None:
    kind, at, _, _ = folder
    assert "--text-pair is for encoders" in view(at, "--text", "a", "--text-pair", "b", status=2).stderr
    assert "--without compares embeddings" in view(at, "--text", "a", "--without", "0.1", status=2).stderr
    assert "has no token" in view(at, "--text", "", status=1).stderr
    assert "1048577 tokens are more than the most" in view(at, "--text", "a", "--generate", "1048577", status=2).stderr
    if kind == "gpt2":
        assert "has positions for 40" in view(at, "--text", "a", "--generate", "40", status=1).stderr
        assert "takes at most 38; --truncate" in view(at, "--text", TEXT * 5, "--generate", "2", status=1).stderr
        told = json.loads(view(at, "--text", TEXT * 5, "--generate", "2", "--truncate", "--json").stdout)["texts"][0]
        assert len(told["tokens"]) == 40
        assert told["dropped_tokens"] > 0
    else:  # rotary positions have no limit, but without a page all attention weights must fit in memory
        (tmp_path / "long.txt").write_text("fox " * 1_000_000)
        assert "of memory, so give a shorter text" in view(at, "--file", tmp_path / "long.txt", status=1).stderr
    (at / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    try:
        assert "tokenizer.json" in view(at, "--text", "a", status=1).stderr
    finally:
        (tmp_path / "tokenizer.json").rename(at / "tokenizer.json")


def test_a_layer_is_traced_to_the_attention_weights_of_transformers(folder: Any) -> None:
    """Traces the last layer, whose input is the normed output of the first layer, also with softcap and windows."""
    _, at, made, words = folder
    prompt = words(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        weights = torch.cat(made(prompt, output_attentions=True).attentions).numpy()
    for layer in (0, 1):
        told = json.loads(run("trace", at, "--text", TEXT, "--layer", layer, "--values", "--json").stdout)
        assert told["input"].startswith(f"{prompt.shape[1]} tokens, normed: ")
        (traced,) = [step["values"] for step in told["steps"] if step["step"] == "softmax"]
        np.testing.assert_allclose(np.array(traced, np.float64)[0], weights[layer], atol=1e-4)
    assert "there is no layer '2'" in run("trace", at, "--text", TEXT, "--layer", "2", status=2).stderr


def cell(at: Path, *arguments: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run("trace", at, "--text", TEXT, "--cell", *arguments, status=status)


def test_a_weight_is_worked_out(folder: Any) -> None:
    kind, at, made, words = folder
    if kind == "gemma2":
        assert "do not follow from q and k alone" in cell(at, "1,2,5,3", "--json", status=1).stderr
        return
    prompt = words(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        weights = torch.cat(made(prompt, output_attentions=True).attentions).numpy()
    pieces = words.convert_ids_to_tokens(prompt[0])
    for layer, head, query, key in ((0, 0, 3, 3), (1, 2, 8, 6), (1, 1, 6, 0), (0, 2, 2, 5)):
        told = json.loads(cell(at, f"{layer},{head},{query},{key}", "--json").stdout)
        row = weights[layer, head, query]
        np.testing.assert_allclose([one["weight"] for one in told["keys"]], row, atol=1e-5)
        np.testing.assert_allclose([told["weight"], told["exp"] / told["sum"]], row[key], atol=1e-5)
        np.testing.assert_allclose(told["output"], np.array([one["v"] for one in told["keys"]]).T @ row, atol=1e-4)
        assert [one["token"] for one in told["keys"]] == pieces
    assert "0, because the key is later than the query" in cell(at, "0,0,2,5").stdout
    assert cell(at, "0,0,fox,quick").stdout == cell(at, f"0,0,{pieces.index('Ġfox')},{pieces.index('Ġquick')}").stdout


def test_a_text_that_is_too_long_for_every_pair_has_pooled_maps(tmp_path: Path) -> None:
    torch.manual_seed(3)
    words = tokenizer()
    words.save_pretrained(tmp_path)
    sizes: dict[str, Any] = dict(vocab_size=len(words), eos_token_id=None, bos_token_id=None, pad_token_id=None, initializer_range=0.5, max_position_embeddings=2048)
    made = transformers.MistralForCausalLM(transformers.MistralConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=4, intermediate_size=8, sliding_window=300, attn_implementation="eager", **sizes)).eval()
    made.save_pretrained(tmp_path)
    (tmp_path / "text").write_text("The quick fox. " * 350)
    ids = words("The quick fox. " * 350, return_tensors="pt").input_ids
    T = ids.shape[1]
    assert 64 * T * T > 2**26 and T < 2048
    done = view(tmp_path, "--file", tmp_path / "text", "-o", tmp_path / "page.html")
    assert f"the text has {T} tokens: the page has pooled maps of 362 x 362 blocks" in done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"pooled":"largest"' in page and '"blocks":[362,362]' in page
    (text,) = texts_of(page)
    assert texts_of(polyhead.view(tmp_path, (tmp_path / "text").read_text()).html) == [text]
    # The expected blocks come from the maps of transformers.
    with torch.no_grad():
        maps = torch.cat(made(ids, output_attentions=True).attentions).numpy()
    bounds = np.arange(363) * T // 362
    blocks = np.maximum.reduceat(np.maximum.reduceat(maps, bounds[:-1], axis=2), bounds[:-1], axis=3)
    other = polyhead.view(blocks, tokens=words.convert_ids_to_tokens(ids[0]), size=polyhead.PageSize(pooling="largest")).html
    ours, theirs = (codes_of(html) for html in (page, other))
    assert ours.shape == (2, 32, 362 * 362) and ours.any()
    apart = np.abs(ours - theirs)  # codes of 8 bits; neighbouring codes stand for weights that differ by at most 2.6 %
    assert apart.max() <= 1 and (apart == 0).mean() > 0.99


def texts_of(html: str) -> Any:
    return page_data(html)["texts"]


def codes_of(html: str) -> Any:
    (text,) = texts_of(html)
    return np.array([[np.frombuffer(base64.b64decode(head), np.uint8) for head in heads] for heads in text["weights"]]).astype(int)
