"""Multi-head attention as a layer on arrays, and the files in which its parameters are stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from . import _core
from ._npz import read_npz
from ._options import A, Array, EmptyRows, MapValue, NamedTuple, NumPyArray, PassOptions, Precision, Rotary, Unpack, dtype_name, takes

if TYPE_CHECKING:
    import numpy

    from ._cache import KeyValueCache

__all__ = ["LayerGradients", "MultiHeadAttention", "Rotary", "Saved", "layouts", "load", "save"]


class LayerOptions(PassOptions, total=False):
    """Keyword arguments of a layer's forward pass. Options of `SdpaOptions` that are missing here are arguments of the layer's constructor."""

    # arguments: keywords of a layer
    projected_key: Array | None
    projected_value: Array | None
    projected_key_scale: Array | None
    projected_value_scale: Array | None
    rotary: Rotary | None
    cache: KeyValueCache | None
    new_tokens: Array | None
    training: bool
    mask_like_input: bool | None
    # end of arguments


class LayerGradients(NamedTuple, Generic[A]):
    """The result of `Saved.backward`. A field is None if its gradient was not requested, or if its input was not given to the forward pass."""

    query: A
    key: A
    value: A
    projected_key: A
    projected_value: A
    bias: A
    sink: A
    relative_bias: A
    """The gradient of the slopes or the table of a `RelativeBias`, whichever was given."""
    parameters: dict[str, NumPyArray] | None
    """The gradients of the parameters by name; the names are those of `MultiHeadAttention.parameters`."""


class Saved(Generic[A]):
    """The activations of a forward pass, from which the methods compute gradients and attention maps. The object keeps the inputs of the pass alive; do not
    change the inputs before the last use of the object."""

    def __init__(self, saved: _core.Saved, query: A) -> None:
        self._saved = saved
        self._query: A = query

    def backward(
        self, d_out: Array, *, inputs: bool = True, parameters: bool = True, d_bias: A | None = None, num_threads: int | None = None
    ) -> LayerGradients[A]:
        """Gradients of a loss. If the forward pass got no key or no value, the input that it used instead gets the sum of the gradients.

        Args:
            d_out: the gradient of the loss with respect to the output; shaped as the output.
            inputs: True: compute the gradients of query, key, value, projected_key, projected_value, bias, sink and relative_bias.
            parameters: True: compute the gradients of the layer's parameters.
            d_bias: memory for the gradient of bias, shaped as bias: written in place and returned, as in `polyhead.sdpa_backward`.
            num_threads: at most this many threads; None: as in the forward pass.

        Returns:
            The gradients, each shaped as its input or parameter.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        return LayerGradients(*self._saved.backward(d_out, inputs, parameters, d_bias, num_threads))

    def maps(self, value: MapValue = "probability", *, num_threads: int | None = None) -> A:
        """The attention maps of every head.

        Args:
            value: which value of the formula, as in `polyhead.maps`.
            num_threads: at most this many threads; None: as in the forward pass.

        Returns:
            ``[*,N,T,S']``; S' is S plus the number of keys that add_bias_kv and add_zero_attn append.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        return cast("A", self._saved.map(self._query, value, num_threads))

    def __reduce__(self) -> Any:
        raise TypeError("a polyhead.Saved cannot be copied or pickled, as it has views of its pass's inputs; copy the layer and the inputs, and call forward again")

    def __repr__(self) -> str:
        return f"<polyhead.Saved of a query {list(self._query.shape)}>" if hasattr(self._query, "shape") else "<polyhead.Saved>"

    @property
    def lse(self) -> A:
        """A copy of lse ``[*,N,T]``, as `polyhead.sdpa` returns it: for each query, the logarithm of the sum of the exponentials of its scores."""
        return cast("A", self._saved.lse(self._query))


class _Parameters(dict[str, Any]):
    """The arrays of a layer's parameters, by name. Assigning another array to a name is an error, because the layer would not use that array."""

    def __setitem__(self, name: str, array: NumPyArray) -> None:
        if array is not self.get(name):  # assigning the same array is allowed, because `parameters[name] -= step` does so
            raise TypeError(f"parameters[{name!r}] = ... does not change the layer; write into its memory: parameters[{name!r}][...] = ...")

    def update(self, *others: Any, **named: Any) -> None:
        for name, array in dict(*others, **named).items():
            self[name] = array

    def __ior__(self, other: Any) -> _Parameters:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class MultiHeadAttention:
    """Multi-head attention as a layer (Vaswani et al. 2017, section 3.2.2). Options are a gate, a pair bias, attention along any axis, and a global query
    (Jumper et al. 2021, supplementary algorithms 7, 8 and 19).

    Args:
        query_width: width of the query input.
        heads: N, the number of query heads.
        key_width, value_width: widths of the key and value inputs. The default of key_width is query_width; the default of value_width is key_width.
        kv_heads: K, the number of key/value heads; default: heads, or 1 with a global query.
        head_width: H, the width of a query/key head; default: query_width / heads, which must be a whole number.
        value_head_width: V, the width of a value head; default: head_width.
        output_width: width of the output; default: query_width.
        bias: True: the query, key and value projections have biases.
        output_bias: True: the output projection has a bias.
        output: True: there is an output projection. False: the output is the merged heads, of width N * V.
        gate: True: the merged heads are multiplied by the sigmoid of a projection of the query input.
        global_query: each sequence has one query, the mean of its queries along the axis, and one key/value head. ``"mean"``: the mean of all queries.
            ``"masked_mean"``: the mean of the queries that the mask of the keys does not exclude. None: no global query.
        axis: the dimension of the inputs along which queries attend to keys, counted from the end. -1 is the width, so it is not allowed; the default -2 is the
            dimension before the width.
        add_bias_kv: append one learned key and value.
        add_zero_attn: append one key and value of zeros.
        sink: learn a sink logit for each head, as gpt-oss does: the parameter ``sink`` ``[N]``, initially 0. Calls of such a layer may not pass a sink. Only
            with empty_rows "zero".
        qk_norm: apply an RMS norm to each head's projected q and k, before rotary positions (Qwen 3), with an epsilon of 1e-6. The parameters ``q_norm.weight``
            and ``k_norm.weight`` ``[H]`` are initially 1. Keys given as projected_key must already be normed. The keys of add_bias_kv and add_zero_attn are not
            normed.
        dropout: probability that an attention weight is dropped in training.
        scale: factor of ``q k^T``; default: ``1 / sqrt(H)``.
        softcap: as in `polyhead.sdpa`; 0 switches softcap off.
        empty_rows, precision: as in `polyhead.sdpa`.
        dtype: dtype of the parameters: ``"float32"``, ``"float64"`` or ``"float16"``, or NumPy's or torch's type of that name.
        seed: seed of the random initial parameters, which have the distributions of torch.nn.MultiheadAttention.

    Raises:
        ValueError: widths, heads or options that do not fit; the message says what was given and what is allowed.
        TypeError: an argument of the wrong type.
    """

    def __init__(
        self,
        query_width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        kv_heads: int | None = None,
        head_width: int | None = None,
        value_head_width: int | None = None,
        output_width: int | None = None,
        bias: bool = True,
        output_bias: bool = True,
        output: bool = True,
        gate: bool = False,
        global_query: Literal["off", "mean", "masked_mean"] = "off",
        axis: int = -2,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        sink: bool = False,
        qk_norm: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float = 0.0,
        empty_rows: EmptyRows = "zero",
        precision: Precision = "native",
        dtype: str | type[numpy.generic] | numpy.dtype[Any] = "float32",
        seed: int = 0,
    ) -> None:
        dtype = dtype_name(dtype)
        config = {name: given for name, given in locals().items() if name not in ("self", "__class__")}
        self._layer = _core.Layer(config)

    @classmethod
    def _of(cls, layer: _core.Layer) -> MultiHeadAttention:
        self = cls.__new__(cls)
        self._layer = layer
        return self

    @property
    def causal(self) -> bool:
        """Whether calls without the argument `causal` are causal, with ``"bottom_right"``. Initially True for a layer loaded from the layout of causal models
        (GPT-2), else False. May be set."""
        return self._layer.causal

    @causal.setter
    def causal(self, causal: bool) -> None:
        self._layer.causal = causal

    @property
    def needs_rotary(self) -> bool:
        """Whether calls without the argument `rotary` raise a ValueError. Initially True for a layer loaded from a layout whose models rotate q and k (Llama),
        else False. May be set to False."""
        return bool(self._layer.rotary_of)

    @needs_rotary.setter
    def needs_rotary(self, needed: bool) -> None:
        if needed and not self._layer.rotary_of:
            raise ValueError("needs_rotary cannot be set to True; it is True only for layers that `load` made of a layout whose models rotate q and k")
        if not needed:
            self._layer.rotary_of = ""

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments by name, with every default filled in."""
        return self._layer.config

    @property
    def parameters(self) -> dict[str, NumPyArray]:
        """The parameters by name, as NumPy arrays that share the layer's memory: ``parameters["q.weight"][...] = w`` changes the layer. Assigning another array
        to a name is an error. A weight is ``[output width, input width]``: q.weight is ``[N*H, query_width]``. The arrays of a frozen layer are read-only."""
        return _Parameters(self._layer.parameters)

    def frozen(self) -> MultiHeadAttention:
        """A copy for inference, whose parameters are read-only. The parameters are packed for the kernels once instead of in every call, which makes calls with
        few positions much faster. Results and gradients have the same bits.

        Returns:
            A layer that shares no memory with this layer. It holds its parameters twice: plain and packed.
        """
        return MultiHeadAttention._of(self._layer.frozen())

    @property
    def is_frozen(self) -> bool:
        """True for a layer that `frozen` returned, whose parameters are read-only."""
        return self._layer.is_frozen

    @takes(LayerOptions)
    def forward(
        self, query: A, key: Array | None = None, value: Array | None = None, *, out: A | None = None, **options: Unpack[LayerOptions]
    ) -> tuple[A, Saved[A]]:
        """Computes the output, and keeps the activations that backward and maps need.

        Args:
            query: ``[.., T at the axis, .., query_width]``, dtype of the parameters.
            key: ``[.., S at the axis, .., key_width]``; None: query.
            value: ``[.., S at the axis, .., value_width]``; None: key.
            out: ``[.., T at the axis, .., output_width]``, memory for the output: written in place and returned.
            attend, block: bool, ``[T,S]`` or ``[*,N,T,S]``; ``*`` are the dimensions of query that are neither axis nor width. Give an extent of 1 to a
                dimension whose entries share the mask: a mask ``[B,1,T,S]`` differs between sequences, a mask ``[1,N,T,S]`` between heads. A mask of three
                dimensions could mean either and is an error.
            attend_keys, block_keys: bool, broadcast to ``[*,S]``: the dimensions of key without its width, with the axis moved to the end. mask_like_input
                changes this order.
            mask_like_input: the order of dimensions of attend_keys or block_keys, if the axis is not -2. True: the order of the key input without
                its width, ``[.., S at the axis, ..]``, as in AlphaFold's ``pair_mask``. False: ``[*,S]``. None: ``[*,S]``, and an error if the shape fits the order of the
                key input too, as for a square table. True is an error with a cache.
            key_starts, key_lengths: integers ``[*]`` or ``[*,T]``, as in `polyhead.sdpa`.
            diagonal_offsets: integers ``[*]``, as in `polyhead.sdpa`.
            bias: ``[T,S]`` or ``[*,N,T,S]``; the dimensions are those of attend.
            relative_bias: a `RelativeBias`, as in `polyhead.sdpa`. Not with add_bias_kv, add_zero_attn or a global query.
            sink: sink logits, ``[N]`` or of another rank that broadcasts to ``[*,N,T]``; as in `polyhead.sdpa`. Not for a layer that learns a sink.
            training: apply dropout; a layer with dropout then needs a seed or dropout_keep.
            seed: seed of the dropout bits, as in `polyhead.sdpa`.
            dropout_keep: bool, ``[T,S']`` or ``[*,N,T,S']``, with the dimensions of attend; True = not dropped. These bits replace those that the seed would
                give. S' is explained in `Saved.maps`. Only with training=True and a layer with dropout.
            query_offsets, key_offsets: integers ``[D+1]``; as in `polyhead.sdpa`. Not with add_bias_kv, add_zero_attn or a global query.
            blocks, block_size: integers that broadcast to ``[*,N,Tb,count]``, as in `polyhead.sdpa`.
            projected_key, projected_value: ``[*,K,S,H]`` and ``[*,K,S,V]``, keys and values that are already projected and, with rotary positions, rotated, for example
                from a cache. They are used instead of key and value. The parameters of the key and value projections then have gradients of 0. The arrays have
                the layer's dtype; unless the layer is float64, they may also be bfloat16, float16 or int8, but then they have no gradients.
            projected_key_scale, projected_value_scale: float32 ``[*,K,S]``, the scales of int8 projected_key and projected_value, as k_scale and v_scale in
                `polyhead.sdpa`. Not with add_bias_kv or add_zero_attn.
            rotary: a `Rotary`: rotates the projected queries and keys, but neither projected_key nor the keys of add_bias_kv and add_zero_attn.
                Not with a global query.
            cache: a `KeyValueCache`, for a text that is computed a few tokens at a time: the projected and rotated keys and values of query are appended to the cache,
                and the queries attend to all tokens of their sequence. With causal (either corner) or a window, the diagonal passes through each query's own
                token. Only ``layer(...)`` accepts a cache; `forward` does not, because it keeps activations. query is ``[B,T,query_width]``, and rotary has the
                tables for the positions of the new tokens. Not with key, value, projected_key, key_lengths, diagonal_offsets, documents, add_bias_kv,
                add_zero_attn, a global query or training. The cache is unchanged if the call fails.
            new_tokens: integers ``[B]``, with cache: how many of the T tokens belong to sequence b; None: all. The output rows of the other tokens are
                undefined.
            causal, window, backend, num_threads: as in `polyhead.sdpa`.

        Returns:
            A tuple of the output ``[.., T at the axis, .., output_width]`` and a `Saved`. For a global query without a gate, the output's extent along the axis
            is 1.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        result, saved = self._layer.forward(query, key, value, out, options)
        return result, Saved(saved, query)

    @takes(LayerOptions)
    def __call__(self, query: A, key: Array | None = None, value: Array | None = None, *, out: A | None = None, **options: Unpack[LayerOptions]) -> A:
        """Computes the output as `forward` does, but keeps no activations.

        Args:
            query, key, value, out: as in `MultiHeadAttention.forward`.
            options: as in `MultiHeadAttention.forward`.

        Returns:
            ``[.., T at the axis, .., output_width]``.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        return cast("A", self._layer.evaluate(query, key, value, out, options))

    def state(self, layout: str = "torch", prefix: str = "", *, without: Iterable[str] = ()) -> dict[str, NumPyArray]:
        """Copies of the parameters under the names that a layout gives them, for a state_dict or numpy.savez.

        Args:
            layout: names and storage of the parameters, one of `layouts()`.
            prefix: the prefix of every name, such as ``"encoder.layer.0"``.
            without: names of settings that the copies need not keep, as in `save`.

        Returns:
            A dict of NumPy arrays by name, shaped as in the layout.

        Raises:
            ValueError: the layout has no place for a parameter of the layer, or `load` would make a layer with another setting, as in `save`.
            TypeError: an argument of the wrong type.
        """
        return _core.state(self._layer, layout, prefix, _setting_names(without))

    def __reduce__(self) -> tuple[Any, ...]:
        own = {name: value for name, value in self.__dict__.items() if name != "_layer"}
        bits = {name: array.copy() for name, array in self._layer.bits.items()}
        return _rebuild, (self.config, self.causal, bits, self.is_frozen, type(self), self._layer.rotary_of), own or None

    def __repr__(self) -> str:
        c = self.config
        widths = {name: c[name] for name in ("key_width", "value_width", "output_width") if c[name] != c["query_width"]}
        named = {"query_width": c["query_width"], **widths, "heads": c["heads"]}
        if c["kv_heads"] != c["heads"]:
            named["kv_heads"] = c["kv_heads"]
        named["head_width"] = c["head_width"]
        if c["value_head_width"] != c["head_width"]:
            named["value_head_width"] = c["value_head_width"]
        named |= {name: c[name] for name, usual in _USUAL.items() if c[name] != usual}
        shown = [f"{name}={value!r}" for name, value in {**named, "dtype": c["dtype"]}.items()]
        if self.causal:
            shown.append("causal=True")
        if self.is_frozen:
            shown.append("frozen=True")
        return f"{type(self).__name__}({', '.join(shown)})"


# Default values of settings. `repr` leaves out settings that have these values.
_USUAL = {
    "axis": -2, "bias": True, "output_bias": True, "output": True, "gate": False, "global_query": "off", "add_bias_kv": False, "add_zero_attn": False, "sink": False,
    "qk_norm": False, "dropout": 0.0, "scale": None, "softcap": 0.0, "empty_rows": "zero", "precision": "native",
}  # fmt: skip


def _rebuild(
    config: dict[str, Any], causal: bool, bits: dict[str, NumPyArray], frozen: bool = False, kind: type[MultiHeadAttention] = MultiHeadAttention, rotary_of: str = ""
) -> MultiHeadAttention:
    """Makes a layer from the result of `__reduce__`, for copy and pickle."""
    layer = _core.Layer(config)
    for name, array in layer.bits.items():
        array[...] = bits[name]
    layer.causal = causal
    layer.rotary_of = rotary_of
    return kind._of(layer.frozen() if frozen else layer)


def load(
    source: str | os.PathLike[str] | Mapping[str, Array],
    layout: str | None = None,
    *,
    prefix: str | None = None,
    heads: int | None = None,
    axis: int = -2,
    add_zero_attn: bool = False,
    dropout: float = 0.0,
    softcap: float = 0.0,
    precision: Precision = "native",
    masked_mean: bool = False,
    empty_rows: EmptyRows | None = None,
) -> MultiHeadAttention:
    """Makes a layer of the parameters in a file (safetensors, a folder with model.safetensors, npz) or in a mapping of arrays by name (a state_dict).

    Args:
        source: the file, folder or mapping.
        layout: names and storage of the parameters, one of `layouts()`; None: the layout that fits the names in source.
        prefix: the beginning of every name, such as ``"encoder.layer.0"``; None: determined from the names, if source holds only one layer.
        heads: N, for layouts that do not store it; None: read from the config.json of a model's folder. An error if config.json has another number.
        axis, add_zero_attn, dropout, softcap, precision: as in `MultiHeadAttention`; no file stores them. To save a layer that differs from the defaults, name
            the settings in the argument `without` of `save`, and give them here again.
        masked_mean: True: a global query (AlphaFold's is_global) is the mean over attended positions only. An error for a layer without a global query.
        empty_rows: as in `MultiHeadAttention`; None: as the layout says (d2l: "uniform", alphafold: "unmasked"), else "zero". An error if the layout says otherwise.

    Returns:
        The layer. It shares no memory with the source.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged; the message names the file and says what is wrong. No layout fits, or several do; the message names the layouts.
        TypeError: an argument of the wrong type.
    """
    settings: dict[str, Any] = {"axis": axis, "add_zero_attn": add_zero_attn, "dropout": dropout, "softcap": softcap, "precision": precision}
    if not isinstance(masked_mean, bool):
        raise TypeError(f"masked_mean is of type {type(masked_mean).__name__}; it must be True or False")
    if masked_mean:
        settings["global_query"] = "masked_mean"
    if empty_rows is not None:
        settings["empty_rows"] = empty_rows
    layer = _loaded(source, layout, prefix, heads, settings)
    loaded = layer.config["empty_rows"]
    if empty_rows is not None and loaded != empty_rows:
        raise ValueError(f"empty_rows is {empty_rows!r}, and the layout of the parameters says {loaded!r}")
    return layer


def _loaded(source: Any, layout: Any, prefix: Any, heads: Any, settings: dict[str, Any]) -> MultiHeadAttention:
    if isinstance(source, Mapping):
        return MultiHeadAttention._of(_core.from_arrays(dict(source), "the mapping", layout, prefix, heads, settings))
    if not isinstance(source, (str, bytes, os.PathLike)):
        hint = ", as its state_dict() is" if callable(getattr(source, "state_dict", None)) else ""
        raise TypeError(f"source is of type {type(source).__name__}; it must be a path or a mapping of arrays by name{hint}")
    path = os.fsdecode(source)
    of_folder = _heads_of_folder(path)
    if heads is None:
        heads = of_folder
    elif of_folder is not None and hasattr(heads, "__index__") and heads != of_folder:
        raise ValueError(f"heads is {heads}, but '{os.path.join(path, 'config.json')}' says {of_folder}; for a layer that has another number, name the file in place of its folder")
    if not path.endswith(".npz") or "\0" in path:  # NumPy's error for a path with a NUL would not name the argument
        if os.path.splitext(path)[1] in (".pt", ".pth", ".bin") and os.path.isfile(source):
            raise ValueError(f"by its name '{path}' is a pickle, and reading a pickle may run code; pass load the result of torch.load(path, weights_only=True, map_location='cpu')")
        return MultiHeadAttention._of(_core.load(source, layout, prefix, heads, settings))
    arrays = read_npz(path)
    try:
        return MultiHeadAttention._of(_core.from_arrays(arrays, path, layout, prefix, heads, settings))
    except ValueError as error:
        if path in str(error):
            raise
        raise ValueError(f"'{path}': {error}") from None


def _heads_of_folder(source: str) -> int | None:
    """The number of heads in the config.json of a model's folder; None if the file does not have it."""
    import json

    path = os.path.join(source, "config.json")
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return None
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError):  # loading the layer may not need the number of heads; if it does, a later error asks for heads=
        return None
    given = [config[name] for name in ("num_attention_heads", "num_heads", "n_head") if name in config] if isinstance(config, dict) else []
    return given[0] if given and type(given[0]) is int and 1 <= given[0] <= 1 << 40 else None


_SETTINGS = ("axis", "add_zero_attn", "dropout", "softcap", "precision", "masked_mean", "empty_rows", "causal", "needs_rotary")


def _setting_names(without: Iterable[str]) -> list[str]:
    if isinstance(without, (str, bytes)) or not isinstance(without, Iterable):
        raise TypeError(f"without is of type {type(without).__name__}; it must be a list of names of settings")
    names = list(without)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a name in without is of type {type(name).__name__}; it must be a string")
        if name not in _SETTINGS:
            raise ValueError(f"the argument without has the entry {name!r}; each must be one of {', '.join(_SETTINGS)}")
    return names


def save(layer: MultiHeadAttention, path: str | os.PathLike[str], *, layout: str = "torch", prefix: str = "", without: Iterable[str] = ()) -> None:
    """Writes the layer's parameters to a file, under the names that a layout gives them. The file appears complete or not at all.

    A file holds only parameters, not the layer's other settings. If `load(path)` would make a layer with another setting, `save` raises a ValueError, unless
    `without` names this setting.

    Args:
        layer: the layer.
        path: the file; its extension chooses the format: .safetensors or .npz.
        layout: names and storage of the parameters, one of `layouts()`.
        prefix: the prefix of every name, such as ``"encoder.layer.0"``.
        without: names of settings that the file need not keep, such as ``["axis"]``. axis, add_zero_attn, dropout, softcap, precision, masked_mean and
            empty_rows must be given to `load` again. The attributes causal and needs_rotary must be set again after `load`.

    Raises:
        OSError: the file cannot be written.
        ValueError: the layout has no place for a parameter of the layer, `load` would make a layer with another setting, or the extension names no format.
        TypeError: an argument of the wrong type.
    """
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is of type {type(layer).__name__}; it must be a polyhead.MultiHeadAttention")
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}; it must be a path")
    extension = os.path.splitext(os.fsdecode(path))[1]
    if extension not in (".npz", ".safetensors"):
        raise ValueError(f"path is {os.fsdecode(path)!r}; it must end in .safetensors or .npz")
    if extension == ".safetensors":
        return _core.save(layer._layer, path, layout, prefix, _setting_names(without))
    import io

    import numpy

    buffer = io.BytesIO()
    numpy.savez(buffer, **layer.state(layout, prefix, without=without))  # type: ignore[arg-type]  # no array is called allow_pickle
    _core.write_file(path, buffer.getvalue())


def layouts() -> list[str]:
    """The names of the layouts that `load`, `save` and `MultiHeadAttention.state` accept."""
    return _core.layouts()
