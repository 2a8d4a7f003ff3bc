"""Checks that the object files of one instruction set define symbols of its namespace only.

    python3 tests/layering/objects.py NAMESPACE OBJECT...

Inline functions and templates, for example of the standard library, are weak symbols: the linker uses one definition of any object for the whole program. If it
was compiled for AVX-512, the program crashes on machines without AVX-512. So objects of kernels may define no weak symbols, and no symbols outside of their
namespace. They share tables of functions, but no functions, so other code cannot call a kernel directly on a machine without the instruction set.
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
        print(path, "shares:", *(foreign or ["nothing, so this is not an object file of kernels"]), sep="\n  ")
if not objects:
    sys.exit("no object files")
print(f"{len(objects) - failed} passed, {failed} failed")
sys.exit(failed > 0)
