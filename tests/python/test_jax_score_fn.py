"""Tests score_fn of polyhead.jax.attention. Results, gradients and gradients of captured arrays are compared with the dense formula in JAX. Also tests transforms and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", minversion="0.5")
import jax
import jax.numpy as jnp
from jax import export

import polyhead
from effort import QUICK
from jax_support import close, same
from polyhead._score_program import FUNCTIONS
from polyhead.jax import attention, export_checks
from score_functions_page import listed

B, N, T, S, H = 2, 4, 19, 23, 8
Score = Callable[..., Any]


@pytest.fixture
def wide() -> Iterator[None]:
    """float64 in JAX."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def inputs(dtype: Any = np.float64, kv_heads: int = N) -> list[Any]:
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.standard_normal((B, heads, length, H)), dtype) for heads, length in ((N, T), (kv_heads, S), (kv_heads, S))]


def dense(q: Any, k: Any, v: Any, score_fn: Score, attend: Any = None) -> Any:
    """Computes attention with dense matrices; score_fn is called with the indices of each pair."""
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = jnp.matmul(q, jnp.swapaxes(k, -1, -2), precision="highest") * H**-0.5
    each = score_fn
    for axes in ((0, None, None, None, 0), (0, None, None, 0, None), (0, None, 0, None, None), (0, 0, None, None, None)):
        each = jax.vmap(each, axes)
    score = each(score, *(jnp.arange(extent, dtype=np.int32) for extent in score.shape))
    if attend is not None:
        score = jnp.where(attend, score, -jnp.inf)
    return jnp.matmul(jax.nn.softmax(score, where=score > -jnp.inf), v, precision="highest")


# {name: (function that makes a score_fn from captured arrays, shapes of these arrays)}.
RULES: dict[str, tuple[Callable[..., Score], list[tuple[int, ...]]]] = {
    "identity": (lambda: lambda score, b, h, q, k: score, []),
    "softcap": (lambda: lambda score, b, h, q, k: 2 * jnp.tanh(score / 2), []),
    "alibi": (lambda slopes: lambda score, b, h, q, k: score - slopes[h] * jnp.abs(q - k), [(N,)]),
    "relative table": (lambda table: lambda score, b, h, q, k: score + table[h, q - k + S - 1], [(N, T + S)]),
    "row, then element": (lambda table: lambda score, b, h, q, k: score + table[h][q - k + S - 1], [(N, T + S)]),
    "index that counts from the end": (lambda flat: lambda score, b, h, q, k: score * (1 + flat[q - k] + flat[-1]), [(T + S,)]),
    "index beyond the end": (lambda flat: lambda score, b, h, q, k: score + flat[q + k] + flat.at[q + k].get(mode="clip"), [(9,)]),
    "take": (lambda table, flat: lambda score, b, h, q, k: score + jnp.take(table, q, axis=1)[h] * jnp.take(flat, k), [(N, T), (S,)]),
    "pair bias": (lambda pairs: lambda score, b, h, q, k: score + pairs[h, q, k], [(N, T, S)]),
    "numbers": (lambda factor, per_batch: lambda score, b, h, q, k: factor * score + per_batch[b, h], [(), (B, N)]),
    "arrays that JAX computes": (lambda slopes, flat: lambda score, b, h, q, k: score * jnp.exp(slopes)[h] + (flat * flat.sum())[k], [(N,), (S,)]),
    "distances of points": (lambda of_q, of_k: lambda score, b, h, q, k: score - ((of_q[q] - of_k[k]) ** 2).sum() + jnp.dot(of_q[q], of_k[k]), [(T, 3), (S, 3)]),
    "constants by an index": (lambda: lambda score, b, h, q, k: score * jnp.take(jnp.stack([1.0, 2.0, 3.0, 4.0]), h, mode="clip"), []),
    "largest of three": (lambda table: lambda score, b, h, q, k: score * (1 + (table * 0)[q].max() + table[q].min() + jnp.zeros((T, 3))[q].max()), [(T, 3)]),
    "documents": (lambda: lambda score, b, h, q, k: jnp.where((jnp.arange(S) // 9)[q] == (jnp.arange(S) // 9)[k], score, -jnp.inf), []),
    "division": (lambda flat: lambda score, b, h, q, k: score + (q - k) // 3 * 0.1 + (q - k) % 5 * 0.2 + q // 4 + k % 3 + flat[(k - q) // 2], [(T + S,)]),
    "jax.nn": (lambda factor: lambda score, b, h, q, k: jax.nn.relu(score) + jax.nn.softplus(factor * score) + jax.nn.silu(score) - jax.nn.gelu(score), [()]),
    "small numbers": (lambda: lambda score, b, h, q, k: jnp.log1p(jnp.abs(score) * 1e-9) * 1e9 + jnp.expm1(score * 1e-9) * 1e9, []),
    "trigonometry": (lambda: lambda score, b, h, q, k: jnp.sin(3 * score) + jnp.cos(score) + jnp.tan(score / 9) + jnp.arctan(score) + jnp.arctan2(score, k - q) + jnp.arcsin(jnp.tanh(score)) - jnp.arccos(jnp.tanh(score)), []),
    "hyperbolic": (lambda: lambda score, b, h, q, k: jnp.sinh(score) + jnp.cosh(score / 2) + jnp.arctanh(jnp.tanh(score) * 0.9), []),
    "error functions": (lambda factor: lambda score, b, h, q, k: jax.lax.erf(factor * score) + jax.lax.erfc(score) + jax.nn.gelu(score, approximate=False), [()]),
    "logarithms": (lambda: lambda score, b, h, q, k: jnp.log2(1 + score**2) + jnp.log10(1 + score**2) + jnp.logaddexp(score, 1 - score) + jnp.exp2(score) + jax.lax.rsqrt(1 + score**2) + jnp.reciprocal(2 + jnp.abs(score)), []),
    "rounded": (lambda: lambda score, b, h, q, k: score * (jnp.round(score) + jnp.ceil(score) + jnp.trunc(score) + jax.lax.round(2 * score)), []),
    "other powers": (lambda: lambda score, b, h, q, k: (1 + jnp.abs(score)) ** 2.5 + (1 + score**2) ** -1.5 + (score / 2) ** 20 + score**0 + score * (q - k) ** 2, []),
    "powers": (lambda: lambda score, b, h, q, k: score**3 + jnp.sqrt(1 + score**2) + 1 / (1 + jnp.square(score)) + 2.0**score + (1 + jnp.abs(score)) ** 0.5, []),
    "stopped": (lambda factor: lambda score, b, h, q, k: score * jax.lax.stop_gradient(score * factor) + factor * score, [()]),
    "everything": (
        lambda slopes: (
            lambda score, b, h, q, k: jnp.where(
                (q >= k) & ~(k % 5 == 2) | (score > 0.5),
                jnp.clip(jax.nn.sigmoid(score), 0.2, 0.8) ** 2 + jnp.exp(-((q - k).astype(float) ** 2) / 100) * (k // 3),
                jnp.abs(score) * h - jnp.log(1 + score * score) + jnp.exp(slopes[h]) + jnp.sign(score) + jnp.floor(score) + jnp.maximum(score, slopes[h]),
            )
        ),
        [(N,)],
    ),
}


def captured_of(name: str, dtype: Any = np.float64) -> list[Any]:
    rng = np.random.default_rng(2)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in RULES[name][1]]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_and_its_gradients_are_those_of_the_formula(name: str, wide: None) -> None:
    make, captured = RULES[name][0], captured_of(name)
    kinds = [(N, None), (2, "top_left")]
    for kv_heads, causal in [kinds[list(RULES).index(name) % 2]] if QUICK else kinds:
        given, attend = inputs(kv_heads=kv_heads), None if causal is None else jnp.tri(T, S, dtype=bool)
        d_out = jnp.asarray(np.random.default_rng(3).standard_normal(given[0].shape))

        def loss(given: list[Any], captured: list[Any], ours: bool, d_out: Any = d_out, causal: Any = causal, attend: Any = attend) -> Any:
            score_fn = make(*captured)
            out = attention(*given, score_fn=score_fn, causal=causal) if ours else dense(*given, score_fn, attend)
            return jnp.sum(out * d_out), out

        gradients = jax.grad(loss, argnums=(0, 1), has_aux=True)
        (ours, out), (theirs, exact) = jax.jit(lambda *x, f=gradients: (f(*x, True), f(*x, False)))(given, captured)
        close(out, exact, 1e-12, name)
        for i, (a, b) in enumerate(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)):
            close(a, b, 1e-9, f"{name}, {kv_heads} heads, gradient {i}")


@pytest.mark.parametrize("name", ["softcap", "alibi", "relative table", "jax.nn", "everything"] if QUICK else list(RULES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_dtypes(name: str, dtype: str) -> None:
    given, captured = inputs(dtype), captured_of(name, np.float32)
    make = RULES[name][0]
    tolerance = 1e-4 if dtype == "float32" else 3e-2

    @jax.jit
    def results(captured: list[Any]) -> Any:
        ours, pull = jax.vjp(lambda *captured: attention(*given, score_fn=make(*captured)), *captured)
        theirs, exact_pull = jax.vjp(lambda *captured: dense(*(x.astype(np.float32) for x in given), make(*captured)), *captured)
        return ours, theirs, pull(jnp.ones_like(ours)), exact_pull(jnp.ones_like(theirs))

    ours, theirs, gradients, exact = results(captured)
    assert ours.dtype == dtype
    close(ours.astype(np.float32), theirs, tolerance, name)
    for a, b in zip(gradients, exact):
        assert a.dtype == np.float32
        largest = max(1.0, float(jnp.abs(b).max()))
        assert float(jnp.abs(a - b).max()) <= 10 * tolerance * largest, name


def test_captured_arrays_of_narrow_dtypes_and_integers() -> None:
    q, k, v = inputs(np.float32)
    for dtype in ("bfloat16", "float16"):
        slopes = jnp.asarray([0.5, 0.25, 0.125, 2.0], dtype)

        def out(slopes: Any, function: Any) -> Any:
            return function(lambda score, b, h, q, k: score - slopes.astype(np.float32)[h] * (q - k) + slopes[h])

        a, b = (jax.jit(jax.grad(lambda s, f=f: jnp.sum(out(s, f) ** 2)))(slopes) for f in (lambda fn: attention(q, k, v, score_fn=fn), lambda fn: dense(q, k, v, fn)))
        assert a.dtype == slopes.dtype
        close(a.astype(np.float32), b.astype(np.float32), 2e-2, dtype)
    kinds, flags = jnp.arange(S, dtype=np.int32) % 3, jnp.arange(S) % 2 == 0
    score_fn = lambda score, b, h, q, k: jnp.where(flags[k], score * kinds[k], kinds[k] - 1.0)  # noqa: E731
    close(jax.jit(lambda *x: attention(*x, score_fn=score_fn))(q, k, v), jax.jit(lambda *x: dense(*x, score_fn))(q, k, v), 1e-5, "integers")


def test_layouts_have_the_same_bits() -> None:
    q, k, v = inputs(np.float32)
    make, (table,) = RULES["relative table"][0], captured_of("relative table", np.float32)
    turn = lambda x: jnp.swapaxes(x, 1, 2)  # noqa: E731
    one, pull = jax.vjp(lambda q, table: attention(q, k, v, score_fn=make(table)), q, table)
    other, pull_other = jax.vjp(lambda q, table: turn(attention(turn(q), turn(k), turn(v), layout="TNH", score_fn=make(table))), q, table)
    assert same(one, other)
    for a, b in zip(pull(one), pull_other(one)):
        assert same(a, b)
    assert same(one, jax.jit(lambda q, table: attention(q, k, v, score_fn=make(table)))(q, table))


def test_score_fn_can_be_combined_with_masks_bias_softcap_sink_and_weights() -> None:
    q, k, v = inputs(np.float32)
    options = {"softcap": 3.0, "bias": jnp.ones((T, S)) * 0.25, "sink": jnp.zeros(N), "window": (6, 4), "key_lengths": np.array([S, 11])}
    out, lse, p = attention(q, k, v, score_fn=lambda score, b, h, q, k: score, return_lse=True, return_attention_weights=True, **options)
    for ours, theirs in zip((out, lse, p), attention(q, k, v, return_lse=True, return_attention_weights=True, **options)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    blocks = jnp.asarray([[0, i] for i in range(3)])
    close(attention(q, k, v, score_fn=lambda s, *_: 2 * s, blocks=blocks, block_size=8), attention(q, k, v, scale=2 * H**-0.5, blocks=blocks, block_size=8), 1e-5, "blocks")


def test_vmap_of_inputs_and_of_captured_arrays(wide: None) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (jnp.asarray(rng.standard_normal((3, *x.shape))) for x in inputs())
    table, shared = jnp.asarray(rng.standard_normal((3, B, N))), jnp.asarray(rng.standard_normal(S))

    def one(function: Callable[..., Any]) -> Any:
        def results(q: Any, table: Any, k: Any, v: Any, shared: Any) -> Any:
            return function(q, k, v, lambda score, b, h, i, j: score * table[b, h] + shared[j])

        def loss(q: Any, table: Any, shared: Any) -> Any:
            outs = jax.vmap(results, (0, 0, None, 0, None))(q, table, k[0], v, shared)
            return jnp.sum(jnp.sin(outs))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, table, shared)

    ours, theirs = one(lambda q, k, v, score_fn: attention(q, k, v, score_fn=score_fn)), one(dense)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        close(a, b, 1e-10, "vmap")
    # vmap of grad gives the gradient of each example.
    each = jax.vmap(jax.grad(lambda table, q: attention(q, k[0], v[0], score_fn=lambda s, b, h, i, j: s * table[b, h]).sum()))(table, q)
    alone = jax.jit(jax.grad(lambda t, q: dense(q, k[0], v[0], lambda s, b, h, i, j: s * t[b, h]).sum()))
    exact = jnp.stack([alone(table[i], q[i]) for i in range(3)])
    close(each, exact, 1e-10, "each example")


def test_vmap_of_one_example(wide: None) -> None:
    q, k, v = inputs()
    (slopes,) = captured_of("alibi")
    make = RULES["alibi"][0]
    one = jax.vmap(lambda q, slopes: attention(q, k, v, score_fn=make(slopes)))(q[None], slopes[None])
    shared = jax.vmap(lambda q: attention(q, k, v, score_fn=make(slopes)))(q[None])
    alone = attention(q, k, v, score_fn=make(slopes))
    assert same(one[0], alone) and same(shared[0], alone)


def test_equal_elements_share_the_gradient_of_their_maximum(wide: None) -> None:
    q, k, v = inputs()
    make = lambda table: lambda score, b, h, i, j: score * (1 + table[i].max() + table[i].min())  # noqa: E731
    ours, theirs = (jax.jit(jax.grad(lambda t, f=f: jnp.sum(f(t) ** 2)))(jnp.ones((T, 3))) for f in (lambda t: attention(q, k, v, score_fn=make(t)), lambda t: dense(q, k, v, make(t))))
    close(ours, theirs, 1e-10, "ties")


@pytest.mark.parametrize("exponent", [-1, -3, -17, -20, -34, -40, -64])
def test_powers_that_overflow(exponent: int) -> None:
    """Where x^-exponent overflows, x^exponent and its derivative are about 0."""
    q, k, v = (jnp.ones((1, 1, length, 1)) for length in (1, 6, 6))
    v, points = jnp.arange(6.0).reshape(v.shape), jnp.asarray([101.0, -101.0, 1e20, jnp.inf, 1.1, -1.3])
    make = lambda points: lambda score, b, h, i, j: score + points[j] ** exponent  # noqa: E731
    ours, theirs = (jax.jit(jax.grad(lambda x, f=f: f(q, k, v, make(x)).sum()))(points) for f in (lambda q, k, v, fn: attention(q, k, v, score_fn=fn), dense))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-36)


def test_jacrev_and_checkpoint(wide: None) -> None:
    q, k, v = inputs()
    make, (slopes,) = RULES["alibi"][0], captured_of("alibi")
    row = lambda function: lambda slopes: function(q[:, :, :2], k, v, make(slopes))[0, :, 1, 0]  # noqa: E731
    ours, theirs = (jax.jit(jax.jacrev(row(f)))(slopes) for f in (lambda q, k, v, fn: attention(q, k, v, score_fn=fn), dense))
    close(ours, theirs, 1e-10, "jacrev")
    again = jax.grad(jax.checkpoint(lambda slopes: attention(q, k, v, score_fn=make(slopes)).sum()))(slopes)
    close(again, jax.jit(jax.grad(lambda slopes: dense(q, k, v, make(slopes)).sum()))(slopes), 1e-10, "checkpoint")


def test_export_with_symbolic_extents() -> None:
    q, k, v = inputs(np.float32)
    slopes = jnp.asarray([0.5, 0.25, 0.125, 2.0])
    function = lambda q, k, v, slopes: attention(q, k, v, score_fn=lambda s, b, h, i, j: s - slopes[h] * jnp.abs(i - j))  # noqa: E731
    scope = export.SymbolicScope()
    specs = [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), np.float32) for shape in ("b,4,t,8", "b,4,s,8", "b,4,s,8")]
    exported = export.export(jax.jit(function), disabled_checks=export_checks())(*specs, jax.ShapeDtypeStruct((N,), np.float32))
    assert same(export.deserialize(exported.serialize()).call(q, k, v, slopes), function(q, k, v, slopes))


@pytest.mark.parametrize(
    ("score_fn", "message"),
    [
        (lambda s, b, h, q, k: jax.lax.digamma(s), "score_fn uses the primitive digamma"),
        (lambda s, b, h, q, k: jax.lax.erf_inv(s), "score_fn uses the primitive erf_inv"),
        (lambda s, b, h, q, k: s**65.5, "the power 65.5"),
        (lambda s, b, h, q, k: jax.lax.cond(q > k, lambda: s, lambda: -s), "score_fn uses the primitive cond"),
        (lambda s, b, h, q, k: jax.lax.fori_loop(0, 3, lambda i, x: 2 * x, s), "score_fn uses the primitive scan"),
        (lambda s, b, h, q, k: s + (q & k), "the primitive and of numbers that are not bool"),
        (lambda s, b, h, q, k: s**q, "the primitive pow with neither a constant exponent nor a positive constant base"),
        (lambda s, b, h, q, k: s.astype(jnp.bfloat16), "a conversion to bfloat16"),
        (lambda s, b, h, q, k: s + jnp.arange(90, dtype=jnp.uint8)[k], "an array of uint8; convert it by .astype(jnp.int32)"),
        (lambda s, b, h, q, k: s + (jnp.ones(100) * s)[k], "an array of shape [100]"),
        (lambda s, b, h, q, k: s + jnp.zeros((2, 2, 2, 2, 2))[b, b, b, b, b], "a captured array of more than 4 dimensions"),
        (lambda s, b, h, q, k: s + jnp.take(jnp.arange(S), q - k), "an index with mode='one_hot', or with mode='fill' and a fill_value"),
        (lambda s, b, h, q, k: s + jnp.arange(9.0).at[q + k].get(mode="fill", fill_value=0.0), "an index with mode='one_hot', or with mode='fill' and a fill_value"),
        (lambda s, b, h, q, k: sum((jnp.tanh(s * i) for i in range(200)), s), "instructions; at most 256 are allowed"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_its_name(score_fn: Score, message: str) -> None:
    with pytest.raises(NotImplementedError, match=re.escape(message)):
        attention(*inputs(np.float32), score_fn=score_fn)


@pytest.mark.parametrize(
    ("score_fn", "error", "message"),
    [
        (3, TypeError, "score_fn is of type int"),
        (lambda s, b, h, q, k: None, ValueError, "score_fn returns nothing"),
        (lambda s, b, h, q, k: (s, s), ValueError, "it must return one number"),
        (lambda s, b, h, q, k: s + jnp.ones(3), ValueError, "score_fn returns float32[3]"),
        (lambda s, b, h, q, k: s + (2**24 + 1) * q, ValueError, "the integer 16777217"),
        (lambda s, b, h, q, k: s + q * 1000003, ValueError, "an integer of score_fn (mul) may be beyond 2^24"),
        (lambda s, b, h, q, k: s + jnp.asarray(np.full(S, 2**24 + 1))[k], ValueError, "an integer array with 16777217"),
        (lambda s, b, h, q, k: s if q > k else -s, jax.errors.TracerBoolConversionError, "boolean"),
    ],
)
def test_wrong_functions(score_fn: Any, error: type[Exception], message: str) -> None:
    with pytest.raises((error, jax.errors.JaxRuntimeError), match=re.escape(message)):
        jax.block_until_ready(attention(*inputs(np.float32), score_fn=score_fn))


def test_derivatives_that_do_not_exist_are_refused_by_name() -> None:
    q, k, v = inputs(np.float32)
    twice = lambda s, *_: 2 * s  # noqa: E731
    loss = lambda q: attention(q, k, v, score_fn=twice).sum()  # noqa: E731
    for function, name in (
        (lambda: jax.jvp(loss, (q,), (q,)), "forward mode"),
        (lambda: jax.jit(lambda: jax.jvp(loss, (q,), (q,)))(), "forward mode"),
        (lambda: jax.jacfwd(loss)(q), "forward mode"),
        (lambda: jax.grad(lambda q: jax.grad(loss)(q).sum())(q), "second derivative"),
        (lambda: jax.hessian(loss)(q), "forward mode"),
        (lambda: jax.grad(lambda q: attention(q, k, v, score_fn=twice, return_lse=True)[1].sum())(q), "gradient of lse"),
        (lambda: jax.grad(lambda q: attention(q, k, v, score_fn=twice, return_attention_weights=True)[1].sum())(q), "gradient of attention weights"),
        (lambda: jax.grad(lambda x: attention(q, k, v, score_fn=twice, relative_bias=polyhead.RelativeBias(slopes=x)).sum())(jnp.ones(N)), "gradient of relative_bias.slopes"),
    ):
        with pytest.raises(NotImplementedError, match=name):
            function()
    (rows, scales), _ = polyhead.quantize_rows(np.asarray(k)), None
    with pytest.raises(NotImplementedError, match="int8 keys have no score_fn"):
        attention(q, rows, rows, k_scale=scales, v_scale=scales, score_fn=twice)
    # Further results may be requested if they are not differentiated.
    first = jax.grad(lambda q: attention(q, k, v, score_fn=twice, return_lse=True, return_attention_weights=True)[0].sum())(q)
    close(first, jax.grad(loss)(q), 1e-6, "beside unused results")


def test_the_page_lists_functions_that_can_be_traced(wide: None) -> None:
    """Each function that the documentation lists exists and runs. Together these functions use every primitive of the table."""
    others = {"score_fn", "if", "jax.nn", "jax.custom_jvp", "jax.jit", "jax.checkpoint", "jnp.where", "jnp.dot", "max", "min", "astype", "lax.cond"}  # these do not take one or two numbers, and are tested above
    names = listed("Functions in JAX")
    assert others <= names
    primitives: set[str] = set()
    terms: list[tuple[str, Callable[[Any], Any]]] = []
    for name in sorted(names - others):
        homes = [jax.lax] if name.startswith("lax.") else [jnp, jax.nn]
        found = [getattr(home, name.removeprefix("lax.")) for home in homes if hasattr(home, name.removeprefix("lax."))]
        assert found, f"{name} of the page is no function of JAX"
        function, more = found[0], {"maximum": [0.4], "minimum": [0.4], "arctan2": [-0.7], "logaddexp": [0.3], "clip": [0.2, 0.6]}.get(name, [])
        first = 1.1 if name == "arccosh" else 0.0  # the only function that has no value in [0, 0.9]

        def term(score: Any, function: Any = function, more: list[float] = more, first: float = first) -> Any:
            x = 0.9 * jnp.tanh(jnp.abs(score)) + first
            return function(x, *(factor + 0.1 * score * (1 - x) for factor in more))

        terms.append((name, term))
        jaxpr = jax.make_jaxpr(function)(*[1.0] * (1 + len(more)))
        primitives |= {equation.primitive.name for equation in jaxpr.eqns}
        for equation in jaxpr.eqns:
            if "jaxpr" in equation.params:
                primitives |= {inner.primitive.name for inner in equation.params["jaxpr"].eqns}
    assert {name for function in FUNCTIONS for name in function.primitives} <= primitives
    q, k, v = inputs()
    for first in range(0, len(terms), 3):  # three functions in each score_fn, to save time for tracing and compiling
        some = terms[first : first + 3]
        score_fn = lambda score, *_, some=some: score + sum(term(score) for _, term in some)  # noqa: E731
        both = [jax.jit(jax.value_and_grad(lambda q, f=f: (lambda out: (jnp.sum(out**2), out))(f(q)), has_aux=True))(q) for f in (lambda q: attention(q, k, v, score_fn=score_fn), lambda q: dense(q, k, v, score_fn))]  # noqa: B023
        ((_, out), gradient), ((_, exact), exact_gradient) = both
        what = ", ".join(name for name, _ in some)
        close(out, exact, 1e-9, what)
        close(gradient, exact_gradient, 1e-9, what)
