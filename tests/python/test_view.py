"""Tests which inputs `polyhead.view` accepts: shapes, batches, outputs of transformers, and facts about the tokens. The data of the page are compared with the arrays."""

import base64

import numpy as np
import polyhead
import pytest
from program_support import page_data

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BOUND = 7.7e-6  # error of weights that are stored in 16 bits
random = np.random.default_rng(12)


def softmax(scores):
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def maps(*shape):
    return softmax(2 * random.standard_normal(shape))


def sets_of(page):
    return page_data(page.html)["texts"]


def decoded(codes, *shape):
    numbers = np.frombuffer(base64.b64decode(codes), "<u2").astype(float)
    return np.where(numbers == 0, 0, (numbers - 1) / 65533).reshape(shape)


def weights(entry):
    T, S = (len(entry.get(side, entry["queries"])["pieces"]) for side in ("queries", "keys"))
    return np.array([[decoded(head, T, S) for head in heads] for heads in entry["weights"]])


def holds(entry, expected):
    shown = weights(entry)
    assert shown.shape == tuple(expected.shape)
    assert np.abs(shown - np.asarray(expected)).max() <= BOUND


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(5)
    config = transformers.BartConfig(
        vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=4, encoder_ffn_dim=8, decoder_ffn_dim=8,
        max_position_embeddings=16, init_std=0.5, attn_implementation="eager")
    return transformers.BartModel(config).eval()


def run(model, batch, **options):
    torch.manual_seed(7)
    with torch.no_grad():
        return model(input_ids=torch.randint(3, 40, (batch, 6)), decoder_input_ids=torch.randint(3, 40, (batch, 5)), output_attentions=True, **options)


@pytest.mark.parametrize("as_dict", [False, True])
def test_an_encoder_decoder_has_a_tab_for_each_set_of_maps(translator, as_dict):
    out = run(translator, 1)
    source = {name: getattr(out, name) for name in ("encoder_attentions", "decoder_attentions", "cross_attentions")} if as_dict else out
    german, english = ["</s>", "Die", "Katze", "saß", "."], ["<s>", "The", "cat", "sat", ".", "</s>"]
    page = polyhead.view(source, "Die Katze saß.", tokens=german, keys=english, annotations=polyhead.Annotations(special=["<s>", "</s>"], links=[(2, 2), (1, 1)], possible_links=[(3, 3)], block_keys=torch.tensor([0, 0, 0, 0, 0, 1])))
    encoder, decoder, cross = sets_of(page)
    assert [entry["name"] for entry in (encoder, decoder, cross)] == ["Encoder", "Decoder", "Cross-attention"]
    assert [entry["group"] for entry in (encoder, decoder, cross)] == [0, 0, 0]
    for entry, attentions in ((encoder, out.encoder_attentions), (decoder, out.decoder_attentions), (cross, out.cross_attentions)):
        holds(entry, torch.stack(attentions)[:, 0])
    assert encoder["queries"]["pieces"] == english and decoder["queries"]["pieces"] == german
    assert cross["queries"]["pieces"] == german and cross["keys"]["pieces"] == english
    assert cross["queries"]["special"] == [0] and cross["keys"]["special"] == [0, 5]
    assert cross["links"] == {"sure": [[1, 1], [2, 2]], "possible": [[3, 3]]} and "links" not in encoder
    assert encoder["blocked"] == cross["blocked"] == [5] and "blocked" not in decoder


def test_a_batch_becomes_texts(translator):
    out = run(translator, 3)
    entries = sets_of(polyhead.view(out, ["a", "b", "c"], tokens=[[f"{b}{t}" for t in range(5)] for b in "abc"], annotations=polyhead.Annotations(special=["a0", "c4"])))
    assert [(entry["group"], entry["text"], entry["name"]) for entry in entries[:4]] == [(0, "a", "Encoder"), (0, "a", "Decoder"), (0, "a", "Cross-attention"), (1, "b", "Encoder")]
    for b in range(3):
        holds(entries[3 * b + 2], torch.stack(out.cross_attentions)[:, b])
    assert entries[2]["queries"]["special"] == [0] and entries[5]["queries"]["special"] == [] and entries[8]["queries"]["special"] == [4]
    assert entries[5]["keys"]["pieces"] == [str(s) for s in range(6)]


def test_a_decoder_alone_and_one_with_cross_attention():
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2, add_cross_attention=True, attn_implementation="eager")
    model = transformers.GPT2Model(config).eval()
    ids = torch.randint(0, 20, (1, 4))
    with torch.no_grad():
        alone, both = model(ids, output_attentions=True), model(ids, encoder_hidden_states=torch.randn(1, 3, 8), output_attentions=True)
    (entry,) = sets_of(polyhead.view(alone))
    holds(entry, torch.stack(alone.attentions)[:, 0])
    assert "name" not in entry
    own, cross = sets_of(polyhead.view(both))
    assert (own["name"], cross["name"]) == ("Self-attention", "Cross-attention")
    holds(cross, torch.stack(both.cross_attentions)[:, 0])


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, lambda a: torch.tensor(a).double(), np.asfortranarray])
def test_every_shape(convert):
    whole = maps(2, 3, 4, 5)
    layers = [convert(layer) for layer in whole]
    for source, expected in ((convert(whole[0, 0]), whole[:1, :1]), (convert(whole[0]), whole[:1]), (convert(whole), whole), (layers, whole), (tuple(layers), whole), ([layer[None] for layer in layers], whole)):
        (entry,) = sets_of(polyhead.view(source, tokens=list("abcd"), keys=list("vwxyz")))
        holds(entry, expected)


def test_batches_of_arrays():
    whole = maps(2, 3, 4, 5, 5)  # layers, B, heads, T, S
    words = [[f"{b}{t}" for t in range(5)] for b in range(3)]
    for source, expected in (([*whole], whole), (whole, whole), (whole[0], whole[:1])):
        entries = sets_of(polyhead.view(source, tokens=words, annotations=polyhead.Annotations(segments=[[0, 0, 1, 1, 1]] * 3, block_keys=[[0] * 5, [0] * 5, [0, 0, 0, 0, True]])))
        assert [entry["queries"]["pieces"] for entry in entries] == words
        assert entries[2]["blocked"] == [4] and "blocked" not in entries[0]
        for b in range(3):
            holds(entries[b], expected[:, b])
    assert len(sets_of(polyhead.view([*whole]))) == 3  # for a list of arrays [B, heads, T, S], view() needs no tokens


@pytest.mark.parametrize("lang", [None, "en", "zh"])
def test_the_page_says_its_language(lang):
    assert page_data(polyhead.view(maps(1, 1, 2, 2), lang=lang).html).get("language") == lang


def test_annotations_of_one_side_and_of_two_sides():
    (entry,) = sets_of(polyhead.view(maps(1, 1, 3, 3), tokens=["[CLS]", "a", "b"], annotations=polyhead.Annotations(special=np.array([1, 0, 0]), segments=[0, 1, 1], axes=("residue i", "residue j"))))
    assert entry["queries"]["special"] == [0] and entry["queries"]["segment"] == [0, 1, 1] and entry["axes"] == ["residue i", "residue j"]
    (entry,) = sets_of(polyhead.view(maps(2, 3), tokens=["a", "b"], keys=["x", "y", "z"], annotations=polyhead.Annotations(special=([False, True], [True, False, False]), segments=([0, 1], None))))
    assert entry["queries"]["special"] == [1] and entry["keys"]["special"] == [0] and entry["queries"]["segment"] == [0, 1] and "segment" not in entry["keys"]


def test_gates_and_weights_without_a_pair_bias():
    scores, bias = random.standard_normal((2, 3, 4, 4)), random.standard_normal((3, 4, 4))
    scores[..., 3] = -np.inf
    gate = random.random((2, 3, 4, 5)).astype(np.float32)
    after, before = sets_of(polyhead.view(softmax(scores + bias), computation=polyhead.Computation(gate=gate, pair_bias=bias), annotations=polyhead.Annotations(block_keys=[0, 0, 0, 1])))
    assert (after["bias"], before["bias"], after["group"], before["group"]) == ("with", "without", 0, 0)
    holds(after, softmax(scores + bias))
    holds(before, torch.softmax(torch.tensor(scores), -1))
    for entry in (after, before):
        assert entry["gate_width"] == 5
        assert np.abs(np.array([[decoded(head, 4, 5) for head in heads] for heads in entry["gate"]]) - gate).max() <= BOUND


def test_images():
    image = np.linspace(0, 1, 48, dtype=np.float32).reshape(6, 8)
    greys = np.round(255 * image).astype(np.uint8).tobytes()
    (entry,) = sets_of(polyhead.view(maps(2, 3, 7, 7), image=torch.tensor(image), patches=(3, 2)))
    assert entry["image"] == {"height": 6, "width": 8, "rows": 3, "columns": 2, "channels": 1, "pixels": base64.b64encode(greys).decode()}
    assert entry["queries"]["special"] == [0]  # the token before the patches
    entries = sets_of(polyhead.view([maps(2, 3, 7, 7)], image=np.stack([image, image.T.reshape(6, 8)]), patches=(3, 2), annotations=polyhead.Annotations(special=[[0, 0, 0, 1, 0, 0, 0]] * 2)))
    assert [entry["queries"]["special"] for entry in entries] == [[3], [3]]
    assert entries[0]["image"]["pixels"] != entries[1]["image"]["pixels"]
    colours = np.arange(144, dtype=np.uint8).reshape(6, 8, 3)
    for one in (colours, colours / np.float32(255), torch.tensor(colours)):
        (entry,) = sets_of(polyhead.view(maps(2, 3, 7, 7), image=one, patches=(3, 2)))
        assert entry["image"] == {"height": 6, "width": 8, "rows": 3, "columns": 2, "channels": 3, "pixels": base64.b64encode(colours.tobytes()).decode()}
    entries = sets_of(polyhead.view([maps(2, 3, 7, 7)], image=np.stack([colours, 255 - colours]), patches=(3, 2)))
    assert [entry["image"]["channels"] for entry in entries] == [3, 3]


def output(**fields):
    return transformers.modeling_outputs.Seq2SeqModelOutput(**fields)


STEPS = tuple(tuple(torch.tensor(maps(1, 2, 1, 3)) for _ in range(2)) for _ in range(3))
MAPS = maps(2, 3, 4, 4)
WRONG = {
    "no attentions": (ValueError, "source has no attention weights; call the model with output_attentions=True", output(last_hidden_state=torch.zeros(1)), {}),
    "generate": (TypeError, "source.decoder_attentions is a tuple of tuple; .*generate\\(\\) returns a list for each step", output(decoder_attentions=STEPS), {}),
    "name": (ValueError, "source has the name 'foo'; it may have 'attentions', 'encoder_attentions'", {"foo": MAPS}, {}),
    "gradients": (TypeError, "source requires grad", torch.tensor(MAPS, requires_grad=True), {}),
    "dims": (ValueError, r"source is \[4\]; it must be \[T, S\], \[heads, T, S\], \[layers, heads, T, S\], a list with", MAPS[0, 0, 0], {}),
    "layers": (ValueError, r"source is a list of attention weights \[3, 4, 4\], \[2, 4, 4\]; it must have one", [MAPS[0], MAPS[0, :2]], {}),
    "batch of words": (ValueError, "source has a batch of 2; there are words for 3 texts", [MAPS, MAPS], {"tokens": [list("abcd")] * 3}),
    "batch of dims": (ValueError, r"source is \[3, 4, 4\]; for several texts it must be \[B, heads, T, S\]", MAPS[0], {"tokens": [list("abcd")] * 3}),
    "text of a batch": (ValueError, "text must be 2 str, one for each text", [MAPS, MAPS], {"text": "a"}),
    "special": (ValueError, "special has 3 entries for the tokens; it must have T = 4", MAPS, {"annotations": polyhead.Annotations(special=[1, 0, 0])}),
    "special flag": (ValueError, "special has the entry 2; each must be True or False", MAPS, {"annotations": polyhead.Annotations(special=[1, 0, 0, 2])}),
    "special of two sides": (ValueError, "special must be a pair here, one part for the tokens and one for the keys", MAPS, {"keys": list("abcd"), "annotations": polyhead.Annotations(special=[1, 0, 0, 0])}),
    "segments": (ValueError, "segments has the entry -1; each must be an int from 0", MAPS, {"annotations": polyhead.Annotations(segments=[0, 0, 0, -1])}),
    "block_keys": (ValueError, "block_keys has 3 entries for the tokens", MAPS, {"annotations": polyhead.Annotations(block_keys=[1, 0, 0])}),
    "links": (ValueError, r"the sure link \(0, 4\) is outside of attentions \[2,3,4,4\]", MAPS, {"annotations": polyhead.Annotations(links=[(0, 4)])}),
    "possible links": (ValueError, "possible_links are given without links", MAPS, {"annotations": polyhead.Annotations(possible_links=[(0, 1)])}),
    "gate": (ValueError, r"gate is float32 \[2,3,3,4\]; it must be floating and \[layers,heads,T,V\] = \[2,3,4,V\]", MAPS, {"computation": polyhead.Computation(gate=MAPS[:, :, :3])}),
    "pair bias": (ValueError, r"pair_bias is \[4, 5\]; it must broadcast to \[layers, heads, T, S\] = \[2, 3, 4, 4\]", MAPS, {"computation": polyhead.Computation(pair_bias=np.zeros((4, 5), np.float32))}),
    "image alone": (ValueError, "image and patches belong together", MAPS, {"image": np.zeros((4, 4))}),
    "image": (ValueError, r"image is \[4, 4, 2\]; it must be \[height, width\] or \[height, width, 3\]", MAPS, {"image": np.zeros((4, 4, 2)), "patches": (2, 2)}),
    "patches": (ValueError, r"patches is \(2, 0\); it must be two ints from 1", MAPS, {"image": np.zeros((4, 4)), "patches": (2, 0)}),
    "uneven patches": (ValueError, r"2 x 3 patches do not divide the image \[4,4\]", MAPS, {"image": np.zeros((4, 4)), "patches": (2, 3)}),
    "too many patches": (ValueError, "4 tokens, 0 of them special, for 4 x 2 patches", MAPS, {"image": np.zeros((4, 4)), "patches": (4, 2)}),
    "pixels": (ValueError, "the image has the pixel 255; pixels must be in", MAPS, {"image": np.full((4, 4), 255.0), "patches": (2, 2)}),
    "image of two sides": (ValueError, "image is only for self-attention, in which queries and keys are the same tokens, and keys are given", MAPS, {"keys": list("abcd"), "image": np.zeros((4, 4)), "patches": (2, 2)}),
    "changes": (ValueError, r"without is \[2, 2\]; it must be \[layers, heads\] = \[2, 3\] or a dict {\(layer, head\): change}", MAPS, {"without": np.zeros((2, 2))}),
    "head": (ValueError, "without has the head 1.3; source has the layers 0 to 1, each with the heads 0 to 2", MAPS, {"without": {(1, 3): 0.5}}),
    "endless": (ValueError, "without has the change inf for head 1.2; it must be finite", MAPS, {"without": {(1, 2): np.inf}}),
    "measure": (ValueError, "without_measure is given, but without is not; without_measure names the numbers of without", MAPS, {"annotations": polyhead.Annotations(without_measure=("a", "b"))}),
    "sets": (ValueError, "gate is for one set of maps; source has 2: Self-attention, Cross-attention", {"attentions": MAPS, "cross_attentions": MAPS}, {"computation": polyhead.Computation(gate=MAPS)}),
    "sizes": (ValueError, "source has sets of maps with 4 and 3 tokens; these numbers must be equal", {"decoder_attentions": MAPS, "cross_attentions": MAPS[:, :, :3]}, {}),
    "model": (ValueError, "special and axes may be given only with attention weights; source is the folder of a model", "folder", {"text": "a", "annotations": polyhead.Annotations(special=["a"], axes=("i", "j"))}),
}


@pytest.mark.parametrize("group", ["annotations", "computation", "size", "call"])
def test_a_group_of_another_type_is_named(group):
    names = {"annotations": "Annotations", "computation": "Computation", "size": "PageSize", "call": "ModelCall"}
    for wrong in ({}, (), polyhead.Tangents()):
        with pytest.raises(TypeError, match=f"{group} is of type {type(wrong).__name__}; it must be a polyhead.{names[group]}"):
            polyhead.view(MAPS, **{group: wrong})


def test_a_models_call_is_refused_with_attention_weights():
    for call, message in ((polyhead.ModelCall("a", truncate=True), "pair and truncate are for a model"), (polyhead.ModelCall(truncate=True), "truncate is for a model")):
        with pytest.raises(ValueError, match=f"{message}, and source is not the folder of one"):
            polyhead.view(MAPS, call=call)


def changes(entry):
    return {(layer, head): change for layer, head, change in entry["without"]}


def test_changes_without_a_head_are_those_that_were_measured():
    measured = {(1, 2): 0.25, (0, 0): -3.5e-7}
    assert changes(sets_of(polyhead.view(MAPS, without=measured))[0]) == measured
    table = random.standard_normal((2, 3)).astype(np.float32)
    table[1, 1] = np.nan  # not measured
    page = polyhead.view(torch.tensor(MAPS), without=torch.tensor(table), annotations=polyhead.Annotations(without_measure=("loss added without it", "nats")))
    assert changes(sets_of(page)[0]) == {place: float(change) for place, change in np.ndenumerate(table) if place != (1, 1)}
    assert '"without_measure":{"name":"loss added without it","unit":"nats"}' in page.html
    batch = np.stack([MAPS, MAPS], 1)
    entries = sets_of(polyhead.view(batch, tokens=[list("abcd"), list("efgh")], without=[{(0, 1): 1}, table]))
    assert changes(entries[0]) == {(0, 1): 1} and len(changes(entries[1])) == 5


def test_a_models_heads_are_switched_off(tmp_path):
    torch.manual_seed(3)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "jumps"]
    model = transformers.BertModel(transformers.BertConfig(vocab_size=7, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16, max_position_embeddings=16, initializer_range=0.5)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(words))

    def embedding():
        with torch.no_grad():
            return model(torch.tensor([[2, 4, 5, 6, 4, 5, 3]])).last_hidden_state[0].double().mean(0)

    before, wanted = embedding(), {}
    for layer in range(2):
        for head in range(3):
            weight = model.encoder.layer[layer].attention.output.dense.weight
            kept = weight.detach().clone()
            with torch.no_grad():
                weight[:, 8 * head:8 * (head + 1)] = 0
            wanted[layer, head] = 1 - torch.nn.functional.cosine_similarity(before, embedding(), dim=0).item()
            with torch.no_grad():
                weight.copy_(kept)
    found = changes(sets_of(polyhead.view(tmp_path, "the fox jumps the fox", without="all"))[0])
    assert found.keys() == wanted.keys() and all(abs(found[place] - wanted[place]) < 1e-6 for place in wanted) and max(wanted.values()) > 1e-3
    assert changes(sets_of(polyhead.view(tmp_path, "the fox jumps the fox", without=[(1, 2), (0, 0), (1, 2)]))[0]).keys() == {(0, 0), (1, 2)}
    with pytest.raises(ValueError, match="there is no head 2.0; the model has the layers 0 to 1 and the heads 0 to 2"):
        polyhead.view(tmp_path, "the fox", without=[(2, 0)])
    with pytest.raises(TypeError, match='without is of type dict; it must be a list of .layer, head., or "all"'):
        polyhead.view(tmp_path, "the fox", without={(1, 0): 0.5})


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_what_was_given_and_what_may_be(case):
    kind, message, source, options = WRONG[case]
    with pytest.raises(kind, match=message):
        polyhead.view(source, **options)


def blocks_of(count, tokens):
    """Returns the bounds of the blocks of pooled maps: block i begins at token floor(i tokens / count)."""
    return [slice(i * tokens // count, (i + 1) * tokens // count) for i in range(count)]


def reference(q, k, causal=False, bias=0.0):
    scores = np.einsum("lhtd,lhsd->lhts", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1]) + bias
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return softmax(scores)


def pooled(p, height, width, of):
    return np.array([[[[of(p[layer, head, rows, columns]) for columns in blocks_of(width, p.shape[3])] for rows in blocks_of(height, p.shape[2])] for head in range(p.shape[1])] for layer in range(p.shape[0])])


def pooled_weights(entry):
    return np.array([[decoded(head, *entry["blocks"]) for head in heads] for heads in entry["weights"]])


@pytest.mark.parametrize("kind", [tuple, list])
def test_layers_without_maps_are_named(kind):
    layer = maps(1, 2, 3, 3)
    with pytest.raises(ValueError, match=r"source has None for layer 1 \(counted from 0\).*shows layer 2 as 1$"):
        polyhead.view(kind([layer, None, layer]))
    with pytest.raises(ValueError, match=r"None for the layers 0, 2 \(counted from 0\).*shows layer 1 as 0, 3 as 1$"):
        polyhead.view(kind([None, layer, None, layer]))
    with pytest.raises(ValueError, match=r"None for layer 2 \(counted from 0\).*if layer is not None\]$"):
        polyhead.view(kind([layer, layer, None]))
    with pytest.raises(ValueError, match=r"source.attentions has None for layer 0"):
        polyhead.view({"attentions": kind([None, layer])})
    with pytest.raises(ValueError, match="None for every layer; call the model with output_attentions=True"):
        polyhead.view(kind([None, None]))
    with pytest.raises(TypeError, match=f"source is a {kind.__name__} of str"):
        polyhead.view(kind([layer, "layer"]))


def test_a_wrong_number_of_words_is_named_with_its_text():
    batch, words = maps(2, 2, 3, 3), list("abc")
    for options, message in (
        ({"tokens": [words, list("ab")]}, r"text 1 of 2 \(counted from 0\): tokens has 2 words; source has 3 queries, and each needs one"),
        ({"tokens": [list("abcd"), words]}, r"text 0 of 2 \(counted from 0\): tokens has 4 words"),
        ({"tokens": [words] * 2, "keys": [words, list("ab")]}, r"text 1 of 2 \(counted from 0\): keys has 2 words; source has 3 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            polyhead.view([batch], **options)
    with pytest.raises(ValueError, match="^tokens has 2 words; source has 3 queries"):
        polyhead.view(batch[0], tokens=list("ab"))


@pytest.mark.parametrize("pooling, of", [("largest", np.max), ("mean", lambda block: block.sum(1).mean()), ("sum", lambda block: block.sum(1).mean())])
def test_pooled_pages_have_the_blocks_of_the_whole_map(pooling, of):
    q, k = random.standard_normal((2, 3, 50, 8)).astype(np.float32), random.standard_normal((2, 3, 34, 8)).astype(np.float32)
    bias = random.standard_normal((2, 1, 50, 34)).astype(np.float32)
    (entry,) = sets_of(polyhead.view(computation=polyhead.Computation(q=q, k=k, bias=bias), size=polyhead.PageSize(pooling=pooling, pooled_blocks=7)))
    expected = pooled(reference(q, k, bias=bias), 7, 7, of)
    assert entry["pooled"] == ("largest" if pooling == "largest" else "share") and entry["blocks"] == [7, 7]
    assert np.abs(pooled_weights(entry) - expected).max() <= BOUND + 1e-6
    assert (len(entry["queries"]["pieces"]), len(entry["keys"]["pieces"])) == (50, 34)
    words = [f"w{place}" for place in range(50)], [f"s{place}" for place in range(34)]
    own = polyhead.pooled_map(q, k, 7, 7, pooling=pooling, bias=bias)
    (same,) = sets_of(polyhead.view(own, tokens=words[0], keys=words[1], size=polyhead.PageSize(pooling=pooling)))
    assert same["weights"] == entry["weights"] and same["keys"]["pieces"] == words[1]


def test_maps_that_fit_are_computed_whole_and_longer_ones_pooled(monkeypatch):
    q, k, v = random.standard_normal((3, 2, 3, 40, 8)).astype(np.float32)
    (entry,) = sets_of(polyhead.view(computation=polyhead.Computation(q=q, k=k, v=v, causal="top_left")))
    holds(entry, reference(q, k, causal=True))
    assert "vectors" in entry and "pooled" not in entry
    told = []
    monkeypatch.setattr(polyhead._core, "most_attention_weights", 2 * 3 * 40 * 40 - 1)
    (entry,) = sets_of(polyhead.view(computation=polyhead.Computation(q=list(q), k=list(k), causal="top_left", progress=lambda done, total: told.append((done, total)))))
    assert entry["pooled"] == "largest" and entry["blocks"] == [40, 40]
    assert np.abs(pooled_weights(entry) - pooled(reference(q, k, causal=True), *entry["blocks"], np.max)).max() <= BOUND + 1e-6
    assert told[-1][0] == told[-1][1] and sorted(told) == told


def test_arguments_for_single_tokens_are_refused_with_pooled_maps():
    q = k = random.standard_normal((2, 40, 8)).astype(np.float32)
    source, words = maps(2, 4, 4), [str(place) for place in range(40)]
    with pytest.raises(ValueError, match="v is given, and the page has pooled maps"):
        polyhead.view(computation=polyhead.Computation(q=q, k=k, v=k), size=polyhead.PageSize(pooled_blocks=4))
    with pytest.raises(ValueError, match="pooling needs tokens"):
        polyhead.view(source, size=polyhead.PageSize(pooling="largest"))
    with pytest.raises(ValueError, match="q, k: these show how one attention weight is computed"):
        polyhead.view(source, tokens=words, size=polyhead.PageSize(pooling="largest"), computation=polyhead.Computation(q=q, k=k))
    of_tokens = [("annotations", polyhead.Annotations(**{name: value})) for name, value in {"special": [0] * 40, "segments": [0] * 40, "links": [(0, 0)], "block_keys": [0] * 40}.items()]
    of_heads = [("computation", polyhead.Computation(**{name: value})) for name, value in {"gate": maps(2, 40, 3), "pair_bias": source}.items()]
    for group, arguments in of_tokens + of_heads:
        (name,) = (name for name, value in arguments._asdict().items() if value is not None)
        with pytest.raises(ValueError, match=f"{name} may be given only for maps of single tokens"):
            polyhead.view(source, tokens=words, size=polyhead.PageSize(pooling="largest"), **{group: arguments})
    with pytest.raises(ValueError, match="pooled_blocks is 9000; with 2 heads it must be from 1 to 5792"):
        polyhead.view(computation=polyhead.Computation(q=q, k=k), size=polyhead.PageSize(pooled_blocks=9000))
    with pytest.raises(TypeError, match="source is None.* or q and k must be given in computation"):
        polyhead.view(computation=polyhead.Computation(k=k))
    with pytest.raises(ValueError, match="q has 1 layers and k 2"):
        polyhead.view(computation=polyhead.Computation(q=q, k=[k, k]))
