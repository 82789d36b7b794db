"""Labels and scores of a trace's steps, as they are written back beside the original."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.labels import LabelRule, binary_labels
from surefoot.records import StepLabel, StepScores, Trace


@dataclass(frozen=True, kw_only=True)
class TraceResults:
    """What is known of the steps of one trace."""

    trace: Trace
    labels: Sequence[StepLabel]
    scores: Sequence[StepScores]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """An object for each step: where it is, what it is, its labels and scores."""
        rows: list[dict[str, Any]] = []
        for index, step in enumerate(self.trace.steps):
            place = step.model_dump(exclude_none=True)
            labels = [
                {
                    "kind": one.kind,
                    "value": one.value,
                    "source": one.source,
                    "reason": one.reason or one.evidence.message,
                }
                for one in self.labels
                if one.step == index
            ]
            scores = {one.scorer: one.scores[index] for one in self.scores if index < len(one.scores)}
            rows.append({"step": index, **place, "labels": labels, "scores": scores})
        return rows

    @property
    def summary(self) -> float | None:
        """The lowest step score; without scores the share of labelled steps that are good."""
        known = [value for one in self.scores for value in one.scores if value is not None]
        if known:
            return min(known)
        read = binary_labels(self.labels, len(self.trace.steps), LabelRule(neutral="drop", good_above=0.0))
        signs = [one.good for one in read if one.good is not None]
        return sum(signs) / len(signs) if signs else None

    @property
    def explanation(self) -> str:
        """What the summary is of."""
        if any(value is not None for one in self.scores for value in one.scores):
            return "lowest step score of " + ", ".join(one.scorer for one in self.scores)
        return "share of labelled steps that are good"


def results_of(
    traces: Iterable[Trace], labels: Iterable[StepLabel], scores: Iterable[StepScores]
) -> list[TraceResults]:
    """Traces with their labels and scores; those without either are left out."""
    of_label: dict[str, list[StepLabel]] = {}
    for label in labels:
        of_label.setdefault(label.trace_id, []).append(label)
    of_score: dict[str, list[StepScores]] = {}
    for score in scores:
        of_score.setdefault(score.trace_id, []).append(score)
    return [
        TraceResults(trace=one, labels=of_label.get(one.id, ()), scores=of_score.get(one.id, ()))
        for one in traces
        if one.id in of_label or one.id in of_score
    ]
