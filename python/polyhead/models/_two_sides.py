"""Models with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._saved import WritesTokens, ids_of


class SequenceToSequenceRun(NamedTuple):
    """The outputs of `SequenceToSequenceModel.run`: float64 if the model is float64, else float32. An output that was not requested is None. Letters in shapes:
    ``*`` the leading dimensions, S source tokens, T target tokens, C the size of the target's vocabulary, E width, N heads, Le layers of the encoder, Ld layers
    of the decoder."""

    logits: NumPyArray | None = None  # [*,T,C]; row t has the logits of the token that follows target token t
    memory: NumPyArray | None = None  # [*,S,E], the encoder's output, which the decoder reads
    encoder_hidden: NumPyArray | None = None  # [Le+1,*,S,E]: the embeddings, then each layer's output; the last entry equals memory
    decoder_hidden: NumPyArray | None = None  # [Ld+1,*,T,E]: the embeddings, then each layer's output
    encoder_attentions: NumPyArray | None = None  # [Le,*,N,S,S], attention weights: source tokens attend to source tokens
    decoder_attentions: NumPyArray | None = None  # [Ld,*,N,T,T], attention weights: target tokens attend to target tokens
    cross_attentions: NumPyArray | None = None  # [Ld,*,N,T,S], attention weights: target tokens attend to source tokens


class SequenceToSequenceModel(WritesTokens):
    """A model with an encoder of the source and a decoder of the target: T5, mT5, BART, mBART, Marian, Pegasus, Blenderbot or Whisper, from a folder that
    transformers wrote. As with a `LanguageModel`, the model file stays mapped into memory, the first call packs the parameters, and a pickle holds only the
    path of the folder."""

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
        """One pass of the encoder over the whole source, and of the decoder over the whole target.

        Args:
            source: integers ``[*,S]``, token ids. For Whisper: floating ``[*,M,2 S]``, the padded mel features that Whisper's feature extractor makes.
            target: integers ``[*,T]``, token ids, the first of which is usually the model's start token. None: only the encoder is computed. A target is an
                error if no requested output needs it.
            attend_source: booleans ``[*,S]``, False for padding, to which no token attends. Not for Whisper.
            attend_target: booleans ``[*,T]``, as attend_source.
            outputs: names of the outputs to return, which are fields of `SequenceToSequenceRun`.
            num_threads: as in `polyhead.sdpa`.

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
        """Generates the target's tokens after the start token. The result includes the token that ends the target. The method follows the rules of
        generation_config.json for forced and suppressed tokens, and ignores its rules for beams, lengths and repetitions.

        Args:
            source: the source's token ids, at least one. For Whisper: mel features ``[M,2 S]``.
            max_tokens: the largest number of tokens of the answer.
            prompt: the target's first tokens, which are not returned; empty: the model's start token (decoder_start_token_id).
                For Whisper, give the tokens of start, language and task; for mBART the token of the target's language, unless generation_config.json forces it.
            temperature, top_k, top_p, seed, stop_tokens, ignore_end, cache_dtype, on_token: as in `LanguageModel.generate`.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        options = self._answer_options("generate", locals())
        return self._model.generate(source, prompt, options)  # type: ignore[no-any-return]
