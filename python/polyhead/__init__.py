"""Multi-head attention on CPUs, forward and backward.

Functions take NumPy arrays, PyTorch tensors, JAX CPU arrays and every other object with DLPack or the buffer protocol. They read arrays
with any strides, without a copy. Results are PyTorch tensors if the inputs are, else NumPy arrays.

Letters, in every docstring: ``*`` any number of leading (batch) dimensions, ``N`` query heads, ``K`` key/value heads (``N % K == 0``; query head
``n`` reads key/value head ``n // (N // K)``), ``T`` queries, ``S`` keys, ``H`` width of a query/key head, ``V`` width of a value head.

``polyhead.torch``, ``polyhead.transformers`` and ``polyhead.distributed`` are imported on demand.
"""

import importlib
from typing import TYPE_CHECKING

from . import _attention, _cache, _capture, _device, _layer, _second_derivatives, _view, models
from ._attention import *
from ._cache import *
from ._capture import *
from ._core import version as __version__
from ._device import *
from ._layer import *
from ._second_derivatives import *
from ._view import *

__all__ = ["__version__", "models"]
__all__ += _attention.__all__
__all__ += _cache.__all__
__all__ += _capture.__all__
__all__ += _device.__all__
__all__ += _layer.__all__
__all__ += _second_derivatives.__all__
__all__ += _view.__all__

if not TYPE_CHECKING:  # hidden from type checkers: with a module-level __getattr__ they would accept polyhead.anything
    _ON_DEMAND = ("distributed", "torch", "transformers")

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, *_ON_DEMAND]

