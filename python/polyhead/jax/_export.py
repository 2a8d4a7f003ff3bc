"""jax.export of functions that call polyhead."""

from __future__ import annotations

from jax import export

from ._primitives import TARGET


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The checks that `jax.export.export` must skip, so that a function with polyhead's attention can be serialised.

    ::

        exported = jax.export.export(jax.jit(f), disabled_checks=polyhead.jax.export_checks())(*specs)
        data = exported.serialize()

        import polyhead.jax                                     # in the process that calls the exported function
        jax.export.deserialize(data).call(*arrays)

    By default JAX serialises only calls of functions that are part of JAX, because another process may lack other functions. A process that calls an exported function
    with polyhead's attention needs the same version of polyhead, must import `polyhead.jax`, and must run on the CPU. The number of sequences, T and S may be symbols
    of `jax.export.symbolic_shape`; extents that must be equal need the same symbol.

    Returns:
        A list for the argument disabled_checks.
    """
    return [export.DisabledSafetyCheck.custom_call(TARGET)]
