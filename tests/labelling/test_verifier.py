"""Labels from verifiers: the rule for several, the lab's checker, and the command."""

from __future__ import annotations

import asyncio

import pytest
import typer
from typer.testing import CliRunner

from surefoot.cli.label.verify import verify
from surefoot.errors import LabelError, RecordError
from surefoot.io import read_records, write_records
from surefoot.lab.world import ExactLabeller, generate_problems, parse_problem, worked_solution
from surefoot.labelling.verifier import LabVerifier, VerifierLabeller, open_verifier
from surefoot.protocols import Labeller, ProblemTrace, StepVerifier, Verdict
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace


class Fixed:
    """Gives the same verdicts to every trace."""

    def __init__(self, name, *values):
        self.name, self.values = name, values

    def verify(self, items):
        return [[Verdict(value=value, reason=f"says {value}") for value in self.values] for _ in items]


def item(text, problem=None):
    problem = problem or Problem(text="How many?")
    return ProblemTrace(problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()))


def labels(*verifiers, text="a\nb\nc\nd\n"):
    labeller = VerifierLabeller(verifiers=verifiers)
    assert isinstance(labeller, Labeller)
    (row,) = asyncio.run(labeller.label([item(text)]))
    return row


def test_one_verifier():
    row = labels(Fixed("rule", 1, 0, -1, None))
    assert [label.value for label in row] == [1.0, 0.0, -1.0, None]
    assert [label.reason for label in row] == [None, None, None, "says None"]
    assert {(label.source, label.kind) for label in row} == {("rule", "correctness")}
    assert (row[2].evidence.rater, row[2].evidence.message) == ("rule", "says -1")


def test_of_several_the_lowest_verdict_counts_and_those_that_cannot_check_abstain():
    row = labels(Fixed("one", 1, 1, None, None), Fixed("two", -1, 0, 1, None))
    assert [label.value for label in row] == [-1.0, 0.0, 1.0, None]
    assert [label.evidence.rater for label in row] == ["two", "two", "two", None]
    assert row[3].reason == "one: says None; two: says None"
    assert row[0].source == "one+two"


def test_a_verifier_that_skips_a_step_is_an_error():
    with pytest.raises(LabelError, match="'rule' gave 3 verdicts in 1 lists for 4 steps of 1 traces"):
        labels(Fixed("rule", 1, 1, 1))
    with pytest.raises(LabelError, match="at least one"):
        VerifierLabeller(verifiers=())


def test_unknown_verifier():
    with pytest.raises(LabelError, match="arithmetic, game24, lab"):
        open_verifier("chess")
    for name in ("arithmetic", "game24", "lab"):
        assert isinstance(open_verifier(name), StepVerifier)


def test_lab_verifier_agrees_with_the_exact_labeller():
    problem = generate_problems(1, seed=3)[0]
    text = worked_solution(parse_problem(problem.text)).replace("Answer: ", "Answer: 1")
    one = item(text, problem)
    (row,) = asyncio.run(VerifierLabeller(verifiers=(LabVerifier(),)).label([one]))
    (exact,) = asyncio.run(ExactLabeller(after_error="step").label([one]))
    assert [label.value for label in row] == [label.value for label in exact]
    assert -1.0 in [label.value for label in row]
    with pytest.raises(RecordError, match="lab"):
        LabVerifier().verify([item("7 + 3 = 0\n")])


def run(*words):
    app = typer.Typer()
    app.command()(verify)
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def files(tmp_path):
    problem = Problem(text="4 5 6 10")
    texts = ["10 - 4 = 6 (left: 5 6 6)\n6 * 6 = 35 (left: 5 35)\n", "10 - 4 = 6 (left: 5 6 6)\nNow think.\n"]
    traces = [item(text, problem).trace for text in texts]
    write_records(tmp_path / "problems.jsonl", [problem])
    write_records(tmp_path / "traces.jsonl", traces)
    return tmp_path


def found(path):
    return [(label.kind, label.value) for label in read_records(path, StepLabel)]


def test_command_with_two_verifiers(files):
    out = files / "labels.jsonl"
    words = [files / "traces.jsonl", "--problems", files / "problems.jsonl", "--out", out]
    ended = run(*words, "--verifier", "arithmetic", "--verifier", "game24")
    assert ended.exit_code == 0, ended.output
    assert [value for _, value in found(out)] == [1.0, -1.0, 1.0, None]
    assert "4 labels written, 1 of them without a value" in ended.output


def test_command_labels_the_value_of_the_game(files):
    out = files / "labels.jsonl"
    words = [files / "traces.jsonl", "--problems", files / "problems.jsonl", "--out", out, "--value"]
    assert isinstance(run(*words, "--verifier", "arithmetic").exception, LabelError)
    assert run(*words, "--verifier", "game24").exit_code == 0
    assert found(out)[:4] == [("correctness", 1.0), ("value", 1.0), ("correctness", -1.0), ("value", 0.0)]
