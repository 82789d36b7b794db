"""A command that achieves nothing fails, and says what is wrong with the first record."""

from __future__ import annotations

import json

import pytest
from command_line import good, refused

from surefoot.io import read_records, write_records
from surefoot.records import Problem, StepLabel, StepScores, Trace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "p.jsonl", [Problem(id="p1", text="What is 2 + 2?", answer="4")])
    return tmp_path


def plain(folder, *rows: dict):
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


VERIFY = (
    "label",
    "verify",
    "t.jsonl",
    "--problems",
    "p.jsonl",
    "--verifier",
    "arithmetic",
    "--out",
    "l.jsonl",
)


def test_plain_traces_are_cut_where_steps_are_needed(folder):
    plain(folder, {"problem_id": "p1", "text": "2 + 2 = 4\n\nThe answer is 4."})
    ended = good(*VERIFY)
    assert "1 traces without steps were cut into 2" in ended.err
    labels = list(read_records(folder / "l.jsonl", StepLabel))
    assert [label.value for label in labels] == [1.0, None]


def test_traces_of_other_problems(folder):
    plain(folder, {"problem_id": "other", "text": "2 + 2 = 4"}, {"problem_id": "another", "text": "a"})
    says = refused(*VERIFY)
    assert "none of the 2 traces is usable" in says
    assert "'problem_id' 'other', which is none of the problems' ids (such as 'p1')" in says
    assert not (folder / "l.jsonl").exists()


def test_empty_traces(folder):
    plain(folder, {"problem_id": "p1", "text": " "})
    assert "has no text to cut into steps" in refused(*VERIFY)


def test_lines_of_another_shape(folder):
    plain(folder, {"first": "What?", "second": "That."})
    says = refused(*VERIFY)
    assert says.startswith("t.jsonl: its one line is not usable; line 1: field 'problem_id': missing")
    assert "surefoot import" in says


def test_labels_without_any_value(folder):
    plain(folder, {"problem_id": "p1", "text": "Let us think."})
    says = refused(*VERIFY)
    assert says.startswith("none of the 1 steps got a label; 1: ")


def test_selection_with_scores_of_other_traces(folder):
    plain(folder, {"problem_id": "p1", "text": "a", "answer": "4"})
    write_records(folder / "s.jsonl", [StepScores(trace_id="other", scorer="x", scores=(0.5,))])
    says = refused("select", "t.jsonl", "--scores", "s.jsonl", "--equality", "exact")
    assert "no score is of these traces; its first 'trace_id' is 'other'" in says


def test_a_vote_without_answers(folder):
    plain(folder, {"problem_id": "p1", "text": "a"}, {"problem_id": "p1", "text": "b"})
    says = refused("select", "t.jsonl", "--rule", "majority", "--equality", "exact")
    assert "no trace has an 'answer', so there is nothing to vote on" in says


def test_an_import_in_the_wrong_format(folder):
    plain(folder, {"problem_id": "p1", "text": "a"})
    says = refused("import", "t.jsonl", "--from", "prm800k", "--out", "x")
    assert says.startswith("t.jsonl: its one line is not usable; line 1: ")
    assert "it was read as prm800k: --from names another format" in says


def test_an_export_that_writes_no_row(folder):
    trace = Trace(problem_id="p1", text="a", steps=[{"start": 0, "end": 1}])
    write_records(folder / "problems.jsonl", read_records(folder / "p.jsonl", Problem))
    write_records(folder / "traces.jsonl", [trace])
    unknown = StepLabel(trace_id=trace.id, step=0, kind="correctness", value=None, reason="?", source="x")
    write_records(folder / "labels.jsonl", [unknown])
    says = refused("export", ".", "--to", "stepwise", "--out", "s.jsonl")
    assert "no row could be written; 0 rows written; dropped: 1 traces: no step has a sign" in says
