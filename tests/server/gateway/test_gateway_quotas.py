"""Quotas of keys: what is reserved, what is counted, what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import openai
import pytest
from gateway_server import LineScorer, ask, lines, served, wait_until
from openai import OpenAI

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import GatewaySettings, open_database
from surefoot.server.gateway.settings import Limits

MESSAGES = [{"role": "user", "content": "hello"}]
SOLUTION = {"problem": "p", "steps": ["one two three\n", "four"]}


class Client:
    """Asks with a new key that has quotas."""

    def __init__(self, found, db, **quotas):
        self.found, self.db = found, db
        self.key, self.row = db.keys.create("alice", "client", **quotas)

    def post(self, path, body):
        return ask(self.found.root + path, json.dumps(body).encode(), {"Authorization": f"Bearer {self.key}"})

    def chat(self, **more):
        return self.post(
            "/v1/chat/completions", {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, **more}
        )

    @property
    def used(self):
        return self.db.keys.usage(self.row.id)


class Gated:
    """Answers once its gate is open."""

    name = "scripted"

    def __init__(self):
        self.policy, self.gate = ScriptedPolicy(lines), threading.Event()

    async def sample(self, requests):
        assert await asyncio.to_thread(self.gate.wait, 20)
        return await self.policy.sample(requests)


@pytest.fixture
def db(tmp_path):
    with open_database(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def found(db):
    with served(ScriptedPolicy(lines), LineScorer(), db=db) as server:
        yield server


def test_requests_per_day(found, db):
    client = Client(found, db, daily_requests=3)
    assert [client.chat()[0] for _ in range(2)] == [200, 200]
    assert client.post("/v1/score", {"items": [SOLUTION]})[0] == 200
    for path, body in (("/v1/score", {"items": [SOLUTION]}), ("/v1/verify", SOLUTION)):
        status, answer = client.post(path, body)
        assert (status, answer["error"]["code"], answer["error"]["type"]) == (
            429,
            *["insufficient_quota"] * 2,
        )
        assert answer["error"]["param"] == "daily_requests"
        assert "has used 3 of 3 requests per day" in answer["error"]["message"]
    with (
        OpenAI(base_url=found.url, api_key=client.key, max_retries=0) as official,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        official.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 24 * 3600
    assert caught.value.code == "insufficient_quota"
    assert client.used.requests == 3
    assert ask(f"{found.url}/models", headers={"Authorization": f"Bearer {client.key}"})[0] == 200
    metrics = found.gateway.metrics.text().decode()
    assert 'surefoot_key_refusals_total{reason="daily_requests"} 3.0' in metrics


def test_what_is_refused_for_other_reasons_does_not_count(found, db):
    client = Client(found, db, daily_requests=1)
    assert client.chat(model="nobody")[0] == 404
    assert client.chat(n=1000)[0] == 400
    assert client.used.requests == 0
    assert client.chat()[0] == 200


def test_all_tokens_count(found, db):
    client = Client(found, db)
    spent = 0
    for more in ({}, {"model": "best-of-4"}, {"stream": True, "stream_options": {"include_usage": True}}):
        status, answer = client.chat(max_tokens=100, **more)
        if isinstance(answer, str):
            events = [
                line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")
            ]
            answer = next(event for event in map(json.loads, reversed(events)) if event.get("usage"))
        usage = answer["usage"]
        spent += usage["prompt_tokens"] + usage["completion_tokens"] + usage["verifier_tokens"]
        assert status == 200
    status, answer = client.post("/v1/score", {"items": [SOLUTION, SOLUTION]})
    spent += answer["usage"]["verifier_tokens"]
    status, answer = client.post("/v1/verify", SOLUTION)
    spent += answer["usage"]["verifier_tokens"]
    messages = [*MESSAGES, {"role": "assistant", "content": "five words are in this"}]
    status, answer = client.post("/pooling", {"messages": messages})
    spent += answer["usage"]["prompt_tokens"]
    wait_until(lambda: client.used.requests == 6)
    assert spent > 30
    assert client.used.tokens == spent


def test_tokens_per_day_are_reserved_before_the_work(found, db):
    client = Client(found, db, daily_tokens=200)
    status, answer = client.chat(max_tokens=1000)
    assert (status, answer["error"]["param"]) == (429, "daily_tokens")
    assert "has used 0 of 200 tokens per day" in answer["error"]["message"]
    assert "lower 'max_tokens'" in answer["error"]["message"]
    assert client.chat(model="best-of-4", max_tokens=100)[0] == 429  # 4 solutions
    assert client.chat(model="accept-reject", max_tokens=50)[0] == 429  # and 4 draws of each step
    assert client.used.requests == 0
    while client.chat(max_tokens=100)[0] == 200:
        pass
    assert 0 < client.used.tokens <= 200


def test_requests_at_once_do_not_pass_the_bound(db):
    policy = Gated()
    with served(policy, LineScorer(), db=db, settings=GatewaySettings(overlap=True)) as found:
        client = Client(found, db, daily_requests=4)
        with ThreadPoolExecutor(12) as threads:
            asked = [threads.submit(client.chat, stream=bool(number % 2)) for number in range(12)]
            wait_until(lambda: sum(one.done() for one in asked) == 8)
            refused = [one.result() for one in asked if one.done()]
            policy.gate.set()
            statuses = sorted(one.result()[0] for one in asked)
    # the others hold the rest, and might fail
    assert {answer["error"]["code"] for _, answer in refused} == {"rate_limit_exceeded"}
    assert statuses == [200] * 4 + [429] * 8
    assert client.used.requests == 4


def test_two_servers_agree_on_what_is_used(db):
    with (
        served(ScriptedPolicy(lines), LineScorer(), db=db) as one,
        served(ScriptedPolicy(lines), LineScorer(), db=db) as other,
    ):
        client = Client(one, db, daily_requests=2)
        assert client.chat()[0] == 200
        client.found = other
        assert client.chat()[0] == 200
        assert client.chat()[0] == 429
        client.found = one
        assert client.chat()[0] == 429


def test_failures_use_what_they_cost(db):
    def broken(request, _):
        if "The answer" in request.prefix or "line 1" in request.prefix:
            raise RuntimeError("gone")
        return "line 0\nline 1\n"

    with served(ScriptedPolicy(broken), LineScorer(), db=db) as found:
        client = Client(found, db, daily_requests=2)
        assert client.chat(model="beam-2x2", max_tokens=100)[0] in (200, 502)
        wait_until(lambda: client.used.requests == 1)
        assert client.used.tokens > 0


def test_stored_bytes_are_bounded_and_freed(found, db):
    client = Client(found, db, max_stored_bytes=20_000)
    answered = 0
    while (answer := client.chat())[0] == 200:
        answered += 1
    assert 1 < answered < 30
    error = answer[1]["error"]
    assert (error["code"], error["param"]) == ("insufficient_quota", "max_stored_bytes")
    assert "pruned" in error["message"]
    stored = client.used.stored_bytes
    assert 10_000 < stored <= 20_000
    assert client.post("/v1/score", {"items": [SOLUTION]})[0] == 200  # stores nothing
    assert client.post("/v1/verify", {**SOLUTION, "problem": "p" * 20_000})[0] == 429
    assert db.gateway.prune(datetime.now(UTC) + timedelta(hours=1)) == answered
    assert client.used.stored_bytes == 0
    assert client.chat()[0] == 200


def test_a_server_that_records_nothing_still_counts(db):
    with served(ScriptedPolicy(lines), LineScorer(), db=db, log=db.gateway.without_records()) as found:
        client = Client(found, db, daily_requests=2, max_stored_bytes=1)
        assert [client.chat()[0] for _ in range(3)] == [200, 200, 429]
        assert db.gateway.find() == []
        assert (client.used.requests, client.used.stored_bytes) == (2, 0)


def test_a_key_revoked_amid_a_stream_ends_with_it(db):
    policy = Gated()
    with served(policy, LineScorer(), db=db) as found:
        client = Client(found, db, daily_requests=5, daily_tokens=5000)
        with ThreadPoolExecutor(1) as threads:
            stream = threads.submit(client.chat, stream=True)
            wait_until(lambda: found.gateway.admission.running == 1)
            db.keys.revoke(client.row.id)
            assert client.chat()[0] == 401
            policy.gate.set()
            status, text = stream.result()
        assert (status, text.strip().splitlines()[-1]) == (200, "data: [DONE]")
        assert client.used.requests == 1
        assert client.used.tokens > 0


def test_a_busy_server_gives_back_what_was_reserved(db):
    policy = Gated()
    with served(policy, db=db, limits=Limits(running=1, waiting=0)) as found:
        client = Client(found, db, daily_requests=2)
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(client.chat)
            wait_until(lambda: found.gateway.admission.running == 1)
            for stream in (False, True):
                status, answer = client.chat(stream=stream)
                assert (status, answer["error"]["code"]) == (429, "overloaded")
            policy.gate.set()
            assert first.result()[0] == 200
        assert client.chat()[0] == 200
        assert client.chat()[1]["error"]["code"] == "insufficient_quota"


def test_use_that_cannot_be_written_is_kept_until_it_can():
    from test_gateway_request_log import Log

    from surefoot.server.gateway.records import KeyUse
    from surefoot.server.gateway.request_log import Recorder

    log = Log()
    log.gone = True

    async def main():
        recorder = Recorder(log)
        first = recorder.count(KeyUse(key_id=1, tokens=5))
        await asyncio.sleep(0.5)
        assert not first.done()
        log.gone = False
        second = recorder.count(KeyUse(key_id=2, tokens=7))
        await asyncio.wait_for(asyncio.gather(first, second), 5)
        last = recorder.count(KeyUse(key_id=3))
        await recorder.close()
        assert last.done()

    asyncio.run(main())
    assert [use.key_id for use in log.uses] == [1, 2, 3]
