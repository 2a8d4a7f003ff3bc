"""Computes the cases of score rules with options of polyhead instead: softcap, RelativeBias, a bias, documents. The times show what a rule costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import polyhead

from . import polyhead_peer, rules
from .cases import Case
from .polyhead_peer import start
from .runner import Unsupported, Work

__all__ = ["name", "prepare", "start", "version"]
name = "options"
version = polyhead.__version__


def prepare(case: Case, a: dict[str, np.ndarray]) -> Work:
    if not case.rule:
        raise Unsupported("only for score rules")
    arrays = {name: a[name] for name in ("q", "k", "v", "d_out") if name in a}
    plain = dataclasses.replace(case, rule="")
    if case.rule == "softcap":
        return polyhead_peer.prepare(plain, arrays, softcap=rules.CAP)
    if case.rule == "ALiBi":
        return polyhead_peer.prepare(plain, arrays, relative_bias=polyhead.RelativeBias(slopes=a["slopes"]))
    if case.rule == "relative table":
        return polyhead_peer.prepare(dataclasses.replace(plain, bias="relative"), arrays | {"bias_table": a["bias_table"]})
    if case.rule == "documents":
        return polyhead_peer.prepare(dataclasses.replace(plain, lengths=tuple(map(int, np.bincount(a["document"])))), arrays)
    return polyhead_peer.prepare(dataclasses.replace(plain, bias="shared"), arrays | {"bias": rules.bias(case, a)[None]})


