"""Runs Python programs without importing torch in each, which takes seconds: each program is a fork of a process that has imported torch.

This holds for POLYHEAD_TEST_EFFORT=quick; otherwise each program is a new Python. The process has not imported polyhead before it forks.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from effort import QUICK

Completed = subprocess.CompletedProcess[str]

SERVER = """
import importlib, json, os, sys
import torch, torch.distributed, torch.nn.attention.flex_attention
def fork(tasks):
    children = []
    for task in tasks:
        children.append(os.fork())
        if children[-1] == 0:
            return task
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
for line in sys.stdin:
    tasks = json.loads(line)
    for name in tasks[0]["imported"]:
        importlib.import_module(name)
    task = fork(tasks)
    if task is not None:
        break
else:
    os._exit(0)
for number, name in enumerate((os.devnull, task["out"], task["err"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
os.environ.clear()
os.environ.update(task["environment"])
sys.argv, sys.path[0] = task["argv"], os.path.dirname(task["argv"][0])
exec(compile(task["code"], task["argv"][0], "exec"), {"__name__": "__main__", "__file__": task["argv"][0]})
"""

_server: subprocess.Popen[str] | None = None


def _started() -> subprocess.Popen[str]:
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        atexit.register(_end, _server)
    return _server


def _end(server: subprocess.Popen[str]) -> None:
    """Ends the server and its forks, so that a late answer is not taken for the answer of the next program."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def run(program: Path | str, *arguments: str, environment: Mapping[str, str] = os.environ, timeout: float = 600, imported: Sequence[str] = ()) -> Completed:
    """Runs a file, or code given as text. torch is imported before `environment` is set, so variables that torch reads at its import have no effect.

    imported: further modules that the process imports before it forks; not polyhead, whose import is part of the tests."""
    return run_together(program, [(arguments, environment)], timeout, imported)[0]


def run_together(program: Path | str, calls: list[tuple[tuple[str, ...], Mapping[str, str]]], timeout: float = 600, imported: Sequence[str] = ()) -> list[Completed]:
    """Runs the program in several processes at the same time, one for each pair of arguments and environment."""
    if isinstance(program, str):
        name, code = "-c", textwrap.dedent(program)
    else:
        name, code = str(program), program.read_text()
    with tempfile.TemporaryDirectory() as folder:
        files = [(Path(folder, f"out{i}"), Path(folder, f"err{i}")) for i in range(len(calls))]
        if QUICK and hasattr(os, "fork"):
            tasks = [
                {"code": code, "argv": [name, *arguments], "environment": dict(environment), "out": str(out), "err": str(err), "imported": list(imported)}
                for (arguments, environment), (out, err) in zip(calls, files)
            ]
            server = _started()
            assert server.stdin is not None and server.stdout is not None
            try:
                print(json.dumps(tasks), file=server.stdin, flush=True)
                if not select.select([server.stdout], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(name, timeout)
                codes = json.loads(server.stdout.readline())
            except BaseException:
                _end(server)
                raise
        else:
            begin = [sys.executable, name, *([code] if name == "-c" else [])]
            started = [
                subprocess.Popen([*begin, *arguments], stdout=out.open("w"), stderr=err.open("w"), env=environment)
                for (arguments, environment), (out, err) in zip(calls, files)
            ]
            try:
                codes = [process.wait(timeout) for process in started]
            except BaseException:
                for process in started:
                    process.kill()
                raise
        return [subprocess.CompletedProcess([name, *arguments], code, out.read_text(), err.read_text()) for code, (arguments, _), (out, err) in zip(codes, calls, files)]
