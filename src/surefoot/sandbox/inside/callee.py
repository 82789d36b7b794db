"""The process of the program under test: it runs the program's text, then calls what the tests ask for.

It does not take part in the verdict. Whatever the program does to this process, only plain values leave it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .wire import Channel, WireError, take_streams


def main() -> None:
    """``python -m inside.callee FILE``: answers ``["call", name, args, kwargs]`` until the channel closes."""
    channel = take_streams()
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            exec(compile(file.read(), "solution.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except BaseException as problem:
        channel.send(described(problem))
        return
    channel.send(["loaded"])
    while True:
        try:
            _, name, args, kwargs = channel.receive()
        except EOFError:
            return
        answer(channel, module, name, args, kwargs)


def answer(
    channel: Channel, module: types.ModuleType, name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Call a function of the program and send its result or exception."""
    try:
        value = getattr(module, name)(*args, **kwargs)
    except BaseException as problem:
        channel.send(described(problem))
        return
    try:
        channel.send(["returned", value])
    except WireError as problem:
        channel.send(["unsendable", str(problem)])


def described(problem: BaseException) -> list[Any]:
    try:
        text = str(problem)[:2000]
    except BaseException:
        text = ""
    return ["raised", type(problem).__name__, text]
