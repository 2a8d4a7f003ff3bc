"""Tests ONNX export of polyhead.torch. Calls become Attention nodes, whose results in onnxruntime and in ONNX's reference evaluator are compared with the formula in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyhead
from conftest import SEED
from effort import QUICK
from polyhead.torch import GatedAttention, MultiheadAttention, attention, onnx_translations, scaled_dot_product_attention, triangle_attention
from test_torch_attention import drawn, formula, split

pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator  # noqa: E402

SETTINGS = {torch.float32: 32, torch.float64: 8, torch.float16: 8}
"""Numbers of random settings of `attention`, each with out, lse and attention weights. A quick run takes only the float32 settings that have an option, or a kind of value
of an option, that no earlier setting has."""


def chosen_seeds(dtype: torch.dtype) -> list[int]:
    every = range(100_000 * SEED, 100_000 * SEED + SETTINGS[dtype])
    if not QUICK:
        return list(every)
    if dtype != torch.float32:
        return list(every[:3])
    seen: set[str] = set()
    chosen = []
    for seed in every:
        _, given = drawn(seed, dtype)
        kinds = {f"{name} of {value.ndim} dimensions" if isinstance(value, Tensor) else f"{name} {value}" for name, value in given.items()}
        if kinds - seen:
            chosen.append(seed)
        seen |= kinds
    return chosen


# Errors relative to the largest magnitude.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 2e-2}


class Calls(nn.Module):
    """A model that makes several calls. They are exported together, because an export takes seconds."""

    def __init__(self, calls: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, tensors: list[dict[str, Tensor]]) -> list[Any]:
        return [call(**given) for call, given in zip(self.calls, tensors)]


def export(model: nn.Module, args: tuple[Any, ...], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), args, dynamo=True, opset_version=23, custom_translation_table=onnx_translations(), verbose=False, **options
        )
    assert program is not None
    onnx.checker.check_model(program.model_proto)
    return program.model_proto


def attention_nodes(model: Any) -> int:
    return sum(node.op_type == "Attention" and node.domain == "" for node in model.graph.node)


def flat(value: Any) -> list[Tensor]:
    return [x.detach() for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, Tensor)]


def run(model: Any, args: Any, evaluator: str) -> list[np.ndarray[Any, Any]]:
    # The inputs of the exported model are in the order of the arguments. Inputs that are not read are left out.
    feeds = {entry.name: x.numpy() for entry, x in zip(model.graph.input, flat(args), strict=True)}
    if evaluator == "reference":
        with np.errstate(invalid="ignore"):  # the evaluator computes NaN in rows without keys
            return ReferenceEvaluator(model).run(None, feeds)  # type: ignore[no-any-return]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)  # type: ignore[no-any-return]


def require_close(found: list[np.ndarray[Any, Any]], expected: list[Tensor], dtype: torch.dtype) -> float:
    """Checks the results and returns the largest error."""
    assert len(found) == len(expected)
    worst = 0.0
    for x, y in zip(found, expected):
        assert x.shape == tuple(y.shape)
        x, exact = x.astype(np.float64), y.double().numpy()
        assert np.array_equal(np.isinf(x), np.isinf(exact))
        x, exact = x[np.isfinite(exact)], exact[np.isfinite(exact)]
        assert not np.isnan(x).any()
        if x.size > 0:
            worst = max(worst, float(np.abs(x - exact).max()) / max(1e-3, float(np.abs(exact).max())))
    assert worst <= TOLERANCE[dtype]
    return worst


@pytest.mark.parametrize("dtype", SETTINGS, ids=str)
def test_every_option_is_exported(dtype: torch.dtype, summary: list[str]) -> None:
    calls, inputs, expected, ours = [], [], [], []
    seeds = chosen_seeds(dtype)
    for seed in seeds:
        tensors, given = drawn(seed, dtype)
        tensors = {name: x.detach() for name, x in tensors.items()}
        given = {name: x.detach() if isinstance(x, Tensor) else x for name, x in given.items()}
        named = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        rest = {name: x for name, x in given.items() if name not in named}

        def call(q: Tensor, k: Tensor, v: Tensor, rest: dict[str, Any] = rest, **named: Tensor) -> Any:
            return attention(q, k, v, return_lse=True, return_attention_weights=True, **split(rest | named)[0])

        calls.append(call)
        inputs.append(tensors | named)
        wide = {name: x.double() if x.is_floating_point() else x for name, x in (tensors | named).items()}
        result = formula(*(wide.pop(name) for name in "qkv"), rest | wide)
        expected += [result["out"], torch.where(result["empty"], -torch.inf, result["lse"]), result["p"]]
        ours += flat(call(**inputs[-1]))
    # The time of the optimizer grows with the square of the number of nodes, so only tests with fewer nodes use it.
    model = export(Calls(calls), (inputs,), optimize=False)
    # Some runtimes apply the softcap before the mask and some after it, so a node may not have both.
    for node in model.graph.node:
        if node.op_type == "Attention" and any(attribute.name == "softcap" and attribute.f > 0 for attribute in node.attribute):
            assert len(node.input) < 4 or not node.input[3]
    # Each call exports one node for out, one for lse and one for the attention weights.
    assert attention_nodes(model) == 3 * len(seeds)
    errors = {}
    for evaluator in ("onnxruntime", "reference"):
        found = run(model, inputs, evaluator)
        errors[evaluator] = require_close(found, expected, dtype)
        require_close(found, ours, dtype)
    error = ", ".join(f"{name} {worst:.1e}" for name, worst in errors.items())
    summary.append(f"ONNX export, {str(dtype).removeprefix('torch.')}: {len(seeds)} random settings of attention, largest error {error}")


def test_scales_that_the_node_does_not_take_and_options_without_effect() -> None:
    torch.manual_seed(SEED)
    settings: list[dict[str, Any]] = [
        {"scale": -0.5, "softcap": 2.0, "causal": "bottom_right"},
        {"scale": 0.0, "softcap": 2.0, "causal": "bottom_right"},
        {"empty_rows": "uniform"},
        {"empty_rows": "uniform", "causal": "top_left"},
        {"precision": "exact"},
        {"relative_bias": polyhead.RelativeBias(slopes=torch.tensor([0.5, 0.25, 0.125, 1.0]))},
    ]
    given = [{"q": torch.randn(2, 4, 3, 8), "k": torch.randn(2, 2, 5, 8)} for _ in settings]
    calls = [lambda q, k, options=options: attention(q, k, k, **options) for options in settings]
    expected = [call(**tensors) for call, tensors in zip(calls, given)]
    model = export(Calls(calls), (given,))
    for evaluator in ("onnxruntime", "reference"):
        require_close(run(model, given, evaluator), expected, torch.float32)


def test_layers_and_functions_are_exported(summary: list[str]) -> None:
    torch.manual_seed(SEED)
    x, memory, pair = torch.randn(2, 3, 5, 16), torch.randn(2, 7, 12), torch.randn(2, 4, 5, 5)
    row = torch.randn(2, 5, 16)
    keep = torch.rand(2, 3, 5) < 0.7
    keep[0, 1] = False
    padding = torch.rand(2, 7) < 0.3
    padding[1] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    plain, cross = MultiheadAttention(16, 4, batch_first=True), MultiheadAttention(16, 4, kdim=12, vdim=12, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    first = MultiheadAttention(16, 2)
    gated = GatedAttention(16, 4, 4, gated=True)
    layers = nn.ModuleList(
        [
            gated,
            GatedAttention(16, 4, 4, axis=1, gated=True, empty_rows="zero"),
            GatedAttention(16, 4, 4, axis=1, empty_rows="unmasked"),
            GatedAttention(16, 4, 4, gated=True, is_global=True, query_mean="attended"),
            GatedAttention(16, 4, 4, is_global=True),
            plain,
            cross,
            first,
        ]
    )
    a, b, c, d, e, *_ = layers
    calls: list[tuple[Callable[..., Any], int, dict[str, Tensor]]] = [
        (a, 1, {"x": x, "bias": pair, "attend_keys": keep}),
        (b, 1, {"x": x, "attend_keys": keep.transpose(1, 2)}),
        (c, 1, {"x": x, "attend_keys": keep.transpose(1, 2), "bias": pair[:, :, :3, :3]}),
        (d, 1, {"x": x, "attend_keys": keep}),
        (e, 1, {"x": x}),
        (lambda x, keep: a(x, attend_keys=keep, return_attention_weights=True), 2, {"x": x, "keep": keep}),
        (lambda q, bias, mask: triangle_attention(q, q, q, bias, mask, 0.5), 1, {"q": x[None], "bias": torch.randn(1, 1, 3, 5, 5), "mask": keep[None, :, :1, None]}),
        (lambda x: plain(x, x, x, need_weights=False)[0], 1, {"x": row}),
        (lambda x, mask: plain(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0], 1, {"x": row, "mask": causal}),
        (lambda x, mask: plain(x, x, x, attn_mask=mask, average_attn_weights=False), 2, {"x": row, "mask": torch.randn(8, 5, 5)}),
        (lambda x, y, pad: cross(x, y, y, pad, need_weights=False)[0], 1, {"x": row, "y": memory, "pad": padding}),
        (lambda x, pad: first(x, x, x, pad), 2, {"x": row, "pad": torch.rand(5, 2) < 0.4}),
        (lambda x: first(x, x, x, need_weights=False)[0], 1, {"x": row[0]}),
        (lambda q: scaled_dot_product_attention(q, q, q, is_causal=True), 1, {"q": x}),
        (lambda q, k: scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3), 1, {"q": torch.randn(2, 4, 5, 8), "k": torch.randn(2, 2, 3, 8)}),
        (lambda q, m: scaled_dot_product_attention(q, q, q, attn_mask=m), 1, {"q": x[0, 0], "m": torch.tril(torch.ones(5, 5, dtype=torch.bool), -1)}),
        (lambda q: attention(q[None], q[None], q[None], causal="top_left", softcap=2.0), 1, {"q": x}),
    ]
    named = [given for _, _, given in calls]
    model = Calls([call for call, _, _ in calls])
    model.layers = layers
    with torch.no_grad():
        expected = flat(model.eval()(named))
    exported = export(model, (named,))
    nodes = sum(count for _, count, _ in calls)
    assert attention_nodes(exported) == nodes
    # A causal call without a mask becomes a node with is_causal = 1 and no mask input. A layer's attn_mask stays an input even with is_causal=True, because an export
    # cannot read its elements, and so cannot check that it is the causal mask.
    flags = [a.i for node in exported.graph.node if node.op_type == "Attention" for a in node.attribute if a.name == "is_causal"]
    assert sum(flags) == 2
    for evaluator in ("onnxruntime", "reference"):
        require_close(run(exported, named, evaluator), expected, torch.float32)
    summary.append(f"ONNX export: {len(calls)} calls of layers and functions, {nodes} nodes Attention")


def test_extents_may_be_dynamic() -> None:
    torch.manual_seed(SEED)
    slopes, table = polyhead.alibi_slopes(4), torch.randn(4, 8)
    layer = GatedAttention(16, 4, 4, gated=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mha = layer, MultiheadAttention(16, 4, batch_first=True)
            self.slopes = nn.Parameter(torch.as_tensor(slopes, dtype=torch.float32))

        def forward(self, q: Tensor, k: Tensor, lengths: Tensor, x: Tensor, keep: Tensor) -> Any:
            of_table = polyhead.RelativeBias(table=table, max_distance=6)
            return (
                attention(q, k, k, causal="bottom_right", window=(3, None), key_lengths=lengths, relative_bias=of_table, return_lse=True),
                attention(q, k, k, causal=k.size(-2) - q.size(-2) - 1, relative_bias=polyhead.RelativeBias(slopes=self.slopes)),
                attention(q, k, k, causal="top_left", key_starts=k.size(-2) - lengths),
                self.layer(x, attend_keys=keep),
                self.mha(x[:, 0], x[:, 0], x[:, 0], ~keep[:, 0]),
            )

    def inputs(batch: int, rows: int, queries: int, keys: int) -> tuple[Tensor, ...]:
        q, k = torch.randn(batch, rows, 4, queries, 8), torch.randn(batch, rows, 2, keys, 8)
        keep = torch.rand(batch, rows, keys) < 0.7
        keep[0, 0] = False
        return q, k, torch.randint(keys + 1, (batch, rows)), torch.randn(batch, rows, keys, 16), keep

    model = Model().eval()
    names = ({0: "b", 1: "r", 3: "t"}, {0: "b", 1: "r", 3: "s"}, {0: "b", 1: "r"}, {0: "b", 1: "r", 2: "s"}, {0: "b", 1: "r", 2: "s"})
    shapes = tuple({dim: torch.export.Dim(name) for dim, name in of.items()} for of in names)
    exported = export(model, inputs(2, 3, 5, 7), dynamic_shapes=shapes)
    assert attention_nodes(exported) == 7
    for extents in ((2, 3, 5, 7), (3, 2, 9, 4), (1, 4, 1, 11)):
        args = inputs(*extents)
        with torch.no_grad():
            expected = flat(model(*args))
        for evaluator in ("onnxruntime", "reference"):
            require_close(run(exported, args, evaluator), expected, torch.float32)


def test_int8_keys_are_exported() -> None:
    torch.manual_seed(SEED)
    q = torch.randn(2, 4, 3, 8)
    (k, k_scale), (v, v_scale) = ((torch.as_tensor(x) for x in polyhead.quantize_rows(np.random.default_rng(SEED + i).standard_normal((2, 2, 5, 8), np.float32))) for i in (0, 1))
    given = {"q": q, "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    exported = export(Calls([attention]), ([given],))
    assert attention_nodes(exported) == 1
    for evaluator in ("onnxruntime", "reference"):
        require_close(run(exported, given, evaluator), [attention(**given)], torch.float32)


def test_bfloat16_is_exported() -> None:
    """bfloat16 is tested with ONNX's reference evaluator only, because ONNX Runtime has no bfloat16 kernels for CPUs."""
    torch.manual_seed(SEED)

    def call(q: Tensor, mask: Tensor) -> Tensor:
        return attention(q.bfloat16(), q.bfloat16(), q.bfloat16(), bias=mask.bfloat16()).float()

    given = {"q": torch.randn(2, 4, 5, 8), "mask": torch.randn(5, 5)}
    exported = export(Calls([call]), ([given],))
    assert attention_nodes(exported) == 1
    require_close(run(exported, given, "reference"), [call(**given)], torch.bfloat16)


@pytest.mark.parametrize(
    ("given", "queries", "message"),
    [({"dropout": 0.25}, 3, "dropout is 0.25, and ONNX's Attention has none"), ({}, 0, r"q is \[1, 2, 0, 4\]; ONNX's Attention has no extents of 0"),
     ({"relative_bias": polyhead.RelativeBias(table=torch.zeros(2, 4), max_distance=2**31)}, 3, "max_distance is 2147483648")],
)
def test_calls_that_onnx_cannot_express_are_refused_by_name(given: dict[str, Any], queries: int, message: str) -> None:
    with pytest.raises(torch.onnx.OnnxExporterError, match=message):
        export(Calls([lambda q, k: attention(q, k, k, **given)]), ([{"q": torch.zeros(1, 2, queries, 4), "k": torch.zeros(1, 2, 3, 4)}],))


def test_an_older_opset_is_refused_by_name() -> None:
    with pytest.raises(torch.onnx.OnnxExporterError, match="opset_version is 20; ONNX has an operator Attention from 23 on"):
        torch.onnx.export(Calls([lambda q: attention(q, q, q)]), ([{"q": torch.zeros(1, 2, 3, 4)}],), dynamo=True, custom_translation_table=onnx_translations(), verbose=False)
