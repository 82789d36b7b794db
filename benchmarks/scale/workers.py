"""One worker against two."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.worlds.digits import POLICY, TRUNK, generate_problems
from surefoot.io import write_records
from surefoot.models import CheckpointCard, RewardModel

SETTINGS = os.environ | {
    "OMP_NUM_THREADS": "1",
    "SOURCE_DATE_EPOCH": "1700000000",  # so that equal labels are equal bytes
}

TRACES = {"labelling": 4, "scoring": 16}
"""Of a problem, by the job."""
START = 25
"""Problems of the job that measures a start: two whole pieces, as a single one starts no process."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Files of one job."""

    problems: Path
    traces: Path
    model: Path

    def command(self, what: str) -> list[str]:
        """The job as arguments of ``surefoot``, without workers and output."""
        if what == "labelling":
            files = [str(self.traces), "mc", "--problems", str(self.problems)]
            return ["label", *files, "--policy", str(POLICY), "--max-tokens", "96"]
        files = ["--problems", str(self.problems), str(self.traces)]
        return ["score", "--prm", str(self.model), *files]


def make_inputs(what: str, problems: int, folder: Path) -> Inputs:
    """Problems of the digit world, traces by its policy, and a reward model with a new head."""
    files = folder / f"{what}-{problems}"
    files.mkdir()
    inputs = Inputs(problems=files / "problems.jsonl", traces=files / "traces.jsonl", model=folder / "model")
    write_records(inputs.problems, generate_problems(problems, seed=0))
    words = [str(inputs.problems), "--out", str(inputs.traces), "--n", str(TRACES[what])]
    surefoot("sample", *words, "--policy", str(POLICY), "--max-tokens", "96")
    if not inputs.model.exists():
        model = RewardModel.initialise(
            TRUNK, card=CheckpointCard(kind="prm", label_source="none", base="lab")
        )
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
        model.save(inputs.model)
    return inputs


def surefoot(*command: str) -> float:
    """Seconds that the command took."""
    start = time.perf_counter()
    words = [sys.executable, "-m", "surefoot", *command]
    done = subprocess.run(words, env=SETTINGS, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a job in each round, by who did it, and of the same job on two pieces: of starting."""

    whole: dict[str, list[float]]
    start: dict[str, float]
    same_bytes: bool

    def speedups(self, way: str) -> list[float]:
        """How much sooner the work after the start is done than by one worker, in each round.

        ``apart`` is twice the work: the job done twice, by two commands at once that share nothing.
        """
        times = 2 if way == APART else 1
        return [
            times * (alone - self.start["one"]) / (both - self.start[way])
            for alone, both in zip(self.whole["one"], self.whole[way], strict=True)
        ]

    def command_speedups(self, way: str) -> list[float]:
        """How much sooner the command ends, its start included."""
        return [alone / both for alone, both in zip(self.whole["one"], self.whole[way], strict=True)]


APART = "apart"
WAYS = {"one": (), APART: (), "pool": ("--workers", "2"), "ray": ("--workers", "2", "--engine", "ray")}


def two_workers(
    what: str, job: Inputs, two_pieces: Inputs, folder: Path, ways: tuple[str, ...], rounds: int
) -> Speed:
    """The same job by one worker and by two, each on one thread, in turns."""
    whole: dict[str, list[float]] = {way: [] for way in ways}
    start, digests = {}, set()

    def seconds(way: str, inputs: Inputs, *names: str) -> float:
        outs = [folder / f"{what}-{name}.jsonl" for name in names]
        for out in outs:
            out.unlink(missing_ok=True)
        with ThreadPoolExecutor(len(outs)) as pool:
            commands = [(*inputs.command(what), *WAYS[way], "--out", str(out)) for out in outs]
            taken = max(pool.map(lambda words: surefoot(*words), commands))
        if inputs is job:
            digests.update(map(digest, outs))
        return taken

    for number in range(rounds):
        for way in ways:
            names = (f"{way}-1", f"{way}-2") if way == APART else (way,)
            if number == 0:
                start[way] = seconds(way, two_pieces, *(f"{name}-start" for name in names))
            whole[way].append(seconds(way, job, *names))
            print(f"{what}, {way}: {whole[way][-1]:.1f} s, of which start {start[way]:.1f} s", flush=True)
    return Speed(whole=whole, start=start, same_bytes=len(digests) == 1)


def digest(path: Path) -> str:
    """Hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
