"""Anthropic's client, pointed at ``surefoot serve`` by its own variables, with guard and scores."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import good
from openai_server import OpenAIServer, Reply, chat, pieces, serve
from openai_streams import words
from test_gateway_command import serving

from benchmarks.worlds.digits import PRM
from surefoot.server import open_database

WAIT_S = 60
SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}, "amount": {"type": "number"}}}
TOOLS = [{"name": name, "description": name, "input_schema": SCHEMA} for name in ("look", "pay", "mail")]
QUESTION = [{"role": "user", "content": "Start with 7. Add 3."}]
ASKED: dict[str, Any] = {
    "model": "best-of-n:n=2",
    "max_tokens": 2000,
    "tools": TOOLS,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
POLICY = {
    "rules": [
        {"tools": ["pay"], "require": "args.amount <= 100", "reason": "at most 100"},
        {"tools": ["mail"], "require": "false", "otherwise": "ask", "reason": "a person reads mails"},
    ]
}


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"of-{name}", "type": "function", "function": function}
    return {"texts": [None], "finish": "tool_calls", "tool_calls": [call], "reasoning_content": "I think."}


def decide(body: dict[str, Any]) -> dict[str, Any]:
    """What the policy says: a look, then a payment or a mail as the last results say, then the end."""
    last = body["messages"][-1]["content"]
    if "not executed" in last:
        return {"texts": ["I must not pay."]}
    if "mail it" in last:
        return calling("mail", order="W1")
    if "pay it" in last:
        return calling("pay", amount=500)
    return {"texts": ["7 + 3 = 10\n"]} if "done" in last else calling("look", order="W1")


def answer(body: dict[str, Any]) -> Reply:
    said = decide(body)
    texts = said.pop("texts") * body.get("n", 1)
    whole = chat(texts, prompt_tokens=len(json.dumps(body["messages"]).split()), **said)
    return Reply(events=pieces(whole, words)) if body.get("stream") else Reply(payload=whole)


Pointed = tuple[Any, OpenAIServer, Path]


@pytest.fixture(scope="module")
def pointed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pointed]:
    """Anthropic's client without arguments, before ``surefoot serve``; the server behind it; the database."""
    anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    directory = tmp_path_factory.mktemp("anthropic")
    store, policy = directory / "s.db", directory / "policy.json"
    policy.write_text(json.dumps(POLICY), "utf-8")
    key = good("serve", "keys", "add", "agent", "--database", store).out.split()[0]
    options = ("--require-key", "--prm", PRM, "--guard", "--guard-rule", "tool-calls")
    with serve(answer) as upstream:
        behind = ("--policy", "tiny", "--base-url", upstream.url, "--chat")
        with (
            serving("--database", store, *options, "--guard-policy", policy, policy=behind) as (_, url),
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv("ANTHROPIC_BASE_URL", url)
            environment.setenv("ANTHROPIC_API_KEY", key)
            with anthropic.Anthropic(max_retries=0, timeout=WAIT_S) as client:
                yield client, upstream, store


def after(message: Any, content: str) -> list[dict[str, Any]]:
    """The conversation after ``message``: its blocks as the client has them, then the result of its call."""
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    told = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": content}
    return [*QUESTION, {"role": "assistant", "content": blocks}, {"role": "user", "content": [told]}]


@pytest.mark.slow
def test_tokens_are_counted_by_the_policy_and_errors_are_the_clients_own(pointed: Pointed) -> None:
    client, upstream, store = pointed
    from anthropic import AuthenticationError, NotFoundError

    fields = {name: ASKED[name] for name in ("model", "tools", "system", "thinking")}
    counted = client.messages.count_tokens(messages=QUESTION, **fields)
    body = upstream.bodies[-1]
    assert counted.input_tokens == len(json.dumps(body["messages"]).split())
    assert (body["max_tokens"], len(body["tools"]), body.get("n", 1)) == (1, 3, 1)
    assert [model.id for model in client.models.list()][:2] == ["tiny", "surefoot"]
    with pytest.raises(NotFoundError, match="model 'none' does not exist"):
        client.messages.create(model="none", max_tokens=5, messages=QUESTION)
    with pytest.raises(NotFoundError) as missing:
        client.messages.batches.list()
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(AuthenticationError):
        client.with_options(api_key="sf-wrong").messages.count_tokens(messages=QUESTION, **fields)
    with open_database(store) as db:
        assert not db.gateway.find()


@pytest.mark.slow
def test_a_run_with_tools_and_thinking_has_scores(pointed: Pointed) -> None:
    client, upstream, _ = pointed
    first = client.messages.create(messages=QUESTION, **ASKED)
    assert [block.type for block in first.content] == ["thinking", "tool_use"]
    assert first.surefoot["searches"][0]["guard"][-1]["action"] == "release"
    with client.messages.stream(messages=after(first, "done"), **ASKED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert (final.content[-1].text, final.stop_reason) == ("7 + 3 = 10\n", "end_turn")
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    roles = [message["role"] for message in upstream.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    question = [{"role": "user", "content": "Is it done?"}]
    scored = client.messages.create(model="best-of-n:n=2", max_tokens=50, messages=question)
    [step] = scored.surefoot["searches"][0]["candidates"][0]["steps"]
    assert 0 < step["score"] < 1


@pytest.mark.slow
def test_the_guard_blocks_one_call_and_holds_another(pointed: Pointed) -> None:
    client, _, store = pointed
    first = client.messages.create(messages=QUESTION, **ASKED)
    blocked = client.messages.create(messages=after(first, "pay it"), **ASKED)
    assert blocked.content[-1].text == "I must not pay."
    decision = blocked.surefoot["searches"][0]["guard"][0]
    assert (decision["action"], decision["reason"]) == ("reject", "policy: at most 100")

    with open_database(store) as db:

        def approve() -> None:
            until = time.monotonic() + WAIT_S
            while not (rows := db.held_calls.find(state="waiting")) and time.monotonic() < until:
                time.sleep(0.05)
            db.held_calls.decide(rows[0].id, None, approved=True)

        person = threading.Thread(target=approve)
        person.start()
        mail = client.messages.create(messages=after(first, "mail it"), **ASKED)
        person.join()
        assert db.held_calls.count()["delivered"] == 1
    assert (mail.content[-1].name, mail.stop_reason) == ("mail", "tool_use")
