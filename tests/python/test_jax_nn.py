"""Compares polyhead.jax.dot_product_attention with that of jax.nn, and attention_fn with Flax's formula and in Flax's layers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", minversion="0.5")
import jax
import jax.numpy as jnp
from jax import lax

from effort import QUICK, combinations
from jax_support import Arrays, all_close, close, numbers, same
from polyhead.jax import attention, attention_fn, dot_product_attention
from test_jax import wide  # noqa: F401


def jax_case(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    batch, queries, keys, kv_heads, group = (int(rng.integers(1, n)) for n in (4, 7, 8, 3, 3))
    heads = kv_heads * group
    arrays: Arrays = {"query": numbers(rng, batch, queries, heads, 8)} | {name: numbers(rng, batch, keys, kv_heads, 8) for name in ("key", "value")}
    if rng.random() < 0.5:
        arrays["bias"] = numbers(rng, *(n if rng.random() < 0.6 else 1 for n in (batch, heads, queries, keys)))
    given: Arrays = {"is_causal": bool(rng.random() < 0.3), "scale": [None, 0.4][int(rng.integers(2))]}
    if rng.random() < 0.5:
        given["mask"] = jnp.asarray(rng.random([n if rng.random() < 0.6 else 1 for n in (batch, heads, queries, keys)]) < 0.6)
    for name, n in (("query_seq_lengths", queries), ("key_value_seq_lengths", keys)):
        if rng.random() < 0.4:
            given[name] = jnp.asarray(rng.integers(0, n + 1, batch), jnp.int32)
    given["local_window_size"] = [None, None, 1, (2, 0), (0, 3)][int(rng.integers(5))]
    return arrays, given


def test_dot_product_attention_is_that_of_jax(rng: np.random.Generator) -> None:
    residual, left_out = "return_residual" in inspect.signature(jax.nn.dot_product_attention).parameters, 0
    with jax.default_matmul_precision("highest"):
        for i in range(6 if QUICK else 16):
            arrays, given = jax_case(rng)

            def results(x: Arrays, d_out: Any, f: Any) -> tuple[Any, ...]:
                out, pull = jax.vjp(lambda x: f(**x, **given), x)  # noqa: B023
                return out, pull(d_out)[0], f(**x, **given, return_residual=True)[1] if residual else None  # noqa: B023

            d_out = numbers(rng, *arrays["query"].shape)
            ours, theirs = (jax.jit(results, static_argnums=2)(arrays, d_out, f) for f in (dot_product_attention, jax.nn.dot_product_attention))
            close(ours[0], theirs[0], 1e-5, f"{i}: {given}")
            all_close(ours[1], theirs[1], 3e-5, f"{i}: {given}")
            if residual:
                a, b = np.asarray(ours[2]), np.asarray(theirs[2])
                empty = b < -1e30  # for a query without keys or behind the queries' length, jax.nn's residual is a large negative number
                assert np.array_equal(a == -np.inf, empty), f"{i}: {given}"
                close(a[~empty], b[~empty], 1e-5, f"{i}: residual, {given}")
                left_out += int(empty.sum())
    q = numbers(rng, 5, 2, 8)
    close(dot_product_attention(q, q, q), jax.nn.dot_product_attention(q, q, q), 1e-5, "without B")
    assert QUICK or left_out > 3 or not residual
    for wrong, match in (
        ({"implementation": "cudnn"}, "implementation is 'cudnn'"),
        ({"is_causal": 1}, "is_causal is of type int"),
        ({"key_value_seq_lengths": np.array([1, 2], np.int32)}, r"key_value_seq_lengths is int32 \[2\]; it must be integers \[B\] = \[1\]"),
        ({"bias": jnp.ones((2, 5, 5), jnp.int32)}, r"bias is int32 \[2, 5, 5\]; it must be float32"),
        ({"bias": jnp.ones((2, 5, 5), bool)}, r"bias is bool \[2, 5, 5\]; it must be float32"),
        ({"mask": numbers(rng, 2, 5, 5)}, "attend is float32; it must be bool"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            dot_product_attention(q, q, q, **wrong)


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min])
def test_masked_keys_get_nothing_beside_a_low_bias(low: float, rng: np.random.Generator) -> None:
    # jax.nn and Flax replace the score of a masked key by a finite number. If the bias makes all other scores as low, they give the masked key some weight.
    # polyhead gives it the weight 0.
    q, mask = numbers(rng, 1, 3, 2, 8), jnp.array([True, True, False])
    bias = jnp.broadcast_to(jnp.float32(low), (1, 1, 3, 3))
    exact = jnp.zeros_like(q) if low == -np.inf else jnp.broadcast_to(q[:, :2].mean(1, keepdims=True), q.shape)
    for f in (dot_product_attention, attention_fn):
        close(f(q, q, q, bias, jnp.broadcast_to(mask, (1, 1, 3, 3))), exact, 1e-5, f.__name__)


def exact_attention(query: Any, key: Any, value: Any, bias: Any, mask: Any) -> np.ndarray:
    """Computes jax.nn's formula in float64 from the given numbers."""
    q, k, v, b = (np.asarray(x, np.float64) for x in (query, key, value, bias))
    score = np.where(mask, np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1]) + b, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    out: np.ndarray = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
    return out


DTYPES = ["bfloat16", "float16", "float32", "float64"]


# In a quick run, combinations() yields no pair of equal dtypes, and lacks a wider or a narrower bias for some functions, so these cases are added.
MORE = [(attention_fn, "bfloat16", "float32"), (attention_fn, "float32", "bfloat16"), (dot_product_attention, "float32", "float32")] if QUICK else []


@pytest.mark.parametrize(("f", "of_query", "of_bias"), [*combinations([dot_product_attention, attention_fn], DTYPES, DTYPES), *MORE])
def test_a_bias_of_another_dtype_keeps_its_numbers(f: Any, of_query: str, of_bias: str, wide: None, rng: np.random.Generator) -> None:  # noqa: F811
    """Numbers around 100 differ by up to 1/4 from their bfloat16 values. If the bias were rounded to the dtype of query, every attention weight would change."""
    q, k, v, d_out = (numbers(rng, 2, n, 4, 16).astype(of_query) for n in (5, 7, 7, 5))
    bias = (100 + numbers(rng, 4, 5, 7)).astype(of_bias)
    mask = jnp.asarray(rng.random((2, 1, 5, 7)) < 0.8).at[..., 0].set(True)
    tolerance = {"bfloat16": 1.2e-2, "float16": 2e-3, "float32": 2e-5, "float64": 1e-12}[of_query]
    exact = exact_attention(q, k, v, bias, mask)
    for run in (f, jax.jit(f)):
        ours = run(q, k, v, bias, mask)
        assert ours.dtype == of_query
        close(ours, exact, tolerance, f"{of_query} beside a bias of {of_bias}")
    gradients = jax.jit(jax.grad(lambda *x: (f(*x, mask) * d_out).sum().astype("float32"), argnums=(0, 1, 2, 3)))(q, k, v, bias)
    assert [x.dtype.name for x in gradients] == [of_query] * 3 + [of_bias] and gradients[3].shape == bias.shape
    # The expected gradients are computed from float64 arrays with the same numbers. polyhead's gradients differ from them because results, and products with d_out,
    # are rounded.
    wanted = jax.grad(lambda *x: (f(*x, mask) * d_out.astype("float64")).sum(), argnums=(0, 1, 2, 3))(*(x.astype("float64") for x in (q, k, v, bias)))
    narrow = max((of_query, of_bias), key=lambda name: float(jnp.finfo(name).eps))
    all_close(gradients, wanted, {"bfloat16": 3e-2, "float16": 4e-3, "float32": 1e-4, "float64": 1e-11}[narrow], "gradients")
    biases = jnp.stack([bias, bias[::-1]])
    mapped = jax.vmap(lambda b: f(q, k, v, b, mask))(biases)
    assert all(same(x, f(q, k, v, b, mask)) for x, b in zip(mapped, biases))


@pytest.mark.skipif("return_residual" not in inspect.signature(jax.nn.dot_product_attention).parameters, reason="this version of jax.nn returns no residual")
def test_a_residual_beside_a_wider_bias_has_the_dtype_of_key(rng: np.random.Generator) -> None:
    q, bias = numbers(rng, 2, 5, 4, 16).astype(jnp.bfloat16), numbers(rng, 4, 5, 5)
    for causal in (False, True):
        ours, theirs = (f(q, q, q, bias[None], is_causal=causal, return_residual=True) for f in (dot_product_attention, jax.nn.dot_product_attention))
        assert [x.dtype for x in ours] == [x.dtype for x in theirs] == [jnp.bfloat16] * 2
        close(ours[0], theirs[0], 2e-2, "out")
        close(ours[1], theirs[1], 1e-2, "lse")


def flax_formula(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, keep: Any = 1.0) -> tuple[Any, Any]:
    score = jnp.einsum("...qhd,...khd->...hqk", query, key, precision="highest") / np.sqrt(query.shape[-1])
    score = score if bias is None else score + bias
    score = score if mask is None else jnp.where(mask, score, jnp.finfo(score.dtype).min)
    p = jax.nn.softmax(score)
    return jnp.einsum("...hqk,...khd->...qhd", p * keep, value, precision="highest"), p


def test_attention_fn_honours_or_refuses_every_argument(rng: np.random.Generator) -> None:
    q, k = numbers(rng, 3, 5, 2, 8), numbers(rng, 3, 6, 2, 8)
    bias, mask, key = numbers(rng, 2, 5, 6), jnp.asarray(rng.random((3, 1, 5, 6)) < 0.5).at[0, 0, 0].set(False), jax.random.key(5)
    out, p = flax_formula(q, k, k, bias, mask)
    close(attention_fn(q, k, k, bias, mask), out, 1e-5, "mask and bias")
    close(attention_fn(q, k, k, bias, mask.astype(jnp.float32)), out, 1e-5, "a mask of numbers")
    close(attention_fn(q, q, q, is_causal=True), flax_formula(q, q, q, mask=jnp.tril(jnp.ones((5, 5))))[0], 1e-5, "causal")
    keep = jax.random.bernoulli(key, 0.75, (1, 1, 5, 6)) / 0.75  # the dropout bits as Flax draws them
    dropped = {"dropout_rng": key, "dropout_rate": 0.25}
    close(attention_fn(q, k, k, bias, mask, **dropped), flax_formula(q, k, k, bias, mask, keep)[0], 1e-5, "dropout of one plane")
    assert same(attention_fn(q, k, k, **dropped, deterministic=True), attention_fn(q, k, k))
    turned = [jnp.swapaxes(x, 1, 2) for x in (q, k, k)]
    each = attention_fn(q, k, k, **dropped, broadcast_dropout=False)
    assert same(jnp.swapaxes(each, 1, 2), attention(*turned, dropout=0.25, seed=key))
    assert attention_fn(q, k, k, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    for precision in ("highest", lax.Precision.DEFAULT, ("high", "default")):
        assert same(attention_fn(q, k, k, precision=precision), attention_fn(q, k, k))

    class Module:
        def sow(self, *given: Any) -> None:
            self.sown = given

    module = Module()
    assert same(attention_fn(q, k, k, bias, mask, module=module), attention_fn(q, k, k, bias, mask))
    assert module.sown[:2] == ("intermediates", "attention_weights")
    close(module.sown[2], p, 1e-5, "sown attention weights")
    for wrong, match in (
        ({"precision": "lowest"}, "precision is 'lowest'"),
        ({"dropout_rate": 0.5}, "dropout_rng is missing"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "qk_attn_weights_einsum is given"),
        ({"bias": bias.astype(jnp.int32)}, "bias is int32"),
    ):
        with pytest.raises(ValueError, match=match):
            attention_fn(q, k, k, **wrong)


@pytest.mark.parametrize("masked", [False, True])
def test_flax_linen(masked: bool, rng: np.random.Generator) -> None:
    linen = pytest.importorskip("flax.linen")
    x = numbers(rng, 2, 7, 16)
    mask = linen.make_causal_mask(jnp.ones((2, 7))) if masked else None
    theirs, ours = (linen.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1, **more) for more in ({}, {"attention_fn": attention_fn}))
    parameters = theirs.init(jax.random.key(0), x, deterministic=True)

    def run(layer: Any, parameters: Any, **given: Any) -> Any:
        return layer.apply(parameters, x, mask=mask, **given)

    for given in ({"deterministic": True}, {"deterministic": False, "rngs": {"dropout": jax.random.key(1)}}):
        a, b = (jax.jit(jax.value_and_grad(lambda w, layer=layer: (run(layer, w, **given) ** 2).sum()))(parameters) for layer in (ours, theirs))  # noqa: B023
        close(a[0], b[0], 1e-5, str(given))
        all_close(a[1], b[1], 1e-5, str(given))
    sown = [layer.apply(parameters, x, mask=mask, deterministic=True, sow_weights=True, mutable=["intermediates"])[1] for layer in (ours, theirs)]
    all_close(*sown, 1e-5, "sown")


def test_flax_nnx(rng: np.random.Generator) -> None:
    nnx = pytest.importorskip("flax.nnx")
    x = numbers(rng, 2, 7, 16)
    mask = jnp.tril(jnp.ones((1, 1, 7, 7), bool))
    theirs, ours = (nnx.MultiHeadAttention(4, 16, rngs=nnx.Rngs(0), decode=False, **more) for more in ({}, {"attention_fn": attention_fn}))
    for given in ({}, {"mask": mask}, {"is_causal": True}):
        if not given.keys() <= inspect.signature(theirs.__call__).parameters.keys():
            continue
        a, b = (nnx.value_and_grad(lambda layer: (layer(x, **given) ** 2).sum())(layer) for layer in (ours, theirs))  # noqa: B023
        close(a[0], b[0], 1e-5, str(given))
        all_close(a[1], b[1], 1e-5, str(given))
    ours(x, mask=mask, sow_weights=True), theirs(x, mask=mask, sow_weights=True)
    close(ours.attention_weights.get_value()[0], theirs.attention_weights.get_value()[0], 1e-5, "sown")
