"""The HTML page of all heads."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _core
from ._capture import Capture
from ._options import Array, Causal
from ._view_capture import captured_sets, plain_layers, tabs_of
from ._view_pooled import check_pooling, computed
from ._view_sets import heads_off, images_of_model, sets

__all__ = ["Page", "view"]


class Page:
    """A self-contained HTML page: it opens from disk and loads nothing from the network. A notebook displays it.

    Args:
        text: the HTML, kept as the attribute ``html``.

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
    pair: str | None = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    special: Any = None,
    segments: Any = None,
    block_keys: Any = None,
    axes: tuple[str, str] | None = None,
    links: Any = None,
    possible_links: Any = None,
    gate: Any = None,
    pair_bias: Array | None = None,
    image: Array | Sequence[Array] | None = None,
    patches: tuple[int, int] | None = None,
    title: str | None = None,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    bias: Any = None,
    attend: Any = None,
    scale: float | None = None,
    without: Any = None,
    without_measure: tuple[str, str] | None = None,
    causal: Causal = None,
    pooling: Literal["largest", "mean", "sum"] | None = None,
    pooled_blocks: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    vector_megabytes: float = 4.0,
    path: str | os.PathLike[str] | None = None,
    truncate: bool = False,
    generate: int = 0,
    lang: Literal["en", "zh"] | None = None,
) -> Page:
    """A page of the attention maps of every head.

    Args:
        source: a folder with an encoder of BERT's kind, a decoder such as GPT-2 or Llama, a model with two sides such as T5 (config.json, model.safetensors, tokenizer.json or
            vocab.txt), or a model of images such as ViT or CLIP; or attention weights
            (probabilities, floating; rows need not sum to 1, as after dropout): ``[T, S]``, ``[heads, T, S]``, ``[layers, heads, T, S]`` or a list with
            one ``[heads, T, S]`` or ``[B, heads, T, S]`` per layer; or what `capture` took, which becomes
            a tab for each kind and shape of attention, steps with a cache joined to one map, and pooled maps of what exceeded the budget; or an output of transformers, whose ``attentions``, ``encoder_attentions``,
            ``decoder_attentions`` and ``cross_attentions`` become tabs. A batch of B > 1 becomes B texts of the page; an array of a batch,
            ``[B, heads, T, S]`` or ``[layers, B, heads, T, S]``, is known by B texts or lists of tokens. All arguments below that are for tokens
            then have one entry for each text. None: the attention weights are computed from q and k; of a text with more than 2^26 of them the page shows
            pooled maps, also with a folder.
        text: with a model: one text or several. With attention weights: a text to show above the maps.
        pair: the second part of the text, with a model and one text.
        tokens: with attention weights: T words of the queries; default: their positions. For an encoder-decoder these are the decoder's words.
        keys: with attention weights: S words of the keys; default: the words of the queries if S = T, else the positions of the keys. For an encoder-decoder
            these are the encoder's words.
        special: which tokens are special, so that the page can leave them out: their words, such as ``tokenizer.all_special_tokens``, or T flags;
            flags as a pair (of the queries, of the keys) if the keys are other words.
        segments: T ints, 0 for the first part of a text, 1 for the second; as a pair if the keys are other words.
        block_keys: S flags, True where no query may attend to the key, as padding; the page shades it. transformers' attention_mask is the opposite:
            ``block_keys=attention_mask == 0``.
        axes: names of the query axis and of the key axis, such as ``("residue i", "residue j")``.
        links: pairs (query, key) that are known to be right, such as those of a translation: the page outlines them and gives each head's alignment
            error rate (Och and Ney 2003), of the links from each query word to its key word with the largest weight. Links
            of special tokens do not count.
        possible_links: further pairs (query, key) that do not count as wrong.
        gate: gates in [0, 1] that multiplied the heads' outputs, with the dimensions of source and V instead of S; the page shows them as a strip beside the map.
        pair_bias: what was added to the scores, broadcasts to ``[layers, heads, T, S]``; a further tab shows the attention weights without it.
        image: with self attention: the image that the tokens are made from, ``[height, width]`` (grey) or ``[height, width, 3]`` (red, green, blue), in
            [0, 1] (0: black) or uint8; for a batch, with a first dimension B. The page shows it beside its patches, tinted by where a chosen patch looks. With the
            folder of a model of images (ViT, CLIP and others): the image or a list of them, uint8 ``[height, width, 3]``, in place of text; they are
            resized and normalised as the folder's preprocessor_config.json says. Together with one text a model with both sides (CLIP, SigLIP) shows the text
            in a tab beside each image, with their similarity.
        patches: rows and columns of the image's patches, which are the tokens that are not special, row by row from the top left. If special is not
            given, the tokens before them are special.
        q: with attention weights: the queries ``[layers, heads, T, H]`` that they were computed from, or a list of layers as of source; of a batch
            with the dimensions of source. With q and k the page shows how each weight is computed, with v also the head's output.
        k: the keys ``[layers, K, S, H]``; K is heads, or a divisor of it where heads share keys.
        v: the values ``[layers, K, S, V]``.
        bias: what was added to the scores; broadcasts to ``[layers, heads, T, S]``, for a batch to ``[layers, B, heads, T, S]``.
        attend: bool, True where a query may attend to a key; broadcasts as bias.
        scale: what q @ k was multiplied by; default: 1/sqrt(H).
        without: with a model: heads to switch off, one at a time: ``"all"`` or pairs (layer, head). The page shows as a badge how much the text's
            embedding changes, 1 - cosine in thousandths. With attention weights: these changes as you have measured them, ``[layers, heads]``
            (NaN: not measured) or a dict ``{(layer, head): change}``.
        without_measure: name and unit of the numbers in without, if they are not 1 - cosine of an embedding: ``("loss added without it", "nats")``.
        causal: without source: as in `sdpa`. For other masks compute `maps` or `pooled_map` and give them as source.
        pooling: source is pooled maps, ``[height, width]`` to ``[layers, heads, height, width]``, with this `pooling` of `pooled_map`; tokens (and
            keys) are then the words of all T queries (and S keys). Without source: pool the maps, so that each cell is a block of queries by a block of
            keys. ``"largest"``: the largest weight of the block; ``"mean"`` and ``"sum"`` are shown as the share of attention that a query of the block
            gives to all its keys, on average. The page leaves out what cannot be computed from blocks and says so. Default: ``"largest"`` if the
            maps do not fit. With a `Capture`: pool all its maps; maps that exceeded its budget are means.
        pooled_blocks: without source: rows and columns of the pooled maps; default: 512, fewer with more than 32 heads.
        progress: without source: as in `maps`.
        vector_megabytes: megabytes of the page that q, k and v may take, also those of a model. If q, k and v of a text take more, the page shows its weights only
            and says so. 0 leaves them out.
        title: title of the page.
        path: also write the page there.
        truncate: shorten texts that exceed the model's positions; otherwise they are an error.
        generate: number of tokens. A decoder continues each text by at most so many tokens, each time the likeliest. A model with two sides writes at most so many
            tokens of the target, and the page shows what the decoder read of the text for each.
        lang: language of the page, ``"en"`` or ``"zh"``; default: what the reader's browser prefers.

    Returns:
        The page; its attribute ``html`` is the text.

    Raises:
        OSError: the model cannot be read, or the page cannot be written.
        ValueError: the numbers of words and of attention weights disagree; attention weights are outside of ``[0, 1]``; a text is too long; q, k,
            bias and attend do not fit the attention weights, or other attention weights follow from them; there is no such head.
        TypeError: an argument of another type.
    """
    if not isinstance(truncate, bool):
        raise TypeError(f"truncate is of type {type(truncate).__name__}; it must be True or False")
    if isinstance(generate, bool) or not isinstance(generate, int):
        raise TypeError(f"generate is of type {type(generate).__name__}; it must be an int")
    if generate < 0:
        raise ValueError(f"generate is {generate}; it must be 0 tokens or more")
    if isinstance(vector_megabytes, bool) or not isinstance(vector_megabytes, (int, float)):
        raise TypeError(f"vector_megabytes is of type {type(vector_megabytes).__name__}; it must be a number of megabytes")
    if not 0 <= vector_megabytes < float("inf"):
        raise ValueError(f"vector_megabytes is {vector_megabytes}; it must be 0 megabytes or more")
    if without_measure is not None:
        if without is None or isinstance(source, (str, os.PathLike)):
            raise ValueError("without_measure names the numbers in without, which are not given" if without is None else "without_measure: for attention weights; of a model, without measures 1 - cosine")
        if not isinstance(without_measure, (tuple, list)) or len(without_measure) != 2:
            raise TypeError("without_measure must be two str, a name and a unit")
    check_pooling(pooling)
    if source is None:
        if q is None or k is None:
            raise TypeError("source is None; it must be the folder of a model, attention weights, or an output of transformers; or q and k must be given")
        source, pooling, attend, T, S = computed(q, k, bias, attend, scale, causal, pooling, pooled_blocks, progress)
        if pooling is not None:
            if v is not None:
                raise ValueError(f"v is for the computation of a single weight, and the page has pooled maps of {T} x {S} tokens, whose cells are blocks")
            tokens = [str(place) for place in range(T)] if tokens is None else tokens
            keys = [str(place) for place in range(S)] if keys is None and T != S else keys
            q = k = bias = attend = scale = None  # the page does not show how cells of pooled maps are computed
    elif wrong := [name for name, value in {"causal": causal, "pooled_blocks": pooled_blocks, "progress": progress}.items() if value is not None]:
        raise ValueError(f"{' and '.join(wrong)}: for attention weights that view computes from q and k, without source")
    vectors = {name: given for name, given in {"q": q, "k": k, "v": v, "bias": bias, "attend": attend, "scale": scale}.items() if given is not None}
    if vectors and (q is None or k is None) and not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"{', '.join(vectors)}: q and k are both needed to show how attention weights are computed")
    if isinstance(source, (str, os.PathLike)):
        if text is None and image is None:
            raise ValueError("text is missing; source is the folder of a model, which needs one, or image of a model of images")
        given = {"tokens": tokens, "keys": keys, "special": special, "segments": segments, "block_keys": block_keys, "axes": axes, "links": links, "possible_links": possible_links, "gate": gate, "pair_bias": pair_bias, "patches": patches, "pooling": pooling, **vectors}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{' and '.join(wrong)}: for attention weights; source is the folder of a model, which has its own")
        if image is not None:
            of_texts = {"pair": pair, "without": without, "truncate": truncate or None, "generate": generate or None}
            if wrong := [name for name, value in of_texts.items() if value is not None]:
                raise ValueError(f"{' and '.join(wrong)}: for texts, and image is given; view(folder, text, {wrong[0]}=...) has a model's text side alone")
            if text is not None and not isinstance(text, str):
                raise ValueError("text is a list, and image is given; beside images a model with both sides (CLIP, SigLIP) reads one text")
            images = images_of_model(image)
            names = ["image"] if len(images) == 1 else [f"image {place + 1}" for place in range(len(images))]
            page = Page(_core.image_page(source, images, names, text, names[0] if title is None else title, lang, vector_megabytes))
            if path is not None:
                page.save(path)
            return page
        assert text is not None
        page = Page(_core.model_page(source, [text] if isinstance(text, str) else text, pair, title, truncate, lang, vector_megabytes, heads_off(without), generate))
    else:
        if pair is not None:
            raise ValueError("pair is for a model, and source is not the folder of one")
        if generate:
            raise ValueError("generate is for a model, and source is not the folder of one")
        tabs = tabs_of(source, pooling) if isinstance(source, Capture) else []
        plain = plain_layers(tabs)
        if tabs and plain is not None:
            source = plain
        if vectors and pooling is not None:
            raise ValueError(f"{', '.join(vectors)}: for the computation of a single weight, and the cells of pooled maps are blocks")
        if tabs and plain is None:
            given = {"text": text, "tokens": tokens, "keys": keys, "special": special, "segments": segments, "block_keys": block_keys, "links": links, "possible_links": possible_links}
            texts = captured_sets(tabs, given, {"axes": axes, "gate": gate, "pair_bias": pair_bias, "image": image, "patches": patches, "without": without, **vectors})
        else:
            texts = sets(source, text, tokens, keys, special, segments, block_keys, axes, links, possible_links, gate, pair_bias, image, patches, vectors, without, pooling)
        page = Page(_core.page(texts, "polyhead" if title is None else title, lang, vector_megabytes, without_measure))
    if path is not None:
        page.save(path)
    return page
