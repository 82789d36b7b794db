"""Diverse verifier tree search."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from surefoot.search.method import SearchMethod
from surefoot.search.space import Prefix, Space, is_open, is_repetition


class DVTS(SearchMethod):
    """``n`` / ``expand`` trees, each of which continues with the best of ``expand`` next steps.

    Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models" (Hugging Face): the trees
    do not compete, so a scorer's favourite cannot take all places, which helps where ``n`` is large. Each
    round costs ``n`` draws at most. A tree ends when its best continuation is finished; all continuations of
    its last round that are finished are candidates, as in the original. ``expand`` 1 is plain sampling; a
    single tree is step-wise best-of-``expand``.

    ``lookahead`` and ``penalize_repeats`` are as in :class:`surefoot.search.beam.BeamSearch`.
    """

    n: int = Field(default=16, ge=1, description="Draws per round, a multiple of `expand`.")
    expand: int = Field(default=4, ge=1, description="Next steps drawn for each tree.")
    lookahead: int = Field(
        default=0,
        ge=0,
        description="Greedy steps written ahead of a prefix before it is scored.",
    )
    penalize_repeats: bool = Field(
        default=False, description="Rank a step that its solution already contains behind all others."
    )
    name: str = Field(default="dvts", description="Name in records and reports.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n % self.expand:
            raise ValueError(f"'n' must be a multiple of 'expand', not {self.n} and {self.expand}")
        return self

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished continuations of each tree's last round, tree by tree."""
        [first] = await space.extend([space.root], self.n)
        last = [first[start : start + self.expand] for start in range(0, len(first), self.expand)]
        active = list(range(len(last)))
        while active:
            heads = await self._best(space, [last[tree] for tree in active])
            open_ = [(tree, head) for tree, head in zip(active, heads, strict=True) if is_open(head)]
            drawn = await space.extend([head for _, head in open_], self.expand)
            active = []
            for (tree, head), children in zip(open_, drawn, strict=True):
                if children:
                    last[tree] = children
                    active.append(tree)
                else:  # the policy failed: what had ended beside the head is still a solution
                    last[tree] = [end for end in last[tree] if not is_open(end)] or [head]
        ends = [end for group in last for end in group if not is_open(end) or len(group) == 1]
        if self.rule != "majority":
            await space.score(ends)
        return ends

    async def _best(self, space: Space, groups: list[list[Prefix]]) -> list[Prefix]:
        """The best of each group; the first of equals. All are scored together."""
        rivals = list(dict.fromkeys(prefix for group in groups if len(set(group)) > 1 for prefix in group))
        values = dict(zip(rivals, await space.score_ahead(rivals, self.lookahead), strict=True))
        return [
            min(
                group,
                key=lambda prefix: (
                    self.penalize_repeats and is_repetition(prefix),
                    -values.get(prefix, 0.0),
                ),
            )
            for group in groups
        ]
