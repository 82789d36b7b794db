"""Beam search over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surefoot.protocols import Policy, StepScorer
from surefoot.records import Problem
from surefoot.search.method import run_search
from surefoot.search.result import SearchResult, require_rule
from surefoot.search.space import Prefix, Space, is_open, repeats


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Keep the ``width`` best prefixes, draw ``expand`` next steps of each, score, keep the best again.

    Snell et al. 2024 (arXiv 2408.03314), section 5.2, whose N beams of width M are ``width`` = N / M and
    ``expand`` = M here. The first round draws ``width`` × ``expand`` steps, so that every round costs the
    same. Equal prefixes are one beam: what is kept is ``width`` different ones. A finished solution keeps its
    place while it is among the best, costs nothing more, and leaves its draws to no other beam; all that
    were in the beam when they ended are candidates, and so are the unfinished ones of the last round.

    With ``set_aside`` every solution that ends is a candidate and leaves its place, the search goes on with
    the best of those that have not ended until all have, and every round draws ``width`` × ``expand`` steps,
    shared among the beams where there are fewer, as search-and-learn (Hugging Face) does: more candidates,
    for more tokens.

    With ``lookahead`` a prefix is judged by the score at the end of that many further steps, written
    greedily, as in the paper (what is scored contains them).

    A scorer of correctness may like a step that says again what was said, and the beam then stands still
    until ``max_steps``. With ``shun_repeats`` a step that is in its solution already, word for word, comes
    behind all that are not. The paper has no such rule, and it harms where right solutions repeat lines.

    Where there is nothing to choose between, nothing is scored: a beam of one with one draw a step is plain
    sampling, scored at its end. Raises ``ValueError`` for numbers that make no search.
    """

    width: int = 4
    expand: int = 4
    lookahead: int = 0
    set_aside: bool = False
    shun_repeats: bool = False
    rule: str = "weighted_vote"
    name: str = "beam"

    def __post_init__(self) -> None:
        if self.width < 1 or self.expand < 1:
            raise ValueError(f"'width' and 'expand' must be 1 or more, not {self.width} and {self.expand}")
        if self.lookahead < 0:
            raise ValueError(f"'lookahead' must be 0 or more, not {self.lookahead}")
        require_rule(self.rule)

    async def explore(self, space: Space) -> list[Prefix]:
        """Finished solutions in the order in which they ended."""
        finished: dict[Prefix, None] = {}
        kept: list[Prefix] = []
        [drawn] = await space.extend([space.root], self.width * self.expand)
        while True:
            rivals = list(dict.fromkeys([*kept, *drawn]))
            if self.set_aside:
                finished |= dict.fromkeys(prefix for prefix in rivals if not is_open(prefix))
                rivals = [prefix for prefix in rivals if is_open(prefix)]
            beams = await self._best(space, rivals)
            kept = [beam for beam in beams if not is_open(beam)]
            finished |= dict.fromkeys(kept)
            growing = [beam for beam in beams if is_open(beam)]
            grown = await space.extend(growing, self._draws(len(growing)))
            drawn = [child for children in grown for child in children]
            if not drawn:  # all have ended, or the policy no longer answers
                break
        solutions = list(finished | dict.fromkeys(beams))
        if self.rule != "majority":
            await space.score(solutions)
        return solutions

    def _draws(self, beams: int) -> list[int]:
        """Next steps to draw of each beam."""
        if not self.set_aside or not beams:
            return [self.expand] * beams
        each, more = divmod(self.width * self.expand, beams)
        return [each + (place < more) for place in range(beams)]

    async def _best(self, space: Space, prefixes: list[Prefix]) -> list[Prefix]:
        """The ``width`` best; the first of equals."""
        if len(prefixes) <= self.width:  # nothing to choose between
            return prefixes
        values = dict(zip(prefixes, await space.foresee(prefixes, self.lookahead), strict=True))
        key = {prefix: (self.shun_repeats and repeats(prefix), -values[prefix]) for prefix in prefixes}
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
