"""Replaces torch's scaled_dot_product_attention by polyhead's, for models that call torch's function."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from types import ModuleType, TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias
from torch.overrides import has_torch_function

from .._options import Precision, require_precision
from . import _sdpa
from ._replacements import Applied, Replacement, Replacements

_NAME = "scaled_dot_product_attention"
_OWN: Any = torch._C._nn.scaled_dot_product_attention
_replacements = Replacements()
_applied: list[SdpaReplacement] = []
_precision: Precision = "native"  # precision of the applied replacements


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """The function that replaces torch's. While a replacement is applied, polyhead computes the call; otherwise torch's function does."""
    why = _why_not(query, key, value, attn_mask) if _replacements.users else ""
    if torch.compiler.is_compiling():
        if why is None:
            return _sdpa.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, precision=_precision)
    elif _replacements.users:
        if why is None:
            try:
                out = _sdpa.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, precision=_precision)
            except (TypeError, ValueError, NotImplementedError) as refusal:  # torch computes the call, or raises its own error
                why = str(refusal)
        for replacement in list(_applied):
            replacement._count(why)
        if why is None:
            return out
    if type(attn_mask) is CausalBias:  # call its implementation directly: CausalBias would look up torch's function by name, and find this replacement
        return CausalBias._dispatch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    result: Tensor = _OWN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return result


scaled_dot_product_attention.__doc__ = _OWN.__doc__


def _why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> str | None:
    """The reason why torch must compute a call; None if polyhead's function is to be tried. That function may still refuse the call."""
    tensors = (query, key, value) if attn_mask is None or type(attn_mask) is CausalBias else (query, key, value, attn_mask)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            return f"an argument of type {type(tensor).__name__}"
        if not tensor.is_cpu:
            return f"a tensor on the device {tensor.device.type}"
    if has_torch_function(tensors):
        return "a subclass of Tensor, or a mode, that intercepts functions of torch"
    if not torch._C._get_flash_sdp_enabled():  # torch's fused kernel is called "flash" on the CPU too
        return "a kernel of torch is chosen (torch.nn.attention.sdpa_kernel)"
    return None


def _found() -> list[Replacement]:
    """The places where torch's function is replaced: torch.nn.functional, and modules that imported the function by its name."""
    there = F.__dict__[_NAME]
    if there is not _OWN and there is not scaled_dot_product_attention:
        whose = f"{getattr(there, '__module__', '?')}.{getattr(there, '__qualname__', '?')}"
        raise RuntimeError(f"polyhead.torch.replace_sdpa: torch.nn.functional.{_NAME} is replaced already, by {whose}; undo that replacement first, or apply it after replace_sdpa")
    found = [(F, _NAME, _OWN, scaled_dot_product_attention)]
    for name, module in list(sys.modules.items()):
        # A reference under another name is not replaced: a program may keep it to compare with torch's function, or to restore that function.
        if isinstance(module, ModuleType) and name.partition(".")[0] != "torch" and vars(module).get(_NAME) is _OWN:
            found.append((module, _NAME, _OWN, scaled_dot_product_attention))
    return found


class SdpaReplacement(Applied):
    """The result of `replace_sdpa`: a replacement of torch's scaled_dot_product_attention by polyhead's in the whole process.

    Several replacements may be applied at the same time if they have the same precision; torch's function is restored when the last one is undone. The end of a
    ``with`` block undoes the replacement, also after an exception; another ``with`` block of the same object applies the replacement again.
    """

    _kind = "replacement"
    _made_by = "polyhead.torch.replace_sdpa"

    def __init__(self, precision: Precision = "native") -> None:
        require_precision(self._made_by, precision)
        super().__init__(_replacements)
        self._precision: Precision = precision
        self._lock = threading.Lock()
        self._served = 0
        self._passed_on: Counter[str] = Counter()

    @property
    def served(self) -> int:
        """How many calls polyhead has computed while this replacement was applied, in all threads."""
        return self._served

    @property
    def passed_on(self) -> dict[str, int]:
        """How many calls torch has computed while this replacement was applied, for each reason."""
        with self._lock:
            return dict(self._passed_on)

    def report(self) -> str:
        """A text that says how many calls polyhead computed, and how many torch computed, with a line for each reason why torch computed them.

        Calls inside of compiled code are not counted, because they are traced once and then run without Python.
        """
        lines = [f"computed by polyhead: {self._served}", f"passed on to torch: {sum(self.passed_on.values())}"]
        return "\n".join([*lines, *(f"  {count}: {why}" for why, count in sorted(self.passed_on.items(), key=lambda item: -item[1]))])

    def _count(self, why: str | None) -> None:
        with self._lock:
            if why is None:
                self._served += 1
            else:
                self._passed_on[why] += 1

    def _begin(self) -> None:
        global _precision
        if _applied and self._precision != _precision:
            raise ValueError(
                f"polyhead.torch.replace_sdpa: precision is {self._precision!r}; a replacement with precision {_precision!r} is applied; give that precision, or undo the other replacement first"
            )
        _replacements.apply(_found)
        _precision = self._precision
        _applied.append(self)

    def _end(self) -> None:
        _applied.remove(self)
        super()._end()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self._blocks == 0 and kind is None and self._served == 0 and not self.passed_on:
            warnings.warn(
                f"polyhead.torch.replace_sdpa: no call of torch.nn.functional.{_NAME} was seen in the block. Calls inside of compiled code are not counted; "
                "torch's fused encoder layers and references that objects hold are not reached", RuntimeWarning, stacklevel=2,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<polyhead.torch.SdpaReplacement: {'applied' if self.applied else 'undone'}, {self._served} calls computed by polyhead, {sum(self.passed_on.values())} passed on to torch>"


def replace_sdpa(*, precision: Precision = "native") -> SdpaReplacement:
    """Makes polyhead compute ``torch.nn.functional.scaled_dot_product_attention``, forward and backward, for all models that call this function.

    ::

        replaced = polyhead.torch.replace_sdpa()
        model(x).sum().backward()
        print(replaced.report())
        replaced.undo()

        with polyhead.torch.replace_sdpa():    # only inside the block
            model(x).sum().backward()

    The replacement is applied at once, and lasts until undo() or the end of a ``with`` block. It changes the whole process: ``torch.nn.functional``, and modules that did
    ``from torch.nn.functional import scaled_dot_product_attention`` before. So polyhead computes the calls of models, of ``nn.MultiheadAttention`` with
    need_weights=False, and of models of transformers with "sdpa". Arguments and results are those of `polyhead.torch.scaled_dot_product_attention`, whose
    docstring lists the differences from torch. torch.compile and torch.export trace polyhead's operator; code that was compiled before is not changed.

    torch still computes some calls: calls on other devices, with nested tensors, with subclasses of Tensor, or under modes that intercept functions of torch;
    calls inside a block of `torch.nn.attention.sdpa_kernel` that excludes torch's fused kernel; and calls that polyhead's function refuses. The replacement
    counts these calls, by the reason.

    The replacement does not affect: the fused kernels of ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` in evaluation without gradients
    (`torch.backends.mha.set_fastpath_enabled` switches them off); an import under another name (``as``); references to torch's function that an object holds,
    such as a default argument, an attribute or an entry of a table; scripted models; calls of torch's operators (``torch.ops.aten``). While a replacement is
    applied, torch.jit.script cannot compile a model that calls the function.

    Args:
        precision: precision of bfloat16 products of the attention, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.

    Returns:
        The applied replacement, which counts the calls. The method undo() restores torch's function. At the end of a ``with`` block in which the function was
        not called, a warning is given.

    Raises:
        ValueError: another precision than that of an applied replacement, or an unknown word.
        RuntimeError: other code, such as `polyhead.distributed.sequence_parallel`, has replaced the function already.
    """
    replacement = SdpaReplacement(precision)
    replacement._apply()
    return replacement


def sdpa(*, precision: Precision = "native") -> SdpaReplacement:
    """The earlier name of `replace_sdpa`, for a ``with`` statement. Not to be confused with `polyhead.sdpa`, which computes attention."""
    return SdpaReplacement(precision)
