"""``--sandbox``: programs of each command run where it says, with the key of the environment."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from command_line import good, refused
from program_trace import failing_program

from surefoot.cli.imitate import Imitate
from surefoot.cli.options import JudgeSettings
from surefoot.cli.rl import RL
from surefoot.policies.devices import LOADING
from surefoot.protocols import ProblemTrace
from surefoot.sandbox import Ending, ProgramResult


class Server(BaseHTTPRequestHandler):
    """Fails every program, and notes the keys that it was shown."""

    keys: list[str | None]

    def do_POST(self) -> None:
        self.keys.append(self.headers["Authorization"])
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        failed = ProgramResult(ending=Ending.SANDBOX_FAILURE, reason="no room", peer=None)
        results = [
            (failed if one["peer"] is None else failed.model_copy(update={"peer": failed})).model_dump(
                mode="json"
            )
            for one in asked["programs"]
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Server.keys = []
    monkeypatch.setenv("SUREFOOT_SANDBOX_KEY", "sf-key")
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    problem, trace, _ = failing_program()
    (tmp_path / "problems.jsonl").write_text(problem.model_dump_json() + "\n")
    (tmp_path / "traces.jsonl").write_text(trace.model_dump_json() + "\n")
    return [tmp_path / "traces.jsonl", "--problems", tmp_path / "problems.jsonl"]


def test_every_command_runs_programs_at_the_address(
    address: str, files: list[object], tmp_path: Path
) -> None:
    out = tmp_path / "labels.jsonl"
    said = refused(
        "label", "verify", *files, "--verifier", "python-tests", "--sandbox", address, "--out", out
    )
    assert "no room" in said
    said = refused("label", "mutants", files[2], "--sandbox", address, "--out", tmp_path / "mutants")
    assert "no mutant could be made" in said
    asked = len(Server.keys)
    good("execute", *files, "--sandbox", address, "--out", tmp_path / "ran.jsonl")
    assert len(Server.keys) > asked > 1
    assert set(Server.keys) == {"Bearer sf-key"}


def test_monte_carlo_grades_at_the_address(address: str, files: list[object], tmp_path: Path) -> None:
    words = ["label", "mc", *files, "--policy", "lab", "--rollouts", "1", "--max-tokens", "4"]
    good(*words, "--grader", "tests", "--sandbox", address, "--out", tmp_path / "mc.jsonl")
    assert set(Server.keys) == {"Bearer sf-key"}
    said = refused(*words, "--sandbox", address, "--out", tmp_path / "other.jsonl")
    assert "--sandbox is where --grader tests runs programs" in said


def test_the_judge_of_a_search_runs_programs_at_the_address(address: str) -> None:
    problem, trace, _ = failing_program()
    with JudgeSettings(verifier=("python-tests",), sandbox=address).open(LOADING) as judge:
        assert judge is not None
        [scores] = judge.score_traces([ProblemTrace(problem=problem, trace=trace)])
    assert set(scores.scores) == {None}
    assert Server.keys == ["Bearer sf-key"]


def test_gold_verifiers_of_training_run_programs_at_the_address(
    address: str, files: list[object], tmp_path: Path
) -> None:
    problem, trace, _ = failing_program()
    problems = str(files[2])
    imitate = Imitate(problems=problems, traces=str(files[0]), out=tmp_path / "out", gold=("python-tests",))
    judge = JudgeSettings(verifier=("arithmetic",), sandbox=address)
    rl = RL(out=tmp_path / "out", gold=("python-tests",), judge=judge)
    for number, opened in enumerate((imitate.task([problem], sandbox=address), rl.task()), start=1):
        with opened as task:
            assert task.gold is not None
            asyncio.run(task.gold.label([ProblemTrace(problem=problem, trace=trace)]))
        assert len(Server.keys) == number


def test_a_sandbox_that_there_is_not_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    words = ["label", "verify", "none.jsonl", "--problems", "none.jsonl", "--verifier", "compile"]
    assert "there is no sandbox 'bare'" in refused(*words, "--sandbox", "bare")
    for words in (
        ["search", "revise", "--problems", "none.jsonl", "--policy", "lab", "--verifier", "visible-tests"],
        ["imitate", "--problems", "none.jsonl", "--expert", "lab-exact", "--out", tmp_path / "out"],
        ["rl", "--verifier", "visible-tests", "--out", tmp_path / "out"],
    ):
        assert "there is no sandbox 'bare'" in refused(*words, "--sandbox", "bare")
