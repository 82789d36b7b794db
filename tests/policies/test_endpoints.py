"""Several servers of one model: who gets a call, and what a failure changes."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openai_server import Body, OpenAIServer, Reply, completion, serve

from surefoot.errors import PolicyError
from surefoot.policies.endpoints import Endpoints
from surefoot.policies.loading import load_policy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest


def test_calls_go_to_the_least_busy():
    endpoints = Endpoints(["a", "b", "c"])
    with endpoints.use() as one, endpoints.use() as two, endpoints.use() as three:
        assert {one.client, two.client, three.client} == {"a", "b", "c"}
    with endpoints.use(avoid=[one]) as other:
        assert other.client != one.client


def test_a_server_that_fails_rests_and_is_tried_by_one_call():
    time = [0.0]
    endpoints = Endpoints(["a", "b"], eject_after=2, rest_s=10, clock=lambda: time[0])
    bad, good = endpoints.all
    endpoints.failed(bad)
    with endpoints.use() as chosen:
        assert chosen is bad, "one failure says little"
    endpoints.failed(bad)
    for _ in range(3):
        with endpoints.use() as chosen, endpoints.use() as second:
            assert chosen is second is good
    time[0] = 11
    with endpoints.use() as chosen, endpoints.use() as second:
        assert chosen is bad
        assert second is good, "only one call tries it"
    endpoints.failed(bad)
    with endpoints.use() as chosen:
        assert chosen is good
    time[0] = 22
    endpoints.succeeded(bad)
    with endpoints.use() as one, endpoints.use() as two:
        assert {one, two} == {bad, good}


def test_where_all_rest_the_one_whose_rest_ends_first_is_tried():
    time = [0.0]
    endpoints = Endpoints(["a", "b"], eject_after=1, rest_s=10, clock=lambda: time[0])
    endpoints.failed(endpoints.all[1])
    time[0] = 1
    endpoints.failed(endpoints.all[0])
    with endpoints.use() as chosen:
        assert chosen.client == "b"


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
