"""Checks that a program which calls only sdpa_forward contains no kernels of other operations, and is small.

    python3 tests/install/smallest.py NM STRIP PROGRAM BYTES

BYTES: largest allowed size of the program without its symbols; 0: no limit.
"""
import os
import re
import subprocess
import sys
import tempfile

WANTED = {"forward_kernels", "merge_kernels"}


def main():
    nm, strip, program, bound = sys.argv[1:]
    symbols = subprocess.run([nm, "-C", program], capture_output=True, text=True, check=True).stdout
    tables = set(re.findall(r"polyhead::cpu::\w+::(\w+_kernels)\b", symbols))
    if not tables >= WANTED:
        sys.exit(f"{program} has the tables {sorted(tables)}; it must have {sorted(WANTED)}, or this test does not find kernels at all")
    if tables - WANTED:
        sys.exit(f"{program} calls sdpa_forward alone and has the kernels of other operations: {sorted(tables - WANTED)}")
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped")
        subprocess.run([strip, "-o", stripped, program], check=True)
        size = os.path.getsize(stripped)
    print(f"{size} bytes without symbols")
    if 0 < int(bound) < size:
        sys.exit(f"{program} has {size} bytes without symbols; it may have {bound}")


if __name__ == "__main__":
    main()
