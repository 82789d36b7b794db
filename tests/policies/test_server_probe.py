"""What the probe says of servers with the habits of real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from counting_server import CountingServer
from openai_server import Body, Reply, chat, serve

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.errors import PolicyError
from surefoot.policies import Capabilities, OpenAIPolicy, capabilities_of


def probed(answer: Any, **settings: Any) -> Capabilities:
    with serve(answer) as server:
        server.probe = None
        return capabilities_of(OpenAIPolicy(model="m", base_url=server.url, max_retries=0, **settings))


def statuses(capabilities: Capabilities) -> dict[str, str]:
    return {name: value["status"] for name, value in capabilities.model_dump().items()}


def test_a_server_that_can_do_everything():
    assert set(statuses(probed(CountingServer(reasoning="field"))).values()) == {"yes"}


def test_a_plain_server():
    server = CountingServer(beginning="new turn", samples=False, tools="ignore", extras=False)
    assert set(statuses(probed(server)).values()) == {"no"}


@pytest.mark.parametrize(
    ("server", "status", "evidence"),
    [
        (CountingServer(), "yes", "the prompt grow from 24 to 38 tokens, and 've, thirteen"),
        (CountingServer(beginning="always"), "yes", "'ve, thirteen, fourteen"),
        (CountingServer(beginning="ignore"), "no", "24 tokens without a beginning and 24 with one"),
        (CountingServer(beginning="new turn"), "no", "starts again: 'one, two, three"),
        (CountingServer(beginning="refuse"), "no", "status 400"),
        (CountingServer(fluent=False), "yes", "a finished message would have made it"),
        (CountingServer(fluent=False, beginning="new turn"), "unknown", "'mur mur' follows"),
        (CountingServer(fluent=False, beginning="always"), "unknown", "'mur mur' follows"),
        (CountingServer(reasoning="field"), "yes", "'ve, thirteen"),
        (CountingServer(reasoning="text"), "yes", "'ve, thirteen"),
        (CountingServer(reasoning="again"), "no", "reasoning starts again"),
    ],
)
def test_whether_a_chat_continues(server, status, evidence):
    continuation = probed(server).continuation
    assert continuation.status == status, continuation
    assert evidence in continuation.evidence


@pytest.mark.parametrize("mode", ["chat", "completions"])
def test_equal_samples_of_one_request_are_no_samples(mode):
    several = probed(CountingServer(copies=True), mode=mode).n
    assert (several.status, several.evidence) == ("unknown", "two samples of one request are equal")


@pytest.mark.parametrize("templated", [False, True])
def test_completions_continue_unless_a_template_is_put_around_them(templated):
    capabilities = probed(CountingServer(templated=templated), mode="completions")
    assert capabilities.continuation.confirmed != templated
    assert capabilities.tool_calls.status == "no"
    assert capabilities.logprobs.confirmed


@pytest.mark.parametrize("tools", ["call", "talk", "ignore", "refuse"])
def test_tools(tools):
    expected = {"call": "yes", "talk": "unknown"}.get(tools, "no")
    assert probed(CountingServer(tools=tools)).tool_calls.status == expected


def hostile(body: Body) -> Reply:
    """Counts beyond every bound, for which a difference means nothing."""
    answer = chat(["\x1b[31mve"], prompt_tokens=10 ** (9 + 9 * (len(body["messages"]) > 1)))
    return Reply(payload=answer)


def test_hostile_counts_are_bounded_and_text_is_printable():
    continuation = probed(hostile).continuation
    assert "\x1b" not in continuation.evidence
    assert not any(len(word) > 9 for word in continuation.evidence.split() if word.isdigit())


@pytest.mark.parametrize("payload", ["<html>", {"choices": []}, {"choices": 7, "usage": None}])
def test_a_malformed_reply_makes_all_unknown(payload):
    assert set(statuses(probed(lambda _: Reply(payload=payload))).values()) == {"unknown"}


def test_a_busy_server_is_unknown_and_unknown_counts_as_missing():
    capabilities = probed(lambda _: Reply(status=429, payload="slow down"))
    assert set(statuses(capabilities).values()) == {"unknown"}
    with pytest.raises(PolicyError, match=r"^host may not be able to continue .*429.*; use a judge$"):
        capabilities.require("continuation", "host", "use a judge")


def test_one_probe_serves_all_copies_also_within_an_event_loop():
    with serve(CountingServer()) as server:
        server.probe = None
        policy = OpenAIPolicy(model="m", base_url=server.url, extra_body={"tools": [], "min_p": 0.1})

        async def main() -> None:
            assert capabilities_of(policy).continuation.confirmed

        asyncio.run(main())
        asked = len(server.bodies)
        assert asked < 9
        assert all(body["max_tokens"] <= 128 and body["min_p"] == 0.1 for body in server.bodies)
        assert capabilities_of(policy.with_extra_body({})) is capabilities_of(policy)
        assert len(server.bodies) == asked


def test_a_policy_of_this_process_can_continue():
    assert capabilities_of(ScriptedPolicy(lambda _, number: str(number))).continuation.confirmed
