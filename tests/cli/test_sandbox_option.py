"""``--sandbox``: every command runs its programs in the sandbox that it names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from command_line import good, refused
from openai_server import Reply, completion, serve
from program_trace import failing_program

from surefoot.cli.imitate import Imitate
from surefoot.cli.options import JudgeSettings
from surefoot.cli.rl import RL
from surefoot.policies.devices import LOADING
from surefoot.protocols import ProblemTrace

IMAGE = "docker:grader"


class FakeDocker:
    """A ``docker`` command that fails every program and logs its calls."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "calls.log"
        self._log.touch()
        command = directory / "docker"
        command.write_text(
            f'#!/bin/sh\necho "$*" >> "{self._log}"\nif [ "$1" = run ]; then echo "no room" >&2; exit 1; fi\n'
        )
        command.chmod(0o755)

    def programs(self) -> int:
        """How many containers were started, every one from the image that was asked for."""
        starts = [line for line in self._log.read_text().splitlines() if line.startswith("run ")]
        assert all(" grader -S -P -m inside.single " in line for line in starts)
        return len(starts)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return FakeDocker(directory)


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    problem, trace, _ = failing_program()
    problem.meta["code"]["tests"].append(
        {"name": "assert 2", "code": "assert total([3], 1) == 3", "visibility": "visible"}
    )
    (tmp_path / "problems.jsonl").write_text(problem.model_dump_json() + "\n")
    (tmp_path / "traces.jsonl").write_text(trace.model_dump_json() + "\n")
    return [tmp_path / "traces.jsonl", "--problems", tmp_path / "problems.jsonl"]


def test_every_command_runs_programs_in_the_named_sandbox(
    docker: FakeDocker, files: list[object], tmp_path: Path
) -> None:
    out = tmp_path / "labels.jsonl"
    said = refused("label", *files, "verify:rules=python-tests", "--sandbox", IMAGE, "--out", out)
    assert "no room" in said
    programs = docker.programs()
    good("execute", *files, "--sandbox", IMAGE, "--out", tmp_path / "ran.jsonl")
    assert docker.programs() > programs > 1


def test_monte_carlo_grades_in_the_named_sandbox(
    docker: FakeDocker, files: list[object], tmp_path: Path
) -> None:
    words = ["label", *files, "--policy", "m", "--max-tokens", "4"]
    with serve(lambda _: Reply(payload=completion(["    return 0"]))) as server:
        server.models = [{"id": "m"}]
        words += ["--base-url", server.url]
        good(*words, "mc:rollouts=1,grader=tests", "--sandbox", IMAGE, "--out", tmp_path / "mc.jsonl")
        assert docker.programs() > 0
        said = refused(*words, "mc:rollouts=1", "--sandbox", IMAGE, "--out", tmp_path / "other.jsonl")
    assert "--sandbox is where grader=tests runs programs" in said


def test_the_judge_of_a_search_runs_programs_in_the_named_sandbox(docker: FakeDocker) -> None:
    problem, trace, _ = failing_program()
    with JudgeSettings(verifier=("python-tests",), sandbox=IMAGE).open(LOADING) as judge:
        assert judge is not None
        [scores] = judge.score_traces([ProblemTrace(problem=problem, trace=trace)])
    assert set(scores.scores) == {None}
    assert docker.programs() > 0


def test_gold_verifiers_of_training_run_programs_in_the_named_sandbox(
    docker: FakeDocker, files: list[object], tmp_path: Path
) -> None:
    problem, trace, _ = failing_program()
    problems = str(files[2])
    imitate = Imitate(
        policy="lab", problems=problems, traces=str(files[0]), out=tmp_path / "out", gold=("python-tests",)
    )
    judge = JudgeSettings(verifier=("equations",), sandbox=IMAGE)
    rl = RL(problems="lab", policy="lab", out=tmp_path / "out", gold=("python-tests",), judge=judge)
    for opened in (imitate.open_task([problem], (), JudgeSettings(sandbox=IMAGE), LOADING), rl.task()):
        programs = docker.programs()
        with opened as task:
            assert task.gold is not None
            asyncio.run(task.gold.label([ProblemTrace(problem=problem, trace=trace)]))
        assert docker.programs() > programs


def test_an_unknown_sandbox_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    words = ["label", "none.jsonl", "verify:rules=compile", "--problems", "none.jsonl"]
    assert "unknown sandbox 'bare'" in refused(*words, "--sandbox", "bare")
    for words in (
        ["search", "none.jsonl", "revise", "--policy", "lab", "--verifier", "visible-tests"],
        ["imitate", "none.jsonl", "--policy=lab", "--traces=none.jsonl", "--out", tmp_path / "out"],
        ["rl", "lab", "--policy=lab", "--verifier", "visible-tests", "--out", tmp_path / "out"],
    ):
        assert "unknown sandbox 'bare'" in refused(*words, "--sandbox", "bare")
