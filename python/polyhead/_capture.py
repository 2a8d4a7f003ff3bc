"""The result of `capture`: the attention calls of a PyTorch model, with their maps or statistics."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._attention import TopKeys

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Capture", "CapturedCall", "MissedCall"]

KEPT = ("maps", "statistics", "top_keys", "pooled_map")


class CapturedCall(NamedTuple):
    """One call of attention that `capture` recorded. A field that was not kept is None."""

    name: str
    """Name of the module that made the call, as in ``model.named_modules()``."""
    operation: str
    """How the call was computed: the name of an operator of torch, or ``"softmax"`` where the module multiplies softmax and values itself."""
    shape: tuple[int, ...]
    """``(B, N, T, S)``, with further dimensions before B if the call has them."""
    maps: Tensor | None = None
    """Attention weights ``[B,N,T,S]`` before dropout, on the CPU; float64 if the call computes in float64, else float32."""
    statistics: dict[str, Tensor] | None = None
    """The result of the function `head_statistics`: arrays ``[B,N]`` by name."""
    top_keys: TopKeys[Tensor] | None = None
    """The result of ``maps(top_k=...)``, ``[B,N,T,k]``."""
    pooled_map: Tensor | None = None
    """The result of the function `pooled_map`, ``[B,N,height,width]``."""
    is_window: bool = False
    """True if the sequences are windows into which the module cuts a larger sequence, as the models Swin and SAM do."""

    @property
    def is_over_budget(self) -> bool:
        """True if the maps of this call were requested, but exceeded the budget."""
        return self.maps is None and self.statistics is not None and self.top_keys is not None and self.pooled_map is not None


class MissedCall(NamedTuple):
    """Attention that ran and could not be captured."""

    name: str
    """Name of the module, as in ``model.named_modules()``."""
    reason: str


class Capture:
    """The attention calls that `capture` recorded, in the order in which the model made them. `view` shows a Capture as a page. ``capture[i]``,
    ``len(capture)`` and a loop over the capture use the list ``calls``.

    Args:
        calls: the calls of attention.
        missed: attention that ran and could not be captured.
    """

    def __init__(self, calls: Collection[CapturedCall] = (), missed: Collection[MissedCall] = ()) -> None:
        self.calls = list(calls)
        self.missed = list(missed)
        self._recorder: AbstractContextManager[Any] | None = None  # the recorder, which is active inside the `with` block
        self._selected = ""  # end of the error message for a selection without calls
        self._whole: list[CapturedCall] = []  # in a selection: all calls of the original capture, which `view` needs to find the steps of a decoder

    def __enter__(self) -> Capture:
        if self._recorder is None:
            raise RuntimeError("this capture has no model; `with polyhead.capture(model) as captured:` makes a capture with a model")
        self._recorder.__enter__()
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._recorder is not None
        self._recorder.__exit__(error_type, error, trace)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_recorder": None}  # a copy or a pickle holds the calls but not the model

    def select(self, prefix: str) -> Capture:
        """The calls of the modules whose name starts with the prefix, such as ``"encoder."``.

        Args:
            prefix: the beginning of the modules' names.

        Returns:
            A `Capture` of these calls.

        Raises:
            TypeError: prefix is not a str.
        """
        if not isinstance(prefix, str):
            raise TypeError(f"prefix is of type {type(prefix).__name__}; it must be a str")
        selected = Capture([call for call in self.calls if call.name.startswith(prefix)], [missed for missed in self.missed if missed.name.startswith(prefix)])
        selected._whole = self._whole or self.calls
        if self.calls and not selected.calls:
            selected._selected = f": no name starts with {prefix!r}; there are {names_of(self.calls)}"
        return selected

    def layers(self) -> list[Tensor]:
        """The attention maps ``[B,N,T,S]`` of each call, in the form in which transformers returns attentions.

        Raises:
            ValueError: nothing was captured, a call has no maps, or the calls have different shapes; the message names the calls. `view` can show a capture
                without maps or with different shapes: its page has a tab for each shape, and shows pooled maps of calls that exceed the budget.
        """
        require_calls(self)
        without = [call for call in self.calls if call.maps is None]
        if without:
            pooled = "; view(captured) shows their pooled maps" if all(call.pooled_map is not None for call in without) else ""
            raise ValueError(f"the capture has no maps of {names_of(without)}: {why_no_maps(self, without)}{pooled}")
        shapes: dict[tuple[int, ...], list[CapturedCall]] = {}
        for call in self.calls:
            shapes.setdefault(call.shape, []).append(call)
        if len(shapes) > 1:
            listed = "; ".join(f"{list(shape)}: {names_of(calls)}" for shape, calls in shapes.items())
            raise ValueError(f"the calls have different shapes, {listed}; select(prefix) returns a capture of some calls, and view(captured) shows a tab for each shape")
        return [call.maps for call in self.calls if call.maps is not None]

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[CapturedCall]:
        return iter(self.calls)

    def __getitem__(self, index: int) -> CapturedCall:
        return self.calls[index]

    def __repr__(self) -> str:
        lines = [f"<polyhead.Capture of {len(self.calls)} calls, {len(self.missed)} missed"]
        for call in self.calls:
            kept = ", ".join(name for name in KEPT if getattr(call, name) is not None)
            lines.append(f"  {call.name or '(no module)'}  {call.operation}  {list(call.shape)}  {kept}{' (over the budget)' if call.is_over_budget else ''}")
        lines += [f"  missed: {name or '(no module)'}: {reason}" for name, reason in self.missed]
        return "\n".join(lines) + ">"


def names_of(calls: list[CapturedCall]) -> str:
    names = list(dict.fromkeys(call.name or "(no module)" for call in calls))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def require_calls(captured: Capture) -> None:
    """Raises ValueError for a capture without calls. The message says what to do."""
    if captured.calls:
        return
    if captured._selected:
        why = captured._selected
    elif captured.missed:
        why = "; missed: " + ", ".join(f"{name or 'the model'} ({reason})" for name, reason in captured.missed[:4])
    else:
        why = "; call the model inside of `with polyhead.capture(model) as captured:`"
    raise ValueError(f"the capture has no call of attention{why}")


def why_no_maps(captured: Capture, without: list[CapturedCall]) -> str:
    """Says why calls have no maps, and how to get some."""
    if not without[0].is_over_budget:
        return "keep did not name 'maps'; use capture(model, keep=['maps'])"
    needed = sum(math.prod(call.shape) * _bytes(call) for call in captured.calls)
    return f"they exceed the budget; capture(model, budget={needed}) has room for the maps of all {len(captured.calls)} calls"


def _bytes(call: CapturedCall) -> int:
    kept = call.maps if call.maps is not None else call.top_keys.probability if call.top_keys is not None else None
    return 4 if kept is None else kept.element_size()
