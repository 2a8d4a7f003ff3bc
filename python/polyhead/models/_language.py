"""Decoders, which predict the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._options import Array, NumPyArray
from ._saved import WritesTokens, ids_of


class LanguageRun(NamedTuple):
    """The outputs of `LanguageModel.run`: float64 if the model is float64, else float32. An output that was not requested is None. Letters in shapes: ``*`` the
    leading dimensions of ids, T tokens, C the size of the vocabulary, E width, L layers, N heads, K key/value heads, H width of a head."""

    logits: NumPyArray | None = None  # [*,T,C]; row t has the logits of the token that follows token t
    hidden: NumPyArray | None = None  # [*,T,E], after the final norm
    all_hidden: NumPyArray | None = None  # [L+1,*,T,E]: the embeddings, then each layer's output; the last output is taken after the final norm
    attentions: NumPyArray | None = None  # [L,*,N,T,T], the attention weights
    q: NumPyArray | None = None  # [L,*,N,T,H], the queries, normed and rotated if the model does so
    k: NumPyArray | None = None  # [L,*,K,T,H], the keys, normed and rotated if the model does so
    v: NumPyArray | None = None  # [L,*,K,T,H]
    value_norms: NumPyArray | None = None  # [L,*,N,T], the norm of each value after the head's slice of the output projection, as in `polyhead.value_norms`


class LanguageModel(WritesTokens):
    """A decoder that predicts the next token: GPT-2, Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3, GPT-NeoX or gpt-oss, from a folder that transformers wrote.
    The model file stays mapped into memory, so it may be replaced by another file but not changed in place. The first call packs the parameters for the kernels
    and keeps the packed copy, which takes as much memory as the model in float32. A pickle of the object holds only the path of the folder."""

    def run(
        self, ids: Array | Sequence[int], *, attend_keys: Array | None = None, outputs: Iterable[str] = ("logits",), num_threads: int | None = None
    ) -> LanguageRun:
        """One pass over whole texts.

        Args:
            ids: integers ``[*,T]``, token ids.
            attend_keys: booleans ``[*,T]``, False for padding, to which no token attends. None: no padding.
            outputs: names of the outputs to return, which are fields of `LanguageRun`.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        return LanguageRun(**self._model.run(ids_of(ids), attend_keys, outputs, num_threads))

    def generate(
        self,
        ids: Sequence[int] | Array,
        max_tokens: int,
        *,
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
        """Generates the tokens that follow a prompt. The result includes the token that ends the answer. The method follows the rules of generation_config.json
        for forced and suppressed tokens, and ignores its other rules, which a warning names.

        Args:
            ids: the prompt's token ids, at least one.
            max_tokens: the largest number of tokens of the answer.
            temperature: each token is drawn from the softmax of logits / temperature. None: each token is the likeliest one.
            top_k, top_p: only with a temperature: restrict the tokens that may be drawn. top_k keeps the k likeliest tokens. Of these, top_p keeps the
                likeliest ones, as few as possible, whose probabilities sum to at least p.
            seed: seed of the draws; required with a temperature, and refused without one.
            stop_tokens: ids of the vocabulary that end the answer, in addition to the model's end tokens.
            ignore_end: True: go on after the model's end tokens, if it has any.
            cache_dtype: dtype of the cached keys and values, as the argument dtype of `KeyValueCache`; None: the model's dtype.
            on_token: a function that is called with each token as soon as it is chosen; if the function returns False, the answer ends.
            num_threads: as in `polyhead.sdpa`.

        Raises:
            ValueError, TypeError: an argument that does not fit; the message names it.
        """
        options = self._answer_options("generate", locals())
        return self._model.generate(ids, options)  # type: ignore[no-any-return]
