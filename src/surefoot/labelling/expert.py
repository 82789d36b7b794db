"""Step labels by agreement with an expert's step at the same point (imitation)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.errors import LabelError
from surefoot.labelling.step_match import StepMatch, calls_of
from surefoot.protocols import ProblemTrace
from surefoot.records import Evidence, StepLabel, Trace

Disagreement = Literal["unknown", "wrong"]
"""What a step says that no expert took: nothing, or (where there is one right way only) that it is wrong."""

SOURCE = "expert"

_SHOWN = 200
"""Longest excerpt of an expert's step in a label's message, in characters."""


@dataclass(frozen=True, kw_only=True)
class ExpertLabeller:
    """A :class:`surefoot.protocols.Labeller` that follows a trace along the traces of experts.

    An expert is *on the path* at step i if all steps before it match the trace's; where one of those has a
    matching step next, step i is +1. The first step that none of them took leaves the path. By
    default it is unknown: a departure is no proof of an error, since experts do not write down every
    right way. With ``disagreement="wrong"`` it is -1, the convention of behaviour cloning, which holds where
    the task leaves one way only. Later steps are unknown: at the states they are in, no expert was seen.

    Labels are of kind ``correctness`` and as right as the experts and the match rule are. Evidence: experts
    that agree (``successes``) of those on the path (``trials``), their names, and the expert's step.
    A trace is never its own expert. Steps that ``match`` finds nothing to compare in are passed over on both
    sides.
    """

    experts: Mapping[str, Sequence[Trace]]
    """Expert traces by the id of their problem; see ``expert_traces``."""
    match: StepMatch[Any]
    disagreement: Disagreement = "unknown"

    def __post_init__(self) -> None:
        """Raises ``LabelError`` for an unknown ``disagreement`` and an expert trace that does not fit."""
        if self.disagreement not in ("unknown", "wrong"):
            raise LabelError(f"disagreement is {self.disagreement!r}; choose unknown or wrong")
        for problem_id, traces in self.experts.items():
            for trace in traces:
                if not trace.steps:
                    raise LabelError(f"expert trace {trace.id} has no steps; cut it into steps first")
                if trace.problem_id != problem_id:
                    raise LabelError(
                        f"expert trace {trace.id} is listed for problem {problem_id}, its 'problem_id' "
                        f"is {trace.problem_id}"
                    )

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step. Raises ``LabelError`` if ``match`` cannot read a trace."""
        paths = {
            problem_id: [self._path(trace) for trace in self.experts.get(problem_id, ())]
            for problem_id in {item.problem.id for item in items}
        }
        return [self._labels(item.trace, paths[item.problem.id]) for item in items]

    def _path(self, trace: Trace) -> _Path:
        keys = [(step, self.match.key(trace, step)) for step in range(len(trace.steps))]
        return _Path(trace=trace, steps=[(step, key) for step, key in keys if key is not None])

    def _labels(self, trace: Trace, paths: list[_Path]) -> list[StepLabel]:
        on_path = [path for path in paths if path.trace.id != trace.id]
        ended = "" if on_path else "no expert trace of this problem"
        labels: list[StepLabel] = []
        at = 0  # steps taken with the experts
        for step in range(len(trace.steps)):
            key = None if ended else self.match.key(trace, step)
            if key is None:
                labels.append(_label(trace, step, reason=ended or self.match.nothing))
                continue
            here = [path for path in on_path if at < len(path.steps)]
            if not here:
                ended = "after the end of the expert's path"
                labels.append(_label(trace, step, reason=ended))
                continue
            on_path = [path for path in here if self.match.same(key, path.steps[at][1])]
            if not on_path:
                ended = "after leaving the expert's path"
            labels.append(self._compared(trace, step, here, on_path, at))
            at += 1
        return labels

    def _compared(
        self, trace: Trace, step: int, here: list[_Path], agreeing: list[_Path], at: int
    ) -> StepLabel:
        """The label of a step that had ``here`` to agree with, of which ``agreeing`` do."""
        shown = (agreeing or here)[0]
        raters = sorted({path.trace.policy for path in agreeing or here if path.trace.policy})
        evidence = Evidence(
            successes=len(agreeing),
            trials=len(here),
            rater=", ".join(raters) or None,
            message=f"{'the same' if agreeing else 'not'} as (match: {self.match.name}) "
            f"step {shown.steps[at][0]} of expert trace {shown.trace.id}: "
            f"{_excerpt(shown.trace, shown.steps[at][0])}",
        )
        if agreeing:
            return _label(trace, step, value=1.0, evidence=evidence)
        if self.disagreement == "wrong":
            return _label(trace, step, value=-1.0, evidence=evidence)
        reason = "no expert took this step, which is no proof of an error"
        return _label(trace, step, reason=reason, evidence=evidence)


def expert_traces(traces: Iterable[Trace]) -> tuple[dict[str, list[Trace]], Counter[str]]:
    """Traces fit to be followed, by problem, and a count of the others by reason.

    A trace without steps shows no path, and one whose outcome is known to be wrong is no expert's.
    """
    by_problem: dict[str, list[Trace]] = {}
    left_out: Counter[str] = Counter()
    for trace in traces:
        if not trace.steps:
            left_out["no steps"] += 1
        elif trace.outcome is False:
            left_out["wrong outcome"] += 1
        else:
            by_problem.setdefault(trace.problem_id, []).append(trace)
    return by_problem, left_out


@dataclass(frozen=True, kw_only=True)
class _Path:
    """An expert's trace and those of its steps that can be compared: number of the step, key."""

    trace: Trace
    steps: list[tuple[int, Any]]


def _label(
    trace: Trace,
    step: int,
    *,
    value: float | None = None,
    reason: str | None = None,
    evidence: Evidence | None = None,
) -> StepLabel:
    return StepLabel(
        trace_id=trace.id,
        step=step,
        kind="correctness",
        value=value,
        reason=reason,
        source=SOURCE,
        evidence=evidence or Evidence(),
    )


def _excerpt(trace: Trace, step: int) -> str:
    calls = [f"{call.name}({call.arguments})" for call in calls_of(trace, step)]
    text = " ".join(calls or trace.step_text(step).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
