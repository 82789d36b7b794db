from __future__ import annotations

import json
from pathlib import Path

from surefoot.formats import read_prmbench, read_prmbench_controls
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace

ROW = {
    "original_question": "q",
    "modified_question": "q'",
    "original_process": ["a", "b"],
    "modified_process": ["a", "x\ny", ""],
    "modified_steps": [2],
    "error_steps": [2, 3],
    "reason": "step 2 is made up",
    "idx": "p_1",
    "question": "q",
    "classification": "redundency",
}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values(item: LabelledTrace) -> list[float | None]:
    return [label.value for label in item.labels]


def test_error_steps_count_from_one_and_every_step_is_labelled(tmp_path: Path):
    (item,) = read_prmbench(lines(tmp_path / "p.jsonl", ROW))
    assert (item.problem.text, item.trace.text) == ("q'", "a\nx\ny\n")
    assert values(item) == [1.0, -1.0, -1.0]
    assert [label.evidence.message for label in item.labels] == [None, ROW["reason"], ROW["reason"]]
    assert item.trace.id == "redundency_p_1"
    assert item.trace.meta["classification"] == "redundency"
    assert item.trace.meta["original_process"] == ["a", "b"]


def test_first_last_and_no_error(tmp_path: Path):
    rows = [{**ROW, "error_steps": errors} for errors in ([1], [], [3], [2, 4])]
    items = list(read_prmbench(lines(tmp_path / "p.jsonl", *rows)))
    assert [values(item) for item in items] == [
        [-1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0],
        [1.0, 1.0, -1.0],
        [1.0, -1.0, 1.0],
    ]
    assert len({item.trace.id for item in items}) == 4


def test_controls_are_the_original_processes_of_one_class(tmp_path: Path):
    path = lines(tmp_path / "p.jsonl", ROW, {**ROW, "classification": "circular"}, ROW)
    (control,) = read_prmbench_controls(path)
    assert (control.problem.text, values(control)) == ("q", [1.0, 1.0])
    assert (control.trace.id, control.trace.meta["classification"]) == ("correct_p_1", "correct")


def test_bad_rows(tmp_path: Path):
    bad = [{**ROW, "error_steps": [0]}, {**ROW, "modified_process": []}, {**ROW, "error_steps": ["2"]}]
    report = ReadReport()
    assert list(read_prmbench(lines(tmp_path / "p.jsonl", *bad), report=report)) == []
    reasons = dict(report.bad)
    assert reasons[1] == "field 'error_steps': steps count from 1, not 0"
    assert reasons[2] == "field 'modified_process': empty"
    assert reasons[3].startswith("field 'error_steps.0'")
    without = {**ROW}
    del without["original_process"]
    report = ReadReport()
    assert list(read_prmbench_controls(lines(tmp_path / "p.jsonl", without), report=report)) == []
    assert dict(report.bad)[1].startswith("field 'original_process': missing")
