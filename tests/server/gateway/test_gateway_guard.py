"""Tools with strategies, and the guard before their calls: OpenAI's client and a scripted server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from gateway_server import Served, ask, served, wait_until
from held_calls import held_call
from openai import OpenAI
from openai_server import OpenAIServer, Reply, chat, pieces, serve
from openai_streams import words

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.errors import ConflictError, UnavailableError
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.records import StepScores, Usage
from surefoot.server import ApiError, Gateway, GatewayRecord, GatewaySettings, ToolGuard, open_database
from surefoot.server.gateway.people import Holds

WAIT_S = 30
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string"}},
                "required": ["order"],
            },
        },
    }
    for name in ("look", "refund")
]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Refund W1."}], "tools": TOOLS, "seed": 3}
POLICY = ToolPolicy(
    rules=(
        PolicyRule(
            tools=("refund",),
            require="latest('look', {'order': args.order}) != null",
            reason="look first",
        ),
    )
)
RULES = (ToolCallVerifier(policy=POLICY),)


class ByArguments:
    """A step scores what its text says: ``0.3`` in it is 0.3; without a number 0.9."""

    name = "by-arguments"

    def score_traces(self, items: Any) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=tuple(
                    next((value for value in (0.1, 0.3, 0.7) if str(value) in item.trace.step_text(at)), 0.9)
                    for at in range(len(item.trace.steps))
                ),
                usage=Usage(verifier_tokens=2),
            )
            for item in items
        ]


def calling(name: str, number: int = 0, **arguments: Any) -> dict[str, Any]:
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return chat([None], finish="tool_calls", tool_calls=[call])


@contextmanager
def guarded(*said: dict[str, Any], **options: Any) -> Iterator[tuple[Served, OpenAI, OpenAIServer]]:
    """A gateway whose policy says these answers in turn, and then the last again and again."""
    answers, lock = list(said), threading.Lock()

    def answer(body: dict[str, Any]) -> Reply:
        with lock:
            whole = answers.pop(0) if len(answers) > 1 else answers[0]
        return Reply(events=pieces(whole, words)) if body.get("stream") else Reply(payload=whole)

    guard = options.pop("guard", None)
    settings = GatewaySettings(chat=True, guard=guard or ToolGuard(), **options.pop("more", {}))
    with serve(answer) as upstream:
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0, concurrency=1)
        with (
            served(policy, options.pop("scorer", None), settings=settings, **options) as gateway,
            OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=WAIT_S) as client,
        ):
            yield gateway, client, upstream


def names(answer: Any) -> list[str]:
    return [call.function.name for call in answer.choices[0].message.tool_calls or ()]


def arguments(answer: Any) -> Any:
    return json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


LOOK, REFUND, BROKEN = calling("look", order="W1"), calling("refund", order="W1"), calling("look")


def test_best_of_n_chooses_among_messages_with_calls() -> None:
    said = [calling("look", order=order) for order in ("0.3", "0.7", "0.1")]
    with guarded(*said, scorer=ByArguments()) as (_, client, upstream):
        answer = client.chat.completions.create(model="best-of-n:n=3", **ASKED)
        assert all(body["tools"] == TOOLS for body in upstream.bodies)
    assert arguments(answer) == {"order": "0.7"}
    search = answer.surefoot["searches"][0]
    assert sorted(one["value"] for one in search["candidates"]) == [0.1, 0.3, 0.7]
    assert search["candidates"][0]["steps"][0]["part"] == "tool_call"
    assert (search["usage"]["verifier_tokens"], search["counts"]["sampled"]) == (6, 3)


def test_votes_count_calls_that_are_equal_as_json() -> None:
    said = [calling("look", 1, order="W2"), *(calling("look", number, order="W1") for number in (2, 3))]
    with guarded(*said) as (_, client, _upstream):
        answer = client.chat.completions.create(model="majority:n=3", **ASKED)
    assert arguments(answer) == {"order": "W1"}


def test_accept_reject_draws_until_all_new_steps_are_good() -> None:
    said = [calling("look", order=order) for order in ("0.3", "0.7", "0.1")]
    with guarded(*said, scorer=ByArguments()) as (_, client, upstream):
        answer = client.chat.completions.create(model="accept-reject", **ASKED)
        assert arguments(answer) == {"order": "0.7"}
        assert len(upstream.bodies) == 2


def test_searches_of_steps_take_no_tools() -> None:
    refused = pytest.raises(openai.BadRequestError, match="step by step")
    with guarded(LOOK, scorer=ByArguments()) as (_, client, _upstream), refused:
        client.chat.completions.create(model="beam:width=2,expand=2", **ASKED)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_checked_before_it_is_released(stream: bool) -> None:
    """Broken arguments are drawn again; a refund without a look is told why; then the look is released."""
    with guarded(BROKEN, REFUND, LOOK, guard=ToolGuard(enabled=True), verifiers=RULES) as found:
        gateway, client, upstream = found
        made = client.chat.completions.create(model="tiny", stream=stream, **ASKED)
        if stream:
            chunks = list(made)
            calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
            assert [call.function.name for call in calls] == ["look"]
            told = chunks[-1].surefoot
        else:
            assert names(made) == ["look"]
            told = made.surefoot
        guard = told["searches"][0]["guard"]
        assert [(one["action"], one["stage"]) for one in guard] == [
            ("resample", "schema"),
            ("reject", "rule"),
            ("release", None),
        ]
        last = upstream.bodies[-1]["messages"]
        assert [message["role"] for message in last] == ["user", "assistant", "tool"]
        assert last[-1]["content"] == "Error: this call was not executed: policy: look first"
        status, text = ask(f"{gateway.root}/metrics")
    assert status == 200
    assert 'surefoot_guard_decisions_total{action="reject",stage="rule"} 1.0' in text
    assert "surefoot_guard_seconds_count 3.0" in text


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_blocked_does_not_reach_the_client(stream: bool, tmp_path: Any) -> None:
    with open_database(tmp_path / "g.db") as db:
        with guarded(REFUND, guard=ToolGuard(enabled=True), verifiers=RULES, log=db.gateway) as found:
            made = found[1].chat.completions.create(model="tiny", stream=stream, **ASKED)
            if stream:
                deltas = [chunk.choices[0] for chunk in made]
                assert not any(one.delta.tool_calls for one in deltas)
                assert deltas[-1].finish_reason == "content_filter"
            else:
                assert "refund" not in made.model_dump_json()
                assert made.choices[0].message.refusal == "blocked: policy: look first"
        [row] = db.gateway.find()
        record = db.gateway.get(row.request_id)
    assert [one.action for one in record.guard[0]] == ["reject", "reject"]
    stages = record.guard[0][0].calls[0].stages
    assert [(one.stage, one.checker, one.finding) for one in stages] == [
        ("schema", "schema", "pass"),
        ("rule", "tool-calls", "fail"),
    ]
    assert record.error == "blocked: policy: look first"
    assert not any(one.chosen for one in record.candidates)


def test_a_low_score_is_drawn_again_and_costs_are_counted() -> None:
    said = calling("look", order="0.1"), calling("look", order="0.7")
    guard = ToolGuard(enabled=True, threshold=0.5)
    with guarded(*said, guard=guard, scorer=ByArguments()) as (_, client, _upstream):
        answer = client.chat.completions.create(model="tiny", **ASKED)
    assert arguments(answer) == {"order": "0.7"}
    assert answer.usage.verifier_tokens == 4
    assert "finds it suspicious" in answer.surefoot["searches"][0]["guard"][0]["reason"]


def test_calls_that_nobody_offered_are_no_answer() -> None:
    refused = pytest.raises(openai.APIStatusError, match="the request defines none")
    with guarded(LOOK, guard=ToolGuard(enabled=True)) as (_, client, _upstream), refused:
        client.chat.completions.create(model="tiny", messages=ASKED["messages"])


def test_a_schema_without_bound_is_not_checked_so_the_call_is_rejected() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"$ref": "#"}}}]
    with guarded(LOOK, guard=ToolGuard(enabled=True)) as (_, client, _upstream):
        answer = client.chat.completions.create(model="tiny", **{**ASKED, "tools": tools})
    assert "could not be checked" in answer.choices[0].message.refusal


def decide(db: Any, *, approved: bool, comment: str = "") -> threading.Thread:
    """Decide about the first call that is held, as soon as there is one."""

    def work() -> None:
        until = time.monotonic() + WAIT_S
        while not (rows := db.held_calls.find(state="waiting")) and time.monotonic() < until:
            time.sleep(0.02)
        db.held_calls.decide(rows[0].id, None, approved=approved, comment=comment)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


HOLDING = ToolGuard(enabled=True, on_rule="hold", hold_s=20)


def test_a_person_decides_while_the_client_waits(tmp_path: Any) -> None:
    with open_database(tmp_path / "g.db") as db:
        said = REFUND, REFUND, LOOK
        with guarded(*said, guard=HOLDING, verifiers=RULES, holds=db.held_calls) as (gateway, client, _):
            approving = decide(db, approved=True)
            assert names(client.chat.completions.create(model="tiny", **ASKED)) == ["refund"]
            approving.join()
            _, body = ask(f"{gateway.url}/held/1")
            assert (body["state"], body["message"]) == ("delivered", None)
            denying = decide(db, approved=False, comment="ask first")
            answer = client.chat.completions.create(model="tiny", **ASKED)
            denying.join()
            assert names(answer) == ["look"]
            denied = answer.surefoot["searches"][0]["guard"][0]
            assert (denied["action"], denied["reason"], denied["held"]) == ("reject", "ask first", "2")
            _, text = ask(f"{gateway.root}/metrics")
    assert 'surefoot_guard_reviews_total{decision="approved"} 1.0' in text
    assert 'surefoot_guard_reviews_total{decision="denied"} 1.0' in text


def test_a_call_whose_client_has_disconnected_cannot_be_decided(tmp_path: Any) -> None:
    with (
        open_database(tmp_path / "g.db") as db,
        guarded(REFUND, guard=HOLDING, verifiers=RULES, holds=db.held_calls) as (_, client, _),
    ):
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5, max_retries=0).chat.completions.create(model="tiny", **ASKED)
        wait_until(lambda: db.held_calls.count()["abandoned"] == 1)
        with pytest.raises(ConflictError, match="has disconnected"):
            db.held_calls.decide(1, None, approved=True)


def test_a_client_that_leaves_while_its_call_is_stored_leaves_none_waiting(tmp_path: Any) -> None:
    storing, gate, call = threading.Event(), threading.Event(), held_call()

    async def leave(store: Any) -> None:
        holds = Holds(store, HOLDING, lambda _: None)
        record = GatewayRecord(
            request_id="r", created=call.created, endpoint="e", model="m", strategy="", status=0, latency_ms=0
        )
        waits = asyncio.create_task(holds.review(record, 0, call.run, call.reply, call.decision))
        assert await asyncio.to_thread(storing.wait, WAIT_S)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        gate.set()
        await holds.close()

    with open_database(tmp_path / "g.db") as db:

        class Slow:
            abandon = db.held_calls.abandon

            def hold(self, held: Any, *, most: int) -> int | None:
                storing.set()
                assert gate.wait(WAIT_S)
                return db.held_calls.hold(held, most=most)

        asyncio.run(leave(Slow()))
        assert (db.held_calls.count()["waiting"], db.held_calls.count()["abandoned"]) == (0, 1)


def test_a_client_that_does_not_wait_asks_later(tmp_path: Any) -> None:
    with open_database(tmp_path / "g.db") as db:
        guard = HOLDING.model_copy(update={"hold_s": 0.0, "most_held": 1})
        with guarded(REFUND, guard=guard, verifiers=RULES, holds=db.held_calls) as (gateway, client, _):
            answer = client.chat.completions.create(model="tiny", **ASKED)
            assert answer.choices[0].message.refusal.startswith("held as number 1 until a person decides")
            status, body = ask(f"{gateway.url}/held/1")
            assert (status, body["state"], body["message"]) == (200, "waiting", None)
            full = client.chat.completions.create(model="tiny", **ASKED)  # as many wait as may
            assert full.choices[0].message.refusal == "blocked: too many calls wait for a decision"
            db.held_calls.decide(1, None, approved=True)
            _, body = ask(f"{gateway.url}/held/1")
            assert body["message"]["tool_calls"][0]["function"]["name"] == "refund"
            for _ in range(2):
                _, body = ask(f"{gateway.url}/held/1")
                assert (body["state"], body["message"]) == ("delivered", None)
            assert ask(f"{gateway.url}/held/7")[0] == 404


def test_a_store_that_fails_denies_the_call_and_says_so() -> None:
    class Full:
        def hold(self, *_: Any, **__: Any) -> None:
            raise UnavailableError("the disk /data is full")

    with guarded(REFUND, guard=HOLDING, verifiers=RULES, holds=Full()) as (_, client, _):
        answer = client.chat.completions.create(model="tiny", **ASKED)
        assert answer.choices[0].message.refusal == "blocked: calls cannot be held now"


def test_a_threshold_needs_a_reward_model() -> None:
    settings = GatewaySettings(guard=ToolGuard(enabled=True, threshold=0.5))
    with pytest.raises(ApiError, match="lacks a reward model"):
        Gateway(ScriptedPolicy(lambda request, sample: "hello"), settings=settings)


@pytest.mark.parametrize(
    ("protocol", "actions"),
    [
        ("trusted-monitoring", ["reject", "release"]),
        ("defer-to-resample", ["resample", "release"]),
        ("hold", ["reject", "release"]),  # nobody reviews here
    ],
)
def test_a_suspicious_call_follows_the_protocol(protocol: Any, actions: list[str]) -> None:
    said = calling("look", order="0.1"), calling("look", order="0.7")
    guard = ToolGuard(enabled=True, threshold=0.5, protocol=protocol)
    with guarded(*said, guard=guard, scorer=ByArguments()) as (_, client, _upstream):
        answer = client.chat.completions.create(model="tiny", **ASKED)
    assert [one["action"] for one in answer.surefoot["searches"][0]["guard"]] == actions
    assert arguments(answer) == {"order": "0.7"}


def test_an_agent_of_a_framework_goes_through_the_guard() -> None:
    pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    executed = []
    with guarded(
        BROKEN, REFUND, LOOK, chat(["bye"]), guard=ToolGuard(enabled=True), verifiers=RULES
    ) as found:
        agent: Agent[None, str] = Agent()

        @agent.tool_plain
        def look(order: str) -> str:
            executed.append(f"look {order}")
            return "shipped"

        @agent.tool_plain
        def refund(order: str) -> str:
            executed.append(f"refund {order}")
            return "done"

        async def ask() -> str:
            async with openai.AsyncOpenAI(base_url=found[0].url, api_key="none", max_retries=0) as client:
                model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
                return (await agent.run("Refund W1.", model=model)).output

        assert asyncio.run(ask()) == "bye"
    assert executed == ["look W1"]
