"""The tree of a search as a record that is saved in a file, read back, and printed as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Self
from unicodedata import east_asian_width

from pydantic import Field, model_validator

from surefoot.errors import counted
from surefoot.records import FrozenModel, Record, Trace
from surefoot.search.method import SearchResult
from surefoot.search.space import Prefix, Space


class SavedNode(FrozenModel):
    """One prefix of a problem's solutions: the parent's prefix plus one step."""

    id: int = Field(ge=0)
    """Place in the tree's nodes; 0 is the root, and parents come before their children."""
    parent: int | None
    """``None`` at the root alone."""
    depth: int = Field(ge=0)
    """Steps up to here."""
    text: str
    """The step; empty at the root, and where the policy wrote no more though it could have."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """Score of this step alone; ``None`` = there is none."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    """Scores of the steps up to here, aggregated; ``None`` = there is none."""
    reason: str | None = None
    """Why the score is missing, if one was requested."""
    seen: int = Field(default=0, ge=0)
    """Times that this step was sampled; more than one = merged."""
    tokens: int = Field(default=0, ge=0)
    """Tokens that the policy wrote for it."""
    finish: str | None = None
    """Why the solution ends here; ``None`` = it continues."""


_CHOSEN = "▶ "


class SavedTree(Record):
    """Everything that one search of one problem wrote, and the solution that it chose."""

    problem_id: str
    problem: str
    """The problem's text."""
    method: str
    seed: int
    answer: str | None
    """Final answer of the chosen solution; ``None`` = none."""
    outcome: bool | None
    """Whether the answer is correct; ``None`` = unknown."""
    nodes: tuple[SavedNode, ...] = Field(min_length=1)
    """Parents before children, children in the order in which they were first sampled."""
    chosen: tuple[int, ...]
    """The chosen solution: ids of its nodes from the first step on; empty if no solution was found."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for index, node in enumerate(self.nodes):
            if node.id != index:
                raise ValueError(
                    f"nodes[{index}].id is {node.id}; ids count from 0 in the order of the nodes"
                )
            if (node.parent is None) != (index == 0):
                raise ValueError(f"nodes[{index}].parent: only the first node has none")
            if node.parent is not None and not 0 <= node.parent < index:
                raise ValueError(
                    f"nodes[{index}].parent is {node.parent}; parents come before their children"
                )
        above = 0
        for index in self.chosen:
            if not 0 < index < len(self.nodes) or self.nodes[index].parent != above:
                raise ValueError(f"chosen: node {index} is not a child of node {above}")
            above = index
        return self

    @property
    def children(self) -> list[list[int]]:
        """Ids of each node's children."""
        below: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            below[node.parent or 0].append(node.id)
        return below

    @property
    def size(self) -> int:
        """Distinct steps after equal prefixes: nodes that have a text."""
        return sum(bool(node.text) for node in self.nodes)


def save_tree(space: Space, result: SearchResult) -> SavedTree:
    """The tree of one search; made to be called by the ``watch`` of ``run_search``."""
    prefixes = list(space.tree)
    ids = {prefix: index for index, prefix in enumerate(prefixes)}
    solution = None if result.chosen is None else result.candidates[result.chosen]
    return SavedTree(
        problem_id=space.problem.id,
        problem=space.problem.text,
        method=result.method,
        seed=result.seed,
        answer=result.answer,
        outcome=result.outcome if solution else None,
        nodes=tuple(_node(space, prefix, ids) for prefix in prefixes),
        chosen=tuple(ids[prefix] for prefix in _end(space, prefixes, solution).path()) if solution else (),
    )


def _node(space: Space, prefix: Prefix, ids: dict[Prefix, int]) -> SavedNode:
    state = prefix.data
    return SavedNode(
        id=ids[prefix],
        parent=None if prefix.parent is None else ids[prefix.parent],
        depth=prefix.depth,
        text=prefix.text,
        score=finite(space.step_value(prefix)),
        value=finite(space.value(prefix)),
        reason=state.reason if state.scores is not None else None,
        seen=state.count,
        tokens=state.tokens,
        finish=state.finish,
    )


def _end(space: Space, prefixes: Sequence[Prefix], solution: Trace) -> Prefix:
    """Where the chosen solution ends.

    Its text alone may fit several nodes: one that continues, its child that marks the end, and those
    of the same text cut otherwise.
    """
    return max(
        (prefix for prefix in prefixes if prefix.prefix == solution.text),
        key=lambda prefix: (
            space.trace(prefix).steps == solution.steps,
            prefix.data.finish == solution.finish_reason,
        ),
    )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def draw_text(tree: SavedTree, *, width: int = 110) -> str:
    """The tree as lines: value, the step's own score in brackets where it differs, times sampled, step.

    Lines of the chosen solution begin with ``▶``. Steps are shortened so that lines have ``width`` columns,
    but to no less than 20. Control characters in a step, such as escape codes, are shown as ``�``.
    Ends in a line break.
    """
    chosen, scored, children = set(tree.chosen), _scored(tree), tree.children
    lines = [shorten(tree.problem, width), *(shorten(line, width) for line in _headlines(tree))]
    waiting = [(child, "", child == children[0][-1]) for child in reversed(children[0])]
    while waiting:
        index, indent, last = waiting.pop()
        node = tree.nodes[index]
        mark = _CHOSEN if index in chosen else " " * len(_CHOSEN)
        start = f"{mark}{indent}{'└' if last else '├'} {_numbers(node, scored)}"
        end = "" if node.finish is None else f"  [{shorten(node.finish, 20)}]"
        room = max(20, width - len(start) - len(end))
        lines.append(f"{start}{shorten(node.text, room) or '(no more)'}{end}")
        below = children[index]
        further = indent + ("  " if last else "│ ")
        waiting += [(child, further, child == below[-1]) for child in reversed(below)]
    return "\n".join(lines) + "\n"


def shorten(text: str, columns: int) -> str:
    """One line of at most ``columns`` columns; what does not fit is an ellipsis in the middle.

    White space becomes single blanks; characters that do not print become ``�``. Wide characters, as of
    Chinese, take two columns.
    """
    clean = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    if _width(clean) <= columns:
        return clean
    room = columns - 1
    head = _beginning(clean, room - room // 3)
    tail = _beginning(clean[::-1], room - _width(head))[::-1]
    return f"{head}…{tail}"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _beginning(text: str, columns: int) -> str:
    """As many characters as fit."""
    ends = accumulate(map(_width, text))
    return text[: sum(1 for _ in takewhile(lambda end: end <= columns, ends))]


def _headlines(tree: SavedTree) -> list[str]:
    verdict = {True: "correct", False: "wrong", None: "not graded"}[tree.outcome]
    result = "no solution" if not tree.chosen else f"answer {tree.answer or 'missing'} ({verdict})"
    first = f"{tree.method}, seed {tree.seed}: {counted(tree.size, 'step')}, {result}"
    return [first, f"{'value (step alone) ' if _scored(tree) else ''}×sampled, ▶ chosen"]


def _scored(tree: SavedTree) -> bool:
    return any(node.value is not None or node.reason for node in tree.nodes)


def _numbers(node: SavedNode, scored: bool) -> str:
    parts = []
    if scored:
        parts.append("n/a" if node.value is None else f"{node.value:.3f}")
        if node.score is not None and node.score != node.value:
            parts.append(f"({node.score:.3f})")
    if node.seen > 1:
        parts.append(f"×{node.seen}")
    return " ".join(parts) + "  " if parts else ""
