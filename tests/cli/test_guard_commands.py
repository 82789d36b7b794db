"""``surefoot guard``: thresholds fitted on recorded runs."""

import json
from contextlib import nullcontext

import pytest
from command_line import good, refused

from surefoot.cli.options import JudgeSettings
from surefoot.io import write_records
from surefoot.records import Message, Problem, StepLabel, StepScores, Tool, ToolCall, Trace
from surefoot.segment import segment_trace


@pytest.fixture
def recorded(tmp_path):
    """40 runs of two calls each with scores; one run in four failed."""
    problems = [Problem(text=f"Refund order {number}.") for number in range(40)]
    traces = [
        segment_trace(
            Trace(
                problem_id=problem.id,
                messages=(
                    Message(role="user", content=problem.text),
                    Message(role="assistant", tool_calls=(ToolCall(id="a", name="look"),)),
                    Message(role="tool", tool_call_id="a", content="shipped"),
                    Message(role="assistant", tool_calls=(ToolCall(id="b", name="refund"),)),
                ),
                outcome=number % 4 > 0,
            )
        )
        for number, problem in enumerate(problems)
    ]
    scores = [
        StepScores(trace_id=trace.id, scorer="s", scores=(0.9, (number + 1) / 100))
        for number, trace in enumerate(traces)
    ]
    labels = [
        StepLabel(trace_id=trace.id, step=1, kind="correctness", value=-1.0, source="ann")
        for number, trace in enumerate(traces)
        if number % 4 == 0
    ]
    for name, records in {"p": problems, "t": traces, "s": scores, "l": labels}.items():
        write_records(tmp_path / f"{name}.jsonl", records)
    return tmp_path


def words(folder, *more):
    here = [folder / "t.jsonl", "--problems", folder / "p.jsonl", "--scores", folder / "s.jsonl"]
    return ["guard", "fit", *here, *more]


def test_fit_blocks_the_asked_share_of_successful_runs(recorded):
    ended = good(*words(recorded, "--max-false-blocks=0.1", "--out", recorded / "fit.json"))
    fit = json.loads((recorded / "fit.json").read_text())
    assert fit["threshold"] == 0.04  # the successful runs have .02 .03 .04 .06 ..., and the rank is 3 of 30
    assert (fit["runs"], fit["good_calls"], fit["bad_calls"]) == (30, 60, 0)
    assert "false alarms" in ended.out
    assert "not known" in ended.out


def test_labels_say_what_is_caught(recorded):
    ended = good(*words(recorded, "--labels", recorded / "l.jsonl", "--good=all", "--max-false-blocks=0.1"))
    assert "of 10 calls that are labelled bad" in ended.out


class Suspicious:
    """A reward model that trusts a call less if it reads the tool's result."""

    name = "suspicious"

    def score_traces(self, items):
        scored = []
        for item in items:
            number = int(item.problem.text.split()[-1].rstrip("."))
            seen = any(message.content == "shipped" for message in item.trace.messages)
            scores = tuple((number + 1) / (200 if seen else 100) for _ in item.trace.steps)
            scored.append(StepScores(trace_id=item.trace.id, scorer=self.name, scores=scores))
        return scored


def test_the_threshold_is_fitted_on_what_the_guard_will_show(recorded, monkeypatch):
    monkeypatch.setattr(JudgeSettings, "open", lambda *_: nullcontext(Suspicious()))
    out = recorded / "fit.json"
    common = [*words(recorded)[:-2], f"--prm={recorded}", "--max-false-blocks=0.1", "--out", out]
    ended = good(*common)
    fit = json.loads(out.read_text())
    assert (fit["threshold"], fit["monitor_sees"]) == (0.04, [])
    assert "monitor-sees" not in ended.out
    out.unlink()
    ended = good(*common, "--monitor-sees=results")
    fit = json.loads(out.read_text())
    assert (fit["threshold"], fit["monitor_sees"]) == (0.02, ["results"])
    assert "--guard-threshold 0.02 --guard-monitor-sees results" in ended.out


def test_what_cannot_be_fitted_is_refused(recorded):
    assert "needs" in refused(*words(recorded, "--max-false-blocks=0.001"))
    assert "no call counts as good" in refused(*words(recorded, "--labels", recorded / "l.jsonl"))
    rows = (json.loads(line) for line in (recorded / "s.jsonl").read_text().splitlines())
    unscored = [
        StepScores(trace_id=row["trace_id"], scorer="s", scores=(None, None), unscored_reason="too long")
        for row in rows
    ]
    (recorded / "s.jsonl").unlink()
    write_records(recorded / "s.jsonl", unscored)
    assert "no good call has a score: too long" in refused(*words(recorded))
    assert "--prm" in refused(*words(recorded)[:-2])
    assert "labels" in refused(*words(recorded, "--good=labelled"))
    assert "of whole runs" in refused(*words(recorded, "--monitor-sees=results"))


def test_a_policy_is_replayed_over_recorded_runs(tmp_path):
    look = ToolCall(id="a", name="look", arguments='{"order": "W1"}')
    refund = ToolCall(id="b", name="refund", arguments='{"order": "W1", "amount": 5}')
    doubled = ToolCall(id="c", name="refund", arguments='{"amount": 5, "amount": 6}')
    worded = ToolCall(id="d", name="refund", arguments='{"order": "W1", "amount": "5"}')
    messages = [Message(role="user", content="Refund W1.")]
    for call, result in (
        (refund, "no"),
        (look, '{"total": 5}'),
        (refund, "done"),
        (doubled, "done"),
        (worded, ""),
    ):
        messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", tool_call_id=call.id, content=result),
        ]
    schema = {"type": "object", "properties": {"order": {}, "amount": {}}}
    tools = (Tool(name="look"), Tool(name="refund", parameters=json.dumps(schema)))
    problem = Problem(text="Refund W1.")
    write_records(
        tmp_path / "runs.jsonl", [Trace(problem_id=problem.id, messages=tuple(messages), tools=tools)]
    )
    rule = {"tools": ["refund"], "require": "args.amount <= latest('look', {'order': args.order}).total"}
    (tmp_path / "policy.json").write_text(json.dumps({"rules": [rule]}))
    words = ("guard", "check", str(tmp_path / "policy.json"), "--runs", str(tmp_path / "runs.jsonl"))
    ended = good(*words, "--out", str(tmp_path / "replay.json"))
    assert "5 calls of 1 run: 2 released, 0 asked, 2 blocked, 1 undecided" in ended.out + ended.err
    replay = json.loads((tmp_path / "replay.json").read_text())
    counts = {name: replay["rules"][0][name] for name in ("satisfied", "violated", "undecidable")}
    assert counts == {"satisfied": 1, "violated": 1, "undecidable": 2}
    assert [call["action"] for call in replay["stopped"]] == ["blocked", "blocked", "undecided"]
    assert "names 'amount' and 'amount' are the same" in replay["stopped"][1]["reason"]

    rule["tools"] = ["refnud"]
    (tmp_path / "policy.json").write_text(json.dumps({"rules": [rule]}))
    assert "rules.0.tools: tool 'refnud' does not exist" in refused(*words)
