"""--dry-run: what a job costs is said, no model is opened, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import good, run

from surefoot.io import write_records
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Ten problems of 35 characters, and two solutions of 70 each."""
    problems = [Problem(text=f"{number:035d}", answer="1") for number in range(10)]
    traces = [
        segment_trace(
            Trace(problem_id=problem.id, text=f"{sample:034d}\n{number:034d}\n", outcome=bool(sample)), Line()
        )
        for number, problem in enumerate(problems)
        for sample in range(2)
    ]
    write_records(tmp_path / "p.jsonl", problems)
    write_records(tmp_path / "t.jsonl", traces)
    return tmp_path / "p.jsonl", tmp_path / "t.jsonl"


def test_sampling_reads_the_prompts_and_writes_at_most_so_much(files, tmp_path):
    problems, _ = files
    said = good(
        *("sample", problems, "--n=4", "--max-tokens=50", "--template={problem}", "--dry-run", "--policy=lab")
    )
    assert said.out.splitlines() == [
        "40 traces of 10 problems: about 100 tokens read (3.5 characters each), at most 2,000 written, "
        "in 10 requests",
    ]
    server = ["--policy=m", "--base-url=http://127.0.0.1:9/v1"]
    said = good("sample", problems, "--n=4", "--template={problem}", "--dry-run", *server)
    assert "about 400 tokens read" in said.out
    assert "in 40 requests" in said.out


def test_scoring_reads_problems_and_steps(files, tmp_path):
    problems, traces = files
    out = tmp_path / "s.jsonl"
    said = good(
        *("score", "-m", "no-such-model", "--problems", problems, traces, "--out", out),
        "--dry-run",
    )
    assert "20 traces" in said.out
    assert "about 600 tokens read" in said.out
    assert not list(tmp_path.glob("s.jsonl*"))
    bad = run("score", "-m", "x", "--problem", "1 + 1", "--dry-run")
    assert bad.status != 0
    assert "--dry-run is for files: give --problems and TRACES" in bad.err


def test_a_price_is_that_of_what_is_predicted(files, tmp_path):
    problems, traces = files
    ask = ("label", traces, "judge:votes=3,price=2+0.5+10", "--problems", problems, "--policy=m")
    said = good(*ask, "--base-url=http://127.0.0.1:9/v1", "--max-tokens=100", "--dry-run").out
    read = int(re.search(r"about ([\d,]+) tokens read", said)[1].replace(",", ""))
    money = (read * 2 + 20 * 3 * 100 * 10) / 1e6
    assert f", {money:.4g} by the price" in said
    few = ("label", traces, "judge:price=2+10", "--problems", problems, "--policy=m", "--dry-run")
    assert "price" in run(*few).err


def test_a_judge_is_predicted_by_its_prompts(files, tmp_path):
    problems, traces = files
    ask = ("label", traces, "judge:votes=3", "--problems", problems, "--policy=m")
    said = good(
        *ask,
        "--base-url=http://127.0.0.1:9/v1",
        "--dry-run",
        "--max-tokens=10",
        "--out",
        tmp_path / "l.jsonl",
    )
    assert "20 traces, 3 verdicts each: about " in said.out
    assert "at most 600 written, in 60 requests" in said.out
    assert not list(tmp_path.glob("l.jsonl*"))


def test_rollouts_are_predicted(files):
    problems, traces = files
    said = good(
        *("label", traces, "mc", "--problems", problems, "--policy=lab", "--dry-run"),
    )
    assert said.out.splitlines() == [
        "at most 20 prefixes of 8 rollouts each: about 400 tokens read (3.5 characters each), at most 1,600 "
        "written, in 20 requests",
    ]
