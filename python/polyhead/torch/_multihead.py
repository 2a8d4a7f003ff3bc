"""torch.nn.MultiheadAttention, computed by polyhead."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import CausalBias

from . import _functional as core
from . import _inputs as inputs
from ._ops import Options


def _stay(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A hook that does nothing: torch.nn.TransformerEncoderLayer calls its self_attn in evaluation if there is a hook. Without one it gives
    the parameters to torch's fused kernel."""


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention (Vaswani et al. 2017, section 3.2.2): its constructor, parameters, state_dict, initialisation, arguments and results.

    Args:
        embed_dim: E, the width of the queries and of the output.
        num_heads: N; E must be a multiple of it.
        dropout: probability that an attention weight is dropped in training. torch's generator draws the seed of the bits.
        bias: whether the input projections and the output projection have biases.
        add_bias_kv: one more key and value after the S given ones, which are learned.
        add_zero_attn: one more key and value, which are zeros, after all others.
        kdim, vdim: widths of the key and value inputs; None is embed_dim.
        batch_first: inputs and output are ``[B,T,E]`` instead of ``[T,B,E]``.
        device, dtype: of the parameters: the CPU, and float32, float64, float16 or bfloat16.

    Raises:
        ValueError, AssertionError: as torch.nn.MultiheadAttention: widths below 1, or embed_dim no multiple of num_heads.

    What differs from torch:

    - A query whose keys are all masked gives 0 (so the output is out_proj's bias), with attention weights and gradients of 0; torch gives NaN with
      need_weights and 0 without.
    - A key that a boolean mask excludes does not exist: NaN or infinity in it changes nothing.
    - need_weights does not change the output. Without it no ``[T,S]`` tensor is made, unless a mask has that shape.
    - The bits of dropout differ. There is no second derivative. Of nested tensors only self-attention without masks and attention weights is computed, with
      batch_first, as torch.nn.TransformerEncoder asks for it in evaluation.
    - torch.nn.TransformerEncoderLayer calls the layer in evaluation too, and not torch's fused kernel: a forward pre-hook prevents that.
    - At most torch.get_num_threads() threads compute the attention. torch.jit.script raises NotImplementedError.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype)
        self.register_forward_pre_hook(_stay)

    def __prepare_scriptable__(self) -> None:
        core.refuse_script(type(self).__name__)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the attention weights or None.

        Args:
            query: ``[T,B,E]``, or ``[B,T,E]`` with batch_first, or ``[T,E]``.
            key: ``[S,B,kdim]``, with the batch as in query.
            value: ``[S,B,vdim]``, with the batch as in query.
            key_padding_mask: ``[B,S]`` or ``[S]``. bool: True = the key is not attended to. Floating: added to the key's scores.
            need_weights: return the attention weights too.
            attn_mask: ``[T,S]`` or ``[B*N,T,S]`` (``[N,T,S]`` for inputs without a batch). bool: True = may not attend. Floating: added to the scores. Or
                torch's CausalBias ``[T,S]``.
            average_attn_weights: return the mean over the heads instead of one attention map per head.
            is_causal: promises that attn_mask, which is required, is the causal one. As in torch, attn_mask is then not read if neither need_weights nor
                key_padding_mask is given: query t attends to the keys ``s <= t``, counting those of add_bias_kv and add_zero_attn.

        Returns:
            The output, shaped as the query, and None or the attention weights after dropout: ``[B,T,S']``, or ``[B,N,T,S']`` per head; without B for
            inputs without a batch. S' counts the extra keys.

        Raises:
            TypeError: a dtype, device or type that polyhead does not compute with, or tensors on several devices.
            ValueError: shapes that do not fit; is_causal without attn_mask.
        """
        if getattr(query, "is_nested", False) and query is key is value and self.batch_first and not need_weights and attn_mask is key_padding_mask is None:
            return self._nested(query), None
        inputs.require("MultiheadAttention", query=query, key=key, value=value)
        inputs.require_memory("MultiheadAttention", key_padding_mask=key_padding_mask, attn_mask=None if isinstance(attn_mask, CausalBias) else attn_mask)
        if isinstance(attn_mask, CausalBias):
            attn_mask, is_causal = self._blocked(attn_mask, query, key), False
        given = {"query": query, "key": key, "value": value, "key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        inputs.require_one_device("MultiheadAttention", **given, **self._parameters)
        batched = self._check_shapes(query, key, value, key_padding_mask, attn_mask)
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal says what attn_mask is; attn_mask must be given with it")
        sequence = 1 if self.batch_first and batched else 0  # which dimension is T or S
        if not batched:
            same_key, same_value = key is query, value is key
            query = query.unsqueeze(1)
            key = query if same_key else key.unsqueeze(1)
            value = key if same_value else value.unsqueeze(1)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)

        q, k, v = (self._split(x, sequence) for x in self._project(query, key, value, sequence))
        attn_mask, key_padding_mask = core.autocast(attn_mask, key_padding_mask)
        options = self._masks(q, k.size(-2) - key.size(sequence), attn_mask, key_padding_mask, need_weights, is_causal)
        out, options = core.attend(q, k, v, options._replace(dropout=self.dropout if self.training else 0.0))
        # [B,N,T,H] -> [B,T,N,H] or [T,B,N,H], which is the order in memory, so that flatten() copies nothing.
        merged = out.transpose(1, 2) if sequence == 1 else out.permute(2, 0, 1, 3)
        output = self.out_proj(merged.flatten(2))
        if not batched:
            output = output.squeeze(1)
        if not need_weights:
            return output, None
        weights = core.maps(q, k, options)
        if average_attn_weights:
            weights = weights.mean(1)
        return output, weights if batched else weights.squeeze(0)

    def _nested(self, x: Tensor) -> Tensor:
        """Self-attention of nested sequences: of padded ones, whose padding does not exist."""
        lengths = [sequence.size(0) for sequence in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        positions = torch.arange(padded.size(1), device=padded.device)
        padding = positions >= torch.tensor(lengths, device=padded.device).unsqueeze(-1)
        output, _ = MultiheadAttention.forward(self, padded, padded, padded, padding, need_weights=False)
        return torch.nested.as_nested_tensor([sequence[:length] for sequence, length in zip(output, lengths)])

    def _blocked(self, bias: CausalBias, query: Tensor, key: Tensor) -> Tensor:
        """A CausalBias as a mask ``[T,S]``, True = may not attend."""
        dimension = 1 if self.batch_first and query.dim() == 3 else 0
        queries, keys = query.size(dimension), key.size(dimension)
        corner = inputs.causal_diagonal("MultiheadAttention", bias, queries, keys)
        offset = 0 if corner == "top_left" else keys - queries
        return torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(offset + 1)

    def _check_shapes(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> bool:
        """Whether the inputs have a batch dimension. ValueError if their shapes do not fit."""

        def fail(name: str, tensor: Tensor, rule: str) -> ValueError:
            return ValueError(f"MultiheadAttention: {name} is {list(tensor.shape)}; it must be {rule}")

        batched = query.dim() == 3
        if query.dim() not in (2, 3):
            raise fail("query", query, "[T,E] or, with a batch, of three dimensions")
        first = self.batch_first and batched
        letters = "[B,{},{}]" if first else "[{},B,{}]" if batched else "[{},{}]"
        batch = query.size(0 if first else 1) if batched else 1
        queries, keys = query.size(1 if first else 0), key.size(1 if first else 0) if key.dim() == query.dim() else 0
        for name, tensor, length, width in (("query", query, queries, self.embed_dim), ("key", key, keys, self.kdim), ("value", value, keys, self.vdim)):
            expected = ((batch, length) if first else (length, batch) if batched else (length,)) + (width,)
            if tuple(tensor.shape) != expected:
                letter = "T" if name == "query" else "S"
                raise fail(name, tensor, f"{letters.format(letter, 'E')} = {list(expected)}" if tensor.dim() == query.dim() else f"{query.dim()}-dimensional as the query")
        for name, mask, shapes in (
            ("key_padding_mask", key_padding_mask, [(batch, keys)] if batched else [(keys,)]),
            ("attn_mask", attn_mask, [(queries, keys), (batch * self.num_heads, queries, keys)]),
        ):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise TypeError(f"MultiheadAttention: {name} has dtype {mask.dtype}; it must be bool (True = not attended to) or floating (added)")
            if tuple(mask.shape) not in shapes:
                raise fail(name, mask, " or ".join(str(list(shape)) for shape in shapes))
        return batched

    def _project(self, query: Tensor, key: Tensor, value: Tensor, sequence: int) -> list[Tensor]:
        """The projected query, key and value, ``[T,B,E]`` or ``[B,T,E]``, with the extra keys and values. Equal inputs are projected
        by one product."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key is value:
            projected = list(F.linear(query, self.in_proj_weight, bias).chunk(3, -1))
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            projected = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]
        for i, extra in ((1, self.bias_k), (2, self.bias_v)):
            parts = [projected[i]]
            shape = list(projected[i].shape)
            shape[sequence] = 1
            if extra is not None:
                parts.append(extra.to(projected[i].dtype).expand(shape))
            if self.add_zero_attn:
                parts.append(projected[i].new_zeros(shape))
            if len(parts) > 1:
                projected[i] = torch.cat(parts, sequence)
        return projected

    def _split(self, x: Tensor, sequence: int) -> Tensor:
        """``[B,N,T,H]`` as a view of ``[B,T,E]`` or ``[T,B,E]``."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2) if sequence == 1 else heads.permute(1, 2, 0, 3)

    def _masks(
        self, q: Tensor, extra: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None, need_weights: bool, is_causal: bool
    ) -> Options:
        """The masks as options: boolean masks as `block`, floating ones as `bias`. Shared dimensions keep an extent of 1."""
        if is_causal and key_padding_mask is None and not need_weights:
            return Options(causal="top_left")
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (q.size(0), self.num_heads))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, None, None, :]
        block: Tensor | None = None
        bias: Tensor | None = None
        for mask in (attn_mask, key_padding_mask):
            if mask is None:
                continue
            mask = F.pad(mask, (0, extra)) if extra > 0 else mask
            if mask.dtype == torch.bool:
                block = mask if block is None else block | mask
            else:
                bias = mask.to(q.dtype) if bias is None else bias + mask.to(q.dtype)
        return Options(block=block, bias=bias)
