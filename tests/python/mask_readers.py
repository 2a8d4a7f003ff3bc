"""Finds places where a model of transformers reads its mask for something other than attention.

polyhead's masks are boolean, eager's masks are numbers. If a model's own code uses a mask, for example adds it to a position bias or derives padding from it for a router, a
boolean mask gives wrong results without an error. eager's masks give right results there.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions that only rearrange a mask. Their result is a mask, too.
_VIEWS = {
    "__getitem__", "cat", "chunk", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "flip", "narrow", "pad", "permute", "repeat",
    "repeat_interleave", "reshape", "select", "split", "squeeze", "stack", "transpose", "unsqueeze", "view",
}  # fmt: skip
# Attributes and functions that do not read the elements of a mask.
_FACTS = {"__get__", "dim", "element_size", "is_contiguous", "is_floating_point", "numel", "size", "storage_offset", "stride"}


@functools.cache
def _tells_masks_apart(file: str) -> bool:
    """True if a module checks the dtype of its masks, so that it handles boolean masks correctly."""
    return "mask.dtype == torch.bool" in Path(file).read_text()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


class MaskReaders(TorchFunctionMode):
    """While active, records which functions of torch a model's own code calls with a boolean mask. `found` has entries such as "modeling_t5.py: __add__"."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}
        self._masks: dict[int, Tensor] = {}  # keeps the tensors alive, so that no other tensor can have the same id
        self._inside = 0

    def mask(self, function: Any) -> Any:
        """Wraps a function that makes masks, so that this object watches the masks that it returns."""

        def making(*arguments: Any, **keywords: Any) -> Any:
            self._inside += 1
            try:
                made = function(*arguments, **keywords)
            finally:
                self._inside -= 1
            if isinstance(made, Tensor) and not made.is_floating_point():
                self._masks[id(made)] = made
            return made

        return making

    def attention(self, function: Any) -> Any:
        """Wraps an attention function, so that masks which the function itself reads are not recorded."""

        def attending(*arguments: Any, **keywords: Any) -> Any:
            self._inside += 1
            try:
                return function(*arguments, **keywords)
            finally:
                self._inside -= 1

        return attending

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        if self._inside or not any(id(tensor) in self._masks for tensor in _tensors([arguments, keywords])):
            return result
        name = getattr(function, "__name__", str(function))
        if name in _VIEWS:
            for tensor in _tensors(result):
                self._masks[id(tensor)] = tensor
        elif name not in _FACTS and (name != "to" or isinstance(result, Tensor) and result.dtype != arguments[0].dtype):
            frames = [frame for frame in traceback.extract_stack() if "/transformers/models/" in frame.filename]
            if not frames:
                self.found[f"elsewhere: {name}"] = None
            elif not _tells_masks_apart(frames[-1].filename):
                self.found[f"{frames[-1].filename.rsplit('/', 1)[1]}: {name}"] = None
        elif name == "to":
            self._masks[id(result)] = result
        return result
