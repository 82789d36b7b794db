"""The warm interpreter of the box: it starts a fresh process for each program, and says how the program
ended.

One message on the control socket starts one program. It is JSON with the limits and comes with the
descriptors ``status`` (a socket), ``program`` (a sealed file: ``box.pack``), ``stdin``, ``stdout`` and
``stderr``. The zygote never reads a program, so no program can find another one in its own memory. Each gets
new user, PID and mount namespaces; the network (without an interface), IPC and host-name namespaces are the
box's, and the system call filter refuses their use. On ``status`` comes one JSON message when all
processes of the program are gone; if the other side shuts down ``status``, the program is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from . import box, callee, judge, seccomp, wire  # noqa: F401 - programs start faster with these loaded

_NEW = 0x00020000 | 0x10000000 | 0x20000000
"""Mount, user and PID namespaces."""
_SYS_CLONE = 56
_UID = 65534
"""The program's user inside its own user namespace."""
_PROGRAM, _REPORT, _READY = 3, 4, 5
"""Descriptors in a new process, after its standard streams."""
_MNT_DETACH = 2
_USUAL = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "hashlib",
    "heapq", "itertools", "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip
"""Modules that small programs import, loaded once."""
_WATCH_S = 0.02
"""Seconds between two looks at the memory of a program of several processes."""
_SIZE = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass
class Running:
    """A program that has not ended."""

    pid: int
    pidfd: int
    status: int
    report: int
    limits: dict[str, Any]
    began: float
    killed: str = ""
    """The limit that it hit."""

    def kill(self, why: str) -> None:
        """Kill the first process, and with it the whole PID namespace."""
        self.killed = self.killed or why
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Zygote:
    """Starts and watches programs until the control socket closes."""

    def __init__(self, control: socket.socket, outer_uid: int) -> None:
        self.control = control
        self.outer_uid = outer_uid
        self.filter = seccomp.filter_program()
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.by_fd: dict[int, Running] = {}

    def serve(self) -> None:
        while True:
            for fd, _ in self.poll.poll(self._wait_ms()):
                if fd == self.control.fileno():
                    message, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 8)
                    if not message:
                        return
                    self._start(json.loads(message), *fds)
                elif (running := self.by_fd.get(fd)) is not None:
                    if fd == running.pidfd:
                        self._finish(running)
                    else:  # the other side has shut down
                        self.poll.unregister(fd)
                        running.kill("stopped")
            self._watch()

    def _wait_ms(self) -> float | None:
        """Until the next deadline or the next look at memory."""
        programs = {running.pid: running for running in self.by_fd.values()}.values()
        if not programs:
            return None
        if any(running.limits["processes"] > 1 for running in programs):
            return _WATCH_S * 1000
        now = time.monotonic()
        first: float = min(running.began + running.limits["wall_s"] for running in programs)
        return max(1.0, 1000 * (first - now))

    def _start(
        self, limits: dict[str, Any], status: int, program: int, stdin: int, stdout: int, stderr: int
    ) -> None:
        report, report_child = os.pipe()
        ready, ready_zygote = os.pipe()
        began = time.monotonic()
        ctypes.pythonapi.PyOS_BeforeFork()
        nothing = ctypes.c_long(0)
        flags = ctypes.c_long(_NEW | signal.SIGCHLD)
        pid = ctypes.pythonapi.syscall(ctypes.c_long(_SYS_CLONE), flags, nothing, nothing, nothing, nothing)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            try:
                self._child(limits, ready, (stdin, stdout, stderr), program, report_child)
            except BaseException as problem:  # fails closed: whatever it is, this process goes
                os.write(_REPORT, f"{type(problem).__name__}: {problem}".encode()[:1000])
            finally:
                os._exit(1)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for fd in (program, stdin, stdout, stderr, report_child, ready):
            os.close(fd)
        if pid < 0:
            os.close(ready_zygote)
            os.close(report)
            self._answer(status, {"failure": "no process could be started"})
            return
        try:
            self._map_ids(pid)
            os.write(ready_zygote, b"1")
        except OSError as problem:  # the child reads the end of the pipe, and goes
            print(f"no user for a program: {problem}", file=sys.stderr, flush=True)
        os.close(ready_zygote)
        running = Running(pid, os.pidfd_open(pid), status, report, limits, began)
        self.by_fd |= {running.pidfd: running, status: running}
        self.poll.register(running.pidfd, select.POLLIN)
        self.poll.register(status, select.POLLIN)

    def _map_ids(self, pid: int) -> None:
        """Give the new user namespace one user and one group, and let the kernel kill it first for memory."""
        line = f"{_UID} {self.outer_uid} 1"
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", line),
            ("gid_map", line),
            ("oom_score_adj", "1000"),
        ):
            with open(f"{pid}/{name}", "w") as file:
                file.write(text)

    def _child(
        self, limits: dict[str, Any], ready: int, streams: tuple[int, ...], program: int, report: int
    ) -> NoReturn:
        # Above all open descriptors first, then down to fixed numbers.
        moved = [os.dup2(fd, 1000 + at) for at, fd in enumerate((*streams, program, report, ready))]
        for at, fd in enumerate(moved):
            os.dup2(fd, at)
        os.closerange(_READY + 1, 1 << 20)
        if os.read(_READY, 1) != b"1":
            raise OSError("no user could be mapped")
        os.close(_READY)
        os.setsid()
        box.run(_PROGRAM, _REPORT, limits, _UID, self.filter)

    def _finish(self, running: Running) -> None:
        _, wait_status, usage = os.wait4(running.pid, 0)
        with open(running.report, "rb") as file:
            report = file.read()
        for fd in (running.pidfd, running.status):
            del self.by_fd[fd]
            with contextlib.suppress(KeyError):
                self.poll.unregister(fd)
        os.close(running.pidfd)
        _, _, refusal = report.partition(box.REFUSED)
        self._answer(
            running.status,
            {
                "exit_code": os.waitstatus_to_exitcode(wait_status),
                "killed": running.killed,
                "refused": refusal.decode(errors="replace"),
                "failure": ""
                if report.startswith((box.BEGUN, box.REFUSED)) or running.killed
                else report.decode(errors="replace") or "the process ended before its program began",
                "wall_s": time.monotonic() - running.began,
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "peak_bytes": usage.ru_maxrss * 1024,
            },
        )

    @staticmethod
    def _answer(status: int, message: dict[str, Any]) -> None:
        # It cannot be sent if the reader is gone.
        with socket.socket(fileno=status) as end, contextlib.suppress(OSError):
            end.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)

    def _watch(self) -> None:
        """Kill what has run too long, or whose processes together have too much memory."""
        now = time.monotonic()
        programs = {running.pid: running for running in self.by_fd.values()}
        children: dict[int, list[int]] | None = None
        for running in programs.values():
            if now - running.began > running.limits["wall_s"]:
                running.kill("wall")
            elif running.limits["processes"] > 1 and now - running.began > _WATCH_S:
                children = process_tree() if children is None else children
                if (
                    len(children.get(running.pid, ()))
                    and memory_bytes(running.pid, children) > running.limits["memory_bytes"]
                ):
                    running.kill("memory")


def process_tree() -> dict[int, list[int]]:
    """Process → its children, of all in the box."""
    children: dict[int, list[int]] = {}
    for name in os.listdir():
        if name.isdigit():
            try:
                with open(f"{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # gone
            children.setdefault(parent, []).append(int(name))
    return children


def memory_bytes(root: int, children: dict[int, list[int]]) -> int:
    """Resident bytes of a process and all below it, without files; orphans are below the first process.

    A page that several processes share counts in parts, one for each. The kernel adds these up in time
    proportional to the memory, so it is asked only where memory is shared.
    """
    total, stack = 0, [root]
    while stack:
        pid = stack.pop()
        stack += children.get(pid, ())
        try:
            with open(f"{pid}/status", "rb") as file:
                sizes = dict(_SIZE.findall(file.read()))
            if int(sizes[b"RssShmem"]):
                with open(f"{pid}/smaps_rollup", "rb") as file:
                    sizes = dict(_SIZE.findall(file.read()))
        except (OSError, KeyError):
            continue
        total += 1024 * sum(int(sizes.get(name, 0)) for name in (b"RssAnon", b"Pss_Anon", b"Pss_Shmem"))
    return total


def main() -> None:
    """``python -m inside.zygote OUTER_UID``, with the control socket as standard input."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    with contextlib.suppress(PermissionError):  # an ordinary user cannot
        os.setgroups([])
    # From here on /proc is this process's working directory, and nowhere else: programs cannot open it.
    os.chdir("/proc")
    box.checked(box.libc.umount2(b"/proc", _MNT_DETACH), "hide /proc")
    for name in _USUAL:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    Zygote(control, int(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
