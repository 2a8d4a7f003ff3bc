#!/usr/bin/env python3
"""Measures what the number of heads changes: trains models with 1 to 16 heads, and writes the table and the picture about them in docs/use-cases.md.

    python3 scripts/heads.py PROGRAM DATA_FOLDER [--steps 1200] [--threads 2]

PROGRAM is the program polyhead; DATA_FOLDER has the file sentiment.tsv. The script needs Matplotlib. `polyhead train heads` trains the models. It does not repeat
finished runs, so the script may be stopped and started again. Time and memory of a step are measured in separate short runs, for which the machine should be idle; --times
repeats these measurements. Models and figures are written to build/heads/.
"""
import argparse
import collections
import json
import pathlib
import shutil
import statistics
import subprocess

import matplotlib
from page_block import write_block

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

root = pathlib.Path(__file__).resolve().parents[1]
work = root / "build/heads"
page, picture = root / "docs/use-cases.md", root / "docs/images/heads.svg"
MEASURES = {"grammar": "sentences exactly right", "sentiment": "correlation with ratings"}


def study(program, data, folder, steps, threads):
    """The runs for each (task, number of heads), in the order of their seeds."""
    command = [program, "train", "heads", "--data", data / "sentiment.tsv", "-o", folder, "--steps", steps, "--threads", threads, "--json"]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True) as process:
        runs = collections.defaultdict(list)
        for line in process.stdout:
            run = json.loads(line)
            runs[run["task"], run["heads"]].append(run)
            print(folder.name, run["task"], run["heads"], run["seed"], run["score"], flush=True)
    if process.returncode:
        raise SystemExit(process.returncode)
    return runs


def times(program, data, threads, again):
    """For each (task, number of heads): the milliseconds of a step and the peak memory of the process, each the smallest value of five runs of 40 steps."""
    folder = work / "times"
    if again and folder.exists():
        shutil.rmtree(folder)
    runs = study(program, data, folder, 40, threads)
    return {key: (min(run["ms_per_step"] for run in list_), min(run["megabytes"] for run in list_)) for key, list_ in runs.items()}


def table(runs, cost):
    lines = ["| task | heads | width of a head | score, mean of 5 seeds | standard deviation | lowest to highest | ms of a step | MB |", "|---|---|---|---|---|---|---|---|"]
    widths = {"grammar": 64, "sentiment": 48}
    for (task, heads), list_ in runs.items():
        scores = [run["score"] for run in list_]
        milliseconds, megabytes = cost[task, heads]
        lines.append(f"| {task} | {heads} | {widths[task] // heads} | {statistics.mean(scores):.4f} | {statistics.stdev(scores):.4f} | {min(scores):.4f} to {max(scores):.4f} | {milliseconds:.1f} | {megabytes:.0f} |")
    return lines


def plot(runs, cost):
    plt.rcParams.update({"svg.hashsalt": "polyhead", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), constrained_layout=True, sharex=True)
    for column, (task, measure) in enumerate(MEASURES.items()):
        heads = [count for name, count in runs if name == task]
        scores = [[run["score"] for run in runs[task, count]] for count in heads]
        top, bottom = axes[0][column], axes[1][column]
        for place, values in zip(heads, scores):
            top.plot([place] * len(values), values, "o", color="C0", alpha=0.45, markersize=5, markeredgewidth=0)
        top.plot(heads, [statistics.mean(values) for values in scores], color="C0", label="mean; a dot for each seed")
        top.set_title(f"{task}: {measure}", fontsize=10)
        bottom.plot(heads, [cost[task, count][0] for count in heads], color="C1", marker="o")
        bottom.set_ylim(bottom=0)
        bottom.set_title("ms of a training step", fontsize=10)
        bottom.set_xlabel("heads of each layer, equal parameters")
        bottom.set_xscale("log", base=2)
        bottom.set_xticks(heads, [str(count) for count in heads])
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
        top.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(picture, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--threads", type=int, default=1, help="number of threads when time and memory are measured; scores do not depend on it")
    parser.add_argument("--times", action="store_true", help="measure time and memory again")
    given = parser.parse_args()
    runs = study(given.program, given.data, work / "runs", given.steps, given.threads)
    cost = times(given.program, given.data, given.threads, given.times)
    lines = table(runs, cost)
    parameters = {task: {run["parameters"] for key, list_ in runs.items() if key[0] == task for run in list_} for task in MEASURES}
    lines += ["", ", ".join(f"the models of {task} have {', '.join(f'{count:,}' for count in sorted(counts))} parameters" for task, counts in parameters.items()).capitalize() + f". Each was trained for {given.steps:,} steps. Time and memory were measured with {given.threads} thread{'s' if given.threads > 1 else ''}."]
    write_block(page, "heads", lines)
    plot(runs, cost)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
