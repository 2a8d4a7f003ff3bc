"""Records attention maps, or statistics of attention maps, while a model of PyTorch runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ._capture import KEPT, Capture

__all__ = ["capture"]


def capture(
    model: Any = None, *, keep: Collection[str] = ("maps",), budget: int = 2**30, top_k: int = 16, pooled: tuple[int, int] = (64, 64)
) -> Capture:
    """Records the attention maps of a model of PyTorch while it runs, without changing its output.

    ::

        with polyhead.capture(model) as captured:
            model(**inputs)
        polyhead.view(captured, tokens=words)

    The capture recognises torch's scaled_dot_product_attention, nn.MultiheadAttention, nn.TransformerEncoderLayer, the functions and layers of polyhead.torch,
    models of transformers that use any of these, and code that multiplies a softmax along the keys by values (the "eager" attention of transformers). The maps
    of such code are the softmax that the model made; all other maps are computed from q and k, as `maps` does. The model's results have the same bits as
    without the capture.

    For code that multiplies a softmax by values itself, the capture has limits. It takes a softmax over features (linear attention) for a softmax over keys. If
    the model multiplies the softmax by a mask of its own, the product is recorded as the map, even if that mask is a dropout. A softmax [L,T,S] is recorded as
    L sequences of one head. If the model changes the softmax in another way, or multiplies only a part of it by values, the call is listed in ``missed``.

    Args:
        model: a torch.nn.Module. A call is named after the submodule that makes it. None: calls have no names.
        keep: what to keep of each call: ``"maps"``, ``"statistics"`` (`head_statistics`), ``"top_keys"``, ``"pooled_map"``. The memory of maps grows with T S;
            the memory of the other three grows with T.
        budget: bytes for the maps of all calls together. For a call whose maps do not fit, statistics, top_keys and pooled_map are kept instead.
        top_k: how many keys of each query ``"top_keys"`` keeps; all keys if there are fewer.
        pooled: height and width of the pooled maps; reduced to T and S if these are smaller.

    Returns:
        A `Capture`, to be used in a ``with`` statement.

    Raises:
        TypeError, ValueError: an argument of a wrong type or value.
        NotImplementedError: the model, or a part of it, is compiled: attention inside of compiled code cannot be recorded.
        ImportError: torch is not installed.

    Attention that ran and was not captured is listed in ``missed`` with its module and the reason: modules with attention in their name in which no call was
    recognised, unknown operators, nested tensors, tensors without memory. An exception are the nested tensors that nn.TransformerEncoder makes of padded texts:
    they are captured, with rows of 0 for the padding. Calls in other threads, and calls that a backward pass repeats (checkpoint), are not recorded.
    """
    if not isinstance(keep, (tuple, list, set, frozenset)):
        raise TypeError(f"keep is of type {type(keep).__name__}; it must be a sequence of {', '.join(map(repr, KEPT))}")
    if not keep or any(not isinstance(name, str) or name not in KEPT for name in keep):
        raise ValueError("keep must hold one or more of " + ", ".join(map(repr, KEPT)))
    if not isinstance(pooled, (tuple, list)):
        raise TypeError(f"pooled is of type {type(pooled).__name__}; it must be (height, width)")
    if len(pooled) != 2:
        raise ValueError(f"pooled has {len(pooled)} numbers; it must be (height, width)")
    for name, number, least in (("budget", budget, 0), ("top_k", top_k, 1), ("pooled", pooled[0], 1), ("pooled", pooled[1], 1)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} has a number of type {type(number).__name__}; it must be an int")
        if number < least:
            raise ValueError(f"{name} has the number {number}; it must be {least} or more")
    from .torch._recorder import Recorder

    captured = Capture()
    captured._recorder = Recorder(model, captured.calls, captured.missed, frozenset(keep), budget, top_k, (pooled[0], pooled[1]))
    return captured
