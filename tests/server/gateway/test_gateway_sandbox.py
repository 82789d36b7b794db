"""A sandbox behind HTTP: the same results, keys, bounds, and no start without isolation."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest

from surefoot.cli.serve import ServeSandbox
from surefoot.errors import SandboxError
from surefoot.sandbox import (
    BubblewrapSandbox,
    Ending,
    Limits,
    Program,
    ProgramResult,
    PythonTask,
    RemoteSandbox,
    grade_python,
    open_sandbox,
)
from surefoot.server import Limits as RequestLimits
from surefoot.server import ServerSettings, create_sandbox_app, make_server, open_database


class Echo:
    """Gives standard input back, in no process at all."""

    def run(self, programs):
        return [
            ProgramResult(ending=Ending.EXITED, exit_code=0, stdout=program.stdin) for program in programs
        ]


@contextmanager
def served(sandbox, *, keys=None, largest=None, **settings):
    """The address of a server in a thread."""
    settings = ServerSettings(port=0, require_key=keys is not None, **settings)
    bounds = {} if largest is None else {"largest": largest}
    server = make_server(create_sandbox_app(sandbox, settings, keys=keys, **bounds), settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def test_programs_run_on_the_server_and_come_back_in_order():
    try:
        box = BubblewrapSandbox()
    except SandboxError as missing:
        pytest.skip(str(missing))
    task = PythonTask.from_asserts(["f"], ["assert f(2) == 4"])
    with box, served(box) as url, open_sandbox(url) as sandbox:
        programs = [Program(argv=("cat",), stdin=bytes([n, 255])) for n in range(20)]
        assert [r.stdout for r in sandbox.run(programs)] == [bytes([n, 255]) for n in range(20)]
        texts = ["def f(x): return x * x", "def f(x): return x"]
        assert [v.passed for v in grade_python(sandbox, [(t, task) for t in texts])] == [True, False]


def test_a_key_is_required_and_shown_to_nobody_else(tmp_path, monkeypatch):
    monkeypatch.delenv("SUREFOOT_SANDBOX_KEY", raising=False)
    with open_database(tmp_path / "store.db") as db:
        key, _ = db.keys.create("grader", "client", scopes=["score"])
        chat, _ = db.keys.create("talker", "client", scopes=["chat"])
        with served(Echo(), keys=db.keys) as url:
            program = Program(argv=("x",), stdin=b"y")
            for wrong, status in (("", 401), ("sf-wrong", 401), (chat, 403)):
                with pytest.raises(SandboxError, match=f"answered {status}.*SUREFOOT_SANDBOX_KEY"):
                    RemoteSandbox(url, api_key=wrong).run([program])
            monkeypatch.setenv("SUREFOOT_SANDBOX_KEY", key)
            assert RemoteSandbox(url).run([program])[0].stdout == b"y"


def test_limits_and_bodies_are_bounded_by_the_server():
    with served(Echo(), largest=Limits(wall_s=5), limits=RequestLimits(max_body_bytes=10_000)) as url:
        remote = RemoteSandbox(url)
        ok = Program(argv=("x",), limits=Limits(wall_s=5))
        assert remote.run([ok])[0].ending is Ending.EXITED
        longer = Program(argv=("x",), limits=Limits(wall_s=6))
        for program in (longer, ok.model_copy(update={"peer": longer})):
            with pytest.raises(SandboxError, match=r"answered 400.*limits.wall_s is 6.0, at most 5.0 here"):
                remote.run([program])
        with pytest.raises(SandboxError, match="answered 413"):
            remote.run([Program(argv=("x",), stdin=bytes(20_000))])


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(SandboxError, match=r"http://127.0.0.1:9 does not answer"):
        RemoteSandbox("http://127.0.0.1:9").run([Program(argv=("x",))])


def test_the_server_does_not_start_without_isolation(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        ServeSandbox(database=str(tmp_path / "store.db")).run()
    assert list(tmp_path.iterdir()) == []
