"""Models that ``polyhead train`` made, and small ones that are part of polyhead.

    classifier = polyhead.models.load("reviews")     # a folder, or one of polyhead.models.names()
    answer = classifier("The rooms are lovely, but the staff was rude.")
    print(answer.rating, answer.pooling.shape)

An answer holds the attention weights of every head. They show what a head read, which is no explanation of the answer.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _core
from ._options import Array, NumPyArray

__all__ = [
    "ChosenSentence", "ClassifiedImage", "ClassifiedText", "ImageClassifier", "SentenceChooser",
    "TextClassifier", "Translation", "Translator", "load", "names",
]


class _Model:
    """``config`` holds the sizes by name, ``model`` the kind."""

    def __init__(self, config: dict[str, Any], model: Any) -> None:
        self.config = config
        self._model = model

    @property
    def parameters(self) -> dict[str, NumPyArray]:
        """Copies of all parameters by name."""
        return self._model.parameters()  # type: ignore[no-any-return]

    # The files of the model's folder.
    def __getstate__(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            self._model.save(path)
            files = {}
            for name in sorted(os.listdir(path)):
                with open(os.path.join(path, name), "rb") as file:
                    files[name] = file.read()
        return self.__dict__ | {"_model": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with tempfile.TemporaryDirectory() as folder:
            for name, contents in state["_model"].items():
                with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                    file.write(contents)
            _, _, self._model = _core.load_model(folder, False)

    def __copy__(self) -> _Model:
        return self._with(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Model:
        return self._with({name: value if name == "_model" else copy.deepcopy(value, memo) for name, value in self.__dict__.items()})

    def _with(self, attributes: dict[str, Any]) -> _Model:
        """A model with these attributes; copies share the parameters, which never change."""
        other = type(self).__new__(type(self))
        other.__dict__.update(attributes)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.config.items() if name != 'model')})"


class ClassifiedImage(NamedTuple):
    """An answer of an `ImageClassifier`."""

    best: int  # the class of the largest probability
    probabilities: NumPyArray  # [classes]
    attentions: NumPyArray  # [layers,heads,1 + patches,1 + patches]; 0 is the class token, patches follow row by row


class ImageClassifier(_Model):
    """A Vision Transformer on small grey images."""

    def __call__(self, image: Array) -> ClassifiedImage:
        """`image`: [height,width], floating, from 0 to ``config["white"]``."""
        return ClassifiedImage(**self._model.answer(image))


class ClassifiedText(NamedTuple):
    """An answer of a `TextClassifier`, for a text of T tokens."""

    pieces: list[str]  # T tokens
    rating: float | None  # None from a model of classes
    probabilities: dict[str, float]  # of the classes; empty from a model of ratings
    head_parts: NumPyArray  # [heads], of a rating: what each pooling head adds to it
    score_part: float  # of a rating: what the scores of words, starts of words and pairs add
    attentions: NumPyArray  # [layers,heads,T,T], of the encoder
    pooling: NumPyArray  # [heads,T], which tokens each pooling head reads


class TextClassifier(_Model):
    """Rates a text, or tells its class."""

    def __call__(self, text: str) -> ClassifiedText:
        """ValueError for a text without a token, or with more than ``config["longest"]``."""
        return ClassifiedText(**self._model.answer(text))


class Translation(NamedTuple):
    """An answer of a `Translator`, for S source tokens with the end and T target tokens with the start."""

    text: str
    complete: bool  # False: cut off at config["longest"] tokens
    source_words: list[str]
    target_words: list[str]
    alignment: list[int]  # of each target word the source word that the guided head reads most; -1: the end
    source_pieces: list[str]  # S
    target_pieces: list[str]  # T; row t of a map is what a head read after this token, to choose the next one
    attentions: NumPyArray  # [layers,heads,T,S], of the decoder to the source
    source_attentions: NumPyArray  # [layers,heads,S,S]
    target_attentions: NumPyArray  # [layers,heads,T,T]


class Translator(_Model):
    """Translates a short text, with an encoder and a decoder."""

    def __call__(self, text: str, *, beams: int = 1) -> Translation:
        """`beams`: 1 takes the likeliest token at each step, more search for the likeliest translation."""
        return Translation(**self._model.answer(text, beams))


class ChosenSentence(NamedTuple):
    """An answer of a `SentenceChooser`, for a text of S sentences."""

    best: int  # the index of the sentence chosen
    sentences: list[str]
    scores: NumPyArray  # [S], their sum is 1
    attentions: NumPyArray  # [layers,heads,S,S]


class SentenceChooser(_Model):
    """Chooses the sentence that sums up a text."""

    def __call__(self, text: str | Sequence[str]) -> ChosenSentence:
        """`text`: a text, or a list of its sentences."""
        return ChosenSentence(**self._model.answer(text))


_KINDS: dict[str, type[ImageClassifier | TextClassifier | Translator | SentenceChooser]] = {
    "polyhead-image-classifier": ImageClassifier,
    "polyhead-text-classifier": TextClassifier,
    "polyhead-translator": Translator,
    "polyhead-sentence-chooser": SentenceChooser,
}


def names() -> list[str]:
    """The models that are part of polyhead; MODELS.md of the repository tells what they were trained on."""
    return _core.default_models()


def load(source: str | bytes | os.PathLike[Any]) -> ImageClassifier | TextClassifier | Translator | SentenceChooser:
    """Loads a trained model.

    Args:
        source: a folder that ``polyhead train`` made, or one of `names()`.

    Raises:
        OSError: the folder cannot be read.
        ValueError: it is no folder of such a model, or a name that is also a folder here.
    """
    built_in = isinstance(source, str) and source in names()
    if built_in and os.path.isdir(source):
        raise ValueError(f"source: {source!r} is a model of polyhead and also a folder here; give './{source!s}' for the folder")
    kind, config, model = _core.load_model(source, built_in)
    return _KINDS[kind](config, model)
