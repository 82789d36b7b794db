from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import RecordError
from surefoot.formats import agent_name, read_source, read_who_and_when
from surefoot.io import ReadReport

HAND: dict[str, Any] = {
    "history": [
        {"content": "Who?", "role": "human"},
        {"content": "Plan.", "role": "Orchestrator (thought)"},
        {"content": "Look.", "role": "Orchestrator (-> WebSurfer)"},
        {"content": "Nobody.", "role": "WebSurfer"},
    ],
    "question": "Who?",
    "ground_truth": "Ann",
    "is_corrected": False,
    "mistake_agent": "Websurfer",
    "mistake_step": "3",
    "mistake_reason": "It did not look.",
    "question_ID": "q1",
}
MADE: dict[str, Any] = {
    "is_correct": False,
    "question": "Who?",
    "question_ID": "q1",
    "ground_truth": "Ann",
    "history": [
        {"content": "Task.", "name": "Search_Expert", "role": "assistant"},
        {"content": "exitcode: 1", "name": "Computer_terminal", "role": "user"},
    ],
    "mistake_agent": "Search_Expert",
    "mistake_step": "1",
    "mistake_reason": "r",
    "system_prompt": {"Search_Expert": "Search."},
}


def test_each_entry_is_a_step_and_one_is_to_blame(tmp_path: Path):
    (tmp_path / "1.json").write_text(json.dumps(HAND, indent=4))
    (item,) = read_who_and_when(tmp_path / "1.json")
    trace = item.trace
    assert [message.role for message in trace.messages] == ["user", *["assistant"] * 3]
    speakers = [None, "Orchestrator", "Orchestrator", "WebSurfer"]
    assert [agent_name(message) for message in trace.messages] == speakers
    assert [trace.step_text(step) for step in range(4)] == ["Who?", "Plan.", "Look.", "Nobody."]
    (label,) = item.labels
    assert (label.step, label.value, label.source) == (3, -1, "human")
    assert label.evidence.message == "It did not look."
    assert (trace.outcome, item.problem.text, item.problem.answer) == (False, "Who?", "Ann")


def test_runs_of_both_kinds_are_read_from_separate_files(tmp_path: Path):
    rows = [HAND, MADE, {**MADE, "history": [*MADE["history"], {"role": "x", "content": None, "tokens": 3}]}]
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.json").write_text(json.dumps(row, indent=4))
    items = list(read_source("who-and-when", str(tmp_path / "*.json")))
    assert len({item.trace.id for item in items}) == 3
    assert [[message.content for message in item.trace.messages] for item in items] == [
        [turn["content"] for turn in row["history"]] for row in rows
    ]
    assert [agent_name(message) for message in items[2].trace.messages] == [
        "Search_Expert",
        "Computer_terminal",
        "x",
    ]
    assert [item.labels[0].step for item in items] == [3, 1, 1]
    assert items[1].trace.meta["who_and_when"] == {
        "question_ID": "q1",
        "mistake_agent": "Search_Expert",
        "mistake_step": "1",
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mistake_step": "4"}, "field 'mistake_step': '4', but there are 4 steps"),
        ({"mistake_step": "-1"}, "field 'mistake_step': '-1', but there are 4 steps"),
        ({"history": []}, "field 'mistake_step': '3', but there are 0 steps"),
        ({"history": [{"content": "no role"}]}, "field 'history.0.role'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], reason: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**HAND, **change}) + "\n" + json.dumps(HAND) + "\n")
    report = ReadReport()
    assert len(list(read_who_and_when(path, report=report))) == 1
    assert reason in report.bad[0][1]


def test_an_object_that_is_cut_off_is_refused(tmp_path: Path):
    (tmp_path / "1.json").write_text(json.dumps(HAND, indent=4)[:-9])
    with pytest.raises(RecordError, match="nor one JSON value"):
        list(read_who_and_when(tmp_path / "1.json"))
