"""A guarded node of tools in a graph of LangGraph, with a scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="the extra langgraph is not installed")

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from surefoot.guard import Guard, GuardDecision, GuardSettings, guarded_tool_node, interrupt_review
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy

RULE = PolicyRule(
    tools=("refund",),
    require="latest('look', {'order': args.order}) != null",
    reason="look first",
)
THREAD = {"configurable": {"thread_id": "1"}}


class Broken:
    """A verifier that fails."""

    name = "broken"

    def verify(self, items: Any) -> Any:
        raise RuntimeError("no database")


class Desk:
    """A graph whose model makes these calls in turn."""

    def __init__(
        self, *calls: tuple[str, dict[str, Any]], review: Any = None, broken: bool = False, **settings: Any
    ) -> None:
        self.executed: list[str] = []
        self.decisions: list[GuardDecision] = []

        @tool
        def look(order: str) -> str:
            """Look an order up."""
            self.executed.append(f"look {order}")
            return "shipped"

        @tool
        def refund(order: str) -> str:
            """Pay an order back."""
            self.executed.append(f"refund {order}")
            return "done"

        rules = Broken() if broken else ToolCallVerifier(policy=ToolPolicy(rules=(RULE,)))
        self.guard = Guard(GuardSettings(**settings), verifiers=(rules,))
        node = guarded_tool_node([look, refund], self.guard, review=review, on_decision=self.decisions.append)

        def model(state: MessagesState) -> dict[str, Any]:
            made = sum(isinstance(one, AIMessage) for one in state["messages"])
            if made == len(calls):
                return {"messages": [AIMessage("bye")]}
            name, arguments = calls[made]
            call = {"name": name, "args": arguments, "id": f"c{made}"}
            return {"messages": [AIMessage("", tool_calls=[call])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", node)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda state: "tools" if state["messages"][-1].tool_calls else END
        )
        graph.add_edge("tools", "model")
        self.graph = graph.compile(checkpointer=InMemorySaver())

    def run(self, asked: Any = None, *, wait: bool = True) -> dict[str, Any]:
        asked = asked or {"messages": [{"role": "user", "content": "Refund W1."}]}
        if wait:
            return self.graph.invoke(asked, THREAD)
        return asyncio.run(self.graph.ainvoke(asked, THREAD))


def last_result(state: dict[str, Any]) -> str:
    return [one for one in state["messages"] if one.type == "tool"][-1].content


@pytest.mark.parametrize("wait", [True, False])
def test_the_rules_see_the_run_with_its_results(wait: bool) -> None:
    desk = Desk(("look", {"order": "W1"}), ("refund", {"order": "W1"}))
    assert last_result(desk.run(wait=wait)) == "done"
    assert desk.executed == ["look W1", "refund W1"]
    desk.guard.close()


@pytest.mark.parametrize("wait", [True, False])
def test_a_rejected_call_is_not_executed_and_the_model_is_told_why(wait: bool) -> None:
    desk = Desk(("refund", {"order": "W1"}))
    state = desk.run(wait=wait)
    assert last_result(state) == "this call was not executed: policy: look first"
    assert [one.status for one in state["messages"] if one.type == "tool"] == ["error"]
    assert desk.executed == []
    desk.guard.close()


def test_arguments_that_the_schema_does_not_take() -> None:
    desk = Desk(("look", {"parcel": 3}))
    assert "this call was not executed: " in last_result(desk.run())
    assert desk.decisions[0].calls[0].stages[0].stage == "schema"
    desk.guard.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [(True, "done"), ("not today", "this call was not executed: not today")],
)
def test_a_held_call_interrupts_the_graph_until_a_person_answers(answer: Any, told: str) -> None:
    desk = Desk(("refund", {"order": "W1"}), review=interrupt_review, on_rule="hold")
    state = desk.run()
    (asked,) = state["__interrupt__"]
    assert asked.value == {
        "tool": "refund",
        "arguments": '{"order": "W1"}',
        "reason": "policy: look first",
    }
    assert desk.executed == []
    assert last_result(desk.run(Command(resume=answer))) == told
    assert desk.executed == ["refund W1"] * (answer is True)
    desk.guard.close()


def test_without_a_reviewer_what_would_be_held_is_rejected() -> None:
    desk = Desk(("refund", {"order": "W1"}), on_rule="hold")
    assert last_result(desk.run()) == "this call was not executed: policy: look first"
    assert desk.executed == []
    desk.guard.close()


@pytest.mark.parametrize("fail", ["closed", "open"])
def test_a_checker_that_fails_is_open_or_closed_as_set(fail: str) -> None:
    desk = Desk(("refund", {"order": "W1"}), broken=True, fail=fail)
    told = last_result(desk.run())
    assert ("could not be checked" in told) == (fail == "closed")
    assert desk.executed == ([] if fail == "closed" else ["refund W1"])
    assert "no database" not in told
    desk.guard.close()
