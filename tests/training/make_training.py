"""Writes vectors.safetensors, what PyTorch computes in float64 for losses, optimizers and layers. test_training compares polyhead with these numbers.

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
torch.set_num_threads(1)
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

# Three steps with clipped gradients, without weight decay of the bias.
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


case = Case("rms_norm")
x, weight, d_y = case.randn("x", 3, 4, 10), case.randn("weight", 10), case.randn("d_y", 3, 4, 10)
y = case.put("y", torch.nn.functional.rms_norm(x, (10,), weight, 1e-3))
for name, gradient in zip(("x", "weight"), torch.autograd.grad((y * d_y).sum(), [x, weight])):
    case.put("d_" + name, gradient)

case = Case("swiglu")
x, d_y = case.randn("x", 3, 4, 6), case.randn("d_y", 3, 4, 5)
parameters = {f"{name}.{kind}": case.randn(f"{name}.{kind}", *shape[:2 if kind == "weight" else 1])
              for name, shape in (("hidden", (9, 6)), ("output", (5, 9)), ("gate", (9, 6))) for kind in ("weight", "bias")}
linear = lambda name, x: torch.nn.functional.linear(x, parameters[name + ".weight"], parameters[name + ".bias"])
y = case.put("y", linear("output", torch.nn.functional.silu(linear("gate", x)) * linear("hidden", x)))
for name, gradient in zip(["x", *parameters], torch.autograd.grad((y * d_y).sum(), [x, *parameters.values()])):
    case.put("d_" + name, gradient)


def attention_names(prefix, module):
    """Yields (polyhead's name, PyTorch's parameter, the rows of it) for each parameter of an attention layer."""
    width = module.embed_dim
    for i, letter in enumerate("qkv"):
        rows = slice(i * width, (i + 1) * width)
        yield f"{prefix}.{letter}.weight", module.in_proj_weight, rows
        yield f"{prefix}.{letter}.bias", module.in_proj_bias, rows
    yield f"{prefix}.output.weight", module.out_proj.weight, slice(None)
    yield f"{prefix}.output.bias", module.out_proj.bias, slice(None)


def own_names(prefix, module):
    for name, parameter in module.named_parameters():
        yield f"{prefix}.{name}", parameter, slice(None)


def stack_names(layers, norms, final):
    named = []
    for i, layer in enumerate(layers):
        at = f"layers.{i}."
        for ours, theirs in ([("self_attention", "self_attn"), ("cross_attention", "multihead_attn")] if "cross_attention" in norms else [("attention", "self_attn")]):
            named += attention_names(at + ours, getattr(layer, theirs))
        for number, ours in enumerate(norms, 1):
            named += own_names(f"{at}{ours}_norm", getattr(layer, f"norm{number}"))
        hidden = {"hidden": layer.linear1} if isinstance(layer.linear1, torch.nn.Linear) else dict(layer.linear1.named_children())
        for ours, module in (hidden | {"output": layer.linear2}).items():
            named += own_names(f"{at}feed_forward.{ours}", module)
    return named + (list(own_names("final_norm", final)) if final else [])


class GatedHidden(torch.nn.Module):
    """The hidden layer of SwiGLU: silu(gate x) * hidden x."""

    def __init__(self, width, hidden_width):
        super().__init__()
        self.hidden, self.gate = (torch.nn.Linear(width, hidden_width) for _ in range(2))

    def forward(self, x):
        return torch.nn.functional.silu(self.gate(x)) * self.hidden(x)


def with_rms_norm_and_swiglu(layer, norms):
    for number in range(1, norms + 1):
        setattr(layer, f"norm{number}", torch.nn.RMSNorm(8, eps=1e-5))
    layer.linear1, layer.activation = GatedHidden(8, 12), torch.nn.Identity()
    return layer


def stack(name, make_layer, norms, count, pre, padding, make_norm=torch.nn.LayerNorm):
    """Stores a stack of torch.nn layers with random parameters, and the gradients of sum(y d_y) that autograd computes."""
    case = Case(name)
    layers = torch.nn.ModuleList([make_layer(pre) for _ in range(count)])
    final = make_norm(8, eps=1e-5) if pre else None
    for parameter in [*layers.parameters(), *(final.parameters() if pre else [])]:
        parameter.data = torch.from_numpy(case.rng.uniform(-0.7, 0.9, tuple(parameter.shape)))
    x, d_y = case.randn("x", 2, 5, 8), case.randn("d_y", 2, 5, 8)
    y, inputs, mask = x, [x], torch.nn.Transformer.generate_square_subsequent_mask(5)
    if "cross_attention" in norms:
        memory = case.randn("memory", 2, 4, 8)
        inputs.append(memory)
    for layer in layers:
        if "cross_attention" in norms:
            y = layer(y, memory, tgt_mask=mask, memory_key_padding_mask=padding)
        else:
            y = layer(y, src_key_padding_mask=padding)
    y = final(y) if pre else y
    case.put("y", y)
    named = stack_names(layers, norms, final)
    grads = torch.autograd.grad((y * d_y).sum(), [*inputs, *(parameter for _, parameter, _ in named)])
    for key, gradient in zip(["x", "memory"], grads[:len(inputs)]):
        case.put("d_" + key, gradient)
    for (key, parameter, rows), gradient in zip(named, grads[len(inputs):]):
        case.put(key, parameter[rows])
        case.put("d_" + key, gradient[rows])


torch.backends.mha.set_fastpath_enabled(False)
options = dict(d_model=8, nhead=2, dim_feedforward=12, dropout=0.0, activation="gelu", batch_first=True)
for pre in (False, True):
    where = "pre" if pre else "post"
    stack("encoder." + where, lambda pre: torch.nn.TransformerEncoderLayer(**options, norm_first=pre), ["attention", "feed_forward"], 2, pre,
          torch.arange(5)[None] >= torch.tensor([5, 3])[:, None])
    stack("decoder." + where, lambda pre: torch.nn.TransformerDecoderLayer(**options, norm_first=pre), ["self_attention", "cross_attention", "feed_forward"], 2, pre,
          torch.arange(4)[None] >= torch.tensor([2, 4])[:, None])
    stack(f"encoder.{where}.rms_norm_swiglu", lambda pre: with_rms_norm_and_swiglu(torch.nn.TransformerEncoderLayer(**options, norm_first=pre), 2),
          ["attention", "feed_forward"], 2, pre, torch.arange(5)[None] >= torch.tensor([5, 3])[:, None], torch.nn.RMSNorm)
    stack(f"decoder.{where}.rms_norm_swiglu", lambda pre: with_rms_norm_and_swiglu(torch.nn.TransformerDecoderLayer(**options, norm_first=pre), 3),
          ["self_attention", "cross_attention", "feed_forward"], 2, pre, torch.arange(4)[None] >= torch.tensor([2, 4])[:, None], torch.nn.RMSNorm)



def encoder_decoder(name, pre, tied):
    """Stores a transformer: embeddings times sqrt(E) plus positions, encoder, decoder, logits. If `tied`, the embeddings of source and target and the output share one weight."""
    case = Case(name)
    encoder = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(**options, norm_first=pre) for _ in range(2)])
    decoder = torch.nn.ModuleList([torch.nn.TransformerDecoderLayer(**options, norm_first=pre) for _ in range(2)])
    finals = [torch.nn.LayerNorm(8) if pre else None for _ in range(2)]
    named = [("encoder." + key, *rest) for key, *rest in stack_names(encoder, ["attention", "feed_forward"], finals[0])]
    named += [("decoder." + key, *rest) for key, *rest in stack_names(decoder, ["self_attention", "cross_attention", "feed_forward"], finals[1])]
    target_count = 9 if tied else 7
    shapes = {"source_embedding.weight": (9, 8)} if tied else {"source_embedding.weight": (9, 8), "target_embedding.weight": (7, 8), "output.weight": (7, 8), "output.bias": (7,)}
    named += [(key, torch.nn.Parameter(torch.empty(shape)), slice(None)) for key, shape in shapes.items()]
    for parameter in {id(parameter): parameter for _, parameter, _ in named}.values():
        parameter.data = torch.from_numpy(case.rng.uniform(-0.7, 0.9, tuple(parameter.shape)))
    own = {key: parameter for key, parameter, _ in named}
    target_embedding = own.get("target_embedding.weight", own["source_embedding.weight"])
    source, target, d_y = case.integers("source", 9, 2, 5), case.integers("target", target_count, 2, 4), case.randn("d_y", 2, 4, target_count)
    angle = torch.arange(5.0)[:, None] * 10000 ** (-torch.arange(0.0, 8, 2) / 8)
    positions = torch.stack([angle.sin(), angle.cos()], -1).reshape(5, 8)
    padding = torch.arange(5)[None] >= torch.tensor([5, 3])[:, None]
    memory, y = own["source_embedding.weight"][source] * 8 ** 0.5 + positions, target_embedding[target] * 8 ** 0.5 + positions[:4]
    for layer in encoder:
        memory = layer(memory, src_key_padding_mask=padding)
    memory = finals[0](memory) if pre else memory
    for layer in decoder:
        y = layer(y, memory, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(4), memory_key_padding_mask=padding)
    y = finals[1](y) if pre else y
    y = case.put("y", torch.nn.functional.linear(y, own.get("output.weight", target_embedding), own.get("output.bias")))
    for (key, parameter, rows), gradient in zip(named, torch.autograd.grad((y * d_y).sum(), [parameter for _, parameter, _ in named])):
        case.put(key, parameter[rows])
        case.put("d_" + key, gradient[rows])


encoder_decoder("encoder_decoder.post", pre=False, tied=False)
encoder_decoder("encoder_decoder.pre", pre=True, tied=True)

# The loss is the sum of a loss on the output and a loss on the attention weights of the second head.
case = Case("attention_weights")
module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
for parameter in module.parameters():
    parameter.data = torch.from_numpy(case.rng.uniform(-0.7, 0.9, tuple(parameter.shape)))
named = [(key.removeprefix("attention."), *rest) for key, *rest in attention_names("attention", module)]
query, key, d_y, d_weights = case.randn("query", 2, 3, 8), case.randn("key", 2, 5, 8), case.randn("d_y", 2, 3, 8), case.randn("d_weights", 2, 3, 5)
y, weights = module(query, key, key, key_padding_mask=torch.arange(5)[None] >= torch.tensor([5, 3])[:, None], average_attn_weights=False)
loss = (y * d_y).sum() + (weights[:, 1] * d_weights).sum()
for (name, parameter, rows), gradient in zip(named, torch.autograd.grad(loss, [parameter for _, parameter, _ in named], retain_graph=True)):
    case.put(name, parameter[rows])
    case.put("d_" + name, gradient[rows])
for name, gradient in zip(("query", "key"), torch.autograd.grad(loss, [query, key])):
    case.put("d_" + name, gradient)

# 200 training steps of a pre-norm encoder with a linear layer on its output. With this learning rate, a change of the parameters by 1e-7 changes no loss by more than 6e-9.
# With a rate of 0.01 it changes a loss by 1.4e-3, which is also the error of PyTorch in float32.
case = Case("run")
encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**options, norm_first=True), 2, torch.nn.LayerNorm(8), enable_nested_tensor=False)
head = torch.nn.Linear(8, 11)
for parameter in [*encoder.parameters(), *head.parameters()]:
    parameter.data = torch.from_numpy(case.rng.uniform(-0.5, 0.5, tuple(parameter.shape)))
named = [("encoder." + name, *rest) for name, *rest in stack_names(encoder.layers, ["attention", "feed_forward"], encoder.norm)] + list(own_names("head", head))
for name, parameter, rows in named:
    case.put(name, parameter[rows])
x, targets = case.randn("x", 6, 7, 8).detach(), case.integers("targets", 11, 6, 7)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], weight_decay=0.05)
losses = []
for step in range(1, 201):
    optimizer.param_groups[0]["lr"] = 0.003 * step / 20 if step <= 20 else 0.0015 * (1 + np.cos(np.pi * (step - 20) / 180))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(head(encoder(x)).view(-1, 11), targets.view(-1), label_smoothing=0.1)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *head.parameters()], 0.5)
    optimizer.step()
    losses.append(loss.detach())
case.put("losses", torch.stack(losses))
print("loss of the run:", losses[0].item(), "to", losses[-1].item())

save_file(tensors, pathlib.Path(sys.argv[1]))
print(len(tensors), "tensors in", sys.argv[1])
