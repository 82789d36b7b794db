"""Processes that answer questions about untrusted text within limits of time and memory.

Model text can be hostile (``9^{9^{9^9}}``), and an expression that sympy has begun to evaluate cannot be
interrupted from inside. So it is evaluated in another process, which cannot access files or the network
and is killed when its time is over. :class:`WorkerPool` shares such processes among threads.

Loading sympy takes seconds. Therefore a process loads it once and answers in a forked child, which the
system's timer ends; the next child is ready in milliseconds. One JSON value per line goes each way. The
process ends when its standard input closes, so it never outlives its parent.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import mmap
import os
import platform
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from surefoot.concurrency import FairQueue
from surefoot.errors import SurefootError

Task = Callable[[], Callable[[Any], Any]]
"""A module-level function that imports its libraries and returns the function that answers a question: JSON
in, JSON out; it may raise anything. Only the task's name is sent to the process."""

SLICE_S = 0.1
"""Seconds of a quick worker that one question may use; an honest question takes some milliseconds."""
_MIN_S = 0.05
"""A question is given at least this much time."""
_STARTUP_S = 300.0
"""Bounds a start that hangs; importing sympy takes seconds on a busy machine."""
_GRACE_S = 2.0
"""Seconds that a child's own timer is given before the whole process is killed."""
_ENVIRONMENT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "PYTHONHASHSEED"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)
"""Variables that the process inherits; others may be secrets."""
_LOG = logging.getLogger("surefoot.io")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """``answer``, or the ``failure`` that prevented it: timeout, memory, too_deep, crash, error, budget or
    cancelled."""

    answer: Any = None
    failure: str | None = None


class RequestBudget:
    """Bounds the questions of one request: ``seconds`` of wall time in all, waiting included.

    :meth:`cancel` may be called from any thread. A budget is used for one question at a time.
    """

    def __init__(self, seconds: float = math.inf, *, caller: str = "") -> None:
        self.left_s = seconds
        self.used_s = 0.0
        """Worker seconds."""
        self.caller = caller
        self.cancelled = False
        self._lock = threading.Lock()
        self._interrupt: Callable[[], object] | None = None

    def cancel(self) -> None:
        """End the question that is waiting or being answered, and refuse all others."""
        with self._lock:
            self.cancelled = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Within the block, :meth:`cancel` calls ``interrupt``."""
        with self._lock:
            self._interrupt = interrupt
            if self.cancelled:
                interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None


class WorkerPool:
    """``size`` processes for one task, each started when first needed. Threads may share them.

    Half of several workers are quick: a question may use one for ``SLICE_S`` seconds and is then asked again
    of another worker. So a short question waits for one slice at most, however many hard questions others ask
    (:class:`surefoot.concurrency.FairQueue`). A single worker serves everybody in turn.

    ``timeout_s`` bounds each question, ``memory_mb`` each process. ``error`` is the class raised if a process
    cannot start. A pool may be used after a fork.
    """

    def __init__(
        self, task: Task, *, size: int = 1, timeout_s: float, memory_mb: int, error: type[SurefootError]
    ) -> None:
        self._timeout_s = timeout_s
        self._workers = [BoundedWorker(task, memory_mb=memory_mb, error=error) for _ in range(size)]
        n_quick = size // 2 if timeout_s > SLICE_S else 0
        self._idle = {True: self._workers[:n_quick], False: self._workers[n_quick:]}
        """Workers without a question: quick ones, and others."""
        self._turns = FairQueue(size, quick=n_quick, quick_cost=SLICE_S)

    def ask(self, question: object, budget: RequestBudget | None = None) -> Reply:
        """The reply to one question; an exception of the task is a ``failure``.

        Raises ``error`` if the process cannot start (a missing library, or too little memory).
        """
        budget = budget or RequestBudget()
        reply = self._ask(question, budget, quick=True)
        if reply is None:
            reply = self._ask(question, budget, quick=False)
        return reply or Reply(failure="timeout")

    def close(self) -> None:
        """Kill each worker once it has answered. Can be repeated; a later question starts a new one."""
        for worker in self._workers:
            worker.close()

    def _ask(self, question: object, budget: RequestBudget, *, quick: bool) -> Reply | None:
        """Wait for a worker and ask it, within the budget; ``None`` if a slice was too short."""
        if budget.cancelled or budget.left_s <= 0:
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        begin = time.monotonic()
        turn = self._turns.enter(budget.caller, quick=quick, used_before=budget.used_s)
        try:
            with budget.interruptible(turn.granted.cancel):
                turn.granted.result(min(budget.left_s, threading.TIMEOUT_MAX))
        except (TimeoutError, CancelledError):
            self._turns.leave(turn, 0.0)
            if not budget.cancelled:
                budget.left_s = 0.0
            return Reply(failure="cancelled" if budget.cancelled else "budget")
        left_s = max(budget.left_s - (time.monotonic() - begin), _MIN_S)
        limit_s = SLICE_S if turn.quick else self._timeout_s
        seconds, used_s = min(limit_s, left_s), 0.0
        reply = Reply(failure="cancelled")
        worker = self._idle[turn.quick].pop()
        try:
            worker.start()  # takes seconds, once; no request pays for it
            started = time.monotonic()
            with budget.interruptible(worker.interrupt):
                if not budget.cancelled:
                    reply = worker.ask(question, seconds)
            used_s = time.monotonic() - started
        finally:
            self._idle[turn.quick].append(worker)
            self._turns.leave(turn, used_s)
        budget.left_s, budget.used_s = left_s - used_s, budget.used_s + used_s
        if budget.cancelled:
            return Reply(failure="cancelled")
        if reply.failure == "timeout":
            if seconds < limit_s:
                return Reply(failure="budget")
            if turn.quick:
                return None
        return reply


class BoundedWorker:
    """A long-lived process for ``task``, started on first use and again when it has ended.

    It does not use ``multiprocessing``, whose spawned children import the parent's ``__main__`` again and so
    fail under a REPL or a script read from standard input.
    """

    def __init__(self, task: Task, *, memory_mb: int, error: type[SurefootError]) -> None:
        self._task = f"{task.__module__}:{task.__qualname__}"
        self._memory_mb, self._error = memory_mb, error
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._answering: subprocess.Popen[bytes] | None = None
        self.isolation: tuple[str, ...] = ()
        """Resources that the process cannot access (:func:`isolate`), once it has started."""

    def ask(self, question: object, timeout_s: float) -> Reply:
        """Ask one question; raises as :meth:`WorkerPool.ask` does."""
        self._notice_fork()
        with self._lock:
            self.start()
            self._answering = self._process
            try:
                line = self._exchange(json.dumps([question, timeout_s]), timeout_s + _GRACE_S)
            except BaseException:
                self.close()  # the answer to this question would be taken for the next one's
                raise
            finally:
                self._answering = None
            if not line:
                self.close()
                return Reply(failure="timeout" if line is None else "crash")
            return Reply(**json.loads(line))

    def start(self) -> None:
        """Start the process unless it runs."""
        self._notice_fork()
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # it was killed while idle, for example for lack of memory
            if self._process is not None:
                return
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
                [sys.executable, "-P", "-m", "surefoot.io.workers", self._task, str(self._memory_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a process group, so that its child is killed with it
            )
            line = self._exchange(None, _STARTUP_S)
            state = json.loads(line) if line else {}
            if "isolation" not in state:
                self.close()
                reason = state.get("failure", "it ended before it was ready")
                raise self._error(
                    f"the process for {self._task} did not start: {reason}; check that the libraries it "
                    f"imports are installed and raise memory_mb={self._memory_mb}"
                )
            self.isolation = tuple(state["isolation"])
            if missing := sorted({"files", "network"} - set(self.isolation)):
                _LOG.warning("%s: this system cannot block its access to: %s", self._task, ", ".join(missing))

    def _notice_fork(self) -> None:
        # the pipes belong to the parent, and one of its threads may have the lock
        if self._owner != os.getpid():
            self._process, self._owner, self._lock = None, os.getpid(), threading.RLock()

    def interrupt(self) -> None:
        """End the question that is being answered, if any: its reply is the failure ``crash``."""
        if (process := self._answering) is not None:
            process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Kill and reap the process, if it runs. Can be repeated."""
        self._notice_fork()
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            process.wait()

    def _exchange(self, question: str | None, seconds: float) -> bytes | None:
        """Send ``question`` (if any) and read one line: empty = the process died, ``None`` = time is over."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        end, line = time.monotonic() + seconds, b""
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        try:
            if question is not None:
                process.stdin.write(question.encode() + b"\n")
                process.stdin.flush()
            while not line.endswith(b"\n"):
                if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                    return None
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return b""
                line += chunk
        except OSError:
            return b""
        return line


# Inside the process

_DONE, _RETIRED = 0, 3
"""Exit codes of a child: standard input closed, or its caches hold too much memory."""


def main(task: str, memory_mb: int) -> None:
    """Run the process: announce that it is ready, then answer in children until standard input closes.

    SIGUSR1 ends the child that answers.
    """
    channel = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not write into the channel

    def send(message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(channel, data) :]

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for limit, size in ((resource.RLIMIT_AS, memory_mb * 2**20), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # refused if a lower limit is set already, and on macOS
            resource.setrlimit(limit, (size, size))
    try:
        logging.disable(logging.CRITICAL)
        module, _, name = task.partition(":")
        answer = getattr(import_module(module), name)()
        ready = {"isolation": isolate()}
    except (ImportError, MemoryError) as error:
        send({"failure": f"{type(error).__name__}: {error}"})
        return
    child = 0

    def end_child(*_: object) -> None:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, end_child)
    busy = mmap.mmap(-1, 1)  # shared with the child: 1 while a question is unanswered
    send(ready)
    code = _RETIRED
    while code != _DONE:
        busy[0] = 0
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            os._exit(_answer_questions(answer, memory_mb * 2**20, send, busy))
        _, status = os.waitpid(child, 0)
        child = 0
        code = os.waitstatus_to_exitcode(status)
        if busy[0] and code not in (_DONE, _RETIRED):
            send({"failure": "timeout" if code == -signal.SIGALRM else "crash"})


def _answer_questions(
    answer: Callable[[Any], Any],
    memory_bytes: int,
    send: Callable[[dict[str, Any]], None],
    busy: mmap.mmap,
) -> int:
    """Answer questions in a child; returns its exit code."""
    unit = 1 if sys.platform == "darwin" else 1024
    for line in sys.stdin:
        busy[0] = 1
        question, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))  # without a handler, it ends the process
        try:
            reply = {"answer": answer(question)}
        except MemoryError:
            reply = {"failure": "memory"}
        except RecursionError:
            reply = {"failure": "too_deep"}
        except Exception:  # sympy raises anything
            reply = {"failure": "error"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(reply)
        busy[0] = 0
        # large caches could make harmless questions fail later
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > memory_bytes // 2:
            return _RETIRED
    return _DONE


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; the numbers are equal on all architectures."""
_GET_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file access rights (low bits) by version."""
_READ = 0b1100
"""Rights to read files and directories."""
_BENEATH = 1
"""Rule type: everything below a directory."""
_NET_RIGHTS = 0b11
"""Rights to bind and connect TCP, from version 4 on."""
_NO_NEW_PRIVILEGES = 38
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def isolate() -> tuple[str, ...]:
    """Block access for this process, which must have one thread, and its children, for ever.

    On Linux only. Landlock denies opening files, except reading files of loaded packages (which import more
    modules later), and from Linux 6.7 on TCP connections and ports. A new network namespace, if the process
    may create one, contains no interfaces at all. Open files and sockets stay open.

    Returns the kinds of access that are blocked now, out of ``files``, ``tcp`` and ``network``.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    network = any(libc.unshare(flags) == 0 for flags in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK))
    return (*_landlock(libc), *(("network",) if network else ()))


def _landlock(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Deny everything that Landlock controls except reading the standard library and loaded packages."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))
    if version < 1:
        return ()
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    tcp = version >= 4
    rules = struct.pack("QQ", rights, _NET_RIGHTS) if tcp else struct.pack("Q", rights)
    ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    if ruleset < 0:
        return ()
    packages = [module for name, module in list(sys.modules.items()) if "." not in name]
    readable = {path for module in packages for path in getattr(module, "__path__", ())}
    for directory in {str(Path(os.__file__).parent), *readable}:
        with suppress(OSError):
            opened = os.open(directory, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", _READ, opened)
            libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, ctypes.c_uint32(0))
            os.close(opened)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    restricted = libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return ("files", *(("tcp",) if tcp else ())) if restricted else ()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
