"""The cases of the table. A case says which problem is computed and which results are wanted; the name of the case is the seed of its inputs."""

from __future__ import annotations

import dataclasses
import math
import zlib

import ml_dtypes  # noqa: F401  the import makes "bfloat16" a dtype name that NumPy knows
import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import encoder


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    group: str
    leading: tuple[int, ...] = (1,)
    N: int = 8
    K: int = 0  # number of key/value heads; 0: as many as query heads
    T: int = 512
    S: int = 0  # 0 means T
    H: int = 64
    V: int = 0  # 0 means H
    causal: bool = False
    mask: str = ""  # "pairs": a boolean mask [T,S]; "keys": a boolean mask [B,1,1,S] of keys
    dtype: str = "float32"  # dtype of all arrays that are not masks
    bias: str = ""  # "shared": [1,N,T,S]; "relative": a table [N,T+S-1] with one number for each distance, of which [N,T,S] is a view;
    #                 "alibi": slopes [N], causal
    lengths: tuple[int, ...] = ()  # lengths of packed sequences; their sum is T
    sink: bool = False  # sink logits [N]
    dropout: float = 0.0
    maps: bool = False  # also return all attention weights [B,N,T,S]
    backward: bool = False
    rule: str = ""  # name of a score rule in rules.py
    second: bool = False  # second derivatives: also compute the gradient of a loss that depends on the gradients of q, k, v and the bias
    layer: str = ""  # "mha": q = k = v [B,T,E]; "gated": AlphaFold's layer, rows [R,T,C] with a pair bias, a key mask and a gate
    width: int = 0  # E of the layer "mha", C of the layer "gated"

    @property
    def kind(self) -> str:
        return "layer" if self.layer else "attention"

    def missing(self) -> str:
        """The reason why the case cannot be measured on this machine; empty if it can."""
        return ""

    @property
    def B(self) -> int:
        return math.prod(self.leading)

    @property
    def kv_heads(self) -> int:
        return self.K or self.N

    @property
    def keys(self) -> int:
        return self.S or self.T

    @property
    def value_width(self) -> int:
        return self.V or self.H

    @property
    def scale(self) -> float:
        return self.H**-0.5

    @property
    def scores(self) -> int:
        return self.B * self.N * (sum(length**2 for length in self.lengths) if self.lengths else self.T * self.keys)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.leading, self.T, self.width) if self.layer else (*self.leading, self.N, self.T, self.value_width)

    def rate(self, seconds: float) -> tuple[float, str]:
        """The speed as (number, unit), in a unit with which cases of different sizes can be compared."""
        return (self.B * self.T / seconds * 1e-3, "tokens/ms") if self.layer else (seconds * 1e9 / self.scores, "ns/score")

    def flops(self) -> float:
        """The number of floating-point operations: 2 for each multiply-add, for half of the pairs if causal. Forward and backward pass together need 3.5 times
        the operations of the forward pass for attention, and 3 times for a projection. The gradient of the backward pass needs 7.5 times (docs/maths.md, section 3a)."""
        pairs = self.scores * (0.5 if self.causal else 1.0)
        attention = 2.0 * pairs * (self.H + self.value_width)
        maps = 0.0
        if self.layer:
            inner = self.N * self.H
            maps = 2.0 * self.B * self.T * self.width * inner * (5 if self.layer == "gated" else 4)
        return attention * (11 if self.second else 3.5 if self.backward else 1) + maps * (3 if self.backward else 1)


@dataclasses.dataclass(frozen=True)
class Encoder(Case):
    """A whole model, whose parameters are read from a folder: ids [B,T] -> embeddings [B,E]."""

    depth: int = 0
    inner_width: int = 0

    kind = "encoder"
    missing = encoder.missing

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.leading, self.width)

    def rate(self, seconds: float) -> tuple[float, str]:
        return self.B / seconds, "embeddings/s"

    def flops(self) -> float:
        weights = 4 * self.width**2 + 2 * self.width * self.inner_width
        return self.depth * (super().flops() + 2.0 * self.B * self.T * weights)


PACKED = tuple(8 + 504 * i // 63 for i in range(64))


def _sdpa() -> list[Case]:
    cases: list[Case] = []
    for backward in (False, True):
        tail = " f+b" if backward else ""
        group = "forward + backward" if backward else "forward"
        shapes = [(length, width) for width in (32, 64, 128) for length in (64, 128, 256, 512, 1024, 2048, 4096)]
        if not backward:
            shapes += [(8192, 64), (16384, 64), (1024, 80), (1024, 96)]
        cases += [Case(f"S{length} D{width}{tail}", group, T=length, H=width, backward=backward) for length, width in shapes]
        for length in (512, 2048):
            cases += [
                Case(f"causal S{length}{tail}", group, T=length, causal=True, backward=backward),
                Case(f"boolean S{length}{tail}", group, T=length, mask="pairs", backward=backward),
                Case(f"key mask S{length}{tail}", group, T=length, mask="keys", backward=backward),
                Case(f"bias S{length}{tail}", group, T=length, bias="shared", backward=backward),
                Case(f"dropout 0.1 S{length}{tail}", group, T=length, dropout=0.1, backward=backward),
            ]
        cases.append(Case(f"grouped 32/8 S1024 D128{tail}", group, N=32, K=8, T=1024, H=128, backward=backward))
        cases.append(Case(f"V128 H64 S1024{tail}", group, T=1024, V=128, backward=backward))
    for backward in (False, True):
        cases.append(Case(f"sink S2048{' f+b' if backward else ''}", "forward + backward" if backward else "forward", T=2048, sink=True, backward=backward))
        tail, group = (" f+b", "forward + backward") if backward else ("", "forward")
        cases.append(Case(f"ALiBi S2048{tail}", group, T=2048, causal=True, bias="alibi", backward=backward))
        cases.append(Case(f"packed 64 x 8 to 512{tail}", group, T=sum(PACKED), lengths=PACKED, backward=backward))
    for bias in ("shared", "relative"):
        cases.append(Case(f"{bias} bias S1024 D32 f+b", "forward + backward", T=1024, H=32, bias=bias, backward=True))
    cases += [Case(f"one query 32/8 S{keys} D128", "forward", N=32, K=8, T=1, S=keys, H=128) for keys in (1024, 8192)]
    cases.append(Case("one query 32/8 S8192 D128 bfloat16", "forward", N=32, K=8, T=1, S=8192, H=128, dtype="bfloat16"))
    cases.append(Case("one query 32/8 8 x S4096 D128", "forward", leading=(8,), N=32, K=8, T=1, S=4096, H=128))
    cases += [Case(f"{' x '.join(map(str, leading))} x S256 D64", "forward", leading=leading, T=256) for leading in ((8,), (2, 4))]
    cases.append(Case("bfloat16 S2048", "forward", T=2048, dtype="bfloat16"))
    cases.append(Case("bfloat16 S2048 f+b", "forward + backward", T=2048, dtype="bfloat16", backward=True))
    for name, options in (("", {}), ("causal ", {"causal": True}), ("bias ", {"bias": "shared"})):
        cases += [Case(f"{name}S{length} second", "second derivatives", T=length, backward=True, second=True, **options) for length in (512, 2048)]
    cases.append(Case("all attention weights S2048", "forward", T=2048, maps=True))
    return cases


def _rules() -> list[Case]:
    rules = ("softcap", "ALiBi", "relative table", "documents", "tanh of distance")
    return [Case(f"{rule} S1024{' f+b' * backward}", "score rules", T=1024, N=4, rule=rule, backward=backward) for backward in (False, True) for rule in rules]


def _layers() -> list[Case]:
    cases = []
    for backward in (False, True):
        tail = " f+b" if backward else ""
        for batch, length, width in ((1, 9, 64), (8, 128, 384), (2, 512, 768), (1, 2048, 512)):
            heads = 12 if width in (384, 768) else 8
            cases.append(
                Case(f"layer {batch} x S{length} E{width}{tail}", "layers", leading=(batch,), N=heads, T=length, H=width // heads, layer="mha", width=width, backward=backward)
            )
        for rows, length, heads, width in ((128, 128, 4, 128), (128, 256, 8, 256)):
            cases.append(
                Case(f"gated {rows} x {length} H{heads} C{width}{tail}", "layers", leading=(rows,), N=heads, T=length, H=width // heads, layer="gated", width=width, backward=backward)
            )
    return cases


def _models() -> list[Case]:
    return [
        Encoder(f"MiniLM {texts} x {tokens} tokens", "models", leading=(texts,), N=12, T=tokens, H=32, width=384, depth=6, inner_width=1536)
        for texts, tokens in ((1, 16), (32, 128))
    ]


CASES: list[Case] = _sdpa() + _rules() + _layers() + _models()


def inputs(case: Case) -> dict[str, np.ndarray]:
    """The input arrays, in the case's dtype (bool for masks). They are equal for every peer, because the name of the case is the seed."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))

    def normal(*shape: int, factor: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape, dtype=np.float32) * np.float32(factor)).astype(case.dtype)

    if isinstance(case, Encoder):
        return encoder.inputs(case, rng)
    B, N, K, T, S, H, V = case.B, case.N, case.kv_heads, case.T, case.keys, case.H, case.value_width
    arrays: dict[str, np.ndarray] = {}
    if case.layer:
        E, inner = case.width, N * H
        arrays["x"] = normal(B, T, E)
        for name in ("q", "k", "v"):
            arrays[f"w_{name}"] = normal(inner, E, factor=E**-0.5)
        arrays["w_o"] = normal(E, inner, factor=inner**-0.5)
        if case.layer == "gated":
            arrays["w_g"] = normal(inner, E, factor=E**-0.5)
            arrays["b_g"] = np.ones(inner, np.float32)
            arrays["bias"] = normal(1, N, T, T)
            arrays["attend_keys"] = rng.random((B, 1, 1, T)) < 0.9
    else:
        arrays |= {"q": normal(*case.leading, N, T, H), "k": normal(*case.leading, K, S, H), "v": normal(*case.leading, K, S, V)}
    if case.backward:
        arrays["d_out"] = normal(*case.output_shape)
    if case.second:
        arrays |= {f"d_d_{name}": normal(*arrays[name].shape) for name in "qkv"}
    if case.mask == "pairs":
        arrays["attend"] = rng.random((T, S)) < 0.7
    if case.mask == "keys":
        arrays["attend"] = (np.arange(S) < S * 7 // 8)[None, None, None, :].repeat(B, 0)
    if case.bias == "shared":
        arrays["bias"] = normal(1, N, T, S)
        if case.second:
            arrays["d_d_bias"] = normal(1, N, T, S)
    if case.sink:
        arrays["sink"] = normal(N)
    if case.rule:
        from .rules import RULES

        arrays |= RULES[case.rule].arrays(case, rng)
    if case.bias == "relative":
        arrays["bias_table"] = normal(N, T + S - 1)
    if case.bias == "alibi":
        arrays["slopes"] = (2.0 ** (-8 * np.arange(1, N + 1) / N)).astype(case.dtype)
    return arrays


def relative_view(table: np.ndarray, queries: int) -> np.ndarray:
    """A view [N,T,S] of a table [N,T+S-1]: element (n, t, s) is table[n, T - 1 + s - t]."""
    head, step = table.strides
    return as_strided(table[:, queries - 1 :], (len(table), queries, table.shape[1] - queries + 1), (head, -step, step))


def alibi_bias(case: Case, slopes: np.ndarray) -> np.ndarray:
    """ALiBi's bias [1,N,T,S] from slopes [N]; -infinity for keys after the query."""
    distance = np.arange(case.keys) - np.arange(case.T)[:, None]
    bias = -slopes[:, None, None] * np.abs(distance).astype(slopes.dtype)
    bias[:, distance > 0] = -np.inf
    return bias[None]


def padded(case: Case, arrays: dict[str, np.ndarray]) -> tuple[Case, dict[str, np.ndarray]]:
    """Converts packed sequences to a batch that is padded to the longest sequence, with a key mask."""
    longest, count = max(case.lengths), len(case.lengths)
    wide = {}
    for key, array in arrays.items():
        wide[key] = np.zeros((count, array.shape[-3], longest, array.shape[-1]), array.dtype)
        for i, (first, length) in enumerate(_packed_rows(case)):
            wide[key][i, :, :length] = array[0, :, first : first + length]
    wide["attend"] = (np.arange(longest) < np.array(case.lengths)[:, None])[:, None, None, :]
    return dataclasses.replace(case, leading=(count,), T=longest, lengths=(), mask="keys"), wide


def packed(case: Case, out: np.ndarray) -> np.ndarray:
    """Converts a padded output to packed sequences [1,N,T,V]: the rows of the sequences one after the other."""
    return np.concatenate([out[i, :, :length] for i, (_, length) in enumerate(_packed_rows(case))], 1)[None]


def _packed_rows(case: Case) -> list[tuple[int, int]]:
    return [(sum(case.lengths[:i]), length) for i, length in enumerate(case.lengths)]


def relative_index(queries: int, keys: int) -> np.ndarray:
    """For each pair [T,S] the place of its bias in the table, for peers that gather the bias from the table."""
    return queries - 1 + np.arange(keys) - np.arange(queries)[:, None]
