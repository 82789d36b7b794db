"""How a step changes the chance of success, from a prover's values (Setlur et al., arXiv 2410.08146).

A step moves from one prefix to the next with certainty, so the advantage under a prover μ is a difference of
its values, A(s_h, a_h) = Q(after step h) - Q(before it). Over a whole solution the advantages add up to the
outcome minus the problem's success rate. A best-of-K prover does not need extra rollouts: it succeeds
if one of K samples of the base does, Q_BoK = 1 - (1 - Q)^K.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from surefoot.errors import LabelError
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, StepLabel, Trace, Usage
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


def _labels(item: LabelledTrace, start: float | None, best_of: int) -> list[StepLabel]:
    if start is not None and not 0 <= start <= 1:
        raise LabelError(f"start[{item.problem.id!r}] is {start}; a success rate lies in [0, 1]")
    source = f"best-of-{best_of}-advantage" if best_of > 1 else "advantage"
    values, labels = _values(item), list[StepLabel]()
    value_before, why = start, "no value of the problem itself ('start')"
    for step in range(len(item.trace.steps)):
        value = values.get(step)
        value_after = None if value is None else value.value
        advantage = reason = message = None
        if value_after is None:
            reason = f"no value after the step: {value.reason if value else 'no label'}"
        elif value_before is None:
            reason = why
        else:
            advantage = best_of_k(value_after, best_of) - best_of_k(value_before, best_of)
            message = f"value {value_after:g} after, {value_before:g} before"
        # the evidence of the value after the step; the label costs nothing
        changes = {"message": message, "interval": None, "usage": Usage(), "execution": None}
        evidence = value.evidence if value is not None else Evidence()
        labels.append(
            StepLabel(
                trace_id=item.trace.id,
                step=step,
                kind="advantage",
                value=advantage,
                reason=reason,
                source=source + (f" of {value.source}" if value is not None else ""),
                evidence=evidence.model_copy(update=changes),
            )
        )
        value_before, why = value_after, "no value before the step"
    return labels


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
