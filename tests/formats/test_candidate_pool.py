from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from surefoot.formats import ImportContext, ImportedTrace, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport

DATA = Path(__file__).parents[2] / "../shared/data/bon"

STEPS = {
    "problem": "1 + 1?",
    "answer": "2",
    "level": 1,
    "candidates": [
        {"text": "a\n\nb\n\n2", "step_scores": [0.5, 0.25, 1.0], "n_steps_split": 3, "correct": True},
        {"text": "a\n\n3", "step_scores": [0.5, 0.5, 0.5], "n_steps_split": 2},
        {"text": "a\n\n3", "step_scores": [0.5, 0.5, 0.5], "n_steps_split": 3},
        {"text": "4", "step_scores": [0.125], "search": "beam", "generator": "g"},
    ],
}
OUTCOME = {"question": "1 + 1?", "gt": "2", "response": ["2", "3"], "pred_score": [[0.0], [-800.0]]}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, report: ReadReport | None = None) -> list[ImportedTrace]:
    assert detect_format(path) == "candidate-pool"
    context = ImportContext(settings=ImportSettings(), report=report or ReadReport())
    return list(import_traces(path, "candidate-pool", context))


def test_step_scores_with_their_steps(tmp_path: Path):
    report = ReadReport()
    first, last = read(lines(tmp_path / "p.jsonl", STEPS), report)
    assert first.problem is not None
    assert (first.problem.text, first.problem.answer, first.problem.meta) == ("1 + 1?", "2", {"level": 1})
    assert [first.trace.step_text(step) for step in range(3)] == ["a\n\n", "b\n\n", "2"]
    assert (first.trace.answer, first.trace.outcome, first.trace.meta["correct"]) == (None, None, True)
    assert (last.trace.sample, last.trace.policy, last.trace.meta["search"]) == (3, "g", "beam")
    assert [item.scores.scores for item in (first, last)] == [(0.5, 0.25, 1.0), (0.125,)]
    assert [item.scores.trace_id for item in (first, last)] == [first.trace.id, last.trace.id]
    assert sum(report.left_out.values()) == 2, "a stated and a found number of steps are off"


def test_a_logit_for_each_response(tmp_path: Path):
    report = ReadReport()
    items = read(lines(tmp_path / "p.jsonl", OUTCOME), report)
    assert [item.scores.scores for item in items] == [(0.5,), (0.0,)]
    assert [item.trace.step_text(0) for item in items] == ["2", "3"]
    assert not report.left_out
    assert all("correct" not in item.trace.meta for item in items)


def test_a_pool_that_comes_twice_keeps_its_scores(tmp_path: Path):
    items = read(lines(tmp_path / "p.jsonl", OUTCOME, OUTCOME))
    assert len({item.trace.id for item in items}) == 4
    assert [item.scores.trace_id for item in items] == [item.trace.id for item in items]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "x"}, "neither field 'candidates' nor 'pred_score'"),
        (OUTCOME | {"pred_score": [[0.0]]}, "field 'pred_score': 1 entries for 2 in field 'response'"),
        (OUTCOME | {"score": [True]}, "field 'score': 1 entries for 2"),
        (OUTCOME | {"pred_score": [[0.0, 1.0], [1.0]]}, "one logit for each response"),
        (STEPS | {"candidates": [{"text": "a"}]}, "field 'candidates.0.step_scores': missing"),
    ],
)
def test_bad_rows_are_named_or_counted(tmp_path: Path, row: object, message: str):
    path = lines(tmp_path / "p.jsonl", OUTCOME, row)
    report = ReadReport()
    assert len(read(path, report)) == 2
    assert (report.good, report.bad_count) == (1, 1)
    assert message in report.summary()


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_the_stored_pools_are_read_whole():
    report = ReadReport()
    items = read(DATA / "math500_prm_scored_pool.jsonl.gz", report)
    problems = {item.problem.id for item in items if item.problem}
    assert (len(problems), report.bad_count, len(items)) == (250, 0, 6926)
    assert report.left_out.total() == 503
    assert all(len(item.trace.steps) == len(item.scores.scores) for item in items)
    whole = read(DATA / "qwen25math_math100x8_rm.jsonl.gz")
    assert list(Counter(item.trace.problem_id for item in whole).values()) == [8] * 100
    assert min(item.scores.scores[0] for item in whole) == pytest.approx(1 / (1 + math.exp(4.28125)))
