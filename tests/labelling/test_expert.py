"""Agreement with experts: the path, rules for "the same step", the command, real solutions and runs."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError, SurefootError
from surefoot.formats import read_gsm8k_solutions, read_processbench
from surefoot.io import read_records, write_records
from surefoot.labelling.expert import ExpertLabeller, expert_traces, match_key
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import Message, Problem, StepLabel, ToolCall, Trace
from surefoot.segment import Line, segment_trace

DATA = Path(__file__).parents[2] / "../shared/data"
PROBLEM = Problem(text="Go to the end.")
LEFT = "after leaving the expert's path"
ENDED = "after the end of the expert's path"
DEPARTED = "no expert took this step, which does not prove an error"


def text_trace(*lines, policy=None, problem=PROBLEM, **fields):
    text = "".join(f"{line}\n" for line in lines)
    return segment_trace(Trace(problem_id=problem.id, text=text, policy=policy, **fields), Line())


def agent_trace(*turns, **fields):
    """Turns: a text, or a list of (tool name, arguments)."""
    messages = [Message(role="user", content="Hello")]
    for turn in turns:
        calls = () if isinstance(turn, str) else tuple(ToolCall(name=n, arguments=a) for n, a in turn)
        messages.append(
            Message(role="assistant", content=turn if isinstance(turn, str) else None, tool_calls=calls)
        )
        messages.append(Message(role="tool", content="done"))
    return segment_trace(
        Trace(problem_id=PROBLEM.id, messages=tuple(messages), **fields), granularity="message"
    )


def labelled(trace, *experts, match="exact", **settings):
    labeller = ExpertLabeller(experts={PROBLEM.id: experts}, match=match, **settings)
    assert isinstance(labeller, Labeller)
    (labels,) = asyncio.run(labeller.label([ProblemTrace(problem=PROBLEM, trace=trace)]))
    assert [label.step for label in labels] == list(range(len(trace.steps)))
    assert {(label.trace_id, label.kind, label.source) for label in labels} == {
        (trace.id, "correctness", "expert")
    }
    assert all(label.evidence.usage.tokens == 0 for label in labels)
    return labels


def said(labels):
    return [label.reason if label.value is None else label.value for label in labels]


def test_steps_are_right_up_to_the_departure_which_is_no_proof_of_an_error():
    trace, expert = text_trace("a", "b", "x", "d"), text_trace("a", "b", "c", "d", policy="human")
    assert said(labelled(trace, expert)) == [1, 1, DEPARTED, LEFT]
    assert said(labelled(trace, expert, disagreement="wrong")) == [1, 1, -1, LEFT]


def test_evidence_names_the_experts_and_shows_the_expert_step():
    experts = [text_trace("a", "b", policy="ann"), text_trace("a", "c", policy="bob"), text_trace("z")]
    first, second, _ = labelled(text_trace("a", "c", "d"), *experts)
    assert (first.evidence.successes, first.evidence.trials, first.evidence.rater) == (2, 3, "ann, bob")
    assert (second.evidence.successes, second.evidence.trials, second.evidence.rater) == (1, 2, "bob")
    assert second.evidence.message.endswith(f"step 2 of expert trace {experts[1].id}: c")


def test_the_same_point_is_the_same_prefix():
    # "c" follows "b" for the second expert only, and that one never said "a".
    experts = [text_trace("a", "b", "d"), text_trace("x", "b", "c")]
    assert said(labelled(text_trace("a", "b", "c"), *experts)) == [1, 1, DEPARTED]


def test_going_on_after_the_expert_has_ended_is_unknown_even_where_departures_are_wrong():
    found = labelled(text_trace("a", "b", "c"), text_trace("a"), disagreement="wrong")
    assert said(found) == [1, ENDED, ENDED]


def test_no_trace_is_its_own_expert():
    trace = text_trace("a", "b")
    assert said(labelled(trace, trace)) == ["no expert trace of this problem"] * 2
    assert said(labelled(trace, trace, text_trace("a", "c"))) == [1, DEPARTED]
    assert said(labelled(trace)) == ["no expert trace of this problem"] * 2


LINES = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


@settings(deadline=None)
@given(LINES, st.lists(LINES, max_size=4))
def test_labels_follow_from_the_prefixes_that_experts_wrote(lines, paths):
    trace = text_trace(*lines, sample=99)
    labels = labelled(trace, *(text_trace(*path, sample=n) for n, path in enumerate(paths)))
    for step, label in enumerate(labels):
        assert (label.value == 1) == any(path[: step + 1] == lines[: step + 1] for path in paths)
        departs = label.reason == DEPARTED
        assert departs == (
            label.value is None and any(path[:step] == lines[:step] and len(path) > step for path in paths)
        )


@pytest.mark.parametrize(
    ("rule", "left", "right", "same"),
    [
        ("exact", "so  2 + 2\t= 4", " so 2 + 2 = 4", True),
        ("exact", "so 2 + 2 = 4", "So 2 + 2 = 4", False),
        ("numbers", "She sold 48/2 = 24 clips.", "48 / 2 is 24", True),
        ("numbers", "$1,234.50 in all", "1234.5", True),
        ("numbers", "pays $.50", "0.5", True),
        ("numbers", "5-3 = 2", "5 - 3 = 2", True),
        ("numbers", "x = -3", "x = 3", False),
        ("numbers", "(2)-3", "2 3", True),
        ("numbers", "x2 = 4", "x = 4", True),
        ("numbers", "2 and 3", "3 and 2", False),
        ("numbers", "2 and 3", "2", False),
        ("numbers", "1,2345", "1 2345", True),
        ("numbers", "0.333", "0.334", False),
        ("numbers", "0.50", ".5", True),
        ("numbers", "-0", "0", True),
        ("numbers", "9007199254740993", "9007199254740992", False),
        ("numbers", "9" * 5000, "8" * 5000, False),
    ],
)  # fmt: skip
def test_when_two_texts_are_the_same_step(rule, left, right, same):
    keys = [match_key(rule, text_trace(text), 0) for text in (left, right)]
    assert (keys[0] == keys[1]) is same


def test_steps_with_nothing_to_compare_are_passed_over_on_both_sides():
    trace = text_trace("Let us see.", "2 + 3 = 5", "So:", "5 - 1 = 4")
    expert = text_trace("2 + 3 = 5 apples", "Then", "she eats", "5 - 1 = 4 of them")
    nothing = "the step has no number to compare"
    assert said(labelled(trace, expert, match="numbers")) == [nothing, 1, nothing, 1]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ('{"a": 1, "b": [2]}', '{"b":[2.0],"a":1}', True),
        ('{"a": 1}', '{"a": 1.1}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 1}', '{"a": 1, "b": null}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ("", "{}", True),
        ("not json", "not json", True),
        ("not json", "{}", False),
        ('{"a": 1e999999999999999999}', '{"a": -1e999999999999999999}', False),
        ('{"a": NaN}', '{"a": NaN}', True),
        ("[" * 100_000, "[" * 100_000, True),
        ("[" * 900 + "1" + "]" * 900, "[" * 900 + "1" + "]" * 900, True),
    ],
)
def test_tool_calls_are_the_same_if_their_arguments_are_the_same_data(left, right, same):
    def key(*calls):
        return match_key("tool-call", agent_trace([*calls]), 0)

    keys = [key(("f", arguments)) for arguments in (left, right)]
    assert (keys[0] == keys[1]) is same
    assert keys[0] != key(("g", left))
    assert keys[0] != key(("f", left), ("f", left))


def test_an_agent_is_compared_by_its_tool_calls_whatever_it_says():
    talk = "the step calls no tool"
    trace = agent_trace("May I?", [("get", '{"id": 1}')], "Thanks.", [("pay", '{"sum": 5}')], [("end", "{}")])
    expert = agent_trace([("get", '{"id":1}')], "One moment.", [("pay", '{"sum": 6}')])
    found = labelled(trace, expert, match="tool-call", disagreement="wrong")
    assert said(found) == [talk, 1, talk, -1, LEFT]
    assert found[3].evidence.message.endswith(f'step 3 of expert trace {expert.id}: pay({{"sum": 6}})')


def test_each_call_is_a_step_of_its_own():
    content = "I look.\nThen I call."
    call = ToolCall(name="get", arguments="{}")
    message = Message(role="assistant", content=content, tool_calls=(call,))
    trace = segment_trace(Trace(problem_id=PROBLEM.id, messages=(message,)))
    found = labelled(trace, agent_trace([("get", "{}")]), match="tool-call")
    assert said(found) == ["the step calls no tool", 1]


def test_a_rule_that_does_not_see_the_step_refuses_the_trace():
    with pytest.raises(LabelError, match="'tool-call' reads chat traces"):
        labelled(text_trace("a"), text_trace("b"), match="tool-call")
    with pytest.raises(LabelError, match="calls a tool, which text rules do not see"):
        labelled(agent_trace([("f", "{}")]), agent_trace("hm"))
    assert said(labelled(agent_trace("hm"), agent_trace(" hm "))) == [1]


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(LabelError, match="disagreement is 'bad'; choose unknown or wrong"):
        ExpertLabeller(experts={}, match="exact", disagreement="bad")
    with pytest.raises(LabelError, match="lacks steps"):
        ExpertLabeller(experts={"p": [Trace(problem_id="p", text="a")]})
    with pytest.raises(LabelError, match=f"problem q, its 'problem_id' is {PROBLEM.id}"):
        ExpertLabeller(experts={"q": [text_trace("a")]})


def test_traces_without_steps_or_with_a_wrong_outcome_are_no_experts():
    good, unknown = text_trace("a", outcome=True), text_trace("b")
    bad, empty = text_trace("c", outcome=False), Trace(problem_id=PROBLEM.id, text="d")
    assert expert_traces([good, bad, unknown, empty]) == (
        {PROBLEM.id: [good, unknown]},
        {"wrong outcome": 1, "no steps": 1},
    )


@pytest.fixture
def run(tmp_path):
    """The command on files; gives the labels, or the error, and standard error."""
    app = SettingsCommand("label", Label)
    write_records(tmp_path / "problems.jsonl", [PROBLEM])
    write_records(tmp_path / "traces.jsonl", [text_trace("a", "2 + 2 = 4", "9")])
    experts = [text_trace("so 2+2 = 4", "8"), text_trace("9", outcome=False)]
    write_records(tmp_path / "experts.jsonl", experts)

    def invoke(method="expert"):
        files = {name: str(tmp_path / f"{name}.jsonl") for name in ("traces", "problems", "experts", "out")}
        words = [files["traces"], method, "--problems", files["problems"], "--traces", files["experts"]]
        result = CliRunner().invoke(app, [*words, "--out", files["out"], "--force"])
        nothing = isinstance(result.exception, LabelError) and "none of the" in str(result.exception)
        if result.exception and not nothing:
            raise result.exception
        return list(read_records(tmp_path / "out.jsonl", StepLabel)), result.stderr

    return invoke


def test_the_command_labels_files_and_says_what_it_left_out(run):
    labels, err = run("expert:match=numbers,disagreement=wrong")
    assert said(labels) == ["the step has no number to compare", 1, -1]
    assert "1 expert trace left out: wrong outcome" in err
    assert "3 labels written, 1 of them without a value" in err
    assert said(run()[0]) == [DEPARTED, LEFT, LEFT]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("match=near", "match is 'near'; choose exact, numbers or tool-call"),
        ("disagreement=bad", "disagreement is 'bad'; choose unknown or wrong"),
        ("match=tool-call", "choose exact or numbers"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(run, settings, message):
    with pytest.raises(SurefootError, match=message):
        run(f"expert:{settings}")


def test_departures_from_the_reference_solution_are_mostly_right_steps():
    """Why a departure is unknown by default: on ProcessBench, 342 of 396 rated departures are no errors."""
    paths = [DATA / "math/gsm8k_test.jsonl.gz", DATA / "processbench/gsm8k.json.gz"]
    if not all(path.exists() for path in paths):
        pytest.skip("GSM8K and ProcessBench are not here")
    solutions = {item.problem.text.strip(): item.trace for item in read_gsm8k_solutions(paths[0])}
    rows = list(read_processbench(paths[1]))
    experts = {
        row.problem.id: [
            solutions[row.problem.text.strip()].model_copy(update={"problem_id": row.problem.id})
        ]
        for row in rows
    }
    labeller = ExpertLabeller(experts=experts, match="numbers", disagreement="wrong")
    items = [ProblemTrace(problem=row.problem, trace=row.trace) for row in rows]
    pairs = {(own, human): 0 for own in (1.0, -1.0, None) for human in (1.0, -1.0, None)}
    for row, labels in zip(rows, asyncio.run(labeller.label(items)), strict=True):
        human = {label.step: label.value for label in row.labels}
        for label in labels:
            pairs[label.value, human.get(label.step)] += 1
    assert (pairs[-1.0, 1.0], pairs[-1.0, -1.0]) == (342, 54)
    assert (pairs[1.0, 1.0], pairs[1.0, -1.0]) == (19, 1)


def test_successful_runs_of_an_agent_depart_from_one_another():
    """On tau-bench airline, 54 of the 72 successful runs that have a successful sibling leave its path."""
    path = DATA / "agent/tau_bench_gpt4o_airline.json.gz"
    if not path.exists():
        pytest.skip("tau-bench runs are not here")
    with gzip.open(path) as stream:
        traces = [tau_trace(run) for run in json.load(stream)]
    experts, left_out = expert_traces(traces)
    assert left_out == {"wrong outcome": 116}
    labeller = ExpertLabeller(experts=experts, match="tool-call", disagreement="wrong")
    items = [ProblemTrace(problem=Problem(id=trace.problem_id, text="task"), trace=trace) for trace in traces]
    found = {True: [0, 0, 0], False: [0, 0, 0]}
    for trace, labels in zip(traces, asyncio.run(labeller.label(items)), strict=True):
        if labels[0].reason == "no expert trace of this problem":
            continue
        departs = any(label.value == -1 for label in labels)
        goes_on = any(label.reason == ENDED for label in labels)
        assert not (departs and goes_on)
        found[trace.outcome][0 if departs else 1 if goes_on else 2] += 1
    assert found == {True: [54, 2, 16], False: [39, 10, 11]}


def tau_trace(run):
    messages = [
        Message(
            role=message["role"],
            content=message.get("content"),
            tool_call_id=message.get("tool_call_id"),
            tool_calls=tuple(
                ToolCall(
                    id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"]
                )
                for call in message.get("tool_calls") or ()
            ),
        )
        for message in run["traj"]
    ]
    trace = Trace(
        problem_id=f"task-{run['task_id']}",
        messages=tuple(messages),
        outcome=run["reward"] == 1,
        sample=run["trial"],
    )
    return segment_trace(trace, None)
