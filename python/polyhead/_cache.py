"""Classes for models that compute a text a few tokens at a time: a cache of earlier keys and values, and the tables of rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, cast

from . import _core
from ._options import Array, NumPyArray, Rotary, dtype_name

if TYPE_CHECKING:
    import numpy

__all__ = ["KeyValueCache", "RotaryEmbedding"]


class KeyValueCache:
    """Keys and values of earlier tokens, in memory that is allocated once. The sequences of a cache may have different lengths. A layer takes the cache as its
    argument ``cache``; `polyhead.sdpa` takes the cache's `keys`, `values`, scales and `mask`. Only one thread at a time may use a cache.

    Args:
        sequences: B, number of sequences.
        kv_heads: K, number of key/value heads.
        capacity: the largest number of tokens of a sequence.
        head_width: H, width of a key.
        value_head_width: V, width of a value; None: head_width.
        dtype: dtype of the stored keys and values: ``"float32"``, ``"float64"``, ``"float16"``, ``"bfloat16"``, or ``"int8"`` with a float32 scale for each
            token and head. Unless the queries are float64, the cache's dtype may be narrower than that of the queries.

    Raises:
        ValueError: a number or dtype that does not fit; the message says what was given and what is allowed.
        TypeError: an argument of the wrong type.
    """

    def __init__(
        self,
        sequences: int,
        kv_heads: int,
        capacity: int,
        head_width: int,
        *,
        value_head_width: int | None = None,
        dtype: str | type[numpy.generic] | numpy.dtype[Any] = "float32",
    ) -> None:
        self._cache = _core.key_value_cache(sequences, kv_heads, capacity, head_width, value_head_width, dtype_name(dtype))

    @classmethod
    def on(
        cls, keys: Array, values: Array, lengths: Sequence[int] | Array | None = None, *, key_scales: Array | None = None, value_scales: Array | None = None
    ) -> KeyValueCache:
        """A cache that uses the caller's arrays as its memory, without a copy.

        Args:
            keys: ``[B,K,capacity,H]``, floating or int8, any strides; written in place.
            values: ``[B,K,capacity,V]``, in the dtype of keys; written in place.
            lengths: integers ``[B]``: the number of tokens of each sequence that the arrays already hold; None: 0.
            key_scales, value_scales: float32 ``[B,K,capacity]``, only for int8 keys and values; written in place.

        Returns:
            The cache, which keeps the arrays alive.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        self = cls.__new__(cls)
        self._cache = _core.key_value_cache_on(keys, values, lengths, key_scales, value_scales)
        return self

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments by name, with every default filled in."""
        return self._cache.config

    @property
    def lengths(self) -> NumPyArray:
        """The number of tokens of each sequence: a copy, int64 ``[B]``."""
        return cast("NumPyArray", self._cache.lengths)

    @property
    def keys(self) -> NumPyArray:
        """The keys ``[B,K,S,H]``, where S is the length of the longest sequence now: a read-only NumPy array that shares the cache's memory. Rows beyond a
        sequence's length are undefined. A bfloat16 cache raises TypeError, because NumPy has no bfloat16."""
        return cast("NumPyArray", self._cache.keys)

    @property
    def values(self) -> NumPyArray:
        """The values ``[B,K,S,V]``. All that `keys` says about the array applies."""
        return cast("NumPyArray", self._cache.values)

    @property
    def key_scales(self) -> NumPyArray | None:
        """The scales of int8 keys, float32 ``[B,K,S]``, for the argument `k_scale` of `polyhead.sdpa`; None for other dtypes."""
        return cast("NumPyArray | None", self._cache.key_scales)

    @property
    def value_scales(self) -> NumPyArray | None:
        """The scales of int8 values, float32 ``[B,K,S]``, for the argument `v_scale` of `polyhead.sdpa`; None for other dtypes."""
        return cast("NumPyArray | None", self._cache.value_scales)

    def append(self, k: Array, v: Array, new_tokens: Array | None = None, *, num_threads: int | None = None) -> None:
        """Adds tokens at the end of each sequence. Nothing is written if a sequence would exceed the capacity.

        Args:
            k: ``[B,K,T,H]``, any floating dtype; rounded to the cache's dtype.
            v: ``[B,K,T,V]``, of any floating dtype, as k.
            new_tokens: integers ``[B]`` in ``[0, T]``: how many of the T tokens are appended to sequence b; None: all.
            num_threads: at most this many threads; None is `polyhead.num_threads()`.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        self._cache.append(k, v, new_tokens, num_threads)

    def mask(self, causal: bool = True) -> dict[str, Any]:
        """The arguments with which `polyhead.sdpa` masks the cache's keys, if the queries are the tokens of the last `append`.

        Args:
            causal: True: each query attends to its own token and to earlier tokens. False: each query attends to all tokens of its sequence.

        Returns:
            A dict of arguments by name: ``key_lengths`` and, if causal, ``causal`` and ``diagonal_offsets``.

        Raises:
            TypeError: causal is not True or False.
        """
        if not isinstance(causal, bool):
            raise TypeError(f"causal is of type {type(causal).__name__}; it must be True or False")
        if not causal:
            return {"key_lengths": self.lengths}
        return {"causal": "top_left", "key_lengths": self.lengths, "diagonal_offsets": self._cache.previous_lengths}

    def reorder(self, source: Sequence[int] | Array) -> None:
        """Replaces all sequences at once, for beam search: sequence b becomes a copy of what sequence ``source[b]`` was before the call.

        Args:
            source: integers ``[B]`` in ``[0, B)``.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        self._cache.reorder(source)

    def copy_sequence(self, source: int, target: int) -> None:
        """Makes one sequence a copy of another.

        Args:
            source: the sequence to read.
            target: the sequence to replace.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        self._cache.copy_sequence(source, target)

    def truncate(self, lengths: Sequence[int] | Array) -> None:
        """Removes the last tokens of each sequence, as speculative decoding needs it.

        Args:
            lengths: integers ``[B]``: how many tokens each sequence keeps, at most the sequence's length.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        self._cache.truncate(lengths)

    def clear(self) -> None:
        """Removes all tokens of all sequences.

        Raises:
            RuntimeError: another thread uses the cache.
        """
        self._cache.clear()

    # A copy always has its own memory, even if the cache uses the caller's arrays.
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": (self.config, *self._cache.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        config, lengths, previous, parts = state["_cache"]
        self.__dict__.update(state)
        self._cache = _core.restored_cache(**config, lengths=lengths, previous=previous, parts=parts)

    def __repr__(self) -> str:
        c = self.config
        return f"KeyValueCache(sequences={c['sequences']}, kv_heads={c['kv_heads']}, capacity={c['capacity']}, lengths={self.lengths.tolist()})"


Scaling = Union[Literal["linear", "ntk", "llama3", "yarn", "longrope", "proportional"], None]


class RotaryEmbedding:
    """Makes the tables of a `Rotary` (cosines and sines) from positions (Su et al. 2021, RoFormer, section 3.2.2). Most arguments have the names that config
    files of models use; base is ``rope_theta`` of those files. Angles are computed in float64.

    Args:
        width: R, number of features of each head that are rotated; even.
        base: theta of the paper: pair i is rotated by ``base ** (-2 i / R)`` radians per position.
        order: as in `Rotary`.
        scaling: ``"linear"`` (Chen et al. 2023), ``"ntk"`` (a larger base), ``"llama3"`` (Llama 3.1, 2024), ``"yarn"`` (Peng et al. 2023),
            ``"longrope"`` (Ding et al. 2024), ``"proportional"`` (only the first pairs are rotated) or None.
        factor: new length / original length of the texts, at least 1. The scaling rule uses this number.
        original_max_position_embeddings: length of the texts in training, in tokens. llama3 and yarn need it; longrope needs it if attention_factor is None.
        low_freq_factor, high_freq_factor: for llama3: wavelengths above original length / low_freq_factor are scaled; wavelengths below original length /
            high_freq_factor are not.
        beta_fast, beta_slow: for yarn: numbers of full turns that a pair makes over the original length. A pair with at least beta_fast turns keeps its
            frequency. The frequency of a pair with fewer than beta_slow turns is scaled.
        attention_factor: for yarn and longrope: the factor of cos and sin. None: for yarn computed from factor, mscale and mscale_all_dim, for longrope from factor and
            the original length.
        mscale, mscale_all_dim: for yarn in DeepSeek's models. Give both or neither (0), and not together with attention_factor.
        truncate: for yarn: round the numbers of the pairs that belong to beta_fast and beta_slow, the first down and the second up.
        factors: for longrope: R/2 numbers; number i divides the frequency of pair i. A config file has them as ``short_factor`` or ``long_factor``.
        proportion: for proportional: the fraction of the pairs that are rotated, from 0 to 1.

    Raises:
        ValueError: a number or word that does not fit, or an argument that the scaling rule does not use; the message says what was given and what is allowed.
        TypeError: an argument of the wrong type.
    """

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        order: Literal["halves", "pairs"] = "halves",
        scaling: Scaling = None,
        factor: float = 1.0,
        original_max_position_embeddings: float = 0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        mscale: float = 0.0,
        mscale_all_dim: float = 0.0,
        truncate: bool = True,
        factors: Sequence[float] | None = None,
        proportion: float = 1.0,
    ) -> None:
        config = {name: given for name, given in locals().items() if name not in ("self", "__class__")}
        self._embedding = _core.RotaryEmbedding(config)
        self._config = config

    @property
    def frequencies(self) -> list[float]:
        """The angle in radians by which each pair is rotated per position: R/2 numbers."""
        return self._embedding.frequencies

    @property
    def attention_factor(self) -> float:
        """The factor by which cos and sin are multiplied; 1 except with yarn and longrope."""
        return self._embedding.attention_factor

    def __call__(self, positions: Array, *, dtype: str | type[numpy.generic] | numpy.dtype[Any] = "float32") -> Rotary:
        """The cosines and sines at these positions.

        Args:
            positions: integers ``[*,T]``; for tokens that follow the tokens of a cache: ``cache.lengths[:, None] + numpy.arange(T)``.
            dtype: dtype of the tables, ``"float32"`` or ``"float64"``.

        Returns:
            A `Rotary` with ``[*,T,R/2]`` tables, for the argument ``rotary`` of a layer.

        Raises:
            ValueError, TypeError: for the same reasons as `polyhead.sdpa`.
        """
        cos, sin = self._embedding.tables(positions, dtype_name(dtype))
        return Rotary(cos, sin, order=self._config["order"], width=self._config["width"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_embedding"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._embedding = _core.RotaryEmbedding(self._config)

    def __repr__(self) -> str:
        c = self._config
        scaling = "" if c["scaling"] is None else f", scaling={c['scaling']!r}, factor={c['factor']}"
        return f"RotaryEmbedding(width={c['width']}, base={c['base']}, order={c['order']!r}{scaling})"
