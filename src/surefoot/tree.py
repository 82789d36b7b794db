"""The step tree: prefixes of solutions, each once, with whatever a search knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

D = TypeVar("D")


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
