"""Compares polyhead.jax with the formula in float64 for every option, and with the bits of polyhead.sdpa. Also tests transforms, layouts without copies, and XLA's interface."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", minversion="0.5")
import jax
import jax.numpy as jnp
import torch
from jax import lax

import polyhead
from effort import QUICK, combinations
from jax_support import Arrays, all_close, close, numbers, same
from polyhead.jax import attention
from test_torch_attention import drawn, formula, split

DIFFERENTIABLE = ("q", "k", "v", "bias", "sink", "slopes", "table")


@pytest.fixture
def wide() -> Iterator[None]:
    """Enables float64 in JAX during a test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def with_parameters(arrays: Arrays, given: Arrays, **more: Any) -> Any:
    """Calls `attention`. `arrays` may hold slopes or a table of a relative bias."""
    options = {name: x for name, x in arrays.items() if name not in ("q", "k", "v", "slopes", "table")} | given
    relative = {name: arrays[name] for name in ("slopes", "table") if name in arrays}
    if relative:
        options["relative_bias"] = polyhead.RelativeBias(**relative, **({"max_distance": 6} if "table" in relative else {}))
    return attention(arrays["q"], arrays["k"], arrays["v"], **options, **more)


def as_arrays(seed: int) -> tuple[Arrays, Arrays, dict[str, torch.Tensor], dict[str, Any]]:
    """Draws a problem as test_torch_attention does. Returns (arrays for JAX, options that are not arrays, tensors and options for the formula)."""
    tensors, given = drawn(seed)
    arrays = {name: x.detach().numpy() for name, x in (tensors | {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}).items()}
    return arrays, {name: x for name, x in given.items() if not isinstance(x, torch.Tensor)}, tensors, given


def loss_of(results: tuple[Any, ...], chosen: list[int], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal(x.shape) for x in results]
    return sum((jnp if isinstance(results[i], jax.Array) else torch).sum(results[i] * (weights[i] if isinstance(results[i], jax.Array) else torch.from_numpy(weights[i]))) for i in chosen)


def test_every_option_is_the_formula(wide: None, summary: list[str]) -> None:
    seen: dict[str, int] = {}
    seeds = range(1000, 1070, 3 if QUICK else 1)
    for seed in seeds:
        arrays, options, tensors, given = as_arrays(seed)
        chosen = [[0, 1, 2], [0], [1], [2]][seed % 4]
        if {"slopes", "table"} & arrays.keys() and {"query_offsets", "diagonal_offsets"} & arrays.keys():
            chosen = [i for i in chosen if i != 2]  # polyhead refuses gradients of the attention weights of such calls
        exact = formula(*tensors.values(), given)
        empty = exact["empty"].numpy()
        layout = ("NTH", "TNH")[seed // 4 % 2]

        def results(x: Arrays) -> tuple[Any, ...]:
            if layout == "TNH":
                x = x | {name: jnp.swapaxes(x[name], -2, -3) for name in ("q", "k", "v")}
            out, lse, p = with_parameters(x, options, layout=layout, return_lse=True, return_attention_weights=True)
            return jnp.swapaxes(out, -2, -3) if layout == "TNH" else out, jnp.where(empty, 0.0, lse), p

        with_gradient = {name: x for name, x in {**tensors, **split(given)[1]}.items()}
        inner = {name: jnp.asarray(arrays[name]) for name in with_gradient}
        rest = {name: x for name, x in arrays.items() if name not in with_gradient}

        def results_and_loss(x: Arrays) -> tuple[Any, tuple[Any, ...]]:
            of = results(x | rest)  # noqa: B023
            return loss_of(of, chosen or [0], seed), of  # noqa: B023

        grads, found = jax.jit(jax.grad(results_and_loss, has_aux=True))(inner)
        theirs = [exact[name] for name in ("out", "lse", "p")]
        for name, ours, wanted in zip(("out", "lse", "p"), found, theirs):
            close(ours, wanted.detach(), 1e-12, f"seed {seed}, {layout}, {name}")
        if not QUICK or seed % 4 == 0:  # also test the call without a gradient
            for ours, wanted in zip(jax.jit(results)({name: jnp.asarray(x) for name, x in arrays.items()}), theirs):
                close(ours, wanted.detach(), 1e-12, f"seed {seed}, {layout}, without a gradient")
        if chosen:
            loss = loss_of(tuple(theirs), chosen, seed)
            wanted = torch.autograd.grad(loss, list(with_gradient.values()), allow_unused=True) if loss.requires_grad else [None] * len(with_gradient)
            for name, of in zip(with_gradient, wanted):
                close(grads[name], np.zeros_like(arrays[name]) if of is None else of, 1e-10, f"seed {seed}, {layout}, d_{name}: {sorted(given)}, {chosen}")
        for name in given:
            seen[name] = seen.get(name, 0) + 1
    summary.append(f"polyhead.jax.attention: {len(seeds)} random problems compared with the formula, under jit; times each option came up: {seen}")
    assert QUICK or min(seen.values()) > 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_results_and_gradients_have_the_bits_of_sdpa(dtype: str, wide: None, rng: np.random.Generator) -> None:
    q, k, v, bias, d_out = (numbers(rng, *shape).astype(dtype) for shape in ((2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 8), (4, 9, 11), (2, 4, 9, 8)))
    options = {"causal": "bottom_right", "window": (6, None), "softcap": 3.0, "dropout": 0.2, "seed": 2**40 + 7}
    like = {"float32": np.float32, "float64": np.float64, "float16": np.float16}.get(dtype)
    if like is None:  # NumPy has no bfloat16, so polyhead.sdpa gets torch's tensors
        given = [torch.from_numpy(np.array(x.astype(jnp.float32))).bfloat16() for x in (q, k, v, bias, d_out)]
        theirs = [lambda x: np.asarray(x.float()).astype(jnp.bfloat16), lambda x: np.asarray(x)]
    else:
        given = [np.asarray(x) for x in (q, k, v, bias, d_out)]
        theirs = [np.asarray, np.asarray]
    out, lse = polyhead.sdpa(*given[:3], bias=given[3], return_lse=True, **options)
    grads = polyhead.sdpa_backward(*given[:3], out, lse, given[4], bias=given[3], **options)
    ours, pull = jax.vjp(lambda q, k, v, bias: attention(q, k, v, bias=bias, **options), q, k, v, bias)
    assert same(ours, theirs[0](out))
    exact, _ = polyhead.sdpa(*given[:3], bias=given[3], return_lse=True, precision="exact", **options)
    assert same(jax.jit(lambda q, k, v, bias: attention(q, k, v, bias=bias, precision="exact", **options))(q, k, v, bias), theirs[0](exact))
    assert same(attention(q, k, v, bias=bias, return_lse=True, **options)[1], theirs[1](lse))
    for name, of in zip(("q", "k", "v", "bias"), pull(d_out)):
        assert same(of, theirs[0](getattr(grads, name))), name


@pytest.mark.parametrize(("rule", "layout"), combinations([("top_left", None, 0), ("bottom_right", None, 2), (1, None, 1), (None, "top_left", 0), (None, -1, -1), (None, None, 2)], ["NTH", "TNH"]))
def test_attention_weights_of_a_relative_bias(rule: tuple[Any, Any, int], layout: Any, wide: None, rng: np.random.Generator) -> None:
    causal, diagonal, offset = rule
    turn = (lambda x: jnp.swapaxes(x, -2, -3)) if layout == "TNH" else (lambda x: x)
    q, k, slopes, table, w = (jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (4,), (4, 8), (2, 4, 5, 7)))
    distance = np.arange(7) - (np.arange(5)[:, None] + offset)
    buckets = np.array([[polyhead.relative_bucket(int(x), 8, max_distance=6) for x in row] for row in distance])

    def exact(q: Any, k: Any, parameter: Any) -> Any:
        score = jnp.matmul(q, jnp.swapaxes(jnp.repeat(k, 2, 1), -1, -2)) / np.sqrt(8)
        score += parameter[:, buckets] if parameter.ndim == 2 else -parameter[:, None, None] * np.abs(distance)
        return jax.nn.softmax(score, where=distance <= (0 if causal is not None else 9))

    for name, parameter in (("slopes", slopes), ("table", table)):

        def ours(q: Any, k: Any, parameter: Any) -> Any:
            relative = polyhead.RelativeBias(**{name: parameter}, **({"max_distance": 6} if name == "table" else {}), diagonal=diagonal)  # noqa: B023
            return attention(turn(q), turn(k), turn(k), layout=layout, causal=causal, relative_bias=relative, return_attention_weights=True)[1]

        a, b = (jax.jit(jax.grad(lambda *x, f=f: (f(*x) * w).sum(), argnums=(0, 1, 2)))(q, k, parameter) for f in (ours, exact))
        all_close(a, b, 1e-12, name)


def test_narrow_keys_and_values(rng: np.random.Generator) -> None:
    q, d_out = numbers(rng, 2, 4, 3, 16), numbers(rng, 2, 4, 3, 16)
    k, v = (np.asarray(numbers(rng, 2, 2, 20, 16)) for _ in range(2))
    (k8, k_scale), (v8, v_scale) = (polyhead.quantize_rows(x) for x in (k, v))
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    assert same(attention(q, k8, v8, **scales), polyhead.sdpa(np.asarray(q), k8, v8, **scales))
    wide_k, wide_v = (x8.astype(np.float32) * scale[..., None] for x8, scale in ((k8, k_scale), (v8, v_scale)))
    for layout, turn in (("NTH", lambda x: x), ("TNH", lambda x: jnp.swapaxes(x, -2, -3))):
        _, pull = jax.vjp(lambda q: turn(attention(turn(q), turn(jnp.asarray(k8)), turn(jnp.asarray(v8)), layout=layout, **scales)), q)
        _, exact = jax.vjp(lambda q: attention(q, wide_k, wide_v), q)
        close(pull(d_out)[0], exact(d_out)[0], 1e-5, layout)
    half = jnp.asarray(k).astype(jnp.bfloat16), jnp.asarray(v).astype(jnp.float16).astype(jnp.bfloat16)
    grads = jax.grad(lambda *x: (attention(*x) * d_out).sum(), argnums=(0, 1, 2))(q, *half)
    exact = jax.grad(lambda *x: (attention(*x) * d_out).sum(), argnums=(0, 1, 2))(q, *(x.astype(jnp.float32) for x in half))
    assert [x.dtype.name for x in grads] == ["float32", "bfloat16", "bfloat16"]
    for ours, wanted in zip(grads, exact):
        close(ours.astype(jnp.float32), wanted, 1e-2, "bfloat16")
    with pytest.raises(NotImplementedError, match="k_scale is differentiated"):
        jax.grad(lambda s: attention(q, k8, v8, k_scale=s, v_scale=v_scale).sum())(jnp.asarray(k_scale))


# jax.export, as described in python/README.md.

EXPORT = """
import sys
import jax
import jax.numpy as jnp
from jax import export
loaded = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x, bias = jnp.linspace(-1, 1, 96).reshape(2, 6, 8), jnp.linspace(0, 2, 36).reshape(6, 6)
try:
    print(loaded.call(x, bias))
except Exception as error:
    assert "polyhead_attention" in str(error), error  # XLA's error names the missing target
    print("refused")
import polyhead.jax
out, gradients = loaded.call(x, bias), jax.grad(lambda *given: loaded.call(*given).sum(), argnums=(0, 1))(x, bias)
print(out.sum(), *(float(jnp.abs(g).sum()) for g in gradients))
"""


def test_an_exported_function_runs_in_another_process(tmp_path: Path) -> None:
    export = pytest.importorskip("jax.export")
    f = jax.jit(lambda x, bias: attention(x, x, x, bias=bias, causal="top_left"))
    x, bias = jnp.linspace(-1, 1, 96).reshape(2, 6, 8), jnp.linspace(0, 2, 36).reshape(6, 6)
    with pytest.raises(ValueError, match=r"(?s)custom calls whose targets have no compatibility guarantees.*polyhead_attention"):
        export.export(f)(x, bias)
    exported = export.export(f, disabled_checks=[export.DisabledSafetyCheck.custom_call("polyhead_attention")])(x, bias)
    file = tmp_path / "attention.bin"
    file.write_bytes(exported.serialize(vjp_order=1))
    expected = [float(f(x, bias).sum()), *(float(jnp.abs(g).sum()) for g in jax.grad(lambda *given: f(*given).sum(), argnums=(0, 1))(x, bias))]
    result = subprocess.run([sys.executable, "-c", EXPORT, str(file)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "refused"
    np.testing.assert_allclose([float(word) for word in second.split()], expected, rtol=1e-5)


# vmap gives the results of each example alone.


def problem(rng: np.random.Generator, kind: int) -> tuple[Arrays, Arrays]:
    arrays: Arrays = {"q": numbers(rng, 2, 4, 5, 8), "k": numbers(rng, 2, 2, 6, 8), "v": numbers(rng, 2, 2, 6, 3)}
    given: Arrays = {}
    some = lambda *shape: jnp.asarray(rng.random(shape) < 0.7)  # noqa: E731
    if kind % 6 == 0:
        arrays |= {"bias": numbers(rng, 4, 5, 6), "attend_keys": some(6)}
    elif kind % 6 == 1:
        arrays |= {"bias": numbers(rng, 1, 6), "sink": numbers(rng, 4), "key_lengths": jnp.asarray(rng.integers(1, 7, 2)), "key_starts": jnp.asarray(rng.integers(0, 4, (2, 5)))}
    elif kind % 6 == 2:
        arrays |= {"table": numbers(rng, 4, 8), "sink": numbers(rng, 2, 1, 5)}
        given["causal"] = "bottom_right"
    elif kind % 6 == 3:
        arrays |= {"bias": numbers(rng, 2, 1, 5, 6), "attend": some(5, 6), "seed": jnp.asarray(rng.integers(0, 99), jnp.int32)}
        given["dropout"] = 0.3
    elif kind % 6 == 4:
        arrays |= {"query_offsets": jnp.array([0, 2, 5]), "key_offsets": jnp.array([0, int(rng.integers(0, 7)), 6]), "slopes": numbers(rng, 4)}
    else:
        arrays |= {"diagonal_offsets": jnp.asarray(rng.integers(-1, 3, 2)), "block": some(4, 1, 6), "bias": numbers(rng, 6)}
        given["causal"] = "top_left"
    return arrays, given


def stacked(rng: np.random.Generator, kind: int, size: int, mapped: set[str]) -> tuple[Arrays, Arrays, dict[str, int | None]]:
    """Draws a problem for vmap: arrays named in `mapped` have a further dimension, at a random axis. Returns (arrays, options, axes)."""
    examples = [problem(rng, kind) for _ in range(size)]
    arrays, axes = {}, {}
    for name, x in examples[0][0].items():
        axes[name] = int(rng.integers(0, x.ndim + 1)) if name in mapped else None
        arrays[name] = x if axes[name] is None else jnp.stack([other[name] for other, _ in examples], axes[name])
    return arrays, examples[0][1], axes


def one_of(arrays: Arrays, axes: dict[str, int | None], i: int) -> Arrays:
    return {name: x if axes[name] is None else jnp.take(x, i, axes[name]) for name, x in arrays.items()}


def draws(rng: np.random.Generator, count: int) -> Iterator[tuple[int, set[str]]]:
    for kind in range(count):
        names = list(problem(rng, kind)[0])
        mapped = {name for name in names if rng.random() < 0.6}
        yield kind, mapped or {names[int(rng.integers(len(names)))]}


def test_vmap_is_each_example_alone(rng: np.random.Generator) -> None:
    for kind, mapped in draws(rng, 6 if QUICK else 18):
        arrays, given, axes = stacked(rng, kind, 3, mapped)
        f = lambda x: with_parameters(x, given, return_lse=True, return_attention_weights=kind % 2 == 0)  # noqa: B023, E731
        whole = jax.jit(jax.vmap(f, in_axes=(axes,)))(arrays)
        for i in range(3):
            for ours, alone in zip(whole, f(one_of(arrays, axes, i))):
                assert same(ours[i], alone), (kind, mapped, i)


@pytest.mark.parametrize("of", ["out", "lse", "p"])
def test_gradients_under_vmap_are_those_of_each_example(of: str, rng: np.random.Generator) -> None:
    position = ("out", "lse", "p").index(of)
    for kind, mapped in draws(rng, 6 if QUICK else 12):
        if of == "p" and kind % 6 == 4:
            continue  # polyhead refuses gradients of attention weights if there are both a relative bias and documents
        if QUICK and (kind + position) % 3 == 2:
            continue  # to save time, each kind is tested with two of the three results
        arrays, given, axes = stacked(rng, kind, 3, mapped)

        def f(x: Arrays, rest: Arrays) -> Any:
            result = with_parameters(x | rest, given, return_lse=True, return_attention_weights=True)[position]  # noqa: B023
            return (result * jnp.cos(jnp.arange(result.size).reshape(result.shape))).sum()

        inner = {name: x for name, x in arrays.items() if name in DIFFERENTIABLE}
        rest = {name: x for name, x in arrays.items() if name not in inner}
        in_axes = ({name: axes[name] for name in inner}, {name: axes[name] for name in rest})
        each = jax.jit(jax.vmap(jax.grad(f), in_axes=in_axes))(inner, rest)
        summed = jax.jit(jax.grad(lambda x: jax.vmap(f, in_axes=in_axes)(x, rest).sum()))(inner)  # noqa: B023
        examples, gradient = [one_of(arrays, axes, i) for i in range(3)], jax.jit(jax.grad(f))
        alone = [gradient({name: example[name] for name in inner}, {name: example[name] for name in rest}) for example in examples]
        for name in inner:
            for i in range(3):
                close(each[name][i], alone[i][name], 1e-5, f"{kind} {mapped} d_{name} of example {i}")
            whole = sum(alone[i][name] for i in range(3)) if axes[name] is None else jnp.stack([alone[i][name] for i in range(3)], axes[name])
            close(summed[name], whole, 2e-5, f"{kind} {mapped} summed d_{name}")


def test_two_levels_of_vmap(rng: np.random.Generator) -> None:
    q, k, v = numbers(rng, 2, 3, 4, 5, 8), numbers(rng, 3, 4, 6, 8), numbers(rng, 2, 4, 6, 8)
    bias, seeds = numbers(rng, 4, 5, 6), jnp.arange(6, dtype=jnp.uint32).reshape(2, 3)
    for dropout in (0.0, 0.4):
        f = lambda q, k, v, bias, seed: attention(q, k, v, bias=bias, dropout=dropout, seed=seed)  # noqa: B023, E731
        both = jax.vmap(jax.vmap(f, (0, 0, None, None, 0)), (0, None, 0, None, 0))
        grads = jax.grad(lambda *x: (both(*x, seeds) ** 2).sum(), argnums=(0, 1, 2, 3))(q, k, v, bias)
        total = jnp.zeros_like(bias)
        for i, j in itertools.product(range(2), range(3)):
            single = (q[i, j], k[j], v[i], bias, seeds[i, j])
            assert same(both(q, k, v, bias, seeds)[i, j], f(*single))
            total += jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=3)(*single)
        close(grads[3], total, 1e-5, "bias")
    # The gradient is taken of a sum over the inner vmap, and the outer vmap maps this gradient.
    f = lambda q, k, v, bias: (attention(q, k, v, bias=bias) ** 2).sum()  # noqa: E731
    inner = jax.grad(lambda *x: jax.vmap(f, (0, 0, None, None))(*x).sum(), argnums=(0, 1, 2, 3))
    whole = jax.vmap(inner, (0, None, 0, None))(q, k, v, bias)
    for i in range(2):
        for ours, alone in zip(whole, inner(q[i], k, v[i], bias)):
            close(ours[i], alone, 1e-5, "mixed")


def sizes(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from sizes(getattr(inner, "jaxpr", inner))


def test_a_bias_that_is_not_mapped_is_never_repeated(rng: np.random.Generator) -> None:
    q, bias, mask = numbers(rng, 16, 2, 20, 4), numbers(rng, 2, 20, 20), jnp.asarray(rng.random((20, 20)) < 0.9)
    f = lambda q, bias: (jax.vmap(lambda q, b: attention(q, q, q, bias=b, attend=mask), (0, None))(q, bias) ** 2).sum()  # noqa: E731
    traced = jax.make_jaxpr(jax.grad(f, argnums=(0, 1)))(q, bias)
    assert max(sizes(traced.jaxpr)) <= q.size, traced


# Other transforms.


def plain(q: Any, k: Any, v: Any, bias: Any) -> Any:
    k, v = (jnp.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    score = jnp.matmul(q, jnp.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1]) + bias
    return jnp.matmul(jax.nn.softmax(score, -1), v)


def with_rule(f: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps f in a custom_vjp, as libraries do."""
    g = jax.custom_vjp(f)
    g.defvjp(lambda *x: jax.vjp(f, *x), lambda pull, d: pull(d))
    return g


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, w: jax.grad(lambda *x: (f(*x) * w).sum(), argnums=(0, 1, 2, 3)),
    "value_and_grad": lambda f, w: jax.value_and_grad(lambda *x: (f(*x) * w).sum(), argnums=(3, 0)),
    "jacrev": lambda f, w: jax.jacrev(lambda *x: f(*x)[0, 0, :2], argnums=(0, 1, 2, 3)),
    "checkpoint": lambda f, w: jax.grad(lambda *x: (jax.checkpoint(f)(*x) * w).sum(), argnums=(0, 1, 2, 3)),
    "scan": lambda f, w: jax.grad(lambda q, k, v, b: lax.scan(lambda c, x: (c + (f(*x, b) ** 2).sum(), None), 0.0, (q, k, v))[0], argnums=(0, 1, 2, 3)),
    "map": lambda f, w: lambda q, k, v, b: lax.map(lambda x: f(*x, b), (q, k, v)),
    "while": lambda f, w: lambda q, k, v, b: lax.fori_loop(0, 2, lambda i, x: x + f(x, k, q, b)[..., :8], q),
    "cond": lambda f, w: jax.grad(lambda q, k, v, b: lax.cond(q[0, 0, 0, 0] > -9, lambda x: f(*x).sum(), lambda x: 0.0, (q, k, v, b)), argnums=(0, 3)),
    "linearize": lambda f, w: lambda *x: jax.linear_transpose(jax.linearize(f, *x)[1], *x)(w),
    "vmap of checkpoint": lambda f, w: jax.grad(lambda *x: (jax.vmap(jax.checkpoint(f), (0, 0, 0, None))(*x) * w).sum(), argnums=(0, 1, 2, 3)),
    "custom_vjp": lambda f, w: jax.grad(lambda *x: (with_rule(f)(*x) * w).sum(), argnums=(0, 1, 2, 3)),
}


@pytest.mark.parametrize(("name", "jit"), combinations(TRANSFORMS, [False, True]))
def test_transforms(name: str, jit: bool, wide: None, rng: np.random.Generator) -> None:
    x = [jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), (4, 6, 6))]
    w = jnp.asarray(rng.standard_normal((2, 4, 6, 8)))
    if name == "while":
        x[0] = x[0][:, :2]
        x[3] = x[3][:2]
    ours = (jax.jit if jit else lambda f: f)(TRANSFORMS[name](lambda q, k, v, b: attention(q, k, v, bias=b), w))(*x)
    exact = jax.jit(TRANSFORMS[name](plain, w))(*x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        close(a, b, 1e-11, name)


def test_derivatives_that_do_not_exist_are_refused(rng: np.random.Generator) -> None:
    q = numbers(rng, 1, 2, 3, 4)
    rule = {"attend": np.zeros((3, 3), bool), "empty_rows": "uniform"}
    with pytest.raises(NotImplementedError, match="no gradient of lse with empty_rows='uniform'"):
        jax.grad(lambda q: attention(q, q, q, return_lse=True, **rule)[1].sum())(q)
    with pytest.raises(NotImplementedError, match="no gradient of attention weights with empty_rows='uniform'"):
        jax.grad(lambda q: attention(q, q, q, return_attention_weights=True, **rule)[1].sum())(q)


@pytest.mark.parametrize("rule", ["uniform", "unmasked"])
def test_empty_rows(rule: str, rng: np.random.Generator) -> None:
    q, attend = numbers(rng, 2, 2, 4, 8), np.array([[1, 0, 1, 1], [0] * 4, [1] * 4, [0, 1, 0, 0]], bool)
    other = torch.from_numpy(np.array(q)).requires_grad_()
    from polyhead.torch import attention as torch_attention

    theirs = torch_attention(other, other, other, attend=torch.from_numpy(attend), empty_rows=rule, return_lse=rule == "unmasked")
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    ours = lambda q: attention(q, q, q, attend=attend, empty_rows=rule, return_lse=True)  # noqa: E731
    chosen = [0] if rule == "uniform" else [0, 1]
    loss_of(theirs, chosen, 0).backward()
    for i in chosen:
        assert same(ours(q)[i], theirs[i].detach())
    close(jax.grad(lambda q: loss_of(ours(q), chosen, 0))(q), other.grad, 1e-5, rule)


# Numbers.

SCALARS = [np.float16, np.float32, np.float64, jnp.bfloat16, np.int8, np.int32, np.int64, np.uint8]


@pytest.mark.parametrize("of", [int, float, *SCALARS, *(lambda x, t=t: np.array(x, t) for t in SCALARS), *(lambda x, t=t: jnp.array(x, t) for t in SCALARS)])
def test_every_kind_of_number(of: Callable[[Any], Any], wide: None, rng: np.random.Generator) -> None:
    q = numbers(rng, 1, 2, 6, 4)
    part = 0.5 if float(of(0.5)) == 0.5 else 1  # integers cannot hold 0.5
    for option in ({"scale": 2}, {"scale": part}, {"softcap": part}, {"dropout": part, "seed": 3}):
        name = next(iter(option))
        exact = polyhead.sdpa(*[np.asarray(q)] * 3, **option)
        assert same(attention(q, q, q, **option | {name: of(option[name])}), exact), option
    if part == 1:
        for option in ({"causal": 1}, {"window": (2, 1)}, {"num_threads": 1}, {"causal": 1, "relative_bias": 1}):
            given = {name: tuple(map(of, x)) if isinstance(x, tuple) else of(x) for name, x in option.items()}
            if "relative_bias" in option:
                slopes = np.ones(2, np.float32)
                option["relative_bias"], given["relative_bias"] = (polyhead.RelativeBias(slopes, diagonal=x) for x in (1, of(1)))
            assert same(attention(q, q, q, **given), polyhead.sdpa(*[np.asarray(q)] * 3, **option)), option


@pytest.mark.parametrize("rule", ["zero", "unmasked"])
@pytest.mark.parametrize("result", [1, 2])
def test_float32_stays_float32_beside_float64(result: int, rule: str, wide: None, rng: np.random.Generator) -> None:
    arrays = {"q": numbers(rng, 2, 4, 5, 8), "k": numbers(rng, 2, 2, 6, 8), "v": numbers(rng, 2, 2, 6, 3)}
    given: Arrays = {"empty_rows": rule, "attend_keys": np.arange(6) < 5}
    if rule == "zero":
        arrays |= {"bias": numbers(rng, 4, 5, 6), "sink": numbers(rng, 4)}
    else:
        arrays |= {"slopes": numbers(rng, 4)}

    def loss(x: Arrays) -> Any:
        return (with_parameters(x, given, return_lse=True, return_attention_weights=True)[result] ** 2).sum()

    ours = jax.jit(jax.grad(loss))(arrays)
    assert {x.dtype.name for x in ours.values()} == {"float32"}
    all_close(ours, jax.jit(jax.grad(loss))({name: x.astype(jnp.float64) for name, x in arrays.items()}), 1e-5, rule)


# Seeds.


def test_seeds(rng: np.random.Generator) -> None:
    q = numbers(rng, 2, 2, 8, 4)
    f = lambda seed: attention(q, q, q, dropout=0.5, seed=seed)  # noqa: E731
    exact = polyhead.sdpa(*[np.asarray(q)] * 3, dropout=0.5, seed=77)
    for seed in (77, np.int64(77), jnp.int32(77), np.array(77), jax.random.key(77), jax.random.PRNGKey(77)):
        assert same(f(seed), exact)
        if isinstance(seed, jax.Array):
            assert same(jax.jit(f)(seed), exact)
    assert same(jax.jit(f)(jnp.int32(-1)), polyhead.sdpa(*[np.asarray(q)] * 3, dropout=0.5, seed=2**32 - 1))  # seeds are taken modulo 2^32
    assert same(f(2**64 - 1), polyhead.sdpa(*[np.asarray(q)] * 3, dropout=0.5, seed=2**64 - 1))
    large = polyhead.sdpa(*[np.asarray(q)] * 3, dropout=0.5, seed=2**40 + 7)
    assert same(f(np.array(2**40 + 7)), large) and same(f(np.uint64(2**40 + 7)), large)
    for negative in (-1, np.int32(-1), np.array(-1), jnp.int32(-1)):
        with pytest.raises(ValueError, match=r"seed is -1; it must lie in \[0, 2\^64\)"):
            f(negative)
    other = f(jax.random.key(77, impl="rbg"))
    assert same(other, f(jax.random.key(77, impl="rbg"))) and not same(other, f(jax.random.key(78, impl="rbg")))
    keys = jax.random.split(jax.random.key(3), 4)
    for one, key in zip(jax.vmap(f)(keys), keys):
        assert same(one, f(key))
    with pytest.raises(TypeError, match="seed is key<fry> \\[4\\]"):
        f(keys)
    with pytest.raises(ValueError, match="dropout needs a seed"):
        f(None)


# Memory.


@pytest.mark.parametrize("layout", ["NTH", "TNH"])
def test_operands_and_results_are_not_copied(layout: Any, rng: np.random.Generator) -> None:
    heads, length, width = 2, 512, 16
    q = numbers(rng, *((1, heads, length, width) if layout == "NTH" else (1, length, heads, width)))
    bias = numbers(rng, 1, length, length)
    f = lambda q, k, v, bias: attention(q, k, v, bias=bias, layout=layout, causal="top_left")  # noqa: E731
    compiled = jax.jit(f).lower(q, q, q, bias).compile()
    rows = heads * length * 4
    assert compiled.memory_analysis().temp_size_in_bytes <= rows + 4096
    assert not any(word in compiled.as_text() for word in (" copy(", " transpose(", " fusion(")), compiled.as_text()
    pull = jax.jit(lambda q, k, v, bias, d: jax.vjp(f, q, k, v, bias)[1](d)).lower(q, q, q, bias, q).compile()
    # Between the forward and the backward pass only out and lse are kept.
    assert pull.memory_analysis().temp_size_in_bytes <= q.size * 4 + rows + 8192
    assert not any(word in pull.as_text() for word in (" copy(", " transpose(", " fusion(")), pull.as_text()


# Threads.


def test_calls_from_many_threads(rng: np.random.Generator) -> None:
    q = numbers(rng, 8, 4, 2, 200, 32)
    f = jax.jit(jax.value_and_grad(lambda q: (attention(q, q, q, causal="top_left") ** 2).sum()))
    alone = [f(x) for x in q]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for ours, exact in zip(pool.map(f, q), alone):
                assert all(map(same, ours, exact))


def test_several_devices() -> None:
    # XLA creates its devices when it starts, so the test runs in another process.
    code = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, numpy as np, jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from polyhead.jax import attention, attention_fn
    shard_map = getattr(jax, "shard_map", None)
    rng = np.random.default_rng(0)
    q, bias = (jnp.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((8, 2, 40, 8), (2, 40, 40)))
    f = lambda q, bias: attention(q, q, q, bias=bias)
    loss = lambda q, bias: (f(q, bias) ** 2).sum()
    exact, grads = f(q, bias), jax.grad(loss, argnums=(0, 1))(q, bias)
    same = lambda a, b: np.array_equal(np.asarray(a), np.asarray(b))
    close = lambda a, b: np.allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-4)
    assert len(jax.devices()) == 4
    assert same(jax.pmap(f, in_axes=(0, None))(q.reshape(4, 2, 2, 40, 8), bias).reshape(exact.shape), exact)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    spread = jax.device_put(q, NamedSharding(mesh, P("x")))
    assert same(jax.jit(f)(spread, bias), exact)
    assert all(map(close, jax.jit(jax.grad(loss, argnums=(0, 1)))(spread, bias), grads))
    if shard_map is not None:
        g = shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False)
        assert same(jax.jit(g)(q, bias), exact)
        assert all(map(close, jax.jit(jax.grad(lambda *x: (g(*x) ** 2).sum(), argnums=(0, 1)))(q, bias), grads))
        try:
            jax.jit(shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))(q, bias)
            raise AssertionError("not refused")
        except NotImplementedError as error:
            assert "check_vma=False" in str(error)
        for seeds in (jnp.arange(4, dtype=jnp.uint32), jax.random.split(jax.random.key(0), 4)):  # alone to vary over the mesh
            drop = lambda q, seed: attention(q, q, q, dropout=0.5, seed=seed[0])
            flax = lambda q, key: attention_fn(q, q, q, broadcast_dropout=False, dropout_rng=key[0], dropout_rate=0.5)
            for call, name in ((drop, "attention: seed"), (flax, "attention_fn: dropout_rng")):
                try:
                    shard_map(call, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())(q, seeds)
                    raise AssertionError("not refused")
                except NotImplementedError as error:
                    assert f"{name} varies" in str(error) and "check_vma=False" in str(error)
            parts = jax.jit(shard_map(drop, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"), check_vma=False))(q, seeds)
            assert all(same(part, drop(q, seeds[i:])) for i, part in enumerate(jnp.split(parts, 4)))
    print("fine")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "fine", done.stderr[-3000:]


# What is refused.


def test_errors(rng: np.random.Generator) -> None:
    q, k = numbers(rng, 2, 4, 5, 8), numbers(rng, 2, 2, 6, 8)
    with pytest.raises(ValueError, match=r"^sdpa_forward: k is \[2,2,6,7\]; its last extent must be H = 8, as in q \[2,4,5,8\]"):
        jax.jit(attention)(q, k[..., :7], k)
    with pytest.raises(ValueError, match=r"k is \[2,2,6,7\].*\(shapes in the order \[\*,N,T,H\]\)"):
        attention(*(jnp.swapaxes(x, 1, 2) for x in (q, k[..., :7], k)), layout="TNH")
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'; did you mean 'attend'"):
        attention(q, k, k, mask=None)
    with pytest.raises(TypeError, match="scale is a traced value; it must be known when the function is traced"):
        jax.jit(lambda q, scale: attention(q, k, k, scale=scale))(q, 0.5)
    with pytest.raises(TypeError, match="window is a traced value"):
        jax.jit(lambda q, left: attention(q, k, k, window=(left, None)))(q, 2)
    with pytest.raises(ValueError, match="q is float64, which JAX makes float32 unless jax_enable_x64 is set"):
        attention(np.asarray(q, np.float64), k, k)
    with pytest.raises(ValueError, match="layout is 'BTNH'; it may be 'NTH'"):
        attention(q, k, k, layout="BTNH")  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"sdpa_forward: a key length is 9; it must lie in \[0,S\] = \[0,6\]"):
        jax.block_until_ready(jax.jit(lambda n: attention(q, k, k, key_lengths=n))(jnp.array([9, 3])))
    with pytest.raises(ValueError, match="a key length is 9"):
        jax.jit(lambda q: attention(q, k, k, key_lengths=np.array([9, 3])))(q)
    with pytest.raises(ValueError, match="key_lengths has values beyond int32"):
        attention(q, k, k, key_lengths=np.array([2**40, 3]))


def test_functions_compute_while_jit_is_disabled(rng: np.random.Generator) -> None:
    q = jnp.asarray(rng.standard_normal((2, 3, 4)))

    def loss(q: jax.Array) -> jax.Array:
        return (attention(q, q, q, causal="top_left") ** 2).sum()

    def results() -> list[jax.Array]:
        return [attention(q, q, q), jax.grad(loss)(q), jax.vmap(jax.grad(loss))(q[None]), jax.jvp(loss, (q,), (q,))[1], attention(q, q, q, score_fn=lambda s, *_: 2 * s)]

    expected = results()
    with jax.disable_jit():
        found = results()
        assert jax.config.jax_disable_jit
    for a, b in zip(expected, found):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_another_device_is_refused_by_name(rng: np.random.Generator) -> None:
    q = numbers(rng, 1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="polyhead.jax computes on the CPU, and the function is compiled for cuda"):
        jax.jit(lambda q: attention(q, q, q)).trace(q).lower(lowering_platforms=("cuda",))


def test_the_signature_lists_the_options() -> None:
    names = set(inspect.signature(attention).parameters)
    assert set(inspect.signature(polyhead.explain).parameters) <= names


# XLA's interface.

STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", {"struct_size": "struct_size", "type": "type", "next": "next"}),
    "Version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "Metadata": ("XLA_FFI_Metadata", {"version": "api_version", "traits": "traits"}),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "ErrorArguments": ("XLA_FFI_Error_Create_Args", {"message": "message", "code": "errc"}),
    "Api": ("XLA_FFI_Api", {"version": "api_version", "make_error": "XLA_FFI_Error_Create"}),
    "Buffer": ("XLA_FFI_Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "extents": "dims"}),
    "Buffers": ("XLA_FFI_Args", {"size": "size", "types": "types", "buffers": "args"}),
    "Bytes": ("XLA_FFI_ByteSpan", {"data": "ptr", "size": "len"}),
    "Attributes": ("XLA_FFI_Attrs", {"size": "size", "types": "types", "names": "names", "values": "attrs"}),
    "CallFrame": ("XLA_FFI_CallFrame", {"api": "api", "stage": "stage", "operands": "args", "results": "rets", "attributes": "attrs"}),
}
CONSTANTS = {
    "kMetadataExtension": "XLA_FFI_Extension_Metadata", "kInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT", "kInternal": "XLA_FFI_Error_Code_INTERNAL",
    "kResourceExhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED", "kBuffer": "XLA_FFI_ArgType_BUFFER", "kString": "XLA_FFI_AttrType_STRING",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
}  # fmt: skip


def test_the_declarations_of_xlas_interface_have_its_layout(tmp_path: Path) -> None:
    ours = Path(__file__).parents[2] / "python/bindings/xla_ffi.h"
    lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{ours}"', "#include <cstddef>", "namespace x = polyhead::python::xla;"]
    for name, (theirs, fields) in STRUCTS.items():
        lines += [f"static_assert(offsetof(x::{name}, {a}) == offsetof({theirs}, {b}));" for a, b in fields.items()]
        lines += [f"static_assert(sizeof(x::{name}::{a}) == sizeof({theirs}::{b}));" for a, b in fields.items()]
    lines += [f"static_assert(x::{a} == {b});" for a, b in CONSTANTS.items()]
    source = tmp_path / "layout.cc"
    source.write_text("\n".join(lines))
    try:
        done = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", str(source)], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no compiler")
    assert done.returncode == 0, done.stderr[:3000]
