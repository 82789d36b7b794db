"""Agent runs that solve their tasks in another order than the gold run, labelled from the command line."""

from __future__ import annotations

import json

from click.testing import CliRunner

from benchmarks.worlds.shop import Shop, generate_tasks, judge_steps
from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.io import read_records, write_records
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, StepLabel, ToolCall, Trace
from surefoot.segment import segment_trace


def played(task, calls):
    """The run that makes these calls, with the shop's results."""
    shop = Shop()
    messages = list(shop.reset(task))
    for number, action in enumerate(calls):
        call = ToolCall(id=f"c{number}", name=action["name"], arguments=json.dumps(action["arguments"]))
        seen = shop.step(call)
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(
            Message(role="tool", content=seen.text, tool_call_id=call.id, error=seen.error or None)
        )
    trace = Trace(problem_id=task.id, messages=tuple(messages), tools=shop.tools, outcome=shop.outcome())
    return segment_trace(trace, granularity="message")


def swapped_runs():
    """Each task with every exchange of two neighbouring gold calls to which the truth has no objection."""
    for task in generate_tasks(30, seed=11, families=("two-requests", "refund")):
        gold = task.meta["gold_actions"]
        if task.meta["shop"]["times_out"] is not None:
            continue
        for place in range(len(gold) - 1):
            calls = [*gold[:place], gold[place + 1], gold[place], *gold[place + 2 :]]
            run = played(task, calls)
            if run.outcome and all(
                step.value >= 0 for step in judge_steps(ProblemTrace(problem=task, trace=run))
            ):
                yield task, run


def test_a_run_with_two_independent_calls_exchanged_has_no_wrong_step(tmp_path):
    tasks, runs = zip(*swapped_runs(), strict=True)
    assert len(runs) > 15
    write_records(tmp_path / "tasks.jsonl", {task.id: task for task in tasks}.values())
    write_records(tmp_path / "runs.jsonl", runs)
    method = "verify:rules=state-replay,environment=benchmarks.worlds.shop:Shop,gold-order=true"
    command = [str(tmp_path / "runs.jsonl"), method, "--problems", str(tmp_path / "tasks.jsonl")]
    command += ["--out", str(tmp_path / "labels.jsonl")]
    done = CliRunner().invoke(SettingsCommand("label", Label), command)
    assert done.exit_code == 0, done.output
    labels = list(read_records(tmp_path / "labels.jsonl", StepLabel))
    assert len(labels) == sum(len(run.steps) for run in runs)
    assert {label.value for label in labels} == {1}
