"""A guarded toolset of PydanticAI, with a scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from surefoot.guard import Guard, GuardDecision, GuardedToolset, GuardSettings, Review
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy

RULE = PolicyRule(
    tools=("refund",),
    require="latest('look', {'order': args.order}) != null",
    reason="look first",
)


def run(*said: str, review: Any = None, **settings: Any) -> tuple[list[str], list[GuardDecision], str]:
    """What an agent executes that makes these calls in turn, the decisions, and the last observation."""
    executed: list[str] = []
    decisions: list[GuardDecision] = []
    seen: list[ModelMessage] = []
    shop: FunctionToolset[None] = FunctionToolset(max_retries=3)

    @shop.tool_plain
    def look(order: str) -> str:
        executed.append(f"look {order}")
        return "shipped"

    @shop.tool_plain
    def refund(order: str) -> str:
        executed.append(f"refund {order}")
        return "done"

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        seen[:] = messages
        made = sum(isinstance(one, ModelResponse) for one in messages)
        if made < len(said):
            return ModelResponse(parts=[ToolCallPart(said[made], {"order": "W1"}, tool_call_id=f"c{made}")])
        return ModelResponse(parts=[TextPart("bye")])

    guard = Guard(GuardSettings(**settings), verifiers=(ToolCallVerifier(policy=ToolPolicy(rules=(RULE,))),))
    guarded = GuardedToolset(shop, guard=guard, review=review, on_decision=decisions.append)
    asyncio.run(
        Agent(FunctionModel(model), toolsets=[guarded]).run("Refund W1.")
    )  # run_sync leaves its loop open
    guard.close()
    return executed, decisions, str(seen[-1].parts[-1].content)  # type: ignore[union-attr]


def test_a_rejected_call_is_not_executed_and_the_model_is_told_why() -> None:
    executed, decisions, told = run("refund")
    assert executed == []
    assert [one.action for one in decisions] == ["reject"]
    assert "this call was not executed: policy: look first" in told


def test_the_rules_see_the_run_with_its_results() -> None:
    executed, decisions, _ = run("refund", "look", "refund")
    assert executed == ["look W1", "refund W1"]
    assert [one.action for one in decisions] == ["reject", "release", "release"]


def test_a_person_decides() -> None:
    async def review(*_: Any) -> Any:
        return Review(approved=True, by="ada"), "1"

    executed, decisions, _ = run("refund", review=review, on_rule="hold")
    assert executed == ["refund W1"]
    assert decisions[0].held == "1"
    assert run("refund", on_rule="hold")[0] == []  # nobody to ask
