"""Memory and processor time of commands against the size of their data."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MODULE = "benchmarks.scale.growth"
STEPS = 16
"""Of a row."""
SIZES = (50_000, 500_000, 5_000_000)
QUICK_SIZES = (25_000, 250_000)
COST_STEPS = dict.fromkeys(("plain_loop", "import", "segment"), 400_000)
COST_STEPS |= dict.fromkeys(("label_verify", "evaluate_labels", "select"), 40_000)
QUICK_COST_STEPS = {name: steps // 2 for name, steps in COST_STEPS.items()}
COST_ROUNDS, QUICK_COST_ROUNDS = 5, 3
_FEW_STEPS = 1600
"""Of the data whose cost is subtracted: it is the start of the command."""

LAUNCHER = """
import json, os, sys
said, *command = sys.argv[1:]
process = os.posix_spawn(command[0], command, os.environ)
_, status, usage = os.wait4(process, 0)
with open(said, "w") as stream:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss], stream)
"""
"""A small process starts the command: a process's peak counts what its parent held when it was started."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one command on data of one size."""

    cpu_s: float
    peak_mb: float
    """Of the largest of its processes."""


def write_rows(path: Path, steps: int) -> None:
    """Rows of ``STEPS`` sums each, one in ten of them wrong, in a form that ``surefoot import`` reads."""
    rng = random.Random(0)
    with path.open("w") as stream:
        for number in range(steps // STEPS):
            value, lines = rng.randrange(100), []
            start = value
            for _ in range(STEPS - 1):
                other = rng.randrange(2, 100)
                total = value + other + (rng.random() < 0.1)
                lines.append(f"We add {other}: {value} + {other} = {total}.")
                value = total
            row = {
                "problem": f"Problem {number}: start with {start} and add the numbers that follow.",
                "solution": "\n".join([*lines, f"The answer is {value}."]),
                "answer": str(value),
            }
            stream.write(json.dumps(row) + "\n")


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured, in the order in which each makes the input of the next."""
    problems, traces = f"{folder}/mine/problems.jsonl", f"{folder}/mine/traces.jsonl"
    labels = f"{folder}/labels.jsonl"
    surefoot = [sys.executable, "-m", "surefoot"]
    prepare = [sys.executable, "-m", MODULE, "prepare", problems, traces, labels, f"{folder}/examples"]
    return {
        name: [*surefoot, *command]
        for name, command in {
            "import": ["import", f"{folder}/rows.jsonl", "--out", f"{folder}/mine"],
            "segment": ["segment", traces, "--segment", "line", "--out", f"{folder}/cut.jsonl"],
            "label_verify": [
                *("label", traces, "verify:rules=equations", "--problems", problems),
                *("--out", labels),
            ],
            "evaluate_labels": [
                *("evaluate", "--as=labels", f"rules={labels}", "--traces", traces, "--labels", labels),
                *("--out", f"{folder}/evaluated"),
            ],
            "select": ["select", traces, "--scores", labels, "--out", f"{folder}/chosen.jsonl"],
        }.items()
    } | {"prepare_training": prepare}


def prepare(problems: str, traces: str, labels: str, folder: str) -> None:
    """What ``surefoot train prm`` does before its first update."""
    from benchmarks.worlds.digits import build_tokenizer
    from surefoot.io import join_traces, open_table
    from surefoot.models import Encoding
    from surefoot.records import Problem, StepLabel, Trace
    from surefoot.segment import cut_trace
    from surefoot.training import StepTargets, TrainingConfig, batch_order, stored_examples

    joined, _ = join_traces(open_table(problems, Problem), open_table(traces, Trace), cut_trace)
    items = joined.labelled(open_table(labels, StepLabel))
    made = stored_examples(Path(folder), build_tokenizer(), Encoding(), items, StepTargets())
    batch_order(made.examples, TrainingConfig())


def plain_loop(rows: str, out: str) -> None:
    """The least that a program does: read each row, cut its solution at line ends, write it with spans."""
    with Path(rows).open() as source, Path(out).open("w") as target:
        for line in source:
            row, end, steps = json.loads(line), 0, []
            for piece in row["solution"].splitlines(keepends=True):
                steps.append({"start": end, "end": end + len(piece)})
                end += len(piece)
            target.write(json.dumps(row | {"steps": steps}) + "\n")


def step_costs(most: dict[str, int], rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """CPU microseconds per further step in each round, and peak MB, of the plain loop and of commands.

    ``most`` has the steps for each. The cost on little data is subtracted, so that starting does not count.
    """
    costs: dict[str, list[float]] = {name: [] for name in most}
    peaks = dict.fromkeys(most, 0.0)
    with tempfile.TemporaryDirectory(prefix="surefoot-scale-") as name:
        folders = {steps: Path(name) / str(steps) for steps in (_FEW_STEPS, *most.values())}
        for steps, folder in folders.items():
            folder.mkdir()
            write_rows(folder / "rows.jsonl", steps)
            measured(commands(folder)["import"], folder)
        for _ in range(rounds):
            for title, steps in most.items():
                few, many = (_cost(title, folders[size]) for size in (_FEW_STEPS, steps))
                costs[title].append(1e6 * (many.cpu_s - few.cpu_s) / (steps - _FEW_STEPS))
                peaks[title] = max(peaks[title], many.peak_mb)
            print({title: round(values[-1], 2) for title, values in costs.items()}, flush=True)
    return costs, peaks


def _cost(title: str, folder: Path) -> Cost:
    loop = [sys.executable, "-m", MODULE, "loop", f"{folder}/rows.jsonl", f"{folder}/loop.jsonl"]
    return measured(loop if title == "plain_loop" else [*commands(folder)[title], "--force"], folder)


def measured(command: list[str], folder: Path) -> Cost:
    """Run a command on one thread. Raises ``RuntimeError`` if it fails."""
    said, output = folder / "usage.json", folder / "output.txt"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with output.open("w") as stream:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(said), *command],
            check=True,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    code, cpu_s, peak_kib = json.loads(said.read_text())
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {output.read_text()[-2000:]}")
    return Cost(cpu_s=cpu_s, peak_mb=peak_kib / 1024)


def growth(sizes: tuple[int, ...]) -> dict[str, list[Cost]]:
    """Costs of each command, for each size."""
    costs: dict[str, list[Cost]] = {}
    for steps in sizes:
        with tempfile.TemporaryDirectory(prefix="surefoot-scale-") as name:
            folder = Path(name)
            write_rows(folder / "rows.jsonl", steps)
            for title, command in commands(folder).items():
                cost = measured(command, folder)
                print(f"{title}, {steps} steps: {cost.cpu_s:.1f} s, {cost.peak_mb:.0f} MB", flush=True)
                costs.setdefault(title, []).append(cost)
    return costs


def memory_ratio(costs: list[Cost]) -> float:
    """Peak at the largest size over that at the smallest."""
    return costs[-1].peak_mb / costs[0].peak_mb


def exponent(costs: list[Cost], sizes: tuple[int, ...]) -> float:
    """Of the time as a power of the size, between two neighbouring sizes, where it is largest."""
    neighbours = zip(pairwise(costs), pairwise(sizes), strict=True)
    return max(
        math.log(more.cpu_s / less.cpu_s) / math.log(large / small)
        for (less, more), (small, large) in neighbours
    )


if __name__ == "__main__":
    {"prepare": prepare, "loop": plain_loop}[sys.argv[1]](*sys.argv[2:])
