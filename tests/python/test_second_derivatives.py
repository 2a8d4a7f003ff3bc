"""Compares `polyhead.sdpa_jvp` and `polyhead.sdpa_backward_backward` of arrays with central differences of `sdpa` and `sdpa_backward`, and with a formula that torch
differentiates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyhead

Arrays = dict[str, np.ndarray]
INPUTS = ("q", "k", "v", "bias", "sink", "relative_bias")
LENGTHS = np.array([0, 4])  # the first sequence has no key

# {name: (extents (N, K, T, S, H, V), shapes of differentiable inputs other than q, k and v, options)}.
CASES: dict[str, tuple[tuple[int, ...], dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "self attention": ((2, 2, 5, 5, 4, 4), {}, {}),
    "causal, grouped heads": ((4, 2, 5, 5, 4, 4), {}, {"causal": "top_left"}),
    "other keys and widths": ((2, 1, 3, 7, 4, 3), {}, {"scale": 0.7}),
    "bottom right and a window": ((2, 2, 4, 6, 3, 2), {}, {"causal": "bottom_right", "window": (2, None)}),
    "key lengths, and a row without keys": ((2, 2, 3, 5, 4, 3), {}, {"key_lengths": LENGTHS}),
    "a bias for each pair": ((2, 1, 3, 5, 4, 3), {"bias": (2, 2, 3, 5)}, {}),
    "a bias that is broadcast": ((2, 2, 3, 5, 4, 3), {"bias": (2, 1, 5)}, {"block": np.arange(15).reshape(3, 5) % 4 == 1}),
    "softcap": ((2, 2, 4, 5, 4, 3), {"bias": (4, 5)}, {"softcap": 1.5}),
    "a sink, and rows with nothing else": ((2, 2, 3, 5, 4, 3), {"sink": (2,)}, {"key_lengths": LENGTHS}),
    "a sink for each row": ((2, 1, 3, 5, 4, 3), {"sink": (2, 2, 3)}, {"softcap": 2.0}),
    "slopes": ((2, 2, 4, 6, 4, 3), {"slopes": (2,)}, {"causal": "bottom_right"}),
    "a table": ((2, 2, 4, 6, 4, 3), {"table": (2, 8)}, {}),
    "dropout": ((2, 2, 4, 6, 4, 3), {}, {"dropout": 0.4, "seed": 3}),
    "documents": ((2, 2, 5, 6, 4, 3), {}, {"query_offsets": np.array([0, 2, 5]), "key_offsets": np.array([0, 3, 6]), "causal": "top_left"}),
}


class Case:
    """A problem in float64. For each input it has a random tangent and a random direction of differentiation in the shape of the input."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        (heads, groups, queries, keys, width, value), learned, self.options = CASES[name]
        shapes = {"q": (2, heads, queries, width), "k": (2, groups, keys, width), "v": (2, groups, keys, value)}
        self.relative = next((kind for kind in ("slopes", "table") if kind in learned), None)
        shapes |= {"relative_bias" if kind == self.relative else kind: shape for kind, shape in learned.items()}
        self.inputs, self.tangents, self.directions = ({name: rng.standard_normal(shape) for name, shape in shapes.items()} for _ in range(3))
        self.d_out, self.d_out_direction = (rng.standard_normal((2, heads, queries, value)) for _ in range(2))

    def given(self, inputs: Arrays) -> dict[str, Any]:
        given = self.options | inputs
        if self.relative is not None:
            given["relative_bias"] = polyhead.RelativeBias(**{self.relative: given["relative_bias"]})
        return given

    def forward(self, inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
        return polyhead.sdpa(return_lse=True, **self.given(inputs))

    def backward(self, inputs: Arrays, d_out: np.ndarray) -> Arrays:
        out, lse = self.forward(inputs)
        grads = polyhead.sdpa_backward(out=out, lse=lse, d_out=d_out, **self.given(inputs))._asdict()
        return {name: grad for name, grad in grads.items() if grad is not None}

    def jvp(self) -> tuple[np.ndarray, np.ndarray]:
        out, lse = self.forward(self.inputs)
        return polyhead.sdpa_jvp(out=out, lse=lse, tangents=polyhead.Tangents(**self.tangents), return_lse=True, **self.given(self.inputs))

    def backward_backward(self, **options: Any) -> Arrays:
        out, lse = self.forward(self.inputs)
        given = self.given(self.inputs) | {"out": out, "lse": lse, "d_out": self.d_out, "d_gradients": polyhead.Tangents(**self.tangents)}
        found = polyhead.sdpa_backward_backward(**given, **options)._asdict()
        return {name: grad for name, grad in found.items() if grad is not None}


def moved(inputs: Arrays, by: Arrays, step: float) -> Arrays:
    return {name: x + step * by[name] if name in by else x for name, x in inputs.items()}


def require_close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, what
    assert (np.abs(found - wanted) <= tolerance * max(1.0, np.abs(wanted).max(initial=0))).all(), (what, np.abs(found - wanted).max())


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_the_central_difference_of_the_forward_pass(name: str, rng: np.random.Generator) -> None:
    case, step = Case(name, rng), 1e-5
    for result, high, low in zip(case.jvp(), *(case.forward(moved(case.inputs, case.tangents, s)) for s in (step, -step))):
        empty = high == -np.inf  # rows without a key have lse -infinity
        assert (result[empty] == 0).all()
        require_close(result, np.subtract(high, low, where=~empty, out=np.zeros_like(high)) / (2 * step), 1e-8, name)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients_are_central_differences_of_the_backward_pass(name: str, rng: np.random.Generator) -> None:
    case, step = Case(name, rng), 1e-5
    found = case.backward_backward()
    assert found.keys() == case.inputs.keys() | {"d_out"}

    def loss(inputs: Arrays, d_out: np.ndarray) -> float:
        return sum(float((grad * case.tangents[of]).sum()) for of, grad in case.backward(inputs, d_out).items())

    for of, direction in case.directions.items():
        high, low = (loss(moved(case.inputs, {of: direction}, s), case.d_out) for s in (step, -step))
        require_close((found[of] * direction).sum(), (high - low) / (2 * step), 1e-7, of)
    high, low = (loss(case.inputs, case.d_out + s * case.d_out_direction) for s in (step, -step))
    require_close((found["d_out"] * case.d_out_direction).sum(), (high - low) / (2 * step), 1e-7, "d_out")


@pytest.mark.parametrize("name", [name for name in CASES if name != "documents"])
def test_second_derivatives_and_forward_mode_agree_with_the_formula(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from formulas import buckets_of, distances_and_mask, formula

    case = Case(name, rng)
    (heads, _, queries, keys, *_), _, options = CASES[name]
    distance, mask = distances_and_mask(options, options, (2, heads, queries, keys))
    rest: dict[str, Any] = {"mask": torch.tensor(mask)} | {key: options[key] for key in ("scale", "softcap", "dropout") if key in options}
    if "dropout" in options:
        rest["keep"] = torch.from_numpy(polyhead.dropout_keep_bits(options["dropout"], options["seed"], np.zeros((2, heads, queries, keys), bool)))
    if case.relative == "slopes":
        rest["distance"] = torch.tensor(distance)
    if case.relative == "table":
        rest["buckets"] = torch.from_numpy(buckets_of(distance, 8))
    named = {of: case.relative if of == "relative_bias" else of for of in case.inputs}
    tensors = [torch.from_numpy(x).requires_grad_() for x in case.inputs.values()]
    tangents = [torch.from_numpy(x) for x in case.tangents.values()]

    def function(*given: Any) -> Any:
        return formula(**dict(zip(named.values(), given)), **rest)[:2]

    _, wanted = torch.func.jvp(function, tuple(tensors), tuple(tangents))
    for ours, theirs in zip(case.jvp(), wanted):
        require_close(ours, theirs.detach().numpy(), 1e-11, name)
    d_out = torch.from_numpy(case.d_out).requires_grad_()
    grads = torch.autograd.grad(function(*tensors)[0], tensors, d_out, create_graph=True)
    second = torch.autograd.grad(grads, [*tensors, d_out], tangents, allow_unused=True)
    found = case.backward_backward()
    for of, theirs in zip((*named, "d_out"), second):
        require_close(found[of], np.zeros_like(found[of]) if theirs is None else theirs.numpy(), 1e-11, of)


def test_absent_tangents_count_as_zero_and_only_requested_results_are_computed(rng: np.random.Generator) -> None:
    case = Case("softcap", rng)
    out, lse = case.forward(case.inputs)
    given = case.given(case.inputs) | {"out": out, "lse": lse}
    assert not polyhead.sdpa_jvp(**given, tangents=polyhead.Tangents()).any()
    alone = [polyhead.sdpa_jvp(**given, tangents=polyhead.Tangents(**{name: x})) for name, x in case.tangents.items()]
    require_close(sum(alone), case.jvp()[0], 1e-12, "linear in the tangents")
    every = case.backward_backward()
    for name in every:
        some = case.backward_backward(gradients=[name])
        assert some.keys() == {name} and np.array_equal(some[name], every[name])
    assert not any(x.any() for x in polyhead.sdpa_backward_backward(**given, d_out=case.d_out, d_gradients=polyhead.Tangents()) if x is not None)
    assert case.backward_backward(gradients=()) == {}
    grads = polyhead.sdpa_backward(**given, d_out=case.d_out)
    second = polyhead.sdpa_backward_backward(**given, d_out=case.d_out, d_gradients=grads)  # d_gradients may be the Gradients that sdpa_backward returns, or Tangents
    named = polyhead.Tangents(**grads._asdict())
    assert np.array_equal(second.k, polyhead.sdpa_backward_backward(**given, d_out=case.d_out, d_gradients=named).k)


@pytest.mark.parametrize("name", ["causal, grouped heads", "a bias that is broadcast", "a sink for each row", "a table"])
def test_float32_and_tensors_of_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    case, single = Case(name, rng), Case(name, rng)
    for of in ("inputs", "tangents"):
        setattr(single, of, {key: torch.from_numpy(x).float() for key, x in getattr(case, of).items()})
    single.d_out = torch.from_numpy(case.d_out).float()
    for ours, exact in zip((*single.jvp(), *single.backward_backward().values()), (*case.jvp(), *case.backward_backward().values())):
        assert isinstance(ours, torch.Tensor) and ours.dtype == torch.float32
        require_close(ours.double().numpy(), exact, 1e-5, name)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (polyhead.Tangents(q=np.ones((2, 2, 4, 3))), r"q is \[2,2,4,3\]; it must be the shape of q = "),
        (polyhead.Tangents(v=np.ones((2, 2, 5, 3), np.float32)), "v is float32; it must be float64"),
        (polyhead.Tangents(sink=np.ones(2)), "sink is given without a sink"),
        (polyhead.Tangents(relative_bias=np.ones(2)), "relative_bias is given without a relative_bias"),
        (polyhead.Tangents(q=3), "q is of type int"),  # type: ignore[arg-type]
        (None, " is of type NoneType; it must be polyhead.Tangents or polyhead.Gradients"),
        ((None,) * 6, " is of type tuple; it must be polyhead.Tangents or polyhead.Gradients"),
    ],
)
def test_an_error_names_the_wrong_field(wrong: Any, match: str, rng: np.random.Generator) -> None:
    case = Case("softcap", rng)
    out, lse = case.forward(case.inputs)
    given = case.given(case.inputs) | {"out": out, "lse": lse}
    dot = "" if match.startswith(" ") else r"\."
    with pytest.raises((ValueError, TypeError), match=f"tangents{dot}{match}"):
        polyhead.sdpa_jvp(**given, tangents=wrong)
    with pytest.raises((ValueError, TypeError), match=f"d_gradients{dot}{match}"):
        polyhead.sdpa_backward_backward(**given, d_out=case.d_out, d_gradients=wrong)
