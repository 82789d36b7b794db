"""Both ends of the pipe to the process that compares mathematical expressions.

Model text can be hostile (``9^{9^{9^9}}``), and an expression that sympy has begun to evaluate cannot be
interrupted from inside. So it is evaluated in a process of its own, under limits of memory and CPU time, and
the parent kills that process when the wall time is over. One JSON object a line goes each way. The worker
ends when its standard input closes, so it never outlives its parent.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from surefoot.errors import AnswerError

STARTUP_S = 300.0
"""Importing sympy takes seconds on a busy machine; this bounds a start that hangs."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """``equal``, or ``None`` with the ``failure`` that prevented the comparison."""

    equal: bool | None
    failure: str | None = None


class AnswerWorker:
    """Parent's end: one long-lived process, started on first use and again after each failure.

    Runs ``python -m`` on this module, and not ``multiprocessing``, whose spawned children import the
    parent's ``__main__`` again and so fail under a REPL or a script read from standard input.
    """

    def __init__(self, *, timeout_s: float, memory_mb: int) -> None:
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()

    def compare(self, answer: str, reference: str) -> Reply:
        """Compare one pair within the limits.

        Raises:
            AnswerError: the worker cannot start (``math-verify`` missing, or too little memory).
        """
        process = self._running()
        try:
            line = self._exchange(process, {"answer": answer, "reference": reference}, self._timeout_s)
        except BaseException:
            # An interrupt between question and answer would leave the stale answer in the pipe.
            self.close()
            raise
        if line is None:
            self.close()
            return Reply(equal=None, failure="timeout")
        if not line:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            over_cpu_limit = process.returncode == -getattr(signal, "SIGXCPU", 0)
            self.close()
            return Reply(equal=None, failure="timeout" if over_cpu_limit else "crash")
        reply = json.loads(line)
        if reply["retire"]:
            self.close()
        return Reply(equal=reply.get("equal"), failure=reply.get("failure"))

    def close(self) -> None:
        """Kill and reap the process, if there is one. Can be called any number of times."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
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
        command = [sys.executable, "-P", "-m", "surefoot._answer_worker"]
        process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            [*command, str(self._timeout_s), str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._process = process
        line = self._exchange(process, None, STARTUP_S)
        state = json.loads(line) if line else {}
        if not state.get("ready"):
            self.close()
            why = state.get("failure", "it ended before it was ready")
            raise AnswerError(
                f"the process that compares answers did not start: {why}; "
                f"check that math-verify is installed and raise memory_mb={self._memory_mb}"
            )
        return process

    @staticmethod
    def _exchange(process: subprocess.Popen[str], question: object, seconds: float) -> str | None:
        """Send ``question`` (if any) and read one line: "" = the process died, ``None`` = time is over.

        A timer thread kills the process, which ends the blocking read; unlike ``select`` on a pipe this
        also works on Windows.
        """
        if process.stdin is None or process.stdout is None:
            raise AnswerError("the process that compares answers was started without pipes")
        expired = threading.Event()

        def kill() -> None:
            expired.set()
            process.kill()

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


def main(timeout_s: float, memory_mb: int) -> None:
    """Child's end: announce readiness, then answer questions until standard input closes."""
    # A library that prints must not write into the channel.
    with os.fdopen(os.dup(1), "w", encoding="ascii") as channel:
        os.dup2(2, 1)

        def send(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        try:
            limits = _Limits(timeout_s=timeout_s, memory_mb=memory_mb)
            compare = _load_compare()
        except (ImportError, MemoryError) as error:
            send({"failure": f"{type(error).__name__}: {error}"})
            return
        send({"ready": True})
        for line in sys.stdin:
            question = json.loads(line)
            limits.renew()
            send({**_guarded(compare, question["answer"], question["reference"]), "retire": limits.swollen()})


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

    def renew(self) -> None:
        """Allow the next comparison its CPU seconds; what went before is not held against it."""
        if self._resource is not None:
            usage = self._resource.getrusage(self._resource.RUSAGE_SELF)
            soft = math.ceil(usage.ru_utime + usage.ru_stime) + self._seconds
            hard = self._resource.getrlimit(self._resource.RLIMIT_CPU)[1]
            with suppress(ValueError, OSError):
                self._resource.setrlimit(self._resource.RLIMIT_CPU, (soft, hard))

    def swollen(self) -> bool:
        """Whether caches hold so much that later, harmless pairs could fail; the parent then replaces us."""
        return self._peak() > max(self._bytes // 2, self._first_peak)

    def _peak(self) -> int:
        if self._resource is None:
            return 0
        peak: int = self._resource.getrusage(self._resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _load_compare() -> Callable[[str, str], bool]:
    logging.disable(logging.CRITICAL)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    def read(text: str) -> list[Any]:
        # No time limits of its own anywhere below: they rest on SIGALRM, and the parent holds the clock.
        latex = text if "$" in text else f"${text}$"
        found: list[Any] = parse(latex, extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
        if all(isinstance(item, str) for item in found):
            # "2**10" is no LaTeX. This reader takes digits and arithmetic operators alone.
            found = parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None) or found
        return found

    def compare(answer: str, reference: str) -> bool:
        gold, target = read(reference), read(answer)
        return bool(verify(gold, target, timeout_seconds=None, raise_on_error=True))

    compare("x+1", "1+x")  # fills the parser's tables, so that the first pair is not charged for them
    return compare


def _guarded(compare: Callable[[str, str], bool], answer: str, reference: str) -> dict[str, Any]:
    try:
        return {"equal": compare(answer, reference)}
    except MemoryError:
        return {"failure": "memory"}
    except RecursionError:
        return {"failure": "too_deep"}
    except (
        Exception
    ):  # sympy raises anything; the pair is reported as not comparable, and the next one goes on
        return {"failure": "error"}


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
