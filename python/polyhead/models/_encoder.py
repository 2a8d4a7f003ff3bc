"""Encoders of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._saved import SavedByTransformers, ids_of


class TextEncoderRun(NamedTuple):
    """The outputs of `TextEncoder.run`: float64 if the model is float64, else float32. An output that was not requested is None. Letters in shapes: ``*`` the
    leading dimensions of ids, T tokens, E width, L layers, N heads, H width of a head."""

    hidden: NumPyArray | None = None  # [*,T,E], the output of the last layer, after the final norm if there is one
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E]: the input of the first layer, then each layer's output; the last entry equals hidden
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    q: NumPyArray | None = None  # [L,*,N,T,H], the queries; rotated if the model has rotary positions
    k: NumPyArray | None = None  # [L,*,N,T,H], as q
    v: NumPyArray | None = None  # [L,*,N,T,H]
    value_norms: NumPyArray | None = None  # [L,*,N,T], the norm of each value after the head's slice of the output projection, as in `polyhead.value_norms`


class TextEncoder(SavedByTransformers):
    """An encoder of texts: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, ESM-2 or ModernBERT, from a folder that transformers wrote.
    The first call packs the parameters for the kernels and keeps the packed copy, which takes as much memory as the model in float32."""

    def run(
        self,
        ids: Array | Sequence[int],
        *,
        segments: Array | None = None,
        attend_keys: Array | None = None,
        outputs: Iterable[str] = ("hidden",),
        num_threads: int | None = None,
    ) -> TextEncoderRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids, with the special tokens.
            segments: integers ``[*,T]``: 0 for tokens of the first text of a pair, 1 for tokens of the second; None: all 0. Not for encoders without segments.
            attend_keys: booleans ``[*,T]``, False for padding, to which no token attends. None: no padding.
            outputs: names of the outputs to return, which are fields of `TextEncoderRun`.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return TextEncoderRun(**self._model.run(ids_of(ids), segments, attend_keys, outputs, num_threads))
