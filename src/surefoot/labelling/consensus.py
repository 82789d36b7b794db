"""One set of step labels from several sources that must agree, and a report of what was dropped.

The published filter (Zhang et al., "Lessons of developing PRMs", arXiv 2501.07301) keeps a trace if Monte
Carlo and a judge find the same first error. :class:`SameFirstError` is that rule; two
others decide step by step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, Protocol

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
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import Evidence, StepLabel, Usage

SOURCE = "consensus"

_SHOWN = 6
"""Reasons that the summary lists; with many sources there are many ways to disagree."""


@dataclass(frozen=True, kw_only=True)
class ConsensusReport:
    """The result of combining. A trace is kept if at least one of its steps has a consensus."""

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
    """Steps without consensus by reason, those of dropped traces included."""

    def as_json(self) -> dict[str, Any]:
        """The fields, as plain data."""
        return asdict(self) | {"sources": list(self.sources)}

    def summary(self) -> str:
        """A few lines for a person: what remains, and the most frequent reasons with their counts."""
        lines = [
            f"{self.rule} of {', '.join(self.sources)}: {self.kept_traces} of {self.traces} traces kept; "
            f"of {self.steps} steps {self.good_steps} good, {self.bad_steps} bad, "
            f"{sum(self.unlabelled_steps.values())} without consensus"
        ]
        lines += _listed("traces dropped", self.dropped_traces)
        lines += _listed("steps without consensus", self.unlabelled_steps)
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Combined labels, one list per item and one label per step, and the report."""

    labels: list[list[StepLabel]]
    report: ConsensusReport


def combine_labels(
    items: Sequence[ProblemTrace],
    sources: Mapping[str, Sequence[Sequence[StepLabel]]],
    *,
    rule: ConsensusRule,
    good_above: float | None,
    neutral: Neutral,
) -> Consensus:
    """Combine the labels of several sources, each given as one list per item.

    A value label is good if it lies above ``good_above`` (0 is the published filter's: any rollout got
    there) and no vote if that is ``None``; ``neutral`` says what a correctness label of 0 is. Labels of one
    source that contradict each other are no vote. The result is of kind ``correctness`` and does not depend
    on the order of the sources; its usage is zero, as the sources have paid. Raises ``LabelError`` for fewer
    than two sources, or one whose lists or labels do not belong to the items.
    """
    combiner = Combiner(sources, rule=rule, good_above=good_above, neutral=neutral)
    for name, rows in sources.items():
        _check_rows(name, rows, items)
    labels = [
        combiner.combine(item, {name: rows[at] for name, rows in sources.items()})
        for at, item in enumerate(items)
    ]
    return Consensus(labels=labels, report=combiner.report())


class Combiner:
    """Combines one trace after another, as :func:`combine_labels`, and counts. It keeps the counts alone."""

    def __init__(
        self, sources: Iterable[str], *, rule: ConsensusRule, good_above: float | None, neutral: Neutral
    ) -> None:
        """Raises ``LabelError`` for fewer than two sources."""
        self._sources = tuple(sorted(sources))
        if len(self._sources) < 2:
            raise LabelError(f"consensus needs at least two sources, not {len(self._sources)}")
        self._rule, self._meaning = rule, LabelRule(neutral=neutral, good_above=good_above)
        self._traces = 0
        self._dropped: Counter[str] = Counter()
        self._unlabelled: Counter[str] = Counter()
        self._verdicts: Counter[bool | None] = Counter()

    def combine(self, item: ProblemTrace, labels: Mapping[str, Iterable[StepLabel]]) -> list[StepLabel]:
        """One label for each step; ``labels`` are those of this trace, by source."""
        steps = len(item.trace.steps)
        decisions = self._rule.decide(
            {name: binary_labels(labels[name], steps, self._meaning) for name in self._sources}
        )
        self._count(decisions)
        return [_label(item, step, decision) for step, decision in enumerate(decisions)]

    def _count(self, decisions: Sequence[Decision]) -> None:
        self._traces += 1
        self._verdicts.update(decision.good for decision in decisions)
        reasons = [decision.reason for decision in decisions if decision.good is None]
        self._unlabelled.update(reasons)
        if len(reasons) == len(decisions):
            one = set(reasons)
            why = one.pop() if len(one) == 1 else "no consensus on any step" if one else "no steps"
            self._dropped[why] += 1

    def report(self) -> ConsensusReport:
        """Of the traces so far."""
        return ConsensusReport(
            rule=self._rule.name,
            sources=self._sources,
            traces=self._traces,
            kept_traces=self._traces - self._dropped.total(),
            dropped_traces=dict(self._dropped.most_common()),
            steps=self._verdicts.total(),
            good_steps=self._verdicts[True],
            bad_steps=self._verdicts[False],
            unlabelled_steps=dict(self._unlabelled.most_common()),
        )


@dataclass(frozen=True, kw_only=True)
class ConsensusLabeller:
    """A :class:`surefoot.protocols.Labeller` that asks several labellers and combines what they say.

    Each label carries what its step cost all sources together. Arguments as for ``combine_labels``.
    """

    labellers: Mapping[str, Labeller]
    rule: ConsensusRule
    good_above: float | None
    neutral: Neutral

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step. Raises what the labellers and ``combine_labels`` raise."""
        # One after the other: each fills its own server or processor, and what is asked stays reproducible.
        by_source = {name: await labeller.label(items) for name, labeller in self.labellers.items()}
        combined = combine_labels(
            items, by_source, rule=self.rule, good_above=self.good_above, neutral=self.neutral
        ).labels
        return [
            [_with_cost(label, [rows[at] for rows in by_source.values()]) for label in labels]
            for at, labels in enumerate(combined)
        ]


def _listed(what: str, reasons: Mapping[str, int]) -> list[str]:
    lines = [f"  {count} {what}: {reason}" for reason, count in list(reasons.items())[:_SHOWN]]
    if len(reasons) > _SHOWN:
        rest = sum(reasons.values()) - sum(list(reasons.values())[:_SHOWN])
        lines.append(f"  {rest} {what}: {len(reasons) - _SHOWN} other reasons, see the report as JSON")
    return lines


def _label(item: ProblemTrace, step: int, decision: Decision) -> StepLabel:
    known = decision.good is not None
    return StepLabel(
        trace_id=item.trace.id,
        step=step,
        kind="correctness",
        value=(1.0 if decision.good else -1.0) if known else None,
        reason=None if known else decision.reason,
        source=SOURCE,
        evidence=Evidence(
            successes=decision.agreeing if known else None,
            trials=decision.voting if known else None,
            message=decision.message,
        ),
    )


def _with_cost(label: StepLabel, rows: Sequence[Sequence[StepLabel]]) -> StepLabel:
    spent = [paid.evidence.usage for row in rows for paid in row if paid.step == label.step]
    return label.model_copy(
        update={"evidence": label.evidence.model_copy(update={"usage": sum(spent, Usage())})}
    )


def _check_rows(name: str, rows: Sequence[Sequence[StepLabel]], items: Sequence[ProblemTrace]) -> None:
    if len(rows) != len(items):
        raise LabelError(f"source '{name}' has labels of {len(rows)} traces for {len(items)} items")
    for row, item in zip(rows, items, strict=True):
        for label in row:
            if label.trace_id != item.trace.id or label.step >= len(item.trace.steps):
                raise LabelError(
                    f"source '{name}': a label of step {label.step} of trace {label.trace_id} is given for "
                    f"trace {item.trace.id}, which has {len(item.trace.steps)} steps"
                )


SourceLabels = Mapping[str, Sequence[BinaryLabel]]
"""By the name of the source, sorted: one binary label per step of one trace."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the sources say together of one step."""

    good: bool | None
    """``None`` = no consensus."""
    reason: str = ""
    """Why there is none, in words that repeat from step to step, so that they can be counted."""
    agreeing: int = 0
    """Sources that say what was decided."""
    voting: int = 0
    """Sources that say anything."""
    message: str = ""
    """Each source and its vote."""


class ConsensusRule(Protocol):
    """How the labels of several sources become one. ``decide`` gives one decision per step of the trace."""

    @property
    def name(self) -> str: ...

    def decide(self, sources: SourceLabels) -> list[Decision]: ...


@dataclass(frozen=True, kw_only=True)
class SameFirstError:
    """Keep a trace only if all sources have the same first error, "none" being equal to "none".

    Kept: steps before the first error +1, the error -1, later ones unknown. Dropped: all steps unknown. A
    source whose labels leave the first error open (an unknown step before it) agrees with nothing.
    """

    name: str = "first-error"

    def decide(self, sources: SourceLabels) -> list[Decision]:
        errors = {source: _first_error(votes) for source, votes in sources.items()}
        count = len(next(iter(sources.values())))
        message = "first error: " + ", ".join(f"{source} {_shown(error)}" for source, error in errors.items())
        voting = sum(error is not None for error in errors.values())
        reason = _difference(sources, errors)
        error = next(iter(errors.values()))
        if reason or error is None:
            return [Decision(good=None, reason=reason, voting=voting, message=message)] * count
        return [
            Decision(good=None, reason=AFTER_FIRST_ERROR, voting=voting, message=message)
            if value is None
            else Decision(good=value > 0, agreeing=voting, voting=voting, message=message)
            for value in up_to_first_error(error, count)
        ]


@dataclass(frozen=True, kw_only=True)
class Unanimous:
    """A step has the label that every source gives it; where one is silent or differs it is unknown."""

    name: str = "unanimous"

    def decide(self, sources: SourceLabels) -> list[Decision]:
        return [_unanimous(votes) for votes in _votes(sources)]


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A step has the label with more weight behind it, if it leads by enough.

    With W₊ and W₋ the weights of the sources that call the step good and bad, and W that of all sources, the
    step is labelled if W₊ ≠ W₋ and |W₊ - W₋| / W ≥ ``margin``. A silent source is in W, so it makes agreement
    harder; ``margin`` 1 asks what ``Unanimous`` asks, and 0 any lead at all. A tie is unknown.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """By the name of the source; 1 for a source that is not named."""
    margin: float = 0.0
    name: str = "weighted"

    def __post_init__(self) -> None:
        """Raises ``LabelError`` for a weight that is not positive or a margin outside [0, 1]."""
        for source, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise LabelError(f"the weight of '{source}' is {weight}; give a positive number")
        if not 0 <= self.margin <= 1:
            raise LabelError(f"margin is {self.margin}; give a share of the total weight, 0 to 1")

    def decide(self, sources: SourceLabels) -> list[Decision]:
        if unknown := sorted(self.weights.keys() - sources.keys()):
            raise LabelError(f"a weight is given for '{unknown[0]}', which is none of {', '.join(sources)}")
        # Fractions of the decimals as written: 0.1 + 0.2 against 0.3 is a tie, in whatever order it is added.
        weights = {source: Fraction(str(self.weights.get(source, 1.0))) for source in sources}
        return [self._decide(votes, weights) for votes in _votes(sources)]

    def _decide(self, votes: Mapping[str, BinaryLabel], weights: Mapping[str, Fraction]) -> Decision:
        good, bad, silent = _sides(votes)
        lead = _total(good, weights) - _total(bad, weights)
        message, voting = _message(good, bad, silent), len(good) + len(bad)
        if voting == 0:
            reason = "no source has a label for the step"
        elif lead == 0:
            reason = "tie"
        elif abs(lead) < Fraction(str(self.margin)) * _total(votes, weights):
            reason = "lead below the margin"
        else:
            agreeing = len(good if lead > 0 else bad)
            return Decision(good=lead > 0, agreeing=agreeing, voting=voting, message=message)
        return Decision(good=None, reason=reason, voting=voting, message=message)


def _first_error(votes: Sequence[BinaryLabel]) -> int | None:
    return first_error([vote.good for vote in votes])


def _shown(error: int | None) -> str:
    return "unknown" if error is None else "none" if error == NO_ERROR else str(error)


def _difference(sources: SourceLabels, errors: Mapping[str, int | None]) -> str:
    """How the first errors differ, without their numbers; empty if they are the same."""
    hidden = {
        source: next(vote.reason for vote in sources[source] if vote.good is None)
        for source, error in errors.items()
        if error is None
    }
    if hidden:
        return f"first error unknown to {', '.join(f'{source} ({why})' for source, why in hidden.items())}"
    erring = {source: error for source, error in errors.items() if error not in (None, NO_ERROR)}
    if erring and len(erring) < len(errors):
        none = ", ".join(source for source in errors if source not in erring)
        return f"an error for {', '.join(erring)}, none for {none}"
    if len(set(erring.values())) > 1:
        first = min(error for error in erring.values() if error is not None)
        earliest = [source for source, error in erring.items() if error == first]
        return f"first errors differ, earliest for {', '.join(earliest)}"
    return ""


def _votes(sources: SourceLabels) -> list[dict[str, BinaryLabel]]:
    """By step: the label of each source."""
    return [dict(zip(sources, votes, strict=True)) for votes in zip(*sources.values(), strict=True)]


def _sides(votes: Mapping[str, BinaryLabel]) -> tuple[list[str], list[str], list[str]]:
    """Sources that say good, bad and nothing."""
    good = [source for source, label in votes.items() if label.good]
    bad = [source for source, label in votes.items() if label.good is False]
    return good, bad, [source for source, label in votes.items() if label.good is None]


def _total(sources: Iterable[str], weights: Mapping[str, Fraction]) -> Fraction:
    return sum((weights[source] for source in sources), Fraction())


def _message(good: Sequence[str], bad: Sequence[str], silent: Sequence[str]) -> str:
    sides = {"good": good, "bad": bad, "no vote": silent}
    return "; ".join(f"{side}: {', '.join(names)}" for side, names in sides.items() if names)


def _unanimous(votes: Mapping[str, BinaryLabel]) -> Decision:
    good, bad, silent = _sides(votes)
    message, voting = _message(good, bad, silent), len(good) + len(bad)
    if good and bad:
        return Decision(good=None, reason="sources disagree", voting=voting, message=message)
    if silent:
        reason = f"no vote of {', '.join(f'{source} ({votes[source].reason})' for source in silent)}"
        return Decision(good=None, reason=reason, voting=voting, message=message)
    return Decision(good=bool(good), agreeing=voting, voting=voting, message=message)
