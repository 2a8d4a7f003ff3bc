"""Tests polyhead.torch.replace_sdpa, which replaces torch's function for models that call it: which calls polyhead computes, which are passed on to torch, and that the function
is restored."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import forked_python
import polyhead.torch as ours
from torch_support import cast, gradients, math_path, require_equal

OWN = torch._C._nn.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _own_function_is_back() -> Iterator[None]:
    yield
    assert F.scaled_dot_product_attention is OWN


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs_of(setting: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns float64 tensors that require grad, and options."""
    generator = seeded()
    heads, keys, queries = (2, 7, 5) if setting in ("enable_gqa", "causal, more keys") else (4, 5, 7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    tensors = {"query": draw(2, 4, queries, 8), "key": draw(2, heads if setting == "enable_gqa" else 4, keys, 8), "value": draw(2, heads if setting == "enable_gqa" else 4, keys, 6)}
    options: dict[str, Any] = {}
    if setting.startswith("bool"):
        tensors["attn_mask"] = torch.rand(2, 1, queries, keys, generator=generator) < 0.7
    elif setting.startswith("float"):
        tensors["attn_mask"] = draw(4, queries, keys)
    elif setting.startswith("causal"):
        options["is_causal"] = True
    elif setting == "enable_gqa":
        options["enable_gqa"] = True
    elif setting == "scale":
        options["scale"] = 0.3
    elif setting == "no batch":
        tensors = {name: x[0, 0].detach().requires_grad_() for name, x in tensors.items()}
    return tensors, options


SETTINGS = ["plain", "bool mask", "float mask", "causal, more queries", "causal, more keys", "enable_gqa", "scale", "no batch"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_results_and_gradients_are_those_of_torch(setting: str) -> None:
    tensors, options = inputs_of(setting)

    def results(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return gradients({"out": F.scaled_dot_product_attention(**inputs, **options)}, inputs, 1)

    with math_path():
        exact = results(tensors)
    single = cast(tensors, torch.float32)
    with ours.replace_sdpa() as replaced:
        require_equal(results(tensors), exact, 1e-11)
        require_equal(results(single), exact, 1e-4)
    assert replaced.served == 2 and replaced.passed_on == {}
    assert replaced.report() == "computed by polyhead: 2\npassed on to torch: 0"


class Model(nn.Module):
    """A model that calls torch's function as published models do."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(16, 48), nn.Linear(16, 16), dropout

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        return self.out(F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal).transpose(1, 2).flatten(2))


class Attention(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q)


def test_dropout_of_a_model_in_training_is_polyheads_and_repeats_with_the_seed() -> None:
    model, x = Model(0.5).train(), torch.randn(2, 9, 16, generator=seeded())
    with ours.replace_sdpa() as replaced:
        torch.manual_seed(3)
        first = model(x)
        torch.manual_seed(3)
        assert torch.equal(first, model(x)) and not torch.equal(first, model(x))
        model.eval()
        assert torch.equal(model(x), model(x))
    assert replaced.served == 5
    # The mean over many dropout draws is the output without dropout.
    q = torch.randn(1, 1, 3, 4, generator=seeded())
    with ours.replace_sdpa():
        many = F.scaled_dot_product_attention(*(q.expand(20_000, 1, 3, 4),) * 3, dropout_p=0.5).mean(0)
    torch.testing.assert_close(many, F.scaled_dot_product_attention(q, q, q)[0], rtol=0, atol=0.05)


def test_models_of_torch_and_names_imported_before_are_reached() -> None:
    module = types.ModuleType("a_model_of_somebody")
    exec("from torch.nn.functional import scaled_dot_product_attention\nfrom torch.nn.functional import scaled_dot_product_attention as kept", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        x = torch.randn(2, 5, 16, generator=seeded())
        layer = nn.MultiheadAttention(16, 4, batch_first=True).train()
        encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0).train()
        expected = layer(x, x, x, need_weights=False)[0], encoder(x)
        with ours.replace_sdpa() as replaced:
            torch.testing.assert_close((layer(x, x, x, need_weights=False)[0], encoder(x)), expected)
            q = x.unsqueeze(1)
            assert torch.equal(module.scaled_dot_product_attention(q, q, q), ours.scaled_dot_product_attention(q, q, q))
            assert module.kept is OWN and replaced.served == 3
            exec("from torch.nn.functional import scaled_dot_product_attention as later", module.__dict__)
        assert module.scaled_dot_product_attention is OWN
        torch.testing.assert_close(module.later(q, q, q), OWN(q, q, q), rtol=0, atol=0)  # `later` is still polyhead's function, which calls torch's function after undo()
    finally:
        del sys.modules[module.__name__]


def test_calls_that_polyhead_cannot_compute_are_passed_to_torch_and_counted_by_their_reason() -> None:
    q = torch.randn(2, 4, 5, 8, generator=seeded())
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 8), torch.randn(4, 5, 8)])
    with ours.replace_sdpa() as replaced:
        assert F.scaled_dot_product_attention(*(q.to("meta"),) * 3).device.type == "meta"
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), OWN(q, q, q), rtol=0, atol=0)
        assert F.scaled_dot_product_attention(nested, nested, nested).is_nested
        mask = torch.rand(5, 5, generator=seeded()) < 0.9
        torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q, mask, is_causal=True), OWN(q, q, q, mask, is_causal=True), rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="Expected size"):  # the message is torch's
            F.scaled_dot_product_attention(q, q[..., :4], q)
    assert replaced.served == 0 and sum(replaced.passed_on.values()) == 5
    told = replaced.report()
    for reason in ("1: a tensor on the device meta", "1: a kernel of torch is chosen (torch.nn.attention.sdpa_kernel)", "is nested; it must be a dense tensor", "exclude each other"):
        assert reason in told, told


def test_masks_of_torch_that_are_subclasses_are_served_or_passed_on() -> None:
    q, k = torch.randn(2, 4, 5, 8, generator=seeded()), torch.randn(2, 4, 7, 8, generator=seeded(1))
    for bias in (causal_upper_left(5, 7), causal_lower_right(5, 7)):
        expected = F.scaled_dot_product_attention(q, k, k, bias)
        with ours.replace_sdpa() as replaced:
            torch.testing.assert_close(F.scaled_dot_product_attention(q, k, k, bias), expected)
            assert replaced.served == 1
            with sdpa_kernel(SDPBackend.MATH):
                torch.testing.assert_close(F.scaled_dot_product_attention(q, k, k, bias), expected)


def test_other_ways_of_torch_to_call_it_agree() -> None:
    q = torch.randn(2, 4, 5, 8, generator=seeded())

    def loss(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x).square().sum()

    expected = torch.func.vmap(torch.func.grad(loss))(q)
    with ours.replace_sdpa() as replaced:
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(q), expected)
        assert replaced.served == 1
        traced = torch.fx.symbolic_trace(Attention())  # the traced graph must contain torch's function
        assert "scaled_dot_product_attention" in traced.code and replaced.passed_on
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16


def test_compiled_models_follow_the_replacement() -> None:
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward  # type: ignore[no-any-return]

    model, x = Model().eval(), torch.randn(2, 5, 16, generator=seeded())
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    expected = compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ours.replace_sdpa():
            torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
    assert ["polyhead" in graph for graph in graphs] == [False, True]
    torch._dynamo.reset()


def test_the_replacement_is_compiled_forward_and_backward() -> None:
    torch._dynamo.reset()
    x, mask = torch.randn(2, 5, 16, generator=seeded()).requires_grad_(), torch.ones(5, 5).tril() > 0
    model = Model()
    expected = torch.autograd.grad(model(x, mask).square().sum(), x)
    with warnings.catch_warnings(), ours.replace_sdpa():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # a backend that traces the gradient, as inductor does
        torch.testing.assert_close(torch.autograd.grad(compiled(x, mask).square().sum(), x), expected)
    torch._dynamo.reset()


def test_a_replacement_applies_at_once_and_is_undone_once() -> None:
    q = torch.randn(1, 2, 3, 4)
    replaced = ours.replace_sdpa()
    assert replaced.applied and F.scaled_dot_product_attention is not OWN and "applied" in repr(replaced)
    F.scaled_dot_product_attention(q, q, q)
    replaced.undo()
    replaced.undo()
    assert not replaced.applied and F.scaled_dot_product_attention is OWN and replaced.served == 1
    with replaced:
        F.scaled_dot_product_attention(q, q, q)
    assert replaced.served == 2 and not replaced.applied
    assert not ours.sdpa().applied


def test_blocks_may_nest_and_exceptions_bring_torch_back() -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ZeroDivisionError):
        with ours.replace_sdpa() as outer:
            with ours.replace_sdpa() as inner:
                F.scaled_dot_product_attention(q, q, q)
            assert F.scaled_dot_product_attention is not OWN
            with outer:
                F.scaled_dot_product_attention(q, q, q)
            assert outer.applied
            raise ZeroDivisionError
    assert (outer.served, inner.served) == (2, 1)


def test_a_block_without_a_call_warns() -> None:
    with pytest.warns(RuntimeWarning, match="no call of torch.nn.functional.scaled_dot_product_attention was seen"):
        with ours.replace_sdpa():
            pass


def test_threads_count_and_none_is_left_behind() -> None:
    q = torch.randn(1, 2, 3, 4)
    expected = ours.scaled_dot_product_attention(q, q, q)
    wrong: list[int] = []
    barrier = threading.Barrier(4)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(50):
            with ours.replace_sdpa():
                if not torch.equal(F.scaled_dot_product_attention(q, q, q), expected):
                    wrong.append(i)

    with ours.replace_sdpa() as replaced:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and replaced.served == 200


def test_another_replacement_is_not_covered() -> None:
    def somebody(*arguments: Any, **keywords: Any) -> Any:
        return OWN(*arguments, **keywords)

    F.scaled_dot_product_attention = somebody
    try:
        with pytest.raises(RuntimeError, match=r"is replaced already, by .*somebody; undo that replacement first"):
            ours.replace_sdpa()
        with pytest.raises(RuntimeError, match="is replaced already"):
            with ours.replace_sdpa():
                pass
    finally:
        F.scaled_dot_product_attention = OWN


def test_a_wrapper_around_the_replacement_stays_and_calls_torch_afterwards() -> None:
    q = torch.randn(1, 2, 3, 4)
    replaced = ours.replace_sdpa()
    inner = F.scaled_dot_product_attention
    try:
        F.scaled_dot_product_attention = lambda *a, **k: inner(*a, **k)
        F.scaled_dot_product_attention(q, q, q)
        replaced.undo()
        assert F.scaled_dot_product_attention is not OWN
        torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), OWN(q, q, q), rtol=0, atol=0)
        assert replaced.served == 1
    finally:
        F.scaled_dot_product_attention = OWN


def test_precisions_of_replacements_must_agree() -> None:
    with pytest.raises(ValueError, match="precision"):
        ours.replace_sdpa(precision="double")  # type: ignore[arg-type]
    q = torch.randn(1, 2, 3, 4)
    with ours.replace_sdpa(precision="exact"):
        with pytest.raises(ValueError, match="a replacement with precision 'exact' is applied; give that precision, or undo the other replacement first"):
            ours.replace_sdpa()
        F.scaled_dot_product_attention(q, q, q)


def test_a_replacement_is_not_copied() -> None:
    with pytest.raises(TypeError, match="belongs to this process"):
        copy.deepcopy(ours.sdpa())


def test_sequence_parallel_comes_after_and_wins() -> None:
    code = """
        import torch, torch.distributed as dist, torch.nn.functional as F, warnings
        warnings.simplefilter("ignore")
        import polyhead
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        q = torch.randn(1, 2, 4, 8)
        with polyhead.torch.replace_sdpa() as replaced:
            with polyhead.distributed.sequence_parallel():
                F.scaled_dot_product_attention(q, q, q)
            assert replaced.served == 0
            F.scaled_dot_product_attention(q, q, q)
            assert replaced.served == 1
        with polyhead.distributed.sequence_parallel():
            F.scaled_dot_product_attention(q, q, q)
            try:
                polyhead.torch.replace_sdpa()
            except RuntimeError as error:
                print(error)
        dist.destroy_process_group()
    """
    told = forked_python.run(code)
    assert told.returncode == 0, told.stderr
    assert "is replaced already" in told.stdout


def test_models_of_transformers_with_sdpa_are_reached() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.set_attn_implementation("sdpa")
    tokens = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        expected = model(tokens).logits
        with ours.replace_sdpa() as replaced:
            torch.testing.assert_close(model(tokens).logits, expected)
    assert replaced.served == 2


def test_a_replacement_that_an_exit_stack_takes_over_ends_with_the_stack() -> None:
    own = F.scaled_dot_product_attention
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a replacement that served no call warns at its end
        stack.push(ours.replace_sdpa())
        assert F.scaled_dot_product_attention is not own
    assert F.scaled_dot_product_attention is own
