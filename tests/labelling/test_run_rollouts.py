"""Monte Carlo from a state that is put back: against the environment's own chances, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from drawers import Drawers, TidyAgent, tidy_tasks

from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError
from surefoot.io import read_records, write_records
from surefoot.labelling import RunMonteCarloLabeller, advantage_labels
from surefoot.policies import sample_runs
from surefoot.protocols import LabelledTrace, Labeller, ProblemTrace
from surefoot.records import Message, StepLabel
from surefoot.segment import segment_trace

CAREFUL = TidyAgent(mistake=0.0)


@pytest.fixture(scope="module")
def items():
    tasks = tidy_tasks(12, seed=0)
    runs = asyncio.run(sample_runs(TidyAgent(), tasks, Drawers, n=1))
    return [ProblemTrace(problem=task, trace=run) for task, [run] in zip(tasks, runs, strict=True)]


def labelled(items, policy=CAREFUL, **settings):
    labeller = RunMonteCarloLabeller(policy=policy, environment=Drawers, **{"rollouts": 2} | settings)
    assert isinstance(labeller, Labeller)
    return asyncio.run(labeller.label(items))


def beyond_repair(item):
    """After each call and at the end, whether a drawer is shut over another thing than is wanted."""
    drawers, lost = Drawers(), []
    drawers.reset(item.problem)
    for message in item.trace.messages:
        for call in message.tool_calls:
            drawers.step(call)
            lost.append(any(drawers.drawers[at] != drawers.wanted[at] for at in drawers.glued))
    return [*lost, not item.trace.outcome]


def test_a_careful_agent_goes_on_well_while_the_task_can_be_done(items):
    values = []
    for item, labels in zip(items, labelled(items), strict=True):
        assert [label.value for label in labels] == [float(not lost) for lost in beyond_repair(item)]
        values += [label.value for label in labels]
        assert labels[-1].value == item.trace.outcome
        assert labels[-1].evidence.trials == 1
        assert labels[0].evidence.trials == 2
    assert {0.0, 1.0} == set(values)


def test_labels_do_not_depend_on_the_batch_and_shared_beginnings_are_rolled_out_once(items, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # labels say when they were made
    together = labelled(items, TidyAgent(), rollouts=4)
    assert [labelled([item], TidyAgent(), rollouts=4)[0] for item in items[:3]] == together[:3]
    assert labelled(items, TidyAgent(), rollouts=4, seed=1) != together
    first, second = labelled([items[0], items[0]], TidyAgent())
    assert [label.value for label in first] == [label.value for label in second]
    assert (
        sum(label.evidence.usage.calls for label in second)
        == 0
        < sum(label.evidence.usage.calls for label in first)
    )


def test_progress_is_the_advantage_of_these_values(items):
    labels = labelled(items[:1], TidyAgent(), rollouts=4)[0]
    item = LabelledTrace(problem=items[0].problem, trace=items[0].trace, labels=tuple(labels))
    [advantages] = advantage_labels([item], start={items[0].problem.id: 0.5})
    assert advantages[0].value == labels[0].value - 0.5
    assert sum(one.value for one in advantages) == pytest.approx(labels[-1].value - 0.5)


def test_a_false_record_is_not_rolled_out(items):
    trace = items[0].trace
    false = [m.model_copy(update={"content": "ok"}) if m.role == "tool" else m for m in trace.messages]
    forged = segment_trace(trace.model_copy(update={"messages": tuple(false)}))
    [labels] = labelled([ProblemTrace(problem=items[0].problem, trace=forged)])
    assert {label.value for label in labels} == {None}
    assert "differs from the environment's" in labels[0].reason


def test_results_are_paired_by_id_and_compared_as_json(items):
    """A record that was written again, with other white space, is rolled out like the first."""
    trace = items[0].trace
    again = tuple(
        m.model_copy(update={"content": f" {m.content}\n"}) if m.role == "tool" and m.content else m
        for m in trace.messages
    )
    written = segment_trace(trace.model_copy(update={"messages": again}))
    [labels] = labelled([ProblemTrace(problem=items[0].problem, trace=written)])
    assert None not in {label.value for label in labels}
    assert "{" in next(m.content for m in trace.messages if m.role == "tool")


def test_an_environment_that_cannot_be_put_back_is_refused(items):
    class Sealed:
        name, tools = "sealed", ()

        def reset(self, problem, seed=0):
            return (Message(role="user", content=problem.text),)

        def step(self, action):
            raise AssertionError

        def outcome(self):
            return None

    labeller = RunMonteCarloLabeller(policy=CAREFUL, environment=Sealed)
    with pytest.raises(LabelError, match="'sealed' cannot be restored: it lacks 'state'"):
        asyncio.run(labeller.label(items))


def test_the_command_rolls_out(items, tmp_path):
    write_records(tmp_path / "p.jsonl", [item.problem for item in items[:2]])
    write_records(tmp_path / "t.jsonl", [item.trace for item in items[:2]])
    app = SettingsCommand("label", Label)
    asked = [str(tmp_path / "t.jsonl"), "--problems", str(tmp_path / "p.jsonl")]
    asked += ["--policy", "drawers:TidyAgent", "--out", str(tmp_path / "l.jsonl")]
    asked += ["mc:environment=drawers:Drawers,rollouts=2"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    expected = [label for row in labelled(items[:2], TidyAgent()) for label in row]
    labels = list(read_records(tmp_path / "l.jsonl", StepLabel))
    assert [label.value for label in labels] == [label.value for label in expected]
    refused = CliRunner().invoke(app, [*asked[:-1], f"{asked[-1]},estimate=hard"])
    assert "environment needs estimate=soft" in str(refused.exception or refused.output)
