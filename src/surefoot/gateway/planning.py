"""From a request to a task: strategy, prompt and numbers, held to the limits."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.http.settings import Limits
from surefoot.gateway.schemas import ChatMessage, ChatRequest, CompletionRequest, Drawing, Options
from surefoot.gateway.settings import GatewaySettings
from surefoot.gateway.strategies import PLAIN, Strategy, strategy_of, unknown_strategy
from surefoot.gateway.tasks import Task
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Message, Problem, ToolCall
from surefoot.scores import Aggregator
from surefoot.search.space import Steps

DEFAULT = "surefoot"
"""Model name that stands for the server's default strategy."""


@dataclass(frozen=True, kw_only=True)
class GivenPrompt(PromptFormat):
    """A prompt that is there already."""

    given: str | tuple[Message, ...]

    def render(self, problem: Problem) -> str | tuple[Message, ...]:  # noqa: ARG002 - the base's signature
        """The prompt, whatever the problem."""
        return self.given


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes tasks. ``aggregation`` is the rule where neither request nor settings name one."""

    policy: str
    takes_tools: bool
    scorer: str | None
    settings: GatewaySettings
    limits: Limits
    aggregation: Aggregator = "min"

    def chat(self, request: ChatRequest) -> Task:
        """A task from a conversation. Raises :class:`ApiError`."""
        task = self._task(request, *self._conversation(request.messages))
        if request.max_completion_tokens is not None:
            task = replace(
                task, max_tokens=self.tokens(request.max_completion_tokens, "max_completion_tokens")
            )
            task = replace(task, steps=_bounded(task.steps, task.max_tokens))
        return replace(task, extra_body=self._tools(request, task.strategy))

    def completion(self, request: CompletionRequest) -> Task:
        """A task from a prompt. Raises :class:`ApiError`."""
        if not request.prompt.strip():
            raise ApiError(400, "prompt: is empty", param="prompt")
        return self._task(request, request.prompt, request.prompt)

    def steps(self, prompt: str | tuple[Message, ...], sampling: Sampling, options: Options) -> Steps:
        """How solutions are written."""
        mine = self.settings
        return Steps(
            separator=options.separator or mine.separator,
            step_tokens=options.step_tokens or mine.step_tokens,
            max_steps=options.max_steps or mine.max_steps,
            sampling=sampling,
            prompt=GivenPrompt(given=prompt),
        )

    def strategy(self, model: str, options: Options) -> Strategy:
        """The strategy that a request asks for. Raises :class:`ApiError`."""
        name = options.strategy or self._named(model)
        found = self._find(name, options)
        if found is None:
            raise unknown_strategy(name)
        if found.needs_scorer and self.scorer is None:
            message = f"strategy {name!r} needs a reward model, and this server has none"
            raise ApiError(400, message, param="strategy", code="no_scorer")
        return found

    def models(self) -> list[str]:
        """Names that a client may use as the model."""
        offered = [self.policy, DEFAULT, *self.settings.offered, "accept-reject"]
        known = [(name, self._find(name, Options())) for name in offered[2:]]
        return offered[:2] + [
            name for name, one in known if one and (self.scorer is not None or not one.needs_scorer)
        ]

    def prompt_of(self, messages: Sequence[Message], problem: str) -> str | tuple[Message, ...]:
        """What the policy reads. Raises :class:`ApiError` where it cannot take a conversation."""
        if self.settings.chat:
            return tuple(messages)
        if len(messages) != 1 or messages[0].role != "user":
            message = (
                "this server puts one question into a prompt: send one message, of the user (a new chat "
                "without a system prompt), or start it with --chat"
            )
            raise ApiError(400, message, param="messages", code="no_chat_template")
        return self.settings.template.replace("{problem}", problem)

    def _tools(self, request: ChatRequest, strategy: Strategy) -> dict[str, Any]:
        """Fields that are passed on. Raises :class:`ApiError` for tools that nobody would mind."""
        if not request.tools or request.tool_choice == "none":
            return {}
        if strategy is not PLAIN or not self.takes_tools:
            if self.settings.ignore_tools:
                return {}
            message = f"policy {self.policy!r} takes no tools"
            if self.takes_tools:
                message = f"tools are for the plain strategy alone, so for the model {self.policy!r}"
            message += "; turn them off in the client, or start the server with --ignore-tools"
            raise ApiError(400, message, param="tools", code="unsupported")
        extra: dict[str, Any] = {"tools": request.tools}
        if request.tool_choice is not None:
            extra["tool_choice"] = request.tool_choice
        if request.parallel_tool_calls is not None:
            extra["parallel_tool_calls"] = request.parallel_tool_calls
        return extra

    def _named(self, model: str) -> str:
        if model == self.policy:
            return PLAIN.name
        name = model.removeprefix(f"{self.policy}/")
        if name == DEFAULT:
            return self.settings.strategy
        if self._find(name, Options()) is None:
            known = ", ".join(self.models())
            raise ApiError(
                404,
                f"there is no model {model[:100]!r}; choose from {known}",
                param="model",
                code="model_not_found",
            )
        return name

    def _find(self, name: str, options: Options) -> Strategy | None:
        threshold = self.settings.threshold if options.threshold is None else options.threshold
        retries = self.settings.retries if options.retries is None else options.retries
        return strategy_of(name, threshold=threshold, retries=retries)

    def _conversation(self, sent: Sequence[ChatMessage]) -> tuple[str, str | tuple[Message, ...]]:
        messages = [_message(message) for message in sent]
        users = [message.content for message in messages if message.role == "user" and message.content]
        problem = users[-1] if users else ""
        if not problem.strip():
            raise ApiError(400, "messages: there is no message of the user with text", param="messages")
        return problem, self.prompt_of(messages, problem)

    def _task(self, request: Drawing, problem: str, prompt: str | tuple[Message, ...]) -> Task:
        options, mine = request.surefoot or Options(), self.settings
        strategy = self.strategy(request.model, options)
        if options.abstain_below is not None and strategy is PLAIN:
            message = "abstain_below: the plain strategy has no scores to go by; choose another"
            raise ApiError(400, message, param="abstain_below", code="unsupported")
        n = request.n or 1
        self.require_few(n, strategy)
        asked = self.tokens(request.max_tokens, "max_tokens")
        sampling = Sampling(
            temperature=mine.temperature if request.temperature is None else request.temperature,
            top_p=mine.top_p if request.top_p is None else request.top_p,
            max_tokens=asked,
        )
        return Task(
            problem=Problem(text=options.problem or problem),
            strategy=strategy,
            steps=self.steps(prompt, sampling, options),
            max_tokens=asked,
            n=n,
            seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
            stop=request.stops,
            aggregation=options.aggregation or mine.aggregation or self.aggregation,
            abstain_below=mine.abstain_below if options.abstain_below is None else options.abstain_below,
        )

    def require_few(self, n: int, strategy: Strategy) -> None:
        if n > self.limits.max_n:
            raise ApiError(400, f"n: is {n}, at most {self.limits.max_n} here", param="n")
        if n * strategy.draws > self.limits.max_candidates:
            message = (
                f"{n} times {strategy.name!r} draws {n * strategy.draws} at once, at most "
                f"{self.limits.max_candidates} here"
            )
            raise ApiError(400, message, param="strategy", code="too_many_candidates")

    def tokens(self, asked: int | None, param: str) -> int:
        if asked is None:
            return min(self.limits.default_tokens, self.limits.max_tokens)
        if asked > self.limits.max_tokens:
            raise ApiError(400, f"{param}: is {asked}, at most {self.limits.max_tokens} here", param=param)
        return asked


def _bounded(steps: Steps, max_tokens: int) -> Steps:
    return replace(steps, sampling=replace(steps.sampling, max_tokens=max_tokens))


def _message(sent: ChatMessage) -> Message:
    return Message(
        role=sent.role,
        content=None if sent.content is None and sent.tool_calls else sent.text,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in sent.tool_calls or ()
        ),
        tool_call_id=sent.tool_call_id,
    )
