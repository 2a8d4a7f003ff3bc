"""Types of arguments, for readers and type checkers."""

from __future__ import annotations

from typing import Any, Literal, Union

Array = Any
"""NumPy array, PyTorch tensor, JAX CPU array, or any object with the buffer protocol or DLPack."""

Causal = Union[Literal["top_left", "bottom_right"], int, None]
"""Query ``t`` keeps keys ``s <= t + offset``: ``"top_left"`` is offset 0, ``"bottom_right"`` is ``S - T``, an int is the offset itself."""

Window = Union[tuple[Union[int, None], Union[int, None]], None]
"""``(left, right)``: keeps ``-left <= s - (t + offset) <= right``; None leaves a side open. Counted from the causal diagonal, else bottom right."""

EmptyRows = Literal["zero", "uniform", "unmasked"]
"""What a row without any key gives: ``"zero"`` (out 0, lse -inf, no gradient), ``"uniform"`` (every key 1/S, as the fill "masked = -1e6"
behaves), ``"unmasked"`` (as the offset "masked - 1e8" behaves). A row whose kept scores are all -inf is zero in every mode."""

MapValue = Literal["scaled_score", "capped_score", "score", "probability", "dropped"]
"""Where in the formula a map is read: ``scale <q,k>``, after the softcap, after bias and mask (-inf where masked), after the softmax, after
dropout."""
