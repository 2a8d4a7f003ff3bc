"""Replacements for the attention modules of openfold and openfold3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .._options import Precision
from ._layer import LINEARS, SIGMOID, Projections, attend, attended, is_ours, of_module, with_rows

_KERNELS = (
    "use_memory_efficient_kernel", "use_deepspeed_evo_attention", "use_cuequivariance_attention", "use_cueq_triangle_kernels", "use_triton_triangle_kernels",
    "use_lma", "use_high_precision",
)  # fmt: skip
"""Names of options of openfold that select a kernel. All kernels have the same result. At most one may be selected."""


def attention(
    own: Callable[..., Tensor], precision: Precision, self: Any, q_x: Tensor, kv_x: Tensor, biases: list[Tensor] | None = None, *places: Any, **options: Any
) -> Tensor:
    # The order of positional options differs between versions, so the package's own code runs calls with positional options. It also runs calls with the option
    # use_flash, which have a separate mask, and calls that select more than one kernel.
    out = None
    if not places and not options.get("use_flash") and sum(bool(options.get(name)) for name in _KERNELS) <= 1:
        given = [x for x in biases or [] if x is not None]

        def by_openfold(index: tuple[Tensor, ...]) -> Tensor:
            return own(self, q_x[index], kv_x[index], [x.expand(*q_x.shape[:-2], *x.shape[-3:])[index] for x in given])

        out = of_module(self, self.no_heads, getattr(self, "linear_g", None) if self.gating else None, precision, q_x, kv_x, given, by_openfold)
    return own(self, q_x, kv_x, biases, *places, **options) if out is None else out


def global_attention(own: Callable[..., Tensor], precision: Precision, self: Any, m: Tensor, mask: Tensor, *places: Any, **options: Any) -> Tensor:
    # openfold adds eps to the denominator of the mean query, and polyhead does not; an eps of at most 1e-8 makes no difference.
    if is_ours(m, mask) and self.eps <= 1e-8 and self.inf >= 1e4 and m.shape[:-1] == mask.shape:
        keep = mask != 0
        if bool((keep == mask).all()):
            lead = tuple(m.shape[:-2])
            which = attended([keep[..., None, None, :]], lead, 1, m.size(-2))
            to = Projections(self.linear_q, self.linear_k, self.linear_v, self.linear_o, self.linear_g, self.no_heads, self.c_hidden)
            out = attend(to, m, m, None, which.options, precision, global_query="masked_mean")
            return with_rows(out, which.empty, self.no_heads * m.size(-2), lambda index: own(self, m[index], mask[index]))
    return own(self, m, mask, *places, **options)


_FLASH = ("lma_q_chunk_size", "lma_kv_chunk_size", "use_flash", "flash_mask")
_ATTENTION = ("Attention", "forward", ("q_x", "kv_x", "biases"), (*_KERNELS, *_FLASH), attention, ("_prep_qkv", "_wrap_up"), LINEARS, SIGMOID)
_GLOBAL = ("GlobalAttention", "forward", ("m", "mask"), ("use_lma",), global_attention, (), LINEARS, SIGMOID)
METHODS = (
    ("openfold.model.primitives", *_ATTENTION),
    ("openfold.model.primitives", *_GLOBAL),
    ("openfold3.core.model.primitives.attention", *_ATTENTION),
    ("openfold3.core.model.primitives.attention", *_GLOBAL),
)
