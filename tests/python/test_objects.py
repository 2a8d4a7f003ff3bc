"""How the package's objects behave in a session: copies, pickles, what they print, what is loaded when."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import polyhead

Rng = np.random.Generator
X = np.linspace(-1, 1, 2 * 5 * 8, dtype=np.float32).reshape(2, 5, 8)
COPIES: dict[str, Callable[[polyhead.MultiHeadAttention], polyhead.MultiHeadAttention]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_copy_of_a_layer_is_another_equal_layer(how: str, dtype: str) -> None:
    layer = polyhead.MultiHeadAttention(8, 2, gate=True, add_bias_kv=True, head_width=3, scale=0.3, dtype=dtype, seed=5)
    layer.parameters["q.weight"][0, 0] = 2
    layer.causal = True
    twin = COPIES[how](layer)
    x = X.astype(dtype)
    assert twin.config == layer.config and twin.causal and np.array_equal(twin(x), layer(x))
    twin.parameters["q.weight"][0, 0] = 3
    assert layer.parameters["q.weight"][0, 0] == 2


def test_loaded_layers_can_be_copied(tmp_path: Path) -> None:
    polyhead.save(polyhead.MultiHeadAttention(8, 2, seed=5), tmp_path / "layer.safetensors", layout="gpt2")
    layer = polyhead.load(tmp_path / "layer.safetensors", "gpt2", heads=2)
    twin = copy.deepcopy(layer)
    assert layer.causal and twin.causal and np.array_equal(twin(X), layer(X))


@pytest.mark.parametrize("layout", ["torch", "gpt2"])
def test_a_file_that_changes_does_not_change_what_was_loaded(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    polyhead.save(polyhead.MultiHeadAttention(8, 2, seed=5), path, layout=layout)
    layer = polyhead.load(path, layout, heads=2)
    size = path.stat().st_size
    with open(path, "r+b") as file:  # in place: the same file, other bytes
        file.write(b"\xff" * size)
    assert np.array_equal(layer(X, causal=0), polyhead.MultiHeadAttention(8, 2, seed=5)(X, causal=0))
    os.truncate(path, 0)
    layer.parameters["q.weight"][...] = 0
    assert not np.array_equal(layer(X, causal=0), polyhead.MultiHeadAttention(8, 2, seed=5)(X, causal=0))


def test_parameters_gradients_of_no_position_at_all_are_zero() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, gate=True, add_bias_kv=True, add_zero_attn=True)
    for x in (X, X, X[:, :0]):  # the first calls leave memory with numbers in it
        _, saved = layer.forward(x)
        gradients = saved.backward(np.ones_like(x)).parameters
        assert gradients is not None and gradients.keys() == layer.parameters.keys()
        assert all(np.any(gradient) == bool(x.size) for gradient in gradients.values())


def test_maps_of_a_pass_that_was_kept_have_the_shape_of_its_input() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, add_zero_attn=True)
    _, saved = layer.forward(X, X[:, :3])
    layer(X[:1])
    assert saved.maps().shape == (2, 2, 5, 4)


def test_what_they_print() -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    assert repr(layer) == "MultiHeadAttention(query_width=8, heads=2, head_width=4, dtype='float32')"
    assert repr(layer.forward(X)[1]) == "<polyhead.Saved of a query [2, 5, 8]>"


@pytest.mark.parametrize("dtype", [np.float64, np.dtype("float64"), "float64", float, "torch"])
def test_dtypes_may_be_numpys_and_torchs(dtype: type[np.generic]) -> None:
    given = pytest.importorskip("torch").float64 if dtype == "torch" else dtype
    assert polyhead.MultiHeadAttention(8, 2, dtype=given).config["dtype"] == "float64"


def test_what_belongs_to_torch_is_said_to(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(8, 2)
    with pytest.raises(TypeError, match="MultiheadAttention; .*state_dict"):
        polyhead.load(module)
    torch.save(module.state_dict(), tmp_path / "layer.pt")
    with pytest.raises(ValueError, match="layer.pt.*torch.load"):
        polyhead.load(tmp_path / "layer.pt")
    polyhead.load(torch.load(tmp_path / "layer.pt", weights_only=True), heads=2)
    with pytest.raises(ValueError, match="^the mapping: it does not say how many heads"):
        polyhead.load(module.state_dict())
    with pytest.raises(OSError, match="none.pt"):
        polyhead.load(tmp_path / "none.pt")


def test_completion_offers_the_public_names() -> None:
    assert {*dir(polyhead)} == {*polyhead.__all__, "distributed", "torch", "transformers"}


@pytest.mark.parametrize("dtype", [np.int64, np.dtype(object)])
def test_dtypes_that_no_layer_has_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(ValueError, match="dtype"):
        polyhead.MultiHeadAttention(8, 2, dtype=dtype)


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_subpackages_are_loaded_when_they_are_named(name: str) -> None:
    pytest.importorskip(name)
    code = f"import sys, polyhead; before = 'torch' in sys.modules; polyhead.{name}; print(before, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    assert result.stdout.strip() == "False True", result.stderr


def test_attention_over_ranks_loads_torch_when_a_function_of_tensors_is_named() -> None:
    pytest.importorskip("torch")
    code = "import sys, polyhead; before = 'polyhead.distributed' in sys.modules; polyhead.distributed.sdpa; print(before, 'torch' in sys.modules); polyhead.distributed.attention; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    assert result.stdout.split() == ["False", "False", "True"], result.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spda'"):
        polyhead.spda  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["layer.pt", "layer", "layer.npy"])
def test_save_names_the_formats_that_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path is .*\.safetensors or \.npz"):
        polyhead.save(polyhead.MultiHeadAttention(8, 2), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_paths_of_npz_may_be_bytes(tmp_path: Path) -> None:
    layer = polyhead.MultiHeadAttention(8, 2, seed=3)
    path = os.fsencode(tmp_path / "layer.npz")
    polyhead.save(layer, path)
    assert np.array_equal(polyhead.load(path, heads=2)(X), layer(X))


@pytest.mark.parametrize("key", ["num_attention_heads", "num_heads", "n_head"])
def test_a_models_folder_says_how_many_heads(key: str, tmp_path: Path) -> None:
    layer = polyhead.MultiHeadAttention(8, 4, seed=3)
    polyhead.save(layer, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="heads="):
        polyhead.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({key: 4}))
    assert polyhead.load(tmp_path).config["heads"] == 4
    assert polyhead.load(tmp_path, heads=2).config["heads"] == 2
    for useless in ("[]", "{", '{"n_head": "four"}', '{"n_head": true}'):
        (tmp_path / "config.json").write_text(useless)
        with pytest.raises(ValueError, match="heads="):
            polyhead.load(tmp_path)


# --- pages


def probabilities(rng: Rng, *shape: int) -> np.ndarray:
    p = rng.random(shape, dtype=np.float32)
    return p / p.sum(-1, keepdims=True)


def test_a_list_of_layers_is_a_page_of_all(rng: Rng) -> None:
    p = probabilities(rng, 3, 2, 4, 4)
    whole = polyhead.view(p).html
    assert polyhead.view(list(p)).html == polyhead.view(tuple(layer[None] for layer in p)).html == whole
    assert polyhead.view(list(p[:2])).html != whole


def test_a_list_that_is_no_page_is_refused(rng: Rng) -> None:
    p = probabilities(rng, 2, 2, 4, 4)
    for wrong in ([p[0], p[0, :1]], [p, p[:1]], [p[0, 0]]):
        with pytest.raises(ValueError, match="source is a list"):
            polyhead.view(wrong)
    for wrong in ([], ["a"], p.tolist()):
        with pytest.raises(TypeError, match="source"):
            polyhead.view(wrong)
    torch = pytest.importorskip("torch")
    layers = [torch.tensor(layer) for layer in p]
    assert polyhead.view(layers).html == polyhead.view(p).html
    halves = [layer.bfloat16() for layer in layers]
    assert polyhead.view(halves).html == polyhead.view(torch.stack(halves)).html != polyhead.view(p).html
    with pytest.raises(TypeError, match="floating"):
        polyhead.view([layer.int() for layer in layers])
    with pytest.raises(TypeError, match="source requires grad"):
        polyhead.view([layer.requires_grad_() for layer in layers])


def test_a_model_needs_a_text_and_has_its_own_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="text is missing"):
        polyhead.view(tmp_path)
    with pytest.raises(ValueError, match="tokens: for attention weights; source is the folder of a model"):
        polyhead.view(tmp_path, "a text", tokens=["a"])


class Frame(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_notebook_shows_the_whole_page_in_a_frame_of_its_own(rng: Rng) -> None:
    page = polyhead.view(probabilities(rng, 1, 2, 3, 3), tokens=['"', "</script>", "&"])
    frame = Frame()
    frame.feed(page._repr_html_())
    [(tag, attributes)] = frame.tags  # nothing of the page leaks into the notebook
    assert tag == "iframe" and attributes["srcdoc"] == page.html
    assert repr(page).startswith("<polyhead.Page, ")


def test_a_page_is_made_of_text(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="text"):
        polyhead.Page(3)  # type: ignore[arg-type]
    polyhead.Page("<p>ä").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == "<p>ä".encode()
