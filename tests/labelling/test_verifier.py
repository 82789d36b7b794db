"""Labels from verifiers: the rule for several, the lab's checker, and the command."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from benchmarks.worlds.digits.world import (
    DigitVerifier,
    ExactLabeller,
    generate_problems,
    parse_problem,
    worked_solution,
)
from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import LabelError, RecordError
from surefoot.io import read_records, write_records
from surefoot.labelling.verifier import VerifierLabeller, open_verifier
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


def test_a_verifier_that_skips_a_step_says_nothing():
    row = labels(Fixed("rule", 1, 1, 1))
    assert [label.value for label in row] == [None] * 4
    assert "rule gave 3 verdicts in 1 lists" in row[0].reason
    with pytest.raises(LabelError, match="at least one"):
        VerifierLabeller(verifiers=())


def test_unknown_verifier():
    with pytest.raises(
        LabelError, match=r"choose from compile, equations, .*visible-tests, or give module:Class"
    ):
        open_verifier("chess")
    for name in ("equations", "lab", "benchmarks.worlds.digits:DigitVerifier"):
        assert isinstance(open_verifier(name), StepVerifier)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such.module:Rule", "cannot be opened: No module"),
        ("benchmarks.worlds.digits.world:Nothing", "cannot be opened: .*Nothing"),
        ("collections:Counter", "is not a verifier"),
    ],
)
def test_what_is_no_verifier(name, message):
    with pytest.raises(LabelError, match=message):
        open_verifier(name)


def test_lab_verifier_agrees_with_the_exact_labeller():
    problem = generate_problems(1, seed=3)[0]
    text = worked_solution(parse_problem(problem.text)).replace("Answer: ", "Answer: 1")
    one = item(text, problem)
    (row,) = asyncio.run(VerifierLabeller(verifiers=(DigitVerifier(),)).label([one]))
    (exact,) = asyncio.run(ExactLabeller(after_error="step").label([one]))
    assert [label.value for label in row] == [label.value for label in exact]
    assert -1.0 in [label.value for label in row]
    with pytest.raises(RecordError, match="not a problem of"):
        DigitVerifier().verify([item("7 + 3 = 0\n")])


def run(*words):
    app = SettingsCommand("label", Label)
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def files(tmp_path):
    problem = Problem(text="How many?")
    texts = ["10 - 4 = 6\n6 * 6 = 35\n", "10 - 4 = 6\nNow think.\n"]
    traces = [item(text, problem).trace for text in texts]
    write_records(tmp_path / "problems.jsonl", [problem])
    write_records(tmp_path / "traces.jsonl", traces)
    return tmp_path


def test_command_with_two_verifiers(files, monkeypatch):
    (files / "even.py").write_text(EVEN)
    monkeypatch.syspath_prepend(str(files))
    out = files / "labels.jsonl"
    words = [files / "traces.jsonl", "--problems", files / "problems.jsonl", "--out", out]
    ended = run(*words, "verify:rules=equations+even:Even")
    assert ended.exit_code == 0, ended.output
    assert [label.value for label in read_records(out, StepLabel)] == [1.0, -1.0, 1.0, None]
    assert {label.source for label in read_records(out, StepLabel)} == {"equations+even"}
    assert "4 labels written, 1 of them without a value" in ended.output


EVEN = """
from surefoot.protocols import Verdict

class Even:
    name = "even"

    def verify(self, items):
        def verdict(text):
            if not text.strip()[-1:].isdigit():
                return Verdict(value=None, reason="no number at its end")
            return Verdict(value=-1 if int(text.strip()[-1]) % 2 else 1, reason="by its last digit")

        return [
            [verdict(item.trace.step_text(step)) for step in range(len(item.trace.steps))] for item in items
        ]
"""
