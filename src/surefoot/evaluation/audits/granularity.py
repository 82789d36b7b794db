"""Granularity: the same traces cut into fewer, longer steps: how many first errors does each cut find?

Steps are merged in groups of k (the last group takes the rest), so labels of coarse steps follow from those
of fine ones: a group is bad if one of its steps is. No text changes; only where scores are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.report import Plot, Section
from surefoot.protocols import ProblemTrace
from surefoot.records import Step, Usage, content_id
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import Interval

GROUPS = (1, 2, 4, 0)
"""Steps per group; 0 = the whole trace."""


@dataclass(frozen=True, kw_only=True)
class CutAccuracy:
    """One cut. Intervals are over problems."""

    steps: int
    """Steps per group; 0 = the whole trace."""
    labels: float
    """Groups per trace: what an annotator labels."""
    tokens: float
    """Tokens that the scorer read per trace."""
    auc: Interval
    """Of groups: bad or good. NaN if the labels are all equal."""
    detected: Interval
    """Share of traces with an error whose first group below the threshold has the first error."""
    false_alarms: Interval
    """Share of traces without an error with a group below the threshold."""


@dataclass(frozen=True, kw_only=True)
class GranularityAudit:
    """All cuts, for one scorer."""

    scorer: str
    threshold: float
    cuts: list[CutAccuracy]
    traces: int
    unknown: int
    """Traces left out: their first error is unknown."""
    usage: Usage


def audit_granularity(
    audited: AuditedScorer,
    cases: Sequence[Case],
    *,
    threshold: float = 0.5,
    draws: int = 1000,
    seed: int = 0,
) -> GranularityAudit:
    """Score the traces under each cut. Raises ``ScoreError`` for stored scores, and without a known error."""
    audited.require_live()
    usable = [case for case in cases if case.right is True or case.first_error is not None]
    if not any(case.first_error is not None for case in usable):
        raise ScoreError(f"none of {len(cases)} traces has a known first error: give labels")
    bootstrap, usage, cuts = Bootstrap(draws=draws, seed=seed), Usage(), []
    for steps in GROUPS:
        merged = [_merged(case, steps) for case in usable]
        scores = audited.score([item for item, _ in merged])
        usage += scores.usage
        values = np.concatenate(scores.steps)
        good = np.concatenate([labels for _, labels in merged])
        owners = [case.problem_id for case, row in zip(usable, scores.steps, strict=True) for _ in row]
        readable = ~np.isnan(good) & ~np.isnan(values)
        hits, alarms, counts = [], [], []
        for case, row in zip(usable, scores.steps, strict=True):
            below = np.flatnonzero(row < threshold)
            first = int(below[0]) if below.size else None
            error = case.first_error
            size = steps or max(1, len(case.item.trace.steps))
            hits.append(math.nan if error is None else float(first == min(error // size, len(row) - 1)))
            alarms.append(float(first is not None) if error is None else math.nan)
            counts.append(len(row))
        problems = [case.problem_id for case in usable]
        cuts.append(
            CutAccuracy(
                steps=steps,
                labels=float(np.mean(counts)),
                tokens=scores.usage.verifier_tokens / len(usable),
                auc=bootstrap.auc(
                    values[readable], good[readable], [o for o, k in zip(owners, readable, strict=True) if k]
                ),
                detected=bootstrap.mean(np.array(hits), problems),
                false_alarms=bootstrap.mean(np.array(alarms), problems),
            )
        )
    return GranularityAudit(
        scorer=audited.name,
        threshold=threshold,
        cuts=cuts,
        traces=len(usable),
        unknown=len(cases) - len(usable),
        usage=usage,
    )


def _merged(case: Case, size: int) -> tuple[ProblemTrace, np.ndarray]:
    """The trace with merged steps, and the labels of the groups: 1 good, 0 bad, NaN unknown."""
    trace = case.item.trace
    count = len(trace.steps)
    if size == 1 or not count:
        labels = [math.nan if good is None else float(good) for good in case.good]
        return case.item, np.array(labels)
    size = size or count
    starts = list(range(0, max(1, count - count % size), size))
    groups = [range(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]
    steps = tuple(Step(start=trace.steps[g[0]].start, end=trace.steps[g[-1]].end) for g in groups)
    labels = []
    for group in groups:
        values = [case.good[step] for step in group]
        labels.append(0.0 if False in values else math.nan if None in values else 1.0)
    name = content_id("merged", trace.id, size)
    return (
        ProblemTrace(problem=case.item.problem, trace=trace.model_copy(update={"id": name, "steps": steps})),
        np.array(labels),
    )


def granularity_section(audits: Sequence[GranularityAudit]) -> Section:
    """What each cut finds."""
    return Section(
        title="Granularity",
        about="The same traces with steps merged in groups. Detected: the first group below "
        f"{audits[0].threshold:g} has the first error.",
        results={"granularity": audits},
        cards={audit.scorer: [_card(audit)] for audit in audits},
        limits=[
            f"{audits[0].traces} traces; {audits[0].unknown} with an unknown first error were left out.",
            "Coarser groups need fewer labels and locate an error less exactly.",
            "The scorer was trained on one cut; a scorer trained on another may do better on it.",
        ],
        plots=[Plot("granularity.cuts", "First errors found by steps per group.", y=("detected",))],
    )


def _card(audit: GranularityAudit) -> Card:
    finest, *coarser = audit.cuts
    coarse = ", ".join(
        f"{cut.detected.value:.2f} " + (f"in groups of {cut.steps}" if cut.steps else "as bad traces")
        for cut in coarser
    )
    text = f"of first errors are found step by step; {coarse}. Chance is one step of {finest.labels:.1f}."
    return card("reads", finest.detected, text, audit.traces, "traces", null=1 / max(1.0, finest.labels))
