"""Multi-head attention as a layer on arrays, and its files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _core
from ._types import Array, Causal, EmptyRows, MapValue, Window

if TYPE_CHECKING:
    import numpy


class LayerGradients(NamedTuple):
    """What `Saved.backward` gives; None where not asked for, or where the forward pass was not given the input."""

    query: Array
    key: Array
    value: Array
    bias: Array
    parameters: dict[str, Array] | None
    """By the names of `MultiHeadAttention.parameters`."""


class Saved:
    """A forward pass that backward and maps go on from. Keeps its inputs alive; they must not be changed meanwhile."""

    def __init__(self, saved: _core.Saved, query: Array) -> None:
        self._saved = saved
        self._query = query

    def backward(self, d_out: Array, *, inputs: bool = True, parameters: bool = True, d_bias: Array = None) -> LayerGradients:
        """Gradients of a loss. Where inputs are shared (key = query) their gradients are summed in the one given.

        Args:
            d_out: the gradient of the loss with respect to the output, shaped as it.
            inputs: whether those of query, key, value and bias are wanted.
            parameters: whether those of the layer's parameters are wanted.
            d_bias: shaped as bias, written in place and returned; as in `polyhead.sdpa_backward`.

        Returns:
            Arrays shaped as what they are the gradients of.

        Raises:
            ValueError, TypeError: as `polyhead.sdpa`.
        """
        query, key, value, bias, grads = self._saved.backward(d_out, inputs, parameters, d_bias)
        return LayerGradients(query, key, value, bias, None if grads is None else grads.parameters)

    def maps(self, value: MapValue = "probability") -> Array:
        """What every head looked at.

        Args:
            value: where in the formula the map is read, as in `polyhead.maps`.

        Returns:
            ``[*,N,T,S']``; S' counts add_bias_kv and the zero key, which come after the S keys.

        Raises:
            ValueError, TypeError: for another word.
        """
        return self._saved.map(self._query, value)

    def __repr__(self) -> str:
        return f"<polyhead.Saved of a query {list(self._query.shape)}>" if hasattr(self._query, "shape") else "<polyhead.Saved>"

    @property
    def lse(self) -> Array:
        """``[*,N,T]``, log of the sum of the exponentials of every query's scores; as `polyhead.sdpa` gives it, a copy."""
        return self._saved.lse(self._query)


class MultiHeadAttention:
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2), with gate, pair bias, any axis and global query (Jumper et al. 2021, supplementary
    algorithms 7, 8 and 19).

    Args:
        query_width: width of the query input.
        heads: N.
        key_width, value_width: of the key and value inputs; default: as query_width, as key_width.
        kv_heads: K; default: as heads, or 1 with a global query.
        head_width: H; default: query_width / heads, which must be whole.
        value_head_width: V; default: as head_width.
        output_width: default: as query_width.
        bias: of the maps q, k and v.
        output_bias: of the output map.
        output: an output map; without it the output is the merged heads, N * V wide.
        gate: multiply the merged heads by the sigmoid of a linear map of the query input.
        global_query: ``"mean"`` or ``"masked_mean"``: one query per sequence, the mean over the axis, against one key/value head.
        axis: of the inputs that attention runs along, from the end: -2 is the last but one.
        add_bias_kv: one learned key and value more.
        add_zero_attn: one key and value of zeros more.
        dropout: on the probabilities, in training.
        scale: default ``1 / sqrt(H)``.
        softcap: 0 is off.
        empty_rows: as in `polyhead.sdpa`.
        dtype: of the parameters: ``"float32"``, ``"float64"`` or ``"float16"``, or NumPy's or torch's type of that name.
        seed: of the initialisation, which is that of torch.nn.MultiheadAttention.

    Raises:
        ValueError: widths, heads or options that do not fit; the message says what was given and what is allowed.
        TypeError: an argument of another type.
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
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float = 0.0,
        empty_rows: EmptyRows = "zero",
        dtype: str | type[numpy.generic] | numpy.dtype[Any] = "float32",
        seed: int = 0,
    ) -> None:
        dtype = _name_of(dtype)
        config = {name: given for name, given in locals().items() if name not in ("self", "__class__")}
        self._layer = _core.Layer(config)
        self.causal = False

    @classmethod
    def _of(cls, layer: _core.Layer, causal: bool) -> MultiHeadAttention:
        self = cls.__new__(cls)
        self._layer = layer
        self.causal = causal
        return self

    causal: bool
    """Whether the source of the weights masks by itself (GPT-2): then calls without `causal` use ``"bottom_right"``."""

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments with every default filled in."""
        return self._layer.config

    @property
    def parameters(self) -> dict[str, Array]:
        """Name -> NumPy array on the layer's own memory: writing to it changes the layer. q.weight is ``[N*H, query_width]``, and so on. Read-only
        where the layer is frozen."""
        return self._layer.parameters

    def frozen(self) -> MultiHeadAttention:
        """A copy whose parameters are read-only, for calls that repeat: each weight is brought into the order in which the kernels read it once and
        not by every call, which counts most for few positions. The same bits; gradients as ever.

        Returns:
            A layer that shares no memory with this one. It holds its weights twice.
        """
        return MultiHeadAttention._of(self._layer.frozen(), self.causal)

    @property
    def is_frozen(self) -> bool:
        """Whether it came from `frozen`."""
        return self._layer.is_frozen

    def forward(
        self,
        query: Array,
        key: Array = None,
        value: Array = None,
        *,
        attend: Array = None,
        block: Array = None,
        attend_keys: Array = None,
        block_keys: Array = None,
        causal: Causal = None,
        window: Window = None,
        key_lengths: Array = None,
        bias: Array = None,
        training: bool = False,
        seed: int | None = None,
        dropout_keep: Array = None,
        out: Array = None,
        backend: str | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, Saved]:
        """The output, and what backward and maps need.

        Args:
            query: ``[.., T at the axis, .., query_width]``, dtype of the parameters.
            key: ``[.., S at the axis, .., key_width]``; None: query.
            value: ``[.., S at the axis, .., value_width]``; None: key.
            attend, block: bool ``[T,S]``, ``[*,T,S]`` or ``[*,N,T,S]``, ``*`` being the dimensions that are neither axis nor width.
            attend_keys, block_keys: bool, broadcast to ``[*,S]``.
            key_lengths: integers ``[*]`` or ``[*,T]``.
            bias: ``[T,S]``, ``[N,T,S]`` or ``[first of *,N,T,S]``: leading dimensions are matched from the left, further ones share the bias.
            training: dropout is on; needs a seed, or dropout_keep.
            out: shaped as the query with the output's width; written in place.
            causal, window, backend, num_threads: as in `polyhead.sdpa`.
            seed: of the dropout bits, as in `polyhead.sdpa`.
            dropout_keep: bool ``[*,N,T,S']``; bits to use instead of the generator's.

        Returns:
            The output ``[.., T at the axis, .., output_width]``, with an extent of 1 along the axis for a global query without a gate; and
            what `Saved.backward` and `Saved.maps` need.

        Raises:
            ValueError, TypeError: as `polyhead.sdpa`.
        """
        out, options = self._arguments(
            query, key, value, attend=attend, block=block, attend_keys=attend_keys, block_keys=block_keys, causal=causal, window=window,
            key_lengths=key_lengths, bias=bias, training=training, seed=seed, dropout_keep=dropout_keep, out=out, backend=backend, num_threads=num_threads,
        )  # fmt: skip
        return out, Saved(self._layer.forward(query, key, value, out, options), query)

    def _arguments(
        self, query: Array, key: Array, value: Array, *, training: bool = False, seed: int | None = None, out: Array = None, **options: Any
    ) -> tuple[Array, _core.LayerOptions]:
        """The output's memory and the options of a pass, as the extension takes them."""
        if training is True and seed is None and options.get("dropout_keep") is None and self.config["dropout"] > 0:
            raise ValueError(f"training with dropout = {self.config['dropout']} needs a seed")
        if options.get("causal") is None and self.causal:
            options["causal"] = "bottom_right"
        if out is None:
            out = self._layer.empty_output(query, key, value)
        options = {name: given for name, given in options.items() if given is not None}
        if training is False and seed is None and not options:
            return out, _PLAIN
        return out, _core.LayerOptions(training=training, seed=seed, **options)

    def __call__(self, query: Array, key: Array = None, value: Array = None, **options: Any) -> Array:
        """The output of `forward` alone, which is not kept for a backward pass.

        Args:
            query, key, value, options: as in `MultiHeadAttention.forward`.

        Returns:
            ``[.., T at the axis, .., output_width]``.

        Raises:
            ValueError, TypeError: as `polyhead.sdpa`.
        """
        for name in options.keys() - _OPTIONS:
            raise TypeError(f"MultiHeadAttention.__call__() got an unexpected keyword argument {name!r}")
        out, arguments = self._arguments(query, key, value, **options)
        self._layer.evaluate(query, key, value, out, arguments)
        return out

    def state(self, layout: str = "torch", prefix: str = "") -> dict[str, Array]:
        """The parameters as copies under the names of a layout, for a state_dict or numpy.savez.

        Args:
            layout: how they are named, one of `layouts()`.
            prefix: what the names begin with, as ``"encoder.layer.0"``.

        Returns:
            Name -> NumPy array, shaped as the layout has it.

        Raises:
            ValueError: the layout has no place for a parameter of the layer.
            TypeError: an argument of another type.
        """
        return _core.state(self._layer, layout, prefix)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.config, self.causal, {name: array.copy() for name, array in self.parameters.items()}, self.is_frozen)

    def __repr__(self) -> str:
        c = self.config
        return f"MultiHeadAttention(query_width={c['query_width']}, heads={c['heads']}, head_width={c['head_width']}, dtype={c['dtype']!r})"


_PLAIN = _core.LayerOptions()
_OPTIONS = inspect.signature(MultiHeadAttention.forward).parameters.keys() - {"self", "query", "key", "value"}


def _rebuild(config: dict[str, Any], causal: bool, parameters: dict[str, Array], frozen: bool = False) -> MultiHeadAttention:
    """What copy and pickle make a layer of."""
    layer = MultiHeadAttention(**config)
    layer.causal = causal
    for name, array in layer.parameters.items():
        array[...] = parameters[name]
    return layer.frozen() if frozen else layer


def _name_of(dtype: Any) -> Any:
    """numpy.float64, numpy.dtype("float64"), float and torch.float64 by name; anything else as it is."""
    import numpy

    if dtype is float:
        return "float64"
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, numpy.dtype) or isinstance(dtype, type) and issubclass(dtype, numpy.generic):
        return numpy.dtype(dtype).name
    return dtype


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
    masked_mean: bool = False,
) -> MultiHeadAttention:
    """A layer from a file (safetensors, a folder with model.safetensors, npz) or from arrays by name (a state_dict).

    Args:
        source: the file, folder or mapping.
        layout: how it names its parameters, one of `layouts()`; None: the one that fits.
        prefix: what the names begin with, as ``"encoder.layer.0"``; None: the only layer there is.
        heads: N, where the file does not say; None: what the config.json of a model's folder says.
        axis, add_zero_attn, dropout, softcap: as in `MultiHeadAttention`; no file holds them.
        masked_mean: of a global query (AlphaFold's is_global): count the kept positions only.

    Returns:
        The layer, in memory of its own: what becomes of the source afterwards does not change it, and what is written to it does not reach the source.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, no naming fits, or several do: the message names them.
        TypeError: an argument of another type.
    """
    settings: dict[str, Any] = {"axis": axis, "add_zero_attn": add_zero_attn, "dropout": dropout, "softcap": softcap}
    if not isinstance(masked_mean, bool):
        raise TypeError(f"masked_mean is of type {type(masked_mean).__name__}; it must be True or False")
    if masked_mean:
        settings["global_query"] = "masked_mean"
    if isinstance(source, Mapping):
        return MultiHeadAttention._of(*_take(_core.from_arrays(dict(source), "the mapping", layout, prefix, heads, settings)))
    if not isinstance(source, (str, bytes, os.PathLike)):
        hint = ", as its state_dict() is" if callable(getattr(source, "state_dict", None)) else ""
        raise TypeError(f"source is of type {type(source).__name__}; it must be a path or a mapping of arrays by name{hint}")
    if heads is None:
        heads = _heads_of_folder(os.fsdecode(source))
    if not os.fsdecode(source).endswith(".npz") or "\0" in os.fsdecode(source):  # NumPy's error about the zero would not name the argument
        if os.path.splitext(os.fsdecode(source))[1] in (".pt", ".pth", ".bin") and os.path.isfile(source):
            raise ValueError(f"'{os.fsdecode(source)}' is a pickle, by its name, which may run code; load takes what torch.load(path, weights_only=True) makes of it")
        return MultiHeadAttention._of(*_take(_core.load(source, layout, prefix, heads, settings)))
    return MultiHeadAttention._of(*_take(_core.from_arrays(_read_npz(source), os.fsdecode(source), layout, prefix, heads, settings)))


def _heads_of_folder(source: str) -> int | None:
    """What the config.json of a model's folder gives."""
    import json

    try:
        with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):  # none, or none that helps: the message about heads says what to do
        return None
    given = [config[name] for name in ("num_attention_heads", "num_heads", "n_head") if name in config] if isinstance(config, dict) else []
    return given[0] if given and type(given[0]) is int else None


def _read_npz(source: str | bytes | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a file that is not trusted: whatever is wrong with it is an OSError or a ValueError."""
    import zipfile
    import zlib

    import numpy

    try:
        with numpy.load(os.fsdecode(source), allow_pickle=False) as file:
            return dict(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(f"'{os.fsdecode(source)}' is no npz file that NumPy can read: {error}") from error


def _take(loaded: tuple[_core.Layer, str, str, bool]) -> tuple[_core.Layer, bool]:
    layer, _, _, causal = loaded
    return layer, causal


def save(layer: MultiHeadAttention, path: str | os.PathLike[str], *, layout: str = "torch", prefix: str = "") -> None:
    """Writes the parameters under the names of a layout, whole or not at all.

    Args:
        layer: the layer.
        path: the file; its extension names the format: .safetensors or .npz.
        layout: how the parameters are named, one of `layouts()`.
        prefix: what the names begin with, as ``"encoder.layer.0"``.

    Raises:
        OSError: the file cannot be written.
        ValueError: the layout has no place for a parameter of the layer, or the extension names no format.
        TypeError: an argument of another type.
    """
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is of type {type(layer).__name__}; it must be a polyhead.MultiHeadAttention")
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}; it must be a path")
    extension = os.path.splitext(os.fsdecode(path))[1]
    if extension not in (".npz", ".safetensors"):
        raise ValueError(f"path is {os.fsdecode(path)!r}; it must end in .safetensors or .npz, which name the format")
    if extension == ".safetensors":
        return _core.save(layer._layer, path, layout, prefix)
    import io

    import numpy

    buffer = io.BytesIO()
    numpy.savez(buffer, **layer.state(layout, prefix))
    _core.write_file(path, buffer.getvalue())


def layouts() -> list[str]:
    """Names of layouts that `load`, `save` and `MultiHeadAttention.state` know."""
    return _core.layouts()
