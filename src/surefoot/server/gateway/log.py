"""Where a gateway writes down what it answered, before it answers."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from surefoot.records import Problem, Record, StepScores, Trace, Usage, now
from surefoot.search.result import SearchResult


class GatewayEntry(Record):
    """One request that was answered."""

    id: str
    """That of the answer."""
    created: datetime = Field(default_factory=now)
    endpoint: Literal["chat", "completions", "verify"]
    owner: str
    """Name of the key."""
    strategy: str
    problem: Problem
    results: tuple[SearchResult, ...] = ()
    """One a choice, with chosen and rejected candidates and their step scores."""
    trace: Trace | None = None
    """The solution given to ``/v1/verify``."""
    scores: StepScores | None = None
    """Its scores."""
    decision: str | None = None
    abstained: tuple[bool, ...] = ()
    """Whether a choice's answer was withheld."""
    usage: Usage = Usage()
    seconds: float = 0.0


class GatewayLog(Protocol):
    """Keeps entries. An answer goes out only when its entry has been kept."""

    async def write(self, entry: GatewayEntry) -> None:
        """Keep an entry. What this raises is the request's failure (500)."""

    async def close(self) -> None:
        """The server ends."""


class NoLog:
    """Keeps nothing."""

    async def write(self, entry: GatewayEntry) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


class JsonLinesLog:
    """Appends a line an entry; what is written outlives the process, whatever kills it.

    A last line that a crash of the machine cut short is closed, so that it spoils no other. The file is for
    its owner's eyes alone. Raises ``OSError`` where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")

    async def write(self, entry: GatewayEntry) -> None:
        """Append one line."""
        line = entry.model_dump_json().encode("utf-8") + b"\n"
        written = os.write(self._handle, line)
        if written < len(line):  # the disk is full; the rest of the line would be another line's beginning
            os.write(self._handle, b"\n")
            raise OSError(f"only {written} of {len(line)} bytes of a log entry were written")

    async def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
