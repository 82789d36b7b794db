"""Which ways of writing a run move a scorer."""

from __future__ import annotations

import asyncio
import json

import pytest
from command_line import good, refused
from drawers import Drawers, TidyAgent, tidy_tasks
from toy_scorers import Toy

from surefoot import Problem, Trace
from surefoot.errors import ScoreError
from surefoot.evaluation.audits import (
    INJECTIONS,
    RUN_CHANGES,
    AuditedScorer,
    Case,
    audit_changes,
    effects_section,
)
from surefoot.evaluation.audits.perturbations import edit_stream
from surefoot.evaluation.report import rows_of
from surefoot.io import write_records
from surefoot.policies import sample_runs
from surefoot.protocols import ProblemTrace
from surefoot.records import StepLabel

TASKS = tidy_tasks(12, seed=0)


@pytest.fixture(scope="module")
def runs():
    made = asyncio.run(sample_runs(TidyAgent(), TASKS, Drawers, n=1))
    return [ProblemTrace(problem=task, trace=run) for task, [run] in zip(TASKS, made, strict=True)]


def audited(rule, **more):
    return AuditedScorer(name=rule.__name__, scorer=Toy(rule), rule="min", **more)


def audit(rule, runs, **more):
    cases = [Case(item=item, good=(None,) * len(item.trace.steps)) for item in runs]
    return audit_changes(audited(rule, **more), cases, RUN_CHANGES, draws=100, seed=3)


def verdicts(rule, runs):
    found = audit(rule, runs)
    return {effect.change: effect.verdict for effect in found.effects}


def steps_before(trace, step):
    return trace.messages[: trace.steps[step].message]


@pytest.mark.parametrize("change", RUN_CHANGES, ids=lambda change: change.name)
def test_a_change_keeps_the_steps_and_changes_the_rest(change, runs):
    for item in runs:
        case = Case(item=item, good=(None,) * len(item.trace.steps))
        changed = change.make(case, [], edit_stream(0, change.name, item.trace.id))
        if changed is None:
            continue
        made = changed.item.trace
        assert (made.messages, made.tools) != (item.trace.messages, item.trace.tools)
        old, new = ([trace.step_text(n) for n in range(len(trace.steps))] for trace in (item.trace, made))
        assert old == new
        said = [
            [message for message in trace.messages if message.role == "assistant"]
            for trace in (item.trace, made)
        ]
        assert said[0] == said[1]
        Trace.model_validate(made.model_dump())


def test_a_rewritten_result_is_the_same_object(runs):
    [change] = [one for one in RUN_CHANGES if one.name == "JSON results written otherwise"]
    content = '{"a": 1, "b": [true, "ü"]}'
    item = next(item for item in runs if any(m.role == "tool" for m in item.trace.messages))
    old = item.trace.messages
    messages = [m.model_copy(update={"content": content}) if m.role == "tool" else m for m in old]
    trace = item.trace.model_copy(update={"messages": tuple(messages)})
    case = Case(item=ProblemTrace(problem=item.problem, trace=trace), good=())
    made = change.make(case, [], edit_stream(0, change.name, trace.id)).item.trace
    written = [m.content for m in made.messages if m.role == "tool"]
    assert content not in written
    assert all(json.loads(one) == json.loads(content) for one in written)


def by_order_of_tools(problem, trace):
    return [float(trace.tools[0].name < trace.tools[-1].name)] * len(trace.steps)


def by_length_of_results(problem, trace):
    results = [[m for m in steps_before(trace, n) if m.role == "tool"][-1:] for n in range(len(trace.steps))]
    return [min(len(found[0].content) / 200, 1.0) if found else 0.0 for found in results]


def obeys(problem, trace):
    read = [" ".join(m.content or "" for m in steps_before(trace, n)) for n in range(len(trace.steps))]
    return [float(any(order in text for order in INJECTIONS)) for text in read]


def constant(problem, trace):
    return [0.3] * len(trace.steps)


def test_each_scorer_fails_where_it_should_and_nowhere_else(runs):
    assert set(verdicts(constant, runs).values()) == {"passes"}
    order = verdicts(by_order_of_tools, runs)
    assert order.pop("tools in another order") != "passes"
    assert set(order.values()) == {"passes"}
    long = verdicts(by_length_of_results, runs)
    assert long["neutral text behind results"] == "fails"
    assert long["tools in another order"] == "passes"
    obedient = verdicts(obeys, runs)
    assert obedient.pop("instructions behind results") == "fails"
    assert set(obedient.values()) == {"passes"}


def test_the_figures_of_an_obedient_scorer(runs):
    found = audit(obeys, runs)
    effect = found.effects[-1]
    assert effect.moved == effect.size == effect.flipped == effect.accepted == effect.rose
    read = [
        sum(any(m.role == "tool" for m in steps_before(item.trace, n)) for n in range(len(item.trace.steps)))
        / len(item.trace.steps)
        for item in runs
    ]
    assert effect.moved.value == pytest.approx(sum(read) / len(read))
    assert len(rows_of(effects_section("agent", [found]).results)["agent.effects"]) == len(RUN_CHANGES)


def test_equal_seeds_vary_alike(runs):
    one, two = (audit(obeys, runs) for _ in range(2))
    assert one == two


def test_steps_without_a_score_are_left_out(runs):
    def some(problem, trace):
        return [None if n else 0.5 for n in range(len(trace.steps))]

    found = audit(some, runs)
    assert all(effect.unscored == 0 and effect.moved.value == 0 for effect in found.effects)


def test_stored_scores_and_texts_are_refused(runs):
    with pytest.raises(ScoreError, match="stored scores cannot score edited text"):
        audit(constant, runs, stored=True)
    text = ProblemTrace(problem=Problem(id="p", text="?"), trace=Trace(id="t", problem_id="p", text="So 3."))
    with pytest.raises(ScoreError, match="none of 1 traces is a conversation"):
        audit(constant, [text])


@pytest.fixture(scope="module")
def files(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    traces = [run.trace.model_copy(update={"policy": "ab"[number % 2]}) for number, run in enumerate(runs)]
    write_records(folder / "p.jsonl", TASKS)
    write_records(folder / "t.jsonl", traces)
    labels = [
        StepLabel(trace_id=t.id, step=n, kind="correctness", value=1.0, source="hand")
        for t in traces
        for n in range(len(t.steps))
    ]
    write_records(folder / "l.jsonl", labels)
    for name, rule in (("one", constant), ("two", length_of_steps)):
        items = [ProblemTrace(problem=r.problem, trace=t) for r, t in zip(runs, traces, strict=True)]
        write_records(folder / f"{name}.jsonl", Toy(rule).score_traces(items))
    return folder


def length_of_steps(problem, trace):
    return [min(1.0, len(trace.step_text(n)) / 500) for n in range(len(trace.steps))]


def test_the_command_audits_rules(files, tmp_path):
    about = f"--problems={files / 'p.jsonl'}", f"--traces={files / 't.jsonl'}"
    out = good(
        *("audit", "--test=agent", "--verifier=tool-calls", *about),
        *(f"--out={tmp_path}", "--draws=50", "--tables"),
    ).out
    assert "is how much the rewriting with the largest effect" in " ".join(out.split())
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written["agent"][0]["effects"][0]["size"]["value"] == 0
    assert "instructions behind results" in (tmp_path / "audit.html").read_text()


def test_the_command_needs_a_scorer_that_can_score_new_text(files, tmp_path):
    about = f"--problems={files / 'p.jsonl'}", f"--traces={files / 't.jsonl'}"
    common = *about, f"--labels={files / 'l.jsonl'}", f"--out={tmp_path}"
    assert "give a checkpoint" in refused("audit", "--test=agent", f"one={files / 'one.jsonl'}", *common)
    assert "--verifier" in refused("audit", "--test=agent", *about, f"--out={tmp_path}")
