"""Programs in the bubblewrap box: what they get, how they end, and that a dead box is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from surefoot.errors import SandboxError
from surefoot.sandbox import Ending, Limits, Program, open_sandbox

MIB = 1 << 20


def python(text: str, **fields) -> Program:
    return Program(argv=("python", "main.py"), files={"main.py": text.encode()}, **fields)


def test_results_come_in_order_with_output_and_exit_code(sandbox):
    programs = [python(f"import sys; print(input() * {n}); sys.exit({n})", stdin=b"ab\n") for n in range(5)]
    results = sandbox.run(programs)
    assert [r.stdout for r in results] == [b"ab" * n + b"\n" for n in range(5)]
    assert [r.exit_code for r in results] == list(range(5))
    assert {r.ending for r in results} == {Ending.EXITED}


def test_other_programs_and_the_whole_interpreter_run(sandbox):
    warm = "import threading, asyncio, subprocess, decimal\n"
    warm += "print(subprocess.run(['cat'], input=b'x', capture_output=True).stdout, "
    warm += "asyncio.run(asyncio.sleep(0, 5)))"
    results = sandbox.run(
        [
            Program(argv=("python", "-c", "import sys; print(sys.argv)", "a b"), stdin=b""),
            Program(argv=("sort",), stdin=b"b\na\n"),
            Program(argv=("cat", "deep/er/file"), files={"deep/er/file": b"\0\xff"}),
            python(warm),
        ]
    )
    assert [r.stdout for r in results] == [b"['-c', 'a b']\n", b"a\nb\n", b"\0\xff", b"b'x' 5\n"]


ENDINGS = {
    "an exception": (python("1/0"), Ending.EXITED),
    "wall time": (python("import time; time.sleep(60)", limits=Limits(wall_s=0.2)), Ending.TIMEOUT),
    "CPU time": (python("while True: pass", limits=Limits(cpu_s=1)), Ending.TIMEOUT),
    "address space": (python("x = bytearray(1 << 31)"), Ending.MEMORY),
    "output": (python("while True: print('x' * 1000)", limits=Limits(output_bytes=5000)), Ending.OUTPUT),
    "a signal": (python("import ctypes; ctypes.string_at(0)"), Ending.CRASHED),
    "no such command": (Program(argv=("no-such-command",)), Ending.REFUSED),
    "files too large": (
        python("", limits=Limits(disk_bytes=MIB)).model_copy(update={"files": {"x": bytes(2 * MIB)}}),
        Ending.REFUSED,
    ),
    "memory of all processes": (
        python(
            "import os, time\nfor _ in range(4):\n  if os.fork() == 0:\n    x = b'1' * (40 << 20)\n"
            "    time.sleep(9)\nos.wait()",
            limits=Limits(memory_bytes=96 * MIB),
        ),
        Ending.MEMORY,
    ),
}


def test_each_limit_ends_a_program_with_its_own_reason(sandbox):
    results = dict(zip(ENDINGS, sandbox.run([program for program, _ in ENDINGS.values()]), strict=True))
    assert {name: r.ending for name, r in results.items()} == {name: e for name, (_, e) in ENDINGS.items()}
    assert results["output"].stdout == (b"x" * 1000 + b"\n") * 4 + b"x" * 996
    assert b"ZeroDivisionError" in results["an exception"].stderr
    assert b"/box/" not in results["an exception"].stderr
    assert "disk_bytes" in results["files too large"].reason


BOUNDED = {
    "processes": ("import os\nfor _ in range(9):\n  if os.fork() == 0:\n    os.pause()", Limits(processes=4)),
    "threads": (
        "import threading as t\nfor _ in range(9): t.Thread(target=t.Event().wait).start()",
        Limits(processes=4),
    ),
    "open files": ("x = [open('/dev/null') for _ in range(40)]", Limits(open_files=32)),
    "one file": ("open('x', 'wb').write(bytes(3 << 20))", Limits(file_bytes=2 * MIB)),
    "all files": ("for i in range(5): open(str(i), 'wb').write(bytes(1 << 20))", Limits(disk_bytes=2 * MIB)),
    "number of files": ("for i in range(99999): open(str(i), 'wb').close()", Limits(disk_bytes=MIB)),
}


def test_limits_are_errors_within_the_program(sandbox):
    programs = [
        python(
            f"import os, signal, sys\ntry:\n  exec({text!r})\nexcept (OSError, RuntimeError): os._exit(7)",
            limits=limits,
        )
        for text, limits in BOUNDED.values()
    ]
    codes = [r.exit_code for r in sandbox.run(programs)]
    assert dict(zip(BOUNDED, codes, strict=True)) == dict.fromkeys(BOUNDED, 7)


SHARING = {
    "a pool": "import multiprocessing as m\nprint(m.Pool(2).map(abs, [-7]))",
    "a value": "import multiprocessing as m\nv = m.Value('i', 7)\nprint([v.value])",
    "named memory": "from multiprocessing.shared_memory import SharedMemory as S\n"
    "m = S(create=True, size=9)\nm.buf[0] = 7\nprint([m.buf[0]])\nm.close()\nm.unlink()",
    "a mapped file": "import mmap\nf = open('x', 'w+b')\nf.truncate(4096)\n"
    "m = mmap.mmap(f.fileno(), 0)\nm[0] = 7\nprint([m[0]])",
    "a device of zeros": "print([7 + open('/dev/zero', 'rb').read(1)[0]])",
}


def test_shared_memory_is_in_files_within_the_limit_of_the_disk(sandbox):
    results = sandbox.run([python(text) for text in SHARING.values()])
    assert {name: r.stdout for name, r in zip(SHARING, results, strict=True)} == dict.fromkeys(
        SHARING, b"[7]\n"
    )
    full = "import multiprocessing.shared_memory as s\nm = s.SharedMemory(create=True, size=8 << 20)\n"
    limits = Limits(disk_bytes=4 * MIB)
    (result,) = sandbox.run([python(full + "m.buf[:] = bytes(8 << 20)", limits=limits)])
    assert result.ending is not Ending.EXITED or result.exit_code


def test_peers_talk_to_each_other_and_to_nobody_else(sandbox):
    asks = "import sys; print('6', flush=True); sys.stderr.write(input())"
    answers = "print(int(input()) * 7, flush=True); input()"
    (result,) = sandbox.run([python(asks, peer=python(answers))])
    assert (result.ending, result.stderr, result.stdout) == (Ending.EXITED, b"42", b"")
    assert result.peer is not None
    assert result.peer.stdout == b""


def test_a_dead_box_is_replaced_and_its_programs_run_again(sandbox):
    with open_sandbox("bubblewrap", concurrency=2) as box:
        assert box._box is not None
        pid = box._box.process.pid
        os.kill(pid, signal.SIGKILL)
        results = box.run([python("print(1)")] * 3)
        assert [r.stdout for r in results] == [b"1\n"] * 3


def test_without_bubblewrap_it_refuses_and_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        open_sandbox("bubblewrap")


def test_where_namespaces_are_refused_it_refuses(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"No permissions to create new namespace.*user namespaces"):
        open_sandbox("bubblewrap")


def test_the_guide_says_how_every_limit_is_enforced():
    guide = (Path(__file__).parents[2] / "docs/how-to/code.md").read_text()
    assert [name for name in Limits.model_fields if f"| `{name}` |" not in guide] == []


def test_names_of_files_stay_in_the_working_directory():
    for name in ("/etc/x", "../x", "a/../../x", ""):
        with pytest.raises(ValueError, match="'files' has the name"):
            Program(argv=("true",), files={name: b""})
