"""Compares the symbols that the shared libraries export with the list in symbols.txt.

    python3 tests/install/symbols.py [--write] LIST LIBRARY...

The list has the name of a library and below it one line for each name, without parameters. Inline functions and template instances are left out, because each
program compiles its own. Symbols of other libraries are left out, too. Only the given libraries are compared. --write replaces the list by that of the given
libraries; read it before you commit it.
"""
import pathlib
import re
import subprocess
import sys

arguments = sys.argv[1:]
write = arguments[:1] == ["--write"]
path, *libraries = arguments[write:]
path = pathlib.Path(path)


def exported(library):
    """Returns the exported functions and variables, and the classes with a vtable or type information."""
    lines = subprocess.run(["nm", "-D", "-C", "--defined-only", library], check=True, capture_output=True, text=True).stdout.splitlines()
    names = set()
    for line in lines:
        kind, name = re.match(r"\w* *(\w) (.*)", line).groups()
        name = re.sub(r"^(typeinfo name|typeinfo|vtable|VTT) for ", "class ", name)
        inline = kind in "WuV" and not name.startswith("class ")
        if re.match(r"(class )?polyhead::", name) and not inline:
            names.add(re.sub(r"(\[abi:\w+\])?(?<!operator)\(.*", "", name))
    return names


found = {pathlib.Path(library).name.split(".")[0]: exported(library) for library in libraries}
if write:
    path.write_text("\n".join(f"{library}\n" + "".join(f"  {name}\n" for name in sorted(names)) for library, names in found.items()))
    sys.exit()
listed, names = {}, set()
for line in path.read_text().splitlines():
    if line.startswith("  "):
        names.add(line.strip())
    elif line:
        names = listed[line] = set()

passed = failed = 0
for library in sorted(found):
    new, gone = (a.get(library, set()) - b.get(library, set()) for a, b in ((found, listed), (listed, found)))
    passed += len(found[library] & listed.get(library, set()))
    failed += len(new) + len(gone)
    for name in sorted(new):
        print(f"{library} exports {name}, which {path.name} does not list")
    for name in sorted(gone):
        print(f"{path.name} lists {name}, which {library} does not export")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0 or passed == 0)
