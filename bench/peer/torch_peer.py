"""The peer PyTorch: F.scaled_dot_product_attention, and layers that add projections."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import encoder, rules
from .cases import Case, Encoder, relative_index
from .runner import Work, pads

name = "torch"
version = torch.__version__


def start(threads: int) -> None:
    torch.set_num_threads(threads)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory. bfloat16 is passed as int16 with the same bits, because PyTorch does not know NumPy's bfloat16."""
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if array.dtype == "bfloat16" else torch.from_numpy(array)


def _heads(x: torch.Tensor, case: Case) -> torch.Tensor:
    return x.unflatten(-1, (case.N, case.H)).transpose(1, 2)


class _Encoder:
    def __init__(self, case: Case) -> None:
        self.case = case

    def rows(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, table)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, encoder.EPSILON)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    def attend(self, *qkv: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*(_heads(x, self.case) for x in qkv)).transpose(1, 2).flatten(2)

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x.mean(1), dim=-1)


@pads
def prepare(case: Case, arrays: dict[str, np.ndarray]) -> Work:
    t = {key: _tensor(array) for key, array in arrays.items()}
    leaves = [tensor.requires_grad_() for key, tensor in t.items() if case.backward and tensor.is_floating_point() and not key.startswith("d_")]

    score_mod = rules.RULES[case.rule].make(torch, t) if case.rule else None
    if case.bias == "relative":
        index = torch.from_numpy(relative_index(case.T, case.keys)).flatten().expand(case.N, -1)
    if case.bias == "alibi":
        distance = torch.arange(case.keys) - torch.arange(case.T)[:, None]
        later, distance = distance > 0, distance.abs().float()
        constant = None if case.backward else -t["slopes"].view(1, -1, 1, 1) * distance.masked_fill(later, torch.inf)

    def bias() -> torch.Tensor | None:
        if case.bias == "relative":
            return t["bias_table"].gather(1, index).view(1, case.N, case.T, case.keys)
        if case.bias == "alibi":  # the mask excludes later keys, because torch's function does not accept a mask together with is_causal
            return constant if constant is not None else (-t["slopes"].view(1, -1, 1, 1) * distance).masked_fill(later, -torch.inf)
        return t.get("bias")

    def attention() -> torch.Tensor:
        if case.rule:  # compute the formula, because torch's fused operation has no score rules
            positions = torch.arange(case.T)
            score = t["q"] @ t["k"].transpose(-1, -2) * case.scale
            score = score_mod(score, torch.arange(case.B)[:, None, None, None], torch.arange(case.N)[:, None, None], positions[:, None], positions)
            return torch.softmax(score, -1) @ t["v"]
        if case.sink:  # append a column for the sink logits to the scores, as gpt-oss does, because torch's fused operation has no sink
            scores = t["q"] @ t["k"].transpose(-1, -2) * case.scale
            column = t["sink"].view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ t["v"]
        if case.maps:  # compute the attention weights by their formula, because torch's fused operation does not return them
            weights = torch.softmax(t["q"] @ t["k"].transpose(-1, -2) * case.scale, -1)
            return weights @ t["v"]
        return F.scaled_dot_product_attention(
            t["q"], t["k"], t["v"], attn_mask=t.get("attend", bias()), dropout_p=case.dropout, is_causal=case.causal and case.bias != "alibi", enable_gqa=case.K > 0
        )

    def layer() -> torch.Tensor:
        x = t["x"]
        q, k, v = (_heads(F.linear(x, t[f"w_{n}"]), case) for n in "qkv")
        mask = None
        if case.layer == "gated":  # put the key mask into the bias, because torch's operation accepts only one of them
            mask = t["bias"].masked_fill(~t["attend_keys"], float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        if case.layer == "gated":
            out = torch.sigmoid(F.linear(x, t["w_g"], t["b_g"])) * out
        return F.linear(out, t["w_o"])

    def model() -> torch.Tensor:
        assert isinstance(case, Encoder)
        return encoder.forward(case, t, _Encoder(case))

    compute = {"attention": attention, "layer": layer, "encoder": model}[case.kind]

    def forward() -> object:
        with torch.no_grad():
            return compute()

    def both() -> object:
        out = compute()
        return out, torch.autograd.grad(out, leaves, t["d_out"])

    if case.second:
        t["d_out"].requires_grad_()

    def second() -> object:
        with sdpa_kernel(SDPBackend.MATH):  # torch's fused operations have no second derivatives
            out = compute()
        gradients = torch.autograd.grad(out, leaves, t["d_out"], create_graph=True)
        return out, torch.autograd.grad(gradients, [*leaves, t["d_out"]], [t[f"d_d_{key}"] for key in ("q", "k", "v", "bias") if key in t])

    if case.second:
        return Work(second, lambda result: result[0].detach().float().numpy())
    if case.backward:
        return Work(both, lambda result: result[0].detach().float().numpy())
    return Work(forward, lambda result: result.float().numpy())
