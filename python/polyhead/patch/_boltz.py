"""Replacements for the attention modules of boltz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._options import Precision
from ..torch import _layer_pass as passes
from ..torch._pair_bias import heads_with_pair_bias
from ._layer import LINEARS, SIGMOID, Projections, attend, attended, is_ours, is_small, makes_small_bias, masks_and_bias, with_rows


def attention(
    own: Callable[..., Tensor], precision: Precision, self: Any, q_x: Tensor, kv_x: Tensor, tri_bias: Tensor, mask_bias: Tensor, mask: Tensor,
    use_kernels: bool = False,
) -> Tensor:  # fmt: skip
    lead, queries, keys = tuple(q_x.shape[:-2]), q_x.size(-2), kv_x.size(-2)
    found = None
    if is_ours(q_x, kv_x, tri_bias, mask_bias, mask) and lead == tuple(kv_x.shape[:-2]):
        found = masks_and_bias((mask_bias, tri_bias), (*lead, self.no_heads, queries, keys))
    if found is None:
        return own(self, q_x, kv_x, tri_bias, mask_bias, mask, use_kernels)
    to = Projections(self.linear_q, self.linear_k, self.linear_v, self.linear_o, self.linear_g, self.no_heads, self.c_hidden)
    if use_kernels:  # compute as the kernels of cuEquivariance do: the output of a query without a key is the mean of the values
        return attend(to, q_x, kv_x, tri_bias, attended([mask != 0], lead, queries, keys).options, precision, empty_rows="uniform")
    masks, bias = found
    which = attended(masks, lead, queries, keys)

    def by_boltz(index: tuple[Tensor, ...]) -> Tensor:
        return own(self, q_x[index], kv_x[index], *(x.expand(*lead, *x.shape[-3:])[index] for x in (tri_bias, mask_bias, mask)))

    return with_rows(attend(to, q_x, kv_x, bias, which.options, precision), which.empty, self.no_heads * queries * keys, by_boltz)


class _Pairs(NamedTuple):
    """A pair tensor z ``[B / multiplicity,Q,K,C]``, with the norm and the projection that make a bias of z. The bias is made in blocks of queries."""

    z: Tensor
    norm: nn.LayerNorm
    projection: nn.Linear

    def heads(self, module: Any, s: Tensor, k_in: Tensor, keep: Tensor, multiplicity: int) -> Tensor | None:
        """The output of an AttentionPairBias; None if the projections do not have z's dtype. keep: bool ``[B,K]``."""
        shared = (s.size(0) // multiplicity, multiplicity)
        sources = ((module.proj_q, s), (module.proj_k, k_in), (module.proj_v, k_in))
        q, k, v = (linear(x).unflatten(-1, (module.num_heads, -1)).transpose(-2, -3).unflatten(0, shared) for linear, x in sources)
        norm, projection = self.norm, self.projection
        if not q.dtype == k.dtype == v.dtype == self.z.dtype:
            return None
        y = heads_with_pair_bias(
            q, k, v, keep.unflatten(0, shared), self.z.unsqueeze(1), norm.weight, norm.bias, projection.weight, projection.bias,
            eps=norm.eps, scale=module.head_dim**-0.5, empty_rows="zero",
        ).transpose(-2, -3).flatten(-2).flatten(0, 1)  # fmt: skip
        out: Tensor = module.proj_o(torch.sigmoid(module.proj_g(s)) * y)
        return out


def _in_blocks(module: Any, z: Tensor, precision: Precision) -> _Pairs | None:
    """Returns the pair tensor if the bias can be made from it in blocks of queries, else None. It can if proj_z consists of a norm, a linear layer and a
    rearrangement, all without hooks and in z's dtype, and if the bias is small compared with the numbers that mask a key. It cannot for bfloat16 with exact
    precision, because the products of a bias that is made in blocks are always native."""
    if z.dtype == torch.bfloat16 and precision != "native":
        return None
    parts = list(module.proj_z) if isinstance(module.proj_z, nn.Sequential) else []
    if not passes.is_eager() or len(parts) != 3 or type(parts[0]) is not nn.LayerNorm or type(parts[1]) is not nn.Linear or passes.has_hooks(module.proj_z):
        return None
    norm, projection = parts[0], parts[1]
    parameters = (norm.weight, norm.bias, projection.weight, projection.bias)
    if norm.weight is None or any(x is not None and x.dtype != z.dtype for x in parameters) or any(passes.has_hooks(part) for part in parts):
        return None
    if type(parts[2]).__name__ != "Rearrange" or z.dim() != 4 or torch.is_autocast_enabled("cpu") or not makes_small_bias(norm, projection):
        return None
    return _Pairs(z, norm, projection)


def _of_pairs(
    module: Any, precision: Precision, s: Tensor, k_in: Tensor, bias: Tensor | _Pairs, mask: Tensor, multiplicity: int, by_boltz: Callable[[Tensor], Tensor] | None
) -> Tensor | None:
    """The output of an AttentionPairBias; None if boltz must compute the call. bias: ``[B / multiplicity,H,Q,K]``, or the pair tensor from which the bias is
    made; mask: ``[B,K]``. by_boltz: a function that returns boltz' own result for the sequences that an index selects. It is None if boltz cannot compute
    single sequences; then the result is None if a query has no key."""
    batch, heads, pairs = s.size(0), module.num_heads, (s.size(1), k_in.size(1))
    shape = (bias.z.size(0), bias.projection.out_features, *bias.z.shape[1:3]) if isinstance(bias, _Pairs) else tuple(bias.shape)
    if mask.shape != (batch, pairs[1]) or k_in.size(0) != batch or shape[1:] != (heads, *pairs) or shape[0] * multiplicity not in (1, batch):
        return None
    keep = mask != 0
    which = attended([keep[:, None, None, :]], tuple(s.shape[:1]), s.size(1), k_in.size(1))
    if module.inf < 1e4 or not (isinstance(bias, _Pairs) or is_small(bias)) or not bool((keep == mask).all()) or (which.empty is not None and by_boltz is None):
        return None
    to = Projections(module.proj_q, module.proj_k, module.proj_v, module.proj_o, module.proj_g, heads, module.head_dim)
    if isinstance(bias, _Pairs):
        found = bias.heads(module, s, k_in, keep, batch // shape[0])
        if found is None:
            return None
        out = found
    elif bias.size(0) * multiplicity == batch:
        # The samples of a structure share the structure's bias: broadcast the bias over the samples instead of repeating it.
        shared = (batch // multiplicity, multiplicity)
        q_x = s.unflatten(0, shared)
        kv_x = q_x if k_in is s else k_in.unflatten(0, shared)
        out = attend(to, q_x, kv_x, bias.unsqueeze(1), {"attend_keys": keep.unflatten(0, shared)}, precision).flatten(0, 1)
    else:
        out = attend(to, s, k_in, bias.repeat_interleave(multiplicity, 0), {"attend_keys": keep}, precision)
    return with_rows(out, which.empty, heads * pairs[0] * pairs[1], lambda index: by_boltz(index[0]))  # type: ignore[misc]


def pair_bias(
    own: Callable[..., Tensor], precision: Precision, self: Any, s: Tensor, z: Tensor, mask: Tensor, multiplicity: int = 1,
    to_keys: Callable[[Tensor], Tensor] | None = None, model_cache: dict[str, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Replaces forward of Boltz-1's AttentionPairBias."""
    if is_ours(s, z, mask) and s.dim() == 3 and mask.dim() == 2:
        normed = self.norm_s(s) if self.initial_norm else s
        k_in, of_keys = (normed, mask) if to_keys is None else (to_keys(normed), to_keys(mask.unsqueeze(-1)).squeeze(-1))
        bias: Tensor | _Pairs
        if model_cache is None:
            bias = _in_blocks(self, z, precision) or self.proj_z(z)
        elif "z" not in model_cache:
            bias = model_cache["z"] = self.proj_z(z)
        else:
            bias = model_cache["z"]

        def by_boltz(index: Tensor) -> Tensor:
            if isinstance(bias, _Pairs):
                return own(self, s[index], _repeated(z, index, multiplicity), mask[index], 1, None, None)
            return own(self, s[index], z, mask[index], 1, None, {"z": _repeated(bias, index, multiplicity)})

        out = _of_pairs(self, precision, normed, k_in, bias, of_keys, multiplicity, by_boltz if to_keys is None else None)
        if out is not None:
            return out
    return own(self, s, z, mask, multiplicity, to_keys, model_cache)


def pair_bias_2(
    own: Callable[..., Tensor], precision: Precision, self: Any, s: Tensor, z: Tensor, mask: Tensor, k_in: Tensor, multiplicity: int = 1
) -> Tensor:
    """Replaces forward of Boltz-2's AttentionPairBias."""
    if is_ours(s, z, mask, k_in) and s.dim() == 3 and mask.dim() == 2:

        def by_boltz(index: Tensor) -> Tensor:
            return own(self, s[index], _repeated(z, index, multiplicity), mask[index], k_in[index], 1)

        out = _of_pairs(self, precision, s, k_in, _in_blocks(self, z, precision) or self.proj_z(z), mask, multiplicity, by_boltz)
        if out is not None:
            return out
    return own(self, s, z, mask, k_in, multiplicity)


def _repeated(x: Tensor, index: Tensor, multiplicity: int) -> Tensor:
    """For each of the given samples, the row of x that belongs to the sample's structure. x has one row for each structure, and each structure has
    `multiplicity` samples."""
    return x[torch.div(index, multiplicity, rounding_mode="floor") if x.size(0) > 1 else torch.zeros_like(index)]


_PROJECTIONS = ("proj_q", "proj_k", "proj_v", "proj_g", "proj_z", "proj_o")
METHODS: tuple[tuple[Any, ...], ...] = (
    (
        "boltz.model.layers.triangular_attention.primitives", "Attention", "forward", ("q_x", "kv_x", "tri_bias", "mask_bias", "mask", "use_kernels"), (),
        attention, ("_prep_qkv", "_wrap_up"), LINEARS, SIGMOID,
    ),
    (
        "boltz.model.layers.attention", "AttentionPairBias", "forward", ("s", "z", "mask", "multiplicity", "to_keys", "model_cache"), (),
        pair_bias, (), ("norm_s", *_PROJECTIONS), {},
    ),
    ("boltz.model.layers.attentionv2", "AttentionPairBias", "forward", ("s", "z", "mask", "k_in", "multiplicity"), (), pair_bias_2, (), _PROJECTIONS, {}),
)  # fmt: skip
