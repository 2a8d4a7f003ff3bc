"""Some features of other packages give wrong results when they are used with polyhead's attention functions. polyhead corrects these results if it can, and otherwise warns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import polyhead


def warned(messages: list[warnings.WarningMessage], word: str) -> int:
    return sum(word in str(message.message) for message in messages)


# --- torch.compile with an activation memory budget


def compiled_gradients(budget: float, monkeypatch: pytest.MonkeyPatch, region: bool = False) -> tuple[Any, Any, list[tuple[str, int]], list[warnings.WarningMessage]]:
    """Compiles a layer with an activation memory budget, that of the configuration or that of a region. Returns (gradient with the budget, gradient without a budget, seeds of all
    passes with the budget, warnings)."""
    torch = pytest.importorskip("torch")
    from polyhead.torch import MultiheadAttention

    seeds: list[tuple[str, int]] = []
    for name in ("sdpa", "sdpa_backward"):

        def seen(*arguments: Any, of: Any = getattr(polyhead, name), name: str = name, **keywords: Any) -> Any:
            seeds.append((name, keywords["seed"]))
            return of(*arguments, **keywords)

        monkeypatch.setattr(polyhead, name, seen)
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 4, dropout=0.5, batch_first=True).train()
    linear = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    x = torch.randn(2, 6, 16, requires_grad=True)

    def loss(x: Any) -> Any:
        y = linear(x)
        return linear(layer(y, y, y, need_weights=False)[0]).square().sum()

    def of_region(x: Any) -> Any:
        with torch.autograd.graph.region_activation_memory_budget(budget):
            return loss(x)

    found = []
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        for given in (budget, 1.0):
            torch._dynamo.reset()
            with torch._functorch.config.patch(activation_memory_budget=1.0 if region else given):
                compiled = torch.compile(of_region if region and given == budget else loss, fullgraph=True, backend="aot_eager_decomp_partition")
                torch.manual_seed(1)
                found.append(torch.autograd.grad(compiled(x), x)[0])
            if given == budget:
                of_budget = list(seeds)
    torch._dynamo.reset()
    return *found, of_budget, messages


@pytest.mark.parametrize("budget", [0.2, 0.0])
def test_a_pass_that_is_computed_again_for_memory_has_the_same_dropout_bits(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ours, expected, seeds, messages = compiled_gradients(budget, monkeypatch)
    assert [name for name, _ in seeds] == ["sdpa", "sdpa", "sdpa_backward"], "the forward pass must be computed again before the backward pass"
    assert len({seed for _, seed in seeds}) == 1 and warned(messages, "activation_memory_budget") == 0
    torch.testing.assert_close(ours, expected)


def test_a_region_with_a_budget_of_zero_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.autograd.graph, "region_activation_memory_budget"):
        pytest.skip("this version of torch has no budgets for regions")
    _, _, seeds, messages = compiled_gradients(0.0, monkeypatch, region=True)
    # The recomputed pass has another seed. When torch keeps the seed here, too, polyhead's warning can be removed.
    assert len({seed for _, seed in seeds}) == 2 and warned(messages, "region_activation_memory_budget(0)")


# --- Flax's decoding with a cache


def test_one_causal_query_of_several_keys_is_warned_of() -> None:
    jax = pytest.importorskip("jax")
    from polyhead.jax import attention_fn

    q, k = np.ones((2, 1, 4, 8), np.float32), np.ones((2, 6, 4, 8), np.float32)
    with pytest.warns(RuntimeWarning, match="attends to the first key alone, as in Flax"):
        attention_fn(q, k, k, is_causal=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention_fn(q, k, k)
        attention_fn(q, q, q, is_causal=True)
        jax.jit(lambda q, k: attention_fn(q, k, k, mask=np.ones((2, 1, 1, 6), bool)))(q, k)
        attention_fn(k, k, k, is_causal=True)


# --- packed texts of transformers


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    import polyhead.transformers

    polyhead.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        attn_implementation="polyhead",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "given, is_packed",
    [({"use_cache": False}, True), ({}, False), ({"attention_mask": 1, "use_cache": False}, False), ({"attention_mask": 1}, False)],
    ids=["no mask, no cache", "no mask", "mask, no cache", "mask"],
)
def test_packed_texts_that_are_computed_as_one_are_warned_of(given: dict[str, Any], is_packed: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = llama()
    tokens = torch.arange(1, 9).unsqueeze(0)
    options = given | ({"attention_mask": torch.ones_like(tokens)} if "attention_mask" in given else {})
    with torch.no_grad(), warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        together = model(tokens, position_ids=torch.arange(4).repeat(2).unsqueeze(0), **options).logits[:, 4:]
        alone = model(tokens[:, 4:], use_cache=False).logits
    assert torch.allclose(together, alone, atol=1e-5) == is_packed
    assert warned(messages, "position_ids begin again within a row") == (not is_packed), "exactly one layer must warn, the first"


def test_padded_texts_are_not_warned_of() -> None:
    torch = pytest.importorskip("torch")
    model = llama()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    tokens, positions = torch.randint(1, 50, (2, 6)), mask.cumsum(-1) - 1
    with torch.no_grad(), warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        model(tokens, attention_mask=mask, position_ids=positions.clamp(min=0))
        model(tokens, attention_mask=mask, position_ids=positions.masked_fill(mask == 0, 1))
        model.generate(tokens, attention_mask=mask, max_new_tokens=3, do_sample=False)
    assert warned(messages, "position_ids") == 0
