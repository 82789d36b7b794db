"""Prefixes: the step tree of a search, and an index that finds what token sequences have in common."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

D = TypeVar("D")
V = TypeVar("V")

Tokens = tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Node(Generic[D]):
    """A prefix: its parent's and one more step. ``data`` is the search's own."""

    text: str
    """The step that leads here; empty at the root."""
    prefix: str
    """All steps from the root to here, joined."""
    depth: int
    parent: Node[D] | None
    data: D
    children: dict[str, Node[D]] = field(default_factory=dict)
    """By the text of their step: equal steps after equal prefixes are one node."""

    def path(self) -> list[Node[D]]:
        """Nodes from the first step to this one; empty for the root."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class StepTree(Generic[D]):
    """Nodes under one root; ``make`` gives each new node its ``data``."""

    def __init__(self, make: Callable[[], D]) -> None:
        self._make = make
        self.root: Node[D] = Node(text="", prefix="", depth=0, parent=None, data=make())

    def insert(self, steps: Sequence[str], *, at: Node[D] | None = None) -> list[Node[D]]:
        """Nodes of ``steps`` below ``at`` (the root), one a step; those that are missing are made.

        Raises ``ValueError`` for an empty step, which would be its own parent's prefix.
        """
        node, nodes = at or self.root, []
        for step in steps:
            if not step:
                raise ValueError("a step of the tree has no text")
            child = node.children.get(step)
            if child is None:
                child = Node(
                    text=step, prefix=node.prefix + step, depth=node.depth + 1, parent=node, data=self._make()
                )
                node.children[step] = child
            node = child
            nodes.append(node)
        return nodes

    def __iter__(self) -> Iterator[Node[D]]:
        """All nodes, parents before children, children in the order in which they were made."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))


class PrefixIndex(Generic[V]):
    """Values of token sequences, found by the longest common beginning; in the order of their use.

    A sequence that another one continues says nothing of its own: it is not kept beside that one.
    """

    def __init__(self) -> None:
        self._sorted: list[Tokens] = []
        self._values: dict[Tokens, V] = {}
        """In the order of use, the latest last."""

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, ids: Tokens) -> V:
        return self._values[ids]

    def nearest(self, ids: Tokens) -> tuple[Tokens, int]:
        """The sequence that shares most with ``ids``, and how many tokens that is; ``((), 0)`` if none is."""
        place = bisect_left(self._sorted, ids)
        # of all sequences in order, those beside the place where ids would be share most with it
        beside = self._sorted[max(0, place - 1) : place + 1]
        lengths = [shared_length(other, ids) for other in beside]
        if not any(lengths):
            return (), 0
        return max(zip(beside, lengths, strict=True), key=lambda found: found[1])

    def use(self, ids: Tokens) -> V:
        """The value of a sequence that is kept, which is now the one used last."""
        value = self._values[ids] = self._values.pop(ids)
        return value

    def covers(self, ids: Tokens) -> bool:
        """Whether a sequence is kept that begins with ``ids``."""
        place = bisect_left(self._sorted, ids)
        return place < len(self._sorted) and self._sorted[place][: len(ids)] == ids

    def add(self, ids: Tokens, value: V) -> V | None:
        """Keep ``value``, of a sequence that is not covered; returns that of the sequence it continues."""
        place = bisect_left(self._sorted, ids)
        # its beginning is the one before its place: shorter ones went when that one came
        before = self._sorted[place - 1] if place else None
        dropped = self.drop(before) if before is not None and ids[: len(before)] == before else None
        insort(self._sorted, ids)
        self._values[ids] = value
        return dropped

    def drop(self, ids: Tokens) -> V:
        """Forget a sequence; returns its value."""
        del self._sorted[bisect_left(self._sorted, ids)]
        return self._values.pop(ids)

    def oldest(self) -> Tokens:
        """The sequence whose use lies back furthest. Raises ``StopIteration`` if there is none."""
        return next(iter(self._values))


def shared_length(first: Tokens, second: Tokens) -> int:
    """Length of the common beginning."""
    size = min(len(first), len(second))
    if first[:size] == second[:size]:
        return size
    low, high = 0, size  # first[:low] is common, first[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
