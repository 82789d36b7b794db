"""The word world: a second reader finds the same answers, every kind of error is named, tokens round-trip."""

from __future__ import annotations

import operator
import random
import re

import pytest

from benchmarks.worlds.digits import generate_problems
from benchmarks.worlds.words import Setting, WordVerifier, draw_problem, draw_problems, judge_steps, slips
from benchmarks.worlds.words.problems import HELD_OUT, SEEN
from benchmarks.worlds.words.pupils import EXACT, pupil_solution, slipped
from benchmarks.worlds.words.tokens import NO, build_words_tokenizer, decode, encode
from benchmarks.worlds.words.train import Recipe, training_row, wrong_line
from surefoot.errors import RecordError
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
    text=TEXT, answer="17", meta={"words": {"quantities": QUANTITIES, "goal": "Cara has", "family": "graph"}}
)


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def judged(text, problem=PROBLEM):
    return judge_steps(problem, segment_trace(Trace(problem_id=problem.id, text=text), Line()))


def solve_by_reading(text):
    """The answer of a graph from its sentences alone: equations between people, solved by substitution."""
    number, name = r"(\d+)", r"([A-Z][a-z]+)"
    values, relations = {}, []
    sentences = re.split(r"(?<=[.?]) ", text)
    for sentence in sentences:
        if match := re.fullmatch(rf"{name} counts {number} [a-z]+\.", sentence):
            values[match[1]] = int(match[2])
        elif match := re.fullmatch(rf"{name} has as many as {name} and {name} together\.", sentence):
            relations.append(tuple(match.groups()))
        for words, there, back in (
            ("more than", operator.add, operator.sub),
            ("fewer than", operator.sub, operator.add),
            ("times as many as", operator.mul, operator.truediv),
        ):
            pattern = rf"(?:For )?{name} (?:has|there are) {number} {words} (?:for )?{name}\."
            if match := re.fullmatch(pattern, sentence):
                relations.append((match[1], match[3], int(match[2]), there, back))
    for _ in range(10):
        for relation in relations:
            if len(relation) == 5:
                one, two, much, there, back = relation
                if two in values:
                    values.setdefault(one, there(values[two], much))
                if one in values:
                    values.setdefault(two, back(values[one], much))
            else:
                total, one, two = relation
                known = [each for each in relation if each in values]
                if {one, two} <= set(known):
                    values.setdefault(total, values[one] + values[two])
                for part, other in ((one, two), (two, one)):
                    if {total, other} <= set(known):
                        values.setdefault(part, values[total] - values[other])
    return values[re.search(rf"How many [a-z]+ does {name} have", text)[1]]


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
            record, solution = problem.record(), problem.solution()
            assert all(truth.value == 1 for truth in judged(solution, record))
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


def test_a_pupil_without_mistakes_writes_the_solution_and_others_err_in_known_ways():
    rng = random.Random(9)
    kinds = []
    for _ in range(400):
        problem = draw_problem(rng)
        assert pupil_solution(rng, problem, EXACT) == problem.solution()
        truths = judged(pupil_solution(rng, problem), problem.record())
        kinds.append(next((truth.kind for truth in truths if not truth.right), None))
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    assert set(shares) == {None, "slip", "reasoning"}
    assert shares["slip"] > 0.02
    assert shares["reasoning"] > 0.25


@pytest.mark.parametrize(
    ("left", "symbol", "right", "result"),
    [
        *((52, "-", 17, 45), (40, "-", 3, 43), (133, "-", 28, 115), (58, "-", 17, 41)),
        *((27, "+", 5, 22), (22, "+", 5, 27), (27, "*", 4, 88), (12, "*", 4, 48), (51, "/", 3, 17)),
    ],
)
def test_a_slip_forgets_the_carry_or_takes_the_smaller_digit_from_the_larger(left, symbol, right, result):
    assert slipped(left, symbol, right) == result


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
    assert slips(line) == (kind == "slip")


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
    ((verdict,),) = WordVerifier().verify([ProblemTrace(problem=PROBLEM, trace=trace)])
    assert verdict.value == -1
    assert verdict.reason.startswith("reasoning: ")
    for other in (
        *generate_problems(1, seed=0),
        Problem(text="?", meta={"words": {"quantities": {}, "goal": "x"}}),
    ):
        with pytest.raises(RecordError, match="not of the word world"):
            judge_steps(other, trace)


def test_problems_are_distinct_reproducible_and_not_among_the_excluded():
    first = draw_problems(40, seed=5)
    assert [p.text for p in draw_problems(40, seed=5)] == [p.text for p in first]
    assert len({p.text for p in first}) == 40
    assert not {p.text for p in draw_problems(40, seed=5, exclude=first)} & {p.text for p in first}


def test_tokens_round_trip_and_names_and_digits_have_one_form():
    tokenizer = build_words_tokenizer()
    rng = random.Random(6)
    for held_out in (False, True):
        for _ in range(200):
            problem = draw_problem(rng, Setting(held_out=held_out, opinion=0.3))
            text = f"{problem.text}\n{problem.solution()}"
            ids = encode(text)
            assert decode(ids) == text == tokenizer.decode(ids)
            assert tokenizer(text)["input_ids"] == [1, *ids]
    pieces = [tokenizer.decode(token) for token in encode("Ann has 12 more than Ben.\n")]
    assert pieces == ["Ann has ", "1", "2", " more than ", "Ben", ".", "\n"]


def test_a_wrong_line_of_the_trunk_is_wrong_and_has_no_loss():
    rng = random.Random(7)
    kinds = []
    for _ in range(400):
        problem = draw_problem(rng)
        label = rng.choice(problem.needed)
        before = "".join(problem.line(each) for each in problem.needed[: problem.needed.index(label)])
        truth = judged(before + wrong_line(rng, problem, label), problem.record())[-1]
        kinds.append(truth.kind if truth.value == -1 else "right")
    shares = {kind: kinds.count(kind) / len(kinds) for kind in set(kinds)}
    assert shares["slip"] > 0.3
    assert shares["reasoning"] > 0.3
    assert shares.get("right", 0) < 0.02
    ids, labels = training_row(rng, Recipe(updates=1, schedule=1, wrong=1.0))
    taken_back = encode(NO)[0]
    text = decode(ids[1:])
    assert ids.count(taken_back) == text.count("\n") - 1
    assert all(wanted in (-100, token) for token, wanted in zip(ids, labels, strict=True))
    assert all(
        labels[at] == taken_back and labels[at - 1] == -100
        for at, token in enumerate(ids)
        if token == taken_back
    )
