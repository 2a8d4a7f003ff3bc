"""polyhead for JAX on the CPU: attention that works inside `jit`, `grad` and `vmap`, also with the arguments of
jax.nn.dot_product_attention and of Flax's attention_fn.

Needs jax 0.5 or later. Importing `polyhead` does not import jax.
"""

from __future__ import annotations

from .._frameworks import require_package

require_package(__name__, "jax")

import jax

if jax.__version_info__ < (0, 5):
    raise ImportError(f"polyhead.jax needs jax 0.5 or later; this is jax {jax.__version__}: pip install -U 'jax>=0.5'")

from ._attention import attention
from ._export import export_checks
from ._flax import attention_fn
from ._jax_nn import dot_product_attention

__all__ = ["attention", "attention_fn", "dot_product_attention", "export_checks"]
