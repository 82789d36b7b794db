"""Pieces done by other processes: the same records, nothing lost or done twice, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from surefoot.errors import RunError
from surefoot.io import write_records
from surefoot.io.tables import join_traces, open_table
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.segment import cut_trace
from surefoot.work import Here, Job, Opened, Pieces, Processes, map_resumable


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Scores a trace by its length; dies, or raises, at traces with certain texts."""

    folder: Path
    deaths: int = 0

    def job(self):
        return Job(record=StepScores, load=self.opened, set_aside=self.set_aside)

    @contextmanager
    def opened(self):
        counts = Counter()

        async def work(items):
            for item in items:
                if "poison" in item.trace.text:
                    raise ValueError(f"no {item.trace.text.split()[0]}")
                if "die" in item.trace.text:
                    self.die()
            counts["pieces"] += 1
            return [self.score(item) for item in items]

        yield Opened(work=work, counts=counts)

    def die(self):
        """Be killed, the first times."""
        for death in range(self.deaths):
            mark = self.folder / f"death-{death}"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def score(item):
        scores = tuple(1 / (1 + len(item.trace.step_text(at))) for at in range(len(item.trace.steps)))
        return StepScores(
            trace_id=item.trace.id, scorer="length", scores=scores, usage=Usage(verifier_tokens=1)
        )

    def set_aside(self, item, reason):
        return [StepScores.unscored(item.trace, "length", reason)]


def items_of(folder, texts):
    problems = [Problem(id="p", text="?")]
    traces = [Trace(problem_id="p", text=f"{text}\n\nso", sample=at) for at, text in enumerate(texts)]
    write_records(folder / "p.jsonl", problems)
    write_records(folder / "t.jsonl", traces)
    tables = open_table(folder / "p.jsonl", Problem), open_table(folder / "t.jsonl", Trace)
    return join_traces(*tables, cut_trace)[0]


def run(job, items, workers=2):
    pieces = Pieces(items, 3)
    done = all_pieces(Processes(workers), job, pieces)
    assert [piece.number for piece in done] == list(range(len(pieces)))
    return done, [StepScores.model_validate_json(line) for piece in done for line in piece.lines]


def all_pieces(engine, job, pieces):
    """Every piece, in order."""
    numbers = iter(range(len(pieces)))
    with engine.start(job, pieces) as run_pieces:
        return sorted(run_pieces(lambda _: next(numbers, None)), key=lambda piece: piece.number)


@pytest.mark.slow
def test_workers_give_what_one_process_gives_and_survive_deaths(tmp_path):
    texts = [f"step {number}" for number in range(20)]
    texts[4], texts[10] = "poison here", "die here"
    items = items_of(tmp_path, texts)
    job = Lengths(folder=tmp_path, deaths=2).job()
    done, records = run(job, items)
    assert len(done) == 7
    assert sum(piece.tokens for piece in done) == 19
    assert [record.trace_id for record in records] == [item.trace.id for item in items]
    assert [record.unscored_reason for record in records if None in record.scores] == [
        "ValueError: no poison"
    ]
    scored = [Lengths.score(item) for item in items]
    assert [r for r in records if None not in r.scores] == [r for at, r in enumerate(scored) if at != 4]


@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_work(tmp_path):
    items = items_of(tmp_path, ["die here", "a"])
    with pytest.raises(RunError, match=r"died 3 times in a row, last in pieces \[0\].*--workers"):
        run(Lengths(folder=tmp_path, deaths=99).job(), items)


def test_a_single_piece_starts_no_process(tmp_path):
    items, workers = items_of(tmp_path, ["a", "b"]), []

    def work(part):  # no process could be sent this
        workers.append(os.getpid())
        return [Lengths.score(item) for item in part]

    job = Job(record=StepScores, work=work)
    map_resumable(job, Pieces(items, 3), str(tmp_path / "out.jsonl"), engine=Processes(2))
    assert workers == [os.getpid()]


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    items = items_of(tmp_path, ["a"])
    job = Job(record=StepScores, work=lambda part: [Lengths.score(item) for item in part])
    unfinished = tmp_path / f".out [1].jsonl.{'0a' * 8}.part"
    of_others = [tmp_path / name for name in (f".out.jsonl.{'0a' * 8}.part", ".out [1].jsonl.mine.part")]
    for path in (unfinished, *of_others):
        path.touch()
    map_resumable(job, Pieces(items, 3), str(tmp_path / "out [1].jsonl"))
    assert not unfinished.exists()
    assert all(path.exists() for path in of_others)


def workers_and_lines(engine, job, items):
    done = all_pieces(engine, job, Pieces(items, 3))
    return {piece.worker for piece in done}, [piece.lines for piece in done]


@pytest.mark.slow
def test_the_processes_of_a_job_end_with_it(tmp_path):
    items = items_of(tmp_path, [str(number) for number in range(7)])
    here, lines = workers_and_lines(Here(), Lengths(folder=tmp_path).job(), items)
    first, lines_of_first = workers_and_lines(Processes(1), Lengths(folder=tmp_path).job(), items)
    assert here == {os.getpid()}
    assert first != here
    assert lines_of_first == lines
    with pytest.raises(ProcessLookupError):
        os.kill(*first, 0)


THREADS = """
import torch  # with the job, before the worker knows how many threads it may have
from surefoot.records import StepScores
from surefoot.work import Job, Pieces, Processes

def work(items):
    return [StepScores(trace_id=str(torch.get_num_threads()), scorer="s", scores=(0.5,))]

if __name__ == "__main__":
    numbers = iter([0])
    with Processes(2, threads=3).start(Job(work=work, record=StepScores), Pieces(["a"], 1)) as run_pieces:
        [piece] = run_pieces(lambda _: next(numbers, None))
    print(piece)
"""


@pytest.mark.slow
def test_a_worker_keeps_to_its_threads_when_its_job_imports_torch(tmp_path):
    (tmp_path / "threads.py").write_text(THREADS)
    shown = subprocess.run(
        [sys.executable, "threads.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert '"trace_id":"3"' in shown.stdout


HELD = """
import time
from pathlib import Path
from surefoot.records import StepScores
from surefoot.work import Job, Pieces, Processes

def work(items):
    Path(f"{items[0]}.begun").touch()
    time.sleep(60)

if __name__ == "__main__":
    numbers = iter([0])
    with Processes(2).start(Job(work=work, record=StepScores), Pieces(["a"], 1)) as run_pieces:
        list(run_pieces(lambda _: next(numbers, None)))
"""


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    parent = subprocess.Popen([sys.executable, "held.py"], cwd=tmp_path)
    try:
        wait_until((tmp_path / "a.begun").exists)
        children = children_of(parent.pid)
        assert len(children) >= 2
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))


def children_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rpartition(")")[2].split()
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def wait_until(happened, seconds=30):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("engine", [Here(), Here(in_flight=2)])
@pytest.mark.parametrize("plain", [True, False])
def test_one_item_is_set_aside_and_what_concerns_all_is_raised(tmp_path, engine, plain):
    items = items_of(tmp_path, ["a", "poison one", "b"])
    job = Lengths(folder=tmp_path).job()

    def work(some):
        if any("poison" in item.trace.text for item in some):
            raise ValueError("no")
        return (Lengths.score(item) for item in some)

    async def asking(some):
        return work(some)

    def records(items, job):
        job = replace(job, load=None, work=work if plain else asking)
        numbers = iter([0])
        with engine.start(job, Pieces(items, 3)) as run:
            (piece,) = run(lambda _: next(numbers, None))
        return [StepScores.model_validate_json(line) for line in piece.lines]

    if plain and engine.in_flight > 1:
        with pytest.raises(TypeError, match="coroutine function"):
            records(items, job)
        return
    assert [record.unscored_reason for record in records(items, job)] == [None, "ValueError: no", None]
    with pytest.raises(ValueError, match="no"):
        records(items[1:2], job)
    with pytest.raises(ValueError, match="no"):
        records(items, Job(record=StepScores))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_pieces_tile_the_items(tmp_path, size):
    items = items_of(tmp_path, [str(number) for number in range(7)])
    pieces = Pieces(items, size)
    tiled = [item for number in range(len(pieces)) for item in pieces[number]]
    assert tiled == list(items)
    assert [pieces.length(at) for at in range(len(pieces))] == [len(pieces[at]) for at in range(len(pieces))]
