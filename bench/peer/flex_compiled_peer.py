"""FlexAttention under torch.compile, whose C++ kernels need a compiler."""

from __future__ import annotations

import functools

from . import flex_peer
from .flex_peer import start, version

__all__ = ["name", "prepare", "start", "version"]
name = "flex_compiled"
prepare = functools.partial(flex_peer.prepare, compile=True)
