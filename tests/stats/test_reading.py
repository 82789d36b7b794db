"""The reading gate: what counts as reading, and what length and position explain."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.cards.figures import held_out_auc
from surefoot.io import write_records
from surefoot.records import Problem, Step, Trace
from surefoot.search.trust import HeldOutStep
from surefoot.stats.reading import RIVALS, StepFacts, reading_gate, rival_scores, step_facts


def lengths(characters) -> list[StepFacts]:
    """Steps of which only the length is known."""
    return [
        StepFacts(prefix="", characters=int(count), features=(float(count),), words=())
        for count in characters
    ]


def steps(seed: int, problems: int = 60) -> dict:
    """Six continuations of each of two prefixes a problem; long ones are bad more often."""
    rng = np.random.default_rng(seed)
    rows = []
    for problem in range(problems):
        for prefix in range(2):
            for _ in range(6):
                length = int(rng.integers(10, 100))
                good = bool(rng.random() < 1.1 - length / 100)
                rows.append((f"p{problem}", f"p{problem}/{prefix}", length, good))
    names = ("problems", "prefixes", "characters", "good")
    data = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    by_length = rival_scores(lengths(data["characters"]), data["problems"], data["good"])[:2]
    return data | {"baseline": by_length}


def gate(data: dict, scores, **changes):
    given = {name: data[name] for name in ("problems", "prefixes", "characters")} | changes
    return reading_gate(scores, data["baseline"], data["good"], **given)


def test_a_scorer_that_knows_the_truth_reads_and_one_that_measures_length_does_not() -> None:
    data = steps(1)
    good = np.array(data["good"])
    noise = np.random.default_rng(0).normal(size=len(good))
    reads = gate(data, good + noise / 2)
    assert reads.reads
    assert reads.within_prefix[1] > 0
    assert str(reads).startswith("it reads the steps: among continuations of one prefix its AUC minus")
    for scores in (-np.array(data["characters"], dtype=float), noise):
        blind = gate(data, scores)
        assert not blind.reads
        assert str(blind).startswith("it is not shown to read the steps")
    assert gate(data, -np.array(data["characters"], dtype=float)).within_prefix[0] == pytest.approx(
        0, abs=0.01
    )


def test_pairs_are_counted_by_hand() -> None:
    scores, baseline = [3.0, 1.0, 2.0, 2.0], [0.0, 0.0, 1.0, 0.0]
    found = reading_gate(
        scores, baseline, [True, False, True, False],
        problems=["a"] * 4, prefixes=["x", "x", "y", "y"], characters=[10, 12, 10, 40],
    )  # fmt: skip
    assert found.interval.value == found.within_prefix[0], "the lower one of the two decides"
    # prefix x: 3 > 1 won, baseline tied; y: tied, baseline won; in the problem: 3.5 of 4 pairs and 3 of 4
    assert found.within_prefix[0] == pytest.approx((1 + 0.5) / 2 - (0.5 + 1) / 2)
    assert found.similar_length[0] == pytest.approx(1 - 0.5)
    assert found.within_problem[0] == pytest.approx((3.5 - 3.0) / 4)
    assert not found.reads, "one problem decides nothing"
    more = [f"b{number}" for number in range(20)]
    found = reading_gate(
        scores + [1.0] * 20, baseline + [0.0] * 20, [True, False, True, False, *[True] * 20],
        problems=["a"] * 4 + more, prefixes=[*"xxyy", *more], characters=[10, 12, 10, 11] + [9] * 20,
    )  # fmt: skip
    assert (found.problems, found.reads) == (1, False), "problems without a pair decide nothing either"


def test_without_siblings_the_problem_decides_and_without_pairs_nothing_does() -> None:
    data = steps(2)
    good = np.array(data["good"], dtype=float)
    alone = [f"{name}/{number}" for number, name in enumerate(data["problems"])]
    found = gate(data, good, prefixes=alone)
    assert found.within_prefix is None
    assert found.reads
    assert "within a problem" in str(found)
    none = reading_gate(
        [1.0], [0.0], [True], problems=["a"], prefixes=["a"], characters=[1]
    )  # fmt: skip
    assert not none.reads
    assert "not known" in str(none)


def test_length_and_position_are_fitted_on_all_training_rows_or_out_of_fold() -> None:
    data = steps(3)
    facts, training = lengths(data["characters"]), (lengths([1, 2, 3]), [1, 1, 0])
    given = rival_scores(facts, data["problems"], data["good"], training)
    assert np.all(np.diff(given[0][np.argsort(data["characters"])]) <= 0), "short steps were good in training"
    flipped = [
        not good if problem == "p0" else good
        for problem, good in zip(data["problems"], data["good"], strict=True)
    ]
    own = np.array([problem == "p0" for problem in data["problems"]])
    first, second = (rival_scores(facts, data["problems"], good) for good in (data["good"], flipped))
    assert np.array_equal(first[:, own], second[:, own]), "a problem's labels do not fit its own scores"
    assert not rival_scores(facts, data["problems"], [True] * len(facts)).any()


def test_a_prefix_is_the_problem_and_the_steps_before() -> None:
    problem = Problem(id="p", text="Add.")
    one = Trace(problem_id="p", text="1 + 1\n= 2\n", steps=(Step(start=0, end=6), Step(start=6, end=10)))
    other = Trace(problem_id="p", text="1 + 1\n= 3\n", steps=(Step(start=0, end=6), Step(start=6, end=10)))
    facts, others = step_facts(problem, one), step_facts(problem, other)
    assert [item.prefix for item in facts] == [item.prefix for item in others]
    assert facts[0].prefix != facts[1].prefix
    assert step_facts(Problem(id="q", text="Add."), one)[1].prefix != facts[1].prefix
    assert step_facts(problem, one, [False, True]) == facts[1:]
    assert facts[1].characters == 4
    assert facts[1].features[:4] == (4.0, 2.0, 6.0, 4.0)


def marked(problems: int = 40) -> tuple[list, list[bool], list[str]]:
    """Facts of two continuations of each problem's first step: the bad one has another mark or word."""
    rng, facts, good, names = np.random.default_rng(0), [], [], []
    for number in range(problems):
        problem = Problem(id=f"p{number}", text="Add.")
        for right, mark in ((True, "."), (False, "?")):
            letters = "".join(rng.permutation(list("abcdefgh")))
            text = f"so {letters}{mark} {'therefore' if right else 'perhaps__'}"
            trace = Trace(problem_id=problem.id, text=text, steps=(Step(start=0, end=len(text)),))
            facts += step_facts(problem, trace)
            good.append(right)
            names.append(problem.id)
    return facts, good, names


def test_each_rival_knows_what_it_may_and_the_closest_one_decides() -> None:
    facts, good, names = marked()
    rivals = rival_scores(facts, names, good)
    assert rivals.shape == (len(RIVALS), len(good))
    areas = [float(np.mean((row[::2] > row[1::2]) + 0.5 * (row[::2] == row[1::2]))) for row in rivals]
    assert areas[0] == pytest.approx(0.5, abs=0.2), "equal lengths and positions"
    assert areas[1:] == [1.0, 1.0], "the mark tells, and so does the word"
    given = {"problems": names, "prefixes": [fact.prefix for fact in facts],
             "characters": [fact.characters for fact in facts]}  # fmt: skip
    found = reading_gate(np.array(good, dtype=float), rivals, good, **given)
    assert (found.reads, found.within_prefix) == (False, (0.0, 0.0, 0.0))
    assert found.rival in RIVALS[1:]
    assert f"minus the AUC of {found.rival} is" in str(found)
    alone = reading_gate(np.array(good, dtype=float), rivals[0], good, **given)
    assert (alone.reads, alone.rival) == (True, RIVALS[0])
    trained = rival_scores(facts[:2], names[:2], good[:2], training=(facts[2:], good[2:]))
    assert np.all(trained[1:, 0] > trained[1:, 1])


def test_a_release_card_counts_the_problems_that_decide(tmp_path) -> None:
    rows = [
        HeldOutStep(
            problem_id=f"p{number // 2}", trace_id=f"t{number}", step=0, score=number % 2,
            good=number != 0, characters=10, prefix=f"p{number // 2}", rivals=(0.0, 0.0, 0.0),
        )
        for number in range(40)
    ]  # fmt: skip
    write_records(tmp_path / "held-out-steps.jsonl", rows)
    found = held_out_auc([tmp_path / "held-out-steps.jsonl"], of="reading")
    assert (found.value, found.units) == (0.5, 1)
