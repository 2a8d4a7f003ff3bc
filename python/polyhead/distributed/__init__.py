"""Attention of one sequence that several processes (ranks) compute together. Each rank holds a slice of the queries, and a slice of the keys and values.

    from polyhead.distributed import attention, sequence_parallel

Keys and values are sent from rank to rank around a ring (ring attention, Liu et al. 2023, arXiv 2310.01889), or each rank computes some of the heads
(DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509), or both are combined. All ranks make the same calls in the same order. `sdpa` and `explain` need
NumPy and a `Communicator`; `attention`, `sequence_parallel` and `TorchCommunicator` need torch, which is imported when one of these names is used.
``import polyhead`` does not import this package.
"""

import importlib
from typing import TYPE_CHECKING

from .._frameworks import require_package
from ._mpi import MpiCommunicator
from ._sdpa import explain, sdpa, sdpa_backward
from ._slices import slice_of, take_slice
from ._transport import Communicator, Transfer

__all__ = ["Communicator", "MpiCommunicator", "TorchCommunicator", "Transfer", "attention", "explain", "sdpa", "sdpa_backward", "sequence_parallel", "slice_of", "take_slice"]

if TYPE_CHECKING:
    from ._attention import attention
    from ._sequence_parallel import sequence_parallel
    from ._torch_communicator import TorchCommunicator
else:
    _OF_TORCH = {"attention": "_attention", "sequence_parallel": "_sequence_parallel", "TorchCommunicator": "_torch_communicator"}

    def __getattr__(name: str) -> object:
        if name in _OF_TORCH:
            require_package(f"{__name__}.{name}", "torch")
            return getattr(importlib.import_module(f"{__name__}.{_OF_TORCH[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return list(__all__)
