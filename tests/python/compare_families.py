"""Compares a tiny model with attn_implementation="polyhead" with a model that has the same parameters and "eager"."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from mask_readers import MaskReaders
from tiny_families import BATCH, LENGTH, PADDED, Family, with_images, with_parts
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

import polyhead.transformers

# Tolerances of float32. Models are not compared in float64: eager's masks hold the lowest float64 number, which overflows in its float32 softmax.
OUTPUTS, GRADIENTS = 1e-4, 1e-3
NEW_TOKENS = 5

# For these families the eager code of transformers returns attention weights of a softmax without the sink, and multiplies the output by 1 - (the sink's weight).
# polyhead's attention weights are already multiplied by this factor.
MAPS_WITHOUT_SINK = {"granite_swa", "granitemoe_swa"}


@dataclasses.dataclass
class Result:
    """The result of comparing one family. checks: {name of a check: "equal", what differs, or why the check could not find an error}."""

    verdict: str  # "right", "refused", "wrong", "unused" or "not built"
    reason: str = ""
    model_class: str = ""
    calls: int = 0
    largest: float = 0.0
    checks: dict[str, str] = dataclasses.field(default_factory=dict)
    noise: float = 0.0  # largest difference of eager's output when its parameters change by a relative 1e-6
    readers: list[str] = dataclasses.field(default_factory=list)  # functions of the model's own code that read boolean masks
    parts: list[str] = dataclasses.field(default_factory=list)  # optional parts of the model that were also compared


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the floating tensors of an output, except caches, with their names."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() > 0:
            yield name, value
    elif hasattr(value, "items"):
        for key, item in value.items():
            if "past_key_values" not in key and "cache" not in key:
                yield from tensors(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors(item, f"{name}[{i}]")


class Unequal(Exception):
    """Two results differ. The message says what differs and by how much."""


def largest_difference(ours: dict[str, Tensor], eager: dict[str, Tensor], tolerance: float, floor: float = 0.0) -> float:
    """Returns the largest difference, relative to the largest number of the same tensor. Raises Unequal if it is above the tolerance."""
    if ours.keys() != eager.keys():
        raise Unequal(f"different outputs: {sorted(ours.keys() ^ eager.keys())[:4]}")
    largest = 0.0
    for name, right in eager.items():
        mine = ours[name]
        if mine.shape != right.shape:
            raise Unequal(f"{name} is {list(mine.shape)}, not {list(right.shape)}")
        finite = right.isfinite() & (right.abs() < 1e30)  # masks in outputs hold -inf or the lowest number
        if not torch.equal(finite, mine.isfinite() & (mine.abs() < 1e30)):
            raise Unequal(f"{name} is finite at other places")
        if not finite.any():  # nothing to compare; the tensor may be empty
            continue
        size = max(right[finite].abs().max().item(), floor, 1e-30)
        found = (mine - right)[finite].abs().max().item() / size
        if found > tolerance:
            raise Unequal(f"{name} differs by {found:.1e}")
        largest = max(largest, found)
    return largest


def twin(family: Family, implementation: str) -> PreTrainedModel:
    """Returns a model with the family's parameters and another attention implementation."""
    torch.manual_seed(0)
    model = family.model_class._from_config(copy.deepcopy(family.model.config), attn_implementation=implementation).eval()
    parameter = next(family.model.parameters())
    model.to(parameter.dtype)
    model.load_state_dict(family.model.state_dict())
    # Buffers that are not in the state_dict may be random, so they are copied, too.
    theirs = dict(family.model.named_buffers())
    for name, buffer in model.named_buffers():
        if name in theirs and buffer.shape == theirs[name].shape:
            buffer.copy_(theirs[name])
    return model


def _run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    return model(**inputs)


def _kept(output: Any, mask: Tensor | None) -> dict[str, Tensor]:
    found = dict(tensors(output))
    if mask is None:
        return found
    return {name: value[mask.bool()] if value.shape[:2] == mask.shape else value for name, value in found.items()}


def _gradients(model: PreTrainedModel, inputs: dict[str, Any], mask: Tensor | None) -> dict[str, Tensor]:
    model.zero_grad()
    total: Any = 0
    for index, value in enumerate(_kept(_run(model, inputs), mask).values()):
        if value.requires_grad:
            generator = torch.Generator().manual_seed(index)
            factors = torch.randn(value.shape, generator=generator).to(value.dtype)
            total = total + (torch.where(value.isfinite() & (value.abs() < 1e30), value, 0) * factors).sum()
    if not isinstance(total, Tensor):
        return {}
    total.backward()
    # An expert that no token chose has no gradient or a gradient of zeros, depending on the implementation of experts. Both become zeros.
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters() if p.requires_grad}


def padded_mask(family: Family) -> Tensor | None:
    """Returns a mask with padding, or None if the model takes no mask. Texts are padded on the side where the family's tokenizer pads; sounds and image patches at the end."""
    if "attention_mask" not in inspect.signature(family.model.forward).parameters:
        return None
    if "input_ids" not in family.inputs:
        return _padded_signal(family)
    if "attention_mask" not in family.inputs:
        return None
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    left = "CausalLM" in family.model_class.__name__ or family.model.can_generate() and not family.model.config.is_encoder_decoder
    mask[0, slice(0, PADDED) if left else slice(LENGTH - PADDED, LENGTH)] = 0
    return mask


def _padded_signal(family: Family) -> Tensor | None:
    """Returns a mask with padding at the end of the model's samples, frames or patches, if the mask changes the output; otherwise None."""
    signal = next((x for name, x in family.inputs.items() if isinstance(x, Tensor) and x.is_floating_point()), None)
    if signal is None:
        return None
    with torch.no_grad():
        plain = dict(tensors(_run(family.model, family.inputs)))
        lengths = [x.size(1) for x in plain.values() if x.dim() == 3][:1] + [signal.size(-1), signal.size(1)]
        for length in dict.fromkeys(length for length in lengths if length > 1):
            mask = torch.ones(BATCH, length, dtype=torch.long)
            mask[0, length - length // 4 - 1 :] = 0
            try:
                padded = dict(tensors(_run(family.model, family.inputs | {"attention_mask": mask})))
            except Exception:
                continue
            if any(name not in padded or padded[name].shape != x.shape or not torch.equal(padded[name], x) for name, x in plain.items()):
                return mask
    return None


def _generated(model: PreTrainedModel, inputs: dict[str, Any], cache: str) -> dict[str, Tensor]:
    torch.manual_seed(3)
    given = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    options: dict[str, Any] = {"cache_implementation": cache} if cache == "static" else {}
    if model.config.is_encoder_decoder:
        options["decoder_start_token_id"] = 1
    out = model.generate(
        **given, **options, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1, pad_token_id=0, eos_token_id=None,
        return_dict_in_generate=True, output_scores=True, disable_compile=True,
    )  # fmt: skip
    return {"sequences": out.sequences.double(), **dict(tensors(out.scores, "scores"))}


def _maps(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in tensors(_run(model, inputs | {"output_attentions": True})) if "attention" in name}


def _noise(family: Family) -> float:
    """Returns how much eager's output changes if its parameters change slightly. Differences of another implementation are judged by this number."""
    moved = twin(family, "eager")
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
        return largest_difference(_kept(_run(moved, family.inputs), None), _kept(_run(family.model, family.inputs), None), float("inf"))


def compare(family: Family, brief: bool = False, caches: Sequence[str] = ("dynamic", "static")) -> Result:
    """Compares polyhead with the family's eager model. A check that eager itself fails is skipped. brief: compare only the output, also with padding, and the gradients.
    caches: the kinds of cache with which generated text is compared."""
    result = Result("right", model_class=family.model_class.__name__)
    calls = 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        return polyhead.transformers.attention_forward(*args, **keywords)

    watch = MaskReaders()

    def watched(model: PreTrainedModel, given: dict[str, Any]) -> Any:
        if model is not ours:
            return _run(model, given)
        AttentionInterface.register("polyhead", watch.attention(counted))
        AttentionMaskInterface.register("polyhead", watch.mask(polyhead.transformers._mask))
        try:
            with watch:
                return _run(model, given)
        finally:
            AttentionInterface.register("polyhead", counted)
            AttentionMaskInterface.register("polyhead", polyhead.transformers._mask)

    try:
        ours = twin(family, "polyhead")
    except NotImplementedError as error:
        return Result("refused", str(error), result.model_class)
    eager, inputs, mask = family.model, family.inputs, padded_mask(family)
    padded = None if mask is None else inputs | {"attention_mask": mask}

    def check(name: str, run: Callable[[PreTrainedModel], dict[str, Tensor]], tolerance: float = OUTPUTS, gradients: bool = False) -> None:
        with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
            warnings.simplefilter("ignore")
            try:
                right = run(eager)
            except Exception as error:
                result.checks[name] = f"eager: {type(error).__name__}: {str(error).strip()[:120]}"
                return
            if not right or not any(value.isfinite().any() for value in right.values()):
                result.checks[name] = "eager has none"
                return
            try:
                mine = run(ours)
                floor = 1e-3 * max(value.abs().max().item() for value in right.values() if value.numel()) if gradients else 0.0
                if name == "maps" and not mine:
                    result.checks[name] = "missing"
                    return
                result.largest = max(result.largest, largest_difference(mine, right, tolerance, floor))
                result.checks[name] = "equal"
            except NotImplementedError as error:
                result.verdict, result.reason, result.checks[name] = "refused", str(error), "refused"
            except Unequal as error:
                result.checks[name] = f"unequal: {error}"
            except Exception as error:
                result.checks[name] = f"error: {type(error).__name__}: {str(error).strip()[:160]}"

    AttentionInterface.register("polyhead", counted)
    try:
        check("output", lambda model: _kept(watched(model, inputs), None))
        if result.verdict == "refused":
            return result
        if padded is not None:
            check("padded", lambda model: _kept(watched(model, padded), mask))
        check("gradients", lambda model: _gradients(model, padded or inputs, mask), GRADIENTS, True)
        if brief:
            return result
        if family.model_type not in MAPS_WITHOUT_SINK:
            check("maps", lambda model: _maps(model, inputs))
        if eager.can_generate() and "input_ids" in inputs:
            for cache in caches:
                check(cache, lambda model: _generated(model, padded or inputs, cache))  # noqa: B023: called at once
        if "pixel_values" not in inputs and (pictures := with_images(family)) is not None:
            check("images", lambda model: _kept(_run(model, pictures), None))
        ours.set_attn_implementation("eager")
        check("changed to eager", lambda model: _kept(_run(model, inputs), None))
    finally:
        AttentionInterface.register("polyhead", polyhead.transformers.attention_forward)
        result.calls, result.readers = calls, list(watch.found)
        _judge(result)
    return result


def _judge(result: Result) -> None:
    if result.readers:
        result.verdict, result.reason = "wrong", f"the model's own code reads boolean masks: {', '.join(result.readers)}"
    elif any(text.startswith(("unequal", "error")) for text in result.checks.values()):
        result.verdict = "wrong"
    elif result.verdict == "right" and result.calls == 0:
        result.verdict = "unused"


def compare_with_parts(family: Family, only: Collection[str] = ()) -> Result:
    """Runs `compare` for the family, and brief checks for the family with each of its optional parts. only: names of the parts to check; then `compare` is brief, too. A part
    that polyhead refuses by name is no failure."""
    result = compare(family, brief=len(only) > 0)
    try:
        with torch.no_grad():
            result.noise = _noise(family)
    except Exception:
        pass
    if result.verdict not in ("right", "unused"):
        return result
    for variant in with_parts(family, only):
        of_parts, name = compare(variant, brief=True), ", ".join(f"{part}={value}" for part, value in variant.parts.items())
        result.parts.append(name + (" (refused)" if of_parts.verdict == "refused" else ""))
        result.readers += [place for place in of_parts.readers if place not in result.readers]
        if of_parts.verdict != "refused":
            result.checks |= {f"{check} with {name}": text for check, text in of_parts.checks.items()}
            result.calls, result.largest = result.calls + of_parts.calls, max(result.largest, of_parts.largest)
    _judge(result)
    return result
