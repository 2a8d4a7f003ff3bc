"""The seed of dropout, which a backward pass needs again."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.compiler import is_compiling
from torch.fx import traceback


def _draw(device: torch.device) -> Tensor:
    # torch's generator gives the seed, so that torch.manual_seed, fork_rng and checkpoint's recomputation act as on torch's own dropout.
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


def _draw_once(device: torch.device) -> Tensor:
    """While torch.compile traces: a seed that is saved for the backward pass. With an activation memory budget torch may compute the forward pass again there,
    and another seed would give a gradient of other dropout bits."""
    from torch.utils.checkpoint import CheckpointPolicy  # newer than the oldest torch here

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
    """With a budget of 0 torch saves the inputs alone, whatever is marked. A budget just above 0, which a node of the graph sets for all of it, saves nothing else but
    what is marked."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    if mode is not None:
        next(reversed(mode.tracer.graph.nodes)).meta["memory_budget"] = 1e-9


# An operator that torch.compile takes apart when it traces the gradient: it keeps the mark of an operator that is made then.
_library = torch.library.Library("polyhead", "FRAGMENT")
_library.define("dropout_seed(Device device) -> Tensor")
_library.impl("dropout_seed", _draw_once, "CompositeImplicitAutograd")


def draw(device: torch.device) -> Tensor:
    """int64 []."""
    seed: Tensor = torch.ops.polyhead.dropout_seed(device) if is_compiling() else _draw(device)
    return seed
