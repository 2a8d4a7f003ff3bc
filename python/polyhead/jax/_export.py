"""Support for jax.export of functions that call polyhead."""

from __future__ import annotations

from jax import export

from ._primitives import TARGET


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The argument disabled_checks with which `jax.export.export` accepts functions that call polyhead's attention.

    ::

        exported = jax.export.export(jax.jit(f), disabled_checks=polyhead.jax.export_checks())(*specs)
        data = exported.serialize()

        import polyhead.jax                                     # in the process that calls the exported function
        jax.export.deserialize(data).call(*arrays)

    By default JAX refuses to export a call of a function that is not part of JAX, because the process that loads the export may not have that function. A
    process that calls an exported function with polyhead's attention needs the same version of polyhead, must import `polyhead.jax`, and must run on the CPU.
    The number of sequences, T and S may be symbols of `jax.export.symbolic_shape`; use the same symbol for extents that must be equal.

    Returns:
        A list for the argument disabled_checks.
    """
    return [export.DisabledSafetyCheck.custom_call(TARGET)]
