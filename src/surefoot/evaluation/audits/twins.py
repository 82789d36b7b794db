"""Perturbed twins: the same problem and solution with other numbers, as in PARC.

A scorer that reads the steps gives the twin of a correct solution the same score, and a low one to the old
solution of the new problem. One that has memorized problems does neither. Truth is recomputed: in the lab
exactly, elsewhere from the solution's own equations; if that fails, no twin is made.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from surefoot.errors import RecordError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import Piece, pieces, rebuilt
from surefoot.evaluation.audits.variants import SolutionAudit, SolutionVariant, effects_section, of_problem
from surefoot.evaluation.report import Section
from surefoot.lab.world import parse_problem, worked_solution
from surefoot.maths import print_number
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace, content_id
from surefoot.segment import Line, segment_trace

_NUMBER = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?![\w%]|[.,]\d)", re.ASCII)
_VALUE = r"\$?(\d+(?:\.\d+)?)"
_EQUATION = re.compile(
    rf"(?<![\w.,)*/+-]){_VALUE} *([-+*/×]|\\times) *{_VALUE} *= *{_VALUE}(?!\w|[.,]\d| *[-+*/×=\\%])",
    re.ASCII,
)
_OPERATIONS = dict.fromkeys(("*", "×", r"\times"), operator.mul)
_OPERATIONS |= {"+": operator.add, "-": operator.sub, "/": operator.truediv}
_FACTORS = (2, 3, 4, 5, 7, Fraction(1, 2), Fraction(1, 3))
_SMALLEST = 5  # smaller numbers are often not a quantity of the problem: a half, a pair


def _twin(case: Case, _: Sequence[Case], rng: np.random.Generator) -> ProblemTrace | None:
    """The problem and solution with other numbers, and the recomputed answer."""
    try:
        chain = parse_problem(case.item.problem.text)
    except RecordError:
        return _arithmetic_twin(case, rng)
    for start in rng.permutation(chain.base).tolist():
        twin = replace(chain, start=start)
        if twin.answer != chain.answer:
            problem = Problem(text=twin.text, answer=str(twin.answer), source="lab")
            trace = Trace(problem_id=problem.id, text=worked_solution(twin), answer=problem.answer)
            return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))
    return None  # the answer does not depend on the start


def _old_solution(case: Case, cases: Sequence[Case], rng: np.random.Generator) -> ProblemTrace | None:
    twin = _twin(case, cases, rng)
    return of_problem(case.item.trace, twin.problem, "old") if twin else None


TWINS = (
    SolutionVariant(name="other numbers", on="right", must="stay", make=_twin),
    SolutionVariant(name="old solution of the twin", on="right", must="fall", make=_old_solution),
)
"""Twins of correct solutions, and the solution that may have been memorized, shown for the twin's problem."""


def _arithmetic_twin(case: Case, rng: np.random.Generator) -> ProblemTrace | None:
    """One number of the problem is multiplied, and every equation of the solution is computed again."""
    stated, text = _NUMBER.findall(case.item.problem.text), case.item.trace.text or ""
    answer = case.item.trace.answer or next(reversed(_NUMBER.findall(text)), "")
    if not _NUMBER.fullmatch(answer):
        return None
    once = sorted({n for n in stated if stated.count(n) == 1 and Fraction(n) >= _SMALLEST})
    for number in rng.permutation(once).tolist():
        for factor in _FACTORS:
            new = _recomputed(text, set(map(Fraction, stated)), Fraction(number), Fraction(factor))
            if new.get(Fraction(answer), Fraction(answer)) != Fraction(answer):
                return _with_numbers(case, answer, new)
    return None


def _recomputed(
    text: str, stated: set[Fraction], number: Fraction, factor: Fraction
) -> Mapping[Fraction, Fraction]:
    """New value of each number that depends on ``number``; empty if an equation cannot be computed again."""
    new, unchanged = {number: number * factor}, stated - {number}
    for first, symbol, second, result in (equations := _EQUATION.findall(text)):
        apply, a, b, c = _OPERATIONS[symbol], Fraction(first), Fraction(second), Fraction(result)
        try:
            stated_value, value = apply(a, b), apply(new.get(a, a), new.get(b, b))
        except ZeroDivisionError:
            return {}
        # the same number must not have two meanings
        clash = new.get(c, value) != value or (value != c and c in unchanged)
        if stated_value != c or value < 0 or clash:
            return {}
        if value == c:
            unchanged.add(c)
        else:
            new[c] = value
    unread = len(equations) != text.count("=")
    unknown = {n for n in map(Fraction, _NUMBER.findall(text)) if n >= _SMALLEST} - {*new, *unchanged}
    return new if not (unread or unknown or any(n.denominator != 1 for n in new.values())) else {}


def _with_numbers(case: Case, answer: str, new: Mapping[Fraction, Fraction]) -> ProblemTrace:
    def changed(text: str) -> str:
        return _NUMBER.sub(lambda m: print_number(new[n]) if (n := Fraction(m[0])) in new else m[0], text)

    text = changed(case.item.problem.text)
    changes = {"id": content_id("twin", case.problem_id, text), "text": text, "answer": changed(answer)}
    problem = case.item.problem.model_copy(update=changes)
    parts = [Piece(text=changed(part.text), gap=part.gap) for part in pieces(case.item.trace)]
    trace = rebuilt(case.item.trace, "twin", parts, step=0, was=0).trace
    return of_problem(trace.model_copy(update={"answer": problem.answer}), problem, "twin")


def twins_section(audits: Sequence[SolutionAudit]) -> Section:
    """Effects of other numbers."""
    return effects_section(
        audits,
        "twins",
        "Memorized problems",
        "A correct solution with other numbers must score alike, the old one of the new problem lower.",
        cause="a change of numbers",
    )
