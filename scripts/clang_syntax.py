"""Compiles the sources of a build folder without generating code: clang_syntax.py FOLDER JOBS. Part of scripts/check-clang."""
import concurrent.futures
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
    """All kernels for the first instruction set of each kind (with products of pairs of bfloat16 and without), one kernel for each other set."""
    first = {}  # by kind
    seen = set()
    for entry in entries:
        name, pairs = setting("POLYHEAD_ISA", entry), setting("POLYHEAD_BASE_ISA", entry) is not None
        if name is None or first.setdefault(pairs, name) == name or name not in seen:
            yield entry
        seen.add(name)


def check(entry):
    command = entry["command"].replace(" -c ", " -fsyntax-only -c ")
    return entry["file"], subprocess.run(command, shell=True, cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    folder, jobs = sys.argv[1:]
    entries = json.loads((pathlib.Path(folder) / "compile_commands.json").read_text())
    precompiled = [entry for entry in entries if "cmake_pch" in entry["file"]]
    # viewer/assets.cc, texts as arrays of bytes, is written by a build, which would compile all libraries first.
    entries = [entry for entry in entries if entry not in precompiled and not entry["file"].endswith("/viewer/assets.cc")]
    if not entries:
        sys.exit(f"no sources in {folder}")
    if os.environ.get("POLYHEAD_TEST_EFFORT") == "quick":
        entries = list(of_chosen_sets(entries))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        # Not by the build: there they come after all libraries of their targets.
        list(pool.map(lambda entry: subprocess.run(entry["command"], shell=True, cwd=entry["directory"], check=True), precompiled))
        for i, (file, done) in enumerate(pool.map(check, entries), 1):
            print(f"[{i}/{len(entries)}] {file}", done.stdout, sep="\n", end="", flush=True)
            failed += done.returncode != 0
    print(f"{len(entries) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
