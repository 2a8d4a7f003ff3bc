"""Turns a capture into the tabs of a page: one tab for each kind and shape of its calls."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._capture import Capture, CapturedCall, names_of, require_calls, why_no_maps
from ._view_arguments import MapArguments, given
from ._view_pooled import block_limit
from ._view_sets import Side, both, counted, described, is_list, named_special, of_text, pairs, plain

if TYPE_CHECKING:
    from torch import Tensor

# The tables below find the kind of attention by parts of a module's name. Each key is a word of the tabs' names, which viewer/script/sides.js translates.
_MODALITIES = {
    "Text": r"^(text|language)(_|$)",
    "Image": r"^(image|vision|visual)(_|$)",
    "Audio": r"^(audio|speech)(_|$)",
    "Video": r"^video(_|$)",
    "Multimodal": r"^multi_?modal(_|$)",
}
_STACKS = {"Encoder": r"(^|_)encoder(_|$)", "Decoder": r"(^|_)decoder(_|$)"}
_AXES = {
    "Time": r"(^|_)(temporal|time)(_|$)",
    "Space": r"(^|_)spatial(_|$)",
    "Rows": r"(^|_)rows?(_|$)",
    "Columns": r"(^|_)col(umn)?s?(_|$)",
}
_CROSS = re.compile(r"cross|enc_?dec|encoder_decoder|encoder_att|(^|_)(src|context)_att|^attn2$|[a-z]_to_[a-z]")


class _Kind(NamedTuple):
    """The kind of a call's attention, guessed from the name of the module. A field is "" if the name says nothing about it."""

    modality: str
    stack: str
    axis: str
    is_cross: bool
    is_window: bool


def _word(words: dict[str, str], parts: Sequence[str]) -> str:
    return next((word for part in parts for word, pattern in words.items() if re.search(pattern, part)), "")


def _kind(call: CapturedCall, names: set[str]) -> _Kind:
    parts = call.name.split(".")
    # In nn.TransformerDecoderLayer the module multihead_attn is the cross-attention.
    beside = ".".join([*parts[:-1], "self_attn"])
    is_cross = any(_CROSS.search(part.lower()) for part in parts) or parts[-1] == "multihead_attn" and beside in names
    others = [part.lower() for part in parts if not _CROSS.search(part.lower())]
    return _Kind(_word(_MODALITIES, others), _word(_STACKS, others), _word(_AXES, others), is_cross, call.is_window)


class _Calls:
    """One call; or, for a decoder with a cache, the successive calls of one module, each of which adds its queries as further rows of the map."""

    def __init__(self, call: CapturedCall, kind: _Kind) -> None:
        self.calls, self.kind, self.name = [call], kind, call.name
        *lead, self.heads, self.T, self.S = call.shape
        self.batch = math.prod(lead)
        self.rows = [self.T]  # number of queries of each call
        self.starts = [0]  # for each call, the position of its first key
        self.filled = 0  # for a cache of fixed size, the number of slots in use; 0: no such cache

    def add(self, step: _Calls, cache: str) -> None:
        if cache == "fixed":
            self.filled = step.last_used()
        elif cache == "growing":
            self.S = step.S
        elif cache == "sliding":
            self.S += step.T
        self.calls += step.calls
        self.rows += step.rows
        self.starts.append(self.S - step.S)
        self.T += step.T

    @property
    def has_maps(self) -> bool:
        return all(call.maps is not None for call in self.calls)

    @property
    def first(self) -> int:
        """The position of the first query, counted in keys. It is 0 except for decoding steps with a cache."""
        return self.S - self.T if len(self.calls) > 1 and not self.kind.is_cross else 0

    def maps(self) -> Tensor:
        """The map ``[B,N,T,S]`` with the rows of all calls. It is 0 for keys that the cache did not hold yet or no longer held."""
        given = [call.maps.reshape(-1, *call.maps.shape[-3:]) for call in self.calls if call.maps is not None]
        if len(given) == 1:
            return given[0]
        whole, row = given[0].new_zeros(self.batch, self.heads, self.T, self.S), 0
        for step, start in zip(given, self.starts):
            columns = min(self.S - start, step.shape[-1])  # cut off the free slots of a cache of fixed size
            whole[:, :, row : row + step.shape[-2], start : start + columns] = step[..., :columns]
            row += step.shape[-2]
        return whole

    @property
    def has_pooled_rows(self) -> bool:
        """Whether each call has one query, and either its map or a pooled map was kept."""
        return all(call.shape[-2] == 1 and (call.maps is not None or call.pooled_map is not None) for call in self.calls)

    def pooled_rows(self) -> Any:
        """``[B,N,T,width]``: one pooled row for each call. Each call must have one query."""
        import numpy as np

        width = next(call.pooled_map.shape[-1] for call in self.calls if call.pooled_map is not None)

        def row(call: CapturedCall) -> Any:
            if call.pooled_map is not None:
                return call.pooled_map.reshape(-1, *call.pooled_map.shape[-3:]).numpy()
            assert call.maps is not None
            return _pooled(call.maps.reshape(-1, *call.maps.shape[-3:]), 1, width, "mean")

        return np.concatenate([row(call) for call in self.calls], -2)

    def last_used(self) -> int:
        """1 + the index of the last key to which the last query attends; 0 without such a key."""
        last = self.calls[-1].maps[..., -1, :]  # type: ignore[index]
        used = (last.reshape(-1, last.shape[-1]) != 0).any(0).nonzero()
        return int(used[-1]) + 1 if len(used) else 0

    def is_causal_prompt(self) -> bool:
        first = self.calls[0].maps
        return first is not None and 1 < first.shape[-2] == first.shape[-1] and not bool(first[..., 0, 1:].any())


def _cache(before: _Calls, call: _Calls) -> str:
    """Returns the kind of the decoder's cache if the call is the next decoding step after `before`, else ""."""
    if (before.name, before.kind, before.batch, before.heads) != (call.name, call.kind, call.batch, call.heads) or call.T == 0:
        return ""
    if before.S + call.T == call.S and not before.filled and (call.name or call.T == 1):
        return "growing"
    # A cache of fixed size has the same number of keys in each step. Free slots are masked, and each step fills one slot for each query.
    before_call = before.calls[-1].shape
    if before_call[-1] == call.S != before_call[-2] and call.last_used() == (before.filled or before.last_used()) + call.T:
        return "fixed"
    # A sliding cache keeps only the last keys, so it does not grow. The last key is the query's own token.
    if call.name and call.T == 1 < call.S <= before.S and not before.filled and before.is_causal_prompt() and call.last_used() == call.S:
        return "sliding"
    return ""


def _joined(calls: list[CapturedCall]) -> list[_Calls]:
    """The calls in their order, where the steps of a decoder with a cache are joined to one `_Calls`."""
    names = {call.name for call in calls}
    found: list[_Calls] = []
    waiting: list[_Calls] = []  # calls that a later step may continue; the oldest is tried first, because layers run in the same order in each step
    for call in calls:
        one = _Calls(call, _kind(call, names))
        if one.kind.is_cross or not one.has_maps:
            found.append(one)
            continue
        before, cache = next(((chain, kind) for chain in waiting if (kind := _cache(chain, one))), (None, ""))
        if before is None:
            found.append(one)
        else:
            waiting.remove(before)
            before.add(one, cache)
        waiting.append(before or one)
    for chain in found:
        if chain.filled:
            chain.S = chain.filled
    return _cross_joined(found)


def _joined_of(captured: Capture) -> list[_Calls]:
    """The calls of a capture, with decoding steps joined. The self-attention of the whole capture tells which calls are steps, because a selection may hold only
    cross-attention."""
    chosen = {id(call) for call in captured.calls}
    whole = [one for one in _joined(captured._whole) if any(id(call) in chosen for call in one.calls)]
    is_whole = sum(len(one.calls) for one in whole) == len(chosen)
    return whole if captured._whole and is_whole else _joined(captured.calls)


def _cross_joined(found: list[_Calls]) -> list[_Calls]:
    """Joins the decoding steps of cross-attention wherever the self-attention of the same steps was joined. Cross-attention has the same keys in each step."""
    steps = sorted({tuple(chain.rows) for chain in found if len(chain.rows) > 1}, key=len, reverse=True)
    is_alone = all(one.kind.is_cross for one in found)  # True: there is no self-attention, so every later call with one query of the same module is taken for a step
    if not steps and not is_alone:
        return found
    by_module: dict[Hashable, list[_Calls]] = {}
    for one in found:
        if one.kind.is_cross and one.name and (one.has_maps or one.has_pooled_rows):
            by_module.setdefault((one.name, one.batch, one.heads, one.S), []).append(one)
    gone: set[int] = set()
    for calls in by_module.values():
        at = 0
        while at < len(calls):
            length = next((len(rows) for rows in steps if tuple(one.T for one in calls[at : at + len(rows)]) == rows), 1)
            if is_alone:
                length = next((i for i, one in enumerate(calls[at:]) if i > 0 and one.T != 1), len(calls) - at)
            if not (all(one.has_maps for one in calls[at : at + length]) or all(one.has_pooled_rows for one in calls[at : at + length])):
                length = 1
            for one in calls[at + 1 : at + length]:
                calls[at].add(one, "")
                gone.add(id(one))
            at += length
    return [one for one in found if id(one) not in gone]


class _Tab(NamedTuple):
    """One tab of the page. Its calls have the same kind and shape; each call becomes a layer of the tab's maps."""

    kind: _Kind
    batch: int
    heads: int
    T: int
    S: int
    first: int  # position of the first query, counted in keys
    layers: list[_Calls]
    pooling: str | None
    blocks: tuple[int, int] | None  # height and width of pooled maps; None: not pooled

    @property
    def cells(self) -> int:
        height, width = self.blocks or (self.T, self.S)
        return self.batch * len(self.layers) * self.heads * height * width

    def arrays(self) -> list[Any]:
        """The map ``[B,N,T,S]`` of each layer, or the pooled map ``[B,N,height,width]``."""
        return [layer.maps() if self.blocks is None else self._pooled(layer, self.blocks) for layer in self.layers]

    def _pooled(self, layer: _Calls, blocks: tuple[int, int]) -> Any:
        captured = layer.calls[0].pooled_map
        if layer.has_maps:
            return _pooled(layer.maps(), *blocks, str(self.pooling))
        if len(layer.calls) > 1:
            return layer.pooled_rows()
        assert captured is not None
        return captured.reshape(-1, *captured.shape[-3:])


def _pooled(maps: Tensor, height: int, width: int, pooling: str) -> Any:
    """Pools maps to the blocks that the function `pooled_map` would use."""
    import numpy as np

    T, S = maps.shape[-2:]
    rows, columns = (np.arange(count + 1) * extent // count for count, extent in ((height, T), (width, S)))
    operation = np.maximum if pooling == "largest" else np.add
    blocks = operation.reduceat(operation.reduceat(maps.numpy(), rows[:-1], -2), columns[:-1], -1)
    return blocks / (np.diff(rows)[:, None] * np.diff(columns)) if pooling == "mean" else blocks


def _grouped(calls: list[_Calls]) -> list[_Tab]:
    groups: dict[Hashable, list[_Calls]] = {}
    for one in calls:
        groups.setdefault((one.kind, one.batch, one.heads, one.T, one.S, one.first), []).append(one)
    tabs = []
    for layers in groups.values():
        one = layers[0]
        whole = [layer for layer in layers if layer.has_maps]
        shape = (one.kind, one.batch, one.heads, one.T, one.S, one.first)
        if whole:
            tabs.append(_Tab(*shape, whole, None, None))
        if len(whole) < len(layers):
            height, width = next(call.pooled_map.shape[-2:] for layer in layers for call in layer.calls if call.pooled_map is not None)
            if any(len(layer.calls) > 1 and not layer.has_maps for layer in layers):
                height = one.T  # one row of blocks for each step
            tabs.append(_Tab(*shape, layers, "mean", (height, width)))
    return tabs


def _require_joined(captured: Capture, tabs: list[_Tab]) -> None:
    """Raises ValueError if only pooled maps of a decoder's steps were captured. The steps have different numbers of keys, so their blocks cannot be joined to
    one map."""
    calls = [call for tab in tabs if tab.pooling is not None and tab.T == 1 for layer in tab.layers if len(layer.calls) == 1 for call in layer.calls if call.maps is None]
    times = Counter(call.name for call in calls)
    steps = [call for call in calls if times[call.name] > 1]
    if steps:
        raise ValueError(
            f"the capture has only pooled maps of the decoder steps of {names_of(steps)}; the page shows all steps as one map, for which it needs whole maps: {why_no_maps(captured, steps)}; "
            "captured.select(prefix) selects other modules"
        )


# ---- Names ----


def _names(tabs: list[_Tab]) -> list[str]:
    """Makes different names for the tabs. A name has the kind of attention and, if that does not distinguish the tabs, also the size, the number of heads and
    the number of sequences."""
    kinds = list(dict.fromkeys(tab.kind for tab in tabs))
    words = [_kind_words(tab.kind, kinds) for tab in tabs]
    details: list[Callable[[_Tab], str]] = [
        lambda tab: "Pooled" if tab.pooling is not None else _first_layers(tab, tabs),
        lambda tab: f"{tab.T} × {tab.S}",
        lambda tab: "1 head" if tab.heads == 1 else f"{tab.heads} heads",
        lambda tab: "1 sequence" if tab.batch == 1 else f"{tab.batch} sequences",
        lambda tab: f"from {tab.first}",
        lambda tab: tab.layers[0].name,
    ]
    for detail in details:
        for group in {tuple(one) for one in words}:
            places = [at for at, one in enumerate(words) if tuple(one) == group]
            if len({detail(tabs[at]) for at in places}) > 1:
                for at in places:
                    words[at] = [*words[at], *filter(None, [detail(tabs[at])])]
    return [" · ".join(one) for one in words]


def _first_layers(tab: _Tab, tabs: list[_Tab]) -> str:
    """For a tab whose later layers exceeded the budget, so that only the pooled tab has them: says which layers the tab has."""
    pooled = any(other.pooling is not None and other[:6] == tab[:6] and len(other.layers) > len(tab.layers) for other in tabs)
    return "" if not pooled else "layer 0" if len(tab.layers) == 1 else f"layers 0–{len(tab.layers) - 1}"


def _kind_words(kind: _Kind, kinds: list[_Kind]) -> list[str]:
    words = []
    if len({other.modality for other in kinds}) > 1 and kind.modality:
        words.append(kind.modality)
    beside = [other for other in kinds if other.modality == kind.modality]
    alike = [other for other in beside if other.is_cross == kind.is_cross]
    if len({other.stack for other in alike}) > 1 and kind.stack:
        words.append(kind.stack)
    elif not kind.is_cross and kind.stack in ("", "Decoder") and any(other.is_cross and other.stack == kind.stack for other in beside):
        words.append("Decoder")  # queries and keys are the decoder's words
    if kind.is_cross:
        words.append("Cross-attention")
    axes = {other.axis for other in alike if other.stack == kind.stack}
    if len(axes) > 1 and (kind.axis or "Time" in axes):
        words.append(kind.axis or "Space")
    if kind.is_window:
        words.append("Windows")
    elif not words:
        words.append("Self-attention")
    return words


def _sides(kind: _Kind, kinds: list[_Kind]) -> tuple[str, str] | None:
    """Whose words label the queries and the keys of a tab: "query" for the words given as tokens, "key" for those given as keys. None if the tab shows positions without words."""
    if kind.modality not in ("", "Text", "Multimodal") and any(other.modality in ("", "Text", "Multimodal") for other in kinds):
        return None
    if kind.is_window and not all(other.is_window for other in kinds):
        return None
    if kind.is_cross:
        return "query", "key"
    if kind.stack == "Encoder" and any(other.is_cross or other.stack == "Decoder" for other in kinds):
        return "key", "key"
    return "query", "query"


# ---- The arguments of view ----


def tabs_of(captured: Capture, pooling: str | None) -> list[_Tab]:
    """Returns the tabs that show the captured calls. pooling: how to pool all maps, as in `view`; None: only the largest tabs are pooled, as many as necessary
    for the page to hold all maps."""
    require_calls(captured)
    if without := [call for call in captured.calls if call.maps is None and call.pooled_map is None]:
        raise ValueError(f"the capture has neither maps nor pooled maps of {names_of(without)}: {why_no_maps(captured, without)}")
    tabs = _grouped(_joined_of(captured))
    _require_joined(captured, tabs)
    heads = sum(tab.batch * len(tab.layers) * tab.heads for tab in tabs)
    size = block_limit(heads)

    def pooled(tab: _Tab, how: str) -> _Tab:
        return tab._replace(pooling=how, blocks=(min(size, tab.T), min(size, tab.S)))

    if pooling is not None:
        if pooling == "largest" and (means := [call for call in captured.calls if call.maps is None]):
            raise ValueError(f"pooling is 'largest', and the capture holds only pooled means of {names_of(means)}; {why_no_maps(captured, means)}, or show them by pooling='mean'")
        return [tab if tab.pooling is not None else pooled(tab, pooling) for tab in tabs]
    while sum(tab.cells for tab in tabs) > _core.most_attention_weights:
        large = max((tab for tab in tabs if tab.pooling is None and max(tab.T, tab.S) > size), key=lambda tab: tab.cells, default=None)
        if large is None:
            raise ValueError(
                f"the capture has {sum(tab.cells for tab in tabs)} attention weights of {sum(tab.batch for tab in tabs)} sequences, and a page holds {_core.most_attention_weights}; "
                "captured.select(prefix) selects some modules, and a smaller batch has fewer sequences"
            )
        tabs[tabs.index(large)] = pooled(large, "largest")
    return tabs


def plain_layers(tabs: list[_Tab]) -> list[Any] | None:
    """If the capture has only one tab, which `view` can treat like a list of arrays: the layers of this tab. Else None."""
    return tabs[0].arrays() if len(tabs) == 1 and tabs[0].pooling is None and tabs[0].first == 0 else None


class _Words:
    """The words and flags of tokens that the caller gave. A list of words or flags is used in every tab that has as many tokens as the list has entries."""

    def __init__(self, arguments: dict[str, Any], tabs: list[_Tab], names: list[str]) -> None:
        self.tabs, self.names = tabs, names
        self.given = arguments
        self.fit: set[tuple[str, int]] = set()  # pairs ("tokens" or "keys", number of the text) of the lists of words that fitted some tab
        self.unused = {name for name, value in self.given.items() if not isinstance(value, frozenset)}
        kinds = list(dict.fromkeys(tab.kind for tab in tabs))
        self.sides = [_sides(tab.kind, kinds) for tab in tabs]
        self.has_keys = any(sides is not None and "key" in sides for sides in self.sides)
        batches = {tab.batch for tab in tabs}
        self.count = counted(self.given.get("tokens"), self.given.get("text"))  # number of texts for which words are given; None: one text, not given as a list
        if self.count is None and 1 not in batches:
            self.count = min(batches)
        if self.count is not None and self.count not in batches:
            raise ValueError(f"there are words for {self.count} texts; the capture has {self._listed(lambda tab: f'a batch of {tab.batch}')}")

    def _listed(self, what: Callable[[_Tab], str]) -> str:
        shown = [f"{name or 'one set'}: {what(tab)}" for tab, name in zip(self.tabs, self.names)]
        return "; ".join(shown[:6]) + (f"; and {len(shown) - 6} more" if len(shown) > 6 else "")

    def part(self, name: str, tab: _Tab, place: int) -> Any:
        """The entry of an argument for one text of a tab; None if the argument has another number of texts than the tab."""
        value = self.given.get(name)
        return None if value is None or tab.batch != (self.count or 1) else of_text(value, name, place, self.count)

    def fitting(self, name: str, value: Any, size: int) -> Any:
        """The value if it has `size` entries, else None."""
        value = plain(value)
        if value is None or isinstance(value, frozenset):
            return value
        if not is_list(value):
            raise TypeError(f"{name} is of type {type(value).__name__}; it must be a list with an entry for each token")
        if len(value) != size:
            return None
        self.unused.discard(name)
        return value

    def side(self, at: int, axis: int, place: int) -> Side:
        """The words of the queries (axis 0) or of the keys (axis 1) of tab `at`, for the text `place`, with their entries of `special` and `segments`."""
        tab, sides = self.tabs[at], self.sides[at]
        size = (tab.T, tab.S)[axis]
        first = tab.first if axis == 0 else 0
        label = "tokens" if sides is None or sides[axis] == "query" else "keys"
        words = special = segments = None
        if sides is not None:
            whole = tab.S if first else size  # with a cache the caller gives the words of all keys, the last of which are the queries
            words = self.fitting(label, self.part(label, tab, place), whole)
            if words is not None:
                self.fit.add((label, place))
                words = words[first:]
            if tab.pooling is None:
                special, segments = (self._flags(name, tab, place, sides[axis], whole, first) for name in ("special", "segments"))
        if words is None and first:
            words = [str(row) for row in range(first, tab.S)]
        return Side(label, size, words, special, segments)

    def _flags(self, name: str, tab: _Tab, place: int, side: str, size: int, first: int) -> Any:
        value = both(self.part(name, tab, place), name, self.has_keys)[side == "key"]
        found = self.fitting(name, value, size)
        return found if found is None or isinstance(found, frozenset) else found[first:]

    def blocked(self, at: int, place: int) -> Any:
        tab, sides = self.tabs[at], self.sides[at]
        if sides is None or tab.pooling is not None or sides[1] != ("key" if self.has_keys else "query"):
            return None
        return self.fitting("block_keys", self.part("block_keys", tab, place), tab.S)

    def links(self, at: int, place: int) -> tuple[Any, list[Any]]:
        tab, sure = self.tabs[at], self.part("links", self.tabs[at], place)
        if sure is None or self.sides[at] != ("query", "key") or tab.pooling is not None:
            return None, []
        found = pairs(sure, "links"), pairs(self.part("possible_links", tab, place), "possible_links")
        if any(not (0 <= query < tab.T and 0 <= key < tab.S) for links in found for query, key in links):
            return None, []
        self.unused -= {"links", "possible_links"}
        return found

    def require_used(self) -> None:
        for name in ("tokens", "keys"):
            for place in range(0 if name in self.unused or name not in self.given else self.count or 1):
                words = plain(of_text(self.given[name], name, place, self.count))
                if (name, place) not in self.fit and words is not None:
                    self._refuse_count(f"text {place} of {self.count} (counted from 0): {name}", len(words))
        for name in sorted(self.unused - {"text"}):
            if name == "keys" and not self.has_keys:
                raise ValueError("keys are given, but in this capture queries and keys are the same tokens")
            if name in ("links", "possible_links"):
                raise ValueError(f"{name} fit no cross-attention of the capture, which has {self._listed(lambda tab: f'{tab.T} queries and {tab.S} keys')}")
            if all(tab.pooling is not None for tab in self.tabs) and name in ("special", "segments", "block_keys"):
                raise ValueError(f"{name} may be given only for maps of single tokens; the cells of pooled maps are blocks of tokens")
            value = plain(of_text(self.given[name], name, 0, self.count))
            pair = is_list(value) and len(value) == 2 and all(map(is_list, map(plain, value)))
            entries = " and ".join(str(len(plain(one))) for one in value) if pair else len(value)
            self._refuse_count(name, entries)

    def _refuse_count(self, name: str, entries: object) -> None:
        raise ValueError(
            f"{name} has {entries} entries, and no set of the capture has so many tokens: {self._listed(lambda tab: f'{tab.T} queries, {tab.S} keys')}; "
            "captured.select(prefix) selects some of the calls"
        )


def captured_sets(tabs: list[_Tab], arguments: MapArguments) -> list[dict[str, Any]]:
    """The texts of a page. Each text has a first set of maps, and the further sets as tabs. Sequence i of each set is in text i; the sets may have different
    numbers of sequences."""
    names = _names(tabs) if len(tabs) > 1 else [""]
    annotations, text = arguments.annotations, arguments.text
    refused = {**given(annotations, "axes"), **given(arguments.computation, "gate", "pair_bias", "value_norms"), **given(arguments, "image", "patches", "without"), **arguments.vectors()}
    if wrong := list(refused):
        sets = f"this capture has {len(tabs)} sets: {', '.join(names)}; captured.select(prefix) selects some of its calls" if len(tabs) > 1 else "the maps of this capture are pooled or joined from decoding steps"
        raise ValueError(f"{' and '.join(wrong)} may be given only for a capture with one set of maps, neither pooled nor joined from decoding steps; {sets}")
    if annotations.possible_links is not None and annotations.links is None:
        raise ValueError("possible_links are given without links, the pairs that are known to be right")
    words = _Words(
        {
            **given(arguments, "text", "tokens", "keys"),
            **given(annotations._replace(special=named_special(annotations.special)), "special", "segments", "block_keys", "links", "possible_links"),
        },
        tabs,
        names,
    )
    if is_list(text) and words.count != len(text) or isinstance(text, str) and words.count is not None:
        raise ValueError(f"text must be {'one str' if words.count is None else f'{words.count} str, one for each text'}")
    arrays = [tab.arrays() for tab in tabs]
    texts = []
    for place in range(max(tab.batch for tab in tabs)):
        sets_of_text = []
        for at, tab in enumerate(tabs):
            if place >= tab.batch:
                continue
            query, key = (words.side(at, axis, place) for axis in (0, 1))
            is_same = words.sides[at] != ("query", "key") and (tab.T, tab.first) == (tab.S, 0)
            links, possible = words.links(at, place)
            sets_of_text.append(described(
                text=text if isinstance(text, str) and place == 0 else text[place] if is_list(text) and place < len(text) else "" if max(tab.batch for tab in tabs) == 1 else str(place),
                name=names[at], pooling=tab.pooling, attentions=[layer[place] for layer in arrays[at]], queries=query, keys=query if is_same else key,
                block_keys=words.blocked(at, place), links=links, possible_links=possible))  # fmt: skip
        sets_of_text[0]["tabs"] = sets_of_text[1:]
        texts.append(sets_of_text[0])
    words.require_used()
    return texts
