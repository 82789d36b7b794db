"""Somebody has a file of tau-bench and asks which steps are wrong, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import good

from surefoot.io import read_records
from surefoot.records import Problem, StepLabel, Trace

GOLD = {"name": "refund", "kwargs": {"order": "R1", "items": [{"id": 1, "amount": 5}]}}


def said(role: str, content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def called(name: str, arguments: dict[str, Any], result: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "c", "type": "function", "function": function}
    return [said("assistant", None, tool_calls=[call]), said("tool", result, tool_call_id="c", name=name)]


def run(number: int, reward: float, *middle: dict[str, Any]) -> dict[str, Any]:
    task = {"user_id": "ann", "instruction": "You are ann. Never say so.", "actions": [GOLD], "outputs": []}
    opening = [
        said("system", "Policy."),
        said("user", f"Refund R1{', please' * (number + 1)}."),
        said("assistant", "All of it?"),
    ]
    closing = [said("assistant", "It is done."), said("user", "###STOP###")]
    traj = [*opening, said("user", "Yes."), *called("get_order", {"order": "R1"}, "paid"), *middle, *closing]
    return {"task_id": 1, "trial": number, "reward": reward, "info": {"task": task}, "traj": traj}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        run(0, 1.0, *called("refund", GOLD["kwargs"], "ok")),
        run(1, 0.0, *called("refund", {"order": "R1", "items": [{"id": 1, "amount": 7}]}, "ok")),
        run(2, 0.0, *called("refund", {"order": "R9"}, "Error: no such order")),
        run(3, 0.0),
    ]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    return tmp_path


def test_what_a_file_of_tau_bench_contains_and_which_steps_look_wrong(results: Path) -> None:
    shown = good("inspect", "results.json", "--out", "all.json")
    assert "results.json is read as tau-bench" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "\x1b" not in shown.out
    words = " ".join(shown.out.split())
    assert "A step is called wrong in 2 of 4 traces; 1 more has advice; no check speaks on 1" in words
    assert "1 gold-call (verdict): a call" in words
    assert "2 missing-gold-call (advice): a gold call" in words
    assert "refund: items[0].amount is 7, in the gold call 5" in words
    assert "surefoot label runs/traces.jsonl verify:rules=gold-calls --problems runs/problems.jsonl" in words
    assert "Never say so" not in words

    found = json.loads((results / "all.json").read_text())
    by_run = [(finding["row"], finding["step"], finding["check"]) for finding in found["all_findings"]]
    assert {(finding["problem_id"], finding["outcome"]) for finding in found["all_findings"]} == {
        (found["all_findings"][0]["problem_id"], False)
    }
    assert by_run == [
        (2, 3, "gold-call"),
        (3, 4, "ignored-error"),
        (3, 4, "missing-gold-call"),
        (4, 3, "missing-gold-call"),
    ]
    assert [finding["row"] for finding in found["first_suspicious"]] == [2, 3]
    assert found["contents"] == {
        "problems": 1,
        "traces": 4,
        "agent runs": 4,
        "correct": 1,
        "wrong": 3,
        "with gold calls": 4,
        "steps": 15,
    }


def test_the_findings_are_labels_of_the_imported_runs(results: Path) -> None:
    good("import", "results.json", "--out", "runs")
    [problem] = read_records(results / "runs/problems.jsonl", Problem)
    assert problem.text == "Refund R1, please."
    traces = list(read_records(results / "runs/traces.jsonl", Trace))
    kinds = [step.kind for step in traces[0].steps]
    assert kinds == ["reply", "tool_call", "tool_call", "final_answer"]
    method = "verify:rules=gold-calls"
    files = ("runs/traces.jsonl", method, "--problems", "runs/problems.jsonl")
    good("label", *files, "--out", "labels.jsonl")
    same = ("results.json", method, "--problems", "results.json")
    good("label", *same, "--out", "same.jsonl")
    assert len(list(read_records(results / "same.jsonl", StepLabel))) == 15
    labels = [label for label in read_records(results / "labels.jsonl", StepLabel) if label.value is not None]
    assert [(label.trace_id, label.step, label.value) for label in labels] == [
        (traces[0].id, 2, 1.0),
        (traces[1].id, 2, -1.0),
    ]


def test_the_folder_of_an_import_can_be_inspected(results: Path) -> None:
    good("import", "results.json", "--out", "mine")
    shown = good("inspect", "mine")
    assert shown.err == ""
    words = " ".join(shown.out.split())
    assert "A step is called wrong in 2 of 4 traces" in words
    assert "surefoot import" not in words
    assert "surefoot label mine/traces.jsonl verify:rules=gold-calls --problems mine/problems.jsonl" in words
