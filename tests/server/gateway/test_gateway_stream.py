"""Streams: text as it is accepted, the same in the end as without, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from itertools import pairwise

import openai
import pytest
from gateway_server import LineScorer, lines, served, wait_until
from openai import AsyncOpenAI, OpenAI
from toy_search import HashScorer, random_solver

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server.gateway.settings import ServerLimits

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def toys():
    with (
        served(ScriptedPolicy(random_solver(depth=4, kinds=3)), HashScorer()) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "strategy",
    [
        "scripted",
        "best-of-n:n=3",
        "beam:width=1,expand=3",
        "beam:width=2,expand=2",
        "dvts:n=3,expand=3",
        "dvts:n=4,expand=2",
        "accept-reject",
        "rebase:n=3",
    ],
)
@pytest.mark.parametrize("stop", [None, "\nstep 2", "is 1\n"])
def test_a_stream_adds_up_to_the_answer(toys, strategy, stop):
    for seed in range(3):
        asked = {"model": strategy, "messages": MESSAGES, "seed": seed, "n": 2}
        asked |= {"stop": stop} if stop else {}
        whole = toys.chat.completions.create(**asked)
        texts, reasons, told = {0: "", 1: ""}, {}, None
        for piece in toys.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        ):
            if not piece.choices:
                usage = piece.usage
                continue
            [choice] = piece.choices
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
                told = getattr(piece, "surefoot", None)
        assert [texts[0], texts[1]] == [choice.message.content for choice in whole.choices]
        assert [reasons[0], reasons[1]] == [choice.finish_reason for choice in whole.choices]
        assert told == whole.surefoot
        assert usage == whole.usage


def test_steps_appear_when_they_are_accepted_and_comments_in_between():
    policy = ScriptedPolicy(lines, latency_s=0.15)
    limits = ServerLimits(keep_alive_s=0.05)

    async def main(url):
        seen = []
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="accept-reject", messages=MESSAGES, stream=True
            )
            async for piece in stream:
                if piece.choices[0].delta.content:
                    seen.append((time.monotonic(), piece.choices[0].delta.content))
        return seen

    with served(policy, LineScorer(), limits=limits) as found:
        seen = asyncio.run(main(found.url))
        assert [text for _, text in seen] == [
            "line 0 good\n",
            "line 1 good\n",
            "line 2 good\n",
            "The answer is 7",
        ]
        gaps = [after[0] - before[0] for before, after in pairwise(seen)]
        assert min(gaps) > 0.1
        raw = post_raw(found, {"model": "best-of-n:n=2", "messages": MESSAGES, "stream": True})
        assert ": keep-alive" in raw
        assert raw.count("line 0") == 1 + 2  # the text in one piece, and each candidate at the end


def post_raw(found, body, *, read=True):
    """Send a request on a socket of its own; the answer's bytes as text, or the open socket."""
    host, port = found.root.removeprefix("http://").split(":")
    link = socket.create_connection((host, int(port)), timeout=20)
    data = json.dumps(body).encode()
    header = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    )
    head = "".join(f"{line}\r\n" for line in (*header, ""))
    link.sendall(head.encode() + data)
    if not read:
        return link
    with link:
        found_bytes = b""
        while piece := link.recv(65536):
            found_bytes += piece
    return found_bytes.decode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(stream):
    drawn = []

    def answer(request, sample):
        drawn.append(request.prompt)
        return lines(request, sample)

    policy = ScriptedPolicy(answer, latency_s=0.3)
    with served(policy, LineScorer(), limits=ServerLimits(running=1, waiting=4)) as found:
        link = post_raw(found, {"model": "accept-reject", "messages": MESSAGES, "stream": stream}, read=False)
        wait_until(lambda: found.gateway.admission.running == 1)
        link.close()
        wait_until(lambda: found.gateway.admission.running == 0)
        assert found.gateway.metrics.registry.get_sample_value("surefoot_clients_left_total") == 1
        after = len(drawn)
        time.sleep(0.5)
        assert len(drawn) <= after + 1  # the search does not go on
        with OpenAI(base_url=found.url, api_key="n", max_retries=0) as client:
            answer = client.chat.completions.create(model="scripted", messages=MESSAGES)
            assert answer.choices[0].message.content.startswith("line 0")


def test_an_error_in_a_stream_is_an_event():
    with served(ScriptedPolicy(lines, fail=lambda request: "server: status 500: down")) as found:
        with OpenAI(base_url=found.url, api_key="n", max_retries=0) as client:
            stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError, match="server: status 500"):
                list(stream)
        assert "[DONE]" not in post_raw(found, {"model": "scripted", "messages": MESSAGES, "stream": True})
        assert found.gateway.admission.running == found.gateway.admission.waiting == 0


def test_a_stream_that_is_withheld_shows_nothing_before():
    with (
        served(ScriptedPolicy(lines), LineScorer()) as found,
        OpenAI(base_url=found.url, api_key="n", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model="accept-reject",
            messages=MESSAGES,
            stream=True,
            extra_body={"surefoot": {"abstain_below": 1}},
        )
        pieces = [piece.choices[0].delta for piece in stream]
    assert not any(piece.content for piece in pieces)
    assert any(piece.refusal for piece in pieces)
