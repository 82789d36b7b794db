"""An existing output is never written over, unless the user says so."""

from __future__ import annotations

import json

import pytest
from command_line import good, refused

from benchmarks.worlds.digits import POLICY
from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS
from surefoot.cli.settings import output_fields
from surefoot.io import write_records
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace, segmenter


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = Problem(text="Start with 2. Add 2.", answer="4")
    text = "2 + 2 = 4\nThe answer is 4."
    trace = segment_trace(Trace(problem_id=problem.id, text=text, answer="4"), segmenter("line"))
    write_records(tmp_path / "p.jsonl", [problem])
    write_records(tmp_path / "t.jsonl", [trace])
    return tmp_path


VERIFY = ("label", "t.jsonl", "verify:rules=equations", "--problems", "p.jsonl", "--out")


@pytest.mark.parametrize(
    "words",
    [
        (*VERIFY, "out.jsonl"),
        ("select", "t.jsonl", "--rule", "majority", "--equality", "exact", "--out", "out.jsonl"),
        (
            "sample",
            "p.jsonl",
            f"--policy={POLICY}",
            "--out=out.jsonl",
            "--n=1",
            "--max-tokens=4",
            "--equality=exact",
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_file_is_written_over_only_with_force(folder, words):
    (folder / "out.jsonl").write_text("an hour of work\n")
    assert refused(*words) == "out.jsonl exists; name another file, or add --force to replace it"
    assert (folder / "out.jsonl").read_text() == "an hour of work\n"
    good(*words, "--force")
    assert json.loads((folder / "out.jsonl").read_text().splitlines()[0])["schema_version"]


def test_unfinished_work_goes_on_without_force(folder):
    """A command that its budget stopped has written what it has; with the same settings it goes on."""
    good(*VERIFY, "out.jsonl")
    work = folder / "out.jsonl.work"
    work.mkdir()
    good(*VERIFY, "out.jsonl")
    assert not work.exists()


def test_a_directory_of_records_is_not_written_over(folder):
    rows = [{"problem": "1 + 1?", "response": "1 + 1 = 2"}]
    (folder / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    good("import", "rows.jsonl", "--out", "mine")
    before = (folder / "mine/traces.jsonl").read_bytes()
    says = refused("import", "rows.jsonl", "--out", "mine")
    assert says == "mine/problems.jsonl exists; name another file, or add --force to replace it"
    assert (folder / "mine/traces.jsonl").read_bytes() == before


def test_a_checkpoint_is_not_trained_into_a_folder_of_other_files(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text("{}")
    words = ("train", "orm", "--problems", "p.jsonl", "t.jsonl", "--base", "lab", "--out", "mine")
    assert "mine is a directory with other files in it" in refused(*words)


def test_a_report_stands_beside_another_but_not_over_its_own(folder):
    good(*VERIFY, "l.jsonl")
    labels = ("evaluate", "--as=labels", "a=l.jsonl", "b=l.jsonl", "--traces", "t.jsonl")
    (folder / "report").mkdir()
    (folder / "report" / "calibration.json").write_text("{}")
    good(*labels, "--draws", "10", "--out", "report")
    assert "report/labels.json exists" in refused(*labels, "--draws", "10", "--out", "report")


def test_every_option_that_names_an_output_is_marked():
    """Commands with ``--out`` have ``--force``: a new one cannot forget it. The quickstart only continues its
    own commands, and refuses every other directory."""
    for settings in map(load_settings, set(COMMANDS) - {"quickstart"}):
        if "out" in settings.model_fields:
            assert output_fields(settings), settings.__name__
