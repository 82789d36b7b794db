"""Accuracy against the number of samples and against tokens, for selectors on the same samples.

Best-of-N by each aggregation, the vote weighted by each, majority, and pass@N, which bounds them all. Values
are the unbiased estimates of ``surefoot.search.estimators``, intervals are over problems, differences are
paired by problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.frame import SMALLEST_GAIN, Card, card
from surefoot.evaluation.pools import (
    CandidateGroup,
    Candidates,
    FloatArray,
    expected_accuracy,
    pool_of,
    sizes_up_to,
)
from surefoot.evaluation.report import JSONResult, Plot, Section
from surefoot.evaluation.step_scores import StoredScores
from surefoot.io.tables import Seen
from surefoot.records import StepScores
from surefoot.scores import AGGREGATORS, Aggregator, complete_scores
from surefoot.search.estimators import Method, RandomOrders, pool_curve
from surefoot.search.selection import COMMON_RULES, ScoreRule
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.stats.intervals import Interval

MAJORITY = "majority"
CEILING = "pass@N"

Reading = tuple[ScoreRule, Aggregator]
"""How scores are used: the selection rule, and the rule that aggregates step scores."""

_ROUNDING = 1e-9
"""Differences of a problem's expected accuracies below this come from the order of summation."""

RULE_NAMES: Mapping[ScoreRule, str] = {
    "best_of_n": "best-of-N",
    "weighted_vote": "weighted vote",
    "confidence_vote_10": "confidence vote 10 %",
    "confidence_vote_90": "confidence vote 90 %",
    "agreement": "agreement",
}


@dataclass(frozen=True, kw_only=True)
class SelectorCurve:
    """One selector; every mapping is by number of samples N."""

    name: str
    scorer: str | None
    """``None`` for pass@N and majority."""
    rule: Method
    aggregation: Aggregator | None
    accuracy: Mapping[int, Interval]
    """Share of problems answered correctly."""
    minus_majority: Mapping[int, Interval]
    """Paired difference; empty for majority itself and pass@N."""
    tokens: Mapping[int, float]
    """Mean tokens per problem, policy and verifier; empty if unknown (``BestOfNResult.unknown``).
    The prompt counts once, completions and scores N times their mean in the pool."""


@dataclass(frozen=True, kw_only=True)
class ScorerCounts:
    """Use of a scorer's records."""

    traces: int
    unscored: int
    """Candidates without a score for every step: chosen last, and without a weighted vote."""
    foreign: int
    """Records of other traces."""
    left_out: Mapping[str, str]
    """Aggregations and rules that the scores do not allow → reason."""


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

    def curve(self, name: str) -> SelectorCurve:
        """The curve of this name. Raises ``KeyError``."""
        return {curve.name: curve for curve in self.curves}[name]


def evaluate_best_of_n(
    candidates: Candidates,
    scores: Mapping[str, Sequence[StepScores] | StoredScores],
    *,
    rules: Sequence[ScoreRule] = COMMON_RULES,
    sizes: Sequence[int] | None = None,
    draws: int = 400,
    bootstrap: int = 10_000,
    seed: int = 0,
) -> BestOfNResult:
    """Curves of every selector; ``scores`` is by the scorer's name, ``sizes`` are 1, 2, 4 … by default.

    Problems are streamed: scores in a table are read for one problem at a time. Each of ``rules`` is applied
    to every scorer with every aggregation. Rules without a closed form use ``draws`` random subsets (Lightman
    et al., arXiv 2305.20050, use 400). Raises ``ScoreError`` for a size above the number of a problem's
    candidates, and for a record without exactly one score per step.
    """
    groups = list(candidates.groups.values())
    total = len(candidates)
    smallest = min(map(len, groups))
    chosen = sorted(set(sizes or sizes_up_to(smallest)))
    if chosen[0] < 1 or chosen[-1] > smallest:
        raise ScoreError(f"sizes must lie between 1 and {smallest}, the fewest candidates, not {chosen}")
    study = _PoolCurves(groups, chosen, draws=draws, bootstrap=bootstrap, seed=seed)
    curves = [
        study.curve(CEILING, "pass", study.ceiling),
        study.curve(MAJORITY, "majority", study.majority),
    ]
    counts = {}
    for name, records in scores.items():
        source = records if isinstance(records, StoredScores) else StoredScores(records)
        scored, left_out = _left_out(source, rules)
        readings: list[Reading] = [
            (rule, how)
            for rule in dict.fromkeys(rules)
            for how in AGGREGATORS
            if how not in left_out and rule not in left_out
        ]
        records_used, unscored, scorer_curves = study.scorer(name, source, readings)
        curves += scorer_curves
        foreign = scored - records_used
        counts[name] = ScorerCounts(traces=total, unscored=unscored, foreign=foreign, left_out=left_out)
    return BestOfNResult(
        curves=tuple(curves),
        sizes=tuple(chosen),
        problems=len(groups),
        traces=total,
        dropped=dict(candidates.dropped),
        scorers=counts,
        unknown=study.unknown,
    )


class _PoolCurves:
    """Pools, sizes, the two baselines and tokens, which all curves share."""

    def __init__(
        self,
        groups: Sequence[CandidateGroup],
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
        unscored = [pool_of(group, {}, "min") for group in groups]
        self.ceiling = expected_accuracy(unscored, "pass", sizes, seed=seed)
        self.majority = expected_accuracy(unscored, "majority", sizes, seed=seed, draws=draws)
        self._policy = self._policy_tokens()

    def scorer(
        self, scorer: str, source: StoredScores, readings: Sequence[Reading]
    ) -> tuple[int, int, list[SelectorCurve]]:
        """Number of records used, candidates with unscored steps, and the curve of each reading."""
        accuracy = {reading: np.empty((len(self.groups), len(self.sizes))) for reading in readings}
        used = unscored = spent = 0
        tokens = np.zeros(len(self.groups))
        # the same generator for each problem in every curve
        generators = np.random.default_rng(self.seed).spawn(len(self.groups))
        for row, (group, rng) in enumerate(zip(self.groups, generators, strict=True)):
            records = source.of(group.trace_ids)
            used += len(records)
            unscored += len(group) - sum(bool(complete_scores(record.scores)) for record in records.values())
            costs = [record.usage.verifier_tokens for record in records.values()]
            spent += sum(costs)
            tokens[row] = np.mean(costs) if costs else 0.0
            random = RandomOrders(len(group), self.draws, rng)
            pools = {how: pool_of(group, records, how) for how in dict.fromkeys(how for _, how in readings)}
            for (rule, how), curve in accuracy.items():
                curve[row] = pool_curve(pools[how], rule, self.sizes, random)
        if spent:
            self._verifier[scorer] = tokens
        else:
            self.unknown[f"tokens of {scorer}"] = "its records lack 'usage.verifier_tokens'"
        curves = [
            self.curve(f"{scorer} {RULE_NAMES[rule]} {how}", rule, values, scorer, how)
            for (rule, how), values in accuracy.items()
        ]
        return used, unscored, curves

    def curve(
        self,
        name: str,
        rule: Method,
        accuracy: FloatArray,
        scorer: str | None = None,
        how: Aggregator | None = None,
    ) -> SelectorCurve:
        """From the accuracy of each problem, [problems, sizes]."""
        gap = accuracy - self.majority
        gap[np.abs(gap) < _ROUNDING] = 0.0  # e.g. with one sample all selectors agree
        return SelectorCurve(
            name=name,
            scorer=scorer,
            rule=rule,
            aggregation=how,
            accuracy=self._intervals(accuracy),
            minus_majority=self._intervals(gap) if scorer is not None else {},
            tokens=self._tokens(scorer),
        )

    def _policy_tokens(self) -> FloatArray | None:
        """[problems, sizes]; ``None`` if a token count is missing."""
        if without := sum(group.uncounted for group in self.groups):
            traces = sum(map(len, self.groups))
            self.unknown["tokens of the policy"] = (
                f"{without} of {traces} traces lack 'usage.completion_tokens'"
            )
            return None
        prompt = np.array([group.prompt_tokens for group in self.groups])
        written = np.array([group.completion_tokens / len(group) for group in self.groups])
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
        """Means over problems of ``values`` [problems, sizes], all from the same bootstrap samples."""
        return {
            size: bootstrap_mean(values[:, at], draws=self.bootstrap, rng=np.random.default_rng(self.seed))
            for at, size in enumerate(self.sizes)
        }


def _left_out(source: Iterable[StepScores], rules: Sequence[ScoreRule]) -> tuple[int, dict[str, str]]:
    """Scored traces; and the aggregations and rules that the scores do not allow, or that equal another."""
    with closing(Seen()) as seen:
        traces, single, negative = 0, True, False
        for record in source:
            traces += not seen.times(record.trace_id)
            single &= len(record.scores) <= 1
            negative = negative or any(score is not None and score < 0 for score in record.scores)
    reasons: dict[str, str] = {}
    if single:
        reasons |= dict.fromkeys(
            ("min", "product", "mean", "sum"), "one score per trace: all aggregations are 'last'"
        )
    if negative:
        reason = "scores below 0: map them to probabilities first"
        # a negative vote counts against its answer
        reasons["product"] = reason
        reasons |= dict.fromkeys((rule for rule in rules if rule != "best_of_n"), reason)
    return traces, reasons


def _cards(result: BestOfNResult, scorer: str) -> list[Card]:
    """Against majority with the most samples, by a rule that the result does not influence.

    It is the weighted vote if that was evaluated, with the first aggregation that the scores allow.
    """
    top = result.sizes[-1]
    curves = [curve for curve in result.curves if curve.scorer == scorer]
    if not curves:
        return []
    curve = min(curves, key=lambda curve: curve.rule != "weighted_vote")
    majority, pass_at = (result.curve(name).accuracy[top].value for name in (MAJORITY, CEILING))
    text = (
        f"of problems: {curve.name} ({curve.accuracy[top].value:.1%}) less majority voting ({majority:.1%}), "
        f"{top} samples; at least one is correct for {pass_at:.1%}. The rule was fixed beforehand."
    )
    options: Any = {
        "smallest": SMALLEST_GAIN,
        "spec": "+.1p",
        "claims": {
            "yes": "selects better answers than majority voting",
            "no": "does not select better answers than majority voting",
        },
    }
    return [card("selects", curve.minus_majority[top], text, result.problems, **options)]


def best_of_n_section(result: BestOfNResult) -> Section:
    """Curves of each scorer, differences from majority, and tokens."""
    plots = []
    for scorer in result.scorers:
        names = [curve.name for curve in result.curves if curve.scorer in (None, scorer)]
        where = {"name": names}
        plots += [
            Plot("curves.accuracy", f"Accuracy against N, {scorer}", where=where, log=True),
            Plot(
                "curves.minus_majority",
                f"{scorer} less majority, paired by problem; below 0 majority is better",
                where=where,
                log=True,
            ),
            Plot(
                "curves.accuracy",
                f"Accuracy against mean tokens per problem, {scorer}",
                x="curves.tokens",
                where=where,
            ),
        ]
    return Section(
        title="Best-of-N: accuracy against samples and tokens",
        tested="choosing among samples",
        about=f"{result.problems} problems, {result.traces} samples. Intervals are 95 %, over problems; "
        "differences from majority are paired by problem.",
        cards={name: _cards(result, name) for name in result.scorers},
        limits=[
            f"{result.problems} problems, {result.traces} samples"
            + "".join(f"; left out: {count} {reason}" for reason, count in result.dropped.items())
            + ".",
            "Worked examples need step labels, which this report does not read.",
        ],
        results=result,
        plots=plots,
    )
