"""Runs of tau-bench and tau2: read as traces with gold actions, and written back with labels."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[2] / "../shared/data/agent"


def read(path: Path) -> tuple[list[tuple[Problem, Trace]], ReadReport]:
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = list(import_traces(path, detect_format(path), context))
    return [(one.problem, one.trace) for one in found if one.problem and one.trace], context.report


def test_a_run_of_tau_bench():
    ((problem, trace),), _ = read(DATA / "tau-bench.json")
    assert (problem.text, problem.source) == (trace.messages[1].content, "tau-bench")
    assert problem.meta == {"hidden": {"user_script": "You are ann. Cancel R1."}}
    assert problem.id == Problem(text="You are ann. Cancel R1.").id  # shared by all runs of the task
    assert (trace.outcome, trace.sample, trace.tools) == (False, 1, ())
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert [message.role for message in trace.messages] == roles
    assert trace.messages[2].tool_calls[0].name == "get"
    assert trace.meta["gold_actions"] == [{"name": "cancel", "arguments": {"id": "R1"}}]
    assert trace.meta["tau_bench"] == {"task_id": 3, "reward": 0.0, "user_id": "ann", "outputs": []}
    kinds = [step.kind for step in segment_trace(trace).steps]
    assert kinds == ["tool_call", "final_answer"]


def test_a_simulation_of_tau2():
    ((problem, trace),), _ = read(DATA / "tau2.json")
    assert (problem.text, problem.source) == (trace.messages[4].content, "tau2")
    assert problem.meta == {"hidden": {"user_script": "Cancel R1.\n\nR1"}}
    assert (trace.id, trace.outcome, trace.sample, trace.seed, trace.policy) == ("s-0", True, 2, 7, "m")
    assert trace.finish_reason == "user_stop"
    assert (trace.usage.prompt_tokens, trace.usage.completion_tokens) == (29, 5)
    roles = ["system", "assistant", "user", "tool", "user", "assistant", "tool", "tool", "assistant"]
    assert [message.role for message in trace.messages] == roles
    assert trace.messages[0].content == "Policy."
    assert [call.arguments for call in trace.messages[5].tool_calls] == ['{"id": "R1"}', '{"id": "R2"}']
    assert [(one.tool_call_id, one.error) for one in trace.messages[6:8]] == [("a", False), ("b", True)]
    (tool,) = trace.tools
    assert (tool.name, tool.description, json.loads(tool.parameters or "")) == (
        "get",
        "Get.",
        {"type": "object"},
    )
    assert trace.meta["gold_actions"] == [
        {"name": "cancel", "arguments": {"id": "R1"}, "requestor": "assistant"}
    ]


def test_a_simulation_in_a_file_of_its_own_and_one_of_voice(tmp_path: Path):
    simulation: dict[str, Any] = json.loads((DATA / "tau2.json").read_text())["simulations"][0]
    (tmp_path / "s.json").write_text(json.dumps(simulation, indent=2))
    ((problem, trace),), _ = read(tmp_path / "s.json")
    assert (trace.id, trace.outcome, trace.tools, trace.meta["gold_actions"]) == ("s-0", True, (), [])
    assert trace.messages[0].role == "assistant"
    assert problem.text == "Cancel R1."
    rows = {"simulations": [{**simulation, "messages": None, "ticks": []}, simulation, 3]}
    (tmp_path / "v.json").write_text(json.dumps(rows))
    found, report = read(tmp_path / "v.json")
    assert (len(found), report.bad_count) == (1, 2)
    assert "voice simulations have only 'ticks'" in report.bad[0][1]


def test_published_runs_of_tau_bench():
    if not (SHARED / "tau_bench_gpt4o_airline.json.gz").exists():
        pytest.skip("the shared data set is not here")
    found, report = read(SHARED / "tau_bench_gpt4o_airline.json.gz")
    assert (len(found), report.bad_count) == (200, 0)
    assert Counter(trace.outcome for _, trace in found) == {False: 116, True: 84}
    assert len({problem.id for problem, _ in found}) == 50
    assert all(trace.meta["gold_actions"] is not None for _, trace in found)
