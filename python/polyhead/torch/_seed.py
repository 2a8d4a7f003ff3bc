"""Draws the seed of dropout, and makes torch.compile save it for the backward pass."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.compiler import is_compiling
from torch.fx import traceback


def _draw(device: torch.device) -> Tensor:
    # torch's generator draws the seed. So torch.manual_seed, fork_rng and the recomputation of checkpoint have the same effect as on torch's own dropout.
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


def _draw_once(device: torch.device) -> Tensor:
    """Draws a seed while torch.compile traces, and marks the seed as a value to save for the backward pass. With an activation memory budget, torch may compute
    the forward pass again in the backward pass. A newly drawn seed would give gradients for other dropout bits."""
    from torch.utils.checkpoint import CheckpointPolicy  # imported here, because the oldest supported torch does not have this module

    meta = traceback.current_meta
    if (meta.get("custom") or {}).get("_region_activation_memory_budget") == 0 and torch.is_grad_enabled():
        warnings.warn(
            "polyhead: dropout with torch.autograd.graph.region_activation_memory_budget(0): torch draws the seed again in the backward pass, and the gradients "
            "are those of other dropout bits; they are right with a budget above 0", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    before = meta.get("recompute")
    meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        seed = _draw(device)
    finally:
        if before is None:
            del meta["recompute"]
        else:
            meta["recompute"] = before
    if getattr(functorch_config, "activation_memory_budget", 1) == 0:
        _allow_marks()
    return seed


def _allow_marks() -> None:
    """Sets an activation memory budget just above 0. With a budget of 0, torch saves only the inputs and ignores marks. With this budget it saves the inputs
    and the marked values, and nothing else. A budget that is set at one node of the graph holds for the whole graph."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    if mode is not None:
        next(reversed(mode.tracer.graph.nodes)).meta["memory_budget"] = 1e-9


# torch.compile decomposes this operator only when it traces the gradient, so it calls _draw_once then. This is necessary, because torch keeps only the marks of
# operators that are made while it traces the gradient.
_library = torch.library.Library("polyhead", "FRAGMENT")
_library.define("dropout_seed(Device device) -> Tensor")
_library.impl("dropout_seed", _draw_once, "CompositeImplicitAutograd")


def draw(device: torch.device) -> Tensor:
    """Draws a seed, int64 []."""
    seed: Tensor = torch.ops.polyhead.dropout_seed(device) if is_compiling() else _draw(device)
    return seed
