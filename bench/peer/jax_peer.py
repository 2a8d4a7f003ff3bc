"""The peer JAX on the CPU: jax.nn.dot_product_attention, compiled. JAX uses as many threads as the process may use processors."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from . import encoder
from .cases import Case, Encoder, relative_index
from .runner import Unsupported, Work, pads, refuse, refuse_too_many_scores

name = "jax"
version = jax.__version__


def start(threads: int) -> None:
    del threads  # JAX needs no number of threads: peers.py limits the processors that this process may use


@pads
def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    lacks = "jax.nn.dot_product_attention has no"
    refuse(case, rule=f"{lacks} score rules", dropout=f"{lacks} dropout", sink=f"{lacks} sink logits", maps="jax.nn.dot_product_attention gives no weights")
    if len(case.leading) > 1:
        raise Unsupported("jax.nn.dot_product_attention takes one leading dimension")
    refuse_too_many_scores(case)
    t = {key: jnp.asarray(array) for key, array in arrays.items()}
    fixed = {key: t.pop(key) for key in list(t) if key in ("attend", "attend_keys") or key.startswith("d_")}

    def attention(p: dict[str, jax.Array]) -> jax.Array:
        rows = lambda x: jnp.swapaxes(x, 1, 2)  # noqa: E731  [B,T,N,H]
        bias = p["bias_table"][None, :, relative_index(case.T, case.keys)] if case.bias == "relative" else p.get("bias")
        if case.bias == "alibi":
            bias = -p["slopes"][None, :, None, None] * jnp.abs(jnp.arange(case.keys) - jnp.arange(case.T)[:, None])
        return rows(
            jax.nn.dot_product_attention(rows(p["q"]), rows(p["k"]), rows(p["v"]), bias=bias, mask=_mask(fixed.get("attend")), is_causal=case.causal)
        )

    def layer(p: dict[str, jax.Array]) -> jax.Array:
        q, k, v = ((p["x"] @ p[f"w_{n}"].T).reshape(case.B, case.T, case.N, case.H) for n in "qkv")
        out = jax.nn.dot_product_attention(q, k, v, bias=p.get("bias"), mask=fixed.get("attend_keys")).reshape(case.B, case.T, -1)
        if case.layer == "gated":
            out = jax.nn.sigmoid(p["x"] @ p["w_g"].T + p["b_g"]) * out
        return out @ p["w_o"].T

    def model(p: dict[str, jax.Array]) -> jax.Array:
        assert isinstance(case, Encoder)
        return encoder.forward(case, p, _Encoder(case))

    compute = {"attention": attention, "layer": layer, "encoder": model}[case.kind]

    def both(p: dict[str, jax.Array], d_out: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        out, pull = jax.vjp(compute, p)
        return out, pull(d_out)[0]

    def second(p: dict[str, jax.Array], fixed: dict[str, jax.Array]) -> tuple[jax.Array, object]:
        gradients, pull = jax.vjp(lambda p, d_out: both(p, d_out)[::-1], p, fixed["d_out"])
        return gradients[1], pull(({key: fixed[f"d_d_{key}"] for key in p}, jnp.zeros_like(gradients[1])))

    if case.second:
        compiled_second = jax.jit(second).lower(t, fixed).compile()
        return Work(lambda: jax.block_until_ready(compiled_second(t, fixed)), lambda result: np.asarray(result[0]))
    if case.backward:
        compiled_both = jax.jit(both).lower(t, fixed["d_out"]).compile()
        return Work(lambda: jax.block_until_ready(compiled_both(t, fixed["d_out"])), lambda result: np.asarray(result[0]))
    compiled = jax.jit(compute).lower(t).compile()
    return Work(lambda: jax.block_until_ready(compiled(t)), lambda result: np.asarray(result))


class _Encoder(encoder.ArrayOperations):
    def norm(self, x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.standardize(x, epsilon=encoder.EPSILON) * weight + bias

    def gelu(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x, approximate=False)

    def attend(self, *qkv: jax.Array) -> jax.Array:
        heads = (x.reshape(self.case.B, self.case.T, self.case.N, self.case.H) for x in qkv)
        return jax.nn.dot_product_attention(*heads).reshape(qkv[0].shape)

    def pool(self, x: jax.Array) -> jax.Array:
        mean = x.mean(1)
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def _mask(attend: jax.Array | None) -> jax.Array | None:
    return attend if attend is None or attend.ndim == 4 else attend[None, None]
