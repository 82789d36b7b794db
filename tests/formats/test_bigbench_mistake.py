from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefoot.formats import read_bigbench_mistake, write_bigbench_mistake
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, Trace

ROW = {"input": "( [", "steps": ["a\nb", "", "c "], "target": "] )", "answer": "])", "mistake_index": 1}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(item: LabelledTrace) -> list[float | None]:
    return [label.value for label in item.labels]


def test_the_mistake_counts_from_zero_and_what_follows_is_unknown(tmp_path: Path):
    (item,) = read_bigbench_mistake(lines(tmp_path / "b.jsonl", ROW))
    assert values(item) == [1.0, -1.0, None]
    assert item.labels[2].reason == "after the first error"
    assert (item.problem.text, item.problem.answer, item.trace.answer) == ("( [", "] )", "])")
    assert item.trace.outcome is True


@pytest.mark.parametrize(
    ("index", "expected"), [(None, [1.0] * 3), (0, [-1.0, None, None]), (2, [1.0, 1.0, -1.0])]
)
def test_null_is_no_mistake(tmp_path: Path, index: int | None, expected: list[float | None]):
    row = {**ROW, "mistake_index": index, "answer": "x"}
    (item,) = read_bigbench_mistake(lines(tmp_path / "b.jsonl", row))
    assert values(item) == expected
    assert item.trace.outcome is False


def test_bad_rows(tmp_path: Path):
    without = {field: value for field, value in ROW.items() if field != "mistake_index"}
    bad = [{**ROW, "mistake_index": 3}, {**ROW, "mistake_index": -1}, {**ROW, "steps": []}, without]
    report = ReadReport()
    assert list(read_bigbench_mistake(lines(tmp_path / "b.jsonl", *bad), report=report)) == []
    reasons = dict(report.bad)
    assert reasons[1] == "field 'mistake_index': 3, but there are 3 steps"
    assert reasons[3] == "field 'steps': empty"
    assert reasons[4] == "field 'mistake_index': missing"
    assert report.bad_count == 4


def test_equal_rows_order_and_further_fields_come_back(tmp_path: Path):
    rows = [ROW, ROW, {"mistake_index": None, **{k: v for k, v in ROW.items() if k != "mistake_index"}}]
    rows += [{**ROW, "answer": None, "note": {"by": "x"}}]
    items = list(read_bigbench_mistake(lines(tmp_path / "b.jsonl", *rows)))
    assert len({item.trace.id for item in items[:3]}) == 3
    report = write_bigbench_mistake(items, tmp_path / "o.jsonl", neutral="drop")
    assert report.summary() == "4 rows written; dropped: nothing"
    back = rows_of(tmp_path / "o.jsonl")
    assert back == rows
    assert [list(row) for row in back] == [list(row) for row in rows]


def test_changed_labels_are_written(tmp_path: Path):
    (item,) = read_bigbench_mistake(lines(tmp_path / "b.jsonl", ROW))
    labels = [label.model_copy(update={"value": 1.0, "reason": None}) for label in item.labels]
    changed = LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(labels))
    write_bigbench_mistake([changed], tmp_path / "o.jsonl", neutral="drop")
    assert rows_of(tmp_path / "o.jsonl") == [{**ROW, "mistake_index": None}]


@pytest.mark.parametrize(("neutral", "expected"), [("good", 2), ("bad", 1)])
def test_neutral_policy_and_signs_after_the_mistake(tmp_path: Path, neutral: str, expected: int):
    problem = Problem(text="q")
    spans = [{"start": index, "end": index + 1} for index in range(3)]
    trace = Trace.model_validate({"problem_id": problem.id, "text": "abc", "steps": spans})
    labels = tuple(
        StepLabel(trace_id=trace.id, step=index, kind="correctness", value=value, source="s")
        for index, value in enumerate((1, 0, -1))
    )
    item = LabelledTrace(problem=problem, trace=trace, labels=labels)
    report = write_bigbench_mistake([item], tmp_path / "o.jsonl", neutral=neutral)
    (row,) = rows_of(tmp_path / "o.jsonl")
    assert row == {
        "input": "q",
        "steps": ["a", "b", "c"],
        "target": None,
        "answer": None,
        "mistake_index": expected,
    }
    assert report.dropped == ({"signs: after the first error": 1} if neutral == "bad" else {})
    report = write_bigbench_mistake([item], tmp_path / "o.jsonl", neutral="drop")
    assert report.dropped == {"traces: no sign before the first error (neutral)": 1}
