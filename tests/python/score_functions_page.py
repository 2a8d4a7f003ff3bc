"""Reads the tables of functions in docs/flex_attention.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flex_attention.md"


def listed(section: str) -> set[str]:
    """The names of the first table of a section."""
    body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert body is not None
    rows = [line for line in body[1].splitlines() if line.startswith("|")]
    spans = [span for row in rows for span in re.findall(r"`([^`]*)`", row.replace("| ^ ~", "^ ~"))]
    return {word for span in spans for word in span.split() if re.fullmatch(r"[a-z_.0-9]*[a-z][a-z_.0-9]*", word)}
