"""torch.nn.MultiheadAttention, computed by polyhead."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F
from torch.nn.attention.bias import CausalBias

from .._options import Precision, require_precision
from . import _eager
from . import _functional as core
from . import _inputs as inputs
from . import _layer_pass as passes
from . import _symbolic as symbolic
from ._rules import Options
from ._shapes import is_one_of


def _stay(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A hook that does nothing. In evaluation torch.nn.TransformerEncoderLayer calls its self_attn only if self_attn has a hook. Otherwise it gives the
    parameters of self_attn to torch's fused kernel."""


class MultiheadAttention(torch.nn.MultiheadAttention):
    """A replacement of torch.nn.MultiheadAttention (Vaswani et al. 2017, section 3.2.2), with the same constructor, parameters, state_dict, initialisation,
    arguments and results.

    Args:
        embed_dim: E, the width of the queries and of the output.
        num_heads: N, the number of heads; E must be a multiple of N.
        dropout: probability that an attention weight is dropped in training. torch's generator draws the seed of the bits.
        bias: True: the input projections and the output projection have biases.
        add_bias_kv: append a learned key and value to the S given keys and values.
        add_zero_attn: append a key and value of zeros after all others.
        kdim, vdim: widths of the key and value inputs; None is embed_dim.
        batch_first: inputs and output are ``[B,T,E]`` instead of ``[T,B,E]``.
        device, dtype: device and dtype of the parameters: the CPU, and float32, float64, float16 or bfloat16.
        precision: precision of bfloat16 products of the attention, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.

    Raises:
        ValueError, AssertionError: as in torch.nn.MultiheadAttention: widths below 1, or an embed_dim that is not a multiple of num_heads. Also an unknown
            precision.

    Differences from torch:

    - For a query whose keys are all masked the heads' outputs are 0 (so the output is out_proj's bias), and attention weights and gradients are 0. torch gives NaN with
      need_weights and 0 without.
    - NaN or infinity in a key that a boolean mask excludes has no effect.
    - need_weights does not change any bit of the output. Without need_weights no ``[T,S]`` tensor is made, unless a mask has that shape.
    - With the same seed, dropout drops other attention weights than in torch. There is no third derivative.
    - Nested tensors are supported only for self-attention with batch_first, without masks and attention weights; torch.nn.TransformerEncoder needs this in
      evaluation.
    - torch.nn.TransformerEncoderLayer calls the layer in evaluation too, instead of torch's fused kernel, because the layer has a forward pre-hook.
    - At most torch.get_num_threads() threads compute the attention. torch.jit.script raises NotImplementedError.
    """

    precision: Precision = "native"  # for layers that were pickled before this attribute existed
    if TYPE_CHECKING:  # torch declares the type of __call__ as Any

        def __call__(
            self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
            attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
        ) -> tuple[Tensor, Tensor | None]: ...  # fmt: skip

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
        *,
        precision: Precision = "native",
    ) -> None:
        """The arguments are those of torch.nn.MultiheadAttention, and precision. The docstring of the class `MultiheadAttention` describes them: embed_dim,
        num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype and precision."""
        require_precision("MultiheadAttention", precision)
        super().__init__(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype)
        self.precision = precision
        self.register_forward_pre_hook(_stay)

    def reset_parameters(self) -> None:
        """Initialises all parameters, as the constructor does. FSDP and Lightning call this method, also for layers that were made on the meta device."""
        self.out_proj.reset_parameters()
        self._reset_parameters()

    def extra_repr(self) -> str:
        """The arguments that repr() shows: sizes, and settings that differ from their defaults."""
        usual = {"kdim": self.embed_dim, "vdim": self.embed_dim, "dropout": 0.0, "add_zero_attn": False, "batch_first": False, "precision": "native"}
        named = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        if self.in_proj_bias is None:
            named["bias"] = False
        if self.bias_k is not None:
            named["add_bias_kv"] = True
        return ", ".join([f"{self.embed_dim}, {self.num_heads}", *(f"{name}={value!r}" for name, value in named.items())])

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
        """Computes the output and, with need_weights, the attention weights.

        Args:
            query: ``[T,B,E]``, or ``[B,T,E]`` with batch_first, or ``[T,E]`` without a batch.
            key: ``[S,B,kdim]``, ``[B,S,kdim]`` or ``[S,kdim]``, with the batch dimension as in query.
            value: ``[S,B,vdim]``, ``[B,S,vdim]`` or ``[S,vdim]``, with the batch dimension as in query.
            key_padding_mask: ``[B,S]`` or ``[S]``. bool: True = no query may attend to the key. Floating: added to the key's scores.
            need_weights: True: also return the attention weights.
            attn_mask: ``[T,S]`` or ``[B*N,T,S]`` (``[N,T,S]`` for inputs without a batch). bool: True = may not attend. Floating: added to the scores. Or
                torch's CausalBias ``[T,S]``.
            average_attn_weights: return the mean of the attention maps over the heads, instead of one attention map per head.
            is_causal: says that attn_mask, which must be given, is the causal mask. A call without need_weights and key_padding_mask is then faster. As in
                torch, the keys appended by add_bias_kv and add_zero_attn then count as keys S, S+1, ..., and the rule ``s <= t`` masks them too. If attn_mask
                is another mask, is_causal has no effect; torch does the same with need_weights, but without need_weights torch ignores attn_mask. A compiled or
                exported layer cannot compare attn_mask with the causal mask: it uses attn_mask, except if keys are appended; then it relies on is_causal.

        Returns:
            The output, shaped as the query, and None or the attention weights after dropout: ``[B,T,S']``, or ``[B,N,T,S']`` if there is one map per head; without B for
            inputs without a batch. S' is S plus the number of keys that add_bias_kv and add_zero_attn append.

        Raises:
            TypeError: a dtype, device or type that polyhead does not compute with, or tensors on several devices.
            ValueError: shapes that do not fit; is_causal without attn_mask.
        """
        if isinstance(query, Proxy):
            return symbolic.node_of_module(self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if getattr(query, "is_nested", False) and query is key is value and self.batch_first and not need_weights and attn_mask is key_padding_mask is None:
            return self._nested(query), None
        is_plain = passes.is_eager() and passes.is_plain(getattr(query, "dtype", None), (query,) if query is key is value else (query, key, value))
        if not is_plain or attn_mask is not None or key_padding_mask is not None:
            if symbolic.is_traced((key, value, key_padding_mask, attn_mask)):
                return symbolic.node_of_module(self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)  # type: ignore[no-any-return]
            inputs.require("MultiheadAttention", query=query, key=key, value=value)
            inputs.require_memory("MultiheadAttention", key_padding_mask=key_padding_mask, attn_mask=None if isinstance(attn_mask, CausalBias) else attn_mask)
            if isinstance(attn_mask, CausalBias):
                attn_mask, is_causal = self._blocked(attn_mask, query, key), False
            given = {"query": query, "key": key, "value": value, "key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
            inputs.require_one_device("MultiheadAttention", **given, **self._parameters)
        batched = self._check_shapes(query, key, value, key_padding_mask, attn_mask)
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal says what attn_mask is; attn_mask must be given with it")
        sequence = 1 if self.batch_first and batched else 0  # the dimension of the inputs that is T or S
        if not batched:
            same_key, same_value = key is query, value is key
            query = query.unsqueeze(1)
            key = query if same_key else key.unsqueeze(1)
            value = key if same_value else value.unsqueeze(1)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)

        masks = self._masks(query, sequence, attn_mask, key_padding_mask, need_weights, is_causal)
        output, weights = self._attend(query, key, value, sequence, masks, need_weights, is_plain)
        if not batched:
            output = output.squeeze(1)
        if weights is None:
            return output, None
        if average_attn_weights:
            weights = weights.mean(1)
        return output, weights if batched else weights.squeeze(0)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sequence: int, masks: dict[str, Any], need_weights: bool, is_plain: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output ``[T,B,E]`` or ``[B,T,E]``, and the attention weights ``[B,N,T,S']`` if they are needed. is_plain: True in plain eager mode with plain
        input tensors."""
        dropout, out_proj = float(self.dropout) if self.training else 0.0, self.out_proj
        if is_plain and not passes.is_watched(out_proj):
            parameters = self._ordered_parameters(out_proj)
            causal, bias, boolean = None, None, {}
            if masks:
                causal, bias = masks.get("causal"), masks.get("bias")
                boolean = {name: mask for name, mask in masks.items() if name in ("block", "block_keys")}
            # In torch the causal rule s <= t applies to appended keys too. In the library every query attends to appended keys. So calls with both use the
            # operators.
            counted = causal is not None and (self.add_zero_attn or self.bias_k is not None)
            if not counted and passes.is_plain(query.dtype, (bias, *parameters)) and passes.are_plain_masks(tuple(boolean.values())):
                form = passes.form(
                    query_width=self.embed_dim, key_width=self.kdim, value_width=self.vdim, heads=self.num_heads, axis=-2 if sequence == 1 else -3,
                    add_bias_kv=parameters[-1] is not None, add_zero_attn=self.add_zero_attn, dropout=dropout, precision=self.precision,
                    dtype=query.dtype,
                )  # fmt: skip

                def by_torch(
                    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, masks: dict[str, Tensor],
                    parameters: tuple[Tensor | None, ...], seed: Tensor | None
                ) -> tuple[Tensor, Tensor | None]:
                    key = query if key is None else key
                    given = masks | ({} if bias is None else {"bias": bias}) | ({"causal": causal} if causal else {})
                    return self._by_torch(_named(parameters), query, key, key if value is None else value, sequence, given, dropout, need_weights, seed)

                same = key is value
                return passes.run(
                    form, query, None if same and key is query else key, None if same else value, bias, parameters,
                    masks=boolean, causal=causal, dropout=dropout, by_torch=by_torch,
                    attention_weights=None if not need_weights else "dropped" if dropout > 0 else "probability",
                )  # fmt: skip
        inputs.require_one_device("MultiheadAttention", query=query, key=key, value=value, **self._parameters)
        return self._by_torch(self, query, key, value, sequence, masks, dropout, need_weights)

    def _ordered_parameters(self, out: nn.Linear) -> tuple[Tensor | None, ...]:
        """The parameters in the order that `_layer_pass` expects."""
        own = self._parameters
        weight = own["in_proj_weight"] if "in_proj_weight" in own else self.in_proj_weight  # a parametrized weight is an attribute, not a parameter
        bias = own["in_proj_bias"] if "in_proj_bias" in own else self.in_proj_bias
        projections: tuple[Tensor | None, ...] = (weight, bias, None, None, None, None)
        if weight is None:
            projections = (self.q_proj_weight, bias, self.k_proj_weight, None, self.v_proj_weight, None)
        return (*projections, out.weight, out.bias, None, None, self.bias_k, self.bias_v)

    def _by_torch(
        self, of: Any, query: Tensor, key: Tensor, value: Tensor, sequence: int, masks: dict[str, Any], dropout: float, need_weights: bool,
        seed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the projections by torch's operators, and the attention by polyhead's. of: the object that has the parameters as attributes, usually this
        layer."""
        q, k, v = (self._split(x, sequence) for x in self._project(of, query, key, value, sequence))
        options, dtype = self._options(masks, q, k.size(-2) - key.size(sequence)), q.dtype
        if options.bias is not None and options.bias.dtype != dtype:
            q, k, v = (x.to(options.bias.dtype) for x in (q, k, v))
        out, options = core.attend(q, k, v, options._replace(dropout=dropout, seed=seed))
        # [B,N,T,H] -> [B,T,N,H] or [T,B,N,H]. The dimensions of out have this order in memory, so flatten() copies nothing.
        merged = out.transpose(1, 2) if sequence == 1 else out.permute(2, 0, 1, 3)
        output: Tensor = of.out_proj(merged.flatten(2).to(dtype))
        return output, core.maps(q, k, options).to(dtype) if need_weights else None

    def _nested(self, x: Tensor) -> Tensor:
        """Computes self-attention of a nested tensor: pads its sequences, and masks the padding."""
        lengths = [sequence.size(0) for sequence in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        positions = torch.arange(padded.size(1), device=padded.device)
        padding = positions >= torch.tensor(lengths, device=padded.device).unsqueeze(-1)
        output, _ = MultiheadAttention.forward(self, padded, padded, padded, padding, need_weights=False)
        return torch.nested.as_nested_tensor([sequence[:length] for sequence, length in zip(output, lengths)])

    def _blocked(self, bias: CausalBias, query: Tensor, key: Tensor) -> Tensor:
        """Converts a CausalBias to a mask ``[T,S]``, True = may not attend."""
        dimension = 1 if self.batch_first and query.dim() == 3 else 0
        queries, keys = query.size(dimension), key.size(dimension)
        corner = inputs.causal_diagonal("MultiheadAttention", bias, queries, keys)
        offset = 0 if corner == "top_left" else keys - queries
        return torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(offset + 1)

    def _check_shapes(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> bool:
        """Returns whether the inputs have a batch dimension. Raises ValueError if their shapes do not fit."""

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
            if not is_one_of(mask.shape, shapes):
                raise fail(name, mask, " or ".join(str(list(shape)) for shape in shapes))
        return batched

    def _project(self, of: Any, query: Tensor, key: Tensor, value: Tensor, sequence: int) -> list[Tensor]:
        """The projected query, key and value, ``[T,B,E]`` or ``[B,T,E]``, with the appended keys and values. Inputs that are the same tensor are projected by
        one product."""
        bias = of.in_proj_bias
        if of.in_proj_weight is not None and query is key is value:
            projected = list(F.linear(query, of.in_proj_weight, bias).chunk(3, -1))
        else:
            separate = (of.q_proj_weight, of.k_proj_weight, of.v_proj_weight)
            weights = separate if of.in_proj_weight is None else of.in_proj_weight.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            projected = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]
        for i, extra in ((1, of.bias_k), (2, of.bias_v)):
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
        """x ``[B,T,E]`` or ``[T,B,E]``, split into heads, as a view ``[B,N,T,H]``."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2) if sequence == 1 else heads.permute(1, 2, 0, 3)

    def _masks(
        self, query: Tensor, sequence: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None, need_weights: bool, is_causal: bool
    ) -> dict[str, Any]:
        """Converts the masks to arguments of `polyhead.MultiHeadAttention`. A causal mask becomes the argument causal if there is no key_padding_mask and no
        attention weights are requested. Otherwise boolean masks become the arguments block and block_keys, and floating masks become bias."""
        if is_causal and key_padding_mask is None and not need_weights and self._is_causal_mask(attn_mask):
            return {"causal": "top_left"}
        masks: dict[str, Any] = {}
        attn_mask, key_padding_mask, like = core.autocast(attn_mask, key_padding_mask, query)
        assert like is not None
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (query.size(1 - sequence), self.num_heads))
        if key_padding_mask is not None and key_padding_mask.dtype == torch.bool:
            masks["block_keys"], key_padding_mask = key_padding_mask, None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            masks["block"], attn_mask = attn_mask, None
        for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None, :]):
            if mask is not None:
                mask = mask.to(torch.promote_types(like.dtype, mask.dtype))  # a wider dtype represents the mask's numbers exactly
                masks["bias"] = masks["bias"] + mask if "bias" in masks else mask
        return masks

    def _is_causal_mask(self, mask: Tensor | None) -> bool:
        """True if attn_mask masks the keys ``s > t`` and no others. If the elements of attn_mask cannot be read, as in a compiler: True if the layer appends
        keys, because only then attn_mask would give another result than torch's causal rule."""
        assert mask is not None
        if _eager.watched() or type(mask) not in _eager.PLAIN:
            return self.add_zero_attn or self.bias_k is not None
        if mask.requires_grad:
            return False
        attended = ~mask if mask.dtype == torch.bool else mask == 0
        masked = mask if mask.dtype == torch.bool else mask == -torch.inf
        return not bool((~attended).tril().any()) and not bool((~masked).triu(1).any())

    def _options(self, masks: dict[str, Any], q: Tensor, extra: int) -> Options:
        """Converts the masks to the options of polyhead's operators. extra: number of keys that add_bias_kv and add_zero_attn append; for these keys block is
        False and bias is 0. Masks are not expanded: a dimension along which a mask broadcasts keeps an extent of 1."""
        block, block_keys, bias = masks.get("block"), masks.get("block_keys"), masks.get("bias")
        if block_keys is not None:
            block_keys = block_keys[:, None, None, :]
            block = block_keys if block is None else block | block_keys
        if extra > 0:
            block, bias = (None if mask is None else F.pad(mask, (0, extra)) for mask in (block, bias))
        return Options(causal=masks.get("causal"), block=block, bias=bias, precision=self.precision)


def _named(parameters: tuple[Tensor | None, ...]) -> SimpleNamespace:
    """An object that has the parameters as attributes, with the names of torch's layer. parameters: in the order of `_layer_pass`."""
    q, in_proj_bias, k, _, v, _, weight, bias, _, _, bias_k, bias_v = parameters
    assert weight is not None
    together = k is None
    return SimpleNamespace(
        in_proj_weight=q if together else None, q_proj_weight=q, k_proj_weight=k, v_proj_weight=v, in_proj_bias=in_proj_bias, bias_k=bias_k, bias_v=bias_v,
        out_proj=partial(F.linear, weight=weight, bias=bias),
    )  # fmt: skip
