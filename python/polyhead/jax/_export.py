"""jax.export of functions that call polyhead."""

from __future__ import annotations

from jax import export

from ._primitives import TARGET


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The checks that `jax.export.export` must skip, so that a function with polyhead's attention can be serialised.

    ::

        exported = jax.export.export(jax.jit(f), disabled_checks=polyhead.jax.export_checks())(*specs)
        data = exported.serialize()

        import polyhead.jax                                     # the process that calls it
        jax.export.deserialize(data).call(*arrays)

    JAX serialises only calls of functions that are part of JAX, because another process may not have the others. Here it needs the same version of polyhead
    and the import of `polyhead.jax`, on the CPU. Extents may be symbols of `jax.export.symbolic_shape`: those of sequences, of T and of S; extents that
    must be equal need the same symbol.

    Returns:
        A list for the argument disabled_checks.
    """
    return [export.DisabledSafetyCheck.custom_call(TARGET)]
