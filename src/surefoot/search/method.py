"""The one protocol of all searches, and running one on many problems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from surefoot.answers import AnswerChecker, Grader
from surefoot.batching import Batcher
from surefoot.protocols import Policy, StepScorer
from surefoot.records import Problem
from surefoot.scores import Aggregator
from surefoot.search.result import SearchResult, conclude
from surefoot.search.space import Prefix, Space, Steps


@runtime_checkable
class Search(Protocol):
    """A way to explore a problem's step tree.

    Settings are fields of a frozen dataclass, refused when made if they make no sense.
    """

    @property
    def name(self) -> str:
        """Name in records, on the command line and in figures."""

    @property
    def rule(self) -> str:
        """How one of the solutions found is chosen; see :data:`surefoot.search.result.RULES`."""

    async def explore(self, space: Space) -> Sequence[Prefix]:
        """The solutions found: nodes of ``space``, finished where the policy finished them.

        A node that was found twice is there twice. Nodes that are scored have been scored by
        ``space.score``. A failed request only makes a list shorter.
        """


async def run_search(
    search: Search,
    problems: Sequence[Problem],
    policy: Policy,
    scorer: StepScorer | None = None,
    *,
    steps: Steps | None = None,
    aggregation: Aggregator | None = None,
    grader: Grader | None = None,
    seed: int = 0,
    overlap: bool = False,
    concurrency: int | None = None,
    watch: Callable[[Space, SearchResult], None] | None = None,
) -> list[SearchResult]:
    """Search all ``problems``, ``concurrency`` at the same time (``None`` = all); results in their order.

    ``aggregation`` makes a prefix's step scores one number; ``None`` is the rule that the scorer's checkpoint
    names, or else ``min``. ``grader`` extracts and compares answers (default: the mathematical one).
    ``overlap`` is for policies behind a server, see :class:`surefoot.batching.Batcher`. ``watch`` is given
    the space and the result of each problem as soon as its search is over, to save its tree, say, or to write
    down how far a run has come.

    Raises what policy or scorer raise; a request that fails by itself is noted in its problem's result.
    """
    steps = steps or Steps()
    how = aggregation or getattr(getattr(scorer, "card", None), "aggregation", None) or "min"
    batcher = Batcher(policy, scorer, overlap=overlap)

    async def one(problem: Problem, judge: Grader) -> SearchResult:
        space = Space(problem, batcher, steps=steps, aggregation=how, grader=judge, seed=seed)
        leaves = await search.explore(space)
        result = await asyncio.to_thread(conclude, space, search.name, leaves, search.rule)
        if watch:
            watch(space, result)
        return result

    if grader is not None:
        return await batcher.run([one(problem, grader) for problem in problems], concurrency=concurrency)
    with AnswerChecker("math") as checker:
        judge = Grader(checker=checker)
        return await batcher.run([one(problem, judge) for problem in problems], concurrency=concurrency)
