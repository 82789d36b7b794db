"""Worker processes: answers, failures, limits, fair turns, and what they cannot reach."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from surefoot.answers import AnswerChecker
from surefoot.errors import LabelError
from surefoot.io.workers import BoundedWorker, RequestBudget, WorkerPool


def load_echo():
    def answer(question):
        if question == "environment":
            return sorted(os.environ)
        if question == "fail":
            raise ValueError(question)
        if question == "deep":
            return answer(question)
        if question == "forever":
            while True:
                pass
        if question == "large":
            return len(bytearray(10**10))
        return question

    return answer


def load_nothing():
    raise ImportError("no such library")


@pytest.fixture
def worker():
    worker = WorkerPool(load_echo, timeout_s=2, memory_mb=512, error=LabelError)
    yield worker
    worker.close()


def test_a_task_of_another_module_answers_json(worker):
    for question in (None, 5, "text", {"a": [1, 2.5, None]}):
        assert worker.ask(question).answer == question
        assert worker.ask(question).failure is None


def test_failures_are_named_and_the_next_question_is_answered(worker):
    for question, failure in (("fail", "error"), ("deep", "too_deep"), ("forever", "timeout")):
        assert worker.ask(question).failure == failure
        assert worker.ask("after").answer == "after"


def test_memory_is_limited(worker):
    assert worker.ask("large").failure in ("memory", "crash")
    assert worker.ask("after").answer == "after"


def test_a_task_that_cannot_load_is_an_error_of_the_given_class():
    worker = WorkerPool(load_nothing, timeout_s=2, memory_mb=512, error=LabelError)
    with pytest.raises(LabelError, match="no such library"):
        worker.ask(1)


def test_the_process_gets_no_secrets_of_the_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "secret")
    worker = WorkerPool(load_echo, timeout_s=2, memory_mb=512, error=LabelError)
    try:
        names = worker.ask("environment").answer
    finally:
        worker.close()
    assert "PYTHONPATH" in names
    assert not any("KEY" in name or "TOKEN" in name or "URL" in name for name in names)


def load_sleepy():
    def answer(seconds):
        time.sleep(seconds)
        return seconds

    return answer


@pytest.fixture
def pool():
    made = WorkerPool(load_sleepy, size=2, timeout_s=0.6, memory_mb=512, error=LabelError)
    yield made
    made.close()


def test_a_question_longer_than_a_slice_is_answered_by_another_worker(pool):
    budget = RequestBudget(20, caller="honest")
    assert [pool.ask(seconds, budget).answer for seconds in (0.01, 0.3)] == [0.01, 0.3]
    assert pool.ask(5, budget).failure == "timeout"
    assert pool.ask(5, RequestBudget(0.3)).failure == "budget"


def test_hostile_callers_wait_for_each_other_and_cancelling_ends_the_waiting(pool):
    budgets = [RequestBudget(60, caller=f"hostile {number}") for number in range(6)]
    failures = []
    threads = [
        threading.Thread(target=lambda one=one: failures.append(pool.ask(30, one).failure)) for one in budgets
    ]
    for thread in threads:
        thread.start()
    answers = [pool.ask(0.01, RequestBudget(60, caller="innocent")).answer for _ in range(5)]
    for budget in budgets:
        budget.cancel()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert answers == [0.01] * 5
    assert set(failures) <= {"cancelled", "timeout"}
    assert "cancelled" in failures  # at most two had a worker
    assert pool.ask(0.01).answer == 0.01


def load_intruder():
    def attempt(question):
        what, where = question
        try:
            if what == "read":
                Path(where).read_bytes()
            elif what == "write":
                Path(where).write_text("x")
            else:
                with socket.socket() as link:
                    link.connect(("127.0.0.1", where))
        except OSError as error:
            return type(error).__name__
        return "done"

    return attempt


@pytest.fixture(scope="module")
def intruder():
    worker = BoundedWorker(load_intruder, memory_mb=512, error=LabelError)
    worker.start()
    with closing(worker):
        yield worker


def require(worker, *names):
    if not set(names) & set(worker.isolation):
        pytest.skip(f"this system does not shut processes off from {' or '.join(names)}: {worker.isolation}")


def test_no_file_is_read_or_written(intruder, tmp_path):
    require(intruder, "files")
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert intruder.ask(["read", str(secret)], 5).answer == "PermissionError"
    assert intruder.ask(["write", str(tmp_path / "new")], 5).answer == "PermissionError"
    assert not (tmp_path / "new").exists()


def test_no_server_of_this_machine_is_reached(intruder):
    require(intruder, "tcp", "network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()
        assert intruder.ask(["connect", port], 5).answer in ("PermissionError", "OSError")


def test_algebra_works_in_isolation():
    with AnswerChecker() as checker:
        assert checker.equal([("2x+1", "1+x+x"), ("x^2-1", "(x-1)(x+1)")]) == [True, True]
        checker.equal([(r"\int x dx", "x^2/2"), (r"\sum_{k=1}^{n} k", "n(n+1)/2")])
        assert not {"error", "crash"} & set(checker.failures)
