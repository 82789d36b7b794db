"""A verifier that raises on one trace leaves all others checked, wherever verifiers are asked."""

from __future__ import annotations

import ast
import asyncio
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

import surefoot
from surefoot.cli.label.command import Label
from surefoot.cli.parser import SettingsCommand
from surefoot.errors import SandboxError
from surefoot.evaluation.monitors import verifier_monitor
from surefoot.io import read_records, write_records
from surefoot.labelling.verifier import VerifierLabeller
from surefoot.models.kinds.derived import LabelScorer
from surefoot.protocols import ProblemTrace, Verdict, verify_each
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace

SOURCE = Path(surefoot.__file__).parent
PROBLEM = Problem(text="How many?")


class Fails:
    """Verdict +1; raises on a trace that says "bad", and loses a verdict of one that says "short"."""

    name = "fails"

    def __init__(self, error=None):
        self.error = error or OverflowError("too large for a float\ud800")
        self.calls = 0

    def verify(self, items):
        self.calls += 1
        if any("bad" in item.trace.text for item in items):
            raise self.error
        right = Verdict(value=1, reason="right")
        return [[right] * (len(item.trace.steps) - ("short" in item.trace.text)) for item in items]


def items(*texts):
    traces = [segment_trace(Trace(problem_id=PROBLEM.id, text=text), Line()) for text in texts]
    return [ProblemTrace(problem=PROBLEM, trace=trace) for trace in traces]


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("word", ["bad", "short"])
def test_the_other_items_keep_their_verdicts(place, word):
    texts = [f"{word}\nx\n" if number == place else f"{number}\nx\n" for number in range(9)]
    rows = verify_each(verifier := Fails(), items(*texts))
    assert [[verdict.value for verdict in row] for row in rows] == [
        [None, None] if number == place else [1, 1] for number in range(9)
    ]
    assert [row[0].failed for row in rows] == [number == place for number in range(9)]
    assert ("OverflowError" if word == "bad" else "one verdict per step") in rows[place][0].reason
    assert verifier.calls <= 1 + 2 * math.ceil(math.log2(9))


def test_what_the_machine_lacks_is_no_items_failure():
    with pytest.raises(SandboxError, match="install"):
        verify_each(Fails(SandboxError("install bubblewrap")), items("a\n", "bad\n"))


def test_a_long_message_is_cut():
    [[verdict]] = verify_each(Fails(ValueError("9" * 10**6)), items("bad\n"))
    assert len(verdict.reason) <= 500


def test_labels_scores_and_monitors():
    texts = ["a\n", "bad\n", "c\n"]
    labels = asyncio.run(VerifierLabeller(verifiers=(Fails(),)).label(items(*texts)))
    assert [row[0].value for row in labels] == [1.0, None, 1.0]
    assert "OverflowError" in labels[1][0].reason
    scores = LabelScorer(VerifierLabeller(verifiers=(Fails(),)), name="fails").score_traces(items(*texts))
    assert [record.scores for record in scores] == [(1.0,), (None,), (1.0,)]
    assert "OverflowError" in scores[1].unscored_reason
    suspicion = verifier_monitor(Fails())(items(*texts))
    assert [None if math.isnan(value) else value for value in suspicion] == [0.0, None, 0.0]


def test_the_command_writes_the_labels_of_the_others(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from surefoot.protocols import Verdict\n"
        "class Rule:\n"
        "    name = 'mine'\n"
        "    def verify(self, items):\n"
        "        return [[Verdict(value=1, reason=str(1 // ('bad' not in i.trace.text)))] for i in items]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    write_records(tmp_path / "p.jsonl", [PROBLEM])
    write_records(tmp_path / "t.jsonl", [item.trace for item in items("a\n", "bad\n", "c\n")])
    words = ["t.jsonl", "verify:rules=mine:Rule", "--problems", "p.jsonl", "--out", "l.jsonl"]
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(SettingsCommand("label", Label), words)
    assert ended.exit_code == 0, ended.output
    labels = list(read_records(tmp_path / "l.jsonl", StepLabel))
    assert [label.value for label in labels] == [1.0, None, 1.0]
    assert "ZeroDivisionError" in labels[1].reason


def test_verifiers_are_asked_in_one_place():
    """No other module calls a method ``verify`` (generative models have one of their own)."""
    calls = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "verify"
    }
    assert calls == {"protocols.py", "models/kinds/generative.py"}
