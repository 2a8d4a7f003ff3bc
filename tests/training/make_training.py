"""Writes vectors.safetensors: what PyTorch computes in float64 for losses, optimizers and layers, which test_training compares with.

    pip install torch==2.13.0 numpy safetensors
    python make_training.py vectors.safetensors

A tensor is named CASE.NAME; d_X is the gradient of X by autograd. The options of a case are in training_test.cc, under the same name.
"""
import pathlib
import sys
import zlib

import numpy as np
import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
tensors = {}


class Case:
    def __init__(self, name):
        self.name, self.rng = name, np.random.default_rng(zlib.crc32(name.encode()))

    def put(self, name, x):
        tensors[f"{self.name}.{name}"] = x.detach().clone().contiguous()
        return x

    def randn(self, name, *shape):
        return self.put(name, torch.from_numpy(self.rng.standard_normal(shape)).requires_grad_())

    def integers(self, name, high, *shape):
        return self.put(name, torch.from_numpy(self.rng.integers(0, high, shape)))


def cross_entropy(name, **options):
    case = Case("cross_entropy." + name)
    logits, targets = case.randn("logits", 12, 37), case.integers("targets", 37, 12)
    if "ignore_index" in options:
        targets[::3] = options["ignore_index"]
        case.put("targets", targets)
    loss = torch.nn.functional.cross_entropy(3 * logits, targets, **options)
    case.put("loss", loss)
    tensors[case.name + ".logits"] *= 3
    case.put("d_logits", torch.autograd.grad(loss, logits)[0] / 3)


cross_entropy("mean")
cross_entropy("sum", reduction="sum")
cross_entropy("ignored", ignore_index=-100)
cross_entropy("smoothed", ignore_index=-100, label_smoothing=0.1)

# Three steps with clipped gradients; the bias does not decay.
case = Case("adamw")
weight, bias = case.randn("weight", 4, 5), case.randn("bias", 4)
optimizer = torch.optim.AdamW([{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0}], lr=0.01, betas=(0.8, 0.95), eps=1e-6)
norms = []
for step in range(3):
    for parameter, name in ((weight, "weight"), (bias, "bias")):
        parameter.grad = case.randn(f"gradient{step}.{name}", *parameter.shape).detach().clone()
    norms.append(torch.nn.utils.clip_grad_norm_([weight, bias], 4.0 if step else 100.0))
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * (step + 1)
    optimizer.step()
case.put("norms", torch.stack(norms))
case.put("weight_after", weight)
case.put("bias_after", bias)

save_file(tensors, pathlib.Path(sys.argv[1]))
print(len(tensors), "tensors in", sys.argv[1])
