"""Makes the HTML page that shows the attention maps of all heads."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any, Literal

from . import _core
from ._capture import Capture
from ._options import Array
from ._view_arguments import Annotations, Computation, MapArguments, ModelCall, PageSize, check_call, check_groups, check_measure, check_texts, check_vector_megabytes, check_vectors_are_given, check_weighting, given
from ._view_capture import captured_sets, plain_layers, tabs_of
from ._view_pooled import check_pooling, computed
from ._view_sets import heads_off, images_of_model, sets

__all__ = ["Annotations", "Computation", "ModelCall", "Page", "PageSize", "view"]


class Page:
    """A self-contained HTML page: it opens from disk and loads nothing from the network. A notebook displays the page as an output.

    Args:
        text: the HTML text, which the attribute ``html`` returns.

    Raises:
        TypeError: text is not a str.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; it must be a str")
        self.html = text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page. The file appears complete or not at all.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be written.
        """
        _core.write_file(path, self.html.encode())

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html, quote=True)}" style="width:100%;height:720px;border:0" title="attention"></iframe>'

    def __repr__(self) -> str:
        return f"<polyhead.Page, {len(self.html.encode()) / 1000:.1f} KB>"


def view(
    source: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    texts: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    image: Array | Sequence[Array] | None = None,
    patches: tuple[int, int] | None = None,
    without: Any = None,
    annotations: Annotations = Annotations(),
    computation: Computation = Computation(),
    size: PageSize = PageSize(),
    call: ModelCall = ModelCall(),
    weighting: Literal["attention", "norm"] = "attention",
    title: str | None = None,
    lang: Literal["en", "zh"] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Page:
    """Makes an HTML page that shows the attention maps of every head.

    Args:
        source: one of the following. The folder of an encoder of BERT's kind, of a decoder such as GPT-2 or Llama, of an encoder-decoder such as T5 (config.json,
            model.safetensors, tokenizer.json or vocab.txt), or of a model of images such as ViT or CLIP. Attention weights (probabilities, floating; rows need not
            sum to 1, as after dropout): ``[T, S]``, ``[heads, T, S]``, ``[layers, heads, T, S]``, or a list with one ``[heads, T, S]`` or ``[B, heads, T, S]`` per
            layer. A `Capture`: each kind and shape of attention becomes a tab, the steps of a decoder with a cache become one map, and calls that exceeded the budget
            have pooled maps. An output of transformers: its ``attentions``, ``encoder_attentions``, ``decoder_attentions`` and ``cross_attentions`` become tabs.
            None: the attention weights are computed from q and k of `computation`.
            A batch of B > 1 becomes B texts of the page; an array ``[B, heads, T, S]`` or ``[layers, B, heads, T, S]`` is taken for a batch if text is a list
            of texts, or tokens a list of lists. Every argument below that describes tokens then has one entry for each text. If a text has more than 2^26
            attention weights and `view` computes them (the folder of an encoder or a decoder, or None), the page shows pooled maps of this text.
        text: with a model: one text or several. With attention weights: a text to show above the maps.
        texts: with a model: further texts over which the heads are measured. The page opens with a scatter plot of all heads: any measure against any other,
            with the mean and standard deviation over these texts. It names each head whose measure reaches a limit in 9 of 10 texts. The page has no maps of
            these texts; only without the argument text it shows the maps of the first of them. docs/viewer.md has the formulas of the measures.
        tokens: with attention weights: T words that label the queries; default: their positions. For an encoder-decoder these are the decoder's words.
        keys: with attention weights: S words that label the keys; default: the words of the queries if S = T, else the positions of the keys. For an
            encoder-decoder these are the encoder's words.
        image: with self-attention: the image that the tokens are made from, ``[height, width]`` (grey) or ``[height, width, 3]`` (red, green, blue), in
            [0, 1] (0: black) or uint8; for a batch, with a first dimension B. The page shows the image, and beside it the image's patches, coloured by how much
            a chosen patch attends to them. With the folder of a model of images (ViT, CLIP and others): the image or a list of them, uint8
            ``[height, width, 3]``, in place of text; images are resized and normalised as the folder's preprocessor_config.json says. With one text and a model
            that also has a text encoder (CLIP, SigLIP), the page shows the text in a tab beside each image, and the similarity of the two.
        patches: numbers of rows and columns of the image's patches. The patches are the tokens that are not special, row by row from the top left. If
            ``annotations.special`` is not given, the tokens before the patches are special.
        without: with a model: heads to switch off, one at a time: ``"all"`` or pairs (layer, head). A badge on the page shows how much the text's embedding
            changes without the head: 1 - cosine, in thousandths. With attention weights: the changes that you have measured yourself, ``[layers, heads]`` (NaN:
            not measured) or a dict ``{(layer, head): change}``.
        annotations: what is known about tokens and heads, such as special tokens, the links of a translation and names of the axes.
        computation: with attention weights: q, k and v, with which the page shows how each attention weight is computed; and gates and a pair bias, which the
            page also shows. Without source: the q and k from which `view` computes the attention weights.
        size: how much the page holds: pooled maps, and megabytes for q, k and v.
        call: with a model: the second part of a text, tokens to generate, and whether long texts are shortened.
        weighting: the maps that the page shows first. ``"attention"``: attention weights. ``"norm"``: norm-weighted maps, each attention weight times the norm
            of the value vector that it multiplies, transformed by the head's slice of the output projection (Kobayashi et al. 2020). The reader can switch
            between the two if the page has the norms: from a model's folder (except encoder-decoders and pooled maps), or from ``computation.value_norms``. A
            `Capture` has no values, so it has no norms.
        title: title of the page.
        lang: language of the page, ``"en"`` or ``"zh"``; default: what the reader's browser prefers.
        path: also write the page there.

    Returns:
        The page; its attribute ``html`` is the HTML text.

    Raises:
        OSError: the model cannot be read, or the page cannot be written.
        ValueError: the numbers of words and of attention weights disagree; attention weights are outside of ``[0, 1]``; a text is too long; q, k,
            bias and attend do not fit the attention weights, or give other attention weights; ``without`` has a head that does not exist.
        TypeError: an argument of the wrong type.
    """
    check_groups(annotations=(annotations, Annotations), computation=(computation, Computation), size=(size, PageSize), call=(call, ModelCall))
    is_model = isinstance(source, (str, os.PathLike))
    check_call(call)
    check_vector_megabytes(size.vector_megabytes)
    check_weighting(weighting)
    check_measure(annotations.without_measure, without, is_model)
    check_pooling(size.pooling)
    check_texts(texts, is_model, text is not None, image is not None, call)
    if text is None and texts is not None:
        text = texts[0]
    if not is_model:
        _refuse_call(call)
    arguments = MapArguments(source, text, tokens, keys, image, patches, without, annotations, computation, size.pooling)
    if source is None:
        arguments = _computed(arguments, size)
    elif wrong := [*given(computation, "causal"), *given(size, "pooled_blocks"), *given(computation, "progress")]:
        raise ValueError(f"{' and '.join(wrong)} may be given only without source, when view computes the attention weights from q and k")
    if not is_model:
        if weighting == "norm" and computation.value_norms is None:
            missing = "polyhead.capture records attention weights and no values" if isinstance(source, Capture) else "source has attention weights and no values"
            raise ValueError(f"weighting is 'norm', and {missing}; give computation=Computation(value_norms=polyhead.value_norms(v, output_weight))")
        check_vectors_are_given(size, computation)
        page = Page(_core.page(_texts(arguments), "polyhead" if title is None else title, lang, size.vector_megabytes, annotations.without_measure, weighting == "norm"))
    else:
        _refuse_weights(arguments)
        page = Page(_image_page(arguments, call, title, lang, size, weighting) if image is not None else _text_page(arguments, texts, call, title, lang, size, weighting))
    if path is not None:
        page.save(path)
    return page


def _computed(arguments: MapArguments, size: PageSize) -> MapArguments:
    """Computes attention weights from q and k, and returns the arguments with these weights as `source`."""
    computation = arguments.computation
    if computation.q is None or computation.k is None:
        raise TypeError("source is None; it must be the folder of a model, attention weights, or an output of transformers; or q and k must be given in computation")
    source, pooling, attend, T, S = computed(computation, size)
    if pooling is None:
        return arguments._replace(source=source, computation=computation._replace(attend=attend))
    if computation.v is not None:
        raise ValueError(f"v is given, and the page has pooled maps of {T} x {S} tokens, whose cells are blocks of attention weights; v would show how a single attention weight is computed, so leave v out")
    if computation.value_norms is not None:
        raise ValueError(f"value_norms are for maps of single keys, and the page has pooled maps of {T} x {S} tokens, whose cells are blocks")
    tokens, keys = arguments.tokens, arguments.keys
    return arguments._replace(
        source=source,
        tokens=[str(place) for place in range(T)] if tokens is None else tokens,
        keys=[str(place) for place in range(S)] if keys is None and T != S else keys,
        computation=Computation(gate=computation.gate, pair_bias=computation.pair_bias),  # the page does not show how cells of pooled maps are computed
        pooling=pooling,
    )


def _named(call: ModelCall) -> dict[str, Any]:
    """Those fields of a ModelCall that differ from their defaults."""
    return {**given(call, "pair"), **({"truncate": True} if call.truncate else {}), **({"generate": call.generate} if call.generate else {})}


def _refuse_call(call: ModelCall) -> None:
    """Raises ValueError if a field of the ModelCall is given, which only a model can use."""
    if wrong := list(_named(call)):
        raise ValueError(f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} for a model, and source is not the folder of one")


def _refuse_weights(arguments: MapArguments) -> None:
    """Raises ValueError if an argument is given that describes attention weights, because a model computes them itself."""
    if arguments.text is None and arguments.image is None:
        raise ValueError("text is missing; source is the folder of a model, which needs a text, or, if it is a model of images, an image")
    wrong = {
        **given(arguments, "tokens", "keys"), **arguments.annotations._asdict(), **given(arguments.computation, "gate", "pair_bias", "value_norms"), **given(arguments, "patches", "pooling"), **arguments.vectors(),
    }  # fmt: skip
    if names := [name for name, value in wrong.items() if value is not None]:
        raise ValueError(f"{' and '.join(names)} may be given only with attention weights; source is the folder of a model, which computes its own")


def _image_page(arguments: MapArguments, call: ModelCall, title: str | None, lang: str | None, size: PageSize, weighting: str) -> str:
    if wrong := [*given(arguments, "without"), *_named(call)]:
        raise ValueError(f"{' and '.join(wrong)} may be given only with texts, and image is given; view(folder, text) without image shows only the maps of the model's text encoder")
    if arguments.text is not None and not isinstance(arguments.text, str):
        raise ValueError("text is a list, and image is given; together with images, give one text, to a model with an image encoder and a text encoder (CLIP, SigLIP)")
    images = images_of_model(arguments.image)
    names = ["image"] if len(images) == 1 else [f"image {place + 1}" for place in range(len(images))]
    return _core.image_page(arguments.source, images, names, arguments.text, names[0] if title is None else title, lang, size.vector_megabytes, weighting == "norm")


def _text_page(arguments: MapArguments, measured: Sequence[str] | None, call: ModelCall, title: str | None, lang: str | None, size: PageSize, weighting: str) -> str:
    texts = [arguments.text] if isinstance(arguments.text, str) else arguments.text
    return _core.model_page(arguments.source, texts, call.pair, title, call.truncate, lang, size.vector_megabytes, heads_off(arguments.without), call.generate, weighting == "norm", measured)


def _texts(arguments: MapArguments) -> list[dict[str, Any]]:
    """The texts of a page of attention weights, in the form that the bindings read."""
    vectors = arguments.vectors()
    if vectors and not {"q", "k"} <= vectors.keys():
        raise ValueError(f"{', '.join(vectors)}: q and k are both needed to show how attention weights are computed")
    tabs = tabs_of(arguments.source, arguments.pooling) if isinstance(arguments.source, Capture) else []
    plain = plain_layers(tabs)
    if vectors and arguments.pooling is not None:
        raise ValueError(f"{', '.join(vectors)}: these show how one attention weight is computed, but the cells of pooled maps are blocks of attention weights; leave them out")
    if tabs and plain is None:
        return captured_sets(tabs, arguments)
    return sets(arguments if plain is None else arguments._replace(source=plain))
