"""Checks that README.zh-CN.md follows README.md: both have headings of the same levels and, in each section, the same code except comments, names and numbers.

    python3 tests/docs/readme_chinese.py [REPOSITORY]

At last prints 'N passed, N failed', the numbers of sections.
"""
import pathlib
import re
import sys
from collections import Counter

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
COMMENTS = {"cpp": r"\s*//.*", "python": r"\s*#.*", "sh": r"\s+#.*"}
LINKS = r"\[(?:English|中文)\]\(README[^)]*\)"  # each README links to the other
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)


def sections(name):
    """For each section, yields a dict {kind: Counter} of what both languages must have in equal numbers."""
    parts = re.split(r"^(#+) .*\n", re.sub(LINKS, "", (ROOT / name).read_text()), flags=re.M)[1:]
    for level, body in zip(parts[::2], parts[1::2]):
        prose = BLOCK.sub("", body)
        yield {
            "level of the heading": Counter([level]),
            "code": Counter(f"{language} {at}: {re.sub(COMMENTS[language], '', line)}"
                            for language, block in BLOCK.findall(body) for at, line in enumerate(block.splitlines(), 1)),
            "names": Counter(re.findall(r"`[^`]+`", prose)),
            "numbers": Counter(re.findall(r"\d[\d.]*(?:e-?\d+)?", re.sub(r"`[^`]+`", "", prose))),
            "rows of tables": Counter(re.findall(r"^\|", prose, flags=re.M)),
        }


def main():
    english, chinese = list(sections("README.md")), list(sections("README.zh-CN.md"))
    wrong = []
    if len(english) != len(chinese):
        wrong.append((0, f"has {len(chinese)} headings, README.md {len(english)}"))
    for number, (one, other) in enumerate(zip(english, chinese), 1):
        wrong += [(number, f"section {number}: {what}: lacks {sorted((one[what] - other[what]).elements())}, has {sorted((other[what] - one[what]).elements())}")
                  for what in one if one[what] != other[what]]
    for _, complaint in wrong:
        print(f"README.zh-CN.md: {complaint}")
    failed = len({number for number, _ in wrong})
    print(f"{len(english) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or not english)


if __name__ == "__main__":
    main()
