from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import RecordError
from surefoot.formats import agent_name, read_source, read_who_and_when, write_who_and_when
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, StepLabel, Trace
from surefoot.segment import segment_trace

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


def test_files_come_back_as_they_were(tmp_path: Path):
    """Both kinds of run, each in a file of its own, and entries with fields of their own."""
    odd = {**MADE, "history": [*MADE["history"], {"role": "x", "name": "x", "content": None, "tokens": 3}]}
    rows = [HAND, MADE, odd]
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.json").write_text(json.dumps(row, indent=4))
    items = list(read_source("who-and-when", str(tmp_path / "*.json")))
    assert len({item.trace.id for item in items}) == 3
    report = write_who_and_when(items, tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == rows
    assert [list(row) for row in written] == [list(row) for row in rows]
    assert report.summary() == "3 rows written; dropped: nothing"


def test_changed_labels_are_written_as_they_are_now(tmp_path: Path):
    (tmp_path / "1.json").write_text(json.dumps(HAND))
    (item,) = read_who_and_when(tmp_path / "1.json")

    def label(step: int, value: float) -> StepLabel:
        return StepLabel(trace_id=item.trace.id, step=step, kind="correctness", value=value, source="judge")

    changed = LabelledTrace(
        problem=item.problem, trace=item.trace, labels=(label(3, -1), label(2, -1), label(1, 1))
    )
    none = LabelledTrace(problem=item.problem, trace=item.trace, labels=(label(1, 1),))
    problem = Problem(text="2+2?")
    text = segment_trace(Trace(id="t", problem_id=problem.id, text="5"))
    wrong = StepLabel(trace_id="t", step=0, kind="correctness", value=-1, source="judge")
    items = [changed, none, LabelledTrace(problem=problem, trace=text, labels=(wrong,))]
    report = write_who_and_when(items, tmp_path / "out.json")
    (row,) = json.loads((tmp_path / "out.json").read_text())
    expected = {"mistake_agent": "Orchestrator", "mistake_step": "2", "mistake_reason": None}
    assert row == {**HAND, **expected}
    assert report.summary() == (
        "1 rows written; dropped: 2 labels: beside that of the step to blame, 1 traces: no step labelled −1, "
        "1 traces: text, no messages"
    )


def test_own_runs_are_written_and_read_again(tmp_path: Path):
    problem = Problem(text="2+2?", answer="4")
    messages = (Message(role="user", content="2+2?"), Message(role="assistant", content="5", name="Adder"))
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages), granularity="message")
    wrong = StepLabel(trace_id=trace.id, step=0, kind="correctness", value=-1, source="judge")
    write_who_and_when([LabelledTrace(problem=problem, trace=trace, labels=(wrong,))], tmp_path / "o.jsonl")
    (item,) = read_who_and_when(tmp_path / "o.jsonl")
    assert (item.labels[0].step, item.trace.meta["who_and_when"]["mistake_agent"]) == (1, "Adder")
    assert item.trace.messages == messages


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
    with pytest.raises(RecordError, match="not one JSON value"):
        list(read_who_and_when(tmp_path / "1.json"))
