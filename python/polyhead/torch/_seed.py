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
    if getattr(functorch_config, "activation_memory_budget", 1) == 0 and torch.is_grad_enabled():  # then torch saves inputs alone, whatever is marked
        warnings.warn(
            "polyhead: dropout with torch._functorch.config.activation_memory_budget = 0: torch draws the seed again in the backward pass, and the gradients "
            "are those of other dropout bits; they are right with a budget above 0", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    from torch.utils.checkpoint import CheckpointPolicy  # newer than the oldest torch here

    meta = traceback.current_meta
    before = meta.get("recompute")
    meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        return _draw(device)
    finally:
        if before is None:
            del meta["recompute"]
        else:
            meta["recompute"] = before


# An operator that torch.compile takes apart when it traces the gradient: it keeps the mark of an operator that is made then.
_library = torch.library.Library("polyhead", "FRAGMENT")
_library.define("dropout_seed(Device device) -> Tensor")
_library.impl("dropout_seed", _draw_once, "CompositeImplicitAutograd")


def draw(device: torch.device) -> Tensor:
    """int64 []."""
    seed: Tensor = torch.ops.polyhead.dropout_seed(device) if is_compiling() else _draw(device)
    return seed
