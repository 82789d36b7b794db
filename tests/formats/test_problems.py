from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from surefoot.errors import RecordError
from surefoot.formats import FORMATS, read_gsm8k, read_gsm8k_solutions, read_math500, read_source
from surefoot.io import ReadReport

DATA = Path(__file__).parents[2] / "../shared/data"

ROW = {
    "question": "How many eggs?",
    "answer": "He has 1,000*2=<<1000*2=2000>>2,000 eggs.\nPlus $<<1>>1.\n#### 2,001",
}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gsm8k_answer_and_worked_solution(tmp_path: Path):
    (problem,) = read_gsm8k(lines(tmp_path / "g.jsonl", ROW))
    assert (problem.text, problem.answer, problem.source) == ("How many eggs?", "2001", "gsm8k")
    assert problem.meta["solution"] == "He has 1,000*2=<<1000*2=2000>>2,000 eggs.\nPlus $<<1>>1."


def test_gsm8k_solution_as_a_trace(tmp_path: Path):
    (item,) = read_gsm8k_solutions(lines(tmp_path / "g.jsonl", ROW))
    assert item.trace.text == "He has 1,000*2=2,000 eggs.\nPlus $1.\n#### 2,001"
    steps = [item.trace.step_text(index) for index in range(3)]
    assert steps == ["He has 1,000*2=2,000 eggs.\n", "Plus $1.\n", "#### 2,001"]
    assert (item.trace.answer, item.trace.outcome) == ("2001", True)
    assert item.trace.problem_id == item.problem.id


def test_bad_rows_are_counted_or_raise(tmp_path: Path):
    path = lines(tmp_path / "g.jsonl", {"question": "no mark", "answer": "5"}, ROW, {"question": 3}, [], None)
    with path.open("ab") as stream:
        stream.write(b"{\n\xff\n\n")
    report = ReadReport()
    assert [problem.answer for problem in read_gsm8k(path, report=report)] == ["2001"]
    assert (report.good, report.bad_count) == (1, 6)
    reasons = dict(report.bad)
    assert reasons[1] == "field 'answer': no final answer after '####'"
    assert reasons[3] == "field 'question': Input should be a valid string (and 1 more)"
    assert reasons[4].startswith("not an object but []")
    assert reasons[6].startswith("not JSON")
    assert reasons[7].startswith("not UTF-8")
    with pytest.raises(RecordError, match=r"g\.jsonl, line 1: field 'answer': .*; correct the row, or pass"):
        list(read_gsm8k(path))


def test_unreadable_files_raise(tmp_path: Path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROW).encode() * 50)[:-9])
    (tmp_path / "array.json").write_text("[\n1,")
    for name in ("absent.jsonl", "cut.jsonl.gz", "array.json"):
        with pytest.raises(RecordError, match=name):
            list(read_gsm8k(tmp_path / name, report=ReadReport()))


def test_math500_keeps_level_subject_and_id(tmp_path: Path):
    row = {"problem": "1+1", "answer": "2", "level": "Level 2", "subject": "Algebra", "unique_id": "t/1.json"}
    (problem,) = read_math500(lines(tmp_path / "m.jsonl", row))
    assert (problem.text, problem.answer) == ("1+1", "2")
    assert problem.meta == {"level": "Level 2", "subject": "Algebra", "unique_id": "t/1.json"}


def test_registry(tmp_path: Path):
    path = lines(tmp_path / "g.jsonl", ROW)
    assert list(read_source("gsm8k", path)) == list(read_gsm8k(path))
    assert "processbench" in FORMATS
    with pytest.raises(RecordError, match="no format is called 'gsm9k'; choose one of agent-processbench, "):
        read_source("gsm9k", path)


@pytest.mark.skipif(not (DATA / "math").exists(), reason="the shared data set is not here")
def test_real_files_are_read_whole():
    report = ReadReport()
    problems = list(read_gsm8k(DATA / "math/gsm8k_test.jsonl.gz", report=report))
    assert (len(problems), report.good, report.bad_count) == (1319, 1319, 0)
    assert all("," not in (problem.answer or "") for problem in problems)
    assert problems[0].answer == "18"
    solutions = list(read_gsm8k_solutions(DATA / "math/gsm8k_test.jsonl.gz"))
    assert not any("<<" in (item.trace.text or "") for item in solutions)
    problems = list(read_math500(DATA / "math/math500_test500.jsonl.gz", report=report))
    assert len(problems) == 500
    assert len({problem.meta["unique_id"] for problem in problems}) == 500
    assert report.bad_count == 0
