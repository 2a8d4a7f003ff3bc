"""Trained models with their attention weights: models that ``polyhead train`` made, small models that are part of polyhead, and encoders, language models,
encoder-decoders and models of images that transformers saved.

    classifier = polyhead.models.load("reviews")     # a folder, or one of polyhead.models.names()
    answer = classifier("The rooms are lovely, but the staff was rude.")
    print(answer.rating, answer.pooling.shape)

An answer of a model holds the attention weights of every head. They show which tokens a head read; they do not explain why the model gave this answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import _core
from ._encoder import TextEncoder, TextEncoderRun
from ._images import ImageTextModel, TextSide, TextSideRun, VisionEncoder, VisionEncoderRun
from ._language import LanguageModel, LanguageRun
from ._saved import SavedByTransformers
from ._trained import ChosenSentence, ClassifiedImage, ClassifiedText, ImageClassifier, SentenceChooser, TextClassifier, Translation, Translator
from ._two_sides import SequenceToSequenceModel, SequenceToSequenceRun

__all__ = [
    "ChosenSentence", "ClassifiedImage", "ClassifiedText", "ImageClassifier", "ImageTextModel", "LanguageModel", "LanguageRun",
    "SentenceChooser", "SequenceToSequenceModel", "SequenceToSequenceRun", "TextClassifier", "TextEncoder", "TextEncoderRun", "TextSide", "TextSideRun", "Translation", "Translator",
    "ModelFamily", "VisionEncoder", "VisionEncoderRun", "families", "load", "names",
]

_AnyModel = ImageClassifier | TextClassifier | Translator | SentenceChooser | LanguageModel | SequenceToSequenceModel | TextEncoder | VisionEncoder | TextSide | ImageTextModel

_KINDS: dict[str, type[_AnyModel]] = {
    "polyhead-image-classifier": ImageClassifier,
    "polyhead-text-classifier": TextClassifier,
    "polyhead-translator": Translator,
    "polyhead-sentence-chooser": SentenceChooser,
    "language-model": LanguageModel,
    "sequence-to-sequence-model": SequenceToSequenceModel,
    "text-encoder": TextEncoder,
    "vision-encoder": VisionEncoder,
    "text-side": TextSide,
    "image-text-model": ImageTextModel,
}


def _load_side(source: str | bytes | os.PathLike[Any], ignored_keys: Iterable[str], side: str | None) -> Any:
    loaded = load(source, ignored_keys)
    return loaded if side is None else getattr(loaded, side)


SavedByTransformers._load_side = staticmethod(_load_side)


class ModelFamily(NamedTuple):
    """A family of models that transformers saves."""

    kind: str
    """``"encoder"``, ``"decoder"``, ``"two sides"``, ``"images"`` or ``"images and texts"``."""
    model_type: str
    """The value of ``model_type`` in config.json."""
    refused: str
    """Why polyhead cannot open a model of this family; empty if polyhead can open it."""


def families() -> list[ModelFamily]:
    """All families of models that polyhead knows: those that `load` and `polyhead.view` open from a folder, and those that they refuse.
    ``polyhead inspect --families`` prints the same list."""
    return [ModelFamily(*family) for family in _core.model_families()]


def names() -> list[str]:
    """The names of the models that are part of polyhead; MODELS.md in the repository says on which data they were trained."""
    return _core.default_models()


def load(
    source: str | bytes | os.PathLike[Any], ignored_keys: Iterable[str] = ()
) -> ImageClassifier | TextClassifier | Translator | SentenceChooser | LanguageModel | SequenceToSequenceModel | TextEncoder | VisionEncoder | TextSide | ImageTextModel:
    """Loads a trained model.

    Args:
        source: a folder that ``polyhead train`` made, one of `names()`, or the folder of an encoder, a decoder, an encoder-decoder or a model of images that
            transformers saved.
        ignored_keys: for a language model or an encoder-decoder: keys of config.json to skip. Any other unknown key is an error, because it might change the results.

    Raises:
        OSError: the folder cannot be read.
        ValueError: source is not a folder of such a model; source is one of `names()` and also a folder in the current directory; or config.json has an unknown
            key.
    """
    built_in = isinstance(source, str) and source in names()
    if built_in and os.path.isdir(source):
        raise ValueError(f"source: {source!r} is a model of polyhead and also a folder here; give './{source!s}' for the folder")
    keys = ignored_keys if isinstance(ignored_keys, str) or not isinstance(ignored_keys, Iterable) else tuple(ignored_keys)
    kind, config, model = _core.load_model(source, built_in, keys)
    loaded = _KINDS[kind](config, model)
    if isinstance(loaded, SavedByTransformers):
        loaded._source = source if isinstance(source, bytes) else os.path.abspath(os.fspath(source))
        loaded._ignored_keys = tuple(keys)
    if isinstance(loaded, ImageTextModel):
        loaded.vision, loaded.text = VisionEncoder(config["vision"], model.vision), TextSide(config["text"], model.text)
        for name in ("vision", "text"):
            side = getattr(loaded, name)
            side._source, side._ignored_keys, side._side = loaded._source, loaded._ignored_keys, name
    return loaded
