"""Passes of whole layers on plain tensors: one call of the library computes the forward pass, and one call the backward pass.

The parameters are given with each call, and nothing computed from them is kept after the call, because an optimizer, load_state_dict or ``parameter.data`` may
change them at any time. torch saves the tensors that the backward pass needs. So torch can detect changes of these tensors, free them, and recompute them
(checkpoint).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from .. import _core
from ._eager import PLAIN, recorders, watched
from ._ops import thread_limit
from ._inputs import DTYPES

_INPUTS = 16  # query, key, value, bias; weight and bias of q, k, v, output and gate; bias_k and bias_v; in the order of python/bindings/layer_pass.cc
_LINEAR = (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)


@functools.lru_cache(maxsize=256)
def form(*, dtype: torch.dtype, **config: Any) -> _core.LayerForm:
    """A layer without its parameters. config: the arguments of `polyhead.MultiHeadAttention`."""
    return _core.LayerForm(config | {"dtype": str(dtype).removeprefix("torch.")})


def is_eager() -> bool:
    """True in plain eager mode: without a compiler, tracer, functorch transform, mode, autocast or dual tensors."""
    return not watched() and not torch.is_autocast_enabled("cpu")


def is_plain(dtype: torch.dtype | None, tensors: Sequence[Tensor | None]) -> bool:
    """True if all tensors are dense, of this dtype (which polyhead must support), on the CPU, not empty, and of no subclass."""
    return dtype in DTYPES and _all_plain(dtype, tensors)


def are_plain_masks(tensors: Sequence[Tensor | None]) -> bool:
    """True if all masks are dense, bool, on the CPU, not empty, and of no subclass."""
    return _all_plain(torch.bool, tensors)


def _all_plain(dtype: torch.dtype | None, tensors: Sequence[Tensor | None]) -> bool:
    for x in tensors:
        if x is not None and (
            type(x) not in PLAIN or x.dtype != dtype or not x.is_cpu or x.layout != torch.strided or x.is_nested or x.is_neg() or x.numel() == 0
        ):
            return False
    return True


def is_watched(*layers: nn.Module | None) -> bool:
    """Whether a call of one of these linear layers may do more than torch's linear layer does. It may if the layer is of another class (quantized,
    parametrized, an adapter) or has hooks."""
    given = [layer for layer in layers if layer is not None]
    return any([type(layer) not in _LINEAR for layer in given]) or has_hooks(*given)


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of these modules does more than the method forward of its class. It does if the module or torch has hooks, or if the object has its
    own attribute `forward`."""
    if hooks_of_all._global_forward_hooks or hooks_of_all._global_forward_pre_hooks or hooks_of_all._global_backward_hooks or hooks_of_all._global_backward_pre_hooks:
        return True
    for module in modules:
        own = module.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"] or "forward" in own:
            return True
    return False


class Pass(NamedTuple):
    """The arguments of a pass, except the tensors that may have gradients."""

    form: _core.LayerForm
    places: tuple[int, ...]  # for each given tensor, its index among the tensors that a layer may have, of which there are _INPUTS
    masks: dict[str, Any]  # the boolean masks, by the name of their argument
    settings: dict[str, Any]  # the other keyword arguments of `polyhead.MultiHeadAttention.forward`
    attention_weights: str | None  # which attention weights to return: "probability" or "dropped"
    by_torch: Callable[..., tuple[Tensor, Tensor | None]]  # computes the pass by torch's operators: (query, key, value, bias, masks, parameters, seed)
    seed: Tensor | None  # seed of dropout

    def every(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any], tuple[Any, ...]]:
        """Returns (query, key, value, bias, options, parameters). An input that was not given is None; a given bias is also in options."""
        every: list[Any] = [None] * _INPUTS
        for place, tensor in zip(self.places, tensors):
            every[place] = tensor
        query, key, value, bias, *parameters = every
        return query, key, value, bias, self.settings | self.masks | ({} if bias is None else {"bias": bias}), tuple(parameters)


def in_rows(bias: Tensor, sequences: int) -> Tensor:
    """The same bias, with the keys of a row next to each other in memory, where a copy saves time: the kernels read strided rows slowly, and read a bias that
    sequences or heads share once for each of them. A bias made of a pair tensor by a permutation is strided. Broadcast dimensions stay broadcast. Views stay as they
    are if they overlap themselves, if they are broadcast and require a gradient, or if they are a transposed ``[*,N,T,S]`` that nothing shares."""
    shape, strides = bias.shape, bias.stride()
    if not shape or shape[-1] == 1 or strides[-1] <= 1:
        return bias
    broadcast, reach, elements = False, 1, 1
    for stride, extent in sorted(zip(strides, shape)):
        if stride == 0:
            broadcast = broadcast or extent > 1
        elif extent > 1:
            if stride < reach:
                return bias
            reach += (extent - 1) * stride
            elements *= extent
    heads = shape[-3] if len(shape) > 2 else 1
    if heads > 1 and strides[-2] == 1 and elements == sequences * heads * shape[-2] * shape[-1]:
        return bias
    if not broadcast:
        return bias.contiguous()
    if bias.requires_grad:  # each element of the view has a gradient
        return bias
    return bias[tuple([slice(0, 1) if stride == 0 else slice(None) for stride in strides])].contiguous().expand(shape)


def run(
    layer: _core.LayerForm, query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, parameters: tuple[Tensor | None, ...], *,
    masks: dict[str, Tensor], causal: str | None, dropout: float, attention_weights: Literal["probability", "dropped"] | None,
    by_torch: Callable[..., tuple[Tensor, Tensor | None]],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Runs a pass. Returns the output and, if requested, the attention weights ``[*,N,T,S']`` before dropout ("probability") or after dropout ("dropped"). If
    key is None, query is used; if value is None, key is used. by_torch is explained in `Pass`."""
    settings: dict[str, Any] = {}
    seed = None
    if bias is not None:
        bias = in_rows(bias, math.prod(query.shape[:-2]))
    if causal is not None:
        settings["causal"] = causal
    if dropout > 0:
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64)
        settings |= {"training": True, "seed": int(seed)}
    if "attend_keys" in masks or "block_keys" in masks:  # the masks are [*,S]
        settings["mask_like_input"] = False
    if (threads := thread_limit()) is not None:
        settings["num_threads"] = threads
    every = (query, key, value, bias, *parameters)
    places = tuple([i for i, x in enumerate(every) if x is not None])
    this = Pass(layer, places, masks, settings, attention_weights, by_torch, seed)
    tensors = [x for x in every if x is not None]
    if recorders:  # a capture needs q and k, which exist only if torch's operators compute the projections
        with torch.no_grad():
            by_torch(query, key, value, bias, masks, parameters, seed)
    if torch.is_grad_enabled() and any([x.requires_grad for x in tensors]):
        return _apply(this, *tensors)  # type: ignore[no-any-return]
    return forward(this, tensors, False)[:2]


def forward(this: Pass, tensors: Sequence[Tensor], save: bool) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...] | None]:
    """Returns the output, the attention weights or None, and, if they are to be saved, the activations."""
    query, key, value, _, options, parameters = this.every(tensors)
    return this.form.forward(query, key, value, parameters, options, save, this.attention_weights)


def backward(this: Pass, tensors: Sequence[Tensor], activations: Sequence[Tensor | None], wanted: Sequence[bool], d_out: Tensor) -> list[Tensor | None]:
    """The gradients of the tensors."""
    query, key, value, _, options, parameters = this.every(tensors)
    every_wanted: list[bool] = [False] * _INPUTS
    for place, want in zip(this.places, wanted):
        every_wanted[place] = want
    *grads, of_parameters = this.form.backward(
        d_out, query, key, value, parameters, options, tuple(activations), tuple(every_wanted[:4]), any(every_wanted[4:])
    )
    every = (*grads, *(of_parameters or ()))
    return [every[place] if want else None for place, want in zip(this.places, wanted)]


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, this: Pass, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        out, weights, activations = forward(this, tensors, True)
        ctx.this = this._replace(masks=dict.fromkeys(this.masks))  # keep only the names of the masks: torch frees the masks with the saved tensors
        # Save a detached tensor instead of a parameter: if the program replaces the parameter's .data, the gradients must still be computed with the values of
        # this pass.
        kept = [x.detach() if type(x) is nn.Parameter else x for x in tensors]
        ctx.save_for_backward(*kept, *this.masks.values(), *activations)  # type: ignore[misc]
        ctx.set_materialize_grads(False)
        return out, weights

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_weights: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        count, masks = len(wanted), len(ctx.this.masks)
        saved = ctx.saved_tensors  # read saved_tensors only once: under torch's checkpoint a second read fails
        tensors, activations = saved[:count], saved[count + masks :]
        this = ctx.this._replace(masks=dict(zip(ctx.this.masks, saved[count:])))
        if torch.is_grad_enabled():  # with create_graph, use the parameter itself instead of the detached tensor
            tensors = tuple(getattr(node, "variable", x) for (node, _), x in zip(ctx.next_functions, tensors))
        if d_weights is not None or torch.is_grad_enabled() or d_out is not None and not _is_memory(d_out):
            return None, *_gradients_by_torch(this, tensors, wanted, d_out, d_weights)
        if d_out is None:
            return (None,) * (1 + count)
        return None, *backward(this, tensors, activations, wanted, d_out)


def _is_memory(d_out: Tensor) -> bool:
    # torch.autograd.grad with is_grads_batched uses an older vmap, which `watched` does not detect.
    return not watched() and is_plain(d_out.dtype, (d_out,)) and not torch._C._functorch.is_legacy_batchedtensor(d_out)


# Function.apply of the base class, which leaves out the time-consuming support of functorch transforms.
_apply: Any = super(torch.autograd.Function, _Pass).apply


def _gradients_by_torch(this: Pass, tensors: Sequence[Tensor], wanted: Sequence[bool], d_out: Tensor | None, d_weights: Tensor | None) -> list[Tensor | None]:
    """Gradients of a pass that is computed again by torch's operators. These are used with create_graph, under vmap, and for gradients of the attention
    weights."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):  # autocast is off, as in the pass itself
        # The same tensor may be several inputs; a view for each input keeps their gradients apart.
        twins = [x.view_as(x) if create_graph else x.detach().requires_grad_(want) for x, want in zip(tensors, wanted)]
        query, key, value, bias, _, parameters = this.every(twins)
        outputs = this.by_torch(query, key, value, bias, this.masks, parameters, this.seed)
        given = [(x, d) for x, d in zip(outputs, (d_out, d_weights)) if x is not None and d is not None and x.requires_grad]
        # `given` is empty if, for example, only the attention weights have a gradient, and gradients are requested only for inputs that do not change them:
        # the values and the parameters of the value and output projections.
        if not given:
            return [None] * len(wanted)
        sources = [x for x, want in zip(twins, wanted) if want]
        grads = iter(torch.autograd.grad([x for x, _ in given], sources, [d for _, d in given], create_graph=create_graph, allow_unused=True))
        return [next(grads) if want else None for want in wanted]
