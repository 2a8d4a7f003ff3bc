"""Tests q, k and v of polyhead.view: what the page gets, and what is refused."""

import base64

import numpy as np
import polyhead
import pytest
from program_support import page_data

LAYERS, HEADS, SHARED, QUERIES, KEYS, WIDTH, VALUES = 2, 4, 2, 3, 5, 6, 4


def page_of(weights, *text, **computation):
    return polyhead.view(weights, *text, computation=polyhead.Computation(**computation))


def data_of(page):
    return page_data(page.html)


def numbers(coded):
    return np.frombuffer(base64.b64decode(coded), np.float32)


@pytest.fixture
def worked(rng):
    """Returns q, k, v, bias, attend, and the attention weights, which are computed here in float64."""
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in [(LAYERS, HEADS, QUERIES, WIDTH), (LAYERS, SHARED, KEYS, WIDTH), (LAYERS, SHARED, KEYS, VALUES)])
    bias = rng.standard_normal((HEADS, QUERIES, KEYS)).astype(np.float32)
    attend = np.ones((QUERIES, KEYS), bool)
    attend[:, 1] = False
    scores = 0.3 * np.einsum("lnth,lnsh->lnts", q.astype(float), np.repeat(k, HEADS // SHARED, 1)) + bias
    weights = np.exp(np.where(attend, scores, -np.inf))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32), {"q": q, "k": k, "v": v, "bias": bias, "attend": attend, "scale": 0.3}


def test_arrays_reach_the_page_bit_for_bit(worked):
    weights, given = worked
    vectors = data_of(page_of(weights, **given))["texts"][0]["vectors"]
    for name in "qkv":
        for layer in range(LAYERS):
            for head in range(given[name].shape[1]):
                np.testing.assert_array_equal(numbers(vectors[name][layer][head]), given[name][layer, head].ravel())
    assert vectors["scale"] == 0.3
    np.testing.assert_array_equal(numbers(vectors["bias"][0][2]), given["bias"][2].ravel())
    np.testing.assert_array_equal(numbers(vectors["attend"][0][0]), given["attend"].ravel())


def test_lists_of_layers_and_tensors_of_torch_give_the_same_page(worked):
    weights, given = worked
    whole = page_of(weights, **given).html
    lists = {name: list(array) if name in "qkv" else array for name, array in given.items()}
    assert page_of(list(weights), **lists).html == whole
    torch = pytest.importorskip("torch")
    tensors = {name: [torch.from_numpy(layer.copy()) for layer in array] if name in "qkv" else array for name, array in given.items()}
    assert page_of([torch.from_numpy(layer.copy()) for layer in weights], **tensors).html == whole


def test_several_texts_have_their_own(worked):
    weights, given = worked
    other = {name: given[name][:, ::-1] for name in "qkv"} | {"bias": given["bias"][::-1]}  # the heads in reverse order
    texts = [(weights, given), (weights[:, ::-1], given | other)]
    batch = {name: np.stack([text[name] for _, text in texts], 1) for name in "qkv"}
    pairs = {"bias": np.stack([text["bias"] for _, text in texts]), "attend": given["attend"], "scale": given["scale"]}
    page = data_of(page_of(np.stack([maps for maps, _ in texts], 1), ["a", "b"], **batch, **pairs))["texts"]
    lists = {name: list(array) for name, array in batch.items()}
    assert data_of(page_of(list(np.stack([maps for maps, _ in texts], 1)), **lists, **pairs))["texts"][1]["vectors"] == page[1]["vectors"]
    for shown, (maps, alone) in zip(page, texts, strict=True):
        assert shown["vectors"] == data_of(page_of(maps, **alone))["texts"][0]["vectors"]
    assert page[0]["vectors"] != page[1]["vectors"]
    of_layers = np.broadcast_to(pairs["bias"], (LAYERS, *pairs["bias"].shape))
    shown = data_of(page_of(np.stack([maps for maps, _ in texts], 1), ["a", "b"], **batch, **pairs | {"bias": of_layers}))["texts"]
    assert [text["vectors"]["bias"] for text in shown] == [text["vectors"]["bias"] * LAYERS for text in page]
    for wrong, words in [({"q": given["q"]}, r"q is float32 \[1,4,3,6\] for attentions \[2,4,3,5\]"), ({"k": batch["k"][:, [0, 1, 0]]}, "k has a batch of 3, and source has a batch of 2"),
                         ({"bias": np.zeros((3, HEADS, QUERIES, KEYS))}, "bias is .*for 2 texts it must broadcast"), ({"bias": -pairs["bias"]}, "q and k .*must belong to the map")]:
        with pytest.raises(ValueError, match=words):
            page_of(np.stack([maps for maps, _ in texts], 1), ["a", "b"], **batch | pairs | wrong)


def test_the_default_scale_is_that_of_the_width(worked):
    _, given = worked
    scores = np.einsum("lnth,lnsh->lnts", given["q"].astype(float), np.repeat(given["k"], 2, 1)) / np.sqrt(WIDTH)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    vectors = data_of(polyhead.view(weights, computation=polyhead.Computation(q=given["q"], k=given["k"])))["texts"][0]["vectors"]
    assert vectors["scale"] == 1 / np.sqrt(WIDTH) and "v" not in vectors


@pytest.mark.parametrize("left_out", ["scale", "bias", "attend"])
def test_q_and_k_that_give_other_weights_are_refused(worked, left_out):
    weights, given = worked
    del given[left_out]
    with pytest.raises(ValueError, match="give query .* the map has .* with its scale, bias and mask"):
        page_of(weights, **given)


def test_wrong_forms_are_refused_by_name(worked, tmp_path):
    weights, given = worked
    for spoilt, message in [
        ({"q": given["q"][:, :, :2]}, r"q is float32 \[2,4,2,6\] for attentions \[2,4,3,5\]"),
        ({"k": given["k"][..., :4]}, r"k is float32 \[2,2,5,4\]"),
        ({"v": given["v"][:, :1]}, r"v is \[2,1,5,4\]; it must have the 2 heads of k"),
        ({"bias": given["bias"][:3]}, r"bias is float32 \[3,3,5\]"),
        ({"attend": given["attend"].astype(np.float32)}, "attend is float32"),
        ({"k": None}, "q, v, bias, attend, scale: q and k are both needed"),
    ]:
        with pytest.raises(ValueError, match=message):
            page_of(weights, **{**given, **spoilt})
    for megabytes in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"vector_megabytes is {megabytes}"):
            polyhead.view(weights, size=polyhead.PageSize(vector_megabytes=megabytes))
    with pytest.raises(ValueError, match="vector_megabytes is 9, the largest size of q, k and v in the page, but q and k are not given"):
        polyhead.view(weights, size=polyhead.PageSize(vector_megabytes=9))
    polyhead.view(weights, size=polyhead.PageSize(vector_megabytes=0))
    with pytest.raises(TypeError, match="q is a list of int"):
        page_of(weights, **{**given, "q": [1, 2]})
    with pytest.raises(ValueError, match="q may be given only with attention weights; source is the folder"):
        polyhead.view(tmp_path, "a text", computation=polyhead.Computation(q=given["q"]))


def test_q_k_and_v_beyond_the_budget_are_left_out_and_the_page_says_so(worked):
    weights, given = worked
    megabytes = sum(np.asarray(given[name]).size for name in ("q", "k", "v", "bias", "attend")) * 16 / 3e6
    for budget in (0, 0.99 * megabytes):
        data = data_of(polyhead.view(weights, computation=polyhead.Computation(**given), size=polyhead.PageSize(vector_megabytes=budget)))
        assert "vectors" not in data["texts"][0] and data["texts"][0]["left_out"] == pytest.approx(megabytes) and data["limit"] == budget
    assert "vectors" in data_of(polyhead.view(weights, computation=polyhead.Computation(**given), size=polyhead.PageSize(vector_megabytes=1.01 * megabytes)))["texts"][0]
