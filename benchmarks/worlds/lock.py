"""A lock with dials: the smallest environment of several turns, in the pieces of the digit world's tokenizer.

A turn sets the dial that is next: the first and every second one after it opens at any digit, the others at
an even digit. Any other text leaves the lock unchanged. The observation is the number of open dials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from surefoot.errors import RecordError
from surefoot.protocols import Observation, ProblemTrace
from surefoot.records import Message, Problem, StepScores, Tool, ToolCall

DIALS: Final = 4

LOCK_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ '\n' }}{% endfor %}"
)
"""Chat template for the digit world's tokenizer, which has none: one message a line."""

_DIGITS = (re.compile("[0-9]"), re.compile("[02468]"))


def lock_problems(count: int, *, first: int = 0) -> list[Problem]:
    """Locks number ``first`` and on, which differ in name alone."""
    return [Problem(id=f"lock-{first + at}", text="Now 0") for at in range(count)]


class Lock:
    """A :class:`surefoot.protocols.RestorableEnvironment`; its state is the number of open dials."""

    name = "lock"
    tools: tuple[Tool, ...] = ()

    def __init__(self) -> None:
        self._open = 0

    def reset(self, problem: Problem, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """A closed lock."""
        if not problem.id.startswith("lock-"):
            raise RecordError(f"problem {problem.id!r} is not a lock: make some with 'lock_problems'")
        self._open = 0
        return (Message(role="user", content="Now 0"),)

    def step(self, action: ToolCall | str) -> Observation:
        """Set the next dial; a tool call is an error."""
        if isinstance(action, ToolCall):
            return Observation(text="", error=True)
        self._open += bool(_DIGITS[self._open % 2].fullmatch(action.strip()))
        return Observation(text=f"Now {self._open}", done=self._open == DIALS)

    def outcome(self) -> bool:
        """Whether all dials are open."""
        return self._open == DIALS

    def state(self) -> JsonValue:
        """The number of open dials."""
        return self._open

    def snapshot(self) -> object:
        """That number, too."""
        return self._open

    def restore(self, snapshot: object) -> None:
        """Go back to it."""
        if not isinstance(snapshot, int):
            raise RecordError("this is not a snapshot of a lock")
        self._open = snapshot


class LockProgress:
    """A :class:`surefoot.protocols.StepScorer` of runs whose steps are turns: the share of dials that
    are open after each."""

    reads = frozenset({"text"})

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """By replay."""
        return [
            StepScores(trace_id=item.trace.id, scorer="lock-progress", scores=self._progress(item))
            for item in items
        ]

    def _progress(self, item: ProblemTrace) -> tuple[float, ...]:
        lock = Lock()
        shares = []
        for message in item.trace.messages:
            if message.role == "assistant":
                lock.step(message.content or "")
                shares.append(lock._open / DIALS)
        return tuple(shares)
