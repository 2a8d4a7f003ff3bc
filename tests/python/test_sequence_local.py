"""Compares polyhead.torch.sequence_local_attention and its gradients with a plain form of algorithm 7 of AlphaFold 3. Each pair (query, key) of a window has its own bias."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor

import polyhead
from polyhead.torch import attention, sequence_local_attention

N, H, V = 4, 16, 8


def naive(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, queries: int, keys: int, scale: float | None = None) -> Tensor:
    """Computes the formula for one atom after the other. Atom l attends to atom m if, for the middle c of a window, |l - c| < queries / 2 and |m - c| < keys / 2."""
    length, rows = q.shape[-2], []
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    for atom in range(length):
        window = atom // queries
        middle = window * queries + (queries - 1) / 2
        near = [m for m in range(length) if abs(m - middle) < keys / 2]
        score = q[..., atom, None, :] @ k[..., near, :].mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if bias is not None:
            first = window * queries - (keys - queries) // 2
            score = score + bias[..., window, :, atom - window * queries, None, [m - first for m in near]]
        if keep is not None:
            score = score.masked_fill(~keep[..., None, None, near], -torch.inf)
        rows.append(score.softmax(-1).nan_to_num(0) @ v[..., near, :])
    return torch.cat(rows, -2)


def inputs(length: int, leading: tuple[int, ...] = (2,), kv_heads: int = N, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(*leading, heads, length, width, dtype=dtype, requires_grad=True) for heads, width in ((N, H), (kv_heads, H), (kv_heads, V))]


@pytest.mark.parametrize(("length", "queries", "keys"), [(200, 32, 128), (128, 32, 128), (7, 32, 128), (65, 32, 64), (33, 8, 8), (50, 6, 10), (96, 32, 32)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kv_heads", [N, 1])
def test_sequence_local_attention_is_attention_window_by_window(length: int, queries: int, keys: int, masked: bool, kv_heads: int) -> None:
    given = inputs(length, kv_heads=kv_heads)
    windows = -(-length // queries)
    pairs = torch.randn(2, windows, queries, keys, N, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(2, length) < 0.7 if masked else None
    ours = sequence_local_attention(*given, pairs.movedim(-1, -3), queries=queries, keys=keys, attend_keys=keep)
    theirs = naive(*given, pairs.movedim(-1, -3), keep, queries, keys)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    d_out = torch.randn_like(ours)
    for mine, other in zip(torch.autograd.grad(ours, [*given, pairs], d_out), torch.autograd.grad(theirs, [*given, pairs], d_out)):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def test_a_sink_of_each_sequence_is_that_of_each_sequence_alone() -> None:
    given = inputs(64)  # 2 sequences, each with 2 windows of 32 atoms: a leading dimension of 2 in the sink means the sequences, not the windows
    for sink in (torch.randn(2, N, 1, dtype=torch.float64), torch.randn(2, N, 64, dtype=torch.float64), torch.randn(N, dtype=torch.float64)):
        together = sequence_local_attention(*given, sink=sink)
        for i in range(2):
            alone = sequence_local_attention(*(x[i] for x in given), sink=sink if sink.dim() == 1 else sink[i])
            torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 1, 32, 128), (1, 1, N, 1, 128), (2, 1, 1, 32, 128), (32, 128)])
def test_a_bias_that_broadcasts_has_the_gradient_of_its_shape(shape: tuple[int, ...]) -> None:
    given, bias = inputs(90), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    full = bias.expand(2, 3, N, 32, 128)
    ours, theirs = sequence_local_attention(*given, bias), naive(*given, full, None, 32, 128)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    d_out = torch.randn_like(ours)
    (mine,), (other,) = torch.autograd.grad(ours, bias, d_out), torch.autograd.grad(theirs, bias, d_out)
    assert mine.shape == shape
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def test_other_leading_dimensions_options_and_dtypes() -> None:
    for leading in ((), (2, 3)):
        given = inputs(70, leading)
        torch.testing.assert_close(sequence_local_attention(*given), naive(*given, None, None, 32, 128), rtol=1e-10, atol=1e-11)
    given = inputs(70, dtype=torch.float32)
    keep = torch.ones(70, dtype=torch.bool)
    keep[60:] = False
    torch.testing.assert_close(sequence_local_attention(*given, scale=0.5, attend_keys=keep), naive(*given, None, keep, 32, 128, 0.5), rtol=1e-5, atol=1e-6)
    narrow = [x.bfloat16() for x in given]
    torch.testing.assert_close(sequence_local_attention(*narrow).float(), naive(*(x.float() for x in narrow), None, None, 32, 128), rtol=3e-2, atol=3e-2)  # type: ignore[arg-type]
    assert sequence_local_attention(*inputs(0)).shape == (2, N, 0, V)
    transposed = [x.transpose(-2, -3).contiguous().transpose(-2, -3) for x in given]  # the memory has the layout [*,T,N,H]
    assert torch.equal(sequence_local_attention(*transposed), sequence_local_attention(*given))


@pytest.mark.parametrize(("length", "queries", "keys"), [(200, 32, 128), (7, 32, 128), (65, 32, 64), (33, 8, 8), (50, 6, 10), (37, 5, 11)])
def test_without_a_bias_a_block_list_says_the_same(length: int, queries: int, keys: int) -> None:
    q, k, v = inputs(length)
    blocks, block_size = polyhead.local_blocks(length, queries=queries, keys=keys)
    assert block_size[0] == queries and blocks.shape == (-(-length // queries), keys // block_size[1])
    wanted = sequence_local_attention(q, k, v, queries=queries, keys=keys)
    torch.testing.assert_close(attention(q, k, v, blocks=torch.from_numpy(blocks), block_size=block_size), wanted, rtol=1e-10, atol=1e-11)
    plain = polyhead.sdpa(*(x.detach().numpy() for x in (q, k, v)), blocks=blocks, block_size=block_size)
    torch.testing.assert_close(torch.from_numpy(plain), wanted.detach(), rtol=1e-10, atol=1e-11)


def test_the_windows_of_atoms_are_blocks_of_16_keys() -> None:
    blocks, block_size = polyhead.local_blocks(200)
    assert block_size == (32, 16)
    assert blocks.tolist()[0] == [-1, -1, -1, 0, 1, 2, 3, 4] and blocks.tolist()[-1] == [9, 10, 11, 12, -1, -1, -1, -1]


def test_no_tensor_of_all_pairs_is_made() -> None:
    """The forward and backward pass raise the process's peak memory by less than an eighth of a tensor of all pairs. The dense formula, which makes such a tensor, raises it by more: this
    shows that the measurement works."""
    program = """
        import re, torch
        from polyhead.torch import sequence_local_attention
        def peak():  # not ru_maxrss, which starts at the peak of the process that started this one
            return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
        def growth(function, length):
            q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
            before = peak()
            function(q, k, v).sum().backward()
            assert q.grad.isfinite().all()
            return peak() - before
        growth(sequence_local_attention, 512)
        length = 4096
        print(growth(sequence_local_attention, length), growth(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, length), 2 * length**2 * 4)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    windows, dense, pairs = map(int, out.stdout.split())
    assert dense > pairs  # 134 MB
    assert windows < pairs // 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": 31}, "queries = 32 and keys = 31"),
        ({"keys": 129}, "keys - queries must be even"),
        ({"queries": 0}, "queries = 0"),
        ({"bias": torch.zeros(3, N, 32, 127)}, "bias is [3, 4, 32, 127]; it must broadcast to [*,W,N,queries,keys] = [2, 3, 4, 32, 128]"),
        ({"bias": torch.zeros(2, 2, N, 32, 128)}, "bias is [2, 2, 4, 32, 128]"),
        ({"attend_keys": torch.ones(2, 69, dtype=torch.bool)}, "attend_keys is torch.bool [2, 69]"),
        ({"attend_keys": torch.ones(2, 70)}, "attend_keys is torch.float32"),
        ({"k": torch.zeros(2, N, 71, H)}, "k is [2, 4, 71, 16] and q is [2, 4, 70, 16]"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = dict(zip("qkv", inputs(70, dtype=torch.float32)))
    with pytest.raises(ValueError, match=re.escape(message)):
        sequence_local_attention(**given | change)


def test_options_of_whole_sequences_are_refused() -> None:
    with pytest.raises(TypeError, match="causal"):
        sequence_local_attention(*inputs(70), causal="top_left")  # type: ignore[arg-type]
