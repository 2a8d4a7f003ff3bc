"""Checks that each path of the repository which a document or a comment names exists.

    python3 tests/docs/paths.py [REPOSITORY]

In documents these are links, paths that begin with a top-level folder, and names of files in backticks; `*`, `**` and `{a,b}` are expanded. In sources
these are paths that begin with docs/. Prints each path that does not exist, and at last 'N passed, N failed', the numbers of paths.
"""
import itertools
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
FOLDERS = "apps|bench|cmake|docs|examples|include|packaging|python|scripts|src|tests|viewer"
PATH = rf"(?<![\w./*-])(?:{FOLDERS})/[\w./*{{}},-]*[\w*}}/]"
SUFFIXES = r"(?:cc|h|py|js|md|sh|cmake|json|html|css|txt)"


def alternatives(path):
    """Expands braces: 'a.{h,cc}' -> ['a.h', 'a.cc']."""
    parts = [part.split(",") if i % 2 else [part] for i, part in enumerate(re.split(r"\{([^}]*)\}", path))]
    return ["".join(choice) for choice in itertools.product(*parts)]


def exists(path, folder):
    starts = [folder, ROOT, ROOT / "include", ROOT / "include/polyhead", ROOT / "src"]
    return all(any(next(start.glob(choice), None) if "*" in choice else (start / choice).exists() for start in starts) for choice in alternatives(path))


def paths_of_document(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)  # code and drawings may name files that the reader has
    yield from re.findall(PATH, text)
    yield from (target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target and not target.startswith("#"))
    yield from re.findall(rf"`((?:\.\./)*(?:\w+/)*\w[\w*]*\.{SUFFIXES})`", text)


def documents():
    folders = [ROOT / name for name in FOLDERS.split("|")]
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]
    found.remove(ROOT / "docs/mutants.md")  # the last run of the mutants wrote this page, so its paths may be old; tests/mutants/run.py --check compares the mutants themselves with the sources
    yield from ((path, set(paths_of_document(path.read_text()))) for path in sorted(found))
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".cc", ".h", ".py", ".js", ".sh", ".cmake") or path.name == "CMakeLists.txt":
                yield path, set(re.findall(r"(?<![\w./])docs/[\w./-]*\w", path.read_text()))


def main():
    checked = failed = 0
    for document, paths in documents():
        for path in sorted(paths):
            checked += 1
            if not exists(path, document.parent):
                failed += 1
                print(f"{document.relative_to(ROOT)}: {path} does not exist")
    if not checked:
        sys.exit(f"no paths in the documents below {ROOT}")
    print(f"{checked - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
