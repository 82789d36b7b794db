"""Guarded tools of the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("agents", reason="the extra openai-agents is not installed")

from agents import Agent, RunConfig, Runner, WebSearchTool, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from surefoot.errors import GuardError
from surefoot.guard import AgentsGuard, Guard, GuardDecision, GuardSettings, Review
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy

RULE = PolicyRule(
    tools=("refund",),
    require="latest('look', {'order': args.order}) != null",
    reason="look first",
)


class Broken:
    """A verifier that fails."""

    name = "broken"

    def verify(self, items: Any) -> Any:
        raise RuntimeError("no database")


class Desk:
    """An agent that makes these calls in turn."""

    def __init__(
        self, *calls: tuple[str, str], review: Any = None, broken: bool = False, **settings: Any
    ) -> None:
        self.executed: list[str] = []
        self.decisions: list[GuardDecision] = []

        @function_tool
        def look(order: str) -> str:
            self.executed.append(f"look {order}")
            return "shipped"

        @function_tool
        def refund(order: str) -> str:
            self.executed.append(f"refund {order}")
            return "done"

        rules = Broken() if broken else ToolCallVerifier(policy=ToolPolicy(rules=(RULE,)))
        self.guard = Guard(GuardSettings(**settings), verifiers=(rules,))
        self.guarded = AgentsGuard(self.guard, review=review, on_decision=self.decisions.append)
        steps = [
            [function_call(name, arguments, call_id=f"c{number}")]
            for number, (name, arguments) in enumerate(calls)
        ]
        self.model = ScriptedModel([*steps, [assistant_message("bye")]])
        self.agent = Agent(
            name="desk",
            instructions="Be polite.",
            tools=self.guarded.tools([look, refund]),
            model=self.model,
        )

    def run(self, **options: Any) -> str:
        """The last observation."""
        options = {"hooks": self.guarded, "run_config": RunConfig(tracing_disabled=True), **options}
        try:
            asyncio.run(Runner.run(self.agent, "Refund W1.", **options))
        finally:
            self.guard.close()
        outputs = [one["output"] for one in self.model.calls[-1].input if "output" in one]
        return outputs[-1]


REFUND = ("refund", '{"order": "W1"}')


def test_the_rules_see_the_run_with_its_results() -> None:
    desk = Desk(("look", '{"order": "W1"}'), REFUND)
    assert desk.run() == "done"
    assert desk.executed == ["look W1", "refund W1"]
    assert [one.action for one in desk.decisions] == ["release", "release"]


def test_a_rejected_call_is_not_executed_and_the_model_is_told_why() -> None:
    desk = Desk(REFUND)
    assert desk.run() == "this call was not executed: policy: look first"
    assert (desk.executed, [one.action for one in desk.decisions]) == ([], ["reject"])


def test_arguments_that_the_schema_does_not_take() -> None:
    desk = Desk(("look", '{"parcel": 3}'))
    assert "this call was not executed: " in desk.run()
    assert desk.executed == []
    assert desk.decisions[0].calls[0].stages[0].stage == "schema"


@pytest.mark.parametrize("approved", [True, False])
def test_a_held_call_waits_for_a_person(approved: bool) -> None:
    async def review(run: Any, reply: Any, decision: GuardDecision) -> tuple[Review, str]:
        assert [one.role for one in run] == ["system", "user"]
        assert reply.tool_calls[0].name == "refund"
        return Review(approved=approved, comment="not today"), "7"

    desk = Desk(REFUND, review=review, on_rule="hold")
    told = desk.run()
    assert told == ("done" if approved else "this call was not executed: not today")
    assert desk.executed == ["refund W1"] * approved
    assert desk.decisions[0].held == "7"


def test_without_hooks_nothing_is_executed() -> None:
    desk = Desk(("look", '{"order": "W1"}'))
    with pytest.raises(Exception, match=r"give it to Runner.run as 'hooks'"):
        desk.run(hooks=None)
    assert desk.executed == []


def test_tools_that_run_elsewhere_are_refused() -> None:
    guard = Guard()
    with pytest.raises(GuardError, match="cannot be checked: only function tools have guardrails"):
        AgentsGuard(guard).tools([WebSearchTool()])
    guard.close()


@pytest.mark.parametrize("fail", ["closed", "open"])
def test_a_checker_that_fails_is_open_or_closed_as_set(fail: str) -> None:
    desk = Desk(REFUND, broken=True, fail=fail)
    told = desk.run()
    assert ("could not be checked" in told) == (fail == "closed")
    assert desk.executed == ([] if fail == "closed" else ["refund W1"])
    assert "no database" not in told
