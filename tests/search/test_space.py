import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_search import (
    HashScorer,
    ScriptedPolicy,
    Watched,
    full_tree,
    in_space,
    problems,
    random_solver,
    searched,
)

from surefoot.errors import ScoreError
from surefoot.protocols import Sampling
from surefoot.records import StepScores
from surefoot.search import BeamSearch, BestOfNSearch, MajoritySearch, Steps


def texts(rows):
    return [[node.prefix for node in row] for row in rows]


def test_asking_twice_for_two_is_asking_once_for_four():
    async def twice(space):
        [a], [b] = await space.extend([space.root], 2), await space.extend([space.root], 2)
        return texts([a + b])

    async def same_batch(space):
        a, b = await space.extend([space.root, space.root], [3, 1])
        return texts([a + b])

    async def once(space):
        return texts(await space.extend([space.root], 4))

    policy = ScriptedPolicy(random_solver())
    assert in_space(twice, policy) == in_space(once, policy) == in_space(same_batch, policy)


def test_equal_steps_are_one_node_and_counted():
    async def work(space):
        [drawn] = await space.extend([space.root], 6)
        return drawn, space.counts, len(list(space.tree)) - 1

    drawn, counts, nodes = in_space(work, ScriptedPolicy(full_tree(2, 2)))
    assert [node.text for node in drawn] == ["step 0 is 0\n", "step 0 is 1\n"] * 3
    assert len(set(drawn)) == nodes == 2
    assert [node.data.count for node in dict.fromkeys(drawn)] == [3, 3]
    assert (counts["sampled"], counts["merged"]) == (6, 4)


def test_finished_prefixes_give_themselves_and_cost_nothing():
    policy = Watched(ScriptedPolicy(lambda request, sample: "The answer is 1"))

    async def work(space):
        [[end]] = await space.extend([space.root], 1)
        assert end.data.finish == "stop"
        return await space.extend([end, space.root], [3, 0]), end

    rows, end = in_space(work, policy)
    assert rows == [[end] * 3, []]
    assert policy.drawn == 1


def test_an_end_after_a_full_step_is_a_leaf_of_its_own():
    """Another solution may go on from there."""

    def answer(request, sample):
        return "" if request.prefix and sample == 0 else "The answer is 1\nor so"

    async def work(space):
        [[step]] = await space.extend([space.root], 1)
        [[end, more]] = await space.extend([step], 2)
        assert (step.data.finish, end.data.finish, end.text, end.prefix) == (None, "stop", "", step.prefix)
        assert more.text == "The answer is 1\n"
        [[again]] = await space.extend([end], 1)
        assert again is end
        await space.score([step, end])
        assert space.value(end) == space.value(step)
        assert space.trace(end).finish_reason == "stop"
        return space.counts["merged"]

    scorer = HashScorer()
    assert in_space(work, ScriptedPolicy(answer), scorer) == 0
    assert len(scorer.rounds[0]) == 1  # the end has no step to score


def test_what_is_written_in_one_piece_ends_as_what_is_written_by_steps():
    def answer(request, sample):
        return "one\ntwo\n"[len(request.prefix) :]

    async def work(space):
        [[whole]] = await space.extend([space.root], 1, to_end=True)
        node = space.root
        while node.data.finish is None:
            [[node]] = await space.extend([node], 1)
        return whole, node, space.counts["merged"], space.counts["sampled"]

    whole, node, merged, drawn = in_space(work, ScriptedPolicy(answer))
    assert whole is node
    assert [step.text for step in whole.path()] == ["one\n", "two\n", ""]
    assert whole.parent.data.finish is None  # it can go on
    assert (merged, drawn) == (3, 5)


def test_long_steps_are_cut_and_are_the_last():
    steps = Steps(step_tokens=3, max_steps=9, sampling=Sampling(max_tokens=50))

    async def work(space):
        [[node]] = await space.extend([space.root], 1)
        return node, space.counts["capped"]

    node, capped = in_space(work, ScriptedPolicy(lambda r, s: "a b c d e f\n"), steps=steps)
    assert (node.text.strip(), node.data.finish, node.data.tokens, capped) == ("a b c", "length", 3, 1)


def test_after_max_steps_the_rest_is_written_in_one_piece():
    steps = Steps(step_tokens=9, max_steps=2, sampling=Sampling(max_tokens=50))
    policy = Watched(ScriptedPolicy(full_tree(5, 2)))

    async def work(space):
        node = space.root
        while node.data.finish is None:
            [[node]] = await space.extend([node], 1)
        return [step.text for step in node.path()]

    found = in_space(work, policy, steps=steps)
    assert found == [f"step {k} is 0\n" for k in range(5)] + ["The answer is 5"]
    assert [request.sampling.stop for request in policy.requests] == [("\n",), ("\n",), ()]
    assert [request.sampling.max_tokens for request in policy.requests] == [9, 9, 50]


def test_blank_lines_belong_to_the_step_before_and_cost_no_score():
    def answer(request, sample):
        return "\none\n\n\ntwo\nThe answer is 2"[len(request.prefix) :]

    scorer = HashScorer()

    async def work(space):
        node, values = space.root, []
        while node.data.finish is None:
            [[node]] = await space.extend([node], 1)
            values += await space.score([node])
        return space.trace(node), values

    trace, values = in_space(work, ScriptedPolicy(answer), scorer)
    assert [trace.step_text(k) for k in range(len(trace.steps))] == [
        "\none\n\n\n",
        "two\n",
        "The answer is 2",
    ]
    assert values[0] == -math.inf  # only white space so far
    assert values[1] == values[2] == values[3]
    assert len(scorer.rounds) == 3


def test_values_follow_the_aggregation():
    scores = {1: 0.9, 2: 0.4, 3: 0.8}

    async def work(space):
        [[end]] = await space.extend([space.root], 1, to_end=True)
        assert space.value(end) == space.step_value(end) == -math.inf  # not asked for yet
        await space.score([end])
        return space.value(end), space.step_value(end)

    for how, value in {"min": 0.4, "last": 0.8, "product": 0.288, "mean": 0.7}.items():
        scorer = HashScorer(rule=lambda prefix: scores[len(prefix.splitlines())])
        found = in_space(work, ScriptedPolicy(full_tree(2, 1)), scorer, aggregation=how)
        assert found == pytest.approx((value, 0.8))


def test_a_missing_score_has_no_value_and_is_counted():
    scorer = HashScorer(rule=lambda prefix: None if "step 0 is 1" in prefix else 0.5)

    async def work(space):
        [nodes] = await space.extend([space.root], 2)
        values = await space.score(nodes)
        record = space.record(nodes[1], space.trace(nodes[1]))
        return values, space.counts["unscored"], record.unscored_reason

    assert in_space(work, ScriptedPolicy(full_tree(2, 2)), scorer) == ([0.5, -math.inf], 1, "no number")


@pytest.mark.parametrize("fault", ["length", "order"])
def test_scores_that_do_not_fit_are_an_error(fault):
    class Wrong(HashScorer):
        def score_traces(self, items):
            records = super().score_traces(items)
            if fault == "order":
                return records[::-1]
            return [
                StepScores(trace_id=record.trace_id, scorer="wrong", scores=(*record.scores, 1.0))
                for record in records
            ]

    with pytest.raises(ScoreError, match="do not fit the"):
        searched(BeamSearch(), problems(1), ScriptedPolicy(random_solver()), Wrong())


def test_generators_follow_from_seed_and_problem():
    async def work(space):
        first, second = space.generator.random(), space.generator.random()
        assert first == second
        return first

    policy = ScriptedPolicy(random_solver())
    one, other = problems(2)
    numbers = [
        in_space(work, policy, problem=problem, seed=seed) for problem in (one, other) for seed in (0, 1)
    ]
    assert len(set(numbers)) == 4
    assert numbers[0] == in_space(work, policy, problem=one, seed=0)


def test_answers_are_canonical():
    def answer(request, sample):
        return ["The answer is 2", "The answer is  2 .", "no idea"][sample]

    async def work(space):
        [found] = await space.extend([space.root], 3, to_end=True)
        return await space.answers(found)

    assert in_space(work, ScriptedPolicy(answer)) == ["2", "2", None]


def test_weights_count_how_often_a_solution_was_found():
    def answer(request, sample):
        return f"The answer is {[1, 2, 2, 1, 2][sample]}"

    [result] = searched(MajoritySearch(n=5), problems(3)[2:], ScriptedPolicy(answer))
    assert [candidate.answer for candidate in result.candidates] == ["1", "2"]
    assert (result.weights, result.chosen, result.outcome) == ((2, 3), 1, True)
    assert (result.counts.sampled, result.counts.merged, result.counts.nodes) == (5, 3, 2)
    assert result.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"separator": ""}, "separator"), ({"step_tokens": 0}, "step_tokens"), ({"max_steps": 0}, "max_steps")],
)
def test_impossible_steps_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Steps(**wrong)


@settings(max_examples=30, deadline=None)
@given(
    text=st.text(alphabet="ab \n", max_size=30),
    cut=st.integers(1, 5),
)
def test_a_solution_keeps_its_characters(text, cut):
    """Written by steps or in one piece, a trace's steps tile its text, and scores fit them."""
    policy = ScriptedPolicy(lambda request, sample: text[len(request.prefix) :], tokens=len)
    steps = Steps(step_tokens=30, max_steps=cut, sampling=Sampling(max_tokens=60))

    async def work(space):
        node = space.root
        while node.data.finish is None:
            [[node]] = await space.extend([node], 1)
        await space.score([node])
        return space.trace(node) if node.prefix.strip() else None

    trace = in_space(work, policy, HashScorer(), steps=steps)
    if trace is None:
        assert not text.strip()
    else:
        assert text.startswith(trace.text)
        assert not text[len(trace.text) :].strip()
        assert "".join(trace.step_text(k) for k in range(len(trace.steps))) == trace.text
        assert all(trace.step_text(k).strip() for k in range(len(trace.steps)))


def test_the_checkpoint_s_own_aggregation_is_the_default():
    class Card:
        aggregation = "last"

    scorer = HashScorer()
    scorer.card = Card()
    for result in searched(BestOfNSearch(n=3), problems(2), ScriptedPolicy(random_solver()), scorer):
        assert result.values == tuple(record.scores[-1] for record in result.scores)
