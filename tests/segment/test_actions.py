"""Edits and commands of coding agents, by their own names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surefoot.records import Message, ToolCall, Trace
from surefoot.segment import segment_trace
from surefoot.segment.traces import action_kind


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("bash", {"command": "ls -l"}, "command"),
        ("execute_bash", {"command": "create table"}, "command"),
        ("bash", {"command": "edit 3:4\nx = 1\nend_of_edit"}, "edit"),
        ("bash", {"command": "str_replace_editor view /a.py"}, "command"),
        ("bash", {"command": "str_replace_editor create /a.py --file_text 1"}, "edit"),
        ("bash", {"command": "  \n"}, "command"),
        ("bash", {"restart": True}, "tool_call"),
        ("shell", {"command": ["bash", "-lc", "ls"]}, "command"),
        ("run_ipython", {"code": "1 + 1"}, "command"),
        ("run", {"report": "monthly"}, "tool_call"),
        ("str_replace_editor", {"command": "view", "path": "/a.py"}, "tool_call"),
        ("str_replace_editor", {"command": "insert", "path": "/a.py"}, "edit"),
        ("Write", {"file_path": "/a.py", "content": ""}, "edit"),
        ("edit", {"search": "a", "replace": "b"}, "edit"),
        ("create", {"name": "an order"}, "tool_call"),
        ("apply_patch", {"input": "*** Begin Patch"}, "edit"),
        ("refund", {"path": "/a.py"}, "tool_call"),
    ],
)
def test_what_a_call_does(name: str, arguments: dict[str, Any], kind: str) -> None:
    assert action_kind(ToolCall(name=name, arguments=json.dumps(arguments))) == kind


@pytest.mark.parametrize("arguments", ["", "[]", "{", '"ls"', "[" * 100_000, "NaN"])
def test_arguments_that_are_no_object(arguments: str) -> None:
    assert action_kind(ToolCall(name="bash", arguments=arguments)) == "tool_call"
    assert action_kind(ToolCall(name="file_editor", arguments=arguments)) == "edit"


def test_steps_of_an_agent_have_these_kinds() -> None:
    calls = (
        ToolCall(id="1", name="bash", arguments='{"command": "ls"}'),
        ToolCall(id="2", name="write_file", arguments='{"path": "a.py"}'),
        ToolCall(id="3", name="search", arguments='{"query": "a"}'),
    )
    trace = Trace(problem_id="p", messages=(Message(role="assistant", content="I look.", tool_calls=calls),))
    steps = segment_trace(trace).steps
    assert [step.kind for step in steps] == ["thought", "command", "edit", "tool_call"]
    assert {step.part for step in steps[1:]} == {"tool_call"}
