"""What commands print cannot drive the terminal, whatever the records say."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path

import pytest
from command_line import run

import surefoot.cli
from surefoot.cli.terminal import echo, echo_table
from surefoot.io import write_records
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.search.saved_tree import SavedNode, SavedTree

SOURCE = Path(surefoot.cli.__file__).parent
HOSTILE = "[red]a[/red]\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\u2066\r"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printers(tree: ast.AST) -> list[str]:
    """Names by which a module would print without :mod:`surefoot.cli.terminal`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            found.append("print")
        if isinstance(node, ast.Attribute) and node.attr in ("echo", "secho"):
            found.append(ast.unparse(node))
    return found


def test_commands_print_in_one_way():
    assert printers(ast.parse("import click\nclick.echo('x')\nprint()")) == ["click.echo", "print"]
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if (names := printers(ast.parse(path.read_text("utf-8"))))
    }
    assert found.pop("terminal.py")
    assert found == {}, "print with echo and echo_table of surefoot.cli.terminal"


def test_lines_and_cells_are_shown_as_they_are(capsys):
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    echo_table(HOSTILE, [HOSTILE, "[b]n[/b]"], [[HOSTILE, ":smile:"]])
    said = capsys.readouterr()
    for text in said:
        assert not OBEYED.search(text)
        assert r"\u001b]0;owned\u0007" in re.sub(r"\s", "", text)
    assert "[b]n[/b]" in said.out
    assert ":smile:" in said.out


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Records whose every text is hostile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    trace = Trace(
        id=HOSTILE,
        problem_id=HOSTILE,
        text=f"{HOSTILE}\nno",
        steps=[{"start": 0, "end": len(HOSTILE) + 1}, {"start": len(HOSTILE) + 1, "end": len(HOSTILE) + 3}],
        answer=HOSTILE,
        outcome=False,
        policy=HOSTILE,
    )
    other = trace.model_copy(update={"id": f"{HOSTILE}2", "outcome": True})
    orphan = trace.model_copy(update={"id": f"{HOSTILE}3", "problem_id": f"{HOSTILE}other"})
    write_records(tmp_path / "p.jsonl", [Problem(id=HOSTILE, text=HOSTILE, answer=HOSTILE)])
    write_records(tmp_path / "t.jsonl", [trace, other, orphan])
    write_records(
        tmp_path / "l.jsonl",
        [
            StepLabel(trace_id=one.id, step=step, kind="correctness", value=1.0, source=HOSTILE)
            for one in (trace, other)
            for step in range(2)
        ],
    )
    scores = [
        StepScores(trace_id=HOSTILE, scorer=HOSTILE, scores=(None, None), unscored_reason=HOSTILE),
        StepScores(trace_id=other.id, scorer=HOSTILE, scores=(0.5, 0.25)),
    ]
    write_records(tmp_path / "s.jsonl", scores)
    with (tmp_path / "t.jsonl").open("a") as stream:
        stream.write(json.dumps({"id": 1, HOSTILE: HOSTILE}, ensure_ascii=False) + "\n")
    nodes = [
        SavedNode(id=0, parent=None, depth=0, text=""),
        SavedNode(id=1, parent=0, depth=1, text=HOSTILE, value=0.5, finish=HOSTILE),
    ]
    tree = SavedTree(
        problem_id=HOSTILE,
        problem=HOSTILE,
        method=HOSTILE,
        seed=0,
        nodes=nodes,
        chosen=[1],
        answer=HOSTILE,
        outcome=None,
    )
    write_records(tmp_path / "trees.jsonl", [tree, tree.model_copy(update={"problem_id": "2"})])
    return tmp_path


TRACES = ("--problems", "p.jsonl", "--traces", "t.jsonl")
SOURCES = ("[b]one[/b]=l.jsonl", f"{HOSTILE}=l.jsonl")
LABELS = tuple(word for source in SOURCES for word in ("--labels", source))
COMMANDS = {
    "select, refused": ("select", "t.jsonl", "--scores", HOSTILE, "--equality=exact"),
    "verify": ("label", "t.jsonl", "verify:rules=equations", "--problems=p.jsonl", "--out=o.jsonl"),
    "consensus": ("label", "t.jsonl", "consensus", *LABELS, "--problems=p.jsonl", "--out=o.jsonl"),
    "evaluate labels": ("evaluate", "--as=labels", *SOURCES, *TRACES, "--out=o"),
    "draw": ("search", "draw", "trees.jsonl"),
    "draw, refused": ("search", "draw", "trees.jsonl", "--problem", HOSTILE),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_hostile_records_do_not_drive_the_terminal(folder, words):
    ended = run(*words)
    said = ended.out + ended.err
    assert said
    assert "Traceback" not in said
    assert not OBEYED.search(said)


@pytest.mark.parametrize("terminal", [True, False])
def test_records_on_standard_output_stay_the_same_records(monkeypatch, terminal):
    class Stream(io.TextIOWrapper):
        def isatty(self) -> bool:
            return terminal

    out = Stream(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", out)
    problem = Problem(id=HOSTILE, text="é　½")
    write_records("-", [problem])
    text = out.buffer.getvalue().decode()
    assert bool(OBEYED.search(text)) != terminal
    assert "é　½" in text
    assert Problem.model_validate_json(text) == problem


def test_a_table_fits_80_columns_and_breaks_no_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    headings = ["scorer", *(f"measure number {n}" for n in range(8))]
    reason = "a reason of several words that would be wider than the whole terminal if it were in one line"
    rows = [["prm/unbreakable_name_of_a_scorer", reason, *(["0.830 [0.801, 0.859]"] * 6), "12"]] * 2
    echo_table("A title that is itself much longer than one line of the terminal can be " * 2, headings, rows)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.isascii()
    assert out.count("0.830 [0.801, 0.859]") == 12
    assert set(reason.split()) <= set(out.split())
    lines = out.splitlines()
    assert sum(line.startswith("#  ") for line in lines) == sum(line.startswith("1  ") for line in lines) > 1


def test_numbers_align_right_and_text_left(capsys):
    echo_table(None, ["name", "n", "why"], [["a", "7", "x"], ["long", "123", "n/a"]])
    assert capsys.readouterr().out.splitlines()[2:4] == ["a       7  x", "long  123  n/a"]


def test_an_empty_table_has_its_headings(capsys):
    echo_table("Nothing", ["name", "n"], [])
    assert capsys.readouterr().out.splitlines() == ["Nothing", "name  n", "----  -", ""]
