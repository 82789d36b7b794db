"""Docker and Podman: the command line that is built, refusals, and the exchange with a container.

Where there is no daemon, a stand-in starts the container's command in bubblewrap, so all but the engine's own
isolation is run.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from surefoot.errors import SandboxError
from surefoot.sandbox import ContainerSandbox, Ending, Limits, Program, PythonTask, grade_python, open_sandbox

STAND_IN = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if words[0] == "run":
    at = words.index("python:3.12-slim")
    os.execvp("bwrap", [
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc"),
        *("--dev", "/dev", "--tmpfs", "/tmp", "--setenv", "PYTHONPATH", "/tmp/x"),
        *(part for at, word in enumerate(words) if word == "--volume"
          for part in ("--ro-bind", *words[at + 1].replace(":/box/", ":/tmp/x/").split(":")[:2])),
        *({os.path.realpath(sys.executable)!r}, *(w.replace("/box/", "/tmp/x/") for w in words[at + 1:])),
    ])
print("false")
"""


@pytest.fixture
def engine(monkeypatch, tmp_path) -> ContainerSandbox:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (Debian: apt-get install bubblewrap)")
    (tmp_path / "docker").write_text(STAND_IN)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return open_sandbox("docker", concurrency=2)


def test_the_container_has_no_network_no_rights_and_all_limits(engine):
    limits = Limits(processes=3, memory_bytes=128 << 20, disk_bytes=2 << 20)
    words = engine.command("name", limits, Path("/x/program"))
    flags = " ".join(words)
    for flag in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges",
        "--user 65534:65534", "--ipc none", "--pids-limit 3", "--memory 134217728", "--memory-swap 134217728",
        "size=2097152",
        "--pull never", "/box/inside:ro", "/x/program:/box/program:ro",
    ):  # fmt: skip
        assert flag in flags
    assert not any(word in flags for word in ("--privileged", "--cap-add", "unconfined", "docker.sock"))
    assert words[-2:] == [limits.model_dump_json(), "/box/program"]


def test_programs_run_end_and_are_graded(engine):
    short = Limits(wall_s=0.5, output_bytes=1000)
    results = engine.run(
        [
            Program(argv=("python", "main.py"), files={"main.py": b"print(input() * 2)"}, stdin=b"ab\n"),
            Program(argv=("python", "main.py"), files={"main.py": b"while True: pass"}, limits=short),
            Program(argv=("python", "main.py"), files={"main.py": b"while True: print('x')"}, limits=short),
            Program(argv=("no-such-command",)),
            Program(argv=("python", "main.py"), files={"main.py": b"import socket; socket.socket()"}),
        ]
    )
    endings = [Ending.EXITED, Ending.TIMEOUT, Ending.OUTPUT, Ending.REFUSED, Ending.EXITED]
    assert [r.ending for r in results] == endings, results
    assert (results[0].stdout, len(results[2].stdout)) == (b"abab\n", 1000)
    assert b"PermissionError" in results[4].stderr
    task = PythonTask.from_asserts(["f"], ["assert f(2) == 4"])
    texts = ["def f(x): return x * x", "def f(x): return x", "import os\ndef f(x): os._exit(0)"]
    assert [v.passed for v in grade_python(engine, [(t, task) for t in texts])] == [True, False, False]


def test_a_container_that_does_not_start_says_nothing_of_the_program(engine, tmp_path):
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2; exit 125\n")
    (result,) = engine.run([Program(argv=("true",))])
    assert (result.ending, result.exit_code) == (Ending.SANDBOX_FAILURE, None)
    assert "Cannot connect" in result.reason
    with pytest.raises(SandboxError, match=r"Cannot connect.*docker pull"):
        open_sandbox("docker")


def test_without_the_engine_it_refuses_and_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"apt-get install docker\.io"):
        open_sandbox("docker")
    with pytest.raises(SandboxError, match="apt-get install podman"):
        open_sandbox("podman:other")
    with pytest.raises(SandboxError, match="unknown sandbox 'bare'"):
        open_sandbox("bare")
