"""Everything that is reported, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.evaluation.pools import sizes_up_to
from surefoot.protocols import StepScorer
from surefoot.quickstart.comparison.curves import (
    ScoredTraces,
    headline,
    paired_differences,
    selector_accuracy,
    with_intervals,
)
from surefoot.quickstart.comparison.findings import findings_of
from surefoot.quickstart.comparison.step_truth import (
    monte_carlo_noise,
    policy_quality,
    prefix_truth,
    step_quality,
)
from surefoot.quickstart.comparison.summary import Summary
from surefoot.records import StepLabel, Trace, Usage


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
    found = selector_accuracy(scored, sizes, seed)
    accuracy = headline(scored, found, sizes, seed)
    curves = {name: with_intervals(values, sizes, seed) for name, values in accuracy.items()}
    verdicts = prefix_truth(scored)
    differences = paired_differences(accuracy, sizes, seed)
    policy = policy_quality(scored.traces, verdicts)
    noise = monte_carlo_noise(labels)
    steps = {name: step_quality(scored, name, verdicts, scorers[name]) for name in scorers}
    selectors = {name: with_intervals(values, sizes, seed) for name, values in found.items()}
    return Summary(
        pass_at=curves["pass_at"],
        majority=curves["majority"],
        orm=curves["orm"],
        orm_lowest_step=curves["orm_lowest_step"],
        prm=curves["prm"],
        prm_gold=curves["prm_gold"],
        differences=differences,
        selectors=selectors,
        policy=policy,
        label_noise=noise,
        steps=steps,
        tokens=_tokens(scored, train_traces, labels),
        training=dict(training),
        counts=_counts(scored, train_traces, labels),
        findings=findings_of(curves, differences, selectors, policy, noise, steps),
    )


def _tokens(
    scored: ScoredTraces, train_traces: Sequence[Trace], labels: Mapping[str, list[list[StepLabel]]]
) -> dict[str, Usage]:
    found = {
        "train_traces": sum((trace.usage for trace in train_traces), Usage()),
        "monte_carlo_labels": sum(
            (label.evidence.usage for row in labels["monte_carlo"] for label in row), Usage()
        ),
        "test_traces": sum((trace.usage for trace in scored.traces), Usage()),
    }
    for name, records in scored.scores.items():
        found[f"scores_{name}"] = sum((record.usage for record in records), Usage())
    return found


def _counts(
    scored: ScoredTraces, train_traces: Sequence[Trace], labels: Mapping[str, list[list[StepLabel]]]
) -> dict[str, int]:
    every = [*train_traces, *scored.traces]
    return {
        "train_traces": len(train_traces),
        "test_problems": len(scored.problems),
        "test_traces": len(scored.traces),
        "traces_without_steps": sum(not trace.steps for trace in every),
        "traces_with_error": sum(trace.error is not None for trace in every),
        "traces_cut_at_max_tokens": sum(trace.finish_reason == "length" for trace in every),
        "labels": sum(map(len, labels["monte_carlo"])),
        "labels_without_value": sum(label.value is None for row in labels["monte_carlo"] for label in row),
    }
