"""The command line program: ``python -m polyhead``, which pip also installs as ``polyhead``. The program is part of the extension module, so that a wheel
contains the kernels only once. The program handles signals and writes to standard output itself, not through Python."""

from __future__ import annotations

import os
import sys

from . import _core


def main() -> int:
    """Runs the command line program with the arguments of this process.

    Returns:
        Its exit status.
    """
    return _core.run_program([os.fsencode(argument) for argument in sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
