"""Streams of the OpenAI client that break: tried again before any text was shown, an error after it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openai_server import Reply, chat, completion, pieces, serve
from openai_streams import HI, joined, policy_of, stream, words

from surefoot.protocols import SampleRequest
from surefoot.records import Usage

WAIT_S = 30
USAGE = {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
FIRST = {"choices": [{"index": 0, "text": "a ", "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}
ROLE = {"choices": [{"index": 0, "text": "", "finish_reason": None}]}
DOWN = {"error": {"message": "the engine is down", "code": 503}}


def in_turn(*replies):
    left = iter(replies)
    return lambda _: next(left)


@pytest.mark.parametrize(
    "fault",
    [
        Reply(payload="{}", status=500),
        Reply(events=[], drop=True),
        Reply(events=[ROLE], drop=True),
        Reply(events=[ROLE, DOWN]),
    ],
)
def test_what_breaks_before_any_text_is_tried_again(fault):
    good = Reply(events=[FIRST, LAST, USAGE])
    result, shown, server = stream(in_turn(fault, good), max_retries=1)
    assert (result.error, result.completions[0].text, joined(shown)) == (None, "a b", "a b")
    assert result.usage == Usage(prompt_tokens=7, completion_tokens=2, calls=2)
    result, shown, server = stream(in_turn(fault, fault, fault, good), max_retries=2)
    assert result.error.startswith("server: ")
    assert (result.usage, shown, len(server.seen)) == (Usage(calls=3), [], 3)


@pytest.mark.parametrize(
    ("rest", "drop", "error"),
    [
        ([], True, "connection failed"),
        ([DOWN], False, "the stream broke off: the engine is down"),
        ([{"error": "out of memory"}], False, "the stream broke off: out of memory"),
        ([], False, "ended within choice 0"),
        ([LAST], False, "ended without usage"),
        ([{"choices": 3}], False, "malformed answer: choices"),
        ([b"data: {\n\n"], False, "malformed answer"),
        ([b"data: \xff\n\n"], False, "malformed answer"),
        ([b'data: {"choices": [{"index": 0, "text": "\\udc00"}]}\n\n'], False, "malformed answer"),
        ([{"choices": [{"index": 1, "text": "c"}]}], False, "choice 1 came, 1 were asked for"),
    ],
)
def test_what_breaks_after_text_is_an_error_and_not_tried_again(rest, drop, error):
    result, shown, server = stream(lambda _: Reply(events=[FIRST, *rest], drop=drop), max_retries=3)
    assert result.completions == ()
    assert result.error.startswith("server: ")
    assert error in result.error
    assert joined(shown).startswith("a ")
    assert result.usage.calls == len(server.seen) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Reply(payload={"error": {"message": "no such field"}}, status=400), "status 400"),
        (Reply(events=[]), "no choices|without usage"),
        (Reply(events=[USAGE]), "no choices"),
        (Reply(events=pieces(chat(["x"]), words)), "no text; is mode='completions' right"),
        (Reply(payload="<html>", headers={"Content-Type": "text/html"}), "without usage"),
    ],
)
def test_a_wrong_answer_is_an_error_at_once(fault, error):
    result, shown, server = stream(lambda _: fault, max_retries=3)
    assert any(one in result.error for one in error.split("|"))
    assert (shown, len(server.seen)) == ([], 1)


def test_samples_that_came_are_kept_when_another_breaks():
    _, _, server = stream(lambda _: Reply(events=[FIRST, LAST, USAGE]), SampleRequest(prompt="Hi", seed=5))
    first = server.bodies[0]["seed"]

    def answer(body):
        whole = body["seed"] == first
        return Reply(events=[FIRST, LAST, USAGE] if whole else [FIRST], drop=not whole)

    result, shown, _ = stream(answer, SampleRequest(prompt="Hi", n=2, seed=5))
    assert [drawn.text for drawn in result.completions] == ["a b"]
    assert "1 of 2 samples are missing" in result.error
    assert (joined(shown, 0), joined(shown, 1)) == ("a b", "a ")


def test_a_server_that_does_not_stream_is_understood():
    result, shown, _ = stream(lambda _: Reply(payload=completion(["a b"])))
    assert (result.completions[0].text, result.usage.completion_tokens, shown) == ("a b", 2, [])


def test_a_silent_server_is_given_up():
    never = threading.Event()

    def silent():
        yield FIRST
        never.wait(WAIT_S)

    with serve(lambda _: Reply(events=silent())) as server:
        result = asyncio.run(policy_of(server, timeout_s=0.3).stream(HI, lambda *_: None))
        never.set()
    # Old clients name what their transport raises.
    assert "no answer in time" in result.error or "ReadTimeout" in result.error
