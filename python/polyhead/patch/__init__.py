"""Makes polyhead compute the attention of protein models: of openfold, boltz, protenix, fair-esm and ESM-C, forward and backward, with the same parameters and
results.

    import polyhead.patch

    polyhead.patch.boltz()                 # from here on, also for models that exist already
    with polyhead.patch.esm():             # only inside the block
        model(tokens)

Each function replaces methods of the package's classes at once and returns a `Patch`. Calling undo() of the Patch, or leaving its ``with`` block, restores the package's
own methods.
docs/folding.md lists the patched classes, and the calls that a package's own code still computes.
"""

from .._frameworks import require_package

require_package(__name__, "torch")

from ._replace import Patch, boltz, esm, esmc, openfold, protenix

__all__ = ["Patch", "boltz", "esm", "esmc", "openfold", "protenix"]
