"""Makes polyhead an attention implementation of Hugging Face transformers.

    import polyhead.transformers
    polyhead.transformers.register()
    model = AutoModel.from_pretrained(folder, attn_implementation="polyhead")
    model(**inputs, output_attentions=True).attentions          # one [B,N,T,S] per layer

If polyhead cannot compute the attention of a model's family, it raises an error that names the family. Use "eager" for such a model.
docs/transformers.md lists the families.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ._frameworks import require_package

require_package(__name__, "torch")

import torch
from torch import Tensor

from ._options import Precision, require_precision
from .torch import _functional as core
from .torch import _inputs as inputs
from .torch._rules import Options

NAME = "polyhead"

# Arguments of attention functions that would change the result and that polyhead does not support.
_REFUSED = {
    "sinks": "sinks that the model computes (sinks)",
    "cache": "a paged cache (cache)",
    "head_mask": "a head mask (head_mask)",
    "indices": "attention to selected keys (indices)",
    "block_indices": "attention to selected blocks of keys (block_indices)",
}

# Arguments that attention_forward ignores: the mask or the caller's code already does what they request, or they belong to another part of the model.
_IGNORED = {
    "cache_position",
    "deterministic",
    "grid_thw",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}

# Families that need a causal mask as a tensor. Their layers pass is_causal=False and rely on the mask, but transformers passes None for a purely causal mask.
_CAUSAL_MASK_NEEDED = {"aimv2_text_model", "videoprism_text_model"}

# Families whose code gives is_causal=True to layers with the attribute is_causal=False, and a mask of None where it is purely causal.
_CAUSAL_BY_ARGUMENT = {
    "clip_text_model", "clipseg_text_model", "groupvit_text_model", "metaclip_2_text_model", "owlv2_text_model", "owlvit_text_model", "xclip_text_model",
}  # fmt: skip

# Families whose own code also reads the mask, and expects the mask of "eager": None, or numbers that are added to the scores, 0 for attended keys. These
# families get eager's mask. In nllb-moe the router reads the mask as a padding mask. In beit the mask is added to the relative position bias.
_EAGER_MASKS = {"beit", "nllb-moe"}

# Families that are refused: their modules call the registered attention function, but their results would differ from those with "eager".
_OBSTACLES = {
    "deepseek_v4": "joins its mask with a mask of numbers for compressed keys, and a boolean mask would lose these numbers",
    "bigbird_pegasus": "computes a part of its attention in code of its own",
    "recurrent_gemma": "carries the output of padded positions on to other positions, and that output differs between implementations",
}


def _refuse(family: str, what: str) -> NotImplementedError:
    return NotImplementedError(
        f"attn_implementation='{NAME}': the family {family} {what}. Use attn_implementation='eager' for it; in a model of several parts, give a dict "
        f"of its sub-configurations, as in {{'': '{NAME}', 'vision_config': 'eager'}}."
    )


def _attention_modules(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if "Attention" in name and inspect.isclass(value) and issubclass(value, torch.nn.Module)]


def _declares_support(model_class: Any) -> bool:
    return bool(getattr(model_class, "_supports_sdpa", False) or getattr(model_class, "_supports_attention_backend", False))


def _obstacle(model_class: Any) -> str | None:
    """The reason why models of this class cannot use a registered attention function; None if there is no reason, as for classes without attention."""
    known = _OBSTACLES.get(getattr(model_class.config_class, "model_type", ""))
    if known is not None:
        return known
    modeling = sys.modules.get(model_class.__module__)
    if _declares_support(model_class) or modeling is None or hasattr(modeling, "ALL_ATTENTION_FUNCTIONS") or not _attention_modules(modeling):
        return None
    return "computes attention in code of its own and calls no registered function"


def _complete_tables(model_class: type) -> None:
    """Some modules of transformers choose an attention class from a table. Adds an entry "polyhead" to the tables of the model class's module, which raises
    NotImplementedError with the reason. Without this entry the module would raise a KeyError without any explanation."""
    modeling = sys.modules.get(model_class.__module__)
    for name, table in [] if modeling is None else vars(modeling).items():
        if name.endswith("_ATTENTION_CLASSES") and isinstance(table, dict) and NAME not in table:

            def refuse(config: Any, *arguments: Any, **keywords: Any) -> None:
                raise _refuse(config.model_type, "computes attention in classes of its own and calls no registered function")

            table[NAME] = refuse


_FAMILIES: dict[type, tuple[str | None, bool]] = {}  # cache of the results of _of_family; functools.cache would make torch.compile warn


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _of_family(config_class: type) -> tuple[str | None, bool]:
    """Returns (obstacle, supported) for the imported model classes of a configuration. obstacle: a reason as in `_obstacle` if all these classes have one, else
    None. supported: whether at least one of them declares support for other implementations than eager."""
    if config_class in _FAMILIES:
        return _FAMILIES[config_class]
    modeling = sys.modules.get(config_class.__module__.replace(".configuration_", ".modeling_"))
    members: list[Any] = [] if modeling is None else [value for value in vars(modeling).values() if inspect.isclass(value)]
    models = [found for found in members if getattr(found, "config_class", None) is config_class and hasattr(found, "_supports_sdpa")]
    obstacles = [_obstacle(found) for found in models]
    result = next(iter(obstacles), None) if all(obstacles) else None, not models or any(map(_declares_support, models))
    if models:
        _FAMILIES[config_class] = result
    return result


def _has_eager_masks(config: Any) -> bool:
    """Whether a model gets the masks of "eager": it is known to need them, or it declares no support for other implementations."""
    return getattr(config, "model_type", "") in _EAGER_MASKS or not _of_family(type(config))[1]


def _family(module: torch.nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "model_type", type(module).__name__))


def _check_argument(module: torch.nn.Module, name: str, value: Any) -> None:
    family = _family(module)
    if name in _REFUSED:
        raise _refuse(family, f"needs {_REFUSED[name]}, which polyhead does not have")
    raise _refuse(family, f"gives its attention function the argument {name}, which polyhead does not know")


_precision: Precision = "native"  # the precision given to register()
_collector: Any = None  # the variable of transformers 5 that holds which outputs the running model collects; register() finds it. None in earlier versions.


def _wants_maps(module: torch.nn.Module, output_attentions: bool | None) -> bool:
    if output_attentions:
        return True
    if _collector is not None:  # transformers 5 collects outputs by hooks, also from layers that do not receive output_attentions
        collected = _collector.global_var if torch.compiler.is_compiling() else _collector.get()
        if collected is not None:
            return any("attentions" in key for key in collected)
    return output_attentions is None and bool(getattr(getattr(module, "config", None), "output_attentions", False))


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
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that layers of transformers call with ``attn_implementation="polyhead"`` (Vaswani et al. 2017, equation 1).

    Args:
        module: the layer that calls the function. Its attribute is_causal is used if the argument is_causal is None.
        query: ``[B,N,T,H]``.
        key: ``[B,K,S,H]``; query head n reads key/value head ``n // (N // K)``.
        value: ``[B,K,S,V]``.
        attention_mask: broadcasts to ``[B,N,T,S]``. bool: True = may attend. Floating: added to the scores; if its dtype is wider than query's, everything is
            computed in the wider dtype.
        dropout: probability that an attention weight is dropped; the layer passes 0 in evaluation.
        scaling: factor of the scores; None is ``1 / sqrt(H)``.
        is_causal: True: query t attends to the keys ``s <= t``. It has an effect only with more than one query and without a mask, and must not contradict the
            layer's attribute.
        position_bias: added to the scores, broadcasts to ``[B,N,T,S]``.
        softcap: ``c`` in ``c tanh(score / c)``, before mask and bias.
        output_attentions: True: return the attention weights. None: return them if the running model collects them, or if the layer's configuration says so.
        s_aux: sink logits ``[N]``, as in gpt-oss: ``exp(s_aux)`` is added to the sum of the softmax.
        others: further arguments, which must be None. Some arguments without an effect on attention are allowed: position_ids, use_cache and similar ones;
            sliding_window, because the mask already contains the window (an error if there is no mask and the window is smaller than the number of keys); and,
            if there is a mask, cu_seq_lens_q, cu_seq_lens_k and seq_idx.

    Returns:
        The output ``[B,T,N,V]``, and the attention weights ``[B,N,T,S]`` after dropout, or None.

    Raises:
        TypeError, ValueError: for the same reasons as `polyhead.torch.scaled_dot_product_attention`.
        NotImplementedError: selected keys, packed texts without a mask, sinks that the model computes, a paged cache, a head mask, or
            an unknown argument; a layer that gives no mask and does not say whether it is causal, or whose attribute contradicts is_causal. The message names the family.
    """
    for name, given in others.items():
        if given is None or name in _IGNORED:
            continue
        if name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"):
            if attention_mask is None and (name == "seq_idx" or given.numel() > 2):
                raise NotImplementedError(f"attn_implementation='{NAME}': packed texts ({name}) need position_ids, from which transformers makes the mask")
            continue
        _check_argument(module, name, given)
    where = "attention of transformers"
    inputs.require(where, query=query, key=key, value=value)
    inputs.require_memory(where, attention_mask=attention_mask, position_bias=position_bias)
    inputs.require_one_device(where, query=query, key=key, value=value, attention_mask=attention_mask, position_bias=position_bias)
    query, key, value, attention_mask, position_bias = core.autocast(query, key, value, attention_mask, position_bias)  # type: ignore[assignment]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    eager = attention_mask is None and (config := getattr(module, "config", None)) is not None and _has_eager_masks(config)
    if eager:
        is_causal = False  # "eager" ignores is_causal and uses only the mask
    attend: Tensor | None = None
    bias, dtype = position_bias, query.dtype
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            attend = _unless_all_true(attention_mask)
        else:
            bias = attention_mask if bias is None else bias + attention_mask
    elif not eager and (window := others.get("sliding_window")) is not None and key.size(2) > window:
        raise _refuse(_family(module), f"gives {key.size(2)} keys and sliding_window={window} without a mask, which would have to contain the window")
    elif is_causal is None and query.size(2) > 1:
        raise _refuse(_family(module), f"has layers ({type(module).__name__}) that give no mask and do not say whether they are causal")
    elif query.size(2) > 1 and not eager:
        _require_agreement(module, bool(is_causal))
    causal = bool(is_causal) and attention_mask is None and query.size(2) > 1
    if is_causal and others.get("position_ids") is not None and getattr(module, "layer_idx", 0) == 0 and not torch.compiler.is_compiling():
        _warn_of_joined_texts(others["position_ids"], attention_mask, key.size(2))
    if bias is not None:  # compute in the wider dtype: the lowest number of float32, a common fill of masks, would become -inf in 16 bits
        wide = torch.promote_types(dtype, bias.dtype)
        query, key, value, bias = query.to(wide), key.to(wide), value.to(wide), bias.to(wide)
    sink = None if s_aux is None else core.sink_logits(s_aux, query, where)
    options = Options(
        attend=attend, bias=bias, sink=sink, causal="top_left" if causal else None, scale=scaling, softcap=softcap or 0.0, dropout=dropout, precision=_precision
    )  # fmt: skip
    out, options = core.attend(query, key, value, options)
    weights = core.maps(query, key, options) if _wants_maps(module, output_attentions) else None
    return out.transpose(1, 2).contiguous().to(dtype), None if weights is None else weights.to(dtype)


def _require_agreement(module: torch.nn.Module, is_causal: bool) -> None:
    """Raises NotImplementedError if is_causal, given to a model's call, contradicts a layer without a mask: "eager" ignores is_causal there."""
    own = getattr(module, "is_causal", None)
    if own is None or bool(own) == is_causal or (is_causal and _family(module) in _CAUSAL_BY_ARGUMENT):
        return
    raise _refuse(_family(module), f"has layers ({type(module).__name__}) with is_causal={bool(own)} that get no mask and is_causal={is_causal}, which 'eager' ignores there")


def _warn_of_joined_texts(position_ids: Tensor, mask: Tensor | None, keys: int) -> None:
    """Warns if position_ids start again within a row, as in packed texts, and the mask lets a text attend to the text before it. transformers then computes the
    two texts as one, with any attention implementation: it separates packed texts only if neither a mask nor a cache is given."""
    if not isinstance(position_ids, Tensor) or position_ids.dim() != 2 or position_ids.size(1) < 2:
        return
    before, after = position_ids[:, :-1], position_ids[:, 1:]
    starts = ((after < before) | (after == 0)).nonzero()
    if len(starts) == 0:
        return
    rows, places = starts.unbind(1)
    if mask is not None:
        mask = mask.expand(position_ids.size(0), -1, -1, -1)[:, 0]
        pairs = mask[rows, places + 1, places + keys - position_ids.size(1)]  # pairs (first token of a text, last token of the text before)
        is_joined = bool((pairs if mask.dtype == torch.bool else pairs > torch.finfo(mask.dtype).min / 2).any())
        if not is_joined:
            return
    warnings.warn(
        f"attn_implementation='{NAME}': position_ids begin again within a row, and the mask lets each text attend to the texts before it: transformers separates packed "
        "texts only without attention_mask and without a cache (use_cache=False)", RuntimeWarning, stacklevel=3,
    )  # fmt: skip


def _unless_all_true(mask: Tensor) -> Tensor | None:
    """The mask; None if the mask is a single True that is broadcast to all queries and keys. `_mask` makes such masks."""
    if torch.compiler.is_compiling() or any(stride != 0 and extent > 1 for stride, extent in zip(mask.stride(), mask.shape)) or mask.numel() == 0:
        return mask
    return None if mask[(0,) * mask.dim()].item() else mask


def _mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """The mask function that transformers calls. Returns a boolean mask, True = may attend, or None for a purely causal mask; for the families of
    `_has_eager_masks` it returns the masks of "eager".

    transformers' own sdpa_mask also returns None if every query may attend to every key. Layers that are causal by default would then mask keys. So if
    allow_is_causal_skip is False, which says that None must not mean causal, this function returns a broadcast True instead of None.

    Raises:
        NotImplementedError: the model's family computes attention in code of its own, which adds the mask to the scores.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    config = keywords.get("config")
    if config is not None:
        config_class: Any = type(config)
        obstacle = _of_family(config_class)[0]
        if obstacle is not None:
            raise _refuse(config.model_type, obstacle)
        if _has_eager_masks(config):
            eager: Tensor | None = eager_mask(*arguments, **keywords)
            return eager
        # Layers of a bidirectional configuration read None as "attend to every key", also if the model requests a causal mask. So None must not stand for a
        # causal mask here.
        bidirectional = bool(getattr(config, "use_bidirectional_attention", False))
        # Gemma 4 computes layers that share keys and values only for the last queries. Without a mask, the causal rule would treat these queries as the first
        # ones.
        last_queries = bool(getattr(config, "num_kv_shared_layers", 0))
        if bidirectional or last_queries or config.model_type in _CAUSAL_MASK_NEEDED:
            keywords["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*arguments, **keywords)
    if mask is None and not keywords.get("allow_is_causal_skip", True):
        extents = (keywords["batch_size"], 1, keywords["q_length"], keywords["kv_length"])
        mask = torch.ones((), dtype=torch.bool, device=keywords.get("device", "cpu")).expand(extents)
    return mask


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of PreTrainedModel that chooses an attention implementation. The wrapper refuses "polyhead" for model classes that would not use it."""

    @functools.wraps(method)
    def refusing(self: Any, implementation: Any, *arguments: Any, **keywords: Any) -> Any:
        requested = implementation.get("") if isinstance(implementation, dict) else implementation
        if requested == NAME:
            model_class: Any = type(self)
            obstacle = _obstacle(model_class)
            if obstacle is not None:
                raise _refuse(f"{self.config.model_type} ({model_class.__name__})", obstacle)
            _complete_tables(model_class)
        return method(self, implementation, *arguments, **keywords)

    refusing._of_polyhead = True  # type: ignore[attr-defined]
    return refusing


def register(*, precision: Precision | None = None) -> None:
    """Adds ``"polyhead"`` to the attention implementations of transformers. A second call has no effect, except that it sets the precision if one is given.

    Afterwards ``attn_implementation="polyhead"`` works in from_pretrained, from_config and set_attn_implementation, and calls with output_attentions=True
    return the maps of every head. (transformers itself refuses ``config.output_attentions = True`` with any implementation but "eager".) As with transformers'
    own "sdpa", masks are boolean, the output of a query without any key is 0, and no mask is made if none is needed. In transformers before 5 a few families
    (GPT-2, OPT, ...) return no maps, because their layers do not pass output_attentions to the attention function.

    A model whose family computes attention in code of its own raises NotImplementedError when it is built with "polyhead" or set to "polyhead". For this
    purpose register() wraps two methods of PreTrainedModel, get_correct_attn_implementation and set_attn_implementation; for every other implementation they
    act as before. transformers 4.53 has neither method; with that version such a model raises the error when it makes its mask.

    Args:
        precision: how models with ``"polyhead"`` multiply bfloat16 from the next call on: ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.
            None: the precision of the last registration, or ``"native"`` if there was none.

    Raises:
        ImportError: transformers is not installed, or older than 4.53.
        ValueError: an unknown precision.
    """
    if precision is not None:
        require_precision("polyhead.transformers.register", precision)
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
        from transformers.masking_utils import sdpa_mask  # noqa: F401
    except ImportError as error:
        raise ImportError("polyhead.transformers needs transformers 4.53 or newer: pip install 'transformers>=4.53'") from error
    global _collector, _precision
    _precision = precision or _precision
    try:
        from transformers.utils.output_capturing import _active_collector as _collector
    except ImportError:
        pass
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, _mask)
    for name in ("get_correct_attn_implementation", "set_attn_implementation"):
        method = getattr(PreTrainedModel, name, None)
        if method is not None and not hasattr(method, "_of_polyhead"):
            setattr(PreTrainedModel, name, _refusing(method))
