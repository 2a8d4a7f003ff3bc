"""The groups of arguments of `polyhead.view`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from ._options import Array, Causal

__all__ = ["Annotations", "Computation", "ModelCall", "PageSize"]


class Annotations(NamedTuple):
    """What the caller knows about tokens and heads, for `view`. For a batch, each field that describes tokens has one entry for each text.

    Args:
        special: which tokens are special, so that the page can leave them out: a list of their words, such as ``tokenizer.all_special_tokens``, or T flags. If
            the keys have other words than the queries, a pair (flags of the queries, flags of the keys).
        segments: T ints, 0 for the first part of a text, 1 for the second. If the keys have other words than the queries, a pair, as for special.
        block_keys: S flags, True where no query may attend to the key, such as padding; the page shades these keys. transformers' attention_mask is the
            opposite: ``block_keys=attention_mask == 0``.
        links: pairs (query, key) that are known to be right, such as the words of a text and of its translation. The page outlines these pairs and shows the
            alignment error rate of each head (Och and Ney 2003), which takes each query's key with the largest weight as the head's link. Links of special
            tokens do not count.
        possible_links: further pairs (query, key), which the error rate does not count as wrong.
        axes: names of the query axis and of the key axis, such as ``("residue i", "residue j")``.
        without_measure: name and unit of the changes in the argument ``without`` of `view`, if they are not 1 - cosine of an embedding. Example:
            ``("loss added without it", "nats")``.

    Raises:
        ValueError, TypeError: raised by the call of `view`, for fields that do not fit.
    """

    special: Any = None
    segments: Any = None
    block_keys: Any = None
    links: Any = None
    possible_links: Any = None
    axes: tuple[str, str] | None = None
    without_measure: tuple[str, str] | None = None


class Computation(NamedTuple):
    """The tensors that attention weights were computed from, or from which `view` computes them. With q and k the page shows how each attention weight is
    computed; with v it also shows the head's output.

    Args:
        q: the queries ``[layers, heads, T, H]``, or a list of layers as for source; for a batch, with the batch dimension where source has it.
        k: the keys ``[layers, K, S, H]``; K is the number of heads, or a divisor of it if heads share keys.
        v: the values ``[layers, K, S, V]``.
        bias: the bias that was added to the scores; broadcasts to ``[layers, heads, T, S]``, for a batch to ``[layers, B, heads, T, S]``.
        attend: bool, True where a query may attend to a key; broadcasts to the same shapes as bias.
        scale: the factor by which the products of q and k were multiplied; default: 1/sqrt(H).
        causal: without source: the causal mask, as in `sdpa`. For masks that attend and causal cannot express, compute `maps` or `pooled_map` and give the
            result as source.
        gate: the gates in [0, 1] by which the heads' outputs were multiplied. The shape is that of source, with V instead of S. The page shows the gates as a
            strip beside the map.
        pair_bias: a bias that was added to the scores; broadcasts to ``[layers, heads, T, S]``. A further tab of the page shows the attention weights without
            this bias.
        progress: without source: a function that is called during the computation, as in `maps`.
        value_norms: ``[layers, heads, S]``, for a batch ``[layers, B, heads, S]``, as `value_norms` computes them from v and the output projection: the page then
            has a switch to norm-weighted maps, each attention weight times the norm of its key (Kobayashi et al. 2020). Not together with gate, because a
            query's gate multiplies the values too, so that the norm of a key depends on the query.

    Raises:
        ValueError, TypeError: raised by the call of `view`, for fields that do not fit.
    """

    q: Any = None
    k: Any = None
    v: Any = None
    bias: Any = None
    attend: Any = None
    scale: float | None = None
    causal: Causal = None
    gate: Any = None
    pair_bias: Array | None = None
    progress: Callable[[int, int], object] | None = None
    value_norms: Any = None


class PageSize(NamedTuple):
    """How much a page of `view` holds.

    Args:
        pooling: with source: says that source holds pooled maps, ``[height, width]`` to ``[layers, heads, height, width]``, which `pooled_map` computed with
            this `pooling`. tokens (and keys) are then the words of all T queries (and S keys). Without source: pool the maps, so that each cell is a block of
            queries by a block of keys. Default: ``"largest"`` if the maps do not fit into a page. With a `Capture`: pool all its maps; maps that exceeded its
            budget are already means. ``"largest"`` shows the largest weight of a block. ``"mean"`` and ``"sum"`` show the share of its attention that a query
            of the block gives to the block's keys, on average. The page leaves out what cannot be computed from blocks, and says so.
        pooled_blocks: without source: the number of rows and of columns of the pooled maps; default: 512, fewer with more than 32 heads.
        vector_megabytes: the largest size in megabytes of q, k and v in the page, also for those of a model. If q, k and v of a text take more, the page shows
            only the attention weights of this text, and says so. 0 leaves out q, k and v.

    Raises:
        ValueError, TypeError: raised by the call of `view`, for fields that do not fit.
    """

    pooling: Literal["largest", "mean", "sum"] | None = None
    pooled_blocks: int | None = None
    vector_megabytes: float = 4.0


class ModelCall(NamedTuple):
    """How `view` runs a model on a text.

    Args:
        pair: the second part of the text, for a model that reads pairs of texts. Only with a single text.
        generate: number of tokens. A decoder continues each text by at most this many tokens, always by the likeliest token. An encoder-decoder writes at most
            this many tokens of the target, and the page shows for each token how much the decoder attended to each token of the text.
        truncate: shorten texts that exceed the model's positions; otherwise they are an error.

    Raises:
        ValueError, TypeError: raised by the call of `view`, for fields that do not fit.
    """

    pair: str | None = None
    generate: int = 0
    truncate: bool = False


class MapArguments(NamedTuple):
    """The arguments of `view` that describe the maps and their tokens."""

    source: Any
    text: Any
    tokens: Any
    keys: Any
    image: Any
    patches: Any
    without: Any
    annotations: Annotations
    computation: Computation
    pooling: str | None

    def vectors(self) -> dict[str, Any]:
        """The given ones among q, k, v, bias, attend and scale, with which the page shows how a single attention weight is computed."""
        return given(self.computation, "q", "k", "v", "bias", "attend", "scale")


def given(arguments: NamedTuple | MapArguments, *names: str) -> dict[str, Any]:
    """The arguments with these names, except those that are None."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def check_groups(**groups: tuple[object, type]) -> None:
    """Raises TypeError if a group of arguments has another type than its class."""
    for name, (group, kind) in groups.items():
        if not isinstance(group, kind):
            raise TypeError(f"{name} is of type {type(group).__name__}; it must be a polyhead.{kind.__name__}")


def check_call(call: ModelCall) -> None:
    if not isinstance(call.truncate, bool):
        raise TypeError(f"truncate is of type {type(call.truncate).__name__}; it must be True or False")
    if isinstance(call.generate, bool) or not isinstance(call.generate, int):
        raise TypeError(f"generate is of type {type(call.generate).__name__}; it must be an int")
    if call.generate < 0:
        raise ValueError(f"generate is {call.generate}; it must be 0 tokens or more")


def check_weighting(weighting: object) -> None:
    if not isinstance(weighting, str):
        raise TypeError(f"weighting is of type {type(weighting).__name__}; it must be 'attention' or 'norm'")
    if weighting not in ("attention", "norm"):
        raise ValueError(f"weighting is {weighting!r}; it must be 'attention' or 'norm'")


def check_texts(texts: object, is_model: bool, has_text: bool, has_image: bool, call: ModelCall) -> None:
    """Checks the argument `texts` of `view`, the texts over which heads are measured. Raises TypeError or ValueError if it is not a list of str, or if another
    given argument excludes it."""
    if texts is None:
        return
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence):
        raise TypeError(f"texts is of type {type(texts).__name__}; it must be a list of str")
    if not texts:
        raise ValueError("texts is empty; give at least one text to measure the heads on, or leave it out")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{place}] is of type {type(text).__name__}; it must be a str")
    if not is_model:
        raise ValueError("texts is for a model, whose heads are measured on these texts, and source is not the folder of a model")
    if has_image:
        raise ValueError("texts and image are both given, but heads are measured on texts only; leave one of the two out")
    if call.generate:
        raise ValueError(f"texts measures heads on the given texts; it cannot be combined with generate = {call.generate}")
    if call.pair is not None and not has_text:
        raise ValueError("pair is the second part of text, and text is not given; a pair has no effect on texts")


def check_vector_megabytes(megabytes: object) -> None:
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)):
        raise TypeError(f"vector_megabytes is of type {type(megabytes).__name__}; it must be a number of megabytes")
    if not 0 <= megabytes < float("inf"):
        raise ValueError(f"vector_megabytes is {megabytes}; it must be 0 megabytes or more")


def check_vectors_are_given(size: PageSize, computation: Computation) -> None:
    """Raises ValueError if the caller gives a size for q, k and v in the page, but no q and k."""
    if size.vector_megabytes not in (0, PageSize().vector_megabytes) and not given(computation, "q", "k"):
        raise ValueError(f"vector_megabytes is {size.vector_megabytes}, the largest size of q, k and v in the page, but q and k are not given; give them in computation")


def check_measure(measure: object, without: object, is_model: bool) -> None:
    """Checks without_measure. Raises ValueError if the numbers that it names are not given, or if a model measures them itself. Raises TypeError if it is not
    two str."""
    if measure is None:
        return
    if without is None:
        raise ValueError("without_measure is given, but without is not; without_measure names the numbers of without")
    if is_model:
        raise ValueError("without_measure may be given only with attention weights; for a model, the numbers of without are always 1 - cosine")
    if not isinstance(measure, (tuple, list)) or len(measure) != 2:
        raise TypeError("without_measure must be two str, a name and a unit")
