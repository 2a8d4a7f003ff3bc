"""The score rules of the table, as functions with the signature of FlexAttention's score_mod. The functions work with torch and with NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import Case
from .runner import Work

CAP = 20.0
DOCUMENTS = 4
Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    make: Callable[[Any, dict[str, Any]], Function]  # make(numpy or torch, arrays) returns score_mod(score, b, h, q, k)
    arrays: Callable[[Case, np.random.Generator], dict[str, np.ndarray]] = lambda case, rng: {}  # makes the arrays that score_mod reads besides its arguments
    gradients: tuple[str, ...] = ()  # those of these arrays whose gradients are computed


def _normal(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal(shape, dtype=np.float32)


def _document(case: Case) -> np.ndarray:
    return (np.arange(case.T) * DOCUMENTS // case.T).astype(np.int64)


RULES: dict[str, Rule] = {
    "softcap": Rule(lambda xp, a: lambda score, b, h, q, k: CAP * xp.tanh(score / CAP)),
    "ALiBi": Rule(
        lambda xp, a: lambda score, b, h, q, k: score - a["slopes"][h] * abs(q - k),
        lambda case, rng: {"slopes": (2.0 ** (-8 * np.arange(1, case.N + 1) / case.N)).astype(np.float32)},
        ("slopes",),
    ),
    "relative table": Rule(
        lambda xp, a: lambda score, b, h, q, k: score + a["bias_table"][h, k - q + (a["bias_table"].shape[1] + 1) // 2 - 1],
        lambda case, rng: {"bias_table": _normal(case.N, 2 * case.T - 1)(rng)},
        ("bias_table",),
    ),
    "documents": Rule(lambda xp, a: lambda score, b, h, q, k: xp.where(a["document"][q] == a["document"][k], score, -float("inf")), lambda case, rng: {"document": _document(case)}),
    "tanh of distance": Rule(
        lambda xp, a: lambda score, b, h, q, k: score + a["factors"][h] * xp.tanh((q - k) * 0.02),
        lambda case, rng: {"factors": _normal(case.N)(rng)},
        ("factors",),
    ),
}


def bias(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The bias ``[N,T,T]`` of the rule tanh of distance, for which polyhead has no option."""
    distance = np.arange(case.T)[:, None] - np.arange(case.T)
    return arrays["factors"][:, None, None] * np.tanh(distance * 0.02).astype(np.float32)


def torch_work(case: Case, arrays: dict[str, np.ndarray], attend: Function) -> Work:
    """The work of a case whose peer computes attend(q, k, v, score_mod) on torch's tensors."""
    import torch

    t = {key: torch.from_numpy(array) for key, array in arrays.items()}
    leaves = [t[name].requires_grad_() for name in ("q", "k", "v", *RULES[case.rule].gradients)] if case.backward else []
    score_mod = RULES[case.rule].make(torch, t)

    def both() -> object:
        out = attend(t["q"], t["k"], t["v"], score_mod)
        return out, torch.autograd.grad(out, leaves, t["d_out"])

    def forward() -> object:
        with torch.no_grad():
            return (attend(t["q"], t["k"], t["v"], score_mod),)

    return Work(both if case.backward else forward, lambda result: result[0].detach().numpy())
