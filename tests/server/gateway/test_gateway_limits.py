"""Bounds: places, time, bytes, depth; and stopping in order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time

import openai
import pytest
from annotation_site import Browser, open_room
from gateway_server import LineScorer, lines, served
from openai import OpenAI
from starlette.testclient import TestClient

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.concurrency import CALLER
from surefoot.records import Problem
from surefoot.server import Gateway, create_app
from surefoot.server.gateway.admission import Admission, Slot
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.settings import ServerLimits, ServerSettings

MESSAGES = [{"role": "user", "content": "hello"}]
SLOW = ScriptedPolicy(lambda request, sample: "done", latency_s=0.6)


def in_threads(found, count, **more):
    """Answers, or errors, of ``count`` requests at the same time."""
    results = [None] * count

    def one(place):
        with OpenAI(base_url=found.url, api_key="n", max_retries=0) as client:
            try:
                results[place] = client.chat.completions.create(model="scripted", messages=MESSAGES, **more)
            except openai.OpenAIError as error:
                results[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def test_what_finds_no_seat_is_sent_away_with_a_time():
    with served(SLOW, limits=ServerLimits(running=2, waiting=1)) as found:
        threads, results = in_threads(found, 6)
        for thread in threads:
            thread.join()
    refused = [one for one in results if isinstance(one, openai.RateLimitError)]
    assert len(refused) == 3
    assert all(int(one.response.headers["retry-after"]) >= 1 for one in refused)
    assert refused[0].body["code"] == "overloaded"
    assert sum(not isinstance(one, Exception) for one in results) == 3


def test_what_takes_too_long_is_504_and_frees_its_place():
    with served(SLOW, limits=ServerLimits(running=1, timeout_s=0.2)) as found:
        [thread], results = in_threads(found, 1)
        thread.join()
        error = results[0]
        assert error.status_code == 504
        assert error.body["type"] == "server_error"
        assert found.gateway.admission.running == found.gateway.admission.waiting == 0


def curl(*words, stdin=None):
    done = subprocess.run(
        ["curl", "-sS", "-m", "20", *words], capture_output=True, text=True, check=True, input=stdin
    )
    return done.stdout


def test_bodies_are_bounded_in_bytes_and_depth():
    with served(limits=ServerLimits(max_body_bytes=5000, max_json_depth=10, max_json_parts=100)) as found:
        large = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x" * 6000}]})
        url = f"{found.url}/chat/completions"
        for more in ([], ["-H", "Transfer-Encoding: chunked"]):
            answer = json.loads(curl(url, "--json", "@-", *more, stdin=large))
            assert answer["error"]["code"] == "body_too_large"
        status = curl("-o", "/dev/null", "-w", "%{http_code}", url, "--json", "@-", stdin=large)
        assert status == "413"
        deep = '{"model": "m", "messages": ' + "[" * 1500 + "]" * 1500 + "}"
        answer = json.loads(curl(url, "--json", "@-", stdin=deep))
        assert answer["error"]["code"] == "nested_too_deeply"
        parts = json.dumps({"model": "m", "messages": MESSAGES, "x": [{}] * 101})
        answer = json.loads(curl(url, "--json", "@-", stdin=parts))
        assert answer["error"]["code"] == "too_many_parts"
        brackets = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": '[{"\\' * 50}]})
        assert json.loads(curl(url, "--json", "@-", stdin=brackets))["choices"]
        assert json.loads(curl(url, "--json", "@-", stdin='{"model": NaN}'))["error"]
        many = json.dumps({"model": "scripted", "messages": MESSAGES, "seed": 10**40})
        assert "seed" in json.loads(curl(url, "--json", "@-", stdin=many))["error"]["message"]


def test_pages_beside_the_gateway_keep_their_own_limits(tmp_path):
    room = open_room(tmp_path)
    settings = ServerSettings(limits=ServerLimits(max_body_bytes=5000))
    app = create_app(settings, gateway=Gateway(ScriptedPolicy(lines)), pages=room.app, keys=room.db.keys)
    admin = Browser(TestClient(app, base_url="http://localhost"))
    admin.sign_in("admin")
    page = f"/projects/{room.project}/files"
    problems = "".join(Problem(text=f"{n} " + "x" * 10_000).model_dump_json() + "\n" for n in range(300))
    sent = {"problems": ("problems.jsonl", problems.encode())}
    answer = admin.client.post(page, data={"make": "nothing"}, files=sent)
    assert answer.status_code == 200
    assert len(list(room.db.export.records(room.project, "problems"))) >= 300
    large = admin.client.post("/v1/chat/completions", content=b'"' + b"x" * 6000 + b'"')
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    room.db.close()


def test_stopping_finishes_what_runs_and_hands_back_the_rest():
    policy = ScriptedPolicy(lines, latency_s=0.3)
    with served(policy, LineScorer(), limits=ServerLimits(grace_s=0.8)) as found:
        threads, results = in_threads(found, 2)
        slow_threads, slow = in_threads(found, 2, extra_body={"surefoot": {"strategy": "accept-reject"}})
        until = time.monotonic() + 5
        while found.gateway.admission.running < 4 and time.monotonic() < until:
            time.sleep(0.01)
        found.server.should_exit = True
        for thread in (*threads, *slow_threads):
            thread.join()
        assert all(one.choices[0].message.content for one in results)
        assert [one.status_code for one in slow] == [503, 503]
        assert slow[0].body["code"] == "stopping"
        found.thread.join(10)
        assert not found.thread.is_alive()


def test_not_ready_while_stopping_or_full():
    with served(SLOW, limits=ServerLimits(running=1, waiting=0)) as found:
        code = ("-o", "/dev/null", "-w", "%{http_code}")
        assert curl(*code, f"{found.root}/ready") == "200"
        [thread], _ = in_threads(found, 1)
        until = time.monotonic() + 5
        while not found.gateway.admission.running and time.monotonic() < until:
            time.sleep(0.01)
        assert curl(*code, f"{found.root}/ready") == "429"
        assert curl(*code, f"{found.root}/health") == "200"
        thread.join()
        found.gateway.admission.draining = True
        assert curl(*code, f"{found.root}/ready") == "503"
        [thread], results = in_threads(found, 1)
        thread.join()
        assert "stopping" in results[0].body["message"]


def test_requests_end_in_time_in_each_event_loop_and_whatever_another_does(monkeypatch, caplog):
    admission = Admission(running=3, waiting=0, timeout_s=0.05)
    CALLER.set("the first")

    async def one():
        async with admission.reserve():
            await asyncio.sleep(60)

    async def leave():
        async with admission.reserve():
            await asyncio.sleep(0)

    asyncio.run(leave())  # the loop ends before the timer
    look, seen, broken = Slot.look, [], []

    def looked(slot):
        seen.append(CALLER.get())
        broken.append(slot)
        if slot is broken[0]:
            raise RuntimeError("no")
        look(slot)

    monkeypatch.setattr(Slot, "look", looked)

    async def two():
        work = [asyncio.ensure_future(one()) for _ in range(3)]
        done, pending = await asyncio.wait(work, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, pending = await asyncio.wait(pending, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert more
            done |= more
        (last,) = pending
        last.cancel()
        await asyncio.wait(pending)
        return [task.exception().status for task in done]

    assert asyncio.run(two()) == [504, 504]
    assert set(seen) == {""}
    assert "RuntimeError: no" in caplog.text
    assert admission._sweeping is None


def test_places_are_given_in_order_and_come_back():
    async def main():
        admission = Admission(running=1, waiting=2)
        order = []

        async def work(name, slot):
            async with slot:
                order.append(name)
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(work(name, admission.reserve())) for name in "abc"]
        with pytest.raises(ApiError) as caught:
            admission.reserve()
        assert (caught.value.status, caught.value.retry_after_s > 0) == (429, True)
        await asyncio.sleep(0.005)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["a", "c"]
        assert (admission.running, admission.waiting) == (0, 0)
        slot = admission.reserve()
        slot.close()
        slot.close()
        assert admission.waiting == 0

    asyncio.run(main())
