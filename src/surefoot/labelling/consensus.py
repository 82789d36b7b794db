"""Combine the labels of several labellers, and report which were dropped.

The published filter (Zhang et al., "Lessons of developing PRMs", arXiv 2501.07301) keeps a trace if Monte
Carlo and a judge agree on the first error (the rule ``first-error``); the rule ``weighted`` decides each step
separately.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self

from pydantic import Field, model_validator

from surefoot.errors import LabelError
from surefoot.labels import (
    AFTER_FIRST_ERROR,
    NO_ERROR,
    BinaryLabel,
    LabelRule,
    Neutral,
    binary_labels,
    first_error,
    up_to_first_error,
)
from surefoot.protocols import ProblemTrace
from surefoot.records import Evidence, FrozenModel, StepLabel

SOURCE = "consensus"

_SHOWN = 6
"""Most reasons in the summary; many labellers can disagree in many ways."""


@dataclass(frozen=True, kw_only=True)
class ConsensusReport:
    """Counts. A trace is kept if at least one of its steps has a consensus."""

    rule: str
    sources: tuple[str, ...]
    traces: int
    kept_traces: int
    dropped_traces: dict[str, int]
    """Dropped traces by reason."""
    steps: int
    good_steps: int
    bad_steps: int
    unlabelled_steps: dict[str, int]
    """Steps without consensus by reason, including the steps of dropped traces."""

    def summary(self) -> str:
        """A few lines with the counts and the most frequent reasons."""
        lines = [
            f"{self.rule} of {', '.join(self.sources)}: {self.kept_traces} of {self.traces} traces kept; "
            f"of {self.steps} steps {self.good_steps} good, {self.bad_steps} bad, "
            f"{sum(self.unlabelled_steps.values())} without consensus"
        ]
        reasons_of = {"traces dropped": self.dropped_traces, "steps without consensus": self.unlabelled_steps}
        for what, reasons in reasons_of.items():
            counts = list(reasons.items())
            lines += [f"  {count} {what}: {reason}" for reason, count in counts[:_SHOWN]]
            if hidden := counts[_SHOWN:]:
                total = sum(count for _, count in hidden)
                lines.append(f"  {total} {what}: {len(hidden)} other reasons")
        return "\n".join(lines)


class ConsensusSettings(FrozenModel):
    """When several sources agree.

    - ``first-error`` keeps a trace only if all sources have the same first error, or none of them has an
      error. Kept traces: steps before the first error are +1, the error is -1, later steps are unknown.
      Dropped traces: all steps are unknown. A source with an unknown step before its first error agrees with
      nothing.
    - ``weighted``: W₊ and W₋ are the weights of the sources that call the step good and bad, W the weight of
      all sources. The step is labelled if W₊ ≠ W₋ and ``|W₊ - W₋| / W ≥ margin``. A source that abstains
      counts in W, so it makes agreement harder. With ``margin`` 1 every source has to agree; with 0 any lead
      decides. A tie is unknown.
    """

    rule: Literal["first-error", "weighted"] = "first-error"
    """first-error keeps or drops whole traces; weighted decides on each step."""
    weights: Mapping[str, float] = Field(default_factory=dict)
    """`NAME=NUMBER` for rule=weighted, joined by `+`; 1 if not given."""
    margin: float = Field(default=0.0, ge=0, le=1)
    """Least lead for rule=weighted, as a share of all weights; 0 = any, 1 = all agree."""
    good_above: float | None = 0.0
    """A value label above this is good; 0 = any rollout succeeded. `None`: value labels abstain."""
    neutral: Neutral = "drop"
    """How to read a label of 0: good, bad, or abstain (`drop`)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule != "weighted" and (self.weights or self.margin):
            raise ValueError(f"weights and margin belong to rule=weighted, not to rule={self.rule}")
        for source, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"the weight of '{source}' is {weight}; give a positive number")
        return self

    def decide(self, sources: SourceLabels) -> list[Decision]:
        """One decision per step. Raises ``LabelError`` for a weight of a source that is not there."""
        if unknown := sorted(self.weights.keys() - sources.keys()):
            raise LabelError(f"a weight is given for '{unknown[0]}', which is none of {', '.join(sources)}")
        if self.rule == "first-error":
            return _same_first_error(sources)
        # Fractions of the decimals as written: 0.1 + 0.2 against 0.3 is a tie in any order.
        weights = {source: Fraction(str(self.weights.get(source, 1.0))) for source in sources}
        margin = Fraction(str(self.margin)) * sum(weights.values())
        return [
            _weighted(dict(zip(sources, labels, strict=True)), weights, margin)
            for labels in zip(*sources.values(), strict=True)
        ]


class Consensus:
    """Combines the labels of several labellers, one trace at a time; memory does not grow with the traces.

    Contradicting labels of one labeller abstain. The result does not depend on the order of the labellers.
    """

    def __init__(self, sources: Iterable[str], settings: ConsensusSettings) -> None:
        """Raises ``LabelError`` for fewer than two sources."""
        self._sources = tuple(sorted(sources))
        if len(self._sources) < 2:
            raise LabelError(f"consensus needs at least two sources, not {len(self._sources)}")
        self._settings = settings
        self._reading = LabelRule(neutral=settings.neutral, good_above=settings.good_above)
        self._traces = 0
        self._dropped: Counter[str] = Counter()
        self._unlabelled: Counter[str] = Counter()
        self._verdicts: Counter[bool | None] = Counter()

    def combine(self, item: ProblemTrace, labels: Mapping[str, Sequence[StepLabel]]) -> list[StepLabel]:
        """One label of kind ``correctness`` for each step, from the labels of this trace by source.

        Raises ``LabelError`` for a label that does not belong to the trace.
        """
        steps = len(item.trace.steps)
        for name in self._sources:
            for label in labels[name]:
                if label.trace_id != item.trace.id or label.step >= steps:
                    raise LabelError(
                        f"source '{name}': a label of step {label.step + 1} of trace {label.trace_id} is "
                        f"given for trace {item.trace.id}, which has {steps} steps"
                    )
        decisions = self._settings.decide(
            {name: binary_labels(labels[name], steps, self._reading) for name in self._sources}
        )
        self._traces += 1
        self._verdicts.update(decision.good for decision in decisions)
        reasons = [decision.reason for decision in decisions if decision.good is None]
        self._unlabelled.update(reasons)
        if len(reasons) == len(decisions):
            distinct = sorted(set(reasons)) or ["no steps"]
            self._dropped[distinct[0] if len(distinct) == 1 else "no consensus on any step"] += 1
        return [_label(item, step, decision) for step, decision in enumerate(decisions)]

    def report(self) -> ConsensusReport:
        """Report on the traces so far."""
        return ConsensusReport(
            rule=self._settings.rule,
            sources=self._sources,
            traces=self._traces,
            kept_traces=self._traces - self._dropped.total(),
            dropped_traces=dict(self._dropped.most_common()),
            steps=self._verdicts.total(),
            good_steps=self._verdicts[True],
            bad_steps=self._verdicts[False],
            unlabelled_steps=dict(self._unlabelled.most_common()),
        )


def _label(item: ProblemTrace, step: int, decision: Decision) -> StepLabel:
    decided = decision.good is not None
    return StepLabel(
        trace_id=item.trace.id,
        step=step,
        kind="correctness",
        value=(1.0 if decision.good else -1.0) if decided else None,
        reason=None if decided else decision.reason,
        source=SOURCE,
        evidence=Evidence(
            successes=decision.agreeing if decided else None,
            trials=decision.voting if decided else None,
            message=decision.message,
        ),
    )


SourceLabels = Mapping[str, Sequence[BinaryLabel]]
"""By the name of the source, sorted: one binary label per step of one trace."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The combined verdict on one step."""

    good: bool | None
    """``None`` = no consensus."""
    reason: str = ""
    """Why no consensus was reached, without step numbers, so that reasons can be counted."""
    agreeing: int = 0
    """Sources that agree with the decision."""
    voting: int = 0
    """Sources that do not abstain."""
    message: str = ""
    """Each source and its vote."""


def _same_first_error(sources: SourceLabels) -> list[Decision]:
    errors = {source: first_error([label.good for label in labels]) for source, labels in sources.items()}
    message = "first error: " + ", ".join(
        f"{source} {'unknown' if error is None else 'none' if error == NO_ERROR else error + 1}"
        for source, error in errors.items()
    )
    count = len(next(iter(sources.values())))
    voting = sum(error is not None for error in errors.values())
    reason = _first_errors_differ(sources, errors)
    error = next(iter(errors.values()))
    if reason or error is None:
        return [Decision(good=None, reason=reason, voting=voting, message=message)] * count
    return [
        Decision(good=None, reason=AFTER_FIRST_ERROR, voting=voting, message=message)
        if value is None
        else Decision(good=value > 0, agreeing=voting, voting=voting, message=message)
        for value in up_to_first_error(error, count)
    ]


def _first_errors_differ(sources: SourceLabels, errors: Mapping[str, int | None]) -> str:
    """How the first errors differ, without their numbers; empty if they are the same."""
    unknown = {
        source: next(label.reason for label in sources[source] if label.good is None)
        for source, error in errors.items()
        if error is None
    }
    if unknown:
        return f"first error unknown to {', '.join(f'{source} ({why})' for source, why in unknown.items())}"
    steps = {source: error for source, error in errors.items() if error not in (None, NO_ERROR)}
    if steps and len(steps) < len(errors):
        without = ", ".join(source for source in errors if source not in steps)
        return f"an error for {', '.join(steps)}, none for {without}"
    if len(set(steps.values())) > 1:
        first = min(error for error in steps.values() if error is not None)
        earliest = [source for source, error in steps.items() if error == first]
        return f"first errors differ, earliest for {', '.join(earliest)}"
    return ""


def _weighted(
    votes: Mapping[str, BinaryLabel], weights: Mapping[str, Fraction], margin: Fraction
) -> Decision:
    good = [source for source, label in votes.items() if label.good]
    bad = [source for source, label in votes.items() if label.good is False]
    silent = [source for source in votes if source not in (*good, *bad)]
    lead = Fraction(sum(weights[source] for source in good) - sum(weights[source] for source in bad))
    reason = ""
    if not (good or bad):
        reason = "no source has a label for the step"
    elif lead == 0:
        reason = "tie"
    elif abs(lead) < margin:
        reason = "lead below the margin"
    sides = {"good": good, "bad": bad, "no vote": silent}
    return Decision(
        good=None if reason else lead > 0,
        reason=reason,
        agreeing=len(good if lead > 0 else bad),
        voting=len(good) + len(bad),
        message="; ".join(f"{side}: {', '.join(names)}" for side, names in sides.items() if names),
    )
