"""Attacks that were reported for other gateways and guards."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_server import Served, ask, served
from openai_server import OpenAIServer, Reply, chat, pieces, serve

from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings, ToolGuard

WAIT_S = 20
TOOLS = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]
RULES = (
    ToolCallVerifier(
        policy=ToolPolicy(
            rules=(PolicyRule(tools=("pay",), require="!has(args.amount) || args.amount < 9.0"),)
        )
    ),
)
SETTINGS = GatewaySettings(chat=True, guard=ToolGuard(enabled=True, resamples=0, rejections=0))


@pytest.fixture
def upstream() -> Iterator[OpenAIServer]:
    with serve(lambda _: Reply(payload=chat(["hello"]))) as server:
        yield server


@pytest.fixture
def gateway(upstream: OpenAIServer) -> Iterator[Served]:
    policy = OpenAIPolicy(model="tiny", base_url=upstream.url, api_key="secret", max_retries=0)
    with served(policy, settings=SETTINGS, verifiers=RULES) as found:
        yield found


def send(gateway: Served, text: str, **more: Any) -> tuple[int, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}
    return ask(f"{gateway.url}/chat/completions", json.dumps(body))


def test_a_stream_is_over_with_its_last_event_though_the_connection_stays_open(upstream, gateway) -> None:
    """hermes-agent 9834: the client waited for the connection's end."""
    free = threading.Event()

    def events() -> Iterator[Any]:
        yield from pieces(chat(["one two"]), str.split)
        yield b"data: [DONE]\n\n"
        free.wait(WAIT_S)

    upstream.answer = lambda _: Reply(events=events())
    _, text = send(gateway, "hi", stream=True)
    assert text.endswith("data: [DONE]\n\n")
    assert not free.is_set()
    free.set()


ADDRESSES = (
    "api_base",
    "base_url",
    "api_key",
    "extra_body",
    "extra_headers",
    "custom_llm_provider",
    "litellm_params",
)


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_client_cannot_choose_where_the_key_is_sent(upstream, gateway, name: str) -> None:
    """LiteLLM 5418, 24952, 29538: an address in the body, a tool or the metadata led the key elsewhere."""
    with serve(lambda _: Reply(payload=chat(["stolen"]))) as trap:
        value: Any = (
            {"api_base": trap.url, "Authorization": trap.url}
            if name.startswith(("extra", "litellm"))
            else trap.url
        )
        tool = {**TOOLS[0], name: value, "function": {**TOOLS[0]["function"], name: value}}
        for more in (
            {name: value},
            {"metadata": {name: value}},
            {"tools": [tool]},
            {"surefoot": {name: value}},
        ):
            status, answer = send(gateway, "hi", **more)
            assert status in (200, 400)
            assert "stolen" not in str(answer)
        assert trap.seen == []
    assert trap.url not in str(upstream.seen)
    assert upstream.keys <= {"Bearer secret"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "arguments", ['{"amount": 5000', '{"amount": 5, "to', '{"amount": 5}{"amount": 5000}', "{}{}"]
)
def test_arguments_that_are_cut_or_run_together_are_not_released(
    upstream, gateway, arguments: str, stream: bool
) -> None:
    """NeMo Guardrails 2058: arguments that were cut passed as `{}`; OmniRoute 11043: two calls became one."""
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": arguments}}
    whole = chat([None], finish="tool_calls", tool_calls=[call])
    upstream.answer = lambda body: (
        Reply(events=pieces(whole, list)) if body.get("stream") else Reply(payload=whole)
    )
    status, answer = send(gateway, f"{arguments} {stream}", tools=TOOLS, stream=stream)
    assert status == 200
    text = answer if isinstance(answer, str) else json.dumps(answer)
    assert '"content_filter"' in text
    assert '"tool_calls": [' not in text
    assert '"name": "pay"' not in text
