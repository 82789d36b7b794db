"""The service of the chaos run: the server as a process, its database, its upstream, and their faults."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import psutil
import pytest
from annotation_site import Room, open_room
from chaos_upstream import Upstream
from postgres_server import Postgres, postgres_programs, running_postgres

START_S = 60.0
DISK_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the server's processes hold."""

    processes: int
    descriptors: int
    """Of the server itself, as its memory."""
    memory: int


FORKING = multiprocessing.get_context("forkserver")
"""Starts servers from a process that has imported torch and the package: each start saves some seconds."""
FORKING.set_forkserver_preload(
    [
        *("surefoot.cli.serve", "surefoot.models.loading", "surefoot.policies.openai"),
        "surefoot.server.app",
    ]
)


def serve(words: list[str], log: Path, environment: dict[str, str]) -> None:
    """``surefoot serve`` with these words, as its own process."""
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    sys.argv = ["surefoot", "serve", *words]
    from surefoot.cli import main

    main()


class Server:
    """``surefoot serve`` on one port."""

    def __init__(self, folder: Path, port: int, words: list[str]) -> None:
        self._port, self._words = port, words
        self.log = folder / "serve.log"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._process: ForkServerProcess | None = None

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it answers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            ensure_running()
        words = ["--port", str(self._port), *self._words]
        environment = {"TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        self._process = FORKING.Process(target=serve, args=(words, self.log, environment))
        self._process.start()
        end = time.monotonic() + START_S
        while True:
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", self._port), 1)):
                return
            said = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
            assert self._process.is_alive(), f"the server ended at its start: {said}"
            assert time.monotonic() < end, f"the server did not start: {said}"
            time.sleep(0.05)

    def kill(self) -> None:
        """``kill -9``; and see that the processes that it started end, too."""
        assert self._process is not None
        family = _family(self.pid) if self._process.is_alive() else []
        self._process.kill()
        self._process.join(10)
        _wait_for_end(family, "processes of the killed server are left")
        for left in self.temporary.iterdir():  # a killed process cannot delete its uploads
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def end(self) -> None:
        """End it by a signal. Raises ``AssertionError`` for processes and temporary files that are left."""
        assert self._process is not None
        family = _family(self.pid)
        self._process.terminate()
        try:
            self._process.join(30)
            assert self._process.exitcode in (0, -signal.SIGTERM)
        finally:
            self._process.kill()
        _wait_for_end(family, "processes of the ended server are left")
        left = [path.name for path in self.temporary.iterdir()]
        assert not left, f"temporary files are left: {left}"

    def resources(self) -> Resources:
        """What it holds now."""
        server = psutil.Process(self.pid)
        return Resources(
            processes=len(_family(self.pid)),
            descriptors=server.num_fds(),
            memory=server.memory_info().rss,
        )


def _family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]


def _alive(family: list[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in family:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def _wait_for_end(family: list[psutil.Process], message: str) -> None:
    """Return once all have ended. Raises ``AssertionError`` with their commands after a minute.

    A worker that is still importing SymPy, on a busy machine, sees the end of its input only afterwards.
    """
    end = time.monotonic() + 60
    while living := _alive(family):
        assert time.monotonic() < end, f"{message}: {[' '.join(process.cmdline()) for process in living]}"
        time.sleep(0.05)


def wait_for(true: Callable[[], bool], seconds: float, message: str) -> None:
    """Return once ``true()`` is. Raises ``AssertionError`` with the message after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, message
        time.sleep(0.05)


@dataclass(kw_only=True)
class Site:
    """Everything that can fail."""

    room: Room
    server: Server
    upstream: Upstream
    port: int
    folder: Path
    """Where the database is, on a small disk of its own if this system allows one."""
    postgres: Postgres | None
    own_disk: str | None
    """Why the database is not on a disk of its own; ``None`` = it is."""

    @contextmanager
    def database_gone(self) -> Iterator[None]:
        """PostgreSQL stopped as by a crash; SQLite locked by another process, this one."""
        if self.postgres is not None:
            self.postgres.stop()
            try:
                yield
            finally:
                self.postgres.start()
            return
        with closing(sqlite3.connect(self.folder / "labels.db", timeout=20, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """No byte left on the database's disk; without such a disk, no file of the server may grow."""
        if self.own_disk is not None:
            server = psutil.Process(self.server.pid)
            before = server.rlimit(psutil.RLIMIT_FSIZE)
            server.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
            try:
                yield
            finally:
                server.rlimit(psutil.RLIMIT_FSIZE, before)
            return
        filler = self.folder / "filler"
        try:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                for size in (1_000_000, 4096, 1):
                    with suppress(OSError):
                        while True:
                            file.write(b"a" * size)
            yield
        finally:
            filler.unlink()
            if self.postgres is not None:  # it may have ended: it cannot go on without its journal
                self.postgres.restart()


@contextmanager
def open_site(folder: Path, *, database: str, reward_model: Path | None) -> Iterator[Site]:
    """The service on ``sqlite`` or ``postgresql``; its reward model is in the process, or the upstream."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="surefoot-chaos-"))  # a short path, which others may enter
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        place.chmod(0o755)
        own_disk = stack.enter_context(small_disk(place))
        postgres = None
        if database == "postgresql":
            programs = postgres_programs()
            assert programs is not None
            postgres = stack.enter_context(running_postgres(programs, place))
        url = postgres.url("postgres") if postgres else None
        room = open_room(place, url=url)
        stack.callback(room.db.close)
        upstream = Upstream()
        upstream.open()
        stack.callback(upstream.close)
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        words = [
            *("--database", url or str(place / "labels.db"), "--require-key", "--chat"),
            *("--policy", "fake", "--base-url", f"{upstream.root}/v1", "--set", "policy.timeout=2"),
            *("--prm", str(reward_model or upstream.root), "--strategy", "majority:n=4"),
            *("--set", "limits.timeout_s=6"),
        ]
        server = Server(folder, port, words)
        server.start()
        stack.callback(server.kill)
        yield Site(
            room=room,
            server=server,
            upstream=upstream,
            port=port,
            folder=place,
            postgres=postgres,
            own_disk=own_disk,
        )


@contextmanager
def small_disk(place: Path) -> Iterator[str | None]:
    """Mount a small file system in memory; yield ``None``, or the reason why it could not be done."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError as error:
        yield str(error)
        return
    if done.returncode:
        yield re.sub(r"\s+", " ", done.stderr).strip()
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)
