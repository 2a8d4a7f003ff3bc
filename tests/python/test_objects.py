"""Tests copies, pickles and repr of the package's objects, and which modules an import loads."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
    layer = polyhead.MultiHeadAttention(8, 2, gate=True, add_bias_kv=True, head_width=3, qk_norm=True, scale=0.3, dtype=dtype, seed=5)
    layer.parameters["q.weight"][0, 0] = 2
    layer.parameters["k_norm.weight"][1] = 3
    layer.causal = True
    twin = COPIES[how](layer)
    x = X.astype(dtype)
    assert twin.config == layer.config and twin.causal and np.array_equal(twin(x), layer(x))
    twin.parameters["q.weight"][0, 0] = 3
    assert layer.parameters["q.weight"][0, 0] == 2


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_layer_of_bfloat16_or_frozen_or_of_a_subclass(how: str) -> None:
    class Named(polyhead.MultiHeadAttention):
        title = ""

    globals()["Named"], Named.__qualname__ = Named, "Named"
    torch = pytest.importorskip("torch")
    layer = polyhead.MultiHeadAttention(8, 2, sink=True, dtype="bfloat16", seed=5)
    x = torch.tensor(X, dtype=torch.bfloat16)
    assert torch.equal(COPIES[how](layer)(x), layer(x))
    frozen = COPIES[how](layer.frozen())
    assert frozen.is_frozen and torch.equal(frozen(x), layer(x))
    named = Named(8, 2, axis=-3, seed=5)
    named.title = "first"
    twin = COPIES[how](named)
    assert type(twin) is Named and twin.title == "first" and twin.config == named.config


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
def test_a_copy_of_a_cache_goes_on_as_the_cache(how: str, dtype: str, rng: Rng) -> None:
    torch = pytest.importorskip("torch")
    as_torch = dtype in ("bfloat16",)

    def tokens(count: int) -> list[Any]:
        arrays = [rng.standard_normal((3, 2, count, width)).astype(np.float32) for width in (4, 5)]
        return [torch.tensor(x) for x in arrays] if as_torch else arrays

    cache = polyhead.KeyValueCache(3, 2, 20, 4, value_head_width=5, dtype=dtype)
    for count, new in ((4, [4, 0, 2]), (5, [1, 0, 5])):
        cache.append(*tokens(count), np.array(new))
    twin = COPIES[how](cache)
    assert twin.config == cache.config and repr(twin) == repr(cache)

    def bits(of: polyhead.KeyValueCache) -> list[bytes]:
        lengths, previous, parts = of._cache.state()
        assert lengths == of.lengths.tolist()
        return [*parts, bytes(lengths), bytes(previous)]

    assert bits(twin) == bits(cache) and twin.lengths.tolist() == [5, 0, 7]
    assert {name: np.asarray(x).tolist() for name, x in twin.mask().items()} == {name: np.asarray(x).tolist() for name, x in cache.mask().items()}
    before = bits(cache)
    more = tokens(3)
    twin.append(*more)
    assert bits(cache) == before  # the copy has its own memory
    cache.append(*more)
    assert bits(twin) == bits(cache)
    cache.reorder([2, 2, 0])
    twin.reorder([2, 2, 0])
    assert bits(COPIES[how](twin)) == bits(cache)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_cache_without_tokens_or_on_other_memory(how: str) -> None:
    empty = COPIES[how](polyhead.KeyValueCache(0, 2, 4, 4))
    assert empty.lengths.tolist() == [] and empty.config["capacity"] == 4
    assert COPIES[how](polyhead.KeyValueCache(2, 1, 4, 4)).keys.shape == (2, 1, 0, 4)
    memory = np.arange(2 * 3 * 8 * 4, dtype=np.float32).reshape(2, 8, 3, 4).swapaxes(1, 2)
    values = memory.copy()
    cache = polyhead.KeyValueCache.on(memory, values, [2, 8])
    twin = COPIES[how](cache)
    assert np.array_equal(twin.keys, cache.keys) and np.array_equal(twin.values, cache.values)
    memory[...] = 0
    assert twin.keys.any() and not cache.keys.any()


SCALINGS: list[dict[str, Any]] = [
    {},
    {"order": "pairs", "base": 5e5},
    {"scaling": "linear", "factor": 4.0},
    {"scaling": "ntk", "factor": 2.0},
    {"scaling": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    {"scaling": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": False},
    {"scaling": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.3},
    {"scaling": "longrope", "factor": 4.0, "original_max_position_embeddings": 4096, "factors": [1.0, 1.5, 2.0, 4.0]},
    {"scaling": "proportional", "factor": 2.0, "proportion": 0.5},
]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("options", SCALINGS)
def test_a_copy_of_a_rotary_embedding_makes_the_same_tables(how: str, options: dict[str, Any]) -> None:
    rotary = polyhead.RotaryEmbedding(8, **options)
    twin = COPIES[how](rotary)
    assert twin.frequencies == rotary.frequencies and twin.attention_factor == rotary.attention_factor and repr(twin) == repr(rotary)
    for a, b in zip(twin(np.arange(9), dtype="float64"), rotary(np.arange(9), dtype="float64")):
        assert np.array_equal(a, b)


QUESTIONS: dict[str, Any] = {
    "ImageClassifier": np.eye(8, dtype=np.float32),
    "SentenceChooser": "It rains. We measure the rain.",
    "TextClassifier": "The rooms are lovely, but the staff was rude.",
    "Translator": "the day before yesterday",
}
ANSWERS = {"ImageClassifier": "ClassifiedImage", "SentenceChooser": "ChosenSentence", "TextClassifier": "ClassifiedText", "Translator": "Translation"}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", polyhead.models.names())
def test_a_copy_of_a_trained_model_gives_the_same_answers(how: str, name: str) -> None:
    model = polyhead.models.load(name)
    twin = COPIES[how](model)
    question = QUESTIONS[type(model).__name__]
    for a, b in zip(twin(question), model(question)):
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
    assert type(twin) is type(model) and twin.config == model.config and repr(twin) == repr(model)
    assert twin.parameters.keys() == model.parameters.keys() and all(np.array_equal(x, model.parameters[key]) for key, x in twin.parameters.items())


def test_a_module_that_holds_such_objects_is_copied_and_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    module.rotary, module.cache = polyhead.RotaryEmbedding(8), polyhead.KeyValueCache(1, 1, 4, 8)
    module.model, module.layer = polyhead.models.load(polyhead.models.names()[0]), polyhead.MultiHeadAttention(8, 2)
    average = torch.optim.swa_utils.AveragedModel(module)
    assert average.module.rotary.frequencies == copy.deepcopy(module).rotary.frequencies
    torch.save(module, tmp_path / "module.pt")
    assert torch.load(tmp_path / "module.pt", weights_only=False).cache.config == module.cache.config


def public_classes() -> dict[str, type]:
    """Returns the public classes of which a caller can have an object. Protocols, which are only for annotations, are left out."""
    found: dict[str, type] = {}
    for name in ("polyhead", "polyhead.models", "polyhead.torch", "polyhead.distributed", "polyhead.patch"):
        try:
            module = importlib.import_module(name)
        except ImportError:  # torch is not installed
            continue
        for word in module.__all__:
            value = getattr(module, word)
            if isinstance(value, type) and not getattr(value, "_is_protocol", False):
                found[f"{name}.{word}"] = value
    return found


def examples() -> dict[str, Callable[[], Any]]:
    """Returns, for each public class, a function that makes an object of the class."""
    q = np.ones((1, 2, 3, 4), np.float32)
    out, lse = polyhead.sdpa(q, q, q, return_lse=True)
    layer = polyhead.MultiHeadAttention(8, 2)
    made: dict[str, Callable[[], Any]] = {
        "polyhead.MultiHeadAttention": lambda: layer,
        "polyhead.Saved": lambda: layer.forward(X)[1],
        "polyhead.LayerGradients": lambda: layer.forward(X)[1].backward(X),
        "polyhead.Gradients": lambda: polyhead.sdpa_backward(q, q, q, out, lse, q),
        "polyhead.TopKeys": lambda: polyhead.maps(q, q, top_k=2),
        "polyhead.Rotary": lambda: polyhead.RotaryEmbedding(4)(np.arange(3)),
        "polyhead.RelativeBias": lambda: polyhead.RelativeBias(slopes=np.ones(2, np.float32)),
        "polyhead.Tangents": lambda: polyhead.Tangents(q=q),
        "polyhead.SecondGradients": lambda: polyhead.sdpa_backward_backward(q, q, q, out, lse, q, polyhead.Tangents(q=q)),
        "polyhead.KeyValueCache": lambda: polyhead.KeyValueCache(1, 2, 3, 4),
        "polyhead.RotaryEmbedding": lambda: polyhead.RotaryEmbedding(4),
        "polyhead.Annotations": lambda: polyhead.Annotations(special=["<s>"], axes=("query", "key")),
        "polyhead.Computation": lambda: polyhead.Computation(q, q, scale=0.5),
        "polyhead.PageSize": lambda: polyhead.PageSize("mean", 100),
        "polyhead.ModelCall": lambda: polyhead.ModelCall(generate=3),
        "polyhead.Page": lambda: polyhead.Page("<p>"),
        "polyhead.Capture": lambda: captured(),
        "polyhead.CapturedCall": lambda: polyhead.CapturedCall("a", "softmax", (1, 1, 2, 2)),
        "polyhead.MissedCall": lambda: polyhead.MissedCall("a", "why"),
        "polyhead.torch.MultiheadAttention": lambda: polyhead.torch.MultiheadAttention(8, 2),
        "polyhead.torch.GatedAttention": lambda: polyhead.torch.GatedAttention(8, 4, 2),
        "polyhead.patch.Patch": lambda: object.__new__(polyhead.patch.Patch),
        "polyhead.torch.SdpaReplacement": polyhead.torch.sdpa,
        "polyhead.distributed.TorchCommunicator": lambda: object.__new__(polyhead.distributed.TorchCommunicator),
        "polyhead.distributed.MpiCommunicator": lambda: object.__new__(polyhead.distributed.MpiCommunicator),
    }
    for model in map(polyhead.models.load, polyhead.models.names()):
        kind = type(model).__name__
        made[f"polyhead.models.{kind}"] = functools.partial(lambda given: given, model)
        made[f"polyhead.models.{ANSWERS[kind]}"] = functools.partial(model, QUESTIONS[kind])
    made["polyhead.models.ModelFamily"] = lambda: polyhead.models.families()[0]
    made["polyhead.models.LanguageRun"] = lambda: polyhead.models.LanguageRun(logits=q)
    made["polyhead.models.SequenceToSequenceRun"] = lambda: polyhead.models.SequenceToSequenceRun(logits=q)
    made["polyhead.models.VisionEncoderRun"] = lambda: polyhead.models.VisionEncoderRun(hidden=q)
    made["polyhead.models.TextSideRun"] = lambda: polyhead.models.TextSideRun(hidden=q)
    made["polyhead.models.TextEncoderRun"] = lambda: polyhead.models.TextEncoderRun(hidden=q)
    return made


def captured() -> polyhead.Capture:
    torch = pytest.importorskip("torch")
    layer = torch.nn.MultiheadAttention(8, 2)
    with polyhead.capture(layer) as result:
        layer(*[torch.ones(3, 1, 8)] * 3)
    return result  # type: ignore[no-any-return]


# Objects of these classes are made and copied in test_models.py, test_language_models.py, test_two_sided_models.py, test_image_models.py and test_encoders.py.
TRAINED = {
    f"polyhead.models.{kind}"
    for kind in ("ImageTextModel", "LanguageModel", "SequenceToSequenceModel", "TextEncoder", "TextSide", "VisionEncoder")
}
REFUSED = {"polyhead.Saved", "polyhead.patch.Patch", "polyhead.torch.SdpaReplacement", "polyhead.distributed.TorchCommunicator", "polyhead.distributed.MpiCommunicator"}


@pytest.mark.parametrize("name", sorted(public_classes().keys() - TRAINED))
def test_objects_of_every_public_class_are_copied_or_say_what_to_do(name: str) -> None:
    made = examples()
    assert name in made, f"a new public class: {name} needs an example here"
    given = made[name]()
    for how, copied in COPIES.items():
        if name in REFUSED:
            with pytest.raises(TypeError, match=r"cannot be copied or pickled, as .*; (call|make|copy)"):
                copied(given)
        else:
            twin = copied(given)
            assert type(twin) is type(given), how
            assert isinstance(given, (tuple, polyhead.Capture, polyhead.Page)) or repr(twin) == repr(given)


def test_loaded_layers_can_be_copied(tmp_path: Path) -> None:
    polyhead.save(polyhead.MultiHeadAttention(8, 2, seed=5), tmp_path / "layer.safetensors", layout="gpt2", without=["causal"])
    layer = polyhead.load(tmp_path / "layer.safetensors", "gpt2", heads=2)
    twin = copy.deepcopy(layer)
    assert layer.causal and twin.causal and np.array_equal(twin(X), layer(X))


@pytest.mark.parametrize("layout", ["torch", "gpt2"])
def test_a_file_that_changes_does_not_change_what_was_loaded(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    polyhead.save(polyhead.MultiHeadAttention(8, 2, seed=5), path, layout=layout, without=["causal"])
    layer = polyhead.load(path, layout, heads=2)
    size = path.stat().st_size
    with open(path, "r+b") as file:  # overwrite the bytes of the file
        file.write(b"\xff" * size)
    assert np.array_equal(layer(X, causal=0), polyhead.MultiHeadAttention(8, 2, seed=5)(X, causal=0))
    os.truncate(path, 0)
    layer.parameters["q.weight"][...] = 0
    assert not np.array_equal(layer(X, causal=0), polyhead.MultiHeadAttention(8, 2, seed=5)(X, causal=0))


def test_parameters_gradients_of_no_position_at_all_are_zero() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, gate=True, add_bias_kv=True, add_zero_attn=True)
    for x in (X, X, X[:, :0]):  # the first calls leave numbers other than 0 in memory that the last call reuses
        _, saved = layer.forward(x)
        gradients = saved.backward(np.ones_like(x)).parameters
        assert gradients is not None and gradients.keys() == layer.parameters.keys()
        assert all(np.any(gradient) == bool(x.size) for gradient in gradients.values())


def test_maps_of_a_pass_that_was_kept_have_the_shape_of_its_input() -> None:
    layer = polyhead.MultiHeadAttention(8, 2, add_zero_attn=True)
    _, saved = layer.forward(X, X[:, :3])
    layer(X[:1])
    assert saved.maps().shape == (2, 2, 5, 4)


def test_repr_of_layers_and_rotary_embeddings() -> None:
    layer = polyhead.MultiHeadAttention(8, 2)
    assert repr(layer) == "MultiHeadAttention(query_width=8, heads=2, head_width=4, dtype='float32')"
    layer.causal = True
    assert repr(layer.frozen()) == "MultiHeadAttention(query_width=8, heads=2, head_width=4, dtype='float32', causal=True, frozen=True)"
    other = polyhead.MultiHeadAttention(8, 4, key_width=3, kv_heads=2, value_head_width=5, axis=-3, gate=True, scale=0.5, empty_rows="uniform", dtype="float64")
    assert repr(other) == (
        "MultiHeadAttention(query_width=8, key_width=3, value_width=3, heads=4, kv_heads=2, head_width=2, value_head_width=5, axis=-3, gate=True, scale=0.5, "
        "empty_rows='uniform', dtype='float64')"
    )
    assert repr(polyhead.RotaryEmbedding(8, scaling="linear", factor=2.0)) == "RotaryEmbedding(width=8, base=10000.0, order='halves', scaling='linear', factor=2.0)"
    layer.causal = False
    assert repr(layer.forward(X)[1]) == "<polyhead.Saved of a query [2, 5, 8]>"


@pytest.mark.parametrize("dtype", [np.float64, np.dtype("float64"), "float64", float, "torch"])
def test_dtypes_may_be_numpys_and_torchs(dtype: type[np.generic]) -> None:
    given = pytest.importorskip("torch").float64 if dtype == "torch" else dtype
    assert polyhead.MultiHeadAttention(8, 2, dtype=given).config["dtype"] == "float64"


def test_a_module_of_torch_is_refused_with_the_advice_to_use_its_state_dict(tmp_path: Path) -> None:
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
    assert {*dir(polyhead)} == {*polyhead.__all__, "distributed", "jax", "patch", "torch", "transformers"}


@pytest.mark.parametrize("dtype", [np.int64, np.dtype(object)])
def test_dtypes_that_no_layer_has_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(ValueError, match="dtype"):
        polyhead.MultiHeadAttention(8, 2, dtype=dtype)


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
    with pytest.raises(ValueError, match=r"heads is 2, but '.*config.json' says 4"):
        polyhead.load(tmp_path, heads=2)
    assert polyhead.load(tmp_path, heads=4).config["heads"] == 4
    assert polyhead.load(tmp_path / "model.safetensors", heads=2).config["heads"] == 2
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
    with pytest.raises(ValueError, match="tokens may be given only with attention weights; source is the folder of a model"):
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
    [(tag, attributes)] = frame.tags  # the notebook gets one iframe and no other element
    assert tag == "iframe" and attributes["srcdoc"] == page.html
    assert repr(page).startswith("<polyhead.Page, ")


def test_a_page_is_made_of_text(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="text"):
        polyhead.Page(3)  # type: ignore[arg-type]
    polyhead.Page("<p>ä").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == "<p>ä".encode()
