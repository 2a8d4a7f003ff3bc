"""Compares polyhead with transformers on PyTorch for a Llama of about 100 million random parameters, with batch 1 and greedy decoding. Both take turns in one process.

    python3 bench/language_model.py [--threads 2] [--prompt 512] [--tokens 32] [--rounds 5] [--dtype float32] [--cache-dtype DTYPE]

Prints the median milliseconds of reading a prompt (up to the first token of the answer) and of each further token, and the ratios.
"""
import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import polyhead

arguments = argparse.ArgumentParser()
for name, default in {"threads": 2, "prompt": 512, "tokens": 32, "rounds": 5}.items():
    arguments.add_argument(f"--{name}", type=int, default=default)
arguments.add_argument("--dtype", default="float32")
arguments.add_argument("--cache-dtype", default=None)
options = arguments.parse_args()
torch.set_num_threads(options.threads)
torch.manual_seed(1)

config = transformers.LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12,
                                  max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=None)
theirs = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, options.dtype)).eval()
print(f"{sum(p.numel() for p in theirs.parameters()) / 1e6:.0f} million parameters, {options.dtype}, {options.threads} threads, prompt of {options.prompt}, torch {torch.__version__}, transformers {transformers.__version__}")
ids = torch.randint(0, 32000, (1, options.prompt))


@torch.inference_mode()
def run_theirs() -> tuple[float, float, list[int]]:
    start = time.perf_counter()
    out = theirs(ids, use_cache=True, logits_to_keep=1)
    token = out.logits[:, -1].argmax(-1, keepdim=True)
    answer, first = [token.item()], time.perf_counter()
    for _ in range(options.tokens - 1):
        out = theirs(token, past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        answer.append(token.item())
    return first - start, (time.perf_counter() - first) / (options.tokens - 1), answer


def run_ours() -> tuple[float, float, list[int]]:
    times = [time.perf_counter()]
    answer = ours.generate(ids[0].tolist(), options.tokens, cache_dtype=options.cache_dtype, num_threads=options.threads, on_token=lambda token: times.append(time.perf_counter()))
    return times[1] - times[0], (times[-1] - times[1]) / (options.tokens - 1), answer


with tempfile.TemporaryDirectory() as folder:
    theirs.save_pretrained(folder)
    ours = polyhead.models.load(folder)
    rounds = [(run_theirs(), run_ours()) for _ in range(options.rounds + 1)][1:]  # drop the first round, which only warms up
print("the same tokens:", all(a[2] == b[2] for a, b in rounds))
for index, what in ((0, "prompt"), (1, "token")):
    a, b = (statistics.median(pair[side][index] for pair in rounds) * 1e3 for side in (0, 1))
    print(f"{what}: transformers {a:.1f} ms, polyhead {b:.1f} ms, ratio {a / b:.2f}")
