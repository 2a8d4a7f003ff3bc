"""Derivatives of attention beyond the gradient, on arrays: forward mode, and the gradient of the backward pass."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Literal, cast, overload

from . import _core
from ._attention import Gradients, wanted_gradients
from ._options import A, Array, NamedTuple, SdpaOptions, Unpack, takes

__all__ = ["SecondGradients", "Tangents", "sdpa_backward_backward", "sdpa_jvp"]


class Tangents(NamedTuple):
    """One array for each input of `sdpa` that has a derivative.

    Args:
        q, k, v, bias, sink: shaped as the input, in its dtype; None: zeros.
        relative_bias: shaped as the slopes or the table of a `RelativeBias`.

    Raises:
        ValueError, TypeError: raised by the call that uses the object, for shapes and dtypes that do not fit, and for a field whose input is not given.
    """

    q: Array | None = None
    k: Array | None = None
    v: Array | None = None
    bias: Array | None = None
    sink: Array | None = None
    relative_bias: Array | None = None


class SecondGradients(NamedTuple, Generic[A]):
    """The result of `sdpa_backward_backward`. A field is None if the argument `gradients` does not name it, or if its input was not given."""

    q: A
    k: A
    v: A
    bias: A
    sink: A
    relative_bias: A
    """The gradient of the slopes or the table of a `RelativeBias`, whichever was given."""
    d_out: A


def _require_tangents(name: str, given: object) -> None:
    if not isinstance(given, (Tangents, Gradients)):
        raise TypeError(f"{name} is of type {type(given).__name__}; it must be polyhead.Tangents or polyhead.Gradients")


@overload
def sdpa_jvp(
    q: A, k: Array, v: Array, out: Array, lse: Array, tangents: Tangents | Gradients[A], *, return_lse: Literal[False] = False, **options: Unpack[SdpaOptions]
) -> A: ...
@overload
def sdpa_jvp(
    q: A, k: Array, v: Array, out: Array, lse: Array, tangents: Tangents | Gradients[A], *, return_lse: Literal[True], **options: Unpack[SdpaOptions]
) -> tuple[A, A]: ...
@overload
def sdpa_jvp(
    q: A, k: Array, v: Array, out: Array, lse: Array, tangents: Tangents | Gradients[A], *, return_lse: bool = False, **options: Unpack[SdpaOptions]
) -> A | tuple[A, A]: ...
@takes(SdpaOptions)
def sdpa_jvp(
    q: A,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    tangents: Tangents | Gradients[A],
    *,
    return_lse: bool = False,
    **options: Unpack[SdpaOptions],
) -> A | tuple[A, A]:
    """Forward mode of `sdpa`: the derivatives of out and lse along tangents of the inputs (Pearlmutter 1994, section 3; docs/maths.md, equations 8a to 8c).

    Args:
        q, k, v: as given to `sdpa`, in one dtype.
        out, lse: ``[*,N,T,V]`` and ``[*,N,T]``, as `sdpa(..., return_lse=True)` returned them.
        tangents: a `Tangents`; or a `Gradients`, for derivatives along the gradients of the inputs. Each array is shaped as its input and has that input's
            dtype.
        return_lse: also return the tangent of lse.
        options: as given to `sdpa`. precision has no effect, because products are exact.

    Returns:
        The tangent of out ``[*,N,T,V]``, in the dtype of q. With return_lse, a tuple of this tangent and the tangent of lse ``[*,N,T]``, in the dtype of lse.
        No tensor ``[*,N,T,S]`` is made.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`; ValueError for the tangent of an input that is not given.
    """
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse is of type {type(return_lse).__name__}; it must be True or False")
    _require_tangents("tangents", tangents)
    of_out, of_lse = _core.sdpa_jvp(q, k, v, out, lse, tuple(tangents), options, return_lse)
    return (of_out, of_lse) if return_lse else cast("A", of_out)


@takes(SdpaOptions)
def sdpa_backward_backward(
    q: A,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    d_out: Array,
    d_gradients: Tangents | Gradients[A],
    *,
    gradients: Collection[str] = ("q", "k", "v", "bias", "sink", "relative_bias", "d_out"),
    **options: Unpack[SdpaOptions],
) -> SecondGradients[A]:
    """Gradients of `sdpa_backward` (docs/maths.md, equations 8d to 8h), for losses that depend on gradients. An example is a loss on forces: forces are the gradient
    of an energy.

    Args:
        q, k, v: as given to `sdpa`, in one dtype.
        out, lse, d_out: as given to `sdpa_backward`.
        d_gradients: the gradient of the loss with respect to the result of `sdpa_backward`: `Gradients`, or `Tangents` if the loss depends on only some of
            these results. Each array is shaped as its input and has that input's dtype.
        gradients: which of ``"q"``, ``"k"``, ``"v"``, ``"bias"``, ``"sink"``, ``"relative_bias"``, ``"d_out"`` to compute. An input that is not
            given has no gradient.
        options: as given to `sdpa`. precision has no effect, because products are exact.

    Returns:
        `SecondGradients`, each shaped as its input: the gradient of the loss with respect to the inputs of `sdpa_backward`, where out and lse are treated as
        functions of q, k, v and the options. No tensor ``[*,N,T,S]`` is made.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`; ValueError for a field of d_gradients whose input is not given.
    """
    wanted = wanted_gradients(gradients, SecondGradients._fields)
    _require_tangents("d_gradients", d_gradients)
    return SecondGradients(*_core.sdpa_backward_backward(q, k, v, out, lse, d_out, tuple(d_gradients), options, wanted, "d_out" in gradients))
