"""Plain answers by the word: what is sent while the policy's server writes, and when nothing may be."""

from __future__ import annotations

import threading

import openai
import pytest
from gateway_server import LineScorer, served
from openai import OpenAI
from openai_server import Reply, chat, pieces, serve
from openai_streams import words

from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings

WAIT_S = 30
MESSAGES = [{"role": "user", "content": "hello"}]
ASKED = {"model": "tiny", "messages": MESSAGES, "seed": 3}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture
def upstream():
    """The policy's server; each test sets its ``answer``."""
    with serve(lambda _: Reply()) as server:
        yield server


@pytest.fixture
def gateway(upstream):
    policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0)
    with served(policy, LineScorer(), settings=GatewaySettings(chat=True)) as found:
        yield found


@pytest.fixture
def client(gateway):
    with OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=WAIT_S) as made:
        yield made


def paced(whole, cut, shown):
    """Events of a stream, each with text only when what came before has set its event in ``shown``."""
    for event in pieces(whole, cut):
        text = event["choices"][0].get("delta", {}).get("content") if event["choices"] else None
        if text in shown:
            assert shown[text].wait(WAIT_S)
        yield event


def test_words_come_while_the_rest_is_still_to_be_written(upstream, client):
    shown = {text: threading.Event() for text in ("two ", "three")}
    upstream.answer = lambda _: Reply(events=paced(chat(["one two three"]), words, shown))
    seen = []
    for piece in client.chat.completions.create(stream=True, **ASKED):
        text = piece.choices[0].delta.content
        if text:
            seen.append(text)
            for following in {"one ": ["two "], "two ": ["three"]}.get(text, []):
                shown[following].set()
    assert seen == ["one ", "two ", "three"]
    assert upstream.bodies[0]["stream"] is True


@pytest.mark.parametrize("stop", [None, "漢🙂 c", ["🙂", "b 漢"]])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stream_adds_up_to_the_answer_of_one_piece(upstream, client, stop, size):
    texts_by_seed = {}

    def answer(body):
        new = "ä b 漢\n🙂 e 漢" if texts_by_seed else "ä b 漢🙂 c\u2028d"
        text = texts_by_seed.setdefault(body["seed"], new)
        whole = chat([text], prompt_tokens=4)

        def cut(one):
            return [one[at : at + size] for at in range(0, len(one), size)]

        return Reply(events=pieces(whole, cut)) if body.get("stream") else Reply(payload=whole)

    upstream.answer = answer
    asked = {**ASKED, "n": 2, **({"stop": stop} if stop else {})}
    whole = client.chat.completions.create(**asked)
    texts, reasons = ["", ""], ["", ""]
    for piece in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked):
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or ""
            told = getattr(piece, "surefoot", None)
        usage = piece.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert told == whole.surefoot
    assert usage == whole.usage


def test_tool_calls_follow_the_text(upstream, client):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ü"}'}}
    shown = {"see": threading.Event()}
    whole = chat(["let me see"], finish="tool_calls", tool_calls=[call])
    upstream.answer = lambda _: Reply(events=paced(whole, words, shown))
    texts, calls, reasons = [], [], []
    for piece in client.chat.completions.create(stream=True, tools=TOOLS, **ASKED):
        [choice] = piece.choices
        texts += [choice.delta.content] if choice.delta.content else []
        calls += choice.delta.tool_calls or []
        reasons.append(choice.finish_reason)
        if texts:
            shown["see"].set()
    assert texts == ["let ", "me ", "see"]
    assert [(made.index, made.id, made.function.arguments) for made in calls] == [(0, "c1", '{"city": "Ü"}')]
    assert reasons[-1] == "tool_calls"
    assert upstream.bodies[0]["tools"] == TOOLS


def test_what_cannot_be_withheld_for_want_of_a_score_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="no scores"):
        client.chat.completions.create(stream=True, extra_body={"surefoot": {"abstain_below": 0.5}}, **ASKED)


def test_an_error_after_text_is_an_event_and_frees_the_place(upstream, gateway, client):
    first = {"choices": [{"index": 0, "delta": {"content": "one "}, "finish_reason": None}]}
    down = {"error": {"message": "the engine is down", "code": 500}}
    upstream.answer = lambda _: Reply(events=[first, down])
    seen = []
    stream = client.chat.completions.create(stream=True, **ASKED)
    with pytest.raises(openai.APIError, match="server: the stream broke off") as caught:
        seen.extend(piece.choices[0].delta.content for piece in stream)
    assert "engine" not in str(caught.value)
    assert "".join(seen) == "one "
    assert gateway.gateway.admission.running == 0


def test_a_client_that_leaves_ends_the_policys_request(upstream, gateway, client):
    left = threading.Event()

    def endless():
        try:
            while not left.wait(0.01):
                yield {"choices": [{"index": 0, "delta": {"content": "more "}, "finish_reason": None}]}
        finally:
            left.set()

    upstream.answer = lambda _: Reply(events=endless())
    stream = client.chat.completions.create(stream=True, **ASKED)
    assert any(piece.choices[0].delta.content for piece in stream)  # up to the first, that is
    stream.close()
    assert left.wait(WAIT_S)
    upstream.answer = lambda _: Reply(payload=chat(["still here"]))
    assert client.chat.completions.create(**ASKED).choices[0].message.content == "still here"
    assert gateway.gateway.metrics.registry.get_sample_value("surefoot_clients_left_total") == 1


def test_one_connection_serves_requests_that_follow_each_other(upstream, client):
    links = set()
    upstream.verify_request = lambda _, address: links.add(address) or True
    upstream.answer = lambda _: Reply(payload=chat(["hello"]))
    for _ in range(3):
        assert client.chat.completions.create(**ASKED).choices[0].message.content == "hello"
    assert len(links) == 1
