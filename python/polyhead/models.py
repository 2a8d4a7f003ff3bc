"""Models that ``polyhead train`` made, small ones that are part of polyhead, and encoders, language models, models with two sides and models of images that transformers saved.

    classifier = polyhead.models.load("reviews")     # a folder, or one of polyhead.models.names()
    answer = classifier("The rooms are lovely, but the staff was rude.")
    print(answer.rating, answer.pooling.shape)

An answer holds the attention weights of every head. They show what a head read, which is no explanation of the answer.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from . import _core
from ._options import Array, NumPyArray

__all__ = [
    "ChosenSentence", "ClassifiedImage", "ClassifiedText", "ImageClassifier", "ImageTextModel", "LanguageModel", "LanguageRun",
    "SentenceChooser", "SequenceToSequenceModel", "SequenceToSequenceRun", "TextClassifier", "TextEncoder", "TextEncoderRun", "TextSide", "TextSideRun", "Translation", "Translator",
    "VisionEncoder", "VisionEncoderRun", "load", "names",
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
            _, _, self._model = _core.load_model(folder, False, ())

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


class _SavedByTransformers(_Model):
    """A model of a folder as transformers writes it; copies that go elsewhere read the folder again."""

    _source: str | bytes | os.PathLike[Any]
    _ignored_keys: tuple[str, ...]
    _side: str | None = None  # of an `ImageTextModel`, its attribute

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_side, (self._source, self._ignored_keys, self._side)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Model:
        return self._with(self.__dict__)

    def __repr__(self) -> str:
        name = type(self).__name__
        return super().__repr__().replace(f"{name}(", f"{name}(model={self.config.get('model')!r}, ", 1)


def _ids_of(ids: Array | Sequence[int]) -> Any:
    if not isinstance(ids, (list, tuple)):
        return ids
    import numpy

    return numpy.asarray(ids, numpy.int64)


class TextEncoderRun(NamedTuple):
    """The outputs of `TextEncoder.run` that were asked for, None of the others. Letters: ``*`` the leading dimensions of ids, T tokens, E width,
    L layers, N heads, H width of a head. float32, of a float64 model float64."""

    hidden: NumPyArray | None = None  # [*,T,E], of the last layer, after the final norm if there is one
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the input of the first layer, then each layer's output, the last one as hidden
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    q: NumPyArray | None = None  # [L,*,N,T,H], rotated if positions are rotary
    k: NumPyArray | None = None  # [L,*,N,T,H], as q
    v: NumPyArray | None = None  # [L,*,N,T,H]


class TextEncoder(_SavedByTransformers):
    """An encoder: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, ESM-2 or ModernBERT, from a folder as transformers writes it.
    Calls keep packed parameters, which take as much memory as the model in float32."""

    def run(
        self,
        ids: Array | Sequence[int],
        *,
        segments: Array | None = None,
        attend_keys: Array | None = None,
        outputs: Iterable[str] = ("hidden",),
        num_threads: int | None = None,
    ) -> TextEncoderRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids, with the special tokens.
            segments: integers ``[*,T]``, which text of a pair a token is of; None: all 0. Not for encoders without segments.
            attend_keys: booleans ``[*,T]``, False for padding, which no token attends to.
            outputs: names of `TextEncoderRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return TextEncoderRun(**self._model.run(_ids_of(ids), segments, attend_keys, outputs, num_threads))


class VisionEncoderRun(NamedTuple):
    """The outputs of `VisionEncoder.run` that were asked for, None of the others. Letters: ``*`` the leading dimensions of pixels, T tokens (the class token and the
    like, then the patches row by row from the top left), E width, L layers, N heads, H width of a head. float32, of a float64 model float64."""

    hidden: NumPyArray | None = None  # [*,T,E], of the last layer, after the final norm if that is one of all tokens (not in CLIP)
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the input of the first layer, then each layer's output, before the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    pooled: NumPyArray | None = None  # [*,E], one vector for the whole image, transformers' pooler_output
    logits: NumPyArray | None = None  # [*,classes], of a model with a classifier
    embedding: NumPyArray | None = None  # [*,P], projected (CLIP) and not normalised
    q: NumPyArray | None = None  # [L,*,N,T,H]
    k: NumPyArray | None = None  # [L,*,N,T,H]
    v: NumPyArray | None = None  # [L,*,N,T,H]


class VisionEncoder(_SavedByTransformers):
    """An encoder of images: ViT, DeiT, or the image side of CLIP or SigLIP, from a folder as transformers writes it. Calls keep packed parameters, which take as
    much memory as the model in float32. ``config`` has the sizes, and ``labels`` of the classes if the folder names them."""

    def prepare(self, image: Array) -> NumPyArray:
        """The pixels ``[3,height,width]`` of an image as the folder's preprocessor_config.json says: resized, cropped, rescaled and normalised as transformers'
        image processors with Pillow do.

        Args:
            image: uint8 ``[height,width,3]``, red, green and blue: ``numpy.asarray(PIL.Image.open(path).convert("RGB"))``.

        Raises:
            ValueError, TypeError: the image or the file is not supported; the message names what is not.
        """
        return _core.prepare_image(self._source, image)  # type: ignore[return-value]

    def run(self, pixels: Array, *, outputs: Iterable[str] = ("hidden",), num_threads: int | None = None) -> VisionEncoderRun:
        """One pass over images.

        Args:
            pixels: floating ``[*,C,height,width]`` of the model's size, resized and normalised as the model was trained with.
            outputs: names of `VisionEncoderRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit, or an output that the folder's model does not have; the message names it.
        """
        return VisionEncoderRun(**self._model.run(pixels, outputs, num_threads))


class TextSideRun(NamedTuple):
    """The outputs of `TextSide.run` that were asked for, None of the others. Letters as `TextEncoderRun`, P the width of an embedding."""

    hidden: NumPyArray | None = None  # [*,T,E], after the final norm
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the embeddings, then each layer's output, before the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    pooled: NumPyArray | None = None  # [*,E], what stands for the text: transformers' pooler_output
    embedding: NumPyArray | None = None  # [*,P], projected (CLIP) and not normalised
    q: NumPyArray | None = None  # [L,*,N,T,H]
    k: NumPyArray | None = None  # [L,*,N,T,H]
    v: NumPyArray | None = None  # [L,*,N,T,H]


class TextSide(_SavedByTransformers):
    """The text side of CLIP or SigLIP, from a folder as transformers writes it."""

    def run(
        self, ids: Array | Sequence[int], *, attend_keys: Array | None = None, outputs: Iterable[str] = ("hidden",), num_threads: int | None = None
    ) -> TextSideRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids, with the end token that stands for a text (CLIP).
            attend_keys: booleans ``[*,T]``, False for padding, which no token attends to.
            outputs: names of `TextSideRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return TextSideRun(**self._model.run(_ids_of(ids), attend_keys, outputs, num_threads))


class ImageTextModel(_SavedByTransformers):
    """CLIP or SigLIP, from a folder as transformers writes it: `vision` and `text` run alone, `similarity` compares their embeddings."""

    vision: VisionEncoder
    text: TextSide

    def similarity(self, pixels: Array, ids: Array, *, attend_keys: Array | None = None, num_threads: int | None = None) -> NumPyArray:
        """How well images and texts fit, ``[I,J]``: transformers' ``logits_per_image``. The softmax of a row (CLIP) or each sigmoid (SigLIP) is a probability.

        Args:
            pixels: ``[I,C,height,width]``, as `VisionEncoder.run`.
            ids, attend_keys: ``[J,T]``, as `TextSide.run`.
            num_threads: as `polyhead.sdpa`.
        """
        images = self.vision.run(pixels, outputs=["embedding"], num_threads=num_threads).embedding
        texts = self.text.run(ids, attend_keys=attend_keys, outputs=["embedding"], num_threads=num_threads).embedding
        return self._model.similarity(images, texts)  # type: ignore[no-any-return]

    @property
    def parameters(self) -> dict[str, NumPyArray]:
        """Copies of all parameters by name, with "vision." or "text." before those of a side."""
        sides = {"vision": self.vision, "text": self.text}
        return {f"{side}.{name}": array for side, model in sides.items() for name, array in model.parameters.items()}

    @property
    def logit_scale(self) -> float:
        """The logarithm of what cosines are multiplied by."""
        return self._model.logit_scale  # type: ignore[no-any-return]

    @property
    def logit_bias(self) -> float:
        """What SigLIP adds to scaled cosines; 0 of CLIP."""
        return self._model.logit_bias  # type: ignore[no-any-return]


class LanguageRun(NamedTuple):
    """The outputs of `LanguageModel.run` that were asked for, None of the others. Letters: ``*`` the leading dimensions of ids, T tokens, C the size of
    the vocabulary, E width, L layers, N heads, K key/value heads, H width of a head. float32, of a float64 model float64."""

    logits: NumPyArray | None = None  # [*,T,C], of the token that follows each one
    hidden: NumPyArray | None = None  # [*,T,E], after the final norm
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the embeddings, then each layer's output, the last one after the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    q: NumPyArray | None = None  # [L,*,N,T,H], normed and rotated
    k: NumPyArray | None = None  # [L,*,K,T,H], as q
    v: NumPyArray | None = None  # [L,*,K,T,H]


class LanguageModel(_SavedByTransformers):
    """A decoder that predicts the next token: GPT-2, Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3, GPT-NeoX or gpt-oss, from a folder as transformers writes it.
    The file stays mapped, so it may be replaced but not changed in place. Calls keep packed parameters, which take as much memory as the model in
    float32. A pickle holds the path of the folder."""

    def run(
        self, ids: Array | Sequence[int], *, attend_keys: Array | None = None, outputs: Iterable[str] = ("logits",), num_threads: int | None = None
    ) -> LanguageRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids.
            attend_keys: booleans ``[*,T]``, False for padding, which no token attends to.
            outputs: names of `LanguageRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return LanguageRun(**self._model.run(_ids_of(ids), attend_keys, outputs, num_threads))

    def generate(
        self,
        ids: Sequence[int] | Array,
        max_tokens: int,
        *,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_tokens: Sequence[int] = (),
        ignore_end: bool = False,
        cache_dtype: str | None = None,
        on_token: Callable[[int], object] | None = None,
        num_threads: int | None = None,
    ) -> list[int]:
        """The tokens that follow a prompt, the one that ends it included.

        Args:
            ids: the prompt's token ids, at least one.
            max_tokens: the most tokens of the answer.
            temperature: of the draw; None: the likeliest token each time.
            top_k, top_p: with a temperature, draw from the k likeliest tokens, and of these from the fewest whose probabilities sum to p.
            seed: with a temperature, of the draws; required.
            stop_tokens: ids that end the answer, beside the model's end tokens.
            ignore_end: go on after the model's end tokens.
            cache_dtype: of the cached keys and values, as `KeyValueCache`; None: the model's.
            on_token: called with each token as it is chosen; if it returns False, the answer ends.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        options = {name: given for name, given in locals().items() if name not in ("self", "ids", "__class__")}
        return self._model.generate(ids, options)  # type: ignore[no-any-return]


class SequenceToSequenceRun(NamedTuple):
    """The outputs of `SequenceToSequenceModel.run` that were asked for, None of the others. Letters: ``*`` the leading dimensions, S tokens of the source, T of
    the target, C the size of the target's vocabulary, E width, N heads, Le and Ld layers of the encoder and of the decoder. float32, of a float64 model float64."""

    logits: NumPyArray | None = None  # [*,T,C], of the token that follows each one of the target
    memory: NumPyArray | None = None  # [*,S,E], what the encoder made of the source
    encoder_hidden: NumPyArray | None = None  # [Le+1,*,S,E], the embeddings, then each layer's output, the last one is the memory
    decoder_hidden: NumPyArray | None = None  # [Ld+1,*,T,E], as encoder_hidden
    encoder_attentions: NumPyArray | None = None  # [Le,*,N,S,S], the attention weights of the source to itself
    decoder_attentions: NumPyArray | None = None  # [Ld,*,N,T,T], of the target to itself
    cross_attentions: NumPyArray | None = None  # [Ld,*,N,T,S], of the target to the source


class SequenceToSequenceModel(_SavedByTransformers):
    """A model with two sides, an encoder of the source and a decoder of the target: T5, mT5, BART, mBART, Marian, Pegasus, Blenderbot or Whisper, from a folder as
    transformers writes it. As of a `LanguageModel`, the file stays mapped, calls keep packed parameters, and a pickle holds the path of the folder."""

    def run(
        self,
        source: Array | Sequence[int],
        target: Array | Sequence[int] | None = None,
        *,
        attend_source: Array | None = None,
        attend_target: Array | None = None,
        outputs: Iterable[str] = ("logits",),
        num_threads: int | None = None,
    ) -> SequenceToSequenceRun:
        """One pass over whole texts.

        Args:
            source: integers ``[*,S]``, token ids. Of Whisper: floating ``[*,M,2 S]``, the mel features that its feature extractor makes, padded.
            target: integers ``[*,T]``, token ids, the first of which is usually the model's start token. None: nothing of the decoder is computed.
            attend_source: booleans ``[*,S]``, False for padding, which no token attends to. Not for Whisper.
            attend_target: booleans ``[*,T]``, as attend_source.
            outputs: names of `SequenceToSequenceRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        targets = None if target is None else _ids_of(target)
        return SequenceToSequenceRun(**self._model.run(_ids_of(source), targets, attend_source, attend_target, outputs, num_threads))

    def generate(
        self,
        source: Sequence[int] | Array,
        max_tokens: int,
        *,
        prompt: Sequence[int] | Array = (),
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_tokens: Sequence[int] = (),
        ignore_end: bool = False,
        cache_dtype: str | None = None,
        on_token: Callable[[int], object] | None = None,
        num_threads: int | None = None,
    ) -> list[int]:
        """The target's tokens after the start token, the one that ends it included. Tokens that generation_config.json forces or suppresses are followed; its
        beams, lengths and repetition rules are not.

        Args:
            source: the source's token ids, at least one. Of Whisper: its features ``[M,2 S]``.
            max_tokens: the most tokens of the answer.
            prompt: the target's first tokens, which are not returned; empty: the model's start token (decoder_start_token_id).
                Of Whisper: the start token, language and task; of mBART the target's language, unless it is forced.
            temperature, top_k, top_p, seed, stop_tokens, ignore_end, cache_dtype, on_token: as `LanguageModel.generate`.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        options = {name: given for name, given in locals().items() if name not in ("self", "source", "prompt", "__class__")}
        return self._model.generate(source, prompt, options)  # type: ignore[no-any-return]


_KINDS: dict[str, type[ImageClassifier | TextClassifier | Translator | SentenceChooser | LanguageModel | SequenceToSequenceModel | TextEncoder | VisionEncoder | TextSide | ImageTextModel]] = {
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


def names() -> list[str]:
    """The models that are part of polyhead; MODELS.md of the repository tells what they were trained on."""
    return _core.default_models()


def load(
    source: str | bytes | os.PathLike[Any], ignored_keys: Iterable[str] = ()
) -> ImageClassifier | TextClassifier | Translator | SentenceChooser | LanguageModel | SequenceToSequenceModel | TextEncoder | VisionEncoder | TextSide | ImageTextModel:
    """Loads a trained model.

    Args:
        source: a folder that ``polyhead train`` made, one of `names()`, or a folder of an encoder, a decoder or a model with two sides that transformers saved.
        ignored_keys: for a language model or one with two sides, keys of config.json to skip. An unknown key is otherwise an error: it might change the results.

    Raises:
        OSError: the folder cannot be read.
        ValueError: it is no folder of such a model, or a name that is also a folder here; config.json has an unknown key.
    """
    built_in = isinstance(source, str) and source in names()
    if built_in and os.path.isdir(source):
        raise ValueError(f"source: {source!r} is a model of polyhead and also a folder here; give './{source!s}' for the folder")
    keys = ignored_keys if isinstance(ignored_keys, str) or not isinstance(ignored_keys, Iterable) else tuple(ignored_keys)
    kind, config, model = _core.load_model(source, built_in, keys)
    loaded = _KINDS[kind](config, model)
    if isinstance(loaded, _SavedByTransformers):
        loaded._source = source if isinstance(source, bytes) else os.path.abspath(os.fspath(source))
        loaded._ignored_keys = tuple(keys)
    if isinstance(loaded, ImageTextModel):
        loaded.vision, loaded.text = VisionEncoder(config["vision"], model.vision), TextSide(config["text"], model.text)
        for name in ("vision", "text"):
            side = getattr(loaded, name)
            side._source, side._ignored_keys, side._side = loaded._source, loaded._ignored_keys, name
    return loaded
