"""Holds the includes of every folder against its CMake link list: a folder may include what it links, directly or through those.

    python3 tests/layering/check.py [REPOSITORY]

Also: public headers include public headers only, and the link lists have no cycle. Prints each breach and closes with 'N passed, N failed',
counted in source files.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
folders = {path.parent.name: path.parent for path in [*root.glob("src/*/CMakeLists.txt"), root / "viewer/CMakeLists.txt"]}


def without_comments(path):
    return re.sub(r"#[^\n]*", "", path.read_text())


def library_links(folder):
    """polyhead::x that the folder's library (not its tests) links."""
    text = without_comments(folder / "CMakeLists.txt")
    calls = re.findall(r"(?:polyhead_library|target_link_libraries)\(([^)]*)\)", text)
    return {name for call in calls for name in re.findall(r"polyhead::(\w+)", call)} - {folder.name}


links = {name: library_links(folder) for name, folder in folders.items()}


def closure(name, path=()):
    if name in path:
        sys.exit("the link lists have a cycle: " + " -> ".join([*path, name]))
    reached = {name}
    for other in links.get(name, ()):
        reached |= closure(other, (*path, name))
    return reached


def owner(include):
    """The folder that an include belongs to; None for the standard library, other libraries and files of the same folder."""
    public = re.match(r"polyhead/(?:(nn|io|models)/|(viewer)\.h)", include)
    if public:
        return public.group(1) or public.group(2)
    if re.match(r"polyhead/(sdpa|maps|mask)\.h", include):
        return "problem"  # the contract that the normal form and everything above it speaks
    if re.match(r"polyhead/device\.h", include):
        return "cpu"
    if include.startswith("polyhead/"):
        return "core"
    first = include.split("/")[0]
    return first if "/" in include and first in folders else None


def includes(path):
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)


breaches, checked, failed = [], 0, 0
for name, folder in sorted(folders.items()):
    allowed = closure(name)
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".h", ".cc") or path.name.endswith("_test.cc"):
            continue
        checked += 1
        wrong = [i for i in includes(path) if owner(i) not in (None, *allowed)]
        failed += bool(wrong)
        breaches += [f"{path.relative_to(root)} includes {i}; {name} links only {', '.join(sorted(allowed - {name})) or 'nothing'}" for i in wrong]
for path in sorted((root / "include").rglob("*.h")):
    checked += 1
    wrong = [i for i in includes(path) if not i.startswith("polyhead/")]
    failed += bool(wrong)
    breaches += [f"{path.relative_to(root)} includes {i}; public headers include public headers only" for i in wrong]

print("\n".join(breaches), end="\n" if breaches else "")
if checked == 0:
    sys.exit(f"no sources below {root}")
print(f"{checked - failed} passed, {failed} failed")
sys.exit(failed > 0)
