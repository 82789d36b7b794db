"""Traces with step labels, the material of every audit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.evaluation.audits.scorers import AuditedScorer
from surefoot.evaluation.frame import JudgedTrace
from surefoot.evaluation.label_sets import label_set
from surefoot.lab.world import SolutionState, check_steps, parse_problem
from surefoot.labels import NO_ERROR, all_good, first_error
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, Trace

_LINE = re.compile(r"(?<!\w)(?:(?:[^\n]*, no, )?\d [-+*] \d = \d|Now \d|Answer: \d)(?!\w)", re.ASCII)
"""A line of the world inside other text; for a corrected slip, the corrected line."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trace with the labels of its steps."""

    item: ProblemTrace
    good: tuple[bool | None, ...]
    """One per step; ``None`` = unknown, as usual after the first error."""

    @property
    def problem_id(self) -> str:
        """The unit that intervals resample."""
        return self.item.problem.id

    @property
    def outcome(self) -> bool | None:
        """Whether the final answer is correct; ``None`` = not graded."""
        return self.item.trace.outcome

    @property
    def right(self) -> bool | None:
        """Whether all steps are good; ``None`` if none is bad and one is unknown."""
        return all_good(self.good)

    @property
    def first_error(self) -> int | None:
        """The first bad step, if all before it are known to be good."""
        step = first_error(self.good)
        return None if step == NO_ERROR else step


def labelled_cases(items: Sequence[ProblemTrace], labels: Sequence[StepLabel]) -> list[Case]:
    """Cases from stored labels. Raises ``LabelError`` if no label belongs to a step of the traces."""
    rows = label_set("labels", labels, [item.trace for item in items]).good
    return [Case(item=item, good=tuple(row)) for item, row in zip(items, rows, strict=True)]


def lab_cases(items: Sequence[ProblemTrace]) -> list[Case]:
    """Cases from the lab's exact checker. Raises ``RecordError`` for a problem of another world."""
    return [
        Case(item=item, good=tuple(verdict.value != -1 for verdict in check_steps(item.problem, item.trace)))
        for item in items
    ]


def judged_cases(
    audited: AuditedScorer, cases: Sequence[Case], threshold: float = 0.5
) -> Iterator[JudgedTrace]:
    """Cases with a known first error and the first step below ``threshold``, for worked examples."""
    erring = [case for case in cases if case.first_error is not None]
    for case, row in zip(erring, audited.score([case.item for case in erring]).steps, strict=True):
        below = [step for step, score in enumerate(row) if score < threshold]
        yield JudgedTrace(
            trace=case.item.trace,
            problem=case.item.problem.text,
            error=case.first_error or 0,
            predicted=None if np.isnan(row).all() else below[0] if below else -1,
            threshold=threshold,
            scores=[None if np.isnan(score) else float(score) for score in row],
        )


def lab_right(problem: Problem, trace: Trace) -> bool:
    """Whether an edited lab solution is correct: it has an answer, and no line is wrong.

    Lines that the lab cannot parse are ignored: its checker would reject them, but a style edit must not make
    a correct solution wrong.
    """
    state = SolutionState(parse_problem(problem.text))
    verdicts = [state.judge(line[0] + "\n") for line in _LINE.finditer(trace.text or "")]
    return state.answered and all(verdict.value != -1 for verdict in verdicts)
