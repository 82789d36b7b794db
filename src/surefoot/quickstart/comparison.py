"""PRM against ORM against majority vote on the same stored samples, and the step-level truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from surefoot.evaluation.best_of_n import RULE_NAMES
from surefoot.evaluation.frame import JudgedTrace
from surefoot.evaluation.labels import Confusion, against_truth, label_set
from surefoot.evaluation.pools import CandidateGroup, FloatArray, expected_accuracy, pool_of, sizes_up_to
from surefoot.lab.probe import content_probe
from surefoot.lab.world import check_steps
from surefoot.protocols import StepScorer
from surefoot.quickstart.summary import CURVES, PAIRS, RULES, RuleComparison, StepQuality, Summary
from surefoot.records import Problem, StepLabel, StepScores, Trace, Usage
from surefoot.scores import AGGREGATORS, Aggregator
from surefoot.search.estimators import Pool
from surefoot.search.selection import COMMON_RULES
from surefoot.stats.bootstrap import Bootstrap, mean_over_runs
from surefoot.stats.intervals import UNKNOWN, Interval
from surefoot.stats.roc import auc_by_problem, roc_auc, roc_auc_within

READINGS: Mapping[str, tuple[str, Aggregator]] = {
    "orm": ("orm", "last"),
    "orm_lowest_step": ("orm", "min"),
    "prm": ("prm", "min"),
    "prm_gold": ("prm_gold", "min"),
}
"""Curve → scorer and aggregation. An outcome model is read at its last step (Cobbe et al., arXiv 2110.14168;
Lightman et al., arXiv 2305.20050), a process model at its lowest (Wang et al., arXiv 2312.08935); the second
line asks what the ORM's own step scores are worth."""


@dataclass(frozen=True, kw_only=True)
class ScoredTraces:
    """Test problems, their traces (the same number each) and the scores of each kind of model.

    A kind has one list of scores for each training seed.
    """

    problems: list[Problem]
    traces: list[Trace]
    scores: dict[str, list[list[StepScores]]]

    def pools(self, scores: Sequence[StepScores], how: Aggregator) -> list[Pool]:
        """One pool per problem; traces without steps or scores stay unscored."""
        groups: dict[str, list[Trace]] = {problem.id: [] for problem in self.problems}
        for trace in self.traces:
            groups[trace.problem_id].append(trace)
        by_trace = {record.trace_id: record for record in scores}
        return [pool_of(CandidateGroup.of(group), by_trace, how) for group in groups.values()]


def compare(
    scored: ScoredTraces,
    *,
    scorers: Mapping[str, Sequence[StepScorer]],
    train_traces: Sequence[Trace],
    labels: Mapping[str, list[list[StepLabel]]],
    training: Mapping[str, Any],
    seed: int,
) -> Summary:
    """Everything that is reported, from stored traces, labels and scores."""
    sizes = sizes_up_to(len(scored.traces) // len(scored.problems))
    accuracy = accuracy_curves(scored, sizes, seed=seed)
    curves = {
        name: {size: _share(values[:, :, column], seed) for column, size in enumerate(sizes)}
        for name, values in accuracy.items()
    }
    truth = prefix_truth(scored)
    steps = {name: step_quality(scored, name, truth, scorers[name], seed=seed) for name in scorers}
    prm, monte_carlo = accuracy["prm"], [label for row in labels["monte_carlo"] for label in row]
    peak = int(prm.mean(axis=(0, 1)).argmax())
    return Summary(
        **{name: curves[name] for name in CURVES},
        differences={
            f"{first} - {second} @ {size}": _mean((accuracy[first] - accuracy[second])[:, :, column], seed)
            for first, second in PAIRS
            for column, size in enumerate(sizes)
            if size in (4, sizes[-1])
        },
        fall_from_peak={sizes[peak]: _mean(prm[:, :, peak] - prm[:, :, -1], seed)},
        selectors={
            name: curves[name] for name in sorted(f"{s} {rule}" for s in scored.scores for rule in RULES)
        },
        prm_against_orm={
            rule: _paired(accuracy[f"prm {rule}"][:, :, -1], accuracy[f"orm {rule}"][:, :, -1], seed)
            for rule in RULES
        },
        policy=policy_quality(scored.traces, truth),
        label_noise=monte_carlo_noise(train_traces, labels),
        steps=steps,
        position_auc=steps["prm"].auc - steps["prm"].auc_less_position.value,
        tokens=_tokens(scored, train_traces, monte_carlo),
        training=dict(training),
        training_seeds=len(scorers["prm"]),
        counts={"train_traces": len(train_traces), "test_traces": len(scored.traces)}
        | _counts([*train_traces, *scored.traces], len(scored.problems), monte_carlo),
    )


def accuracy_curves(scored: ScoredTraces, sizes: Sequence[int], *, seed: int) -> dict[str, FloatArray]:
    """Expected accuracy of pass@N, majority, and every scorer by each of ``RULES``.

    Each has shape [training seeds, problems, sizes], with one seed where no model is trained. Rules are
    called like ``prm best-of-N min``; the rules in ``READINGS`` also appear under their own names.
    """
    unscored = scored.pools([], "min")
    curves = {
        "pass_at": expected_accuracy(unscored, "pass", sizes, seed=seed)[None],
        "majority": expected_accuracy(unscored, "majority", sizes, seed=seed)[None],
    }
    for scorer, runs in scored.scores.items():
        for how in AGGREGATORS:
            pools = [scored.pools(scores, how) for scores in runs]
            for method in COMMON_RULES:
                draws = {"draws": 100} if method == "weighted_vote" else {}
                curves[f"{scorer} {RULE_NAMES[method]} {how}"] = np.stack(
                    [expected_accuracy(pool, method, sizes, seed=seed, **draws) for pool in pools]
                )
    return curves | {name: curves[f"{scorer} best-of-N {how}"] for name, (scorer, how) in READINGS.items()}


def _paired(prm: FloatArray, orm: FloatArray, seed: int) -> RuleComparison:
    """Means of ``prm`` and ``orm`` [training seeds, problems] and their difference, from the same draws."""
    return RuleComparison(
        prm=_share(prm, seed),
        orm=_share(orm, seed),
        difference=_mean(prm - orm, seed),
        by_seed=[round(float(value), 5) for value in (prm - orm).mean(axis=1)],
    )


def _mean(values: FloatArray, seed: int) -> Interval:
    """Mean of ``values`` [training seeds, problems] and its interval over both."""
    mean = mean_over_runs(values, rng=np.random.default_rng(seed))
    return Interval(value=round(mean.value, 5), low=round(mean.low, 5), high=round(mean.high, 5))


def _share(values: FloatArray, seed: int) -> Interval:
    """:func:`_mean` of shares, with bounds between 0 and 1."""
    mean = _mean(values, seed)
    return Interval(value=mean.value, low=max(mean.low, 0.0), high=min(mean.high, 1.0))


def prefix_truth(scored: ScoredTraces) -> dict[str, list[bool]]:
    """Per trace id: for each step, whether it and all before it are free of errors."""
    by_id = {problem.id: problem for problem in scored.problems}
    truth = {}
    for trace in scored.traces:
        good, prefix = True, []
        for verdict in check_steps(by_id[trace.problem_id], trace):
            good = good and verdict.value != -1
            prefix.append(good)
        truth[trace.id] = prefix
    return truth


def judged_traces(scored: ScoredTraces, *, threshold: float = 0.5, most: int = 500) -> Iterator[JudgedTrace]:
    """Traces with a wrong step, and the first step that the first PRM scores below ``threshold``."""
    truth, texts = prefix_truth(scored), {problem.id: problem.text for problem in scored.problems}
    scores = {record.trace_id: record.scores for record in scored.scores["prm"][0]}
    for trace in scored.traces[:most]:
        good, values = truth[trace.id], scores.get(trace.id, ())
        if values and not all(good):
            low = (step for step, value in enumerate(values) if value is not None and value < threshold)
            yield JudgedTrace(
                trace=trace,
                problem=texts[trace.problem_id],
                error=good.index(False),
                predicted=next(low, -1),
                scores=values,
            )


def policy_quality(traces: Sequence[Trace], truth: Mapping[str, list[bool]]) -> dict[str, float]:
    """Accuracy, and how many correct answers rest on a wrong step (``truth`` as of :func:`prefix_truth`)."""
    right = [trace for trace in traces if trace.outcome]
    lucky = sum(not all(truth[trace.id]) for trace in right)
    return {
        "accuracy": round(len(right) / len(traces), 5),
        "lucky_fraction": round(lucky / len(right), 5) if right else float("nan"),
        "unanswered_fraction": round(sum(trace.answer is None for trace in traces) / len(traces), 5),
    }


def monte_carlo_noise(
    traces: Sequence[Trace], labels: Mapping[str, list[list[StepLabel]]]
) -> dict[str, float]:
    """Hard Monte Carlo labels (value above 0) against the exact state of the prefix."""
    sets = [label_set(name, chain.from_iterable(labels[name]), traces) for name in ("monte_carlo", "exact")]
    against = against_truth(sets[0], sets[1], bootstrap=Bootstrap(draws=1))
    bad, first = against.confusion, against.first_error
    good = Confusion(tp=bad.tn, fp=bad.fn, fn=bad.fp, tn=bad.tp)
    noise = {
        **{name: getattr(bad, name) for name in ("precision", "recall", "f1")},
        **{f"{name}_good": getattr(good, name) for name in ("precision", "recall", "f1")},
        "accuracy": bad.accuracy,
        "first_error_accuracy": first.accuracy.value,
        "steps": bad.steps,
        "dropped": sets[0].layout.steps - bad.steps,
        "traces": first.traces,
        "dropped_traces": first.dropped,
    }
    return {name: round(value, 5) for name, value in noise.items()}


def step_quality(
    scored: ScoredTraces,
    name: str,
    truth: Mapping[str, list[bool]],
    scorers: Sequence[StepScorer],
    *,
    seed: int,
) -> StepQuality:
    """Scores of ``name`` against ``truth``, and ``scorers`` put to the content probe: means over seeds.

    The position baseline scores an earlier step higher.
    """
    problem_of = {trace.id: trace.problem_id for trace in scored.traces}
    records = scored.scores[name][0]
    good = [step for record in records for step in truth[record.trace_id]]
    position = np.array([at for record in records for at in range(len(record.scores))])
    problem = [problem_of[record.trace_id] for record in records for _ in record.scores]
    runs = [
        np.array([score for record in run for score in record.scores], dtype=float)
        for run in scored.scores[name]
    ]
    by_position = auc_by_problem(-position, good, problem)
    gaps = np.array([auc_by_problem(values, good, problem) - by_position for values in runs])
    probes = [content_probe(scorer, scored.problems[:100]) for scorer in scorers]

    def mean(values: Iterable[float]) -> float:
        return round(float(np.mean(list(values))), 5)

    return StepQuality(
        auc=mean(roc_auc(values, good).value for values in runs),
        auc_less_position=UNKNOWN if np.isnan(gaps).any() else _mean(gaps, seed),
        auc_within_position=mean(roc_auc_within(values, good, position).value for values in runs),
        auc_within_problem=mean(roc_auc_within(values, good, problem).value for values in runs),
        probe_right=_share(np.array([probe.by_problem for probe in probes]), seed),
        probe_contrast=mean(probe.contrast for probe in probes),
    )


def _tokens(
    scored: ScoredTraces, train_traces: Sequence[Trace], monte_carlo: Sequence[StepLabel]
) -> dict[str, Usage]:
    parts: dict[str, Iterable[Usage]] = {
        "train_traces": (trace.usage for trace in train_traces),
        "monte_carlo_labels": (label.evidence.usage for label in monte_carlo),
        "test_traces": (trace.usage for trace in scored.traces),
    }
    for name, runs in scored.scores.items():
        parts[f"scores_{name}"] = [record.usage for run in runs for record in run]
    return {name: sum(part, Usage()) for name, part in parts.items()}


def _counts(traces: Sequence[Trace], test_problems: int, monte_carlo: Sequence[StepLabel]) -> dict[str, int]:
    return {
        "test_problems": test_problems,
        "traces_without_steps": sum(not trace.steps for trace in traces),
        "traces_with_error": sum(trace.error is not None for trace in traces),
        "traces_cut_at_max_tokens": sum(trace.ending == "truncated" for trace in traces),
        "labels": len(monte_carlo),
        "labels_without_value": sum(label.value is None for label in monte_carlo),
    }
