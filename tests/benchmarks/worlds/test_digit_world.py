"""The last-digit world: its problems, its right solutions, and the checker against a second one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.digits.world import (
    ArithmeticChain,
    Difficulty,
    ExactLabeller,
    apply,
    check_steps,
    draw_chain,
    generate_problems,
    is_line,
    parse_problem,
    worked_solution,
)
from surefoot.errors import RecordError
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import Problem, Step, Trace

CHAIN = ArithmeticChain(start=7, operations=(("+", 3), ("*", 4), ("-", 9)))
PROBLEM = Problem(text=CHAIN.text, answer="1")
RIGHT = "7 + 3 = 0\n0 * 4 = 0\n0 - 9 = 1\nAnswer: 1\n"
CHAINS = st.builds(
    ArithmeticChain,
    start=st.integers(0, 9),
    operations=st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 9)), min_size=1, max_size=8).map(
        tuple
    ),
)


def cut_lines(problem: Problem, text: str) -> Trace:
    steps, start = [], 0
    for line in text.splitlines(keepends=True):
        steps.append(Step(start=start, end=start + len(line)))
        start += len(line)
    return Trace(problem_id=problem.id, text=text, steps=tuple(steps))


def verdicts(text, chain=CHAIN):
    problem = Problem(text=chain.text)
    return check_steps(problem, cut_lines(problem, text))


def values(text, chain=CHAIN):
    return [verdict.value for verdict in verdicts(text, chain)]


# --- problems


def test_problems_are_seeded_and_distinct():
    first = generate_problems(200, seed=3)
    assert first == generate_problems(200, seed=3)
    assert first != generate_problems(200, seed=4)
    assert len({problem.id for problem in first}) == 200
    assert all(problem.answer == str(parse_problem(problem.text).answer) for problem in first)


def test_problems_keep_to_their_difficulty():
    difficulty = Difficulty(min_operations=2, max_operations=3, operations="*")
    chains = [parse_problem(p.text) for p in generate_problems(50, seed=0, difficulty=difficulty)]
    assert {len(chain.operations) for chain in chains} == {2, 3}
    assert {symbol for chain in chains for symbol, _ in chain.operations} == {"*"}


def test_excluded_problems_are_not_made_again():
    small = Difficulty(min_operations=1, max_operations=1, operations="+")
    held_out = generate_problems(60, seed=0, difficulty=small)
    rest = generate_problems(40, seed=0, difficulty=small, exclude=held_out)
    assert len({p.text for p in held_out + rest}) == 100  # every problem of this difficulty, once


def test_a_difficulty_with_too_few_problems_is_an_error():
    small = Difficulty(min_operations=1, max_operations=1, operations="+")
    with pytest.raises(ValueError, match="fewer than 101 distinct problems"):
        generate_problems(101, seed=0, difficulty=small)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_operations": 0}, "min_operations"),
        ({"min_operations": 4, "max_operations": 3}, "max_operations"),
        ({"operations": ""}, "operations must be made of"),
        ({"operations": "+/"}, "operations must be made of"),
    ],
)
def test_impossible_difficulties_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Difficulty(**fields)


@settings(deadline=None)
@given(CHAINS)
def test_a_chain_round_trips_through_its_text(chain):
    assert parse_problem(chain.text) == chain
    assert parse_problem(chain.text + "\n") == chain


@settings(deadline=None)
@given(CHAINS)
def test_the_answer_is_the_last_digit_of_ordinary_arithmetic(chain):
    value = chain.start
    for symbol, digit in chain.operations:
        value = {"+": value + digit, "-": value - digit, "*": value * digit}[symbol]
    assert chain.answer == value % 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Start with 7.",
        "Add 3.",
        "Start with 7. Add 33.",
        "Start with 7. Add 3. Then rest.",
        "Start with ٧. Add 3.",
        " Start with 7. Add 3.",
    ],
)
def test_other_texts_are_not_problems(text):
    with pytest.raises(RecordError, match="not a problem of the digit world"):
        parse_problem(text)


# --- right solutions


def test_a_worked_solution():
    assert worked_solution(CHAIN) == RIGHT
    with pytest.raises(ValueError, match="rng"):
        worked_solution(CHAIN, slip=0.1)


@settings(deadline=None)
@given(CHAINS, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 0.3, 1.0]))
def test_worked_solutions_are_right_whatever_is_repeated_or_taken_back(chain, seed, restate, slip):
    text = worked_solution(chain, rng=np.random.default_rng(seed), restate=restate, slip=slip)
    lines = text.splitlines(keepends=True)
    assert all(is_line(line) for line in lines)
    assert values(text, chain) == [0 if line.startswith("Now") else 1 for line in lines]
    assert lines[-1] == f"Answer: {chain.answer}\n"


def test_a_slip_is_always_wrong():
    rng = np.random.default_rng(0)
    chains = [draw_chain(rng, Difficulty()) for _ in range(200)]
    for chain in chains:
        for line in worked_solution(chain, rng=rng, slip=1.0).splitlines()[:-1]:
            slipped, kept = line.split(", no, ")
            assert slipped != kept


# --- the checker, case by case


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        ("7 + 3 = 4\n", [-1], "7 + 3 ends in 0, not 4"),
        ("5 + 3 = 8\n", [-1], "starts from 5, but the running value is 7"),
        ("7 - 3 = 4\n", [-1], "does - 3, but the next step is + 3"),
        ("7 + 4 = 1\n", [-1], "does + 4, but the next step is + 3"),
        ("Now 6\n", [-1], "states 6, but the running value is 7"),
        ("Answer: 7\n", [-1], "answers with 3 operations left"),
        ("7 + 3 = 10\n", [-1], "not a line of this world: '7 + 3 = 10'"),
        ("7 + 3 = 0", [-1], "not a line of this world"),
        ("7 + 3 = ٠\n", [-1], "not a line of this world"),
        (RIGHT[:-2] + "2\n", [1, 1, 1, -1], "answers 2, but the running value is 1"),
        (RIGHT[:30] + "1 + 1 = 2\n", [1, 1, 1, -1], "does + 1, but the next step is to answer"),
        (RIGHT + "Answer: 1\n", [1, 1, 1, 1, -1], "a line after the answer"),
    ],
)
def test_each_kind_of_wrong_line(text, expected, reason):
    found = verdicts(text)
    assert [verdict.value for verdict in found] == expected
    assert reason in found[-1].reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 + 3 = 0\n7 + 3 = 0\n0 * 4 = 0\n", [1, 0, 1]),
        ("7 + 3 = 0\n0 * 4 = 0\n7 + 3 = 0\n0 - 9 = 1\n", [1, 1, 0, 1]),
        ("9 + 3 = 2, no, 7 + 3 = 0\n7 + 3 = 0\n", [1, 0]),
        ("7 + 3 = 0\n9 + 3 = 2, no, 7 + 3 = 0\n", [1, 0]),
        ("Now 7\n7 + 3 = 0\nNow 0\nNow 0\n", [0, 1, 0, 0]),
        ("7 + 3 = 4\n7 + 3 = 4\n", [-1, -1]),  # a wrong step said twice is no repetition of a right one
    ],
)
def test_a_repeated_step_or_a_restatement_is_neutral(text, expected):
    assert values(text) == expected


def test_an_error_is_counted_only_where_it_is_made():
    assert values("7 + 3 = 4\n4 * 4 = 6\n6 - 9 = 7\nAnswer: 7\n") == [-1, 1, 1, 1]
    assert values("7 + 3 = 5\n5 * 4 = 0\n0 - 9 = 1\nAnswer: 1\n") == [-1, 1, 1, 1]  # right by luck


# --- the checker against a second one, written apart


def judge_again(chain: ArithmeticChain, lines: list[str]) -> list[int]:
    """The rules of the world once more, on split words rather than patterns."""
    value, todo, done_right, answered, verdict = chain.start, list(chain.operations), [], False, []
    for line in lines:
        body, broken = line.removesuffix("\n"), not line.endswith("\n")
        words = body.split(" ")
        if ", no, " in body and _is_equation(after := body.split(", no, ")[-1].split(" ")):
            words = after
        if answered:
            verdict.append(-1)
        elif _is_equation(words) and not broken:
            a, symbol, b, result = int(words[0]), words[1], int(words[2]), int(words[4])
            if a == value and todo and todo[0] == (symbol, b):
                right = {"+": a + b, "-": a - b, "*": a * b}[symbol] % 10 == result
                verdict.append(1 if right else -1)
                done_right += [(a, symbol, b, result)] if right else []
            elif (a, symbol, b, result) in done_right:
                verdict.append(0)
                continue
            else:
                verdict.append(-1)
            value, todo = result, todo[1:]
        elif words[0] == "Now" and len(words) == 2 and _is_digit(words[1]) and not broken:
            verdict.append(0 if int(words[1]) == value else -1)
            value = int(words[1])
        elif words[0] == "Answer:" and len(words) == 2 and _is_digit(words[1]):
            answered = True
            verdict.append(1 if not todo and int(words[1]) == value else -1)
        else:
            verdict.append(-1)
    return verdict


def _is_digit(word: str) -> bool:
    return len(word) == 1 and word in "0123456789"


def _is_equation(words: list[str]) -> bool:
    shape = len(words) == 5 and words[3] == "=" and len(words[1]) == 1 and words[1] in "+-*"
    return shape and all(_is_digit(words[place]) for place in (0, 2, 4))


@st.composite
def corrupted(draw):
    """A chain with a solution in which characters were replaced and lines dropped, doubled and moved."""
    chain = draw(CHAINS)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lines = worked_solution(chain, rng=rng, restate=0.2, slip=0.2).splitlines(keepends=True)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["replace", "drop", "double", "move"])):
            case "replace":
                where = draw(st.integers(0, len(lines[at]) - 1))
                new = draw(st.sampled_from("0123456789+-*= ANx"))
                lines[at] = lines[at][:where] + new + lines[at][where + 1 :]
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case _:
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
    return chain, "".join(lines)


@settings(max_examples=300, deadline=None)
@given(corrupted())
def test_the_checker_agrees_with_a_second_one_on_corrupted_solutions(case):
    chain, text = case
    assert values(text, chain) == judge_again(chain, text.splitlines(keepends=True))


# --- labels


@pytest.mark.parametrize(
    ("after_error", "expected"),
    [("unlabelled", [1, -1, None, None, None]), ("step", [1, -1, 1, 0, 1]), ("wrong", [1, -1, -1, -1, -1])],
)
def test_labels_after_the_first_error(after_error, expected):
    text = "7 + 3 = 0\n0 * 4 = 1\n1 - 9 = 2\nNow 2\nAnswer: 2\n"
    labeller = ExactLabeller(after_error=after_error)
    assert isinstance(labeller, Labeller)
    item = ProblemTrace(problem=PROBLEM, trace=cut_lines(PROBLEM, text))
    right = ProblemTrace(problem=PROBLEM, trace=cut_lines(PROBLEM, RIGHT))
    labels, unharmed = asyncio.run(labeller.label([item, right]))
    assert [label.value for label in labels] == expected
    assert [label.step for label in labels] == list(range(5))
    assert {(label.trace_id, label.kind, label.source) for label in labels} == {
        (item.trace.id, "correctness", "digit-checker")
    }
    assert all((label.value is None) == (label.reason == "after the first error") for label in labels)
    assert labels[1].evidence.message == "0 * 4 ends in 0, not 1"
    assert [label.value for label in unharmed] == [1, 1, 1, 1]


def test_apply_keeps_the_last_digit():
    assert [apply(3, symbol, 8) for symbol in "+-*"] == [1, 5, 4]
