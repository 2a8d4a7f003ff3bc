"""Builds a tiny model with random parameters of every family of transformers, and inputs for it. If a model cannot be built, says why."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

BATCH, LENGTH, PADDED = 2, 10, 3
MOST_PARAMETERS = 20_000_000

LAYERS = -1
_FOR_NONE: dict[str, Any] = {
    "vocab_size": 128, "pad_token_id": 0, "mask_token_id": 3, "head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "attn_layer_indices": [1],
}  # fmt: skip
_LAYER_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")

# The first rule that matches the name of a whole number in a configuration gives its value. None keeps the default.
_RULES: list[tuple[str, int | None]] = [
    (r"pad_token_id|padding_idx", 0),
    (r"(bos|decoder_start)_token_id", 1),
    (r"(eos|sep)_token_id", 2),
    (r"vocab_size|vocabulary_size|codebook_size|num_embeddings$", 128),
    (r"^(n_group|topk_group|num_expert_group|moe_num_shared_experts|n_shared_experts|num_shared_experts|first_k_dense_replace)$", 1),
    (r"type_vocab_size|num_labels|num_channels|in_channels|in_chans|num_codebooks|stride|kernel|padding|dilation|group$", None),
    (r"(experts_per_tok|topk|top_k|moe_k|num_selected_experts)$", 2),
    (r"num_.*experts$|n_routed_experts|^num_experts", 4),
    (r"index_topk", 4),
    (r"(key_value|kv)_heads$|kv_n_heads|num_kv$", 2),
    (r"heads$|n_head$|num_head$", 4),
    (r"max_window_layers", 1),
    (r"num_kv_shared_layers|num_nextn_predict_layers|num_mtp_layers", 0),
    (r"(^|_)(layers?|depth|num_blocks)$|^n_layers?$", LAYERS),
    (r"(head_dim|d_kv|dim_head|d_head|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|head_width)$", 8),
    (r"lora_rank$", 16),
    (r"rotary_dim", 4),
    (r"intermediate|ffn|d_ff$|mlp_dim$|d_inner$|n_inner$|feedforward", 48),
    (r"max_.*position|n_positions|n_ctx|context_length|max_seq|max_length|max_sequence", 64),
    (r"image_size|img_size|input_size$|pretrain_image_size", 32),
    (r"patch_size$", 8),
    (r"num_mel_bins|mel_bins|n_mels|feature_size|num_mels", 16),
    (r"hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|embedding_dim|projection_dim|(^|_)dim$|embed_size|output_dim", 32),
    (r"sliding_window|^window_size$|attention_window|chunk_size|local_attention$", 4),
    (r"num_frames|num_queries|num_query_tokens|num_latents", 4),
]


def _number(name: str, default: int, wide: bool, layers: int) -> int:
    for pattern, value in _RULES:
        if re.search(pattern, name):
            value = layers if value == LAYERS else value
            return default if value is None else min(default, value) if default > 0 else default
    if re.search(r"token_(id|index)", name):
        return 100 + sum(map(ord, name)) % 24  # these ids are in the vocabulary, but the inputs do not contain them
    return 32 if wide and default > 64 else default


def _small(name: str, default: Any, wide: bool, layers: int) -> Any:
    if isinstance(default, bool) or default is None:
        return default
    if isinstance(default, int):
        return _number(name, default, wide, layers)
    if isinstance(default, (list, tuple)) and default and all(isinstance(item, int) and not isinstance(item, bool) for item in default):
        if re.search(r"token", name):
            return type(default)(_number(name, item, wide, layers) for item in default)
        if re.search(r"depths|num_blocks|layers$", name):
            return type(default)(min(item, 1) for item in default)
        if re.search(r"heads", name):
            return type(default)(2 for _ in default)
        if re.search(r"image_size|patch_size", name):
            return type(default)(_number(name, item, wide, layers) for item in default)
        return type(default)(32 if item > 64 else item for item in default)
    return default


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def tiny_config(config_class: type[PreTrainedConfig], wide: bool = False, layers: int = 2, grouped: bool = True, sections: bool = False) -> PreTrainedConfig:
    """Makes a small configuration. wide: numbers without a rule are also made small. layers: the number of layers, more than two if a family mixes kinds of layers. grouped: use
    fewer key/value heads than query heads, if the default allows it. sections: use rotary positions of three axes."""
    values: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(config_class) if field.init}
    parts = getattr(config_class, "sub_configs", {})
    for name, field in fields.items():
        if name in parts or name in ("id2label", "label2id", "chunk_size_feed_forward"):
            continue
        default = _default(field)
        small = _small(name, default, wide, layers)
        if small != default:
            values[name] = small
    # A field whose default is None may get a large number in the constructor of the configuration.
    defaults = {name: _default(field) for name, field in fields.items()}
    if defaults.get("num_key_value_heads") is not None and defaults["num_key_value_heads"] == defaults.get("num_attention_heads"):
        values["num_key_value_heads"] = values.get("num_attention_heads", defaults["num_attention_heads"])
    elif "num_key_value_heads" in fields and defaults["num_key_value_heads"] is None:
        values["num_key_value_heads"] = 4 if "kv_lora_rank" in fields or not grouped else 2
    for name, value in _FOR_NONE.items():
        if name in fields and defaults[name] is None:
            values[name] = value
    if "attention_types" in fields:
        values["attention_types"] = [[["global", "local"], 1]]
    for name in _LAYER_KINDS:
        if name in fields and defaults[name] is None:
            kinds = getattr(config_class(), name, None)
            count = values.get("num_hidden_layers", values.get("num_layers"))
            if isinstance(kinds, list) and isinstance(count, int) and len(kinds) > count and all(isinstance(kind, str) for kind in kinds):
                values[name] = [*dict.fromkeys(kinds), *kinds][:count]  # at least one layer of each kind, if there are enough layers
    for name, part in parts.items():
        if name not in fields:
            continue
        part_class = part
        if part is AutoConfig or not dataclasses.is_dataclass(part):
            part_class = type(getattr(config_class(), name))
            if not dataclasses.is_dataclass(part_class) or not issubclass(part_class, PreTrainedConfig):
                continue
        values[name] = tiny_config(part_class, wide, layers, grouped, sections)
    config = config_class(**values)
    _repair(config, sections)
    return config


def _repair(config: PreTrainedConfig, sections: bool) -> None:
    """Corrects rope_theta, mrope_section and the lists with one entry per layer. They depend on other settings, but a rule of `_RULES` sees only one setting."""
    rope = getattr(config, "rope_parameters", None)
    heads, hidden = getattr(config, "num_attention_heads", None), getattr(config, "hidden_size", None)
    try:
        width = getattr(config, "head_dim", None)
    except Exception:  # the setting differs from layer to layer
        width = None
    if width is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        width = hidden // heads
    for entry in [rope, *(rope.values() if isinstance(rope, dict) else [])]:
        if isinstance(entry, dict):
            if "rope_type" in entry and entry.get("rope_theta", 1.0) is None:
                entry["rope_theta"] = 10000.0
            if width and ("mrope_section" in entry or entry is rope and sections):
                half = int(width * entry.get("partial_rotary_factor", 1.0)) // 2
                entry["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    layers = getattr(config, "num_hidden_layers", None)
    for name in (*_LAYER_KINDS, "no_rope_layers", "hybrid_override_pattern"):
        types = getattr(config, name, None)
        if isinstance(types, (list, tuple)) and isinstance(layers, int) and len(types) > layers:
            setattr(config, name, type(types)([*dict.fromkeys(types), *types][:layers]))


def model_classes(model_type: str, config_class: type[PreTrainedConfig]) -> list[type[PreTrainedModel]]:
    """Returns the model classes of a family in the order in which they are tried: generating models, then the base model; if there are none, any class with this configuration."""
    found: list[str] = []
    causal, pairs = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    for mapping in (pairs, modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, causal, modeling_auto.MODEL_MAPPING_NAMES):
        names = mapping.get(model_type, ())
        found += [names] if isinstance(names, str) else list(names)
    classes = [getattr(transformers, name, None) for name in found]
    if not any(classes):
        module = inspect.getmodule(config_class)
        assert module is not None
        modeling = importlib.import_module(module.__name__.replace("configuration_", "modeling_"))
        models = [value for value in vars(modeling).values() if inspect.isclass(value) and issubclass(value, PreTrainedModel)]
        classes = [value for value in models if value.config_class is config_class and "PreTrained" not in value.__name__]
    return [value for value in dict.fromkeys(classes) if inspect.isclass(value) and issubclass(value, PreTrainedModel)]


def randomise(model: PreTrainedModel) -> None:
    """Fills parameters with random numbers such that scores differ by about 1. A wrong mask, scale or bias then changes the results."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() == 0:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            if parameter.dim() >= 2:
                fan_in = parameter[0].numel() if parameter.dim() > 2 else parameter.size(-1)
                parameter.copy_(noise * fan_in**-0.5)
            elif parameter.is_floating_point():
                parameter.add_(0.1 * noise)


def _find(config: PreTrainedConfig, names: list[str], default: int) -> Any:
    """Returns the first of these settings that the configuration or one of its sub-configurations has."""
    for part in [config, *(getattr(config, name, None) for name in config.sub_configs)]:
        for name in names:
            value = getattr(part, name, None) if part is not None else None
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool):
                return value
    return default


def _count(config: PreTrainedConfig, names: list[str], default: int) -> int:
    found = _find(config, names, default)
    return found if isinstance(found, int) else default


Inputs = dict[str, Any]


class _Maker:
    """Makes an input for each parameter of the model's forward()."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config = model.config
        self.parameters = inspect.signature(model.forward).parameters
        self.generator = torch.Generator().manual_seed(2)

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def words(self, length: int) -> Tensor:
        vocabulary = min(_count(self.config.get_text_config(), ["vocab_size"], 100), 90)
        return torch.randint(min(5, vocabulary - 1), vocabulary, (BATCH, length), generator=self.generator)

    def text(self) -> Inputs:
        if "input_ids" not in self.parameters:
            return {}
        text: Inputs = {"input_ids": self.words(LENGTH)}
        if "attention_mask" in self.parameters:
            text["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
        if "bbox" in self.parameters:
            text["bbox"] = torch.tensor([1, 2, 5, 9]).expand(BATCH, LENGTH, 4).clone()
        return text

    def decoder(self) -> list[Inputs]:
        if "decoder_input_ids" not in self.parameters:
            return [{}]
        words = {"decoder_input_ids": self.words(6)}
        return [words, words | {"decoder_attention_mask": torch.ones(BATCH, 6, dtype=torch.long)}]

    def images(self) -> Iterator[Inputs]:
        size = _find(self.config, ["image_size", "img_size"], 64)
        channels = _count(self.config, ["num_channels", "in_channels", "in_chans"], 3)
        frames = _count(self.config, ["num_frames"], 4)
        own = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        for name in ("pixel_values", "pixel_values_videos"):
            if name in self.parameters:
                for height, width in dict.fromkeys([own, (64, 64), (128, 128), (224, 224)]):
                    yield {name: self.floats(BATCH, channels, height, width)}
                    yield {name: self.floats(BATCH, frames, channels, height, width)}

    def patches(self) -> Iterator[Inputs]:
        """Returns two images as rows of patches, for encoders that are called with a grid."""
        if "grid_thw" not in self.parameters:
            return
        name = "hidden_states" if "hidden_states" in self.parameters else "pixel_values"
        patch = _count(self.config, ["patch_size"], 8)
        channels = _count(self.config, ["in_channels", "num_channels", "in_chans"], 3)
        grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
        for frames in (_count(self.config, ["temporal_patch_size"], 1), 1):
            yield {name: self.floats(48, channels * frames * patch**2), "grid_thw": grid}
            yield {name: self.floats(48, channels, patch, patch), "grid_thw": grid}

    def sounds(self) -> Iterator[Inputs]:
        mel = _count(self.config, ["num_mel_bins", "mel_bins", "n_mels", "feature_size", "input_size", "input_feat_per_channel", "input_dim"], 16)
        frames, longest = 2 * _count(self.config, ["max_source_positions"], 32), _count(self.config, ["max_length"], 64)
        raw = [(BATCH, 6480), (BATCH, 1, 6480)]
        features = [(BATCH, mel, frames), (BATCH, frames, mel), (BATCH, mel, 64), (BATCH, 64, mel), (BATCH, longest, mel), (BATCH, 1, 64, 64)]
        for name in ("input_features", "input_values", "audio_values"):
            if name in self.parameters:
                for shape in raw + features if name == "input_values" else features + raw:
                    yield {name: self.floats(*shape)}

    def others(self) -> Iterator[Inputs]:
        if "past_values" in self.parameters:
            length, channels = _count(self.config, ["context_length", "prompt_length"], 32), _count(self.config, ["num_input_channels", "input_size"], 1)
            yield {"past_values": self.floats(BATCH, length, channels)}
            yield {"past_values": self.floats(BATCH, length)}
        for name in ("hidden_states", "inputs_embeds", "query_embeds", "inputs", "encoder_hidden_states"):
            if name in self.parameters and self.parameters[name].default is inspect.Parameter.empty:
                yield {name: self.floats(BATCH, LENGTH, _count(self.config, ["hidden_size", "d_model", "embed_dim"], 32))}


def inputs_of(model: PreTrainedModel) -> Iterator[Inputs]:
    """Yields inputs to try, the most likely ones first."""
    maker = _Maker(model)
    words = [text] if (text := maker.text()) else []
    images, sounds, others = [*maker.images()], [*maker.sounds()], [*maker.patches(), *maker.others()]
    with_text = [[signal | text for signal in signals] for signals in (images, sounds) if words]
    if model.main_input_name in ("pixel_values", "pixel_values_videos"):
        order = [*others, *images, *(with_text[0] if words else []), *words]
    elif model.main_input_name in ("input_values", "input_features"):
        order = [*sounds, *others, *words, *(with_text[1] if words else [])]
    else:
        order = [*words, *(choice for choices in with_text for choice in choices), *others, *images, *sounds]
    for choice in order:
        for decoder in maker.decoder():
            yield choice | decoder


@dataclasses.dataclass
class Family:
    """A model with eager attention that runs, and the inputs with which it ran."""

    model_type: str
    model_class: type[PreTrainedModel]
    model: PreTrainedModel
    inputs: dict[str, Any]
    parts: dict[str, Any] = dataclasses.field(default_factory=dict)  # settings that differ from the smallest configuration


_ATTEMPTS: list[dict[str, Any]] = [{}, {"sections": True}, {"grouped": False}, {"wide": True}, {"layers": 6}]
_PARTS = {"blt_global_transformer": "it is a part of a model, and the causal mask is made outside of this part"}


def build(model_type: str) -> Family | str:
    """Returns the family's model with eager attention, or a text that says why it cannot be built in these tests."""
    if model_type in _PARTS:
        return _PARTS[model_type]
    reasons: list[str] = []

    def note(stage: str, error: Exception) -> None:
        lines = str(error).strip().splitlines() or [""]
        reasons.append(f"{stage}: {type(error).__name__}: {lines[-1 if 'Strict' in type(error).__name__ else 0].strip()[:160]}")

    try:
        config_class = CONFIG_MAPPING[model_type]
        classes = model_classes(model_type, config_class)
    except Exception as error:  # in most cases a package is missing
        note("import", error)
        return reasons[0]
    if not classes:
        return "no model class has this configuration"
    for model_class in classes:
        for options in _ATTEMPTS:
            try:
                config = tiny_config(config_class, **options)
            except Exception as error:
                note("configuration", error)
                continue
            try:
                with torch.device("meta"):
                    count = sum(parameter.numel() for parameter in model_class._from_config(config, attn_implementation="eager").parameters())
                if count > MOST_PARAMETERS:
                    reasons.append(f"its smallest model has {count / 1e6:.0f} million parameters")
                    continue
            except Exception:  # some models compute with their buffers while they are built
                pass
            try:
                torch.manual_seed(0)
                config = tiny_config(config_class, **options)
                model = model_class._from_config(config, attn_implementation="eager").eval()
                if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
                    reasons.append("its smallest model is too large")
                    continue
            except Exception as error:
                note("model", error)
                continue
            randomise(model)
            for inputs in inputs_of(model):
                try:
                    with torch.inference_mode():
                        outputs = model(**inputs)
                    values = outputs.values() if hasattr(outputs, "values") and not isinstance(outputs, Tensor) else [outputs]
                    if not all(value.isfinite().any() for value in values if isinstance(value, Tensor) and value.is_floating_point()):
                        raise ValueError("the output is not finite")
                    return Family(model_type, model_class, model, inputs)
                except Exception as error:
                    note("forward", error)
    return "; ".join([*dict.fromkeys(reasons)][:2]) if reasons else "no inputs are known for it"


# Settings that add optional parts to a family's smallest model. Boolean settings are also inverted, except those that only change what a call returns.
_SETTINGS: list[tuple[str, Any]] = [
    (r"sparse_step$", 1),
    (r"^num_kv_shared_layers$", 1),
    (r"^num_adapter_layers$", 1),
    (r"^(n_routed_experts|num_local_experts|num_experts|moe_num_experts)$", 4),
    (r"^first_k_dense_replace$", 0),
    (r"^(no_)?cross_attention_freq(uency)?$", 1),
    (r"position_embeddings?_type$", ("relative", "relative_key", "relative_key_query", "rotary", "absolute")),
    (r"^encoder_attention_type$", ("transient-global", "local")),
]
_NO_PARTS = re.compile(
    r"^(use_cache|return_dict|output_|is_encoder_decoder|tie_|gradient_checkpointing|torchscript|remove_invalid|add_cross_attention_hidden"
    r"|use_bfloat16|low_memory|cache_|keys_to_ignore|pretraining|fix_mistral|deterministic|synced|skip_|summary_|apply_spec_augment|use_mems)"
)


def _optional_parts(config: PreTrainedConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name of a setting, another value of it). Names of settings of sub-configurations have a dot."""
    for field in dataclasses.fields(config):
        value = vars(config).get(field.name)  # getattr refuses an attribute that differs from layer to layer
        if not field.init or _NO_PARTS.search(field.name):
            continue
        if isinstance(value, bool):
            yield prefix + field.name, not value
        for pattern, choices in _SETTINGS:
            if re.search(pattern, field.name):
                for choice in choices if isinstance(choices, tuple) else (choices,):
                    if choice != value and not isinstance(value, (list, dict, bool)):
                        yield prefix + field.name, choice
        if isinstance(value, PreTrainedConfig) and dataclasses.is_dataclass(value) and not prefix:
            yield from _optional_parts(value, f"{field.name}.")


# Numbers that an optional part needs, and that are None in a model without the part.
_BESIDE_PARTS = {"num_experts": 4, "num_experts_per_tok": 2, "top_k_experts": 2, "moe_intermediate_size": 16, "expert_intermediate_size": 16}


def _with_parts(config: PreTrainedConfig, parts: dict[str, Any]) -> PreTrainedConfig:
    """Returns a copy of a configuration, constructed with these settings."""
    nested: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in parts.items():
        part, dot, rest = name.partition(".")
        if dot:
            nested.setdefault(part, {})[rest] = value
        else:
            own[name] = value
    # The constructor is called, because it derives other settings, such as the kinds of layers.
    given = {field.name: copy.deepcopy(vars(config)[field.name]) for field in dataclasses.fields(config) if field.init and field.name in vars(config)}
    given |= {name: value for name, value in _BESIDE_PARTS.items() if own and name in given and given[name] is None}
    given |= own | {name: _with_parts(vars(config)[name], of_part) for name, of_part in nested.items()}
    return type(config)(**given)


def _run(model: PreTrainedModel, inputs: Inputs) -> list[Tensor]:
    torch.manual_seed(3)
    with torch.no_grad():
        outputs = model(**inputs)
    values = outputs.values() if hasattr(outputs, "values") and not isinstance(outputs, Tensor) else [outputs]
    found = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    if not found or not all(value.isfinite().any() for value in found):
        raise ValueError("the output is not finite")
    return found


def _with_part(family: Family, parts: dict[str, Any]) -> Family | None:
    """Returns the family with these parts; None if that model cannot be built or run, or does not differ from the family's model."""
    inputs = dict(family.inputs)
    try:
        torch.manual_seed(0)
        model = family.model_class._from_config(_with_parts(family.model.config, parts), attn_implementation="eager").eval()
        if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
            return None
        randomise(model)
        if any(name.endswith("add_cross_attention") for name in parts) and "encoder_hidden_states" in inspect.signature(model.forward).parameters:
            generator = torch.Generator().manual_seed(5)
            inputs["encoder_hidden_states"] = torch.randn(BATCH, 7, _count(model.config, ["hidden_size", "n_embd", "d_model"], 32), generator=generator)
        _run(model, inputs)
    except Exception:
        return None
    return Family(family.model_type, family.model_class, model, inputs, parts)


def _differs(a: Family, b: Family) -> bool:
    """Returns whether two models differ in their parameters or results."""
    if [(name, x.shape) for name, x in a.model.named_parameters()] != [(name, x.shape) for name, x in b.model.named_parameters()]:
        return True
    ours, theirs = _run(a.model, a.inputs), _run(b.model, b.inputs)
    return [x.shape for x in ours] != [x.shape for x in theirs] or not all(torch.equal(x, y) for x, y in zip(ours, theirs))


def with_parts(family: Family, only: Collection[str] = ()) -> list[Family]:
    """Returns the family with as many optional parts as can be combined, and with each remaining part alone. Parts are experts, cross attention, position embeddings and adapters.
    only: the names of the parts to try; empty: all."""
    full, alone = family, {}
    for _ in range(2):  # a part may need another part that comes later in the list
        for name, value in _optional_parts(family.model.config):
            if name in full.parts or (only and name not in only):
                continue
            together = _with_part(family, full.parts | {name: value})
            if together is not None and _differs(together, full):
                full = together
            elif (name, value) not in alone and (single := _with_part(family, {name: value})) is not None and _differs(single, family):
                alone[name, value] = single
    return ([full] if full.parts else []) + [single for (name, value), single in alone.items() if full.parts.get(name, single) != value]


def with_images(family: Family) -> Inputs | None:
    """Returns inputs with two images inside of the text, for a model that puts images at the image tokens. The number of image tokens is found by trying."""
    model, config, maker = family.model, family.model.config, _Maker(family.model)
    token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    if not isinstance(token, int) or "pixel_values" not in maker.parameters or "input_ids" not in maker.parameters:
        return None
    images: list[Inputs] = []
    if "image_grid_thw" in maker.parameters:
        patch = _count(config, ["patch_size"], 8)
        for frames in dict.fromkeys([_count(config, ["temporal_patch_size"], 1), 1, 2]):
            images.append({"pixel_values": maker.floats(32, 3 * frames * patch**2), "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]])})
    size = _find(config, ["image_size"], 32)
    for height, width in dict.fromkeys([(size, size) if isinstance(size, int) else tuple(size)[-2:], (32, 32), (64, 64)]):
        for leading in ((BATCH,), (BATCH, 1)):
            images.append({"pixel_values": maker.floats(*leading, 3, height, width)})
            images.append(images[-1] | {"image_sizes": torch.tensor([[height, width]] * BATCH)})
    for image in images:
        for count in (4, 16, 1, 2, 8, 64, 9, 5, 17, 3, 36, 20, 12, 32):
            words = maker.words(count + 6)
            words[:, 3 : 3 + count] = token
            inputs: Inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)} | image
            inputs |= {name: (words == token).long() for name in ("mm_token_type_ids", "token_type_ids") if name in maker.parameters}
            try:
                with torch.inference_mode():
                    model(**inputs)
                return inputs
            except Exception:
                continue
    return None
