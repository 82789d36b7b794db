"""PRM against ORM against majority vote on the same stored samples, and the step-level truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.evaluation.best_of_n import RULE_NAMES
from surefoot.evaluation.label_truth import label_noise
from surefoot.evaluation.pools import CandidateGroup, FloatArray, expected_accuracy, pool_of, sizes_up_to
from surefoot.evaluation.splits import half_of
from surefoot.lab.probe import content_probe
from surefoot.lab.world import check_steps
from surefoot.labels import LabelRule
from surefoot.protocols import StepScorer
from surefoot.quickstart.summary import (
    PAIRS,
    RULES,
    BestRuleComparison,
    Curve,
    RuleComparison,
    StepQuality,
    Summary,
    findings,
    rounded,
)
from surefoot.records import Problem, StepLabel, StepScores, Trace, Usage
from surefoot.scores import AGGREGATORS, Aggregator
from surefoot.search.estimators import Pool
from surefoot.search.selection import COMMON_RULES
from surefoot.stats.bootstrap import bootstrap_difference, bootstrap_mean
from surefoot.stats.intervals import Interval
from surefoot.stats.roc import roc_auc, roc_auc_within

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
    """Test problems, their traces (the same number each) and each scorer's scores of them."""

    problems: list[Problem]
    traces: list[Trace]
    scores: dict[str, list[StepScores]]

    def pools(self, scorer: str, how: Aggregator) -> list[Pool]:
        """One pool per problem; traces without steps or scores stay unscored."""
        groups: dict[str, list[Trace]] = {problem.id: [] for problem in self.problems}
        for trace in self.traces:
            groups[trace.problem_id].append(trace)
        scores = {record.trace_id: record for record in self.scores[scorer]}
        return [pool_of(CandidateGroup.of(group), scores, how) for group in groups.values()]


def compare(
    scored: ScoredTraces,
    *,
    scorers: Mapping[str, StepScorer],
    train_traces: Sequence[Trace],
    labels: Mapping[str, list[list[StepLabel]]],
    training: Mapping[str, Any],
    seed: int,
) -> Summary:
    """Everything that is reported, from stored traces, labels and scores."""
    sizes = sizes_up_to(len(scored.traces) // len(scored.problems))
    accuracy = accuracy_curves(scored, sizes, seed=seed)
    curves = {name: with_intervals(values, sizes, seed) for name, values in accuracy.items()}
    truth = prefix_truth(scored)
    summary = Summary(
        pass_at=curves["pass_at"],
        majority=curves["majority"],
        orm=curves["orm"],
        orm_lowest_step=curves["orm_lowest_step"],
        prm=curves["prm"],
        prm_gold=curves["prm_gold"],
        differences=paired_differences(accuracy, sizes, seed),
        selectors={
            name: curves[name] for name in sorted(f"{s} {rule}" for s in scored.scores for rule in RULES)
        },
        prm_against_orm={
            rule: RuleComparison(**_paired(accuracy, f"prm {rule}", f"orm {rule}", seed)) for rule in RULES
        },
        best_rules=compare_best_rules(accuracy, scored.problems, seed),
        policy=policy_quality(scored.traces, truth),
        label_noise=monte_carlo_noise(labels),
        steps={name: step_quality(scored, name, truth, scorers[name]) for name in scorers},
        tokens=_tokens(scored, train_traces, labels),
        training=dict(training),
        counts=_counts(scored, train_traces, labels),
    )
    return summary.model_copy(update={"findings": findings(summary)})


def accuracy_curves(scored: ScoredTraces, sizes: Sequence[int], *, seed: int) -> dict[str, FloatArray]:
    """Expected accuracy ``[problems, sizes]`` of pass@N, majority, every scorer by each of ``RULES``.

    Rules are called like ``prm best-of-N min``; the rules in ``READINGS`` also appear under their own names.
    """
    unscored = scored.pools(*READINGS["prm"])
    curves = {
        "pass_at": expected_accuracy(unscored, "pass", sizes, seed=seed),
        "majority": expected_accuracy(unscored, "majority", sizes, seed=seed),
    }
    for scorer in scored.scores:
        for how in AGGREGATORS:
            pools = scored.pools(scorer, how)
            for method in COMMON_RULES:
                draws = {"draws": 100} if method == "weighted_vote" else {}
                curves[f"{scorer} {RULE_NAMES[method]} {how}"] = expected_accuracy(
                    pools, method, sizes, seed=seed, **draws
                )
    return curves | {name: curves[f"{scorer} best-of-N {how}"] for name, (scorer, how) in READINGS.items()}


def compare_best_rules(
    accuracy: Mapping[str, FloatArray], problems: Sequence[Problem], seed: int
) -> BestRuleComparison | None:
    """Each model by its best rule at the largest N; every problem by the rule chosen on the other half.

    Choosing and reporting on the same problems would flatter both models. ``None`` if a half is empty.
    """
    half = np.array([half_of(problem.id) for problem in problems])
    if len(set(half.tolist())) < 2:
        return None
    values, rules = {}, {}
    for scorer in ("prm", "orm"):
        chosen = [_best_rule(accuracy, scorer, half != side) for side in (0, 1)]
        by_side = [accuracy[f"{scorer} {rule}"][:, -1:] for rule in chosen]
        values[scorer], rules[scorer] = np.where(half[:, None] == 0, *by_side), chosen
    return BestRuleComparison(
        **_paired(values, "prm", "orm", seed), prm_rules=rules["prm"], orm_rules=rules["orm"]
    )


def _best_rule(accuracy: Mapping[str, FloatArray], scorer: str, problems: NDArray[np.bool_]) -> str:
    return max(RULES, key=lambda rule: float(accuracy[f"{scorer} {rule}"][problems, -1].mean()))


def _paired(values: Mapping[str, FloatArray], prm: str, orm: str, seed: int) -> dict[str, Interval]:
    """Means of two curves at the largest N and their difference, from the same draws of problems."""
    first, second = values[prm][:, -1], values[orm][:, -1]
    return {
        "prm": rounded(bootstrap_mean(first, rng=np.random.default_rng(seed))),
        "orm": rounded(bootstrap_mean(second, rng=np.random.default_rng(seed))),
        "difference": rounded(bootstrap_difference(first, second, rng=np.random.default_rng(seed))),
    }


def with_intervals(values: FloatArray, sizes: Sequence[int], seed: int) -> Curve:
    """``values`` ``[problems, sizes]`` as the mean over problems for each size."""
    return {
        size: rounded(bootstrap_mean(values[:, column], rng=np.random.default_rng(seed)))
        for column, size in enumerate(sizes)
    }


def paired_differences(
    accuracy: Mapping[str, FloatArray], sizes: Sequence[int], seed: int
) -> dict[str, Interval]:
    """``PAIRS`` at 4 and all samples, and how much the lead of the PRM over the ORM grows between."""
    differences = {}
    for first, second in PAIRS:
        for size in {4, sizes[-1]} & set(sizes):
            column = sizes.index(size)
            interval = bootstrap_difference(
                accuracy[first][:, column], accuracy[second][:, column], rng=np.random.default_rng(seed)
            )
            differences[f"{first} - {second} @ {size}"] = rounded(interval)
    if 4 in sizes[:-1]:
        gap = accuracy["prm"] - accuracy["orm"]
        growth = bootstrap_difference(gap[:, -1], gap[:, sizes.index(4)], rng=np.random.default_rng(seed))
        differences[f"gap prm - orm, @ {sizes[-1]} less @ 4"] = rounded(growth)
    return dict(sorted(differences.items()))


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


def policy_quality(traces: Sequence[Trace], truth: Mapping[str, list[bool]]) -> dict[str, float]:
    """Accuracy, and how many correct answers rest on a wrong step (``truth`` as of :func:`prefix_truth`)."""
    right = [trace for trace in traces if trace.outcome]
    lucky = sum(not all(truth[trace.id]) for trace in right)
    return {
        "accuracy": round(len(right) / len(traces), 5),
        "lucky_fraction": round(lucky / len(right), 5) if right else float("nan"),
        "unanswered_fraction": round(sum(trace.answer is None for trace in traces) / len(traces), 5),
    }


def monte_carlo_noise(labels: Mapping[str, list[list[StepLabel]]]) -> dict[str, float]:
    """Hard Monte Carlo labels (value above 0) against the exact state of the prefix."""
    rule = LabelRule(neutral="good")  # a neutral step contains no error
    predicted = [[rule.good(label) for label in row] for row in labels["monte_carlo"]]
    truth = [[rule.good(label) for label in row] for row in labels["exact"]]
    noise = label_noise(predicted, truth)
    return {
        "precision": round(noise.precision_error, 5),
        "recall": round(noise.recall_error, 5),
        "f1": round(noise.f1_error, 5),
        "precision_good": round(noise.precision_good, 5),
        "recall_good": round(noise.recall_good, 5),
        "first_error_accuracy": round(noise.first_error_accuracy, 5),
        "steps": noise.steps,
        "dropped": noise.dropped,
    }


def step_quality(
    scored: ScoredTraces, name: str, truth: Mapping[str, list[bool]], scorer: StepScorer
) -> StepQuality:
    """The scores called ``name`` against ``truth``, and ``scorer`` put to the content probe."""
    problem_of = {trace.id: trace.problem_id for trace in scored.traces}
    records = scored.scores[name]
    values = np.array([score for record in records for score in record.scores], dtype=float)
    good = [step for record in records for step in truth[record.trace_id]]
    position = [at for record in records for at in range(len(record.scores))]
    problem = [problem_of[record.trace_id] for record in records for _ in record.scores]
    probe = content_probe(scorer, scored.problems[:100])
    return StepQuality(
        auc=round(roc_auc(values, good).value, 5),
        auc_within_position=round(roc_auc_within(values, good, position).value, 5),
        auc_within_problem=round(roc_auc_within(values, good, problem).value, 5),
        probe_right=round(probe.right, 5),
        probe_contrast=round(probe.contrast, 5),
    )


def _tokens(
    scored: ScoredTraces, train_traces: Sequence[Trace], labels: Mapping[str, list[list[StepLabel]]]
) -> dict[str, Usage]:
    tokens = {
        "train_traces": sum((trace.usage for trace in train_traces), Usage()),
        "monte_carlo_labels": sum(
            (label.evidence.usage for row in labels["monte_carlo"] for label in row), Usage()
        ),
        "test_traces": sum((trace.usage for trace in scored.traces), Usage()),
    }
    for name, records in scored.scores.items():
        tokens[f"scores_{name}"] = sum((record.usage for record in records), Usage())
    return tokens


def _counts(
    scored: ScoredTraces, train_traces: Sequence[Trace], labels: Mapping[str, list[list[StepLabel]]]
) -> dict[str, int]:
    traces = [*train_traces, *scored.traces]
    return {
        "train_traces": len(train_traces),
        "test_problems": len(scored.problems),
        "test_traces": len(scored.traces),
        "traces_without_steps": sum(not trace.steps for trace in traces),
        "traces_with_error": sum(trace.error is not None for trace in traces),
        "traces_cut_at_max_tokens": sum(trace.ending == "truncated" for trace in traces),
        "labels": sum(map(len, labels["monte_carlo"])),
        "labels_without_value": sum(label.value is None for row in labels["monte_carlo"] for label in row),
    }
