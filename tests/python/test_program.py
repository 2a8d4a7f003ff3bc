"""Tests the command-line program of the package: `python -m polyhead`, and `polyhead` as pip installs it. tests/cli tests what the program does."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import polyhead

COMMAND = [sys.executable, "-m", "polyhead"]


def run(*arguments: object, command: list[str] = COMMAND, text: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *map(os.fspath, arguments)], capture_output=True, text=text, timeout=600)  # type: ignore[call-overload]


def test_the_version_is_that_of_the_package_and_of_the_build() -> None:
    stated = re.search(r"project\(polyhead VERSION ([0-9.]+)", (Path(__file__).parents[2] / "CMakeLists.txt").read_text())
    assert stated and polyhead.__version__ == stated[1] == importlib.metadata.version("polyhead")
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"polyhead {stated[1]}\n", "")


def test_pip_installs_the_command() -> None:
    [entry] = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "polyhead"]
    assert entry.value == "polyhead.__main__:main"
    call = f"import sys; sys.argv = ['polyhead', '--version']; from polyhead.__main__ import main; sys.exit(main())"
    assert run(command=[sys.executable, "-c", call]).stdout == run("--version").stdout


def test_exit_codes_and_messages_are_the_programs() -> None:
    done = run("veiw")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("polyhead: unknown command 'veiw'; did you mean 'view'?")
    assert run().returncode == 2
    done = run("inspect", "no-such-file.safetensors")
    assert done.returncode == 1 and done.stderr.startswith("polyhead: ")


def test_a_name_that_is_not_utf8_reaches_the_program(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.npy"
    try:
        with open(name, "wb") as file:
            np.save(file, np.ones((2, 3), np.float32))
    except OSError:
        pytest.skip("this file system has no such names")
    done = run("inspect", name.decode(errors="surrogateescape"))
    assert done.returncode == 0 and "2" in done.stdout, done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "--help"], stdout=writer, stderr=subprocess.PIPE, timeout=600)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_the_program_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "layer.npy"
    os.mkfifo(pipe)
    process = subprocess.Popen([*COMMAND, "inspect", os.fspath(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and _caught(process.pid) & 1 << signal.SIGTERM - 1 == 0:
        time.sleep(0.05)  # Python does not catch SIGTERM, so the program is running when SIGTERM is caught
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT and said == b"", (process.returncode, said)


def _caught(pid: int) -> int:
    """Returns the signals that a process handles, as a bit mask."""
    try:
        found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        pytest.skip("signals of a process are read from /proc")
    return int(found[1], 16) if found else 0
