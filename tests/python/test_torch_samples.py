"""Runs the samples of torch's own tests, which torch's wheel contains, with polyhead.torch in every dtype. Outputs and gradients are compared with torch in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polyhead
from conftest import SEED
from effort import QUICK
from polyhead.torch import MultiheadAttention, scaled_dot_product_attention
from torch_support import error, gradients, math_path

pytest.importorskip("expecttest", reason="torch.testing._internal imports expecttest")

from torch.testing import make_tensor  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

# Largest error, relative to the largest magnitude of a tensor. Scores of the samples are as large as hundreds, so the rounding of q and k changes p by hundreds of
# roundings. In half precision, twice torch's own error is also allowed.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 0.0125, torch.bfloat16: 0.1}

# Numbers of samples in torch 2.13, over all dtypes, with and without requires_grad; those of modules also in training and in evaluation. A later version may have more.
MODULES = {
    "nn.MultiheadAttention": 1024,
    "nn.TransformerEncoderLayer": 592,
    "nn.TransformerDecoderLayer": 1072,
}
OPERATOR = "nn.functional.scaled_dot_product_attention"
OPERATOR_SAMPLES = 200


@pytest.fixture(autouse=True)
def _torch_formula() -> Iterator[None]:
    """Switches torch's fused kernels off, and uses one thread, because the samples are small."""
    enabled, threads = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_num_threads(1)
    try:
        with math_path():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        torch.set_num_threads(threads)


def require_near(ours: dict[str, Tensor], exact: dict[str, Tensor], dtype: torch.dtype, theirs: Callable[[], dict[str, Tensor]]) -> None:
    """Compares polyhead's results with exact results. theirs() returns torch's results in the same dtype."""
    assert ours.keys() == exact.keys()
    for name in exact:
        assert ours[name].dtype == dtype
        found = error(ours[name], exact[name])
        if found > TOLERANCE[dtype]:
            other = error(theirs()[name], exact[name])
            half = dtype in (torch.float16, torch.bfloat16)
            assert half and found <= 2 * other, f"{name}: error {found:.3g} of the largest magnitude, torch's {other:.3g}"


def require_count(name: str, counts: dict[torch.dtype, int], least: int, summary: list[str]) -> None:
    total = sum(counts.values())
    of_dtypes = ", ".join(f"{count} {dtype}" for dtype, count in counts.items()).replace("torch.", "")
    summary.append(f"torch's own samples of {name}: {total} ({of_dtypes})")
    assert total >= least and counts.keys() == TOLERANCE.keys()


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Converts floating tensors inside of a value to another dtype. The results are leaves of autograd."""

    def one(x: Tensor) -> Tensor:
        return x.detach().to(dtype, copy=True).requires_grad_(x.requires_grad) if x.is_floating_point() else x

    return torch.utils._pytree.tree_map_only(Tensor, one, value)


def tensors_of(value: Any) -> dict[str, Tensor]:
    return {str(i): x for i, x in enumerate(torch.utils._pytree.tree_leaves(value)) if isinstance(x, Tensor)}


def results(call: Callable[..., Any], args: Any, kwargs: Any, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    outputs = {f"output {name}": x for name, x in tensors_of(call(*args, **kwargs)).items()}
    return gradients(outputs, tensors_of((args, kwargs)) | parameters, SEED)


def with_our_layers(module: nn.Module) -> nn.Module:
    """Returns the module with every torch.nn.MultiheadAttention replaced by polyhead's layer."""

    def ours(theirs: nn.MultiheadAttention) -> MultiheadAttention:
        layer = MultiheadAttention(
            theirs.embed_dim, theirs.num_heads, theirs.dropout, theirs.in_proj_bias is not None, theirs.bias_k is not None, theirs.add_zero_attn,
            theirs.kdim, theirs.vdim, theirs.batch_first, dtype=theirs.out_proj.weight.dtype,
        )  # fmt: skip
        layer.load_state_dict(theirs.state_dict())
        return layer.train(theirs.training).requires_grad_(theirs.out_proj.weight.requires_grad)

    if isinstance(module, nn.MultiheadAttention):
        return ours(module)
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(parent, name, ours(child))
    return module


@pytest.mark.parametrize("name", MODULES)
def test_samples_of_modules(name: str, summary: list[str]) -> None:
    (info,) = (info for info in module_db if info.name == name)
    counts: dict[torch.dtype, int] = {}
    for number, dtype in enumerate(TOLERANCE):
        for training in (True, False):
            # In a quick run, a dtype has two of the four combinations, so that each combination occurs with two dtypes.
            for requires_grad in [training == (number % 2 == 0)] if QUICK else (True, False):
                torch.manual_seed(SEED)
                for sample in info.module_inputs_func(info, "cpu", dtype, requires_grad, training):
                    build, call = sample.constructor_input, sample.forward_input
                    theirs = info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
                    for part in theirs.modules():  # switch dropout off, because torch and polyhead draw different dropout bits
                        if isinstance(part, nn.Dropout):
                            part.p = 0.0
                        elif isinstance(part, nn.MultiheadAttention):
                            part.dropout = 0.0
                    theirs.requires_grad_(requires_grad)
                    ours, wide = with_our_layers(theirs), copy.deepcopy(theirs).double()
                    def of(module: nn.Module, dtype: torch.dtype, call: Any = call) -> dict[str, Tensor]:
                        return results(module, *cast((call.args, call.kwargs), dtype), dict(module.named_parameters()))

                    try:
                        require_near(of(ours, dtype), of(wide, torch.float64), dtype, lambda: of(theirs, dtype))
                    except AssertionError as wrong:
                        raise AssertionError(f"seed {SEED}, {dtype}, training {training}, sample {counts.get(dtype, 0)}: {wrong}") from None
                    counts[dtype] = counts.get(dtype, 0) + 1
    require_count(name, counts, MODULES[name] // 2 if QUICK else MODULES[name], summary)


def with_bits(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, attn_mask: Tensor | None = None) -> Tensor:
    """torch's formula with polyhead's dropout bits. The seed of the bits is the next number of torch's generator, as in polyhead."""
    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    assert attn_mask is None
    score = query @ key.mT / math.sqrt(query.size(-1))
    if is_causal:
        score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    keep = torch.empty(score.shape, dtype=torch.bool)
    polyhead.dropout_keep_bits(dropout_p, seed, keep.numpy())
    return (score.softmax(-1) * keep / (1 - dropout_p)) @ value


def test_samples_of_the_operator(summary: list[str]) -> None:
    (info,) = (info for info in op_db if info.name == OPERATOR)
    counts: dict[torch.dtype, int] = {}
    for dtype in TOLERANCE:
        assert dtype in info.dtypes
        for requires_grad in (True, False):
            torch.manual_seed(SEED)
            for sample in info.sample_inputs("cpu", dtype, requires_grad):
                given, options = (sample.input, *sample.args), sample.kwargs
                reference = with_bits if options.get("dropout_p", 0.0) > 0 else info.op
                def of(function: Callable[..., Tensor], dtype: torch.dtype, given: Any = (given, options), seed: int = sum(counts.values())) -> dict[str, Tensor]:
                    torch.manual_seed(seed)
                    return results(function, *cast(given, dtype), {})

                try:
                    require_near(of(scaled_dot_product_attention, dtype), of(reference, torch.float64), dtype, lambda: of(reference, dtype))
                except AssertionError as wrong:
                    raise AssertionError(f"seed {SEED}, {dtype}, sample {counts.get(dtype, 0)}: {wrong}") from None
                counts[dtype] = counts.get(dtype, 0) + 1
    require_count(OPERATOR, counts, OPERATOR_SAMPLES, summary)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    x = make_tensor((2, 4, 3), device="cpu", dtype=dtype)
    with pytest.raises(TypeError, match=f"scaled_dot_product_attention: query has dtype {name}; it must be one of float32, float64, float16, bfloat16"):
        scaled_dot_product_attention(x, x, x)
    with pytest.raises(TypeError, match=f"MultiheadAttention: query has dtype {name}"):
        MultiheadAttention(3, 3)(x, x, x)
