"""The guard for agents of the OpenAI Agents SDK: checked tools, and hooks that see the run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
)
from agents import Tool as AgentTool
from agents.tool_context import ToolContext

from surefoot.errors import GuardError
from surefoot.guard.guard import Guard
from surefoot.guard.loop import Reviewer, checked_call, refusal_text
from surefoot.guard.records import GuardDecision
from surefoot.messages import read_messages
from surefoot.records import Message, Tool, ToolCall


class AgentsGuard(RunHooks[Any]):
    """Tools of which only calls that ``guard`` releases are executed.

    ``Agent(tools=guarded.tools([...]))`` and ``Runner.run(agent, ..., hooks=guarded)``: the tools have an
    input guardrail each, and as hooks it sees the run so far, which a guardrail is not shown. A call that is
    not released is given back to the model with the reason; drawing again is the model's, so ``resample`` is
    the same. What would be held is decided by ``review``, and rejected without it. ``on_decision`` gets each
    decision. Several runs may share one.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        review: Reviewer | None = None,
        on_decision: Callable[[GuardDecision], None] = lambda _: None,
    ) -> None:
        self.guard, self.review, self.on_decision = guard, review, on_decision
        self._asked: dict[int, tuple[Message, ...]] = {}
        self._names: dict[int, str] = {}
        self._released: dict[str, str] = {}
        self._before: dict[str, tuple[str, tuple[Message, ...]]] = {}
        self._tools: dict[str, Tool] = {}

    def tools(self, tools: Sequence[AgentTool]) -> list[AgentTool]:
        """The same tools, guarded. Raises ``GuardError`` for one whose calls the SDK does not pass on."""
        guarded: list[AgentTool] = []
        for tool in tools:
            if not isinstance(tool, FunctionTool):
                raise GuardError(
                    f"calls of {tool.name!r} ({type(tool).__name__}) cannot be checked: only function tools "
                    "have guardrails; give it to the agent separately from the guarded tools, or leave it out"
                )
            self._tools[tool.name] = Tool(
                name=tool.name,
                description=tool.description,
                parameters=json.dumps(tool.params_json_schema),
            )
            ours: ToolInputGuardrail[Any] = ToolInputGuardrail(self._check, name="surefoot")
            guarded.append(
                replace(
                    tool,
                    on_invoke_tool=self._only_released(tool),
                    tool_input_guardrails=[ours, *(tool.tool_input_guardrails or ())],
                )
            )
        return guarded

    def _only_released(self, tool: FunctionTool) -> Callable[[ToolContext[Any], str], Awaitable[Any]]:
        """Execute ``tool`` with the arguments that the guard released for the call."""

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:  # noqa: ARG001
            return await tool.on_invoke_tool(context, self._released.pop(context.tool_call_id))

        return invoke

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],  # noqa: ARG002
        system_prompt: str | None,
        input_items: list[Any],
    ) -> None:
        """Remember what the model is asked."""
        first = [{"role": "system", "content": system_prompt}] if system_prompt else []
        rows = read_messages([*first, *({**item} for item in input_items)])
        self._asked[id(context)] = tuple(map(Message.model_validate, rows))

    async def on_llm_end(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],  # noqa: ARG002
        response: ModelResponse,
    ) -> None:
        """Remember it for each call of the answer."""
        questions = self._asked.pop(id(context), ())
        name = self._names.setdefault(id(context), uuid.uuid4().hex)
        for item in response.output:
            if item.type == "function_call":
                self._before[item.call_id] = (name, questions)

    async def on_agent_end(self, context: RunContextWrapper[Any], agent: Any, output: Any) -> None:  # noqa: ARG002
        """Forget the run's name."""
        self._names.pop(id(context), None)

    async def _check(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        tool_context = data.context
        name, earlier = self._before.pop(tool_context.tool_call_id, ("", None))
        if earlier is None:
            raise GuardError("the guard does not see the run: give it to Runner.run as 'hooks', too")
        call = ToolCall(
            id=tool_context.tool_call_id, name=tool_context.tool_name, arguments=tool_context.tool_arguments
        )
        decision = await checked_call(
            self.guard, earlier, list(self._tools.values()), call, review=self.review, conversation=name
        )
        self.on_decision(decision)
        if decision.action == "release":
            [released] = self.guard.redeem(decision)
            self._released[tool_context.tool_call_id] = released.arguments
            return ToolGuardrailFunctionOutput.allow()
        return ToolGuardrailFunctionOutput.reject_content(refusal_text(decision))
