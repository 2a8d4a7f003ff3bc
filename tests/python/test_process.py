"""Tests threads, forks, exits and imports: the package must not disturb the process that uses it. Code that may crash runs in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import polyhead


def run(code: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | environment,
    )


def quiet(result: subprocess.CompletedProcess[str]) -> str:
    """Checks that a process ended without error and wrote nothing to stderr. Returns its output."""
    assert result.returncode == 0 and result.stderr == "", (result.returncode, result.stderr)
    return result.stdout.strip()


def test_device_and_explain_name_what_was_found() -> None:
    told = polyhead.device()
    assert 1 <= told["usable"] <= told["online"] and told["threads"] == polyhead.num_threads() and told["kernel"] in told["kernels"]
    assert set(told["kernels"]) - {told["kernel"]} == told["why_not_used"].keys() and all(told["why_not_used"].values())
    for cache in told["caches"]:
        assert cache.keys() == {"level", "kind", "bytes", "shared_by"} and cache["bytes"] > 0
        assert cache["shared_by"] is None or cache["shared_by"] >= 1
    x = np.zeros((1, 4, 8), np.float32)
    facts = dict(line.split(": ", 1) for line in polyhead.explain(x, x, x).splitlines())
    assert facts["processors"] == f"{told['usable']} of {told['online']} online"
    assert facts["instruction sets"].split("; ") == [" ".join(name for name, there in told["instruction_sets"].items() if there) or "unknown", f"kernels for {told['kernel']}"]
    for name, level in (("L1d", 1), ("L2", 2), ("L3", 3)):
        known = any(cache["level"] == level and cache["kind"] != "instruction" for cache in told["caches"])
        assert (f"{name} unknown" in facts["caches"]) != known


def test_threads_that_call_at_once_get_the_bits_of_one_call(rng: np.random.Generator) -> None:
    problems = [tuple(rng.standard_normal((2, 4, 50 + i, 16)).astype(np.float32) for _ in range(3)) for i in range(4)]
    layer = polyhead.MultiHeadAttention(16, 4)
    expected = [(polyhead.sdpa(q, k, v, causal="top_left"), layer(q)) for q, k, v in problems]
    wrong: list[int] = []
    barrier = threading.Barrier(len(problems))

    def work(i: int) -> None:
        q, k, v = problems[i]
        barrier.wait()
        for repeat in range(10):
            out = polyhead.sdpa(q, k, v, causal="top_left", num_threads=1 + repeat % 3)
            if not (np.array_equal(out, expected[i][0]) and np.array_equal(layer(q), expected[i][1])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_interpreter_goes_on_while_polyhead_computes(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 4, 512, 64)).astype(np.float32) for _ in range(3))
    layer = polyhead.MultiHeadAttention(64, 4)
    out, lse = polyhead.sdpa(q, k, v, return_lse=True)
    calls = {
        "sdpa": lambda: polyhead.sdpa(q, k, v, num_threads=1),
        "sdpa_backward": lambda: polyhead.sdpa_backward(q, k, v, out, lse, out, num_threads=1),
        "maps": lambda: polyhead.maps(q, k, num_threads=1),
        "forward": lambda: layer.forward(q[0], num_threads=1),
    }
    for name, call in calls.items():
        state = {"inside": False, "ticks": 0, "stop": False}

        def tick() -> None:
            while not state["stop"]:
                if state["inside"]:
                    state["ticks"] += 1
                time.sleep(0)

        thread = threading.Thread(target=tick)
        switch = sys.getswitchinterval()
        thread.start()
        try:
            sys.setswitchinterval(100)  # Python does not take the GIL from a thread for 100 s, so the other thread runs only if the call releases the GIL
            start = time.perf_counter()
            repeats = 0
            while state["ticks"] < 3 and time.perf_counter() - start < 200:
                state["inside"] = True
                call()
                state["inside"] = False
                repeats += 1
        finally:
            sys.setswitchinterval(switch)
            state["stop"] = True
            thread.join()
        assert state["ticks"] >= 3, (name, repeats)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_computes_the_same() -> None:
    out = run("""
        import os, warnings, numpy as np, polyhead
        warnings.simplefilter("ignore")  # Python itself warns of a fork in a process with threads
        q = np.random.default_rng(0).standard_normal((2, 4, 300, 32)).astype(np.float32)
        before = polyhead.sdpa(q, q, q)  # the library's threads are alive now
        child = os.fork()
        if child == 0:
            same = np.array_equal(polyhead.sdpa(q, q, q), before)
            os._exit(0 if same else 7)
        assert np.array_equal(polyhead.sdpa(q, q, q), before)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert quiet(out) == "0"


def test_multiprocessing_workers_compute_the_same() -> None:
    out = run("""
        import multiprocessing, warnings, numpy as np, polyhead
        warnings.simplefilter("ignore")
        def work(seed):
            q = np.random.default_rng(seed).standard_normal((2, 2, 100, 16)).astype(np.float32)
            return polyhead.sdpa(q, q, q)
        expected = [work(seed) for seed in range(4)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(all(np.array_equal(a, b) for a, b in zip(pool.map(work, range(4)), expected)))
    """)
    assert quiet(out) == "True"


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_the_interpreter_exits_while_a_daemon_thread_computes(ending: str) -> None:
    quiet(run(f"""
        import os, sys, threading, time, numpy as np, polyhead
        q = np.zeros((4, 8, 600, 64), np.float32)
        inside = threading.Event()
        def work():
            while True:
                inside.set()
                polyhead.sdpa(q, q, q, num_threads=2)
        threading.Thread(target=work, daemon=True).start()
        inside.wait()
        time.sleep(0.1)
        {ending}
    """))


def test_objects_that_are_alive_at_exit_are_no_complaint() -> None:
    quiet(run("""
        import numpy as np, polyhead
        layer = polyhead.MultiHeadAttention(8, 2)
        out, saved = layer.forward(np.ones((2, 3, 8), np.float32))
        weight = layer.parameters["q.weight"]
        class Cycle: pass
        cycle = Cycle(); cycle.me, cycle.saved = cycle, saved
    """))


def test_a_signal_reaches_python_after_the_call() -> None:
    out = run("""
        import os, signal, threading, time, numpy as np, polyhead
        q = np.zeros((2, 4, 400, 32), np.float32)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts programs with SIGINT ignored
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            start = time.time()
            while time.time() - start < 300:
                polyhead.sdpa(q, q, q)
            print("never")
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert quiet(out) == "interrupted"


def test_results_outlive_everything_else() -> None:
    out = run("""
        import gc, numpy as np, polyhead
        def make():
            layer = polyhead.MultiHeadAttention(8, 2, seed=3)
            _, saved = layer.forward(np.ones((2, 3, 8), np.float32), seed=1)
            return saved, layer.parameters["q.weight"], saved.backward(np.ones((2, 3, 8), np.float32)).parameters, layer.state()
        kept = [make() for _ in range(50)]
        gc.collect()
        again = make()
        same = all(np.array_equal(a[1], again[1]) and np.array_equal(a[0].maps(), again[0].maps())
                   and all(np.array_equal(a[2][n], again[2][n]) for n in again[2]) for a in kept)
        print(same)
    """)
    assert quiet(out) == "True"


def test_calls_do_not_leak_memory() -> None:
    out = run("""
        import re, numpy as np, polyhead
        q = np.ones((1, 4, 64, 64), np.float32)
        layer = polyhead.MultiHeadAttention(64, 4)
        def work():
            out, lse = polyhead.sdpa(q, q, q, return_lse=True)
            polyhead.sdpa_backward(q, q, q, out, lse, out)
            out, saved = layer.forward(q[0])
            saved.backward(out).parameters
            layer.state()
            try: polyhead.sdpa(q, q[..., :5], q)
            except ValueError: pass
        def peak():  # ru_maxrss is of no use: it begins at the peak of the parent process, and may therefore never grow
            return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
        for _ in range(30): work()
        before = peak()
        for _ in range(100): work()
        print(peak() - before)  # KB; a leak of any one tensor here is 1.6 MB or more
    """)
    assert int(quiet(out)) < 1500


# --- imports

def test_importing_polyhead_imports_numpy_at_most() -> None:
    out = run("""
        import sys, polyhead
        heavy = ["torch", "transformers", "jax", "onnx", "scipy", "pandas", "matplotlib", "IPython", "asyncio", "multiprocessing", "unittest", "ssl"]
        print([name for name in heavy if name in sys.modules])
    """)
    assert quiet(out) == "[]"


def test_importing_polyhead_makes_no_thread() -> None:
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    # NumPy's BLAS starts threads; importing polyhead must start no further thread.
    out = run("""
        import os, numpy
        before = len(os.listdir("/proc/self/task"))
        import polyhead
        print(len(os.listdir("/proc/self/task")) - before)
    """)
    assert quiet(out) == "0"


def test_import_time_is_reported(summary: list[str]) -> None:
    def best(code: str) -> float:
        timed = f"import time, numpy; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
        return min(float(quiet(run(timed))) for _ in range(5))

    milliseconds = 1000 * best("import polyhead")
    summary.append(f"import polyhead after NumPy: {milliseconds:.1f} ms (best of 5; 60 ms are allowed on a machine at rest)")
    assert milliseconds < 1000  # a wide bound, for busy machines: it is exceeded only if a heavy package is imported
