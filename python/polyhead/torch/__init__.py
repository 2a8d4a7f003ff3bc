"""polyhead for PyTorch on the CPU: attention with every option, replacements of torch's attention function and attention module, and the attention modules of
AlphaFold.

All of them work with gradients, second derivatives, forward mode, torch.compile, autocast and checkpoint. `replace_sdpa` makes polyhead compute the attention
of models that call torch's own function.

    from polyhead.torch import MultiheadAttention, attention, scaled_dot_product_attention

``import polyhead`` does not import this package.
"""

from .._frameworks import require_package

require_package(__name__, "torch")

from ._attention import attention
from ._gated import GatedAttention
from ._multihead import MultiheadAttention
from ._onnx import onnx_translations
from ._pair_bias import attention_pair_bias
from ._replace_sdpa import SdpaReplacement, replace_sdpa
from ._replace_sdpa import sdpa as sdpa  # the earlier name of replace_sdpa, which still works
from ._score_mod import explain_score_mod
from ._sdpa import scaled_dot_product_attention
from ._sequence_local import sequence_local_attention
from ._triangle import triangle_attention

__all__ = [
    "GatedAttention",
    "MultiheadAttention",
    "SdpaReplacement",
    "attention",
    "attention_pair_bias",
    "explain_score_mod",
    "onnx_translations",
    "replace_sdpa",
    "scaled_dot_product_attention",
    "sequence_local_attention",
    "triangle_attention",
]
