"""polyhead for PyTorch: the calls that a model makes today, on the CPU, with gradients, under torch.compile, autocast and checkpoint.

    from polyhead.torch import MultiheadAttention, scaled_dot_product_attention

Nothing here is imported by ``import polyhead``.
"""

from ._functional import scaled_dot_product_attention
from ._gated import GatedAttention
from ._multihead import MultiheadAttention

__all__ = ["GatedAttention", "MultiheadAttention", "scaled_dot_product_attention"]
