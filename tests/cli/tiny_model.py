"""A BERT-type model of a few kilobytes with arbitrary but fixed parameters, for tests that need no trained model."""
import json
import math

from tensor_files import save_safetensors

LAYERS, HEADS, WIDTH, HIDDEN, POSITIONS = 2, 2, 8, 16, 64
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "brown", "fox", "jump", "##s", "over", "lazy", "dog", "東", "京", "\u00e9tude"]
WORDS += [f"w{i}" for i in range(10)] + list("abcdefghijklmnopqrstuvwxyz") + ["##" + c for c in "abcdefghijklmnopqrtuvwxyz0123456789"]
# A word that is too long for a map in the terminal, which has to cut it.
WORDS += ["extraordinary"]


def values(count, seed):
    return [math.sin(12.9898 * (i + 1) + 78.233 * seed) * 0.8 for i in range(count)]


def tensors():
    shapes = {"embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
              "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
              "embeddings.token_type_embeddings.weight": (2, WIDTH),
              "embeddings.LayerNorm.weight": (WIDTH,), "embeddings.LayerNorm.bias": (WIDTH,)}
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            shapes[f"{at}attention.self.{name}.weight"] = (WIDTH, WIDTH)
            shapes[f"{at}attention.self.{name}.bias"] = (WIDTH,)
        for name, out, inner in (("attention.output.dense", WIDTH, WIDTH), ("intermediate.dense", HIDDEN, WIDTH), ("output.dense", WIDTH, HIDDEN)):
            shapes[f"{at}{name}.weight"] = (out, inner)
            shapes[f"{at}{name}.bias"] = (out,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{at}{name}.weight"] = (WIDTH,)
            shapes[f"{at}{name}.bias"] = (WIDTH,)
    return {name: ("F32", shape, values(math.prod(shape), seed)) for seed, (name, shape) in enumerate(shapes.items())}


CONFIG = {"model_type": "bert", "hidden_act": "gelu", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "max_position_embeddings": POSITIONS,
          "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "type_vocab_size": 2, "vocab_size": len(WORDS), "layer_norm_eps": 1e-12}


def write(folder, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    save_safetensors(folder / "model.safetensors", tensors(), {"format": "pt"})
    return folder
