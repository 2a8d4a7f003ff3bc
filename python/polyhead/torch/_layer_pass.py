"""Passes of whole layers on plain tensors: one call into the library forward, and one backward.

The parameters are given with each call, and nothing is made of them that outlives it: an optimizer, load_state_dict or ``parameter.data`` may change them at
any time. What backward needs is saved as tensors, so that torch checks it for changes, frees it, and may recompute it (checkpoint).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from .. import _core
from ._eager import PLAIN, recorders, watched
from ._inputs import DTYPES

_INPUTS = 16  # query, key, value, bias; weight and bias of q, k, v, output and gate; bias_k and bias_v: as in python/bindings/layer_pass.cc
_LINEAR = (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)


@functools.lru_cache(maxsize=256)
def form(*, dtype: torch.dtype, **config: Any) -> _core.LayerForm:
    """A layer without parameters: the arguments of `polyhead.MultiHeadAttention`."""
    return _core.LayerForm(config | {"dtype": str(dtype).removeprefix("torch.")})


def is_eager() -> bool:
    """True in plain eager mode: without a compiler, tracer, functorch transform, mode, autocast or dual tensors."""
    return not watched() and not torch.is_autocast_enabled("cpu")


def is_plain(dtype: torch.dtype | None, tensors: Sequence[Tensor | None]) -> bool:
    """True if all tensors are dense, of this dtype (which polyhead must support), on the CPU, not empty, and of no subclass."""
    return dtype in DTYPES and _all_plain(dtype, tensors)


def are_plain_masks(tensors: Sequence[Tensor | None]) -> bool:
    """The same for boolean masks."""
    return _all_plain(torch.bool, tensors)


def _all_plain(dtype: torch.dtype | None, tensors: Sequence[Tensor | None]) -> bool:
    for x in tensors:
        if x is not None and (
            type(x) not in PLAIN or x.dtype != dtype or not x.is_cpu or x.layout != torch.strided or x.is_nested or x.is_neg() or x.numel() == 0
        ):
            return False
    return True


def is_watched(*layers: nn.Module | None) -> bool:
    """Whether something may watch or change a call of these layers of torch: another class (quantized, parametrized, an adapter), or hooks."""
    given = [layer for layer in layers if layer is not None]
    return any([type(layer) not in _LINEAR for layer in given]) or has_hooks(*given)


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of these is more than a call of its class's forward: hooks of its own or of all modules, or a forward of its own."""
    if hooks_of_all._global_forward_hooks or hooks_of_all._global_forward_pre_hooks or hooks_of_all._global_backward_hooks or hooks_of_all._global_backward_pre_hooks:
        return True
    for module in modules:
        own = module.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"] or "forward" in own:
            return True
    return False


class Pass(NamedTuple):
    """The arguments of a pass, except its differentiable tensors."""

    form: _core.LayerForm
    places: tuple[int, ...]  # indices of the given tensors, among all tensors that a layer may have
    masks: dict[str, Any]  # boolean
    settings: dict[str, Any]  # the other keyword arguments of `polyhead.MultiHeadAttention.forward`
    attention_weights: str | None  # "probability" or "dropped": which attention weights are returned
    by_torch: Callable[..., tuple[Tensor, Tensor | None]]  # the same pass in torch's operators: (query, key, value, bias, masks, parameters, seed)
    seed: Tensor | None  # seed of dropout

    def every(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any], tuple[Any, ...]]:
        """query, key, value, bias, options and parameters, from the tensors at `places`."""
        every: list[Any] = [None] * _INPUTS
        for place, tensor in zip(self.places, tensors):
            every[place] = tensor
        query, key, value, bias, *parameters = every
        return query, key, value, bias, self.settings | self.masks | ({} if bias is None else {"bias": bias}), tuple(parameters)


def run(
    layer: _core.LayerForm, query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, parameters: tuple[Tensor | None, ...], *,
    masks: dict[str, Tensor], causal: str | None, dropout: float, attention_weights: Literal["probability", "dropped"] | None,
    by_torch: Callable[..., tuple[Tensor, Tensor | None]],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The output and, if asked for, the attention weights ``[*,N,T,S']`` before or after dropout. key: None is query; value: None is key. by_torch: as in
    `Pass`."""
    settings: dict[str, Any] = {}
    seed = None
    if causal is not None:
        settings["causal"] = causal
    if dropout > 0:
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64)
        settings |= {"training": True, "seed": int(seed)}
    if "attend_keys" in masks or "block_keys" in masks:  # as [*,S]
        settings["mask_like_input"] = False
    threads = torch.get_num_threads()  # 1 in the workers of a DataLoader
    if threads < _core.num_threads():
        settings["num_threads"] = threads
    every = (query, key, value, bias, *parameters)
    places = tuple([i for i, x in enumerate(every) if x is not None])
    this = Pass(layer, places, masks, settings, attention_weights, by_torch, seed)
    tensors = [x for x in every if x is not None]
    if recorders:  # recorders see q and k only if torch's operators compute them
        with torch.no_grad():
            by_torch(query, key, value, bias, masks, parameters, seed)
    if torch.is_grad_enabled() and any([x.requires_grad for x in tensors]):
        return _apply(this, *tensors)  # type: ignore[no-any-return]
    return forward(this, tensors, False)[:2]


def forward(this: Pass, tensors: Sequence[Tensor], save: bool) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...] | None]:
    """The output, the attention weights or None, and the activations if they are to be saved."""
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
        ctx.this = this._replace(masks=dict.fromkeys(this.masks))  # let torch free the masks with the saved tensors
        # Save a detached tensor instead of a parameter: its .data may be replaced, and the gradients must be those of this pass.
        kept = [x.detach() if type(x) is nn.Parameter else x for x in tensors]
        ctx.save_for_backward(*kept, *this.masks.values(), *activations)  # type: ignore[misc]
        ctx.set_materialize_grads(False)
        return out, weights

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_weights: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        count, masks = len(wanted), len(ctx.this.masks)
        saved = ctx.saved_tensors  # once: checkpoint gives each tensor once
        tensors, activations = saved[:count], saved[count + masks :]
        this = ctx.this._replace(masks=dict(zip(ctx.this.masks, saved[count:])))
        if torch.is_grad_enabled():  # create_graph: a parameter itself
            tensors = tuple(getattr(node, "variable", x) for (node, _), x in zip(ctx.next_functions, tensors))
        if d_weights is not None or torch.is_grad_enabled() or d_out is not None and not _is_memory(d_out):
            return None, *_gradients_by_torch(this, tensors, wanted, d_out, d_weights)
        if d_out is None:
            return (None,) * (1 + count)
        return None, *backward(this, tensors, activations, wanted, d_out)


def _is_memory(d_out: Tensor) -> bool:
    # torch.autograd.grad with is_grads_batched has a vmap of its own, which is no transform of functorch.
    return not watched() and is_plain(d_out.dtype, (d_out,)) and not torch._C._functorch.is_legacy_batchedtensor(d_out)


# Function.apply without its part for transforms, which takes time.
_apply: Any = super(torch.autograd.Function, _Pass).apply


def _gradients_by_torch(this: Pass, tensors: Sequence[Tensor], wanted: Sequence[bool], d_out: Tensor | None, d_weights: Tensor | None) -> list[Tensor | None]:
    """Gradients of a pass that is computed again by torch's operators: with gradients of the attention weights, with create_graph, or under vmap."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):  # the pass was without autocast
        # A tensor may be several of the inputs, so each gets a view.
        twins = [x.view_as(x) if create_graph else x.detach().requires_grad_(want) for x, want in zip(tensors, wanted)]
        query, key, value, bias, _, parameters = this.every(twins)
        outputs = this.by_torch(query, key, value, bias, this.masks, parameters, this.seed)
        given = [(x, d) for x, d in zip(outputs, (d_out, d_weights)) if x is not None and d is not None and x.requires_grad]
        if not given:  # the attention weights alone, which values and the output projection do not change
            return [None] * len(wanted)
        sources = [x for x, want in zip(twins, wanted) if want]
        grads = iter(torch.autograd.grad([x for x, _ in given], sources, [d for _, d in given], create_graph=create_graph, allow_unused=True))
        return [next(grads) if want else None for want in wanted]
