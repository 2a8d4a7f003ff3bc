"""Compares forward mode and second derivatives of polyhead.jax with the formula in float64, for every option and for nestings of jvp, grad, vmap and jit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", minversion="0.5")
import jax
import jax.numpy as jnp
from jax import lax

import polyhead
from effort import QUICK, combinations
from formulas import buckets_of, distances_and_mask
from jax_support import Arrays, all_close, close, numbers, same
from polyhead.jax import attention, attention_fn, dot_product_attention
from test_jax import DIFFERENTIABLE, as_arrays, draws, one_of, plain, sizes, stacked, wide, with_parameters  # noqa: F401

def formula(x: Arrays, fixed: Arrays, options: Arrays) -> tuple[Any, Any, Any]:
    """Computes out, lse and p of the inputs x with dense matrices. Infinities would have NaN as derivatives, so lse is 0 in rows without keys and sink."""
    q, (k, v) = x["q"], (jnp.repeat(x[name], x["q"].shape[1] // x[name].shape[1], 1) for name in ("k", "v"))
    shape = (*q.shape[:3], k.shape[2])
    distance, keep = distances_and_mask(fixed, options, shape)
    rule = options.get("empty_rows", "zero")
    if rule == "unmasked":
        keep = keep | ~keep.any(-1, keepdims=True)
    score = jnp.matmul(q, jnp.swapaxes(k, -1, -2)) * (q.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"])
    if softcap := options.get("softcap", 0.0):
        score = softcap * jnp.tanh(score / softcap)
    score += x.get("bias", 0.0)
    if "slopes" in x:
        score -= x["slopes"][:, None, None] * np.abs(distance)[:, None]
    if "table" in x:
        score += jnp.moveaxis(x["table"][:, buckets_of(distance, x["table"].shape[1], max_distance=6)], 0, 1)
    rows, has_rows = jnp.zeros((*shape[:3], 1), q.dtype), "sink" in x
    if has_rows:
        rows += (x["sink"][:, None] if x["sink"].ndim == 1 else x["sink"])[..., None]
    empty = ~keep.any(-1, keepdims=True)
    score = jnp.where(keep, score, 0)
    largest = lax.stop_gradient(jnp.maximum(jnp.max(jnp.where(keep, score, -1e9), -1, keepdims=True), rows if has_rows else -1e9))
    e = jnp.where(keep, jnp.exp(jnp.where(keep, score - largest, 0)), 0)
    total = e.sum(-1, keepdims=True) + (jnp.exp(rows - largest) if has_rows else 0)
    without = empty if not has_rows else np.zeros_like(empty)
    total = jnp.where(without, 1, total)
    p = e / total
    if rule == "uniform":
        p = jnp.where(empty, 1 / shape[-1], p)
    dropped = p * fixed["dropout_keep"] / (1 - options["dropout"]) if "dropout_keep" in fixed else p
    return jnp.matmul(dropped, v), jnp.where(without, 0, jnp.log(total) + largest)[..., 0], p


def tangents_of(x: Arrays, rng: np.random.Generator) -> Arrays:
    return {name: jnp.asarray(rng.standard_normal(a.shape), a.dtype) for name, a in x.items()}


def loss_of(results: Any) -> Any:
    """A loss that is not linear in the results, so that second derivatives are not trivial."""
    return sum((np.cos(0.7 * i + np.arange(x.size)).reshape(x.shape).astype(x.dtype) * (x + x * x)).sum() for i, x in enumerate(results))


def finite(results: Any) -> list[Any]:
    """Replaces -infinity, the lse of rows without keys, by 0."""
    return [jnp.where(x == -jnp.inf, 0, x) for x in results]


def dot(a: Arrays, b: Arrays) -> Any:
    return sum((a[name] * b[name]).sum() for name in a)


Function = Callable[[Arrays], Any]
NESTINGS: dict[str, Callable[[Function, Arrays, Arrays], Any]] = {
    "jvp": lambda f, x, t: jax.jvp(f, (x,), (t,)),
    "jvp of grad": lambda f, x, t: jax.jvp(jax.grad(lambda x: loss_of(f(x))), (x,), (t,)),
    "grad of grad": lambda f, x, t: jax.grad(lambda x: (lambda g: dot(g, g) + dot(g, t))(jax.grad(lambda x: loss_of(f(x)))(x)))(x),
    "grad of jvp": lambda f, x, t: jax.grad(lambda x: loss_of(jax.tree.leaves(jax.jvp(f, (x,), (t,)))))(x),
    "linearize": lambda f, x, t: jax.linearize(jax.grad(lambda x: loss_of(f(x))), x)[1](t),
    "transposed linearize": lambda f, x, t: jax.linear_transpose(jax.linearize(jax.grad(lambda x: loss_of(f(x))), x)[1], x)(t),
}


# Four nestings that call every operator of derivatives: the tangent of the forward pass, the tangent and the gradient of the backward pass, and the gradient of the
# tangent.
FOUR = ("jvp", "jvp of grad", "grad of grad", "grad of jvp")
SOME: tuple[str, ...] = FOUR if QUICK else tuple(NESTINGS)


def compiled(f: Any, *arguments: Any) -> Any:
    """Compiles f with jit, without XLA's expensive passes, and calls it."""
    return jax.jit(f).lower(*arguments).compile(compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})(*arguments)


def nested(nesting: str, f: Function, x: Arrays, t: Arrays) -> Any:
    """Applies a nesting under jit. Without it JAX compiles every operation by itself, which takes five times as long."""
    return compiled(lambda x, t: NESTINGS[nesting](f, x, t), x, t)


def kinds_of(seed: int) -> set[str]:
    arrays, options, *_ = as_arrays(seed)
    rules = set() if "sink" in arrays or "query_offsets" in arrays else {("uniform", "unmasked", "zero")[seed % 3]}
    return {*arrays, *options, f"results {seed // 6 % 5}", f"layout {seed // 3 % 2}"} | rules | ({"dropout"} if seed % 7 == 0 else set())


def few_of(seeds: range) -> list[int]:
    """Returns some of the seeds. Their problems together have every option that the problems of all seeds have. There are at least as many seeds as nestings."""
    kinds, seen, chosen = {seed: kinds_of(seed) for seed in seeds}, set[str](), list[int]()
    while len(chosen) < len(NESTINGS) or seen < set().union(*kinds.values()):
        chosen.append(max((seed for seed in seeds if seed not in chosen), key=lambda seed: len(kinds[seed] - seen)))
        seen |= kinds[chosen[-1]]
    return chosen


def test_every_option_is_the_formula(wide: None, rng: np.random.Generator, summary: list[str]) -> None:  # noqa: F811
    seen: dict[str, int] = {}
    worst = 0.0
    every = range(2000, 2036)
    seeds = few_of(every) if QUICK else list(every)
    for seed, (nesting, apply) in zip(seeds, itertools.cycle(NESTINGS.items())):
        arrays, options, *_ = as_arrays(seed)
        if "sink" not in arrays and "query_offsets" not in arrays:
            options["empty_rows"] = ("uniform", "unmasked", "zero")[seed % 3]
        inputs = {name: jnp.asarray(x) for name, x in arrays.items() if name in DIFFERENTIABLE}
        fixed = {name: x for name, x in arrays.items() if name not in inputs}
        if seed % 7 == 0:
            options["dropout"] = 0.3
            fixed["dropout_keep"] = rng.random((inputs["q"].shape[2], inputs["k"].shape[2])) < 0.7
        moving = {name: x for name, x in inputs.items() if rng.random() < 0.75} or {"v": inputs["v"]}
        still = {name: x for name, x in inputs.items() if name not in moving}
        chosen = [[0, 1, 2], [0], [0, 1], [1], [2]][seed // 6 % 5]
        if {"slopes", "table"} & arrays.keys() and {"query_offsets", "diagonal_offsets"} & arrays.keys():
            chosen = [i for i in chosen if i != 2] or [0]  # polyhead refuses gradients of the attention weights of such calls
        if options.get("empty_rows") == "uniform":
            chosen = [0]  # with empty_rows="uniform" polyhead refuses second derivatives of the other results
        layout = ("NTH", "TNH")[seed // 3 % 2]
        has_keys = np.asarray(formula(inputs, fixed, options)[2]).any(-1) | ("sink" in arrays)

        def ours(x: Arrays) -> tuple[Any, ...]:
            x = x | still | fixed  # noqa: B023
            if layout == "TNH":  # noqa: B023
                x = x | {name: jnp.swapaxes(x[name], -2, -3) for name in ("q", "k", "v")}
            out, lse, *p = with_parameters(x, options, layout=layout, return_lse=True, return_attention_weights=2 in chosen)  # noqa: B023
            results = (jnp.swapaxes(out, -2, -3) if layout == "TNH" else out, jnp.where(has_keys, lse, 0), *p)  # noqa: B023
            return tuple(results[i] for i in chosen)  # noqa: B023

        def exact(x: Arrays) -> tuple[Any, ...]:
            results = formula(x | still, fixed, options)  # noqa: B023
            return tuple(results[i] for i in chosen)  # noqa: B023

        t = tangents_of(moving, rng)
        a, b = (compiled(lambda x, t, f=f: apply(f, x, t), moving, t) for f in (ours, exact))  # noqa: B023
        what = f"seed {seed}, {nesting}, {layout}, {chosen}, moving {sorted(moving)}: {sorted(arrays)}, {options}"
        all_close(a, b, 1e-10, what)
        largest = max(np.abs(y).max() for y in jax.tree.leaves(b))
        worst = max(worst, *(float(np.abs(x - y).max() / max(largest, 1e-3)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))))
        for name in (*arrays, *options):
            seen[name] = seen.get(name, 0) + 1
    summary.append(f"polyhead.jax, second derivatives: {len(seeds)} random problems compared with the formula, worst error {worst:.2g}; times each option came up: {seen}")
    assert QUICK or min(seen.values()) > 2


@pytest.mark.parametrize("nesting", ["jvp", "jvp of grad", "grad of grad", "grad of jvp"])
def test_float32_is_as_exact_as_the_formula_in_float32(nesting: str, wide: None, rng: np.random.Generator, summary: list[str]) -> None:  # noqa: F811
    shapes = {"q": (2, 4, 48, 32), "k": (2, 2, 64, 32), "v": (2, 2, 64, 16), "bias": (4, 48, 64)}
    x = {name: numbers(rng, *shape) for name, shape in shapes.items()}
    t = tangents_of(x, rng)
    both: list[Arrays] = [{"softcap": 5.0}, {"causal": "bottom_right"}]
    for options in both[:1] if QUICK and nesting.startswith("jvp") else both[1:] if QUICK else both:
        functions: list[Function] = [lambda x, o=options: (with_parameters(x, o),), lambda x, o=options: formula(x, {}, o)[:1]]
        run = lambda f, *x: jax.tree.leaves(jax.jit(lambda *x: NESTINGS[nesting](f, *x))(*x))  # noqa: E731
        exact = run(functions[1], *jax.tree.map(lambda a: a.astype(jnp.float64), (x, t)))
        found = [run(f, x, t) for f in functions]
        # Compare root mean squares. The largest error depends on the last bit of one row's lse: from seed to seed, polyhead's is between a quarter and 4 times that of
        # the formula.
        mine, theirs = ([np.sqrt(np.mean((np.asarray(a, np.float64) - b) ** 2)) / np.abs(b).max() for a, b in zip(of, exact)] for of in found)
        assert all(a.dtype == np.float32 for a in found[0])
        summary.append(f"polyhead.jax, {nesting} in float32, {options}: errors {[f'{e:.1e}' for e in mine]}; formula: {[f'{e:.1e}' for e in theirs]}")
        for ours, formulas in zip(mine, theirs):
            assert ours <= 2 * formulas, (options, mine, theirs)


# Hessians and Jacobians.


@pytest.mark.parametrize("jit", [False, True])
def test_hessians(jit: bool, wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    x = [jnp.asarray(rng.standard_normal(shape)) for shape in ((1, 2, 3, 4), (1, 1, 4, 4), (1, 1, 4, 2), (2, 3, 4))]
    every = (0, 1, 2, 3)
    twice = {
        "hessian": lambda f: jax.hessian(f, argnums=every),
        "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, argnums=every), argnums=every),
        "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f, argnums=every), argnums=every),
        "jacfwd": lambda f: jax.jacfwd(f, argnums=every),
    }
    if QUICK:  # "jacfwd" is "jvp" under vmap
        twice = {name: twice[name] for name in (("hessian", "jacrev of jacrev", "jacrev of jacfwd") if jit else ("hessian",))}
    loss = lambda f: lambda *x: (jnp.sin(f(*x)) ** 2).sum()  # noqa: E731
    exact = {name: jax.jit(twice[name](loss(plain)))(*x) for name in ("hessian", "jacfwd") if name in twice}
    for name, transform in twice.items():
        ours = (jax.jit if jit else lambda g: g)(transform(loss(lambda q, k, v, b: attention(q, k, v, bias=b))))(*x)
        all_close(ours, exact["jacfwd" if name == "jacfwd" else "hessian"], 1e-11, name)
    if QUICK and not jit:
        return  # the rest always runs under jit, so a quick run needs it only once
    # vmap of the Hessian over two examples that share the bias.
    pile = [jnp.stack([a, 2 * a]) for a in x[:3]]
    ours, wanted = (
        jax.jit(jax.vmap(jax.hessian(lambda *x, f=f: (f(*x) ** 2).sum(), argnums=(0, 2, 3)), (0, 0, 0, None)))(*pile, x[3])
        for f in (lambda q, k, v, b: attention(q, k, v, bias=b), plain)
    )
    all_close(ours, wanted, 1e-11, "vmap of hessian")


def forces_of(f: Any, parameters: Arrays, positions: Any) -> Any:
    """Returns forces: minus the gradient of an energy with respect to the positions. q, k, v and the bias of an attention are computed from the positions."""

    def energy(positions: Any) -> Any:
        h = jnp.tanh(positions @ parameters["embed"])
        q, k, v = (jnp.moveaxis((h @ parameters[name]).reshape(-1, 2, 4), 0, 1)[None] for name in ("q", "k", "v"))
        apart = ((positions[:, None] - positions) ** 2).sum(-1)
        out = f(q, k, v, parameters["slope"][:, None, None] * jnp.exp(-apart))
        return jnp.sin(out).sum() + (out**2).sum()

    return -jax.grad(energy)(positions)


def test_a_loss_on_forces(wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    parameters = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in {"embed": (3, 6), "q": (6, 8), "k": (6, 8), "v": (6, 8), "slope": (2,)}.items()}
    positions, wanted = jnp.asarray(rng.standard_normal((2, 3, 7, 3)))
    loss = lambda f: lambda parameters: ((jax.vmap(lambda x: forces_of(f, parameters, x))(positions) - wanted) ** 2).mean()  # noqa: E731
    ours, exact = (jax.jit(jax.value_and_grad(loss(f)))(parameters) for f in (lambda q, k, v, b: attention(q, k, v, bias=b), plain))
    all_close(ours, exact, 1e-11, "forces")
    if QUICK:
        return  # other tests take derivatives without jit
    alone = jax.value_and_grad(loss(lambda q, k, v, b: attention(q, k, v, bias=b)))(parameters)
    all_close(alone, exact, 1e-11, "forces without jit")


def transposed(f: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    return lambda t: jax.linear_transpose(f, x)(t)[0]


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "checkpoint": lambda f, *x: jax.jvp(jax.grad(lambda *x: (jax.checkpoint(f)(*x) ** 2).sum(), argnums=(0, 1, 2, 3)), x, x),
    "grad of checkpoint of grad": lambda f, *x: jax.grad(lambda *x: (jax.checkpoint(jax.grad(lambda *x: (f(*x) ** 2).sum()))(*x) ** 2).sum(), argnums=(0, 1, 2, 3))(*x),
    "jit inside": lambda f, *x: jax.jvp(jax.jit(jax.grad(lambda *x: (jax.jit(f)(*x) ** 2).sum())), x, x),
    "scan": lambda f, *x: jax.jvp(jax.grad(lambda b: lax.scan(lambda c, y: (c + (f(*y, b) ** 2).sum(), None), 0.0, x[:3])[0]), x[3:], x[3:]),
    "grad of scan of grad": lambda f, *x: jax.grad(
        lambda b: lax.scan(lambda c, y: (c + (jax.grad(lambda q: (f(q, *y[1:], b) ** 2).sum())(y[0]) ** 2).sum(), None), 0.0, x[:3])[0]
    )(x[3]),
    "cond": lambda f, *x: jax.jvp(jax.grad(lambda q: lax.cond(q.sum() > -99, lambda q: (f(q, *x[1:]) ** 2).sum(), lambda q: 0.0, q)), x[:1], x[:1]),
    "cg": lambda f, *x: jax.scipy.sparse.linalg.cg(
        lambda t: t + jax.jvp(jax.grad(lambda v: (f(*x[:2], v, x[3]) ** 2).sum()), (x[2],), (t,))[1], x[2], maxiter=3
    )[0],
    "transposed twice": lambda f, *x: transposed(transposed(jax.linearize(jax.grad(lambda q: (f(q, *x[1:]) ** 2).sum()), x[0])[1], x[0]), x[0])(x[0]),
    "jacrev of a Hessian-vector product with respect to the vector": lambda f, *x: jax.jacrev(lambda t: jax.jvp(jax.grad(lambda q: (f(q, *x[1:]) ** 2).sum()), x[:1], (t,))[1])(x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    x = [jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 1, 2, 4, 8), (2, 1, 2, 4, 8), (2, 1, 2, 4, 8), (2, 4, 4))]
    if "scan" not in name:
        x = [*(a[0] for a in x[:3]), x[3]]
    of = lambda f: lambda *x: TRANSFORMS[name](f, *x)  # noqa: E731
    exact = jax.jit(of(plain))(*x)
    for jit in [list(TRANSFORMS).index(name) % 2 == 0] if QUICK else (False, True):
        all_close((jax.jit if jit else lambda g: g)(of(lambda q, k, v, b: attention(q, k, v, bias=b)))(*x), exact, 1e-11, name)


# Under vmap each example must have the results that it has alone.


# "linearize" is left out of a quick run: it calls the operators of "jvp of grad".
@pytest.mark.parametrize("nesting", [nesting for nesting in NESTINGS if not QUICK or nesting != "linearize"])
def test_vmap_is_each_example_alone(nesting: str, rng: np.random.Generator) -> None:
    for kind, mapped in draws(rng, 6):
        if (kind + list(NESTINGS).index(nesting)) % (3 if QUICK else 2):
            continue  # to save time, each kind is tested with every second or third nesting
        arrays, given, axes = stacked(rng, kind, 3, mapped)
        inner = {name: x for name, x in arrays.items() if name in DIFFERENTIABLE}
        rest = {name: x for name, x in arrays.items() if name not in inner}
        t = tangents_of(inner, rng)
        in_axes = [{name: axes[name] for name in inner}, {name: axes[name] for name in inner}, {name: axes[name] for name in rest}]
        if kind > 1:  # vmap also maps the tangents of inputs that it does not map
            t, in_axes[1] = {name: jnp.stack([x, 2 * x, -x]) if axes[name] is None else x for name, x in t.items()}, {name: axes[name] or 0 for name in inner}

        def f(x: Arrays, t: Arrays, rest: Arrays) -> Any:
            return NESTINGS[nesting](lambda x: finite(with_parameters(x | rest, given, return_lse=True)), x, t)  # noqa: B023

        whole = jax.jit(jax.vmap(f, in_axes=in_axes))(inner, t, rest)
        compiled = jax.jit(f)
        for i in range(3):
            alone = compiled(*(one_of(x, dict(a), i) for x, a in zip((inner, t, rest), in_axes)))
            all_close(jax.tree.map(lambda x: x[i], whole), alone, 1e-5, f"{kind} {mapped} example {i}")  # noqa: B023


def test_second_derivatives_by_arrays_that_are_not_mapped(rng: np.random.Generator) -> None:
    for kind, mapped in draws(rng, 6):
        arrays, given, axes = stacked(rng, kind, 3, mapped)
        inner = {name: x for name, x in arrays.items() if name in DIFFERENTIABLE}
        rest = {name: x for name, x in arrays.items() if name not in inner}
        t = tangents_of(inner, rng)
        in_axes = ({name: axes[name] for name in inner}, {name: axes[name] for name in rest})

        def loss(x: Arrays, rest: Arrays) -> Any:
            return loss_of(finite(with_parameters(x | rest, given, return_lse=True)))  # noqa: B023

        def forces(x: Arrays, rest: Arrays) -> Any:
            return sum((g * g).sum() for g in jax.tree.leaves(jax.grad(loss)(x, rest)))  # noqa: B023

        whole = {
            "summed": lambda x, t: jax.grad(lambda x: jax.vmap(forces, in_axes=in_axes)(x, rest).sum())(x),  # noqa: B023
            "moved": lambda x, t: jax.jvp(jax.grad(lambda x: jax.vmap(loss, in_axes=in_axes)(x, rest).sum()), (x,), (t,))[1],  # noqa: B023
        }
        single = {
            "summed": lambda x, t, rest: jax.grad(forces)(x, rest),  # noqa: B023
            "moved": lambda x, t, rest: jax.jvp(lambda x: jax.grad(loss)(x, rest), (x,), (t,))[1],  # noqa: B023
        }
        for which in [["summed", "moved"][kind % 2]] if QUICK else ("summed", "moved"):
            ours, one = jax.jit(whole[which])(inner, t), jax.jit(single[which])
            alone = [one(one_of(inner, axes, i), one_of(t, axes, i), one_of(rest, axes, i)) for i in range(3)]
            for name in inner:
                each = [of_one[name] for of_one in alone]
                close(ours[name], sum(each) if axes[name] is None else jnp.stack(each, axes[name]), 5e-5, f"{kind} {mapped} {which} {name}")


def test_dropout_has_the_bits_of_its_seed(wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    x = {name: jnp.asarray(rng.standard_normal((2, 2, 5, 5))) for name in ("q", "k", "v")}
    t = tangents_of(x, rng)
    eye = jnp.broadcast_to(jnp.eye(5), (2, 2, 5, 5))
    keep = attention(x["q"], x["k"], eye, dropout=0.4, seed=9) > 0
    for nesting in SOME:
        ours = nested(nesting, lambda x: (with_parameters(x, {"dropout": 0.4, "seed": 9}),), x, t)
        all_close(ours, nested(nesting, lambda x: formula(x, {"dropout_keep": keep}, {"dropout": 0.4})[:1], x, t), 1e-11, nesting)


# Dtypes.


def test_narrow_keys_and_values(rng: np.random.Generator) -> None:
    x = {"q": numbers(rng, 2, 4, 3, 16), "k": numbers(rng, 2, 2, 20, 16).astype(jnp.bfloat16), "v": numbers(rng, 2, 2, 20, 8).astype(jnp.bfloat16)}
    t = tangents_of(x, rng)
    as_float = lambda x: jax.tree.map(lambda a: a.astype(jnp.float32), x)  # noqa: E731
    for i, nesting in enumerate(SOME):
        for return_lse in [i % 2 == 1] if QUICK else (False, True):
            f = lambda x: (lambda r: r if isinstance(r, tuple) else (r,))(with_parameters(x, {}, return_lse=return_lse))  # noqa: B023, E731
            ours, exact = nested(nesting, f, x, t), nested(nesting, f, as_float(x), as_float(t))
            all_close(as_float(ours), exact, 2e-2 if nesting == "grad of grad" else 1e-2, nesting)  # "grad of grad" also rounds the first gradients to bfloat16
            if nesting != "jvp":
                assert [a.dtype for a in jax.tree.leaves(ours)] == [x[name].dtype for _ in range(len(jax.tree.leaves(ours)) // 3) for name in ("k", "q", "v")]
    k8, k_scale = polyhead.quantize_rows(np.asarray(as_float(x["k"])))
    v8, v_scale = polyhead.quantize_rows(np.asarray(as_float(x["v"])))
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    wide_k, wide_v = (x8.astype(np.float32) * scale[..., None] for x8, scale in ((k8, k_scale), (v8, v_scale)))
    ours, exact = (lambda q: attention(q, k8, v8, **scales)), (lambda q: attention(q, wide_k, wide_v))
    for nesting in SOME:
        a, b = (nested(nesting, lambda x, f=f: (f(x["q"]),), {"q": x["q"]}, {"q": t["q"]}) for f in (ours, exact))
        all_close(a, b, 1e-5, nesting)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str, rng: np.random.Generator) -> None:
    x = {"q": numbers(rng, 2, 4, 6, 16), "k": numbers(rng, 2, 2, 7, 16), "v": numbers(rng, 2, 2, 7, 8), "bias": numbers(rng, 4, 6, 7), "sink": numbers(rng, 4)}
    t = tangents_of(x, rng)
    narrow = lambda x: jax.tree.map(lambda a: a.astype(dtype), x)  # noqa: E731
    for results in (1, 3):
        f = lambda x: tuple(with_parameters(x, {}, return_lse=True, return_attention_weights=True))[:results]  # noqa: B023, E731
        for i, nesting in enumerate(("jvp", "jvp of grad", "grad of jvp")):
            if QUICK and (i + results // 2 + (dtype == "float16")) % 2:
                continue  # to save time, each nesting is tested with one of the two results in each dtype
            ours = nested(nesting, f, narrow(x), narrow(t))
            exact = nested(nesting, f, *jax.tree.map(lambda a: a.astype(dtype).astype(jnp.float32), (x, t)))
            all_close(jax.tree.map(lambda a: a.astype(jnp.float32), ours), exact, 6e-2 if dtype == "bfloat16" else 1e-2, nesting)


# jax.nn and Flax.


OF_JAX_NN = [{}, {"is_causal": True}, {"is_causal": True, "local_window_size": (2, 1)}, {"key_value_seq_lengths": np.array([0, 3], np.int32)}]


@pytest.mark.parametrize(("nesting", "options"), combinations(NESTINGS, OF_JAX_NN))
def test_jax_nn(nesting: str, options: Arrays, wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    x = {"q": (2, 4, 4, 8), "k": (2, 5, 2, 8), "v": (2, 5, 2, 8), "bias": (1, 4, 4, 5)}
    x = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in x.items()}
    t = tangents_of(x, rng)
    a, b = (
        jax.jit(lambda x, t, f=f: NESTINGS[nesting](lambda x: (f(x["q"], x["k"], x["v"], x["bias"], **options),), x, t))(x, t)
        for f in (dot_product_attention, jax.nn.dot_product_attention)
    )
    all_close(a, b, 2e-6, nesting)  # jax.nn computes softmax in float32


def test_flax_function(wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    x = {"q": jnp.asarray(rng.standard_normal((2, 4, 2, 8))), "k": jnp.asarray(rng.standard_normal((2, 5, 2, 8)))}
    t, mask = tangents_of(x, rng), jnp.asarray(rng.random((4, 5)) < 0.7).at[:, 0].set(True)
    for nesting in FOUR[1::2] if QUICK else NESTINGS:
        a, b = (
            nested(nesting, lambda x, f=f: (f(x["q"], x["k"], x["k"]),), x, t)
            for f in (lambda *x: attention_fn(*x, mask=mask), lambda *x: jax.nn.dot_product_attention(*x, mask=mask[None, None]))
        )
        all_close(a, b, 2e-6, nesting)


# What is computed.


def primitives(jaxpr: Any) -> list[str]:
    names = []
    for equation in jaxpr.eqns:
        names.append(equation.primitive.name)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                names += primitives(getattr(inner, "jaxpr", inner))
    return [name for name in names if name.startswith("polyhead_attention")]


def test_reverse_mode_calls_the_two_passes_and_nothing_else(rng: np.random.Generator) -> None:
    q, sink, mask = numbers(rng, 2, 4, 40, 8), numbers(rng, 4), np.ones((40, 40), bool)
    f = lambda q, sink: attention(q, q, q, sink=sink, attend=mask).sum()  # noqa: E731
    traced = jax.make_jaxpr(jax.grad(f, argnums=(0, 1)))(q, sink)
    passes = ["polyhead_attention", "polyhead_attention_backward"]
    assert primitives(traced.jaxpr) == passes
    assert primitives(jax.make_jaxpr(jax.grad(jax.jit(f)))(q, sink).jaxpr) == passes
    assert primitives(jax.make_jaxpr(lambda q: jax.jvp(f, (q, sink), (q, sink))[1])(q).jaxpr) == ["polyhead_attention", "polyhead_attention_tangent"]
    twice = jax.make_jaxpr(jax.grad(lambda q: (jax.grad(f)(q, sink) ** 2).sum()))(q)
    assert primitives(twice.jaxpr) == [*passes, "polyhead_attention_backward_backward"]
    for nesting in NESTINGS:
        g = lambda q, t: NESTINGS[nesting](lambda x: (attention(x["q"], x["q"], x["q"], causal="top_left"),), {"q": q}, {"q": t})  # noqa: B023, E731
        assert max(sizes(jax.make_jaxpr(g)(q, q).jaxpr)) <= q.size < 2 * 4 * 40 * 40, nesting


def test_one_bias_of_all_examples_is_never_repeated(rng: np.random.Generator) -> None:
    q, bias = numbers(rng, 16, 2, 20, 4), numbers(rng, 2, 20, 20)
    f = lambda q, bias: (jax.vmap(lambda q, b: attention(q, q, q, bias=b), (0, None))(q, bias) ** 2).sum()  # noqa: E731
    grads = jax.grad(f, argnums=(0, 1))
    for g in (lambda *x: jax.jvp(grads, x, x), jax.grad(lambda *x: sum((g * g).sum() for g in grads(*x)), argnums=(0, 1))):
        assert max(sizes(jax.make_jaxpr(g)(q, bias).jaxpr)) <= q.size


def test_numbers_are_the_same_with_and_without_jit(rng: np.random.Generator) -> None:
    x = {name: numbers(rng, 2, 2, 5, 8) for name in ("q", "k", "v")}
    t = tangents_of(x, rng)
    f = lambda x, t: jax.jvp(lambda x: with_parameters(x, {"causal": "top_left"}), (x,), (t,))  # noqa: E731
    assert all(map(same, f(x, t), jax.jit(f)(x, t)))


# What is refused.


def test_second_derivatives_that_do_not_exist_are_refused(rng: np.random.Generator) -> None:
    q = numbers(rng, 1, 2, 3, 4)
    f = lambda q: (attention(q, q, q) ** 2).sum()  # noqa: E731
    lse = lambda q: attention(q, q, q, return_lse=True)[1].sum()  # noqa: E731
    hvp = lambda f: lambda q: jax.jvp(jax.grad(f), (q,), (q,))[1].sum()  # noqa: E731
    norm = lambda f: lambda q: (jax.grad(f)(q) ** 2).sum()  # noqa: E731
    for wrong in (
        lambda: jax.grad(hvp(f))(q),
        lambda: jax.grad(hvp(lse))(q),
        lambda: jax.jit(jax.hessian(norm(f)))(q),
        lambda: jax.grad(norm(norm(f)))(q),
        lambda: jax.grad(lambda q: jax.grad(lambda q: jax.jvp(f, (q,), (q,))[1])(q).sum())(q),
    ):
        with pytest.raises(NotImplementedError, match="polyhead.jax has no third derivatives of attention"):
            wrong()
    for wrong in (
        lambda: jax.jvp(lambda q: jax.jvp(f, (q,), (q,))[1], (q,), (q,)),
        lambda: jax.jit(jax.jacfwd(jax.jacfwd(f)))(q),
        lambda: jax.jvp(hvp(f), (q,), (q,)),
    ):
        with pytest.raises(NotImplementedError, match="polyhead.jax has no forward mode of forward mode"):
            wrong()
    rule = {"attend": np.zeros((3, 3), bool), "empty_rows": "uniform"}
    with pytest.raises(NotImplementedError, match="no derivative of attention weights with empty_rows='uniform'"):
        jax.jvp(lambda q: attention(q, q, q, return_attention_weights=True, **rule)[1], (q,), (q,))
    with pytest.raises(NotImplementedError, match="no gradient of lse with empty_rows='uniform'"):
        jax.grad(lambda q: jax.jvp(lambda q: attention(q, q, q, return_lse=True, **rule)[1], (q,), (q,))[1].sum())(q)
    k8, scale = polyhead.quantize_rows(np.asarray(q))
    with pytest.raises(NotImplementedError, match="v_scale is differentiated"):
        jax.jvp(lambda s: attention(q, k8, k8, k_scale=scale, v_scale=s), (jnp.asarray(scale),), (jnp.asarray(scale),))
