"""torch's FlexAttention, eager and compiled by torch.compile. Only for the cases of score rules."""

from __future__ import annotations

import warnings
from typing import Any

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

    def attend(*given: Any) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FlexAttention warns that it is not compiled
            return (_compiled if compile else flex_attention)(*given)

    return rules.torch_work(case, arrays, attend)
