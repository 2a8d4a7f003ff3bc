"""Worker of scripts/soak: compares random stacks of encoder and decoder layers with layer_oracle.py, outputs and all gradients, in one process of run_stack.cc, the program
polyhead_run_stack of POLYHEAD_RUN_STACK or build/dev. The arguments are those of attention.py."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import attention
import layer_oracle
import layers
import numpy as np
import torch
from cases import DTYPES, Case
from check import Refused, Report
from layer_cases import WIDTHS, Draw, normal, rng_of

PROGRAM = [os.environ.get("POLYHEAD_RUN_STACK", str(Path(__file__).parents[2] / "build/dev/tests/soak/polyhead_run_stack"))]
layers.EPS["bfloat16"] = 2.0**-7
_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "int64": "I64"}


def draw(seed: int) -> Case:
    d = Draw(seed)
    case: Case = {"seed": seed, "kind": "stack", "layer": d.pick("encoder", "decoder"), "count": d.pick(1, 1, 2, 3), "dtype": d.pick("float32", "float32", "float64", "float64", "float16", *(n for n in DTYPES if n == "bfloat16"))}
    case["lead"] = d.pick((1,), (2,), (3,), (0,) if d.chance(0.1) else (2,))
    case["K"] = d.pick(1, 1, 2, 3)
    case["N"] = case["K"] * d.pick(1, 1, 2, 3)
    case["T"], case["S"] = min(d.size(), 70), min(d.size(), 70)
    case["H"], case["E"], case["M"], case["hidden"] = d.pick(*WIDTHS), d.pick(3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64), d.pick(*WIDTHS), d.pick(*WIDTHS)
    case["V"], case["spread"], case["threads"] = case["H"], 1.0, d.pick(1, 2, 3, 4)
    case["empty_rows"] = d.pick("zero", "zero", "uniform", "unmasked")
    case["activation"] = d.pick("relu", "gelu", "gelu_tanh", "silu")
    case["norm_position"], case["norm"] = d.pick("post", "pre", "both"), d.pick("layer_norm", "rms_norm")
    for name, probability in (("gated", 0.3), ("no_bias", 0.3), ("no_output_bias", 0.3), ("no_feed_forward_bias", 0.3), ("qk_norm", 0.3), ("gate", 0.25), ("final_norm", 0.3)):
        if d.chance(probability):
            case[name] = True
    if case["norm_position"] != "post":
        case["final_norm"] = True
        if case["layer"] == "encoder" and case["norm_position"] == "pre" and d.chance(0.3):
            case["parallel"] = True
    if case["empty_rows"] == "zero" and d.chance(0.3):
        case["sink"] = True
    if d.chance(0.2):
        case["softcap"] = 5.0
    if d.chance(0.6):
        case["causal"] = d.pick("top_left", "top_left", "bottom_right", int(d.rng.integers(-2, 3)))
    if d.chance(0.3):
        case["window"] = (d.pick(0, 1, 5, 20), d.pick(None, 0, 2))
    if d.chance(0.3) and case["H"] >= 2:
        case["rotary"] = {"order": d.pick("halves", "pairs"), "width": 2 * int(d.rng.integers(1, case["H"] // 2 + 1))}
    if d.chance(0.25) and case["layer"] == "encoder":
        case["attention_bias"] = d.pick("TS", "all", "heads")
    elif d.chance(0.25):
        case["slopes"] = True
    for name in ("attend", "attend_keys", "key_lengths", "memory_lengths", "memory_attend_keys"):
        if d.chance(0.2) and (case["layer"] == "decoder" or not name.startswith("memory")):
            case[name] = True
    if case.get("causal") == "top_left" and not any(name in case for name in ("attend", "attend_keys", "key_lengths", "attention_bias")) and case["T"] and d.chance(0.7):
        case["pieces"] = [int(x) for x in d.rng.integers(1, d.pick(2, 4, 20), 80)]
    return case


def write(path: Path, tensors: dict[str, Any]) -> None:
    header, data, at = {}, [], 0
    for name, x in tensors.items():
        x = np.ascontiguousarray(x)
        header[name] = {"dtype": _NAMES[x.dtype.name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
        data.append(x.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    kinds = {short: DTYPES.get(name) for name, short in _NAMES.items()}
    return {name: np.frombuffer(data[e["data_offsets"][0] : e["data_offsets"][1]], kinds[e["dtype"]]).reshape(e["shape"]) for name, e in header.items() if name != "__metadata__"}


class _Program:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="soak_stacks"))
        self.process: subprocess.Popen[str] | None = None

    def run(self, request: dict[str, Any]) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"{PROGRAM[0]} ended with {self.process.wait()}")
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        if "error" in answer:
            raise RuntimeError(answer["error"])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_program = _Program()
atexit.register(_program.close)


def shapes_of(case: Case) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all parameters by name."""
    n, k, h, e, m, hidden = case["N"], case["K"], case["H"], case["E"], case["M"], case["hidden"]
    result: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, width: int, bias: bool) -> None:
        result[f"{name}.weight"] = (out, width)
        if bias:
            result[f"{name}.bias"] = (out,)

    def norm(name: str) -> None:
        result[f"{name}.weight"] = (e,)
        if case["norm"] == "layer_norm":
            result[f"{name}.bias"] = (e,)

    def of_attention(name: str, key_width: int) -> None:
        for part, out, width in (("q", n * h, e), ("k", k * h, key_width), ("v", k * h, key_width)):
            linear(f"{name}.{part}", out, width, not case.get("no_bias"))
        linear(f"{name}.output", e, n * h, not case.get("no_output_bias"))
        if case.get("gate"):
            linear(f"{name}.gate", n * h, e, True)
        if case.get("sink"):
            result[f"{name}.sink"] = (n,)
        if case.get("qk_norm"):
            result[f"{name}.q_norm.weight"] = result[f"{name}.k_norm.weight"] = (h,)

    parts = {"encoder": ("attention",), "decoder": ("self_attention", "cross_attention")}[case["layer"]]
    for i in range(case["count"]):
        at = f"layers.{i}"
        for part in parts:
            of_attention(f"{at}.{part}", m if part == "cross_attention" else e)
        for name in ("hidden", "gate") if case.get("gated") else ("hidden",):
            linear(f"{at}.feed_forward.{name}", hidden, e, not case.get("no_feed_forward_bias"))
        linear(f"{at}.feed_forward.output", e, hidden, not case.get("no_feed_forward_bias"))
        for part in (*parts, "feed_forward"):
            norm(f"{at}.{part}_norm")
            if case["norm_position"] == "both":
                norm(f"{at}.{part}_output_norm")
    if case.get("final_norm"):
        norm("final_norm")
    return result


def check(case: Case) -> Report:
    report = Report()
    batch, queries, keys, n, e = case["lead"][0], case["T"], case["S"], case["N"], case["E"]
    decoder = case["layer"] == "decoder"
    epsilon = 1e-3  # large: with a small epsilon, norms of rows with nearly equal features would enlarge rounding errors
    parameters = {}
    for name, shape in shapes_of(case).items():
        values = rng_of(case, name).standard_normal(shape)
        values = 1 + 0.2 * values if "norm" in name and name.endswith("weight") else values / shape[-1] ** 0.5 if len(shape) == 2 else values * 0.5
        parameters[name] = values.astype(DTYPES[case["dtype"]])
    floats = {"x": normal(case, "x", (batch, queries, e))}
    if decoder:
        floats["memory"] = normal(case, "memory", (batch, keys, case["M"]))
    extra: dict[str, Any] = {"d_y": normal(case, "d_y", (batch, queries, e))}
    t, s = np.arange(queries)[:, None], np.arange(queries)[None, :]
    causal = case.get("causal", "top_left" if decoder else None)
    offset = causal if isinstance(causal, int) else 0
    allowed = np.ones((batch, n, queries, queries), bool)
    if causal is not None:
        allowed &= s - t <= offset
    if "window" in case:
        left, right = case["window"]
        allowed &= s - t - offset >= -left
        if right is not None:
            allowed &= s - t - offset <= right
    if "attend" in case:
        extra["attend"] = rng_of(case, "attend").random((queries, queries)) < 0.7
        allowed &= extra["attend"]
    if "attend_keys" in case:
        extra["attend_keys"] = rng_of(case, "attend_keys").random((batch, queries)) < 0.7
        allowed &= extra["attend_keys"][:, None, None]
    if "key_lengths" in case:
        extra["key_lengths"] = rng_of(case, "key_lengths").integers(0, queries + 1, batch)
        allowed &= s < extra["key_lengths"][:, None, None, None]
    of_memory = np.ones((batch, n, queries, keys), bool)
    if "memory_lengths" in case:
        extra["memory_lengths"] = rng_of(case, "memory_lengths").integers(0, keys + 1, batch)
        of_memory &= np.arange(keys) < extra["memory_lengths"][:, None, None, None]
    if "memory_attend_keys" in case:
        extra["memory_attend_keys"] = rng_of(case, "memory_attend_keys").random((batch, keys)) < 0.7
        of_memory &= extra["memory_attend_keys"][:, None, None]
    bias = rotary = None
    if "attention_bias" in case:
        extra["attention_bias"] = normal(case, "attention_bias", {"TS": (queries, queries), "all": (batch, n, queries, queries), "heads": (1, n, 1, queries)}[case["attention_bias"]])
        bias = torch.tensor(layers.wide(extra["attention_bias"])).expand(batch, n, queries, queries)
    if "slopes" in case:
        extra["slopes"] = np.abs(normal(case, "slopes", (n,)))
        bias = torch.tensor(np.broadcast_to(-layers.wide(extra["slopes"])[:, None, None] * np.abs(s - t - offset), (batch, n, queries, queries)).copy())
    if "rotary" in case:
        angles = rng_of(case, "rotary").uniform(-3, 3, (queries, case["rotary"]["width"] // 2))
        dtype = np.float64 if case["dtype"] == "float64" else np.float32
        extra |= {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
        wide = {name: torch.tensor(layers.wide(extra[name])) for name in ("cos", "sin")}
        rotary = {**wide, "key_cos": wide["cos"], "key_sin": wide["sin"], **case["rotary"]}
    settings = {"heads": n, "kv_heads": case["K"], "softcap": case.get("softcap", 0.0), "empty_rows": case["empty_rows"]}
    of_layer = {"norm_position": case["norm_position"], "norm": case["norm"], "epsilon": epsilon, "parallel": case.get("parallel")}
    own_allowed, memory_allowed = torch.tensor(allowed), torch.tensor(of_memory)

    def formulas(x: dict[str, Any]) -> Any:
        named = {name.removeprefix("parameter "): value for name, value in x.items() if name.startswith("parameter ")}
        y = x["x"]
        for i in range(case["count"]):
            own = layer_oracle.of_prefix(named, f"layers.{i}")
            first = "self_attention" if decoder else "attention"
            parts: list[tuple[str, Any]] = [(first, lambda z: layer_oracle.attention_layer(layer_oracle.of_prefix(own, first), settings, z, z, z, allowed=own_allowed, bias=bias, rotary=rotary))]
            if decoder:
                parts.append(("cross_attention", lambda z: layer_oracle.attention_layer(layer_oracle.of_prefix(own, "cross_attention"), settings, z, x["memory"], x["memory"], allowed=memory_allowed)))
            parts.append(("feed_forward", lambda z: layer_oracle.feed_forward(z, layer_oracle.of_prefix(own, "feed_forward"), case["activation"])))
            y = layer_oracle.stack_layer(y, own, parts, of_layer)
        last = layer_oracle.of_prefix(named, "final_norm")
        return layer_oracle.norm(y, last, case["norm"], epsilon) if last else y

    inputs = {**{name: layers.wide(x) for name, x in floats.items()}, **{f"parameter {name}": layers.wide(x) for name, x in parameters.items()}}
    request = {
        "folder": str(_program.folder), "decoder": decoder, "count": case["count"], "width": e, "memory_width": case["M"], "heads": n, "kv_heads": case["K"], "head_width": case["H"], "hidden_width": case["hidden"],
        "activation": case["activation"], "gated": bool(case.get("gated")), "bias": not case.get("no_bias"), "output_bias": not case.get("no_output_bias"), "feed_forward_bias": not case.get("no_feed_forward_bias"),
        "qk_norm": bool(case.get("qk_norm")), "norm": case["norm"], "norm_position": case["norm_position"], "parallel": bool(case.get("parallel")), "epsilon": epsilon, "final_norm": bool(case.get("final_norm")),
        "sink": bool(case.get("sink")), "gate": bool(case.get("gate")), "softcap": case.get("softcap", 0.0), "empty_rows": case["empty_rows"], "causal": case.get("causal"), "window": case.get("window"),
        "order": case.get("rotary", {}).get("order", "halves"), "rotary_width": case.get("rotary", {}).get("width", 0), "threads": case["threads"], "pieces": case.get("pieces", []),
    }  # fmt: skip
    write(_program.folder / "parameters.safetensors", parameters)
    write(_program.folder / "in.safetensors", {**floats, **extra})
    _program.run(request)
    found = read(_program.folder / "out.safetensors")
    _program.run(request | {"threads": 5 - case["threads"]})
    again = read(_program.folder / "out.safetensors")
    expected = layers.Expected(case, inputs, formulas, layers.wide(extra["d_y"]))
    for name in ("out", *inputs):
        expected.near(report, name, found[name])
        report.same_bits(f"{name} with other threads", found[name], again[name])
    report.same_bits("out of a call with packed parameters and without saved activations", found["out"], found["evaluated"])
    if "decoded" in found:
        report.same_bits("out of decoding with a cache, a few tokens per call", found["out"], found["decoded"])
    if np.dtype(DTYPES[case["dtype"]]).itemsize == 2:
        report.worst = 0.0  # in 16 bits the largest error says nothing about the layers: see layers.py
    return report


if __name__ == "__main__":
    attention.main(draw, check)
