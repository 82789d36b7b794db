"""Step labels by agreement with an expert's step at the same point (imitation)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from surefoot.errors import LabelError
from surefoot.labelling.verifiers.tool_calls import call_text
from surefoot.maths import DIGITS
from surefoot.protocols import RUN_CHANNELS, ProblemTrace
from surefoot.records import Evidence, StepLabel, Trace

Disagreement = Literal["unknown", "wrong"]
"""Label of a step that no expert took: unknown, or (if the task has a single correct path) wrong."""

SOURCE = "expert"

_EXCERPT = 200
"""Longest excerpt of an expert's step in a label's message, in characters."""


MatchRule = Literal["exact", "numbers", "tool-call"]

# Digits in a name (x2, a_1) are not a number; a sign counts only where it cannot be a minus between operands.
# Digits of any script count.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![)\]}])[-−])?" + DIGITS.replace("[0-9]", r"\d"))
_NOTHING: Mapping[MatchRule, str] = MappingProxyType(
    {
        "exact": "the step has no text to compare",
        "numbers": "the step has no number to compare",
        "tool-call": "the step calls no tool",
    }
)
"""Why a step without a key stays unlabelled."""


def match_key(rule: MatchRule, trace: Trace, step: int) -> tuple[Hashable, ...] | None:
    """What to compare of a step: two steps are the same if their keys are. ``None`` = nothing to compare.

    - ``exact``: the same characters, apart from white space.
    - ``numbers``: the same numbers in the same order, whatever the words: ``48 / 2 = 24`` is ``48/2 = 24
      clips``. A number is digits with thousands commas, decimals and a sign; a fraction is two numbers,
      ``50%`` is 50. List numbers ("Step 2:") count too.
    - ``tool-call``: the same tools with equal arguments, for agent runs. Arguments are compared as JSON,
      ignoring the order of keys; arguments that are not JSON are compared as text. Text is ignored: a path is
      a sequence of tool calls. The calls of one message are compared in their order; they belong to the
      message's last step.

    Raises ``LabelError`` for a trace that the rule cannot read.
    """
    calls = trace.calls_of(step)
    if rule == "tool-call":
        if trace.text is not None:
            raise LabelError(
                f"trace {trace.id} is a text; match 'tool-call' reads chat traces: choose exact or numbers"
            )
        return tuple(map(call_text, calls)) or None
    if calls:
        raise LabelError(
            f"step {step + 1} of trace {trace.id} calls a tool, which text rules do not see; "
            "choose match 'tool-call'"
        )
    words = trace.step_text(step).split()
    if rule == "numbers":
        numbers = _NUMBER.findall(" ".join(words))
        return tuple(Decimal(number.replace(",", "").replace("−", "-")) for number in numbers) or None
    return tuple(words) or None


@dataclass(frozen=True, kw_only=True)
class ExpertLabeller:
    """A :class:`surefoot.protocols.Labeller` that follows a trace along the traces of experts.

    An expert is *on the path* at step i if all steps before it match the trace's. Step i is +1 if it matches
    the next step of an expert on the path. The first step that matches none leaves the path. By default it is
    unknown, because experts do not write down every correct path. With ``disagreement="wrong"`` it is -1, the
    convention of behaviour cloning, which is right if the task has a single path. Later steps are unknown,
    because the experts were never in their states.

    Labels have kind ``correctness`` and are only as reliable as the experts and the rule ``match``. Evidence:
    experts that agree (``successes``) of the experts on the path (``trials``), their names, and the expert's
    step. A trace is never its own expert. Steps in which ``match`` has nothing to compare are skipped on both
    sides.
    """

    reads = RUN_CHANNELS
    experts: Mapping[str, Sequence[Trace]]
    """Expert traces by the id of their problem; see ``expert_traces``."""
    match: MatchRule = "exact"
    """When two steps are the same (:func:`match_key`)."""
    disagreement: Disagreement = "unknown"

    def __post_init__(self) -> None:
        """Raises ``LabelError`` for an unknown ``disagreement`` or an invalid expert trace."""
        if self.disagreement not in ("unknown", "wrong"):
            raise LabelError(f"disagreement is {self.disagreement!r}; choose unknown or wrong")
        for problem_id, traces in self.experts.items():
            for trace in traces:
                if not trace.steps:
                    raise LabelError(f"expert trace {trace.id} lacks steps; cut it into steps first")
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
        keys = [(step, match_key(self.match, trace, step)) for step in range(len(trace.steps))]
        return _Path(trace=trace, steps=[(step, key) for step, key in keys if key is not None])

    def _labels(self, trace: Trace, paths: list[_Path]) -> list[StepLabel]:
        on_path = [path for path in paths if path.trace.id != trace.id]
        ended = "" if on_path else "no expert trace of this problem"
        labels: list[StepLabel] = []
        matched = 0
        for step in range(len(trace.steps)):
            value, evidence = None, Evidence()
            key = None if ended else match_key(self.match, trace, step)
            reason = ended or _NOTHING[self.match]
            if key is not None:
                candidates = [path for path in on_path if matched < len(path.steps)]
                if candidates:
                    on_path = [path for path in candidates if key == path.steps[matched][1]]
                    evidence = self._evidence(candidates, on_path, matched)
                    if on_path or self.disagreement == "wrong":
                        value = 1.0 if on_path else -1.0
                    reason = "no expert took this step, which does not prove an error"
                    ended = "" if on_path else "after leaving the expert's path"
                    matched += 1
                else:
                    ended = reason = "after the end of the expert's path"
            labels.append(
                StepLabel(
                    trace_id=trace.id,
                    step=step,
                    kind="correctness",
                    value=value,
                    reason=reason if value is None else None,
                    source=SOURCE,
                    evidence=evidence,
                )
            )
        return labels

    def _evidence(self, candidates: list[_Path], agreeing: list[_Path], number: int) -> Evidence:
        """``agreeing`` of the ``candidates`` take a step as their step ``number``."""
        paths = agreeing or candidates
        expert, step = paths[0].trace, paths[0].steps[number][0]
        raters = sorted({path.trace.policy for path in paths if path.trace.policy})
        return Evidence(
            successes=len(agreeing),
            trials=len(candidates),
            rater=", ".join(raters) or None,
            message=f"{'the same' if agreeing else 'not'} as (match: {self.match}) step {step + 1} "
            f"of expert trace {expert.id}: {_excerpt(expert, step)}",
        )


def expert_traces(traces: Iterable[Trace]) -> tuple[dict[str, list[Trace]], Counter[str]]:
    """Usable expert traces by problem, and a count of the others by reason.

    A trace without steps or with a wrong outcome cannot be followed.
    """
    by_problem: dict[str, list[Trace]] = {}
    unusable: Counter[str] = Counter()
    for trace in traces:
        if not trace.steps:
            unusable["no steps"] += 1
        elif trace.outcome is False:
            unusable["wrong outcome"] += 1
        else:
            by_problem.setdefault(trace.problem_id, []).append(trace)
    return by_problem, unusable


@dataclass(frozen=True, kw_only=True)
class _Path:
    """An expert's trace and its comparable steps: number of the step, key."""

    trace: Trace
    steps: list[tuple[int, Any]]


def _excerpt(trace: Trace, step: int) -> str:
    calls = [f"{call.name}({call.arguments})" for call in trace.calls_of(step)]
    text = " ".join(calls or trace.step_text(step).split())
    return text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…"
