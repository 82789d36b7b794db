"""Runs the command line in this process, with pipes for the standard streams."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from surefoot.cli import main


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command left behind."""

    status: int
    out: str
    err: str


def run(*words: object, stdin: str = "") -> Ended:
    """Run the command line as the program does, with pipes for the standard streams."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    saved = sys.argv, sys.stdin
    sys.argv = ["surefoot", *map(str, words)]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    status = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv, sys.stdin = saved
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Ended(status=status, out=texts[0], err=texts[1])


def good(*words: object, stdin: str = "") -> Ended:
    ended = run(*words, stdin=stdin)
    assert ended.status == 0, ended.err
    return ended


def incomplete(*words: object) -> Ended:
    """A command that came to its end, and says that its work is not complete."""
    ended = run(*words)
    assert ended.status == 3, ended.err
    return ended


def refused(*words: object, stdin: str = "") -> str:
    """The one sentence of a command that fails."""
    ended = run(*words, stdin=stdin)
    assert ended.status == 1
    assert "Traceback" not in ended.err
    return ended.err.strip().splitlines()[-1].removeprefix("surefoot: ")
