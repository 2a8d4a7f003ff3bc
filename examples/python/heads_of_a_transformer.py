"""What every head of a transformers model looks at, with polyhead computing its attention.

    python heads_of_a_transformer.py MODEL_DIR [-o heads.html]

MODEL_DIR is a folder as transformers saves it, for instance sentence-transformers' all-MiniLM-L6-v2. With -o the maps are written as one offline HTML page.
"""

# %%
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a folder is read, nothing is fetched
try:
    import numpy as np
    import polyhead
except ImportError as error:
    sys.exit(f"this example needs polyhead, torch and transformers (pip install torch transformers): {error}")

SENTENCES = ["The quick brown fox jumps over the lazy dog.", "Attention is a weighted mean."]

parser = argparse.ArgumentParser(description="Per-head attention maps of a transformers model.")
parser.add_argument("model", type=Path, help="the model's folder: config.json, weights, tokenizer")
parser.add_argument("-o", "--output", type=Path, help="write an HTML page of all heads")
arguments = parser.parse_args()
if not (arguments.model / "config.json").is_file():
    sys.exit(f"{arguments.model} has no config.json; MODEL_DIR must be the folder of a transformers model")
if arguments.output is not None and not arguments.output.absolute().parent.is_dir():
    sys.exit(f"{arguments.output.absolute().parent} is no folder; PAGE must be a file in one that exists")
try:
    import torch
    import transformers

    import polyhead.transformers
except ImportError as error:
    sys.exit(f"this example needs torch and transformers (pip install torch transformers): {error}")

# %% One call registers the implementation "polyhead"; attn_implementation= then selects it for a model.
polyhead.transformers.register()
try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")  # of unequal lengths: the shorter one is padded
    models = {name: transformers.AutoModel.from_pretrained(arguments.model, attn_implementation=name).eval() for name in ("polyhead", "eager")}
except NotImplementedError as error:  # a family whose attention polyhead cannot compute
    sys.exit(str(error))
except (OSError, ValueError) as error:
    sys.exit(f"{arguments.model} is no model of transformers with a tokenizer: {str(error).splitlines()[0]}")


def run(implementation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden state [B,T,E], and the maps of all layers [layers,B,N,T,T]."""
    with torch.inference_mode():
        result = models[implementation](**inputs, output_attentions=True)
    return result.last_hidden_state, torch.stack(result.attentions)


# %% The same model with transformers' own attention gives the same numbers.
(hidden, maps), (eager_hidden, eager_maps) = run("polyhead"), run("eager")
is_padding = inputs["attention_mask"] == 0
words = ~is_padding  # what a model computes for padding has no meaning, and rounding differences grow there
difference = max(distance[words].max().item() for distance in ((hidden - eager_hidden).abs(), (maps - eager_maps).abs().amax((0, 2, 4))))
print(f"maps {list(maps.shape)} [layers,B,N,T,T]; largest difference from eager {difference:.1e}")
assert difference <= 1e-5
assert (maps.masked_select(is_padding[:, None, None, :]) == 0).all()

# %% One line per head of the first sentence: the entropy of its attention, and its pair with the largest attention weight.
tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0][words[0]].tolist())
first = maps[:, 0, :, : len(tokens), : len(tokens)]
entropy = -(first * first.clamp(min=1e-30).log()).sum(-1).mean(-1)
print("layer head  entropy (nats)  strongest pair, special tokens left out")
inside = slice(1, len(tokens) - 1)
for layer, head in ((int(i), int(j)) for i, j in np.argwhere(entropy.numpy() <= np.sort(entropy.flatten().numpy())[7])):
    inner = first[layer, head, inside, inside]
    t, s = divmod(int(inner.argmax()), inner.size(1))
    print(f"{layer:5} {head:4}  {entropy[layer, head]:14.2f}  {tokens[1 + t]} -> {tokens[1 + s]} ({inner.max():.2f})")

# %% The page of the heads. A notebook would display it; this script writes it to a file.
if arguments.output is not None:
    page = polyhead.view(first.contiguous(), SENTENCES[0], tokens=tokens, title=arguments.model.name)
    page.save(arguments.output)
    print(f"wrote {arguments.output}, {len(page.html.encode()) / 1000:.0f} KB")
