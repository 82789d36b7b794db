from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import RecordError
from surefoot.formats import read_agent_processbench
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace

DATA = Path(__file__).parents[2] / "../shared/data/agent"


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": '{"q": 1}'}, **more}


ROW: dict[str, Any] = {
    "total_index": 12,
    "query_index": 2,
    "sample_index": 4,
    "question": "Who?",
    "data_source": "tau2",
    "ground_truth": {"target": ["Ann", "A."]},
    "answer_text": None,
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [call("search")]},
        {"role": "tool", "name": "search", "content": "none", "tool_call_id": "1"},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Ann"},
    ],
    "tool_metrics": {"search": [{"status": "success"}]},
    "tools": [{"type": "function", "function": {"name": "search", "description": "d", "parameters": {}}}],
    "step_labels": {"2": 0, "5": -1},
    "final_label": -1,
}


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(tmp_path: Path, *rows: dict[str, Any]) -> list[LabelledTrace]:
    return list(read_agent_processbench(lines(tmp_path / "in.jsonl", *rows)))


def test_each_assistant_message_is_a_step(tmp_path: Path):
    (item,) = read(tmp_path, ROW)
    trace = item.trace
    assert (trace.id, item.problem.id, item.problem.source) == ("tau2:2:4", "tau2:2", "tau2")
    assert [(step.message, step.part) for step in trace.steps] == [(2, "message"), (5, "message")]
    assert [trace.step_text(0), trace.step_text(1)] == ['search({"q": 1})', "Ann"]
    assert [(one.step, one.value, one.source) for one in item.labels] == [(0, 0, "human"), (1, -1, "human")]
    assert (trace.outcome, trace.answer, item.problem.answer) == (False, None, "Ann; A.")
    assert trace.tools[0].name == "search"
    kept = {"total_index": 12, "query_index": 2, "sample_index": 4}
    assert trace.meta["agent_processbench"] == {
        **kept,
        "ground_truth": ROW["ground_truth"],
        "tool_metrics": ROW["tool_metrics"],
    }


@pytest.mark.parametrize(("label", "outcome"), [(1, True), (0, None), (-1, False)])
def test_final_label(tmp_path: Path, label: int, outcome: bool | None):
    (item,) = read(tmp_path, {**ROW, "final_label": label})
    assert item.trace.outcome is outcome


def test_odd_rows_are_read(tmp_path: Path):
    """Unknown fields, an unlabelled step, missing tools, and a run that occurs again."""
    odd = [
        *ROW["messages"][:2],
        {"role": "assistant", "tool_calls": [call("search", index=0)], "weight": 1},
        *ROW["messages"][3:],
    ]
    rows = [
        {**ROW, "messages": odd, "stop_reason": "x", "ground_truth": [{"name": "call"}]},
        {**ROW, "tools": None, "step_labels": {"5": None}},
        {name: ROW[name] for name in reversed(ROW) if name not in ("total_index", "tools", "tool_metrics")},
    ]
    items = read(tmp_path, *rows)
    assert [item.trace.id for item in items] == ["tau2:2:4", "tau2:2:4#1", "tau2:2:4#2"]
    assert items[0].trace.messages[2].tool_calls[0].name == "search"
    assert [item.problem.answer for item in items] == [None, "Ann; A.", "Ann; A."]
    assert [len(item.trace.tools) for item in items] == [1, 0, 0]
    assert [[(label.step, label.value) for label in item.labels] for item in items] == [
        [(0, 0), (1, -1)],
        [(1, None)],
        [(0, 0), (1, -1)],
    ]
    assert items[1].labels[0].reason == "no label given"


def test_rows_of_other_subsets_without_a_question(tmp_path: Path):
    """A conversation may begin with the agent; answers and tools may be no texts and no lists."""
    told = [
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Cancel R1."},
        *ROW["messages"][2:],
    ]
    row = {
        **ROW,
        "question": None,
        "answer_text": {"calls": []},
        "tools": '[{"name": "cancel"}]',
        "messages": told,
        "step_labels": {"0": 1, "2": 1, "5": -1},
        "reward_info": {"reward": 0.0},
    }
    bare = {name: value for name, value in row.items() if name not in ("question", "answer_text", "tools")}
    items = read(tmp_path, row, {**bare, "question": ""})
    assert {item.problem.text for item in items} == {"Cancel R1."}
    assert [(item.trace.answer, item.trace.tools) for item in items] == [(None, ())] * 2
    assert items[0].trace.meta["agent_processbench"]["answer_text"] == {"calls": []}
    assert [[label.step for label in item.labels] for item in items] == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"question": None, "messages": [ROW["messages"][0], *ROW["messages"][2:4]], "step_labels": {}},
            "field 'question': empty, and no user message has text",
        ),
        ({"step_labels": {"3": 1}}, "field 'step_labels': message 3 is not from the assistant"),
        ({"step_labels": {"2": 2}}, "field 'step_labels.2': Input should be -1, 0 or 1"),
        ({"messages": ROW["messages"][:2]}, "field 'messages': no message is from the assistant"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "content"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], reason: str):
    path = lines(tmp_path / "in.jsonl", {**ROW, **change}, ROW)
    with pytest.raises(RecordError, match="line 1"):
        list(read_agent_processbench(path))
    report = ReadReport()
    assert len(list(read_agent_processbench(path, report=report))) == 1
    assert reason in report.bad[0][1]
