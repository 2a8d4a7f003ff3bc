"""Converts the arguments of `view` to the sets of maps that a page shows, unless source is the folder of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ._view_arguments import MapArguments, given

# Name in an output of transformers -> (name of the page's tab, side of the queries, side of the keys). In an encoder-decoder the side "query" means the
# decoder's tokens, and the side "key" the encoder's tokens.
_OUTPUTS = {
    "attentions": ("Self-attention", "query", "query"),
    "encoder_attentions": ("Encoder", "key", "key"),
    "decoder_attentions": ("Decoder", "query", "query"),
    "cross_attentions": ("Cross-attention", "query", "key"),
}
_KINDS = "[T, S], [heads, T, S], [layers, heads, T, S], a list with one [heads, T, S] or [B, heads, T, S] per layer, or an output of transformers"


class _Maps(NamedTuple):
    """The attention weights of one tab of the page."""

    name: str
    sides: tuple[str, str]  # the side of the queries and the side of the keys, each "query" or "key" (see _OUTPUTS)
    values: Any  # [layers, heads, T, S], or a list of layers [heads, T, S] or [B, heads, T, S]
    batch: int | None
    T: int
    S: int

    def of(self, text: int) -> Any:
        return self.values if self.batch is None else [layer[text] for layer in self.values]


def _shape(array: Any) -> list[int]:
    return list(array.shape)


def _has_shape(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, type)


def _output(source: Any) -> dict[str, Any] | None:
    """The attention weights of an output of transformers, or of a dict with the same names; None for any other source."""
    if _has_shape(source) or isinstance(source, (list, tuple)) and not hasattr(source, "_fields"):
        return None
    def get(name: str) -> Any:
        return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)

    if isinstance(source, Mapping) and (unknown := [name for name in source if name not in _OUTPUTS and not hasattr(source, "to_tuple")]):
        raise ValueError(f"source has the name {unknown[0]!r}; it may have {', '.join(map(repr, _OUTPUTS))}")
    if not isinstance(source, Mapping) and not any(hasattr(source, name) for name in _OUTPUTS):
        return None
    attentions = {name: get(name) for name in _OUTPUTS}
    found = {name: values for name, values in attentions.items() if values is not None and len(values) > 0}  # transformers returns () for attentions that a model does not have
    if not found:
        raise ValueError("source has no attention weights; call the model with output_attentions=True (and attn_implementation='eager')")
    return found


def _layered(values: Any, name: str, count: int | None, kinds: str, batched: bool = False) -> tuple[Any, int | None]:
    """Returns the array as [layers, heads, ..] or as a list of layers, and the number of texts if there is a batch, else None. `count`: the number of texts for
    which words were given."""
    if isinstance(values, (list, tuple)):
        if not values or not all(_has_shape(layer) for layer in values):
            _refuse_missing_layers(values, name)
            nested = values and isinstance(values[0], (list, tuple)) and any(map(_has_shape, values[0]))
            other = next((layer for layer in values if not _has_shape(layer)), None)
            raise TypeError(f"{name} is a {type(values).__name__} of {type(other).__name__ if values else 'nothing'}; it must be {kinds}" + ("; generate() returns a list for each step, so call the model once on all generated tokens" if nested else ""))
        shapes = {tuple(layer.shape) for layer in values}
        first = _shape(values[0])
        if len(shapes) > 1 or len(first) not in (3, 4):
            raise ValueError(f"{name} is a list of attention weights {', '.join(str(list(shape)) for shape in dict.fromkeys(tuple(layer.shape) for layer in values))}; it must have one [heads, T, S] or [B, heads, T, S] per layer, all of the same shape; polyhead.capture(model) takes the maps of a model whose layers differ, and view(captured) shows a tab for each shape")
        layers = list(values)
        _refuse_gradients(layers, name)
        if len(first) == 3:
            return layers, None
        if first[0] == 1 and count is None and not batched:
            return [layer[0] for layer in layers], None
        return layers, first[0]
    if not _has_shape(values):
        raise TypeError(f"{name} is of type {type(values).__name__}; it must be {kinds}")
    _refuse_gradients([values], name)
    dims = len(values.shape)
    if count is not None or batched:
        if dims == 4:
            return [values], values.shape[0]
        if dims == 5:
            return [values[layer] for layer in range(values.shape[0])], values.shape[1]
        raise ValueError(f"{name} is {_shape(values)}; for several texts it must be [B, heads, T, S] or [layers, B, heads, T, S]")
    if dims not in (2, 3, 4):
        raise ValueError(f"{name} is {_shape(values)}; it must be {kinds}")
    return values[(None,) * (4 - dims)] if dims < 4 else values, None


def _refuse_missing_layers(values: Sequence[Any], name: str) -> None:
    """Raises ValueError if the list of layers contains None, which some models return for layers without attention. The page would number the other layers
    wrongly."""
    missing = [place for place, layer in enumerate(values) if layer is None]
    if not missing:
        return
    if len(missing) == len(values):
        raise ValueError(f"{name} has None for every layer; call the model with output_attentions=True (and attn_implementation='eager')")
    listed = f"layer {missing[0]}" if len(missing) == 1 else f"the layers {', '.join(map(str, missing))}"
    numbers = [place for place in range(len(values)) if place not in missing]
    shown = ", ".join(f"{number} as {place}" for place, number in enumerate(numbers) if place != number)
    raise ValueError(
        f"{name} has None for {listed} (counted from 0), for which the page has no place; give only the other layers, "
        f"[layer for layer in attentions if layer is not None]{f': the page then shows layer {shown}' if shown else ''}"
    )


_VECTORS = "[T, H], [heads, T, H], [layers, heads, T, H] or a list with one [heads, T, H] or [B, heads, T, H] per layer"


def layered(values: Any, name: str) -> Any:
    """Returns q or k of one text as [layers, heads, T, H] or as a list of layers."""
    found, batch = _layered(values, name, None, _VECTORS)
    if batch is not None:
        raise ValueError(f"{name} has a batch of {batch}; without source, view computes the attention weights of one text")
    return found


def _vectors(arrays: dict[str, Any], count: int | None, batch: int | None) -> dict[str, Any]:
    """Converts q, k and v to lists of layers, and checks that they have as many texts as the attention weights. Returns the other arrays unchanged."""
    result = dict(arrays)
    for name in arrays.keys() & {"q", "k", "v"}:
        result[name], texts = _layered(arrays[name], name, count, _VECTORS, batch is not None)
        if texts != batch:
            raise ValueError(f"{name} has a batch of {texts or 1}, and source has a batch of {batch or 1}; they must be equal")
    return result


def _vectors_of(vectors: dict[str, Any], place: int, batch: int | None) -> dict[str, Any]:
    """Selects the arguments of one text of a batch. bias and attend broadcast to [layers, B, heads, T, S]."""
    def part(name: str, value: Any) -> Any:
        if name in ("q", "k", "v"):
            return [layer[place] for layer in value]
        if name not in ("bias", "attend") or not _has_shape(value) or len(value.shape) < 4:
            return value
        axis = len(value.shape) - 4
        if axis > 1 or value.shape[axis] not in (1, batch):
            raise ValueError(f"{name} is {_shape(value)}; for {batch} texts it must broadcast to [layers, B, heads, T, S]")
        text = place if value.shape[axis] == batch else 0
        return value[:, text] if axis else value[text]

    return vectors if batch is None else {name: part(name, value) for name, value in vectors.items()}


def _refuse_gradients(arrays: Sequence[Any], name: str) -> None:
    if any(getattr(array, "requires_grad", False) for array in arrays):
        raise TypeError(f"{name} requires grad, which view does not record; pass detached attention weights (torch.no_grad(), or .detach())")


def _maps(source: Any, count: int | None) -> list[_Maps]:
    found = _output(source)
    tabs = []
    for name, values in (found.items() if found is not None else [("source", source)]):
        title, query, key = _OUTPUTS.get(name, ("", "query", "key"))
        layered, batch = _layered(values, name if found is None else f"source.{name}", count, _KINDS)
        shape = _shape(layered[0]) if isinstance(layered, list) else _shape(layered)
        tabs.append(_Maps(title if found is not None and len(found) > 1 else "", (query, key), layered, batch, shape[-2], shape[-1]))
    batches = {tab.batch for tab in tabs}
    if len(batches) > 1:
        raise ValueError(f"source has sets of maps with batches of {' and '.join(str(tab.batch or 1) for tab in tabs)} texts; these numbers must be equal")
    return tabs


def _pooled(tabs: list[_Maps], arguments: MapArguments) -> _Maps:
    """The only set of maps, where T and S are the numbers of words instead of the height and width of the pooled maps."""
    if len(tabs) > 1 or tabs[0].batch is not None:
        raise ValueError("pooling is for one set of maps of one text; source has several")
    tokens, keys = arguments.tokens, arguments.keys
    of_tokens = {**given(arguments.annotations, "special", "segments", "block_keys", "links", "possible_links"), **given(arguments.computation, "gate", "pair_bias", "value_norms"), **given(arguments, "image")}
    if wrong := list(of_tokens):
        raise ValueError(f"{' and '.join(wrong)} may be given only for maps of single tokens; the cells of pooled maps are blocks of tokens")
    if tokens is None:
        raise ValueError("pooling needs tokens, the words of all T queries: pooled maps do not say how many there are")
    words = plain(tokens), plain(tokens if keys is None else keys)
    for name, listed in zip(("tokens", "keys"), words):
        if not is_list(listed):
            raise TypeError(f"{name} is of type {type(listed).__name__}; it must be a list of str")
    return tabs[0]._replace(T=len(words[0]), S=len(words[1]))


def plain(value: Any) -> Any:
    """Converts arrays to lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def of_text(value: Any, name: str, text: int, count: int | None) -> Any:
    """The entry for text number `text` of an argument that has one entry for each of `count` texts. If count is None, the argument itself."""
    value = plain(value)
    if value is None or count is None or isinstance(value, frozenset):
        return value
    if not is_list(value) or len(value) != count:
        raise ValueError(f"{name} has {len(value) if is_list(value) else 'no'} entries for {count} texts; it must have one for each text")
    return value[text]


class Side:
    """The words of the queries or of the keys, with their flags."""

    def __init__(self, label: str, size: int, words: Any, special: Any, segments: Any) -> None:
        self.label, self.size = label, size
        self.pieces = [str(place) for place in range(size)] if words is None else words
        if isinstance(special, frozenset):
            special = [piece in special for piece in self.pieces]
        self.special = None if special is None else [bool(flag) for flag in self.checked("special", special, (0, 1), "True or False")]
        self.segments = self.checked("segments", segments, range(1000), "an int from 0")

    def checked(self, name: str, values: Any, allowed: Any, kind: str) -> list[int]:
        if values is None:
            return []
        values = plain(values)
        letter = "T" if self.label == "tokens" else "S"
        if not is_list(values) or len(values) != self.size:
            raise ValueError(f"{name} has {len(values) if is_list(values) else 'no'} entries for the {self.label}; it must have {letter} = {self.size}")
        for value in values:
            if not isinstance(value, int):
                raise TypeError(f"{name} has an entry of type {type(value).__name__}; each must be {kind}")
            if value not in allowed:
                raise ValueError(f"{name} has the entry {value}; each must be {kind}")
        return list(values)

    def described(self) -> dict[str, Any]:
        return {"label": self.label, "pieces": self.pieces, "special": self.special, "segments": self.segments}


def both(value: Any, name: str, two: bool) -> tuple[Any, Any]:
    """Splits an argument into the values for the queries and the values for the keys. If the keys have other words than the queries, the argument must be a
    pair."""
    value = plain(value)
    if value is None or isinstance(value, frozenset) or not two:
        return value, value
    if not is_list(value) or len(value) != 2 or not all(part is None or is_list(plain(part)) for part in value):
        raise ValueError(f"{name} must be a pair here, one part for the tokens and one for the keys, because the keys have other words than the queries")
    return value[0], value[1]


def named_special(special: Any) -> Any:
    """Special tokens that are given as words are returned as a frozenset; flags are returned unchanged."""
    listed = plain(special)
    words = isinstance(listed, (set, frozenset)) or is_list(listed)
    return frozenset(listed) if words and all(isinstance(word, str) for word in listed) else listed


def pairs(value: Any, name: str, kind: str = "(query, key), two places of tokens") -> list[tuple[int, int]]:
    value = plain(value)
    if value is None:
        return []
    if not is_list(value):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a list of {kind}")
    found = [tuple(plain(pair)) if is_list(plain(pair)) else (pair,) for pair in value]
    for pair in found:
        if len(pair) != 2 or not all(isinstance(place, int) and not isinstance(place, bool) for place in pair):
            raise ValueError(f"{name} has the entry {pair!r}; each must be {kind}")
    return sorted(found)


def heads_off(value: Any) -> Any:
    """The heads that a model is to switch off, in the form that the bindings read: "all" or pairs."""
    return value if value is None or isinstance(value, str) and value == "all" else pairs(value, "without", "(layer, head), or \"all\"")


def _changes(value: Any, layers: int, heads: int) -> list[tuple[int, int, float]]:
    """A triple (layer, head, change) for each head that was switched off."""
    kinds = f"[layers, heads] = [{layers}, {heads}] or a dict {{(layer, head): change}}"
    if value is None:
        return []
    if isinstance(value, Mapping):
        found = [(*place, change) for place, change in zip(pairs(list(value), "without", "(layer, head)"), (value[place] for place in sorted(value)))]
    else:
        rows = plain(value)
        if not is_list(rows) or len(rows) != layers or not all(is_list(row) and len(row) == heads for row in rows):
            lengths = sorted({len(row) for row in rows}) if is_list(rows) and all(map(is_list, rows)) else []
            shape = f"[{len(rows)}, {' or '.join(map(str, lengths))}]" if lengths else f"of type {type(value).__name__}"
            raise ValueError(f"without is {shape}; it must be {kinds}")
        found = [(layer, head, change) for layer, row in enumerate(rows) for head, change in enumerate(row)]
    result = []
    for layer, head, change in found:
        change = plain(change)
        if isinstance(change, bool) or not isinstance(change, (int, float)):
            raise TypeError(f"without has a change of type {type(change).__name__} for head {layer}.{head}; it must be a number")
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(f"without has the head {layer}.{head}; source has the layers 0 to {layers - 1}, each with the heads 0 to {heads - 1}")
        if change != change:  # NaN: this head was not switched off
            continue
        if abs(change) == float("inf"):
            raise ValueError(f"without has the change {change} for head {layer}.{head}; it must be finite")
        result.append((layer, head, float(change)))
    return result


def _images(image: Any, patches: Any, batch: int | None) -> list[Any]:
    """The image of each text; an empty list if there is no image."""
    if image is None and patches is None:
        return []
    if image is None or patches is None:
        raise ValueError("image and patches belong together: give both, or none")
    if not is_list(patches) or len(patches) != 2 or not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in patches):
        raise ValueError(f"patches is {patches!r}; it must be two ints from 1, the rows and columns of patches")
    if not _has_shape(image):
        raise TypeError(f"image is of type {type(image).__name__}; it must be an array")
    _refuse_gradients([image], "image")
    shape, before = _shape(image), [] if batch is None else [batch]
    grey, colour = len(shape) == len(before) + 2, len(shape) == len(before) + 3 and shape[-1] == 3
    if not (grey or colour) or shape[: len(before)] != before:
        first = "" if batch is None else f"{batch}, "
        raise ValueError(f"image is {shape}; it must be [{first}height, width] or [{first}height, width, 3]")
    if str(image.dtype).rpartition(".")[2] == "uint8":
        image = image / 255
    return [image] if batch is None else [image[place] for place in range(batch)]


def images_of_model(image: Any) -> list[Any]:
    """Returns the images for a model as a list of arrays, uint8 [height, width, 3]. image: one image, a list of images, or one array of several images of the
    same size."""
    images = list(image) if is_list(image) or _has_shape(image) and len(image.shape) == 4 else [image]
    if not images:
        raise ValueError("image is empty; a page needs at least one image")
    for place, one in enumerate(images):
        name = "image" if len(images) == 1 else f"image {place} of {len(images)} (counted from 0)"
        if not _has_shape(one):
            raise TypeError(f"{name} is of type {type(one).__name__}; for a model it must be an array, uint8 [height, width, 3]: numpy.asarray(PIL.Image.open(path).convert('RGB'))")
        if len(one.shape) != 3 or one.shape[2] != 3 or str(one.dtype).rpartition(".")[2] != "uint8":
            raise ValueError(f"{name} is {one.dtype} {_shape(one)}; for a model it must be uint8 [height, width, 3], as read from the image's file: view resizes and normalises the image as the model's folder says")
    return images


def require_count(name: str, words: Any, size: int, text: int, count: int | None) -> None:
    """Raises ValueError unless there are `size` words. count: number of texts; None: one text, not given as a list."""
    words = plain(words)
    if is_list(words) and len(words) != size:
        of = name if count is None else f"text {text} of {count} (counted from 0): {name}"
        raise ValueError(f"{of} has {len(words)} words; source has {size} {'queries' if name == 'tokens' else 'keys'}, and each needs one")


def counted(tokens: Any, text: Any) -> int | None:
    """The number of texts for which words are given; None if they are given for one text, not as a list of texts."""
    tokens = plain(tokens)
    if is_list(tokens) and tokens and all(is_list(words) for words in tokens):
        return len(tokens)
    return len(text) if is_list(text) else None


def sets(arguments: MapArguments) -> list[dict[str, Any]]:
    """The texts of a page in the form that the bindings read. Each text has a first set of maps, and the further sets as tabs."""
    count = counted(arguments.tokens, arguments.text)
    tabs = _maps(arguments.source, count)
    if arguments.pooling is not None:
        tabs = [_pooled(tabs, arguments)]
    batch = tabs[0].batch
    _require_texts(arguments, count, batch)
    _require_one_set(arguments, tabs)
    if arguments.annotations.possible_links is not None and arguments.annotations.links is None:
        raise ValueError("possible_links are given without links, the pairs that are known to be right")
    if arguments.computation.pair_bias is not None:
        _require_pair_bias(arguments.computation.pair_bias, tabs[0].values)
    if arguments.image is not None and arguments.keys is not None:
        raise ValueError("image is only for self-attention, in which queries and keys are the same tokens, and keys are given")
    gates, vectors = _gates(arguments.computation.gate, count, batch), _vectors(arguments.vectors(), count, batch)
    images = _images(arguments.image, arguments.patches, batch)
    if images and arguments.annotations.special is None:
        arguments = arguments._replace(annotations=arguments.annotations._replace(special=_special_before(arguments.patches, tabs[0].T, batch)))
    return [_text(arguments, tabs, place, gates, (images[place], *arguments.patches) if images else None, _vectors_of(vectors, place, batch)) for place in range(1 if batch is None else batch)]


def _require_texts(arguments: MapArguments, count: int | None, batch: int | None) -> None:
    """Raises an error unless the words, `text` and `axes` fit the number of texts of the attention weights."""
    text, axes = arguments.text, arguments.annotations.axes
    if batch is not None and count is not None and batch != count:
        raise ValueError(f"source has a batch of {batch}; there are words for {count} texts")
    if text is not None and not isinstance(text, str) and batch is None:
        raise ValueError("text must be one str with the attention weights of one text")
    if isinstance(text, str) and batch is not None:
        raise ValueError(f"text must be {batch} str, one for each text of the batch")
    if axes is not None and (not is_list(axes) or len(axes) != 2):
        raise TypeError("axes must be two str, the names of the query axis and of the key axis")


def _require_one_set(arguments: MapArguments, tabs: list[_Maps]) -> None:
    """Raises ValueError if there are several sets of maps, and an argument is given that belongs to a single set."""
    if len(tabs) == 1:
        return
    listed = f"for one set of maps; source has {len(tabs)}: {', '.join(tab.name for tab in tabs)}"
    for name in (*given(arguments.annotations, "axes"), *given(arguments.computation, "gate", "pair_bias", "value_norms"), *given(arguments, "image", "without")):
        raise ValueError(f"{name} is {listed}")
    if vectors := arguments.vectors():
        raise ValueError(f"{', '.join(vectors)} may be given only {listed}")


def _gates(gate: Any, count: int | None, batch: int | None) -> Any:
    """The gates of all texts, as an array or a list of layers; None if no gates are given."""
    if gate is None:
        return None
    gates, texts = _layered(gate, "gate", count, "[T, V], [heads, T, V] or [layers, heads, T, V]; for several texts [layers, B, heads, T, V]", batch is not None)
    if texts != batch:
        given, wanted = ("no batch" if n is None else f"a batch of {n}" for n in (texts, batch))
        raise ValueError(f"gate has {given}, and source has {wanted}; they must be equal")
    return gates


def _norms(norms: Any, place: int, batch: int | None) -> Any:
    """Selects the value norms of one text: [layers, heads, S], or a list of layers."""
    if norms is None:
        return None
    kinds = "[layers, heads, S], or a list of layers; for several texts [layers, B, heads, S]"
    listed = isinstance(norms, (list, tuple))
    layers = list(norms) if listed else [norms]
    if other := [layer for layer in layers if not _has_shape(layer)]:
        raise TypeError(f"value_norms {'has a layer' if listed else 'is'} of type {type(other[0]).__name__}; it must be {kinds}")
    _refuse_gradients(layers, "value_norms")
    shapes = [_shape(layer) for layer in layers]
    if any(shape != shapes[0] for shape in shapes) or not layers:
        raise ValueError(f"value_norms is a list of {', '.join(map(str, shapes)) or 'no layers'}; its layers must have one shape")
    if batch is None:
        return layers if listed else norms
    whole = [len(layers), *shapes[0]] if listed else shapes[0]
    if len(whole) != 4 or whole[1] != batch:
        raise ValueError(f"value_norms is {whole}; for {batch} texts it must be [layers, B, heads, S]")
    return [layer[place] for layer in layers] if listed else norms[:, place]


def _require_pair_bias(pair_bias: Any, values: Any) -> None:
    if not _has_shape(pair_bias):
        raise TypeError(f"pair_bias is of type {type(pair_bias).__name__}; it must be an array")
    _refuse_gradients([pair_bias], "pair_bias")
    whole = [len(values), *_shape(values[0])[-3:]] if isinstance(values, list) else _shape(values)
    extents = _shape(pair_bias)
    if len(extents) > 4 or any(extent not in (1, full) for extent, full in zip(extents[::-1], whole[::-1])):
        raise ValueError(f"pair_bias is {extents}; it must broadcast to [layers, heads, T, S] = {whole}")


def _special_before(patches: tuple[int, int], T: int, batch: int | None) -> Any:
    """Flags that mark the special tokens of an image: those before the patches."""
    count = patches[0] * patches[1]
    special = [1] * max(0, T - count) + [0] * min(T, count)
    return special if batch is None else [special] * batch


def _sizes(tabs: list[_Maps]) -> dict[str, int]:
    """The number of tokens of each side ("query", "key"). ValueError if two sets of maps have different numbers for a side."""
    sizes: dict[str, int] = {}
    for tab in tabs:
        for side, size in zip(tab.sides, (tab.T, tab.S)):
            if sizes.setdefault(side, size) != size:
                raise ValueError(f"source has sets of maps with {sizes[side]} and {size} {'tokens' if side == 'query' else 'keys'}; these numbers must be equal")
    return sizes


def _sides(arguments: MapArguments, tabs: list[_Maps], place: int) -> dict[str, Side]:
    """The words and flags of each side, for one text. In self-attention both sides are the same object."""
    batch, sizes = tabs[0].batch, _sizes(tabs)
    words, special, segments = (of_text(value, name, place, batch) for name, value in (
        ("tokens", arguments.tokens), ("special", named_special(arguments.annotations.special)), ("segments", arguments.annotations.segments)))  # fmt: skip
    own = {"query": words, "key": of_text(arguments.keys, "keys", place, batch)}
    alone = len(tabs) == 1 and tabs[0].sides == ("query", "key") and own["key"] is None and sizes["query"] == sizes["key"]
    two = len(sizes) == 2 and not alone
    if not two and own["key"] is not None:
        raise ValueError("keys are given, but in source queries and keys are the same tokens")
    for side, name in (("query", "tokens"), ("key", "keys")):
        if side in sizes:
            require_count(name, own[side], sizes[side], place, batch)
    special_of, segments_of = both(special, "special", two), both(segments, "segments", two)
    sides = {side: Side("tokens" if side == "query" else "keys", sizes[side], own[side], special_of[at], segments_of[at])
             for at, side in enumerate(("query", "key")) if side in sizes}  # fmt: skip
    if alone:
        sides["key"] = sides["query"]
    return sides


def _text(arguments: MapArguments, tabs: list[_Maps], place: int, gates: Any, image: Any, vectors: dict[str, Any]) -> dict[str, Any]:
    """One text of the page: the first set of maps, with the further sets as tabs."""
    batch, text, annotations = tabs[0].batch, arguments.text, arguments.annotations
    sides = _sides(arguments, tabs, place)
    blocked, links, possible, without = (of_text(value, name, place, batch) for name, value in (
        ("block_keys", annotations.block_keys), ("links", annotations.links), ("possible_links", annotations.possible_links), ("without", arguments.without)))  # fmt: skip
    values = tabs[0].values
    extents = [len(values), _shape(values[0])[-3]] if isinstance(values, list) else _shape(values)[:2]
    changes = _changes(without, *extents)
    found = []
    for tab in tabs:
        query, key = (sides[side] for side in tab.sides)
        linked = annotations.links is not None and (len(tabs) == 1 or tab.sides == ("query", "key"))
        masked = blocked is not None and (len(tabs) == 1 or tab.sides[1] == "key")
        found.append(described(
            text=(text if isinstance(text, str) else text[place] if text is not None else "" if batch is None else str(place)),
            name=tab.name, pooling=arguments.pooling, attentions=tab.of(place), queries=query, keys=key, axes=annotations.axes, block_keys=blocked if masked else None,
            links=pairs(links, "links") if linked else None, possible_links=pairs(possible, "possible_links"),
            gate=gates if gates is None or batch is None else [layer[place] for layer in gates], pair_bias=arguments.computation.pair_bias, image=image, vectors=vectors, without=changes, value_norms=_norms(arguments.computation.value_norms, place, batch),
        ))  # fmt: skip
    if annotations.links is not None and len(tabs) > 1 and not any(tab.sides == ("query", "key") for tab in tabs):
        raise ValueError(f"links are for cross-attention; source has {', '.join(tab.name for tab in tabs)}")
    found[0]["tabs"] = found[1:]
    return found[0]


def described(*, text: str, name: str, pooling: str | None, attentions: Any, queries: Side, keys: Side, block_keys: Any, links: Any, possible_links: Any, axes: Any = None, gate: Any = None, pair_bias: Any = None, image: Any = None, vectors: Mapping[str, Any] | None = None, without: Any = (), value_norms: Any = None) -> dict[str, Any]:
    """A set of maps in the form that the bindings read."""
    return {
        "text": text, "name": name, "pooling": pooling, "attentions": attentions, "queries": queries.described(), "keys": None if queries is keys else keys.described(),
        "query_axis": axes[0] if axes else "", "key_axis": axes[1] if axes else "",
        "block_keys": None if block_keys is None else [bool(flag) for flag in keys.checked("block_keys", block_keys, (0, 1), "True or False")],
        "links": links, "possible_links": possible_links, "gate": gate, "pair_bias": pair_bias, "image": image, "vectors": {} if vectors is None else vectors, "without": without, "value_norms": value_norms, "tabs": [],
    }  # fmt: skip
