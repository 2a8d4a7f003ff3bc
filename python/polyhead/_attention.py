"""Scaled dot-product attention on arrays: forward, backward, maps."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Any, NamedTuple

from . import _core
from ._types import Array, Causal, EmptyRows, MapValue, Window


class Gradients(NamedTuple):
    """What `sdpa_backward` gives; None where it was not asked for."""

    q: Array
    k: Array
    v: Array
    bias: Array


class TopKeys(NamedTuple):
    """The strongest keys of every query: both ``[*,N,T,k]``, largest probability first, ties to the smaller key."""

    probability: Array
    key: Array


def _options(
    attend: Array,
    block: Array,
    causal: Causal,
    window: Window,
    key_lengths: Array,
    bias: Array,
    scale: float | None,
    softcap: float,
    dropout: float,
    seed: int | None,
    dropout_keep: Array,
    empty_rows: EmptyRows,
    backend: str | None,
    num_threads: int | None,
) -> _core.Options:
    return _core.Options(
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads
    )


def sdpa(
    q: Array,
    k: Array,
    v: Array,
    *,
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    dropout_keep: Array = None,
    empty_rows: EmptyRows = "zero",
    return_lse: bool = False,
    return_attention_weights: bool = False,
    out: Array = None,
    attention_weights: Array = None,
    backend: str | None = None,
    num_threads: int | None = None,
) -> Any:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    ::

        score = softcap(scale * q k^T) + bias        softcap(x) = c tanh(x / c), or x when c = 0
        p     = softmax of score over the kept keys
        out   = dropout(p) v                         lse = log sum exp(score) over the kept keys

    Args:
        q: ``[*,N,T,H]`` float32, float64, float16 or bfloat16; all tensors share the dtype. float32 accumulates in float32 or better.
        k: ``[*,K,S,H]``; query head n reads key/value head ``n // (N // K)`` (grouped heads, Ainslie et al. 2023).
        v: ``[*,K,S,V]``.
        attend: bool, broadcasts to ``[*,N,T,S]``; True = may attend. Not together with `block`.
        block: bool, broadcasts to ``[*,N,T,S]``; True = may not attend.
        causal: which diagonal queries do not look beyond: ``"top_left"``, ``"bottom_right"`` or an offset.
        window: ``(left, right)`` around the diagonal; None leaves a side open.
        key_lengths: integers in ``[0, S]``, ``[*]`` per sequence or ``[*,T]`` per query; keeps keys ``s < length``.
        bias: added to the scores, dtype of q, broadcasts to ``[*,N,T,S]``; -inf means probability 0.
        scale: factor of ``q k^T``; None is ``1 / sqrt(H)``.
        softcap: ``c`` of the formula, at least 0; 0 is off (Gemma 2 (2024), section 2).
        dropout: probability in ``[0, 1]`` that an entry of p is dropped; the others are divided by ``1 - dropout`` (Srivastava et al. 2014).
        seed: of the dropout bits (Philox 4x32-10, Salmon et al. 2011, keyed by seed, b, n, t, s). Required with dropout; backward and maps
            take the same.
        dropout_keep: bool, broadcasts to ``[*,N,T,S]``; bits to use instead of the generator's.
        empty_rows: what a query without any key gives: ``"zero"``, ``"uniform"`` or ``"unmasked"``.
        return_lse: also return lse ``[*,N,T]``, float32 (float64 for float64 inputs). `sdpa_backward` and `maps` need it.
        return_attention_weights: also return p ``[*,N,T,S]``, dtype of q, before dropout, from the same pass: out has the same bits with it and without.
            For chosen rows, the strongest keys or other points of the formula: `maps`.
        out: ``[*,N,T,V]``, written in place and returned; may not overlap an input.
        attention_weights: ``[*,N,T,S]``, written in place and returned, whatever return_attention_weights says; may not overlap anything.
        backend: name from `backends`; one that cannot serve the problem is an error. None picks the first that can.
        num_threads: at most this many threads for this call; None is `polyhead.num_threads()`.

    Returns:
        out ``[*,N,T,V]``, or a tuple of out and those of lse and attention_weights that are asked for.

    Raises:
        ValueError: a shape, dtype, value or option that does not fit; the message says what was given and what is allowed.
        TypeError: an argument of another type, or an array of a kind (complex, object), byte order or device that polyhead does not read.

    Nothing is ever cast. A masked key does not exist: NaN or infinity in its k, v or bias changes nothing. Equal bits for any number of threads.
    """
    options = _options(
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads
    )
    result, *more = _core.sdpa(q, k, v, options, return_lse, out, return_attention_weights, attention_weights)
    more = [array for array in more if array is not None]
    return (result, *more) if more else result


def sdpa_backward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    d_out: Array,
    *,
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    dropout_keep: Array = None,
    empty_rows: EmptyRows = "zero",
    gradients: Collection[str] = ("q", "k", "v", "bias"),
    d_bias: Array = None,
    backend: str | None = None,
    num_threads: int | None = None,
) -> Gradients:
    """Gradients of `sdpa` (Dao et al. 2022, appendix B; with every option: docs/maths.md, equations 5 to 9).

    Args:
        q, k, v: as given to `sdpa`.
        out, lse: ``[*,N,T,V]`` and ``[*,N,T]``, as `sdpa(..., return_lse=True)` returned them.
        d_out: ``[*,N,T,V]``, the gradient of the loss with respect to out.
        gradients: which of ``"q"``, ``"k"``, ``"v"``, ``"bias"`` are wanted; a bias gradient only where a bias is given.
        d_bias: shaped as bias, written in place and returned. Elements of it that share memory are summed there: with a bias that is a sliding view of a
            table, give the same view of zeros in the table's shape, which then holds the gradient of the table.
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows: as given to `sdpa`.
        backend, num_threads: as in `sdpa`.

    Returns:
        `Gradients`, each shaped as what it is the gradient of; that of the bias has exactly the shape of the bias that was given, summed over everything it broadcast to, without a
        tensor of the full ``[*,N,T,S]``.

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    if not isinstance(gradients, (tuple, list, set, frozenset)) or any(name not in Gradients._fields for name in gradients):
        raise (ValueError if isinstance(gradients, (Sequence, Set)) else TypeError)(f"gradients is {gradients!r}; it must be a sequence of {', '.join(map(repr, Gradients._fields))}")
    if d_bias is not None and "bias" not in gradients:
        raise ValueError(f"d_bias is given, and gradients is {gradients!r}; it must have 'bias' in it")
    options = _options(
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads
    )
    return Gradients(*_core.sdpa_backward(q, k, v, out, lse, d_out, options, d_bias, *(name in gradients for name in Gradients._fields)))


def maps(
    q: Array,
    k: Array,
    lse: Array = None,
    *,
    rows: Sequence[int] | None = None,
    top_k: int | None = None,
    value: MapValue = "probability",
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    dropout_keep: Array = None,
    empty_rows: EmptyRows = "zero",
    out: Array = None,
    backend: str | None = None,
    num_threads: int | None = None,
) -> Any:
    """What every head looks at: ``p = softmax(score)``, a second pass over q and k that cannot change the output of `sdpa`
    (Dao et al. 2022, appendix B, recomputes p in this way).

    Args:
        q: ``[*,N,T,H]``.
        k: ``[*,K,S,H]``.
        lse: ``[*,N,T]`` as `sdpa(..., return_lse=True)` returned it; needed for probabilities, not for scores.
        rows: the queries (in ``[0, T)``) whose rows are wanted; None is all.
        top_k: only the `top_k` strongest keys of every query, at most S. Not together with rows or value.
        value: where in the formula the map is read.
        out: ``[*,N,T,S]``, any floating dtype; written in place and returned. For all rows only.
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads: as given to `sdpa`.

    Returns:
        ``[*,N,T,S]``; with rows ``[*,N,len(rows),S]``; with top_k a `TopKeys`. dtype of q.

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    options = _options(
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads
    )
    if top_k is not None:
        if rows is not None or value != "probability" or out is not None:
            raise ValueError("top_k gives probabilities of all rows; it goes with none of rows, value and out")
        return TopKeys(*_core.attention_top_keys(q, k, lse, top_k, options))
    if rows is not None:
        if out is not None:
            raise ValueError("out is for all rows; it does not go with rows")
        return _core.attention_map_rows(q, k, lse, rows, options, value)
    return _core.attention_map(q, k, lse, options, value, out)


def head_statistics(
    q: Array,
    k: Array,
    lse: Array,
    *,
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    empty_rows: EmptyRows = "zero",
    backend: str | None = None,
    num_threads: int | None = None,
) -> dict[str, Array]:
    """Numbers that say what kind of head it is, averaged over the queries that have a key. Without dropout.

    Args:
        q, k, lse: as given to `maps`.
        attend, block, causal, window, key_lengths, bias, scale, softcap, empty_rows, backend, num_threads: as given to `sdpa`.

    Returns:
        By name, ``[*,N]`` each: ``entropy`` (``-sum p log p`` in nats), ``largest`` (the largest probability), ``distance`` (``sum p |s - t|``
        in positions), and the probability of the ``first_key`` (s = 0), ``previous_key`` (t - 1), ``same_key`` (t) and ``next_key`` (t + 1).

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    options = _options(attend, block, causal, window, key_lengths, bias, scale, softcap, 0.0, None, None, empty_rows, backend, num_threads)
    return _core.attention_statistics(q, k, lse, options)


def pooled_map(
    q: Array,
    k: Array,
    lse: Array,
    height: int,
    width: int,
    *,
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    empty_rows: EmptyRows = "zero",
    backend: str | None = None,
    num_threads: int | None = None,
) -> Array:
    """Maps too long to look at, as small pictures: the mean probability over blocks. Without dropout.

    Args:
        q, k, lse: as given to `maps`.
        height: rows of blocks, at most T.
        width: columns of blocks, at most S.
        attend, block, causal, window, key_lengths, bias, scale, softcap, empty_rows, backend, num_threads: as given to `sdpa`.

    Returns:
        ``[*,N,height,width]``; block ``(i, j)`` covers queries ``[i T / height, (i + 1) T / height)`` and keys
        ``[j S / width, (j + 1) S / width)``, rounded down.

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    options = _options(attend, block, causal, window, key_lengths, bias, scale, softcap, 0.0, None, None, empty_rows, backend, num_threads)
    return _core.attention_pooled_map(q, k, lse, height, width, options)


def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    attend: Array = None,
    block: Array = None,
    causal: Causal = None,
    window: Window = None,
    key_lengths: Array = None,
    bias: Array = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    dropout_keep: Array = None,
    empty_rows: EmptyRows = "zero",
    backend: str | None = None,
    num_threads: int | None = None,
) -> str:
    """The path that `sdpa` would take for these arguments, and why each backend before it declined. Computes nothing.

    Args:
        q, k, v: as given to `sdpa`.
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows: as given to `sdpa`.
        backend, num_threads: as in `sdpa`.

    Returns:
        One fact per line.

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    options = _options(
        attend, block, causal, window, key_lengths, bias, scale, softcap, dropout, seed, dropout_keep, empty_rows, backend, num_threads
    )
    return _core.explain(q, k, v, options)


def dropout_keep_bits(dropout: float, seed: int, keep: Array) -> Array:
    """Writes the bits that `sdpa(dropout=..., seed=...)` uses (Philox 4x32-10, Salmon et al. 2011); True = kept.

    Args:
        dropout: probability in ``[0, 1]`` that an entry is dropped.
        seed: as given to `sdpa`.
        keep: bool ``[*,N,T,S]``, written in place and returned.

    Returns:
        keep, ``[*,N,T,S]``.

    Raises:
        ValueError, TypeError: as `sdpa`.
    """
    _core.dropout_keep_bits(dropout, seed, keep)
    return keep


def backends() -> list[str]:
    """Names for the `backend` argument, in order of preference."""
    return _core.backends()
