"""polyhead for JAX on the CPU: attention inside `jit`, `grad` and `vmap`, and in the places where jax.nn and Flax take a function of their own.

Needs jax 0.5 or later. Importing `polyhead` does not import jax.
"""

from __future__ import annotations

import jax

if jax.__version_info__ < (0, 5):
    raise ImportError(f"polyhead.jax needs jax 0.5 or later; this is jax {jax.__version__}")

from ._attention import attention
from ._others import attention_fn, dot_product_attention

__all__ = ["attention", "attention_fn", "dot_product_attention"]
