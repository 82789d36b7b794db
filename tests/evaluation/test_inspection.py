"""``surefoot inspect``: each check on a run that breaks it and on one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import good, refused

from surefoot.evaluation.inspection import BLAMING, CHECKS, Inspection, inspect_traces
from surefoot.formats import ImportedTrace
from surefoot.io import write_records
from surefoot.labelling import GoldCallVerifier
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.labelling.verifiers.tool_calls import ToolCallVerifier
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, StepLabel, StepScores, Tool, ToolCall, Trace
from surefoot.segment import cut_trace

PROBLEM = Problem(id="p", text="Find it.", answer="4")
TOOLS = (Tool(name="get", parameters='{"type": "object", "properties": {"id": {"type": "integer"}}}'),)


def call(name: str, result: str = "ok", **arguments: Any) -> tuple[Message, Message]:
    made = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return (
        Message(role="assistant", tool_calls=(made,)),
        Message(role="tool", content=result, tool_call_id="c"),
    )


def text(content: str, role: Any = "assistant") -> Message:
    return Message(role=role, content=content)


def run(*messages: Message, **fields: Any) -> Trace:
    return cut_trace(Trace(problem_id="p", messages=(text("Find it.", "user"), *messages), **fields))


def inspect(*traces: Trace, limit: int = 0) -> Inspection:
    items = [ImportedTrace(problem=PROBLEM, trace=trace) for trace in traces]
    return inspect_traces(items, limit=limit)


def found(*traces: Trace) -> list[tuple[str, int]]:
    return [(finding.check, finding.step) for finding in inspect(*traces).most_suspicious]


@pytest.mark.parametrize(
    ("messages", "fields", "findings"),
    [
        ([text("2 + 2 = 5, so 5.")], {}, [("equation", 1)]),
        ([text("2 + 2 = 4, so 4.")], {}, []),
        ([*call("get"), text("<tool_call>get</tool_call>"), text("Retry.", "user"), text("4")], {},
         [("call-in-text", 2)]),
        ([text("<tool_call>get</tool_call>"), text("Retry.", "user"), text("4")], {}, []),
        ([*call("get", id="x"), text("4")], {"tools": TOOLS}, [("schema", 1)]),
        ([*call("get", "Error: no"), *call("get"), text("4")], {}, []),
        ([*call("get", "Error: no"), text("I could not.")], {}, []),
        ([*call("buy", "Error: no"), text("I bought it for you.")], {}, [("ignored-error", 2)]),
        ([*call("buy", id="K-4711"), text("4")], {}, [("unsupported-argument", 1)]),
        ([*call("get"), text("I sent the mail.")], {"tools": (*TOOLS, Tool(name="send_mail"))},
         [("claim-without-call", 2)]),
        ([*call("bash", command="ls"), *call("bash", command="ls"), text("2 + 2 = 5")], {},
         [("repeated-call", 2)]),
        ([*call("get_all"), *call("get_all"), text("4")], {}, [("repeated-call", 2)]),
        ([*call("get_all"), *call("buy"), *call("get_all"), text("4")], {}, []),
        ([text("So we get 3", "assistant")], {"finish_reason": "length"}, [("truncated", 1)]),
        ([*call("get"), text("")], {}, [("empty-answer", 1)]),
        ([*call("get"), text("5")], {"answer": "5", "outcome": False}, [("wrong-answer", 2)]),
        ([text("5")] * 5, {"answer": "5", "outcome": False}, []),
        ([*call("get"), text("5")], {"outcome": False}, []),
    ],
)  # fmt: skip
def test_each_check(messages, fields, findings):
    assert found(run(*messages, **fields)) == findings


def test_a_run_on_which_no_check_speaks_is_unknown():
    right, wrong = run(text("4")), run(text("2 + 2 = 5"))
    inspection = inspect(right, right, wrong)
    assert inspection.summary == (
        "A step is called wrong in 1 of 3 traces; no check speaks on 2, which may be right or wrong."
    )
    assert set(BLAMING) < set(CHECKS)


def test_advice_is_counted_and_names_no_first_step():
    accepted = inspect(run(*call("get", id="x"), text("4"), tools=TOOLS))
    assert accepted.findings == accepted.advice == {"schema": 1}
    assert accepted.first_suspicious == ()
    assert accepted.summary == "A step is called wrong in 0 of 1 trace; 1 more has advice."
    refused = inspect(run(*call("get", "Error: id is no number", id="x"), text("4"), tools=TOOLS))
    assert (refused.findings, refused.advice, len(refused.first_suspicious)) == ({"schema": 1}, {}, 1)


def test_only_the_first_traces_of_a_long_file():
    traces = [run(text("2 + 2 = 5")) for _ in range(7)]
    inspection = inspect(*traces, limit=3)
    assert (inspection.contents["traces"], inspection.findings, inspection.complete) == (
        3,
        {"equation": 3},
        False,
    )
    assert inspect(*traces, limit=8).complete


GOLD = {"order": "R1", "items": [{"id": 1}], "note": "The customer wants her money back at once"}
CHANGED = {
    "": [1, None],
    "other note": [1, None],
    "other id": [-1, None],
    "more items": [-1, None],
    "more fields": [1, None],
    "no note": [-1, None],
    "extra": [-1, None],
}


@pytest.mark.parametrize("change", CHANGED)
def test_calls_are_compared_with_the_gold_calls_by_argument(change):
    arguments = (
        GOLD
        | {
            "": {},
            "other note": {"note": "She asks for a refund of all of it"},
            "other id": {"items": [{"id": 2}]},
            "more items": {"items": [{"id": 1}, {"id": 1}]},
            "more fields": {"items": [{"id": 1, "name": "cup"}]},
            "no note": {},
            "extra": {"fast": True},
        }[change]
    )
    if change == "no note":
        arguments.pop("note")
    trace = run(*call("refund", **arguments), text("Done."), meta={"gold_actions": [gold("refund", **GOLD)]})
    [verdicts] = GoldCallVerifier().verify([ProblemTrace(problem=PROBLEM, trace=trace)])
    assert [verdict.value for verdict in verdicts] == CHANGED[change]


@pytest.mark.parametrize(
    ("made", "outcome", "value"),
    [
        ({"order": "R1", "old": ["2", "1"], "new": ["9", "8"]}, None, 1),
        ({"order": "R1", "old": ["2", "1"], "new": ["9", "8"]}, True, 1),
        ({"order": "R1", "old": ["2", "1"], "new": ["9", "8"]}, False, None),
        ({"order": "R1", "old": ["1", "2"], "new": ["9", "8"]}, None, -1),
        ({"order": "R1", "old": ["1", "1"], "new": ["8", "9"]}, None, -1),
        ({"order": "R2", "old": ["1", "2"], "new": ["8", "9"]}, True, None),
        ({"order": "R2", "old": ["1", "2"], "new": ["8", "9"]}, False, -1),
    ],
)
def test_lists_of_ids_are_sets_of_pairs_and_a_run_that_reached_its_goal_is_not_blamed(made, outcome, value):
    meta = {
        "gold_actions": [gold("exchange", order="R1", old=["1", "2"], new=["8", "9"]), gold("pay", of="R1")]
    }
    item = ProblemTrace(problem=PROBLEM, trace=run(*call("exchange", **made), meta=meta, outcome=outcome))
    [[verdict]] = GoldCallVerifier().verify([item])
    assert verdict.value == value
    comparison = compare_gold_calls(item)
    assert comparison is not None
    assert [missing.name for missing in comparison.missing] == ([] if outcome else ["pay"])


def gold(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_gold_calls_say_nothing_of_lookups_failures_and_other_tools():
    messages = [*call("get_order", id=2), *call("refund", "Error: no", id=2), *call("cancel", id=1)]
    meta = {"gold_actions": [gold("get_order", id=1), gold("refund", id=1)]}
    [verdicts] = GoldCallVerifier().verify([ProblemTrace(problem=PROBLEM, trace=run(*messages, meta=meta))])
    assert [verdict.value for verdict in verdicts] == [None] * 3
    twice = [*call("refund", id=1), *call("refund", id=1)]
    [verdicts] = GoldCallVerifier().verify([ProblemTrace(problem=PROBLEM, trace=run(*twice, meta=meta))])
    assert [verdict.value for verdict in verdicts] == [1, -1]
    [verdicts] = GoldCallVerifier().verify([ProblemTrace(problem=PROBLEM, trace=run(*twice))])
    assert verdicts[0].reason == "no gold calls are known"


def test_records_of_this_package_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    trace = run(text("2 + 2 = 5"), outcome=True, policy="m")
    write_records("p.jsonl", [PROBLEM])
    write_records("t.jsonl", [trace])
    label = StepLabel(trace_id=trace.id, step=0, kind="correctness", value=-1, source="human")
    write_records("l.jsonl", [label])
    write_records("s.jsonl", [StepScores(trace_id=trace.id, scorer="prm", scores=(0.1,))])
    files = ("p.jsonl", "t.jsonl", "l.jsonl", "s.jsonl")
    shown = good("inspect", *files, "--out", "all.json")
    for line in (
        "problems with a reference answer",
        "traces with scores by prm",
        "labels: correctness -1 (1)",
    ):
        assert line in shown.out
    [finding] = json.loads((tmp_path / "all.json").read_text())["all_findings"]
    assert (finding["check"], finding["quote"]) == ("equation", "2 + 2 = 5")


def test_files_without_anything_and_a_wrong_ending(tmp_path: Path):
    (tmp_path / "none.jsonl").write_text('{"a": 1}\n')
    assert "not usable" in refused("inspect", tmp_path / "none.jsonl")
    assert "must be .json" in refused("inspect", tmp_path / "none.jsonl", "--out", "x.html")


def test_all_findings_are_listed_verdicts_first_with_task_and_outcome():
    repeats = [run(*call("bash", command="ls") * 2, text(f"4{number}"), outcome=True) for number in range(12)]
    inspection = inspect(*repeats, run(text("2 + 2 = 5"), outcome=False))
    assert [finding.check for finding in inspection.all_findings] == ["equation", *["repeated-call"] * 12]
    assert [finding.advice for finding in inspection.all_findings] == [False, *[True] * 12]
    assert {finding.outcome for finding in inspection.all_findings[1:]} == {True}
    assert {finding.problem_id for finding in inspection.all_findings} == {"p"}
    assert inspection.all_findings[0].outcome is False
    shown = [finding.check for finding in inspection.most_suspicious]
    assert shown == ["equation", *["repeated-call"] * 9]


def test_label_gives_the_verdicts_of_inspect_without_a_policy():
    search = call("search", "three")
    trace = run(*search, *call("list_files", "a"), *search, text("4"))
    [verdicts] = ToolCallVerifier().verify([ProblemTrace(problem=PROBLEM, trace=trace)])
    values = [verdict.value for verdict in verdicts]
    assert values[2] == -1
    assert [(finding.check, finding.step) for finding in inspect(trace).all_findings] == [
        ("repeated-call", 3)
    ]
