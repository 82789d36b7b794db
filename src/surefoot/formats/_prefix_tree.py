"""Solutions of one question that share their beginnings, as a tree of states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value of a state, and where it stood in its row."""

    value: float | None
    place: dict[str, Any]


@dataclass(eq=False, kw_only=True)
class State:
    """A beginning of a solution; ``text`` is all of it, from the end of the question on."""

    text: str
    parent: State | None
    estimates: list[Estimate] = field(default_factory=list)

    @property
    def blank(self) -> bool:
        """Is this the bare question?"""
        return not self.text.strip()


def linked(states: Iterable[tuple[str, Estimate]]) -> list[State]:
    """States in order of first appearance; equal ones become one with several estimates.

    A state's parent is the longest other state that it begins with, if white space comes next: the end of a
    state inside a word or number is no step boundary.
    """
    found: dict[str, State] = {}
    for text, estimate in states:
        found.setdefault(text, State(text=text, parent=None)).estimates.append(estimate)
    stack: list[str] = []  # in sorted order, all beginnings of a text stand before it
    for text in sorted(found):
        while stack and not text.startswith(stack[-1]):
            stack.pop()
        parents = (begin for begin in reversed(stack) if text[len(begin)].isspace() or not begin.strip())
        above = next(parents, None)
        found[text].parent = None if above is None else found[above]
        stack.append(text)
    return list(found.values())


def leaf_paths(states: Sequence[State]) -> list[list[State]]:
    """For each state that none follows, the states from the first step to it, without the bare question."""
    followed = {id(state.parent) for state in states}
    paths = []
    for state in states:
        if id(state) in followed or state.blank:
            continue
        path = [state]
        while path[0].parent is not None and not path[0].parent.blank:
            path.insert(0, path[0].parent)
        paths.append(path)
    return paths
