import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import (
    HashScorer,
    ScriptedPolicy,
    Watched,
    chance,
    full_tree,
    in_space,
    problems,
    random_solver,
    searched,
)

from surefoot.search import MCTS, Space
from surefoot.search.mcts import MCTSNode, back_up, choose

[QUESTION] = problems(1)


def branches(root):
    yield root
    for child in root.children:
        yield from branches(child)


def child(prior, seed, visits=0, total=0.0):
    return MCTSNode(prefix=None, prior=prior, seed=seed, visits=visits, total=total)


def grown(search, policy, scorer, **settings):
    async def work(space: Space):
        return await search.grow(space)

    return in_space(work, policy, scorer, **settings)


@settings(max_examples=25, deadline=None)
@given(
    paths=st.integers(1, 12),
    expand=st.integers(1, 4),
    seed=st.integers(0, 1000),
    modulus=st.integers(3, 9),
)
def test_visits_add_up(paths, expand, seed, modulus):
    def fail(request):
        return "gone" if (request.first + len(request.prefix) + seed) % modulus == 0 else None

    policy = ScriptedPolicy(random_solver(), fail=fail)
    found, root = grown(MCTS(paths=paths, expand=expand), policy, HashScorer(), seed=seed)
    assert root.visits == len(found) == paths
    for branch in branches(root):
        assert sum(below.visits for below in branch.children) == branch.visits - branch.ended
        assert sum(below.prior for below in branch.children) == pytest.approx(1 if branch.children else 0)
        assert 0 <= branch.value <= 1


@settings(max_examples=15, deadline=None)
@given(paths=st.integers(1, 12), score=st.floats(0.01, 0.99))
def test_a_constant_value_is_every_ancestor_s_mean(paths, score):
    policy = ScriptedPolicy(random_solver())
    _, root = grown(MCTS(paths=paths), policy, HashScorer(lambda prefix: score))
    for branch in branches(root):
        assert branch.value == pytest.approx(score)


def test_of_equal_unvisited_children_the_likeliest_is_chosen():
    for visits in (0, 1, 50):
        parent = MCTSNode(prefix=None, prior=1.0, seed=0.0, visits=visits)
        parent.children = [child(0.2, 0.5), child(0.5, 0.5), child(0.3, 0.5)]
        assert choose(parent) is parent.children[1]
        parent.children = [child(0.5, 0.5), child(0.5, 0.5)]
        assert choose(parent) is parent.children[0]


def test_the_formula_in_figures():
    parent = MCTSNode(prefix=None, prior=1.0, seed=0.0, visits=9)
    a, b = child(0.25, 0.0, visits=2, total=1.6), child(0.75, 0.1)
    parent.children = [a, b]
    weight = math.log((9 + 19652 + 1) / 19652) + 1.25
    scores = [0.8 + 0.25 * weight * 3 / 3, 0.1 + 0.75 * weight * 3 / 1]
    assert scores[1] > scores[0]
    assert choose(parent) is b
    b.visits, b.total = 7, 0.7
    assert 0.1 + 0.75 * weight * 3 / 8 < scores[0]
    assert choose(parent) is a


def test_backing_up_is_a_mean():
    root, leaf = child(1.0, 0.0), child(1.0, 0.4)
    assert leaf.value == 0.4
    back_up([root, leaf], 1.0)
    back_up([root], 0.5)
    assert (root.visits, root.value, root.ended) == (2, 0.75, 1)
    assert (leaf.visits, leaf.value, leaf.ended) == (1, 1.0, 1)


def test_enough_descents_find_the_best_leaf():
    def rule(prefix):
        return chance("leaf", prefix)

    policy = ScriptedPolicy(full_tree(2, 3))
    search = MCTS(paths=150, expand=3, rule="best_of_n")
    [result] = searched(search, [QUESTION], policy, HashScorer(rule))
    wide = searched(
        MCTS(paths=400, expand=3, rule="best_of_n"), [QUESTION], policy, HashScorer(rule), seed=1
    )[0]
    assert len(wide.candidates) == 9  # exploration leaves none out
    assert result.values[result.chosen] == max(value for value in wide.values)


def test_good_branches_are_visited_more():
    def rule(prefix):
        return 0.9 if prefix.startswith("step 0 is 1") else 0.2

    _, root = grown(MCTS(paths=30, expand=3), ScriptedPolicy(full_tree(2, 3)), HashScorer(rule))
    visits = [branch.visits for branch in root.children]
    assert visits[1] > visits[0] + visits[2]


def test_a_solution_reached_again_costs_nothing_and_is_a_vote():
    policy = Watched(ScriptedPolicy(lambda request, sample: "The answer is 1"))
    [result] = searched(MCTS(paths=5, expand=3), [QUESTION], policy, HashScorer())
    assert policy.drawn == 3
    assert result.weights == (5,)


def test_priors_are_shares_of_the_draws():
    def answer(request, sample):
        return f"The answer is {[0, 1, 1, 1][sample]}"

    _, root = grown(MCTS(paths=1, expand=4), ScriptedPolicy(answer), HashScorer())
    assert [branch.prior for branch in root.children] == [0.25, 0.75]


def test_what_has_no_score_is_taken_for_as_good_as_its_parent():
    scorer = HashScorer(lambda prefix: None if "step 1" in prefix else 0.7)
    _, root = grown(MCTS(paths=4, expand=2), ScriptedPolicy(full_tree(2, 2)), scorer)
    assert {branch.seed for branch in branches(root)} == {0.0, 0.7}
    assert root.value == pytest.approx(0.7)


@pytest.mark.parametrize("wrong", [{"paths": 0}, {"expand": 0}])
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MCTS(**wrong)
