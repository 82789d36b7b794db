import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import ScoreError
from surefoot.protocols import Candidate, Selector
from surefoot.search import SELECTORS, BestOfN, Majority, WeightedVote, select_among

ANSWERS = st.sampled_from(["a", "b", "c", None])
CANDIDATES = st.lists(
    st.builds(
        lambda answer, score: Candidate(answer=answer, score=score), ANSWERS, st.none() | st.floats(0, 1)
    ),
    min_size=1,
    max_size=12,
)


def pool(*pairs):
    return [Candidate(answer=answer, score=score) for answer, score in pairs]


def test_two_modest_votes_beat_one_strong_one():
    candidates = pool(("A", 0.6), ("B", 0.9), ("A", 0.5))
    assert WeightedVote().select(candidates) == 0
    assert BestOfN().select(candidates) == 1
    assert Majority().select(candidates) == 0


def test_weighted_vote_returns_the_best_sample_of_the_winner():
    assert WeightedVote().select(pool(("A", 0.5), ("B", 0.9), ("A", 0.6))) == 2


def test_ties_go_to_what_is_seen_first():
    assert Majority().select(pool(("b", None), ("a", None), ("a", None), ("b", None))) == 0
    assert BestOfN().select(pool(("a", 0.3), ("b", 0.7), ("c", 0.7))) == 1
    assert WeightedVote().select(pool(("b", 0.5), ("a", 0.5))) == 0


def test_rounding_does_not_break_a_tie_of_votes():
    # 0.1 + 0.2 exceeds 0.3 by one unit in the last place
    assert WeightedVote().select(pool(("b", 0.3), ("a", 0.1), ("a", 0.2))) == 0


def test_missing_answers_do_not_vote():
    assert Majority().select(pool((None, 1.0), (None, 1.0), ("a", None))) == 2
    assert Majority().select(pool((None, 0.1), (None, 0.9))) == 0
    assert WeightedVote().select(pool((None, 1.0), (None, 1.0), ("a", 0.1))) == 2


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_unscored_is_never_preferred(missing):
    assert BestOfN().select(pool(("a", missing), ("b", -3.0))) == 1
    assert BestOfN().select(pool(("a", missing), ("b", missing))) == 0
    assert WeightedVote().select(pool(("a", missing), ("a", missing), ("b", 0.1))) == 2


def test_weighted_vote_falls_back_without_votes():
    assert WeightedVote().select(pool(("a", None), ("b", None), ("b", None))) == 1
    assert WeightedVote().select(pool((None, 0.1), (None, 0.9))) == 1
    assert WeightedVote().select(pool((None, 0.9), ("b", None))) == 1


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_no_candidates_raise(name):
    with pytest.raises(ScoreError, match="nothing to choose"):
        SELECTORS[name].select([])


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_selectors_meet_the_protocol(name):
    assert isinstance(SELECTORS[name], Selector)


@settings(deadline=None)
@given(st.lists(ANSWERS, min_size=1, max_size=20), st.floats(0.001, 1))
def test_equal_scores_make_the_weighted_vote_a_majority(answers, score):
    candidates = [Candidate(answer=answer, score=score) for answer in answers]
    assert WeightedVote().select(candidates) == Majority().select(candidates)


def test_agreement_takes_the_root_of_the_votes():
    """CodeT (arXiv 2207.10397): the root of the size of a group times the tests that it passes."""
    few = [Candidate(answer="two", score=2.0)] * 2
    for others, winner in ((7, "two"), (9, "many")):  # sqrt(2) * 2 = sqrt(8) * 1
        candidates = [Candidate(answer="many", score=1.0)] * others + few
        assert candidates[SELECTORS["agreement"].select(candidates)].answer == winner


@settings(deadline=None)
@given(CANDIDATES)
def test_choices_satisfy_their_definitions(candidates):
    answers = [c.answer for c in candidates if c.answer is not None]
    chosen = candidates[Majority().select(candidates)]
    assert chosen.answer is not None or not answers
    assert all(answers.count(chosen.answer) >= answers.count(other) for other in answers)
    best = candidates[BestOfN().select(candidates)]
    scored = [c for c in candidates if c.score is not None]
    rivals = [c for c in scored if c.answer is not None] or scored
    assert not rivals or best.score == max(c.score for c in rivals)
    assert not rivals or best.answer is not None or rivals is scored
    winner = candidates[WeightedVote().select(candidates)]
    totals = {a: sum(c.score for c in candidates if c.answer == a and c.score is not None) for a in answers}
    if any(c.score is not None and c.answer is not None for c in candidates):
        assert totals[winner.answer] == pytest.approx(max(totals.values()))
        same = [c.score for c in candidates if c.answer == winner.answer and c.score is not None]
        assert winner.score == max(same)


@pytest.mark.parametrize("selector", SELECTORS.values())
def test_a_gate_comes_before_votes_and_scores(selector):
    candidates = pool(("a", 0.9), ("a", 0.8), ("b", 0.1))
    assert select_among(selector, candidates, [0.5, 0.5, 1.0]) == 2
    assert select_among(selector, candidates, [None, math.nan, -1.0]) == 2
    assert select_among(selector, candidates, None) == select_among(selector, candidates, [None] * 3) == 0
