"""Runs inside the sandbox: a program's function on given calls, with the lines that run.

This file is sent into the sandbox as text, so it imports the standard library only. It shares the process
with the untrusted program, which can forge its output.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

EVENTS, CALLS, PARTS = 20_000, 200, 2_000
"""Limits: all events, calls, and parts of one value."""
TEXT = 200
"""Characters of a value for display."""
FILE = "solution.py"
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def shown(value: Any, budget: list[int] | None = None) -> str:
    """A plain value as text, equal for equal values; the type of any other value."""
    budget = [PARTS] if budget is None else budget
    budget[0] -= 1
    kind = type(value)
    if kind in _PLAIN:
        return repr(value) if kind is not int or value.bit_length() < 4096 else hex(value)
    if budget[0] < 0 or kind not in (list, tuple, set, frozenset, dict):
        return f"<{kind.__name__}>"
    if kind is dict:
        return (
            "{"
            + ", ".join(f"{shown(key, budget)}: {shown(item, budget)}" for key, item in value.items())
            + "}"
        )
    parts = [shown(item, budget) for item in value]
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is tuple:
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    within = f"{{{', '.join(sorted(parts))}}}" if parts else ""
    return within if kind is set and parts else f"{kind.__name__}({within})"


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


class EnoughError(BaseException):
    """Ends a call at the limit of events; it might never return."""


class LineRecorder:
    """The calls of one function: test, arguments, lines that ran, result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: list[dict[str, Any]] = []
        self.events_left = EVENTS
        self.test = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = repr((args, kwargs))
        try:
            literal = ast.literal_eval(arguments) == (args, kwargs)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            literal = False
        if not literal or len(self.calls) >= CALLS or self.events_left <= 0:
            return self.function(*args, **kwargs)
        call: dict[str, Any] = {"test": self.test, "arguments": arguments, "lines": [], "last": None}
        call |= {"result": None, "display": None, "raised": None}
        self.calls.append(call)
        lines: dict[int, None] = {}

        def trace(frame: FrameType, kind: str, _: Any) -> Any:
            if frame.f_code.co_filename != FILE:
                return None
            if self.events_left <= 0:
                raise EnoughError
            if kind in ("line", "return", "exception"):
                self.events_left -= 1
                lines[frame.f_lineno] = None
                call["last"] = frame.f_lineno
            return trace

        sys.settrace(trace)
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            sys.settrace(None)
            call["raised"] = None if isinstance(error, EnoughError) else raised(error)
            raise
        finally:
            sys.settrace(None)
            call["lines"] = list(lines)
        text = shown(result)
        call |= {"result": digest(text), "display": text[:TEXT]}
        return result


def raised(error: BaseException) -> list[Any]:
    """Type and text of an exception, and the last line of the program that it passed."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == FILE:
            line = at.tb_lineno
        at = at.tb_next
    if line is None and isinstance(error, SyntaxError):
        line = error.lineno
    return [type(error).__name__, str(error)[:200], line]


def main() -> None:
    """Read ``plan.json``; write ``{"calls", "load"}`` as JSON."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open("plan.json", encoding="utf-8") as file:  # noqa: PTH123 - imports few modules
        plan = json.load(file)
    report: dict[str, Any] = {"calls": [], "load": None}
    names: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(plan["program"], FILE, "exec", dont_inherit=True), names)  # noqa: S102 - in the sandbox
        recorder = LineRecorder(names[plan["entry_point"]])
    except BaseException as error:
        report["load"] = raised(error)
    else:
        report["calls"] = recorder.calls
        if plan["calls"] is None:
            _run_tests(plan, recorder)
        else:
            for arguments in plan["calls"]:
                args, kwargs = ast.literal_eval(arguments)
                try:
                    recorder(*args, **kwargs)
                except BaseException:  # noqa: S112 - recorded
                    continue
    with os.fdopen(out, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os._exit(0)


def _run_tests(plan: dict[str, Any], recorder: LineRecorder) -> None:
    names: dict[str, Any] = {"__name__": "tests"}
    exec(plan["setup"], names)  # noqa: S102 - in the sandbox
    names |= {"candidate": recorder, plan["entry_point"]: recorder}
    for recorder.test, code in enumerate(plan["tests"]):
        if recorder.events_left <= 0:
            return
        try:
            exec(code, names)  # noqa: S102 - in the sandbox
        except BaseException:  # noqa: S112 - only the calls matter
            continue


if __name__ == "__main__":
    main()
