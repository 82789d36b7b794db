import asyncio

import pytest
from toy_search import HashScorer, ScriptedPolicy, Watched, problems, random_solver, searched

from surefoot.errors import PolicyError, ScoreError
from surefoot.protocols import SampleRequest
from surefoot.search import BeamSearch, BestOfNSearch
from surefoot.search.desk import Desk


class Failing:
    name = "failing"

    def __init__(self, after=0):
        self.left = after

    async def sample(self, requests):
        self.left -= 1
        if self.left < 0:
            raise PolicyError("no such model")
        return await ScriptedPolicy(random_solver()).sample(requests)


def test_what_all_searches_ask_is_one_batch():
    policy, scorer = Watched(ScriptedPolicy(random_solver(depth=3))), HashScorer()
    results = searched(BeamSearch(width=2, expand=2), problems(20), policy, scorer)
    # a round of draws for each depth at most, and a round of scores between them and at the end
    assert len(policy.rounds) <= 4
    assert len(scorer.rounds) <= 5
    assert len(policy.rounds[0]) == len(results) == 20
    assert [request.prompt for request in policy.rounds[0]] == [f"problem {k}\n" for k in range(20)]


def test_searches_of_unequal_length_wait_for_each_other():
    policy = Watched(ScriptedPolicy(random_solver()))
    desk = Desk(policy=policy)

    async def ask(times):
        return [
            len(await desk.sample([SampleRequest(prompt=f"{times}", prefix=f"{k}")])) for k in range(times)
        ]

    results = asyncio.run(desk.run([ask(3), ask(1), ask(2)]))
    assert results == [[1, 1, 1], [1], [1, 1]]
    assert [[request.prompt for request in requests] for requests in policy.rounds] == [
        ["3", "1", "2"],
        ["3", "2"],
        ["3"],
    ]


def test_a_batch_waits_for_a_search_that_is_slow_to_ask_and_keeps_the_order_of_the_searches():
    policy = Watched(ScriptedPolicy(random_solver()))
    desk = Desk(policy=policy)

    async def ask(wait_s):
        await asyncio.sleep(wait_s)
        return len(await desk.sample([SampleRequest(prompt=f"{wait_s}")]))

    assert asyncio.run(desk.run([ask(0), ask(0.02), ask(0.01)])) == [1, 1, 1]
    assert [[request.prompt for request in requests] for requests in policy.rounds] == [["0", "0.02", "0.01"]]


def test_at_once_bounds_a_batch_and_the_next_moves_up():
    policy = Watched(ScriptedPolicy(random_solver()))
    searched(BestOfNSearch(n=2, rule="majority"), problems(7), policy, at_once=3)
    assert [len(requests) for requests in policy.rounds] == [3, 3, 1]
    with pytest.raises(ValueError, match="'at_once' must be 1 or more"):
        searched(BestOfNSearch(n=2), problems(2), policy, at_once=0)


def test_no_searches_give_no_results():
    assert searched(BeamSearch(), [], ScriptedPolicy(random_solver()), HashScorer()) == []


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize("after", [0, 2])
def test_what_the_policy_raises_ends_the_run(overlap, at_once, after):
    with pytest.raises(PolicyError, match="no such model"):
        searched(BeamSearch(), problems(5), Failing(after), HashScorer(), overlap=overlap, at_once=at_once)


def test_what_the_scorer_raises_ends_the_run():
    class Broken(HashScorer):
        def score_traces(self, items):
            raise ScoreError("out of memory")

    with pytest.raises(ScoreError, match="out of memory"):
        searched(BeamSearch(), problems(3), ScriptedPolicy(random_solver()), Broken())


def test_a_desk_goes_on_after_an_error():
    desk = Desk(policy=Failing(after=0))

    async def ask():
        return await desk.sample([SampleRequest(prompt="p")])

    async def main():
        with pytest.raises(PolicyError):
            await desk.run([ask(), ask()])
        desk.policy = ScriptedPolicy(random_solver())
        return await desk.run([ask(), ask()])

    assert [len(answers) for answers in asyncio.run(main())] == [1, 1]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_number_of_answers_is_an_error(wrong):
    class Miscounting(HashScorer):
        def score_traces(self, items):
            records = super().score_traces(items)
            return records[:-1] if wrong < 0 else [*records, records[0]]

    with pytest.raises(ScoreError, match=r"answers to \d+ questions"):
        searched(BeamSearch(), problems(2), ScriptedPolicy(random_solver()), Miscounting())

    class Silent(Failing):
        async def sample(self, requests):
            return []

    with pytest.raises(PolicyError, match="policy gave 0 answers to 2 questions"):
        searched(BeamSearch(), problems(2), Silent(), HashScorer())


def test_a_cancelled_search_leaves_the_others_to_go_on():
    policy = Watched(ScriptedPolicy(random_solver()))
    desk = Desk(policy=policy)
    task = None

    async def gives_up():
        nonlocal task
        task = asyncio.ensure_future(desk.sample([SampleRequest(prompt="given up")]))
        await asyncio.sleep(0)
        task.cancel()
        return "gave up"

    async def asks():
        for _ in range(3):  # not at the same moment as the other
            await asyncio.sleep(0)
        return len(await desk.sample([SampleRequest(prompt="asked")]))

    assert asyncio.run(desk.run([gives_up(), asks()])) == ["gave up", 1]
    assert [request.prompt for request in policy.requests] == ["asked"]


def test_overlap_scores_while_others_are_written():
    """With a server, a fast search does not wait for a slow one."""
    order = []

    class Server:
        name = "server"

        async def sample(self, requests):
            await asyncio.sleep(0.05 if requests[0].prompt == "problem 0\n" else 0.001)
            order.append(requests[0].prompt)
            return await ScriptedPolicy(random_solver()).sample(requests)

    def watch(space, result):
        order.append(f"done {space.problem.text}")

    searched(BeamSearch(width=1, expand=2), problems(2), Server(), HashScorer(), overlap=True, watch=watch)
    assert order.index("done problem 1") < order.index("problem 0\n")
