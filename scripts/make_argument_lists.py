#!/usr/bin/env python3
"""Writes the lists of attention's arguments in the Python package from the library's table (include/polyhead/attention_arguments.h).

    build/venv/bin/python scripts/make_argument_lists.py [--check]

Each list is a part of a source file, between a line `# arguments: NAME` and a line `# end of arguments`, so that mypy, help() and editors can read it. The script needs the
installed package and torch. With --check it compares the lists with the files instead of writing them.
"""

import importlib.util
import pathlib
import re
import sys

from polyhead._arguments import ARGUMENTS

if "polyhead.torch" not in sys.modules:  # register a module that is not executed: importing polyhead.torch fails if its lists differ from the table
    sys.modules["polyhead.torch"] = importlib.util.module_from_spec(importlib.util.find_spec("polyhead.torch"))
from polyhead.torch._rules import NOT_OF_TORCH, RULES

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ("python/polyhead/_options.py", "python/polyhead/_layer.py", "python/polyhead/torch/_attention.py", "python/polyhead/torch/_rules.py")


def fields_of(*groups):
    return [f"{argument.name}: {argument.annotation}" for argument in ARGUMENTS if argument.group in groups]


def of_torch():
    return [argument for argument in ARGUMENTS if argument.group in ("pass", "sdpa") and argument.name not in NOT_OF_TORCH]


def options_of_operators():
    """The options of the torch operators. Tensors come first, because the operators save their first arguments for the backward pass."""
    tensors = [argument.name for argument in of_torch() if argument.extent]
    tensors += [argument.name for argument in ARGUMENTS if argument.group == "relative_bias" and argument.extent]
    tensors += [argument.name for argument in ARGUMENTS if argument.extent == "scales"]
    lines = [f"{name}: Tensor | None = None" for name in tensors]
    lines.append("seed: Tensor | None = None  # int64 [], given when dropout > 0")
    for argument in of_torch():
        if not argument.extent:
            lines += [f"{name}: {annotation} = {default!r}".replace("'", '"') for name, annotation, default in RULES[argument.annotation].fields(argument)]
    return [*lines, "attention_weights: bool = False  # whether the operator `attention` returns the attention weights"]


def lists():
    return {
        "keywords of sdpa and of a layer": fields_of("pass"),
        "keywords of sdpa": fields_of("sdpa"),
        "keywords of a layer": fields_of("layer"),
        "keywords of torch": [f"{argument.name}: {argument.annotation.replace('Array', 'Tensor')}" for argument in of_torch()],
        "options of the operators": options_of_operators(),
    }


def written(text, made):
    """The text of a file in which the lists are replaced by newly made ones."""

    def replaced(match):
        start, indent, name = match.group(1), match.group(2), match.group(3)
        return start + "".join(f"{indent}{line}\n" for line in made[name]) + f"{indent}# end of arguments\n"

    return re.sub(r"(?m)^(( *)# arguments: (.*)\n)(?:.*\n)*?\2# end of arguments\n", replaced, text)


def main():
    made, wrong = lists(), []
    for file in FILES:
        path = ROOT / file
        text = path.read_text()
        if (new := written(text, made)) != text:
            wrong.append(file)
            if "--check" not in sys.argv:
                path.write_text(new)
    print("\n".join(f"{file}: {'differs from the table' if '--check' in sys.argv else 'written'}" for file in wrong) or "as the table says")
    sys.exit(bool(wrong) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
