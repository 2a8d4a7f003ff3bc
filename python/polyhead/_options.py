"""The types of arguments, and the list of keyword arguments that all attention functions have."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Union

from ._arguments import DEFAULTS

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTuple:
        """A stand-in for NamedTuple, because in Python 3.10 a NamedTuple may not also inherit from Generic."""

        def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
            return (typing._NamedTuple,)

    NamedTuple = _NamedTuple()

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Buffer


class SupportsDLPack(Protocol):
    """Arrays with the DLPack protocol, which NumPy, PyTorch and JAX have."""

    def __dlpack__(self) -> object: ...


if TYPE_CHECKING:
    # The arrays that functions accept: NumPy array, PyTorch tensor, JAX CPU array, or any object with the buffer protocol or DLPack.
    Array = Union[Buffer, SupportsDLPack]
    NumPyArray = numpy.ndarray[Any, numpy.dtype[Any]]
    # The type of a result: a PyTorch tensor if the function's first array is one, else a NumPy array.
    A = TypeVar("A", numpy.ndarray[Any, numpy.dtype[Any]], torch.Tensor)
else:
    Array = NumPyArray = Any
    A = TypeVar("A")

# The docstring of `sdpa` explains the values of these options; that of `maps` explains the values of MapValue.
Causal = Union[Literal["top_left", "bottom_right"], int, None]
Window = Union[tuple[Union[int, None], Union[int, None]], None]
BlockSize = Union[int, tuple[int, int], None]
EmptyRows = Literal["zero", "uniform", "unmasked"]
EMPTY_ROWS: tuple[EmptyRows, ...] = typing.get_args(EmptyRows)
Precision = Literal["exact", "native"]
PRECISIONS: tuple[Precision, ...] = typing.get_args(Precision)
MapValue = Literal["scaled_score", "capped_score", "score", "probability", "dropped"]


class Rotary(NamedTuple):
    """Rotary positions of a layer (Su et al. 2021, RoFormer, equation 34). Pair i of the features of a projected query or key, (a, b), becomes
    (a cos - b sin, a sin + b cos), with the cosine and sine of the angle of its position.

    Args:
        cos, sin: ``[*,T,R/2]``, any floating dtype: cosines and sines of the angles at the positions of the queries. Leading dimensions broadcast: ``[T,R/2]``
            serves all sequences. Each angle appears once. The tables ``[*,T,R]`` of transformers, which repeat each angle, are an error.
        key_cos, key_sin: ``[*,S,R/2]``, at the positions of the keys; None: cos and sin are used for the keys too, and T must be S.
        order: features of pair i: ``"halves"`` (i and i + R/2, as in GPT-NeoX and Llama) or ``"pairs"`` (2i and 2i + 1, as in RoFormer and GPT-J).
        width: R, even and at most H: the first R features of each head are rotated. None: all H.

    Raises:
        ValueError, TypeError: raised by the layer that uses the object, for tables, an order or a width that do not fit.
    """

    cos: Array
    sin: Array
    key_cos: Array | None = None
    key_sin: Array | None = None
    order: Literal["halves", "pairs"] = "halves"
    width: int | None = None


class RelativeBias(NamedTuple):
    """A bias of the scores that depends on the head and on the distance of key and query alone, computed without a tensor ``[N,T,S]``.

    The distance of query t and key s is ``x = s - (t + offset)``: negative for earlier keys. With causal or a window, the offset is that of their diagonal,
    which may differ between documents and, with diagonal_offsets, between sequences. Otherwise the argument `diagonal` gives the offset. Give either slopes or
    a table, in the dtype of q or of lse.

    Args:
        slopes: ``[N]``: ALiBi (Press et al. 2022), ``bias[b,n,t,s] = -slopes[n] |x|``. `alibi_slopes` returns the slopes of the paper.
        table: ``[N,buckets]``: T5 (Raffel et al. 2020, section 2.1), ``bias[b,n,t,s] = table[n, relative_bucket(x, ...)]``. PyTorch's T5 stores
            ``[buckets,N]``: pass the transpose.
        bidirectional: for a table. True: keys after the query use the second half of the buckets; False: they use bucket 0.
        max_distance: for a table: all longer distances share the last bucket of their direction.
        diagonal: the diagonal on which x is 0: ``"top_left"``, ``"bottom_right"`` (also None) or an offset. Together with causal or a window it must be their diagonal.

    Raises:
        ValueError, TypeError: raised by the call that uses the object, if shapes, dtypes, buckets or a diagonal do not fit.
    """

    slopes: Array | None = None
    table: Array | None = None
    bidirectional: bool = True
    max_distance: int = 128
    diagonal: Causal = None


class PassOptions(TypedDict, total=False):
    """Keyword arguments of `sdpa` and of a layer. scripts/make_argument_lists.py writes the list between the comments "arguments" and "end of arguments"."""

    # arguments: keywords of sdpa and of a layer
    attend: Array | None
    block: Array | None
    attend_keys: Array | None
    block_keys: Array | None
    causal: Causal
    window: Window
    key_starts: Array | None
    key_lengths: Array | None
    diagonal_offsets: Array | None
    query_offsets: Array | None
    key_offsets: Array | None
    blocks: Array | None
    block_size: BlockSize
    bias: Array | None
    sink: Array | None
    relative_bias: RelativeBias | None
    seed: int | None
    dropout_keep: Array | None
    backend: str | None
    num_threads: int | None
    # end of arguments


class SdpaOptions(PassOptions, total=False):
    """Keyword arguments of `sdpa`, of its gradients and maps, and of `explain`."""

    # arguments: keywords of sdpa
    scale: float | None
    softcap: float
    dropout: float
    empty_rows: EmptyRows
    precision: Precision
    # end of arguments


if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:
    Unpack = Union  # Python 3.10 has no Unpack


def annotations_of(kind: type) -> dict[str, str]:
    """The field names of a TypedDict or NamedTuple, with the annotation of each as text. The module of the class must postpone annotations
    (``from __future__``)."""
    return {name: str(getattr(annotation, "__forward_arg__", annotation)) for name, annotation in kind.__annotations__.items()}


_signatures: dict[str, inspect.Signature] = {}
_MASK = "'attend' (booleans, True: may attend), 'block' (True: may not) or 'bias' (numbers, added to the scores)"
_OTHER_NAMES = {  # names of masks in torch and transformers -> the options of polyhead to use instead, where True may have the opposite meaning
    "attn_mask": _MASK,
    "attention_mask": _MASK,
    "mask": _MASK,
    "key_padding_mask": "'block_keys' (booleans, True: no query attends to the key)",
}
_F = TypeVar("_F", bound=Callable[..., Any])


def takes(options: type, name: str | None = None) -> Callable[[_F], _F]:
    """Decorator for a function with ``**options``: help() and inspect.signature then show each option by name. name: the name of the function in error
    messages, those of the bindings included; None: the function's own name."""

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for option, annotation in annotations_of(options).items():
            named.append(inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(option), annotation=annotation))
        _signatures[name or function.__qualname__] = function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return function

    return decorate


def require_precision(where: str, precision: object) -> None:
    """Raises ValueError unless the value is a `Precision`."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"{where}: precision is {precision!r}; it must be {' or '.join(map(repr, PRECISIONS))}")


def require_flags(where: str, **flags: Any) -> None:
    """Raises TypeError unless all values are True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{where}: {name} is of type {type(flag).__name__}; it must be True or False")


def refuse(function: str, name: str, signature: inspect.Signature | None = None) -> None:
    """Raises the TypeError for a keyword argument that a function does not have. The bindings call it."""
    import difflib  # imported here, because the import takes time and only errors need it

    close = difflib.get_close_matches(name, (signature or _signatures[function]).parameters, n=2)
    meant = _OTHER_NAMES.get(name, " or ".join(map(repr, close)))
    hint = f"; did you mean {meant}?" if meant else ""
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def dtype_name(dtype: Any) -> Any:
    """The name of a dtype given as numpy.float64, numpy.dtype("float64"), float or torch.float64; any other value is returned unchanged."""
    import numpy

    if dtype is float:
        return "float64"
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, numpy.dtype) or isinstance(dtype, type) and issubclass(dtype, numpy.generic):
        return numpy.dtype(dtype).name
    return dtype
