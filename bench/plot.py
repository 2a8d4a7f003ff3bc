#!/usr/bin/env python3
"""Plots time per score and memory against the length of the sequence, as an SVG, from figures that peers.py measured.

    build/peers/bin/python bench/peers.py --only '^S[0-9]+ D64' --json figures.json
    build/peers/bin/python bench/plot.py figures.json docs/images/lengths.svg
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

CASE = re.compile(r"^S(\d+) D64( f\+b)?$")


def series(results: list[dict[str, Any]], peer: str, backward: bool, value: str) -> tuple[list[int], list[float]]:
    """(lengths, values) of the cases in which the peer was measured."""
    points = []
    for told in results:
        match = CASE.match(told["case"])
        measured = told["peers"].get(peer, {})
        if match and bool(match.group(2)) == backward and "times" in measured and "megabytes" in measured:
            points.append((int(match.group(1)), measured[value]))
    points.sort()
    return [length for length, _ in points], [number for _, number in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("figures", type=pathlib.Path, help="the file that peers.py --json wrote")
    parser.add_argument("picture", type=pathlib.Path, help="the SVG to write")
    given = parser.parse_args()
    run = json.loads(given.figures.read_text())[0]
    plt.rcParams.update({"svg.hashsalt": "polyhead", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    quantities = [
        ("forward: ns per score", False, "rate"),
        ("forward + backward: ns per score", True, "rate"),
        ("forward: MB beyond the inputs", False, "megabytes"),
    ]
    for axis, (title, backward, value) in zip(axes, quantities):
        for number, peer in enumerate(run["versions"]):
            lengths, values = series(run["results"], peer, backward, value)
            if lengths:
                axis.plot(lengths, values, marker="o", linewidth=2.5 if peer == "polyhead" else 1.2, color=f"C{number}", label=peer)
        axis.set_xscale("log", base=2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("sequence length S = T (B1 H8 D64, float32)")
        axis.set_yscale("log", base=10 if "MB" in title else 2)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(given.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
