"""Holds the object files of one instruction set to their own namespace.

    python3 tests/layering/objects.py NAMESPACE OBJECT...

A function that the linker may take from any object (weak: an inline function or template of the standard library) and that was compiled
for AVX-512 would break a machine without it. So kernels define nothing but symbols of their namespace, and no weak ones. They share tables
of functions and no function: what other objects could call, they would call on machines without the set.
"""
import subprocess
import sys

namespace, *objects = sys.argv[1:]
failed = 0
for path in objects:
    lines = subprocess.run(["nm", "--defined-only", path], check=True, capture_output=True, text=True).stdout.splitlines()
    shared = [words for words in (line.split() for line in lines) if not words[1].islower() or words[1] in "uvw"]
    foreign = [" ".join(words[1:]) for words in shared if words[1] in "uvwVWT" or f"{len(namespace)}{namespace}" not in words[2]]
    if foreign or not shared:
        failed += 1
        print(path, "shares:", *(foreign or ["nothing: it cannot be the right file"]), sep="\n  ")
if not objects:
    sys.exit("no object files")
print(f"{len(objects) - failed} passed, {failed} failed")
sys.exit(failed > 0)
