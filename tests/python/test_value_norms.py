"""Norm-weighted maps (Kobayashi et al. 2020): norms of transformed values compared with NumPy and with transformers' modules, through every function that returns or
shows them."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import polyhead  # noqa: E402
import pytest  # noqa: E402
from test_view import sets_of  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import test_encoders  # noqa: E402
import test_language_models  # noqa: E402

random = np.random.default_rng(21)


def norms_of(v: np.ndarray, weight: np.ndarray | None, heads: int) -> np.ndarray:
    """The formula: |W_O^n v[n // (N // K), s]|. v [*,K,S,V], weight [E,N V]."""
    v = np.repeat(np.asarray(v, np.float64), heads // v.shape[-3], axis=-3)
    if weight is None:
        return np.linalg.norm(v, axis=-1)
    slices = np.asarray(weight, np.float64).reshape(weight.shape[0], heads, v.shape[-1])  # [E,N,V]
    return np.linalg.norm(np.einsum("...nsv,env->...nse", v, slices), axis=-1)


@pytest.mark.parametrize("heads, shared", [(1, 1), (4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_norms_are_the_formula(heads: int, shared: int, dtype: Any) -> None:
    v, weight = random.standard_normal((2, 3, shared, 9, 5)).astype(dtype), random.standard_normal((7, heads * 5)).astype(dtype)
    bound = {np.float64: 1e-14, np.float32: 1e-6, np.float16: 2e-3}[dtype]
    found = polyhead.value_norms(v, weight)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, norms_of(v, weight, heads), rtol=bound)
    np.testing.assert_allclose(polyhead.value_norms(v, None), norms_of(v, None, shared), rtol=bound)
    tensor = polyhead.value_norms(torch.from_numpy(v), torch.from_numpy(weight))
    assert isinstance(tensor, torch.Tensor) and np.array_equal(tensor.numpy(), found)


def test_norm_weighted_maps_are_attention_weights_times_norms() -> None:
    q, k, v, weight = random.standard_normal((2, 4, 6, 8)), random.standard_normal((2, 2, 9, 8)), random.standard_normal((2, 2, 9, 5)), random.standard_normal((7, 20))
    norms = polyhead.value_norms(v, weight)
    p = polyhead.maps(q, k, causal="bottom_right")
    expected = p * norms[..., None, :]
    np.testing.assert_allclose(polyhead.maps(q, k, causal="bottom_right", value_norms=norms), expected, rtol=1e-14)
    np.testing.assert_allclose(polyhead.maps(q, k, causal="bottom_right", rows=[5, 2], value_norms=norms), expected[..., [5, 2], :], rtol=1e-14)
    np.testing.assert_allclose(polyhead.maps(q, k, causal="bottom_right", rows=[5, 2], keys=[8, 0, 3], value_norms=norms), expected[..., [5, 2], :][..., [8, 0, 3]], rtol=1e-13)
    norms[..., -1] = np.nan  # a masked key counts as absent, so its NaN must not appear in the map
    assert np.array_equal(np.isnan(polyhead.maps(q, k, causal="bottom_right", value_norms=norms)), np.broadcast_to((p > 0) & np.isnan(norms)[..., None, :], p.shape))


@pytest.mark.parametrize("wrong, message", [
    ({"value": "score"}, "value must be 'probability' or 'dropped'"),
    ({"value_norms": np.zeros((4, 8))}, r"value_norms is float64 \[4,8\]; it must be floating and \[\*,N,S\] = \[4,9\]"),
    ({"value_norms": np.zeros((4, 9), int)}, "value_norms is int64"),
    ({"top_k": 2}, "top_k returns probabilities of all rows; it may not be combined with .* or value_norms"),
    ({"keys": [9]}, "9"),
])  # fmt: skip
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    q, k = random.standard_normal((4, 6, 8)), random.standard_normal((2, 9, 8))
    with pytest.raises(ValueError, match=message):
        polyhead.maps(q, k, **{"value_norms": np.ones((4, 9)), **wrong})
    with pytest.raises(ValueError, match=r"output_weight is float64 \[7,12\] and v \[4,9,5\]"):
        polyhead.value_norms(np.zeros((4, 9, 5)), np.zeros((7, 12)))


class Heard:
    """Records the outputs and inputs of a model's modules."""

    def __init__(self, *modules: Any) -> None:
        self.inputs: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        for module in modules:
            module.register_forward_hook(self._hear)

    def _hear(self, module: Any, inputs: Any, output: Any) -> None:
        self.inputs.append(inputs[0].detach().double().numpy())
        self.outputs.append(output.detach().double().numpy())


def split(rows: np.ndarray, heads: int) -> np.ndarray:
    """[B,T,heads V] -> [B,heads,T,V]"""
    return rows.reshape(*rows.shape[:-1], heads, -1).swapaxes(-3, -2)


def check(run: Any, v: list[np.ndarray], weights: list[np.ndarray], projected: list[np.ndarray], biases: list[Any]) -> None:
    """run: the outputs of polyhead, attentions [L,B,N,T,T] and value_norms [L,B,N,T]. v [B,K,T,V], weights [E,N V] and projected, the output [B,T,E] of the
    projection, of each layer of transformers."""
    heads = run.attentions.shape[2]
    assert len(v) == len(weights) == len(projected) == run.attentions.shape[0]
    for layer, (values, weight, output, bias) in enumerate(zip(v, weights, projected, biases)):
        np.testing.assert_allclose(run.value_norms[layer], norms_of(values, weight, heads), rtol=2e-5)
        f = np.einsum("bnsv,env->bnse", np.repeat(values, heads // values.shape[1], axis=1), weight.reshape(weight.shape[0], heads, -1))
        added = np.einsum("bnts,bnse->bte", run.attentions[layer].astype(np.float64), f) + (0 if bias is None else bias)
        np.testing.assert_allclose(added, output, atol=1e-4 * np.abs(output).max())  # the sum of weights * f is the layer's output, so f is the vector whose norm is meant


def numbers(parameter: Any) -> Any:
    return None if parameter is None else parameter.detach().double().numpy()


def test_bert_by_its_hidden_states(tmp_path: Any) -> None:
    model = test_encoders.saved_model("bert", tmp_path)
    ids = test_encoders.texts()
    layers = model.encoder.layer
    dense = Heard(*(layer.attention.output.dense for layer in layers))
    with torch.no_grad():
        hidden = model(torch.from_numpy(ids), output_hidden_states=True).hidden_states
    run = polyhead.models.load(tmp_path).run(ids, outputs=["attentions", "value_norms"])
    values = [split(hidden[i].double().numpy() @ numbers(layer.attention.self.value.weight).T + numbers(layer.attention.self.value.bias), 4) for i, layer in enumerate(layers)]
    check(run, values, [numbers(layer.attention.output.dense.weight) for layer in layers], dense.outputs, [numbers(layer.attention.output.dense.bias) for layer in layers])


@pytest.mark.parametrize("case", ["albert, inner groups", "modernbert"])
def test_other_encoders(case: str, tmp_path: Any) -> None:
    model = test_encoders.saved_model(case, tmp_path)
    ids = test_encoders.texts()
    shared = case.startswith("albert")
    groups = [layer for group in model.encoder.albert_layer_groups for layer in group.albert_layers] if shared else list(model.layers)
    outs = [layer.attention.dense if shared else layer.attn.Wo for layer in groups]
    ins = [layer.attention.value if shared else layer.attn.Wqkv for layer in groups]
    order: list[Any] = []
    for out in outs:
        out.register_forward_hook(lambda module, *_: order.append(module))
    dense, values = Heard(*outs), Heard(*ins)
    with torch.no_grad():
        model(torch.from_numpy(ids))
    run = polyhead.models.load(tmp_path).run(ids, outputs=["value_norms", "attentions"])
    v = [split(rows[..., -32:], 4) for rows in values.outputs]
    check(run, v, [numbers(out.weight) for out in order], dense.outputs, [numbers(out.bias) for out in order])


@pytest.mark.parametrize("case", ["llama", "qwen3", "gpt2", "gemma2"])  # rotary positions, grouped heads, packed projections, softcap with norms after the projection
def test_decoders(case: str, tmp_path: Any) -> None:
    model = test_language_models.saved_model(case, tmp_path)
    ids = random.integers(6, 61, (2, 20))
    gpt2 = case == "gpt2"
    layers = model.transformer.h if gpt2 else model.model.layers
    outs = [layer.attn.c_proj if gpt2 else layer.self_attn.o_proj for layer in layers]
    dense, values = Heard(*outs), Heard(*(layer.attn.c_attn if gpt2 else layer.self_attn.v_proj for layer in layers))
    with torch.no_grad():
        model(torch.from_numpy(ids))
    loaded = polyhead.models.load(tmp_path)
    run = loaded.run(ids, outputs=["attentions", "value_norms", "v"])
    v = [split(rows[..., -32:] if gpt2 else rows, run.v.shape[2]) for rows in values.outputs]
    weights = [numbers(out.weight).T if gpt2 else numbers(out.weight) for out in outs]
    check(run, v, weights, dense.outputs, [numbers(out.bias) for out in outs])
    assert np.array_equal(loaded.run(ids, outputs=["value_norms"]).value_norms, run.value_norms)  # the norms are the same if v is not requested


def norms_of_page(entry: dict[str, Any]) -> np.ndarray:
    import base64

    return np.array([[np.frombuffer(base64.b64decode(head), "<f4") for head in heads] for heads in entry["value_norms"]])


def test_pages_hold_norms() -> None:
    p = random.dirichlet(np.ones(5), (2, 3, 4)).astype(np.float32)  # [layers, heads, T, S]
    norms = random.random((2, 3, 5))
    page = polyhead.view(p, computation=polyhead.Computation(value_norms=norms), weighting="norm")
    np.testing.assert_allclose(norms_of_page(sets_of(page)[0]), norms, rtol=1e-6)
    assert '"start":"#weighting=norm"' in page.html and "value_norms" not in sets_of(polyhead.view(p))[0]
    batch = polyhead.view([p, p], text=["a", "b"], computation=polyhead.Computation(value_norms=[norms, 2 * norms]))  # a list of layers, each [B, heads, T, S]
    for place, entry in enumerate(sets_of(batch)):
        np.testing.assert_allclose(norms_of_page(entry), np.stack([norms[place], 2 * norms[place]]), rtol=1e-6)


def test_norms_may_be_tensors_of_any_floating_dtype() -> None:
    p = random.dirichlet(np.ones(5), (2, 3, 4)).astype(np.float32)
    norms = torch.rand(2, 3, 5).to(torch.bfloat16)
    for given in (norms, list(norms)):
        entry = sets_of(polyhead.view(p, computation=polyhead.Computation(value_norms=given)))[0]
        assert np.array_equal(norms_of_page(entry), norms.float().numpy())
    batch = torch.stack([norms, 2 * norms], 1)
    for given in (batch, list(batch)):
        page = polyhead.view([p, p], text=["a", "b"], computation=polyhead.Computation(value_norms=given))
        for place, entry in enumerate(sets_of(page)):
            assert np.array_equal(norms_of_page(entry), batch[:, place].float().numpy())


def test_weighting_norm_is_refused_if_there_are_no_norms() -> None:
    p = random.dirichlet(np.ones(5), (2, 3, 5)).astype(np.float32)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), polyhead.capture(layer) as captured:
        layer(x, x, x)
    refused: list[tuple[str, Any]] = [
        ("weighting is 'norm', and polyhead.capture records attention weights and no values", lambda: polyhead.view(captured, weighting="norm")),
        ("weighting is 'norm', and source has attention weights and no values", lambda: polyhead.view(p, weighting="norm")),
        ("weighting is 'norms'; it must be 'attention' or 'norm'", lambda: polyhead.view(p, weighting="norms")),
        (r"value_norms is float64 \[2,3,4\] for attentions \[2,3,5,5\]", lambda: polyhead.view(p, computation=polyhead.Computation(value_norms=np.ones((2, 3, 4))))),
        ("gate and value_norms are given together", lambda: polyhead.view(p, computation=polyhead.Computation(value_norms=np.ones((2, 3, 5)), gate=np.full((2, 3, 5, 1), 0.5)))),
        (r"value_norms is a list of \[3, 5\], \[3, 4\]; its layers must have one shape", lambda: polyhead.view(p, computation=polyhead.Computation(value_norms=[np.ones((3, 5)), np.ones((3, 4))]))),
        ("value_norms has -1", lambda: polyhead.view(p, computation=polyhead.Computation(value_norms=-np.ones((2, 3, 5))))),
    ]  # fmt: skip
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_pages_of_models(tmp_path: Any) -> None:
    source = os.environ.get("POLYHEAD_MINILM_DIR")
    if not source:
        pytest.skip("POLYHEAD_MINILM_DIR is not set")
    page = polyhead.view(source, "The quick brown fox jumps", weighting="norm")
    entry = sets_of(page)[0]
    model = polyhead.models.load(source)
    tokenizer = json.loads(json.dumps(entry["queries"]["pieces"]))
    assert '"start":"#weighting=norm"' in page.html and len(tokenizer) == norms_of_page(entry).shape[2] == 7
    vocabulary = {piece: place for place, piece in enumerate(open(os.path.join(source, "vocab.txt"), encoding="utf-8").read().split("\n"))}
    run = model.run([vocabulary[piece] for piece in tokenizer], outputs=["value_norms"])
    np.testing.assert_allclose(norms_of_page(entry), run.value_norms, rtol=1e-5)
