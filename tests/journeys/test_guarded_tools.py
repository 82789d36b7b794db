"""A guarded gateway, live: OpenAI's client over a socket, a scripted server, a person in a browser."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from annotation_site import add_person
from browsing import enter
from gateway_server import served
from openai import OpenAI
from openai_server import Reply, chat, serve
from real_browser import chromium

from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings, PageSettings, ToolGuard, create_pages_app, open_database

CALLS = int(os.environ.get("SUREFOOT_GUARD_CALLS", "3"))
"""Calls that are timed with and without the guard."""
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
    for name in ("look", "refund", "delete")
]
POLICY = ToolPolicy(
    forbidden=("delete",),
    rules=(
        PolicyRule(
            tools=("refund",),
            require="latest('look', {'order': args.order}) != null",
            reason="look first",
        ),
    ),
)

pytestmark = pytest.mark.slow  # it starts a browser


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return chat([None], finish="tool_calls", tool_calls=[call])


def test_blocked_drawn_again_and_approved_by_a_person(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    with open_database(tmp_path / "g.db") as db, serve(lambda _: Reply()) as upstream:
        upstream.answer = lambda _: Reply(payload=answers.pop(0) if len(answers) > 1 else answers[0])
        add_person(db, "admin", "admin")
        guard = ToolGuard(enabled=True, on_rule="hold", hold_s=30, rejections=0, after_resamples="reject")
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0)
        with served(
            policy,
            settings=GatewaySettings(chat=True, guard=guard),
            db=db,
            pages=create_pages_app(db, PageSettings()),
            verifiers=(ToolCallVerifier(policy=POLICY),),
            holds=db.held_calls,
        ) as gateway:
            client = OpenAI(base_url=gateway.url, api_key=db.keys.create("c", "client")[0], max_retries=0)

            def ask(*said: dict[str, Any]) -> Any:
                answers[:] = said
                messages = [{"role": "user", "content": "Refund W1."}]
                session = {"X-Session-Id": uuid.uuid4().hex}  # each is a conversation of its own
                return client.chat.completions.create(
                    model="tiny", messages=messages, tools=TOOLS, extra_headers=session
                )

            drawn_again = ask(calling("look"), calling("look", order="W1"))
            assert drawn_again.choices[0].message.tool_calls[0].function.name == "look"
            assert [one["action"] for one in drawn_again.surefoot["searches"][0]["guard"]] == [
                "resample",
                "release",
            ]
            blocked = ask(calling("look"), calling("look"), calling("look"))
            assert blocked.choices[0].message.tool_calls is None
            assert blocked.choices[0].message.refusal.startswith("blocked: ")

            got: list[Any] = []
            waiting = threading.Thread(target=lambda: got.append(ask(calling("refund", order="W1"))))
            waiting.start()
            with chromium() as browser:
                page = enter(browser, gateway.root, "admin")
                until = time.monotonic() + 20
                while not db.held_calls.count()["waiting"]:
                    assert time.monotonic() < until
                    time.sleep(0.05)
                page.get_by_role("link", name="Held calls").click()
                page.locator("main table a").first.click()
                assert "look first" in page.content()
                page.get_by_label("Comment").fill("known customer")
                page.get_by_role("button", name="Approve").click()
                waiting.join(30)
                page.goto(f"{gateway.root}/held?state=delivered")
                page.locator("main table a").first.click()
                page.get_by_text("was approved and delivered").wait_for()
            assert got[0].choices[0].message.tool_calls[0].function.name == "refund"
            review = got[0].surefoot["searches"][0]["guard"][0]["review"]
            assert (review["approved"], review["comment"]) == (True, "known customer")

            guarded = timed(lambda: ask(calling("look", order="W1")))
            record = db.gateway.get(db.gateway.find(limit=1)[0].request_id)
            assert record.guard[0][0].calls[0].stages[-1].checker == "tool-calls"
            client.close()
        with served(policy, settings=GatewaySettings(chat=True), db=db) as gateway:
            client = OpenAI(base_url=gateway.url, api_key=db.keys.create("d", "client")[0], max_retries=0)
            plain = timed(lambda: ask(calling("look", order="W1")))
            client.close()
    print(f"median of {CALLS} calls: {plain * 1000:.2f} ms without, {guarded * 1000:.2f} ms with the guard")


def timed(work: Any) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
