"""Compute-optimal search: the method that a problem's predicted difficulty asks for; and searches as text."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from surefoot.errors import RunError
from surefoot.protocols import Policy, StepScorer
from surefoot.records import FrozenModel, Problem
from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search, SearchMethod, SearchResult, run_search
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise
from surefoot.search.selection import Rule
from surefoot.search.space import Prefix, Space

Measure = Literal["score", "agreement"]


class Probe(FrozenModel):
    """Predicts how hard a problem is from ``n`` whole solutions, without its answer.

    Difficulty is 1 minus the mean score of the solutions ("score", the predicted difficulty of Snell et al.
    2024, arXiv 2408.03314, section 3.2), or 1 minus the share of the most frequent answer ("agreement", which
    works without a scorer; a solution without an answer counts as disagreeing).
    """

    n: int = Field(default=4, ge=1, description="Whole solutions sampled to predict difficulty.")
    measure: Measure = Field(
        default="score",
        description="Difficulty is 1 minus the mean score, or 1 minus the share of the most frequent answer.",
    )

    async def draw(self, space: Space) -> tuple[list[Prefix], float | None]:
        """The sampled solutions, and the difficulty; ``None`` = it cannot be predicted."""
        [solutions] = await space.extend([space.root], self.n, to_end=True)
        if not solutions:
            return solutions, None
        if self.measure == "score":
            values = [value for value in await space.score(solutions) if value > -math.inf]
            return solutions, 1 - math.fsum(values) / len(values) if values else None
        answers = await space.answers(solutions)
        most = max(Counter(answer for answer in answers if answer is not None).values(), default=0)
        return solutions, 1 - most / len(answers)


class ComputeOptimal(SearchMethod):
    """Probe a problem, then search it as problems of its difficulty are best searched.

    Snell et al. 2024 (arXiv 2408.03314), section 3: for each bin of difficulty, the method that did best at
    equal compute on a development set (:func:`fit_optimal`). Bin k, counted from the easiest, holds
    values above ``edges[k - 1]`` and at most ``edges[k]``. The probe's tokens are counted, and its
    solutions are candidates too. A problem of unknown difficulty is searched like the hardest.

    Raises ``ValueError`` unless there is one search more than there are edges, in rising order.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    edges: tuple[float, ...]
    searches: tuple[Search, ...]
    probe: Probe = Probe()
    name: str = Field(default="optimal", description="Name in records and reports.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.searches) != len(self.edges) + 1:
            raise ValueError(
                f"{len(self.edges)} 'edges' make {len(self.edges) + 1} bins, not {len(self.searches)}"
            )
        if list(self.edges) != sorted(self.edges):
            raise ValueError(f"'edges' must rise, not {self.edges}")
        return self

    def choose(self, difficulty: float | None) -> Search:
        """The search for a problem of this predicted difficulty."""
        return self.searches[-1] if difficulty is None else self.searches[bisect_left(self.edges, difficulty)]

    async def explore(self, space: Space) -> list[Prefix]:
        """The solutions of the probe, then of the chosen search."""
        probed, difficulty = await self.probe.draw(space)
        solutions = [*probed, *await self.choose(difficulty).explore(space)]
        if self.rule != "majority":
            await space.score(solutions)
        return solutions


@dataclass(frozen=True, kw_only=True)
class DifficultyEstimate:
    """What probing a problem gave."""

    difficulty: float | None
    """``None`` = it cannot be predicted."""
    tokens: int
    """Tokens of the probe's solutions and, where there is a scorer, of scoring them as candidates."""


async def predict_difficulties(
    probe: Probe,
    problems: Sequence[Problem],
    policy: Policy,
    scorer: StepScorer | None = None,
    **settings: Any,
) -> list[DifficultyEstimate]:
    """Predicted difficulty of each problem, and its cost; ``settings`` go to :func:`run_search`."""
    probing = _Probing(probe=probe)
    results = await run_search(probing, problems, policy, scorer, **settings)
    return [
        DifficultyEstimate(difficulty=probing.difficulties[result.problem_id], tokens=result.usage.tokens)
        for result in results
    ]


@dataclass(frozen=True, kw_only=True)
class _Probing:
    probe: Probe
    difficulties: dict[str, float | None] = field(default_factory=dict)
    rule: str = "majority"
    name: str = "probe"

    async def explore(self, space: Space) -> list[Prefix]:
        solutions, self.difficulties[space.problem.id] = await self.probe.draw(space)
        if space.has_scorer:
            await space.score(solutions)
        return solutions


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A search and its results on the development problems, in their order."""

    search: Search
    results: Sequence[SearchResult]


class BinResult(FrozenModel):
    """Result of a search on the problems of one bin."""

    accuracy: float | None
    """``None`` = the outcomes are unknown."""
    tokens: float
    """Mean tokens per problem, of policy, verifier and probe."""
    problems: int
    """Problems whose outcome is known; the others are left out."""


@dataclass(frozen=True, kw_only=True)
class OptimalFit:
    """A fitted choice and the results behind it."""

    search: ComputeOptimal
    bins: tuple[Mapping[str, BinResult], ...]
    """For each bin, from the easiest, the result of every trial by name."""
    unknown: int
    """Development problems left out, because their difficulty is unknown."""


def fit_optimal(
    trials: Sequence[Trial],
    probed: Sequence[DifficultyEstimate],
    *,
    tokens: float,
    bins: int = 5,
    slack: float = 0.1,
    probe: Probe | None = None,
    rule: Rule = "weighted_vote",
) -> OptimalFit:
    """The best search for each of ``bins`` bins of predicted difficulty, among those within ``tokens``.

    ``probed`` comes from :func:`predict_difficulties`, one per problem; the bins hold equally
    many problems (5 quantiles in Snell et al.), and fewer bins are made where difficulties are tied. A search
    takes part in a bin if its mean tokens per problem there, together with the probe's, are at most
    ``tokens`` × (1 + ``slack``); equal accuracy goes to fewer tokens, then to the first.

    The table is as good as the development set is large: a bin of 20 problems can hardly resolve 10 points.
    Use other problems than those in the report. Raises ``ValueError`` for trials that do not match, or a
    bin in which no search is within ``tokens`` or no outcome is known.
    """
    names = [trial.search.name for trial in trials]
    if not trials or len(set(names)) < len(names):
        raise ValueError(f"'trials' must be searches of different 'name', not {names}")
    ids = [result.problem_id for result in trials[0].results]
    for trial in trials:
        if [result.problem_id for result in trial.results] != ids or len(ids) != len(probed):
            raise ValueError(f"trial {trial.search.name!r} is not of the same problems in the same order")
    predicted = [
        (k, probe_result.difficulty)
        for k, probe_result in enumerate(probed)
        if probe_result.difficulty is not None
    ]
    if not predicted or bins < 1:
        raise ValueError("no difficulty is known" if bins > 0 else f"'bins' must be 1 or more, not {bins}")
    edges = _edges([value for _, value in predicted], bins)
    rows, chosen = [], []
    for number in range(len(edges) + 1):
        members = [k for k, value in predicted if bisect_left(edges, value) == number]
        probing = math.fsum(probed[k].tokens for k in members) / len(members)
        row = {
            trial.search.name: _bin_result([trial.results[k] for k in members], probing) for trial in trials
        }
        best = _best(row, tokens * (1 + slack), number, probing)
        chosen.append(trials[names.index(best)].search)
        rows.append(row)
    search = ComputeOptimal(edges=edges, searches=tuple(chosen), probe=probe or Probe(), rule=rule)
    return OptimalFit(search=search, bins=tuple(rows), unknown=len(probed) - len(predicted))


def _edges(values: Sequence[float], bins: int) -> tuple[float, ...]:
    """Inner quantiles; one that would leave a bin empty is left out."""
    ordered = sorted(values)
    cuts = [float(np.quantile(ordered, k / bins, method="inverted_cdf")) for k in range(1, bins)]
    # a value on an edge belongs to the bin below it, so that an edge must have something above it
    return tuple(cut for cut in dict.fromkeys(cuts) if cut < ordered[-1])


def _bin_result(results: Sequence[SearchResult], probing: float) -> BinResult:
    outcomes = [result.outcome for result in results if result.outcome is not None]
    return BinResult(
        accuracy=sum(outcomes) / len(outcomes) if outcomes else None,
        tokens=probing + sum(result.usage.tokens for result in results) / len(results),
        problems=len(outcomes),
    )


def _best(row: Mapping[str, BinResult], tokens: float, number: int, probing: float) -> str:
    within = {name: result for name, result in row.items() if result.tokens <= tokens and result.problems}
    if not within:
        cost = ", ".join(f"{name} {result.tokens:.0f}" for name, result in row.items())
        raise ValueError(
            f"bin {number}: no search with known outcomes is within {tokens:.0f} tokens per problem ({cost}; "
            f"the probe's {probing:.0f} included)"
        )
    return min(within, key=lambda name: (-(within[name].accuracy or 0), within[name].tokens))


SEARCHES: Mapping[str, type[SearchMethod]] = MappingProxyType(
    {
        "best_of_n": BestOfNSearch,
        "beam": BeamSearch,
        "dvts": DVTS,
        "rebase": Rebase,
        "particle": ParticleFilter,
        "mcts": MCTS,
        "resample": StepResampling,
        "revise": Revise,
        "optimal": ComputeOptimal,
    }
)
"""Searches by the name of the command line and the reports; all but the last work with their defaults."""


def search_of(text: str) -> Search:
    """The search that ``METHOD`` or ``METHOD:setting=value,…`` describes; the text becomes its name.

    Raises ``RunError`` for an unknown method or setting, or an invalid value.
    """
    name, _, options = text.partition(":")
    kinds = {key.replace("_", "-"): kind for key, kind in SEARCHES.items() if kind is not ComputeOptimal}
    alias = {"rule": "majority"} if name == "majority" else {}
    kind = kinds.get("best-of-n" if alias else name.replace("_", "-"))
    if kind is None:
        raise RunError(f"{text!r}: unknown search {name!r}; choose from {', '.join(kinds)}")
    settings = dict(part.partition("=")[::2] for part in options.split(",")) if options else {}
    fields = [setting for setting in kind.model_fields if setting not in SearchMethod.model_fields]
    allowed = [*fields, "rule"]
    for setting in settings:
        if setting not in allowed:
            raise RunError(
                f"{text!r}: unknown setting {setting!r} of {name}; choose from {', '.join(allowed)}"
            )
    try:
        search: Search = kind.model_validate({**alias, **settings, "name": text})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{text!r}: {where + ': ' if where else ''}{message}") from error
    return search


class SearchPlan(FrozenModel):
    """A file that assigns a search to each bin of predicted difficulty; see ``ComputeOptimal``."""

    edges: tuple[float, ...]
    searches: tuple[str, ...]
    """One per bin, easiest first, in the syntax of :func:`search_of`."""
    probe: int = 4
    measure: Measure = "score"
    rule: Rule = "weighted_vote"
    bins: tuple[Mapping[str, BinResult], ...] = ()
    """Results behind the choice; not needed to search."""
    unknown: int = 0
    """Development problems whose difficulty could not be predicted."""

    @classmethod
    def of(cls, fit: OptimalFit) -> SearchPlan:
        """The plan of a fitted choice."""
        return cls(
            edges=fit.search.edges,
            searches=tuple(search.name for search in fit.search.searches),
            probe=fit.search.probe.n,
            measure=fit.search.probe.measure,
            rule=fit.search.rule,
            bins=fit.bins,
            unknown=fit.unknown,
        )

    def search(self) -> ComputeOptimal:
        """The search that follows the plan. Raises ``RunError`` or ``ValueError``."""
        return ComputeOptimal(
            edges=self.edges,
            searches=tuple(search_of(text) for text in self.searches),
            probe=Probe(n=self.probe, measure=self.measure),
            rule=self.rule,
        )
