"""Compares the time of layers of polyhead.torch with polyhead's layer on NumPy arrays and with torch's layers, forward and forward+backward.

    python bench/torch_layers.py [--threads 1] [--seconds 3]

The three layers are timed in turn; the script prints the fastest call of each, in microseconds. polyhead's layer on NumPy arrays shows the time without
the overhead of torch: it records no graph. Like the two others it packs its parameters in each call. torch's layers are nn.MultiheadAttention, and a gated layer
that is built from F.scaled_dot_product_attention.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import polyhead
import torch
import torch.nn.functional as F
from polyhead.torch import GatedAttention, MultiheadAttention
from torch import Tensor, nn


def multihead(batch: int, length: int, width: int, heads: int) -> tuple[Tensor, tuple[Tensor, ...], polyhead.MultiHeadAttention, dict[str, nn.Module]]:
    theirs, ours = nn.MultiheadAttention(width, heads, batch_first=True), MultiheadAttention(width, heads, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    own = polyhead.load({name: x.detach() for name, x in theirs.state_dict().items()}, heads=heads)
    return torch.randn(batch, length, width), (), own, {"polyhead.torch": ours, "torch": theirs}


class GatedByTorch(nn.Module):
    """A gated layer made of torch's operators, with the parameters of a GatedAttention whose axis is -2."""

    def __init__(self, of: GatedAttention) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        of = self.of
        q, k, v = (linear(x).unflatten(-1, (of.heads, of.c)).transpose(-2, -3) for linear in (of.linear_q, of.linear_k, of.linear_v))
        y = F.scaled_dot_product_attention(q, k, v, bias).transpose(-2, -3).flatten(-2)
        return of.linear_o(torch.sigmoid(of.linear_g(x)) * y)  # type: ignore[misc, no-any-return]


def gated(rows: int, length: int, width: int, heads: int) -> tuple[Tensor, tuple[Tensor, ...], polyhead.MultiHeadAttention, dict[str, nn.Module]]:
    ours = GatedAttention(width, width // heads, heads, gated=True)
    own = polyhead.load({name: x.detach() for name, x in ours.state_dict().items()}, heads=heads, layout="alphafold")
    bias = torch.randn(heads, length, length, requires_grad=True)
    return torch.randn(rows, length, width), (bias,), own, {"polyhead.torch": ours, "torch": GatedByTorch(ours)}


CASES: dict[str, Callable[[], tuple[Tensor, tuple[Tensor, ...], polyhead.MultiHeadAttention, dict[str, nn.Module]]]] = {
    "1 x S9, E64, 4 heads": lambda: multihead(1, 9, 64, 4),
    "8 x S128, E384, 12 heads": lambda: multihead(8, 128, 384, 12),
    "2 x S512, E768, 12 heads": lambda: multihead(2, 512, 768, 12),
    "gated 128 x 128, c 128, 4 heads": lambda: gated(128, 128, 128, 4),
    "gated 128 x 256, c 256, 8 heads": lambda: gated(128, 256, 256, 8),
}


def calls(x: Tensor, more: tuple[Tensor, ...], own: polyhead.MultiHeadAttention, layers: dict[str, nn.Module], backward: bool) -> dict[str, Callable[[], object]]:
    """For each of the three layers, by its name, a function that calls the layer once."""
    array, d_out = x.numpy(), torch.randn_like(x)
    options: dict[str, Any] = {"bias": more[0].detach().numpy()[None]} if more else {}

    def by_numpy() -> object:
        if not backward:
            return own(array, **options)
        return own.forward(array, **options)[1].backward(d_out.numpy())

    def by_torch(layer: nn.Module) -> object:
        inputs = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x, *more)
        settings = {"need_weights": False} if isinstance(layer, nn.MultiheadAttention) else {}
        with torch.set_grad_enabled(backward):
            out = layer(*inputs, **settings)
        out = out[0] if isinstance(out, tuple) else out
        return torch.autograd.grad(out, [x, *more, *layer.parameters()], d_out) if backward else out

    x.requires_grad_(backward)
    return {"engine": by_numpy} | {name: (lambda layer=layer: by_torch(layer)) for name, layer in layers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="time of measurement for each case (default: 3)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    polyhead.set_num_threads(given.threads)
    widths = {"engine": 12, "polyhead.torch": 16, "torch": 12}
    print(" " * 54 + "".join(f"{name:>{width}}" for name, width in widths.items()))
    for name, make in CASES.items():
        made = make()
        for backward in (False, True):
            x = made[0].detach()
            every = calls(x, *made[1:], backward=backward)
            best = dict.fromkeys(every, float("inf"))
            # Seconds in which one layer is called again and again. If the layers alternated, each call would find the code and data of another layer in the caches.
            turn = 0.002
            end = time.perf_counter() + given.seconds
            while time.perf_counter() < end:
                for peer, call in every.items():
                    turn_end = time.perf_counter() + turn
                    while True:
                        begin = time.perf_counter()
                        call()
                        now = time.perf_counter()
                        best[peer] = min(best[peer], now - begin)
                        if now > turn_end:
                            break
            print(f"{name:36}{'forward+backward' if backward else 'forward':18}" + "".join(f"{1e6 * best[peer]:{width}.1f}" for peer, width in widths.items()))


if __name__ == "__main__":
    main()
