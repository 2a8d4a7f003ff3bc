"""Checks that every file with a version number has that of CMakeLists.txt, and that CITATION.cff and CHANGELOG.md have the same date.

    python3 tests/packaging/versions.py [REPOSITORY [VERSION]]

If VERSION is given, as by scripts/release, CMakeLists.txt must have that version. At last prints 'N passed, N failed'.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])


def found(path, pattern):
    match = re.search(pattern, (ROOT / path).read_text(), re.M)
    return match[1] if match else None


def main():
    version = found("CMakeLists.txt", r"^project\(polyhead VERSION ([0-9.]+)")
    date = found("CITATION.cff", r'^date-released: "([0-9-]+)"')
    checks = {
        "CMakeLists.txt": (version, sys.argv[2] if len(sys.argv) > 2 else version),
        "CITATION.cff": (found("CITATION.cff", r"^version: (\S+)"), version),
        "packaging/conda/recipe.yaml": (found("packaging/conda/recipe.yaml", r"^  version: (\S+)"), version),
        "packaging/vcpkg/polyhead/vcpkg.json": (json.loads((ROOT / "packaging/vcpkg/polyhead/vcpkg.json").read_text())["version"], version),
        "CHANGELOG.md, the newest version": (found("CHANGELOG.md", r"^## ([0-9][0-9.]*) - "), version),
        "CHANGELOG.md, its date, beside CITATION.cff": (found("CHANGELOG.md", rf"^## {re.escape(version or '?')} - ([0-9-]+)$"), date),
    }
    # No other file of packaging/ may contain the version, because nobody would update it there.
    known = {ROOT / "packaging/conda/recipe.yaml", ROOT / "packaging/vcpkg/polyhead/vcpkg.json"}
    for path in sorted((ROOT / "packaging").rglob("*")):
        if path.is_file() and path not in known and path.suffix != ".pyc":
            checks[f"{path.relative_to(ROOT)}: no version of its own"] = (version in path.read_text(), False)
    failed = {where: pair for where, pair in checks.items() if pair[0] is None or pair[0] != pair[1]}
    for where, (is_there, wanted) in failed.items():
        print(f"{where}: {is_there}, expected {wanted}")
    print(f"{len(checks) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
