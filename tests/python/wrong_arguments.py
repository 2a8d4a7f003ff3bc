"""A table of every public function, with valid arguments, and with invalid values of each argument."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import polyhead

Q, K, V = (np.linspace(-1, 1, 2 * 3 * extent * 4, dtype=np.float32).reshape(2, 3, extent, 4) for extent in (5, 7, 7))
OUT, LSE = polyhead.sdpa(Q, K, V, return_lse=True)
X = np.linspace(-1, 1, 2 * 5 * 8, dtype=np.float32).reshape(2, 5, 8)
LAYER = polyhead.MultiHeadAttention(8, 2)


class Hostile:
    """An object that raises an exception at every use of it."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("hostile")

    __index__ = __float__ = __int__ = __bool__ = __len__ = __getitem__ = __iter__ = __fspath__ = __dlpack__ = __dlpack_device__ = _refuse
    __str__ = __repr__ = _refuse


NOT_ARRAYS = [3, 1.5, "x", [1.0, 2.0], {}, object(), Hostile(), True, np.float32]
NOT_NUMBERS = ["1", [], {}, object(), Hostile(), 1j, None, np.zeros(3), True]
NOT_INTS = [1.5, "1", [], object(), Hostile(), True, np.float64(1)]
NOT_WORDS = [3, None, b"zero", [], object(), Hostile(), True]
UNORDERED = [{3, 1}, frozenset({3, 1}), {3: 1, 1: 0}]
NOT_CALLABLE = [3, "x", [], True]
NOT_FLAGS = [0, 1, None, "yes", [], np.zeros(2), Hostile()]
BIG = 2**70


def shaped(*extents: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(extents, dtype)


# {argument: (values of a wrong type, which must raise TypeError, and wrong values, which must raise ValueError)}. Both errors must name the argument.
Wrong = dict[str, tuple[list[Any], list[Any]]]

MASKS: Wrong = {
    "attend": (NOT_ARRAYS, [shaped(5, 7), shaped(5, 6, dtype=bool), shaped(9, 2, 3, 5, 7, dtype=bool)]),
    "block": (NOT_ARRAYS, [shaped(5, 7), shaped(4, 7, dtype=bool)]),
    "causal": ([True, False, 1.5, [], object(), Hostile()], ["left", "", "\ud800", BIG]),
    "window": ([3, "ab", (1,), (1, 2, 3), {}, object(), Hostile(), (1.5, 2), ("a", None), (True, 1)], [(-1, 0), (0, -2), (BIG, 1), (None, None)]),
    "attend_keys": (NOT_ARRAYS, [shaped(2, 7), shaped(2, 6, dtype=bool), shaped(3, 7, dtype=bool)]),
    "block_keys": (NOT_ARRAYS, [shaped(7), shaped(2, 3, 5, 7, dtype=bool)]),
    "query_offsets": (NOT_ARRAYS, [shaped(2), np.array([0, 4]), np.array([1, 5]), np.array([0, 3, 2, 5]), np.array([0, 5])]),  # the last value is wrong because key_offsets is missing
    "key_offsets": (NOT_ARRAYS, [shaped(2), np.array([0, 7])]),  # wrong because query_offsets is missing
    # The last value is wrong because no rule has a diagonal.
    "diagonal_offsets": (NOT_ARRAYS, [shaped(2), np.array([1, 2, 3]), np.array([[1, 2]]), np.array([1, 2])]),
    "blocks": (NOT_ARRAYS, [shaped(1, 1), np.array([[1]]), np.array([[-2]]), np.array([[0], [0]]), np.array([0]), shaped(2, 2, 1, 1, dtype=int)]),
    "block_size": ([1.5, "ab", [], {}, object(), Hostile(), True, (1,), (1, 2, 3), (1.5, 2), (True, 1)], [0, -1, (0, 1), (1, -3), BIG, 64, (16, 64)]),  # the last two values are wrong because blocks is missing
    "key_starts": (NOT_ARRAYS, [shaped(2), np.array([-1, 3]), np.array([1, 2, 3]), shaped(2, 4, dtype=int)]),
    "key_lengths": (NOT_ARRAYS, [shaped(2), np.array([1, 8]), np.array([-1, 3]), np.array([1, 2, 3]), shaped(2, 4, dtype=int)]),
}
SHARED: Wrong = MASKS | {
    "bias": (NOT_ARRAYS, [shaped(5, 6), shaped(5, 7, dtype=float), shaped(5, 7, dtype=int), shaped(1, 1, 1, 1, 1, 5, 7)]),
    "sink": (NOT_ARRAYS, [shaped(2), shaped(1), shaped(3, 4), shaped(3, dtype=float), shaped(3, dtype=int)]),
    "relative_bias": (NOT_ARRAYS, [polyhead.RelativeBias(), polyhead.RelativeBias(slopes=shaped(2))]),
    "scale": ([x for x in NOT_NUMBERS if x is not None], [10**400, float("nan"), float("inf")]),
    "softcap": (NOT_NUMBERS, [-1.0, float("nan"), float("inf"), 10**400]),
    "empty_rows": (NOT_WORDS, ["", "nan", "\ud800", "Zero"]),
    "precision": (NOT_WORDS, ["", "nan", "\ud800", "Exact"]),
    "backend": ([x for x in NOT_WORDS if x is not None], ["", "cuda", "\ud800"]),
    "num_threads": (NOT_INTS, [0, -1, BIG, 2**31]),
}
DROPOUT: Wrong = {
    "dropout": (NOT_NUMBERS, [-0.1, 1.1, float("nan"), float("inf"), 0.5]),  # 0.5 is wrong because seed is missing
    "seed": (NOT_INTS, [-1, BIG]),
    "dropout_keep": (NOT_ARRAYS, [shaped(5, 7), shaped(5, 6, dtype=bool)]),
}


def tensor(*wrong_shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    return [*NOT_ARRAYS, None], [*(shaped(*s) for s in wrong_shapes), shaped(dtype=np.float32)]


def jax_calls(qkv: dict[str, Any], forward: Wrong) -> dict[str, tuple[Callable[..., Any], dict[str, Any], Wrong]]:
    """Returns the table for polyhead.jax; empty if JAX is not installed. In these tests JAX's arrays have no float64."""
    if importlib.util.find_spec("jax") is None:
        return {}
    from polyhead.jax import attention, attention_fn, dot_product_attention

    # For wrong values in an array, XLA replaces polyhead's exception by its own with the same message, so `blocks` has wrong shapes only.
    forward = forward | {"blocks": (NOT_ARRAYS, [shaped(1, 1), np.array([[0], [0]]), np.array([0])])}

    flags: Wrong = {name: (NOT_FLAGS, []) for name in ("return_lse", "return_attention_weights")}
    words: Wrong = {"layout": ([], [*NOT_WORDS[:2], "BTNH", ""])}
    seed: Wrong = {"seed": (NOT_INTS, [-1, BIG])}
    theirs = dict(zip(("query", "key", "value"), (np.swapaxes(x, 1, 2) for x in qkv.values())))
    arrays: Wrong = {name: (NOT_ARRAYS, [shaped(2, 5, 3), shaped(2, 3, 7, 5), shaped(dtype=np.float32)]) for name in theirs}
    pairs: Wrong = {"bias": (NOT_ARRAYS, [shaped(5, 6), shaped(5, 7, dtype=np.int32)]), "mask": (NOT_ARRAYS, [shaped(5, 6, dtype=bool)])}
    not_none: tuple[list[Any], list[Any]] = ([], [3, "x", np.einsum])
    return {
        "jax.attention": (attention, qkv, forward | flags | words | seed | {"score_fn": (NOT_CALLABLE, [])}),
        "jax.dot_product_attention": (
            dot_product_attention,
            theirs,
            arrays
            | pairs
            | {"scale": SHARED["scale"], "is_causal": (NOT_FLAGS, []), "return_residual": (NOT_FLAGS, []), "implementation": ([], ["xla", "cudnn", 3])}
            | {name: (NOT_ARRAYS, [shaped(2), np.array([1, 2, 3])]) for name in ("query_seq_lengths", "key_value_seq_lengths")}
            | {"precision": SHARED["precision"]}
            | {"local_window_size": ([1.5, "ab", (1,), object(), (True, 1)], [-1, (0, -2)])},
        ),
        "jax.attention_fn": (
            attention_fn,
            theirs,
            arrays
            | pairs
            | {"dropout_rate": ([x for x in NOT_NUMBERS if x is not None], [1.1, float("nan"), 0.5]), "dropout_rng": ([], [])}  # 0.5 is wrong because dropout_rng is missing
            | {name: (NOT_FLAGS, []) for name in ("broadcast_dropout", "deterministic", "is_causal", "force_fp32_for_softmax")}
            | {"dtype": ([3, [], object(), "x"], ["int32", "float64"]), "precision": ([], ["lowest", 3]), "module": ([3, "x", object()], [])}
            | {name: not_none for name in ("einsum_dot_general", "qk_attn_weights_einsum", "attn_weights_value_einsum")},
        ),
    }


# Returns {name: (function, valid arguments, invalid values of each argument)}.
def calls(folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any], Wrong]]:
    qkv = {"q": Q, "k": K, "v": V}
    wrong_qkv: Wrong = {
        "q": tensor((2, 3, 5, 3), (2, 4, 5, 4), (3, 3, 5, 4), (5, 4), (2, 3, 5, 4, 1)),
        "k": tensor((2, 3, 7, 5), (2, 2, 7, 4), (1, 3, 7, 4), (7, 4)),
        "v": tensor((2, 3, 6, 4), (2, 2, 7, 4), (1, 3, 7, 4)),
    }
    out_like: tuple[list[Any], list[Any]] = (NOT_ARRAYS, [shaped(2, 3, 5, 5), shaped(2, 3, 5, 4, dtype=float), np.broadcast_to(np.float32(0), (2, 3, 5, 4)), Q])
    lse_like = tensor((2, 3, 4), (2, 3, 5, 1))
    scale_of_floats: tuple[list[Any], list[Any]] = (NOT_ARRAYS, [shaped(2, 3, 7)])
    forward = wrong_qkv | SHARED | DROPOUT | {"k_scale": scale_of_floats, "v_scale": scale_of_floats}
    map_qk: Wrong = {"q": tensor((2, 3, 5, 3), (2, 4, 5, 4)), "k": tensor((2, 3, 7, 5), (2, 2, 7, 4))}
    backward: Wrong = {"out": tensor((2, 3, 5, 5)), "lse": lse_like, "d_out": tensor((2, 3, 5, 5), (2, 3, 4, 4))}
    tangents: tuple[list[Any], list[Any]] = ([*NOT_ARRAYS, None, Q, (Q, K, V)], [polyhead.Tangents(q=K)])
    # Tangents of bias, sink and relative_bias are wrong because these inputs are missing.
    wrong_tangents: Wrong = {name: (NOT_ARRAYS, [shaped(*x.shape[:-1], 3), shaped(*x.shape, dtype=float)]) for name, x in qkv.items()}
    wrong_tangents |= {name: (NOT_ARRAYS, [shaped(3)]) for name in ("bias", "sink", "relative_bias")}
    map_qk["k_scale"] = scale_of_floats
    progress: Wrong = {"progress": (NOT_CALLABLE, [])}
    dense: Wrong = {"dropout": ([], []), "seed": DROPOUT["seed"], "dropout_keep": DROPOUT["dropout_keep"]}
    widths = {"query_width": 8, "heads": 2}
    wrong_width = (NOT_INTS, [0, -1, BIG])
    wrong_config: Wrong = {name: wrong_width for name in ("query_width", "key_width", "value_width", "head_width", "value_head_width", "output_width")}
    wrong_config |= {name: (NOT_FLAGS[:2] + NOT_FLAGS[3:], []) for name in ("bias", "output_bias", "output", "gate", "add_bias_kv", "add_zero_attn", "sink", "qk_norm")}
    wrong_config |= {"heads": (NOT_INTS, [0, -1, BIG, 3]), "kv_heads": (NOT_INTS, [0, -1, BIG, 5]), "axis": (NOT_INTS, [BIG, 17, -1])}
    wrong_config |= {"dropout": ([x for x in NOT_NUMBERS if x is not None], [-0.1, 1.1, float("nan")]), "seed": (NOT_INTS, [-1, BIG])}
    wrong_config |= {"scale": SHARED["scale"], "softcap": ([x for x in NOT_NUMBERS if x is not None], [-1.0, float("nan")])}
    wrong_config |= {name: ([x for x in NOT_WORDS if x is not None], ["", "x", "\ud800"]) for name in ("global_query", "empty_rows", "precision", "dtype")}
    wrong_config["dtype"][1].append("int64")
    _, saved = LAYER.forward(X, seed=0)
    layer_masks: Wrong = {name: MASKS[name] for name in ("causal", "window", "block_size")}
    layer_masks |= {"blocks": (NOT_ARRAYS, [shaped(1, 1), np.array([[1]]), np.array([[0], [0]])])}
    layer_masks |= {name: (NOT_ARRAYS, [shaped(5, 5), shaped(5, 4, dtype=bool)]) for name in ("attend", "block")}
    layer_masks |= {name: (NOT_ARRAYS, [shaped(2, 5), shaped(2, 4, dtype=bool)]) for name in ("attend_keys", "block_keys")}
    layer_masks |= {"query_offsets": (NOT_ARRAYS, [shaped(2), np.array([0, 4])]), "key_offsets": (NOT_ARRAYS, [shaped(2), np.array([0, 5])])}
    layer_masks |= {"diagonal_offsets": MASKS["diagonal_offsets"]}
    layer_masks |= {"key_starts": (NOT_ARRAYS, [shaped(2), np.array([1, -9]), np.array([1, 2, 3])])}
    layer_masks |= {"key_lengths": (NOT_ARRAYS, [shaped(2), np.array([1, 9]), np.array([1, 2, 3])]), "bias": (NOT_ARRAYS, [shaped(5, 4), shaped(3, 5, 5)])}
    layer_masks |= {"sink": (NOT_ARRAYS, [shaped(3), shaped(2, dtype=float)]), "relative_bias": (NOT_ARRAYS, [polyhead.RelativeBias(slopes=shaped(3))])}
    layer_masks |= {"backend": SHARED["backend"], "num_threads": SHARED["num_threads"], "seed": DROPOUT["seed"], "training": (NOT_FLAGS, [])}
    layer_masks |= {name: (NOT_ARRAYS, [shaped(2, 2, 5, 4), shaped(2, 2, 5, 4, dtype=float)]) for name in ("projected_key", "projected_value")}
    layer_masks |= {"rotary": (NOT_ARRAYS, []), "cache": (NOT_ARRAYS, [polyhead.KeyValueCache(2, 2, 5, 4)])}  # the last value is wrong because forward() refuses a cache
    layer_masks |= {"new_tokens": (NOT_ARRAYS, [np.array([1, 2])])}  # wrong because cache is missing
    layer_masks |= {"mask_like_input": ([x for x in NOT_FLAGS if x is not None], [])}
    cache_sizes = {"sequences": 2, "kv_heads": 2, "capacity": 4, "head_width": 3}
    number: tuple[list[Any], list[Any]] = (NOT_NUMBERS, [-1.0, float("nan"), float("inf"), 10**400])
    layer_masks |= {name: (NOT_ARRAYS, [shaped(2, 2, 5)]) for name in ("projected_key_scale", "projected_value_scale")}
    table: tuple[list[Any], list[Any]] = (NOT_ARRAYS, [shaped(5, 4), shaped(1, 2), shaped(4, 2), shaped(2), shaped(5, 2, dtype=int)])

    def rotated(cos: Any, sin: Any, key_cos: Any = None, key_sin: Any = None, order: Any = "halves", width: Any = None) -> Any:
        return LAYER(X, rotary=polyhead.Rotary(cos, sin, key_cos, key_sin, order, width))

    def relative(slopes: Any = None, table: Any = None, bidirectional: Any = True, max_distance: Any = 128, diagonal: Any = None) -> Any:
        return polyhead.sdpa(Q, K, V, relative_bias=polyhead.RelativeBias(slopes, table, bidirectional, max_distance, diagonal))

    def moved(q: Any = None, k: Any = None, v: Any = None, bias: Any = None, sink: Any = None, relative_bias: Any = None) -> Any:
        return polyhead.sdpa_jvp(Q, K, V, OUT, LSE, polyhead.Tangents(q, k, v, bias, sink, relative_bias))

    state = LAYER.state()
    not_paths: tuple[list[Any], list[Any]] = ([3, 1.5, [], object(), Hostile(), None], ["a\0b.npz"])
    names: tuple[list[Any], list[Any]] = (NOT_WORDS, ["\ud800", "gpt-5"])
    not_names: tuple[list[Any], list[Any]] = ([3, None, "axis", b"axis", object(), Hostile(), [3], [None]], [["scale"], ["\ud800"], {"axes": 1}])
    weights = shaped(1, 2, 3, 3) / np.float32(3)

    def view_with(group: Callable[..., object], name: str) -> Callable[..., polyhead.Page]:
        """Returns polyhead.view as a function whose arguments are the fields of a group."""

        def call(**fields: Any) -> polyhead.Page:
            return polyhead.view(weights, **{name: group(**fields)})

        call.__signature__ = inspect.signature(group)  # type: ignore[attr-defined]
        return call

    return {
        "sdpa": (
            polyhead.sdpa,
            qkv,
            forward
            | {"out": out_like, "return_lse": (NOT_FLAGS, []), "return_attention_weights": (NOT_FLAGS, [])}
            | {"attention_weights": (NOT_ARRAYS, [shaped(2, 3, 5, 8), shaped(2, 3, 5, 7, dtype=int), OUT])},
        ),
        "sdpa_backward": (
            polyhead.sdpa_backward,
            qkv | {"out": OUT, "lse": LSE, "d_out": OUT},
            wrong_qkv | SHARED | DROPOUT | backward | {"gradients": ([3, object(), None, Hostile()], ["q", ["q", "x"], [3], ("lse",)]), "d_bias": (NOT_ARRAYS, [shaped(5, 7)])},
        ),
        "sdpa_jvp": (
            polyhead.sdpa_jvp,
            qkv | {"out": OUT, "lse": LSE, "tangents": polyhead.Tangents(**qkv)},
            wrong_qkv | SHARED | DROPOUT | {name: backward[name] for name in ("out", "lse")} | {"tangents": tangents, "return_lse": (NOT_FLAGS, [])},
        ),
        "sdpa_backward_backward": (
            polyhead.sdpa_backward_backward,
            qkv | {"out": OUT, "lse": LSE, "d_out": OUT, "d_gradients": polyhead.Tangents(**qkv)},
            wrong_qkv | SHARED | DROPOUT | backward | {"d_gradients": tangents}
            | {"gradients": ([3, object(), None, Hostile()], ["q", ["q", "x"], [3], ("lse",)])},
        ),
        "maps": (
            polyhead.maps,
            {"q": Q, "k": K},
            map_qk
            | SHARED
            | dense
            | {
                "rows": ([3, "ab", object(), Hostile(), [1.5], [None], ["0"], *UNORDERED], [[5], [-1], [BIG]]),
                "keys": ([3, "ab", object(), Hostile(), [1.5], [None], ["0"], *UNORDERED], [[7], [-1], [BIG]]),
                "progress": (NOT_CALLABLE, []),
                "top_k": (NOT_INTS, [-1, 8, BIG]),
                "value": (NOT_WORDS, ["", "p", "\ud800"]),
                "out": (NOT_ARRAYS, [shaped(2, 3, 5, 8), shaped(2, 3, 5, 7, dtype=int)]),
                "value_norms": (NOT_ARRAYS, [shaped(2, 3, 8), shaped(2, 7), shaped(2, 3, 7, dtype=int)]),
            },
        ),
        "value_norms": (
            polyhead.value_norms,
            {"v": shaped(2, 3, 7, 4), "output_weight": shaped(5, 24)},
            {
                "v": ([*NOT_ARRAYS, None], [shaped(7), shaped(7, 4), shaped(2, 3, 7, 4, dtype=int), shaped(2, 5, 7, 4)]),
                "output_weight": (NOT_ARRAYS, [shaped(5, 25), shaped(24), shaped(5, 16), shaped(5, 24, dtype=int)]),
                "num_threads": SHARED["num_threads"],
            },
        ),
        "head_statistics": (polyhead.head_statistics, {"q": Q, "k": K}, map_qk | SHARED | dense | progress),
        "key_sums": (polyhead.key_sums, {"q": Q, "k": K}, map_qk | SHARED | dense | progress),
        "head_divergence": (polyhead.head_divergence, {"q": Q, "k": K}, map_qk | SHARED | dense | progress),
        "key_mass": (
            polyhead.key_mass,
            {"q": Q, "k": K, "key_sets": shaped(2, 7, dtype=bool)},
            map_qk | SHARED | dense | progress | {"key_sets": ([*NOT_ARRAYS, None], [shaped(2, 7), shaped(6, dtype=bool), shaped(dtype=bool), shaped(2, 6, dtype=bool), shaped(3, 2, 7, dtype=bool)])},
        ),
        "map_windows": (
            polyhead.map_windows,
            {"q": Q, "k": K, "first": -1, "last": 1},
            map_qk | SHARED | dense | progress | {"first": ([*NOT_INTS, None], [-13, BIG]), "last": ([*NOT_INTS, None], [-2, 13, BIG])},
        ),
        "rollout": (
            polyhead.rollout,
            {"layers": [(Q, Q), (Q, Q)]},
            SHARED
            | dense
            | progress
            | {"query_offsets": (NOT_ARRAYS, [np.array([1, 5]), np.array([0, 4]), np.array([0.0, 5.0])])}  # without key_offsets, only [0, 5] is valid, because T = S
            | {"layers": ([3, None, Q, [3], [Q], [(Q,)], "ab", object()], [[], [(shaped(5, 4), Q)]])}
            | {"rows": ([3, "ab", object(), Hostile(), [1.5], *UNORDERED], [[5], [-1]]), "residual": ([*NOT_NUMBERS], [-0.1, 1.1, float("nan")])},
        ),
        "pooled_map": (
            polyhead.pooled_map,
            {"q": Q, "k": K, "height": 2, "width": 2},
            map_qk | SHARED | dense | progress | {"pooling": (NOT_WORDS, ["", "max", "\ud800"])} | {"height": ([*NOT_INTS, None], [-1, 6, BIG]), "width": ([*NOT_INTS, None], [-1, 8, BIG])},
        ),
        "explain": (polyhead.explain, qkv, forward),
        **jax_calls(qkv, forward),
        "quantize_rows": (
            polyhead.quantize_rows,
            {"x": K},
            {
                "x": ([*NOT_ARRAYS, None], [shaped(2, 4, dtype=np.int32), shaped(dtype=np.float32)]),
                "out": (NOT_ARRAYS, [shaped(2, 3, 7, 4), shaped(2, 3, 4, dtype=np.int8)]),
                "scale": (NOT_ARRAYS, [shaped(2, 3, 7, 1), shaped(2, 3, 7, dtype=float)]),
                "num_threads": SHARED["num_threads"],
            },
        ),
        "dropout_keep_bits": (
            polyhead.dropout_keep_bits,
            {"dropout": 0.5, "seed": 1, "keep": shaped(1, 2, 3, 4, dtype=bool)},
            {
                "dropout": (NOT_NUMBERS, [-0.1, 1.1, float("nan")]),
                "seed": ([*NOT_INTS, None], [-1, BIG]),
                "keep": ([*NOT_ARRAYS, None], [shaped(1, 2, 3, 4), shaped(2, dtype=bool), np.broadcast_to(np.True_, (1, 2, 3, 4))]),
            },
        ),
        "set_num_threads": (polyhead.set_num_threads, {"count": polyhead.num_threads()}, {"count": ([*NOT_INTS, None], [0, -1, BIG])}),
        "set_score_compiler": (polyhead.set_score_compiler, {"wanted": True}, {"wanted": ([*NOT_FLAGS, None], [])}),
        "MultiHeadAttention": (polyhead.MultiHeadAttention, widths, wrong_config),
        "forward": (
            LAYER.forward,
            {"query": X},
            layer_masks
            | {
                "query": ([*NOT_ARRAYS, None], [shaped(2, 5, 7), shaped(8), shaped(2, 5, 8, dtype=float)]),
                "key": (NOT_ARRAYS, [shaped(2, 5, 7), shaped(3, 5, 8), shaped(2, 5, 8, dtype=float)]),
                "value": (NOT_ARRAYS, [shaped(2, 5, 7), shaped(2, 4, 8)]),
                "dropout_keep": (NOT_ARRAYS, []),
                "out": (NOT_ARRAYS, [shaped(2, 5, 7), shaped(2, 5, 8, dtype=float)]),
            },
        ),
        "Rotary": (
            rotated,
            {"cos": shaped(5, 2), "sin": shaped(5, 2)},
            {"cos": ([*table[0], None], table[1]), "sin": ([*table[0], None], table[1]), "key_cos": table, "key_sin": table}
            | {"order": (NOT_WORDS, ["", "interleaved", "\ud800"]), "width": (NOT_INTS, [0, -2, 3, 6, BIG])},
        ),
        "RelativeBias": (
            relative,
            {"table": shaped(3, 8)},
            {"slopes": (NOT_ARRAYS, [shaped(3)]), "table": (NOT_ARRAYS, [shaped(8, 3), shaped(3, 7), shaped(3, 8, dtype=float)])}
            | {"bidirectional": (NOT_FLAGS, []), "max_distance": ([*NOT_INTS, None], [0, 2, BIG]), "diagonal": (MASKS["causal"][0], MASKS["causal"][1])},
        ),
        "Tangents": (moved, qkv, wrong_tangents),
        "alibi_slopes": (polyhead.alibi_slopes, {"heads": 2}, {"heads": ([*NOT_INTS, None], [-1, BIG])}),
        "local_blocks": (polyhead.local_blocks, {"length": 70}, {"length": ([*NOT_INTS, None], [-1, BIG]), "queries": ([*NOT_INTS, None], [0, 129, BIG]), "keys": ([*NOT_INTS, None], [0, 127, 30, BIG])}),
        "relative_bucket": (
            polyhead.relative_bucket,
            {"distance": 3, "buckets": 8},
            {"distance": ([*NOT_INTS, None], [BIG]), "buckets": ([*NOT_INTS, None], [0, 7, BIG])}
            | {"bidirectional": (NOT_FLAGS, []), "max_distance": ([*NOT_INTS, None], [0, 2, BIG])},
        ),
        "KeyValueCache": (
            polyhead.KeyValueCache,
            cache_sizes,
            {name: ([*NOT_INTS, None], [-1, BIG]) for name in cache_sizes}
            | {"value_head_width": (NOT_INTS, [0, -1, BIG]), "dtype": ([x for x in NOT_WORDS if x is not None], ["", "x", "int16", "\ud800"])},
        ),
        "KeyValueCache.on": (
            polyhead.KeyValueCache.on,
            {"keys": shaped(2, 2, 4, 3), "values": shaped(2, 2, 4, 3)},
            {
                "keys": ([*NOT_ARRAYS, None], [shaped(2, 2, 4), shaped(2, 2, 4, 3, dtype=int), np.broadcast_to(np.float32(0), (2, 2, 4, 3))]),
                "values": ([*NOT_ARRAYS, None], [shaped(2, 2, 5, 3), shaped(2, 2, 4, 3, dtype=float)]),
                "lengths": ([3, "ab", object(), Hostile(), [1.5]], [[1], [1, 5], [-1, 1]]),
                "key_scales": (NOT_ARRAYS, [shaped(2, 2, 4)]),  # wrong because the dtype is not int8
                "value_scales": (NOT_ARRAYS, [shaped(2, 2, 4)]),
            },
        ),
        "KeyValueCache.append": (
            lambda k, v, new_tokens=None, num_threads=None: polyhead.KeyValueCache(2, 2, 4, 3).append(k, v, new_tokens, num_threads=num_threads),
            {"k": shaped(2, 2, 1, 3), "v": shaped(2, 2, 1, 3)},
            {"k": tensor((2, 2, 3), (2, 3, 1, 3), (2, 2, 1, 4)), "v": tensor((2, 2, 2, 3), (2, 2, 1, 4)), "num_threads": SHARED["num_threads"]}
            | {"new_tokens": (NOT_ARRAYS, [shaped(2), np.array([1, 2]), np.array([-1, 1]), np.array([1])])},
        ),
        "RotaryEmbedding": (
            polyhead.RotaryEmbedding,
            {"width": 4},
            {
                "width": ([*NOT_INTS, None], [0, -2, 3, BIG]),
                "order": (NOT_WORDS, ["", "interleaved", "\ud800"]),
                "scaling": ([x for x in NOT_WORDS if x is not None], ["", "dynamic", "\ud800"]),
                "attention_factor": ([x for x in NOT_NUMBERS if x is not None], [-1.0, 0.0, 2.0, float("nan")]),  # 2 is wrong because scaling is not yarn
                "truncate": (NOT_FLAGS, [False]),  # wrong because scaling is not yarn
                "factors": ([3, 1.5, ["x"], object()], [[1.0], [1.0, 2.0]]),  # wrong because scaling is not longrope
                "proportion": (number[0], [-0.5, 0.5, 2.0, float("nan")]),  # 0.5 is wrong because scaling is not proportional
                "factor": (number[0], [*number[1], 0.5, 2.0]),  # 2 is wrong because there is no scaling
            }
            | {"base": number}
            | {name: (number[0], [*number[1], 9.0]) for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")},  # as attention_factor
        ),
        "RotaryEmbedding.__call__": (
            polyhead.RotaryEmbedding(4),
            {"positions": np.arange(3)},
            {"positions": ([*NOT_ARRAYS, None], [shaped(3)]), "dtype": ([3, None, [], object()], ["", "float16", "\ud800"])},
        ),
        "backward": (
            saved.backward,
            {"d_out": X},
            {
                "d_out": ([*NOT_ARRAYS, None], [shaped(2, 5, 7), shaped(2, 5, 8, dtype=float)]),
                "inputs": (NOT_FLAGS, []),
                "parameters": (NOT_FLAGS, []),
                "d_bias": (NOT_ARRAYS, [shaped(5, 5)]),
                "num_threads": SHARED["num_threads"],
            },
        ),
        "Saved.maps": (saved.maps, {}, {"value": (NOT_WORDS, ["", "p", "\ud800"]), "num_threads": SHARED["num_threads"]}),
        "state": (LAYER.state, {}, {"layout": names, "prefix": (NOT_WORDS, ["\ud800"]), "without": not_names}),
        "save": (
            polyhead.save,
            {"layer": LAYER, "path": folder / "layer.npz"},
            {"layer": ([3, None, object(), "x", state], []), "path": (not_paths[0], [*not_paths[1], folder / "layer.txt"]), "layout": names, "prefix": (NOT_WORDS, ["\ud800"]), "without": not_names},
        ),
        "load": (
            polyhead.load,
            {"source": state, "heads": 2},
            {
                "source": (not_paths[0], [*not_paths[1], {}, {"x": X}]),
                "layout": ([x for x in NOT_WORDS if x is not None], ["\ud800", "gpt-5"]),
                "prefix": ([x for x in NOT_WORDS if x is not None], ["\ud800", "encoder"]),
                "heads": (NOT_INTS, [0, -1, 3, BIG]),
                "axis": (NOT_INTS, [BIG, 17]),
                "dropout": ([x for x in NOT_NUMBERS if x is not None], [-1.0, 2.0]),
                "softcap": ([x for x in NOT_NUMBERS if x is not None], [-1.0]),
                "precision": ([x for x in NOT_WORDS if x is not None], ["", "x", "\ud800"]),
                "add_zero_attn": (NOT_FLAGS[:2] + NOT_FLAGS[3:], []),
                "masked_mean": (NOT_FLAGS, []),
                "empty_rows": ([x for x in NOT_WORDS if x is not None], ["", "x", "\ud800"]),
            },
        ),
        "view": (
            polyhead.view,
            {"source": weights},
            {
                "source": ([3, None, object(), Hostile()], [shaped(3), shaped(1, 2, 3, 3, dtype=int), -weights, {"foo": weights}]),
                "text": ([3, object(), Hostile()], [["a", "b"], "\ud800"]),
                "tokens": ([3, "abc", object(), [1, 2, 3], Hostile()], [["a"], ["a", "b", "\ud800"]]),
                "keys": ([3, "abc", object(), [1, 2, 3], Hostile()], [["a"]]),
                "image": ([], [shaped(2, 3)]),
                "patches": ([], [(1, 2)]),
                "title": ([3, object(), Hostile()], ["\ud800"]),
                "lang": ([3, object(), Hostile()], ["", "de", "\ud800"]),
                "texts": ([3, object(), Hostile(), "abc", [3]], [[], ["a", "b"], ["\ud800"]]),
                "weighting": ([3, object(), Hostile(), None], ["", "norms", "\ud800", "norm"]),
                "without": ([{(0, 0): "1"}, {(0, 0): True}], [3, "all", object(), Hostile(), shaped(2), [[1]], {0: 1.0}, {(0, 0, 0): 1.0}, {(0, 9): 1.0}, {(0, 0): float("inf")}]),
                **{group: ([3, None, (), {}, object(), Hostile()], []) for group in ("annotations", "computation", "size", "call")},
                "path": ([x for x in not_paths[0] if x is not None], not_paths[1]),
            },
        ),
        "Annotations": (
            view_with(polyhead.Annotations, "annotations"),
            {},
            {
                "special": ([3, object(), Hostile(), [0.5, 0, 0]], [[1], [2, 0, 0]]),
                "segments": ([3, "abc", object(), Hostile(), [0, "1", 1]], [[0], [0, -1, 0]]),
                "block_keys": ([3, "abc", object(), Hostile(), [0, None, 1]], [[True], [0, 0, 2]]),
                "axes": ([3, "ab", object(), Hostile(), [1, 2]], []),
                "links": ([3, "abc", object(), Hostile()], [[3], [(0, 1, 2)], [(0, "1")], [(0, 9)]]),
                "possible_links": ([], [[(0, 1)]]),
                "without_measure": ([], [("loss", "nats")]),
            },
        ),
        "Computation": (
            view_with(polyhead.Computation, "computation"),
            {},
            {
                **{name: ([], [shaped(2, 3)]) for name in ("q", "k", "v", "bias", "attend")},
                "gate": ([x for x in NOT_ARRAYS if x is not None], [shaped(2)]),
                "pair_bias": (NOT_ARRAYS, [shaped(2)]),
                "value_norms": ([], [shaped(2), shaped(7, 7, 7)]),
                "scale": ([], [0.5]),
                "causal": ([], ["top_left"]),
                "progress": ([], [print]),
            },
        ),
        "PageSize": (
            view_with(polyhead.PageSize, "size"),
            {},
            {
                "pooling": ([3, object(), Hostile()], ["", "median", "largest", "\ud800"]),
                "pooled_blocks": ([], [2]),
                "vector_megabytes": ([None, "4", object(), Hostile()], [-1, float("nan"), float("inf")]),
            },
        ),
        "ModelCall": (
            view_with(polyhead.ModelCall, "call"),
            {},
            {
                "pair": ([], ["x"]),
                "truncate": (NOT_FLAGS, []),
                "generate": (NOT_INTS, [-1, 3, BIG]),
            },
        ),
        "Capture.select": (polyhead.Capture().select, {"prefix": "encoder"}, {"prefix": (NOT_WORDS, [])}),
    } | ({} if importlib.util.find_spec("torch") is None else {
        "capture": (
            polyhead.capture,
            {},
            {
                "model": ([3, "x", object(), Hostile()], []),
                "keep": ([3, None, "maps", object(), Hostile()], [[], ["map"], [3], [Hostile()]]),
                "budget": ([*NOT_INTS, None], [-1, -BIG]),
                "top_k": ([*NOT_INTS, None], [0, -1]),
                "pooled": ([3, None, "ab", object(), Hostile(), (1.5, 2), (True, 1)], [(1,), (1, 2, 3), (0, 1), (1, -1)]),
            },
        ),
    })  # fmt: skip


TABLE = calls(Path(os.devnull).parent)
