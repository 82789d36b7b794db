"""What clients share: batches of the policy, traces of the scorer, places, and one request's seat."""

from __future__ import annotations

import asyncio

import pytest
from gateway_server import LineScorer
from watched_policy import Watched

from surefoot.errors import PolicyError
from surefoot.gateway.admission import Admission
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.seat import Seat
from surefoot.gateway.sharing import SharedPolicy, SharedScorer
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.protocols import ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Problem, Step, Trace, Usage
from surefoot.search.desk import Desk


def request(prompt, n=1, **more):
    return SampleRequest(prompt=prompt, n=n, **more)


def test_what_waits_goes_out_together_within_the_bound():
    policy = Watched(ScriptedPolicy(lambda asked, sample: f"{asked.prompt}/{sample}", latency_s=0.01))
    shared = SharedPolicy(policy, overlap=False, max_samples=8)

    async def main():
        return await asyncio.gather(*(shared.sample([request(f"p{k}", n=2)]) for k in range(9)))

    answers = asyncio.run(main())
    assert [[drawn.text for drawn in row[0].completions] for row in answers] == [
        [f"p{k}/0", f"p{k}/1"] for k in range(9)
    ]
    assert [len(batch) for batch in policy.rounds] == [4, 4, 1]


def test_a_batch_that_nobody_waits_for_is_cancelled_and_the_next_goes_on():
    ended = []

    class Slow:
        name = "slow"

        async def sample(self, requests):
            try:
                await asyncio.sleep(0.05 if requests[0].prompt == "quick" else 30)
            finally:
                ended.append([one.prompt for one in requests])
            return [SampleResult(completions=(), usage=Usage())] * len(requests)

    async def main():
        shared = SharedPolicy(Slow(), overlap=False, gather_s=0)
        first = asyncio.ensure_future(shared.sample([request("long")]))
        second = asyncio.ensure_future(shared.sample([request("long too")]))
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(shared.sample([request("quick")]))
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

        async def sample(self, requests):
            return []

    shared = SharedPolicy(Short(), overlap=overlap)
    with pytest.raises(PolicyError, match="0 answers to 1"):
        asyncio.run(shared.sample([request("p")]))


def test_a_trace_that_the_scorer_cannot_read_spoils_no_other():
    problem = Problem(text="p")
    items = [
        ProblemTrace(
            problem=problem,
            trace=Trace(problem_id=problem.id, text=text, steps=(Step(start=0, end=len(text)),)),
        )
        for text in ("fine", "raise", "bad")
    ]
    failed = []
    records = SharedScorer(LineScorer(), failed=lambda: failed.append(1)).score_traces(items)
    assert [record.scores for record in records] == [(0.9,), (None,), (0.1,)]
    assert records[1].unscored_reason == "scorer: ValueError"
    assert failed == [1]


def test_places_are_given_in_order_and_come_back():
    async def main():
        admission = Admission(running=1, waiting=2)
        order = []

        async def work(name, ticket):
            async with ticket:
                order.append(name)
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(work(name, admission.ticket())) for name in "abc"]
        with pytest.raises(ApiError) as caught:
            admission.ticket()
        assert (caught.value.status, caught.value.retry_after_s > 0) == (429, True)
        await asyncio.sleep(0.005)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["a", "c"]
        assert (admission.running, admission.waiting) == (0, 0)
        ticket = admission.ticket()
        ticket.close()
        ticket.close()
        assert admission.waiting == 0

    asyncio.run(main())


def test_a_seat_bounds_all_steps_together_and_ends_at_stop_texts_over_their_bounds():
    policy = ScriptedPolicy(lambda asked, sample: "one two\n\nthree\n"[len(asked.prefix) :])

    def step(seat, prefix):
        sampling = Sampling(max_tokens=50, stop=("\n",))
        [result] = asyncio.run(seat.sample([request("p", prefix=prefix, sampling=sampling)]))
        return result.completions[0].text, result.completions[0].finish_reason

    seat = Seat(Desk(policy=policy, overlap=True), separator="\n", max_tokens=3, stop=())
    assert step(seat, "") == ("one two\n", "stop")
    assert step(seat, "one two\n") == ("\n", "stop")
    assert step(seat, "one two\n\n")[0] == "three\n"
    assert step(seat, "one two\n\nthree\n") == ("", "length")
    seat = Seat(Desk(policy=policy, overlap=True), separator="\n", max_tokens=99, stop=("\n\n",))
    assert step(seat, "") == ("one two\n", "stop")
    assert seat.visible("one two\n", finished=False) == "one two"
    assert step(seat, "one two\n") == ("", "stop")
    assert step(seat, "one two\n") == ("", "stop")
    assert seat.visible("one two\n") == "one two"
