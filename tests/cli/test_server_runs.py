"""Commands against a server: a bar that moves with each answer, a kill that loses only what is under way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from command_line import good, incomplete, refused, run
from openai_server import Body, Reply, completion, serve

from surefoot.io import read_records, write_records
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.work import progress

GRADING = ("--extract=last_number", "--equality=exact")
FLAT = "--allow-uninformative"
MONTE_CARLO = "mc:rollouts=1,own-outcome=never"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    write_records(
        tmp_path / "p.jsonl", [Problem(text=f"What is {n} + 1?", answer=str(n + 1)) for n in range(40)]
    )
    return tmp_path / "p.jsonl"


def solution(body: Body) -> Reply:
    number = int(body["prompt"].split()[2]) + 1
    return Reply(payload=completion([f"so\nthe answer is {number}"]))


def started(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "surefoot", *map(str, words)], stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("command", ["sample", "label", "search"])
def test_a_kill_loses_only_the_requests_in_flight(problems, tmp_path, command):
    lock, enough = threading.Lock(), threading.Event()
    count = Counter[str]()

    def slow(body: Body) -> Reply:
        with lock:
            count[body["prompt"]] += 1
            if count.total() >= 20:
                enough.set()
        reply = solution(body)
        return Reply(payload=reply.payload, wait_s=0 if enough.is_set() and done else 0.1)

    done: list[bool] = []
    traces, out = tmp_path / "t.jsonl", tmp_path / "out.jsonl"
    with serve(slow) as server:
        server.models = [{"id": "m"}]
        words = ["sample", problems, "-n", 1, "--policy=m", f"--base-url={server.url}", "--concurrency=4"]
        words += [*GRADING, "--out", traces]
        if command == "label":
            enough.set()
            done.append(True)
            good(*words)
            count.clear()
            enough.clear()
            done.clear()
            words = ["label", traces, MONTE_CARLO, "--problems", problems, *words[4:7], *GRADING, FLAT]
            words += ["--out", out]
        else:
            words[-1] = out
        if command == "search":
            words[:4] = ["search", problems, "majority:n=1"]
        process = started(*words)
        assert enough.wait(60), process.communicate(timeout=5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        while server.in_flight:
            time.sleep(0.01)
        before = count.total()
        kept = (tmp_path / "out.jsonl.work/pieces/pieces.journal").read_bytes().count(b'{"piece":')
        done.append(True)
        good(*words)
    assert before - 5 <= kept < 40, "what was answered is kept"
    assert set(count.values()) <= {1, 2}
    assert count.total() - 40 == before - kept <= 5, "only what was under way is asked again"
    if command == "search":
        found = [json.loads(line)["candidates"] for line in out.read_text().splitlines()]
        assert [traces[0]["answer"] for traces in found] == [str(n + 1) for n in range(40)]
        return
    record = Trace if command == "sample" else StepLabel
    written = list(read_records(out, record))
    if command == "sample":
        assert [trace.text for trace in written] == [f"so\nthe answer is {n + 1}" for n in range(40)]
    else:
        assert len({(label.trace_id, label.step) for label in written}) == len(written) == 80


def test_the_bar_counts_answers(problems, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with serve(solution) as server:
        server.models = [{"id": "m"}]
        ended = good(
            *("sample", problems, "-n", 1, "--policy=m", f"--base-url={server.url}"),
            *(*GRADING, "--out", tmp_path / "t.jsonl"),
        )
    assert ": 40 of 40 after " in ended.err


def test_a_pipe_gets_the_answers_in_order(problems):
    def answer(body: Body) -> Reply:
        number = int(body["prompt"].split()[2])
        return Reply(payload=solution(body).payload, wait_s=0.05 if number % 7 == 0 else 0)

    with serve(answer) as server:
        server.models = [{"id": "m"}]
        ended = good("sample", problems, "-n", 1, "--policy=m", f"--base-url={server.url}", *GRADING)
    texts = [Trace.model_validate_json(line).text for line in ended.out.splitlines()]
    assert texts == [f"so\nthe answer is {n + 1}" for n in range(40)]


def test_a_server_of_which_no_request_succeeds_is_a_failure(problems, tmp_path):
    out = tmp_path / "t.jsonl"
    with serve(lambda _: Reply(status=404, payload="gone")) as server:
        server.models = [{"id": "m"}]
        words = [
            "sample",
            problems,
            "-n",
            1,
            "--policy=m",
            f"--base-url={server.url}",
            *GRADING,
            "--out",
            out,
        ]
        said = refused(*words)
        asked = len(server.seen)
        server.answer = lambda _: Reply(status=400, payload="too long")
        assert "status 400: too long" in refused(*words)
        server.answer = solution
        good(*words)
    assert "no request succeeded, the last with: server: status 404: gone" in said
    assert asked < 40, "it does not ask for all of them first"
    assert all(trace.error is None for trace in read_records(out, Trace))


def test_scores_of_a_server_are_saved_by_the_batch(problems, tmp_path, monkeypatch):
    known = list(read_records(problems, Problem))
    steps = ({"start": 0, "end": 2}, {"start": 2, "end": 3})
    traces = [Trace(problem_id=one.id, text="a\nb", steps=steps, seed=n) for one in known for n in range(5)]
    write_records(tmp_path / "t.jsonl", traces)
    lock, left = threading.Lock(), iter(range(6))

    def score(body: Body) -> Reply:
        with lock:
            alive = next(left, None) is not None
        if not alive:
            return Reply(status=403, payload="gone")
        results = [{"scores": [len(item["problem"]) / 100] * len(item["steps"])} for item in body["items"]]
        return Reply(payload={"results": results, "usage": {"verifier_tokens": 4}})

    out = tmp_path / "s.jsonl"
    with serve(score) as server:
        server.models = [{"id": "prm", "owned_by": "surefoot"}]
        words = [
            "score",
            "-m",
            server.url,
            "--problems",
            problems,
            tmp_path / "t.jsonl",
            "--out",
            out,
        ]
        assert "no request succeeded, the last with: server: status 403: gone" in refused(*words)
        asked = [len(body["items"]) for body in server.bodies]
        server.seen.clear()
        left = iter(range(1000))
        monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
        assert ": 200 of 200 after " in good(*words).err
        again = sum(len(body["items"]) for body in server.bodies)
    assert again == 200 - 5 * 16 + 2, "five batches were answered before, and the check has two traces"
    assert set(asked) <= {2, 8, 16}, "a batch is not sent item by item to a server that is gone"
    assert sum(asked) <= 200 + 2, "no batch is sent twice"
    scores = list(read_records(out, StepScores))
    assert [record.trace_id for record in scores] == [trace.id for trace in traces]
    assert all(None not in record.scores for record in scores)


def test_single_failures_are_kept_and_counted(problems, tmp_path):
    def answer(body: Body) -> Reply:
        number = int(body["prompt"].split()[2])
        return Reply(status=400, payload="too long") if 10 <= number < 30 else solution(body)

    with serve(answer) as server:
        server.models = [{"id": "m"}]
        ended = incomplete(
            *("sample", problems, "-n", 1, "--policy=m", f"--base-url={server.url}"),
            *(*GRADING, "--out", tmp_path / "t.jsonl"),
        )
    assert "40 traces written; 20 with an error" in ended.err


@pytest.mark.parametrize("command", ["sample", "label"])
def test_a_wrong_address_is_one_sentence_before_work(problems, tmp_path, command):
    write_records(tmp_path / "t.jsonl", [])
    words = [command, problems, "--policy=m", "--base-url=http://127.0.0.1:9/v1"]
    if command != "sample":
        trace = Trace(
            problem_id=next(read_records(problems, Problem)).id, text="a", steps=({"start": 0, "end": 1},)
        )
        write_records(tmp_path / "t.jsonl", [trace])
        words[1:2] = [tmp_path / "t.jsonl", "judge", "--problems", problems]
    begun = time.monotonic()
    ended = run(*words, "--out", tmp_path / "o.jsonl")
    assert ended.status == 1
    assert time.monotonic() - begun < 10
    assert ended.err.strip().splitlines()[-1].startswith("surefoot: http://127.0.0.1:9/v1: no server answers")
    assert not (tmp_path / "o.jsonl.work").exists()


@pytest.mark.parametrize("command", ["sample", "label"])
def test_what_failed_is_done_again_and_nothing_else(problems, tmp_path, command):
    """A server that fails some requests: status 3, and then the file of a run that never failed."""
    asked: Counter[str] = Counter()
    broken = {"What is 3 + 1?", "What is 30 + 1?"}

    def flaky(body: Body) -> Reply:
        asked[body["prompt"]] += 1
        if any(body["prompt"].startswith(one) for one in broken):
            return Reply(status=400, payload={"error": {"message": "no"}})
        return solution(body)

    traces = tmp_path / "t.jsonl"
    with serve(flaky) as server:
        server.models = [{"id": "m"}]
        policy = ["--policy=m", f"--base-url={server.url}", "--concurrency=4", *GRADING]
        words = ["sample", problems, "-n", 1, *policy]
        if command == "label":
            broken_later, broken = broken, set()
            good(*words, "--out", traces)
            broken = broken_later
            words = ["label", traces, MONTE_CARLO, "--problems", problems, *policy, FLAT]
        ended = run(*words, "--out", tmp_path / "some.jsonl")
        assert ended.status == 3, ended.err
        assert "records failed" in ended.err
        assert "--retry-failed" in ended.err
        assert run(*words, "--out", tmp_path / "some.jsonl").status == 3, "it is not complete yet"
        again, broken = broken, set()
        asked.clear()
        good(*words, "--out", tmp_path / "some.jsonl", "--retry-failed")
        assert {prompt.splitlines()[0] for prompt in asked} == again
        assert not (tmp_path / "some.jsonl.work").exists()
        good(*words, "--out", tmp_path / "all.jsonl")
    record = Trace if command == "sample" else StepLabel
    some, whole = (read_records(tmp_path / f"{name}.jsonl", record) for name in ("some", "all"))
    assert [made(one) for one in some] == [made(one) for one in whole]


def made(record: Trace | StepLabel) -> dict[str, object]:
    """All that a record says but when it was made."""
    return record.model_dump(exclude={"created"})
