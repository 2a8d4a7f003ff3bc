"""Random problems of layers. As in cases.py, a case is a dict of literals that draw() draws from a seed; masks, biases and sinks of a call are those of cases.py."""

from __future__ import annotations

import zlib
from typing import Any

import memory
import numpy as np
import oracle
from cases import DTYPES, Built, Case
from cases import draw as draw_attention

MOST_PAIRS = 60_000
SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 128, 130)
WIDTHS = (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64)
# Options of a call of cases.py that a layer has too.
_OF_CALLS = ("query_offsets", "key_offsets", "causal", "window", "key_starts", "key_lengths", "attend", "block", "attend_keys", "block_keys", "blocks", "bias", "relative", "diagonal_offsets", "sink")
KINDS = ("attention", "attention", "attention", "cache", "pair_bias", "windows", "score_mod")


class Draw:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 7])

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def size(self, empty: float = 0.04) -> int:
        if self.chance(empty):
            return 0
        return self.pick(*SIZES) if self.chance(0.5) else int(2 ** self.rng.uniform(0, 6))


def draw(seed: int, kinds: tuple[str, ...] = KINDS) -> Case:
    d = Draw(seed)
    kind = d.pick(*kinds)
    case: Case = {"seed": seed, "kind": kind, "dtype": d.pick("float32", "float32", "float64", "float64", "float16")}
    case["lead"] = d.pick((), (1,), (2,), (2,), (3,), (2, 3), (1, 2), (2, 1, 2)) if not d.chance(0.03) else d.pick((0,), (2, 0))
    case["K"] = d.pick(1, 1, 2, 3)
    case["N"] = case["K"] * d.pick(1, 1, 2, 3)
    case["T"], case["S"] = d.size(), d.size()
    case["H"], case["V"] = d.pick(*WIDTHS), d.pick(*WIDTHS)
    case["spread"] = d.pick(0.3, 1.0, 1.0, 2.0)
    case["threads"] = d.pick(1, 2, 3, 4)
    case["empty_rows"] = d.pick("zero", "zero", "zero", "uniform", "unmasked")
    {"attention": _attention, "cache": _cache, "pair_bias": _pair_bias, "windows": _windows, "score_mod": _score_mod}[kind](case, d)
    batch = int(np.prod(case["lead"], dtype=int))
    while batch * case["N"] * case["T"] * case["S"] > MOST_PAIRS:
        larger = "T" if case["T"] >= case["S"] else "S"
        for name in ("T", "S") if case.get("self") else (larger,):
            case[name] = max(case[name] // 2, 1)
    return case


def _mask_of(case: Case, d: Draw, drawn: Case, names: tuple[str, ...]) -> None:
    """Copies the options `names` from `drawn`, a case of cases.py."""
    full = 3 + len(case["lead"])
    for name in names:
        if name not in drawn:
            continue
        value = drawn[name]
        if name in ("attend", "block", "bias"):
            if value.get("sliding"):
                continue
            rank = full if d.chance(0.7) else 2  # a layer takes [T,S] or all dimensions
            axes = tuple(int(d.chance(0.6)) for _ in range(rank))
            value = {**value, "axes": axes if rank > 2 else (1, 1)}
        case[name] = value


def _attention(case: Case, d: Draw) -> None:
    drawn = draw_attention(case["seed"])
    case["E"], case["Ek"], case["Ev"], case["Eo"] = (d.pick(*WIDTHS) for _ in range(4))
    case["self"] = d.pick("query", "query", "key", "") if d.chance(0.8) else "projected"  # the inputs: "query": query only; "key": query and key; "": query, key and value; "projected": query and projected keys
    if case["self"] == "query":
        case["S"] = case["T"]
        case["Ek"] = case["Ev"] = case["E"]
    elif case["self"] == "key":
        case["Ev"] = case["Ek"]
    for name, probability in (("no_bias", 0.2), ("no_output_bias", 0.2), ("no_output", 0.2), ("gate", 0.3), ("add_bias_kv", 0.15), ("add_zero_attn", 0.15), ("qk_norm", 0.25), ("frozen", 0.3)):
        if d.chance(probability):
            case[name] = True
    added = "add_bias_kv" in case or "add_zero_attn" in case
    case["axis"] = int(d.rng.integers(0, len(case["lead"]) + 1)) if d.chance(0.4) else len(case["lead"])
    if d.chance(0.2):
        case["scale"] = d.pick(0.0, 0.1, 1.0, -0.3)
    if d.chance(0.2):
        case["softcap"] = d.pick(0.5, 5.0, 50.0)
    if case["self"] != "projected" and d.chance(0.12):
        case["global"] = d.pick("mean", "masked_mean")
        case["K"], case["S"] = 1, case["T"]
        case["N"] = d.pick(1, 2, 4)
        bounds = tuple(name for name in ("key_starts", "key_lengths") if drawn.get(name) != "query")
        names: tuple[str, ...] = ("attend_keys", "block_keys", "bias", *bounds)
    else:
        names = tuple(name for name in _OF_CALLS if not (added and name in ("query_offsets", "key_offsets", "relative")))
        if d.chance(0.3) and case["H"] >= 2 and "global" not in case:
            case["rotary"] = {"order": d.pick("halves", "pairs"), "width": d.pick(0, 2 * int(d.rng.integers(1, case["H"] // 2 + 1))), "lead": d.chance(0.3)}
            if case["rotary"]["width"] == 0 and case["H"] % 2:
                case["rotary"]["width"] = case["H"] - 1
    if d.chance(0.25):
        names = ()
    if "query_offsets" in drawn and "query_offsets" in names:  # documents were drawn for T and S of `drawn`, so the layer gets these sizes
        if case["self"] == "query" and drawn["T"] != drawn["S"]:
            names = tuple(name for name in names if name not in ("query_offsets", "key_offsets"))
        else:
            case["T"], case["S"] = drawn["T"], drawn["S"]
    _mask_of(case, d, drawn, names)
    if "query_offsets" not in case:
        case.pop("key_offsets", None)
        for name in ("key_starts", "key_lengths"):
            if case.get(name) == "query" and d.chance(0.5):
                case[name] = "sequence"
    else:
        case.pop("diagonal_offsets", None)
        for name in ("key_starts", "key_lengths"):
            if name in case:
                case[name] = "query"
        while int(np.prod(case["lead"], dtype=int)) * case["N"] * case["T"] * case["S"] > MOST_PAIRS and case["lead"] != (1,):
            case["lead"], case["K"], case["axis"] = (1,), 1, min(case["axis"], 1)
            case["N"] = 1
            for name in ("attend", "block", "bias"):
                if name in case and len(case[name]["axes"]) > 2:
                    case[name] = {**case[name], "axes": case[name]["axes"][-4:]}
        if case["T"] * case["S"] > MOST_PAIRS:
            for name in ("query_offsets", "key_offsets"):
                case.pop(name, None)
    if "diagonal_offsets" in case and not any(name in case for name in ("causal", "window", "relative")):
        del case["diagonal_offsets"]
    if "diagonal_offsets" in case and case.get("causal") not in (None, "top_left"):
        del case["diagonal_offsets"]
    if case["empty_rows"] != "zero":
        case.pop("sink", None)
    elif "sink" not in case and d.chance(0.15):
        case["own_sink"] = True
    if d.chance(0.2):
        case["dropout"] = {"p": d.pick(0.1, 0.5, 0.9), "seed": None if d.chance(0.5) else int(d.rng.integers(0, 2**63))}
    for name in ("query", "key", "value", "mask", "bias", "out", "d_out"):
        layout = d.pick(*memory.LAYOUTS)
        if layout != "plain":
            case[f"layout_{name}"] = layout
    if case["self"] not in ("query",) and d.chance(0.3):
        case["poison"] = d.pick("nan", "inf")


def _cache(case: Case, d: Draw) -> None:
    case["lead"] = d.pick((1,), (2,), (3,))
    case["dtype"] = d.pick("float32", "float32", "float64", "float16")
    case["E"] = d.pick(*WIDTHS)
    case["T"] = case["S"] = max(case["T"], 1)
    case["self"] = "query"
    case["stored"] = case["dtype"] if case["dtype"] == "float64" else d.pick(case["dtype"], "float16", "bfloat16", "int8")
    case["pieces"] = [int(x) for x in d.rng.integers(1, d.pick(2, 4, 40), 200)]
    for name, probability in (("gate", 0.3), ("qk_norm", 0.3), ("no_bias", 0.2), ("frozen", 0.5), ("padded", 0.3)):
        if d.chance(probability):
            case[name] = True
    if d.chance(0.3):
        case["softcap"] = 5.0
    if d.chance(0.4):
        case["window"] = (d.pick(0, 1, 5, 40), None)
    if case["empty_rows"] == "zero" and d.chance(0.4):
        case["own_sink"] = True
    if d.chance(0.5) and case["H"] >= 2:
        case["rotary"] = {"order": d.pick("halves", "pairs"), "width": 2 * int(d.rng.integers(1, case["H"] // 2 + 1)), "lead": False}
    if d.chance(0.3):
        case["relative"] = d.pick("slopes", "table")


def _pair_bias(case: Case, d: Draw) -> None:
    case["lead"] = d.pick((1,), (2,), (3,), (0,) if d.chance(0.1) else (2,))
    case["K"] = case["N"]
    case["dtype"] = d.pick("float32", "float64")
    case["samples"] = d.pick(1, 1, 2, 3)
    case["C"], case["E"], case["Eo"] = d.pick(1, 2, 3, 8, 16, 17, 32, 64, 128), d.pick(*WIDTHS), d.pick(*WIDTHS)
    for name, probability in (("weight", 0.8), ("norm_bias", 0.8), ("projection_bias", 0.4), ("gate_bias", 0.4), ("output_bias", 0.4), ("return_bias", 0.5)):
        case[name] = d.chance(probability)
    case["mask"] = d.pick(None, "structure", "sample", "numbers")
    case["kept"] = d.pick(0.0, 0.2, 0.8)
    if d.chance(0.3):
        case["scale"] = d.pick(0.1, 1.0)


def _windows(case: Case, d: Draw) -> None:
    case["dtype"] = d.pick("float32", "float64")
    case["S"] = case["T"]
    case["self"] = "query"
    case["queries"] = d.pick(1, 2, 4, 8, 32, 5)
    case["keys"] = case["queries"] + 2 * d.pick(0, 1, 2, 7, 48)
    case["bias"] = d.pick(None, "full", "shared")
    case["kept"] = d.pick(None, 0.0, 0.5, 0.9)
    if d.chance(0.3):
        case["softcap"] = 5.0
    if case["empty_rows"] == "zero" and d.chance(0.3):
        case["sink"] = d.pick("N", "all")
    elif case["empty_rows"] != "zero":
        case["empty_rows"] = "zero"


def _score_mod(case: Case, d: Draw) -> None:
    case["dtype"] = d.pick("float32", "float64")
    case["lead"] = d.pick((1,), (2,), (3,))
    case["rule"] = [(d.pick("add", "scale", "tanh", "table", "distance", "where", "sigmoid", "polynomial"), float(np.round(d.rng.uniform(0.2, 1.5), 3))) for _ in range(d.pick(1, 2, 3))]
    if d.chance(0.4):
        case["causal"] = d.pick("top_left", "bottom_right")
    if d.chance(0.3):
        case["key_lengths"] = "sequence"
    if d.chance(0.3):
        case["attend"] = {"axes": (1, 1), "kept": 0.7, "tiles": d.chance(0.5)}
    if d.chance(0.3):
        case["softcap"] = 5.0
    if d.chance(0.25):
        case["bias"] = {"axes": (1, 1, 1, 1), "infinite": 0.0}
    elif d.chance(0.2):
        case["relative"] = {"kind": "slopes", "wide": False, "bidirectional": True, "buckets": 8, "max_distance": 32}
    if d.chance(0.2):
        case["blocks"] = {"size": (d.pick(16, 32), d.pick(64, 32)), "count": d.pick(1, 2), "axes": (1, 1, 1)}


def masks_of(case: Case) -> Built:
    """Returns the masks, biases and sinks of cases.py for the pairs of a case."""
    own = {name: case[name] for name in ("seed", "dtype", "lead", "N", "K", "T", "S", "threads", "empty_rows", *_OF_CALLS) if name in case}
    if case.get("global"):
        own["T"] = 1
    if case["kind"] not in ("attention", "score_mod"):
        own = {name: value for name, value in own.items() if name not in _OF_CALLS}
    own |= {f"layout_{name}": case[f"layout_{name}"] for name in ("mask", "bias") if f"layout_{name}" in case}
    return Built({**own, "H": 1, "V": 1, "spread": 1.0})


def rng_of(case: Case, name: str) -> np.random.Generator:
    return np.random.default_rng([case["seed"], zlib.crc32(name.encode())])


def normal(case: Case, name: str, shape: tuple[int, ...], factor: float = 1.0) -> Any:
    return (rng_of(case, name).standard_normal(shape) * factor).astype(DTYPES[case["dtype"]])


def keep_of(case: Case, shape: tuple[int, ...]) -> Any:
    """Returns the dropout bits of all pairs, bool [B,N,T,S']."""
    given = case["dropout"]
    if given["seed"] is not None:
        return oracle.keep_bits(given["p"], given["seed"], shape)
    return rng_of(case, "dropout").random(shape) >= given["p"]
