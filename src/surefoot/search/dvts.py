"""Diverse verifier tree search."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.search.result import require_rule
from surefoot.search.space import Prefix, Space, is_open, repeats


@dataclass(frozen=True, kw_only=True)
class DVTS:
    """``n`` / ``expand`` trees, each of which goes on, step by step, with the best of ``expand`` next steps.

    Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models" (Hugging Face): the trees
    do not compete, so that a scorer's favourite cannot take all places, which pays where ``n`` is large. Each
    round costs ``n`` draws at most. A tree ends when its best continuation is finished; all continuations of
    its last round that are finished are candidates, as in the original. ``expand`` 1 is plain sampling; a
    single tree is step-wise best-of-``expand``.

    ``lookahead`` and ``shun_repeats`` as in :class:`surefoot.search.beam.BeamSearch`. Raises ``ValueError``
    if ``expand`` does not divide ``n``.
    """

    n: int = 16
    expand: int = 4
    lookahead: int = 0
    shun_repeats: bool = False
    rule: str = "weighted_vote"
    name: str = "dvts"

    def __post_init__(self) -> None:
        if self.n < 1 or self.expand < 1 or self.n % self.expand:
            raise ValueError(f"'n' must be a multiple of 'expand', not {self.n} and {self.expand}")
        if self.lookahead < 0:
            raise ValueError(f"'lookahead' must be 0 or more, not {self.lookahead}")
        require_rule(self.rule)

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished continuations of each tree's last round, tree by tree."""
        [first] = await space.extend([space.root], self.n)
        last = [first[start : start + self.expand] for start in range(0, len(first), self.expand)]
        growing = list(range(len(last)))
        while growing:
            heads = await self._best(space, [last[tree] for tree in growing])
            open_ = [(tree, head) for tree, head in zip(growing, heads, strict=True) if is_open(head)]
            drawn = await space.extend([head for _, head in open_], self.expand)
            growing = []
            for (tree, head), children in zip(open_, drawn, strict=True):
                if children:
                    last[tree] = children
                    growing.append(tree)
                else:  # the policy failed: what had ended beside the head is still a solution
                    last[tree] = [end for end in last[tree] if not is_open(end)] or [head]
        ends = [end for group in last for end in group if not is_open(end) or len(group) == 1]
        if self.rule != "majority":
            await space.score(ends)
        return ends

    async def _best(self, space: Space, groups: list[list[Prefix]]) -> list[Prefix]:
        """The best of each group; the first of equals. All that must be scored is scored together."""
        rivals = list(dict.fromkeys(prefix for group in groups if len(set(group)) > 1 for prefix in group))
        values = dict(zip(rivals, await space.foresee(rivals, self.lookahead), strict=True))
        return [
            min(
                group,
                key=lambda prefix: (self.shun_repeats and repeats(prefix), -values.get(prefix, 0.0)),
            )
            for group in groups
        ]
