"""The HTML page of all heads."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any, Literal

from . import _core
from ._capture import Capture
from ._options import Array

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


def _layers(layers: Sequence[Array]) -> list[Array]:
    """One [heads, T, S] per layer, from those or from [1, heads, T, S]."""
    shapes = [tuple(layer.shape) for layer in layers]
    if len({*shapes}) > 1 or len(shapes[0]) not in (3, 4) or len(shapes[0]) == 4 and shapes[0][0] != 1:
        raise ValueError(f"source is a list of attention weights {', '.join(str(list(shape)) for shape in dict.fromkeys(shapes))}; it must be one [heads, T, S] or [1, heads, T, S] per layer")
    if any(getattr(layer, "requires_grad", False) for layer in layers):
        raise TypeError("source requires grad, which view does not record; pass detached attention weights")
    return [layer[0] if len(layer.shape) == 4 else layer for layer in layers]


def view(
    source: Any,
    text: str | Sequence[str] | None = None,
    *,
    pair: str | None = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
    truncate: bool = False,
    lang: Literal["en", "zh"] | None = None,
) -> Page:
    """A page of the attention maps of every head.

    Args:
        source: a folder with a BERT-type sentence model (config.json, model.safetensors, vocab.txt); or attention weights ``[layers, heads, T, S]``
            (probabilities, floating; rows need not sum to 1, as after dropout); or a list with one ``[heads, T, S]`` or ``[1, heads, T, S]`` per layer,
            which transformers returns for one text; or what `capture` took.
        text: with a model: one text or several. With attention weights: a text to show above the maps.
        pair: the second part of the text, with a model and one text.
        tokens: with attention weights: T words of the queries; default: their positions.
        keys: with attention weights: S words of the keys; default: as the queries if S = T, else their positions.
        title: of the page.
        path: also write the page there.
        truncate: shorten texts that exceed the model's positions; otherwise they are an error.
        lang: language of the page, ``"en"`` or ``"zh"``; default: what the reader's browser prefers.

    Returns:
        The page; its attribute ``html`` is the text.

    Raises:
        OSError: the model cannot be read, or the page cannot be written.
        ValueError: the numbers of words and of attention weights disagree, attention weights outside of ``[0, 1]``, a text that is too long.
        TypeError: an argument of another type.
    """
    if not isinstance(truncate, bool):
        raise TypeError(f"truncate is of type {type(truncate).__name__}; it must be True or False")
    if isinstance(source, (str, os.PathLike)):
        if text is None:
            raise ValueError("text is missing; source is the folder of a model, which needs one")
        if tokens is not None or keys is not None:
            raise ValueError("tokens and keys are for attention weights; source is the folder of a model, which has its own")
        page = Page(_core.model_page(source, [text] if isinstance(text, str) else text, pair, title, truncate, lang))
    else:
        if pair is not None:
            raise ValueError("pair is for a model, and source is not the folder of one")
        if text is not None and not isinstance(text, str):
            raise ValueError("text must be one str with attention weights")
        if isinstance(source, Capture):
            source = source.layers()
        if isinstance(source, (list, tuple)) and source and all(hasattr(layer, "shape") for layer in source):
            source = _layers(source)
            shape: Any = (len(source), *source[0].shape)
        else:
            shape = getattr(source, "shape", None)
        if shape is None:
            raise TypeError(f"source is of type {type(source).__name__}; it must be a folder's path or an array of attention weights")
        if len(shape) != 4:
            raise ValueError(f"source is {list(shape)}; attention weights must be [layers, heads, T, S]")
        if keys is None and shape[2] != shape[3]:
            keys = [str(s) for s in range(shape[3])]
        if tokens is None:
            tokens = [str(t) for t in range(shape[2])]
        page = Page(_core.page(source, tokens, keys, text or "", "polyhead" if title is None else title, lang))
    if path is not None:
        page.save(path)
    return page
