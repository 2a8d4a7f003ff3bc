"""Models of images, and models that compare images with texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import _core
from .._options import Array, NumPyArray
from ._saved import SavedByTransformers, ids_of


class VisionEncoderRun(NamedTuple):
    """The outputs of `VisionEncoder.run`: float64 if the model is float64, else float32. An output that was not requested is None. Letters in shapes: ``*`` the
    leading dimensions of pixels, T tokens (class token and other special tokens, then the patches row by row from the top left), E width, L layers, N heads, H
    width of a head, P width of an embedding."""

    hidden: NumPyArray | None = None  # [*,T,E], the output of the last layer, after the final norm if the model applies it to all tokens (CLIP does not)
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the input of the first layer, then each layer's output, before the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    pooled: NumPyArray | None = None  # [*,E], one vector for the whole image: pooler_output of transformers
    logits: NumPyArray | None = None  # [*,classes], for a model with a classifier
    embedding: NumPyArray | None = None  # [*,P], the vector of the image that is compared with texts: projected (CLIP), not normalised
    q: NumPyArray | None = None  # [L,*,N,T,H]
    k: NumPyArray | None = None  # [L,*,N,T,H]
    v: NumPyArray | None = None  # [L,*,N,T,H]
    value_norms: NumPyArray | None = None  # [L,*,N,T], the norm of each value after the head's slice of the output projection, as in `polyhead.value_norms`


class VisionEncoder(SavedByTransformers):
    """An encoder of images: ViT, DeiT, or the image encoder of CLIP or SigLIP, from a folder that transformers wrote. The first call packs the parameters for
    the kernels and keeps the packed copy, which takes as much memory as the model in float32. ``config`` has the sizes of the model, and under ``labels`` the
    names of the classes, if the folder has them."""

    def prepare(self, image: Array) -> NumPyArray:
        """The pixels ``[3,height,width]`` of an image: resized, cropped, rescaled and normalised as the folder's preprocessor_config.json says, with the results of
        transformers' image processors that use Pillow.

        Args:
            image: uint8 ``[height,width,3]``, red, green and blue: ``numpy.asarray(PIL.Image.open(path).convert("RGB"))``.

        Raises:
            ValueError, TypeError: the image, or an entry of preprocessor_config.json, is not supported; the message says what.
        """
        return _core.prepare_image(self._source, image)  # type: ignore[return-value]

    def run(self, pixels: Array, *, outputs: Iterable[str] = ("hidden",), num_threads: int | None = None) -> VisionEncoderRun:
        """One pass over images.

        Args:
            pixels: floating ``[*,C,height,width]`` of the model's size, resized and normalised as in the model's training.
            outputs: names of the outputs to return, which are fields of `VisionEncoderRun`.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit, or an output that the folder's model does not have; the message names it.
        """
        return VisionEncoderRun(**self._model.run(pixels, outputs, num_threads))


class TextSideRun(NamedTuple):
    """The outputs of `TextSide.run`. An output that was not requested is None. The letters in shapes are those of `TextEncoderRun`; P is the width of an
    embedding."""

    hidden: NumPyArray | None = None  # [*,T,E], after the final norm
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E], the embeddings, then each layer's output, before the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    pooled: NumPyArray | None = None  # [*,E], one vector for the whole text: pooler_output of transformers
    embedding: NumPyArray | None = None  # [*,P], the vector of the text that is compared with images: projected (CLIP), not normalised
    q: NumPyArray | None = None  # [L,*,N,T,H]
    k: NumPyArray | None = None  # [L,*,N,T,H]
    v: NumPyArray | None = None  # [L,*,N,T,H]
    value_norms: NumPyArray | None = None  # [L,*,N,T], the norm of each value after the head's slice of the output projection, as in `polyhead.value_norms`


class TextSide(SavedByTransformers):
    """The text encoder of CLIP or SigLIP, from a folder that transformers wrote."""

    def run(
        self, ids: Array | Sequence[int], *, attend_keys: Array | None = None, outputs: Iterable[str] = ("hidden",), num_threads: int | None = None
    ) -> TextSideRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids. For CLIP they must include the end token, because the state of this token becomes the vector of the text.
            attend_keys: booleans ``[*,T]``, False for padding, to which no token attends. None: no padding.
            outputs: names of the outputs to return, which are fields of `TextSideRun`.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return TextSideRun(**self._model.run(ids_of(ids), attend_keys, outputs, num_threads))


class ImageTextModel(SavedByTransformers):
    """A model that compares images with texts (CLIP or SigLIP), from a folder that transformers wrote. `vision` and `text` are its two encoders; `similarity`
    compares the embeddings of images and texts."""

    vision: VisionEncoder
    text: TextSide

    def similarity(self, pixels: Array, ids: Array, *, attend_keys: Array | None = None, num_threads: int | None = None) -> NumPyArray:
        """How well each image fits each text, ``[I,J]``: ``logits_per_image`` of transformers. The softmax of a row (CLIP) or the sigmoid of each number
        (SigLIP) gives probabilities.

        Args:
            pixels: ``[I,C,height,width]``, as in `VisionEncoder.run`.
            ids, attend_keys: ``[J,T]``, as in `TextSide.run`.
            num_threads: as in `polyhead.sdpa`.
        """
        images = self.vision.run(pixels, outputs=["embedding"], num_threads=num_threads).embedding
        texts = self.text.run(ids, attend_keys=attend_keys, outputs=["embedding"], num_threads=num_threads).embedding
        return self._model.similarity(images, texts)  # type: ignore[no-any-return]

    @property
    def parameters(self) -> dict[str, NumPyArray]:
        """Copies of all parameters by name. The names begin with "vision." for the image encoder and with "text." for the text encoder."""
        sides = {"vision": self.vision, "text": self.text}
        return {f"{side}.{name}": array for side, model in sides.items() for name, array in model.parameters.items()}

    @property
    def logit_scale(self) -> float:
        """The logarithm of the factor by which `similarity` multiplies the cosines of embeddings."""
        return self._model.logit_scale  # type: ignore[no-any-return]

    @property
    def logit_bias(self) -> float:
        """The number that `similarity` adds to the scaled cosines for SigLIP; 0 for CLIP."""
        return self._model.logit_bias  # type: ignore[no-any-return]
