from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from surefoot.errors import RecordError
from surefoot.formats.candidate_pool import read_candidate_pool
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


def test_step_scores_with_their_steps(tmp_path: Path):
    (pool,) = read_candidate_pool(lines(tmp_path / "p.jsonl", STEPS))
    assert (pool.problem.text, pool.problem.answer, pool.problem.meta) == ("1 + 1?", "2", {"level": 1})
    first, last = pool.traces
    assert [first.step_text(step) for step in range(3)] == ["a\n\n", "b\n\n", "2"]
    assert (first.answer, first.outcome, first.meta["correct"]) == (None, None, True)
    assert (last.sample, last.policy, last.meta["search"]) == (3, "g", "beam")
    assert [record.scores for record in pool.scores] == [(0.5, 0.25, 1.0), (0.125,)]
    assert [record.trace_id for record in pool.scores] == [first.id, last.id]
    assert sum(pool.dropped.values()) == 2, "a stated and a found number of steps are off"


def test_a_logit_for_each_response(tmp_path: Path):
    (pool,) = read_candidate_pool(lines(tmp_path / "p.jsonl", OUTCOME))
    assert [record.scores for record in pool.scores] == [(0.5,), (0.0,)]
    assert [trace.step_text(0) for trace in pool.traces] == ["2", "3"]
    assert not pool.dropped
    assert all("correct" not in trace.meta for trace in pool.traces)


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
    path = lines(tmp_path / "p.jsonl", row, OUTCOME)
    with pytest.raises(RecordError, match=message):
        list(read_candidate_pool(path))
    report = ReadReport()
    assert len(list(read_candidate_pool(path, report=report))) == 1
    assert (report.good, report.bad_count) == (1, 1)


@pytest.mark.skipif(not DATA.exists(), reason="the shared data set is not here")
def test_the_stored_pools_are_read_whole():
    report = ReadReport()
    pools = list(read_candidate_pool(DATA / "math500_prm_scored_pool.jsonl.gz", report=report))
    kept, dropped = sum(len(pool.traces) for pool in pools), sum(sum(p.dropped.values()) for p in pools)
    assert (len(pools), report.bad_count, kept, dropped) == (250, 0, 6926, 503)
    assert all(
        len(trace.steps) == len(record.scores)
        for pool in pools
        for trace, record in zip(pool.traces, pool.scores, strict=True)
    )
    whole = list(read_candidate_pool(DATA / "qwen25math_math100x8_rm.jsonl.gz", report=report))
    assert [len(pool.traces) for pool in whole] == [8] * 100
    scores = [record.scores[0] for pool in whole for record in pool.scores]
    assert min(scores) == pytest.approx(1 / (1 + math.exp(4.28125)))
