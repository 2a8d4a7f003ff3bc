"""Scaled dot-product attention on arrays: forward, backward, maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from typing import Generic, Literal, Union, cast, overload

from . import _core
from ._options import A, Array, MapValue, NamedTuple, NumPyArray, RelativeBias, SdpaOptions, Unpack, takes

__all__ = ["Gradients", "RelativeBias", "TopKeys", "alibi_slopes", "backends", "dropout_keep_bits", "explain", "head_divergence", "head_statistics", "key_mass", "key_sums", "local_blocks", "map_windows", "maps", "pooled_map", "quantize_rows", "relative_bucket", "rollout", "sdpa", "sdpa_backward", "value_norms"]

# The docstring of `maps` explains these types.
Progress = Union[Callable[[int, int], object], None]


class Gradients(NamedTuple, Generic[A]):
    """The result of `sdpa_backward`. A field is None if the argument `gradients` does not name it, or if its input was not given."""

    q: A
    k: A
    v: A
    bias: A
    sink: A
    relative_bias: A
    """The gradient of the slopes or the table of a `RelativeBias`, whichever was given."""


class TopKeys(NamedTuple, Generic[A]):
    """The k keys of every query with the largest probabilities, and these probabilities: two arrays ``[*,N,T,k]``, the largest probability first. Among equal
    probabilities the smaller key index comes first."""

    probability: A
    key: A


@overload
def sdpa(
    q: A, k: Array, v: Array, *, return_lse: Literal[False] = False, return_attention_weights: Literal[False] = False, out: A | None = None, attention_weights: None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions],
) -> A: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, *, return_lse: Literal[True], return_attention_weights: Literal[False] = False, out: A | None = None, attention_weights: None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions],
) -> tuple[A, A]: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, *, return_lse: Literal[False] = False, return_attention_weights: Literal[True], out: A | None = None, attention_weights: A | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions],
) -> tuple[A, A]: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, *, return_lse: Literal[True], return_attention_weights: Literal[True], out: A | None = None, attention_weights: A | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions],
) -> tuple[A, A, A]: ...  # fmt: skip
@overload
def sdpa(
    q: A, k: Array, v: Array, *, return_lse: bool = False, return_attention_weights: bool = False, out: A | None = None, attention_weights: A | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions],
) -> A | tuple[A, ...]: ...  # fmt: skip
@takes(SdpaOptions)
def sdpa(
    q: A,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_attention_weights: bool = False,
    out: A | None = None,
    attention_weights: A | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    **options: Unpack[SdpaOptions],
) -> A | tuple[A, ...]:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    ::

        score = softcap(scale * q k^T) + bias        softcap(x) = c tanh(x / c), or x when c = 0
        p     = softmax of score over the attended keys
        out   = dropout(p) v                         lse = log sum exp(score) over the attended keys

    With a sink, exp(sink) is added to the sum of the softmax: lse = log(exp(sink) + sum exp(score)), p = exp(score - lse).

    Args:
        q: ``[*,N,T,H]`` float32, float64, float16 or bfloat16. Sums are computed in float64 for float64, else in float32 or float64.
        k: ``[*,K,S,H]``; query head n reads key/value head ``n // (N // K)`` (grouped heads, Ainslie et al. 2023). Usually in the dtype of q. Unless q is
            float64, k may also be bfloat16, float16, or int8 with k_scale and v_scale, as a `KeyValueCache` may store keys. `sdpa_backward` needs q, k and v in
            one dtype.
        v: ``[*,K,S,V]``, in the dtype of k.
        attend: bool, broadcasts to ``[*,N,T,S]``; True = may attend. Not together with `block`.
        block: bool, broadcasts to ``[*,N,T,S]``; True = may not attend.
        attend_keys: bool, broadcasts to ``[*,S]``; True = every query may attend to the key. Not together with `block_keys`.
        block_keys: bool, broadcasts to ``[*,S]``; True = no query may attend to the key (a key padding mask).
        causal: query t attends to keys ``s <= t + offset``: ``"top_left"`` (offset 0), ``"bottom_right"`` (offset ``S - T``) or the offset as an int.
        window: ``(left, right)``: query t attends to keys s with ``-left <= s - (t + offset) <= right``. The offset is that of causal, or ``S - T`` without
            causal. If left or right is None, that side has no limit.
        key_starts: integers from 0 on, ``[*]`` per sequence or ``[*,T]`` per query; a query attends to keys ``s >= start``. This masks padding before a text.
        key_lengths: integers in ``[0, S]``, ``[*]`` per sequence or ``[*,T]`` per query; a query attends to keys ``s < length``.
        diagonal_offsets: integers ``[*]``: in sequence b the diagonal of causal and window is ``s = t + diagonal_offsets[b]``. If the queries continue
            sequences of different lengths, give the number of keys before the queries of each sequence. Needs ``causal="top_left"``, a window or a
            relative_bias. The distances of a relative_bias are counted from the same diagonal. The result of each sequence has the same bits as a call for this
            sequence alone with its offset as ``causal``.
        query_offsets, key_offsets: documents packed one after the other along T and S (cu_seqlens of FlashAttention): integers ``[D+1]`` that start at 0,
            never decrease and end at T and S. A query attends only to the keys of its own document, and the diagonals of causal and window start anew in each
            document. The result of each document has the same bits as a call for this document alone. key_offsets may be left out if T = S.
        blocks: for each block of queries, the numbers of the blocks of keys that its queries may attend to, as in FlexAttention's BlockMask: integers that
            broadcast to ``[*,N,Tb,count]`` with ``Tb = ceil(T / queries)``. An entry is an index in ``[0, ceil(S / keys))`` or -1 for no block; the order is
            free. Time and memory grow with the number of listed blocks, whereas `attend` takes T x S bytes. The queries of a block with an empty list are empty
            rows. Can be combined with every other mask.
        block_size: number of queries and of keys of a block in `blocks`: one int for both, or ``(queries, keys)``; None is 128. Blocks with a multiple of 64
            keys are the fastest.
        bias: added to the scores, dtype of q, broadcasts to ``[*,N,T,S]``; -inf means probability 0.
        relative_bias: a `RelativeBias`, made of ALiBi's slopes or T5's buckets. Not together with bias.
        scale: factor of ``q k^T``; None is ``1 / sqrt(H)``.
        softcap: ``c`` of the formula, at least 0; 0 switches softcap off (Gemma 2 (2024), section 2).
        sink: sink logits (StreamingLLM, Xiao et al. 2024; learned in gpt-oss), ``[N]``, or an array of another rank that broadcasts to ``[*,N,T]``; in the
            dtype of q or of lse. The p of a query sum to ``1 - exp(sink - lse)``; a query without keys gives out 0 and lse = sink. A sink of -inf has no
            effect. Only with empty_rows "zero".
        dropout: probability in ``[0, 1]`` that an entry of p is set to 0; the entries that remain are divided by ``1 - dropout`` (Srivastava et al. 2014).
        seed: seed of the dropout bits, which are a function of seed, b, n, t, s (Philox 4x32-10, Salmon et al. 2011). Required with dropout, unless
            dropout_keep is given; pass the same seed to backward and maps.
        dropout_keep: bool, broadcasts to ``[*,N,T,S]``; True = not dropped. These bits replace those that the seed would give.
        empty_rows: result of a query whose keys are all masked: ``"zero"`` (out 0, lse -inf, gradients 0), ``"uniform"`` (every key has p = 1/S, as in code
            that replaces masked scores by -1e6) or ``"unmasked"`` (the result without a mask, as in code that adds -1e9 to masked scores in float64; in float32
            such code gives p = 1/S, because 1e9 exceeds every score). A query whose attended scores are all -inf has the result of "zero", whichever of the
            three values is given.
        precision: how bfloat16 q, k and v are multiplied. ``"native"``: by the processor's bfloat16 instructions, if it has them and q, k and v are all bfloat16.
            Then p, and in `sdpa_backward` the gradient of the scores, are rounded to bfloat16 before they are multiplied, as in PyTorch, and subnormal numbers are
            treated as 0. ``"exact"``: products are not rounded; only their float32 sums are. Other dtypes and second derivatives are always exact. `explain`
            says whether a call is native or exact.
        return_lse: also return lse ``[*,N,T]``, float32 (float64 for float64 inputs). `sdpa_backward` needs it.
        return_attention_weights: also return p ``[*,N,T,S]``, in the dtype of q, before dropout. The same pass writes p, and out has the same bits as without
            it. To get chosen rows, the strongest keys or other values of the formula, call `maps`.
        out: ``[*,N,T,V]``, memory for the result: written in place and returned; may not overlap an input.
        k_scale, v_scale: float32 ``[*,K,S]``, given if and only if k and v are int8. An element of k then means ``float32(k_scale * int8)``, and an element of
            v ``float32(v_scale * int8)``. `quantize_rows` makes int8 elements and scales.
        attention_weights: ``[*,N,T,S]``, memory for p: written in place and returned, also without return_attention_weights; may not overlap another array.
        backend: a name from `backends`; an error if that backend cannot compute the problem. None: the first backend that can.
        num_threads: at most this many threads for this call; None is `polyhead.num_threads()`.

    Returns:
        out ``[*,N,T,V]``; if lse or attention weights are requested, a tuple of out and those requested, in the order out, lse, attention weights.

    Raises:
        ValueError: a shape, dtype, value or option that does not fit; the message says what was given and what is allowed.
        TypeError: an argument of the wrong type, an unknown argument, or an array of a kind (complex, object), byte order or device that polyhead does not read.

    No array is cast to another dtype. NaN or infinity in k, v or bias of a masked key has no effect on the result. The result has the same bits
    with any number of threads.
    """
    result, *more = _core.sdpa(q, k, v, options, return_lse, out, return_attention_weights, attention_weights, k_scale, v_scale)
    more = [array for array in more if array is not None]
    return (result, *more) if more else result


@takes(SdpaOptions)
def sdpa_backward(
    q: A,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    d_out: Array,
    *,
    gradients: Collection[str] = ("q", "k", "v", "bias", "sink", "relative_bias"),
    d_bias: A | None = None,
    **options: Unpack[SdpaOptions],
) -> Gradients[A]:
    """Gradients of `sdpa` (Dao et al. 2022, appendix B). docs/maths.md, equations 5 to 9, has the formulas with every option.

    Args:
        q, k, v: as given to `sdpa`, in one dtype.
        out, lse: ``[*,N,T,V]`` and ``[*,N,T]``, as `sdpa(..., return_lse=True)` returned them.
        d_out: ``[*,N,T,V]``, the gradient of the loss with respect to out.
        gradients: which of ``"q"``, ``"k"``, ``"v"``, ``"bias"``, ``"sink"``, ``"relative_bias"`` to compute. The gradient of an input that is not given is
            None.
        d_bias: memory for the gradient of bias, shaped as bias: written in place and returned. Gradients of elements that share memory are summed. Example:
            bias is a view of a table, in which neighbouring rows overlap. Pass the same view of an array of zeros with the table's shape; that array then holds
            the gradient of the table.
        options: as given to `sdpa`.

    Returns:
        `Gradients`, each shaped as its input. The gradients of bias and sink are summed over every dimension along which the input broadcasts; the gradient of
        relative_bias is summed over all pairs of query and key. No tensor ``[*,N,T,S]`` is made.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    wanted = wanted_gradients(gradients, Gradients._fields)
    if d_bias is not None and "bias" not in gradients:
        raise ValueError(f"d_bias is given, and gradients is {gradients!r}; it must contain 'bias'")
    return Gradients(*_core.sdpa_backward(q, k, v, out, lse, d_out, options, d_bias, wanted))


def wanted_gradients(gradients: object, allowed: tuple[str, ...]) -> tuple[bool, ...]:
    """For each field of `Gradients`, whether its name is in gradients. Raises ValueError or TypeError unless gradients is a sequence of allowed names."""
    if not isinstance(gradients, (tuple, list, set, frozenset)) or any(name not in allowed for name in gradients):
        error = ValueError if isinstance(gradients, (Sequence, Set)) else TypeError
        raise error(f"gradients is {gradients!r}; it must be a sequence of {', '.join(map(repr, allowed))}")
    return tuple(name in gradients for name in Gradients._fields)


def alibi_slopes(heads: int) -> NumPyArray:
    """The slopes of ALiBi (Press et al. 2022). If heads is a power of two, they are ``2 ** (-8 * i / heads)`` for i from 1 to heads. Otherwise they are the slopes of
    the next smaller power of two, followed by every second slope of the next larger power of two.

    Args:
        heads: N.

    Returns:
        NumPy float32 ``[heads]``, for ``RelativeBias(slopes=...)``.

    Raises:
        ValueError, TypeError: heads is negative or not an int.
    """
    return cast("NumPyArray", _core.alibi_slopes(heads))


def local_blocks(length: int, *, queries: int = 32, keys: int = 128) -> tuple[NumPyArray, tuple[int, int]]:
    """Block lists for attention in windows of a sequence, such as that of the atoms in AlphaFold 3 (Abramson et al. 2024, supplementary algorithm 7).

    Window w has the queries ``[w queries, (w + 1) queries)`` and the ``keys`` positions around the middle of these queries. No ``[T,T]`` mask is made.
    Attention skips keys in groups of 64: it computes the groups that a window touches (3 groups, 192 keys, for a window of 32 x 128), and masks keys outside of
    the window. `polyhead.torch.sequence_local_attention` also takes a bias for each query and key of a window.

        blocks, block_size = polyhead.local_blocks(q.shape[-2])
        out = polyhead.sdpa(q, k, v, blocks=blocks, block_size=block_size)

    Args:
        length: T, the number of positions.
        queries, keys: number of queries and of keys of a window; ``keys - queries`` must be even and not negative.

    Returns:
        The arguments blocks, NumPy int64 ``[ceil(length / queries), count]``, and block_size of `sdpa`.

    Raises:
        ValueError, TypeError: a number that is out of range or not an int.
    """
    blocks, *size = _core.local_blocks(length, queries, keys)
    return cast("NumPyArray", blocks), (size[0], size[1])


def relative_bucket(distance: int, buckets: int, *, bidirectional: bool = True, max_distance: int = 128) -> int:
    """The bucket into which T5's relative bias sorts a distance (Raffel et al. 2020, section 2.1; docs/maths.md, equation 4a).

    Args:
        distance: distance of key and query, ``s - (t + offset)``, negative for earlier keys.
        buckets: number of buckets; even and at least 4 if bidirectional, else at least 2.
        bidirectional, max_distance: as in `RelativeBias`.

    Returns:
        A bucket in ``[0, buckets)``.

    Raises:
        ValueError, TypeError: buckets or max_distance is out of range or not an int.
    """
    return _core.relative_bucket(distance, buckets, bidirectional, max_distance)


@overload
def maps(
    q: A, k: Array, *, rows: Sequence[int] | None = None, keys: Sequence[int] | None = None, top_k: None = None, value: MapValue = "probability", out: A | None = None,
    k_scale: Array | None = None, progress: Progress = None, value_norms: Array | None = None, **options: Unpack[SdpaOptions],
) -> A: ...  # fmt: skip
@overload
def maps(q: A, k: Array, *, top_k: int, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> TopKeys[A]: ...
@takes(SdpaOptions)
def maps(
    q: A,
    k: Array,
    *,
    rows: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    top_k: int | None = None,
    value: MapValue = "probability",
    out: A | None = None,
    k_scale: Array | None = None,
    progress: Progress = None,
    value_norms: Array | None = None,
    **options: Unpack[SdpaOptions],
) -> A | TopKeys[A]:
    """Attention maps: ``p = softmax(score)`` of every head, computed from q and k (Dao et al. 2022, appendix B).

    Args:
        q: ``[*,N,T,H]``.
        k: ``[*,K,S,H]``.
        rows: indices in ``[0, T)`` of the queries whose rows of the map are returned; None: all.
        keys: indices in ``[0, S)`` of the keys whose columns are returned; None: all. ``rows=range(10, 20), keys=range(5)`` returns a rectangle of the map.
        top_k: return only this many keys of every query, at most S: those with the largest probabilities. Not together with rows, keys, value or out.
        value: which value of `sdpa`'s formula to return: ``"scaled_score"`` (``scale q k^T``), ``"capped_score"`` (after softcap), ``"score"``
            (after the bias is added; -inf where masked), ``"probability"`` (p) or ``"dropped"`` (p after dropout).
        out: ``[*,N,T,S]``, any floating dtype, memory for the result: written in place and returned. Not together with rows or keys.
        k_scale: scales of an int8 k, as given to `sdpa`.
        progress: a function, called as ``progress(done, total)`` in the calling thread after every few hundred rows, and at the end with done equal to total. If the
            function raises an exception, the computation ends with that exception.
        value_norms: norms ``[*,N,S]`` that the function `value_norms` computed. The call then returns norm-weighted maps: p times the norm of the key
            (Kobayashi et al. 2020). The rows of these maps do not sum to 1. Where p is 0 the result is 0. Only with value "probability" or "dropped"; not
            together with top_k.
        options: as given to `sdpa`.

    Returns:
        ``[*,N,T,S]``, or ``[*,N,len(rows),len(keys)]``, in the dtype of q; with top_k a `TopKeys`. The call needs O(T + S) memory besides the result.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    if top_k is not None:
        if rows is not None or keys is not None or value != "probability" or out is not None or value_norms is not None:
            raise ValueError("top_k returns probabilities of all rows; it may not be combined with rows, keys, value, out or value_norms")
        return TopKeys(*_core.top_keys(q, k, top_k, options, k_scale, progress))
    if (rows is not None or keys is not None) and out is not None:
        raise ValueError("out holds all rows; it may not be combined with rows or keys")
    return cast("A", _core.maps(q, k, rows, keys, options, value, out, k_scale, progress, value_norms))


def value_norms(v: A, output_weight: Array | None, *, num_threads: int | None = None) -> A:
    """Norms of the vectors that attention weights multiply (Kobayashi et al. 2020, "Attention is Not Only a Weight").

    A layer's output for query t is the sum over heads n and keys s of ``p[n,t,s] f[n,s]``, plus the bias of the output projection, with
    ``f[n,s] = W_O^n v[n // (N // K),s]``; the paper writes ``f(x) = (x W^V + b^V) W^O``. ``W_O^n`` are the columns ``[n V, (n+1) V)`` of output_weight. A norm-weighted map
    is ``p[n,t,s] |f[n,s]|``: ``maps(q, k, value_norms=...)``.

    Args:
        v: ``[*,K,S,V]``, floating, the projected values of each head.
        output_weight: ``[E,N*V]``, floating, as ``torch.nn.Linear``'s weight; None for a layer without an output projection.
        num_threads: as in `sdpa`.

    Returns:
        Euclidean norms ``[*,N,S]``, in the dtype of v: one for each head and key. A norm does not depend on the query.

    Raises:
        ValueError, TypeError: an array with a wrong shape or dtype.
    """
    return cast("A", _core.value_norms(v, output_weight, num_threads))


@takes(SdpaOptions)
def head_statistics(q: A, k: Array, *, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> dict[str, A]:
    """Numbers that describe the attention weights of each head, before dropout, averaged over the queries that attend to a key.

    Args:
        q, k, k_scale: as given to `sdpa`.
        progress: as given to `maps`.
        options: as given to `sdpa`.

    Returns:
        A dict of arrays ``[*,N]``: ``entropy`` (``-sum p log p`` in nats), ``largest`` (the largest probability), ``distance`` (``sum p |s - t|``
        in positions), and the probabilities that queries give to the ``first_key`` (s = 0), ``previous_key`` (s = t - 1), ``same_key`` (s = t) and ``next_key``
        (s = t + 1).

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return _core.head_statistics(q, k, options, k_scale, progress)


@takes(SdpaOptions)
def pooled_map(
    q: A, k: Array, height: int, width: int, *, pooling: Literal["mean", "sum", "largest"] = "mean", k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]
) -> A:
    """Attention maps reduced to ``height x width`` blocks: the mean, sum or largest probability of each block, before dropout. The call needs O(T + S) memory
    besides the result.

    Args:
        q, k, k_scale: as given to `sdpa`.
        height: number of rows of blocks, at most T.
        width: number of columns of blocks, at most S.
        pooling: which number a block becomes: the ``"mean"``, the ``"sum"`` or the ``"largest"`` of its probabilities.
        progress: as given to `maps`.
        options: as given to `sdpa`.

    Returns:
        ``[*,N,height,width]``. Block ``(i, j)`` covers queries ``[i T / height, (i + 1) T / height)`` and keys
        ``[j S / width, (j + 1) S / width)``; all bounds are rounded down.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.pooled_map(q, k, height, width, options, k_scale, pooling, progress))


@takes(SdpaOptions)
def key_sums(q: A, k: Array, *, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> A:
    """How much each key is attended to: the sum of its attention weights over all queries, before dropout. The call needs O(T + S) memory.

    Args:
        q, k, k_scale: as given to `sdpa`.
        progress: as given to `maps`.
        options: as given to `sdpa`.

    Returns:
        ``[*,N,S]``, in the dtype of q.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.key_sums(q, k, options, k_scale, progress))


@takes(SdpaOptions)
def key_mass(q: A, k: Array, key_sets: Array, *, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> A:
    """How much each query attends to a set of keys, such as all separator tokens: the sum of the query's attention weights of these keys, before dropout.

    Args:
        q, k, k_scale: as given to `sdpa`.
        key_sets: bool, ``[S]`` for one set, or broadcasts to ``[*,M,S]`` for M sets; True = the key belongs to the set. A key may belong to several sets.
        progress: as given to `maps`.
        options: as given to `sdpa`.

    Returns:
        ``[*,N,T,M]``, in the dtype of q; M is 1 for one set.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.key_mass(q, k, key_sets, options, k_scale, progress))


@takes(SdpaOptions)
def map_windows(q: A, k: Array, first: int, last: int, *, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> A:
    """The band of the attention maps around the diagonal: the attention weights of the keys ``t + first`` to ``t + last`` of query t, before dropout.

    Args:
        q, k, k_scale: as given to `sdpa`.
        first, last: the smallest and largest distance ``s - t``, in positions: ``first=-2, last=0`` selects the two keys before the query's position and the
            key at that position. With documents, positions are counted inside each document.
        progress: as given to `maps`.
        options: as given to `sdpa`.

    Returns:
        ``[*,N,T,last - first + 1]``, in the dtype of q; 0 where the sequence has no key at that distance.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.map_windows(q, k, first, last, options, k_scale, progress))


@takes(SdpaOptions)
def head_divergence(q: A, k: Array, *, k_scale: Array | None = None, progress: Progress = None, **options: Unpack[SdpaOptions]) -> A:
    """How differently each two heads attend: the Jensen-Shannon divergence (Lin 1991) of the attention weights of the two heads, before dropout, averaged over
    the queries for which both heads attend to a key. Similar heads have a small divergence.

    Args:
        q, k, k_scale: as given to `sdpa`.
        progress: as given to `maps`.
        options: as given to `sdpa`. A sink is treated as one more key.

    Returns:
        ``[*,N,N]`` in nats, dtype of q, from 0 to log 2. 0: no difference, or no query for which both heads attend to a key. log 2: no key that both heads attend
        to. The rounding error is about 1e-6 unless q is float64.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.head_divergence(q, k, options, k_scale, progress))


@takes(SdpaOptions)
def rollout(layers: Sequence[tuple[A, Array] | tuple[A, Array, Array]], *, rows: Sequence[int] | None = None, residual: float = 0.5, progress: Progress = None, **options: Unpack[SdpaOptions]) -> A:
    """Attention rollout (Abnar and Zuidema 2020, section 3): how much each input position contributes to a position after several layers, if only attention
    and the residual connection mix positions. A large number does not prove influence, because values, feed-forward layers and norms are left out.

    ::

        A = residual * I + (1 - residual) * mean over heads of p; each row is then divided by its sum
        rollout = A of the last layer @ ... @ A of the first

    Args:
        layers: a pair ``(q, k)`` for each layer, beginning with the first layer, as given to `sdpa` with T = S; ``(q, k, k_scale)`` if k is int8.
        rows: indices in ``[0, T)`` of the positions whose rows are returned; None: all. Memory is O(len(rows) T).
        residual: share of the residual connection in A, in ``[0, 1]``.
        progress: a function, called as ``progress(done, total)`` after every layer. If the function raises an exception, the computation ends with that exception.
        options: as given to `sdpa`, the same for all layers.

    Returns:
        ``[*,T,T]`` or ``[*,len(rows),T]``, in the dtype of q. A row sums to 1, or to 0 if residual is 0 and no head attends to a key in that row.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return cast("A", _core.rollout(layers, rows, residual, options, progress))


@takes(SdpaOptions)
def explain(q: Array, k: Array, v: Array, *, k_scale: Array | None = None, v_scale: Array | None = None, **options: Unpack[SdpaOptions]) -> str:
    """Says which backend and kernels `sdpa` would use for these arguments, and why it would not use a backend that comes earlier in `backends`. Computes
    nothing.

    Args:
        q, k, v, k_scale, v_scale: as given to `sdpa`.
        options: as given to `sdpa`.

    Returns:
        One fact per line.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    return _core.explain(q, k, v, options, k_scale, v_scale)


def quantize_rows(x: A, *, out: A | None = None, scale: A | None = None, num_threads: int | None = None) -> tuple[A, A]:
    """Converts x to int8 with one scale for each row of the last axis, which is how a `KeyValueCache` of int8 stores k and v: ``scale = max |x| / 127``,
    ``out = x / scale`` rounded to nearest even.

    Args:
        x: ``[..,W]``, floating. A row with NaN or infinity becomes a row of NaN: its scale is NaN.
        out: int8, shaped as x, memory for the int8 elements: written in place and returned.
        scale: float32 ``[..]``, memory for the scales: written in place and returned.
        num_threads: at most this many threads for this call; None is `polyhead.num_threads()`.

    Returns:
        out ``[..,W]`` and scale ``[..]``, with ``|scale * out - x| <= scale * (1/2 + 2**-15) + 2**-142``.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    result: tuple[A, A] = _core.quantize_rows(x, out, scale, num_threads)
    return result


def dropout_keep_bits(dropout: float, seed: int, keep: Array) -> Array:
    """Writes the dropout bits that `sdpa(dropout=..., seed=...)` uses (Philox 4x32-10, Salmon et al. 2011); True = not dropped.

    Args:
        dropout: probability in ``[0, 1]`` that an entry of p is dropped.
        seed: as given to `sdpa`.
        keep: bool ``[*,N,T,S]``, written in place and returned.

    Returns:
        keep, ``[*,N,T,S]``.

    Raises:
        ValueError, TypeError: for the same reasons as `sdpa`.
    """
    _core.dropout_keep_bits(dropout, seed, keep)
    return keep


def backends() -> list[str]:
    """The names that the argument `backend` may have, in order of preference."""
    return _core.backends()
