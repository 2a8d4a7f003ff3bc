"""Compares the Python package with the golden vectors (tests/golden), within the bounds of the C++ runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import numpy as np
import pytest

import polyhead

safetensors = pytest.importorskip("safetensors", reason="the vectors are read with the package safetensors, so that the test does not depend on polyhead's reader")

FOLDER = Path(__file__).parents[1] / "golden" / "vectors"
PATHS = sorted(FOLDER.glob("*.safetensors"))

LAYOUTS = {
    "Multi_atten": "multi_atten",
    "self_attention_single_head": "single_head",
    "cross_attention_single_head": "single_head",
    "cross_attention_unequal_widths": "single_head",
    "MultiHeadAttention(input_dim,num_heads,dim_qk,dim_v)": "multi_head_dim_qk_dim_v",
    "MultiHeadAttention(key_size,query_size,value_size,num_hiddens,num_heads)": "d2l",
    "MultiHeadAttention(c_in,c,N_head,attn_dim,gated,is_global,use_bias_for_embeddings)": "alphafold",
    "torch.nn.MultiheadAttention": "torch",
}

Arrays = dict[str, np.ndarray]


def is_expected(name: str) -> bool:
    return name in ("out", "weights", "lse", "out_tangent", "lse_tangent") or (name.startswith("d_") and name != "d_out")


class Case:
    """A golden vector. It records which options and tensors the test has read, so that an option or tensor which the test does not know is an error."""

    def __init__(self, path: Path) -> None:
        with safetensors.safe_open(path, "np") as file:
            self._options: dict[str, Any] = json.loads(file.metadata()["case"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        self._inputs = {name: tensor for name, tensor in tensors.items() if not is_expected(name)}
        self.expected = {name: tensor for name, tensor in tensors.items() if is_expected(name)}
        self.dtype = (self._inputs["q"] if "q" in self._inputs else self._inputs["query"]).dtype
        self._options.pop("name")
        self.op = self._options.pop("op")

    def option(self, name: str, default: Any = None) -> Any:
        return self._options.pop(name, default)

    def tensor(self, name: str) -> np.ndarray | None:
        return self._inputs.pop(name, None)

    def rest(self) -> Arrays:
        rest, self._inputs = self._inputs, {}
        return rest

    def finish(self) -> None:
        assert not self._options and not self._inputs, (self._options, list(self._inputs))


def relative_bias_of(case: Case) -> polyhead.RelativeBias | None:
    slopes, table = (case.tensor("relative_bias." + name) for name in ("slopes", "table"))
    rules = {name: case.option(option) for name, option in (("bidirectional", "bidirectional"), ("max_distance", "max_distance"), ("diagonal", "relative_diagonal"))}
    if slopes is None and table is None:
        assert not any(rules.values())
        return None
    return polyhead.RelativeBias(slopes=slopes, table=table, **{name: rule for name, rule in rules.items() if rule is not None})


def options_of(case: Case) -> dict[str, Any]:
    causal, offset, window = (case.option(name) for name in ("causal", "causal_offset", "window"))
    assert causal is None or offset is None
    options = {name: case.option(name) for name in ("scale",)} | {"softcap": case.option("softcap", 0.0)}
    options |= {"dropout": case.option("dropout", 0.0), "empty_rows": case.option("empty_rows", "zero")}
    options |= {name: case.tensor(name) for name in ("attend", "block", "bias", "sink", "dropout_keep")}
    options["relative_bias"] = relative_bias_of(case)
    options["causal"] = causal if offset is None else offset
    options["window"] = None if window is None else tuple(window)
    for name in ("key_lengths", "diagonal_offsets", "query_offsets", "key_offsets"):
        integers = case.option(name)
        options[name] = None if integers is None else np.array(integers)
    assert (options["dropout"] > 0) == (options["dropout_keep"] is not None)
    return options


def gradients(of: dict[str, Any], options: dict[str, Any]) -> Arrays:
    """Renames gradients as in the file, which says whether the relative bias has slopes or a table."""
    relative = options["relative_bias"]
    names = {name: name for name in of} | ({} if relative is None else {"relative_bias": "relative_bias." + ("table" if relative.slopes is None else "slopes")})
    return {"d_" + names[name]: x for name, x in of.items() if x is not None}


def run_sdpa(case: Case) -> Arrays:
    q, k, v, d_out = (case.tensor(name) for name in ("q", "k", "v", "d_out"))
    options, k_scale, v_scale = options_of(case), case.tensor("k_scale"), case.tensor("v_scale")
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, k_scale=k_scale, v_scale=v_scale, **options)
    results = {"out": out, "lse": lse, "weights": polyhead.maps(q, k, k_scale=k_scale, **options)}
    if d_out is None:
        return results
    return results | gradients(polyhead.sdpa_backward(q, k, v, out, lse, d_out, **options)._asdict(), options)


def run_second_derivatives(case: Case) -> Arrays:
    q, k, v, d_out = (case.tensor(name) for name in ("q", "k", "v", "d_out"))
    options = options_of(case)
    relative = next((x for kind in ("slopes", "table") if (x := case.tensor(f"relative_bias.{kind}_tangent")) is not None), None)
    tangents = polyhead.Tangents(*(case.tensor(f"{name}_tangent") for name in ("q", "k", "v", "bias", "sink")), relative)
    out, lse = polyhead.sdpa(q, k, v, return_lse=True, **options)
    moved = polyhead.sdpa_jvp(q, k, v, out, lse, tangents, return_lse=True, **options)
    second = polyhead.sdpa_backward_backward(q, k, v, out, lse, d_out, tangents, **options)
    results = {"out": out, "lse": lse, "weights": polyhead.maps(q, k, **options), "out_tangent": moved[0], "lse_tangent": moved[1]}
    return results | gradients(second._asdict(), options)


NOT_IN_FILES = ("axis", "add_zero_attn", "dropout", "empty_rows", "causal")


def layer_with(config: dict[str, Any], parameters: Arrays) -> polyhead.MultiHeadAttention:
    layer = polyhead.MultiHeadAttention(**config)
    assert layer.parameters.keys() == parameters.keys()
    for name, parameter in layer.parameters.items():
        parameter[...] = parameters[name]
    return layer


def run_layer(case: Case) -> Arrays:
    query, key, value, d_out, bias = (case.tensor(name) for name in ("query", "key", "value", "d_out", "bias"))
    options = {name: case.tensor(name) for name in ("block", "attend_keys", "block_keys", "dropout_keep")}
    lengths = case.option("valid_lens")
    options["key_lengths"] = None if lengths is None else np.array(lengths)
    options["training"] = options["dropout_keep"] is not None
    layout = LAYOUTS[case.option("layer")]
    settings = {"axis": case.option("axis", -2), "add_zero_attn": case.option("add_zero_attn", False), "dropout": case.option("dropout", 0.0)}
    source = case.rest()
    layer = polyhead.load(source, layout, heads=case.option("heads"), **settings)

    config = layer.config
    assert config["empty_rows"] == case.option("empty_rows", config["empty_rows"]) or layout == "torch"
    said = {"qk_head_dim": "head_width", "v_head_dim": "value_head_width", "kdim": "key_width", "vdim": "value_width", "bias": "bias"}
    said |= {"output_projection": "output", "use_bias_for_embeddings": "bias", "gated": "gate", "add_bias_kv": "add_bias_kv"}
    for option, name in said.items():
        assert case.option(option) in (None, config[name])
    assert case.option("is_global") in (None, config["global_query"] != "off")
    assert all(np.array_equal(tensor, source[name]) for name, tensor in layer.state(layout, without=NOT_IN_FILES).items())

    # A mask may lack the head dimension: [*,T,S]. A bias may be [B*N,T,S] (layout torch), [N,T,S], or [B,N,T,S] for inputs with more leading dimensions. Missing
    # dimensions get the extent 1.
    rank = query.ndim + 1
    if options["block"] is not None and options["block"].ndim == rank - 1:
        options["block"] = np.expand_dims(options["block"], -3)
    if bias is not None and layout == "torch" and bias.ndim == 3:
        bias = bias.reshape(query.shape[0], layer.config["heads"], *bias.shape[1:])
    if bias is not None and 2 < bias.ndim < rank:
        bias = bias.reshape(*bias.shape[:-3], *(1,) * (rank - bias.ndim), *bias.shape[-3:])
    out, saved = layer.forward(query, key, value, bias=bias, **options)
    grads = saved.backward(d_out)
    results = {"out": out, "lse": saved.lse, "weights": saved.maps(), "d_query": grads.query}
    results |= {f"d_{name}": grad for name, grad in [("key", grads.key), ("value", grads.value), ("bias", grads.bias)] if grad is not None}
    # A layer is made whose parameters are the gradients: its state() then returns the gradients with the names of the layout.
    named = layer_with(config, grads.parameters).state(layout, without=NOT_IN_FILES)
    return results | {f"d_{name}": grad for name, grad in named.items()}


def magnitude(case: Case, name: str) -> float:
    """Returns the largest magnitude of the expected tensor. For a gradient that is 0 in exact arithmetic and holds rounding noise, returns that of the largest gradient."""

    def largest(tensor: np.ndarray) -> float:
        finite = tensor[np.isfinite(tensor)]
        return float(np.abs(finite).max(initial=0))

    own = largest(case.expected[name])
    gradients = max((largest(tensor) for other, tensor in case.expected.items() if other.startswith("d_")), default=0.0)
    return gradients if name.startswith("d_") and own < 1e-13 * gradients else own


def float32_bounds(case: Case) -> Arrays:
    """Returns the float32 bounds of tests/golden/README.md: 8 eps (4 + sqrt(S) + L) times p, or times sum p |v| for out, where L is the largest scale * sum |q k| of the row."""
    q = case.tensor("q")
    k, v = (case.tensor(name).astype(np.float64) * (1 if (scale := case.tensor(name + "_scale")) is None else scale[..., None]) for name in "kv")
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    largest = (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max(-1) / np.sqrt(q.shape[-1])
    relative = 8 * np.finfo(np.float32).eps * (4 + np.sqrt(k.shape[-2]) + largest)
    weights, lse = relative[..., None] * case.expected["weights"], np.abs(case.expected["lse"])
    return {"weights": weights, "out": weights @ np.abs(v), "lse": relative + np.finfo(np.float32).eps * lse}


def test_all_vectors_are_here(summary: list[str]) -> None:
    summary.append(f"golden vectors through Python: {len(PATHS)}")
    assert len(PATHS) == 137


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_vector_is_reproduced(path: Path) -> None:
    case = Case(path)
    bounds = float32_bounds(Case(path)) if case.dtype == np.float32 else {name: 1e-12 * magnitude(case, name) for name in case.expected}
    results = {"sdpa": run_sdpa, "second_derivatives": run_second_derivatives, "layer": run_layer}[case.op](case)
    case.finish()
    for name, expected in case.expected.items():
        actual = results[name].reshape(expected.shape) if name == "d_bias" else results[name]
        assert actual.dtype == case.dtype and actual.shape == expected.shape
        error = np.abs(np.subtract(actual, expected, where=actual != expected, out=np.zeros(expected.shape)))  # two equal infinities have error 0
        assert (error <= bounds[name]).all(), (name, error.max())
