"""Runs one case with polyhead and compares the results with the oracle. Where docs/promises.md promises equal bits for different calls, also compares their bits."""

from __future__ import annotations

from typing import Any

import memory
import numpy as np
import oracle
import polyhead
from bounds import Bounds, half_unit
from cases import Built, Case, sum_to
from second import second


class Refused(Exception):
    """polyhead refused a case, with this message. Refusals are counted by message."""


class Report:
    def __init__(self) -> None:
        self.findings: list[str] = []
        self.worst = 0.0  # largest difference divided by its bound
        self.compared = 0

    def near(self, what: str, found: Any, expected: Any, bound: Any, dtype: Any = None) -> None:
        found, expected = np.asarray(found).astype(np.float64), np.asarray(expected, np.float64)
        if found.shape != expected.shape:
            self.findings.append(f"{what}: shape {found.shape}, expected {expected.shape}")
            return
        self.compared += found.size
        bound = np.broadcast_to(bound, expected.shape)
        with np.errstate(all="ignore"):
            off = np.where((found == expected) | (np.isnan(found) & np.isnan(expected)), 0.0, np.abs(found - expected))
            off = np.where(np.isnan(off), np.inf, off)
            share = np.where(off == 0, 0.0, off / bound)
            if dtype is not None and np.dtype(dtype) == np.float16:  # a result near the largest float16 may overflow to infinity
                share = np.where(np.isinf(found) & (np.abs(expected) + bound >= 65504), 0.0, share)
        if share.size == 0:
            return
        worst = float(share.max())
        self.worst = max(self.worst, worst if np.isfinite(worst) else 0.0)
        if not worst <= 1:
            at = tuple(int(i) for i in np.unravel_index(int(share.argmax()), share.shape))
            count = int((~(share <= 1)).sum())
            self.findings.append(f"{what}{list(at)} is {found[at]:.9g}, expected {expected[at]:.9g} within {bound[at]:.3g} ({count} of {share.size} elements are off)")

    def same_bits(self, what: str, a: Any, b: Any) -> None:
        if a is None and b is None:
            return
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        kind = f"u{a.dtype.itemsize}"
        differ = (a.view(kind) != b.view(kind)) & ~(np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))) if a.ndim else np.asarray(False)
        if differ.any():
            at = tuple(int(i) for i in np.argwhere(differ)[0])
            self.findings.append(f"{what}: bits differ at {list(at)}: {a[at]!r} and {b[at]!r} ({int(differ.sum())} of {differ.size})")

    def holds(self, what: str, condition: bool) -> None:
        if not condition:
            self.findings.append(what)


def uses_native_products(built: Built, kernel: str) -> bool:
    case = built.case
    return case["dtype"] == "bfloat16" and "storage" not in case and case.get("precision", "native") == "native" and case.get("backend") != "reference" and (kernel.startswith("amx") or kernel == "avx512_bf16")


def check(case: Case) -> Report:
    """Runs a case and returns the findings. If polyhead refuses the case, raises Refused with polyhead's message."""
    memory.forget()
    report = Report()
    built = Built(case)
    kernel = polyhead.device()["kernel"]
    native = uses_native_products(built, kernel)
    inputs, options, ahead = built.inputs, built.options, built.ahead
    rng = built.rng("calls")
    bounds = Bounds(built, native)

    out_given = memory.Output((*built.full[:-1], built.value_width), built.dtype, built.layout("out"), rng)
    with_weights = bool(rng.random() < 0.3)
    more = {"return_attention_weights": True} if with_weights else {}
    try:
        out, lse, *weights = polyhead.sdpa(**inputs, **options, return_lse=True, out=out_given.array, **more)
    except ValueError as error:
        raise Refused(str(error)) from None
    report.holds("out: bytes beside the tensor were written", out_given.gaps_kept())
    shape = lambda x, rank=3: np.asarray(x).reshape(built.batch, *x.shape[x.ndim - rank :])  # noqa: E731
    report.near("out", shape(out), ahead.out, bounds.out(), built.dtype)
    report.near("lse", shape(lse, 2), ahead.lse, bounds.lse())
    if with_weights:
        report.near("attention_weights", shape(weights[0]), ahead.p, bounds.weights())

    plain = {name: np.ascontiguousarray(x) for name, x in inputs.items()}
    tight = {name: np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x for name, x in options.items()} | {"num_threads": 5 - case["threads"]}
    again, lse_again = polyhead.sdpa(**plain, **tight, return_lse=True)
    report.same_bits("out of a call with other strides, another number of threads, and no attention weights", out, again)
    report.same_bits("lse of a call with other strides, another number of threads, and no attention weights", lse, lse_again)

    maps_of(report, built, bounds, rng)
    chunk(report, built, out, lse, rng)
    if "storage" not in case:
        backward(report, built, bounds, out, lse, rng)
        if built.dtype.itemsize > 2 and not case.get("spoil") and built.rng("second").random() < 0.4:
            second(report, built, bounds, out, lse, rng)
    if built.dtype.itemsize == 2:
        report.worst = 0.0  # rounding a result to 16 bits nearly reaches the bound, so the largest error says nothing about the kernels
    return report


def maps_of(report: Report, built: Built, bounds: Bounds, rng: Any) -> None:
    case, ahead = built.case, built.ahead
    if rng.random() < 0.6 or built.queries == 0:
        return
    rows = sorted({int(t) for t in rng.integers(0, built.queries, 3)})
    value = str(rng.choice(["probability", "score", "dropped"]))
    given = {name: built.inputs[name] for name in ("q", "k", "k_scale") if name in built.inputs}
    found = polyhead.maps(**given, rows=rows, value=value, **built.options)
    found = np.asarray(found).reshape(built.batch, built.heads, len(rows), built.keys)
    masked = ~ahead.used | ahead.constant if value == "score" else ~ahead.used
    exact = {"probability": ahead.p, "dropped": ahead.p * ahead.more["m"], "score": np.where(masked, -np.inf, ahead.score)}[value]
    if value == "score":
        if ahead.constant.any():
            return
        bound = bounds.of_p[..., None] + 2 * bounds.eps * np.abs(np.nan_to_num(exact, neginf=0, posinf=0))
    else:
        bound = bounds.of_p[..., None] * np.nan_to_num(exact) + 1e-37
    bound = bound + half_unit(np.nan_to_num(exact, neginf=0, posinf=0), built.dtype)
    report.near(f"maps(rows={rows}, value={value!r})", found, exact[:, :, rows], np.broadcast_to(bound, exact.shape)[:, :, rows])


def chunk(report: Report, built: Built, out: Any, lse: Any, rng: Any) -> None:
    """Runs some of the queries alone: they must have the same bits as among all queries (docs/promises.md)."""
    case = built.case
    if any(name in case for name in ("dropout", "query_offsets", "blocks")) or built.queries < 2 or rng.random() < 0.5:
        return
    first = int(rng.integers(0, built.queries))
    last = int(rng.integers(first + 1, built.queries + 1))
    options = dict(built.options)
    inputs = dict(built.inputs, q=built.inputs["q"][..., first:last, :])
    for name in ("attend", "block", "bias"):
        if name in options and options[name].ndim > 1 and options[name].shape[-2] != 1:
            options[name] = options[name][..., first:last, :]
    for name in ("key_starts", "key_lengths"):
        if case.get(name) == "query":
            options[name] = options[name][..., first:last]
    if "sink" in options and options["sink"].ndim > 1 and options["sink"].shape[-1] != 1:
        options["sink"] = options["sink"][..., first:last]
    if "causal" in case or "window" in case or built.offsets is not None or "relative" in case:
        corner = case.get("causal", "bottom_right")
        if "causal" not in case and "window" not in case and "relative" in case:
            corner = case["relative"].get("diagonal")
            corner = "bottom_right" if corner is None else corner
        offset = {"top_left": 0, "bottom_right": built.keys - built.queries}.get(corner, corner)
        offsets = (np.full(built.lead, offset) if built.offsets is None else built.offsets) + first
        options["diagonal_offsets"] = np.asarray(offsets)
        if "causal" in case:
            options["causal"] = "top_left"
        if "relative" in case:
            options["relative_bias"] = options["relative_bias"]._replace(diagonal=None)
    some, lse_some = polyhead.sdpa(**inputs, **options, return_lse=True)
    report.same_bits(f"out of the queries {first} to {last} alone", some, np.asarray(out)[..., first:last, :])
    report.same_bits(f"lse of the queries {first} to {last} alone", lse_some, np.asarray(lse)[..., first:last])


def backward(report: Report, built: Built, bounds: Bounds, out: Any, lse: Any, rng: Any) -> None:
    case, inputs, options, ahead = built.case, built.inputs, built.options, built.ahead
    of = built.rng("d_out")
    d_out = of.standard_normal(out.shape).astype(built.dtype)
    if case.get("poison"):
        d_out[built.dead.reshape(built.full[:-1])] = np.nan
    wide = d_out.astype(np.float64).reshape(built.batch, built.heads, built.queries, built.value_width)
    d_out = memory.placed(d_out, built.layout("d_out"), of)
    behind = oracle.backward(built.problem(), ahead, wide)
    names = [name for name, there in (("q", True), ("k", True), ("v", True), ("bias", built.bias_shape is not None), ("sink", "sink" in case), ("relative_bias", built.relative is not None)) if there]
    wanted = names if rng.random() < 0.7 else [name for name in names if rng.random() < 0.5]
    given: dict[str, Any] = {}
    d_table = d_bias_given = None
    if "bias" in wanted:
        if case["bias"].get("sliding"):
            d_table = np.zeros_like(built.bias_table)
            given["d_bias"] = built.sliding(d_table)
        elif rng.random() < 0.5:
            d_bias_given = memory.Output(built.bias_shape, built.dtype, built.layout("d_bias"), rng)
            given["d_bias"] = d_bias_given.array
    found = polyhead.sdpa_backward(*(inputs[name] for name in "qkv"), out, lse, d_out, gradients=tuple(wanted), **given, **options)
    if d_bias_given is not None:
        report.holds("d_bias: bytes beside the tensor were written", d_bias_given.gaps_kept())
    limits = bounds.gradients(behind, wide)
    for name in wanted:
        gradient = getattr(found, name)
        if name in "qkv":
            rank = {"q": built.queries, "k": built.keys, "v": built.keys}[name]
            assert gradient.shape[-2] == rank
            report.near(f"d_{name}", gradient.reshape(built.batch, *gradient.shape[-3:]), getattr(behind, f"d_{name}"), limits[name], built.dtype)
        elif name == "bias":
            full_score = behind.d_score.reshape(built.full)
            if d_table is not None:
                exact, bound, magnitude = (np.zeros(d_table.shape) for _ in range(3))
                t, s = np.arange(built.queries)[:, None], np.arange(built.keys)[None, :]
                for target, source in ((exact, behind.d_score), (bound, bounds.pairs), (magnitude, bounds.d_score)):
                    for n in range(built.heads):
                        np.add.at(target[n], np.broadcast_to(built.queries - t + s, (built.queries, built.keys)), source[:, n].sum(0))
                bound += bounds.sums(built.batch * max(1, min(built.queries, built.keys))) * magnitude + half_unit(exact, built.dtype)
                report.near("d_bias, summed in the table of which bias is a view", d_table, exact, bound, built.dtype)
            else:
                exact = sum_to(full_score, built.bias_shape)
                bound = bounds.summed(bounds.pairs, bounds.d_score, built.bias_shape, built.full, built.dtype, exact)
                report.near("d_bias", gradient, exact, bound, built.dtype)
        elif name == "sink":
            shape = (built.heads, 1) if case["sink"]["shape"] == "N" else options["sink"].shape
            full = built.full[:-1]
            exact = sum_to(behind.d_sink.reshape(full), shape)
            bound = bounds.summed(bounds.sinks, np.nan_to_num(np.abs(behind.d_sink)), shape, full, options["sink"].dtype, exact)
            report.near("d_sink", np.asarray(gradient).reshape(shape), exact, bound, options["sink"].dtype)
        else:
            relative(report, built, bounds, behind, np.asarray(gradient))
    again = polyhead.sdpa_backward(*(inputs[name] for name in "qkv"), out, lse, d_out, gradients=tuple(wanted), **options | {"num_threads": 5 - case["threads"]})
    for name in wanted:
        if d_table is None or name != "bias":
            report.same_bits(f"d_{name} with other threads", getattr(found, name), getattr(again, name))


def relative(report: Report, built: Built, bounds: Bounds, behind: Any, gradient: Any) -> None:
    """Compares the gradient of a relative bias with equation 9a of docs/maths.md."""
    if built.case["relative"]["kind"] == "slopes":
        x = np.abs(built.distance)
        exact = -(x * behind.d_score).sum((0, 2, 3))
        bound, magnitude = (x * bounds.pairs).sum((0, 2, 3)), (x * bounds.d_score).sum((0, 2, 3))
    else:
        exact, bound, magnitude = (np.zeros(built.relative.shape) for _ in range(3))
        indices = np.broadcast_to(built.buckets, behind.d_score.shape)
        for target, source in ((exact, behind.d_score), (bound, bounds.pairs), (magnitude, bounds.d_score)):
            for n in range(built.heads):
                np.add.at(target[n], indices[:, n].ravel(), source[:, n].ravel())
    bound = bound + bounds.sums(built.batch * built.queries * built.keys) * magnitude + half_unit(np.nan_to_num(exact), gradient.dtype)
    report.near("d_relative_bias", gradient, exact, bound, gradient.dtype)
