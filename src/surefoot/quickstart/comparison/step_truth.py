"""The policy, the labels and the scorers against the lab's truth about every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from surefoot.evaluation.labels import label_noise
from surefoot.lab.probe import content_probe
from surefoot.lab.world import check_steps
from surefoot.protocols import StepScorer
from surefoot.quickstart.comparison.curves import ScoredTraces
from surefoot.quickstart.comparison.summary import StepQuality
from surefoot.records import StepLabel, Trace
from surefoot.stats.roc import roc_auc, roc_auc_within


def prefix_truth(scored: ScoredTraces) -> dict[str, list[bool]]:
    """Per trace: is every step up to this one free of error?"""
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
    """Accuracy, and how many right answers rest on a wrong step (``truth`` as of :func:`prefix_truth`)."""
    right = [trace for trace in traces if trace.outcome]
    lucky = sum(not all(truth[trace.id]) for trace in right)
    return {
        "accuracy": round(len(right) / len(traces), 5),
        "lucky_fraction": round(lucky / len(right), 5) if right else float("nan"),
        "unanswered_fraction": round(sum(trace.answer is None for trace in traces) / len(traces), 5),
    }


def monte_carlo_noise(labels: Mapping[str, list[list[StepLabel]]]) -> dict[str, float]:
    """Hard Monte Carlo labels (value above 0) against the exact state of the prefix."""
    predicted = [[label.value for label in row] for row in labels["monte_carlo"]]
    truth = [[label.value for label in row] for row in labels["exact"]]
    noise = label_noise(predicted, truth, truth_good_above=-0.5)
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
    scores: list[float | None] = []
    good: list[bool] = []
    position: list[int] = []
    problem: list[str] = []
    for record in scored.scores[name]:
        scores += record.scores
        good += truth[record.trace_id]
        position += range(len(record.scores))
        problem += [problem_of[record.trace_id]] * len(record.scores)
    values = np.array(scores, dtype=float)
    probe = content_probe(scorer, scored.problems[:100])
    return StepQuality(
        auc=round(roc_auc(values, good).value, 5),
        auc_within_position=round(roc_auc_within(values, good, position).value, 5),
        auc_within_problem=round(roc_auc_within(values, good, problem).value, 5),
        probe_right=round(probe.right, 5),
        probe_contrast=round(probe.contrast, 5),
    )
