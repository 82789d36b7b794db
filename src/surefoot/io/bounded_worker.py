"""Both ends of the pipe to a process that answers questions about mathematical expressions within limits.

Model text can be hostile (``9^{9^{9^9}}``), and an expression that sympy has begun to evaluate cannot be
interrupted from inside. So it is evaluated in a process of its own, under limits of memory and CPU time, and
that process is killed when the wall time is over. One JSON value a line goes each way. The worker ends when
its standard input closes, so it never outlives its parent.

Loading such a library takes seconds, so where the system can fork, the process loads it once and answers in
a child, which the system's timer ends; the next child is there in milliseconds. Hostile questions then cost
their time limit and no more.

What the process does is its *task*: a module-level function that imports what it needs, makes it warm, and
returns the function that answers one question. Only the task's name goes to the process. When it is warm, it
gives up files and the network as far as the system lets it, before it reads the first question.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from surefoot.errors import SurefootError
from surefoot.io.isolation import isolate

Task = Callable[[], Callable[[Any], Any]]
"""Prepares the process and returns what answers there: JSON in, JSON out; it may raise anything."""

_LOG = logging.getLogger("surefoot.io")
STARTUP_S = 300.0
"""Importing sympy takes seconds on a busy machine; this bounds a start that hangs."""
_FORKS = hasattr(os, "fork")
_GRACE_S = 2.0
"""Seconds that a child's own timer is given before its whole process is killed."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """``answer``, or the ``failure`` that prevented one: timeout, memory, too_deep, crash, error; from a pool
    also budget and cancelled."""

    answer: Any = None
    failure: str | None = None


class BoundedWorker:
    """Parent's end: one long-lived process for ``task``, started on first use and again when it has ended.

    ``error`` is the class raised when the process cannot start. Threads must take turns; only
    :meth:`interrupt` may be called from another. Runs ``python -m`` on this module, and not
    ``multiprocessing``, whose spawned children import the parent's ``__main__`` again and so fail under a
    REPL or a script read from standard input.
    """

    def __init__(self, task: Task, *, timeout_s: float, memory_mb: int, error: type[SurefootError]) -> None:
        self._task = f"{task.__module__}:{task.__qualname__}"
        self._error = error
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._answering: subprocess.Popen[str] | None = None
        """The process while it answers a question."""
        self.isolation: tuple[str, ...] = ()
        """What the process is shut off from (``surefoot.io.isolation``), once it has started."""

    def ask(self, question: object, *, timeout_s: float | None = None) -> Reply:
        """Put one question within the limits; what the task raised is a ``failure``.

        ``timeout_s`` is this question's own limit. Raises ``error`` if the process cannot start (a library is
        missing, or there is too little memory).
        """
        seconds = self._timeout_s if timeout_s is None else timeout_s
        process = self._running()
        self._answering = process
        try:
            line = self._exchange(process, [question, seconds], seconds + (_GRACE_S if _FORKS else 0))
        except BaseException:
            # An interrupt between question and answer would leave the stale answer in the pipe.
            self.close()
            raise
        finally:
            self._answering = None
        if line is None:
            self.close()
            return Reply(failure="timeout")
        if not line:
            self.close()
            return Reply(failure="crash")
        reply = json.loads(line)
        if reply.get("retire") and not _FORKS:
            self.close()
        return Reply(answer=reply.get("answer"), failure=reply.get("failure"))

    def start(self) -> None:
        """Start the process, if it does not run. Raises as :meth:`ask` does."""
        self._running()

    def interrupt(self) -> None:
        """End the question that is being answered, if there is one: its reply is the failure ``crash``."""
        process = self._answering
        if process is None:
            return
        if _FORKS:
            process.send_signal(signal.SIGUSR1)
        else:
            process.kill()

    def close(self) -> None:
        """Kill and reap the process, if there is one. Can be called any number of times."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        _kill(process)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._owner != os.getpid():
            # After a fork the pipe belongs to the parent; two readers would steal each other's answers.
            self._process, self._owner = None, os.getpid()
        if self._process is not None and self._process.poll() is not None:
            self.close()  # ended while idle, e.g. by the system's memory killer
        return self._process or self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "surefoot.io.bounded_worker", self._task]
        process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            [*command, str(self._timeout_s), str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            env=_environment(),
            start_new_session=True,  # a group of its own, so that its child is killed with it
        )
        self._process = process
        line = self._exchange(process, None, STARTUP_S)
        state = json.loads(line) if line else {}
        if not state.get("ready"):
            self.close()
            why = state.get("failure", "it ended before it was ready")
            raise self._error(
                f"the process for {self._task} did not start: {why}; check that the libraries it imports are "
                f"installed and raise memory_mb={self._memory_mb}"
            )
        self.isolation = tuple(state["isolation"])
        if missing := sorted({"files", "network"} - set(self.isolation)):
            _LOG.warning("%s: the system does not shut it off from: %s", self._task, ", ".join(missing))
        return process

    def _exchange(
        self, process: subprocess.Popen[str], question: list[object] | None, seconds: float
    ) -> str | None:
        """Send ``question`` (if any) and read one line: "" = the process died, ``None`` = time is over.

        A timer thread kills the process, which ends the blocking read; unlike ``select`` on a pipe this
        also works on Windows.
        """
        if process.stdin is None or process.stdout is None:
            raise self._error(f"the process for {self._task} was started without pipes")
        expired = threading.Event()

        def kill() -> None:
            expired.set()
            _kill(process)

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            if question is not None:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
            timer.join()
        return None if expired.is_set() else line


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process that was not reaped yet, and its child."""
    if _FORKS:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


_KNOWN_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP"),
    *("LANG", "LC_ALL", "PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


def _environment() -> dict[str, str]:
    """What the process needs to find its libraries, and no secret: it reads text of strangers."""
    known = {name: os.environ[name] for name in _KNOWN_VARIABLES if name in os.environ}
    return {**known, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def main(task: str, timeout_s: float, memory_mb: int) -> None:
    """The process: announce readiness, then answer questions until standard input closes."""
    # A library that prints must not write into the channel.
    with os.fdopen(os.dup(1), "w", encoding="ascii") as channel:
        os.dup2(2, 1)

        def send(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        try:
            limits = _Limits(timeout_s=timeout_s, memory_mb=memory_mb)
            answer = _prepared(task)
            isolation = isolate()
        except (ImportError, MemoryError) as error:
            send({"failure": f"{type(error).__name__}: {error}"})
            return
        if _FORKS:
            _answer_in_children(answer, limits, send, isolation)
        else:
            send({"ready": True, "isolation": isolation})
            _answer(answer, limits, send)


def _answer(
    answer: Callable[[Any], Any],
    limits: _Limits,
    send: Callable[[dict[str, Any]], None],
    busy: mmap.mmap | None = None,
) -> bool:
    """Answer questions: true = until there are no more, false = until the process holds too much memory."""
    for line in sys.stdin:
        if busy is not None:
            busy[0] = 1
        question, seconds = json.loads(line)
        limits.renew(seconds)
        reply = _guarded(answer, question)
        limits.rest()
        swollen = limits.swollen()
        send({**reply, "retire": swollen})
        if busy is not None:
            busy[0] = 0
        if swollen:
            return False
    return True


def _answer_in_children(
    answer: Callable[[Any], Any],
    limits: _Limits,
    send: Callable[[dict[str, Any]], None],
    isolation: tuple[str, ...],
) -> None:
    """Answer in a child of this process, and in another when that one ends; SIGUSR1 ends a child."""
    child = 0

    def end_child(*_: object) -> None:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, end_child)
    busy = mmap.mmap(-1, 1)  # shared with the child: whether it owes an answer
    send({"ready": True, "isolation": isolation})
    while True:
        busy[0] = 0
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            os._exit(_DONE if _answer(answer, limits, send, busy) else _RETIRED)
        _, status = os.waitpid(child, 0)
        child = 0
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _DONE:
            return
        if busy[0] and not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == _RETIRED):
            over_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU)
            send({"failure": "timeout" if over_time else "crash"})


_DONE, _RETIRED = 0, 3
"""How a child ends: its questions are over, or it holds too much memory."""


class _Limits:
    """Limits on this process, where the platform has them; the parent's clock holds everywhere."""

    def __init__(self, *, timeout_s: float, memory_mb: int) -> None:
        self._seconds = math.ceil(timeout_s) + 1
        self._bytes = memory_mb * 2**20
        try:
            import resource
        except ImportError:  # Windows
            self._resource = None
            self._first_peak = 0
            return
        self._resource = resource
        # Linux hands the parent's peak down to a process it starts; that much is not ours.
        self._first_peak = self._peak()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        with suppress(ValueError, OSError):  # refused where a lower limit is already set, and on macOS
            resource.setrlimit(resource.RLIMIT_AS, (self._bytes, self._bytes))
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def renew(self, seconds: float) -> None:
        """Allow the next question its seconds; what went before is not held against it."""
        if _FORKS:
            signal.setitimer(
                signal.ITIMER_REAL, max(seconds, 0.001)
            )  # no handler: the system ends the process
        if self._resource is not None:
            usage = self._resource.getrusage(self._resource.RUSAGE_SELF)
            soft = math.ceil(usage.ru_utime + usage.ru_stime) + max(self._seconds, math.ceil(seconds) + 1)
            hard = self._resource.getrlimit(self._resource.RLIMIT_CPU)[1]
            with suppress(ValueError, OSError):
                self._resource.setrlimit(self._resource.RLIMIT_CPU, (soft, hard))

    def rest(self) -> None:
        """The question is answered: no timer runs."""
        if _FORKS:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def swollen(self) -> bool:
        """Whether caches hold so much that harmless questions could fail later; the process is replaced."""
        return self._peak() > max(self._bytes // 2, self._first_peak)

    def _peak(self) -> int:
        if self._resource is None:
            return 0
        peak: int = self._resource.getrusage(self._resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _prepared(task: str) -> Callable[[Any], Any]:
    logging.disable(logging.CRITICAL)
    module, _, name = task.partition(":")
    prepare: Task = getattr(import_module(module), name)
    return prepare()


def _guarded(answer: Callable[[Any], Any], question: Any) -> dict[str, Any]:
    try:
        return {"answer": answer(question)}
    except MemoryError:
        return {"failure": "memory"}
    except RecursionError:
        return {"failure": "too_deep"}
    except Exception:  # sympy raises anything; the question is reported as failed, and the next one goes on
        return {"failure": "error"}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
