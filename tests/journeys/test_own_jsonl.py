"""Solutions of one's own, in a JSON Lines file: what a newcomer types first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import good, refused, run

from surefoot.io import read_records
from surefoot.records import StepLabel, Trace

ROOT = Path(__file__).parents[2]
EXACT = ("--equality", "exact")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "gsm8k.jsonl", "own.jsonl")
    return tmp_path


def test_solutions_are_imported_labelled_and_the_right_answer_with_a_wrong_step_is_found():
    good("import", "own.jsonl", "--out", "mine", *EXACT)
    traces = list(read_records("mine/traces.jsonl", Trace))
    assert [trace.outcome for trace in traces] == [True, False, False, True]
    words = ("label", "mine/traces.jsonl", "verify:rules=equations", "--problems", "mine/problems.jsonl")
    good(*words, "--out", "labels.jsonl")
    wrong = [
        (traces.index(trace), label.step)
        for trace in traces
        for label in read_records("labels.jsonl", StepLabel)
        if label.trace_id == trace.id and label.value == -1
    ]
    assert wrong == [(0, 4), (1, 2), (2, 1)], "the first is graded as correct, and its fifth step is wrong"


def test_no_command_falls_back_to_the_model_of_the_small_world():
    Path("problems.jsonl").write_text(json.dumps({"question": "What is 2 + 2?", "answer": "4"}) + "\n")
    for words in (
        ("sample", "problems.jsonl", "--out", "t.jsonl"),
        ("label", "own.jsonl", "mc", "--problems", "own.jsonl", "--out", "l.jsonl"),
        ("train", "prm", "own.jsonl", "--problems", "own.jsonl", "--labels", "own.jsonl", "--out", "prm"),
    ):
        ended = run(*words)
        assert ended.status == 2
        assert "is required" in ended.err
    assert sorted(path.name for path in Path().iterdir()) == ["own.jsonl", "problems.jsonl"]


def test_a_file_is_not_made_a_directory():
    assert "own.jsonl" in refused("import", "own.jsonl", "--out", "own.jsonl", *EXACT)
