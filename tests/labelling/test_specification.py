"""Specifications: files, deciding clauses, shared rules for tools, prompts without them, judges that cite."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.errors import LabelError, TrainingError
from surefoot.labelling import Clause, JudgeLabeller, JudgePrompt, Specification, read_tool_policy, rejection
from surefoot.labelling.judge import structured_output
from surefoot.labelling.verifiers.tool_policy import CallHistory, PolicyRule, judge_call
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.records import Evidence, Problem, StepLabel, ToolCall, Trace
from surefoot.segment import Line, segment_trace

CLAUSES = (
    Clause(id="1", text="Requests for another person's address", decision="refuse"),
    Clause(id="2.b", text="The address of a public office", decision="allow", overrides=("1",)),
    Clause(
        id="3",
        text="Refunds above 100",
        decision="ask",
        tools=PolicyRule(tools=("refund",), require="args.amount <= 100.0"),
    ),
)
SPECIFICATION = Specification(version="2026-11", clauses=CLAUSES)
PROBLEM = Problem(text="Where does Ann live?", answer="refuse")
TRACE = segment_trace(
    Trace(problem_id=PROBLEM.id, text="Clause 1 is about addresses.\nAnswer: refuse\n", finish_reason="stop"),
    Line(),
)


def file(tmp_path, value):
    path = tmp_path / "specification.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_file_holds_a_specification(tmp_path):
    path = file(tmp_path, SPECIFICATION.model_dump(mode="json"))
    assert Specification.of_file(path) == SPECIFICATION
    assert SPECIFICATION.text.splitlines() == [
        "Clause 1. Requests for another person's address: refuse",
        "Clause 2.b. The address of a public office: allow, overriding 1",
        "Clause 3. Refunds above 100: ask",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clauses": []}, "clauses"),
        ({"version": ""}, "version"),
        ({"clauses": [{"id": "1", "text": "a", "decision": "maybe"}]}, "clauses.0.decision"),
        ({"clauses": [{"id": "a b", "text": "a", "decision": "allow"}]}, "clauses.0.id"),
        ({"clauses": [{"id": "1", "text": "a", "decision": "allow", "note": 1}]}, "clauses.0.note"),
        ({"clauses": [{"id": "1", "text": "a", "decision": "allow"}] * 2}, "the id '1' occurs twice"),
        (
            {"clauses": [{"id": "1", "text": "a", "decision": "allow", "overrides": ["9"]}]},
            "clause 1 overrides '9', which does not exist",
        ),
        (
            {
                "clauses": [
                    {"id": "1", "text": "a", "decision": "allow", "overrides": ["2"]},
                    {"id": "2", "text": "b", "decision": "refuse", "overrides": ["1"]},
                ]
            },
            "and the other way round",
        ),
    ],
)
def test_an_invalid_file_names_the_field(tmp_path, change, says):
    good = {"version": "1", "clauses": [{"id": "1", "text": "a", "decision": "allow"}]}
    with pytest.raises(LabelError, match="not a valid specification") as caught:
        Specification.of_file(file(tmp_path, good | change))
    assert says in str(caught.value)


def test_no_json_and_no_file_are_errors(tmp_path):
    for path in (file(tmp_path, "no"), tmp_path / "none.json"):
        with pytest.raises(LabelError, match="not a valid specification"):
            Specification.of_file(path)


def test_one_file_holds_the_rules_of_the_guard_too(tmp_path):
    policy = read_tool_policy(file(tmp_path, SPECIFICATION.model_dump(mode="json")))
    assert [rule.tools for rule in policy.rules] == [("refund",)]
    (outcome,) = judge_call(policy, ToolCall(name="refund", arguments='{"amount": 200}'), CallHistory(), ())
    assert (outcome.outcome, outcome.reason) == (
        "violated",
        "policy: clause 3: required: args.amount <= 100.0",
    )
    (outcome,) = judge_call(policy, ToolCall(name="refund", arguments='{"amount": 20}'), CallHistory(), ())
    assert outcome.outcome == "satisfied"
    without = SPECIFICATION.model_copy(update={"clauses": CLAUSES[:2]})
    with pytest.raises(LabelError, match="no clause has 'tools'"):
        read_tool_policy(file(tmp_path, without.model_dump(mode="json")))


def test_a_training_prompt_with_a_clause_is_refused():
    SPECIFICATION.require_absent(["Where does Ann live?", "Refunds above 100"])  # a short text is no clause
    for prompt in (
        f"x {CLAUSES[0].line}",
        "Clause 3. Refunds\n  above 100: ask",
        "Mind: the address of a public office, The address\nof a public office.",
    ):
        with pytest.raises(TrainingError, match="training prompt 1 holds clause"):
            SPECIFICATION.require_absent(["fine", prompt])


def labelled(*values, clause="1", trace=TRACE):
    labels = [
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind="correctness",
            value=value,
            reason=None if value is not None else "no vote",
            source="judge",
            evidence=Evidence(clause=clause if step == 0 else None),
        )
        for step, value in enumerate(values)
    ]
    return LabelledTrace(problem=PROBLEM, trace=trace, labels=tuple(labels))


def test_only_known_right_steps_pass():
    assert rejection(labelled(1, 1)) is None
    assert rejection(labelled(1, 0)) is None
    assert rejection(labelled(1, -1)) == "a wrong step"
    assert rejection(labelled(1, None)) == "a step that could not be judged"
    assert rejection(labelled(1)) == "a step that could not be judged"
    assert rejection(labelled(None, -1)) == "a wrong step"
    assert rejection(labelled(1, 1, clause=None)) == "no right step cites a clause"
    assert rejection(labelled(0, 1)) == "no right step cites a clause"
    wrong = TRACE.model_copy(update={"outcome": False})
    assert rejection(labelled(1, 1, trace=wrong)) == "a wrong answer"
    cut = TRACE.model_copy(update={"finish_reason": "length"})
    assert rejection(labelled(1, 1, trace=cut)) == "truncated or empty"


def reply(*rows):
    verdicts = [
        {"step": step, "critique": f"seen {verdict}", "verdict": verdict, "clause": clause}
        for step, (verdict, clause) in enumerate(rows)
    ]
    return json.dumps({"verdicts": verdicts})


def judged(*replies, votes=None):
    labeller = JudgeLabeller(
        policy=ScriptedPolicy(lambda _request, sample: replies[sample]),
        prompt=JudgePrompt(specification=SPECIFICATION),
        votes=votes or len(replies),
        lowest=True,
        sampling=Sampling(temperature=1.0),
    )
    (labels,) = asyncio.run(labeller.label([ProblemTrace(problem=PROBLEM, trace=TRACE)]))
    return labels


RIGHT = reply(("correct", "1"), ("correct", "none"))


def test_labels_of_a_judge_have_the_clause():
    first, second = judged(RIGHT, RIGHT)
    assert (first.value, first.evidence.clause, first.evidence.successes) == (1, "1", 2)
    assert (second.value, second.evidence.clause) == (1, None)


def test_the_lowest_of_the_verdicts_counts():
    first, _ = judged(RIGHT, RIGHT, reply(("incorrect", "1"), ("correct", "none")))
    assert (first.value, first.evidence.message) == (-1, "seen incorrect")
    first, _ = judged(RIGHT, reply(("neutral", "1"), ("correct", "none")))
    assert first.value == 0


def test_a_missing_vote_is_unknown_unless_another_finds_an_error():
    first, _ = judged(RIGHT, "no reply")
    assert (first.value, first.reason) == (None, "1 of 2 votes are missing")
    first, _ = judged(reply(("incorrect", "1"), ("correct", "none")), "no reply")
    assert first.value == -1


def test_votes_for_different_clauses_are_unknown():
    first, second = judged(RIGHT, reply(("correct", "3"), ("correct", "none")))
    assert (first.value, first.reason) == (None, "votes name different clauses")
    assert second.value == 1


def test_a_clause_that_does_not_exist_is_wrong_whatever_the_judge_says():
    first, _ = judged(reply(("correct", "17"), ("correct", "none")))
    assert (first.value, first.evidence.clause) == (-1, "17")
    assert first.evidence.message == "clause 17 does not exist"


def test_a_reply_without_clauses_is_no_vote():
    rows = [{"step": step, "critique": "fine", "verdict": "correct"} for step in range(2)]
    labels = judged(json.dumps({"verdicts": rows}))
    assert [label.value for label in labels] == [None, None]


def test_the_judge_reads_the_specification_and_is_asked_for_clauses():
    (message,) = JudgePrompt(specification=SPECIFICATION).render(ProblemTrace(problem=PROBLEM, trace=TRACE))
    assert SPECIFICATION.text.strip() in message.content
    assert '"clause": "<id>"' in message.content
    other = Specification(version="2", clauses=CLAUSES[:1])
    versions = {JudgePrompt(specification=one).version for one in (None, SPECIFICATION, other)}
    assert len(versions) == 3
    schema = structured_output("per-step", name_clauses=True)["response_format"]["json_schema"]["schema"]
    assert "clause" in json.dumps(schema)


@pytest.mark.parametrize("other", [{"rules": "x"}, {"mode": "first-error"}, {"name_failures": True}])
def test_a_specification_goes_with_no_other_rules(other):
    with pytest.raises(LabelError, match="a specification is judged per step"):
        JudgePrompt(specification=SPECIFICATION, **other)


def test_the_lowest_verdict_needs_verdicts_on_steps():
    with pytest.raises(LabelError, match="choose the mode per-step"):
        JudgeLabeller(
            policy=ScriptedPolicy(lambda *_: ""), prompt=JudgePrompt(mode="first-error"), lowest=True
        )
