#!/usr/bin/env python3
"""Plots how evenly work is divided among each number of threads, as an SVG, from the figures of bench_schedule.

    build/dev/bench/bench_schedule --csv | build/peers/bin/python bench/plot_schedule.py docs/images/schedule.svg
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("picture", type=pathlib.Path, help="the SVG to write")
    given = parser.parse_args()
    header, *rows = csv.reader(sys.stdin, delimiter=";")
    threads = [int(count) for count in header[1:]]
    plt.rcParams.update({"svg.hashsalt": "polyhead", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.5), constrained_layout=True, sharey=True)
    for axis, backward in zip(axes, (False, True)):
        for number, row in enumerate(row for row in rows if ("backward" in row[0]) == backward):
            axis.plot(threads, [float(value) for value in row[1:]], linewidth=1.4, color=f"C{number}", label=row[0])
        axis.axhline(90, color="grey", linewidth=0.8, linestyle=":")
        axis.axvline(64, color="grey", linewidth=0.8, linestyle=":")
        axis.set_xticks([1, 8, 16, 32, 48, 64, 96, 128])
        axis.set_xlabel("threads")
        axis.set_ylim(0, 103)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, loc="lower left", fontsize=9)
    axes[0].set_ylabel("work / (threads x longest thread), %")
    figure.savefig(given.picture, metadata={"Date": None} if given.picture.suffix == ".svg" else {})


if __name__ == "__main__":
    main()
