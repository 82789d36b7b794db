"""Trajectories of SWE-agent and OpenHands: read as typed steps, and written back with labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace

DATA = Path(__file__).parents[1] / "data"
TASK = "Fix division in tests/missing.py: the colon is missing."


def read(path: Path) -> tuple[list[tuple[Problem, Trace]], ReadReport]:
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = list(import_traces(path, detect_format(path), context))
    return [
        (one.problem, segment_trace(one.trace)) for one in found if one.problem and one.trace
    ], context.report


def calls(trace: Trace) -> list[tuple[str, Any]]:
    return [(one.name, json.loads(one.arguments)) for row in trace.messages for one in row.tool_calls]


def content(path: Path) -> Any:
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def test_a_run_of_swe_agent() -> None:
    [(problem, trace)], _ = read(DATA / "swe-agent.traj")
    assert (problem.text, problem.source) == (TASK, "swe-agent")
    roles = ["system", "user", *["assistant", "tool"] * 4]
    assert [one.role for one in trace.messages] == roles
    assert "demonstration" not in str(trace.messages)
    assert calls(trace) == [
        ("find_file", {"file_name": "missing.py"}),
        ("edit", {"search": "def f(a)", "replace": "def f(a):"}),
        ("bash", {"command": "python3 missing.py"}),
        ("bash", {"command": "submit"}),
    ]
    assert [one.tool_call_id for one in trace.messages if one.role == "tool"] == [
        "c1",
        "c2",
        "turn-2",
        "turn-3",
    ]
    assert trace.messages[3].content == "Found 1 match: /repo/missing.py", "as it came, without the prompt"
    assert [step.kind for step in trace.steps] == [
        "reasoning", "thought", "tool_call", "thought", "edit", "command", "thought", "command",
    ]  # fmt: skip
    assert (trace.policy, trace.finish_reason, trace.outcome) == ("coder", "submitted", None)
    assert (trace.usage.prompt_tokens, trace.usage.completion_tokens, trace.usage.calls) == (700, 40, 4)
    assert trace.meta["swe_agent"]["submission"].startswith("\ndiff --git")
    assert "sk-secret" not in trace.model_dump_json()


def test_attempts_are_samples_of_one_problem(tmp_path: Path) -> None:
    run = content(DATA / "swe-agent.traj")
    failed = {**run, "trajectory": run["trajectory"][:2], "info": {"exit_status": "exit_cost"}}
    best = {**run, "attempts": [failed, run], "info": {**run["info"], "best_attempt_idx": 1}}
    path = tmp_path / "several.traj"
    path.write_text(json.dumps(best))
    found, _ = read(path)
    assert [(one.sample, one.finish_reason, len(one.messages)) for _, one in found] == [
        (0, "exit_cost", 6),
        (1, "submitted", 10),
    ]
    assert len({problem.id for problem, _ in found}) == 1
    assert found[0][1].meta["swe_agent"]["best_attempt"] == 1


def test_a_run_of_openhands() -> None:
    [(problem, trace)], _ = read(DATA / "openhands.json")
    assert (problem.text, problem.source, trace.policy) == (TASK, "openhands", "coder")
    roles = ["system", "user", "assistant", "tool", "tool", *["assistant", "tool"] * 3, "assistant"]
    assert [one.role for one in trace.messages] == roles
    assert trace.tools == (), "some calls have the names of actions"
    found = calls(trace)
    assert found[:2] == [
        ("execute_bash", {"command": "ls"}),
        ("str_replace_editor", {"command": "view", "path": "/repo/missing.py"}),
    ], "both calls of one response, as the model wrote them"
    assert found[2][0] == "edit"
    assert found[2][1]["new_str"] == "def f(a):"
    assert "thought" not in found[2][1]
    assert found[4] == ("think", {"thought": "f needs an argument, so this is expected."})
    answers = [(one.tool_call_id, one.error) for one in trace.messages if one.role == "tool"]
    expected = [("t1", False), ("t2", False), ("event-9", False), ("event-11", True), ("event-13", False)]
    assert answers == expected
    assert trace.messages[-1].content == "Done.\n\nThe colon is there."
    kinds = [step.kind for step in trace.steps]
    assert kinds[:4] == ["reasoning", "thought", "command", "tool_call"]
    assert kinds[4:] == ["thought", "edit", "command", "tool_call", "final_answer"]


def test_tools_are_those_of_the_model_where_every_call_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps([*content(DATA / "openhands.json")[:8], content(DATA / "openhands.json")[-1]]))
    [(_, trace)], _ = read(path)
    assert [tool.name for tool in trace.tools] == ["execute_bash"]
    assert [len(one.tool_calls) for one in trace.messages] == [0, 0, 2, 0, 0, 0]


def test_events_of_the_sdk() -> None:
    [(problem, trace)], report = read(DATA / "openhands-sdk.jsonl")
    assert report.bad_count == 0
    assert problem.text == f"{TASK} (Be brief.)"
    assert [one.uri for one in trace.messages[1].attachments] == ["https://example.com/a.png"]
    assert [tool.name for tool in trace.tools] == ["terminal"]
    assert [one.role for one in trace.messages[2:]] == [
        "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [name for name, _ in calls(trace)] == ["terminal", "terminal", "file_editor", "terminal"]
    seen = [(one.content, one.error) for one in trace.messages if one.role == "tool"]
    assert seen == [
        ("missing.py", False),
        ("def f(a)", False),
        ("old_str is missing", True),
        ("Too much.", True),
    ]
    reasoned = [one.reasoning for one in trace.messages if one.reasoning]
    assert [(one.text, one.visibility) for one in reasoned] == [
        ("Where is it?", "visible"),
        ("The colon goes there.", "summarised"),
    ]
    assert trace.messages[-1].content == "Done.\n\nI stop here."


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_of_an_evaluation(tmp_path: Path, pairs: bool) -> None:
    events: list[Any] = content(DATA / "openhands.json")
    if pairs:
        events = [
            [events[0], events[8]],
            [events[1], events[3]],
            *zip(events[4:14:2], events[5:14:2], strict=True),
        ]
    row = {
        "instance_id": "repo-1",
        "instruction": "Long text with the task.",
        "instance": {"problem_statement": TASK},
        "metadata": {"llm_config": {"model": "coder-32b"}},
        "metrics": {"accumulated_token_usage": {"prompt_tokens": 9, "completion_tokens": 3}},
        "test_result": {"git_patch": "diff", "report": {"resolved": False}},
        "history": events,
        "error": None,
    }
    path = tmp_path / "output.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({"instance_id": "empty", "history": []}) + "\n")
    [(problem, trace)], report = read(path)
    assert problem.text == TASK
    assert (trace.outcome, trace.policy, trace.usage.prompt_tokens) == (False, "coder-32b", 9)
    assert trace.meta["openhands"] == {"instance": "repo-1", "test_result": row["test_result"]}
    assert report.bad_count == 1
