"""Beam search over steps."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from surefoot.protocols import Policy, StepScorer
from surefoot.records import Problem
from surefoot.search.method import SearchMethod, SearchResult, run_search
from surefoot.search.space import Prefix, Space, is_open, is_repetition


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

    With ``lookahead`` a prefix is ranked by the score after that many further steps, written greedily, as in
    the paper (the scored text contains them).

    A scorer of correctness may prefer a step that repeats an earlier one, and the beam then makes no progress
    until ``max_steps``. With ``penalize_repeats`` a step that its solution already contains, word for word,
    ranks behind all others. The paper has no such rule, and it harms where correct solutions repeat lines.

    Where there is nothing to choose between, nothing is scored: a beam of one with one draw a step is plain
    sampling, scored at its end.
    """

    width: int = Field(default=4, ge=1, description="Prefixes kept after each round.")
    expand: int = Field(default=4, ge=1, description="Next steps drawn for each prefix.")
    lookahead: int = Field(
        default=0,
        ge=0,
        description="Greedy steps written ahead of a prefix before it is scored.",
    )
    retire_finished: bool = Field(
        default=False,
        description="Finished solutions free their places, and the search continues until all have ended.",
    )
    penalize_repeats: bool = Field(
        default=False, description="Rank a step that its solution already contains behind all others."
    )
    name: str = Field(default="beam", description="Name in records and reports.")

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished solutions in the order in which they ended."""
        finished: dict[Prefix, None] = {}
        kept_finished: list[Prefix] = []
        [drawn] = await space.extend([space.root], self.width * self.expand)
        while True:
            rivals = list(dict.fromkeys([*kept_finished, *drawn]))
            if self.retire_finished:
                finished |= dict.fromkeys(prefix for prefix in rivals if not is_open(prefix))
                rivals = [prefix for prefix in rivals if is_open(prefix)]
            beams = await self._best(space, rivals)
            kept_finished = [beam for beam in beams if not is_open(beam)]
            finished |= dict.fromkeys(kept_finished)
            open_beams = [beam for beam in beams if is_open(beam)]
            children = await space.extend(open_beams, self._draws(len(open_beams)))
            drawn = [child for siblings in children for child in siblings]
            if not drawn:  # all have ended, or the policy no longer answers
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
        return [each + (place < more) for place in range(beams)]

    async def _best(self, space: Space, prefixes: list[Prefix]) -> list[Prefix]:
        """The ``width`` best; the first of equals."""
        if len(prefixes) <= self.width:  # nothing to choose between
            return prefixes
        values = dict(zip(prefixes, await space.score_ahead(prefixes, self.lookahead), strict=True))
        key = {
            prefix: (self.penalize_repeats and is_repetition(prefix), -values[prefix]) for prefix in prefixes
        }
        return sorted(prefixes, key=key.__getitem__)[: self.width]


async def beam_search(
    problem: Problem,
    policy: Policy,
    scorer: StepScorer,
    *,
    width: int = 4,
    expand: int = 4,
    lookahead: int = 0,
    **settings: Any,
) -> SearchResult:
    """:class:`BeamSearch` on one problem; ``settings`` are those of :func:`run_search`."""
    search = BeamSearch(width=width, expand=expand, lookahead=lookahead)
    [result] = await run_search(search, [problem], policy, scorer, **settings)
    return result
