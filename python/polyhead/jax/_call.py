"""Defines the parameters of attention's primitives: all inputs that are not arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._score_fn import Rule


class Call(NamedTuple):
    """The parameters of a primitive: all of its inputs that are not arrays. bindings/jax.cc receives them as a text."""

    operands: tuple[str, ...]  # names of the operands; q, k and v come first
    options: tuple[tuple[str, Any], ...]  # the options of `polyhead.sdpa` that are not arrays, as (name, value)
    layout: str = "NTH"  # layout of q, k, v and out: "NTH" or "TNH"
    attention_weights: bool = False
    rule: Rule | None = None  # the rule of a score_fn; the arrays that the score_fn captures are the operands captured0, captured1, ...
    levels: int = 0  # number of enclosing jax.vmap; each array begins with one dimension for each vmap, of extent 1 if the vmap does not map the array

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return dict(self.options).get(name, default)

    def without(self, *names: str) -> Call:
        """The same call without the given operands and options."""
        return self._replace(
            operands=tuple(name for name in self.operands if name not in names), options=tuple(item for item in self.options if item[0] not in names)
        )
