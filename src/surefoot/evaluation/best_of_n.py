"""Accuracy against the number of samples and against tokens, for selectors on the same samples.

Best-of-N by each aggregation, the vote weighted by each, majority, and pass@N, which bounds them all. Values
are the unbiased estimates of ``surefoot.search.estimators``, intervals are over problems, differences are
paired by problem.

Pools of candidates from traces and step scores: graded, with canonical answers and one score each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.answers import AnswerChecker, group_equal
from surefoot.errors import ScoreError, counted
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Plot, Rival, Section
from surefoot.evaluation.step_scores import StoredScores
from surefoot.evaluation.verdict import Conclusion, chosen
from surefoot.io.tables import RecordTable, Seen
from surefoot.records import StepScores, Trace
from surefoot.scores import AGGREGATORS, Aggregator, complete_scores, require_scores, trace_score
from surefoot.search.estimators import Method, Pool, RandomOrders, pool_curve, selection_curve
from surefoot.search.selection import COMMON_RULES, ScoreRule
from surefoot.stats.bootstrap import FloatArray, bootstrap_mean
from surefoot.stats.intervals import Interval

Progress = Callable[[int], None]
"""Receives the number of finished problems."""


@dataclass(frozen=True, kw_only=True)
class CandidateGroup:
    """The n traces of one problem without their texts."""

    trace_ids: Sequence[str]
    answers: Sequence[str | None]
    correct: NDArray[np.bool_]
    """[n]; an unknown outcome counts as wrong."""
    steps: NDArray[np.int32]
    """Number of steps, [n]."""
    prompt_tokens: int
    """Of all n."""
    completion_tokens: int
    """Of all n."""
    uncounted: int
    """Traces with a text but without a token count."""

    def __len__(self) -> int:
        return len(self.trace_ids)

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> CandidateGroup:
        """From the traces of one problem, in their order."""
        written = [trace.usage.completion_tokens for trace in traces]
        return cls(
            trace_ids=[trace.id for trace in traces],
            answers=[trace.answer for trace in traces],
            correct=np.array([trace.outcome is True for trace in traces], dtype=bool),
            steps=np.array([len(trace.steps) for trace in traces], dtype=np.int32),
            prompt_tokens=sum(trace.usage.prompt_tokens for trace in traces),
            completion_tokens=sum(written),
            uncounted=sum(
                bool(trace.text or trace.messages) and not count
                for trace, count in zip(traces, written, strict=True)
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The graded traces of each problem, with equal answers in one form; all problems have enough traces."""

    groups: Mapping[str, CandidateGroup]
    """Problem id → its traces, in the input's order."""
    dropped: Mapping[str, int]
    """Left-out traces and problems, by reason."""

    def __len__(self) -> int:
        """Number of traces."""
        return sum(map(len, self.groups.values()))


def judged_candidates(
    traces: Iterable[Trace],
    checker: AnswerChecker,
    *,
    least: int | None = None,
    progress: Progress = lambda _: None,
) -> Candidates:
    """Group traces by problem; leave out traces without outcome, then problems with fewer than ``least``.

    Tables (:func:`surefoot.io.tables.open_table`) are read one problem at a time. By default ``least`` is the
    largest power of two that half of the problems have, so that a few failed requests do not shorten all
    curves. Raises ``ScoreError`` for duplicate ids, or if no problem is left.
    """
    total = 0
    groups: dict[str, CandidateGroup] = {}
    for members in _by_problem(traces):
        total += len(members)
        if graded_members := [trace for trace in members if trace.outcome is not None]:
            groups[graded_members[0].problem_id] = CandidateGroup.of(graded_members)
    if least is None:
        middle = sorted(map(len, groups.values()))[len(groups) // 2] if groups else 1
        least = sizes_up_to(middle)[-1]
    large = {name: group for name, group in groups.items() if len(group) >= least}
    if not large:
        raise ScoreError(
            f"no problem has {least} traces with a known 'outcome' ({total} traces given); "
            "grade the answers, or ask for smaller sizes"
        )
    canonical = {}
    for number, (name, group) in enumerate(large.items(), start=1):
        canonical[name] = replace(group, answers=group_equal(group.answers, checker))
        progress(number)
    judged = sum(map(len, groups.values()))
    dropped = {
        "traces without known outcome": total - judged,
        f"problems with fewer than {least} such traces": len(groups) - len(canonical),
        "traces of these problems": judged - sum(map(len, canonical.values())),
    }
    return Candidates(groups=canonical, dropped={reason: count for reason, count in dropped.items() if count})


def pool_of(group: CandidateGroup, scores: Mapping[str, StepScores], how: Aggregator) -> Pool:
    """One problem's pool; ``scores`` is by trace id. A partly scored trace is unscored.

    Raises ``ScoreError`` as ``require_scores`` and ``aggregate`` of ``surefoot.scores`` do.
    """
    values = [
        _value(name, steps, scores.get(name), how)
        for name, steps in zip(group.trace_ids, group.steps.tolist(), strict=True)
    ]
    return Pool(answers=group.answers, correct=group.correct, scores=np.array(values, dtype=float))


def sizes_up_to(samples: int) -> list[int]:
    """1, 2, 4 … up to ``samples``."""
    return [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]


def expected_accuracy(
    pools: Sequence[Pool], method: Method, sizes: Sequence[int], *, seed: int, draws: int = 400
) -> FloatArray:
    """``selection_curve`` [problems, sizes] with the random generator that all curves of a report share."""
    return selection_curve(pools, method, sizes, draws=draws, rng=np.random.default_rng(seed))


def _value(trace_id: str, steps: int, record: StepScores | None, how: Aggregator) -> float | None:
    if record is None or not record.scores:
        return None
    require_scores(record, trace_id, steps)
    return trace_score(record.scores, how)


def _by_problem(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    if isinstance(traces, RecordTable):
        yield from traces.groups()
        return
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.problem_id, []).append(trace)
    ids = Counter(trace.id for group in groups.values() for trace in group)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise ScoreError(f"{len(twice)} trace ids occur twice, first {twice[0]}; keep one trace of each id")
    yield from groups.values()


MAJORITY = "majority"
CEILING = "pass@N"

Reading = tuple[ScoreRule, Aggregator]
"""How scores are used: the selection rule, and the rule that aggregates step scores."""

_ROUNDING = 1e-9
"""Differences of a problem's expected accuracies below this come from the order of summation."""

RULE_NAMES: Mapping[ScoreRule, str] = {
    "best_of_n": "best-of-N",
    "weighted_vote": "weighted vote",
    "agreement": "agreement",
}


class BestOfNCurves(Measured):
    """All ``curves`` on the same candidates: pass@N, majority, then scorer by scorer.

    A curve has its ``name``, ``scorer`` (``None`` for the first two), ``rule`` and ``aggregation``, and by
    number of samples: ``accuracy``, the share of problems answered correctly; ``minus_majority``, paired by
    problem; with the most samples ``over_free``, less the best choice that costs nothing, the ``rival`` among
    the accuracies ``free``; mean ``tokens`` per problem, policy and verifier, where the prompt counts once,
    completions and scores N times their mean in the pool. ``unknown`` says why tokens are not. ``scorers``
    counts candidates without a score for every step (``unscored``; chosen last, and without a weighted vote)
    and records of other traces (``foreign``), and says why traces are ``left_out``.
    """

    def curve(self, name: str) -> Measured:
        """The curve of this name. Raises ``KeyError``."""
        by_name: dict[str, Measured] = {curve.name: curve for curve in self.curves}
        return by_name[name]


def evaluate_best_of_n(
    candidates: Candidates,
    scores: Mapping[str, Sequence[StepScores] | StoredScores],
    *,
    rules: Sequence[ScoreRule] = COMMON_RULES,
    sizes: Sequence[int] | None = None,
    draws: int = 400,
    bootstrap: int = 10_000,
    seed: int = 0,
) -> BestOfNCurves:
    """Curves of every selector; ``scores`` is by the scorer's name, ``sizes`` are 1, 2, 4 … by default.

    Problems are streamed: scores in a table are read for one problem at a time. Each of ``rules`` is applied
    to every scorer with every aggregation. Rules without a closed form use ``draws`` random subsets (Lightman
    et al., arXiv 2305.20050, use 400). Raises ``ScoreError`` for a size above the number of a problem's
    candidates, and for a record without exactly one score per step.
    """
    groups = list(candidates.groups.values())
    smallest = min(map(len, groups))
    chosen = sorted(set(sizes or sizes_up_to(smallest)))
    if chosen[0] < 1 or chosen[-1] > smallest:
        raise ScoreError(f"sizes must lie between 1 and {smallest}, the fewest candidates, not {chosen}")
    pools = [pool_of(group, {}, "min") for group in groups]
    majority = expected_accuracy(pools, "majority", chosen, seed=seed, draws=draws)
    fewest = [
        replace(pool, scores=-group.steps.astype(float)) for pool, group in zip(pools, groups, strict=True)
    ]
    free = {
        "one sample": np.array([np.mean(group.correct) for group in groups]),
        f"{MAJORITY} voting": majority[:, -1],
        "fewest steps": expected_accuracy(fewest, "best_of_n", chosen[-1:], seed=seed)[:, 0],
    }
    rival = max(free, key=lambda name: free[name].mean())
    policy = _policy_tokens(groups, chosen)
    unknown: dict[str, str] = {}
    if policy is None:
        without, of = sum(group.uncounted for group in groups), counted(len(candidates), "trace")
        unknown["tokens of the policy"] = f"{without} of {of} without 'usage.completion_tokens'"

    def interval(values: FloatArray) -> Interval:
        return bootstrap_mean(values, draws=bootstrap, rng=np.random.default_rng(seed))

    def by_size(values: FloatArray) -> dict[int, Interval]:
        """Means over problems of ``values`` [problems, sizes], all from the same bootstrap samples."""
        return {size: interval(column) for size, column in zip(chosen, values.T, strict=True)}

    def curve(
        name: str, rule: Method, accuracy: FloatArray, tokens: FloatArray | None, **of: Any
    ) -> Measured:
        gap = accuracy - majority
        gap[np.abs(gap) < _ROUNDING] = 0.0  # e.g. with one sample all selectors agree
        return Measured(
            name=name,
            scorer=of.get("scorer"),
            rule=rule,
            aggregation=of.get("aggregation"),
            accuracy=by_size(accuracy),
            minus_majority=by_size(gap) if of else {},
            over_free=interval(accuracy[:, -1] - free[rival]) if of else None,
            tokens={} if tokens is None else dict(zip(chosen, tokens.mean(axis=0).tolist(), strict=True)),
        )

    curves = [
        curve(CEILING, "pass", expected_accuracy(pools, "pass", chosen, seed=seed), policy),
        curve(MAJORITY, "majority", majority, policy),
    ]
    counts = {}
    for scorer, records in scores.items():
        source = records if isinstance(records, StoredScores) else StoredScores(records)
        scored, left_out = _left_out(source, rules)
        readings: list[Reading] = [
            (rule, how)
            for rule in dict.fromkeys(rules)
            for how in AGGREGATORS
            if how not in left_out and rule not in left_out
        ]
        use = _use(groups, source, readings, chosen, draws, seed)
        if not use.spends:
            unknown[f"tokens of {scorer}"] = "its records lack 'usage.verifier_tokens'"
        verifier = use.tokens[:, None] * np.array(chosen)
        for (rule, how), accuracy in use.accuracy.items():
            name = f"{scorer} {RULE_NAMES[rule]} {how}"
            tokens = policy + verifier if policy is not None and use.spends else None
            curves.append(curve(name, rule, accuracy, tokens, scorer=scorer, aggregation=how))
        counts[scorer] = Measured(
            traces=len(candidates), unscored=use.unscored, foreign=scored - use.records, left_out=left_out
        )
    return BestOfNCurves(
        curves=curves,
        free={name: interval(values) for name, values in free.items()},
        rival=rival,
        sizes=chosen,
        problems=len(groups),
        traces=len(candidates),
        dropped=dict(candidates.dropped),
        scorers=counts,
        unknown=unknown,
    )


def _use(
    groups: Sequence[CandidateGroup],
    source: StoredScores,
    readings: Sequence[Reading],
    sizes: Sequence[int],
    draws: int,
    seed: int,
) -> Measured:
    """Records used, unscored candidates, mean tokens by problem, and the accuracy of each reading."""
    accuracy = {reading: np.empty((len(groups), len(sizes))) for reading in readings}
    used, scored, tokens = 0, 0, np.zeros(len(groups))
    # the same generator for each problem in every curve
    generators = np.random.default_rng(seed).spawn(len(groups))
    for row, (group, rng) in enumerate(zip(groups, generators, strict=True)):
        records = source.of(group.trace_ids)
        used += len(records)
        scored += sum(bool(complete_scores(record.scores)) for record in records.values())
        tokens[row] = np.mean([record.usage.verifier_tokens for record in records.values()] or [0])
        random = RandomOrders(len(group), draws, rng)
        pools = {how: pool_of(group, records, how) for how in dict.fromkeys(how for _, how in readings)}
        for (rule, how), rates in accuracy.items():
            rates[row] = pool_curve(pools[how], rule, sizes, random)
    unscored = sum(map(len, groups)) - scored
    return Measured(records=used, unscored=unscored, tokens=tokens, spends=tokens.any(), accuracy=accuracy)


def _policy_tokens(groups: Sequence[CandidateGroup], sizes: Sequence[int]) -> FloatArray | None:
    """[problems, sizes]; ``None`` if a token count is missing."""
    if any(group.uncounted for group in groups):
        return None
    prompt = np.array([group.prompt_tokens for group in groups])
    written = np.array([group.completion_tokens / len(group) for group in groups])
    return np.asarray(prompt[:, None] + written[:, None] * np.array(sizes))


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


def _verdicts(result: BestOfNCurves, scorer: str) -> list[Conclusion]:
    """Against the best free choice with the most samples, by a rule that the result does not influence.

    It is the weighted vote if that was evaluated, with the first aggregation that the scores allow.
    """
    curve = _decisive(result, scorer)
    if curve is None:
        return []
    top = result.sizes[-1]
    pass_at = result.curve(CEILING).accuracy[top].value
    text = (
        f"of problems: {curve.name} less {result.rival}, {counted(top, 'sample')}; at least one is right for "
        f"{pass_at:.1%}. The rule was fixed beforehand."
    )
    return [chosen(curve.accuracy[top], result.free, curve.over_free, text, result.problems)]


def _decisive(result: BestOfNCurves, scorer: str) -> Measured | None:
    curves = [curve for curve in result.curves if curve.scorer == scorer]
    return min(curves, key=lambda curve: curve.rule != "weighted_vote", default=None)


def best_of_n_section(result: BestOfNCurves) -> Section:
    """The decisive curve of each scorer; differences from majority and tokens of all as tables."""
    top = result.sizes[-1]
    decisive = {name: curve for name in result.scorers if (curve := _decisive(result, name))}
    size = f"{counted(result.problems, 'problem')}, {counted(result.traces, 'sample')}"
    dropped = "".join(f"; left out: {count} {reason}" for reason, count in result.dropped.items())
    plotted = [CEILING, MAJORITY, *(curve.name for curve in decisive.values())]
    return Section(
        title="Best-of-N: accuracy against samples and tokens",
        tested="choosing among samples",
        about=f"{size}. Intervals: 95 %, over problems; differences from majority are paired by problem.",
        verdicts={name: _verdicts(result, name) for name in result.scorers},
        rivals=[
            *(Rival(name=name, value=value) for name, value in result.free.items()),
            *(Rival(name=name, value=curve.accuracy[top], kind="ours") for name, curve in decisive.items()),
            Rival(name="some sample is right", value=result.curve(CEILING).accuracy[top], kind="ceiling"),
        ],
        measure=f"share of problems answered correctly, {counted(top, 'sample')}.",
        limits=[f"{size}{dropped}.", "Worked examples need step labels, which this report does not read."],
        results=result,
        plots=[Plot("curves.accuracy", "Accuracy against N", where={"name": plotted}, log=True)],
    )
