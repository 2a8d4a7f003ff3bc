"""Checks that intrinsics, and conditions on an instruction set, are in src/cpu/isa/ only.

    python3 tests/layering/instructions.py [REPOSITORY]

There are three exceptions: instruction_sets.{h,cc}, which ask the processor for its instruction sets; quiet_arithmetic.h, which saves the floating-point flags
ten times as fast as <cfenv>; and the pause instruction of the thread pool. Comments are checked, too.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
FORBIDDEN = re.compile(r"__AVX|__SSE|__FMA__|__ARM|__aarch64__|__x86_64__|\b_mm\w*|\b__m(?:128|256|512|mask)|\b(?:float|u?int)\d+x\d+_t\b|intrin\.h|arm_neon\.h")
EXCEPTED = ("src/cpu/isa/", "src/cpu/instruction_sets.", "src/core/quiet_arithmetic.h")
PAUSE = ("src/core/thread_pool.cc", re.compile(r"#(?:el)?if.*__(?:x86_64|aarch64)__|_mm_pause"))

checked = failed = 0
for path in sorted((root / "src").rglob("*")):
    name = path.relative_to(root).as_posix()
    if path.suffix not in (".h", ".cc") or name.endswith("_test.cc") or name.startswith(EXCEPTED):
        continue
    lines = [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1)
             if FORBIDDEN.search(line) and not (name == PAUSE[0] and PAUSE[1].search(line))]
    checked += 1
    failed += bool(lines)
    for number, line in lines:
        print(f"{name}:{number}: belongs to src/cpu/isa/: {line.strip()}")
if checked == 0:
    sys.exit(f"no sources below {root}")
print(f"{checked - failed} passed, {failed} failed")
sys.exit(failed > 0)
