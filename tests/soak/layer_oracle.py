"""Layers of attention from their formulas (docs/maths.md, sections 2, 5 and 6), with torch's plain operations in float64 and arrays of all pairs. torch's autograd gives the
gradients. No attention, normalisation or linear function of torch and no code of polyhead is used."""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any
EMPTY = float("-inf")


def linear(x: Tensor, parameters: dict[str, Tensor], name: str) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, parameters[f"{name}.weight"])
    return y + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor, order: str, width: int) -> Tensor:
    """Rotates the first `width` features of x [..,T,H]."""
    a, b = (x[..., : width // 2], x[..., width // 2 : width]) if order == "halves" else (x[..., 0:width:2], x[..., 1:width:2])
    c, d = a * cos - b * sin, a * sin + b * cos
    rotated = torch.cat([c, d], -1) if order == "halves" else torch.stack([c, d], -1).flatten(-2)
    return torch.cat([rotated, x[..., width:]], -1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, scale: float, document: Tensor = None, softcap: float = 0.0, bias: Tensor = None, sink: Tensor = None,
    keep: Tensor = None, dropout: float = 0.0, empty_rows: str = "zero", score_mod: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns out [*,N,T,V] and p [*,N,T,S] of q [*,N,T,H], k [*,K,S,H], v [*,K,S,V] and allowed, bool [*,N,T,S]. document: bool [T,S]. sink: broadcasts to [*,N,T]."""
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    score = scale * torch.einsum("...th,...sh->...ts", q, k)
    if score_mod is not None:
        score = score_mod(score)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        score = score + bias
    used = allowed
    empty = ~allowed.any(-1, keepdim=True)
    if empty_rows != "zero":
        used = torch.where(empty, torch.ones_like(allowed) if document is None else document, allowed)
        if empty_rows == "uniform":
            score = torch.where(empty, 0.0, score)
    score = torch.where(used, score, EMPTY)
    last = score if sink is None else torch.cat([score, sink[..., None].expand(*score.shape[:-1], 1)], -1)
    if last.shape[-1] == 0:
        return v.new_zeros(*q.shape[:-1], v.shape[-1]) + 0 * v.sum() + 0 * q.sum(), score
    top = last.detach().amax(-1, keepdim=True)
    e = torch.exp(last - torch.where(torch.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdim=True)
    p = (e / torch.where(total == 0, 1.0, total))[..., : score.shape[-1]]
    # In an empty row the gradients of the scores and of the sink are 0.
    p = torch.where(torch.isneginf(score).all(-1, keepdim=True), 0.0, p)
    dropped = p if keep is None else p * keep * (0.0 if dropout >= 1 else 1 / (1 - dropout))
    return torch.einsum("...ts,...sv->...tv", dropped, v), p


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[*,T,N*H] -> [*,N,T,H]"""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-2, -3)


def merged(x: Tensor) -> Tensor:
    return x.transpose(-2, -3).flatten(-2)


def attention_layer(parameters: dict[str, Tensor], settings: dict[str, Any], query: Tensor, key: Tensor, value: Tensor, *, allowed: Tensor, document: Tensor = None, bias: Tensor = None,
                    sink: Tensor = None, keep: Tensor = None, rotary: Any = None, projected: Any = None, mean_of: Tensor = None) -> Tensor:  # fmt: skip
    """Equations 11 to 15 for inputs [*,T,E]. allowed [*,N,T,S] and bias cover the S keys of the input, keep also the added keys. projected: (k, v), which replace key and value.
    mean_of: bool [*,T], the positions whose mean is the global query."""
    n, kv = settings["heads"], settings["kv_heads"]
    asked = query
    if mean_of is not None:
        count = mean_of.sum(-1, keepdim=True)
        asked = ((query * mean_of[..., None]).sum(-2) / torch.where(count == 0, 1, count)).unsqueeze(-2)
    q = heads_of(linear(asked, parameters, "q"), n)
    if projected is None:
        k, v = heads_of(linear(key, parameters, "k"), kv), heads_of(linear(value, parameters, "v"), kv)
    else:
        k, v = projected
    if "q_norm.weight" in parameters:
        q = rms_norm(q, parameters["q_norm.weight"], settings.get("qk_epsilon", 1e-6))
        if projected is None:
            k = rms_norm(k, parameters["k_norm.weight"], settings.get("qk_epsilon", 1e-6))
    if rotary is not None:
        q = rotate(q, rotary["cos"], rotary["sin"], rotary["order"], rotary["width"])
        if projected is None:
            k = rotate(k, rotary["key_cos"], rotary["key_sin"], rotary["order"], rotary["width"])
    added = 0
    for there, row in (("bias_k" in parameters, lambda x, which: heads_of(parameters[f"bias_{which}"].flatten()[None], kv)), (settings.get("add_zero_attn"), lambda x, which: torch.zeros_like(x[..., :1, :]))):
        if there:
            added += 1
            grown = []
            for x, which in ((k, "k"), (v, "v")):
                more = row(x if x.shape[-2] else x.new_zeros(*x.shape[:-2], 1, x.shape[-1]), which)
                grown.append(torch.cat([x, more.expand(*x.shape[:-2], 1, x.shape[-1])], -2))
            k, v = grown
    if added:
        allowed = torch.cat([allowed, allowed.new_ones(*allowed.shape[:-1], added)], -1)
        if bias is not None:
            bias = torch.cat([bias, bias.new_zeros(*bias.shape[:-1], added)], -1)
        if document is not None:
            document = torch.ones(allowed.shape[-2:], dtype=torch.bool)
    if "sink" in parameters:
        sink = parameters["sink"][:, None]
    scale = settings["scale"] if settings.get("scale") is not None else q.shape[-1] ** -0.5
    out, _ = attend(q, k, v, allowed, document=document, scale=scale, softcap=settings.get("softcap", 0.0), bias=bias, sink=sink, keep=keep, dropout=settings.get("dropout", 0.0),
                    empty_rows=settings.get("empty_rows", "zero"))  # fmt: skip
    out = merged(out)
    if "gate.weight" in parameters:
        out = out * torch.sigmoid(linear(query, parameters, "gate"))
    return linear(out, parameters, "output") if "output.weight" in parameters else out


def of_prefix(parameters: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: x for name, x in parameters.items() if name.startswith(prefix + ".")}


def norm(x: Tensor, parameters: dict[str, Tensor], kind: str, epsilon: float) -> Tensor:
    return layer_norm(x, parameters["weight"], parameters.get("bias"), epsilon) if kind == "layer_norm" else rms_norm(x, parameters["weight"], epsilon)


def activate(x: Tensor, kind: str) -> Tensor:
    if kind == "gelu":
        return x * (1 + torch.erf(x / 2**0.5)) / 2
    if kind == "relu":
        return torch.where(x > 0, x, 0.0)
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "gelu_tanh":
        return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    raise AssertionError(kind)


def feed_forward(x: Tensor, parameters: dict[str, Tensor], activation: str) -> Tensor:
    hidden = linear(x, parameters, "hidden")
    if "gate.weight" in parameters:
        return linear(activate(linear(x, parameters, "gate"), activation) * hidden, parameters, "output")
    return linear(activate(hidden, activation), parameters, "output")


def stack_layer(x: Tensor, parameters: dict[str, Tensor], parts: list[tuple[str, Any]], settings: dict[str, Any]) -> Tensor:
    """Equations 28 to 29a. parts: (name, f) in order; the name is that of the part's norms. The norm of a part may be absent with "pre"."""
    position, kind, epsilon = settings["norm_position"], settings["norm"], settings["epsilon"]

    def of(name: str, y: Tensor) -> Tensor:
        own = of_prefix(parameters, name)
        return norm(y, own, kind, epsilon) if own else y

    if settings.get("parallel"):
        return x + sum(f(of(f"{name}_norm", x)) for name, f in parts)
    for name, f in parts:
        if position == "post":
            x = of(f"{name}_norm", x + f(x))
        elif position == "pre":
            x = x + f(of(f"{name}_norm", x))
        else:
            x = x + of(f"{name}_output_norm", f(of(f"{name}_norm", x)))
    return x
