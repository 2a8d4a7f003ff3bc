"""Models with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._saved import WritesTokens, ids_of


class SequenceToSequenceRun(NamedTuple):
    """The outputs of `SequenceToSequenceModel.run`. An output that was not requested is None. Letters: ``*`` the leading dimensions, S tokens of the source, T of
    the target, C the size of the target's vocabulary, E width, N heads, Le and Ld layers of the encoder and of the decoder. float32, of a float64 model float64."""

    logits: NumPyArray | None = None  # [*,T,C]; row t has the logits of the token that follows target token t
    memory: NumPyArray | None = None  # [*,S,E], the encoder's output for the source
    encoder_hidden: NumPyArray | None = None  # [Le+1,*,S,E], the embeddings, then each layer's output, the last one is the memory
    decoder_hidden: NumPyArray | None = None  # [Ld+1,*,T,E], as encoder_hidden
    encoder_attentions: NumPyArray | None = None  # [Le,*,N,S,S], the attention weights of the source to itself
    decoder_attentions: NumPyArray | None = None  # [Ld,*,N,T,T], of the target to itself
    cross_attentions: NumPyArray | None = None  # [Ld,*,N,T,S], of the target to the source


class SequenceToSequenceModel(WritesTokens):
    """A model with two sides, an encoder of the source and a decoder of the target: T5, mT5, BART, mBART, Marian, Pegasus, Blenderbot or Whisper, from a folder as
    transformers writes it. As with a `LanguageModel`, the file stays mapped, calls keep packed parameters, and a pickle holds the path of the folder."""

    def run(
        self,
        source: Array | Sequence[int],
        target: Array | Sequence[int] | None = None,
        *,
        attend_source: Array | None = None,
        attend_target: Array | None = None,
        outputs: Iterable[str] = ("logits",),
        num_threads: int | None = None,
    ) -> SequenceToSequenceRun:
        """One pass over whole texts.

        Args:
            source: integers ``[*,S]``, token ids. Of Whisper: floating ``[*,M,2 S]``, the mel features that its feature extractor makes, padded.
            target: integers ``[*,T]``, token ids, the first of which is usually the model's start token. None: nothing of the decoder is computed.
            attend_source: booleans ``[*,S]``, False for padding, which no token attends to. Not for Whisper.
            attend_target: booleans ``[*,T]``, as attend_source.
            outputs: names of `SequenceToSequenceRun`'s fields.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        targets = None if target is None else ids_of(target)
        return SequenceToSequenceRun(**self._model.run(ids_of(source), targets, attend_source, attend_target, outputs, num_threads))

    def generate(
        self,
        source: Sequence[int] | Array,
        max_tokens: int,
        *,
        prompt: Sequence[int] | Array = (),
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_tokens: Sequence[int] = (),
        ignore_end: bool = False,
        cache_dtype: str | None = None,
        on_token: Callable[[int], object] | None = None,
        num_threads: int | None = None,
    ) -> list[int]:
        """The target's tokens after the start token, including the token that ends the target. generation_config.json's rules for forced and suppressed tokens apply;
        its rules for beams, lengths and repetitions do not.

        Args:
            source: the source's token ids, at least one. Of Whisper: its features ``[M,2 S]``.
            max_tokens: the most tokens of the answer.
            prompt: the target's first tokens, which are not returned; empty: the model's start token (decoder_start_token_id).
                Of Whisper: the start token, language and task; of mBART the target's language, unless it is forced.
            temperature, top_k, top_p, seed, stop_tokens, ignore_end, cache_dtype, on_token: as `LanguageModel.generate`.
            num_threads: as `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        options = self._answer_options("generate", locals())
        return self._model.generate(source, prompt, options)  # type: ignore[no-any-return]
