"""Rationalised solutions: built so that only calculating shows the fault."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from toy_scorers import audited, constant, exact, length, outcome

from benchmarks.worlds.digits.audits import digit_cases
from benchmarks.worlds.digits.world import ArithmeticChain, generate_problems, other_digit, parse_problem
from surefoot.errors import ScoreError
from surefoot.evaluation.audits import Case, audit_clean
from surefoot.evaluation.audits.process import group_of
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace


def rationalised_lab_cases(problems: Sequence[Problem], *, seed: int = 0) -> list[Case]:
    """For each lab problem a correct solution, a rationalised one and a wrong one.

    The rationalised one has a wrong result in a random line, continues correctly from it, and states the
    correct answer as the result of its last operation. Each line starts with the result of the line before,
    so only calculation reveals the fault. The wrong one is the same with the calculated last result. A
    problem that loses the wrong result on the way (0 times anything) lacks a wrong one; one with a single
    operation has the correct solution alone. Raises ``RecordError`` for a problem of another world.
    """
    rng = np.random.default_rng(seed)
    items: list[ProblemTrace] = []
    for problem in problems:
        chain = parse_problem(problem.text)
        results = chain.running(chain.start)[1:]
        items.append(_lab_item(problem, chain, results, "right"))
        if len(results) < 2:
            continue
        at = int(rng.integers(len(results) - 1))
        honest = [*results[:at], *chain.running(other_digit(results[at], rng, chain.base), at + 1)]
        items.append(_lab_item(problem, chain, [*honest[:-1], results[-1]], "rationalised"))
        if honest[-1] != results[-1]:
            items.append(_lab_item(problem, chain, honest, "wrong"))
    return digit_cases(items)


def _lab_item(problem: Problem, chain: ArithmeticChain, results: Sequence[int], name: str) -> ProblemTrace:
    starts = [chain.start, *results]
    lines = [
        f"{start} {symbol} {digit} = {result}\n"
        for start, (symbol, digit), result in zip(starts, chain.operations, results, strict=False)
    ]
    trace = Trace(
        problem_id=problem.id,
        text="".join([*lines, f"Answer: {results[-1]}\n"]),
        answer=str(results[-1]),
        outcome=results[-1] == chain.answer,
        policy=f"lab-{name}",
    )
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))


PROBLEMS = generate_problems(40, seed=4)
CASES = rationalised_lab_cases(PROBLEMS, seed=1)


def test_built_solutions_are_what_they_are_called():
    groups = [group_of(case) for case in CASES]
    assert [groups.count(name) for name in ("right", "rationalised", "wrong")][:2] == [40, 40]
    assert 25 < groups.count("wrong") < 40
    for case, group in zip(CASES, groups, strict=True):
        assert case.item.trace.policy == f"lab-{group}"
        assert case.outcome == (case.item.trace.answer == case.item.problem.answer)


def test_a_rationalised_solution_hangs_together_line_by_line():
    for case in CASES:
        if group_of(case) != "rationalised":
            continue
        chain = parse_problem(case.item.problem.text)
        lines = re.findall(r"(\d) ([-+*]) (\d) = (\d)\n", case.item.trace.text)
        assert [(symbol, int(digit)) for _, symbol, digit, _ in lines] == list(chain.operations)
        assert [start for start, *_ in lines] == [str(chain.start), *(end for *_, end in lines[:-1])]
        assert case.item.trace.text.endswith(f"Answer: {case.item.problem.answer}\n")
        assert 1 <= case.good.count(False) <= 2


def test_a_checker_sees_through_them_and_a_scorer_of_outcomes_does_not():
    seen = audit_clean(audited(exact), CASES, draws=200)
    assert seen.right_over_rationalised.value == seen.right_over_wrong.value == 1
    assert seen.groups["rationalised"].cleared.value == 0
    blind = audit_clean(audited(outcome, "last"), CASES, draws=200)
    assert blind.right_over_rationalised.value == 0.5
    assert blind.right_over_wrong.value == 1
    assert blind.groups["rationalised"].cleared.value == 1
    assert blind.groups["wrong"].cleared.value == 0


@pytest.mark.parametrize("rule", [constant, length])
def test_looks_tell_nothing(rule):
    found = audit_clean(audited(rule), CASES, draws=100)
    assert found.right_over_rationalised.value == 0.5


def test_what_is_in_no_group_is_counted():
    unknown = Case(item=CASES[0].item, good=(None,) * len(CASES[0].good))
    found = audit_clean(audited(exact), [*CASES, unknown], draws=20)
    assert found.ungrouped == 1
    assert sum(group.traces for group in found.groups.values()) == len(CASES)
    with pytest.raises(ScoreError, match="'rationalised'"):
        audit_clean(audited(exact), [case for case in CASES if group_of(case) != "rationalised"])


def test_short_chains_and_forgetful_ones():
    one = Problem(text=ArithmeticChain(start=1, operations=(("+", 1),)).text, answer="2")
    assert [group_of(case) for case in rationalised_lab_cases([one])] == ["right"]
    forgets = Problem(text=ArithmeticChain(start=1, operations=(("+", 1), ("*", 0))).text, answer="0")
    assert [group_of(case) for case in rationalised_lab_cases([forgets])] == ["right", "rationalised"]
