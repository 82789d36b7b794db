"""One worker against two, and a cluster that loses workers and nodes while it works."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from surefoot.io import write_records
from surefoot.lab import TRUNK, generate_problems
from surefoot.models import CheckpointCard, RewardModel
from surefoot.records import Problem

SETTINGS = os.environ | {
    "OMP_NUM_THREADS": "1",
    "SOURCE_DATE_EPOCH": "1700000000",  # so that equal labels are equal bytes
}


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
            return ["label", *files, "--policy=lab", "--max-tokens", "96"]
        files = ["--problems", str(self.problems), str(self.traces)]
        return ["score", "--prm", str(self.model), *files]


def make_inputs(folder: Path, problems: int, n: int) -> Inputs:
    """Problems of the lab, ``n`` traces each by its policy, and a reward model with a new head."""
    folder.mkdir(parents=True)
    inputs = Inputs(
        problems=folder / "problems.jsonl", traces=folder / "traces.jsonl", model=folder.parent / "model"
    )
    write_records(inputs.problems, generate_problems(problems, seed=0), record=Problem)
    files = [str(inputs.problems), "--out", str(inputs.traces)]
    surefoot("sample", *files, "--policy=lab", "--n", str(n), "--max-tokens", "96")
    if not inputs.model.exists():
        model = RewardModel.initialise(
            TRUNK, card=CheckpointCard(kind="prm", label_source="none", base="lab")
        )
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
        model.save(inputs.model)
    return inputs


def surefoot(*command: str, address: str = "", during: Callable[[], None] | None = None) -> tuple[float, str]:
    """Seconds that the command took, and what it said. ``during`` is called in a thread while it runs."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "surefoot", *command],
        env=SETTINGS | ({"RAY_ADDRESS": address} if address else {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if during is not None:
            threading.Thread(target=during, daemon=True).start()
        said = process.communicate(timeout=3600)[1]
    if process.returncode:
        raise RuntimeError(said[-3000:])
    return time.perf_counter() - start, said


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a job in each round, by who did it, and of the same job on next to nothing: of starting."""

    whole: dict[str, list[float]]
    start: dict[str, float]
    same_bytes: bool

    def speedups(self, way: str) -> list[float]:
        """How much sooner the work alone is done than by one worker, in each round.

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
    what: str, job: Inputs, nothing: Inputs, folder: Path, ways: tuple[str, ...], rounds: int
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
            taken = max(pool.map(lambda words: surefoot(*words)[0], commands))
        if inputs is job:
            digests.update(map(digest, outs))
        return taken

    for number in range(rounds):
        for way in ways:
            names = (f"{way}-1", f"{way}-2") if way == APART else (way,)
            if number == 0:
                start[way] = seconds(way, nothing, *(f"{name}-start" for name in names))
            whole[way].append(seconds(way, job, *names))
            print(f"{what}, {way}: {whole[way][-1]:.1f} s, of which start {start[way]:.1f} s", flush=True)
    return Speed(whole=whole, start=start, same_bytes=len(digests) == 1)


def digest(path: Path) -> str:
    """Hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Kills:
    """What a cluster that lost workers and nodes delivered, against one process."""

    workers: int
    nodes: int
    differing: int
    """Lines that are missing, more than once there, or not the same."""
    tokens: tuple[int, int]
    """As counted by one process, and on the cluster."""


def killed_cluster(job: Inputs, folder: Path, rounds: int, seed: int = 0) -> Kills:
    """Label on a cluster of two nodes; in each round a worker is killed, and later a node goes for good.

    The moments are drawn evenly over the time in which two cores do the work, after the first finished piece.
    """
    from ray.cluster_utils import Cluster

    rng = random.Random(seed)
    alone = folder / "alone.jsonl"
    length, said = surefoot(*job.command("labelling"), "--out", str(alone))
    tokens = [tokens_in(said) * rounds, 0]
    killed: Counter[str] = Counter()
    differing = 0
    os.environ.update(SETTINGS)  # for the nodes, whose workers do not get the command's environment
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        for number in range(rounds):
            second = cluster.add_node(num_cpus=2)
            out = folder / f"killed-{number}.jsonl"
            moments = sorted(rng.uniform(0, length / 2) for _ in range(2))

            def kill_worker(rng: random.Random = rng) -> bool:
                if actors := worker_processes():
                    os.kill(rng.choice(actors).pid, signal.SIGKILL)
                return bool(actors)

            def kill_node(second: Any = second) -> bool:
                cluster.remove_node(second, allow_graceful=False)
                return True

            hit: list[str] = []
            seconds, said = surefoot(
                *(*job.command("labelling"), "--engine", "ray", "--workers", "4", "--out", str(out)),
                address=cluster.address,
                during=partial(disturb, out, moments, {"worker": kill_worker, "node": kill_node}, hit),
            )
            if "node" not in hit:
                cluster.remove_node(second)
            killed.update(hit)
            differing += differing_lines(alone, out)
            tokens[1] += tokens_in(said)
            print(
                f"run {number + 1}: {seconds:.0f} s, killed {hit}; {differing} lines differ so far",
                flush=True,
            )
    finally:
        cluster.shutdown()
    return Kills(
        workers=killed["worker"], nodes=killed["node"], differing=differing, tokens=(tokens[0], tokens[1])
    )


def disturb(out: Path, moments: list[float], kills: dict[str, Callable[[], bool]], hit: list[str]) -> None:
    """Kill at these moments after the first piece of ``out`` was saved, if work goes on; note it."""
    journal = Path(f"{out}.work/pieces/pieces.journal")
    while not journal.exists() or not journal.stat().st_size:
        time.sleep(0.1)
    begun = time.monotonic()
    for moment, (what, kill) in zip(moments, kills.items(), strict=True):
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        if not out.exists() and kill():
            hit.append(what)


def worker_processes() -> list[psutil.Process]:
    """The busy workers of all Ray nodes of this machine."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if any("ray::_do_piece" in part for part in process.info["cmdline"] or ())
    ]


def tokens_in(said: str) -> int:
    """Tokens of the summary that a labelling command ends with."""
    found = re.search(r"; (\d+) tokens", said)
    if found is None:
        raise RuntimeError(f"no tokens in what the command said: {said[-500:]}")
    return int(found[1])


def differing_lines(one: Path, other: Path) -> int:
    """Lines that only one of two files has, counted as often as they are there."""
    lines = [Counter(path.read_text().splitlines()) for path in (one, other)]
    return ((lines[0] - lines[1]) + (lines[1] - lines[0])).total()
