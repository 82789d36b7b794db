"""Processes that a benchmark starts: servers that announce themselves, and workers of other environments."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.server import GracefulServer


@contextmanager
def started(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A module as a process, and the first line that it prints; its input ends with the block."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, next(iter(process.stdout or ()), "")
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(60)
            finally:
                process.kill()


def serve(server: GracefulServer, announce: Callable[[int], object] = int) -> None:
    """Run a server until standard input ends; the first line of its output says what ``announce`` makes of
    the port."""

    def watch() -> None:
        while not server.started:
            time.sleep(0.01)
        print(announce(server.servers[0].sockets[0].getsockname()[1]), flush=True)
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def worker(python: str, script: Path, settings: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What a script says, in its last line, when another Python runs it with a file of settings."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(dict(settings)))
        done = subprocess.run(
            [python, str(script), str(file)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def has_trl(python: str) -> bool:
    """Whether an interpreter has the TRL release that is compared; if not, prints how to install it."""
    ask = "from importlib.metadata import version; print(version('trl'))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    if found.returncode == 0 and found.stdout.startswith("1.13."):
        return True
    print(f"left out: TRL: {python} has none of 1.13; pip install 'trl==1.13.0', or give --trl-python")
    return False
