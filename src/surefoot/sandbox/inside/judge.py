"""The process of the tests: it never runs the program under test, but calls it through a channel.

The verdict goes to standard error, which the program under test does not have.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .wire import Channel, NotPlainError, WireError, escaped, take_streams

_TEXT = 500
"""Characters of a reason."""
_CONTROL_FLOW = (StopIteration, StopAsyncIteration)
"""Exceptions that end a loop of the tests instead of failing it, as in ``all(map(candidate, inputs))``.
``SystemExit`` and its like are not of class ``Exception``."""


class CandidateError(Exception):
    """The program under test raised an exception that is not one of Python's own errors."""


class _Stuck(BaseException):
    """The program under test cannot be called any more. Tests that catch ``Exception`` do not catch it."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Callee:
    """The program under test, behind its channel."""

    def __init__(self, channel: Channel, deadline: float) -> None:
        self.channel = channel
        self.deadline = deadline
        self.stuck: _Stuck | None = None

    def load(self) -> None:
        """Wait until the program has been loaded."""
        match self._receive():
            case ["loaded"]:
                return
            case ["raised", str(kind), str(text)]:
                self._fail("load_error", f"{kind}: {text}")
        self._fail("crashed", "the program wrote something else on the channel")

    def function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, args, kwargs)

        call.__name__ = call.__qualname__ = name
        return call

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result; raises its exception if that is an error built into Python."""
        if self.stuck is not None:
            raise self.stuck
        try:
            self.channel.send(["call", name, list(args), kwargs])
        except OSError:
            self._fail("crashed", "the program ended its process")
        match self._receive():
            case ["returned", value]:
                return value
            case ["unsendable", str(text)]:
                raise CandidateError(text)
            case ["raised", str(kind), str(text)]:
                exception = getattr(builtins, kind, None)
                if (
                    isinstance(exception, type)
                    and issubclass(exception, Exception)
                    and not issubclass(exception, _CONTROL_FLOW)
                ):
                    try:
                        raised = exception(text)
                    except TypeError:  # those that need more than a text, such as UnicodeDecodeError
                        raised = CandidateError(f"{kind}: {text}")
                    raised.__dict__["by_candidate"] = True
                    raise raised
                raise CandidateError(f"{kind}: {text}")
        return self._fail("crashed", "the program wrote something else on the channel")

    def _receive(self) -> Any:
        try:
            return self.channel.receive(self.deadline)
        except TimeoutError:
            return self._fail("timeout", "the program did not answer in time")
        except EOFError:
            return self._fail("crashed", "the program ended its process")
        except WireError as problem:
            return self._fail("crashed", f"the program wrote something else on the channel: {problem}")

    def _fail(self, outcome: str, reason: str) -> Any:
        self.stuck = _Stuck(outcome, reason)
        raise self.stuck


def main() -> None:
    """``python -m inside.judge TASK WALL_S``: TASK is JSON of ``entry_points``, ``setup`` and ``tests``."""
    verdict_fd = os.dup(2)
    os.set_inheritable(verdict_fd, False)
    channel = take_streams()
    os.dup2(1, 2)
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    callee = Callee(channel, time.monotonic() + float(sys.argv[2]))
    verdicts = judge(callee, task)
    data = memoryview(
        json.dumps([[name, outcome, escaped(text)] for name, outcome, text in verdicts]).encode()
    )
    while data:
        data = data[os.write(verdict_fd, data) :]


def judge(callee: Callee, task: dict[str, Any]) -> list[list[str]]:
    """Name, outcome and reason of each test, in order."""
    names = [name for name, _ in task["tests"]]
    space: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        exec(compile(task["setup"], "setup.py", "exec", dont_inherit=True), space)  # noqa: S102 - the tests' own
    except Exception as problem:
        return [[name, "error", f"the setup failed: {text_of(problem)}"] for name in names]
    try:
        callee.load()
    except _Stuck as stuck:
        return [[name, stuck.outcome, str(stuck)] for name in names]
    for name in task["entry_points"]:
        space[name] = callee.function(name)
    space["candidate"] = space[task["entry_points"][0]]
    return [[name, *run_test(callee, name, code, space)] for name, code in task["tests"]]


def run_test(callee: Callee, name: str, code: str, space: dict[str, Any]) -> tuple[str, str]:
    """Outcome and reason of one test."""
    if callee.stuck is not None:
        return "not_run", f"after a test that ended the program: {callee.stuck}"
    try:
        exec(compile(code, f"{name}.py", "exec", dont_inherit=True), space)  # noqa: S102 - the tests' own
    except _Stuck as stuck:
        return stuck.outcome, str(stuck)
    except AssertionError as problem:
        return "failed", text_of(problem)
    except CandidateError as problem:
        return "raised", str(problem)[:_TEXT]
    except NotPlainError as problem:
        return "error", f"the test calls the program with what cannot be sent: {problem}"[:_TEXT]
    except Exception as problem:
        return ("raised" if getattr(problem, "by_candidate", False) else "failed"), text_of(problem)
    if callee.stuck is not None:  # the test caught it
        return callee.stuck.outcome, str(callee.stuck)
    return "passed", ""


def text_of(problem: BaseException) -> str:
    text = str(problem)[:_TEXT]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
