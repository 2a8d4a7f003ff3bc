"""Helpers of the tests that compare polyhead with torch: results with all gradients, and errors."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from effort import QUICK

EXAMPLES = 300 if QUICK else 2000
"""Number of random settings in each sweep against torch."""

Results = dict[str, Tensor]


@contextlib.contextmanager
def math_path() -> Iterator[None]:
    """Makes torch compute attention with its math path, that is with single operators and not with a fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def gradients(outputs: Mapping[str, Tensor | None], inputs: Mapping[str, Tensor], seed: int) -> Results:
    """Returns the outputs, and the gradients of a random linear function of all outputs by the inputs that require grad."""
    results = {name: output for name, output in outputs.items() if output is not None}
    wanted = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
    if wanted:
        generator = torch.Generator().manual_seed(seed)
        # The random factors are the same in every dtype, except for rounding.
        loss = torch.zeros((), dtype=torch.float64)
        for name in sorted(results):
            weight = torch.randn(results[name].shape, generator=generator, dtype=torch.float64).float()
            loss = loss + (results[name] * weight.to(results[name].dtype)).sum()
        # If all tensors are empty, torch's result may not depend on its inputs.
        grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True) if loss.requires_grad else (None,) * len(wanted)
        results |= {f"d_{name}": torch.zeros_like(wanted[name]) if grad is None else grad for name, grad in zip(wanted, grads)}
    return {name: tensor.detach() for name, tensor in results.items()}


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Converts floating tensors to another dtype, with the same strides and requires_grad."""

    def one(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(dtype, copy=True, memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)

    return {name: one(tensor) for name, tensor in tensors.items()}


def error(result: Tensor, exact: Tensor, floor: float = 0.0) -> float:
    """Returns the largest difference, relative to the largest magnitude or to `floor`, whichever is larger. It is NaN if an element is NaN in only one of the tensors."""
    assert result.shape == exact.shape, f"{list(result.shape)} instead of {list(exact.shape)}"
    if exact.numel() == 0:
        return 0.0
    difference = (result.double() - exact.double()).abs().max().item()
    return difference / max(exact.abs().max().item(), floor, 1e-3)


def require_equal(results: Results, exact: Results, tolerance: float, terms: Mapping[str, float] | None = None) -> None:
    """Requires that differences are within `tolerance` times the largest magnitude of the tensor, or within ten float32 roundings of `terms`, the sum of magnitudes of the terms that
    an element sums. Example: the gradient of a number that is added to all scores of a row is exactly 0, so it holds only rounding errors of its terms."""
    assert results.keys() == exact.keys()
    for name in exact:
        roundings = 10 * torch.finfo(torch.float32).eps / tolerance * (terms or {}).get(name, 0.0)
        found = error(results[name], exact[name], floor=roundings)
        assert found <= tolerance, f"{name}: error {found:.3g} of the largest magnitude, allowed {tolerance:.3g}"


class Ratios:
    """Collects, for each tensor of a setting, the ratio of polyhead's float32 error to torch's."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    def add(self, ours: Results, theirs: Results, exact: Results) -> None:
        for name in exact:
            mine, other = error(ours[name], exact[name]), error(theirs[name], exact[name])
            if mine > 0 or other > 0:
                # If both errors are below a rounding of the largest number, their ratio says nothing.
                floor = torch.finfo(torch.float32).eps / 64
                self.of.setdefault(name, []).append(max(mine, floor) / max(other, floor))

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in sorted(self.of.items())}

    def report(self, what: str) -> str:
        medians = ", ".join(f"{name} {median:.2f}" for name, median in self.medians().items())
        count = max(map(len, self.of.values()), default=0)
        return f"{what}: median error in float32 over torch's math path, {count} settings: {medians}"


def both(
    ours: Callable[[Mapping[str, Tensor]], Results], theirs: Callable[[Mapping[str, Tensor]], Results], inputs: Mapping[str, Tensor], ratios: Ratios,
    terms: Mapping[str, float] | None = None,
) -> None:
    """Runs a setting in float64, in which polyhead and torch must agree up to rounding, and in float32, in which both errors are measured against float64."""
    exact = theirs(inputs)
    require_equal(ours(inputs), exact, 1e-11)
    single = cast(inputs, torch.float32)
    mine, other = ours(single), theirs(single)
    require_equal(mine, exact, 1e-4, terms)
    ratios.add(mine, other, exact)


def require_medians(ratios: Ratios, what: str, summary: list[str], names: Sequence[str]) -> None:
    summary.append(ratios.report(what))
    medians = ratios.medians()
    assert set(names) <= set(medians)
    assert all(median <= 1.0 for median in medians.values()), ratios.report(what)
