"""Models that ``polyhead train`` made, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._base import Model


class ClassifiedImage(NamedTuple):
    """An answer of an `ImageClassifier`."""

    best: int  # the class of the largest probability
    probabilities: NumPyArray  # [classes]
    attentions: NumPyArray  # [layers,heads,1 + patches,1 + patches]; 0 is the class token, patches follow row by row


class ImageClassifier(Model):
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
    score_part: float  # of a rating: what the scores of words, beginnings of words and word pairs add
    attentions: NumPyArray  # [layers,heads,T,T], of the encoder
    pooling: NumPyArray  # [heads,T], which tokens each pooling head reads


class TextClassifier(Model):
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
    alignment: list[int]  # for each target word, the index of the source word that the guided head reads most; -1: the end token
    source_pieces: list[str]  # S
    target_pieces: list[str]  # T; row t of a map is what a head read after this token, to choose the next one
    attentions: NumPyArray  # [layers,heads,T,S], of the decoder to the source
    source_attentions: NumPyArray  # [layers,heads,S,S]
    target_attentions: NumPyArray  # [layers,heads,T,T]


class Translator(Model):
    """Translates a short text, with an encoder and a decoder."""

    def __call__(self, text: str, *, beams: int = 1) -> Translation:
        """`beams`: with 1, the model takes the likeliest token at each step; with more, beam search looks for the likeliest translation."""
        return Translation(**self._model.answer(text, beams))


class ChosenSentence(NamedTuple):
    """An answer of a `SentenceChooser`, for a text of S sentences."""

    best: int  # the index of the sentence chosen
    sentences: list[str]
    scores: NumPyArray  # [S], their sum is 1
    attentions: NumPyArray  # [layers,heads,S,S]


class SentenceChooser(Model):
    """Chooses the sentence that sums up a text."""

    def __call__(self, text: str | Sequence[str]) -> ChosenSentence:
        """`text`: a text, or a list of its sentences."""
        return ChosenSentence(**self._model.answer(text))
