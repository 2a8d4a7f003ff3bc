#!/usr/bin/env python3
"""Shows how attention scales over ranks: measures 1 to 4 ranks, fits a model to these measurements, predicts 8 to 1,024 ranks, and writes the tables and the
picture of docs/scaling.md.

    python3 scripts/scaling.py measure build/release/bench/bench_distributed [--only NAME ...]    # mpirun; groups tbf and veth as root: bench/limited_links.sh
    python3 scripts/scaling.py page                                                         # needs Matplotlib

An existing measurement is repeated only with --again, which keeps the faster of the two. The figures are in build/scaling-figures/, one file with a line of
JSON for each measurement. docs/scaling.md says what the model leaves out.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess

from page_block import write_block

root = pathlib.Path(__file__).resolve().parents[1]
work = root / "build/scaling-figures"
page, picture = root / "docs/scaling.md", root / "docs/images/scaling.png"

# ---- measurements ----

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"]
LARGE, SMALL = 8192, 1024  # numbers of positions. The model predicts for a forward pass at 1 Gbit/s: with LARGE arithmetic hides the messages, with SMALL it does not


def cases():
    """group -> list of (name, ranks, link, arguments). link: "memory" (shared memory), a rate of tc tbf, or "none" (TCP without a limit)."""
    causal = ["--causal", "--order", "zigzag"]
    groups = {"transport": [(f"transport-{link}", 2, link, ["--transport"]) for link in ("memory", "none", "10gbit", "1gbit")]}
    groups["adding"] = [("adding", 1, "memory", ["--adding"])]
    groups["memory"] = [
        (f"memory-{ranks}x{heads}-{length}{'-causal' * bool(mask)}", ranks, "memory", ["--length", length, "--head-ranks", heads, "--backward", "--repeat", 3, *mask])
        for ranks, heads in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (4, 2)) for length in (4096, 8192) for mask in ([], causal)]
    groups["links"] = [
        (f"{link}-{ranks}-{length}", ranks, link, ["--length", length, "--backward", "--repeat", 3])
        for length in (SMALL, LARGE) for ranks in (2, 4) for link in ("none", "10gbit", "1gbit")]
    groups["simulated"] = [
        (f"simulated-{gigabits}-{delay}-{ranks}-{length}", ranks, "memory", ["--length", length, "--backward", "--repeat", 3, "--rate", gigabits, "--delay", delay])
        for length in (SMALL, LARGE) for ranks in (2, 4) for gigabits in (1, 10) for delay in (0, 1)]
    groups["peaks"] = [(f"peak-{ranks}-{length}", ranks, "memory", ["--length", length, "--heads", 2, "--backward", "--repeat", 1])
                       for ranks, length in ((4, 16384), (4, 32768), (4, 65536), (2, 16384), (8, 65536))]
    return groups


def run(program, name, ranks, link, arguments):
    arguments = [str(argument) for argument in arguments]
    if link == "memory":
        command = [*MPIRUN, "-n", str(ranks), program, *arguments]
    else:
        command = [str(root / "bench/limited_links.sh"), str(ranks), link, program, *arguments]
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return told | {"name": name, "link": link, "command": " ".join(arguments), "load": os.getloadavg()[0]}


def measure(program, only, again):
    work.mkdir(parents=True, exist_ok=True)
    for group, members in cases().items():
        if only and group not in only:
            continue
        for name, ranks, link, arguments in members:
            file = work / f"{name}.json"
            if again or not file.exists():
                told = run(program, name, ranks, link, arguments)
                measure_of = next(key for key in ("seconds", "latency", "add") if key in told)
                if file.exists() and json.loads(file.read_text())[measure_of] <= told[measure_of]:
                    continue
                file.write_text(json.dumps(told) + "\n")
                print(name, f"{told[measure_of]:.3g} s", flush=True)


def measured(group):
    """The figures that were measured for a group, by the name of the measurement. A measurement that has no file yet is left out."""
    files = [(name, work / f"{name}.json") for name, *_ in cases()[group]]
    return {name: json.loads(file.read_text()) for name, file in files if file.exists()}


# ---- the model ----

@dataclasses.dataclass(frozen=True)
class Rank:
    forward: float  # multiply-adds per second of the kernels
    backward: float
    join: float  # seconds in which one thread adds one element of a partial output to the others
    add: float  # seconds in which one thread adds one element of a partial gradient
    communication: float = 0  # fraction of one thread's time that is spent on moving messages
    threads: int = 1

    def kernels(self, passes):  # multiply-adds per second of attention, reduced by the time that a thread spends on moving messages
        return (self.forward if passes == 1 else self.backward) / (1 + self.communication / self.threads)


@dataclasses.dataclass(frozen=True)
class Link:
    rate: float  # bytes per second in each direction
    latency: float  # seconds that a small message takes from one rank to another
    message: float  # processor seconds for sending or receiving a small message

    def seconds(self, size):  # time of a large message, which takes three trips: it is announced, requested and sent
        return 3 * self.latency + size / self.rate


@dataclasses.dataclass(frozen=True)
class Problem:
    length: int
    heads: int = 32
    kv_heads: int = 32
    width: int = 128
    causal: bool = False

    def multiply_adds(self):  # their number in a forward pass; a backward pass needs 2.5 times as many
        return self.length**2 * (0.5 if self.causal else 1) * self.heads * 2 * self.width


@dataclasses.dataclass
class Time:
    kernels: float = 0
    adding: float = 0
    waiting: float = 0
    agreement: float = 0

    def seconds(self):
        return self.kernels + self.adding + self.waiting + self.agreement

    def __add__(self, other):
        return Time(*(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)))


def rows_of_piece(keys, heads, width, passes, threads):  # must agree with Ring::in_pieces in src/distributed/ring.h
    return max(768, int(1e9 * threads / (keys * heads * 2 * width * passes)) // 768 * 768)


def passes_of(problem, head_ranks, ring_ranks, rank, far, near, threads_that_add=None, patience=1):
    """The times of the forward and the backward pass on each of head_ranks * ring_ranks ranks. All ranks must have the same work: without a causal mask, or with zigzag
    slices. patience: by how many steps the gradients of keys may arrive late without delaying the ring; 1 in the library. threads_that_add: number of threads that add
    up partial gradients; in the library all threads."""
    ranks = head_ranks * ring_ranks
    rows, heads, kv_heads = problem.length / ring_ranks, problem.heads / head_ranks, max(problem.kv_heads / head_ranks, 1)
    # A step computes one block of rows x rows, or, with zigzag slices, two blocks with half as many rows and keys.
    count, side = (2, rows / 2) if problem.causal else (1, rows)
    pairs = problem.multiply_adds() / (problem.heads * 2 * problem.width) / ring_ranks**2
    keys_bytes = rows * kv_heads * 2 * problem.width * 4  # bytes of k and v, or of d_k and d_v, that are sent in a step
    # Twice in a call, each rank sends a message to every other rank and receives a message from every other rank (agreement.cc).
    agreement = 2 * (far.latency + 2 * (ranks - 1) * far.message) if ranks > 1 else 0
    result = []
    for passes in (1, 2.5):
        backward = passes > 1
        kernels = pairs * heads * 2 * problem.width * passes / (rank.kernels(passes) if ring_ranks > 1 else rank.forward if passes == 1 else rank.backward)
        pieces = count * math.ceil(side / rows_of_piece(side, heads, problem.width, passes, rank.threads))
        if ring_ranks == 1:
            adding = 0
        elif backward:  # each piece adds its d_q, and d_k and d_v for all keys of the block, to the results; d_k and d_v must also be filled with zeros first
            adding = rank.add / (threads_that_add or rank.threads) * (rows * heads * problem.width + (pieces * side + rows) * kv_heads * 2 * problem.width)
        else:
            adding = rank.join / min(rank.threads, heads) * rows * heads * problem.width
        time = Time(agreement=agreement)
        clock, link_free, ready = 0.0, 0.0, 0.0

        def arrives(size, now):
            nonlocal link_free
            link_free = max(now + 2 * far.latency, link_free) + size / far.rate + far.latency
            return link_free

        if ring_ranks > 1:
            ready = arrives(keys_bytes, 0)
        returned = []  # the time at which the gradients of each step arrive
        for step in range(ring_ranks):
            if step > 0:
                begin = clock
                clock = max(clock, ready)
                if step + 1 < ring_ranks:
                    ready = arrives(keys_bytes, clock)
                if backward and step > 1:  # a step begins only after earlier gradients have arrived (attention.cc, expect_returned)
                    returned.append(arrives(keys_bytes, begin))
                    clock = max([clock, *returned[:len(returned) - patience]])
                time.waiting += clock - begin
            clock += kernels + adding
            time.kernels += kernels
            time.adding += adding
        if backward and ring_ranks > 1:
            time.waiting += arrives(keys_bytes, clock) - clock
        if head_ranks > 1:  # one exchange starts after the other. Forward: q, k, v, then out. Backward: q, k, v, out, d_out, then d_q, d_k, d_v
            own = problem.length / ranks * problem.width * 4
            tensors = [problem.heads] * (4 if backward else 2) + [problem.kv_heads] * (4 if backward else 2)
            for of_tensor in tensors:
                size = own * of_tensor
                time.waiting += near.seconds(size * (head_ranks - 1) / head_ranks) + 2 * (head_ranks - 1) * near.message
                time.adding += rank.add * size / 4 * 2
        result.append(time)
    return result


def seconds_of(problem, head_ranks, ring_ranks, rank, far, near=None):
    return sum(passes_of(problem, head_ranks, ring_ranks, rank, far, near or far), Time())


# ---- the fit ----

def mean(values):
    return statistics.fmean(values)


def problem_of(told):
    return Problem(told["length"], told["heads"], told["kv_heads"], told["width"], told["causal"])


def fit(points, transport, adding):
    """Fits the parameters of the model, a Rank and the links, to the measurements of this machine."""
    def processor(told):
        return [mean(told[f"{name}_report"]["processor"]) for name in ("forward", "backward")]

    alone = [told for told in points if told["ranks"] == 1]
    speeds = [mean([problem_of(told).multiply_adds() * passes / processor(told)[i] for told in alone]) for i, passes in enumerate((1, 2.5))]
    links = {}
    for told in transport.values():
        rate = next(large["both_ways_bytes_per_second"] for large in told["large"] if large["bytes"] == 16 << 20)
        links[told["link"]] = Link(rate=rate, latency=told["latency"], message=told["latency"] / 2)
    rank = Rank(*speeds, join=adding["join"], add=adding["add"])
    # Beyond arithmetic and adding, a ring spends processor time on the thread that moves messages and on MPI's copies.
    ratios = []
    for told in points:
        if told["plan"][1] > 1:
            time = seconds_of(problem_of(told), *told["plan"], rank, links["memory"])
            ratios.append((sum(processor(told)) - time.adding) / time.kernels - 1)
    return dataclasses.replace(rank, communication=max(mean(ratios), 0)), links


# ---- predictions ----

SERVER_CORES = 32
FILLED = 0.95  # fraction of the time of 32 threads in which they have work: docs/experiments.md, "Many threads"
GIGABITS = (10, 25, 100)
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
LATENCY, MESSAGE = 50e-6, 5e-6  # in seconds. LATENCY: that of TCP in a data centre, plus the time for which the communicator sleeps. MESSAGE: processor time of a small message
INSIDE = Link(rate=5e9, latency=20e-6, message=2e-6)  # the link between two ranks of one machine


def server(one, parts=1):
    """One rank of a machine with 32 cores on which `parts` ranks run. Each core is as fast as a core of the measured machine."""
    cores = SERVER_CORES // parts
    return Rank(one.forward * cores * FILLED, one.backward * cores * FILLED, one.join, one.add, one.communication, cores)


def network(gigabits, sharing=1):
    return Link(rate=gigabits / 8 * 1e9 / sharing, latency=LATENCY, message=MESSAGE)


def predicted_seconds(problem, head_ranks, ring_ranks, near, near_rate, far_rate, message, speed, backward):
    """The seconds of a call by the same formula as polyhead::distributed::predicted_seconds (src/distributed/plan.cc)."""
    ranks = head_ranks * ring_ranks
    near = min(ranks, near)

    def rate(count):
        return near_rate if count <= near else far_rate / near

    heads, kv_heads = math.ceil(problem.heads / head_ranks), math.ceil(problem.kv_heads / head_ranks)
    row = 4 * 2 * problem.width * (2 if backward else 1)
    of_heads = (head_ranks - 1) * row * problem.length / ranks * (heads + kv_heads)
    exchange = of_heads / rate(head_ranks) + 4 * (head_ranks - 1) * message if head_ranks > 1 else 0
    step = heads * (problem.length / ring_ranks) ** 2 * 2 * problem.width / speed * (2.5 if backward else 1)
    travel = row * kv_heads * problem.length / ring_ranks / rate(ranks) + 2 * message
    return 2 * (ranks - 1) * message + exchange + step + (ring_ranks - 1) * max(step, travel)


def chosen_plan(problem, machines, parts, gigabits, one, backward):
    """The plan (head ranks, ring ranks) that choose_plan of the library picks for the machines that docs/scaling.md assumes."""
    ranks, best = machines * parts, (1, machines * parts)
    given = (parts, INSIDE.rate, gigabits / 8 * 1e9, LATENCY, server(one, parts).forward, backward)
    for head_ranks in range(2, ranks + 1):
        if ranks % head_ranks == 0 and predicted_seconds(problem, head_ranks, ranks // head_ranks, *given) <= predicted_seconds(problem, *best, *given):
            best = (head_ranks, ranks // head_ranks)
    return best


def efficiency(problem, machines, parts, gigabits, one, **changes):
    """The efficiency: the time on one machine divided by (machines * the time on all machines). parts: ranks per machine; with 1 the plan is a ring of machines, otherwise
    choose_plan picks the plan."""
    rank, far, seconds = server(one, parts), network(gigabits, parts), 0
    for i, backward in enumerate((False, True)):
        plan = chosen_plan(problem, machines, parts, gigabits, one, backward) if parts > 1 else (1, machines)
        seconds += passes_of(problem, *plan, rank, far, INSIDE if plan[0] <= parts else far, **changes)[i].seconds()
    alone = problem.multiply_adds() * (1 / one.forward + 2.5 / one.backward) / (SERVER_CORES * FILLED)
    return alone / (machines * seconds)


def block_seconds(residues, ranks, rank, link, width=128, heads=4, head_width=32, layers=(False, True)):
    """The seconds of arithmetic and the seconds of messages for the forward pass of triangle attention around the starting and the ending node, if each rank
    holds some rows of the pair tensor (PairAttention)."""
    rows, others = residues / ranks, (ranks - 1) / ranks
    attention = rows * residues**2 * heads * 2 * head_width
    projections = rows * residues * width * (5 * heads * head_width + heads)
    bias, pairs = residues**2 * heads * 4, rows * residues * width * 4
    messages = 0.0
    for columns in layers:  # the bias is gathered; attention along columns also needs an exchange before it and an exchange after it
        for size in [bias] + [pairs, pairs] * columns:
            messages += link.latency + 2 * (ranks - 1) * link.message + link.seconds(size * others) + 2 * (ranks - 1) * link.message
    return len(layers) * (attention + projections) / rank.forward, messages


# ---- the page ----

def table(titles, rows):
    return ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]


NAMES = {"memory": "shared memory", "none": "TCP, not limited", "10gbit": "TCP, 10 Gbit/s (tbf)", "1gbit": "TCP, 1 Gbit/s (tbf)"}


def transport_table(transport):
    rows = []
    for told in transport.values():
        large = {entry["bytes"] >> 20: entry for entry in told["large"]}
        rows.append([NAMES[told["link"]], f"{told['latency'] * 1e6:.0f}", *(f"{large[16][f'{way}_bytes_per_second'] / 1e6:.0f}" for way in ("one_way", "both_ways"))])
    return table(["link", "latency, us", "16 MiB one way, MB/s", "both ways at once, MB/s each"], rows)


def plan_name(told):
    heads, ring = told["plan"]
    return "alone" if told["ranks"] == 1 else f"ring of {ring}" if heads == 1 else f"heads on {heads}" if ring == 1 else f"{heads} x {ring}"


def points_table(points, rank, links):
    rows, errors = [], []
    for told in points:
        time = seconds_of(problem_of(told), *told["plan"], rank, links["memory"])
        processor, own = sum(mean(told[f"{name}_report"]["processor"]) for name in ("forward", "backward")), time.kernels + time.adding
        elapsed = own * max(1, told["ranks"] / os.cpu_count()) + time.waiting + time.agreement
        errors.append((own / processor - 1, elapsed / told["seconds"] - 1))
        rows.append([plan_name(told), told["length"], "yes" if told["causal"] else "no", f"{processor:.3f}", f"{own:.3f}", f"{errors[-1][0]:+.0%}", f"{told['seconds']:.3f}", f"{elapsed:.3f}", f"{errors[-1][1]:+.0%}"])
    lines = table(["plan", "S", "causal", "processor s of a rank", "model", "error", "elapsed s", "model", "error"], rows)
    of_processor, of_elapsed = ([abs(error[i]) for error in errors] for i in range(2))
    return [*lines, "", f"The mean absolute error of the model is {mean(of_processor):.0%} for processor time and {mean(of_elapsed):.0%} for elapsed time. The largest errors are {max(of_processor):.0%} and {max(of_elapsed):.0%}."]


def overlap_table(figures, rank, links):
    rows, errors = [], []
    for told in figures.values():
        simulated = told.get("simulated")
        if simulated:
            link = dataclasses.replace(links["memory"], rate=simulated["gigabits"] / 8 * 1e9, latency=simulated["delay_milliseconds"] * 1e-3 + links["memory"].latency)
            name = f"simulated, {simulated['gigabits']:g} Gbit/s{', 1 ms' * bool(simulated['delay_milliseconds'])}"
        else:
            link, name = links[told["link"]], NAMES[told["link"]]
        cells = [name, told["ranks"], told["length"]]
        shared = max(1, told["ranks"] / os.cpu_count())
        slow = dataclasses.replace(rank, forward=rank.forward / shared, backward=rank.backward / shared, join=rank.join * shared, add=rank.add * shared)
        for report, time in zip((told["forward_report"], told["backward_report"]), passes_of(problem_of(told), *told["plan"], slow, link, link)):
            waiting, seconds, needed = mean(report["waiting"]), mean(report["seconds"]), mean(report["sent_bytes"]) / link.rate
            errors.append(time.seconds() / seconds - 1)
            cells += [f"{seconds * 1e3:.0f}", f"{time.seconds() * 1e3:.0f} ({errors[-1]:+.0%})", f"{waiting / seconds:.0%}", f"{needed * 1e3:.1f}", f"{1 - waiting / needed:.0%}" if waiting < needed else "none"]
        rows.append(cells)
    titles = ["link", "ranks", "S", *(f"{name}{what}" for name in ("forward, ", "backward, ") for what in ("ms", "model", "waiting", "bytes need, ms", "hidden"))]
    return [*table(titles, rows), "", f"The mean absolute error of the model is {mean([abs(error) for error in errors]):.0%}, and {mean([abs(error) for row, error in zip([row for row in rows for _ in range(2)], errors) if row[2] == LARGE]):.0%} for S = {LARGE:,}."]


def peaks_table(peaks):
    rows = []
    for told in sorted(peaks.values(), key=lambda told: (told["ranks"], told["length"])):
        beyond = [peak - base for peak, base in zip(told["peak_megabytes"], told["base_megabytes"])]
        rows.append([told["ranks"], told["length"], told["length"] // told["ranks"], f"{max(told['tensor_megabytes']):.0f}", f"{max(beyond):.0f}", f"{max(told['base_megabytes']):.0f}"])
    return table(["ranks", "S", "positions of a rank", "its tensors, MB", "peak beyond the base, MB", "base, MB"], rows)


def percent(value):
    return f"{value:.0%}".rstrip("%")


def predictions_table(one):
    rows = []
    for length in (131072, 1048576):
        for causal in (False, True):
            problem = Problem(length, causal=causal)
            for gigabits in GIGABITS:
                cells = []
                for ranks in RANKS:
                    cells.append(f"{percent(efficiency(problem, ranks, 1, gigabits, one))}, {percent(efficiency(problem, ranks // 8, 8, gigabits, one)) if ranks > 8 else '-'}")
                rows.append([f"{length:,}", "yes" if causal else "no", gigabits, *cells])
    return table(["S", "causal", "Gbit/s", *(f"{ranks}" for ranks in RANKS)], rows)


def aim_table(one):
    def cells(name, parts=1, kv_heads=32, **changes):
        problems = [Problem(1048576, kv_heads=kv_heads, causal=causal) for causal in (False, True)]
        return [name, *(f"{efficiency(problem, 64 // parts, parts, 25, one, **changes):.1%}" for problem in problems)]

    rows = [cells("64 machines, a ring"), cells("8 machines of 8 ranks", parts=8), cells("a ring, 8 key/value heads", kv_heads=8),
            cells("a ring, if one thread added up all gradients", threads_that_add=1), cells("a ring, if gradients of keys had to arrive before the next step", patience=0)]
    for name, causal in (("share of the time: ", False), ("the same, causal: ", True)):
        time = seconds_of(Problem(1048576, causal=causal), 1, 64, server(one), network(25))
        print(name + ", ".join(f"{field.name} {getattr(time, field.name) / time.seconds():.1%}" for field in dataclasses.fields(time)))
    return table(["S = 1,048,576, 64 ranks, 25 Gbit/s", "efficiency", "causal"], rows)


def block_table(one):
    rows = []
    for gigabits in GIGABITS:
        cells = []
        alone = sum(block_seconds(2048, 1, server(one), network(gigabits)))
        for ranks in RANKS[:5]:
            arithmetic, messages = block_seconds(2048, ranks, server(one), network(gigabits))
            cells.append(f"{(arithmetic + messages) * 1e3:.0f}, {percent(alone / ranks / (arithmetic + messages))}")
        rows.append([gigabits, f"{alone * 1e3:.0f}", *cells])
    return table(["Gbit/s", "1 rank, ms", *(f"{ranks}" for ranks in RANKS[:5])], rows)


def plot(points, rank, links):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), constrained_layout=True)
    for axis, length in zip(axes[0], (131072, 1048576)):
        for number, gigabits in enumerate(GIGABITS):
            for causal, style in ((False, "-"), (True, "--")):
                values = [efficiency(Problem(length, causal=causal), ranks, 1, gigabits, rank) for ranks in RANKS]
                axis.plot(RANKS, [100 * value for value in values], style, color=f"C{number}", marker="o", markersize=3, label=f"{gigabits} Gbit/s{', causal' * causal}")
        axis.set_title(f"ring, S = {length:,}: predicted efficiency, %", fontsize=10)
        axis.set_ylim(0, 105)
    axes[0][1].legend(frameon=False, fontsize=8, ncols=2, loc="lower left")
    axis = axes[1][0]
    parts = ("kernels", "adding", "waiting", "agreement")
    times = [seconds_of(Problem(1048576, causal=True), 1, ranks, server(rank), network(25)) for ranks in RANKS]
    bottom = [0.0] * len(RANKS)
    for number, part in enumerate(parts):
        shares = [100 * getattr(time, part) / time.seconds() for time in times]
        axis.bar(range(len(RANKS)), shares, bottom=bottom, color=f"C{number}", label={"adding": "adding partial results"}.get(part, part))
        bottom = [a + b for a, b in zip(bottom, shares)]
    axis.set_xticks(range(len(RANKS)), [str(ranks) for ranks in RANKS])
    axis.set_title("ring, S = 1,048,576, causal, 25 Gbit/s: share of the time, %", fontsize=10)
    axis.set_ylim(0, 100)
    axis.legend(frameon=True, framealpha=1, fontsize=8, loc="lower left")
    axis = axes[1][1]
    for number, told in enumerate(points):
        time = seconds_of(problem_of(told), *told["plan"], rank, links["memory"])
        processor = sum(mean(told[f"{name}_report"]["processor"]) for name in ("forward", "backward"))
        axis.plot(time.kernels + time.adding, processor, "o", color=f"C{ {1: 0, 2: 1, 4: 2}[told['ranks']] }", alpha=0.7)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ends = (0.05, 3)
    axis.plot(ends, ends, color="0.6", linewidth=0.8)
    axis.set_title("processor seconds of a rank: model (across) and measured (up)", fontsize=10)
    axis.set_xlabel("blue: 1 rank; orange: 2; green: 4")
    for axis in axes[0]:
        axis.set_xscale("log", base=2)
        axis.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
        axis.set_xlabel("ranks, one a machine of 32 cores")
        axis.grid(alpha=0.3)
    axes[1][0].set_xlabel("ranks")
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def write_page():
    transport, points = measured("transport"), list(measured("memory").values())
    rank, links = fit(points, transport, measured("adding")["adding"])
    write_block(page, "transport", transport_table(transport))
    write_block(page, "fit", [f"The fit gives {rank.forward / 1e9:.1f} billion multiply-adds a second forward and {rank.backward / 1e9:.1f} billion backward ({2e-9 * rank.forward:.0f} and {2e-9 * rank.backward:.0f} GFLOP/s), and "
                        f"{rank.communication:.0%} of a thread for moving the messages of a ring. Measured separately (`--adding`), adding one element takes {rank.join * 1e9:.2f} ns for a partial output and {rank.add * 1e9:.2f} ns for a partial gradient."])
    write_block(page, "points", points_table(points, rank, links))
    write_block(page, "links", overlap_table(measured("links") | measured("simulated"), rank, links))
    write_block(page, "peaks", peaks_table(measured("peaks")))
    write_block(page, "predictions", predictions_table(rank))
    write_block(page, "block", block_table(rank))
    write_block(page, "aim", aim_table(rank))
    plot(points, rank, links)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    measuring.add_argument("--only", nargs="*", choices=list(cases()))
    measuring.add_argument("--again", action="store_true")
    commands.add_parser("page")
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.program, given.only, given.again)
    else:
        write_page()


if __name__ == "__main__":
    main()
