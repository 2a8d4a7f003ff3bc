"""Checks that a package is installed which only a part of polyhead needs."""

from __future__ import annotations

import importlib

_PACKAGES = {"torch": ("PyTorch", "pip install torch"), "jax": ("JAX 0.5 or later", "pip install 'jax>=0.5'")}


def require_package(where: str, package: str) -> None:
    """Raises ModuleNotFoundError, which says what to install, if the package is missing."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package itself needs a missing module, which the original message names
            raise
        name, command = _PACKAGES[package]
        raise ModuleNotFoundError(f"{where} needs {name}, which is not installed: {command}", name=package) from None
