"""all-MiniLM-L6-v2, a sentence encoder of BERT's type (Devlin et al. 2018): reads the parameters, and defines the forward pass in terms of operations that each
peer implements."""

from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from .cases import Encoder

FOLDER = "POLYHEAD_MINILM_DIR"  # environment variable that peers.py --minilm sets, so that its child processes find the folder
EPSILON = 1e-12
WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.positions"


class Operations(Protocol):
    """The operations of the encoder, which each peer implements. x is [B,T,E]. The operations get the parameters in the form in which `forward` got them."""

    def rows(self, table: Any, ids: Any) -> Any: ...  # [B,T] -> [B,T,E]
    def add(self, x: Any, y: Any) -> Any: ...
    def linear(self, x: Any, weight: Any, bias: Any) -> Any: ...  # weight [out,in]
    def norm(self, x: Any, weight: Any, bias: Any) -> Any: ...  # layer norm over E; epsilon is EPSILON
    def gelu(self, x: Any) -> Any: ...  # the exact gelu, by erf
    def attend(self, q: Any, k: Any, v: Any) -> Any: ...  # attention of all heads, [B,T,E]
    def pool(self, x: Any) -> Any: ...  # returns [B,E]: the mean over T, scaled to length 1


class ArrayOperations:
    """Those operations that need only +, * and other operators of arrays, for peers whose arrays have the operators of NumPy's arrays."""

    def __init__(self, case: Any) -> None:
        self.case = case

    def rows(self, table: Any, ids: Any) -> Any:
        return table[ids]

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias


def forward(case: Encoder, w: Any, op: Operations) -> Any:
    def linear(x: Any, name: str) -> Any:
        return op.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return op.norm(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = norm(op.add(op.rows(w[WORDS], w["ids"]), w[POSITIONS]), "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(case.depth)):
        attended = op.attend(*(linear(x, f"{layer}.attention.self.{name}") for name in ("query", "key", "value")))
        x = norm(op.add(x, linear(attended, f"{layer}.attention.output.dense")), f"{layer}.attention.output.LayerNorm")
        inner = op.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(op.add(x, linear(inner, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")
    return op.pool(x)


def folder() -> pathlib.Path:
    return pathlib.Path(os.environ[FOLDER])


def missing(case: Encoder) -> str:
    """The reason why the model cannot be used; empty if it can."""
    if not os.environ.get(FOLDER):
        return "--minilm names no folder of the model"
    try:
        config = json.loads((folder() / "config.json").read_text())
    except (OSError, ValueError) as error:
        return str(error)
    sizes = {"hidden_size": case.width, "num_hidden_layers": case.depth, "num_attention_heads": case.N, "intermediate_size": case.inner_width}
    other = [f"{key} is {config.get(key)} and not {size}" for key, size in sizes.items() if config.get(key) != size]
    return f"{folder()} holds another model: {', '.join(other)}" if other else ""


def inputs(case: Encoder, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns ids [B,T] without padding, the position embeddings [T,E] to which the row of the first segment is added, and the other parameters by their names
    in the file."""
    from safetensors.numpy import load_file  # imported here, because only this case needs the package

    weights = load_file(folder() / "model.safetensors")
    arrays = {name: array for name, array in weights.items() if name.startswith(("encoder.", "embeddings.LayerNorm")) or name == WORDS}
    arrays[POSITIONS] = weights["embeddings.position_embeddings.weight"][: case.T] + weights["embeddings.token_type_embeddings.weight"][0]
    arrays["ids"] = rng.integers(len(arrays[WORDS]), size=(*case.leading, case.T))
    return arrays
