from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.readers.bigbench_mistake import read_bigbench_mistake
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace

ROW = {"input": "( [", "steps": ["a\nb", "", "c "], "target": "] )", "answer": "])", "mistake_index": 1}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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


def test_equal_rows_are_traces_of_their_own(tmp_path: Path):
    items = list(read_bigbench_mistake(lines(tmp_path / "b.jsonl", ROW, ROW, {**ROW, "note": {"by": "x"}})))
    assert len({item.trace.id for item in items}) == 3
    assert items[0].trace.text == items[1].trace.text == items[2].trace.text
