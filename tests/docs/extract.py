"""Writes the code blocks of one language in a document into a file, unchanged, so that they can be compiled.

    python3 tests/docs/extract.py DOCUMENT LANGUAGE OUTPUT
"""
import pathlib
import re
import sys

document, language, output = sys.argv[1:]
text = pathlib.Path(document).read_text()
blocks = list(re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S))
if not blocks:
    sys.exit(f"{document} has no block of {language}")
lines = [f'#line {text.count(chr(10), 0, block.start()) + 2} "{document}"\n{block[1]}' for block in blocks]
pathlib.Path(output).write_text("\n".join(lines))
