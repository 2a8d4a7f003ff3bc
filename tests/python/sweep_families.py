"""Compares every family of transformers with eager: python tests/python/sweep_families.py [--jobs N] [--json FILE] [--write] [FAMILY...]

--write writes docs/transformers.md from the results; with --read FILE, from the results that an earlier run wrote with --json FILE.

Each family is built, run and compared in a separate process, because some families crash the process or take too long.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import transformers  # noqa: E402
from compare_families import GRADIENTS, OUTPUTS, Result, compare_with_parts  # noqa: E402
from tiny_families import CONFIG_MAPPING, build  # noqa: E402

import polyhead.transformers  # noqa: E402

SECONDS, MEMORY = 300, 12 << 30


def examine(model_type: str) -> Result:
    try:
        family = build(model_type)
    except Exception as error:
        family = f"{type(error).__name__}: {error}"
    if isinstance(family, str):
        return Result("not built", family)
    try:
        return compare_with_parts(family)
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
    waiting, running = list(model_types), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            model_type = waiting.pop(0)
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


CHECKS = {
    "padded": "padded batch",
    "gradients": "gradients",
    "maps": "attention maps",
    "dynamic": "generate, dynamic cache",
    "static": "generate, static cache",
    "images": "text with images",
}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _why(reason: str) -> str:
    """Returns the reason of a refusal, without the family's name and the advice."""
    found = re.search(r"the family \S+(?: \(\w+\))? (.*?)(?:, which polyhead does not have)?\. Use attn", reason)
    return found.group(1) if found else reason


def page(results: dict[str, Result]) -> str:
    def of(verdict: str) -> dict[str, Result]:
        return {name: results[name] for name in sorted(results) if results[name].verdict == verdict}

    right, refused, unused, wrong, absent = (of(verdict) for verdict in ("right", "refused", "unused", "wrong", "not built"))
    rows = []
    for name, result in right.items():
        marks = " | ".join("=" if result.checks.get(check) == "equal" else "" for check in CHECKS)
        rows.append(f"| `{name}` | {result.model_class} | {marks} | {result.largest:.0e} |")
    parts = [f"| `{name}` | {_cell(part, 400)} |" for name, result in (right | unused).items() for part in result.parts]
    reasons: dict[str, list[str]] = {}
    for name, result in refused.items():
        reasons.setdefault(_why(result.reason), []).append(name)
    return f"""# Families of transformers

This page compares the results of `attn_implementation="polyhead"` with those of "eager".
Each of the {len(results)} model types of transformers {transformers.__version__} has a tiny model, with the same random parameters for both.
`python tests/python/sweep_families.py --write` makes this page.
`tests/python/test_transformer_families.py` repeats the comparison for over 50 model types.

| result | model types | |
|---|---|---|
| right | {len(right)} | every check that eager itself passes gives the same numbers |
| refused | {len(refused)} | NotImplementedError with the family's name; use "eager" |
| no call | {len(unused)} | the same numbers, because no layer calls a registered attention function: the layers are convolutions, state spaces, or attention in code of their own |
| wrong | {len(wrong)} | |
| not built | {len(absent)} | no tiny model was found by the rules of `tests/python/tiny_families.py`: nothing is known |

All models compute in float32.
Outputs, attention maps and scores of generation may differ by {OUTPUTS:.0e} of the largest number of their tensor, gradients of all parameters by {GRADIENTS:.0e}.
Padded positions are not compared, because a query without keys gives 0 in polyhead and the mean of all values in eager.
Models of text that also read sound, or images for which no input was found, are given text alone.
The encoders of sound and of images of such models are separate model types.
A real model may have other features than the tiny model of its type. What polyhead cannot compute is then refused at the first call.
The argument `is_causal` of a model's call is also refused if it contradicts a layer without a mask, because eager ignores the argument there.
The maps of Granite SWA are not compared, because eager's maps leave the sink out.

With polyhead, models get boolean masks (True = may attend), or None if a query attends to every earlier key.
Some families declare no support for other masks than eager's, such as NLLB-MoE, whose router reads the mask as padding.
These families, and BEiT, which adds the mask to its position bias, get eager's masks of numbers, or None.
With masks of numbers a query without keys gives the mean of all values, as in eager.
The comparison also fails if a model's own code reads a boolean mask.

## Right

`=` means that polyhead and eager agree. An empty cell means that eager lacks the feature in this model or fails the check itself. The last column is the largest difference found.

| model type | class | {" | ".join(CHECKS.values())} | difference |
|---|---|{"---|" * len(CHECKS)}---|
{chr(10).join(rows)}

## Optional parts

Settings that the tiny configuration of a family does not have and with which the output, a padded batch and gradients were compared too: experts, cross
attention, position embeddings, adapters. For a family that is not listed, no model with such a setting could be built.

| model type | settings |
|---|---|
{chr(10).join(parts)}

## Refused

| why: the family | model types |
|---|---|
{chr(10).join(f"| {why} | {_listed(names)} |" for why, names in sorted(reasons.items()))}

## No call

{_listed(unused)}
{f"{chr(10)}## Wrong{chr(10)}{chr(10)}{_listed(wrong)}{chr(10)}" if wrong else ""}
## Not built

| model type | the first obstacle |
|---|---|
{chr(10).join(f"| `{name}` | {_cell(result.reason)} |" for name, result in absent.items())}
"""


def _cell(text: str, most: int = 160) -> str:
    return text.split("; ")[0].replace("|", "/").replace("<", "&lt;")[:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    polyhead.transformers.register()
    results: dict[str, Result] = {}
    if options.read:
        results = {name: Result(**found) for name, found in json.loads(options.read.read_text()).items()}
    for model_type, result in sweep(options.families or ([] if options.read else list(CONFIG_MAPPING)), options.jobs):
        results[model_type] = result
        if result.verdict == "not built":
            print(model_type, result.verdict, result.reason[:200], flush=True)
        else:
            unequal = {name: text for name, text in result.checks.items() if text != "equal"}
            print(model_type, result.verdict, f"{result.calls} calls, largest difference {result.largest:.0e}, noise {result.noise:.0e}", result.reason, unequal or "", flush=True)
            for name in ("parts", "readers"):
                if getattr(result, name):
                    print(f"  {name}: {'; '.join(getattr(result, name))}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({name: dataclasses.asdict(found) for name, found in results.items()}, indent=1))
    counts = {verdict: sum(found.verdict == verdict for found in results.values()) for verdict in ("right", "unused", "refused", "wrong", "not built")}
    print(counts, file=sys.stderr)
    if options.write:
        (Path(__file__).resolve().parents[2] / "docs" / "transformers.md").write_text(page(results))


if __name__ == "__main__":
    main()
