"""polyhead for PyTorch: torch's attention function and module, and AlphaFold's gated attention, computed by polyhead on the CPU.

They work with gradients, torch.compile, autocast and checkpoint.

    from polyhead.torch import MultiheadAttention, scaled_dot_product_attention

``import polyhead`` does not import this package.
"""

from ._functional import scaled_dot_product_attention
from ._gated import GatedAttention
from ._multihead import MultiheadAttention

__all__ = ["GatedAttention", "MultiheadAttention", "scaled_dot_product_attention"]
