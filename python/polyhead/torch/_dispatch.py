"""Chooses the operators that the current call must use.

The modules `_ops` and `_transforms` have operators of the same names. `_formulas` calls these operators, but cannot import the two modules, because both import
`_formulas`. Therefore each of the two stores itself in a variable of this module.
"""

from __future__ import annotations

from typing import Any


ops: Any = None
"""The module `_ops`."""

transforms: Any = None
"""The module `_transforms`, whose operators support calls under a transform of torch.func and calls with dual tensors."""


def operators() -> Any:
    """The module whose operators (`attention`, `attention_backward`, ...) the current call must use."""
    return transforms if transforms.active() else ops
