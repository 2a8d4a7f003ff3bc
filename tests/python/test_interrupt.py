"""Ctrl-C ends calls that take seconds, because calls on the main thread check for signals. Later calls work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import polyhead
from effort import combinations

POSITIONS = 16384
ONE = np.random.default_rng(5).standard_normal((1, 1, POSITIONS, 16)).astype(np.float32)
LONG = np.tile(ONE, (1, 1, 8, 1))
LSE = np.zeros((1, 1, 8 * POSITIONS), np.float32)
X = np.random.default_rng(6).standard_normal((1, 512, 512)).astype(np.float32)


class Alarm(BaseException):
    """An exception that, like KeyboardInterrupt, `except Exception` does not catch."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Starts a series of signals, and raises Alarm at the third one that Python handles. Python merges signals that arrive between two checks, so a call that never checks
    handles only one."""
    seen = 0

    def ring(_signal: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Sends SIGINT repeatedly, and raises KeyboardInterrupt at the third one that Python handles, for the reason that `alarm` states."""
    seen, over = 0, threading.Event()

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 3 and not over.is_set():
            over.set()
            signal.default_int_handler(number, frame)

    def send() -> None:
        while not over.wait(0.02):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, ring)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


def heads(count: int, x: Any = ONE) -> Any:
    return np.broadcast_to(x, (1, count, *x.shape[2:]))


def lse(count: int, positions: int = POSITIONS) -> Any:
    return np.broadcast_to(LSE[:, :, :positions], (1, count, positions))


FEW, F16, F64, ROWS = ONE[:, :, :6144], ONE.astype(np.float16), ONE.astype(np.float64), np.broadcast_to(X, (256, 512, 512))
TANGENTS, BIAS = polyhead.Tangents(q=heads(32), k=heads(32), v=heads(32)), np.zeros((1, POSITIONS), np.float32)
ENDS = np.array([0, 9000, POSITIONS])
SLOPES = polyhead.RelativeBias(slopes=np.zeros(64, np.float32))
LAYER = polyhead.MultiHeadAttention(512, 8, gate=True, seed=1)

# Calls that take many seconds on one thread. Each is a function of the number of threads.
CALLS: dict[str, Callable[[int], object]] = {
    "sdpa": lambda n: polyhead.sdpa(heads(64), heads(64), heads(64), num_threads=n),
    "sdpa of one head": lambda n: polyhead.sdpa(LONG, LONG, LONG, num_threads=n),
    "sdpa of few rows": lambda n: polyhead.sdpa(heads(1 << 14, ONE[:, :, :2]), heads(1 << 14), heads(1 << 14), num_threads=n),
    "sdpa of documents": lambda n: polyhead.sdpa(heads(256), heads(256), heads(256), query_offsets=ENDS, key_offsets=ENDS, num_threads=n),
    "sdpa with a bias": lambda n: polyhead.sdpa(heads(64), heads(64), heads(64), bias=BIAS, num_threads=n),
    "sdpa of float16": lambda n: polyhead.sdpa(heads(64, F16), heads(64, F16), heads(64, F16), num_threads=n),
    "sdpa of float64": lambda n: polyhead.sdpa(heads(64, F64), heads(64, F64), heads(64, F64), num_threads=n),
    "sdpa by the reference": lambda n: polyhead.sdpa(heads(4, FEW), heads(4, FEW), heads(4, FEW), backend="reference", num_threads=n),
    "backward": lambda n: polyhead.sdpa_backward(heads(32), heads(32), heads(32), heads(32), lse(32), heads(32), num_threads=n),
    "backward of one head": lambda n: polyhead.sdpa_backward(LONG, LONG, LONG, LONG, LSE, LONG, num_threads=n),
    "backward with a bias": lambda n: polyhead.sdpa_backward(heads(32), heads(32), heads(32), heads(32), lse(32), heads(32), bias=BIAS, num_threads=n),
    "backward with slopes": lambda n: polyhead.sdpa_backward(heads(64), heads(64), heads(64), heads(64), lse(64), heads(64), relative_bias=SLOPES, num_threads=n),
    "backward by the reference": lambda n: polyhead.sdpa_backward(heads(2, FEW), heads(2, FEW), heads(2, FEW), heads(2, FEW), lse(2, 6144), heads(2, FEW), backend="reference", num_threads=n),
    "jvp": lambda n: polyhead.sdpa_jvp(heads(32), heads(32), heads(32), heads(32), lse(32), TANGENTS, num_threads=n),
    "second backward": lambda n: polyhead.sdpa_backward_backward(heads(32), heads(32), heads(32), heads(32), lse(32), heads(32), TANGENTS, num_threads=n),
    "maps": lambda n: polyhead.maps(heads(64), heads(64), keys=[0], num_threads=n),
    "top keys": lambda n: polyhead.maps(heads(64), heads(64), top_k=5, num_threads=n),
    "head_statistics": lambda n: polyhead.head_statistics(heads(64), heads(64), num_threads=n),
    "pooled_map": lambda n: polyhead.pooled_map(heads(64), heads(64), 8, 8, num_threads=n),
    "key_sums": lambda n: polyhead.key_sums(heads(64), heads(64), num_threads=n),
    "key_mass": lambda n: polyhead.key_mass(heads(64), heads(64), np.ones((1, POSITIONS), bool), num_threads=n),
    "map_windows": lambda n: polyhead.map_windows(heads(64), heads(64), -1, 1, num_threads=n),
    "head_divergence": lambda n: polyhead.head_divergence(heads(16), heads(16), num_threads=n),
    "rollout": lambda n: polyhead.rollout([(heads(64), heads(64))] * 2, rows=list(range(512)), num_threads=n),
    "layer": lambda n: LAYER(ROWS, num_threads=n),
    "frozen layer": lambda n: LAYER.frozen()(ROWS, num_threads=n),
    "layer of one sequence": lambda n: LAYER(np.tile(X, (1, 48, 1)), num_threads=n),
    "forward of a layer": lambda n: LAYER.forward(ROWS, num_threads=n),
    "dropout_keep_bits": lambda n: polyhead.dropout_keep_bits(0.5, 3, np.lib.stride_tricks.as_strided(np.empty(POSITIONS, bool), (1, 512, POSITIONS, POSITIONS), (0, 0, 0, 1))),
}


def small(threads: int) -> bytes:
    q = np.ascontiguousarray(ONE[:, :, :512])
    out, of_rows = polyhead.sdpa(q, q, q, causal="top_left", return_lse=True, num_threads=threads)
    return out.tobytes() + polyhead.sdpa_backward(q, q, q, out, of_rows, q, causal="top_left", num_threads=threads).q.tobytes()


@pytest.mark.parametrize(("name", "threads"), combinations(CALLS, [1, 3]))
def test_a_signal_ends_a_call(name: str, threads: int, alarm: Callable[[], None]) -> None:
    before = small(threads)
    alarm()
    with pytest.raises(Alarm):
        CALLS[name](threads)
    assert small(threads) == before
    assert small(1) == before


def test_the_backward_pass_of_a_layer_ends(alarm: Callable[[], None]) -> None:
    _, saved = LAYER.forward(ROWS[:32])
    d_out = np.array(ROWS[:32])
    alarm()
    with pytest.raises(Alarm):
        saved.backward(d_out, num_threads=1)


def test_an_interrupted_call_leaves_the_cache_as_it_was(alarm: Callable[[], None]) -> None:
    layer = polyhead.MultiHeadAttention(512, 8, seed=1)
    cache = polyhead.KeyValueCache(1, 8, 49152, 64)
    layer(X, causal="bottom_right", cache=cache)
    keys, lengths = cache.keys.copy(), cache.lengths
    alarm()
    with pytest.raises(Alarm):
        layer(np.tile(X, (1, 90, 1)), causal="bottom_right", cache=cache)
    assert np.array_equal(cache.lengths, lengths) and np.array_equal(cache.keys, keys)
    layer(X, causal="bottom_right", cache=cache)
    assert cache.lengths.tolist() == [1024]


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        CALLS["sdpa"](2)


def test_a_handler_that_returns_changes_nothing() -> None:
    seen = []

    def ring(_signal: int, _frame: object) -> None:
        seen.append(polyhead.sdpa(ONE[:, :, :9], ONE[:, :, :9], ONE[:, :, :9]).tobytes())  # a signal handler may call polyhead

    expected = polyhead.sdpa(ONE, ONE, ONE, num_threads=2)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        out = polyhead.sdpa(ONE, ONE, ONE, num_threads=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and np.array_equal(out, expected)


def test_a_call_on_another_thread_is_not_disturbed(alarm: Callable[[], None]) -> None:
    expected = polyhead.sdpa(ONE, ONE, ONE)
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(polyhead.sdpa(ONE, ONE, ONE, num_threads=1)))
    worker.start()
    alarm()
    with pytest.raises(Alarm):
        while True:
            signal.pause()
    worker.join()
    assert np.array_equal(results[0], expected)


@pytest.mark.parametrize("what", ["forward", "backward", "gated", "gated backward", "second backward", "compiled backward"])
def test_torch_passes_end(what: str, alarm: Callable[[], None]) -> None:
    torch = pytest.importorskip("torch")
    import polyhead.torch as pt

    threads = torch.get_num_threads()
    positions = 8192 if what == "second backward" else POSITIONS
    x = torch.tensor(ONE[:, :, :positions]).expand(1, 48, -1, -1)
    if what in ("forward", "gated"):
        layer = pt.GatedAttention(64, 64, 8, gated=True)
        table = torch.zeros(1, 2 * POSITIONS, 64)
        alarm()
        with pytest.raises(Alarm), torch.no_grad():
            pt.attention(x, x, x) if what == "forward" else layer(table)
        return
    if what == "gated backward":
        out = pt.GatedAttention(64, 64, 8, gated=True)(torch.zeros(1, POSITIONS // 2, 64, requires_grad=True))
    else:
        leaf = x[:, :2].clone().requires_grad_()
        f = torch.compile(pt.attention, backend="aot_eager") if what == "compiled backward" else pt.attention
        out = f(leaf, leaf, leaf)
    if what == "second backward":
        (out,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    torch.set_num_threads(1)  # so that the pass also lasts on many processors
    alarm()
    try:
        with pytest.raises(Alarm):
            out.sum().backward()
    finally:
        torch.set_num_threads(threads)
    alarm_free = torch.tensor(ONE[:, :, :64]).requires_grad_()
    pt.attention(alarm_free, alarm_free, alarm_free).sum().backward()
    assert alarm_free.grad is not None


def test_a_child_after_fork_has_its_own_main_thread() -> None:
    def fork() -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with ctrl_c():
                    CALLS["sdpa"](1)
            except KeyboardInterrupt:
                status = 0
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    statuses: list[int] = []
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert statuses == [0]
