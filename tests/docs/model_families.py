"""Writes docs/model-families.md, the table of the families of models that the program lists. tests/cli/inspect_test.py compares the page with the program.

    python3 tests/docs/model_families.py PROGRAM --write
"""
import json
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).parents[2] / "docs/model-families.md"

BEFORE = """# Families of models

This page lists which models open, by the `model_type` of their config.json, and some models that are refused. `polyhead inspect --families` prints this list, and `tests/docs/model_families.py` writes the table from it.
The pages of [encoders](encoders.md), [decoders](language-models.md), [models with two sides](two-sided-models.md) and [models of images](image-models.md) say how the families differ, and what else is refused.

| kind | opens | refused |
|---|---|---|
"""


def page(families):
    rows = []
    for kind in dict.fromkeys(family["kind"] for family in families):
        of_kind = [family for family in families if family["kind"] == kind]
        opens = ", ".join(f"`{family['model_type']}`" for family in of_kind if family["refused"] is None)
        refused = "; ".join(f"`{family['model_type']}`: {family['refused']}" for family in of_kind if family["refused"])
        rows.append(f"| {kind} | {opens} | {refused} |\n")
    return BEFORE + "".join(rows)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] != "--write":
        sys.exit(__doc__)
    PAGE.write_text(page(json.loads(subprocess.run([sys.argv[1], "inspect", "--families", "--json"], capture_output=True, check=True).stdout)["families"]))
