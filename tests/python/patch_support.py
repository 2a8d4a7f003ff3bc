"""Helpers of the tests of polyhead.patch: compare a call with a package's own code and with polyhead, and count the calls of polyhead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyhead.patch import Patch, _boltz, _esm, _esmc, _layer, _openfold
from torch_support import gradients, require_equal

Call = Callable[[], Any]


class Counter:
    """Counts how often the methods that a patch has replaced call polyhead."""

    def __init__(self) -> None:
        self.calls = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    result = Counter()
    for module, name in ((_boltz, "attend"), (_boltz, "heads_with_pair_bias"), (_openfold, "attend"), (_esm, "attention"), (_esmc, "attention"), (_layer, "attend")):

        def counted(*arguments: Any, own: Callable[..., Any] = getattr(module, name), **keywords: Any) -> Any:
            result.calls += 1
            return own(*arguments, **keywords)

        monkeypatch.setattr(module, name, counted)
    return result


def randomize(module: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Fills all parameters with random numbers: some of the packages' initial values are 0, which would hide errors."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5))
    return module


def outputs(found: Any, name: str = "out") -> dict[str, Tensor]:
    """Returns the floating tensors of a result, with names such as "out.0" that say where they are."""
    if isinstance(found, Tensor):
        return {name: found} if found.is_floating_point() else {}
    items = found.items() if isinstance(found, Mapping) else enumerate(found) if isinstance(found, (list, tuple)) else ()
    return {key: tensor for i, value in items for key, tensor in outputs(value, f"{name}.{i}").items()}


def require_same(
    patch: Callable[[], Patch], call: Call, inputs: Mapping[str, Tensor], module: nn.Module, counter: Counter, calls: int | None = None, tolerance: float = 1e-6,
    grad: bool = True,
) -> None:  # fmt: skip
    """Compares outputs, and gradients of inputs and parameters, with and without the patch. calls: the expected number of calls of polyhead; None: at least one. If it is 0,
    the results must have the same bits. tolerance: that of outputs; gradients have ten times this tolerance. grad: with False, computes outputs without gradients."""
    tensors = dict(inputs) | {f"p.{name}": parameter for name, parameter in module.named_parameters()}

    def results() -> dict[str, Tensor]:
        torch.manual_seed(7)
        if not grad:
            with torch.no_grad():
                return outputs(call())
        found = outputs(call())
        return gradients(found, {name: x for name, x in tensors.items() if x.requires_grad}, 3) if any(x.requires_grad for x in found.values()) else found

    exact = results()
    before = counter.calls
    with patch():
        found = results()
    used = counter.calls - before
    assert used > 0 if calls is None else used == calls, f"{used} calls of polyhead"
    if calls == 0:
        assert found.keys() == exact.keys() and all(torch.equal(found[name].nan_to_num(7.0), exact[name].nan_to_num(7.0)) for name in exact)
    else:
        single = tolerance > 1e-9
        for prefix, allowed, terms in (("out", tolerance, 1.0), ("d_", 10 * tolerance, 10.0)):
            sides = [{name: tensor for name, tensor in results.items() if name.startswith(prefix)} for results in (found, exact)]
            # A gradient is a sum over all pairs. The gradient of a number that is added to all scores of a row is exactly 0, so it holds only rounding errors.
            require_equal(*sides, allowed, dict.fromkeys(sides[0], terms) if single else None)
