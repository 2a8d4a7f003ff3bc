"""Opens, in Python, models that `polyhead train` made."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyhead

RANDOM = np.random.default_rng(5)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a model of images, whose class says which quarter is bright. Returns a folder with the model and with data.safetensors, its data."""
    folder = tmp_path_factory.mktemp("images")
    labels = RANDOM.integers(0, 4, 60)
    pixels = RANDOM.integers(0, 8, (60, 4, 4)).astype(np.float32)
    for image, label in zip(pixels, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 8
    arrays = {"images": ("F32", pixels), "labels": ("I64", labels.astype(np.int64))}
    header, at = {}, 0
    for name, (dtype, array) in arrays.items():
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    (folder / "data.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for _, array in arrays.values()))
    np.save(folder / "images.npy", pixels)
    run("train", "digits", "--data", folder / "data.safetensors", "-o", folder / "model", "--steps", "40")
    return folder


def run(*arguments: object) -> str:
    return subprocess.run([sys.executable, "-m", "polyhead", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_an_image_classifier_answers_as_the_program_does(images: Path) -> None:
    model = polyhead.models.load(images / "model")
    assert isinstance(model, polyhead.models.ImageClassifier)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.config == model.config and all(np.array_equal(x, model.parameters[name]) for name, x in twin.parameters.items())
    assert model.config["model"] == "polyhead-image-classifier" and model.config["classes"] == 4
    pixels = np.load(images / "images.npy")
    answer = model(pixels[7])
    told = json.loads(run("try", "digits", images / "data.safetensors", "--number", "7", "--model", images / "model", "--json"))
    assert answer.best == told["class"] == np.argmax(answer.probabilities)
    np.testing.assert_allclose(answer.probabilities, told["probabilities"], rtol=1e-12)
    layers, heads = model.config["layers"], model.config["heads"]
    assert answer.attentions.shape == (layers, heads, 5, 5) and answer.attentions.dtype == np.float32
    np.testing.assert_allclose(answer.attentions.sum(-1), 1, atol=1e-6)
    assert model.parameters["output.weight"].size == 4 * model.config["model_width"]
    model.parameters["output.weight"][:] = 0  # parameters are a copy, so this does not change the model
    assert np.array_equal(model(pixels[7]).probabilities, answer.probabilities)


def test_a_quantised_folder_has_nearly_the_same_parameters(images: Path, tmp_path: Path) -> None:
    run("quantise", images / "model", "-o", tmp_path / "small")
    before, after = (polyhead.models.load(folder).parameters for folder in (images / "model", tmp_path / "small"))
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert np.abs(values - after[name]).max() <= np.abs(values).max() / 250, name


def test_the_text_classifier_of_the_library() -> None:
    model = polyhead.models.load("sentiment")
    assert isinstance(model, polyhead.models.TextClassifier)
    text = "I am very happy with how it looks, but the manual is too complicated"
    answer = model(text)
    told = json.loads(run("try", "sentiment", text, "--json"))
    assert answer.rating is not None and abs(answer.rating - told["rating"]) < 1e-6
    length, heads = len(answer.pieces), model.config["heads"]
    assert answer.attentions.shape == (model.config["layers"], heads, length, length) and answer.pooling.shape == (heads, length)
    np.testing.assert_allclose(answer.pooling.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(answer.attentions.sum(-1), 1, atol=1e-6)
    assert answer.probabilities == {} and answer.head_parts.shape == (heads,)


def test_the_translator_of_the_library() -> None:
    model = polyhead.models.load("grammar")
    assert isinstance(model, polyhead.models.Translator)
    answer = model("The small red car is parked outside")
    assert answer.text == "La petite voiture rouge est garée dehors" and answer.complete
    words = [(answer.source_words[s], t) for s, t in zip(answer.alignment, answer.target_words, strict=True)]
    assert words == [("The", "La"), ("small", "petite"), ("car", "voiture"), ("red", "rouge"), ("is", "est"), ("parked", "garée"), ("outside", "dehors")]
    layers, heads, source, target = model.config["layers"], model.config["heads"], len(answer.source_pieces), len(answer.target_pieces)
    assert answer.attentions.shape == (layers, heads, target, source)
    assert answer.source_attentions.shape == (layers, heads, source, source) and answer.target_attentions.shape == (layers, heads, target, target)
    np.testing.assert_allclose(answer.attentions.sum(-1), 1, atol=1e-6)
    assert np.array_equal(np.triu(answer.target_attentions[0, 0], 1), np.zeros((target, target)))
    assert answer.source_pieces[-1] == "<end>" and answer.target_pieces[0] == "<start>"
    assert model("The small red car is parked outside", beams=3).text == answer.text


def test_the_models_of_digits_and_summaries_of_the_library() -> None:
    assert polyhead.models.names() == ["digits", "grammar", "sentiment", "summary"]
    digits, summary = polyhead.models.load("digits"), polyhead.models.load("summary")
    assert isinstance(digits, polyhead.models.ImageClassifier) and isinstance(summary, polyhead.models.SentenceChooser)
    image = np.zeros((8, 8), np.float32)
    image[1:7, 3:5] = digits.config["white"]  # an upright line
    answer = digits(image)
    assert answer.best == 1 and answer.attentions.shape == (4, 4, 17, 17)
    chosen = summary(["Long texts take time to read.", "We propose a reader that keeps one sentence.", "Experiments show that editors agree with it."])
    assert chosen.best == 1 and chosen.attentions.shape == (1, 4, 3, 3)
    assert [int(np.argmax(head.mean(0))) for head in chosen.attentions[0, : summary.config["taught_heads"]]] == [0, 1, 2]


def test_a_sentence_chooser_answers_as_the_program_does(tmp_path: Path) -> None:
    abstracts = [{"source": [f"Some clocks move at {i}.", "We propose maps.", "Others wait."], "target": ["Maps."]} for i in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in abstracts))
    run("train", "summarise", "--data", tmp_path / "data.jsonl", "-o", tmp_path / "model", "--steps", "10")
    model = polyhead.models.load(tmp_path / "model")
    assert isinstance(model, polyhead.models.SentenceChooser)
    text = "The clocks stop. We propose a map. It is late."
    answer = model(text)
    told = json.loads(run("try", "summarise", text, "--model", tmp_path / "model", "--json"))
    assert answer.sentences == told["sentences"] == ["The clocks stop.", "We propose a map.", "It is late."]
    assert answer.best == told["chosen"] == np.argmax(answer.scores)
    np.testing.assert_allclose(answer.scores, told["scores"], rtol=1e-12)
    assert answer.attentions.shape == (model.config["layers"], model.config["heads"], 3, 3)
    assert np.array_equal(model(answer.sentences).scores, answer.scores)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.config == model.config and np.array_equal(twin(text).scores, answer.scores)


def test_wrong_arguments_are_refused_by_name(images: Path) -> None:
    digits, sentiment, grammar = (polyhead.models.load(source) for source in (images / "model", "sentiment", "grammar"))
    calls: list[tuple[Callable[..., Any], str, dict[str, Any], list[Any], list[Any]]] = [
        (polyhead.models.load, "source", {}, [3, None, object(), ["a"]], ["\0", "nothing"]),
        (digits, "image", {}, [3, "x", None, [[1.0]]], [np.ones((4, 4, 1), np.float32), np.ones((4, 5), np.float32), np.full((4, 4), np.nan, np.float32)]),
        (sentiment, "text", {}, [3, None, b"fine"], ["\ud800", "", "word " * 300]),
        (grammar, "text", {}, [3, None, b"fine"], ["\ud800", "", "car " * 300]),
        (grammar, "beams", {"text": "The car is red"}, [1.5, "2", None, True], [0, -1, 2**70]),
    ]
    for call, name, others, types, values in calls:
        for kind, value in [(TypeError, x) for x in types] + [(ValueError, x) for x in values]:
            with pytest.raises(kind, match=name if name != "image" else "image|pixel"):
                call(**{name: value, **others})


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="source: '.*nothing' is no folder that `polyhead train` made"):
        polyhead.models.load(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"model_type": "polyhead-image-classifier"}')
    with pytest.raises(ValueError, match=r"config\.json: height is missing"):
        polyhead.models.load(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in polyhead.models.names():
        Path(name).mkdir()
        with pytest.raises(ValueError, match=f"source: '{name}' is a model of polyhead and also a folder here; give './{name}' for the folder"):
            polyhead.models.load(name)
