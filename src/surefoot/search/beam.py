"""Beam search over steps, and diverse verifier tree search."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from surefoot.search.method import SearchMethod
from surefoot.search.space import Prefix, Space, is_open


class BeamSearch(SearchMethod):
    """Keep the ``width`` best prefixes, draw ``expand`` next steps for each, score, keep the best again.

    Snell et al. 2024 (arXiv 2408.03314), section 5.2, whose N beams of width M are ``width`` = N / M and
    ``expand`` = M here. The first round draws ``width`` × ``expand`` steps, so that every round costs the
    same. Equal prefixes are one beam, so the ``width`` beams differ. A finished solution keeps its place
    while it is among the best, costs nothing more, and its draws go to no other beam; all that were in the
    beam when they ended are candidates, and so are the unfinished ones of the last round.

    With ``retire_finished`` every solution that ends is a candidate and frees its place, the search continues
    with the best unfinished ones until all have ended, and every round draws ``width`` × ``expand`` steps,
    shared among the beams where there are fewer, as search-and-learn (Hugging Face) does: more candidates,
    for more tokens.

    Where there is nothing to choose between, nothing is scored: a beam of one with one draw a step is plain
    sampling, scored at its end.
    """

    method: ClassVar[str] = "beam"
    width: int = Field(default=4, ge=1, description="Prefixes kept after each round.")
    expand: int = Field(default=4, ge=1, description="Next steps sampled for each prefix.")
    retire_finished: bool = Field(
        default=False,
        description="Finished solutions free their places, and the search continues until all have ended.",
    )

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.width * self.expand

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished solutions in the order in which they ended."""
        finished: dict[Prefix, None] = {}
        kept_finished: list[Prefix] = []
        [steps] = await space.extend([space.root], self.width * self.expand)
        while True:
            rivals = list(dict.fromkeys([*kept_finished, *steps]))
            if self.retire_finished:
                finished |= dict.fromkeys(prefix for prefix in rivals if not is_open(prefix))
                rivals = [prefix for prefix in rivals if is_open(prefix)]
            beams = await self._best(space, rivals)
            kept_finished = [beam for beam in beams if not is_open(beam)]
            finished |= dict.fromkeys(kept_finished)
            open_beams = [beam for beam in beams if is_open(beam)]
            children = await space.extend(open_beams, self._draws(len(open_beams)))
            steps = [child for siblings in children for child in siblings]
            if not steps:  # all have ended, or the policy no longer answers
                break
        solutions = list(finished | dict.fromkeys(beams))
        if self.rule != "majority":
            await space.score(solutions)
        return solutions

    def _draws(self, beams: int) -> list[int]:
        """Next steps to draw for each beam."""
        if not self.retire_finished or not beams:
            return [self.expand] * beams
        each, more = divmod(self.width * self.expand, beams)
        return [each + (beam < more) for beam in range(beams)]

    async def _best(self, space: Space, prefixes: list[Prefix]) -> list[Prefix]:
        """The ``width`` best; the first of equals."""
        if len(prefixes) <= self.width:  # nothing to choose between
            return prefixes
        await space.score(prefixes)
        return sorted(prefixes, key=space.value, reverse=True)[: self.width]


class DVTS(SearchMethod):
    """``n`` / ``expand`` trees, each of which continues with the best of ``expand`` next steps.

    Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models" (Hugging Face): the trees
    do not compete, so a scorer's favourite cannot take all places, which helps where ``n`` is large. Each
    round costs ``n`` draws at most. A tree ends when its best continuation is finished. All continuations of
    its last round are candidates, the unfinished ones too, as in the authors' search-and-learn: some texts
    have their answer before they end. search-and-learn scores by the last step (``aggregation`` "last"), runs
    40 rounds, and also ends a tree whose text contains a boxed answer; this search does not. ``expand`` 1 is
    plain sampling; a single tree is step-wise best-of-``expand``.
    """

    method: ClassVar[str] = "dvts"
    n: int = Field(default=16, ge=1, description="Draws per round, a multiple of `expand`.")
    expand: int = Field(default=4, ge=1, description="Next steps sampled for each tree.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n % self.expand:
            raise ValueError(f"'n' must be a multiple of 'expand', not {self.n} and {self.expand}")
        return self

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n

    async def explore(self, space: Space) -> list[Prefix]:
        """The continuations of each tree's last round, tree by tree."""
        [first] = await space.extend([space.root], self.n)
        last = [first[start : start + self.expand] for start in range(0, len(first), self.expand)]
        active = list(range(len(last)))
        while active:
            heads = await self._best(space, [last[tree] for tree in active])
            open_ = [(tree, head) for tree, head in zip(active, heads, strict=True) if is_open(head)]
            extended = await space.extend([head for _, head in open_], self.expand)
            active = []
            for (tree, _), children in zip(open_, extended, strict=True):
                if children:  # else the policy failed, and the round before was the last one
                    last[tree] = children
                    active.append(tree)
        ends = [end for group in last for end in group]
        if self.rule != "majority":
            await space.score(ends)
        return ends

    async def _best(self, space: Space, groups: list[list[Prefix]]) -> list[Prefix]:
        """The best of each group; the first of equals. All are scored together."""
        await space.score([prefix for group in groups if len(set(group)) > 1 for prefix in group])
        return [max(group, key=space.value) for group in groups]
