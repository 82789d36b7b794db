"""Rules on tool calls: what each finds, and what must raise no alarm."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError
from surefoot.io import read_records, write_records
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy, call_results, open_verifier
from surefoot.protocols import ProblemTrace, StepVerifier
from surefoot.records import Message, Problem, StepLabel, Tool, ToolCall, Trace
from surefoot.segment import segment_trace

ORDER = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
TOOLS = tuple(Tool(name=name, parameters=json.dumps(ORDER)) for name in ("look", "refund", "wait"))


def said(text):
    return Message(role="assistant", content=text)


def call(name, result=None, error=None, **arguments):
    """One call and, unless ``result`` is ``None``, its answer."""
    made = Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=json.dumps(arguments)),))
    return [made] if result is None else [made, Message(role="tool", content=result, error=error)]


def reasons(*messages, granularity="part", policy=None, meta=None, tools=TOOLS, **settings):
    """The reason of each step that breaks a rule, by number."""
    problem = Problem(text="Send my money back.", meta=meta or {})
    user = Message(role="user", content="Send back the money for order ORD-1042.")
    trace = Trace(problem_id=problem.id, messages=(user, *messages), tools=tools)
    trace = segment_trace(trace, granularity=granularity)
    verifier = ToolCallVerifier(policy=policy or ToolPolicy(), **settings)
    assert isinstance(verifier, StepVerifier)
    (row,) = verifier.verify([ProblemTrace(problem=problem, trace=trace)])
    assert len(row) == len(trace.steps)
    assert {verdict.value for verdict in row} <= {None, -1}
    return {number: verdict.reason for number, verdict in enumerate(row) if verdict.value == -1}


@pytest.mark.parametrize("granularity", ["part", "message"])
def test_a_call_of_no_tool_or_against_its_schema(granularity):
    found = reasons(
        *call("look", "paid", order="ORD-1042"),
        *call("pay", "no", error=True),
        *call("look", "no", error=True, order=7),
        granularity=granularity,
    )
    assert found == {
        1: "schema: tool 'pay' does not exist; the tools are: look, refund, wait",
        2: 'schema: order: 7 is not of type "string"',
    }
    assert reasons(*call("pay", "ok"), tools=()) == {}
    assert reasons(*call("look", "ok"), tools=(Tool(name="look", parameters="{"),)) == {}


def test_the_same_call_again():
    look = call("look", "paid", order="ORD-1042")
    assert reasons(*look, *look) == {
        1: "repeated-call: the same call has been made, and nothing has changed since"
    }
    spaced = Message(role="assistant", tool_calls=(ToolCall(name="look", arguments='{ "order":"ORD-1042"}'),))
    assert list(reasons(*look, spaced)) == [1]  # about to be made
    both = Message(role="assistant", tool_calls=look[0].tool_calls * 2)
    assert list(reasons(both, look[1], look[1])) == [1]


def test_a_call_again_that_may_have_a_reason():
    look, refund = call("look", "paid", order="ORD-1042"), call("refund", "done", order="ORD-1042")
    assert reasons(*look, *refund, *look) == {}
    assert reasons(*look, Message(role="user", content="Look again."), *look) == {}
    assert reasons(*look, *call("look", "sent", order="ORD-1042")) == {}
    assert reasons(*look, *look, policy=ToolPolicy(repeatable=("look",))) == {}
    wait = call("wait", "ok", order="ORD-1042")
    assert list(reasons(*look, *wait, *look, policy=ToolPolicy(read_only=("wait",)))) == [2]


def test_a_failed_call_may_be_tried_once_more():
    failed = call("look", "time-out", error=True, order="ORD-1042")
    assert reasons(*failed, *failed) == {}
    assert reasons(*failed * 3) == {2: "repeated-call: the same call has failed twice"}


def test_an_answer_as_if_the_last_call_had_not_failed():
    failed = call("refund", "Error: not paid", order="ORD-1042")
    assert reasons(*failed, said("The money is on its way.")) == {
        1: "ignored-error: refund failed, and the answer does not say so"
    }
    assert reasons(*failed, said("I could refund nothing.")) == {}
    assert reasons(*failed, said("Das Geld ist für Sie unterwegs.")) == {}
    assert reasons(*failed, *call("refund", "done", order="ORD-1042"), said("The money is on its way.")) == {}
    later = Message(role="user", content="Thanks")
    assert reasons(*failed, said("Which order is it?"), later, said("The money is on its way.")) == {}


def test_an_identifier_from_nowhere():
    look = call("look", '{"order": "ORD-1042", "total": 1500, "parcel": 77210}', order="ORD-1042")
    assert reasons(*look, said("Order #ORD-1043 is paid, with parcel P77210.")) == {
        1: "unsupported-claim: #ORD-1043 occurs in no earlier message or successful call"
    }
    for text in ("It costs 3000.", "See ORD1042.", "Since mid-2019.", "16GB, 3rd, COVID-19"):
        assert reasons(*look, said(text)) == {}
    assert reasons(said("The parcel is P4711."), rules=("schema",)) == {}


def test_without_tools_an_agent_may_report_what_it_observed():
    problem = Problem(text="Find the parcel")
    chat = segment_trace(Trace(problem_id=problem.id, messages=(said("The page shows parcel P47110."),)))
    [[verdict]] = ToolCallVerifier().verify([ProblemTrace(problem=problem, trace=chat)])
    assert verdict.value is None
    with_tools = segment_trace(chat.model_copy(update={"tools": TOOLS}))
    [[verdict]] = ToolCallVerifier().verify([ProblemTrace(problem=problem, trace=with_tools)])
    assert (verdict.value, verdict.reason.partition(":")[0]) == (-1, "unsupported-claim")


def test_a_policy_with_the_verifier_and_with_the_problem():
    paid = "latest('look', {'order': args.order}).state == 'paid'"
    policy = ToolPolicy(
        forbidden=("wait",),
        rules=(
            PolicyRule(tools=("refund",), require=paid, reason="the order must be paid"),
            PolicyRule(tools=("refund",), require="args.amount <= 100", reason="ask a person above 100"),
            PolicyRule(tools=("refund",), require="!has(args.to) || args.to in ['card', 'gift card']"),
            PolicyRule(tools=("refund",), require="size(attempts('refund')) < 1", reason="one refund"),
        ),
    )
    looked = call("look", '{"state": "paid"}', order="ORD-1042")
    found = reasons(
        *call("refund", "done", order="ORD-1042", amount=1),
        *call("wait", "ok", order="ORD-1042"),
        *looked,
        *call("refund", "Error: no", order="ORD-1042", amount=101, to="crypto"),
        *call("refund", "done", order="ORD-1043", amount=1),
        meta={"tool_policy": policy.model_dump(mode="json")},
        rules=("policy",),
    )
    unseen = "policy: the order must be paid (no look with these arguments has been answered)"
    assert found == {
        0: unseen,
        1: "policy: wait is forbidden",
        3: "policy: ask a person above 100; "
        "policy: required: !has(args.to) || args.to in ['card', 'gift card']; policy: one refund",
        4: f"{unseen}; policy: one refund",
    }
    clean = [*looked, *call("refund", "done", order="ORD-1042", amount=5)]
    assert reasons(*clean, policy=policy) == {}
    open_order = [*call("look", '{"state": "open"}', order="ORD-1042"), *clean[2:]]
    assert reasons(*open_order, policy=policy) == {1: "policy: the order must be paid"}


def test_evidence_is_structure_and_no_text():
    rule = PolicyRule(
        tools=("refund",), require="latest('look').state == 'paid' && latest('look').total == 5.0"
    )

    def cleared(result):
        run = [*call("look", result, order="ORD-1042"), *call("refund", "done", order="ORD-1042")]
        problem = Problem(text="Refund")
        trace = Trace(problem_id=problem.id, messages=tuple(run), tools=TOOLS)
        verifier = ToolCallVerifier(policy=ToolPolicy(rules=(rule,)), rules=("policy",))
        (row,) = verifier.verify([ProblemTrace(problem=problem, trace=segment_trace(trace))])
        return row[1].reason == "breaks no rule"

    assert cleared(' {"state": "paid", "total": 5, "note": ""} ')
    assert cleared('{"state": "paid", "total": 5} and more')
    for hostile in (
        '{"state": "open", "total": 5}\n{"state": "paid", "total": 5}',
        '{"state": "open", "total": 5, "state": "paid"}',
        '{"state": "open", "note": "\\"state\\": \\"paid\\", \\"total\\": 5"}',
        'It is {"state": "paid", "total": 5}',
        '["paid"]',
        "[" * 100_000,
        '{"state": "paid"}',
        '{"state": "paid", "total": "5"}',
    ):
        assert not cleared(hostile)


def test_what_is_no_policy_or_no_rule_is_named():
    with pytest.raises(LabelError, match="'tool_policy' is not a valid policy"):
        reasons(said("Hello"), meta={"tool_policy": {"rule": 1}})
    with pytest.raises(LabelError, match="unknown rule typo"):
        ToolCallVerifier(rules=("typo",))


def test_hostile_arguments_are_read_as_what_they_are():
    deep = Message(role="assistant", tool_calls=(ToolCall(name="look", arguments="[" * 100_000),))
    assert list(reasons(deep, deep)) == [0, 1]
    assert reasons(deep, deep, rules=("policy",), policy=ToolPolicy(forbidden=("refund",))) == {}


def test_results_belong_to_calls_by_id_or_by_place():
    calls = tuple(ToolCall(id=name, name="look") for name in "ab")
    answers = [Message(role="tool", content=name, tool_call_id=name) for name in "ba"]
    found = list(call_results([Message(role="assistant", tool_calls=calls), *answers]))
    assert [one.result.content for one in found] == ["a", "b"]
    found = list(call_results([Message(role="assistant", tool_calls=calls), answers[0]]))
    assert [one.succeeded for one in found] == [False, True]
    found = list(
        call_results([Message(role="assistant", tool_calls=calls), Message(role="tool", content="x")])
    )
    assert [one.result and one.result.content for one in found] == ["x", None]


def test_the_command_takes_rules_and_a_policy(tmp_path):
    assert isinstance(open_verifier("tool-calls"), ToolCallVerifier)
    problem = Problem(text="Refund")
    trace = Trace(problem_id=problem.id, messages=tuple(call("wait", "ok", order="1") * 2), tools=TOOLS)
    write_records(tmp_path / "p.jsonl", [problem])
    write_records(tmp_path / "t.jsonl", [segment_trace(trace)])
    (tmp_path / "policy.json").write_text('{"forbidden": ["wait"]}')
    app = SettingsCommand("label", Label)
    asked = [
        str(tmp_path / "t.jsonl"),
        "--problems",
        str(tmp_path / "p.jsonl"),
        "--out",
        str(tmp_path / "l.jsonl"),
    ]
    asked += ["--tool-policy", str(tmp_path / "policy.json")]
    refused = CliRunner().invoke(app, [*asked, "verify:rules=equations"])
    assert "belong to rules=tool-calls" in str(refused.exception or refused.output)
    done = CliRunner().invoke(app, [*asked, "verify:rules=tool-calls,tool-rules=policy"])
    assert done.exit_code == 0, done.output
    labels = list(read_records(tmp_path / "l.jsonl", StepLabel))
    assert [label.value for label in labels] == [-1, -1]
    assert labels[0].evidence.message == "policy: wait is forbidden"
