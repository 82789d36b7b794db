"""The step tree of a search, and an index of the common prefixes of token sequences."""

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
    """A prefix: the parent's prefix and one more step. ``data`` belongs to the search."""

    text: str
    """The step that leads here; empty at the root."""
    prefix: str
    """All steps from the root to here, joined."""
    depth: int
    parent: Node[D] | None
    data: D
    children: dict[str, Node[D]] = field(default_factory=dict)
    """By the text of their step; equal steps after equal prefixes share a node."""

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
        """The nodes of ``steps`` below ``at`` (by default the root), one per step; missing nodes are created.

        Raises ``ValueError`` for an empty step, whose prefix would equal its parent's.
        """
        node, nodes = at or self.root, []
        for step in steps:
            if not step:
                raise ValueError("a step of the tree is empty")
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
        """All nodes, parents before children, children in order of creation."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))


class TokenIndex(Generic[V]):
    """Values of token sequences, looked up by the longest common prefix, in order of use.

    A sequence that is a prefix of another one is redundant and therefore not stored.
    """

    def __init__(self) -> None:
        self._sorted: list[Tokens] = []
        self._values: dict[Tokens, V] = {}
        """In order of use, the latest last."""

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, ids: Tokens) -> V:
        return self._values[ids]

    def nearest(self, ids: Tokens) -> tuple[Tokens, int]:
        """The sequence with the longest common prefix with ``ids``, and its length; ``((), 0)`` if none."""
        index = bisect_left(self._sorted, ids)
        # in sorted order, the neighbours of ids have the longest common prefixes with it
        neighbours = self._sorted[max(0, index - 1) : index + 1]
        lengths = [shared_length(other, ids) for other in neighbours]
        if not any(lengths):
            return (), 0
        return max(zip(neighbours, lengths, strict=True), key=lambda pair: pair[1])

    def use(self, ids: Tokens) -> V:
        """The value of a stored sequence, which becomes the most recently used."""
        value = self._values[ids] = self._values.pop(ids)
        return value

    def covers(self, ids: Tokens) -> bool:
        """Whether a stored sequence begins with ``ids``."""
        index = bisect_left(self._sorted, ids)
        return index < len(self._sorted) and self._sorted[index][: len(ids)] == ids

    def add(self, ids: Tokens, value: V) -> V | None:
        """Store a sequence that is not covered; removes its stored prefix, if any, and returns that value."""
        index = bisect_left(self._sorted, ids)
        # only the sequence just before it can be its prefix: adding that one removed shorter prefixes
        previous = self._sorted[index - 1] if index else None
        dropped = self.drop(previous) if previous is not None and ids[: len(previous)] == previous else None
        insort(self._sorted, ids)
        self._values[ids] = value
        return dropped

    def drop(self, ids: Tokens) -> V:
        """Remove a sequence and return its value."""
        del self._sorted[bisect_left(self._sorted, ids)]
        return self._values.pop(ids)

    def oldest(self) -> Tokens:
        """The least recently used sequence. Raises ``StopIteration`` for an empty index."""
        return next(iter(self._values))


def shared_length(first: Tokens | str, second: Tokens | str) -> int:
    """Length of the common prefix."""
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
