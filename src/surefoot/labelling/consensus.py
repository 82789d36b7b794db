"""One set of step labels from several sources that must agree, and a report of what was dropped.

The published filter (Zhang et al., "Lessons of developing PRMs", arXiv 2501.07301) keeps a trace if Monte
Carlo and a judge find the same first error. ``surefoot.labelling.consensus_rules`` has that rule, and two
that decide step by step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from surefoot.errors import LabelError
from surefoot.labelling.consensus_rules import Decision, Rule
from surefoot.labels import LabelRule, Neutral, binary_labels
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import Evidence, StepLabel, Usage

SOURCE = "consensus"

_SHOWN = 6
"""Reasons that the summary lists; with many sources there are many ways to disagree."""


@dataclass(frozen=True, kw_only=True)
class ConsensusReport:
    """What came of combining. A trace is kept if at least one of its steps has a consensus."""

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
        """A few lines for a person: what was kept, and the most frequent reasons with their counts."""
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


def consensus(
    items: Sequence[ProblemTrace],
    sources: Mapping[str, Sequence[Sequence[StepLabel]]],
    *,
    rule: Rule,
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
    if len(sources) < 2:
        raise LabelError(f"consensus needs at least two sources, not {len(sources)}")
    for name, rows in sources.items():
        _check_rows(name, rows, items)
    meaning = LabelRule(neutral=neutral, good_above=good_above)
    decided = []
    for at, item in enumerate(items):
        signs = {
            name: binary_labels(sources[name][at], len(item.trace.steps), meaning) for name in sorted(sources)
        }
        decided.append(rule.decide(signs))
    labels = [
        [_label(item, step, decision) for step, decision in enumerate(decisions)]
        for item, decisions in zip(items, decided, strict=True)
    ]
    return Consensus(labels=labels, report=_report(rule.name, tuple(sorted(sources)), decided))


def rows_of(items: Sequence[ProblemTrace], labels: Iterable[StepLabel]) -> tuple[list[list[StepLabel]], int]:
    """``labels`` as ``consensus`` takes them, one list per item; and how many belong to no step."""
    of_trace: dict[str, list[StepLabel]] = {item.trace.id: [] for item in items}
    steps = {item.trace.id: len(item.trace.steps) for item in items}
    strays = 0
    for label in labels:
        if label.step < steps.get(label.trace_id, 0):
            of_trace[label.trace_id].append(label)
        else:
            strays += 1
    return [of_trace[item.trace.id] for item in items], strays


@dataclass(frozen=True, kw_only=True)
class ConsensusLabeller:
    """A :class:`surefoot.protocols.Labeller` that asks several labellers and combines what they say.

    Each label carries what its step cost all sources together. Arguments as for ``consensus``.
    """

    labellers: Mapping[str, Labeller]
    rule: Rule
    good_above: float | None
    neutral: Neutral

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step. Raises what the labellers and ``consensus`` raise."""
        # One after the other: each fills its own server or processor, and what is asked stays reproducible.
        found = {name: await labeller.label(items) for name, labeller in self.labellers.items()}
        combined = consensus(
            items, found, rule=self.rule, good_above=self.good_above, neutral=self.neutral
        ).labels
        return [
            [_with_cost(label, [rows[at] for rows in found.values()]) for label in labels]
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


def _report(rule: str, sources: tuple[str, ...], decided: Sequence[Sequence[Decision]]) -> ConsensusReport:
    dropped: Counter[str] = Counter()
    unlabelled: Counter[str] = Counter()
    for decisions in decided:
        reasons = [decision.reason for decision in decisions if decision.good is None]
        unlabelled.update(reasons)
        if len(reasons) == len(decisions):
            one = set(reasons)
            dropped[one.pop() if len(one) == 1 else "no consensus on any step" if one else "no steps"] += 1
    verdicts = Counter(decision.good for decisions in decided for decision in decisions)
    return ConsensusReport(
        rule=rule,
        sources=sources,
        traces=len(decided),
        kept_traces=len(decided) - dropped.total(),
        dropped_traces=dict(dropped.most_common()),
        steps=verdicts.total(),
        good_steps=verdicts[True],
        bad_steps=verdicts[False],
        unlabelled_steps=dict(unlabelled.most_common()),
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
