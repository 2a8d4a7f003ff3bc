"""Worker of scripts/soak: compares random layers with layer_oracle.py on one instruction set (POLYHEAD_ISA), outputs and all gradients; and decoding through caches with one
call over whole sequences, bit by bit. The arguments and the lines that it writes are those of attention.py."""

from __future__ import annotations

from typing import Any

import attention
import layer_cases
import layer_oracle
import memory
import numpy as np
import oracle
import polyhead
import torch
from check import Refused, Report
from cases import DTYPES, Case
from layer_cases import draw, keep_of, masks_of, normal, rng_of

torch.set_num_threads(1)
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}


class Expected:
    """The oracle's results for the inputs, and for inputs that differ by rounding errors. A result may be off by `times` as much as such errors change it, relative to the largest element
    of its tensor."""

    times = 24.0

    def __init__(self, case: Case, inputs: dict[str, Any], f: Any, d_out: Any = None) -> None:
        """f(tensors) returns the output. `inputs` has float64 arrays by name; None is an absent input. If d_out is given, gradients of all inputs are computed, too."""
        self.eps, self.case = EPS[case["dtype"]], case
        self.exact = self._run(inputs, f, d_out)
        self.moved = []
        for i in range(2):
            rng = rng_of(case, f"moved {i}")
            other = {name: None if x is None else x * (1 + self.eps * rng.uniform(-1, 1, x.shape)) for name, x in inputs.items()}
            self.moved.append(self._run(other, f, None if d_out is None else d_out * (1 + self.eps * rng.uniform(-1, 1, d_out.shape))))

    @staticmethod
    def _run(inputs: dict[str, Any], f: Any, d_out: Any) -> dict[str, Any]:
        tensors = {name: None if x is None else torch.tensor(np.asarray(x, np.float64), requires_grad=d_out is not None) for name, x in inputs.items()}
        out = f(tensors)
        result = {"out": out.detach().numpy()}
        if d_out is not None:
            if out.requires_grad:
                out.backward(torch.tensor(d_out))
            for name, x in tensors.items():
                if x is not None:
                    result[name] = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        return result

    def near(self, report: Report, name: str, found: Any, what: str | None = None, width: float = 1.0) -> None:
        exact = self.exact[name]
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        moved = max((float(np.abs(other[name] - exact)[np.isfinite(exact)].max(initial=0)) for other in self.moved), default=0.0)
        # If a sum is exactly 0 in the oracle (such as d_score in a row with one key), polyhead's result is a rounding error of terms whose size is not known here.
        scale = max((float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in self.exact.values()), default=0.0)
        smallest = 2.0**-24 if self.case["dtype"] == "float16" else 2.0**-100
        bound = width * (self.times * (moved + self.eps * largest) + self.eps * 4 * scale * (name != "out") + 4 * smallest)
        report.near(what or (name if name == "out" else f"d_{name}"), np.asarray(found).astype(np.float64), exact, bound, DTYPES[self.case["dtype"]])


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def parameters_of(case: Case, layer: Any) -> dict[str, Any]:
    """Fills the layer's parameters with random numbers, and returns them."""
    for name, array in layer.parameters.items():
        fan = array.shape[-1] if name.endswith("weight") and array.ndim == 2 else 1
        values = rng_of(case, f"parameter {name}").standard_normal(array.shape)
        values = 1 + 0.3 * values if "norm" in name else values / max(fan, 1) ** 0.5 if array.ndim == 2 else values * 0.5
        array[...] = values.astype(array.dtype)
    return dict(layer.parameters)


def layer_of(case: Case, **more: Any) -> Any:
    settings = {"kv_heads": case["K"], "head_width": case["H"], "value_head_width": case["V"], "dtype": case["dtype"], "empty_rows": case["empty_rows"]}
    settings |= {name: case[name] for name in ("scale", "softcap") if name in case}
    for name in ("gate", "add_bias_kv", "add_zero_attn", "qk_norm"):
        settings[name] = bool(case.get(name))
    settings |= {"sink": bool(case.get("own_sink")), "bias": not case.get("no_bias"), "output_bias": not case.get("no_output_bias"), "output": not case.get("no_output")}
    if case.get("dropout"):
        settings["dropout"] = case["dropout"]["p"]
    try:
        return polyhead.MultiHeadAttention(case["E"], case["N"], **settings, **more)
    except ValueError as error:
        raise Refused(str(error)) from None


def call(f: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return f(*arguments, **options)
    except (ValueError, NotImplementedError) as error:
        raise Refused(str(error)) from None


def rotary_of(case: Case, width: int, lead: tuple[int, ...], queries: int, keys: int, same: bool) -> tuple[Any, dict[str, Any]]:
    given = case["rotary"]
    half = (given["width"] or width) // 2
    dtype = np.float64 if case["dtype"] == "float64" else np.float32
    angles = rng_of(case, "rotary").uniform(-3, 3, (*(lead if given["lead"] else ()), max(queries, keys), half))
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    tables = {"cos": cos[..., :queries, :], "sin": sin[..., :queries, :], "key_cos": cos[..., :keys, :], "key_sin": sin[..., :keys, :]}
    if given["lead"]:
        wider = {name: torch.tensor(wide(x)).unsqueeze(-3) for name, x in tables.items()}
    else:
        wider = {name: torch.tensor(wide(x)) for name, x in tables.items()}
    polyhead_tables = {name: x for name, x in tables.items() if not (same and name.startswith("key"))}
    return polyhead.Rotary(**polyhead_tables, order=given["order"], width=given["width"] or None), {**wider, "order": given["order"], "width": 2 * half}


def attention_case(report: Report, case: Case) -> None:
    built = masks_of(case)
    lead, axis = built.lead, case["axis"]
    is_global = bool(case.get("global"))
    queries, keys = case["T"], case["T"] if is_global else case["S"]
    layer = layer_of(case, key_width=case["Ek"], value_width=case["Ev"], output_width=None if case.get("no_output") else case["Eo"], global_query=case.get("global", "off"), axis=axis - len(lead) - 2)
    parameters = parameters_of(case, layer)
    used = layer.frozen() if case.get("frozen") and not case.get("dropout") else layer  # a frozen layer cannot train
    given: dict[str, Any] = {}
    call_options = {name: x for name, x in built.options.items() if name not in ("empty_rows", "scale", "softcap", "precision", "backend")}
    kind = case["self"]
    shapes = {"query": (*lead, queries, case["E"])}
    if kind in ("key", ""):
        shapes["key"] = (*lead, keys, case["Ek"])
    if kind == "":
        shapes["value"] = (*lead, keys, case["Ev"])
    canonical = {name: normal(case, name, shape, case["spread"] if name == "query" else 1.0) for name, shape in shapes.items()}
    if kind == "projected":
        canonical["projected_key"], canonical["projected_value"] = (normal(case, name, (*lead, case["K"], keys, width)) for name, width in (("k", case["H"]), ("v", case["V"])))
    added = int(bool(case.get("add_bias_kv"))) + int(bool(case.get("add_zero_attn")))
    live = built.allowed
    if case["empty_rows"] != "zero" and not added:
        live = np.where(live.any(-1, keepdims=True), live, built.document)
    dead = ~live.any((1, 2)).reshape(*lead, keys)
    wides = {name: wide(x) for name, x in canonical.items()}
    if case.get("poison") and queries and dead.any() and not built.allowed.all() and kind != "query":
        for name in canonical:
            if name != "query":
                where = np.broadcast_to(dead[..., None, :], canonical[name].shape[:-1]) if name.startswith("projected") else dead
                canonical[name][where] = np.nan if case["poison"] == "nan" else np.inf
                wides[name][where] = 0
    for name, x in canonical.items():
        moved = x if name.startswith("projected") else np.moveaxis(x, -2, axis)
        given[name] = memory.placed(moved, case.get(f"layout_{name.removeprefix('projected_')}", "plain"), rng_of(case, f"layout {name}"))
    for name in ("attend_keys", "block_keys"):
        if name in call_options and axis != len(lead):
            call_options["mask_like_input"] = bool(rng_of(case, "mask_like_input").random() < 0.5)
            if call_options["mask_like_input"]:
                call_options[name] = np.moveaxis(np.broadcast_to(call_options[name], (*lead, keys)), -1, axis)
    if call_options.get("mask_like_input"):
        for name in ("attend_keys", "block_keys"):
            if name in call_options and call_options[name].ndim != len(lead) + 1:
                raise Refused("the layouts of attend_keys and block_keys differ")
    rotary = None
    if "rotary" in case:
        call_options["rotary"], rotary = rotary_of(case, case["H"], lead, queries, keys, same=kind == "projected" or queries == keys)
    pairs = (*lead, case["N"], 1 if is_global else queries, keys + added)
    keep = None
    if case.get("dropout"):
        keep = keep_of(case, (built.batch, *pairs[len(lead) :])).reshape(pairs)
        call_options["training"] = True
        call_options |= {"dropout_keep": keep} if case["dropout"]["seed"] is None else {"seed": case["dropout"]["seed"]}

    inputs: dict[str, Any] = {**wides, **{f"parameter {name}": wide(x) for name, x in parameters.items()}}
    has_bias = built.bias_shape is not None
    if has_bias:
        inputs["bias"] = wide(built.options["bias"])
    if built.relative is not None:
        inputs["relative_bias"] = wide(built.relative)
    if "sink" in case:
        inputs["sink"] = wide(built.options["sink"])
    allowed = torch.tensor(built.allowed.reshape(*lead, case["N"], pairs[-2], keys))
    document = torch.tensor(built.document)
    mean_of = None
    if is_global:
        mean_of = torch.tensor(built.allowed[:, 0, 0, :].reshape(*lead, keys) if case["global"] == "masked_mean" else np.ones((*lead, keys), bool))
    settings = {"heads": case["N"], "kv_heads": case["K"], "empty_rows": case["empty_rows"], "add_zero_attn": case.get("add_zero_attn")}
    settings |= {name: case[name] for name in ("scale", "softcap") if name in case}
    settings["dropout"] = case["dropout"]["p"] if case.get("dropout") else 0.0

    def f(x: dict[str, Any]) -> Any:
        own = {name.removeprefix("parameter "): value for name, value in x.items() if name.startswith("parameter ")}
        bias = sink = None
        if has_bias:
            bias = x["bias"].expand(pairs[:-1] + (keys,))
        if built.relative is not None:
            if case["relative"]["kind"] == "slopes":
                bias = -x["relative_bias"][:, None, None] * torch.tensor(np.abs(built.distance).astype(float))
            else:
                bias = x["relative_bias"][torch.arange(case["N"])[:, None, None], torch.tensor(built.buckets)]
            bias = bias.expand(built.batch, *pairs[len(lead) : -1], keys).reshape(*pairs[:-1], keys)
        if "sink" in x:
            sink = x["sink"][:, None] if x["sink"].dim() == 1 else x["sink"]
        projected = (x["projected_key"], x["projected_value"]) if kind == "projected" else None
        key = x.get("key", x["query"])
        out = layer_oracle.attention_layer(own, settings, x["query"], key, x.get("value", key), allowed=allowed, document=document, bias=bias, sink=sink, keep=None if keep is None else torch.tensor(keep),
                                           rotary=rotary, projected=projected, mean_of=mean_of)  # fmt: skip
        return out.movedim(-2, axis)

    out_rows = 1 if is_global and not case.get("gate") else queries
    out_width = case["N"] * case["V"] if case.get("no_output") else case["Eo"]
    out_shape = np.moveaxis(np.empty((*lead, out_rows, out_width), bool), -2, axis).shape
    d_out = normal(case, "d_out", out_shape)
    expected = Expected(case, inputs, f, wide(d_out))
    out_given = memory.Output(out_shape, DTYPES[case["dtype"]], case.get("layout_out", "plain"), rng_of(case, "layout out"))
    out, saved = call(used.forward, **given, **call_options, out=out_given.array)
    report.holds("out: bytes beside the tensor were written", out_given.gaps_kept())
    expected.near(report, "out", out)
    plain = {name: np.ascontiguousarray(x) for name, x in given.items()}
    other = call_options | {"num_threads": 5 - case["threads"]}
    report.same_bits("out without saved activations, with other strides and threads", out, used(**plain, **other))
    report.same_bits("out of the layer that is not frozen", out, layer(**plain, **other))
    # Gradients.
    more: dict[str, Any] = {}
    d_bias = None
    if has_bias and rng_of(case, "d_bias").random() < 0.5:
        d_bias = memory.Output(built.bias_shape, DTYPES[case["dtype"]], case.get("layout_bias", "plain"), rng_of(case, "layout d_bias"))
        more["d_bias"] = d_bias.array
    placed = memory.placed(d_out, case.get("layout_d_out", "plain"), rng_of(case, "layout d_out"))
    found = call(saved.backward, placed, **more)
    if d_bias is not None:
        report.holds("d_bias: bytes beside the tensor were written", d_bias.gaps_kept())
    for name in inputs:
        if name.startswith("parameter "):
            expected.near(report, name, found.parameters[name.removeprefix("parameter ")])
            continue
        gradient = getattr(found, name)
        gradient = np.moveaxis(np.asarray(gradient), axis, -2) if name in ("query", "key", "value") else gradient
        expected.near(report, name, gradient)
    again_out, again_saved = call(layer.forward, **plain, **other)
    again = call(again_saved.backward, d_out)
    for name in inputs:
        if name.startswith("parameter "):
            report.same_bits(f"d_{name} with other strides and threads", found.parameters[name[10:]], again.parameters[name[10:]])
        else:
            report.same_bits(f"d_{name} with other strides and threads", getattr(found, name), getattr(again, name))


def cache_case(report: Report, case: Case) -> None:
    batch, length, stored = case["lead"][0], case["T"], case["stored"]
    layer = layer_of(case)
    parameters = {name: torch.tensor(wide(x)) for name, x in parameters_of(case, layer).items()}
    used = layer.frozen() if case.get("frozen") else layer
    x = normal(case, "query", (batch, length, case["E"]), case["spread"])
    options: dict[str, Any] = {"causal": "top_left"}
    if "window" in case:
        options["window"] = case["window"]
    slopes = buckets = None
    if case.get("relative") == "slopes":
        slopes = np.abs(normal(case, "slopes", (case["N"],))).astype(np.float64 if case["dtype"] == "float64" else np.float32)
        options["relative_bias"] = polyhead.RelativeBias(slopes=slopes)
    elif case.get("relative"):
        buckets = normal(case, "table", (case["N"], 8)).astype(np.float64 if case["dtype"] == "float64" else np.float32)
        options["relative_bias"] = polyhead.RelativeBias(table=buckets, bidirectional=False, max_distance=20)
    angles = rng_of(case, "rotary").uniform(-3, 3, (length, case["rotary"]["width"] // 2)) if "rotary" in case else None
    table_dtype = np.float64 if case["dtype"] == "float64" else np.float32

    def tables(positions: Any) -> dict[str, Any]:
        if angles is None:
            return {}
        at = angles[np.minimum(positions, length - 1)]
        return {"rotary": polyhead.Rotary(np.cos(at).astype(table_dtype), np.sin(at).astype(table_dtype), order=case["rotary"]["order"], width=case["rotary"]["width"])}

    def cache_of() -> tuple[Any, list[Any]]:
        kinds = {"int8": np.int8, **DTYPES}
        arrays = [np.full((batch, case["K"], length, width), 17).astype(kinds[stored]) for width in (case["H"], case["V"])]
        scales = [np.full((batch, case["K"], length), np.nan, np.float32) for _ in range(2)] if stored == "int8" else []
        named = dict(zip(("key_scales", "value_scales"), scales))
        return polyhead.KeyValueCache.on(*arrays, **named), [*arrays, *scales]

    whole, whole_arrays = cache_of()
    out = call(used, x, cache=whole, **options, **tables(np.arange(length)), num_threads=case["threads"])
    if stored == case["dtype"]:
        plain = call(used, x, **options, **tables(np.arange(length)))
        report.same_bits("one call with a cache, and without one", out, plain)
    cache, arrays = cache_of()
    pieces, done = iter(case["pieces"] * 200), np.zeros(batch, int)
    rows = [[] for _ in range(batch)]
    rng = rng_of(case, "padded")
    while (done < length).any():
        count = next(pieces)
        tokens = np.minimum(rng.integers(0, count + 1, batch) if case.get("padded") else np.full(batch, count), length - done)
        most = int(tokens.max(initial=0))
        if most == 0:
            continue
        positions = done[:, None] + np.arange(most)
        piece = np.full((batch, most, case["E"]), 3, x.dtype)
        for b in range(batch):
            piece[b, : tokens[b]] = x[b, done[b] : done[b] + tokens[b]]
        more = {"new_tokens": tokens} if case.get("padded") else {}
        some = call(used, piece, cache=cache, **options, **tables(positions), **more, num_threads=5 - case["threads"])
        for b in range(batch):
            rows[b].append(np.asarray(some)[b, : tokens[b]])
        done += tokens
    report.same_bits("out of decoding a few tokens per call, compared with one call", np.stack([np.concatenate(row) for row in rows]), out)
    for i, name in enumerate(("keys", "values", "key scales", "value scales")[: len(arrays)]):
        report.same_bits(f"{name} of the cache after decoding a few tokens per call, compared with one call", arrays[i], whole_arrays[i])
    # The oracle computes the output from the keys and values that the cache has stored, so their rounding does not count as an error.
    k, v = (wide(arrays[i]) for i in range(2))
    if stored == "int8":
        k, v = (wide((arrays[i].astype(np.float32) * arrays[i + 2][..., None])) for i in range(2))
    t, s = np.arange(length)[:, None], np.arange(length)[None, :]
    allowed = (s <= t) & (s >= t - (case["window"][0] if "window" in case else length))
    bias = None
    if slopes is not None:
        bias = torch.tensor(-wide(slopes)[:, None, None] * np.abs(s - t))
    elif buckets is not None:
        bias = torch.tensor(wide(buckets)[:, oracle.buckets_of(s - t, 8, False, 20)])
    rotary = None
    if angles is not None:
        rotary = {"cos": torch.tensor(np.cos(angles)), "sin": torch.tensor(np.sin(angles)), "order": case["rotary"]["order"], "width": case["rotary"]["width"]}
        rotary |= {f"key_{name}": rotary[name] for name in ("cos", "sin")}
    settings = {"heads": case["N"], "kv_heads": case["K"], "softcap": case.get("softcap", 0.0), "empty_rows": case["empty_rows"]}
    full = torch.tensor(np.broadcast_to(allowed, (batch, case["N"], length, length)).copy())

    def f(x: dict[str, Any]) -> Any:
        return layer_oracle.attention_layer({name: x[name] for name in parameters}, settings, x["query"], None, None, allowed=full, bias=bias, rotary=rotary, projected=(x["k"], x["v"]))

    expected = Expected(case, {"query": wide(x), "k": k, "v": v, **{name: value.numpy() for name, value in parameters.items()}}, f)
    expected.near(report, "out", out, "out of a call with a cache")
    # Check the keys and values that the cache has stored.
    head = lambda name: layer_oracle.heads_of(layer_oracle.linear(torch.tensor(wide(x)), parameters, name), case["K"])  # noqa: E731
    wanted = [head("k"), head("v")]
    if "k_norm.weight" in parameters:
        wanted[0] = layer_oracle.rms_norm(wanted[0], parameters["k_norm.weight"], 1e-6)
    if rotary is not None:
        wanted[0] = layer_oracle.rotate(wanted[0], rotary["cos"], rotary["sin"], rotary["order"], rotary["width"])
    worst = report.worst  # do not count these errors: rounding the stored numbers nearly reaches the bound, which says nothing about the layer
    unit = {"float64": 2.0**-45, "float32": 2.0**-17, "float16": 2.0**-10, "bfloat16": 2.0**-8}
    for name, exact, found in (("keys", wanted[0].numpy(), k), ("values", wanted[1].numpy(), v)):
        largest = np.abs(exact).max(-1, keepdims=True, initial=0)
        own = 0.52 / 127 if stored == "int8" else unit[stored]
        half = case["dtype"] == "float16"
        bound = largest * (own + half * 8 * unit["float16"] + 16 * EPS[case["dtype"]] * case["E"] ** 0.5) + 16 * EPS[case["dtype"]] * np.abs(exact).max(initial=0)
        report.near(f"{name} of the cache", found, exact, bound + half * 1e-5)
    report.worst = worst


def torch_case(report: Report, case: Case, arrays: dict[str, Any], polyheads: Any, formulas: Any, what: str, same_bits: bool = True, widths: dict[str, float] | None = None) -> None:
    """Compares out and gradients of a function of polyhead.torch with the formulas. same_bits: also compares the bits for different numbers of threads. widths: factors for the
    bounds of gradients."""
    dtype = getattr(torch, case["dtype"])
    tensors = {name: torch.tensor(x, dtype=dtype, requires_grad=True) for name, x in arrays.items()}
    torch.set_num_threads(case["threads"])
    out = call(polyheads, tensors)
    d_out = normal(case, "d_out", tuple(out.shape))
    expected = Expected(case, {name: wide(x) for name, x in arrays.items()}, formulas, wide(d_out))
    expected.near(report, "out", out.detach().numpy(), f"{what}: out")
    if not out.requires_grad:
        return
    out.backward(torch.tensor(d_out))
    for name, x in tensors.items():
        expected.near(report, name, np.zeros(x.shape) if x.grad is None else x.grad.numpy(), f"{what}: d_{name}", (widths or {}).get(name, 1.0))
    if not same_bits:
        return
    other = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
    torch.set_num_threads(5 - case["threads"])
    again = polyheads(other)
    again.backward(torch.tensor(d_out))
    torch.set_num_threads(1)
    report.same_bits(f"{what}: out with other threads", out.detach().numpy(), again.detach().numpy())
    for name in tensors:
        if tensors[name].grad is not None:
            report.same_bits(f"{what}: d_{name} with other threads", tensors[name].grad.numpy(), other[name].grad.numpy())


def pair_bias_case(report: Report, case: Case) -> None:
    import polyhead.torch

    structures, samples = case["lead"][0], case["samples"]
    total, n, h, v = structures * samples, case["N"], case["H"], case["V"]
    v = h  # cuEquivariance's function has the same width for q, k and v
    arrays = {
        "s": normal(case, "s", (total, case["T"], case["E"])), "q": normal(case, "q", (total, n, case["T"], h)), "k": normal(case, "k", (total, n, case["S"], h)),
        "v": normal(case, "v", (total, n, case["S"], v)), "z": normal(case, "z", (structures, case["T"], case["S"], case["C"]), 1.5), "w_proj_z": normal(case, "w_proj_z", (n, case["C"])),
        "w_proj_g": normal(case, "w_proj_g", (n * v, case["E"]), case["E"] ** -0.5), "w_proj_o": normal(case, "w_proj_o", (case["Eo"], n * v), (n * v) ** -0.5),
    }  # fmt: skip
    for name, key, shape in (("weight", "w_ln_z", (case["C"],)), ("norm_bias", "b_ln_z", (case["C"],)), ("projection_bias", "b_proj_z", (n,)), ("gate_bias", "b_proj_g", (n * v,)), ("output_bias", "b_proj_o", (case["Eo"],))):
        if case[name]:
            arrays[key] = normal(case, key, shape)
    mask = None
    if case["mask"]:
        rows = structures if case["mask"] == "structure" else total
        mask = rng_of(case, "mask").random((rows, case["S"])) < case["kept"]

    def own(x: dict[str, Any]) -> Any:
        given = None if mask is None else torch.tensor(mask.astype(np.float32) if case["mask"] == "numbers" else mask)
        more = {name: x[name] for name in x if name not in ("s", "q", "k", "v", "z")}
        return polyhead.torch.attention_pair_bias(x["s"], x["q"], x["k"], x["v"], x["z"], given, n, **more, attn_scale=case.get("scale"), return_z_proj=case["return_bias"])[0]

    def formulas(x: dict[str, Any]) -> Any:
        bias = torch.einsum("bijc,nc->bnij", layer_oracle.layer_norm(x["z"], x.get("w_ln_z"), x.get("b_ln_z"), 1e-5), x["w_proj_z"])
        if "b_proj_z" in x:
            bias = bias + x["b_proj_z"][:, None, None]
        bias = bias.repeat_interleave(samples, 0)
        keep = np.ones((total, case["S"]), bool) if mask is None else np.repeat(mask, total // max(mask.shape[0], 1), 0) if mask.shape[0] != total else mask
        allowed = torch.tensor(np.broadcast_to(keep[:, None, None], (total, n, case["T"], case["S"])).copy())
        out, _ = layer_oracle.attend(x["q"], x["k"], x["v"], allowed, scale=case.get("scale", h**-0.5), bias=bias, empty_rows="zero" if mask is None else "unmasked")
        named = {"gate.weight": x["w_proj_g"], "output.weight": x["w_proj_o"]}
        named |= {target: x[name] for name, target in (("b_proj_g", "gate.bias"), ("b_proj_o", "output.bias")) if name in x}
        return layer_oracle.linear(torch.sigmoid(layer_oracle.linear(x["s"], named, "gate")) * layer_oracle.merged(out), named, "output")

    # In a norm of one feature, the terms of the gradient cancel exactly; with two features they cancel nearly. So the bound is wider.
    widths = {"z": 64.0} if case["C"] <= 3 else {}
    torch_case(report, case, arrays, own, formulas, "attention_pair_bias", same_bits=False, widths=widths)  # bits may differ, because torch computes the gate and the output projection


def windows_case(report: Report, case: Case) -> None:
    import polyhead.torch

    lead, n, kv, length, w, wk = tuple(case["lead"]), case["N"], case["K"], case["T"], case["queries"], case["keys"]
    count = -(-length // w)
    arrays = {"q": normal(case, "q", (*lead, n, length, case["H"]), case["spread"]), "k": normal(case, "k", (*lead, kv, length, case["H"])), "v": normal(case, "v", (*lead, kv, length, case["V"]))}
    if case["bias"]:
        arrays["bias"] = normal(case, "bias", (*lead, count, n, w, wk) if case["bias"] == "full" else (n, w, wk))
    if "sink" in case:
        arrays["sink"] = normal(case, "sink", (n,) if case["sink"] == "N" else (*lead, n, length))
    exists = np.ones((*lead, length), bool) if case["kept"] is None else rng_of(case, "exists").random((*lead, length)) < case["kept"]

    def own(x: dict[str, Any]) -> Any:
        more = {name: x[name] for name in ("sink",) if name in x} | {name: case[name] for name in ("softcap",) if name in case}
        return polyhead.torch.sequence_local_attention(x["q"], x["k"], x["v"], x.get("bias"), queries=w, keys=wk, attend_keys=None if case["kept"] is None else torch.tensor(exists), **more)

    t, s = np.arange(length)[:, None], np.arange(length)[None, :]
    place = s - ((t // w) * w - (wk - w) // 2)  # the index of key s among the keys of t's window
    inside = (place >= 0) & (place < wk)
    allowed = torch.tensor(np.broadcast_to(inside & exists[..., None, None, :], (*lead, n, length, length)).copy())
    window, row, column = (torch.tensor(np.broadcast_to(i, (length, length)).copy()) for i in (t // w, t % w, np.clip(place, 0, wk - 1)))

    def formulas(x: dict[str, Any]) -> Any:
        bias = None
        if "bias" in x:
            table = x["bias"].expand(*lead, count, n, w, wk)
            bias = table.movedim(-3, -4)[..., window, row, column] if count else None
        sink = x.get("sink")
        sink = sink[:, None] if sink is not None and sink.dim() == 1 else sink
        return layer_oracle.attend(x["q"], x["k"], x["v"], allowed, scale=case["H"] ** -0.5, softcap=case.get("softcap", 0.0), bias=bias, sink=sink)[0]

    torch_case(report, case, arrays, own, formulas, "sequence_local_attention")


def score_mod_case(report: Report, case: Case) -> None:
    import polyhead.torch

    built = masks_of(case)
    lead, n = built.lead, case["N"]
    arrays = {"q": normal(case, "q", (*lead, n, case["T"], case["H"]), case["spread"]), "k": normal(case, "k", (*lead, case["K"], case["S"], case["H"])), "v": normal(case, "v", (*lead, case["K"], case["S"], case["V"]))}
    if built.bias_shape is not None:
        arrays["bias"] = built.options["bias"]
    if any(name == "table" for name, _ in case["rule"]):
        arrays["table"] = normal(case, "table", (n, 7))

    def rule(x: dict[str, Any]) -> Any:
        def score_mod(score: Any, b: Any, h: Any, t: Any, s: Any) -> Any:
            for name, c in case["rule"]:
                if name == "add":
                    score = score + c
                elif name == "scale":
                    score = score * c
                elif name == "tanh":
                    score = c * torch.tanh(score / c)
                elif name == "table":
                    score = score + x["table"][h, (t + 3 * s) % 7]
                elif name == "distance":
                    score = score - c * (torch.abs(t - s) * (1 + b)).type_as(score) / 16
                elif name == "where":
                    score = torch.where((t + h) % 3 == s % 3, score * c, score)
                elif name == "sigmoid":
                    score = score + torch.sigmoid(score * c)
                elif name == "polynomial":
                    score = c * score - 0.05 * score * score
            return score

        return score_mod

    skipped = ("empty_rows", "scale", "softcap", "precision", "backend", "num_threads", "bias", "relative_bias", "causal", "window", "block_size")
    options = {name: torch.as_tensor(np.ascontiguousarray(x)) for name, x in built.options.items() if name not in skipped}
    options |= {name: built.options[name] for name in ("causal", "window", "block_size", "empty_rows") if name in built.options}
    if built.relative is not None:
        options["relative_bias"] = polyhead.RelativeBias(slopes=torch.tensor(np.ascontiguousarray(built.relative)))
    if "softcap" in case:
        options["softcap"] = case["softcap"]

    def own(x: dict[str, Any]) -> Any:
        return polyhead.torch.attention(x["q"], x["k"], x["v"], bias=x.get("bias"), score_mod=rule(x), **options)

    grid = torch.meshgrid(torch.arange(built.batch), torch.arange(n), torch.arange(case["T"]), torch.arange(case["S"]), indexing="ij")
    allowed, document = torch.tensor(built.allowed).reshape(*lead, n, case["T"], case["S"]), torch.tensor(built.document)

    def formulas(x: dict[str, Any]) -> Any:
        bias = x["bias"].expand(*lead, n, case["T"], case["S"]) if "bias" in x else None
        if built.relative is not None:
            bias = torch.tensor(built.bias_wide)
        return layer_oracle.attend(x["q"], x["k"], x["v"], allowed, scale=case["H"] ** -0.5, document=document, softcap=case.get("softcap", 0.0), bias=bias, empty_rows=case["empty_rows"],
                                   score_mod=lambda score: rule(x)(score, *grid))[0]  # fmt: skip

    torch_case(report, case, arrays, own, formulas, f"score_mod {case['rule']}")


KINDS = {"attention": attention_case, "cache": cache_case, "pair_bias": pair_bias_case, "windows": windows_case, "score_mod": score_mod_case}


def check(case: Case) -> Report:
    """Runs a case and returns the findings. If polyhead refuses the case, raises Refused with polyhead's message."""
    memory.forget()
    report = Report()
    KINDS[case["kind"]](report, case)
    if case["dtype"] == "float16":
        report.worst = 0.0  # in 16 bits, rounding of the results nearly reaches the bound, so the largest share says nothing
    return report


if __name__ == "__main__":
    attention.main(draw, check)
