"""Replay of the state: each verdict, on an environment of three drawers."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner
from drawers import Drawers, TidyAgent, tidy_tasks

from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError
from surefoot.io import read_records, write_records
from surefoot.labelling import StateReplayVerifier, gold_calls
from surefoot.protocols import Observation, ProblemTrace, StepVerifier
from surefoot.records import Message, Problem, StepLabel, ToolCall, Trace
from surefoot.segment import segment_trace


class NoState:
    """An environment that cannot be compared."""

    name, tools = "sealed", ()
    reset, step, outcome = Drawers.reset, Drawers.step, Drawers.outcome


def put(drawer, thing):
    return ("put", {"drawer": drawer, "thing": thing})


GOLD = [put("a", 1), ("peek", {"drawer": "a"}), put("b", 2)]


def run(*actions, gold=GOLD, granularity="part", results=True, environment=Drawers, **settings):
    """Kind and value of each step."""
    named = [{"name": name, "arguments": arguments} for name, arguments in gold] if gold else None
    problem = Problem(text="Tidy up.", meta={"gold_actions": named} if named else {})
    world, messages = Drawers(), []
    world.reset(problem)
    for action in actions:
        if isinstance(action, str):
            messages.append(Message(role="assistant", content=action))
            continue
        call = ToolCall(name=action[0], arguments=json.dumps(action[1]))
        answer = Message(role="tool", content=world.step(call).text if results is True else results)
        messages += [Message(role="assistant", tool_calls=(call,)), answer]
    trace = segment_trace(Trace(problem_id=problem.id, messages=tuple(messages)), granularity=granularity)
    verifier = StateReplayVerifier(environment=environment, **settings)
    assert isinstance(verifier, StepVerifier)
    (row,) = verifier.verify([ProblemTrace(problem=problem, trace=trace)])
    return [(verdict.reason.split(":")[0], verdict.value) for verdict in row]


@pytest.mark.parametrize("granularity", ["part", "message"])
def test_the_gold_run_is_right(granularity):
    end = ("ends in the gold run's end state", 1)
    assert run(*GOLD, "done", granularity=granularity) == [("needed", 1)] * 3 + [end]
    assert run(GOLD[2], *GOLD[:2], "done")[:3] == [("needed", 1)] * 3


def test_every_kind_of_call():
    assert run(put("a", 7)) == [("wrong argument", -1)]
    assert run(("put", {"drawer": "x", "thing": 1})) == [("wrong argument", -1)]
    assert run(("drop", {"drawer": "x"})) == [("harmless", 0)]
    assert run(("peek", {"drawer": "b"}), ("peek", {"drawer": "b"})) == [("harmless", 0)] * 2
    assert run(*GOLD, put("c", 3), put("c", {"d": []}), "done")[3:] == [
        ("damaging", -1),
        ("repairs", 1),
        ("ends in the gold run's end state", 1),
    ]
    assert run(GOLD[0], "done") == [("needed", 1), ("ends too early", -1)]
    assert run("hello") == [("a text before the end", None)]


def test_the_same_end_and_the_same_knowledge_by_other_calls():
    other = ("look", {"drawer": "a"})  # any tool but put shows the drawer
    assert run(GOLD[0], other, GOLD[2]) == [("needed", 1)] * 3
    extra = {"drawer": "b", "thing": 2, "gently": True}
    assert run(("put", extra)) == [("needed", 1)]


def test_calls_that_commute_have_no_order():
    end = ("ends in the gold run's end state", 1)
    for swapped in ([GOLD[2], *GOLD[:2]], [GOLD[0], GOLD[2], GOLD[1]]):
        assert run(*swapped, "done", order="gold") == [("needed", 1)] * 3 + [end]
    early = run(GOLD[1], GOLD[0], GOLD[2], "done", order="gold")
    assert early == [("wrong order", -1), ("needed", 1), ("needed", 1), end]


def test_the_order_over_all_permutations_is_that_of_brute_force():
    """A run of the gold calls in some order has a wrong call iff a result or the end is not the gold one."""
    gold = [put("a", 1), put("b", 2), ("peek", {"drawer": "a"}), put("a", 3), ("peek", {"drawer": "b"})]
    for order in itertools.permutations(range(len(gold))):
        world, results = Drawers(), [""] * len(gold)
        world.reset(Problem(text="Tidy up."))
        for place in order:
            name, arguments = gold[place]
            results[place] = world.step(ToolCall(name=name, arguments=json.dumps(arguments))).text
        same = (results, world.state()["a"]) == (
            ['{"a": 1}', '{"b": 2}', '{"a": 1}', '{"a": 3}', '{"b": 2}'],
            3,
        )
        verdicts = run(*(gold[place] for place in order), "done", gold=gold, order="gold")
        assert same == all(value == 1 for _, value in verdicts), (order, verdicts)


def test_the_culprit_is_the_last_call_that_it_depends_on():
    world_calls = [put("b", 2), put("a", 1), put("c", 0), ("peek", {"drawer": "a"})]
    problem = Problem(
        text="Tidy up.",
        meta={"gold_actions": [{"name": name, "arguments": arguments} for name, arguments in world_calls]},
    )
    call = ToolCall(name="peek", arguments='{"drawer": "a"}')
    trace = Trace(problem_id=problem.id, messages=(Message(role="assistant", tool_calls=(call,)),))
    item = ProblemTrace(problem=problem, trace=segment_trace(trace))
    ((verdict,),) = StateReplayVerifier(environment=Drawers, order="gold").verify([item])
    assert verdict.reason == "wrong order: the gold run calls put before"


def test_another_call_with_the_effect_of_a_gold_call_takes_its_place():
    gently = ("put", {"drawer": "b", "thing": 2, "gently": True})
    end = ("ends in the gold run's end state", 1)
    assert run(*GOLD[:2], gently, "done", order="gold") == [("needed", 1)] * 3 + [end]
    two_parts = [put("c", {"d": [1, 2]})]
    # two calls bring about together what the gold call does at once
    steps = run(put("c", {"d": [1]}), put("c", {"d": [1, 2]}), "done", gold=two_parts, order="gold")
    assert [value for _, value in steps] == [1, 1, 1]


def test_a_read_does_not_take_the_place_of_a_change():
    assert run(("peek", {"drawer": "c"}), gold=[("put", {"drawer": "c", "thing": {"d": [0]}})]) == [
        ("harmless", 0)
    ]


def test_a_record_that_the_environment_does_not_confirm():
    reason = "the recorded result differs from the environment's"
    assert run(*GOLD, "done", results="all is well") == [(reason, None)] * 4


def test_a_recorded_result_may_spell_its_json_otherwise():
    class Told(Drawers):
        def step(self, action):
            return Observation(text='{"drawers":[1,2]}')

    settings = {"gold": [GOLD[1]], "environment": Told}
    assert run(GOLD[1], results='{ "drawers": [1, 2] }', **settings) == [("needed", 1)]
    assert run(GOLD[1], results='{"drawers": [2, 1]}', **settings)[0][1] is None


def test_what_cannot_be_replayed_is_named():
    assert run(put("a", 1), gold=None)[0][1] is None
    with pytest.raises(LabelError, match=r"gold call peek.* fails: Error: no such drawer"):
        run(put("a", 1), gold=[("peek", {"drawer": "x"})])
    with pytest.raises(LabelError, match="cannot be compared: it lacks 'state'"):
        run(put("a", 1), environment=NoState)
    problem = Problem(text="Tidy up.", meta={"gold_actions": ["put"]})
    trace = Trace(problem_id=problem.id, text="a")
    with pytest.raises(LabelError, match="needs a list of objects"):
        gold_calls(ProblemTrace(problem=problem, trace=trace))


def test_the_command_replays(tmp_path):
    import asyncio

    from surefoot.policies import sample_runs

    tasks = tidy_tasks(3, seed=0)
    runs = [one for [one] in asyncio.run(sample_runs(TidyAgent(mistake=0.0), tasks, Drawers, n=1))]
    write_records(tmp_path / "p.jsonl", tasks)
    write_records(tmp_path / "t.jsonl", runs)
    app = SettingsCommand("label", Label)
    asked = [str(tmp_path / "t.jsonl"), "--problems", str(tmp_path / "p.jsonl")]
    method = "verify:rules=state-replay,gold-order=true"
    with_world = f"{method},environment=drawers:Drawers"
    done = CliRunner().invoke(app, [*asked, with_world, "--out", str(tmp_path / "l.jsonl")])
    assert done.exit_code == 0, done.output
    labels = list(read_records(tmp_path / "l.jsonl", StepLabel))
    assert len(labels) == sum(len(one.steps) for one in runs)
    assert {label.value for label in labels} == {1}
    refused = CliRunner().invoke(app, [*asked, "verify:rules=lab,environment=drawers:Drawers"])
    assert "belong to rules=state-replay" in str(refused.exception or refused.output)
    refused = CliRunner().invoke(app, [*asked, method])
    assert "rules=state-replay needs environment=module:Class" in str(refused.exception or refused.output)
