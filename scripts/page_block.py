"""Writes those parts of the pages in docs/ that a script computes."""
import re


def write_block(page, name, lines):
    """Replaces the text between <!-- name --> and <!-- end --> in the page."""
    text = page.read_text(encoding="utf-8")
    new, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
    if not found:
        raise SystemExit(f"{page} has no <!-- {name} -->")
    page.write_text(new, encoding="utf-8")
