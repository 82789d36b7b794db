"""A command that achieves nothing fails, and says what is wrong with the first record."""

from __future__ import annotations

import json
import re

import pytest
from command_line import good, refused, run

from surefoot.cli import COMMANDS
from surefoot.io import read_records, write_records
from surefoot.records import Problem, StepLabel, StepScores, Trace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "p.jsonl", [Problem(id="p1", text="What is 2 + 2?", answer="4")])
    return tmp_path


def plain(folder, *rows: dict):
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


VERIFY = ("label", "t.jsonl", "verify:rules=equations", "--problems", "p.jsonl", "--out", "l.jsonl")


def test_plain_traces_are_cut_where_steps_are_needed(folder):
    plain(folder, {"problem_id": "p1", "text": "2 + 2 = 4\n\nThe answer is 4."})
    ended = good(*VERIFY)
    assert "1 trace without steps cut into 2" in ended.err
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


@pytest.mark.parametrize("command", ["mc", "tree"])
def test_rollouts_without_any_reference_answer(folder, command):
    write_records(folder / "p.jsonl", [Problem(id="p1", text="What is 2 + 2?")])
    plain(folder, {"problem_id": "p1", "text": "2 + 2 = 4\n\nThe answer is 4."})
    words = {
        "mc": ("t.jsonl", "mc", "--problems", "p.jsonl", "--out", "l.jsonl"),
        "tree": ("p.jsonl", "tree", "--out", "l"),
    }
    assert "'answer'" in refused("label", *words[command], "--policy", "lab")
    assert not (folder / "l.jsonl").exists()


def test_questions_without_solutions_come_with_the_next_command(folder):
    plain(folder, {"question": "What is 2 + 2?", "answer": "4"})
    ended = good("import", "t.jsonl", "--out", "mine")
    assert "surefoot sample mine/problems.jsonl --policy MODEL --out traces.jsonl" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("import", "t.jsonl", "--out", "x.jsonl"),
        ("label", "p.jsonl", "tree", "--policy", "lab", "--out", "x.jsonl"),
    ],
)
def test_a_directory_is_not_called_like_a_file(folder, words):
    plain(folder, {"problem_id": "p1", "text": "a"})
    assert "--out x.jsonl is a directory" in refused(*words)
    assert not (folder / "x.jsonl").exists()


EMPTY_INPUTS = """
import e --out out
inspect e
segment e
sample e --policy lab
label e mc --problems e --policy lab
label e tree --policy lab --out out
label e judge --problems e --policy lab
label e verify:rules=equations --problems e
label e expert --problems e --traces e
label e consensus --problems e --labels a=e --labels b=e
label e advantage --problems e --labels e
label e critiques --problems e --policy lab
train prm e --problems e --labels e --base lab --out out
train orm e --problems e --base lab --out out
train probe e --problems e --base lab --out out
train implicit e --problems e --base lab --out out
train verifier e --problems e --labels e --critiques e --base lab --out out
rl e --policy lab --out out
sample e --specification e --policy lab
imitate e --traces e --labels e --specification e --policy lab --out out
rl e --specification e --policy lab --out out
imitate e --traces e --policy lab --out out
imitate e --policy lab --out out
score e --problems e -m lab
execute e --problems e
select e --scores e
search e best-of-n --policy lab --verifier equations
search e majority --policy lab
search e beam --policy lab --verifier equations
search e dvts --policy lab --verifier equations
search e rebase --policy lab --verifier equations
search e particle --policy lab --verifier equations
search e mcts --policy lab --verifier equations
search e resample --policy lab --verifier equations
search e revise --policy lab --verifier equations
evaluate --as labels e --traces e --out out
evaluate --as processbench e --data e --out out
evaluate --as prmbench e --data e --out out
evaluate --as agent-processbench e --data e --out out
evaluate --as runs e --problems e --traces e --labels e --out out
evaluate --as who-and-when e --data e --out out
evaluate --as best-of-n e --traces e --out out
evaluate --as monitor --problems e --traces e --out out
evaluate --as calibration e --problems e --traces e --labels e --out out
evaluate --as judge e --labels e --traces e --out out
audit e --test gaming --problems e --traces e --labels e --out out
audit e --test outcome --problems e --traces e --labels e --out out
audit e --test clean --problems e --traces e --labels e --out out
audit e --test sycophancy --problems e --traces e --labels e --out out
audit e --test argument --problems e --traces e --labels e --out out
audit e --test granularity --problems e --traces e --labels e --out out
audit e --test paths --problems e --traces e --labels e --out out
audit e --test twins --problems e --traces e --labels e --out out
audit e --test over-optimisation --problems e --traces e --out out
audit e --test agent --problems e --traces e --out out
audit --test faithfulness --problems e --policy lab --out out
audit e --problems e --traces e --labels e --out out
reward e --scores e
lineage e
card build e --name n --out out
card check e
guard check e --runs e
guard fit e --problems e --scores e
export e --traces e --labels e --out o.jsonl
serve sessions --database nowhere.db --out out
doctor http://127.0.0.1:9/v1
"""
"""A command line for each command that reads something; ``e`` is a file without lines."""

WITHOUT_INPUT = {
    "quickstart",
    "guard hook",
    "guard mcp",
    "serve",
    "serve prune",
    "serve users add",
} | {f"serve keys {name}" for name in ("add", "list", "revoke")}


def test_every_command_is_tried_on_empty_inputs():
    lines = EMPTY_INPUTS.strip().splitlines()
    tried = [max((path for path in COMMANDS if f"{line} ".startswith(f"{path} ")), key=len) for line in lines]
    assert not WITHOUT_INPUT.intersection(tried)
    assert WITHOUT_INPUT.union(tried) == set(COMMANDS)


@pytest.mark.parametrize("line", EMPTY_INPUTS.strip().splitlines())
def test_nothing_comes_of_empty_inputs(folder, line):
    (folder / "e.jsonl").touch()
    words = [re.sub(r"(^|[=@])e$", r"\1e.jsonl", word) for word in line.split()]
    ended = run(*words)
    assert ended.status in (1, 2), ended.err
    assert ended.out == ""
    assert ended.err.strip().splitlines()[-1].startswith(("surefoot: ", "Error: "))
    written = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("p.jsonl", "e.jsonl")
    ]
    assert not written
