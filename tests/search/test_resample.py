import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import HashScorer, ScriptedPolicy, Watched, chance, problems, random_solver, searched

from surefoot.search import StepResampling

[QUESTION] = problems(1)


def numbered(length):
    """Steps that name the sample they are."""

    def answer(request, sample):
        done = request.prefix.count("\n")
        return f"step {done} try {sample}\n" if done < length else "The answer is 1"

    return answer


def tries(result):
    text = result.candidates[0].text
    return [int(line.split()[-1]) for line in text.splitlines() if "try" in line]


def accepts(at_try, score=0.9):
    return lambda prefix: score if prefix.splitlines()[-1].split()[-1] >= str(at_try) else 0.2


def test_a_step_is_drawn_until_it_is_good():
    policy = Watched(ScriptedPolicy(numbered(2)))
    [result] = searched(StepResampling(retries=5), [QUESTION], policy, HashScorer(accepts(2)))
    assert tries(result) == [2, 2]
    assert policy.drawn == 3 + 3 + 1 + 5  # "answer is 1" is below try 2: drawn again in vain


def test_the_best_of_the_rejected_is_taken_when_its_tries_are_spent():
    scores = {0: 0.3, 1: 0.5, 2: 0.4}
    scorer = HashScorer(lambda prefix: scores.get(int(prefix.splitlines()[-1].split()[-1]), 0.9))
    policy = Watched(ScriptedPolicy(numbered(1)))
    [result] = searched(StepResampling(retries=2, threshold=0.6), [QUESTION], policy, scorer)
    assert tries(result) == [1]
    assert (result.finish, result.counts.rejected) == ("rejected", 2)  # the answer, too
    [result] = searched(StepResampling(retries=2, threshold=0.5), [QUESTION], policy, scorer)
    assert (result.finish, result.counts.rejected) == ("chosen", 0)


def test_a_step_without_a_score_is_not_accepted():
    scorer = HashScorer(lambda prefix: 0.9 if "try 2" in prefix or "answer" in prefix else None)
    policy = Watched(ScriptedPolicy(numbered(1)))
    [result] = searched(StepResampling(retries=5), [QUESTION], policy, scorer)
    assert tries(result) == [2]
    policy = Watched(ScriptedPolicy(numbered(1)))
    [result] = searched(StepResampling(retries=2), [QUESTION], policy, HashScorer(lambda prefix: None))
    assert policy.drawn == 2 * 3
    assert result.values == (None,)


def test_no_more_than_the_budget_is_drawn_again():
    for budget in (0, 1, 3, 5, 100):
        policy = Watched(ScriptedPolicy(numbered(3)))
        search = StepResampling(retries=2, budget=budget)
        searched(search, [QUESTION], policy, HashScorer(lambda prefix: 0.1))
        assert policy.drawn - 4 == min(budget, 2 * 4)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 4),
    retries=st.integers(0, 4),
    budget=st.none() | st.integers(0, 9),
    threshold=st.floats(0, 1),
    salt=st.integers(0, 10**6),
)
def test_bounds_hold_together(n, retries, budget, threshold, salt):
    policy = Watched(ScriptedPolicy(random_solver()))
    search = StepResampling(n=n, retries=retries, budget=budget, threshold=threshold)
    scorer = HashScorer(lambda prefix: chance(salt, prefix))
    [result] = searched(search, [QUESTION], policy, scorer)
    assert sum(result.weights) == n
    steps = sum(len(c.steps) * w for c, w in zip(result.candidates, result.weights, strict=True))
    again = policy.drawn - steps
    assert 0 <= again <= steps * retries
    if budget is not None:
        assert again <= budget


def test_draws_a_step_as_in_the_closed_form():
    """A step accepted with chance a costs (1 - (1 - a)^(k + 1)) / a draws."""
    policy = Watched(ScriptedPolicy(numbered(1), name="coin"))
    items = problems(600)

    class Coin(HashScorer):
        def _record(self, item):
            draw = chance(item.problem.text, item.trace.text)
            self.rule = lambda prefix: 0.9 if "answer" in prefix or draw < 0.4 else 0.0
            return super()._record(item)

    searched(StepResampling(retries=3), items, policy, Coin())
    first = sum(request.n for request in policy.requests if not request.prefix)
    assert first / 600 == pytest.approx((1 - 0.6**4) / 0.4, abs=0.12)


def test_a_good_prefix_is_not_held_against_a_step_and_a_bad_one_neither():
    """The step's own score decides, not the aggregated one."""
    scorer = HashScorer(lambda prefix: 0.1 if prefix.count("\n") == 1 else 0.9)
    policy = Watched(ScriptedPolicy(numbered(3)))
    searched(StepResampling(retries=2), [QUESTION], policy, scorer)
    assert policy.drawn == 4 + 2  # the first step alone is drawn again


def test_without_retries_it_is_plain_sampling():
    scorer, policy = HashScorer(), Watched(ScriptedPolicy(random_solver()))
    [result] = searched(StepResampling(retries=0), [QUESTION], policy, scorer)
    assert policy.drawn == len(result.candidates[0].steps)
    assert len(scorer.rounds) == 1


@pytest.mark.parametrize("wrong", [{"n": 0}, {"retries": -1}, {"budget": -1}, {"threshold": float("nan")}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StepResampling(**wrong)
