"""polyhead as an attention implementation of Hugging Face transformers.

    import polyhead.transformers
    polyhead.transformers.register()
    model = AutoModel.from_pretrained(folder, attn_implementation="polyhead")
    model(**inputs, output_attentions=True).attentions          # one [B,N,T,S] per layer
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .torch import _functional as core
from .torch._ops import Options

NAME = "polyhead"

# Arguments for features that polyhead does not have. Ignoring one of them would give a wrong result.
_REFUSED = {"s_aux": "attention sinks (s_aux)", "cache": "a paged cache", "head_mask": "a head mask"}


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function of transformers, as a model's layer calls it (Vaswani et al. 2017, equation 1).

    Args:
        module: the layer; its attribute is_causal is used if the argument is None.
        query: ``[B,N,T,H]``.
        key: ``[B,K,S,H]``; query head n reads key/value head ``n // (N // K)``.
        value: ``[B,K,S,V]``.
        attention_mask: broadcasts to ``[B,N,T,S]``. bool: True = may attend. Floating: added to the scores.
        dropout: probability that an attention weight is dropped; the layer passes 0 in evaluation.
        scaling: of the scores; None is ``1 / sqrt(H)``.
        is_causal: with more than one query and without a mask, query t attends to the keys ``s <= t``.
        position_bias: added to the scores, broadcasts to ``[B,N,T,S]``.
        softcap: ``c`` in ``c tanh(score / c)``, before mask and bias.
        output_attentions: return the attention weights; None: as the layer's configuration says.
        others: arguments for other implementations, ignored. Sliding windows are in the mask already.

    Returns:
        The output ``[B,T,N,V]``, and the attention weights ``[B,N,T,S]`` after dropout, or None.

    Raises:
        TypeError, ValueError: as `polyhead.torch.scaled_dot_product_attention`.
        NotImplementedError: attention sinks, a paged cache or a head mask.
    """
    for name, meaning in _REFUSED.items():
        if others.get(name) is not None:
            raise NotImplementedError(f"attn_implementation='{NAME}' does not have {meaning}; use 'eager' for this model")
    core.require("attention of transformers", query=query, key=key, value=value)
    query, key, value, attention_mask, position_bias = core.autocast(query, key, value, attention_mask, position_bias)  # type: ignore[assignment]
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    attend: Tensor | None = None
    bias = None if position_bias is None else position_bias.to(query.dtype)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            attend = attention_mask
        else:
            bias = attention_mask.to(query.dtype) if bias is None else bias + attention_mask.to(query.dtype)
    causal = is_causal and attention_mask is None and query.size(2) > 1
    options = Options(attend=attend, bias=bias, causal=causal, scale=scaling, softcap=softcap or 0.0, dropout=dropout)
    out, options = core.attend(query, key, value, options)
    if output_attentions is None:
        output_attentions = bool(getattr(getattr(module, "config", None), "output_attentions", False))
    weights = core.maps(query, key, options) if output_attentions else None
    return out.transpose(1, 2).contiguous(), weights


def register() -> None:
    """Adds ``"polyhead"`` to the attention and mask functions of transformers; a second call changes nothing.

    Afterwards ``attn_implementation="polyhead"`` works in from_pretrained, from_config and set_attn_implementation, and calls with output_attentions=True
    return the maps of every head. (transformers itself refuses ``config.output_attentions = True`` with any implementation but "eager".) As with "sdpa" there,
    masks are boolean, a query without any key gives 0, and no mask is made where none is needed.

    Raises:
        ImportError: transformers is not installed, or older than 4.53.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError("polyhead.transformers needs transformers 4.53 or newer: pip install 'transformers>=4.53'") from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
