"""Runs inside the sandbox: a program's function on given calls, with the state at each line.

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
TEXT, NAMES, TEXTS, ALL_TEXTS = 200, 20, 16_000, 400_000
"""Limits for display: characters of one value, variables of one line, characters of one call and of all."""
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
    """The calls of one function: test, arguments, events, result.

    An event is kind, line, depth, digest of the state before it, and a part for display: the variables that a
    line changed, the value of a return, the type of an exception.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: list[dict[str, Any]] = []
        self.events_left, self.text_left = EVENTS, ALL_TEXTS
        self.test = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = repr((args, kwargs))
        try:
            literal = ast.literal_eval(arguments) == (args, kwargs)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            literal = False
        if not literal or len(self.calls) >= CALLS or self.events_left <= 0:
            return self.function(*args, **kwargs)
        call: dict[str, Any] = {"test": self.test, "arguments": arguments, "events": [], "result": None}
        call |= {"display": None, "raised": None}
        self.calls.append(call)
        base, events, texts = _depth(sys._getframe()), call["events"], [min(TEXTS, self.text_left)]
        self.text_left -= texts[0]

        def trace(frame: FrameType, *_: Any) -> Any:
            if frame.f_code.co_filename != FILE:
                return None
            if self.events_left <= 0:
                raise EnoughError
            return self._local(frame, events, base, texts)

        sys.settrace(trace)
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            sys.settrace(None)
            call["raised"] = None if isinstance(error, EnoughError) else raised(error)
            raise
        finally:
            sys.settrace(None)
            self.text_left += max(texts[0], 0)
        text = shown(result)
        call |= {"result": digest(text), "display": text[:TEXT]}
        return result

    def _local(self, frame: FrameType, events: list[Any], base: int, texts: list[int]) -> Callable[..., Any]:
        """The trace function of one frame; it remembers the variables and the latest line."""
        previous, latest, depth = _variables(frame), None, _depth(frame) - base

        def trace(frame: FrameType, kind: str, value: Any) -> Any:
            nonlocal previous, latest
            if self.events_left <= 0:
                raise EnoughError
            if kind in ("line", "return", "exception"):
                self.events_left -= 1
                names = _variables(frame)
                changed = [[name, text[:TEXT]] for name, text in names.items() if previous.get(name) != text]
                if latest is not None and texts[0] > 0:
                    latest[4] = changed[:NAMES]
                    texts[0] -= sum(len(name) + len(text) for name, text in latest[4])
                previous = names
                if kind == "line":
                    state: Any = ";".join(f"{name}={text}" for name, text in names.items())
                else:
                    state = shown(value) if kind == "return" else value[0].__name__
                event = [kind, frame.f_lineno, depth, digest(state), [] if kind == "line" else state[:TEXT]]
                latest = event if kind == "line" else None
                events.append(event)
            return trace

        return trace


def _variables(frame: FrameType) -> dict[str, str]:
    return {name: shown(value) for name, value in sorted(frame.f_locals.items())}


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


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


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
