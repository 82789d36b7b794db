"""Truth of steps, against all lines that can be written about a problem and a second reader of it."""

from __future__ import annotations

import itertools
import operator
import random
import re

import pytest
from graph_reader import read_people

from surefoot.errors import RecordError
from surefoot.lab import LabVerifier, Setting, check_steps, draw_problem, generate_problems, worked_solution
from surefoot.labelling import EquationVerifier
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

BEN, CARA, DEV = (
    "Ben has 17 more than Ann",
    "Ben has 3 times as many as Cara",
    "Dev has as many as Ann and Ben together",
)
TEXT = (
    "Ben has 3 times as many as Cara. Dev has as many as Ann and Ben together. Ann counts 34 cards. "
    "Ben has 17 more than Ann. How many cards does Cara have?"
)
QUANTITIES = {
    "Ben has": [34, "+", 17, "Ann", "", BEN],
    "Cara has": [51, "/", 3, "Ben", "", CARA],
    "Dev has": [34, "+", 51, "Ann", "Ben", DEV],
}
PROBLEM = Problem(
    text=TEXT, answer="17", meta={"lab": {"quantities": QUANTITIES, "goal": "Cara has", "family": "graph"}}
)
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def judged(text, problem=PROBLEM):
    return check_steps(problem, segment_trace(Trace(problem_id=problem.id, text=text), Line()))


def test_a_line_is_right_if_a_second_reader_finds_its_value_by_its_sentence_and_no_other():
    rng = random.Random(2)
    judgements = []
    for _ in range(12):
        problem = draw_problem(rng, Setting(graphs=1.0, distractor=0.0, opinion=0.0, people=(3, 3)))
        people, record = read_people(problem.text), problem.record()
        facts = {holding.sentence.rstrip(".") for holding in people.values()} | {""}
        numbers = [(owner, holding.value) for owner, holding in people.items()]
        numbers += [("", int(number)) for number in set(re.findall(r"\d+", problem.text))]
        for fact, name, symbol in itertools.product(facts, people, OPERATIONS):
            for (first, left), (second, right) in itertools.product(numbers, numbers):
                result = OPERATIONS[symbol](left, right)
                if result != int(result) or not 0 < result < 10_000:
                    continue
                one, two = (f"{owner}'s " if owner else "" for owner in (first, second))
                cited = f"{fact}. " if fact else ""
                line = f"{cited}{name} has {one}{left} {symbol} {two}{right} = {int(result)}.\n"
                (truth,) = judged(line, record)
                others = re.findall("[A-Z][a-z]+", fact.replace(name, "", 1))
                written = sorted([f"{first}{'' if first else left}", f"{second}{'' if second else right}"])
                given = fact and people[name].sentence == f"{fact}."
                is_right = (
                    given
                    and people[name].value == result
                    and written == sorted([*others, *re.findall(r"\d+", fact)])
                )
                same = [s for s in OPERATIONS if OPERATIONS[s](left, right) == result]
                if len(same) == 1:
                    assert truth.right is bool(is_right), line
                    assert truth.kind in (None, "reasoning")
                    judgements.append(truth.right)
    assert judgements.count(True) > 12
    assert judgements.count(False) > 10_000


@pytest.mark.parametrize(
    ("line", "value", "kind"),
    [
        (f"{BEN}. Ben has Ann's 34 + 17 = 51.", 1, None),
        (f"{BEN}. Ben has 17 + Ann's 34 = 51.", 1, None),
        (f"{DEV}. Dev has Ben's 51 + Ann's 34 = 85.", 1, None),
        (f"{BEN}. Ben has Ann's 34 + 17 = 41.", -1, "slip"),
        (f"{BEN}. Ben has Ann's 34 - 17 = 17.", -1, "reasoning"),
        (f"{BEN}. Ben has Ann's 34 * 3 = 102.", -1, "reasoning"),
        (f"{BEN}. Ann has Ann's 34 + 17 = 51.", -1, "reasoning"),
        (f"{BEN}. Hugo has Ann's 34 + 17 = 51.", -1, "reasoning"),
        (f"{CARA}. Cara has 3 / Ben's 51 = 17.", -1, "slip"),
        (f"{BEN}. Ben has Ann's 34 - 34 = 0.", -1, "reasoning"),
        (f"{BEN}. Ben has Ann's 34 / 34 = 0.", -1, "slip"),
        ("Ben has Ann's 34 + 17 = 51.", -1, "reasoning"),
        ("Ann has 17 more than Ben. Ben has Ann's 34 + 17 = 51.", -1, "reasoning"),
        (f"{BEN}. Ben has Ann's 50 + 1 = 51.", -1, "reasoning"),
        (f"{BEN}. Ben has 34 + 17 = 51.", -1, "reasoning"),
        (f"{DEV}. Dev has Ben's 34 + Ann's 51 = 85.", -1, "reasoning"),
        (f"{DEV}. Dev has Ann's 34 + Cara's 51 = 85.", -1, "reasoning"),
        ("So Ben has 34 more.", -1, "form"),
        ("Answer: 17.", 1, None),
        ("Answer: 51.", -1, "reasoning"),
    ],
)
def test_a_line_is_judged_by_arithmetic_and_by_the_problem(line, value, kind):
    (truth,) = judged(line + "\n")
    assert (truth.value, truth.kind) == (value, kind)


def test_what_follows_from_a_wrong_value_is_carried_and_what_does_not_is_judged_by_itself():
    text = f"{BEN}. Ben has Ann's 34 + 17 = 61.\n{CARA}. Cara has Ben's 61 / 3 = 20.\n"
    text += f"{DEV}. Dev has Ann's 34 + Ben's 61 = 95.\n"
    text += f"{DEV}. Dev has Ann's 34 + Ben's 51 = 85.\nAnswer: 20.\n"
    assert [truth.kind for truth in judged(text)] == ["slip", "slip", "carried", None, "carried"]
    text = f"{BEN}. Ben has Ann's 34 - 17 = 17.\n{DEV}. Dev has Ben's 17 + Ann's 34 = 51.\n"
    text += "Answer: 17.\n" * 2
    assert [truth.kind for truth in judged(text)] == ["reasoning", "carried", None, "form"]


def test_a_repeated_right_line_is_neutral():
    assert [truth.value for truth in judged(f"{BEN}. Ben has Ann's 34 + 17 = 51.\n" * 2)] == [1, 0]
    assert [truth.value for truth in judged(f"{BEN}. Ben has Ann's 34 + 17 = 41.\n" * 2)] == [-1, -1]


def test_the_verifier_gives_the_kind_and_refuses_problems_of_another_world():
    trace = segment_trace(Trace(problem_id=PROBLEM.id, text=f"{BEN}. Ben has Ann's 34 - 17 = 17.\n"), Line())
    ((verdict,),) = LabVerifier().verify([ProblemTrace(problem=PROBLEM, trace=trace)])
    assert verdict.value == -1
    assert verdict.reason.startswith("reasoning: ")
    for other in (
        Problem(text="Start with 7. Add 3."),
        Problem(text="?", meta={"lab": {"quantities": {}, "goal": "x"}}),
    ):
        with pytest.raises(RecordError, match="not of the lab"):
            check_steps(other, trace)


def test_the_check_of_equations_refutes_slips_and_nothing_else():
    """What stays open says why: a division may be rounded on purpose, and ``by`` may begin a comparison."""
    problems = generate_problems(300, seed=8)
    texts = [worked_solution(problem) for problem in problems]
    wrong = [re.sub(r"= (\d+)\.", lambda match: f"= {int(match[1]) + 3}.", text) for text in texts]
    right, slips = (
        EquationVerifier().verify(
            [
                ProblemTrace(
                    problem=problem,
                    trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()),
                )
                for problem, text in zip(problems, solutions, strict=True)
            ]
        )
        for solutions in (texts, wrong)
    )
    assert {verdict.value for row in right for verdict in row} <= {None, 1}
    lines = [verdict for row in slips for verdict in row[:-1]]
    assert {verdict.value for verdict in lines} <= {None, -1}
    still_open = [verdict.reason for verdict in lines if verdict.value is None]
    assert all("rounded on purpose" in reason or "'by' precedes" in reason for reason in still_open)
    assert len(still_open) < 0.1 * len(lines)
