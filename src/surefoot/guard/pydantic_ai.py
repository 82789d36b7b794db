"""The guard for agents of PydanticAI: a toolset that checks each call before it is executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_json

from surefoot.guard.guard import Guard
from surefoot.guard.loop import Reviewer, checked_call, refusal_text
from surefoot.guard.records import GuardDecision
from surefoot.records import Message, Tool, ToolCall


@dataclass
class GuardedToolset(WrapperToolset[AgentDepsT]):
    """``wrapped``, of which only calls that ``guard`` releases are executed.

    A call that is not released is given back to the model with the reason (``ModelRetry``), as often as the
    tool's ``max_retries`` allow; drawing again is the model's, so ``resample`` is the same. What would be
    held is decided by ``review``, and rejected without it. ``on_decision`` gets each decision.
    """

    guard: Guard
    review: Reviewer | None = None
    on_decision: Callable[[GuardDecision], None] = lambda _: None

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        """The tool's result. Raises ``ModelRetry`` for a call that is not released."""
        call = ToolCall(id=ctx.tool_call_id, name=name, arguments=to_json(tool_args).decode())
        past = ctx.messages
        if past and isinstance(past[-1], ModelResponse):  # the response that makes the call
            past = past[:-1]
        run = tuple(messages_of(past))
        tools = [
            Tool(
                name=tool.tool_def.name,
                description=tool.tool_def.description,
                parameters=json.dumps(tool.tool_def.parameters_json_schema),
            )
            for tool in (await self.get_tools(ctx)).values()
        ]
        decision = await checked_call(
            self.guard, run, tools, call, review=self.review, conversation=ctx.conversation_id or ctx.run_id
        )
        self.on_decision(decision)
        if decision.action == "release":
            self.guard.redeem(decision)  # the arguments are a Python object, with one reading
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        raise ModelRetry(refusal_text(decision))


def messages_of(messages: Sequence[ModelMessage]) -> Iterator[Message]:
    """A run of PydanticAI as records; parts other than text, calls and results are left out."""
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            texts = [part.content for part in message.parts if isinstance(part, TextPart)]
            yield Message(
                role="assistant",
                content="".join(texts) or None,
                tool_calls=tuple(
                    ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=part.args_as_json_str())
                    for part in calls
                ),
            )
            continue
        for part in message.parts:
            if isinstance(part, SystemPromptPart):
                yield Message(role="system", content=part.content)
            elif isinstance(part, UserPromptPart):
                pieces = [part.content] if isinstance(part.content, str) else part.content
                yield Message(
                    role="user", content="".join(piece for piece in pieces if isinstance(piece, str))
                )
            elif isinstance(part, ToolReturnPart):
                yield Message(
                    role="tool",
                    tool_call_id=part.tool_call_id,
                    content=part.model_response_str(),
                    error=part.outcome != "success",
                )
