"""``surefoot execute`` and choosing among what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import good, refused

from surefoot.errors import SandboxError
from surefoot.records import Problem, Trace
from surefoot.sandbox import open_sandbox

PROMPT = "def twice(a: int) -> int:\n"
TESTS = [
    {"name": "example", "code": "assert twice(2) == 4", "visibility": "visible"},
    {"name": "hidden", "code": "assert twice(31337) == 62674", "visibility": "hidden"},
]
PROGRAMS = [
    "    return a * a\n",
    "    return 4\n",
    "    return 2 * a\n",
    "    return a + a\n",
    "    return (\n",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        open_sandbox("bubblewrap").close()
    except SandboxError as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("execute")
    code = {"entry_point": "twice", "prompt": PROMPT, "tests": TESTS}
    problem = Problem(id="twice", text=PROMPT, meta={"code": code})
    (folder / "problems.jsonl").write_text(problem.model_dump_json() + "\n")
    traces = [Trace(problem_id="twice", text=text, sample=n) for n, text in enumerate(PROGRAMS)]
    (folder / "traces.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in traces))
    return folder


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_votes_choose_among_programs(files: Path, tmp_path: Path):
    words = ["execute", files / "traces.jsonl", "--problems", files / "problems.jsonl", "--out"]
    ended = good(*words, tmp_path / "ran.jsonl", "--scores", tmp_path / "visible.jsonl", "--grade")
    assert "5 programs, 4 that return something on every input" in ended.err
    ran = read(tmp_path / "ran.jsonl")
    answers = [one["answer"] for one in ran]
    assert answers[2] == answers[3] is not None
    assert len(set(answers[:3])) == 3
    assert answers[4] is None
    assert [one["outcome"] for one in ran] == [False, False, True, True, False]
    assert "31337" not in (tmp_path / "ran.jsonl").read_text(), "no hidden test leaves"
    assert [row["scores"][0] for row in read(tmp_path / "visible.jsonl")] == [1, 1, 1, 1, 0]
    for more in (["--rule", "majority"], ["--rule", "agreement", "--scores", tmp_path / "visible.jsonl"]):
        chosen = good("select", tmp_path / "ran.jsonl", "--equality", "exact", *more)
        assert json.loads(chosen.out)["outcome"] is True
    words = ["select", tmp_path / "ran.jsonl", "--rule", "majority", "--equality", "exact"]
    ended = good(*words, "--among", tmp_path / "visible.jsonl")
    assert "among the best" in " ".join(ended.err.split())


def test_problems_without_programs_are_refused(files: Path, tmp_path: Path):
    (tmp_path / "p.jsonl").write_text(Problem(id="twice", text="2 + 2?").model_dump_json() + "\n")
    words = ["execute", files / "traces.jsonl", "--problems", tmp_path / "p.jsonl"]
    assert "no problem has a programming task" in refused(*words)
