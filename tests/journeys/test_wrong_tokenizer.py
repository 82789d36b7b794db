"""Grade-school problems, and a model of 27 tokens, which can read none of their words."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused

from benchmarks.worlds.digits import POLICY, TRUNK
from surefoot.io import write_records
from surefoot.models import CheckpointCard, RewardModel
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import segment_trace, segmenter

TEXT = (
    "A baker fills 4 trays with 12 rolls each and sells 30 of the rolls before noon. How many rolls are left?"
)
SOLUTION = """\
There are 4 * 12 = 48 rolls on the trays.
After the sale 48 - 30 = 18 rolls are left.
The answer is 18."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    problems = [Problem(id=f"p{number}", text=TEXT, answer="18") for number in range(8)]
    traces = [
        segment_trace(Trace(problem_id=problem.id, text=SOLUTION, outcome=True), segmenter("line"))
        for problem in problems
    ]
    labels = [
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=1.0, source="people")
        for trace in traces
        for step in range(3)
    ]
    write_records(tmp_path / "p.jsonl", problems)
    write_records(tmp_path / "t.jsonl", traces)
    write_records(tmp_path / "l.jsonl", labels)
    card = CheckpointCard(kind="prm", label_source="none", base="lab")
    RewardModel.initialise(TRUNK, card).save(tmp_path / "prm")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "p.jsonl", "--policy", POLICY, "--n", "1", "--out", "out.jsonl"),
        ("label", "t.jsonl", "mc", "--problems", "p.jsonl", "--policy", POLICY, "--out", "out.jsonl"),
        ("train", "prm", "t.jsonl", "--problems=p.jsonl", "--labels=l.jsonl", "--base", TRUNK, "--out=out"),
        ("train", "orm", "t.jsonl", "--problems=p.jsonl", "--base", TRUNK, "--out=out"),
        ("score", "t.jsonl", "--problems", "p.jsonl", "-m", "prm", "--out", "out.jsonl"),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_it_is_refused(folder, words):
    says = refused(*words)
    assert "of the tokens are unknown to the tokenizer of " in says
    assert "which has 27 tokens (limit 15%); choose a model that was trained on such text" in says
