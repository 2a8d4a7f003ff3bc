"""Places arrays in memory as a case says: with chosen strides, next to pages that cannot be accessed, or with gaps whose bytes must not change."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

LAYOUTS = ("plain", "plain", "plain", "guard_end", "guard_start", "permuted", "reversed", "gapped")
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_CANARY = 0xA5


class Memory:
    """Bytes between two pages that may not be read or written. The bytes stay valid as long as an array in them exists."""

    def __init__(self, size: int) -> None:
        pages = max(1, -(-size // _PAGE))
        self.map = mmap.mmap(-1, (pages + 2) * _PAGE)
        whole = np.frombuffer(self.map, np.uint8)
        self.address, self.size = whole.ctypes.data, pages * _PAGE
        self.bytes = whole[_PAGE : _PAGE + self.size]
        for page in (self.address, self.address + _PAGE + self.size):
            if _libc.mprotect(page, _PAGE, 0) != 0:  # PROT_NONE
                raise OSError(ctypes.get_errno(), "mprotect")

    def __del__(self) -> None:
        for page in (self.address, self.address + _PAGE + self.size):
            _libc.mprotect(page, _PAGE, 3)  # PROT_READ | PROT_WRITE, because the pages are freed next


_kept: list[Memory] = []  # keeps each Memory alive: an array of NumPy only refers to the mmap, not to the Memory


def forget() -> None:
    _kept.clear()


def empty(shape: tuple[int, ...], dtype: Any, layout: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns an array of this layout, and the bytes in which the array lies. All bytes are filled with a pattern."""
    dtype, shape = np.dtype(dtype), tuple(int(extent) for extent in shape)
    count = int(np.prod(shape, dtype=np.int64))
    if layout in ("guard_end", "guard_start") and count:
        memory = Memory(count * dtype.itemsize)
        _kept.append(memory)
        memory.bytes[:] = _CANARY
        first = memory.size - count * dtype.itemsize if layout == "guard_end" else 0
        return memory.bytes[first : first + count * dtype.itemsize].view(dtype).reshape(shape), memory.bytes
    if layout == "permuted" and len(shape) > 1:
        order = [int(axis) for axis in rng.permutation(len(shape))]
        whole = np.full(max(count * dtype.itemsize, 1), _CANARY, np.uint8)
        return whole[: count * dtype.itemsize].view(dtype).reshape([shape[axis] for axis in order]).transpose(np.argsort(order)), whole
    steps = [1] * len(shape)
    if layout == "gapped":
        steps = [int(rng.integers(1, 3)) for _ in shape]
    if layout == "reversed":
        steps = [int(rng.choice([-1, 1])) for _ in shape]
    outer = [extent * abs(step) + (int(rng.integers(0, 4)) if layout == "gapped" else 0) for extent, step in zip(shape, steps)]
    whole = np.full(int(np.prod(outer, dtype=np.int64)) * dtype.itemsize, _CANARY, np.uint8)
    view = whole.view(dtype).reshape(outer)
    view = view[(..., *(slice(0, extent * abs(step), abs(step)) for extent, step in zip(shape, steps)))]
    return view[(..., *(slice(None, None, -1 if step < 0 else 1) for step in steps))], whole


def placed(values: np.ndarray, layout: str, rng: np.random.Generator) -> np.ndarray:
    array, _ = empty(values.shape, values.dtype, layout if values.ndim else "plain", rng)
    array[...] = values
    return array


def broadcast_where_constant(values: np.ndarray, array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Returns the array with stride 0 along axes on which its values are constant."""
    strides = [0 if axis in axes else stride for axis, stride in enumerate(array.strides)]
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


class Output:
    """An array for the output of a call. gaps_kept() returns whether the bytes around the array are unchanged."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, layout: str, rng: np.random.Generator) -> None:
        self.array, self.whole = empty(shape, dtype, layout, rng)

    def gaps_kept(self) -> bool:
        values = self.array.copy()
        self.array.view(np.uint8 if self.array.dtype.itemsize == 1 else f"u{self.array.dtype.itemsize}")[...] = int.from_bytes(bytes([_CANARY]) * self.array.dtype.itemsize, "little")
        kept = bool((self.whole == _CANARY).all())
        self.array[...] = values
        return kept
