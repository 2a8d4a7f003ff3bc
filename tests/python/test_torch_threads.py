"""polyhead's torch operators use no more threads than torch is allowed to use."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import forked_python
import polyhead
from polyhead.torch import GatedAttention, _layer_pass, _ops
from polyhead.torch._rules import Options

needs_cores = pytest.mark.skipif(not os.path.isdir("/proc/self/task") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores and /proc")

PROGRAM = """
import os
import torch
import polyhead
from polyhead.torch import scaled_dot_product_attention

{before}
q = torch.randn(8, 8, 256, 64, requires_grad=True)

def new_threads():
    first = len(os.listdir("/proc/self/task"))
    scaled_dot_product_attention(q, q, q).sum().backward()
    return len(os.listdir("/proc/self/task")) - first

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return new_threads()

q.sum().backward()  # torch's own threads
print({count})
"""


def new_threads(before: str = "", count: str = "new_threads()", **environment: str) -> int:
    program = PROGRAM.format(before=before, count=count)
    if environment:  # torch reads these variables when it is imported, so each test needs a new Python
        return int(subprocess.run([sys.executable, "-c", program], env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    done = forked_python.run(program)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@needs_cores
def test_threads_are_made_unless_torch_has_one() -> None:
    assert new_threads("torch.set_num_threads(2)") > 0  # with two threads allowed, this problem starts threads
    assert new_threads("torch.set_num_threads(1)") == 0
    assert new_threads(OMP_NUM_THREADS="1") == 0


@needs_cores
def test_the_worker_of_a_data_loader_makes_no_thread() -> None:
    assert new_threads("torch.set_num_threads(2)", "int(next(iter(torch.utils.data.DataLoader(Data(), num_workers=1))))") == 0


def test_the_limits_of_torch_and_of_polyhead_on_threads_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for name, place in (("sdpa", 3), ("maps", 4)):
        function = getattr(polyhead._core, name)

        def watch(*args: Any, function: Any = function, place: int = place) -> Any:
            seen.append(args[place].get("num_threads") or polyhead.num_threads())
            return function(*args)

        monkeypatch.setattr(polyhead._core, name, watch)
    for name in ("forward", "backward"):

        def watch_pass(this: _layer_pass.Pass, *args: object, function: object = getattr(_layer_pass, name)) -> object:
            seen.append(this.settings.get("num_threads") or polyhead.num_threads())
            return function(this, *args)  # type: ignore[operator]

        monkeypatch.setattr(_layer_pass, name, watch_pass)
    before = torch.get_num_threads(), polyhead.num_threads()
    layer, x = GatedAttention(8, 4, 2), torch.randn(3, 5, 8)
    q = torch.randn(1, 2, 5, 4)
    try:
        for torchs, ours in ((1, 3), (2, 3), (3, 1), (3, 3)):
            torch.set_num_threads(torchs)
            polyhead.set_num_threads(ours)
            seen.clear()
            layer(x).sum().backward()
            _ops.attention(q, q, q, *Options())
            _ops.attention_map(q, q, *Options())
            assert seen == [min(torchs, ours)] * 4
    finally:
        torch.set_num_threads(before[0])
        polyhead.set_num_threads(before[1])
