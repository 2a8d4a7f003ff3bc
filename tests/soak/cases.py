"""Random attention problems. A case is a dict of literals, drawn from a seed by draw(). Built(case) has the arrays, the options for polyhead, and the same problem for the oracle."""

from __future__ import annotations

import zlib
from typing import Any

import memory
import numpy as np
import oracle

try:
    import ml_dtypes

    DTYPES: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
except ImportError:
    DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}

Case = dict[str, Any]
MOST_PAIRS = 250_000  # largest B N T S: the oracle holds several float64 arrays of this size
SIZES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 511, 513, 1025)
WIDTHS = (1, 2, 3, 5, 8, 15, 16, 20, 24, 31, 32, 33, 40, 48, 64, 72, 80, 96, 100, 128, 160, 192, 256)


def draw(seed: int) -> Case:
    """Draws a case. Options without an entry are not passed to polyhead."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    def chance(probability: float) -> bool:
        return bool(rng.random() < probability)

    def size() -> int:
        if chance(0.04):
            return 0
        return pick(*SIZES) if chance(0.5) else int(2 ** rng.uniform(0, pick(3, 6, 8)))

    dtype = pick(*DTYPES, *("float32", "bfloat16")) if "bfloat16" in DTYPES else pick(*DTYPES)
    case: Case = {"seed": seed, "dtype": dtype}
    case["lead"] = pick((), (1,), (2,), (2,), (3,), (2, 2), (5,), (1, 3)) if not chance(0.02) else pick((0,), (2, 0))
    key_heads = pick(1, 1, 2, 2, 3)
    case["N"], case["K"] = key_heads * pick(1, 1, 2, 3, 4, 8), key_heads
    case["T"], case["S"] = size(), size()
    if chance(0.35):
        case["S"] = case["T"]
    elif chance(0.2):  # few queries and many keys, as in decoding
        case["T"], case["S"] = pick(1, 2, 4), int(2 ** rng.uniform(5, 11))
    case["H"] = pick(*WIDTHS)
    case["V"] = case["H"] if chance(0.5) else pick(*WIDTHS)
    batch = int(np.prod(case["lead"], dtype=int))
    while batch * case["N"] * case["T"] * case["S"] > MOST_PAIRS:
        if case["N"] > 8:
            case["N"] = case["K"]
        elif case["T"] > 1 and (case["T"] >= case["S"] or chance(0.5)):
            case["T"] //= 2
        else:
            case["S"] = max(case["S"] // 2, 1)
    case["spread"] = pick(0.3, 1.0, 1.0, 3.0, 10.0)
    if dtype != "float64" and chance(0.12):
        case["storage"] = pick(*(name for name in DTYPES if name not in (dtype, "float64", "float32")), "int8")
    if chance(0.25):
        case["scale"] = pick(0.0, 0.1, 1.0, -0.3)
    if chance(0.2):
        case["softcap"] = pick(0.5, 5.0, 50.0)
    queries, keys = case["T"], case["S"]
    documents = chance(0.12)
    if documents:
        count = pick(1, 2, 3, 7)
        cuts = lambda extent: [0, *sorted(int(x) for x in rng.integers(0, extent + 1, count - 1)), extent]  # noqa: E731
        case["query_offsets"] = cuts(queries)
        if queries != keys or chance(0.5):
            case["key_offsets"] = cuts(keys)
    if chance(0.4):
        case["causal"] = pick("top_left", "bottom_right", "bottom_right", int(rng.integers(-queries - 2, keys + 3)))
    if chance(0.2):
        case["window"] = (pick(None, 0, 1, 5, int(rng.integers(0, keys + 2))), pick(None, 0, 1, 5, int(rng.integers(0, keys + 2))))
        if case["window"] == (None, None):
            del case["window"]
    if chance(0.25):
        case["key_lengths"] = "query" if documents or chance(0.4) else "sequence"
    full = 3 + len(case["lead"])

    def axes(least: int = 0) -> tuple[int, ...]:
        """Draws the shape of a tensor that broadcasts to [*,N,T,S], as one number for each of its axes: 1 means the full extent, 0 means extent 1."""
        if chance(0.4):
            return (1,) * full
        return tuple(int(chance(0.6)) for _ in range(int(rng.integers(least, full + 1))))

    if chance(0.25):
        case[pick("attend", "block")] = {"axes": axes(), "kept": pick(0.1, 0.5, 0.9), "tiles": chance(0.5)}
    if chance(0.2):
        rank = len(case["lead"]) + 1
        case[pick("attend_keys", "block_keys")] = {"axes": tuple(int(chance(0.7)) for _ in range(int(rng.integers(1, rank + 1)))), "kept": pick(0.1, 0.5, 0.9)}
    if chance(0.12):
        case["blocks"] = {"size": (pick(16, 32, 64, 128, 5), pick(64, 128, 64, 32, 7)), "count": pick(0, 1, 2, 3), "axes": tuple(int(chance(0.7)) for _ in range(int(rng.integers(1, full))))}
    if chance(0.35):
        case["bias"] = {"axes": axes(), "infinite": pick(0.0, 0.0, 0.2, 1.0)}
        if chance(0.15):
            case["bias"] = {"sliding": True, "infinite": 0.0}
    elif chance(0.25):
        case["relative"] = {"kind": pick("slopes", "table"), "wide": chance(0.5), "bidirectional": chance(0.5), "buckets": 2 * int(rng.integers(2, 17)), "max_distance": int(rng.integers(20, 200))}
        if "causal" not in case and "window" not in case and chance(0.5):
            case["relative"]["diagonal"] = pick("top_left", "bottom_right", int(rng.integers(-3, 4)))
    if not documents and case.get("causal") in (None, "top_left") and ("causal" in case or "window" in case or "relative" in case) and chance(0.4):
        case["diagonal_offsets"] = True
        case.get("relative", {}).pop("diagonal", None)
    if chance(0.2):
        case["dropout"] = {"p": pick(0.1, 0.5, 0.9, 0.9999, 1.0), "axes": pick(None, None, axes())}  # None: polyhead draws the dropout bits itself
    case["empty_rows"] = pick("zero", "zero", "zero", "uniform", "unmasked")
    if case["empty_rows"] == "zero" and chance(0.2):
        case["sink"] = {"shape": pick("N", "N", "N1", "NT", "all"), "wide": chance(0.3), "infinite": chance(0.1)}
    if dtype == "bfloat16" and chance(0.3):
        case["precision"] = "exact"
    case["threads"] = pick(1, 2, 3, 4)
    for name in ("q", "k", "v", "bias", "mask", "d_out", "out", "d_bias"):
        layout = pick(*memory.LAYOUTS)
        if layout != "plain":
            case[f"layout_{name}"] = layout
    if chance(0.3):
        case["poison"] = pick("nan", "inf")  # NaN or infinity in all elements that must have no effect
    elif chance(0.1):
        case["spoil"] = pick("q", "k", "v")  # one NaN in an element that has an effect
    if chance(0.1) and case["lead"]:
        case["shared"] = pick("q", "k", "v")  # the tensor is broadcast along the first leading dimension, with stride 0
    if chance(0.03) and batch * case["N"] * queries * keys < 20_000:
        case["backend"] = "reference"
    if chance(0.15):
        case["key_starts"] = "query" if documents or chance(0.4) else "sequence"
    return case


class Built:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.dtype = np.dtype(DTYPES[case["dtype"]])
        self.lse_dtype = np.dtype(np.float64 if case["dtype"] == "float64" else np.float32)
        self.lead = tuple(case["lead"])
        self.batch = int(np.prod(self.lead, dtype=int))
        self.heads, self.key_heads, self.queries, self.keys, self.width, self.value_width = (case[name] for name in "NKTSHV")
        self.full = (*self.lead, self.heads, self.queries, self.keys)
        self.options: dict[str, Any] = {"empty_rows": case["empty_rows"], "num_threads": case["threads"]}
        self.options |= {name: case[name] for name in ("scale", "softcap", "precision", "backend", "causal", "window") if name in case}
        self.inputs: dict[str, Any] = {}
        self.wide: dict[str, Any] = {}  # q, k and v in float64, [B,...]
        self._make_tensors()
        self._make_mask()
        self._make_bias()
        self._make_dropout()
        self._spoil()

    def rng(self, name: str) -> np.random.Generator:
        """Returns a generator for one tensor. Each tensor has its own generator, so that its numbers do not change if other options are removed from the case."""
        return np.random.default_rng([self.case["seed"], zlib.crc32(name.encode())])

    def layout(self, name: str) -> str:
        return self.case.get(f"layout_{name}", "plain")

    def flat(self, x: Any, rank: int = 3) -> Any:
        """Reshapes [*, ...], which has `rank` dimensions behind *, to [B, ...]."""
        return x.reshape(self.batch, *x.shape[x.ndim - rank :])

    def whole(self, x: Any) -> Any:
        """Broadcasts x to [*,N,T,S] and reshapes it to [B,N,T,S]."""
        return self.flat(np.broadcast_to(x, self.full))

    def _make_tensors(self) -> None:
        case = self.case
        storage = case.get("storage")
        scale = case.get("scale")
        self.scale = scale if scale is not None else self.width**-0.5 if self.width else 1.0
        for name, heads, length, width in (("q", self.heads, self.queries, self.width), ("k", self.key_heads, self.keys, self.width), ("v", self.key_heads, self.keys, self.value_width)):
            rng = self.rng(name)
            shape = (*self.lead, heads, length, width)
            values = rng.standard_normal(shape) * (case["spread"] if name == "q" else 1.0)
            shared = case.get("shared") == name
            if shared:
                values = np.broadcast_to(values[:1], shape)
            if storage and name != "q":
                if storage == "int8":
                    scales = np.abs(rng.standard_normal(shape[:-1])).astype(np.float32) / 60
                    stored = np.clip(np.round(values * 60), -127, 127).astype(np.int8)
                    self.inputs[f"{name}_scale"] = scales
                    self.wide[name] = self.flat((scales[..., None] * stored.astype(np.float32)).astype(np.float64))
                else:
                    stored = values.astype(DTYPES[storage])
                    self.wide[name] = self.flat(stored.astype(np.float64))
            else:
                stored = values.astype(self.dtype)
                self.wide[name] = self.flat(stored.astype(np.float64))
            self.inputs[name] = memory.placed(stored, self.layout(name), rng)
            if shared:
                self.inputs[name] = memory.broadcast_where_constant(stored, self.inputs[name], (0,))

    def _integers(self, values: Any, rng: np.random.Generator) -> Any:
        return np.asarray(values).astype(np.int32 if rng.random() < 0.5 else np.int64)

    def _axes(self, axes: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that `axes` describes: an extent of `full` where it is 1, extent 1 where it is 0. reduce.py may have shortened `lead`, so `axes` is cut if it is too long."""
        axes = tuple(axes)[max(0, len(axes) - len(full)) :]
        return tuple(extent if kept else 1 for kept, extent in zip(axes, full[len(full) - len(axes) :]))

    def _make_mask(self) -> None:
        case, queries, keys = self.case, self.queries, self.keys
        t, s = np.arange(queries)[:, None], np.arange(keys)[None, :]
        self.document = np.ones((queries, keys), bool)
        cuts_q, cuts_k = case.get("query_offsets"), case.get("key_offsets") or case.get("query_offsets")
        if cuts_q:
            rng = self.rng("documents")
            self.options["query_offsets"] = self._integers(cuts_q, rng)
            if case.get("key_offsets"):
                self.options["key_offsets"] = self._integers(cuts_k, rng)
            self.document[:] = False
            for t0, t1, s0, s1 in zip(cuts_q, cuts_q[1:], cuts_k, cuts_k[1:]):
                self.document[t0:t1, s0:s1] = True
        self.offsets = None
        if case.get("diagonal_offsets"):
            rng = self.rng("diagonal_offsets")
            self.offsets = rng.integers(-2, max(keys - queries, 0) + 3, self.lead)
            self.options["diagonal_offsets"] = self._integers(self.offsets, rng)

        def distance(diagonal: Any) -> Any:
            """Returns s - (t + offset) for a diagonal of the mask, [B or 1,1,T,S]."""
            offset = {"top_left": lambda q, k: 0, "bottom_right": lambda q, k: k - q}.get(diagonal, lambda q, k: diagonal)
            if self.offsets is not None:
                return (s - t)[None, None] - self.offsets.reshape(-1, 1, 1, 1)
            x = s - t - offset(queries, keys)
            if cuts_q:
                for t0, t1, s0, s1 in zip(cuts_q, cuts_q[1:], cuts_k, cuts_k[1:]):
                    x[t0:t1, s0:s1] = (s - t)[t0:t1, s0:s1] - (s0 - t0) - offset(t1 - t0, s1 - s0)
            return x[None, None]

        ruled = "causal" in case or "window" in case
        x = distance(case.get("causal", "bottom_right"))
        diagonal = case.get("relative", {}).get("diagonal")
        self.distance = x if ruled or self.offsets is not None else distance("bottom_right" if diagonal is None else diagonal)
        allowed = np.broadcast_to(self.document, (self.batch, self.heads, queries, keys)).copy()
        if "causal" in case:
            allowed &= x <= 0
        left, right = case.get("window", (None, None))
        if left is not None:
            allowed &= x >= -left
        if right is not None:
            allowed &= x <= right
        for name in ("key_starts", "key_lengths"):
            if name in case:
                rng = self.rng(name)
                shape = self.lead if case[name] == "sequence" else (*self.lead, queries)
                bounds = np.where(rng.random(shape) < 0.15, 0, rng.integers(0, keys + 1, shape))
                self.options[name] = self._integers(bounds, rng)
                bounds = bounds.reshape(-1, 1, 1, 1) if case[name] == "sequence" else bounds.reshape(self.batch, 1, queries, 1)
                allowed &= s >= bounds if name == "key_starts" else s < bounds
        for name in ("attend", "block"):
            if name in case:
                rng, given = self.rng("dense mask"), case[name]
                shape = self._axes(given["axes"], self.full)
                kept = np.asarray(rng.random(shape) < given["kept"])
                if given["tiles"] and len(shape) >= 2:  # most tiles of 16 x 64 pairs are all true or all false
                    whole = np.repeat(np.repeat(rng.random((*shape[:-2], -(-shape[-2] // 16), -(-shape[-1] // 64))) < given["kept"], 16, -2), 64, -1)[..., : shape[-2], : shape[-1]]
                    kept = np.where(rng.random(shape) < 0.002, kept, whole)
                self.options[name] = memory.placed(np.asarray(kept if name == "attend" else ~kept), self.layout("mask"), rng)
                allowed &= self.whole(kept)
        for name in ("attend_keys", "block_keys"):
            if name in case:
                rng, given = self.rng("key mask"), case[name]
                kept = rng.random(self._axes(given["axes"], (*self.lead, keys))) < given["kept"]
                self.options[name] = memory.placed(kept if name == "attend_keys" else ~kept, self.layout("mask"), rng)
                allowed &= np.broadcast_to(kept, (*self.lead, keys)).reshape(self.batch, 1, 1, keys)
        if "blocks" in case:
            rng, given = self.rng("blocks"), case["blocks"]
            rows, columns = (-(-extent // step) for extent, step in zip((queries, keys), given["size"]))
            shape = self._axes(given["axes"], (*self.lead, self.heads, rows))
            if not shape or shape[-1] != rows:
                shape = (*shape[:-1], rows)
            lists = rng.integers(-1, max(columns, 0), (*shape, given["count"])) if columns else np.full((*shape, given["count"]), -1)
            self.options["blocks"], self.options["block_size"] = self._integers(lists, rng), given["size"]
            listed = (lists[..., None, :] == np.arange(columns)[:, None]).any(-1)
            pairs = np.repeat(np.repeat(listed, given["size"][0], -2)[..., :queries, :], given["size"][1], -1)[..., :keys]
            allowed &= self.whole(pairs)
        self.allowed = allowed

    def _make_bias(self) -> None:
        case = self.case
        self.bias_wide = self.bias_shape = None
        rng = self.rng("bias")
        if "bias" in case:
            given = case["bias"]
            if given.get("sliding"):
                table = rng.standard_normal((self.heads, self.queries + self.keys)).astype(self.dtype)
                self.bias_table = memory.placed(table, "plain", rng)
                self.options["bias"] = self.sliding(self.bias_table)
            else:
                values = np.asarray(rng.standard_normal(self._axes(given["axes"], self.full)))
                if given["infinite"]:
                    values = np.where(rng.random(values.shape) < 0.3 * given["infinite"], -np.inf, values)
                self.options["bias"] = memory.placed(np.asarray(values).astype(self.dtype), self.layout("bias"), rng)
            self.bias_shape = self.options["bias"].shape
            self.bias_wide = self.whole(self.options["bias"].astype(np.float64))
        self.relative = None
        if "relative" in case:
            import polyhead

            given = case["relative"]
            dtype = self.lse_dtype if given["wide"] else self.dtype
            more = {name: given[name] for name in ("diagonal",) if name in given}
            if given["kind"] == "slopes":
                self.relative = np.abs(rng.standard_normal(self.heads)).astype(dtype)
                values = oracle.alibi(self.relative.astype(np.float64), self.distance)
                self.options["relative_bias"] = polyhead.RelativeBias(slopes=self.relative, **more)
            else:
                self.relative = rng.standard_normal((self.heads, given["buckets"])).astype(dtype)
                self.buckets = oracle.buckets_of(self.distance, given["buckets"], given["bidirectional"], given["max_distance"])
                values = self.relative.astype(np.float64)[np.arange(self.heads)[:, None, None], self.buckets]
                self.options["relative_bias"] = polyhead.RelativeBias(table=self.relative, bidirectional=given["bidirectional"], max_distance=given["max_distance"], **more)
            self.bias_wide = np.broadcast_to(values.astype(self.lse_dtype).astype(np.float64), self.allowed.shape)
        self.sink_wide = None
        if "sink" in case:
            given, rng = case["sink"], self.rng("sink")
            shape = {"N": (self.heads,), "N1": (self.heads, 1), "NT": (self.heads, self.queries), "all": (*self.lead, self.heads, self.queries)}[given["shape"]]
            values = rng.standard_normal(shape)
            if given["infinite"]:
                values = np.where(rng.random(shape) < 0.3, -np.inf, values)
            self.options["sink"] = values.astype(self.lse_dtype if given["wide"] else self.dtype)
            column = self.options["sink"].astype(np.float64)
            self.sink_wide = np.broadcast_to(column[:, None] if given["shape"] == "N" else column, self.full[:-1]).reshape(self.batch, self.heads, self.queries)

    def sliding(self, table: Any) -> Any:
        """Returns a view with bias[n,t,s] = table[n, T - t + s], whose strides are (.., -1, +1)."""
        row, step = table.strides
        return np.lib.stride_tricks.as_strided(table[:, self.queries :], (self.heads, self.queries, self.keys), (row, -step, step))

    def _make_dropout(self) -> None:
        self.keep, self.dropout = None, 0.0
        if "dropout" not in self.case:
            return
        given, rng = self.case["dropout"], self.rng("dropout")
        self.dropout = self.options["dropout"] = given["p"]
        if given["axes"] is None:
            self.options["seed"] = int(rng.integers(0, 2**63)) * 2 + 1
            self.keep = oracle.keep_bits(given["p"], self.options["seed"], self.allowed.shape)
        else:
            keep = np.asarray(rng.random(self._axes(given["axes"], self.full)) >= given["p"])
            self.options["dropout_keep"] = memory.placed(keep, self.layout("mask"), rng)
            self.keep = self.whole(keep)

    def problem(self) -> oracle.Problem:
        return oracle.Problem(**self.wide, allowed=self.allowed, document=self.document, scale=self.scale, softcap=self.case.get("softcap", 0.0), bias=self.bias_wide, sink=self.sink_wide,
                              keep=self.keep, dropout=self.dropout, empty_rows=self.case["empty_rows"])  # fmt: skip

    def _spoil(self) -> None:
        """Puts NaN or infinity where it must have no effect, such as keys that no row attends to. In some cases puts one NaN where it has an effect."""
        self.ahead = oracle.forward(self.problem())
        case, rng = self.case, self.rng("spoil")
        self.dead = ~self.ahead.used.any(-1)
        if case.get("poison"):
            bad = np.nan if case["poison"] == "nan" else np.inf
            group = self.heads // self.key_heads
            counted, used = (x.reshape(self.batch, self.key_heads, group, self.queries, self.keys).any((2, 3)) for x in (self.ahead.more["counted"], self.ahead.used))
            for name, needed in (("k", counted), ("v", used)):
                if case.get("shared") == name:
                    continue
                where = (~needed).reshape(*self.lead, self.key_heads, self.keys)
                if case.get("storage") == "int8":
                    self.inputs[f"{name}_scale"][where] = bad
                else:
                    self.inputs[name][where] = bad
                self.wide[name][~needed] = bad
            if self.bias_shape is not None and not case["bias"].get("sliding"):
                needed = sum_to(self.ahead.more["counted"].reshape(self.full).astype(float), self.bias_shape) > 0
                self.options["bias"][~needed] = bad
                self.bias_wide = self.whole(self.options["bias"].astype(np.float64))
            if case.get("shared") != "q":  # q of rows that attend to no key
                self.inputs["q"][self.dead.reshape(self.full[:-1])] = bad
                self.wide["q"][self.dead] = bad
        # If p is 0 (a score of -inf, or an underflow), kernels may compute 0 for p times NaN, but the oracle computes NaN. Such cases get no NaN.
        exact = self.ahead.p[self.ahead.used].min(initial=1) > 1e-20 and not case.get("sink", {}).get("infinite")
        if case.get("spoil") and exact and not case.get("dropout") and case.get("shared") != case["spoil"]:
            name = case["spoil"]
            if self.wide[name].size and not (name != "q" and case.get("storage") == "int8"):
                at = tuple(int(rng.integers(extent)) for extent in self.inputs[name].shape)
                self.inputs[name][at] = np.nan
                self.wide[name] = self.flat(self.inputs[name].astype(np.float64))
        if case.get("poison") or case.get("spoil"):
            self.ahead = oracle.forward(self.problem())


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Sums x to `shape`: over the dimensions along which a tensor of this shape was broadcast."""
    shape = tuple(shape)
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(axis for axis, extent in enumerate(shape) if extent == 1 and x.shape[axis] != 1), keepdims=True)
