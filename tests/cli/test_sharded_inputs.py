"""Commands on shards and folders: the same outputs as on one file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from command_line import good, refused
from parquet_files import write_as

from surefoot.cli.label.command import Label
from surefoot.cli.runs import input_files
from surefoot.io import read_records, write_records
from surefoot.io.runs import make_manifest
from surefoot.records import Problem, Trace
from surefoot.segment import cut_trace

VERIFY = "verify:rules=equations"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Problems and traces whole, and the traces in shards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    problems = [Problem(text=f"What is {number} + 2?", answer=str(number + 2)) for number in range(7)]
    traces = [
        cut_trace(Trace(problem_id=problem.id, text=f"{number} + 2 = {problem.answer}\nSo {problem.answer}."))
        for number, problem in enumerate(problems)
    ]
    write_records(tmp_path / "problems.jsonl", problems)
    write_records(tmp_path / "traces.jsonl", traces)
    (tmp_path / "shards").mkdir()
    for number, ending in enumerate(("jsonl", "jsonl.gz", "parquet")):
        write_as(tmp_path / f"shards/part-{number}.{ending}", traces[3 * number : 3 * number + 3])
    return tmp_path


def test_shards_give_the_bytes_that_one_file_gives(folder: Path):
    good("label", "traces.jsonl", VERIFY, "--problems", "problems.jsonl", "--out", "whole.jsonl")
    for number, source in enumerate(("shards", "shards/part-*")):
        good("label", source, VERIFY, "--problems", "problems.jsonl", "--out", f"{number}.jsonl")
        assert (folder / f"{number}.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_a_run_knows_each_of_its_shards(folder: Path):
    found = input_files(Label(file="shards", method=VERIFY, problems="problems.jsonl"))
    shards = [f"file/part-{number}" for number in ("0.jsonl", "1.jsonl.gz", "2.parquet")]
    assert list(found) == [*shards, "problems"]
    entries = make_manifest("label", {}, found)["inputs"]
    assert entries["problems"]["path"] == "problems.jsonl"
    content = (folder / "problems.jsonl").read_bytes()
    assert entries["problems"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_files_of_other_forms_come_in_shards_too(folder: Path):
    for number in range(3):
        rows = [{"problem": f"What is {number}?", "solution": f"It is {row}.\n\nYes."} for row in range(2)]
        (folder / f"rows-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good("import", "rows-*.jsonl", "--out", "imported")
    assert len(list(read_records("imported/traces.jsonl", Trace))) == 6
    good("segment", "rows-*.jsonl", "--out", "cut.jsonl")
    assert [one.id for one in read_records("cut.jsonl", Trace)] == [
        one.id for one in read_records("imported/traces.jsonl", Trace)
    ]
    for number in range(2):
        row = {"id": f"g{number}", "generator": "m", "problem": f"q{number}", "steps": ["a", "b"], "label": 1}
        (folder / f"bench-{number}.jsonl").write_text(
            json.dumps(row | {"final_answer_correct": False}) + "\n"
        )
    good("import", "bench-?.jsonl", "--from", "processbench", "--out", "converted")
    assert [one.text for one in read_records("converted/problems.jsonl", Problem)] == ["q0", "q1"]


def test_an_output_is_no_url(folder: Path):
    for out in ("s3://bucket/out.jsonl", "memory://out.jsonl"):
        words = ("label", "traces.jsonl", VERIFY, "--problems", "problems.jsonl", "--out", out, "--force")
        assert "outputs are local files" in refused(*words)
    assert not any(path.name.startswith(("s3:", "memory:")) for path in folder.iterdir())
