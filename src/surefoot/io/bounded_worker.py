"""A process that answers questions about untrusted text within limits of time and memory.

Model text can be hostile (``9^{9^{9^9}}``), and an expression that sympy has begun to evaluate cannot be
interrupted from inside. So it is evaluated in another process, which cannot access files or the network
and is killed when its time is over.

Loading sympy takes seconds. Therefore the process loads it once and answers in a forked child, which the
system's timer ends; the next child is ready in milliseconds. One JSON value per line goes each way. The
process ends when its standard input closes, so it never outlives its parent.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from surefoot.errors import SurefootError
from surefoot.io.isolation import isolate

Task = Callable[[], Callable[[Any], Any]]
"""A module-level function that imports its libraries and returns the function that answers a question: JSON
in, JSON out; it may raise anything. Only the task's name is sent to the process."""

_LOG = logging.getLogger("surefoot.io")
_STARTUP_S = 300.0
"""Bounds a start that hangs; importing sympy takes seconds on a busy machine."""
_GRACE_S = 2.0
"""Seconds that a child's own timer is given before the whole process is killed."""
_ENVIRONMENT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "PYTHONHASHSEED"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)
"""Variables that the process inherits; others may be secrets."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """``answer``, or the ``failure`` that prevented it: timeout, memory, too_deep, crash, error; from a pool
    also budget and cancelled."""

    answer: Any = None
    failure: str | None = None


class BoundedWorker:
    """A long-lived process for ``task``, started on first use and again when it has ended.

    ``error`` is the class raised if the process cannot start. Threads that share it wait for each other, but
    for :meth:`interrupt`. It does not use ``multiprocessing``, whose spawned children import the
    parent's ``__main__`` again and so fail under a REPL or a script read from standard input.
    """

    def __init__(self, task: Task, *, timeout_s: float, memory_mb: int, error: type[SurefootError]) -> None:
        self._task = f"{task.__module__}:{task.__qualname__}"
        self._error = error
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._answering: subprocess.Popen[bytes] | None = None
        self.isolation: tuple[str, ...] = ()
        """Resources that the process cannot access (``surefoot.io.isolation``), once it has started."""

    def ask(self, question: object, *, timeout_s: float | None = None) -> Reply:
        """Ask one question; an exception of the task is a ``failure``. ``timeout_s`` is its own limit.

        Raises ``error`` if the process cannot start (a missing library, or too little memory).
        """
        self._notice_fork()
        with self._lock:
            seconds = self._timeout_s if timeout_s is None else timeout_s
            self.start()
            self._answering = self._process
            try:
                line = self._exchange(json.dumps([question, seconds]), seconds + _GRACE_S)
            except BaseException:
                self.close()  # the answer to this question would be taken for the next one's
                raise
            finally:
                self._answering = None
            if not line:
                self.close()
                return Reply(failure="timeout" if line is None else "crash")
            reply = json.loads(line)
            return Reply(answer=reply.get("answer"), failure=reply.get("failure"))

    def start(self) -> None:
        """Start the process unless it runs. Raises as :meth:`ask` does."""
        self._notice_fork()
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # it was killed while idle, for example for lack of memory
            if self._process is not None:
                return
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
                [sys.executable, "-P", "-m", "surefoot.io.bounded_worker", self._task, str(self._memory_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a process group, so that its child is killed with it
            )
            line = self._exchange(None, _STARTUP_S)
            state = json.loads(line) if line else {}
            if not state.get("ready"):
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
        if (
            self._owner != os.getpid()
        ):  # the pipes belong to the parent, and one of its threads may have the lock
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
        if process is None or process.stdin is None or process.stdout is None:
            raise self._error(f"the process for {self._task} was started without pipes")
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


def main(task: str, memory_mb: int) -> None:
    """Run the process: announce that it is ready, then answer in children until standard input closes."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as channel:
        os.dup2(2, 1)  # a library that prints must not write into the channel

        def send(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        for limit, size in ((resource.RLIMIT_AS, memory_mb * 2**20), (resource.RLIMIT_CORE, 0)):
            with suppress(ValueError, OSError):  # refused if a lower limit is set already, and on macOS
                resource.setrlimit(limit, (size, size))
        try:
            logging.disable(logging.CRITICAL)
            module, _, name = task.partition(":")
            answer = getattr(import_module(module), name)()
            isolation = isolate()
        except (ImportError, MemoryError) as error:
            send({"failure": f"{type(error).__name__}: {error}"})
            return
        _answer_in_children(answer, memory_mb * 2**20, send, isolation)


_DONE, _RETIRED = 0, 3
"""Exit codes of a child: standard input closed, or its caches hold too much memory."""


def _answer_in_children(
    answer: Callable[[Any], Any],
    memory_bytes: int,
    send: Callable[[dict[str, Any]], None],
    isolation: tuple[str, ...],
) -> None:
    """Answer in a child, and in another one when it ends; SIGUSR1 ends a child."""
    child = 0

    def end_child(*_: object) -> None:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, end_child)
    busy = mmap.mmap(-1, 1)  # shared with the child: 1 while a question is unanswered
    send({"ready": True, "isolation": isolation})
    while True:
        busy[0] = 0
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            os._exit(_answer(answer, memory_bytes, send, busy))
        _, status = os.waitpid(child, 0)
        child = 0
        code = os.waitstatus_to_exitcode(status)
        if code == _DONE:
            return
        if busy[0] and code != _RETIRED:
            send({"failure": "timeout" if code == -signal.SIGALRM else "crash"})


def _answer(
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
        reply = _guarded(answer, question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(reply)
        busy[0] = 0
        # large caches could make harmless questions fail later
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > memory_bytes // 2:
            return _RETIRED
    return _DONE


def _guarded(answer: Callable[[Any], Any], question: Any) -> dict[str, Any]:
    try:
        return {"answer": answer(question)}
    except MemoryError:
        return {"failure": "memory"}
    except RecursionError:
        return {"failure": "too_deep"}
    except Exception:  # sympy raises anything
        return {"failure": "error"}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
