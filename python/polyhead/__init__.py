"""Multi-head attention on CPUs, forward and backward.

Functions take NumPy arrays, PyTorch tensors, JAX CPU arrays and every other object with DLPack or the buffer protocol. Arrays may have any strides
and are read without a copy. Results are PyTorch tensors if the inputs are PyTorch tensors, else NumPy arrays.

Letters in every docstring: ``*`` any number of leading (batch) dimensions, ``N`` query heads, ``K`` key/value heads (``N % K == 0``; query head
``n`` reads key/value head ``n // (N // K)``), ``T`` queries, ``S`` keys, ``H`` width of a query/key head, ``V`` width of a value head.

``polyhead.torch``, ``polyhead.jax``, ``polyhead.transformers``, ``polyhead.patch`` and ``polyhead.distributed`` are imported when they are first used:
``import polyhead`` imports neither torch nor jax.
"""

import importlib.util
from typing import TYPE_CHECKING

from . import _attention, _cache, _capture, _capturing, _device, _layer, _score_runs, _second_derivatives, _view, models
from ._attention import *
from ._cache import *
from ._capture import *
from ._capturing import *
from ._core import version as __version__
from ._device import *
from ._layer import *
from ._score_runs import *
from ._second_derivatives import *
from ._view import *

__all__ = ["__version__", "models"]
__all__ += _attention.__all__
__all__ += _cache.__all__
__all__ += _capture.__all__
__all__ += _capturing.__all__
__all__ += _device.__all__
__all__ += _layer.__all__
__all__ += _score_runs.__all__
__all__ += _second_derivatives.__all__
__all__ += _view.__all__

if TYPE_CHECKING:
    from . import distributed as distributed, jax as jax, patch as patch, torch as torch, transformers as transformers
else:  # Hide __getattr__ from type checkers: otherwise they would accept every name polyhead.NAME.
    _ON_DEMAND = {"distributed": None, "jax": "jax", "patch": "torch", "torch": "torch", "transformers": "torch"}  # name of a submodule -> the package that it needs

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        # help() reads every name in this list and would fail at a submodule whose package is missing, so such submodules are left out.
        return [*__all__, *(name for name, package in _ON_DEMAND.items() if package is None or importlib.util.find_spec(package) is not None)]

