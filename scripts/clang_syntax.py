"""Compiles the sources of a build folder without generating code: clang_syntax.py FOLDER JOBS. Part of scripts/check-clang.

Ninja runs the compilers. A source is checked again only if the source, a header that it includes or its flags have changed.
"""
import json
import os
import pathlib
import re
import subprocess
import sys


def setting(name, entry):
    found = re.search(rf"-D{name}=(\w+)", entry["command"])
    return found and found[1]


def of_chosen_sets(entries):
    """Selects the kernel sources to check. There are two kinds of instruction sets: with and without an instruction that multiplies pairs of bfloat16. For the
    first set of each kind all kernels are checked, for every other set one kernel."""
    first = {}  # kind -> its first instruction set
    seen = set()
    for entry in entries:
        name, pairs = setting("POLYHEAD_ISA", entry), setting("POLYHEAD_BASE_ISA", entry) is not None
        if name is None or first.setdefault(pairs, name) == name or name not in seen:
            yield entry
        seen.add(name)


def by_themselves(entries):
    """Replaces each unity source of the libraries, the program and the package by the sources that it includes. These sources are also compiled one by one, by
    pip and by users, and a unity source hides a forgotten #include. Unity sources of tests stay."""
    for entry in entries:
        if "/Unity/" not in entry["file"] or re.search(r"(^|/)tests/|CMakeFiles/test_", entry["output"]):
            yield entry
            continue
        for source in re.findall(r'^#include "(.*)"', pathlib.Path(entry["file"]).read_text(), re.M):
            output = f"{pathlib.Path(entry['output']).parent.parent}/{pathlib.Path(source).name}.o"
            yield entry | {"file": source, "output": output, "command": entry["command"].replace(entry["file"], source).replace(entry["output"], output)}


def path(text):
    return re.sub(r"([$ :])", r"$\1", text)


def rule(entry, output, command, needs):
    """A build statement for Ninja's file. Its command writes `output`; it depends on the entry's source and on the files that output.d lists."""
    command = command.replace(" -c ", f" -MD -MF '{output}.d' -MQ '{output}' -c ")
    inputs = path(entry["file"]) + (" | " + " ".join(map(path, needs)) if needs else "")
    return f"build {path(output)}: check {inputs}\n  command = {command.replace('$', '$$')}\n  depfile = {path(output)}.d\n  description = {path(entry['file'])}\n"


def main():
    folder, jobs = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    entries = json.loads((folder / "compile_commands.json").read_text())
    precompiled = {str(folder / entry["output"]): entry for entry in entries if "cmake_pch" in entry["file"]}
    # Leave out viewer/assets.cc (template, style and scripts of the page as arrays of bytes), because making it needs a build. Leave out nanobind's own
    # sources too.
    written = folder / "viewer" / "assets.cc"
    if not written.exists():  # a source that is checked includes this file, so the file must exist
        written.touch()
    entries = [entry for entry in entries if entry not in precompiled.values() and not entry["file"].endswith("/viewer/assets.cc") and "nanobind-static" not in entry["output"]]
    # Leave out the programs of live pages, because they read tables that a build writes; scripts/live-engine compiles them with Clang.
    entries = [entry for entry in entries if "/apps/live/CMakeFiles/" not in f"/{entry['output']}"]
    if not entries:
        sys.exit(f"no sources in {folder}")
    if os.environ.get("POLYHEAD_TEST_EFFORT") == "quick":
        # Leave out the sources that include one public header each (tests/install): GCC compiles them with the same standard library, and other sources include all public headers.
        entries = [entry for entry in of_chosen_sets(by_themselves(entries)) if "/polyhead_headers.dir/" not in entry["output"]]
    rules = ["ninja_required_version = 1.5\nbuilddir = syntax\nrule check\n  command = $command\n  deps = gcc\n"]
    rules += [rule(entry, output, entry["command"], []) for output, entry in precompiled.items()]
    for entry in entries:
        output = f"{folder / entry['output']}.checked"
        needs = [other for other, header in precompiled.items() if header["output"] in entry["command"]]
        command = entry["command"].replace(" -c ", " -fsyntax-only -c ")
        rules.append(rule(entry, output, f"rm -f '{output}' && {command} && touch '{output}'", needs))
    (folder / "syntax.ninja").write_text("\n".join(rules))
    checked = subprocess.run(["ninja", "-f", "syntax.ninja", "-j", jobs, "-k", "0"], cwd=folder)
    failed = sum(not pathlib.Path(f"{folder / entry['output']}.checked").exists() for entry in entries)
    failed = failed or int(checked.returncode != 0)  # Ninja's status also tells if only a precompiled header failed
    print(f"{len(entries) - failed} passed, {failed} failed")
    return checked.returncode


if __name__ == "__main__":
    sys.exit(main())
