"""Checks the Chinese texts of the viewer's page: each text has a line in viewer/script/chinese.js or, if only live pages have the text, in chinese_live.js, and each line belongs to a text.

    python3 tests/docs/page_texts.py [REPOSITORY]

Texts are the first arguments of say(), sayParts() and sayOn(), and all texts of page.html that are not marked translate="no". At last prints 'N passed, N failed',
the numbers of texts and lines.
"""
import html.parser
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]) / "viewer"
TABLE, TABLE_OF_LIVE = "script/chinese.js", "script/chinese_live.js"
CALL = re.compile(r'(?<!function )\bsay(?:Parts|On)?\(\s*("(?:[^"\\]|\\.)*"(?=\s*[,)]))?')
# A string that looks like a sentence or a title must be an argument of say(). PROSE finds such strings: a capitalised word and a second word, a word with a full
# stop, or two words with a small word such as "of" between them.
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`|\'(?:[^\'\\\n]|\\.)*\'')
PROSE = re.compile(r"[A-Z][a-z]+ [a-z]{2,}|[a-z]{2,}\.( |$)|[a-z]{2,} (of|to|the|is|are|and|at|in|with|from|by) [a-z]{2,}")
ATTRIBUTES = {"title", "aria-label", "placeholder"}
BLANKS = re.compile(r" (=>|&&|\|\||\?\?|===|!==|<=|>=|\+=) |(if|for|while|switch|catch) \(|\) \{|\{ | \}|const \w+ = ")  # viewer/embed.cmake removes these blanks
EMPTY = {"meta", "link", "input", "br", "img", "hr"}


class PageTexts(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.within, self.found = [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        left_out = (self.within and self.within[-1]) or attributes.get("translate") == "no" or tag in ("head", "script", "style", "kbd")
        if not left_out:
            self.found += [(self.getpos()[0], attributes[name]) for name in ATTRIBUTES & attributes.keys()]
        if tag not in EMPTY:
            self.within.append(left_out)

    def handle_endtag(self, tag):
        self.within.pop()

    def handle_data(self, text):
        if self.within and not self.within[-1] and re.search(r"[A-Za-z]", text):
            self.found.append((self.getpos()[0], text.strip()))


def places(text):
    return sorted(set(re.findall(r"\{(\d)", text)))


def main():
    wrong, used = [], {}
    parser = PageTexts()
    parser.feed((ROOT / "page.html").read_text())
    for line, text in parser.found:
        used.setdefault(text, f"page.html:{line}")
    for path in sorted((ROOT / "script").glob("*.js"), key=lambda path: (path.name == "live.js", path.name)):  # read live.js last: `used` keeps the first file of a text, so a text that another file has, too, is not a text of live pages only
        if path.name in ("say.js", "chinese.js", "chinese_live.js"):
            continue
        source = path.read_text()
        where = lambda at: f"script/{path.name}:{source.count(chr(10), 0, at) + 1}"
        said = set()
        for call in CALL.finditer(source):
            if call.group(1) is None:
                wrong.append(f"{where(call.start())}: the first argument of say() is not one string in double quotes")
            else:
                said.add(call.start(1))
                used.setdefault(json.loads(call.group(1)), where(call.start()))
        code = re.sub(r"//.*", lambda comment: " " * len(comment.group()), source)
        for literal in LITERAL.finditer(code):
            text = re.sub(r"\$\{.*?\}", "0", literal.group()[1:-1])
            if literal.group()[0] != "`" and BLANKS.search(text):
                wrong.append(f"{where(literal.start())}: {literal.group()} would lose its blanks at build time (viewer/embed.cmake)")
            if literal.start() not in said and PROSE.search(text):
                wrong.append(f"{where(literal.start())}: {literal.group()} is a text of the page; write say({literal.group()})")

    known = {}
    for place in (TABLE, TABLE_OF_LIVE):
        wrong += [f"{place}: {text} would lose its blanks at build time (viewer/embed.cmake)" for text in LITERAL.findall((ROOT / place).read_text()) if BLANKS.search(text)]
        lines = re.findall(r'^  ("(?:[^"\\]|\\.)*"): ("(?:[^"\\]|\\.)*"),$', (ROOT / place).read_text(), flags=re.M)
        table = [(json.loads(english), json.loads(chinese)) for english, chinese in lines]
        wrong += [f"{place}: {json.dumps(text, ensure_ascii=False)} is in {TABLE} too" for text, _ in table if text in known]
        known.update(table)
        wrong += [f"{place}: {json.dumps(text, ensure_ascii=False)} is not a text of the page" for text, _ in table if text not in used]
        wrong += [f"{place}: {json.dumps(text, ensure_ascii=False)} is of live pages alone; it belongs to {TABLE_OF_LIVE}" for text, _ in table
                  if place == TABLE and used.get(text, "").startswith("script/live.js")]
        wrong += [f"{place}: {json.dumps(before, ensure_ascii=False)} belongs below {json.dumps(after, ensure_ascii=False)}"
                  for (before, _), (after, _) in zip(table, table[1:]) if before >= after]
        wrong += [f"{place}: {json.dumps(text, ensure_ascii=False)} and its Chinese have different places {{0}}, {{1}}, …"
                  for text, chinese in table if places(text) != places(chinese)]
        wrong += [f"{place}: {json.dumps(text, ensure_ascii=False)} has no Chinese"
                  for text, chinese in table if text == chinese and re.search(r"[A-Za-z]", re.sub(r"\{.*?\}", "", text))]
        if (ROOT / place).read_text().count("\n") != len(table) + 3:
            wrong.append(f"{place}: has a line that is not of the form  \"English\": \"Chinese\",")
    wrong += [f"{where}: {TABLE} has no line for {json.dumps(text, ensure_ascii=False)}" for text, where in used.items() if text not in known]
    for complaint in wrong:
        print(f"viewer/{complaint}")
    print(f"{len(used) + len(known)} passed, {len(wrong)} failed")
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    main()
