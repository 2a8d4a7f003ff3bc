"""Runs the program under test and checks what it writes."""
import json
import os
import pty
import re
import resource
import select
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import tiny_model

BINARY = os.environ.get("POLYHEAD_BINARY")
if not BINARY:
    raise SystemExit("POLYHEAD_BINARY must name the program 'polyhead'; ctest sets it")
HAS_ASAN = b"__asan_init" in Path(BINARY).read_bytes()
DATA = Path(os.environ.get("POLYHEAD_TEST_DATA", Path(__file__).parent.parent / "data"))
VECTORS = DATA.parent / "golden" / "vectors"


def environment(**changes):
    """Returns the environment of this process with `changes`, but without the variables that describe a terminal. A change whose value is None is ignored."""
    result = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM", "TERM")}
    result.update({k: v for k, v in changes.items() if v is not None})
    return result


def limited(memory=None, processors=1):
    """Returns a preexec_fn that limits the address space. It also limits the processors, because each thread takes address space for its stack and scratch memory."""
    def limit():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return limit


def run(*arguments, stdin=b"", env=None, **options):
    """Runs the program. stdout and stderr of the result are bytes."""
    return subprocess.run([BINARY, *map(os.fspath, arguments)], input=stdin, capture_output=True, env=environment(**(env or {})), timeout=1200, **options)


def run_on_terminal(*arguments, columns=80, env=None):
    """Runs the program with stdout and stderr on two terminals. Returns (exit status, text on stdout, text on stderr)."""
    import fcntl
    import termios
    out, out_end = pty.openpty()
    err, err_end = pty.openpty()
    for end in (out_end, err_end):
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    changes = {"TERM": "xterm-256color", **(env or {})}
    process = subprocess.Popen([BINARY, *map(os.fspath, arguments)], stdin=subprocess.DEVNULL, stdout=out_end, stderr=err_end, env=environment(**changes))
    os.close(out_end)
    os.close(err_end)
    texts = {out: b"", err: b""}
    open_ends = {out, err}
    deadline = time.monotonic() + 1200
    while open_ends and time.monotonic() < deadline:
        for end in select.select(list(open_ends), [], [], 1)[0]:
            try:
                piece = os.read(end, 65536)
            except OSError:  # the program has closed its end of the terminal
                piece = b""
            if piece:
                texts[end] += piece
            else:
                open_ends.discard(end)
    status = process.wait(timeout=100)
    os.close(out)
    os.close(err)
    return status, texts[out].decode().replace("\r\n", "\n"), texts[err].decode().replace("\r\n", "\n")


def without_escapes(text):
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def page_data(page):
    """Returns the decoded JSON of the page's element `data`. The page is given as a path or as its text."""
    html = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script', html, re.S).group(1))


class ProgramTest(unittest.TestCase):
    """Base class of tests of the program. self.folder is an empty folder for each test."""
    maxDiff = None

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)

    def succeeds(self, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result

    def fails(self, status, *arguments, mentions=(), **options):
        """Runs the program, which must exit with `status`, write one line to stderr and nothing to stdout, and leave no new file. Returns the line."""
        before = sorted(self.folder.rglob("*"))
        result = run(*arguments, **options)
        said = result.stderr.decode()
        self.assertEqual(result.returncode, status, said)
        self.assertRegex(said, r"\Apolyhead: [^\n]+\n\Z")
        self.assertEqual(result.stdout, b"")
        for word in mentions:
            self.assertIn(word, said)
        self.assertEqual(sorted(self.folder.rglob("*")), before, "something was left behind")
        return said


class ModelTest(ProgramTest):
    """Base class of tests of the program with a small encoder, in the folder self.model."""

    def setUp(self):
        super().setUp()
        self.model = tiny_model.write(self.folder / "model")
