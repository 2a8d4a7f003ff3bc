"""Checks that the includes of every folder follow its CMake link list: a folder may include headers of libraries that it links, directly or through other libraries.

    python3 tests/layering/check.py [REPOSITORY]

Also checks that the link lists have no cycle; that public headers include public headers only, and make their declarations visible; that each umbrella header
(polyhead.h, distributed.h, io.h, models.h) includes every header of its library; that of the library's private headers, the program includes only those of core/;
that examples include public headers only; and that modules of the Python package do not import each other in a circle, not even inside functions or for type
checkers (imports of `polyhead` itself are left out).
Prints each breach, and at last 'N passed, N failed', the numbers of source files.
"""
import ast
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
libraries = {path.parent.name: path.parent for path in [*root.glob("src/*/CMakeLists.txt"), root / "viewer/CMakeLists.txt"]}
users = {path.parent.relative_to(root).as_posix(): path.parent for pattern in ("apps/*", "examples", "bench") for path in root.glob(f"{pattern}/CMakeLists.txt")}

# For each library, the headers of include/polyhead/ that belong to it. Headers in a subfolder such as include/polyhead/nn/ belong to the library of that name.
PUBLIC = {"core": ("dtype", "empty_rows", "error", "executor", "named_members", "quantize", "tensor", "tensor_view", "version", "visit", "workspace"),
          "problem": ("attention_arguments", "local_blocks", "map_gradients", "maps", "mask", "relative_bias", "score_function", "score_op", "score_program", "score_rule", "sdpa", "sdpa_derivatives"),  # the arguments of attention, from which src/problem makes the normal form
          "cpu": ("device",), "distributed": ("distributed",), "mpi": ("distributed/mpi",), "io": ("io",), "models": ("models",), "viewer": ("head_measures", "viewer"), "polyhead": ("polyhead",)}
HEADERS = {f"polyhead/{name}.h": library for library, names in PUBLIC.items() for name in names}


def without_comments(path):
    return re.sub(r"#[^\n]*", "", path.read_text())


def linked(folder):
    """Returns the libraries polyhead::x that the folder's targets link, except its tests."""
    calls = re.findall(r"(?:polyhead_library|target_link_libraries)\(([^)]*)\)", without_comments(folder / "CMakeLists.txt"))
    return {name for call in calls for name in re.findall(r"polyhead::(\w+)", call)} - {folder.name}


links = {name: linked(folder) for name, folder in (libraries | users).items()}
links["polyhead"] = {"nn", "sdpa", "cpu"}  # libpolyhead contains all folders of the core (cmake/library.cmake)


def closure(name, path=()):
    if name in path:
        sys.exit("the link lists have a cycle: " + " -> ".join([*path, name]))
    reached = {name}
    for other in links.get(name, ()):
        reached |= closure(other, (*path, name))
    return reached


def owner(include):
    """Returns the library that an included file belongs to; None for the standard library, third-party libraries and files of the same folder."""
    if include in HEADERS:
        return HEADERS[include]
    if include.startswith("polyhead/"):
        parts = include.split("/")
        return parts[1] if len(parts) > 2 else f"no library known to {pathlib.Path(__file__).name}"
    first = include.split("/")[0]
    return first if "/" in include and first in libraries else None


def includes(path):
    return [name for _, name in re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), re.M)]


def sources(folder):
    return [path for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cc") and not path.name.endswith("_test.cc")]


breaches, checked, failed = [], 0, 0


def check(path, wrong, why):
    global checked, failed
    checked += 1
    failed += bool(wrong)
    breaches.extend(f"{path.relative_to(root)} includes {name}, of {owner(name)}; {why}" for name in wrong)


for name, folder in sorted((libraries | users).items()):
    allowed = closure(name)
    # Private headers are those outside of include/. The program may include only those of core/. Examples may include none, because other projects do not have them.
    # Benchmarks and tools may include those of every library that they link.
    private = {"apps/polyhead": {"core"}, "examples": set()}.get(name, allowed)
    for path in sources(folder):
        wrong = [i for i in includes(path) if owner(i) and (owner(i) not in allowed or not i.startswith("polyhead/") and owner(i) not in private)]
        check(path, wrong, f"{name} links only {', '.join(sorted(allowed - {name})) or 'nothing'}" + (f", and private headers of only some of these" if name in users else ""))
for path in sources(root / "include"):
    name = path.relative_to(root / "include").as_posix()
    allowed = closure(owner(name))
    wrong = [i for i in includes(path) if owner(i) and (not i.startswith("polyhead/") or owner(i) not in allowed)]
    if "known" in owner(name):
        wrong.append(name)
    check(path, wrong, f"{name} belongs to {owner(name)}; public headers include public headers only, of libraries that their own library links")
    if "\nnamespace polyhead" in path.read_text() and "#pragma GCC visibility push(default)" not in path.read_text():
        failed += 1
        breaches.append(f"{path.relative_to(root)} does not make its declarations visible (#pragma GCC visibility push(default))")

for name, members in {"polyhead": closure("polyhead"), "distributed": {"distributed"}, "io": {"io"}, "models": {"models"}}.items():
    umbrella = root / f"include/polyhead/{name}.h"
    headers = {path.relative_to(root / "include").as_posix() for path in sources(root / "include")} - {f"polyhead/{name}.h"}
    missing = sorted(header for header in headers - set(includes(umbrella)) if owner(header) in members)
    checked += 1
    failed += bool(missing)
    breaches.extend(f"{name}.h does not include {header}, of {owner(header)}" for header in missing)

package = root / "python/polyhead"


def module_of(path):
    parts = path.relative_to(package).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


modules = {module_of(path): path for path in sorted(package.rglob("*.py"))}


def imported_modules(path):
    """Yields the modules of the package that a module imports, as tuples of names."""
    folder = path.relative_to(package).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        before = folder[: len(folder) - node.level + 1] if node.level else ()
        names = tuple(node.module.split(".")) if node.module else ()
        if node.level == 0 and names[:1] != (package.name,):
            continue
        origin = (*before, *(names if node.level else names[1:]))
        for name in node.names:
            target = (*origin, name.name) if (*origin, name.name) in modules else origin
            if target and target in modules:
                yield target


imports_of = {module: set(imported_modules(path)) for module, path in modules.items()}


def circle_from(module):
    """Returns the shortest chain of imports from a module back to itself; empty if there is none."""
    ways, seen = [[module]], set()
    for way in ways:
        for other in sorted(imports_of[way[-1]]):
            if other == module:
                return [*way, other]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


for module, path in modules.items():
    way = circle_from(module)
    checked += 1
    failed += bool(way)
    if way and module == min(way):
        breaches.append(f"{path.relative_to(root)} imports itself: " + " -> ".join(".".join(name) for name in way))

print("\n".join(breaches), end="\n" if breaches else "")
if checked == 0:
    sys.exit(f"no sources below {root}")
print(f"{checked - failed} passed, {failed} failed")
sys.exit(failed > 0)
