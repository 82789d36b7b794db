"""Pieces done by other processes: the same records, nothing lost or done twice, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from surefoot.errors import RunError
from surefoot.io import read_records, write_records
from surefoot.io.joins import join_traces
from surefoot.io.tables import open_table
from surefoot.records import Problem, StepScores, Trace
from surefoot.scale import Assignment, FunctionJob, InProcess, LocalPool, Opened, Pieces
from surefoot.scale.jobs import isolated
from surefoot.segment import cut_trace


@dataclass(frozen=True)
class Lengths:
    """Scores a trace by its length; dies, or raises, at traces with certain texts."""

    folder: Path
    deaths: int = 0

    @contextmanager
    def open(self):
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
        return StepScores(trace_id=item.trace.id, scorer="length", scores=scores)

    def set_aside(self, item, reason):
        return [StepScores.unscored(item.trace, "length", reason)]

    def failed(self, records):
        return None

    def cost(self, records):
        return len(records)


def items_of(folder, texts):
    problems = [Problem(id="p", text="?")]
    traces = [Trace(problem_id="p", text=f"{text}\n\nso", sample=at) for at, text in enumerate(texts)]
    write_records(folder / "p.jsonl", problems)
    write_records(folder / "t.jsonl", traces)
    tables = open_table(folder / "p.jsonl", Problem), open_table(folder / "t.jsonl", Trace)
    return join_traces(*tables, cut_trace)[0]


def run(tmp_path, job, items, workers=2):
    folder = tmp_path / "pieces"
    folder.mkdir()
    assignment = Assignment(job=job, pieces=Pieces(items, 3), folder=folder, record=StepScores)
    numbers = count()
    done = list(
        LocalPool(workers).run(
            assignment, lambda _: at if (at := next(numbers)) < len(assignment.pieces) else None
        )
    )
    files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")  # a kill leaves others
    assert [path.name for path in files] == [f"{at:06d}.jsonl" for at in range(len(assignment.pieces))]
    records = [record for path in files for record in read_records(path, StepScores)]
    return done, records


@pytest.mark.slow
def test_workers_give_what_one_process_gives_and_survive_deaths(tmp_path):
    texts = [f"step {number}" for number in range(20)]
    texts[4], texts[10] = "poison here", "die here"
    items = items_of(tmp_path, texts)
    job = Lengths(tmp_path, deaths=2)
    done, records = run(tmp_path, job, items)
    assert sorted(piece.number for piece in done) == list(range(7))
    assert sum(piece.tokens for piece in done) == 20
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
        run(tmp_path, Lengths(tmp_path, deaths=99), items)


def in_order(engine, folder, job, items, size=3):
    folder.mkdir()
    assignment = Assignment(job=job, pieces=Pieces(items, size), folder=folder, record=StepScores)
    numbers = iter(range(len(assignment.pieces)))
    done = list(engine.run(assignment, lambda _: next(numbers, None)))
    return {piece.worker for piece in done}, [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.mark.slow
def test_a_pool_in_a_with_block_keeps_its_processes_for_the_next_job(tmp_path):
    items = items_of(tmp_path, [str(number) for number in range(7)])
    here, files = in_order(InProcess(), tmp_path / "here", Lengths(tmp_path), items)
    with LocalPool(1) as pool:
        first, by_first = in_order(pool, tmp_path / "one", Lengths(tmp_path), items)
        second, by_second = in_order(pool, tmp_path / "two", Lengths(tmp_path, deaths=1), items)
    assert here == {os.getpid()}
    assert first == second != here
    assert by_first == by_second == files
    with pytest.raises(ProcessLookupError):
        os.kill(*first, 0)


HELD = """
import time
from pathlib import Path
from surefoot.records import StepScores
from surefoot.scale import Assignment, FunctionJob, LocalPool, Pieces

def work(items):
    Path(f"{items[0]}.begun").touch()
    time.sleep(60)

if __name__ == "__main__":
    pieces = Pieces(["a"], 1)
    assignment = Assignment(job=FunctionJob(work=work), pieces=pieces, folder=Path("."), record=StepScores)
    numbers = iter([0])
    list(LocalPool(2).run(assignment, lambda _: next(numbers, None)))
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


def test_one_item_is_set_aside_and_what_concerns_all_is_raised(tmp_path):
    items = items_of(tmp_path, ["a", "poison one", "b"])
    job = Lengths(tmp_path)

    def work(some):
        if any("poison" in item.trace.text for item in some):
            raise ValueError("no")
        return [Lengths.score(item) for item in some]

    records = isolated(job, work, items)
    assert [record.unscored_reason for record in records] == [None, "ValueError: no", None]
    with pytest.raises(ValueError, match="no"):
        isolated(job, work, items[1:2])
    with pytest.raises(ValueError, match="no"):
        isolated(FunctionJob(work=work), work, items)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_pieces_tile_the_items(tmp_path, size):
    items = items_of(tmp_path, [str(number) for number in range(7)])
    pieces = Pieces(items, size)
    tiled = [item for number in range(len(pieces)) for item in pieces[number]]
    assert tiled == list(items)
    assert [pieces.length(at) for at in range(len(pieces))] == [len(pieces[at]) for at in range(len(pieces))]
