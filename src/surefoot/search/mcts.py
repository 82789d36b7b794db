"""Monte Carlo tree search guided by step scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from surefoot.search.method import SearchMethod
from surefoot.search.space import Prefix, Space

C_BASE = 19652
C_INIT = 1.25


@dataclass(eq=False, kw_only=True)
class MCTSNode:
    """A prefix with the statistics of the search."""

    prefix: Prefix
    prior: float
    """Share of the draws from its parent that led here: the policy's chance of this step, as sampled."""
    seed: float
    """Value before the first visit: the score of the prefix, or its parent's if it has none."""
    children: list[MCTSNode] = field(default_factory=list)
    visits: int = 0
    ended: int = 0
    """Visits that ended here."""
    total: float = 0.0
    """Sum of the values that were backed up through here."""

    @property
    def value(self) -> float:
        """Mean of the values backed up."""
        return self.total / self.visits if self.visits else self.seed


class MCTS(SearchMethod):
    """``paths`` descents through a tree, each of which adds the value of its end to all nodes on its path.

    OpenR (Wang et al. 2024, arXiv 2410.09671): a descent goes from the root to a finished solution. At a
    new prefix, ``expand`` next steps are sampled and scored, and their values are the
    scores until they are visited. It continues with the child with the highest

        value + prior · (ln((N + 19652 + 1) / 19652) + 1.25) · √N / (1 + n)

    with N visits of the parent and n of the child (equal ones: the higher prior, then the first sampled). The
    score of the solution is backed up to the root. The prior is the policy's probability in OpenR; here it is
    the share of the draws, since a policy need not report its probabilities. OpenR takes the last step's
    score (``aggregation`` "last"); the default here is the rule of the scorer's checkpoint.

    Reaching a solution again costs nothing, and is a further vote for it.
    """

    method: ClassVar[str] = "mcts"
    paths: int = Field(default=16, ge=1, description="Descents through the tree.")
    expand: int = Field(default=4, ge=1, description="Next steps sampled at a new prefix.")

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.paths * self.expand

    async def explore(self, space: Space) -> list[Prefix]:
        """The solution of each descent; an unfinished one only if all are unfinished."""
        ends, _ = await self.grow(space)
        finished = [prefix for prefix in ends if prefix.data.finish is not None]
        return finished or [prefix for prefix in ends if prefix is not space.root]

    async def grow(self, space: Space) -> tuple[list[Prefix], MCTSNode]:
        """The end of each descent, and the root with the statistics of the whole tree."""
        root = MCTSNode(prefix=space.root, prior=1.0, seed=0.0)
        ends = []
        for _ in range(self.paths):
            path = await self._descend(space, root)
            back_up(path, path[-1].value)
            ends.append(path[-1].prefix)
        return ends, root

    async def _descend(self, space: Space, root: MCTSNode) -> list[MCTSNode]:
        """Branches from the root to where a descent ends."""
        path = [root]
        while path[-1].prefix.data.finish is None:
            path[-1].children = path[-1].children or await self._expand(space, path[-1])
            if not path[-1].children:  # the policy did not answer
                return path
            path.append(choose(path[-1]))
        return path

    async def _expand(self, space: Space, branch: MCTSNode) -> list[MCTSNode]:
        [steps] = await space.extend([branch.prefix], self.expand)
        shares = Counter(steps)
        values = await space.score(list(shares))
        return [
            MCTSNode(
                prefix=prefix, prior=times / len(steps), seed=value if value > -math.inf else branch.seed
            )
            for (prefix, times), value in zip(shares.items(), values, strict=True)
        ]


def choose(parent: MCTSNode) -> MCTSNode:
    """The child to visit next; see :class:`MCTS` for the formula."""
    weight = (math.log((parent.visits + C_BASE + 1) / C_BASE) + C_INIT) * math.sqrt(parent.visits)

    def key(child: MCTSNode) -> tuple[float, float]:
        return child.value + child.prior * weight / (1 + child.visits), child.prior

    return max(parent.children, key=key)


def back_up(path: Sequence[MCTSNode], value: float) -> None:
    """Add a visit that ended with ``value`` to all branches of its path."""
    for branch in path:
        branch.visits += 1
        branch.total += value
    path[-1].ended += 1
