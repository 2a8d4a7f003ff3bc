"""The driver of scripts/soak: runs worker processes on every instruction set of the machine until the time is over, writes findings as scripts, and prints a closing line.

    run.py MINUTES [--seed N] [--jobs N] [--folder FOLDER] [--only attention|layers|stacks|files] [--program polyhead_encode_texts] [--stacks polyhead_run_stack]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import reduce

HERE = Path(__file__).resolve().parent
SLICE = 60  # seconds that one worker process runs
PATIENCE = 600  # a worker process that writes no line for so many seconds is ended
FINDINGS = 20  # when the workers of one kind have so many findings, they are stopped


def environment(kernel: str | None) -> dict[str, str]:
    """Returns the environment of a worker. NumPy uses one thread, because `jobs` processes run at the same time."""
    given = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return given | {"POLYHEAD_ISA": kernel} if kernel else given


def instruction_sets() -> tuple[list[str], list[str]]:
    """Returns the instruction sets that run on this machine, and why the others do not."""
    code = "import polyhead, sys; print(*polyhead.device()['kernels'])"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(None)).stdout.split()
    here, not_here = [], []
    for name in names:
        done = subprocess.run([sys.executable, "-c", "import polyhead; print(polyhead.device()['kernel'])"], capture_output=True, text=True, env=environment(name))
        if done.stdout.strip() == name:
            here.append(name)
        else:
            not_here.append(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'not chosen'}")
    return here, not_here


class Worker:
    """One kind of work on one instruction set, with its counts and findings."""

    def __init__(self, name: str, kernel: str | None, command: list[str], seed: int) -> None:
        self.name, self.kernel, self.command, self.seed = name, kernel, command, seed
        self.cases = self.compared = 0
        self.worst = 0.0
        self.refused: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.findings: list[tuple[int, list[str]]] = []

    def slice(self, seconds: float) -> None:
        process = subprocess.Popen([sys.executable, self.command[0], str(self.seed), str(seconds), *self.command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(self.kernel))
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
        reader.start()
        started = self.seed
        for line in process.stdout:  # type: ignore[union-attr]
            late.cancel()
            late = threading.Timer(PATIENCE, process.kill)
            late.start()
            event = json.loads(line)
            if "start" in event:
                started = event["start"]
                self.seed = started + 1
            elif "done" in event:
                self.cases += 1
                self.compared += event.get("compared", 0)
                self.worst = max(self.worst, event.get("worst", 0.0))
                self.kinds[event.get("kind", "attention")] += 1
            elif "refused" in event:
                self.refused[re.sub(r"-?\d[\d.,]*", "N", event["refused"])] += 1
            elif "finding" in event:
                self.findings.append((event["seed"], event["finding"]))
                print(f"{self.name}, seed {event['seed']}: {'; '.join(event['finding'][:3])}", flush=True)
        code = process.wait()
        late.cancel()
        reader.join(5)
        if code != 0:
            what = f"the process ended with {code} ({'no answer for ' + str(PATIENCE) + ' s' if code == -9 else 'a signal' if code < 0 else 'an error'}): {''.join(said)[-600:].strip()}"
            self.findings.append((started, [what]))
            print(f"{self.name}, seed {started}: {what}", flush=True)

    @property
    def stopped(self) -> bool:
        return len(self.findings) >= FINDINGS


class Fails:
    """Runs cases in another process, which may crash. Fails()(case) is true if the case fails or crashes."""

    def __init__(self, kernel: str | None, command: list[str], seconds: float) -> None:
        self.kernel, self.command, self.end = kernel, command, time.monotonic() + seconds
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, case: dict[str, Any]) -> bool:
        if time.monotonic() > self.end:
            return False
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([sys.executable, self.command[0], "--fails", *self.command[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(self.kernel))
        self.process.stdin.write(json.dumps(repr(case)) + "\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self.process.wait()
            return True  # the process crashed
        self.findings = json.loads(line)["findings"]
        # If a reduced case is not valid, the test's own code raises an error. Such an error is not the failure that the reduction looks for.
        return bool(self.findings) and not any(line.startswith("KeyError") or ("Error: " in line and ("numpy" in line or "tests/soak" in line)) for line in self.findings)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()  # type: ignore[union-attr]
            self.process.wait()


def write_finding(worker: Worker, seed: int, said: list[str], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{worker.name.replace(' ', '_')}_{seed}.py"
    if worker.name == "files":
        path.write_text("# " + "\n# ".join(said) + f"\n# The files of this seed, kept below soak_files:\n#   build/venv/bin/python {HERE}/files.py --seed {seed} {' '.join(worker.command[1:])}\n")
        return path
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(Path(worker.command[0]).stem)
    fails = Fails(worker.kernel, worker.command, 90)
    case = reduce.reduced(module.draw(seed), fails)
    fails.close()
    path.write_text(reduce.script(case, worker.kernel or "", said, str(HERE), module.__name__.replace("attention", "check")))
    return path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"))
    parser.add_argument("--only", choices=("attention", "layers", "stacks", "files"))
    parser.add_argument("--program")
    parser.add_argument("--stacks")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int(time.time()) % 10**6 * 10**6
    here, not_here = instruction_sets()
    for line in not_here:
        print(f"not tested: {line}")
    print(f"seed {seed}; instruction sets: {', '.join(here)}", flush=True)
    workers = []
    for script in ("attention", "layers", "stacks"):
        if given.only not in (None, script):
            continue
        if script != "attention" and importlib.util.find_spec("torch") is None:
            print(f"{script} are not tested: their formulas need the package torch")
        elif script == "stacks" and not given.stacks:
            print("stacks are not tested: this needs the program polyhead_run_stack")
        else:
            if given.stacks:
                os.environ["POLYHEAD_RUN_STACK"] = given.stacks
            workers += [Worker(name if script == "attention" else f"{script} {name}", name, [str(HERE / f"{script}.py")], seed) for name in here]
    if given.only in (None, "files"):
        workers.append(Worker("files", None, [str(HERE / "files.py"), *([given.program] if given.program else [])], seed))

    end = time.monotonic() + given.minutes * 60
    waiting: queue.Queue[Worker] = queue.Queue()
    for worker in workers:
        waiting.put(worker)

    def work() -> None:
        while time.monotonic() < end - 1:
            try:
                worker = waiting.get(timeout=1)
            except queue.Empty:
                continue
            if not worker.stopped:
                worker.slice(min(SLICE, end - time.monotonic(), max(2.0, given.minutes * 60 * given.jobs / len(workers))))
                waiting.put(worker)

    began = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(min(given.jobs, len(workers)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    count = 0
    for worker in workers:
        for at, said in worker.findings[:3]:
            path = write_finding(worker, at, said, given.folder)
            print(f"\n{path}:\n{path.read_text()}", flush=True)
        count += len(worker.findings)
        for message, times in worker.refused.most_common():
            print(f"refused by {worker.name}, {times} x: {message}")
    parts = []
    for what, own in (("attention problems", [w for w in workers if w.name == w.kernel]), *((name, [w for w in workers if w.name == f"{name} {w.kernel}"]) for name in ("layers", "stacks"))):
        if own:
            cases = ", ".join(f"{worker.kernel} {worker.cases}" for worker in own)
            kinds = sum((worker.kinds for worker in own), Counter())
            kinds_text = "" if len(kinds) < 2 else "; " + ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
            parts.append(f"{sum(worker.cases for worker in own)} {what} ({cases}{kinds_text}), {sum(worker.compared for worker in own)} numbers, worst error of float32 and float64 {max(worker.worst for worker in own):.2f} of its bound")
    for worker in workers:
        if worker.kernel is None:
            parts.append(f"{worker.cases} damaged files ({', '.join(f'{kind} {number}' for kind, number in sorted(worker.kinds.items()))})")
    print(f"soak: {'; '.join(parts)}; {count} findings; seed {seed}; {(time.monotonic() - began) / 60:.0f} min")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
