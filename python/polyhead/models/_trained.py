"""Models that ``polyhead train`` made, and the answers of these models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._base import Model


class ClassifiedImage(NamedTuple):
    """The answer of an `ImageClassifier`."""

    best: int  # the class with the largest probability
    probabilities: NumPyArray  # [classes]
    attentions: NumPyArray  # [layers,heads,1 + patches,1 + patches]; token 0 is the class token, and the patches follow row by row


class ImageClassifier(Model):
    """A Vision Transformer that classifies small grey images."""

    def __call__(self, image: Array) -> ClassifiedImage:
        """Classifies an image: [height,width], floating, from 0 to ``config["white"]``."""
        return ClassifiedImage(**self._model.answer(image))


class ClassifiedText(NamedTuple):
    """The answer of a `TextClassifier` for a text of T tokens."""

    pieces: list[str]  # T tokens
    rating: float | None  # None if the model chooses classes
    probabilities: dict[str, float]  # the probability of each class; empty if the model gives ratings
    head_parts: NumPyArray  # [heads]: the amount that each pooling head adds to the rating
    score_part: float  # the amount that the scores of words, beginnings of words and word pairs add to the rating
    attentions: NumPyArray  # [layers,heads,T,T], the encoder's attention weights
    pooling: NumPyArray  # [heads,T], the attention weights with which each pooling head reads the tokens


class TextClassifier(Model):
    """A model that gives a text a rating or a class."""

    def __call__(self, text: str) -> ClassifiedText:
        """Rates or classifies one text. ValueError for a text without a token, or with more than ``config["longest"]`` tokens."""
        return ClassifiedText(**self._model.answer(text))


class Translation(NamedTuple):
    """The answer of a `Translator`, for S source tokens and T target tokens. The last source token is the end token, and the first target token is the start
    token."""

    text: str
    complete: bool  # False: the translation was cut off at config["longest"] tokens
    source_words: list[str]
    target_words: list[str]
    alignment: list[int]  # for each target word, the index of the source word to which the guided head attends most; -1: the end token
    source_pieces: list[str]  # the S source tokens
    target_pieces: list[str]  # the T target tokens; row t of a map shows how a head attended when the token after target token t was chosen
    attentions: NumPyArray  # [layers,heads,T,S], cross-attention: target tokens attend to source tokens
    source_attentions: NumPyArray  # [layers,heads,S,S]
    target_attentions: NumPyArray  # [layers,heads,T,T]


class Translator(Model):
    """A model with an encoder and a decoder, which translates a short text."""

    def __call__(self, text: str, *, beams: int = 1) -> Translation:
        """Translates a text. With beams=1 the model takes the likeliest token at each step. With more beams, beam search looks for the likeliest
        translation."""
        return Translation(**self._model.answer(text, beams))


class ChosenSentence(NamedTuple):
    """The answer of a `SentenceChooser` for a text of S sentences."""

    best: int  # the index of the chosen sentence
    sentences: list[str]
    scores: NumPyArray  # [S], one score for each sentence; the scores sum to 1
    attentions: NumPyArray  # [layers,heads,S,S]


class SentenceChooser(Model):
    """A model that chooses the sentence that best sums up a text."""

    def __call__(self, text: str | Sequence[str]) -> ChosenSentence:
        """Chooses a sentence of a text. text: the text, or a list of its sentences."""
        return ChosenSentence(**self._model.answer(text))
