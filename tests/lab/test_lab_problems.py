"""Problems of the lab: a second reader finds the same answers, and seeds give the same problems."""

from __future__ import annotations

import operator
import random
import re

import pytest
from graph_reader import solve_by_reading

from surefoot.errors import RecordError
from surefoot.lab import Setting, check_steps, draw_problem, generate_problems, read_problem, worked_solution
from surefoot.lab.problems import HELD_OUT, NAMES, SEEN
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@pytest.mark.parametrize("held_out", [False, True])
def test_the_answer_of_a_graph_is_the_one_its_sentences_give(held_out):
    rng = random.Random(3)
    for _ in range(300):
        problem = draw_problem(rng, Setting(graphs=1.0, held_out=held_out))
        assert solve_by_reading(problem.text) == problem.answer
        assert 2 <= len(problem.needed) <= 3


def test_worked_solutions_are_right_in_every_step_and_all_their_numbers_come_from_the_text_or_a_line_before():
    rng = random.Random(4)
    for held_out in (False, True):
        seen = set()
        for _ in range(300):
            problem = draw_problem(rng, Setting(held_out=held_out, opinion=0.2))
            seen.add(problem.family)
            record = problem.record()
            solution = worked_solution(record)
            solved = segment_trace(Trace(problem_id=record.id, text=solution), Line())
            assert all(truth.value == 1 for truth in check_steps(record, solved))
            known = set(re.findall(r"\d+", problem.text)) | {"2", "4", "5", "10"}
            for line in solution.splitlines():
                *operands, result = re.findall(r"\d+", line)
                assert set(operands) <= known
                known.add(result)
                if match := re.search(r"(\d+) ([-+*/]) (\d+) = (\d+)\.", line):
                    exact = OPERATIONS[match[2]](int(match[1]), int(match[3]))
                    assert exact == int(match[4])
        assert seen == {"graph", *(family.__name__.strip("_") for family in (HELD_OUT if held_out else SEEN))}


def test_a_person_is_the_subject_of_one_comparison_at_most():
    rng = random.Random(8)
    inverse = 0
    for _ in range(200):
        problem = draw_problem(rng, Setting(graphs=1.0, distractor=0.0, opinion=0.0, people=(3, 6)))
        subjects = re.findall(r"(\w+) has", problem.text)
        assert len(subjects) == len(set(subjects)) == len(problem.quantities)
        inverse += sum(not q.fact.startswith(label) for label, q in problem.quantities.items())
    assert inverse > 100


def test_problems_are_distinct_reproducible_and_not_among_the_excluded():
    first = generate_problems(40, seed=5)
    assert [p.text for p in generate_problems(40, seed=5)] == [p.text for p in first]
    assert len({p.text for p in first}) == 40
    assert not {p.text for p in generate_problems(40, seed=5, exclude=first)} & {p.text for p in first}


@pytest.mark.parametrize("family", ["graph", "template"])
def test_a_problem_has_its_quantities_and_another_has_none(family):
    [problem] = generate_problems(1, seed=0, setting=Setting(graphs=float(family == "graph")))
    quantities, goal = read_problem(problem)
    assert str(quantities[goal].value) == problem.answer
    assert all(q.line(label).startswith(q.fact) and label in q.line(label) for label, q in quantities.items())
    about = problem.meta["lab"]
    many = {f"{name} {number}": [1, "+", 1, "", "", ""] for name in NAMES for number in range(9)}
    for wrong in (
        {},
        {"goal": goal},
        about | {"goal": "?"},
        about | {"quantities": {goal: [1, "-", 1, "", "", ""]}},
        about | {"quantities": {goal: [1, "-"]}},
        about | {"quantities": many, "goal": "Ann 0"},
    ):
        with pytest.raises(RecordError, match="is not of the lab"):
            read_problem(Problem(text=problem.text, meta={"lab": wrong}))


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, (0, -1, 1.9, 1.0, True, "1", None, [1], 10_000, 10**4000)),
        (1, ("", "+-", "×", "//", "**", "x", 1, None, ["+"])),
        (2, (0, -1, 2.5, True, "2", None, {}, 10_000, 10**4000)),
        (3, (None, 1, ["Ann"], "A" * 81)),
        (4, (None, 1, ["Ann"], "A" * 81)),
        (5, (None, 1, ["x"], "x" * 81)),
    ],
)
@pytest.mark.parametrize("label", ["Ann has", "Ben has"])
def test_each_part_of_a_quantity_is_checked_whether_it_is_the_goal_or_not(place, values, label):
    for value in values:
        rows = {"Ann has": [6, "+", 2, "Ann", "", "x"], "Ben has": [6, "/", 2, "Ann", "", "x"]}
        assert read_problem(Problem(text="?", meta={"lab": {"quantities": rows, "goal": "Ann has"}}))
        rows[label][place] = value
        problem = Problem.model_construct(
            id="p7", text="?", meta={"lab": {"quantities": rows, "goal": "Ann has"}}
        )
        with pytest.raises(RecordError, match=f"problem p7 is not of the lab: its quantity '{label}'"):
            read_problem(problem)


def test_a_row_that_is_none_or_a_label_that_is_too_long_is_refused_in_few_words():
    fine, long = [6, "+", 2, "", "", ""], "x" * 10_000
    for label, row in (
        *(("Ben has", row) for row in ("1+1abc", "", None, 7, {}, [], fine[:5], [*fine, ""])),
        *(
            ("Ben has", row)
            for row in ([2, "-", 6, "", "", ""], [6, "-", 6, "", "", ""], [7, "/", 2, "", "", ""])
        ),
        (long, fine),
        (7, fine),
    ):
        about = {"quantities": {"Ann has": fine, label: row}, "goal": "Ann has"}
        with pytest.raises(RecordError, match=f"its quantity '{str(label)[:80]}'") as refused:
            read_problem(Problem(text="?", meta={"lab": about}))
        assert len(str(refused.value)) < 300
    for about in (
        None,
        [],
        "x",
        {"quantities": [fine], "goal": 0},
        {"quantities": {"Ann has": fine}, "goal": ["Ann has"]},
    ):
        with pytest.raises(RecordError, match="no readable"):
            read_problem(Problem(text="?", meta={"lab": about}))


def test_a_circle_of_people_ends():
    circle = {"Ann has": [1, "+", 1, "Ben", "", "x"], "Ben has": [1, "+", 1, "Ann", "", "x"]}
    problem = Problem(text="?", meta={"lab": {"quantities": circle, "goal": "Ann has"}})
    assert worked_solution(problem).count("\n") == 3


def test_a_setting_of_too_few_problems_is_refused(monkeypatch):
    monkeypatch.setattr("surefoot.lab.problems.NAMES", ("Ann", "Ben"))
    monkeypatch.setattr("surefoot.lab.problems.ITEMS", ("cards",))
    few = Setting(graphs=1.0, people=(2, 2), steps=(1, 1), start=2, change=2, distractor=0.0, opinion=0.0)
    with pytest.raises(ValueError, match="this setting has fewer than 50 distinct problems"):
        generate_problems(50, seed=0, setting=few)
