import gzip
import json
from pathlib import Path

import pytest

from benchmarks.readers.__main__ import main
from benchmarks.readers.fover import read_fover_scores
from surefoot.errors import RecordError
from surefoot.io import ReadReport, read_records
from surefoot.records import StepScores

REAL = Path(__file__).parents[3] / "../shared/data/calib/fover_processbench_scores.jsonl.gz"
ROW = {
    "id": "gsm8k-1",
    "n_steps": 4,
    "label": 1,
    "scores": {"a": [0.9, 0.1], "b": [0.8, 0.7]},
    "split": "gsm8k",
}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_record_a_verifier_with_one_score_a_step(tmp_path):
    first, second = read_fover_scores(write(tmp_path / "s.jsonl", ROW))
    assert (first.trace_id, first.scorer, first.scores) == ("gsm8k-1", "a", (0.9, 0.1, None, None))
    assert first.unscored_reason == "after the first error"
    assert second.scorer == "b"


def test_a_trace_without_error_is_scored_throughout(tmp_path):
    [record] = read_fover_scores(
        write(tmp_path / "s.jsonl", {**ROW, "label": -1, "scores": {"a": [0.5] * 4}})
    )
    assert (record.scores, record.unscored_reason) == ((0.5,) * 4, None)


@pytest.mark.parametrize(("label", "scores"), [(1, [0.9]), (-1, [0.9] * 3), (1, [0.9] * 5)])
def test_scores_that_do_not_fit_the_steps_are_refused(tmp_path, label, scores):
    path = write(tmp_path / "s.jsonl", {**ROW, "label": label, "scores": {"a": scores}})
    with pytest.raises(RecordError, match=r"field 'scores\.a'"):
        list(read_fover_scores(path))
    report = ReadReport()
    assert list(read_fover_scores(path, report=report)) == []
    assert report.bad_count == 1


def test_scores_of_more_steps_than_there_can_be_are_refused(tmp_path):
    path = write(tmp_path / "s.jsonl", {**ROW, "n_steps": 2**40})
    with pytest.raises(RecordError, match=r"s\.jsonl, line 1: field 'n_steps'"):
        list(read_fover_scores(path))


def test_the_program_writes_records(tmp_path, monkeypatch):
    path = write(tmp_path / "s.jsonl", ROW)
    monkeypatch.setattr("sys.argv", ["readers", "fover", str(path), "--out", str(tmp_path / "out")])
    main()
    written = read_records(tmp_path / "out" / "scores.jsonl", StepScores)
    assert list(written) == list(read_fover_scores(path))


def test_real_file():
    if not REAL.exists():
        pytest.skip(f"published scores not found at {REAL}")
    records = list(read_fover_scores(REAL))
    assert len(records) == 500 * 21
    with gzip.open(REAL, "rt") as file:
        steps = {row["id"]: row["n_steps"] for row in map(json.loads, file)}
    assert all(len(record.scores) == steps[record.trace_id] for record in records)
