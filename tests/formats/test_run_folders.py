"""A folder of runs: files are detected, verdicts come from beside them, and the rest is listed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from surefoot.errors import RecordError
from surefoot.formats import FOLDER, RECORDS, ImportContext, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport, write_records
from surefoot.records import Problem, Trace

DATA = Path(__file__).parents[1] / "data"
CHAT = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}


class Reading:
    """What a folder gives."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.context = ImportContext(
            settings=ImportSettings(), report=ReadReport(), failed=[], say=self.said.append
        )
        self.format = detect_format(folder)
        found = list(import_traces(folder, self.format, self.context))
        self.traces = [item.trace for item in found if item.trace is not None]
        self.problems = {item.problem.id: item.problem.text for item in found if item.problem is not None}

    @property
    def outcomes(self) -> dict[str, bool | None]:
        return {trace.meta["import"]["file"]: trace.outcome for trace in self.traces}


def put(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        copy(content, path)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def trial(folder: Path, name: str, *, reward: float | None, text: str | None = None) -> None:
    verifier = None if reward is None else {"rewards": {"reward": reward}}
    end = {"exception_type": "VerifierTimeoutError"} if reward is None else None
    result = {"task_name": "sums", "trial_name": name, "verifier_result": verifier, "exception_info": end}
    put(folder, f"{name}/result.json", result)
    put(folder, f"{name}/config.json", {"trial_name": name, "agent": {"name": "claude-code"}})
    put(folder, f"{name}/agent/trajectory.json", DATA / "atif.json")
    put(folder, f"{name}/agent/claude-code.txt", DATA / "claude-code-stream.jsonl")
    put(folder, f"{name}/verifier/ctrf.json", {"results": {"tests": [{"name": "t", "status": "passed"}]}})
    if text is not None:
        put(folder, f"{name}/verifier/reward.txt", text)


def test_harbor_trials(tmp_path: Path) -> None:
    put(tmp_path, "result.json", {"id": "job", "n_total_trials": 3, "stats": {"n_trials": 3}})
    put(tmp_path, "config.json", {"job_name": "job"})
    trial(tmp_path, "a", reward=1.0, text="1\n")
    trial(tmp_path, "b", reward=0.0, text="0")
    trial(tmp_path, "c", reward=None, text="1")
    (tmp_path / "b/agent/trajectory.json").unlink()
    reading = Reading(tmp_path)
    assert reading.format == FOLDER
    assert reading.outcomes == {
        "a/agent/trajectory.json": True,
        "b/agent/claude-code.txt": None,  # the subagent's, which comes last in the file
        "c/agent/trajectory.json": None,
    }
    main = [trace for trace in reading.traces if "subagent" not in trace.meta["import"]]
    assert [trace.outcome for trace in main] == [True, False, None]
    assert {trace.problem_id for trace in main} == {"sums"}
    assert main[0].meta["tests"] == {"t": "passed"}
    assert main[0].meta["rewards"] == {"result.json": 1.0, "verifier/reward.txt": 1.0}
    assert main[2].error == "VerifierTimeoutError"
    [doubt] = reading.context.doubts
    assert doubt == (
        "c/agent/trajectory.json: result.json has none, verifier/reward.txt has 1 (VerifierTimeoutError); "
        "the outcome is unknown"
    )
    assert reading.context.failed == []
    assert len(reading.context.no_runs) == 4
    forms = {text.partition(": ")[2] for text in reading.context.second_forms}
    assert (forms, len(reading.context.second_forms)) == ({"another form of the run in trajectory.json"}, 2)
    account = list(reading.context.account())
    assert any(text.startswith("files without a run, such as settings: 4\n") for text in account)
    assert any(text.startswith("second forms of runs that were read: 2\n") for text in account)
    assert any("3 files with runs (2 atif, 1 claude-code)" in text for text in reading.said)


def test_results_beside_a_session(tmp_path: Path) -> None:
    for name, resolved in (("a", True), ("b", None)):
        put(tmp_path, f"{name}/session.jsonl", DATA / "claude-code-stream.jsonl")
        verdict = {"task_id": "sums", "instruction": "Add 2 and 2.", "is_resolved": resolved}
        put(tmp_path, f"{name}/results.json", verdict | {"failure_mode": "unset", "parser_results": None})
    reading = Reading(tmp_path)
    main = [trace for trace in reading.traces if "subagent" not in trace.meta["import"]]
    assert [(trace.outcome, trace.error) for trace in main] == [(True, None), (None, None)]
    assert reading.problems["sums"] == "Add 2 and 2."
    assert len({trace.id for trace in reading.traces}) == 4, "equal sessions stay two"


def test_one_reward_of_two_runs_is_not_used(tmp_path: Path) -> None:
    put(tmp_path, "runs/a.json", DATA / "gemini-cli.jsonl")
    put(tmp_path, "runs/b.json", DATA / "opencode.json")
    put(tmp_path, "runs/reward.txt", "1")
    reading = Reading(tmp_path)
    assert reading.outcomes == {"runs/a.json": None, "runs/b.json": None}
    assert [text.partition(": ")[2] for text in reading.context.doubts] == [
        "its reward is not used, because 2 runs lie there"
    ]


def test_one_reward_of_several_runs_in_a_file_is_not_used(tmp_path: Path) -> None:
    put(tmp_path, "runs.jsonl", json.dumps(CHAT) + "\n" + json.dumps(CHAT) + "\n")
    put(tmp_path, "reward.txt", "1")
    reading = Reading(tmp_path)
    assert [trace.outcome for trace in reading.traces] == [None, None]
    assert len(reading.context.doubts) == 1


def test_files_of_many_formats_and_broken_ones(tmp_path: Path) -> None:
    names = [
        "atif.json", "claude-code.jsonl", "codex.jsonl", "gemini-cli.jsonl", "mini-swe-agent.traj.json",
        "opencode.json", "openhands.json", "swe-agent.traj", "tau-bench.json", "inspect.eval",
    ]  # fmt: skip
    for name in names:
        put(tmp_path, f"deep/er/{name}", DATA / name)
    put(tmp_path, "chat.json", CHAT)
    put(tmp_path, "broken.json", '{"messages": [')
    put(tmp_path, "empty.jsonl", "")
    put(tmp_path, "notes.txt", "no run")
    put(tmp_path, "package.json", {"name": "x"})
    put(tmp_path, "README.md", "runs")
    put(tmp_path, ".hidden/session.jsonl", DATA / "codex.jsonl")
    reading = Reading(tmp_path)
    read = {trace.meta["import"]["file"].removeprefix("deep/er/") for trace in reading.traces}
    assert read == {*names, "chat.json"}
    unread = {text.partition(": ")[0] for text in reading.context.failed or ()}
    assert unread == {"broken.json", "empty.jsonl"}
    assert reading.context.no_runs == ["package.json: no messages, steps or solutions"]
    assert reading.context.report.left_out["files .md"] == 1
    assert reading.context.report.left_out["files .txt"] == 1


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "package.json", {"name": "x"})
    with pytest.raises(RecordError, match=r"none of its files holds a run\n  package.json: no messages"):
        Reading(tmp_path)


def test_records_stay_records(tmp_path: Path) -> None:
    problem = Problem(text="2 + 2?")
    write_records(tmp_path / "problems.jsonl", [problem])
    write_records(tmp_path / "traces.jsonl", [Trace(problem_id=problem.id, text="4")])
    assert detect_format(tmp_path) == RECORDS


ARCHIVES = Path(__file__).parents[2] / "../shared/data/agent"


@pytest.mark.skipif(not ARCHIVES.exists(), reason="needs ../shared/data")
def test_real_archives(tmp_path: Path) -> None:
    """Against the counts of a program that shares no code with the package."""
    import subprocess
    import sys
    import tarfile

    from surefoot.labelling.verifiers.tool_policy import call_results

    printed = subprocess.check_output([sys.executable, ARCHIVES / "counts.py", "--json"])
    bench, trials, streams = json.loads(printed).values()
    counts = []
    for archive in json.loads(printed):
        folder = tmp_path / archive.partition(".")[0]
        with tarfile.open(ARCHIVES / archive) as tar:
            tar.extractall(folder, filter="data")
        traces = Reading(folder).traces
        messages = [message for trace in traces for message in trace.messages]
        pairs = [pair for trace in traces for pair in call_results(trace.messages)]
        main = [trace.outcome for trace in traces if "subagent" not in trace.meta["import"]]
        counts.append(
            {
                "answers": sum(message.role == "assistant" for message in messages),
                "calls": len(pairs),
                "results": sum(message.role == "tool" for message in messages),
                "paired": sum(pair.result is not None for pair in pairs),
                "failed": sum(message.error is True for message in messages),
                "outcomes": Counter(main),
            }
        )
    assert counts[0] == {
        "answers": bench["agent steps"],
        "calls": bench["tool calls"],
        "results": bench["results with a return code"],
        "paired": bench["tool calls"],
        "failed": bench["failed results (return code not 0)"],
        "outcomes": {True: bench["runs with reward 1"], False: bench["runs with reward 0"]},
    }
    # four trials have only the stream; the others have both, which say the same
    assert counts[1] | {"answers": 0} == {
        "answers": 0,
        "calls": trials["stream: tool calls (distinct ids)"],
        "results": trials["stream: tool results"],
        "paired": trials["stream: tool results"],
        "failed": trials["stream: failed tool results (is_error)"],
        "outcomes": {True: 2, False: 42, None: 1},
    }
    assert counts[1]["answers"] >= trials["ATIF: agent steps"]
    assert counts[2] == {
        "answers": streams["stream: assistant messages (distinct ids)"],
        "calls": streams["stream: tool calls (distinct ids)"],
        "results": streams["stream: tool results"],
        "paired": streams["stream: tool results"],
        "failed": streams["stream: failed tool results (is_error)"],
        "outcomes": {True: 48, False: 145, None: 6},
    }
