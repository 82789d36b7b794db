import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.protocols import Candidate
from surefoot.search import (
    SELECTORS,
    Pool,
    RandomOrders,
    best_of_n,
    pass_at_k,
    pool_curve,
    select_among,
    selection_curve,
)

METHODS = ("pass", *SELECTORS)


def vote_at_k(answers, correct, weights, k, draws, rng):
    """The expected vote of k samples of one pool: by majority, or weighted."""
    pool = Pool(answers=answers, correct=correct, scores=[1.0] * len(answers) if weights is None else weights)
    method = "majority" if weights is None else "weighted_vote"
    return pool_curve(pool, method, [k], RandomOrders(len(correct), draws, rng))[0]


def brute_force(method, answers, correct, scores, k, gate=None):
    """Mean over all ordered draws of k samples of what the shipped selector picks."""
    hits = []
    for drawn in itertools.permutations(range(len(answers)), k):
        candidates = [Candidate(answer=answers[i], score=scores[i]) for i in drawn]
        if method == "pass":
            hits.append(any(correct[i] for i in drawn))
        else:
            its = None if gate is None else [gate[i] for i in drawn]
            hits.append(correct[drawn[select_among(SELECTORS[method], candidates, its)]])
    return float(np.mean(hits))


@st.composite
def pools(draw):
    """Small pools full of ties, missing scores, missing answers and answers judged both ways."""
    n = draw(st.integers(1, 6))
    return Pool(
        answers=draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=n, max_size=n)),
        correct=draw(st.lists(st.booleans(), min_size=n, max_size=n)),
        scores=draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, None]), min_size=n, max_size=n)),
        gate=draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=n, max_size=n)),
    )


@settings(deadline=None, max_examples=60)
@given(pools(), st.data())
def test_every_method_equals_the_mean_over_all_draws(pool, data):
    k = data.draw(st.integers(1, len(pool.answers)))
    for method in METHODS:
        got = selection_curve([pool], method, [k], draws=720, rng=np.random.default_rng(0))
        assert got.shape == (1, 1)
        expected = brute_force(method, pool.answers, pool.correct, pool.scores, k, pool.gate)
        assert got[0, 0] == pytest.approx(expected, abs=1e-12), method


@settings(deadline=None)
@given(pools(), st.data())
def test_no_selector_exceeds_pass_at_k(pool, data):
    sizes = data.draw(st.lists(st.integers(1, len(pool.answers)), min_size=1, max_size=3))
    curves = {m: selection_curve([pool], m, sizes, rng=np.random.default_rng(0)) for m in METHODS}
    for method in METHODS:
        assert (curves[method] <= curves["pass"] + 1e-12).all()


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.sampled_from([-0.5, 0.0, 0.25, 1.0])),
        min_size=2,
        max_size=5,
    )
)
def test_curves_treat_unscored_votes_as_the_selectors_do(pairs):
    answers, scores = zip(*pairs, strict=True)
    correct = [answer == "a" for answer in answers]
    pool = Pool(answers=list(answers), correct=correct, scores=list(scores))
    for name in ("weighted_vote", "agreement"):
        got = selection_curve([pool], name, [2], draws=720, rng=np.random.default_rng(0))[0, 0]
        assert got == pytest.approx(brute_force(name, answers, correct, scores, 2), abs=1e-12)


def test_a_gate_comes_before_every_score():
    pool = Pool(answers="aab", correct=[0, 0, 1], scores=[0.9, 0.8, 0.1], gate=[0.5, 0.5, 1.0])
    for method in SELECTORS:
        assert selection_curve([pool], method, [3], rng=np.random.default_rng(0)) == 1.0
    with pytest.raises(ValueError, match="'gate' has 2"):
        selection_curve([replace(pool, gate=[1, 1])], "majority", [1], rng=np.random.default_rng(0))


def test_pass_at_k_closed_form():
    assert pass_at_k(10, 3, 5) == pytest.approx(0.9166666666666666, rel=1e-12)
    assert pass_at_k(10, 0, 10) == 0.0
    assert pass_at_k(10, 1, 10) == 1.0
    assert pass_at_k(10, 4, 1) == pytest.approx(0.4)


@settings(deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_exact_binomials(case):
    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


def test_best_of_two_of_four_is_one_third():
    assert best_of_n([1, 2, 3, 4], [1, 0, 1, 0], 2) == pytest.approx(1 / 3, rel=1e-12)
    assert brute_force("best_of_n", "abcd", [1, 0, 1, 0], [1, 2, 3, 4], 2) == pytest.approx(1 / 3)


def test_best_of_n_at_the_ends():
    scores, correct = [0.3, 0.9, 0.1, 0.5, 0.7], [1, 0, 1, 1, 0]
    assert best_of_n(scores, correct, 1) == pytest.approx(np.mean(correct))
    assert best_of_n(scores, correct, 5) == 0.0
    assert best_of_n([0.5, 0.5, 0.1], [1, 0, 0], 3) == pytest.approx(0.5)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_oracle_scores_reach_pass_at_k(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    reached = pass_at_k(len(correct), sum(correct), k)
    assert best_of_n(correct, correct, k) == pytest.approx(reached, abs=1e-12)


def test_unscored_samples_are_never_preferred():
    assert best_of_n([math.nan, -5.0], [1, 0], 2) == 0.0
    assert best_of_n([None, None, 0.1], [1, 0, 0], 2) == pytest.approx(1 / 6)


def test_large_pools_stay_stable():
    n = 5000
    assert pass_at_k(n, 2500, 2500) == pytest.approx(1.0)
    # one correct sample at the top: it is drawn with probability k / n
    assert best_of_n(np.arange(n), np.arange(n) == n - 1, 1234) == pytest.approx(1234 / n, rel=1e-9)
    assert best_of_n(np.arange(n), np.ones(n), 1234) == pytest.approx(1.0, rel=1e-9)
    # sample i is best with probability C(i-1, k-1) / C(n, k), exactly
    exact = math.comb(n - 4, 1233) / math.comb(n, 1234)
    assert best_of_n(np.arange(n), np.arange(n) == n - 4, 1234) == pytest.approx(exact, rel=1e-9)


def big_pool(seed, n=40):
    rng = np.random.default_rng(seed)
    correct = rng.random(n) < 0.4
    answers = ["right" if c else f"wrong{rng.integers(4)}" for c in correct]
    return Pool(
        answers=answers, correct=correct.tolist(), scores=(rng.random(n) * 0.7 + 0.3 * correct).tolist()
    )


@pytest.mark.parametrize("method", ["weighted_vote", "agreement"])
def test_random_draws_agree_with_the_selectors(method):
    pool, k = big_pool(3), 15
    [[got]] = selection_curve([pool], method, [k], draws=4000, rng=np.random.default_rng(0))
    rng, hits = np.random.default_rng(1), []
    for _ in range(4000):
        drawn = rng.permutation(len(pool.answers))[:k]
        chosen = SELECTORS[method].select(
            [Candidate(answer=pool.answers[i], score=pool.scores[i]) for i in drawn]
        )
        hits.append(pool.correct[drawn[chosen]])
    assert got == pytest.approx(np.mean(hits), abs=4 * math.sqrt(0.5 / 4000))


@pytest.mark.parametrize("weighted", [False, True])
def test_monte_carlo_votes_agree_with_the_selectors(weighted):
    pool, k = big_pool(3), 7
    weights = pool.scores if weighted else None
    got = vote_at_k(pool.answers, pool.correct, weights, k, 20_000, np.random.default_rng(0))
    rng, selector = np.random.default_rng(1), SELECTORS["weighted_vote" if weighted else "majority"]
    hits = []
    for _ in range(5_000):
        drawn = rng.permutation(len(pool.answers))[:k]
        chosen = selector.select([Candidate(answer=pool.answers[i], score=pool.scores[i]) for i in drawn])
        hits.append(pool.correct[drawn[chosen]])
    assert got == pytest.approx(np.mean(hits), abs=4 * 0.5 / math.sqrt(5_000))


def test_votes_are_exact_at_one_and_at_all():
    pool = big_pool(5)
    rng = np.random.default_rng(0)
    n = len(pool.answers)
    candidates = [Candidate(answer=a, score=s) for a, s in zip(pool.answers, pool.scores, strict=True)]
    for weights, name in ((None, "majority"), (pool.scores, "weighted_vote")):
        assert vote_at_k(pool.answers, pool.correct, weights, 1, 2, rng) == np.mean(pool.correct)
        all_of_them = vote_at_k(pool.answers, pool.correct, weights, n, 2, rng)
        assert all_of_them == float(pool.correct[SELECTORS[name].select(candidates)])


@settings(deadline=None)
@given(pools(), st.data())
def test_constant_weights_are_a_majority_vote(pool, data):
    k = data.draw(st.integers(1, len(pool.answers)))
    equal = [0.3] * len(pool.answers)
    rng = np.random.default_rng(0)
    if None not in pool.answers:  # without an answer the two rules choose differently among the unanswered
        plain = vote_at_k(pool.answers, pool.correct, None, k, 100, rng)
        assert vote_at_k(pool.answers, pool.correct, equal, k, 100, rng) == pytest.approx(plain)


def test_curve_is_reproducible_and_pairs_methods():
    pools_ = [big_pool(seed) for seed in range(4)]
    sizes = [1, 4, 16, 40]
    first = selection_curve(pools_, "majority", sizes, draws=50, rng=np.random.default_rng(7))
    again = selection_curve(pools_, "majority", sizes, draws=50, rng=np.random.default_rng(7))
    assert first.shape == (4, 4)
    np.testing.assert_array_equal(first, again)
    equal = [Pool(answers=p.answers, correct=p.correct, scores=[0.5] * 40) for p in pools_]
    weighted = selection_curve(equal, "weighted_vote", sizes, draws=50, rng=np.random.default_rng(7))
    np.testing.assert_allclose(weighted, first, atol=1e-12)


def test_one_problem_does_not_move_the_next():
    short = Pool(answers=["a"] * 8, correct=[True] * 8, scores=[None] * 8)
    rest = big_pool(1)
    both = selection_curve([short, rest], "majority", [8], draws=30, rng=np.random.default_rng(2))
    other = selection_curve([big_pool(9), rest], "majority", [8], draws=30, rng=np.random.default_rng(2))
    assert both[1, 0] == other[1, 0]


@pytest.mark.slow
def test_votes_are_fast_enough_for_a_benchmark():
    pools_ = [big_pool(seed, n=64) for seed in range(30)]
    start = time.process_time()
    selection_curve(pools_, "weighted_vote", [1, 2, 4, 8, 16, 32, 64], rng=np.random.default_rng(0))
    assert time.process_time() - start < 5.0  # a tenth of a usual benchmark


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: pass_at_k(3, 4, 1), "'c'"),
        (lambda rng: pass_at_k(3, 1, 4), "'k'"),
        (lambda rng: best_of_n([0.1, 0.2], [1], 1), "lengths differ"),
        (lambda rng: best_of_n([0.1, 0.2], [1, None], 1), "unjudged"),
        (lambda rng: vote_at_k(["a", "b"], [1, 0], [0.1], 1, 10, rng), "'scores' has 1"),
        (lambda rng: vote_at_k(["a"] * 3, [1, 0, 0], None, 2, 0, rng), "'draws'"),
        (lambda rng: selection_curve([big_pool(0)], "best", [1], rng=rng), r"pools\[0\]: unknown method"),
        (lambda rng: selection_curve([big_pool(0)], "pass", [41], rng=rng), r"pools\[0\]: 'k'"),
    ],
)
def test_bad_arguments_name_the_field(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))
