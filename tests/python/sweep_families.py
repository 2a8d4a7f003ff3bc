"""Compares every family of transformers with eager: python tests/python/sweep_families.py [--jobs N] [--json FILE] [FAMILY...]

A family is built, run and compared in a process of its own, because some end the process or take too long.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
from compare_families import Result, compare  # noqa: E402
from tiny_families import CONFIG_MAPPING, build  # noqa: E402

import polyhead.transformers  # noqa: E402

SECONDS, MEMORY = 150, 12 << 30


def examine(model_type: str) -> Result:
    try:
        family = build(model_type)
    except Exception as error:
        family = f"{type(error).__name__}: {error}"
    if isinstance(family, str):
        return Result("not built", family)
    try:
        return compare(family)
    except Exception as error:
        return Result("wrong", f"{type(error).__name__}: {str(error)[:300]}", family.model_class.__name__)


def _child(model_type: str, write: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(SECONDS)
    warnings.simplefilter("ignore")
    result = examine(model_type)
    os.write(write, json.dumps(dataclasses.asdict(result)).encode())
    os._exit(0)


def sweep(model_types: list[str], jobs: int) -> Iterator[tuple[str, Result]]:
    todo, running = list(model_types), {}
    while todo or running:
        while todo and len(running) < jobs:
            model_type = todo.pop(0)
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                _child(model_type, write)
            os.close(write)
            running[process] = (model_type, read)
        process, status = os.wait()
        model_type, read = running.pop(process)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        died = Result("not built", f"its process ended with status {status} or took more than {SECONDS} s")
        yield model_type, Result(**json.loads(answer)) if answer else died


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    polyhead.transformers.register()
    results = {}
    for model_type, result in sweep(options.families or list(CONFIG_MAPPING), options.jobs):
        results[model_type] = result
        if result.verdict == "not built":
            print(model_type, result.verdict, result.reason[:200], flush=True)
        else:
            unequal = {name: text for name, text in result.checks.items() if text != "equal"}
            print(model_type, result.verdict, f"{result.calls} calls, {result.largest:.0e}", result.reason, unequal or "", flush=True)
        if options.json:
            options.json.write_text(json.dumps({name: dataclasses.asdict(found) for name, found in results.items()}, indent=1))
    counts = {verdict: sum(found.verdict == verdict for found in results.values()) for verdict in ("right", "unused", "refused", "wrong", "not built")}
    print(counts, file=sys.stderr)


if __name__ == "__main__":
    main()
