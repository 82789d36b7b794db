"""PRM against ORM against majority vote on the same stored samples, with the step-level truth beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from surefoot.evaluation.intervals import Interval, bootstrap_difference, bootstrap_mean
from surefoot.evaluation.labels import label_noise
from surefoot.evaluation.pools import FloatArray, expected_accuracy, pools_of, sizes_up_to
from surefoot.evaluation.steps import auc_within, step_auc
from surefoot.lab.probe import content_probe
from surefoot.lab.world import check_steps
from surefoot.models.aggregate import AGGREGATORS, Aggregator
from surefoot.protocols import StepScorer
from surefoot.records import Problem, StepLabel, StepScores, Trace, Usage
from surefoot.search.estimators import Pool
from surefoot.store import write_json

READINGS: Mapping[str, tuple[str, Aggregator]] = {
    "orm": ("orm", "last"),
    "orm_lowest_step": ("orm", "min"),
    "prm": ("prm", "min"),
    "prm_gold": ("prm_gold", "min"),
}
"""Curve → scorer and aggregation. An outcome model is read at its last step (Cobbe et al., arXiv 2110.14168;
Lightman et al., arXiv 2305.20050), a process model at its lowest (Wang et al., arXiv 2312.08935); the second
line asks what the ORM's own step scores are worth."""

PAIRS = (
    ("prm", "orm"),
    ("prm", "orm_lowest_step"),
    ("prm", "majority"),
    ("orm", "majority"),
    ("prm_gold", "prm"),
)
"""Differences that are reported, paired by problem."""

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value, when_used="json"),
]
"""A number that may be undefined (a share of nothing): NaN in Python, ``null`` in JSON."""


class Estimate(BaseModel):
    """An accuracy or difference with its 95 % interval over problems (percentile bootstrap)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, interval: Interval) -> Estimate:
        """Rounded to what the number of problems supports."""
        return cls(value=round(interval.value, 5), low=round(interval.low, 5), high=round(interval.high, 5))


Curve = dict[int, Estimate]
"""Number of samples N → accuracy."""


class StepQuality(BaseModel):
    """How well a scorer tells good prefixes from bad ones on the test traces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auc: Number
    """Pooled over all steps; position alone can lift it."""
    auc_within_position: Number
    auc_within_problem: Number
    probe_right: Number
    """Content probe: share of lines whose right digit scores highest of ten; chance is 0.1."""
    probe_contrast: Number


class Summary(BaseModel):
    """``summary.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pass_at: Curve
    majority: Curve
    orm: Curve
    """Read at the last step, as outcome models are."""
    orm_lowest_step: Curve
    """The same model read at its lowest step, as if it were a PRM."""
    prm: Curve
    prm_gold: Curve
    differences: dict[str, Estimate]
    """Paired by problem, e.g. ``prm - orm @ 64``."""
    selectors: dict[str, Curve]
    """Every scorer with every aggregation and the weighted vote."""
    policy: dict[str, Number]
    label_noise: dict[str, Number]
    steps: dict[str, StepQuality]
    tokens: dict[str, Usage]
    training: dict[str, Any]
    counts: dict[str, int]
    findings: list[str]
    seconds: dict[str, float] = {}

    def write(self, path: Path, *, seconds: Mapping[str, float]) -> Path:
        """Write as JSON, atomically; ``seconds`` is the only part that differs between equal runs."""
        rounded = {stage: round(value, 1) for stage, value in seconds.items()}
        data = self.model_dump(mode="json") | {
            "seconds": rounded | {"total": round(sum(rounded.values()), 1)}
        }
        write_json(path, data)
        return path


@dataclass(frozen=True, kw_only=True)
class ScoredTraces:
    """Test problems, their traces (the same number each) and each scorer's scores of them."""

    problems: list[Problem]
    traces: list[Trace]
    scores: dict[str, list[StepScores]]

    def pools(self, scorer: str, how: Aggregator) -> list[Pool]:
        """One pool a problem, traces without steps or score staying unscored."""
        groups: dict[str, list[Trace]] = {problem.id: [] for problem in self.problems}
        for trace in self.traces:
            groups[trace.problem_id].append(trace)
        return pools_of(groups.values(), {record.trace_id: record for record in self.scores[scorer]}, how)


def accuracy_curves(scored: ScoredTraces, *, seed: int) -> dict[str, FloatArray]:
    """Expected accuracy ``[problems, sizes]`` of pass@N, majority and best-of-N by each of ``READINGS``."""
    sizes = sizes_up_to(min(len(pool.correct) for pool in scored.pools(*READINGS["prm"])))
    best = {
        _best_of_n(scorer, how): expected_accuracy(scored.pools(scorer, how), "best_of_n", sizes, seed=seed)
        for scorer, how in READINGS.values()
    }
    return _headline(scored, best, sizes, seed)


def _headline(
    scored: ScoredTraces, selectors: Mapping[str, FloatArray], sizes: Sequence[int], seed: int
) -> dict[str, FloatArray]:
    """pass@N and majority, and those of ``selectors`` that ``READINGS`` names."""
    pools = scored.pools(*READINGS["prm"])
    return {
        "pass_at": expected_accuracy(pools, "pass", sizes, seed=seed),
        "majority": expected_accuracy(pools, "majority", sizes, seed=seed),
    } | {name: selectors[_best_of_n(scorer, how)] for name, (scorer, how) in READINGS.items()}


def _best_of_n(scorer: str, how: Aggregator) -> str:
    return f"{scorer} best-of-N {how}"


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
    found = _selectors(scored, sizes, seed)
    accuracy = _headline(scored, found, sizes, seed)
    curves = {name: _with_intervals(values, sizes, seed) for name, values in accuracy.items()}
    verdicts = _prefix_truth(scored)
    differences = _differences(accuracy, sizes, seed)
    policy = _policy(scored.traces, verdicts)
    noise = _noise(labels)
    steps = {name: _step_quality(scored, name, verdicts, scorers[name]) for name in scorers}
    selectors = {name: _with_intervals(values, sizes, seed) for name, values in found.items()}
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
        findings=_findings(curves, differences, selectors, policy, noise, steps),
    )


def _with_intervals(values: FloatArray, sizes: Sequence[int], seed: int) -> Curve:
    return {
        size: Estimate.of(bootstrap_mean(values[:, column], rng=np.random.default_rng(seed)))
        for column, size in enumerate(sizes)
    }


def _differences(accuracy: Mapping[str, FloatArray], sizes: Sequence[int], seed: int) -> dict[str, Estimate]:
    found = {}
    for first, second in PAIRS:
        for size in {4, sizes[-1]} & set(sizes):
            column = sizes.index(size)
            interval = bootstrap_difference(
                accuracy[first][:, column], accuracy[second][:, column], rng=np.random.default_rng(seed)
            )
            found[f"{first} - {second} @ {size}"] = Estimate.of(interval)
    if 4 in sizes[:-1]:
        gap = accuracy["prm"] - accuracy["orm"]
        growth = bootstrap_difference(gap[:, -1], gap[:, sizes.index(4)], rng=np.random.default_rng(seed))
        found[f"gap prm - orm, @ {sizes[-1]} less @ 4"] = Estimate.of(growth)
    return dict(sorted(found.items()))


def _selectors(scored: ScoredTraces, sizes: Sequence[int], seed: int) -> dict[str, FloatArray]:
    """Expected accuracy ``[problems, sizes]`` of best-of-N and weighted vote, by scorer and aggregation."""
    found = {}
    for name in scored.scores:
        for how in AGGREGATORS:
            pools = scored.pools(name, how)
            found[_best_of_n(name, how)] = expected_accuracy(pools, "best_of_n", sizes, seed=seed)
            votes = expected_accuracy(pools, "weighted_vote", sizes, seed=seed, draws=100)
            found[f"{name} weighted vote {how}"] = votes
    return dict(sorted(found.items()))


def _prefix_truth(scored: ScoredTraces) -> dict[str, list[bool]]:
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


def _policy(traces: Sequence[Trace], truth: Mapping[str, list[bool]]) -> dict[str, float]:
    right = [trace for trace in traces if trace.outcome]
    lucky = sum(not all(truth[trace.id]) for trace in right)
    return {
        "accuracy": round(len(right) / len(traces), 5),
        "lucky_fraction": round(lucky / len(right), 5) if right else float("nan"),
        "unanswered_fraction": round(sum(trace.answer is None for trace in traces) / len(traces), 5),
    }


def _noise(labels: Mapping[str, list[list[StepLabel]]]) -> dict[str, float]:
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


def _step_quality(
    scored: ScoredTraces, name: str, truth: Mapping[str, list[bool]], scorer: StepScorer
) -> StepQuality:
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
        auc=round(step_auc(values, good).value, 5),
        auc_within_position=round(auc_within(values, good, position).value, 5),
        auc_within_problem=round(auc_within(values, good, problem).value, 5),
        probe_right=round(probe.right, 5),
        probe_contrast=round(probe.contrast, 5),
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


def _findings(
    curves: Mapping[str, Curve],
    differences: Mapping[str, Estimate],
    selectors: Mapping[str, Curve],
    policy: Mapping[str, float],
    noise: Mapping[str, float],
    steps: Mapping[str, StepQuality],
) -> list[str]:
    """One plain sentence for each result, whichever way it went."""
    top = max(curves["prm"])
    sentences = [
        f"The policy answers {policy['accuracy']:.1%} of the problems right; "
        f"{policy['lucky_fraction']:.1%} of its right answers rest on a wrong step.",
        f"Monte Carlo labels find {noise['recall']:.1%} of the wrong prefixes, and {noise['precision']:.1%} "
        "of what they call wrong is wrong; they place the first error right in "
        f"{noise['first_error_accuracy']:.1%} of the traces.",
    ]
    for first, second in PAIRS[:3]:
        gap = differences.get(f"{first} - {second} @ {top}")
        if gap:
            sentences.append(
                f"Best of {top} by the {_name(first)} {_against(gap)} {_name(second)}: {_points(gap)}."
            )
    growth = differences.get(f"gap prm - orm, @ {top} less @ 4")
    if growth:
        sentences.append(
            f"From 4 to {top} samples the lead of the PRM over the ORM {_changes(growth)}: {_points(growth)}."
        )
    for name in ("prm", "orm"):
        rules = {rule: curve[top].value for rule, curve in selectors.items() if rule.startswith(f"{name} ")}
        best = max(rules, key=lambda rule: rules[rule])
        how = best.removeprefix(name).strip()
        sentences.append(
            f"In hindsight the {_name(name)} with {top} samples does best by {how} ({rules[best]:.1%})."
        )
    sentences.append(
        "With one line held fixed and its result varied, the right digit scores highest in "
        + ", ".join(f"{quality.probe_right:.0%} ({_name(name)})" for name, quality in steps.items())
        + " of the lines; chance is 10%."
    )
    return sentences


def _name(key: str) -> str:
    names = {
        "prm": "PRM",
        "orm": "ORM",
        "orm_lowest_step": "ORM read at its lowest step",
        "prm_gold": "PRM on exact labels",
    }
    return names.get(key, f"{key} vote")


def _against(gap: Estimate) -> str:
    if gap.low > 0:
        return "beats the"
    return "loses to the" if gap.high < 0 else "is not told apart from the"


def _changes(gap: Estimate) -> str:
    if gap.low > 0:
        return "grows"
    return "shrinks" if gap.high < 0 else "does not change measurably"


def _points(gap: Estimate) -> str:
    return f"{100 * gap.value:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
