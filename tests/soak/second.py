"""Compares forward mode and the gradient of the backward pass with section 3a of docs/maths.md, in NumPy float64. 16-bit dtypes are left out, because the input `out`
would be rounded to 16 bits."""

from __future__ import annotations

from typing import Any

import memory
import numpy as np
import polyhead
from bounds import Bounds, half_unit
from cases import Built, sum_to
from oracle import groups, heads_of, turned


class Formulas:
    """Evaluates each equation twice: once as it is, and once with the magnitudes of all terms. The second result times eps bounds the rounding errors."""

    def __init__(self, built: Built, d_out: Any, moved: dict[str, Any]) -> None:
        ahead, scale, cap = built.ahead, built.scale, built.case.get("softcap", 0.0)
        clean = lambda x: np.nan_to_num(x, nan=0, posinf=0, neginf=0)  # noqa: E731
        q, k, v = clean(built.wide["q"]), clean(ahead.more["k"]), clean(ahead.more["v"])
        live = ahead.used & ~ahead.more["dead"][..., None]
        moving = live & ~ahead.constant
        p, m = np.where(live, clean(ahead.p), 0), ahead.more["m"]
        p_sink = clean(ahead.p_sink)
        t = np.tanh(clean(ahead.scaled) / cap) if cap else np.zeros_like(p)
        c1, c2 = 1 - t * t, (-2 / cap * t * (1 - t * t) if cap else np.zeros_like(p))

        def both(f: Any) -> tuple[Any, Any]:
            """Returns f computed with the numbers, and f computed with their magnitudes, which bounds the rounding errors."""
            return f(lambda x: x, 1.0), f(np.abs, -1.0)

        q1, k1, v1 = moved["q"], heads_of(moved["k"], built.heads), heads_of(moved["v"], built.heads)
        bias1, sink1 = moved["bias"], moved["sink"]
        key_heads = built.key_heads

        def evaluate(a: Any, sign: float) -> dict[str, Any]:
            minus = lambda x, y: x - sign * y  # noqa: E731  x - y, or x + y for magnitudes
            x1 = abs(scale) * (a(q1) @ turned(a(k)) + a(q) @ turned(a(k1))) if sign < 0 else scale * (q1 @ turned(k) + q @ turned(k1))
            score1 = np.where(moving, (x1 if sign < 0 else c1 * x1) + a(bias1), 0)
            lse1 = (p * score1).sum(-1) + p_sink * a(sink1)
            lse1 = np.where(ahead.constant[..., 0], 0, lse1)[..., None]
            rise = np.where(moving, minus(score1, lse1), 0)
            out1 = (m * p * rise) @ a(v) + (m * p) @ a(v1)
            w, w1 = np.where(live, m * (a(d_out) @ turned(a(v))), 0), np.where(live, m * (a(d_out) @ turned(a(v1))), 0)
            delta = (p * w).sum(-1, keepdims=True)
            phi = (p * (rise * w + w1)).sum(-1, keepdims=True)
            g = np.where(moving, p * minus(w, delta), 0)
            d_score = np.where(moving, p * minus(rise * minus(w, delta) + w1, phi), 0)
            d_x = c1 * d_score + c2 * x1 * g if sign > 0 else d_score + np.abs(c2) * x1 * g + np.where(c1 < 0.5, 4 * d_score, 0)
            d_x1 = c1 * g if sign > 0 else g
            by = scale if sign > 0 else abs(scale)
            z = p_sink[..., None] * (minus(minus(a(sink1)[..., None], lse1) * (0 - sign * delta), phi))
            return {
                "out1": out1,
                "lse1": lse1[..., 0],
                "d_score": d_score,
                "q": by * (d_x @ a(k) + d_x1 @ a(k1)),
                "k": groups(by * (turned(d_x) @ a(q) + turned(d_x1) @ a(q1)), key_heads),
                "v": groups(turned(m * p * rise) @ a(d_out), key_heads),
                "sink": np.where(live.any(-1), z[..., 0], 0),
            }

        with np.errstate(all="ignore"):
            self.exact, self.magnitude = both(evaluate)


def second(report: Any, built: Built, bounds: Bounds, out: Any, lse: Any, rng: Any) -> None:
    case, inputs, options = built.case, built.inputs, built.options
    of = built.rng("tangents")

    def drawn(shape: Any, dtype: Any) -> Any:
        return of.standard_normal(tuple(shape)).astype(dtype)

    given = {name: drawn(inputs[name].shape, built.dtype) for name in "qkv" if rng.random() < 0.8}
    moved = {name: built.flat(given[name].astype(np.float64)) if name in given else np.zeros(built.wide[name].shape) for name in "qkv"}
    moved["bias"], moved["sink"] = np.zeros(built.allowed.shape), np.zeros(built.allowed.shape[:3])
    if built.bias_shape is not None and not case["bias"].get("sliding"):
        given["bias"] = drawn(built.bias_shape, built.dtype)
        moved["bias"] = built.whole(given["bias"].astype(np.float64))
    if built.relative is not None:
        given["relative_bias"] = drawn(built.relative.shape, built.relative.dtype)
        wide = given["relative_bias"].astype(np.float64)
        if case["relative"]["kind"] == "slopes":
            moved["bias"] = np.broadcast_to(-wide[:, None, None] * np.abs(built.distance), built.allowed.shape)
        else:
            moved["bias"] = np.broadcast_to(wide[np.arange(built.heads)[:, None, None], built.buckets], built.allowed.shape)
    if "sink" in case:
        given["sink"] = drawn(options["sink"].shape, options["sink"].dtype)
        column = given["sink"].astype(np.float64)
        moved["sink"] = np.broadcast_to(column[:, None] if case["sink"]["shape"] == "N" else column, built.full[:-1]).reshape(built.batch, built.heads, built.queries)
    d_out = drawn(out.shape, built.dtype)
    wide_d_out = built.flat(d_out.astype(np.float64))
    formulas = Formulas(built, wide_d_out, moved)
    exact, magnitude = formulas.exact, formulas.magnitude
    rounded = 8 * bounds.of_stored_lse.max(initial=0) + 8 * bounds.sums(built.keys + built.queries * built.heads)
    tiny = bounds.tiny.max(initial=0) * 1e3 * (1 + max((float(np.abs(x).max(initial=0)) for x in magnitude.values()), default=0))

    def near(what: str, found: Any, name: str, dtype: Any) -> None:
        report.near(what, np.asarray(found).reshape(exact[name].shape), exact[name], rounded * magnitude[name] + tiny + half_unit(exact[name], dtype), dtype)

    tangents = polyhead.Tangents(**given)
    arguments = [*(inputs[name] for name in "qkv"), out, lse]
    of_out, of_lse = polyhead.sdpa_jvp(*arguments, tangents, return_lse=True, **options)
    near("sdpa_jvp: the tangent of out", of_out, "out1", built.dtype)
    if not case.get("sink", {}).get("infinite"):
        near("sdpa_jvp: the tangent of lse", of_lse, "lse1", built.lse_dtype)
    found = polyhead.sdpa_backward_backward(*arguments, memory.placed(d_out, built.layout("d_out"), of), tangents, **options)
    near("sdpa_backward_backward: d_d_out", found.d_out, "out1", built.dtype)
    for name in "qkv":
        near(f"sdpa_backward_backward: d_{name}", getattr(found, name), name, built.dtype)
    if "bias" in given:
        of_pairs, full = exact["d_score"].reshape(built.full), magnitude["d_score"].reshape(built.full)
        wanted = sum_to(of_pairs, built.bias_shape)
        report.near("sdpa_backward_backward: d_bias", found.bias, wanted, rounded * sum_to(full, built.bias_shape) + tiny + half_unit(wanted, built.dtype), built.dtype)
    again = polyhead.sdpa_backward_backward(*arguments, d_out, tangents, **options | {"num_threads": 5 - case["threads"]})
    for name in ("q", "k", "v", *(["bias"] if "bias" in given else [])):
        report.same_bits(f"sdpa_backward_backward: d_{name} with other threads", getattr(found, name), getattr(again, name))
    if "sink" in given and not case["sink"]["infinite"]:
        shape = (built.heads, 1) if case["sink"]["shape"] == "N" else options["sink"].shape
        wanted = sum_to(exact["sink"].reshape(built.full[:-1]), shape)
        bound = rounded * sum_to(magnitude["sink"].reshape(built.full[:-1]), shape) + tiny + half_unit(wanted, options["sink"].dtype)
        report.near("sdpa_backward_backward: d_sink", np.asarray(found.sink).reshape(shape), wanted, bound, options["sink"].dtype)
