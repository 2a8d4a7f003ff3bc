"""Checks that public names and texts use no word of the column "retires" of docs/glossary.md.

    python3 tests/docs/glossary.py [REPOSITORY]

Upper and lower case are equal. Words are separated by `_`, `-`, a space or a change of case. A word with a plural s is the same word. A word that the
glossary marks *(name)* may not be in names, but may be in other texts. Prints each use, and at last 'N passed, N failed', the numbers of retired words.
"""
import ast
import html.parser
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
FOLDERS = ("apps", "bench", "cmake", "docs", "examples", "include", "packaging", "python", "scripts", "src", "tests", "viewer")
STRING = r'"(?:[^"\\\n]|\\.)*"'


def rows(text, last_column):
    """Yields the cells of each row of the tables whose last column has this title."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[-1] == last_column:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            yield cells


def words(text):
    """Returns the text in lower case, with a space between words: 'KeyRange key_range' -> 'key range key range'."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[_-]", " ", text).lower()


def pattern(phrase):
    return re.compile(rf"(?<![a-z0-9]){re.escape(words(phrase))}(?:{'' if phrase.endswith('s') else 's?'})(?![a-z0-9])")


def strings_of_c(text):
    return "\n".join(found[1:-1] for line in text.splitlines() if not line.lstrip().startswith(("#", "//")) for found in re.findall(STRING, line))


def strings_of_js(text):
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    return "\n".join(found[1:-1] for found in re.findall(STRING + r"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`", text))


class Labels(html.parser.HTMLParser):
    """Collects the texts of an HTML page, and the attributes that are shown or read aloud."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def handle_data(self, data):
        self.texts.append(data)

    def handle_starttag(self, tag, attrs):
        self.texts += [value or "" for name, value in attrs if name in ("alt", "title", "placeholder", "content") or name.startswith("aria-")]


def labels(text):
    parser = Labels()
    parser.feed(text)
    return "\n".join(parser.texts)


def python_names(text):
    """Returns public names and the arguments of public functions of a Python module."""
    def public(body, inside=""):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (not node.name.startswith("_") or node.name in ("__init__", "__call__")):
                yield node.name
                if isinstance(node, ast.ClassDef):
                    yield from public(node.body)
                else:
                    arguments = node.args
                    yield from (argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_"))

    return "\n".join(public(ast.parse(text).body))


def docstrings(text):
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and not getattr(node, "name", "").startswith("_")]
    return "\n".join(filter(None, map(ast.get_docstring, nodes)))


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def files(*patterns):
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if not path.name.endswith("_test.cc")]
    if not found:
        sys.exit(f"no {' or '.join(patterns)} below {ROOT}")
    return found


def places():
    """Yields (file, text to search, does the text consist of names only?)."""
    for path in files("include/polyhead/**/*.h"):
        yield path, path.read_text(), False
        yield path, without_comments(path.read_text()), True
    for path in files("python/polyhead/**/*.py"):
        yield path, docstrings(path.read_text()), False
        yield path, python_names(path.read_text()), True
    for path in files("apps/polyhead/*.cc", "apps/polyhead/*.h"):
        yield path, strings_of_c(path.read_text()), False
        yield path, "\n".join(re.findall(r"--[a-z][a-z-]+", strings_of_c(path.read_text()))), True
    for path in files("viewer/*.html"):
        yield path, labels(path.read_text()), False
    for path in files("viewer/script/*.js"):
        yield path, strings_of_js(path.read_text()), False
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, path.stem, True


def main():
    glossary = (ROOT / "docs/glossary.md").read_text()
    retired = [(phrase, bool(name)) for cells in rows(glossary, "retires") for phrase, name in re.findall(r"`([^`]+)`( \*\(name\)\*)?", cells[-1])]
    stay = sorted((phrase for cells in rows(glossary, "whose") for phrase in re.findall(r"`([^`]+)`", cells[0])), key=len, reverse=True)
    if not retired:
        sys.exit("docs/glossary.md retires no word")
    # Before a line is searched, remove the names that the glossary lists as exceptions.
    excused = re.compile("|".join(rf"(?<![a-z0-9]){re.escape(words(name))}(?![a-z0-9])" for name in stay) or r"(?!)")
    searched = [(path.relative_to(ROOT), [excused.sub(" ", words(line)) for line in text.splitlines()], only_names) for path, text, only_names in places()]
    failed = 0
    for phrase, name in retired:
        wanted = pattern(phrase)
        uses = sorted({f"{path}: {' '.join(line.split())}" for path, lines, only_names in searched if only_names or not name for line in lines if wanted.search(line)})
        failed += bool(uses)
        for use in uses:
            print(f"'{phrase}' is retired (docs/glossary.md): {use[:160]}")
    print(f"{len(retired) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
