"""``surefoot select`` and ``evaluate --as best-of-n`` on files, one problem's samples at a time."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
from command_line import good

from surefoot.answers import AnswerChecker
from surefoot.evaluation import StoredScores, evaluate_best_of_n, judged_candidates
from surefoot.io import read_records, write_records
from surefoot.io.tables import open_table
from surefoot.records import Step, StepScores, Trace
from surefoot.search import SELECTORS

SAMPLES = 9


def samples(problem: int, text: str = "so\nit is") -> list[Trace]:
    rng = random.Random(problem)
    steps = (Step(start=0, end=3), Step(start=3, end=len(text)))
    return [
        Trace(
            problem_id=f"p{problem}",
            sample=sample,
            text=text,
            steps=steps,
            answer=(answer := rng.choice(["1/2", "0.5", "2", "3", None])),
            outcome=answer in ("1/2", "0.5"),
        )
        for sample in range(SAMPLES)
    ]


def scores(traces: list[Trace]) -> list[StepScores]:
    rng = random.Random(1)
    return [StepScores(trace_id=one.id, scorer="s", scores=(rng.random(), rng.random())) for one in traces]


@pytest.mark.parametrize("rule", SELECTORS)
def test_samples_of_a_problem_need_not_lie_together(rule, tmp_path):
    groups = [samples(problem) for problem in range(6)]
    together = [trace for group in groups for trace in group]
    write_records(tmp_path / "together.jsonl", together)
    write_records(tmp_path / "apart.jsonl", [trace for row in zip(*groups, strict=True) for trace in row])
    write_records(tmp_path / "scores.jsonl", random.Random(2).sample(scores(together), len(together)))
    said = []
    for name in ("together", "apart"):
        words = ("--scores", tmp_path / "scores.jsonl", "--rule", rule, "--equality=math")
        out = tmp_path / f"{name}-chosen.jsonl"
        said.append(good("select", tmp_path / f"{name}.jsonl", *words, "--out", out).err)
    assert said[0] == said[1]
    assert "6 problems, 54 solutions" in " ".join(said[0].split())
    chosen = (tmp_path / "together-chosen.jsonl").read_bytes()
    assert (tmp_path / "apart-chosen.jsonl").read_bytes() == chosen
    rows = list(read_records(tmp_path / "apart-chosen.jsonl", Trace))
    assert [one.problem_id for one in rows] == [f"p{problem}" for problem in range(6)]


def test_the_file_has_its_accuracy_also_with_a_problem_of_one_sample(tmp_path):
    sizes = (9, 1, 9, 9)
    traces = [one for problem, size in enumerate(sizes) for one in samples(problem)[:size]]
    write_records(tmp_path / "traces.jsonl", traces)
    write_records(tmp_path / "scores.jsonl", scores(traces))
    words = ("--scores", tmp_path / "scores.jsonl", "--out", tmp_path / "chosen.jsonl")
    said = good("select", tmp_path / "traces.jsonl", *words).err
    rows = [line.split() for line in said.splitlines()]
    chosen = list(read_records(tmp_path / "chosen.jsonl", Trace))
    right = f"{sum(one.outcome for one in chosen) / 4:.0%}"
    assert f"best_of_n by s raises accuracy from 50% (random) to {right};" in said
    first = [traces[start] for start in (0, 9, 10, 19)]
    shown = {row[0]: row[1] for row in rows if row[:1] and row[0] in ("majority", "first", "shortest")}
    assert shown["first"] == f"{sum(one.outcome for one in first) / 4:.1%}"
    assert shown.keys() == {"majority", "first", "shortest"}


LONG = "so\n" + "it is " * 16_000


def peak_of(work: Callable[[int], None], problems: int) -> int:
    """The most bytes that Python held at once while it worked."""
    tracemalloc.start()
    try:
        work(problems)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_records_of_other_problems_are_not_kept(tmp_path):
    def select(problems: int) -> None:
        out = tmp_path / f"chosen-{problems}.jsonl"
        ungraded = tmp_path / f"ungraded-{problems}.jsonl"
        good("select", ungraded, "--rule", "majority", "--equality=exact", "--out", out, "--force")

    def evaluate(problems: int) -> None:
        traces = open_table(tmp_path / f"traces-{problems}.jsonl", Trace)
        candidates = judged_candidates(traces, AnswerChecker("exact"))
        source = StoredScores(open_table(tmp_path / f"scores-{problems}.jsonl", StepScores))
        found = evaluate_best_of_n(candidates, {"s": source}, sizes=[1, 4], draws=10, bootstrap=10)
        assert (found.problems, found.scorers["s"].unscored) == (problems, 0)

    for problems in (3, 12):
        traces = [trace for problem in range(problems) for trace in samples(problem, LONG)]
        write_records(tmp_path / f"traces-{problems}.jsonl", traces)
        without = (trace.model_copy(update={"outcome": None}) for trace in traces)
        write_records(tmp_path / f"ungraded-{problems}.jsonl", without)
        write_records(tmp_path / f"scores-{problems}.jsonl", scores(traces))
    data = (tmp_path / "traces-12.jsonl").stat().st_size
    for work in (select, evaluate):
        work(3)  # what is loaded once
        assert peak_of(work, 12) - peak_of(work, 3) < data / 4
