"""Tests jax.export with polyhead.jax: symbolic extents, and functions that are serialised, loaded and called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import export
from jax import numpy as jnp

import polyhead
import polyhead.jax as ours

Example = tuple[Callable[..., Any], list[str], list[np.ndarray]]


def specs(shapes: list[str], arrays: list[np.ndarray]) -> list[Any]:
    scope = export.SymbolicScope()
    return [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), array.dtype) for shape, array in zip(shapes, arrays)]


def examples() -> dict[str, Example]:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4, 3, 8)).astype(np.float32), rng.standard_normal((2, 2, 5, 8)).astype(np.float32)
    of_q, of_k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    bias = rng.standard_normal((4, 3, 5)).astype(np.float32)
    attend, lengths = rng.random((2, 1, 3, 5)) < 0.8, np.array([5, 4], np.int32)
    both, both_of_layers = ["b,4,t,8", "b,2,s,8"], ["b,t,4,8", "b,s,2,8"]
    slopes = polyhead.RelativeBias(slopes=jnp.ones(4))
    offsets = np.array([0, 1, 3], np.int32), np.array([0, 2, 5], np.int32)
    return {
        "batch": (lambda q: ours.attention(q, q, q, causal="top_left"), ["b,4,3,8"], [q]),
        "all extents": (lambda q, k: ours.attention(q, k, k, causal="bottom_right"), both, [q, k]),
        "masks": (lambda q, k, m, n: ours.attention(q, k, k, attend=m, key_lengths=n), [*both, "b,1,t,s", "b"], [q, k, attend, lengths]),
        "gradient of a bias": (lambda q, k, b: jax.grad(lambda b: (ours.attention(q, k, k, bias=b) ** 2).sum())(b), [*both, "4,t,s"], [q, k, bias]),
        "gradient of attention weights": (
            lambda q, k: jax.grad(lambda q: (ours.attention(q, k, k, relative_bias=slopes, return_attention_weights=True)[1] ** 2).sum())(q), both, [q, k]
        ),
        "forward mode": (lambda q: jax.jvp(lambda q: ours.attention(q, q, q), (q,), (q,))[1], ["b,4,t,8"], [q]),
        "vmap": (jax.vmap(lambda q, k: ours.attention(q, k, k), in_axes=(0, None)), ["b,4,t,8", "2,s,8"], [q, k[0]]),
        "documents": (lambda q, k, m, n: ours.attention(q, k, k, query_offsets=m, key_offsets=n), ["4,t,8", "2,s,8", "3", "3"], [q[0], k[0], *offsets]),
        "layout": (lambda q, k: ours.attention(q, k, k, layout="TNH"), both_of_layers, [of_q, of_k]),
        "dot_product_attention": (
            lambda q, k, n: ours.dot_product_attention(q, k, k, local_window_size=2, query_seq_lengths=n), [*both_of_layers, "b"], [of_q, of_k, lengths - 2]
        ),
        "attention_fn": (lambda q: ours.attention_fn(q, q, q, dropout_rate=0.5, dropout_rng=jax.random.key(0)), ["b,t,4,8"], [of_q]),
    }


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_exported_function_gives_what_the_function_gives(name: str) -> None:
    f, shapes, arrays = EXAMPLES[name]
    exported = export.export(jax.jit(f), disabled_checks=ours.export_checks())(*specs(shapes, arrays))
    again = export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(*arrays), f(*arrays), rtol=1e-5, atol=1e-6)


def test_one_export_serves_several_extents() -> None:
    f, shapes, arrays = EXAMPLES["all extents"]
    exported = export.export(jax.jit(f), disabled_checks=ours.export_checks())(*specs(shapes, arrays))
    rng = np.random.default_rng(1)
    for batch, queries, keys in ((1, 1, 1), (3, 7, 9), (2, 20, 20)):
        q, k = rng.standard_normal((batch, 4, queries, 8)).astype(np.float32), rng.standard_normal((batch, 2, keys, 8)).astype(np.float32)
        np.testing.assert_allclose(exported.call(q, k), f(q, k), rtol=1e-5, atol=1e-6)


def test_without_the_checks_jax_does_not_serialise() -> None:
    f, shapes, arrays = EXAMPLES["batch"]
    with pytest.raises(ValueError, match="compatibility guarantees"):
        export.export(jax.jit(f))(*specs(shapes, arrays)).serialize()


def test_extents_that_may_differ_are_refused_by_their_symbols() -> None:
    f, _, arrays = EXAMPLES["all extents"]
    with pytest.raises(ValueError, match=r"k is \[c,2,s,8\]; its leading dimensions must be \[b\], as in q \[b,4,t,8\]"):
        export.export(jax.jit(f))(*specs(["b,4,t,8", "c,2,s,8"], arrays))


def test_buckets_of_symbolic_extents_are_refused() -> None:
    _, shapes, arrays = EXAMPLES["all extents"]

    def f(q: Any, k: Any) -> Any:
        def loss(table: Any) -> Any:
            return (ours.attention(q, k, k, relative_bias=polyhead.RelativeBias(table=table), return_attention_weights=True)[1] ** 2).sum()

        return jax.grad(loss)(jnp.ones((4, 8)))

    with pytest.raises(NotImplementedError, match="table of a relative_bias if the number of queries or keys is symbolic"):
        export.export(jax.jit(f))(*specs(shapes, arrays))
