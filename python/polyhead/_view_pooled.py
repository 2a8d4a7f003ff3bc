"""The maps that `view` computes from q and k: one attention weight for each query and key, or maps pooled to blocks if the text is too long."""

from __future__ import annotations

import math
from typing import Any

from . import _core
from ._attention import maps, pooled_map
from ._view_arguments import Computation, PageSize
from ._view_sets import layered

POOLINGS = ("largest", "mean", "sum")
_MOST_BLOCKS = 512  # largest number of rows or columns of blocks, if the caller does not give the number
_CELLS = 2**23  # largest number of cells of a page, if the caller does not give the number of blocks; they take 11 MB


def check_pooling(pooling: Any) -> None:
    if pooling is None:
        return
    if not isinstance(pooling, str):
        raise TypeError(f"pooling is of type {type(pooling).__name__}; it must be one of {', '.join(map(repr, POOLINGS))}")
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; it must be one of {', '.join(map(repr, POOLINGS))}")


def _layer(array: Any, place: int) -> Any:
    """One layer of an array that broadcasts to [layers, heads, T, S]."""
    if array is None or len(array.shape) < 4:
        return array
    return array[place if array.shape[0] > 1 else 0]


def block_limit(heads: int) -> int:
    """The default number of rows and columns of pooled maps, for this number of heads."""
    return max(1, min(_MOST_BLOCKS, math.isqrt(_CELLS // max(1, heads))))


def _blocks(blocks: Any, heads: int) -> int:
    most = math.isqrt(_core.most_attention_weights // max(1, heads))
    if blocks is None:
        return block_limit(heads)
    if isinstance(blocks, bool) or not isinstance(blocks, int):
        raise TypeError(f"pooled_blocks is of type {type(blocks).__name__}; it must be an int")
    if not 1 <= blocks <= most:
        raise ValueError(f"pooled_blocks is {blocks}; with {heads} heads it must be from 1 to {most}, so that the page holds the maps")
    return blocks


def _reach(causal: Any, attend: Any, T: int, S: int) -> Any:
    """The boolean mask of both `attend` and causal, as in `sdpa`."""
    import numpy as np

    offset = {"top_left": 0, "bottom_right": S - T}[causal] if isinstance(causal, str) else causal
    below = np.arange(S) <= np.arange(T)[:, None] + offset
    return below if attend is None else np.asarray(attend) & below


def computed(computation: Computation, page: PageSize) -> tuple[list[Any], Any, Any, int, int]:
    """Computes the maps of a page. Returns (maps, pooling, mask, T, S). maps: for each layer a map [heads, T, S], or a pooled map [heads, height, width].
    pooling: None if the maps are not pooled. mask: the mask of `attend` and causal; if the maps are pooled, `attend` alone."""
    pooling, attend, causal, progress = page.pooling, computation.attend, computation.causal, computation.progress
    queries, keys = layered(computation.q, "q"), layered(computation.k, "k")
    layers = len(queries)
    if len(keys) != layers or layers == 0:
        raise ValueError(f"q has {layers} layers and k {len(keys)}; they must have the same number of layers, at least one")
    heads, T, S = layers * queries[0].shape[0], queries[0].shape[1], keys[0].shape[1]
    size = _blocks(page.pooled_blocks, heads)
    if pooling is None and (page.pooled_blocks is not None or heads * T * S > _core.most_attention_weights):
        pooling = "largest"

    found = []
    for place in range(layers):
        options = {"bias": _layer(computation.bias, place), "attend": _layer(attend, place), "scale": computation.scale, "causal": causal}

        def report(done: int, total: int, place: int = place) -> None:
            if progress is not None:
                progress(place * total + done, layers * total)

        if pooling is None:
            found.append(maps(queries[place], keys[place], progress=report, **options))
        else:
            found.append(pooled_map(queries[place], keys[place], min(size, T), min(size, S), pooling=pooling, progress=report, **options))
    return found, pooling, attend if pooling is not None or causal is None else _reach(causal, attend, T, S), T, S
