"""The guard for graphs of LangGraph: a node of tools that checks each call before it is executed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage, convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from surefoot.concurrency import run_sync
from surefoot.guard.guard import Guard
from surefoot.guard.loop import Reviewer, checked_call, refusal_text
from surefoot.guard.records import GuardDecision, Review
from surefoot.messages import read_messages, tool_fields
from surefoot.records import Message, Tool, ToolCall

Result = ToolMessage | Command[Any]


def guarded_tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]],
    guard: Guard,
    *,
    review: Reviewer | None = None,
    on_decision: Callable[[GuardDecision], None] = lambda _: None,
    **options: Any,
) -> ToolNode:
    """A ``ToolNode`` of which only calls that ``guard`` releases are executed.

    A call that is not released is answered by a ``ToolMessage`` of status ``error`` with the reason; drawing
    again is the model's, so ``resample`` is the same. What would be held is decided by ``review``
    (:func:`interrupt_review` interrupts the graph), and rejected without it. ``on_decision`` gets each
    decision; ``options`` go to ``ToolNode``.
    """

    async def decide(request: ToolCallRequest) -> GuardDecision:
        requested = request.tool_call
        arguments = json.dumps(requested["args"], default=str)
        call = ToolCall(id=requested["id"], name=requested["name"], arguments=arguments)
        config = request.runtime.config if request.runtime is not None else {}
        thread = config.get("configurable", {}).get("thread_id")
        decision = await checked_call(
            guard, _before(request.state), offered, call, review=review, conversation=thread
        )
        on_decision(decision)
        if decision.action == "release":
            guard.redeem(decision)  # the arguments are a Python object, with one reading
        return decision

    def refusal(request: ToolCallRequest, decision: GuardDecision) -> ToolMessage:
        return ToolMessage(
            content=refusal_text(decision),
            name=request.tool_call["name"],
            tool_call_id=request.tool_call["id"],
            status="error",
        )

    def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Result]) -> Result:
        decision = run_sync(decide(request))
        return execute(request) if decision.action == "release" else refusal(request, decision)

    async def awrap(
        request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Result]]
    ) -> Result:
        decision = await decide(request)
        return await execute(request) if decision.action == "release" else refusal(request, decision)

    node = ToolNode(tools, wrap_tool_call=wrap, awrap_tool_call=awrap, **options)
    offered = [
        Tool.model_validate(tool_fields(convert_to_openai_tool(tool))) for tool in node.tools_by_name.values()
    ]
    return node


async def interrupt_review(
    messages: Sequence[Message],  # noqa: ARG001
    reply: Message,
    decision: GuardDecision,
) -> tuple[Review | None, str | None]:
    """Interrupts the graph, which needs a checkpointer, until it is resumed.

    The interrupt's value has ``tool``, ``arguments`` and ``reason``. ``Command(resume=True)`` approves;
    ``False`` or a text (shown to the model) rejects. When the graph is resumed, other calls of the same
    message are executed again, as LangGraph does after each interrupt.
    """
    (call,) = reply.tool_calls
    answer = interrupt({"tool": call.name, "arguments": call.arguments, "reason": decision.reason})
    comment = answer if isinstance(answer, str) else ""
    return Review(approved=answer is True, comment=comment), None


def _before(state: Any) -> tuple[Message, ...]:
    """The run before the message that makes the calls."""
    if isinstance(state, Mapping):
        messages = state["messages"]
    else:
        messages = state if isinstance(state, list) else state.messages
    rows = convert_to_openai_messages(messages[:-1])
    return tuple(map(Message.model_validate, read_messages(rows)))
