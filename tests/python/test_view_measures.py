"""Compares the measures of heads over many texts, which `polyhead.view(folder, texts=[...])` and `polyhead view --texts` compute, with formulas in NumPy from the models' maps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polyhead
import polyhead.models
import pytest
from program_support import needs_program, page_data, view as run_view

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "and", "dog", ",", "."]
TEXTS = [
    "the cat sat on the mat and the cat sat on the dog .",
    "dog , cat , mat , dog",
    "the dog",
    "cat",
    "the the the cat",
    "on the mat the dog and the cat sat , and the dog sat on the cat .",
    "sat on mat",
]
# The page has six decimals, and both maps are float32. Entropy and distance multiply errors of weights by up to log2(1/p) and |t - s|, 20 for the longest text.
ROUNDING = {"entropy": 3e-5, "distance": 3e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=16, max_position_embeddings=32, initializer_range=0.7)
    transformers.BertModel(config).eval().save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return path


def maps_of(folder: Path, text: str) -> tuple[Any, list[str]]:
    """The attention weights [layers, heads, T, T] that transformers computes, and the tokens."""
    tokens = ["[CLS]", *text.split(), "[SEP]"]
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(torch.tensor([[WORDS.index(token) for token in tokens]]), output_attentions=True)
    return torch.stack(out.attentions)[:, 0].double().numpy(), tokens


def kinds_of_keys(tokens: list[str]) -> Any:
    """Returns [T, T]: a number that identifies key s for query t, either the place of the key or its distance from the query."""
    T = len(tokens)
    return np.array([[s if s == 0 or tokens[s].startswith("[") else 1000 + s - t for s in range(T)] for t in range(T)])


def measure(p: Any, tokens: list[str]) -> dict[str, float]:
    """The measures of one map by their formulas; measures that are not defined are left out."""
    T = len(tokens)
    rows = [t for t in range(T) if not tokens[t].startswith("[")]
    earlier = {t: [s for s in range(t) if tokens[s] == tokens[t]] for t in rows}
    entropy = -(p * np.log2(np.where(p > 0, p, 1))).sum(-1)
    kinds = kinds_of_keys(tokens)

    def predicted(t: int) -> Any:
        row = np.zeros(T)
        for s in range(T):
            same = [p[u, r] for u in rows for r in range(T) if u != t and kinds[u, r] == kinds[t, s]]
            row[s] = np.mean(same) if same else 0
        return row / row.sum() if row.sum() > 0 else row

    values: dict[str, list[float]] = {
        "previous": [p[t, t - 1] for t in rows if t > 0],
        "next": [p[t, t + 1] for t in rows if t + 1 < T],
        "same": [p[t, t] for t in rows],
        "first": [p[t, 0] for t in rows],
        "sink": [p[t, 0] for t in rows if t >= 2 and tokens[t] != tokens[0]],
        "separators": [sum(p[t, s] for s in range(1, T) if tokens[s].startswith("[")) for t in rows],
        "induction": [p[t, [s for s in range(1, t + 1) if tokens[s - 1] == tokens[t]]].sum() for t in rows if earlier[t]],
        "duplicate": [p[t, earlier[t]].sum() for t in rows if earlier[t]],
        "positional": [np.minimum(p[t] / p[t].sum(), predicted(t)).sum() for t in rows] if len(rows) > 1 else [],
        "entropy": [entropy[t] for t in rows],
        "distance": [sum(p[t, s] * abs(t - s) for s in range(T)) for t in rows],
    }
    return {name: float(np.mean(list_)) for name, list_ in values.items() if list_}


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    """For each text an array of dicts [layers, heads]."""
    result = []
    for text in TEXTS:
        maps, tokens = maps_of(folder, text)
        result.append([[measure(head, tokens) for head in layer] for layer in maps])
    return result


def check(expected: list[Any], measured: Callable[[str, int, int], dict[str, Any]], names: list[str]) -> None:
    assert set(names) == {"previous", "next", "same", "first", "sink", "separators", "induction", "duplicate", "positional", "entropy", "distance"}
    for name in names:
        limit = {"positional": 0.75, "first": np.inf, "entropy": np.inf, "distance": np.inf}.get(name, 0.5)
        for layer in range(3):
            for head in range(4):
                values = [text[layer][head][name] for text in expected if name in text[layer][head]]
                found = measured(name, layer, head)
                assert found["count"] == len(values)
                assert found["mean"] == pytest.approx(np.mean(values), abs=ROUNDING.get(name, 1.5e-6)), (name, layer, head)
                assert found["spread"] == pytest.approx(np.std(values, ddof=1), abs=ROUNDING.get(name, 1.5e-6)), (name, layer, head)
                assert found["held"] == sum(value >= limit for value in values)


def test_the_page_has_the_mean_and_the_spread_of_each_measure(folder: Path, expected: list[Any]) -> None:
    data = page_data(polyhead.view(folder, texts=TEXTS).html)
    assert [entry["text"] for entry in data["texts"]] == TEXTS[:1]  # the maps of the other texts are not in the page
    assert data["start"] == "#heads=scatter" and data["measured"]["texts"] == len(TEXTS) and data["measured"]["tokens"] == [3, 20]
    values = data["measured"]["values"]
    check(expected, lambda name, layer, head: dict(zip(("mean", "spread", "count", "held"), values[name][4 * layer + head], strict=True)), list(values))
    assert len({head["induction"] for text in expected for layer in text for head in layer if "induction" in head}) > 12


@needs_program
def test_the_program_gives_the_same_numbers_as_json(folder: Path, expected: list[Any], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    measured = json.loads(run_view(folder, "--texts", str(tmp_path / "texts.txt"), "--json").stdout)["measured"]
    assert measured["texts"] == len(TEXTS)
    check(expected, lambda name, layer, head: {**measured["values"][name][layer][head], "count": measured["values"][name][layer][head]["texts"]}, list(measured["values"]))
    for name, layers in measured["values"].items():
        for head in (head for layer in layers for head in layer):
            assert head["named"] == (name not in ("first", "entropy", "distance") and head["texts"] >= 5 and head["held"] >= 0.9 * head["texts"])


@needs_program
def test_the_terminal_ranks_heads_and_names_them(folder: Path, expected: list[Any], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    shown = run_view(folder, "--texts", str(tmp_path / "texts.txt")).stdout
    assert "7 texts of 3 to 20 tokens; 12 heads" in " ".join(shown.split())
    means = {(layer, head): np.mean([text[layer][head]["previous"] for text in expected]) for layer in range(3) for head in range(4)}
    best = max(means, key=lambda place: means[place])
    assert re.search(rf"previous token +{best[0]}\.{best[1]} {means[best]:.2f} ± ", shown)


@needs_program
def test_a_text_that_is_given_is_the_one_that_is_shown(folder: Path, tmp_path: Path) -> None:
    data = page_data(polyhead.view(folder, "the dog sat", texts=TEXTS[:2]).html)
    assert [entry["text"] for entry in data["texts"]] == ["the dog sat"] and data["measured"]["texts"] == 2
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    run_view(folder, "--text", "the dog sat", "--texts", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "page.html"))
    shown = page_data((tmp_path / "page.html").read_text())
    assert [entry["text"] for entry in shown["texts"]] == ["the dog sat"] and shown["measured"]["texts"] == len(TEXTS)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"texts": "the cat"}, TypeError, "texts is of type str; it must be a list of str"),
        ({"texts": []}, ValueError, "texts is empty"),
        ({"texts": ["cat"], "call": polyhead.ModelCall(generate=2)}, ValueError, "cannot be combined with generate = 2"),
        ({"texts": ["cat"], "image": np.zeros((4, 4, 3), np.uint8)}, ValueError, "leave one of the two out"),
        ({"texts": ["cat", "the " * 40]}, ValueError, "texts[1]: "),
        ({"texts": ["the " * 40]}, ValueError, "42"),
        ({"texts": [3, "cat"]}, TypeError, "texts[0] is of type int; it must be a str"),
        ({"texts": ["cat", None], "text": "dog"}, TypeError, "texts[1] is of type NoneType; it must be a str"),
        ({"texts": ["cat"], "call": polyhead.ModelCall(pair="dog")}, ValueError, "pair is the second part of text, and text is not given"),
    ],
)
def test_wrong_texts_are_refused_by_name(folder: Path, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        polyhead.view(folder, **arguments)


LONG = """
import sys, resource, polyhead
small = polyhead.view(sys.argv[1], "cat", texts=["cat"])  # a first call, which loads all that the model and the page need
resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
try:
    polyhead.view(sys.argv[1], "cat", texts=["cat", "the " * 60000])
except ValueError as error:
    print(error)
"""


def test_texts_whose_maps_exceed_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    config = transformers.BertConfig(vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=4, intermediate_size=4, max_position_embeddings=60002)
    transformers.BertModel(config).eval().save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    words = "texts: the attention weights of all heads of a text of 60002 tokens are 14400960016 numbers of 4 bytes"
    told = subprocess.run([sys.executable, "-c", LONG, str(path)], capture_output=True, text=True, timeout=600)
    assert words in told.stdout, told.stderr


def test_texts_are_refused_for_arrays_of_weights() -> None:
    with pytest.raises(ValueError, match="texts is for a model"):
        polyhead.view(np.full((1, 2, 2), 0.5, np.float32), texts=["a b"])


@needs_program
def test_the_program_refuses_what_does_not_fit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("cat\n" + "the " * 40 + "\n")
    told = run_view(folder, "--texts", str(tmp_path / "texts.txt"), status=1).stderr
    assert "line 2 of --texts has 42 tokens; the model takes at most 32" in told
    told = run_view(folder, "--texts", str(tmp_path / "texts.txt"), "--generate", "2", status=2).stderr
    assert "--texts measures heads on the given texts; it cannot be combined with --generate" in " ".join(told.split())
