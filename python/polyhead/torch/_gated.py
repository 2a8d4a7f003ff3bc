"""AlphaFold's attention module: gated attention along any axis, with a pair bias and a mask of keys."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F

from .._options import EMPTY_ROWS, EmptyRows, Precision, require_flags, require_precision
from . import _functional as core
from . import _inputs as inputs
from . import _layer_pass as passes
from . import _symbolic as symbolic
from ._rules import Options
from ._shapes import broadcasts, fits, guard_or_true


class GatedAttention(nn.Module):
    """Multi-head self-attention along one axis of an input with any number of dimensions (Jumper et al. 2021, supplementary algorithms 7, 8, 13, 14 and 19).

    ::

        q, k, v = linear_q(x), linear_k(x), linear_v(x)                     split into heads
        y       = softmax(q k^T / sqrt(c) + bias, attended keys) v          merged heads
        out     = linear_o(sigmoid(linear_g(x)) * y)                        linear_o(y) when not gated

    Args:
        c_in: width of the input and of the output.
        c: width of one head.
        heads: N, the number of heads.
        axis: the dimension of the input along which positions attend to each other; not the last dimension, which is the width.
        gated: True: the merged heads are multiplied by sigmoid(linear_g(x)).
        is_global: True: global attention: each sequence has one query, the mean of its queries, and one key/value head. Without a gate the output has an extent
            of 1 along the axis. With a gate the output has all positions: the result of the one query is multiplied by the gate of each position.
        use_bias_for_embeddings: True: linear_q, linear_k and linear_v have biases. linear_o and linear_g always have biases.
        query_mean: the positions over which the mean of a global query is taken. ``"all"``: all positions. ``"attended"``: the positions where attend_keys is
            True, as in AlphaFold's code of algorithm 19.
        dropout: probability that an attention weight is dropped in training. torch's generator draws the seed of the bits.
        empty_rows: result of a query whose keys are all masked. ``"offset"``: the result of AlphaFold's code, which adds -1e9 to masked scores. In float64 this
            is the result without a mask. In the other dtypes the sum is rounded so coarsely (to multiples of 64 in float32) that all keys have p = 1/S; q, k
            and the bias still have gradients. ``"unmasked"``, ``"uniform"`` (p = 1/S without a gradient of the scores) and ``"zero"``: as in `polyhead.sdpa`.
        precision: precision of bfloat16 products of the attention, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.
        device, dtype: device and dtype of the parameters: the CPU, and float32, float64, float16 or bfloat16.

    Raises:
        ValueError: a width below 1, an axis of -1, a dropout outside of ``[0, 1]``, or an unknown word.
        TypeError: an argument of the wrong type.

    The parameters are ``weight`` and ``bias`` of linear_q, linear_k, linear_v, linear_o and linear_g, as in OpenFold and in the layout "alphafold" of
    `polyhead.load`. They are initialised like those of torch.nn.Linear.
    """

    precision: Precision = "native"  # for layers that were pickled before this attribute existed
    _usual = {"gated": False, "is_global": False, "query_mean": "all", "dropout": 0.0, "empty_rows": "offset", "precision": "native"}

    def __init__(
        self,
        c_in: int,
        c: int,
        heads: int,
        axis: int = -2,
        gated: bool = False,
        is_global: bool = False,
        *,
        use_bias_for_embeddings: bool = False,
        query_mean: Literal["all", "attended"] = "all",
        dropout: float = 0.0,
        empty_rows: Literal["offset"] | EmptyRows = "offset",
        precision: Precision = "native",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The docstring of the class `GatedAttention` describes the arguments."""
        super().__init__()
        for name, given in (("c_in", c_in), ("c", c), ("heads", heads), ("axis", axis)):
            if not isinstance(given, int) or isinstance(given, bool):
                raise TypeError(f"GatedAttention: {name} is of type {type(given).__name__}; it must be an int")
        if min(c_in, c, heads) < 1:
            raise ValueError(f"GatedAttention: c_in, c and heads are {c_in}, {c} and {heads}; they must be at least 1")
        if axis == -1:
            raise ValueError("GatedAttention: axis is -1, which is the width; attention runs along another dimension")
        if query_mean not in ("all", "attended"):
            raise ValueError(f"GatedAttention: query_mean is {query_mean!r}; it must be 'all' or 'attended'")
        if query_mean == "attended" and not is_global:
            raise ValueError("GatedAttention: query_mean is 'attended' without is_global; only a global query is a mean")
        if empty_rows not in ("offset", *EMPTY_ROWS):
            raise ValueError(f"GatedAttention: empty_rows is {empty_rows!r}; it must be one of 'offset', {', '.join(map(repr, EMPTY_ROWS))}")
        require_precision("GatedAttention", precision)
        if not 0 <= dropout <= 1:
            raise ValueError(f"GatedAttention: dropout is {dropout}; it must be a probability")
        self.c_in, self.c, self.heads, self.axis = c_in, c, heads, axis
        self.gated, self.is_global, self.query_mean, self.dropout, self.empty_rows = gated, is_global, query_mean, dropout, empty_rows
        self.precision = precision
        kv_heads = 1 if is_global else heads

        def linear(width_in: int, width_out: int, bias: bool) -> nn.Linear:
            return nn.Linear(width_in, width_out, bias=bias, device=device, dtype=dtype)

        self.linear_q = linear(c_in, heads * c, use_bias_for_embeddings)
        self.linear_k = linear(c_in, kv_heads * c, use_bias_for_embeddings)
        self.linear_v = linear(c_in, kv_heads * c, use_bias_for_embeddings)
        self.linear_o = linear(heads * c, c_in, True)
        self.linear_g = linear(c_in, heads * c, True) if gated else None

    def reset_parameters(self) -> None:
        """Initialises all parameters, as the constructor does. FSDP and Lightning call this method, also for layers that were made on the meta device."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    @overload
    def forward(
        self, x: Tensor, bias: Tensor | None = None, attend_keys: Tensor | None = None, return_attention_weights: Literal[False] = False, *,
        mask_like_input: bool | None = None,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, bias: Tensor | None = None, attend_keys: Tensor | None = None, *, return_attention_weights: Literal[True],
        mask_like_input: bool | None = None,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, bias: Tensor | None, attend_keys: Tensor | None, return_attention_weights: bool, *, mask_like_input: bool | None = None
    ) -> Tensor | tuple[Tensor, Tensor]: ...
    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        attend_keys: Tensor | None = None,
        return_attention_weights: bool = False,
        *,
        mask_like_input: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention along the axis of the layer.

        Args:
            x: ``[.., S at the axis, .., c_in]``. Below, ``*`` are the dimensions that are neither axis nor width, in the order that they have in x.
            bias: ``[T,S]``, ``[N,T,S]`` or ``[first of *,N,T,S]``, floating; T is S, or 1 for a global query. Leading dimensions of bias are the
                first dimensions of ``*``; the other dimensions of ``*`` share the bias. The gradient of bias has the shape of bias; no tensor
                ``[*,N,T,S]`` is made.
            attend_keys: bool, broadcasts to ``[*,S]``: the dimensions of x without its width, with the axis moved to the end. True = all queries may attend to
                the key. mask_like_input changes the order of dimensions.
            mask_like_input: the order of dimensions of attend_keys, if the axis is not -2. True: the order of x without its width, ``[.., S at the axis, ..]``,
                as in AlphaFold's ``pair_mask`` and ``msa_mask``. False: ``[*,S]``. None: ``[*,S]``, and an error if the shape fits the order of x too, as for a
                square table.
            return_attention_weights: also return the attention weights ``[*,N,T,S]``, in the dtype of x, before dropout.

        Returns:
            The output, shaped as x; for a global query without a gate its extent along the axis is 1. With return_attention_weights a tuple of the output and
            the attention weights, both with gradients.

        Raises:
            TypeError: a dtype, device or type that polyhead does not support, or tensors on several devices.
            ValueError: shapes that do not fit; or attend_keys has a shape that fits both orders of dimensions, and mask_like_input is None.
        """
        if isinstance(x, Proxy):
            return symbolic.node_of_module(self, x, bias, attend_keys, return_attention_weights, mask_like_input=mask_like_input)
        is_plain = passes.is_eager() and passes.is_plain(getattr(x, "dtype", None), (x,))
        if not is_plain or bias is not None or attend_keys is not None:
            if symbolic.is_traced((bias, attend_keys)):
                return symbolic.node_of_module(self, x, bias, attend_keys, return_attention_weights, mask_like_input=mask_like_input)  # type: ignore[no-any-return]
            inputs.require("GatedAttention", x=x)
            inputs.require_memory("GatedAttention", bias=bias, attend_keys=attend_keys)
            inputs.require_one_device("GatedAttention", x=x, bias=bias, attend_keys=attend_keys)
        axis = self.axis + x.dim() if self.axis < 0 else self.axis
        if x.dim() < 2 or not 0 <= axis < x.dim() - 1 or x.size(-1) != self.c_in:
            raise ValueError(f"GatedAttention: x is {list(x.shape)}; it must end with c_in = {self.c_in} and have an axis {self.axis} that is not the last")
        require_flags("GatedAttention", return_attention_weights=return_attention_weights)
        keep = self._keep(x, axis, attend_keys, mask_like_input)
        out, p = self._attend(x, axis, self._bias(x, axis, bias), keep, is_plain, return_attention_weights)
        return out if p is None else (out, p)

    if TYPE_CHECKING:  # torch declares the type of __call__ as Any
        __call__ = forward

    def extra_repr(self) -> str:
        """The arguments that repr() shows: sizes, and settings that differ from their defaults."""
        named = {name: getattr(self, name) for name, usual in self._usual.items() if getattr(self, name) != usual}
        return ", ".join([f"{self.c_in}, {self.c}, heads={self.heads}, axis={self.axis}", *(f"{name}={value!r}" for name, value in named.items())])

    def _attend(
        self, x: Tensor, axis: int, bias: Tensor | None, keep: Tensor | None, is_plain: bool, attention_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        dropout = float(self.dropout) if self.training else 0.0
        linears = (self.linear_q, self.linear_k, self.linear_v, self.linear_o, self.linear_g)
        empty_rows = self._empty_rows(x, keep) if is_plain else None  # the method reads the values of keep; torch.export cannot do this
        if is_plain and empty_rows is not None and not passes.is_watched(*linears):
            parameters = (*(x for layer in linears for x in ((None, None) if layer is None else (layer.weight, layer.bias))), None, None)
            if passes.is_plain(x.dtype, (bias, *parameters)) and passes.are_plain_masks((keep,)):
                mean = "off" if not self.is_global else "mean" if self.query_mean == "all" else "masked_mean"
                form = passes.form(
                    query_width=self.c_in, heads=self.heads, head_width=self.c, axis=axis - x.dim(), gate=self.linear_g is not None, global_query=mean,
                    dropout=dropout, empty_rows=empty_rows, precision=self.precision, dtype=x.dtype,
                )  # fmt: skip

                def by_torch(
                    x: Tensor, _k: None, _v: None, bias: Tensor | None, masks: dict[str, Tensor], parameters: tuple[Tensor | None, ...],
                    seed: Tensor | None
                ) -> tuple[Tensor, Tensor | None]:
                    return self._by_torch(_named(parameters), x, axis, bias, masks.get("attend_keys"), dropout, attention_weights, seed)

                return passes.run(
                    form, x, None, None, bias, parameters,
                    masks={} if keep is None else {"attend_keys": keep}, causal=None, dropout=dropout,
                    attention_weights="probability" if attention_weights else None, by_torch=by_torch,
                )  # fmt: skip
        weight = self.linear_q._parameters.get("weight")  # None for a quantized layer, whose weight is not a parameter
        inputs.require_one_device("GatedAttention", x=x, **{"linear_q.weight": weight})
        return self._by_torch(self, x, axis, bias, keep, dropout, attention_weights)

    def _empty_rows(self, x: Tensor, keep: Tensor | None) -> str | None:
        """The value of empty_rows to give to the library. None if the library has no equivalent: for "offset" with gradients and a sequence without keys,
        unless x is float64 (see `_offset`)."""
        if self.empty_rows != "offset" or keep is None:
            return self.empty_rows if keep is not None else "zero"
        if x.dtype == torch.float64:
            return "unmasked"
        return None if torch.is_grad_enabled() and not bool(keep.any(-1).all()) else "uniform"

    def _by_torch(
        self, of: Any, x: Tensor, axis: int, bias: Tensor | None, keep: Tensor | None, dropout: float, attention_weights: bool, seed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the projections by torch's operators, and the attention by polyhead's. of: the object that has the projections as attributes, usually this
        layer."""
        source = mean(x, axis, None if self.query_mean == "all" else keep) if self.is_global else x
        q, k, v = (self._split(linear(y), axis) for linear, y in ((of.linear_q, source), (of.linear_k, x), (of.linear_v, x)))
        options = Options(
            attend=None if keep is None else keep[..., None, None, :],
            bias=None if bias is None else bias.to(q.dtype),
            dropout=dropout,
            seed=seed,
            empty_rows=self.empty_rows,
            precision=self.precision,
            attention_weights=attention_weights,
        )
        y, _, p = core.attend_all(q, k, v, core.with_seed(q, options))
        y = y.transpose(-3, -2).movedim(-3, axis).flatten(-2)
        if of.linear_g is not None:
            y = y * torch.sigmoid(of.linear_g(x))
        return of.linear_o(y), p if attention_weights else None

    def __prepare_scriptable__(self) -> None:
        core.refuse_script(type(self).__name__)

    def _split(self, x: Tensor, axis: int) -> Tensor:
        """x, whose width is split into heads, as a view ``[*,N,T,c]``."""
        heads: Tensor = x.unflatten(-1, (-1, self.c))
        return heads.movedim(axis, -2)

    def _keep(self, x: Tensor, axis: int, attend_keys: Tensor | None, like_input: bool | None) -> Tensor | None:
        """attend_keys as ``[*,S]``."""
        if like_input is not None and not isinstance(like_input, bool):
            raise TypeError(
                f"GatedAttention: mask_like_input is of type {type(like_input).__name__}; it must be True, False or None, and says in which order attend_keys has its "
                "dimensions. A mask is given as attend_keys=mask, mask_like_input=True"
            )
        if attend_keys is None:
            return None
        if not isinstance(attend_keys, Tensor) or attend_keys.dtype != torch.bool:
            given = attend_keys.dtype if isinstance(attend_keys, Tensor) else type(attend_keys).__name__
            raise TypeError(f"GatedAttention: attend_keys is {given}; it must be a bool tensor, True = may be attended to")
        shape, expected, positions = attend_keys.shape, (*x.shape[:axis], *x.shape[axis + 1 : -1], x.size(axis)), x.shape[:-1]
        if like_input:
            try:
                return attend_keys.expand(positions).movedim(axis, -1)
            except RuntimeError:
                raise ValueError(
                    f"GatedAttention: attend_keys is {list(shape)}; like x without its width it must broadcast to {list(positions)}, S at axis {axis}"
                ) from None
        # An extent of 1 is broadcast, so it has the same meaning in both orders of dimensions.
        if like_input is None and axis < x.dim() - 2 and any(guard_or_true(n > 1) for n in shape[axis - len(positions) :]) and broadcasts(shape, positions):
            both = broadcasts(shape, expected)
            raise ValueError(
                f"GatedAttention: attend_keys is {list(shape)}, which {'may be' if both else 'is not'} [*,S] = {list(expected)}, with axis {axis} of x moved last, "
                f"{'or have' if both else 'but has'} the order of x, {list(positions)}; say {'which: mask_like_input=False or' if both else 'so:'} mask_like_input=True"
            )
        try:
            return attend_keys.expand(expected)
        except RuntimeError:
            raise ValueError(f"GatedAttention: attend_keys is {list(shape)}; it must broadcast to [*,S] = {list(expected)}") from None

    def _bias(self, x: Tensor, axis: int, bias: Tensor | None) -> Tensor | None:
        """The bias as ``[T,S]``, or as ``[*,N,T,S]`` with an extent of 1 for each dimension along which the bias is shared."""
        if bias is None:
            return None
        inputs.require("GatedAttention", bias=bias)
        lead, rank, keys = tuple(bias.shape[:-3]), x.dim() + 1, x.size(axis)
        others = (*x.shape[:axis], *x.shape[axis + 1 : -1])
        expected = (self.heads, 1 if self.is_global else keys, keys)
        if not 2 <= bias.dim() <= rank or not all(map(fits, lead, others)) or not broadcasts(bias.shape[-3:], expected):
            raise ValueError(
                f"GatedAttention: bias is {list(bias.shape)}; it must be [T,S], [N,T,S] or [first of *,N,T,S] with *,N,T,S = "
                f"{[*others, *expected]}"
            )
        if 2 < bias.dim() < rank:
            bias = bias.reshape(*lead, *(1,) * (rank - bias.dim()), *bias.shape[-3:])
        return bias


def mean(x: Tensor, axis: int, keep: Tensor | None) -> Tensor:
    """The mean of x along an axis, over the positions where keep ``[*,S]`` is True. A global query is projected from this mean. The axis may not be
    negative."""
    # mean(x W^T + b) = mean(x) W^T + b, so take the mean before the projection, which is then a smaller product.
    if keep is None:
        return x.mean(axis, keepdim=True)
    weight = keep.movedim(-1, axis).unsqueeze(-1)
    # Replace masked positions by 0: NaN or infinity times 0 would be NaN.
    total = torch.where(weight, x, 0).sum(axis, keepdim=True)
    return total / weight.sum(axis, keepdim=True).clamp(min=1).to(x.dtype)


def _named(parameters: tuple[Tensor | None, ...]) -> SimpleNamespace:
    """An object that has the projections as attributes linear_q, ..., as a layer has them. parameters: in the order of `_layer_pass`."""
    pairs = dict(zip("qkvog", zip(parameters[0:10:2], parameters[1:10:2])))
    return SimpleNamespace(**{f"linear_{x}": None if w is None else partial(F.linear, weight=w, bias=b) for x, (w, b) in pairs.items()})
