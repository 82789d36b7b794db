"""Queue priorities against closed forms and enumeration."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.labelling.queueing import (
    QueueCandidate,
    convincing_wrong,
    disagreement,
    first_error_chances,
    priorities,
    uncertainty,
)

shares = st.floats(0, 1)
rows = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(shares, min_size=n, max_size=n), min_size=1, max_size=4)
)


def candidate(item: int, outcome: bool | None, **scores: tuple[float | None, ...]) -> QueueCandidate:
    return QueueCandidate(item_id=item, outcomes=(outcome,), scores=(scores,))


def test_wrong_answers_come_first_the_most_convincing_of_them_first() -> None:
    found = priorities(
        "convincing-wrong",
        [
            candidate(1, True, prm=(1.0, 1.0)),
            candidate(2, False, prm=(0.5, 0.5)),
            candidate(3, False, prm=(0.9, 0.9)),
            candidate(4, None, prm=(0.9, 0.8)),
            candidate(5, False, prm=(0.9, None)),
            candidate(6, False),
        ],
    )
    assert sorted(found.values, key=lambda item: -found.values[item]) == [3, 2, 1, 4]
    assert found.values[3] == pytest.approx(1.81)
    assert found.left_out == {"no complete scores": 2}


def test_one_scorer_or_the_mean_of_those_that_scored_every_step() -> None:
    one = candidate(1, False, a=(0.5, 0.5), b=(1.0, 0.75), c=(None, 1.0))
    assert priorities("convincing-wrong", [one]).values[1] == pytest.approx(1 + (0.25 + 0.75) / 2)
    assert priorities("convincing-wrong", [one], scorer="b").values[1] == pytest.approx(1.75)
    assert priorities("convincing-wrong", [one], scorer="c").values == {}


def test_uncertainty_of_known_cases() -> None:
    assert uncertainty(None, [[0.5]]) == pytest.approx(1.0)
    assert uncertainty(None, [[1.0, 1.0, 1.0]]) == 0
    assert uncertainty(None, [[1.0, 0.0, 0.3]]) == 0  # the first error is known; what follows is not asked
    assert uncertainty(None, [[2 / 3, 1 / 2]]) == pytest.approx(math.log2(3))


def test_disagreement_of_known_cases() -> None:
    assert disagreement(None, [[1.0, 1.0], [0.0, 1.0]]) == pytest.approx(1.0)
    assert disagreement(None, [[0.5, 0.5], [0.5, 0.5]]) == 0
    assert disagreement(None, [[0.0, 0.1], [0.0, 0.9]]) == pytest.approx(0)
    lone = priorities("disagreement", [candidate(1, None, a=(0.5,)), candidate(2, None, a=(0.0,), b=(1.0,))])
    assert lone.values == {2: pytest.approx(1.0)}
    assert lone.left_out == {"fewer than two scorers": 1}


@given(rows)
def test_bounds(scores: list[list[float]]) -> None:
    places = len(scores[0]) + 1
    assert -1e-9 <= uncertainty(None, scores) <= math.log2(places) + 1e-9
    assert 0 <= disagreement(None, scores) <= math.log2(min(len(scores), places)) + 1e-9
    assert disagreement(None, scores) <= uncertainty(None, scores) + 1e-9
    assert 0 <= convincing_wrong(True, scores) <= 1 <= convincing_wrong(False, scores) <= 2


@given(st.lists(shares, min_size=1, max_size=7))
def test_first_error_is_what_counting_outcomes_gives(scores: list[float]) -> None:
    counted = [0.0] * (len(scores) + 1)
    for outcome in range(2 ** len(scores)):
        right = [bool(outcome >> step & 1) for step in range(len(scores))]
        chance = math.prod(p if ok else 1 - p for p, ok in zip(scores, right, strict=True))
        counted[right.index(False) if False in right else len(scores)] += chance
    assert first_error_chances(scores) == pytest.approx(counted, abs=1e-9)


def test_alternatives_have_the_priority_of_the_most_urgent() -> None:
    item = QueueCandidate(item_id=7, outcomes=(None, None), scores=({"a": (0.9,)}, {"a": (0.5,)}))
    assert priorities("uncertainty", [item]).values[7] == pytest.approx(1.0)


def test_what_cannot_be_a_probability_is_refused() -> None:
    with pytest.raises(LabelError, match="outside"):
        priorities("uncertainty", [candidate(1, None, logits=(2.5,))])
    with pytest.raises(LabelError, match="unknown queue rule"):
        priorities("whim", [])  # type: ignore[arg-type]
