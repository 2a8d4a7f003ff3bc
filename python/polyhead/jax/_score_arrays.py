"""The arrays that a score_fn computes with: arrays of registers, and parts of captured arrays that start at computed indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from ._score_registers import TABLES, UNBOUNDED, Registers, refuse

MOST_ELEMENTS = 64  # largest number of elements of an array that is computed element by element


class View(NamedTuple):
    """A rectangular part of a captured array, whose first indices are computed by the score program. `starts` has for each dimension of `captured` the register
    that holds the first index, or None if this index is 0. Dimension i of the part is dimension dims[i] of `captured`; dims[i] is None for a dimension of
    extent 1 that broadcasting added."""

    captured: Any
    starts: tuple[int | None, ...]
    dims: tuple[int | None, ...]
    shape: tuple[int, ...]


class Arrays(Registers):
    """`Registers` with arrays too. A value that depends on the arguments of score_fn is a NumPy array of registers, or a `View`. Any other value is an array of
    JAX, which JAX computes and differentiates."""

    def known(self, value: Any, aval: Any) -> Any:
        """The value as an array of JAX; None if the value depends on the arguments of score_fn."""
        if isinstance(value, View):
            return None
        if not isinstance(value, np.ndarray):
            return value
        rows = [self.trace.instructions[register] for register in value.flat]
        if any(row[0] != "constant" for row in rows):
            return None
        return np.array([row[6] for row in rows], np.float64).reshape(value.shape).astype(aval.dtype)

    def registers(self, value: Any) -> Any:
        """The register of each element of the value."""
        if isinstance(value, np.ndarray):
            return value
        view = self.view(value)
        if math.prod(view.shape) > MOST_ELEMENTS:
            raise refuse(f"an array of shape {list(view.shape)}, more than {MOST_ELEMENTS} elements, without an index for each dimension")
        found = np.empty(view.shape, np.int64)
        for index in np.ndindex(view.shape):
            found[index] = self.load(view, index)
        return found

    def view(self, value: Any) -> View:
        if isinstance(value, View):
            return value
        return View(value, (None,) * value.ndim, tuple(range(value.ndim)), tuple(value.shape))

    def load(self, view: View, index: tuple[int, ...]) -> int:
        self.integer = True  # from here on the equations compute indices
        captured, starts = view.captured, list(view.starts)
        dtype = np.dtype(captured.dtype) if not jnp.issubdtype(captured.dtype, jax.dtypes.extended) else None
        if dtype not in TABLES:  # refuse integers of fewer than 32 bits, which wrap around in JAX's arithmetic, but not in polyhead's
            raise NotImplementedError(f"attention: score_fn captures an array of {captured.dtype}; convert it by .astype(jnp.int32) or .astype(jnp.float32)")
        if captured.ndim > 4:
            raise refuse("a captured array of more than 4 dimensions")
        for at, dim in zip(index, view.dims):
            if dim is not None and at:
                step = self.constant(at, integer=True)
                start = starts[dim]
                starts[dim] = step if start is None else self.add(start, step)
        indices = [self.constant(0, integer=True) if start is None else start for start in starts]
        register = self.trace.emit("load", *indices, table=self.trace.table(captured))
        if not jnp.issubdtype(captured.dtype, jnp.floating):
            self.ranges[register] = (0, 1) if dtype == np.bool_ else UNBOUNDED
        return register

    def part(self, value: Any, starts: Sequence[int], sizes: Sequence[int], *, mode: str) -> View:
        """The part of extents `sizes` that starts at the registers `starts`. mode: how indices outside of the array are treated: "clip" or "fill" (the result is NaN)."""
        self.integer = True  # from here on the equations compute indices
        view = self.view(value)
        of = list(view.starts)
        for axis, (start, size) in enumerate(zip(starts, sizes)):
            dim, last = view.dims[axis], view.shape[axis] - size
            if dim is None or last == 0 == self.range(start)[0] == self.range(start)[1]:
                continue
            low, high = self.range(start)
            if mode == "clip":
                start = self.minimum(self.maximum(start, self.constant(0, integer=True)), self.constant(last, integer=True))
            elif low < 0 or high > last:  # mode "fill": a load beyond the end gives NaN; negative indices would count from the end, so move them beyond the end
                if size != 1 or view.shape[axis] != view.captured.shape[dim] or not jnp.issubdtype(view.captured.dtype, jnp.floating):
                    raise refuse("an index that may be outside of its array, with mode='fill' (use mode='clip')")
                beyond = self.constant(view.captured.shape[dim], integer=True)
                start = self.select(self.less(start, self.constant(0, integer=True)), beyond, start)
            before = of[dim]
            of[dim] = start if before is None else self.add(before, start)
        return view._replace(starts=tuple(of), shape=tuple(sizes))
