"""Accuracy against the number of samples and against tokens, for every way to choose among the same samples.

Best-of-N by each aggregation, the vote weighted by each, majority, and pass@N, which bounds them all. Values
are the unbiased estimates of ``surefoot.search.estimators``, intervals are over problems, differences are
paired by problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.pools import (
    Candidates,
    FloatArray,
    expected_accuracy,
    pools_of,
    require_ceiling,
    sizes_up_to,
)
from surefoot.evaluation.report import JSONResult
from surefoot.records import StepScores, Trace
from surefoot.scores import AGGREGATORS, Aggregator, complete_scores
from surefoot.search.estimators import Method
from surefoot.search.selection import COMMON_RULES, ScoreRule
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.stats.intervals import Interval

MAJORITY = "majority"
CEILING = "pass@N"

_ROUNDING = 1e-9
"""Differences of one problem's expected accuracies below this are sums added in another order."""

RULE_NAMES: Mapping[ScoreRule, str] = {
    "best_of_n": "best-of-N",
    "weighted_vote": "weighted vote",
    "confidence_vote_10": "confidence vote 10 %",
    "confidence_vote_90": "confidence vote 90 %",
    "knockout": "knockout",
}


@dataclass(frozen=True, kw_only=True)
class SelectorCurve:
    """One way to choose; every mapping is by number of samples N."""

    name: str
    scorer: str | None
    """``None`` for pass@N and majority."""
    rule: Method
    aggregation: Aggregator | None
    accuracy: Mapping[int, Interval]
    """Share of problems answered right."""
    minus_majority: Mapping[int, Interval]
    """Paired difference; empty for majority itself and pass@N."""
    tokens: Mapping[int, float]
    """Mean tokens per problem, policy and verifier; empty where they are unknown (``BestOfNResult.unknown``).
    The prompt counts once, completions and scores N times their mean in the pool."""


@dataclass(frozen=True, kw_only=True)
class ScorerCounts:
    """What became of a scorer's records."""

    traces: int
    unscored: int
    """Candidates without a score for every step: chosen last, and without a weighted vote."""
    foreign: int
    """Records of traces that are not among the candidates."""
    left_out: Mapping[str, str]
    """Aggregations and rules that its scores do not allow → reason."""


@dataclass(frozen=True, kw_only=True)
class BestOfNResult(JSONResult):
    """All curves on the same candidates."""

    curves: tuple[SelectorCurve, ...]
    """pass@N, majority, then scorer by scorer."""
    sizes: tuple[int, ...]
    problems: int
    traces: int
    dropped: Mapping[str, int]
    scorers: Mapping[str, ScorerCounts]
    unknown: Mapping[str, str]
    """Token counts that are unknown → reason."""
    settings: Mapping[str, int]

    def curve(self, name: str) -> SelectorCurve:
        """The curve of this name. Raises ``KeyError``."""
        return {curve.name: curve for curve in self.curves}[name]


def evaluate_best_of_n(
    candidates: Candidates,
    scores: Mapping[str, Sequence[StepScores]],
    *,
    rules: Sequence[ScoreRule] = COMMON_RULES,
    sizes: Sequence[int] | None = None,
    draws: int = 400,
    bootstrap: int = 10_000,
    seed: int = 0,
) -> BestOfNResult:
    """Curves of every selector; ``scores`` is by the scorer's name, ``sizes`` 1, 2, 4 … if not given.

    Each of ``rules`` reads every scorer by every aggregation. ``draws`` random subsets stand for all where a
    rule has no closed form (Lightman et al., arXiv 2305.20050, use 400). Raises ``ScoreError`` for a size
    that a problem has too few candidates for, a record with other than one score a step, or a selector above
    pass@N.
    """
    groups = list(candidates.groups.values())
    smallest = min(map(len, groups))
    chosen = sorted(set(sizes or sizes_up_to(smallest)))
    if chosen[0] < 1 or chosen[-1] > smallest:
        raise ScoreError(f"sizes must lie between 1 and {smallest}, the fewest candidates, not {chosen}")
    study = _PoolCurves(groups, chosen, draws=draws, bootstrap=bootstrap, seed=seed)
    curves = [study.curve(CEILING, "pass"), study.curve(MAJORITY, "majority")]
    counts = {}
    for name, records in scores.items():
        known = {record.trace_id: record for record in records}
        left_out = _left_out(records, rules)
        study.spend(name, known)
        counts[name] = ScorerCounts(
            traces=len(candidates.traces),
            unscored=sum(
                trace.id not in known or not complete_scores(known[trace.id].scores)
                for trace in candidates.traces
            ),
            foreign=len(known.keys() - {trace.id for trace in candidates.traces}),
            left_out=left_out,
        )
        curves += [
            study.curve(f"{name} {RULE_NAMES[rule]} {how}", rule, scorer=name, how=how, known=known)
            for rule in dict.fromkeys(rules)
            for how in AGGREGATORS
            if how not in left_out and rule not in left_out
        ]
    return BestOfNResult(
        curves=tuple(curves),
        sizes=tuple(chosen),
        problems=len(groups),
        traces=len(candidates.traces),
        dropped=dict(candidates.dropped),
        scorers=counts,
        unknown=study.unknown,
        settings={"draws": draws, "bootstrap": bootstrap, "seed": seed},
    )


class _PoolCurves:
    """What the curves share: pools, sizes, the two baselines, tokens."""

    def __init__(
        self,
        groups: Sequence[Sequence[Trace]],
        sizes: Sequence[int],
        *,
        draws: int,
        bootstrap: int,
        seed: int,
    ) -> None:
        self.groups, self.sizes = groups, sizes
        self.draws, self.bootstrap, self.seed = draws, bootstrap, seed
        self.unknown: dict[str, str] = {}
        self._verifier: dict[str, FloatArray] = {}
        unscored = pools_of(groups, {}, "min")
        self._ceiling = expected_accuracy(unscored, "pass", sizes, seed=seed)
        self._majority = expected_accuracy(unscored, "majority", sizes, seed=seed, draws=draws)
        require_ceiling(MAJORITY, self._majority, self._ceiling, draws=draws)
        self._policy = self._policy_tokens()

    def curve(
        self,
        name: str,
        rule: Method,
        *,
        scorer: str | None = None,
        how: Aggregator | None = None,
        known: Mapping[str, StepScores] | None = None,
    ) -> SelectorCurve:
        baselines: dict[Method, FloatArray] = {"pass": self._ceiling, "majority": self._majority}
        if how is None or known is None:
            accuracy = baselines[rule]
        else:
            pools = pools_of(self.groups, known, how)
            accuracy = expected_accuracy(pools, rule, self.sizes, seed=self.seed, draws=self.draws)
            sampled = None if rule == "best_of_n" else self.draws
            require_ceiling(name, accuracy, self._ceiling, draws=sampled)
        gap = accuracy - self._majority
        gap[np.abs(gap) < _ROUNDING] = 0.0  # with one sample, say, all selectors choose alike
        return SelectorCurve(
            name=name,
            scorer=scorer,
            rule=rule,
            aggregation=how,
            accuracy=self._intervals(accuracy),
            minus_majority={} if rule in baselines else self._intervals(gap),
            tokens=self._tokens(scorer),
        )

    def spend(self, scorer: str, known: Mapping[str, StepScores]) -> None:
        """Note what a scorer read of each candidate, on average: [problems]."""
        read = [[known[t.id].usage.verifier_tokens for t in group if t.id in known] for group in self.groups]
        if not any(map(sum, read)):
            self.unknown[f"tokens of {scorer}"] = "its records carry no 'usage.verifier_tokens'"
            return
        self._verifier[scorer] = np.array([np.mean(row) if row else 0.0 for row in read])

    def _policy_tokens(self) -> FloatArray | None:
        """[problems, sizes]; ``None`` if a text came without its count."""
        traces = [trace for group in self.groups for trace in group]
        without = sum(bool(trace.text or trace.messages) and not _written(trace) for trace in traces)
        if without:
            self.unknown["tokens of the policy"] = (
                f"{without} of {len(traces)} traces carry no 'usage.completion_tokens'"
            )
            return None
        prompt = np.array([sum(trace.usage.prompt_tokens for trace in group) for group in self.groups])
        written = np.array([np.mean([_written(trace) for trace in group]) for group in self.groups])
        tokens: FloatArray = prompt[:, None] + written[:, None] * np.array(self.sizes)
        return tokens

    def _tokens(self, scorer: str | None) -> dict[int, float]:
        if self._policy is None or (scorer is not None and scorer not in self._verifier):
            return {}
        total = self._policy
        if scorer is not None:
            total = total + self._verifier[scorer][:, None] * np.array(self.sizes)
        return dict(zip(self.sizes, total.mean(axis=0).tolist(), strict=True))

    def _intervals(self, values: FloatArray) -> dict[int, Interval]:
        """Means over problems of ``values`` [problems, sizes]; all from the same draws of problems."""
        return {
            size: bootstrap_mean(values[:, at], draws=self.bootstrap, rng=np.random.default_rng(self.seed))
            for at, size in enumerate(self.sizes)
        }


def _left_out(records: Sequence[StepScores], rules: Sequence[ScoreRule]) -> dict[str, str]:
    """Aggregations and rules that the scores do not allow, or that another one already shows."""
    found: dict[str, str] = {}
    if all(len(record.scores) <= 1 for record in records):
        found |= dict.fromkeys(
            ("min", "product", "mean", "sum"), "one score per trace: all aggregations are 'last'"
        )
    if any(score is not None and score < 0 for record in records for score in record.scores):
        reason = "scores below 0: map them to probabilities first"
        # a negative vote counts against its answer, and a knockout's threshold is a probability
        found["product"] = reason
        found |= dict.fromkeys((rule for rule in rules if rule != "best_of_n"), reason)
    return found


def _written(trace: Trace) -> int:
    return trace.usage.completion_tokens
