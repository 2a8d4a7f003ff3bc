"""torch's FlexAttention, eager and compiled by torch.compile. Only for the cases of score rules."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch.nn.attention.flex_attention import flex_attention

from . import rules
from .cases import Case
from .runner import Unsupported, Work

name = "flex"
version = torch.__version__
_compiled = torch.compile(flex_attention, dynamic=False)


def start(threads: int) -> None:
    torch.set_num_threads(threads)


def prepare(case: Case, arrays: dict[str, np.ndarray], *, compile: bool = False) -> Work:  # noqa: A002
    if not case.rule:
        raise Unsupported("only for score rules")
    t = {key: torch.from_numpy(array) for key, array in arrays.items()}
    leaves = [t[name].requires_grad_() for name in ("q", "k", "v", *rules.RULES[case.rule].gradients)] if case.backward else []
    score_mod = rules.RULES[case.rule].make(torch, t)
    attend = _compiled if compile else flex_attention

    def both() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that FlexAttention is not compiled
            out = attend(t["q"], t["k"], t["v"], score_mod)
        return out, torch.autograd.grad(out, leaves, t["d_out"])

    def forward() -> object:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (attend(t["q"], t["k"], t["v"], score_mod),)

    return Work(both if case.backward else forward, lambda result: result[0].detach().numpy())
