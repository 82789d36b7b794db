"""How a step changes the chance of success, from a prover's values: as a difference or as a ratio.

Advantages are the differences (process advantage verifiers; Setlur et al., arXiv 2410.08146); relative
progress is the ratio (GenPRM; Zhao et al., arXiv 2504.00891).

A step moves from one prefix to the next with certainty, so the advantage under a prover μ is a difference of
its values, A(s_h, a_h) = Q(after step h) - Q(before it). Over a whole solution the advantages add up to the
outcome minus the problem's success rate. A best-of-K prover does not need extra rollouts: it succeeds
if one of K samples of the base does, Q_BoK = 1 - (1 - Q)^K.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from surefoot.errors import LabelError
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, LabelKind, StepLabel, Trace, Usage
from surefoot.scores import best_of_k


def start_values(traces: Iterable[Trace]) -> dict[str, float]:
    """Success rate of the graded traces of each problem id: the value before the first step.

    The traces must be independent samples of the policy whose values they go with; a selection (balanced by
    outcome, or sampled until one was correct) has another rate. Problems without a graded trace are absent.
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for trace in traces:
        if trace.outcome is not None:
            outcomes[trace.problem_id].append(trace.outcome)
    return {problem: sum(of_problem) / len(of_problem) for problem, of_problem in outcomes.items()}


def advantage_labels(
    items: Sequence[LabelledTrace], *, start: Mapping[str, float], best_of: int = 1
) -> list[list[StepLabel]]:
    """Advantage labels in [-1, 1] from the ``value`` labels of each trace: one per step, in order.

    ``start`` gives the value before the first step by problem id (:func:`start_values`). With ``best_of``
    K > 1 the prover is best-of-K of the labels' policy, ``start`` included. The advantage of a step is
    unknown if the value after it or before it is unknown; the reason says which. The label costs nothing;
    its evidence has the trials of the value after the step.

    Raises ``LabelError`` if a step has more than one value, if a value is thresholded (it differs from the
    share of its successes: label with soft estimates), or for a start value outside [0, 1].
    """
    return [_labels(item, start.get(item.problem.id), best_of) for item in items]


def progress_labels(
    items: Sequence[LabelledTrace], *, start: Mapping[str, float], threshold: float = 0.8
) -> list[list[StepLabel]]:
    """Correctness labels from the ``value`` labels of each trace by relative progress: one per step, in
    order.

    GenPRM (arXiv 2504.00891, equations 10 and 11): with MC_t the value after step t and MC_0 the problem's
    success rate, P_t = MC_t / MC_{t-1}, and a step is good (+1) where P_t >= ``threshold``, else bad
    (-1). After the first step of value 0 every step is bad, whatever its value. A threshold of 1 requires
    progress, which the paper found too strict; 0.8 was its best.

    ``start`` gives MC_0 by problem id (:func:`start_values`); from 0 any positive value is progress. A label
    is unknown if the value after the step or before it is unknown; the reason says which.

    Raises ``ValueError`` for a threshold that is not positive, and ``LabelError`` like
    :func:`advantage_labels`.
    """
    if not threshold > 0:
        raise ValueError(f"'threshold' must be above 0, not {threshold:g}: every step would be good")
    return [_progress(item, start.get(item.problem.id), threshold) for item in items]


def _labels(item: LabelledTrace, start: float | None, best_of: int) -> list[StepLabel]:
    source = f"best-of-{best_of}-advantage" if best_of > 1 else "advantage"
    labels = []
    for change in _changes(item, start):
        advantage = message = None
        if change.reason is None:
            advantage = best_of_k(change.value_after, best_of) - best_of_k(change.value_before, best_of)
            message = f"value {change.value_after:g} after, {change.value_before:g} before"
        labels.append(change.label("advantage", advantage, source=source, message=message))
    return labels


def _progress(item: LabelledTrace, start: float | None, threshold: float) -> list[StepLabel]:
    labels: list[StepLabel] = []
    failed: int | None = None
    for step, change in enumerate(_changes(item, start)):
        good = message = None
        if failed is not None:
            good, message = -1.0, f"after step {failed + 1}, from where no rollout was right"
        elif change.value_after == 0:
            failed, good, message = step, -1.0, "value 0: no rollout was right"
        elif change.reason is None:
            ratio = change.value_after / change.value_before if change.value_before else math.inf
            # 0.24 / 0.3 is 0.8 whatever the rounding
            good = 1.0 if ratio > threshold or math.isclose(ratio, threshold) else -1.0
            message = (
                f"progress {ratio:g}: value {change.value_after:g} after, {change.value_before:g} before"
            )
        labels.append(change.label("correctness", good, source="relative-progress", message=message))
    return labels


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Values around one step; NaN if unknown."""

    trace_id: str
    step: int
    value_before: float
    value_after: float
    reason: str | None
    """Why one of them is unknown."""
    of: StepLabel | None
    """The value label after the step."""

    def label(self, kind: LabelKind, value: float | None, *, source: str, message: str | None) -> StepLabel:
        """A label with the evidence of the value after the step; it costs nothing."""
        of = self.of.evidence if self.of is not None else Evidence()
        changes = {"message": message, "interval": None, "usage": Usage(), "execution": None}
        return StepLabel(
            trace_id=self.trace_id,
            step=self.step,
            kind=kind,
            value=value,
            reason=self.reason if value is None else None,
            source=source + (f" of {self.of.source}" if self.of is not None else ""),
            evidence=of.model_copy(update=changes),
        )


def _changes(item: LabelledTrace, start: float | None) -> Iterator[_Change]:
    if start is not None and not 0 <= start <= 1:
        raise LabelError(f"start[{item.problem.id!r}] is {start}; a success rate lies in [0, 1]")
    values = _values(item)
    value_before, why = start, "no value of the problem itself ('start')"
    for step in range(len(item.trace.steps)):
        value = values.get(step)
        value_after = None if value is None else value.value
        reason = None if value_before is not None else why
        if value_after is None:
            reason = f"no value after the step: {value.reason if value else 'no label'}"
        yield _Change(
            trace_id=item.trace.id,
            step=step,
            value_before=math.nan if value_before is None else value_before,
            value_after=math.nan if value_after is None else value_after,
            reason=reason,
            of=value,
        )
        value_before, why = value_after, "no value before the step"


def _values(item: LabelledTrace) -> dict[int, StepLabel]:
    by_step: dict[int, StepLabel] = {}
    for label in (label for label in item.labels if label.kind == "value"):
        where = f"step {label.step + 1} of trace {label.trace_id}"
        if label.step in by_step:
            raise LabelError(
                f"{where} has two value labels ({by_step[label.step].source}, {label.source}); give the "
                "labels of one prover"
            )
        by_step[label.step] = label
        successes, trials = label.evidence.successes, label.evidence.trials
        if label.value is None or successes is None or not trials:
            continue
        if abs(label.value - successes / trials) > 1e-6:
            raise LabelError(
                f"{where} has value {label.value:g} with {successes} of {trials} right: an advantage needs "
                "the share itself; label with soft estimates"
            )
    return by_step
