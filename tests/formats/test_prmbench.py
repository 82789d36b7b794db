from __future__ import annotations

import json
from pathlib import Path

from surefoot.formats import read_bigbench_mistake, read_prmbench, read_prmbench_controls, write_prmbench
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


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    report = write_prmbench([control], tmp_path / "o.jsonl", neutral="drop")
    assert report.summary() == "0 rows written; dropped: 1 traces: control, which is part of another row"


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


def test_rows_come_back_and_changed_labels_are_written(tmp_path: Path):
    rows = [ROW, {**ROW, "error_steps": [3, 2, 3, 9]}, {**ROW, "ground_truth": "4", "reason": None}]
    items = list(read_prmbench(lines(tmp_path / "p.jsonl", *rows)))
    assert write_prmbench(items, tmp_path / "o.jsonl", neutral="drop").written == 3
    assert rows_of(tmp_path / "o.jsonl") == rows
    labels = [label.model_copy(update={"value": -label.value}) for label in items[1].labels]
    changed = LabelledTrace(problem=items[1].problem, trace=items[1].trace, labels=tuple(labels))
    write_prmbench([changed], tmp_path / "o.jsonl", neutral="drop")
    assert rows_of(tmp_path / "o.jsonl") == [{**ROW, "error_steps": [1, 9]}]


def test_a_trace_from_elsewhere_needs_all_signs_and_invents_no_original(tmp_path: Path):
    mistake = {"input": "i", "steps": ["a", "b"], "target": "t", "answer": "t", "mistake_index": 0}
    path = lines(tmp_path / "b.jsonl", mistake, {**mistake, "mistake_index": 1})
    items = list(read_bigbench_mistake(path))
    report = write_prmbench(items, tmp_path / "o.jsonl", neutral="drop")
    assert report.dropped == {"traces: a step has no sign (label without a value)": 1}
    assert rows_of(tmp_path / "o.jsonl") == [
        {
            "modified_question": "i",
            "modified_process": ["a", "b"],
            "error_steps": [2],
            "idx": items[1].trace.id,
            "classification": "unknown",
        }
    ]
    (back,) = read_prmbench(tmp_path / "o.jsonl")
    assert values(back) == [1.0, -1.0]
