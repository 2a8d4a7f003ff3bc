"""Finds the WebAssembly modules that `scripts/live-engine` builds."""
import pathlib
import shutil
import sys


def found(folder, *names, needs=""):
    """Returns the paths of node and of modules. If one of them is missing, says so and exits with 77."""
    node, modules = shutil.which("node"), [pathlib.Path(folder) / name for name in names]
    missing = next((module for module in modules if not module.exists()), None)
    if node is None or missing:
        print(f"skipped: {'there is no node on the path' if node is None else f'{missing} is not there; `scripts/live-engine` builds it{needs}'}")
        sys.exit(77)
    return node, *modules
