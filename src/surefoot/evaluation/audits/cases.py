"""Traces with what is known of their steps: the material of every audit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.evaluation.label_sets import label_set
from surefoot.lab.world import SolutionState, check_steps, parse_problem
from surefoot.labels import NO_ERROR, LabelRule, all_good, first_error
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, Trace

_LINE = re.compile(r"(?<!\w)(?:(?:[^\n]*, no, )?\d [-+*] \d = \d|Now \d|Answer: \d)(?!\w)", re.ASCII)
"""A line of the world inside other words; of a slip that is taken back, what it was corrected to."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trace, and which of its steps are good."""

    item: ProblemTrace
    good: tuple[bool | None, ...]
    """One a step; ``None`` = unknown, as all steps after a first error usually are."""

    @property
    def problem_id(self) -> str:
        """What intervals resample."""
        return self.item.problem.id

    @property
    def outcome(self) -> bool | None:
        """Whether the final answer is right; ``None`` = not judged."""
        return self.item.trace.outcome

    @property
    def right(self) -> bool | None:
        """Whether the process is right: all steps good; ``None`` if none is bad and one is unknown."""
        return all_good(self.good)

    @property
    def first_error(self) -> int | None:
        """The first bad step, if all before it are known to be good."""
        step = first_error(self.good)
        return None if step == NO_ERROR else step


def labelled_cases(
    items: Sequence[ProblemTrace], labels: Sequence[StepLabel], reading: LabelRule | None = None
) -> list[Case]:
    """Cases from stored labels; ``reading`` says when a label is good.

    Raises ``LabelError`` if no label belongs to a step of the traces.
    """
    found = label_set("labels", labels, [item.trace for item in items], reading)
    return [Case(item=item, good=tuple(row)) for item, row in zip(items, found.good, strict=True)]


def lab_cases(items: Sequence[ProblemTrace]) -> list[Case]:
    """Cases from the lab's exact checker. Raises ``RecordError`` for a problem of another world."""
    return [
        Case(item=item, good=tuple(verdict.value != -1 for verdict in check_steps(item.problem, item.trace)))
        for item in items
    ]


def lab_right(problem: Problem, trace: Trace) -> bool:
    """Whether an edited lab solution is right, whatever is written around its lines.

    Words that are no line of the world count for nothing: the checker of the lab would call them wrong, but
    a style edit must not make a right solution wrong. It must have an answer, and no line may be wrong.
    """
    state = SolutionState(parse_problem(problem.text))
    verdicts = [state.judge(found[0] + "\n") for found in _LINE.finditer(trace.text or "")]
    return state.answered and all(verdict.value != -1 for verdict in verdicts)
