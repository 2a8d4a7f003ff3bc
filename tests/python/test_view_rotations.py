"""Pages of models with rotary positions: the rotations on the page turn its q and k back to what transformers' modules computed before the rotation."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import base64  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import polyhead  # noqa: E402
import pytest  # noqa: E402
from test_view import sets_of  # noqa: E402

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import test_encoders  # noqa: E402
import test_language_models  # noqa: E402

WORDS = [f"w{i}" for i in range(61)]
IDS = np.random.default_rng(3).integers(6, 61, 20)


def save_words(folder: Any) -> None:
    """A tokenizer whose token i is the word "w<i>"."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)


def turned_back(rows: np.ndarray, rotary: dict[str, Any], layer: int) -> np.ndarray:
    """Undoes the rotation of `rows` [heads, T, H], as the page's script does."""
    cos, sin = (floats(rotary[name][layer if len(rotary[name]) > 1 else 0][0]).reshape(rows.shape[1], -1) for name in ("cos", "sin"))
    pairs = cos.shape[1]
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if rotary["neighbours"] else (slice(0, pairs), slice(pairs, 2 * pairs))
    before, size = rows.copy(), cos**2 + sin**2
    before[..., first] = (rows[..., first] * cos + rows[..., second] * sin) / size
    before[..., second] = (rows[..., second] * cos - rows[..., first] * sin) / size
    return before


def check(page: Any, heard: dict[str, list[np.ndarray]], layers: int) -> None:
    """Undoes the rotation of the page's q and k, and compares them with `heard`: for "q" and "k" the unrotated output [T, heads * H] of each layer, recorded by hooks."""
    vectors = sets_of(page)[0]["vectors"]
    for name, outputs in heard.items():
        assert len(outputs) == layers
        for layer, output in enumerate(outputs):
            heads = len(vectors[name][layer])
            shown = np.stack([floats(head).reshape(len(IDS), -1) for head in vectors[name][layer]])
            wanted = output.reshape(len(IDS), heads, -1).swapaxes(0, 1)
            assert not np.allclose(shown, wanted, atol=1e-3)  # the rotation changes q and k, so the next line tests something
            np.testing.assert_allclose(turned_back(shown, vectors["rotary"], layer), wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("case", ["llama", "llama, yarn", "llama, longrope, long", "phi3, part of the features", "gemma3"])  # scaled tables, partial rotation, other tables in some layers
def test_rotations_of_decoders(case: str, tmp_path: Any) -> None:
    model = test_language_models.saved_model(case, tmp_path)
    save_words(tmp_path)
    heard: dict[str, list[np.ndarray]] = {"q": [], "k": []}
    packed = case.startswith("phi3")
    for layer in model.model.layers:
        attention = layer.self_attn
        if packed:
            attention.qkv_proj.register_forward_hook(lambda module, inputs, output: (heard["q"].append(output[0, :, :32].double().numpy()), heard["k"].append(output[0, :, 32:48].double().numpy())) and None)
            continue
        for name in heard:
            module = getattr(attention, f"{name}_norm" if case == "gemma3" else f"{name}_proj")
            # gemma3's norm has [B, heads, T, H]
            module.register_forward_hook(lambda module, inputs, output, name=name: heard[name].append((output.transpose(1, 2) if output.ndim == 4 else output)[0].reshape(len(IDS), -1).double().numpy()))
    with torch.no_grad():
        model(torch.from_numpy(IDS[None]))
    page = polyhead.view(tmp_path, " ".join(WORDS[token] for token in IDS))
    check(page, heard, model.config.num_hidden_layers)
    assert (len(sets_of(page)[0]["vectors"]["rotary"]["cos"]) > 1) == (case == "gemma3")


def test_a_page_of_a_model_without_rotary_positions_has_no_rotation(tmp_path: Any) -> None:
    test_language_models.saved_model("gpt2", tmp_path)
    save_words(tmp_path)
    entry = sets_of(polyhead.view(tmp_path, " ".join(WORDS[token] for token in IDS)))[0]
    assert "rotary" not in entry["vectors"] and entry["width"] == 32 and len(entry["value_norms"]) == 3


def test_an_encoder(tmp_path: Any) -> None:
    model = test_encoders.saved_model("esm", tmp_path)
    save_words(tmp_path)
    heard: dict[str, list[np.ndarray]] = {"q": [], "k": []}
    for layer in model.encoder.layer:
        layer.attention.self.query.register_forward_hook(lambda module, inputs, output: heard["q"].append(output[0].double().numpy()))
        layer.attention.self.key.register_forward_hook(lambda module, inputs, output: heard["k"].append(output[0].double().numpy()))
    with torch.no_grad():
        model(torch.from_numpy(IDS[None]), attention_mask=torch.ones(1, len(IDS), dtype=torch.long))
    page = polyhead.view(tmp_path, " ".join(WORDS[token] for token in IDS))
    check(page, heard, model.config.num_hidden_layers)
