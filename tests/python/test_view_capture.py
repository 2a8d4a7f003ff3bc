"""Tests pages of captured models: there is a tab for each kind and shape of attention, steps with a cache form one map, and maps beyond the budget are pooled."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import polyhead
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

from test_view import BOUND, pooled_weights, sets_of, weights

tf.logging.set_verbosity_error()
EAGER = {"attn_implementation": "eager"}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
DECODING = {"do_sample": False, "eos_token_id": None}


def ids(*shape: int) -> Any:
    return torch.randint(3, 40, shape)


def bart(**more: Any) -> Any:
    config = tf.BartConfig(vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=4, encoder_ffn_dim=8, decoder_ffn_dim=8,
                           max_position_embeddings=32, init_std=0.5, **EAGER, **more)  # fmt: skip
    return tf.BartForConditionalGeneration(config)


def t5() -> Any:
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0, **EAGER))


def whisper() -> Any:
    return tf.WhisperForConditionalGeneration(tf.WhisperConfig(
        vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8,
        max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **EAGER))  # fmt: skip


def llama(**more: Any) -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=50, num_key_value_heads=1, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.5, **SMALL, **EAGER, **more))


def gemma() -> Any:
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(vocab_size=50, num_key_value_heads=1, head_dim=8, sliding_window=7, pad_token_id=0, initializer_range=0.5, **SMALL, **EAGER))


def swin() -> Any:
    return tf.SwinModel(tf.SwinConfig(image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4, **EAGER))


def clip() -> Any:
    text = {"vocab_size": 50, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, **SMALL}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config={"image_size": 16, "patch_size": 4, **SMALL}, projection_dim=8, **EAGER))


def perceiver() -> Any:
    return tf.PerceiverForMaskedLM(tf.PerceiverConfig(num_latents=4, d_latents=16, d_model=16, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2,
                                                      num_cross_attention_heads=2, vocab_size=50, max_position_embeddings=12, qk_channels=8, v_channels=16, **EAGER))  # fmt: skip


def timesformer() -> Any:
    return tf.TimesformerModel(tf.TimesformerConfig(image_size=16, patch_size=8, num_frames=3, **SMALL, **EAGER))


def sam() -> Any:
    vision = {"hidden_size": 16, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 4, "num_pos_feats": 4, "window_size": 3,
              "global_attn_indexes": [1], "mlp_dim": 16}  # fmt: skip
    decoder = {"hidden_size": 8, "mlp_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "iou_head_hidden_dim": 8}
    prompt = {"hidden_size": 8, "image_size": 32, "patch_size": 4, "mask_input_channels": 4}
    return tf.SamModel(tf.SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder, **EAGER))


def wav2vec2() -> Any:
    return tf.Wav2Vec2Model(tf.Wav2Vec2Config(vocab_size=20, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                                              num_conv_pos_embedding_groups=2, **SMALL, **EAGER))  # fmt: skip


def vit() -> Any:
    return tf.ViTModel(tf.ViTConfig(image_size=16, patch_size=4, **SMALL, **EAGER))


def images(batch: int, size: int) -> Any:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def capture(model: Any, run: Callable[[Any], Any], named: bool = True, **options: Any) -> polyhead.Capture:
    with torch.no_grad(), polyhead.capture(model if named else None, **options) as captured:
        run(model)
    return captured


def built(make: Callable[[], Any], run: Callable[[Any], Any], **options: Any) -> polyhead.Capture:
    torch.manual_seed(3)
    return capture(make().eval(), run, **options)


# {model: (function that makes it, function that makes its inputs, {tab: regular expression of the modules whose calls are the layers of the tab})}.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], dict[str, str]]] = {
    "swin": (swin, lambda: images(1, 32), {"Windows · 2 heads": r"layers\.0\.", "Windows · 4 heads": r"layers\.1\."}),
    "whisper": (whisper, lambda: {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": ids(1, 5)}, {"Encoder": r"encoder\.", "Decoder": r"decoder.*self", "Cross-attention": "encoder_attn"}),
    "t5": (t5, lambda: {"input_ids": ids(2, 6), "decoder_input_ids": ids(2, 4)}, {"Encoder": r"^encoder", "Decoder": r"^decoder.*\.SelfAtt", "Cross-attention": "EncDec"}),
    "bart": (bart, lambda: {"input_ids": ids(1, 6), "decoder_input_ids": ids(1, 5)}, {"Encoder": r"encoder\.", "Decoder": r"decoder.*self", "Cross-attention": "encoder_attn"}),
    "clip": (clip, lambda: {"input_ids": ids(2, 7), **images(1, 16)}, {"Image": "vision", "Text": "text"}),
    "perceiver": (perceiver, lambda: {"inputs": ids(1, 12)}, {"Encoder · Cross-attention": r"encoder\.cross", "Self-attention": "self_attends", "Decoder · Cross-attention": "decoding"}),
    "timesformer": (timesformer, lambda: {"pixel_values": torch.randn(2, 3, 3, 16, 16)}, {"Time": "temporal_att", "Space": r"layer\.\d\.attention"}),
    "sam": (sam, lambda: {**images(1, 32), "input_points": torch.rand(1, 1, 1, 2) * 32},
            {"Image · Windows": r"vision.*layers\.0", "Image": r"vision.*layers\.1", "Decoder": "mask_decoder.*self_attn", "Cross-attention · 7 × 64": "token_to_image", "Cross-attention · 64 × 7": "image_to_token"}),
    "wav2vec2": (wav2vec2, lambda: {"input_values": torch.randn(1, 200)}, {"": ""}),
    "vit": (vit, lambda: images(2, 16), {"": ""}),
}  # fmt: skip


@pytest.mark.parametrize("family", MODELS)
def test_each_kind_and_shape_is_a_tab(family: str) -> None:
    make, inputs, tabs = MODELS[family]
    captured = built(make, lambda model: model(**inputs()))
    assert captured.missed == []
    layers = {name: [call.maps for call in captured if re.search(modules, call.name)] for name, modules in tabs.items()}
    assert sum(map(len, layers.values())) == len(captured)
    entries = sets_of(polyhead.view(captured))
    assert list(dict.fromkeys(entry.get("name", "") for entry in entries[: len(tabs)])) == list(tabs)
    assert len(entries) == sum(maps[0].shape[0] for maps in layers.values())
    for entry in entries:
        expected = torch.stack([maps[entry["group"]] for maps in layers[entry.get("name", "")]])
        assert np.abs(weights(entry) - expected.numpy()).max() <= BOUND


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("make, cache", [(llama, "dynamic"), (llama, "static"), (gemma, "sliding")])
def test_steps_with_a_cache_are_the_rows_of_one_map(make: Callable[[], Any], cache: str, named: bool) -> None:
    torch.manual_seed(3)
    model, prompt = make().eval(), ids(1, 6)
    options = {"cache_implementation": "static"} if cache == "static" else {}
    with torch.no_grad():
        text = model.generate(prompt, max_new_tokens=6, **DECODING)
        whole = torch.stack([maps[0] for maps in model(text[:, :-1], output_attentions=True).attentions])
    captured = capture(model, lambda model: model.generate(prompt, max_new_tokens=6, **options, **DECODING), named)
    entries = sets_of(polyhead.view(captured, tokens=[f"w{place}" for place in range(11)]) if named or cache != "sliding" else polyhead.view(captured))
    if not named and cache == "sliding":  # without names, a call whose cache has dropped its oldest keys cannot be assigned to a layer
        assert sorted(entry["name"] for entry in entries) == [f"Self-attention · {size}" for size in ("1 × 7", "11 × 11", "7 × 7")]
        return
    (entry,) = entries
    assert entry["queries"]["pieces"] == [f"w{place}" for place in range(11)] and "keys" not in entry
    assert np.abs(weights(entry) - whole.numpy()).max() <= BOUND + 1e-6


def test_a_prompt_longer_than_the_window_and_its_steps_are_one_map() -> None:
    torch.manual_seed(3)
    model, prompt = gemma().eval(), ids(1, 9)
    with torch.no_grad():
        text = model.generate(prompt, max_new_tokens=4, **DECODING)
        whole = torch.stack([maps[0] for maps in model(text[:, :-1], output_attentions=True).attentions])
    (entry,) = sets_of(polyhead.view(capture(model, lambda model: model.generate(prompt, max_new_tokens=4, **DECODING))))
    assert np.abs(weights(entry) - whole.numpy()).max() <= BOUND + 1e-6


def test_steps_whose_prompt_was_not_captured_begin_behind_it() -> None:
    torch.manual_seed(3)
    model, text = llama().eval(), ids(1, 9)
    with torch.no_grad():
        whole = torch.stack([maps[0] for maps in model(text, output_attentions=True).attentions])
        cache = model(text[:, :6], use_cache=True).past_key_values
    captured = capture(model, lambda model: [model(text[:, at : at + 1], past_key_values=cache, use_cache=True) for at in range(6, 9)])
    (entry,) = sets_of(polyhead.view(captured, tokens=list("abcdefghi"), annotations=polyhead.Annotations(special=[1] + [0] * 8)))
    assert (entry["queries"]["pieces"], entry["keys"]["pieces"]) == (list("ghi"), list("abcdefghi"))
    assert entry["queries"]["special"] == [] and entry["keys"]["special"] == [0]
    assert np.abs(weights(entry) - whole[:, :, 6:].numpy()).max() <= BOUND + 1e-6
    assert sets_of(polyhead.view(captured))[0]["queries"]["pieces"] == ["6", "7", "8"]


@pytest.mark.parametrize("make, inputs", [(t5, lambda: ids(2, 6)), (bart, lambda: ids(2, 6)), (whisper, lambda: torch.randn(2, 8, 40))])
def test_generating_decoders_have_the_tabs_of_one_pass(make: Callable[[], Any], inputs: Callable[[], Any]) -> None:
    torch.manual_seed(3)
    model, given = make().eval(), inputs()
    captured = capture(model, lambda model: model.generate(given, max_new_tokens=5, **DECODING))
    entries = sets_of(polyhead.view(captured))
    assert [(entry["group"], entry["name"]) for entry in entries] == [(text, name) for text in range(2) for name in ("Encoder", "Decoder", "Cross-attention")]
    encoder, decoder, cross = (weights(entry) for entry in entries[3:])
    assert decoder.shape[-1] == decoder.shape[-2] == cross.shape[-2] and cross.shape[-1] == encoder.shape[-1]
    assert np.abs(np.triu(decoder, 1)).max() == 0 and np.abs(decoder.sum(-1) - 1).max() < 1e-3 and np.abs(cross.sum(-1) - 1).max() < 1e-3


def steps_of_cross_attention(**options: Any) -> polyhead.Capture:
    return built(bart, lambda model: model.generate(ids(2, 6), max_new_tokens=4, min_new_tokens=4, **DECODING), **options)


def test_cross_attention_is_one_map_also_where_it_is_selected_alone() -> None:
    captured = steps_of_cross_attention()
    expected = next(entry for entry in sets_of(polyhead.view(captured)) if entry["name"] == "Cross-attention")
    calls = [call for call in captured if "encoder_attn" in call.name]
    assert expected["layers"] == 3 and len(calls) == 12
    for chosen in (captured.select("model.decoder.layers.1.encoder_attn"), polyhead.Capture([call for call in calls if "layers.1" in call.name])):
        (entry,) = sets_of(polyhead.view(chosen, tokens=[list("abcd")] * 2, keys=[list("uvwxyz")] * 2))[:1]
        assert entry["layers"] == 1
        assert np.abs(weights(entry)[0] - weights(expected)[1]).max() <= 2 * BOUND
    twice = built(bart, lambda model: [model.generate(ids(2, 6), max_new_tokens=4, min_new_tokens=4, **DECODING) for _ in range(2)])
    entry = sets_of(polyhead.view(twice.select("model.decoder.layers.1.encoder_attn")))[0]
    assert len(entry["queries"]["pieces"]) == 4, "each text has its own steps"
    again = pickle.loads(pickle.dumps(captured.select("model.decoder.layers.1.encoder_attn")))
    assert sets_of(polyhead.view(again))[0]["layers"] == 1


def test_steps_of_cross_attention_that_are_over_the_budget_are_rows_of_pooled_maps() -> None:
    whole = steps_of_cross_attention()
    used = sum(call.maps.numel() * 4 for call in whole)
    captured = steps_of_cross_attention(budget=used - 1)
    assert [call.name for call in captured if call.maps is None] == ["model.decoder.layers.2.encoder_attn"]
    pooled = next(entry for entry in sets_of(polyhead.view(captured)) if "Pooled" in entry["name"])
    exact = next(entry for entry in sets_of(polyhead.view(whole)) if entry["name"] == "Cross-attention")
    assert pooled["layers"] == 3 and pooled["pooled"] == "share"
    assert np.abs(pooled_weights(pooled) - weights(exact)).max() <= 2 * BOUND + 1e-6


def test_words_that_do_not_fit_are_named_with_their_text() -> None:
    captured = built(bart, lambda model: model(input_ids=ids(2, 6), decoder_input_ids=ids(2, 5)))
    with pytest.raises(ValueError, match=r"text 1 of 2 \(counted from 0\): tokens has 4 entries, and no set of the capture has so many tokens: Encoder: 6 queries"):
        polyhead.view(captured, tokens=[list("abcde"), list("abcd")])
    with pytest.raises(ValueError, match=r"text 0 of 2 \(counted from 0\): keys has 7 entries"):
        polyhead.view(captured, tokens=[list("abcde")] * 2, keys=[list("uvwxyz1"), list("uvwxyz")])
    alone = captured.select("model.decoder.layers.0.self_attn")
    with pytest.raises(ValueError, match=r"text 1 of 2 \(counted from 0\): tokens has 4 words; source has 5 queries, and each needs one"):
        polyhead.view(alone, tokens=[list("abcde"), list("abcd")])


def test_two_passes_are_not_steps() -> None:
    captured = built(vit, lambda model: [model(**images(1, 16)), model(**images(1, 16))])
    (entry,) = sets_of(polyhead.view(captured))
    assert entry["layers"] == 4
    captured = built(llama, lambda model: [model(ids(1, 8)), model(ids(1, 5)), model(ids(1, 1))])
    assert [(entry["name"], entry["layers"]) for entry in sets_of(polyhead.view(captured))] == [(f"Self-attention · {size} × {size}", 2) for size in (8, 5, 1)]


def test_cross_attention_of_torch_has_a_tab() -> None:
    model = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2)
    captured = capture(model.eval(), lambda model: model(torch.randn(1, 5, 16), torch.randn(1, 7, 16)))
    first, second = sets_of(polyhead.view(captured, tokens=list("abcde"), keys=list("tuvwxyz"), annotations=polyhead.Annotations(links=[(0, 6)])))
    assert (first["name"], second["name"]) == ("Decoder", "Cross-attention")
    assert first["queries"]["pieces"] == list("abcde") and "keys" not in first and "links" not in first
    assert second["keys"]["pieces"] == list("tuvwxyz") and second["links"]["sure"] == [[0, 6]]
    model = torch.nn.Transformer(16, 2, 1, 1, 16, batch_first=True)
    captured = capture(model.eval(), lambda model: model(torch.randn(1, 6, 16), torch.randn(1, 6, 16)))
    assert [entry["name"] for entry in sets_of(polyhead.view(captured))] == ["Encoder", "Decoder", "Cross-attention"]  # the tabs have these names even if all lengths are equal


def test_words_are_for_the_tabs_whose_sizes_they_fit() -> None:
    captured = built(clip, lambda model: model(input_ids=ids(2, 7), **images(1, 16)))
    words = [list("abcdefg"), list("hijklmn")]
    image, first, second = sets_of(polyhead.view(captured, tokens=words, annotations=polyhead.Annotations(special={"a", "n"}, block_keys=[[0] * 7, [1] + [0] * 6])))
    assert [first["queries"]["pieces"], second["queries"]["pieces"]] == words and image["queries"]["pieces"] == [str(place) for place in range(17)]
    assert (first["queries"]["special"], second["queries"]["special"], image["queries"]["special"]) == ([0], [6], [])
    assert second["blocked"] == [0] and "blocked" not in first and "blocked" not in image
    captured = built(bart, lambda model: model(input_ids=ids(1, 6), decoder_input_ids=ids(1, 5)))
    encoder, decoder, cross = sets_of(polyhead.view(captured, tokens=list("abcde"), keys=list("uvwxyz"), annotations=polyhead.Annotations(special=([1, 0, 0, 0, 0], None), block_keys=[0, 0, 0, 0, 0, 1])))
    assert [side["pieces"] for side in (encoder["queries"], decoder["queries"], cross["queries"], cross["keys"])] == [list("uvwxyz"), list("abcde"), list("abcde"), list("uvwxyz")]
    assert cross["queries"]["special"] == [0] and encoder["blocked"] == cross["blocked"] == [5] and "blocked" not in decoder


def of_blocks(maps: Any, height: int, width: int, how: Callable[[Any], Any]) -> Any:
    def bands(size: int, count: int) -> list[slice]:
        return [slice(i * size // count, (i + 1) * size // count) for i in range(count)]

    return np.stack([np.stack([how(maps[..., rows, columns]) for columns in bands(maps.shape[-1], width)], -1) for rows in bands(maps.shape[-2], height)], -2)


def share(block: Any) -> Any:
    return block.sum(-1).mean(-1)


def largest(block: Any) -> Any:
    return block.max((-1, -2))


def test_maps_over_the_budget_are_shown_pooled() -> None:
    torch.manual_seed(3)
    model, inputs = bart().eval(), {"input_ids": ids(2, 23), "decoder_input_ids": ids(2, 11)}
    whole = capture(model, lambda model: model(**inputs))
    encoder = np.stack([call.maps for call in whole if "encoder_layers" in call.name or ".encoder.layers" in call.name])
    one_layer = 2 * 2 * 23 * 23 * 4
    captured = capture(model, lambda model: model(**inputs), budget=one_layer, pooled=(5, 4))
    entries = sets_of(polyhead.view(captured, tokens=[list("abcdefghijk")] * 2, keys=[[f"k{place}" for place in range(23)]] * 2))
    names = ["Encoder · layer 0", "Encoder · Pooled", "Decoder", "Cross-attention"]
    assert [entry["name"] for entry in entries] == names * 2 and [entry["layers"] for entry in entries[:4]] == [1, 2, 3, 3]
    for text in range(2):
        first, pooled = entries[4 * text : 4 * text + 2]
        assert np.abs(weights(first) - encoder[:1, text]).max() <= BOUND and "pooled" not in first
        assert (pooled["pooled"], pooled["blocks"], pooled["queries"]["pieces"][-1]) == ("share", [5, 4], "k22")
        assert np.abs(pooled_weights(pooled) - of_blocks(encoder[:, text], 5, 4, share)).max() <= BOUND + 1e-6
    only = capture(model, lambda model: model(**inputs), keep=["pooled_map"], pooled=(5, 4))
    assert [(entry["name"], entry["pooled"]) for entry in sets_of(polyhead.view(only))[:3]] == [("Encoder", "share"), ("Decoder", "share"), ("Cross-attention", "share")]
    (alone, _) = sets_of(polyhead.view(only.select("model.encoder.")))
    assert "name" not in alone and alone["blocks"] == [5, 4] and len(alone["queries"]["pieces"]) == 23
    with pytest.raises(ValueError, match="special may be given only for maps of single tokens; the cells of pooled maps are blocks of tokens"):
        polyhead.view(only, annotations=polyhead.Annotations(special=[[0] * 23] * 2))


def test_steps_of_which_only_pooled_maps_are_there_are_refused() -> None:
    def generate(model: Any) -> None:
        model.generate(prompt, max_new_tokens=6, **DECODING)

    torch.manual_seed(3)
    model, prompt = llama().eval(), ids(1, 6)
    captured = capture(model, generate, budget=600)  # the budget has room for the maps of the prompt only
    with pytest.raises(ValueError, match=r"only pooled maps of the decoder steps of model\.layers\.0.*budget=(\d+)\) has room") as error:
        polyhead.view(captured)
    budget = int(re.search(r"budget=(\d+)", str(error.value)).group(1))  # type: ignore[union-attr]
    assert len(sets_of(polyhead.view(capture(model, generate, budget=budget)))) == 1
    with pytest.raises(ValueError, match="keep did not name 'maps'"):
        polyhead.view(capture(model, generate, keep=["pooled_map"]))


def test_maps_that_do_not_fit_into_a_page_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = built(bart, lambda model: model(input_ids=ids(1, 30), decoder_input_ids=ids(1, 4)))
    encoder = np.stack([call.maps[0] for call in captured if ".encoder.layers" in call.name])
    for how, of in (("largest", largest), ("mean", share), ("sum", share)):
        monkeypatch.setattr("polyhead._view_capture.block_limit", lambda heads: 6)
        entry = sets_of(polyhead.view(captured, size=polyhead.PageSize(pooling=how)))[0]
        assert entry["blocks"] == [6, 6] and np.abs(pooled_weights(entry) - of_blocks(encoder, 6, 6, of)).max() <= BOUND + 1e-6
    monkeypatch.setattr(polyhead._core, "most_attention_weights", 2 * 2 * 30 * 30 + 3 * 4 * 4 * 4 + 3 * 4 * 4 * 30 - 1)
    entries = sets_of(polyhead.view(captured))
    assert [(entry["name"], entry.get("pooled")) for entry in entries] == [("Encoder", "largest"), ("Decoder", None), ("Cross-attention", None)]
    assert np.abs(pooled_weights(entries[0]) - of_blocks(encoder, 6, 6, largest)).max() <= BOUND + 1e-6
    monkeypatch.setattr(polyhead._core, "most_attention_weights", 100)
    with pytest.raises(ValueError, match=r"attention weights of 3 sequences, and a page holds 100; captured.select\(prefix\) selects some modules, and a smaller batch"):
        polyhead.view(captured)


def test_messages_name_the_remedy() -> None:
    torch.manual_seed(3)
    model, inputs = bart().eval(), {"input_ids": ids(1, 6), "decoder_input_ids": ids(1, 5)}
    captured = capture(model, lambda model: model(**inputs))
    with pytest.raises(ValueError, match=r"call of attention; call the model inside of `with polyhead.capture\(model\)"):
        polyhead.view(polyhead.Capture())
    with pytest.raises(ValueError, match=r"no call of attention: no name starts with 'decoder'; there are model.encoder.layers.0.self_attn"):
        polyhead.view(captured.select("decoder"))
    with pytest.raises(ValueError, match=r"neither maps nor pooled maps of .*: keep did not name 'maps'; use capture\(model, keep=\['maps'\]\)"):
        polyhead.view(capture(model, lambda model: model(**inputs), keep=["statistics"]))
    small = capture(model, lambda model: model(**inputs), budget=300)
    with pytest.raises(ValueError, match=r"no maps of .*they exceed the budget; capture\(model, budget=(\d+)\) has room for the maps of all 8 calls; view\(captured\) shows") as error:
        small.layers()
    budget = int(re.search(r"budget=(\d+)", str(error.value)).group(1))  # type: ignore[union-attr]
    assert all(call.maps is not None for call in capture(model, lambda model: model(**inputs), budget=budget))
    assert any(call.maps is None for call in capture(model, lambda model: model(**inputs), budget=budget - 1))
    with pytest.raises(ValueError, match=r"pooling is 'largest', and the capture holds only pooled means .*budget=\d+.*pooling='mean'"):
        polyhead.view(small, size=polyhead.PageSize(pooling="largest"))
    with pytest.raises(ValueError, match=r"different shapes.*view\(captured\) shows a tab for each shape"):
        captured.layers()
    for options, message in (
        ({"tokens": list("abc")}, r"tokens has 3 entries, and no set of the capture has so many tokens: Encoder: 6 queries, 6 keys; .*captured.select\(prefix\)"),
        ({"tokens": [list("abcde")] * 2}, "there are words for 2 texts; the capture has Encoder: a batch of 1"),
        ({"annotations": polyhead.Annotations(links=[(7, 0)])}, "links fit no cross-attention of the capture, which has Encoder: 6 queries and 6 keys"),
        ({"computation": polyhead.Computation(gate=np.zeros((1, 1, 6, 2))), "annotations": polyhead.Annotations(axes=("a", "b"))}, r"axes and gate may be given only for a capture with one set of maps, neither pooled nor joined from decoding steps; this capture has 3 sets: Encoder, Decoder, Cross-attention; captured.select\(prefix\)"),
        ({"annotations": polyhead.Annotations(special=[1, 0, 0])}, "special must be a pair here"),
    ):
        with pytest.raises(ValueError, match=message):
            polyhead.view(captured, **options)
    with pytest.raises(ValueError, match="keys are given, but in this capture queries and keys are the same tokens"):
        polyhead.view(built(clip, lambda model: model(input_ids=ids(2, 7), **images(1, 16))), keys=[list("abcdefg")] * 2)
    with pytest.raises(ValueError, match=r"all of the same shape; polyhead.capture\(model\) takes the maps of a model whose layers differ"):
        polyhead.view([np.zeros((2, 4, 4)), np.zeros((2, 5, 5))])
