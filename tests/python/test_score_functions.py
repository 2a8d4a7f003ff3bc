"""The functions that a score_mod may use: values and gradients against torch's autograd and central differences, and the list of docs/flex_attention.md."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead import _score_program
from polyhead._score_program import Trace
from polyhead.torch import attention
from polyhead.torch._score_functions import functions as _FUNCTIONS
from polyhead.torch._score_values import Value
from score_functions_page import listed
from test_flex_attention import dense

B, N, T, S, H = 2, 2, 9, 70, 4
Function = Callable[[Any], Any]

# {name of a function: a term that contains the function}. The terms are tested with scores x from about -4 to 4.
NUMBERS: dict[str, Function] = {
    "sqrt": lambda x: torch.sqrt(x * x + 0.1), "rsqrt": lambda x: torch.rsqrt(x * x + 0.1), "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": lambda x: torch.log(x.abs() + 0.1), "log2": lambda x: torch.log2(x.abs() + 0.1), "log10": lambda x: torch.log10(x.abs() + 0.1),
    "log1p": lambda x: torch.log1p(x.abs() * 1e-3) * 1e3, "sin": lambda x: torch.sin(9 * x), "cos": lambda x: (9 * x).cos(), "tan": lambda x: torch.tan(x / 9), "asin": lambda x: torch.asin(0.9 * torch.tanh(x)),
    "acos": lambda x: torch.acos(0.9 * torch.tanh(x)), "atan": lambda x: torch.atan(3 * x), "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "atanh": lambda x: torch.atanh(0.9 * torch.tanh(x)),
    "asinh": lambda x: torch.asinh(3 * x), "acosh": lambda x: torch.acosh(1.1 + x * x), "sigmoid": torch.sigmoid, "expit": torch.special.expit, "erf": torch.erf, "erfc": torch.special.erfc, "silu": F.silu, "logsigmoid": F.logsigmoid, "mish": F.mish, "softsign": F.softsign,
    "tanhshrink": F.tanhshrink, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "softplus beta": lambda x: F.softplus(x, 3.0, 2.0), "elu": F.elu,
    "elu alpha": lambda x: F.elu(9 * x, 0.5), "celu": lambda x: F.celu(x, 2.0), "selu": F.selu, "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "hardtanh": F.hardtanh, "relu6": lambda x: F.relu6(4 * x), "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "relu": F.relu, "floor": lambda x: x * torch.floor(x), "ceil": lambda x: x * torch.ceil(x), "round": lambda x: x * torch.round(2 * x), "trunc": lambda x: x * torch.trunc(x), "frac": lambda x: x * x.frac(),
    "sign": lambda x: x * torch.sign(x), "sgn": lambda x: x * torch.sgn(x),
    "atan2": lambda x: torch.atan2(x, x + 1), "hypot": lambda x: torch.hypot(x, x - 1), "logaddexp": lambda x: torch.logaddexp(3 * x, 1 - x), "reciprocal": lambda x: (x.abs() + 1).reciprocal(), "square": torch.square,
    "clamp_min": lambda x: x.clamp_min(-0.3), "clamp_max": lambda x: torch.clamp_max(x, 0.3), "clamp": lambda x: x.clamp(-0.3, 0.4), "abs": torch.abs, "maximum": lambda x: torch.maximum(x, x * x),
    "minimum": lambda x: torch.minimum(x, x * x), "nan_to_num": lambda x: torch.nan_to_num(torch.where(x > 1, float("nan"), torch.where(x < -1, -float("inf"), x)), nan=0.5, neginf=-2.0),
    "isnan": lambda x: torch.where(torch.isnan(x / (x > 1)), 0.0, x), "isinf": lambda x: torch.where(torch.isinf(1 / (x > 1)), 0.0, x), "isfinite": lambda x: torch.where(torch.isfinite(1 / (x > 1)), x, 0.0),
    "pow 0": lambda x: x * x**0, "pow 7": lambda x: (0.5 * x) ** 7, "pow -2": lambda x: (x * x + 1) ** -2, "pow 2.5": lambda x: (x.abs() + 0.1) ** 2.5, "pow -0.5": lambda x: (x.abs() + 0.1).pow(-0.5), "pow 20": lambda x: (0.4 * x) ** 20,
}  # fmt: skip
EXACT: dict[str, Function] = {"hardsigmoid": lambda x: F.relu6(x + 3) / 6}  # torch's derivative contains 1/6 rounded to float32, also for float64
STEPS = {"relu", "floor", "ceil", "round", "trunc", "frac", "sign", "sgn", "isnan", "isinf", "isfinite", "nan_to_num"}  # functions that jump, or whose derivative jumps


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, N, length, H, dtype=torch.float64, generator=generator) * 1.2 for length in (T, S, S)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_function_and_its_gradient(name: str) -> None:
    function = NUMBERS[name]

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return function(score)

    q, k, v = inputs()
    q.requires_grad_(), k.requires_grad_()
    out = attention(q, k, v, score_mod=score_mod)
    exact, _ = dense(q, k, v, lambda score, *_: EXACT.get(name, function)(score), None)
    torch.testing.assert_close(out, exact, rtol=1e-11, atol=1e-12)
    d_out = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours, theirs = torch.autograd.grad(out, (q, k), d_out), torch.autograd.grad(exact, (q, k), d_out)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)
    if name not in STEPS:
        way, step = torch.randn(q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), 1e-6
        with torch.no_grad():
            above, below = (torch.sum(attention(q + sign * step * way, k, v, score_mod=score_mod) * d_out) for sign in (1, -1))
        torch.testing.assert_close((above - below) / (2 * step), torch.sum(ours[0] * way), rtol=2e-5, atol=1e-7)
    with torch.no_grad():
        narrow = attention(q.float(), k.float(), v.float(), score_mod=score_mod)
    if name not in STEPS:
        torch.testing.assert_close(narrow.double(), exact, rtol=2e-4, atol=2e-5)


def finite(x: Any) -> Any:
    return torch.nan_to_num(x, nan=12345.0, posinf=3e30, neginf=-3e30)


def test_the_floor_of_a_quotient() -> None:
    """Quotients that round up to an integer, of both signs; with 0 and infinity."""
    numbers = [1.0, -1, 0.3, 0.7, 7.5, -7.5, 1e6, 3e-5, 0.0, -0.0, float("inf"), -float("inf"), float("nan")]
    for dtype in (torch.float32, torch.float64):
        a = torch.tensor([x for x in numbers for _ in numbers] + [0.1 * i for i in range(300)], dtype=dtype)
        b = torch.tensor(numbers * len(numbers) + [0.1] * 300, dtype=dtype)
        q, k, v = torch.ones(1, 1, 1, 1, dtype=dtype), torch.zeros(1, 1, len(a), 1, dtype=dtype), torch.eye(len(a), dtype=dtype)[None, None]
        wanted = finite(a // b)
        for i in range(len(a)):
            lse = attention(q, k[:, :, :1], v[:, :, :1], score_mod=lambda score, _b, h, t, s, i=i: finite(a[s + i] // b[s + i]), return_lse=True)[1]
            torch.testing.assert_close(lse.flatten(), wanted[i : i + 1], rtol=0, atol=0, msg=lambda m, i=i: f"{a[i]} // {b[i]}: {m}")


def test_inverse_hyperbolic_functions_keep_their_digits() -> None:
    x = torch.tensor([0.0, 1e-9, -1e-9, 1e-3, -2.5, 1, 1 + 1e-9, 30, -1e5, 1e8, 1e12, 1e300, -1e300, float("inf"), 0.5, -3, float("nan")], dtype=torch.float64)
    q, k, v = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for function in (torch.asinh, torch.acosh):
        for i in range(len(x)):
            lse = attention(q, k, v, score_mod=lambda score, b, h, t, s, i=i, function=function: finite(function(x[s + i])), return_lse=True)[1]
            torch.testing.assert_close(lse.flatten(), finite(function(x[i : i + 1])), rtol=2e-14, atol=0, msg=lambda m, i=i: f"{x[i]}: {m}")


def test_extreme_scores() -> None:
    """Compares scores at which a naive formula overflows, cancels or divides zero by zero."""
    q, k, v = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.tensor([-800.0, -40, -6, -1e-9, 0, 1e-9, 6, 40, 800], dtype=torch.float64).reshape(1, 1, 9, 1), torch.eye(9, dtype=torch.float64)[None, None]
    for function in (F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.softplus, F.logsigmoid, F.elu, F.celu, F.selu, F.mish, torch.sin, torch.cos, torch.atan, torch.erf, torch.erfc, torch.log1p, lambda x: torch.logaddexp(x, -x)):  # fmt: skip
        if function is torch.log1p:
            function = lambda x: torch.log1p(x.abs())  # noqa: E731

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any, function: Any = function) -> Any:
            return torch.clamp(function(score), -700.0, 700.0) * 1e-3

        for dtype, rtol in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            given = [x.to(dtype).requires_grad_() for x in (q, k, v)]
            exact_given = [x.to(dtype).double().detach().requires_grad_() for x in (q, k, v)]
            out, exact = attention(*given, score_mod=score_mod), dense(*exact_given, score_mod, None)[0]  # type: ignore[arg-type]
            torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=1e-12)
            d_out = torch.arange(9.0, dtype=torch.float64).reshape(exact.shape)
            ours, theirs = torch.autograd.grad(out, given[:2], d_out.to(dtype)), torch.autograd.grad(exact, exact_given[:2], d_out)
            sizes = float((theirs[1] * exact_given[1].detach()).abs().sum()), float(theirs[1].abs().max())  # the gradient of q is a sum over keys whose terms cancel
            for mine, other, size in zip(ours, theirs, sizes):
                torch.testing.assert_close(mine.double(), other, rtol=20 * rtol, atol=0.05 * rtol * size)


INF, NAN = float("inf"), float("nan")
# {name: (function of two numbers, points (x, y, factor of the result))}: points at which a naive formula overflows, underflows, or divides zero by zero.
EDGES: dict[str, tuple[Callable[[Any, Any], Any], list[tuple[float, float, float]]]] = {
    "atan2": (torch.atan2, [(x, y, 1) for x in (0, 1e-25, 1, -3, 1e20, INF, -INF) for y in (0, -1, 1e-25, 3, -3, 1e20, INF, -INF)]),
    "hypot": (torch.hypot, [(0, 0, 1), (3, -4, 1), (0, 2, 1), (1e20, 1e20, 1e-20), (-3e20, 4e20, 1e-20), (1e-25, 0, 1e25), (3e-25, -4e-25, 1e25)]),
    "hypot of infinity": (lambda x, y: 1 / torch.hypot(x, y), [(-INF, INF, 1), (1, INF, 1), (INF, -2, 1)]),
    "sign": (lambda x, y: torch.sign(x) + torch.sgn(y), [(NAN, 2, 1), (-2, NAN, 1), (0, -0.0, 1), (INF, -INF, 1)]),
    "nan_to_num": (lambda x, y: torch.nan_to_num(x) * y, [(INF, 1, 1e-38), (-INF, 2, 1e-38), (INF, 1e-30, 1e-278), (INF, 1, 5e-309), (NAN, 1, 1), (3, 2, 1)]),
    **{f"pow {n}": ((lambda x, y, n=n: x**n + y), [(x, y, f) for x in (101, -101, 1e20, INF, 1.1, -0.7) for y, f in ((0.3, 1), (0, 1e28))]) for n in (-1, -2, -3, -17, -20, -34, -40, -64)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", EDGES)
def test_points_at_the_edges(name: str, dtype: torch.dtype) -> None:
    """Compares out and gradients at the points of EDGES. Key 0 has the score factor * f(x, y) and key 1 the score 0. x and y are captured tensors."""
    function, points = EDGES[name]
    x, y, factor = (torch.tensor(column, dtype=dtype) for column in zip(*points))
    x.requires_grad_(), y.requires_grad_()
    q, k, v = torch.zeros(1, 1, len(points), 1, dtype=dtype), torch.zeros(1, 1, 2, 1, dtype=dtype), torch.tensor([1, 0], dtype=dtype).reshape(1, 1, 2, 1)

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + torch.where(j == 0, function(x[i], y[i]) * factor[i], 0.0)

    out, exact = attention(q, k, v, score_mod=score_mod), dense(q, k, v, score_mod, None)[0]
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(out, exact, rtol=rtol, atol=rtol, equal_nan=True)
    for mine, other in zip(torch.autograd.grad(out.sum(), (x, y)), torch.autograd.grad(exact.sum(), (x, y))):
        torch.testing.assert_close(mine, other, rtol=20 * rtol, atol=1e-36, equal_nan=True)


def test_a_result_changed_in_place_leaves_the_arguments() -> None:
    """Adds in place to the result of each function, for arguments of each kind; the arguments must not change. If the result may share memory with an argument in torch,
    polyhead must refuse the addition."""
    for name, function in _FUNCTIONS.items():
        called = 0
        for kind in ("float", "int", "bool"):
            for others in ((), ("float",), ("int",), ("bool",), ("bool", "float"), ("float", "float"), (0.5,), (2,), (0,), (torch.float32,), (torch.int32,), (torch.bool,), ((),), ((), 2)):
                trace = Trace()
                arguments = [Value(trace, trace.emit(op), one) if isinstance(one, str) else one for one, op in zip((kind, *others), ("score", "query", "key"))]
                before = [x.register if isinstance(x, Value) else x for x in arguments]
                try:
                    result = function(trace, *arguments)
                except (NotImplementedError, TypeError):
                    continue
                called += 1
                with contextlib.suppress(NotImplementedError):
                    result += True if result.kind == "bool" else 1
                assert [x.register if isinstance(x, Value) else x for x in arguments] == before, f"{name} of {kind}, {others}"
        assert called > 0, name


def test_every_function_of_the_table_is_tested() -> None:
    tested = {name.split()[0] for name in NUMBERS}
    aliases = {"arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "arctan2", "fix", "expit", "log_sigmoid"}
    of_table = {name for function in _score_program.FUNCTIONS for name in function.torch}
    assert of_table - aliases <= tested


def test_the_page_lists_what_can_be_traced() -> None:
    """The page and the tracer have the same names of functions. Operators, second names of methods and names of types are not compared."""
    page = {name.removeprefix("torch.") for name in listed("Functions as they are")} - {"score_mod", "if", "add_"}
    operators = {"add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rtruediv", "rdiv", "floordiv", "rfloordiv", "mod", "rmod", "pos", "pow", "rpow", "lt", "le", "gt", "ge", "eq", "ne",
                 "and", "or", "rand", "ror", "xor", "rxor", "invert"}  # fmt: skip
    second = {"subtract", "multiply", "divide", "true_divide", "floor_divide", "negative", "absolute", "less", "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor",
              "clip", "max", "min", "expit", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "arctan2", "fix", "log_sigmoid", "type", "contiguous", "clone"}  # fmt: skip
    types = {"float32", "float64", "int32", "int64"}
    assert page - types == set(_FUNCTIONS) - operators - second
