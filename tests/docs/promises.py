"""Checks that each test which docs/promises.md names, as `Suite.Name` or `Suite.*`, exists.

    python3 tests/docs/promises.py [REPOSITORY]

Prints each name without a test, and at last 'N passed, N failed', the numbers of names.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])


def main():
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*_test.cc"))
    tests = set(re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", sources, flags=re.M))
    names = sorted(set(re.findall(r"`([A-Z]\w+)\.(\w+|\*)`", (ROOT / "docs/promises.md").read_text())))
    missing = [f"{suite}.{name}" for suite, name in names if not any(suite == s and name in ("*", n) for s, n in tests)]
    for name in missing:
        print(f"docs/promises.md: there is no test {name}")
    if not names:
        sys.exit("docs/promises.md names no test")
    print(f"{len(names) - len(missing)} passed, {len(missing)} failed")
    sys.exit(len(missing) > 0)


if __name__ == "__main__":
    main()
