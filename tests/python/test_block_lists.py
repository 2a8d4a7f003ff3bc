"""Block lists (`blocks`, `block_size`) give the bits of a boolean mask of the same pairs, in every function of the package. Also tests transforms, graphs, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import polyhead
from polyhead.torch import attention

B, N, K, T, S, H = 2, 4, 2, 45, 70, 8
SIZE = (16, 32)
ROWS, COLUMNS = 3, 3


def drawn(seed: int = 0, shape: tuple[int, ...] = (B, N, ROWS, 2)) -> tuple[dict[str, Any], Any, Any]:
    """Returns random q, k and v, block lists, and a boolean mask of the same pairs."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((B, N, T, H), (B, K, S, H), (B, K, S, H)))
    blocks = rng.integers(-1, COLUMNS, shape).astype(np.int32)
    return {"q": q, "k": k, "v": v}, blocks, pairs_of(blocks)


def pairs_of(blocks: Any) -> Any:
    listed = (blocks[..., None] == np.arange(COLUMNS)).any(-2)
    return np.repeat(np.repeat(listed, SIZE[0], -2)[..., :T, :], SIZE[1], -1)[..., :S]


@pytest.mark.parametrize("shape", [(B, N, ROWS, 2), (1, N, ROWS, 1), (ROWS, 3), (B, 1, ROWS, 4), (N, ROWS, 0)])
@pytest.mark.parametrize("more", [{}, {"causal": "bottom_right"}, {"dropout": 0.3, "seed": 5}, {"softcap": 2.0, "empty_rows": "uniform"}])
def test_the_bits_are_those_of_the_same_pairs_as_booleans(shape: tuple[int, ...], more: dict[str, Any]) -> None:
    inputs, blocks, attend = drawn(3, shape)
    lists, pairs = {"blocks": blocks, "block_size": SIZE, **more}, {"attend": attend, **more}
    results = []
    for options in (lists, pairs):
        out, lse, p = polyhead.sdpa(**inputs, return_lse=True, return_attention_weights=True, **options)
        grads = polyhead.sdpa_backward(*inputs.values(), out, lse, np.ones_like(out), **options)
        keep = {name: value for name, value in options.items() if name not in ("dropout", "seed")}
        maps = polyhead.maps(inputs["q"], inputs["k"], top_k=2, **keep)
        results.append([out, lse, p, *[x for x in grads if x is not None], *[x for x in maps if isinstance(x, np.ndarray)]])
    assert len(results[0]) == len(results[1]) > 5
    for ours, theirs in zip(*results):
        np.testing.assert_array_equal(ours, theirs)


def test_a_layer_takes_block_lists() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 45, 16)).astype(np.float32)
    d_out = rng.standard_normal(x.shape).astype(np.float32)
    blocks = rng.integers(-1, 3, (3, 4, 3, 2))
    attend = np.repeat(np.repeat((blocks[..., None] == np.arange(3)).any(-2), 16, -2), 16, -1)[..., :45, :45]
    for added in ({}, {"add_zero_attn": True}):
        layer = polyhead.MultiHeadAttention(16, 4, seed=1, **added)
        results = []
        for options in ({"blocks": blocks, "block_size": 16}, {"attend": attend}):
            out, saved = layer.forward(x, **options)
            grads = saved.backward(d_out)
            results.append({"out": out, "maps": saved.maps(), "d_query": grads.query, **grads.parameters})
        ours, theirs = results
        assert ours.keys() == theirs.keys() and len(ours) > 6
        for name, found in ours.items():
            np.testing.assert_array_equal(found, theirs[name], err_msg=name)


def tensors(seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    inputs, blocks, attend = drawn(seed)
    return {name: torch.from_numpy(x).double().requires_grad_() for name, x in inputs.items()}, torch.from_numpy(blocks), torch.from_numpy(attend)


def test_torch_has_first_and_second_derivatives_with_block_lists() -> None:
    inputs, blocks, attend = tensors()
    found = []
    for options in ({"blocks": blocks, "block_size": SIZE}, {"attend": attend}):
        out, lse, p = attention(**inputs, return_lse=True, return_attention_weights=True, **options)
        first = torch.autograd.grad((out**2).sum() + (p**2).sum(), tuple(inputs.values()), create_graph=True)
        second = torch.autograd.grad(attention(**inputs, **options).pow(2).sum(), inputs["q"], create_graph=True)[0].pow(2).sum()
        found.append([out, lse, *first, *torch.autograd.grad(second, tuple(inputs.values()))])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_torch_transforms_calls_with_block_lists() -> None:
    inputs, blocks, attend = tensors(2)
    inputs = {name: x.detach() for name, x in inputs.items()}
    whole = attention(**inputs, blocks=blocks, block_size=SIZE)
    mapped = torch.func.vmap(lambda q, k, v, b: attention(q, k, v, blocks=b, block_size=SIZE))(*inputs.values(), blocks)
    torch.testing.assert_close(mapped, whole, rtol=0, atol=0)
    shared = torch.func.vmap(lambda q, k, v: attention(q, k, v, blocks=blocks[0], block_size=SIZE))(*inputs.values())
    torch.testing.assert_close(shared, attention(**inputs, blocks=blocks[0], block_size=SIZE), rtol=0, atol=0)

    def along(**mask: Any) -> Any:
        return torch.func.jvp(lambda q: attention(q, inputs["k"], inputs["v"], **mask), (inputs["q"],), (inputs["q"].cos(),))

    for ours, theirs in zip(along(blocks=blocks, block_size=SIZE), along(attend=attend)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_torch_compiles_calls_with_block_lists() -> None:
    inputs, blocks, attend = tensors(4)

    def loss(blocks: torch.Tensor) -> torch.Tensor:
        return attention(**inputs, blocks=blocks, block_size=SIZE).pow(2).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    ours = torch.autograd.grad(compiled(blocks), tuple(inputs.values()))
    theirs = torch.autograd.grad(attention(**inputs, attend=attend).pow(2).sum(), tuple(inputs.values()))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_jax_has_gradients_with_block_lists() -> None:
    jax = pytest.importorskip("jax")
    from polyhead.jax import attention as of_jax

    inputs, blocks, attend = drawn(6)

    def loss(q: Any, k: Any, v: Any, **mask: Any) -> Any:
        return (of_jax(q, k, v, **mask) ** 2).sum()

    arrays = tuple(map(jax.numpy.asarray, inputs.values()))
    lists = jax.numpy.asarray(blocks)
    ours = jax.jit(jax.grad(lambda q, k, v, b: loss(q, k, v, blocks=b, block_size=SIZE), (0, 1, 2)))(*arrays, lists)
    theirs = jax.grad(lambda q, k, v: loss(q, k, v, attend=attend), (0, 1, 2))(*arrays)
    for a, b in zip(ours, theirs):
        np.testing.assert_array_equal(a, b)
    mapped = jax.vmap(lambda q, k, v, b: of_jax(q, k, v, blocks=b, block_size=SIZE))(*arrays, lists)
    np.testing.assert_array_equal(mapped, of_jax(*arrays, attend=attend))
    one = jax.vmap(lambda q, k, v: of_jax(q, k, v, blocks=lists[0], block_size=SIZE))(*arrays)
    np.testing.assert_array_equal(one, of_jax(*arrays, attend=attend[0]))
    with pytest.raises(Exception, match=r"blocks lists block [345]; there are 3 blocks of 32 keys"):
        of_jax(*arrays, blocks=lists + 3, block_size=SIZE)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"block_size": 0}, ValueError, "block_size"),
        ({"block_size": (16, 16, 16)}, TypeError, r"block_size.*\(queries, keys\)"),
        ({"block_size": True}, TypeError, "block_size"),
        ({"block_size": 64}, ValueError, r"blocks is \[3,2\].*Tb = 1 blocks of 64 queries"),
    ],
)
def test_wrong_sizes_are_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    inputs, blocks, _ = drawn(0, (ROWS, 2))
    with pytest.raises(kind, match=message):
        polyhead.sdpa(**inputs, blocks=blocks, **given)
    with pytest.raises(kind, match=message):
        attention(*map(torch.from_numpy, inputs.values()), blocks=torch.from_numpy(blocks), **given)
