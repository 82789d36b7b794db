import asyncio
import time

import pytest
from toy_search import HashScorer, ScriptedPolicy, Watched, problems, random_solver, searched

from surefoot.batching import Batcher
from surefoot.errors import PolicyError, ScoreError
from surefoot.policies import IN_PROCESS
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import Usage
from surefoot.search import BeamSearch, BestOfNSearch, MajoritySearch


class Failing:
    name = "failing"

    def __init__(self, after=0):
        self.left = after

    def capabilities(self):
        return IN_PROCESS

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
    batcher = Batcher(policy)

    async def ask(times):
        return [
            len(await batcher.sample([SampleRequest(prompt=f"{times}", prefix=f"{k}")])) for k in range(times)
        ]

    results = asyncio.run(batcher.run([ask(3), ask(1), ask(2)]))
    assert results == [[1, 1, 1], [1], [1, 1]]
    assert [[request.prompt for request in requests] for requests in policy.rounds] == [
        ["3", "1", "2"],
        ["3", "2"],
        ["3"],
    ]


def test_a_batch_waits_for_a_search_that_is_slow_to_ask_and_keeps_the_order_of_the_searches():
    policy = Watched(ScriptedPolicy(random_solver()))
    batcher = Batcher(policy)

    async def ask(wait_s):
        await asyncio.sleep(wait_s)
        return len(await batcher.sample([SampleRequest(prompt=f"{wait_s}")]))

    assert asyncio.run(batcher.run([ask(0), ask(0.02), ask(0.01)])) == [1, 1, 1]
    assert [[request.prompt for request in requests] for requests in policy.rounds] == [["0", "0.02", "0.01"]]


def test_concurrency_bounds_a_batch_and_the_next_moves_up():
    policy = Watched(ScriptedPolicy(random_solver()))
    searched(MajoritySearch(n=2), problems(7), policy, concurrency=3)
    assert [len(requests) for requests in policy.rounds] == [3, 3, 1]
    with pytest.raises(ValueError, match="'concurrency' must be 1 or more"):
        searched(BestOfNSearch(n=2), problems(2), policy, concurrency=0)


def test_no_searches_give_no_results():
    assert searched(BeamSearch(), [], ScriptedPolicy(random_solver()), HashScorer()) == []


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize("after", [0, 2])
def test_what_the_policy_raises_ends_the_run(overlap, concurrency, after):
    with pytest.raises(PolicyError, match="no such model"):
        searched(
            BeamSearch(), problems(5), Failing(after), HashScorer(), overlap=overlap, concurrency=concurrency
        )


def test_what_the_scorer_raises_ends_the_run():
    class Broken(HashScorer):
        def score_traces(self, items):
            raise ScoreError("out of memory")

    with pytest.raises(ScoreError, match="out of memory"):
        searched(BeamSearch(), problems(3), ScriptedPolicy(random_solver()), Broken())


def test_a_batcher_goes_on_after_an_error():
    batcher = Batcher(Failing(after=0))

    async def ask():
        return await batcher.sample([SampleRequest(prompt="p")])

    async def main():
        with pytest.raises(PolicyError):
            await batcher.run([ask(), ask()])
        batcher.policy = ScriptedPolicy(random_solver())
        return await batcher.run([ask(), ask()])

    assert [len(answers) for answers in asyncio.run(main())] == [1, 1]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_wrong_number_of_answers_is_an_error(wrong):
    class Miscounting(HashScorer):
        def score_traces(self, items):
            records = super().score_traces(items)
            return records[:-1] if wrong < 0 else [*records, records[0]]

    with pytest.raises(ScoreError, match=r"scorer gave \d+ results for \d+ requests"):
        searched(BeamSearch(), problems(2), ScriptedPolicy(random_solver()), Miscounting())

    class Silent(Failing):
        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            return []

    with pytest.raises(PolicyError, match="policy gave 0 results for 2 requests"):
        searched(BeamSearch(), problems(2), Silent(), HashScorer())


def test_a_cancelled_search_leaves_the_others_to_go_on():
    policy = Watched(ScriptedPolicy(random_solver()))
    batcher = Batcher(policy)
    task = None

    async def gives_up():
        nonlocal task
        task = asyncio.ensure_future(batcher.sample([SampleRequest(prompt="given up")]))
        await asyncio.sleep(0)
        task.cancel()
        return "gave up"

    async def asks():
        for _ in range(3):  # not at the same moment as the other
            await asyncio.sleep(0)
        return len(await batcher.sample([SampleRequest(prompt="asked")]))

    assert asyncio.run(batcher.run([gives_up(), asks()])) == ["gave up", 1]
    assert [request.prompt for request in policy.requests] == ["asked"]


def test_overlap_scores_while_others_are_written():
    """With a server, a fast search does not wait for a slow one."""
    order = []

    class Server:
        name = "server"

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            await asyncio.sleep(0.05 if requests[0].prompt == "problem 0\n" else 0.001)
            order.append(requests[0].prompt)
            return await ScriptedPolicy(random_solver()).sample(requests)

    def watch(space, result):
        order.append(f"done {space.problem.text}")

    searched(BeamSearch(width=1, expand=2), problems(2), Server(), HashScorer(), overlap=True, watch=watch)
    assert order.index("done problem 1") < order.index("problem 0\n")


def test_what_waits_goes_out_together_within_the_bound():
    policy = Watched(ScriptedPolicy(lambda asked, sample: f"{asked.prompt}/{sample}", latency_s=0.01))
    batcher = Batcher(policy, gather_s=0.002, max_samples=8)

    async def main():
        return await asyncio.gather(*(batcher.sample([SampleRequest(prompt=f"p{k}", n=2)]) for k in range(9)))

    answers = asyncio.run(main())
    assert [[drawn.text for drawn in row[0].completions] for row in answers] == [
        [f"p{k}/0", f"p{k}/1"] for k in range(9)
    ]
    assert [len(batch) for batch in policy.rounds] == [4, 4, 1]


def test_a_batch_that_nobody_waits_for_is_cancelled_and_the_next_goes_on():
    ended = []

    class Slow:
        name = "slow"

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            try:
                await asyncio.sleep(0.05 if requests[0].prompt == "quick" else 30)
            finally:
                ended.append([one.prompt for one in requests])
            return [SampleResult(completions=(), usage=Usage())] * len(requests)

    async def main():
        batcher = Batcher(Slow())
        first = asyncio.ensure_future(batcher.sample([SampleRequest(prompt="long")]))
        second = asyncio.ensure_future(batcher.sample([SampleRequest(prompt="long too")]))
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(batcher.sample([SampleRequest(prompt="quick")]))
        first.cancel()
        await asyncio.sleep(0.02)
        assert not ended  # somebody still waits for it
        second.cancel()
        assert len(await asyncio.wait_for(third, 5)) == 1

    asyncio.run(main())
    assert ended == [["long", "long too"], ["quick"]]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_policy_that_answers_too_little_is_an_error(overlap):
    class Short:
        name = "short"

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            return []

    batcher = Batcher(Short(), overlap=overlap)
    with pytest.raises(PolicyError, match="0 results for 1"):
        asyncio.run(batcher.sample([SampleRequest(prompt="p")]))


def test_an_isolated_error_fails_only_the_request_that_causes_it():
    class Picky(ScriptedPolicy):
        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            if any(one.prompt == "bad" for one in requests):
                raise PolicyError("no")
            return await super().sample(requests)

    async def main():
        batcher = Batcher(Picky(random_solver()), isolate_errors=True)
        asked = [batcher.sample([SampleRequest(prompt=prompt)]) for prompt in ("a", "bad", "b")]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, error, last = asyncio.run(main())
    assert (len(first), len(last)) == (1, 1)
    assert isinstance(error, PolicyError)


def test_a_batch_that_waits_for_another_kind_goes_out_when_that_has_ended():
    """A task gives up on scores that a thread computes, and asks for samples: no batch beside that one."""
    log = []

    class Slow(HashScorer):
        def score_traces(self, items):
            time.sleep(0.05)
            log.append("scored")
            return super().score_traces(items)

    class Logging(ScriptedPolicy):
        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests):
            log.append("sampled")
            return await super().sample(requests)

    batcher = Batcher(Logging(random_solver()), Slow())

    async def changes_its_mind():
        scoring = asyncio.ensure_future(batcher.score([]))
        await asyncio.sleep(0.02)
        scoring.cancel()
        return len(await batcher.sample([SampleRequest(prompt="p")]))

    assert asyncio.run(asyncio.wait_for(batcher.run([changes_its_mind()]), 5)) == [1]
    assert log == ["scored", "sampled"]
