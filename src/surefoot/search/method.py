"""The protocol of searches, their common settings, their result, and the function that runs one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from surefoot.answers import AnswerChecker, Grader, group_equal
from surefoot.batching import Batcher
from surefoot.protocols import Candidate, Policy, StepScorer
from surefoot.records import FrozenModel, Problem, Record, StepScores, Trace, Usage, trusted_copy
from surefoot.scores import TraceRule, trace_rule
from surefoot.search.selection import FIRST, SELECTORS, Rule
from surefoot.search.space import Prefix, Space, Steps
from surefoot.spec import method_text


class SearchMethod(FrozenModel):
    """A way to explore a problem's step tree: frozen settings.

    Raises ``ValueError`` for values that make no search.
    """

    method: ClassVar[str]
    """Name of the method, such as ``beam``."""
    by_steps: ClassVar[bool] = True
    """Whether the policy continues beginnings of solutions, which not every server can."""
    needs_scorer: ClassVar[bool] = True
    rule: Rule = Field(default="weighted_vote", description="How the solution that is returned is chosen.")

    @property
    def name(self) -> str:
        """The method with the settings that differ from its defaults, such as ``beam:width=8``: a text that
        :func:`surefoot.search.search_of` reads, and the same for equal searches."""
        return method_text(self.method, self)

    @property
    def draws(self) -> int:
        """Solutions, or next steps of a round, that are sampled; repetitions of a round count."""
        raise NotImplementedError

    async def explore(self, space: Space) -> Sequence[Prefix]:
        """The solutions: nodes of ``space``, finished where the policy finished them.

        A node that was reached twice is there twice. Nodes with a score have been scored by ``space.score``.
        A failed request only makes a list shorter.
        """
        raise NotImplementedError


class SearchCounts(FrozenModel):
    """Events of a search."""

    nodes: int = 0
    """Distinct prefixes in the tree, without the root."""
    sampled: int = 0
    """Steps sampled."""
    merged: int = 0
    """Sampled steps that repeat an earlier step after the same prefix."""
    capped: int = 0
    """Steps cut at ``step_tokens``, and ends cut at ``max_tokens``."""
    unscored: int = 0
    """Prefixes without a score."""
    failed: int = 0
    """Failed requests to the policy."""
    rejected: int = 0
    """Steps of the chosen solution that the search rejected, and took as it drew no better ones."""


Finish = Literal["chosen", "rejected", "unscored", "none"]
"""How a choice was made: by the rule; by the rule, but with a step that the search rejected; by votes or
order, as no candidate has a score; or, without a solution, not at all."""


def finish_of(
    chosen: int | None, rule: str, records: Iterable[StepScores | None], counts: SearchCounts
) -> Finish:
    """How a choice among candidates with these scores was made; ``None`` or no records = no scorer."""
    if chosen is None:
        return "none"
    if counts.rejected:
        return "rejected"
    scores = [score for record in records if record for score in record.scores]
    return "unscored" if scores and rule != "majority" and set(scores) == {None} else "chosen"


class SearchResult(Record):
    """One problem searched."""

    problem_id: str
    method: str
    seed: int
    candidates: tuple[Trace, ...]
    """Solutions in the order in which the search returned them; equal ones once."""
    scores: tuple[StepScores, ...]
    """Step scores of each; empty without a scorer."""
    values: tuple[float | None, ...]
    """Aggregated score of each candidate; ``None`` = not scored."""
    weights: tuple[int, ...]
    """How often each candidate was sampled, which is its weight in a vote."""
    rule: str
    """How the candidate was chosen, see :data:`surefoot.search.selection.Rule`."""
    chosen: int | None
    """Index of the chosen candidate; ``None`` without a solution."""
    usage: Usage
    counts: SearchCounts
    error: str | None = None
    """What went wrong, if anything did."""

    @property
    def finish(self) -> Finish:
        """How the choice was made."""
        return finish_of(self.chosen, self.rule, self.scores, self.counts)

    @property
    def answer(self) -> str | None:
        """Final answer of the chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen].answer

    @property
    def outcome(self) -> bool | None:
        """Whether the chosen answer is correct: ``None`` if that is unknown, false without a solution."""
        return False if self.chosen is None else self.candidates[self.chosen].outcome


async def run_search(
    search: SearchMethod,
    problems: Sequence[Problem],
    policy: Policy,
    scorer: StepScorer | None = None,
    *,
    steps: Steps | None = None,
    aggregation: TraceRule | None = None,
    grader: Grader | None = None,
    seed: int = 0,
    overlap: bool = False,
    concurrency: int | None = None,
    watch: Callable[[Space, SearchResult], None] | None = None,
) -> list[SearchResult]:
    """Search all ``problems``, ``concurrency`` at the same time (``None`` = all); results in their order.

    ``aggregation`` makes a prefix's step scores one number; ``None`` is the scorer's own rule
    (:func:`surefoot.scores.trace_rule`). ``grader`` extracts and compares answers (default: the mathematical
    one). ``overlap`` is for policies behind a server, see :class:`surefoot.batching.Batcher`. ``watch`` gets
    the space and the result of each problem as soon as its search is over, for example to save its tree or to
    report progress.

    Raises what policy or scorer raise; a request that fails alone is noted in its problem's result.
    """
    steps = steps or Steps()
    how = aggregation or trace_rule(scorer)
    batcher = Batcher(policy, scorer, overlap=overlap)

    async def search_one(problem: Problem, grader: Grader) -> SearchResult:
        space = Space(problem, batcher, steps=steps, aggregation=how, grader=grader, seed=seed)
        leaves = await search.explore(space)
        result = await grader.checker.run(lambda: conclude(space, search.name, leaves, search.rule))
        if watch:
            watch(space, result)
        return result

    async def search_all(grader: Grader) -> list[SearchResult]:
        return await batcher.run(
            [search_one(problem, grader) for problem in problems], concurrency=concurrency
        )

    if grader is not None:
        return await search_all(grader)
    with AnswerChecker("math") as checker:
        return await search_all(Grader(checker=checker))


def conclude(space: Space, method: str, leaves: Sequence[Prefix], rule: str) -> SearchResult:
    """Grade the solutions that a search ended with, and choose among them by ``rule``.

    ``leaves`` may contain a node several times; nodes without text are ignored.
    """
    weights: dict[str, int] = {}
    nodes: dict[str, Prefix] = {}
    for leaf in leaves:
        if leaf.prefix.strip():
            weights[leaf.prefix] = weights.get(leaf.prefix, 0) + 1
            if leaf.prefix not in nodes or nodes[leaf.prefix].data.finish is None:
                nodes[leaf.prefix] = leaf
    solutions = [space.solution(node) for node in nodes.values()]
    grades = space.grader.grade(solutions, [space.problem.answer] * len(nodes), space.problem.text)
    traces = [
        trusted_copy(space.trace(node), {"answer": grade.answer, "outcome": grade.outcome})
        for node, grade in zip(nodes.values(), grades, strict=True)
    ]
    values = [space.value(node) for node in nodes.values()]
    records = [space.record(node, trace) for node, trace in zip(nodes.values(), traces, strict=True)]
    finite_values = [None if value == -float("inf") else value for value in values]
    answers = group_equal([grade.answer for grade in grades], space.grader.checker)
    chosen = _choose(
        rule,
        [
            Candidate(answer=answer, score=value, refuted=record.refuted())
            for answer, value, record in zip(answers, finite_values, records, strict=True)
        ],
        list(weights.values()),
    )
    rejected = 0 if chosen is None else space.rejected.get([*nodes][chosen], 0)
    return SearchResult(
        problem_id=space.problem.id,
        method=method,
        seed=space.seed,
        candidates=tuple(traces),
        scores=tuple(records) if space.has_scorer else (),
        values=tuple(finite_values),
        weights=tuple(weights.values()),
        rule=rule,
        chosen=chosen,
        usage=space.usage,
        counts=SearchCounts(
            nodes=sum(bool(node.text) for node in space.tree), rejected=rejected, **space.counts
        ),
        error="; ".join(space.errors) or None,
    )


def _choose(rule: str, candidates: Sequence[Candidate], weights: Sequence[int]) -> int | None:
    if not candidates:
        return None
    if rule == FIRST:
        return 0
    indices = [index for index, weight in enumerate(weights) for _ in range(weight)]
    return indices[SELECTORS[rule].select([candidates[k] for k in indices])]
