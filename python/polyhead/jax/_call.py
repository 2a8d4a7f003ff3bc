"""What the primitives of attention compute with, except arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._score_fn import Rule


class Call(NamedTuple):
    """The parameters of a primitive: everything that it computes with except arrays. bindings/jax.cc reads the same from a text."""

    operands: tuple[str, ...]  # their names, q, k and v first
    options: tuple[tuple[str, Any], ...]  # those of `polyhead.sdpa` that are no arrays
    layout: str = "NTH"  # or "TNH", of q, k, v and out
    attention_weights: bool = False
    rule: Rule | None = None  # of a score_fn, whose captured arrays are the operands captured0, captured1, ...
    levels: int = 0  # number of enclosing jax.vmap: each array has this many leading dimensions, of extent 1 where it is not mapped

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return dict(self.options).get(name, default)

    def without(self, *names: str) -> Call:
        """The call without some operands and options."""
        return self._replace(
            operands=tuple(name for name in self.operands if name not in names), options=tuple(item for item in self.options if item[0] not in names)
        )
