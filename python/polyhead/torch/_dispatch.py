"""The operators that the current call must use.

`_ops` and `_transforms` have operators of the same names. Each assigns itself here, because functions that both import call these operators.
"""

from __future__ import annotations

from typing import Any


plain: Any = None
"""The module `_ops`."""

transforms: Any = None
"""The module `_transforms`, for calls under a transform of torch.func or with dual tensors."""


def operators() -> Any:
    """The module whose operators (`attention`, `attention_backward`, ...) the current call must use."""
    return transforms if transforms.active() else plain
