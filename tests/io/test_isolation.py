"""What a process that reads mathematics of strangers cannot reach."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from surefoot.answers import AnswerChecker
from surefoot.errors import LabelError
from surefoot.io.bounded_worker import BoundedWorker


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
    worker = BoundedWorker(load_intruder, timeout_s=5, memory_mb=512, error=LabelError)
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
    assert intruder.ask(["read", str(secret)]).answer == "PermissionError"
    assert intruder.ask(["write", str(tmp_path / "new")]).answer == "PermissionError"
    assert not (tmp_path / "new").exists()


def test_no_server_of_this_machine_is_reached(intruder):
    require(intruder, "tcp", "network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()
        assert intruder.ask(["connect", port]).answer in ("PermissionError", "OSError")


def test_algebra_works_in_isolation():
    with AnswerChecker() as checker:
        assert checker.equal([("2x+1", "1+x+x"), ("x^2-1", "(x-1)(x+1)")]) == [True, True]
        checker.equal([(r"\int x dx", "x^2/2"), (r"\sum_{k=1}^{n} k", "n(n+1)/2")])
        assert not {"error", "crash"} & set(checker.failures)
