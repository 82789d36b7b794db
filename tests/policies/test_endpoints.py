"""Several servers of one model: who gets a call, and what a failure changes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack

import pytest
from openai_server import Body, OpenAIServer, Reply, completion, serve

from surefoot.errors import PolicyError
from surefoot.policies.endpoints import Endpoints
from surefoot.policies.loading import load_policy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest


async def hold(stack: AsyncExitStack, endpoints: Endpoints[str], *keys: int | None, **more) -> str:
    """The servers of calls that stay under way, one for each key, joined."""
    return "".join([(await stack.enter_async_context(endpoints.use(key, **more))).client for key in keys])


def in_a_loop(test: Callable[[AsyncExitStack], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            await asyncio.wait_for(test(stack), 20)

    asyncio.run(run())


def test_calls_go_to_the_least_busy() -> None:
    async def test(stack: AsyncExitStack) -> None:
        endpoints = Endpoints(["a", "b", "c"])
        assert sorted(await hold(stack, endpoints, None, None, None)) == ["a", "b", "c"]
        assert await hold(stack, endpoints, None, avoid=endpoints.all[:2]) == "c"

    in_a_loop(test)


def test_calls_with_one_prompt_go_to_one_server_while_it_has_not_many_more() -> None:
    async def test(stack: AsyncExitStack) -> None:
        endpoints = Endpoints(["a", "b"], window=8)
        assert await hold(stack, endpoints, 6, 6, 6) == "aaa"
        assert await hold(stack, endpoints, 6, 6) == "ba", "three more than the other is too many"
        assert await hold(stack, endpoints, 7, 7) == "bb"

    in_a_loop(test)


def test_no_server_has_more_calls_than_its_window_and_none_is_idle_while_calls_wait() -> None:
    most, served = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    endpoints = Endpoints(["a", "b"], window=3)

    async def call(key: int) -> None:
        async with endpoints.use(key) as endpoint:
            name = endpoint.client
            most[name] = max(most[name], endpoint.in_flight)
            served[name] += 1
            await asyncio.sleep(0.01 if name == "a" else 0.03)

    async def test(_: AsyncExitStack) -> None:
        await asyncio.gather(*(call(1) for _ in range(60)))

    in_a_loop(test)
    assert most == {"a": 3, "b": 3}
    assert sum(served.values()) == 60
    assert served["a"] > served["b"], "the quick one takes calls that wait for the other"
    assert not any(one.in_flight or one.waiting for one in endpoints.all)


def test_a_call_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    async def test(stack: AsyncExitStack) -> None:
        endpoints = Endpoints(["a"], window=1)

        async def call() -> None:
            async with endpoints.use():
                await asyncio.sleep(0)

        async with endpoints.use():
            calls = [asyncio.create_task(call()) for _ in range(4)]
            await asyncio.sleep(0)
            calls[0].cancel()
        calls[1].cancel()  # its turn has come, and it does not know yet
        await asyncio.gather(*calls, return_exceptions=True)
        assert [one.cancelled() for one in calls] == [True, True, False, False]
        assert not endpoints.all[0].in_flight

    in_a_loop(test)


def test_a_server_that_fails_rests_and_is_tried_by_one_call() -> None:
    time = [0.0]

    async def pair(endpoints: Endpoints[str]) -> str:
        async with AsyncExitStack() as stack:
            return await hold(stack, endpoints, None, None)

    async def test(_: AsyncExitStack) -> None:
        endpoints = Endpoints(["a", "b"], eject_after=2, rest_s=10, clock=lambda: time[0])
        bad, _good = endpoints.all
        endpoints.failed(bad)
        assert await pair(endpoints) == "ab", "one failure says little"
        endpoints.failed(bad)
        for _ in range(3):
            assert await pair(endpoints) == "bb"
        time[0] = 11
        assert await pair(endpoints) == "ab", "only one call tries it"
        endpoints.failed(bad)
        assert await pair(endpoints) == "bb"
        time[0] = 22
        endpoints.succeeded(bad)
        assert await pair(endpoints) == "ab"

    in_a_loop(test)


def test_where_all_rest_the_one_whose_rest_ends_first_is_tried() -> None:
    time = [0.0]

    async def test(stack: AsyncExitStack) -> None:
        endpoints = Endpoints(["a", "b"], eject_after=1, rest_s=10, clock=lambda: time[0])
        endpoints.failed(endpoints.all[1])
        time[0] = 1
        endpoints.failed(endpoints.all[0])
        assert await hold(stack, endpoints, None) == "b"

    in_a_loop(test)


def test_a_call_whose_only_other_server_rests_gets_it_in_the_end() -> None:
    async def test(_: AsyncExitStack) -> None:
        endpoints = Endpoints(["a", "b"], window=1, eject_after=1, clock=lambda: 0.0)
        first, second = endpoints.all

        async def call() -> str:
            async with endpoints.use(avoid=[first]) as endpoint:
                return endpoint.client

        endpoints.failed(second)
        async with endpoints.use(avoid=[first]):
            waiting = asyncio.create_task(call())
            await asyncio.sleep(0)
        assert await waiting == "b"

    in_a_loop(test)


def sampled(urls: list[str], count: int, **settings) -> list[str]:
    policy = OpenAIPolicy(model="m", base_url=urls, mode="completions", **settings)
    results = asyncio.run(policy.sample([SampleRequest(prompt=f"{n}") for n in range(count)]))
    assert [result.error for result in results] == [None] * count
    return [result.completions[0].text for result in results]


def echo(body: Body) -> Reply:
    return Reply(payload=completion([body["prompt"]]), wait_s=0.02)


def test_two_servers_share_the_calls():
    with serve(echo) as one, serve(echo) as two:
        assert sampled([one.url, two.url], 20, concurrency=2) == [str(n) for n in range(20)]
        assert (one.most_in_flight, two.most_in_flight) == (2, 2)
        assert abs(len(one.seen) - len(two.seen)) <= 4


@pytest.mark.parametrize("failure", [Reply(status=500), Reply(status=404), Reply(payload="{", drop=True)])
def test_a_server_that_dies_is_left_to_the_other(failure):
    lock, left = threading.Lock(), iter(range(3))

    def dying(body: Body) -> Reply:
        with lock:
            alive = next(left, None) is not None
        return echo(body) if alive else failure

    with serve(dying) as one, serve(echo) as two:
        assert sampled([one.url, two.url], 20, concurrency=2, max_retries=0) == [str(n) for n in range(20)]
        assert len(one.seen) < 10, "it is not asked for every call"


def test_nothing_is_lost_or_doubled_when_a_server_dies_with_calls_under_way() -> None:
    """What it had not answered is asked of the other, with the same seed, and so has the same answer."""

    def answer(body: Body) -> Reply:
        return Reply(payload=completion([f"{body['prompt']} {body['seed']}"]), wait_s=0.02)

    left, over = iter(range(15)), threading.Event()

    def dying(body: Body) -> Reply:
        if next(left, None) is None:
            over.set()
        return Reply(payload="{", drop=True, wait_s=0.02) if over.is_set() else answer(body)

    with serve(answer) as alone:
        expected = sampled([alone.url], 80, concurrency=8)
    with serve(dying) as one, serve(answer) as two:
        assert sampled([one.url, two.url], 80, concurrency=8, max_retries=0) == expected
    assert over.is_set()
    answered = Counter(body["prompt"] for body in two.bodies)
    assert max(answered.values()) == 1
    assert len(answered) >= 80 - 15


def test_a_prompt_finds_the_server_that_knows_it() -> None:
    with serve(echo) as one, serve(echo) as two:
        policy = OpenAIPolicy(model="m", base_url=[one.url, two.url], mode="completions", concurrency=8)
        requests = [SampleRequest(prompt=f"{n % 8}", prefix=f"{n}") for n in range(64)]
        asyncio.run(policy.sample(requests))
        prompts = [Counter(body["prompt"][0] for body in server.bodies) for server in (one, two)]
    known = sum(max(own[prompt] for own in prompts) for prompt in "01234567")
    assert known > 50, "32 by chance alone"


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serve(echo) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        assert sampled(["http://model.invalid/v1"], 1) == ["0"]
    assert proxy.seen[0][0] == "http://model.invalid/v1/completions"


def test_a_request_that_is_wrong_in_itself_is_not_sent_around():
    def refuse(body: Body) -> Reply:
        return Reply(status=400, payload="too long")

    with serve(refuse) as one, serve(refuse) as two:
        policy = OpenAIPolicy(model="m", base_url=[one.url, two.url], mode="completions")
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="1")]))
        assert (result.error, result.usage.calls) == ("server: status 400: too long", 1)
        assert len(one.seen) + len(two.seen) == 1


def test_calls_of_all_servers_are_counted():
    with serve(lambda _: Reply(status=500)) as one, serve(lambda _: Reply(status=500)) as two:
        policy = OpenAIPolicy(model="m", base_url=[one.url, two.url], mode="completions", max_retries=1)
        [result] = asyncio.run(policy.sample([SampleRequest(prompt="1")]))
        assert result.error.startswith("server: status 500")
        assert result.usage.calls == len(one.seen) + len(two.seen) == 4


def test_each_server_is_asked_before_work():
    def models(server: OpenAIServer, *names: str) -> None:
        server.models = [{"id": name} for name in names]

    with serve(echo) as one, serve(lambda _: Reply(status=404)) as two:
        models(one, "m")
        models(two, "other")
        with pytest.raises(PolicyError, match=f"{two.url} serves other and not the model 'm'"):
            load_policy("m", base_url=[one.url, two.url])
