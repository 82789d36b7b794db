"""Pieces done on a Ray cluster of two nodes, while workers are killed and a node goes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import test_engines
from test_engines import Lengths, items_of

from surefoot.errors import LabelError, RunError
from surefoot.records import StepScores
from surefoot.work import Opened, Pieces, RayEngine


class Slow(Lengths):
    """Takes a moment for each piece, so that some are under way when a worker dies."""

    @contextmanager
    def opened(self):
        async def work(items):
            await asyncio.sleep(0.03)
            assert Path("here").exists(), "paths of settings are relative to where the command was started"
            return [self.score(item) for item in items]

        yield Opened(work=work)


class Fatal(Lengths):
    """One item kills whoever does it."""

    @contextmanager
    def opened(self):
        def work(items):
            if any("step 1\n" in item.trace.text for item in items):
                os.kill(os.getpid(), signal.SIGKILL)
            return [self.score(item) for item in items]

        yield Opened(work=work)


class Closed(Lengths):
    """Cannot be opened."""

    def opened(self):
        raise LabelError("no such model")


@pytest.fixture(scope="module")
def cluster():
    # here, so that the processes that run other tests do not wait for it
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

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
    pieces, done = Pieces(items, 3), []
    numbers = iter(range(len(pieces)))
    kills = {8, 16, 40}
    with RayEngine(4).start(Slow(folder=tmp_path).job(), pieces) as run_pieces:
        for piece in run_pieces(lambda _: next(numbers, None)):
            done.append(piece)
            if len(done) in kills:
                os.kill(piece.worker, signal.SIGKILL)
            if len(done) == 24:
                cluster.remove_node(second, allow_graceful=False)  # two workers have no room any more
    done.sort(key=lambda piece: piece.number)
    assert [piece.number for piece in done] == list(range(60))
    assert sum(piece.tokens for piece in done) == 180
    records = [StepScores.model_validate_json(line) for piece in done for line in piece.lines]
    assert records == [Lengths.score(item) for item in items]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("job", "error", "message"),
    [(Fatal, RunError, "workers died 3 times in piece 1 "), (Closed, LabelError, "no such model")],
)
def test_a_job_that_cannot_be_done_ends(cluster, tmp_path, job, error, message):
    items = items_of(tmp_path, [f"step {number}\n" for number in range(6)])
    numbers = iter(range(6))
    done = []
    with (
        pytest.raises(error, match=message),
        RayEngine(1).start(job(folder=tmp_path).job(), Pieces(items, 1)) as run_pieces,
    ):
        done.extend(run_pieces(lambda _: next(numbers, None)))
    assert all(piece.number != 1 for piece in done)
