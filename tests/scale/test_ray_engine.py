"""Pieces done on a Ray cluster of two nodes, while workers are killed and a node goes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import test_engines
from test_engines import Lengths, items_of

from surefoot.errors import LabelError, RunError
from surefoot.io import read_records
from surefoot.records import StepScores
from surefoot.scale import Assignment, Opened, Pieces, RayEngine

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'surefoot[ray]'")
from ray import cloudpickle  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402


class Slow(Lengths):
    """Takes a moment for each piece, so that some are under way when a worker dies."""

    @contextmanager
    def open(self):
        async def work(items):
            await asyncio.sleep(0.03)
            assert Path("here").exists(), "paths of settings are relative to where the command was started"
            return [self.score(item) for item in items]

        yield Opened(work=work)


class Fatal(Lengths):
    """One item kills whoever does it."""

    @contextmanager
    def open(self):
        def work(items):
            if any("step 1\n" in item.trace.text for item in items):
                os.kill(os.getpid(), signal.SIGKILL)
            return [self.score(item) for item in items]

        yield Opened(work=work)


class Closed(Lengths):
    """Cannot be opened."""

    def open(self):
        raise LabelError("no such model")


@pytest.fixture(scope="module")
def cluster():
    for module in (test_engines, __import__(__name__)):
        cloudpickle.register_pickle_by_value(module)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own start
def test_nothing_is_lost_or_done_twice_when_workers_and_a_node_die(cluster, tmp_path, monkeypatch):
    (tmp_path / "here").touch()
    monkeypatch.chdir(tmp_path)
    second = cluster.add_node(num_cpus=2)
    items = items_of(tmp_path, [f"step {number}" for number in range(180)])
    folder = tmp_path / "pieces"
    folder.mkdir()
    assignment = Assignment(job=Slow(tmp_path), pieces=Pieces(items, 3), folder=folder, record=StepScores)
    numbers, done = count(), []
    kills = {8, 16, 40}
    for piece in RayEngine(4).run(
        assignment, lambda _: at if (at := next(numbers)) < len(assignment.pieces) else None
    ):
        done.append(piece)
        if len(done) in kills:
            os.kill(piece.worker, signal.SIGKILL)
        if len(done) == 24:
            cluster.remove_node(second, allow_graceful=False)  # for good: two workers have no room any more
    assert sorted(piece.number for piece in done) == list(range(60))
    assert sum(piece.tokens for piece in done) == 180
    files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
    records = [record for path in files for record in read_records(path, StepScores)]
    assert records == [Lengths.score(item) for item in items]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("job", "error", "said"),
    [(Fatal, RunError, "workers died 2 times in piece 1 "), (Closed, LabelError, "no such model")],
)
def test_a_job_that_cannot_be_done_ends(cluster, tmp_path, job, error, said):
    items = items_of(tmp_path, [f"step {number}\n" for number in range(6)])
    (tmp_path / "pieces").mkdir()
    assignment = Assignment(
        job=job(tmp_path), pieces=Pieces(items, 1), folder=tmp_path / "pieces", record=StepScores
    )
    numbers = iter(range(6))
    done = []
    with pytest.raises(error, match=said):
        done.extend(RayEngine(1, most_deaths=2).run(assignment, lambda _: next(numbers, None)))
    assert all(piece.number != 1 for piece in done)
