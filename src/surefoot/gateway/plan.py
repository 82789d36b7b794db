"""From a request to a plan: strategy, prompt and numbers, held to the limits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.gateway.errors import ApiError
from surefoot.gateway.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    StrategyOptions,
)
from surefoot.gateway.settings import GatewaySettings, Limits
from surefoot.gateway.strategies import PLAIN, Strategy, strategy_of, unknown_strategy
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Message, Problem, ToolCall, Usage
from surefoot.scores import Aggregator
from surefoot.search.method import SearchResult
from surefoot.search.saved_tree import SavedTree
from surefoot.search.space import Steps


@dataclass(kw_only=True)
class UsageMeter:
    """What a request has cost so far, whether it succeeds or fails."""

    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to generate, and how."""

    problem: Problem
    """The problem as the reward model reads it."""
    strategy: Strategy
    steps: Steps
    """``steps.prompt`` is the prompt, whatever the problem."""
    max_tokens: int
    n: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    initial_steps: tuple[str, ...] = ()
    """Steps that the solution begins with."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are passed on to the policy's server."""
    aggregation: Aggregator = "min"
    abstain_below: float | None = None
    meter: UsageMeter = field(default_factory=UsageMeter)


@dataclass(frozen=True, kw_only=True)
class GeneratedChoice:
    """One answer."""

    result: SearchResult
    text: str
    finish_reason: str
    tool_calls: tuple[ToolCall, ...] = ()
    withheld: str | None = None
    """Why the text must not be shown."""
    tree: SavedTree | None = None
    """All steps that were drawn, if some were dropped."""
    dropped: tuple[int, ...] = ()
    """Nodes of the tree that were dropped: no candidate goes through them."""

    @property
    def value(self) -> float | None:
        """Aggregated score of the chosen candidate."""
        return None if self.result.chosen is None else self.result.values[self.result.chosen]

    @property
    def abstained(self) -> bool:
        """Whether there is no answer that is shown."""
        return self.withheld is not None or self.result.chosen is None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """All answers to one request."""

    policy: str
    scorer: str | None
    strategy: str
    seed: int
    choices: tuple[GeneratedChoice, ...]

    @property
    def usage(self) -> Usage:
        """What they cost together."""
        return sum((choice.result.usage for choice in self.choices), Usage())


OnText = Callable[[int, str], None]
"""ResponseModel what the text of a choice, by its number, is certain to begin with."""


DEFAULT = "surefoot"
"""Model name that stands for the server's default strategy."""


@dataclass(frozen=True, kw_only=True)
class FixedPrompt(PromptFormat):
    """A prompt that does not depend on the problem."""

    prompt: str | tuple[Message, ...]

    def render(self, problem: Problem) -> str | tuple[Message, ...]:  # noqa: ARG002 - the base's signature
        """The prompt, whatever the problem."""
        return self.prompt


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes plans. ``aggregation`` applies where neither request nor settings name one."""

    policy: str
    takes_tools: bool
    scorer: str | None
    settings: GatewaySettings
    limits: Limits
    aggregation: Aggregator = "min"

    def chat(self, request: ChatRequest) -> Plan:
        """The plan for a conversation. Raises :class:`ApiError`."""
        plan = self._plan(request, *self._conversation(request.messages))
        if request.max_completion_tokens is not None:
            max_tokens = self.max_tokens(request.max_completion_tokens, "max_completion_tokens")
            sampling = replace(plan.steps.sampling, max_tokens=max_tokens)
            plan = replace(plan, max_tokens=max_tokens, steps=replace(plan.steps, sampling=sampling))
        return replace(plan, extra_body=self._tools(request, plan.strategy))

    def completion(self, request: CompletionRequest) -> Plan:
        """The plan for a prompt. Raises :class:`ApiError`."""
        if not request.prompt.strip():
            raise ApiError(400, "prompt: is empty", param="prompt")
        return self._plan(request, request.prompt, request.prompt)

    def steps(self, prompt: str | tuple[Message, ...], sampling: Sampling, options: StrategyOptions) -> Steps:
        """How solutions are written."""
        settings = self.settings
        return Steps(
            separator=options.separator or settings.separator,
            step_tokens=options.step_tokens or settings.step_tokens,
            max_steps=options.max_steps or settings.max_steps,
            sampling=sampling,
            prompt=FixedPrompt(prompt=prompt),
        )

    def strategy(self, model: str, options: StrategyOptions) -> Strategy:
        """The strategy that a request asks for. Raises :class:`ApiError`."""
        name = options.strategy or self._strategy_name(model)
        strategy = self._find(name, options)
        if strategy is None:
            raise unknown_strategy(name)
        if strategy.needs_scorer and self.scorer is None:
            message = f"strategy {name!r} needs a reward model, and this server has none"
            raise ApiError(400, message, param="strategy", code="no_scorer")
        return strategy

    def models(self) -> list[str]:
        """Names that a client may use as the model."""
        names = (*self.settings.offered, "accept-reject")
        strategies = [(name, self._find(name, StrategyOptions())) for name in names]
        usable = [
            name
            for name, strategy in strategies
            if strategy and (self.scorer is not None or not strategy.needs_scorer)
        ]
        return [self.policy, DEFAULT, *usable]

    def prompt_of(self, messages: Sequence[Message], problem: str) -> str | tuple[Message, ...]:
        """What the policy reads. Raises :class:`ApiError` where it cannot take a conversation."""
        if self.settings.chat:
            return tuple(messages)
        if len(messages) != 1 or messages[0].role != "user":
            message = (
                "this server puts one question into a prompt: send a single user message (a new chat "
                "without a system prompt), or start the server with --chat"
            )
            raise ApiError(400, message, param="messages", code="no_chat_template")
        return self.settings.template.replace("{problem}", problem)

    def _tools(self, request: ChatRequest, strategy: Strategy) -> dict[str, Any]:
        """Fields that are passed on. Raises :class:`ApiError` for tools that would have no effect."""
        if not request.tools or request.tool_choice == "none":
            return {}
        if strategy is not PLAIN or not self.takes_tools:
            if self.settings.ignore_tools:
                return {}
            message = f"policy {self.policy!r} does not support tools"
            if self.takes_tools:
                message = f"only the plain strategy supports tools, so use the model {self.policy!r}"
            message += "; turn them off in the client, or start the server with --ignore-tools"
            raise ApiError(400, message, param="tools", code="unsupported")
        extra: dict[str, Any] = {"tools": request.tools}
        if request.tool_choice is not None:
            extra["tool_choice"] = request.tool_choice
        if request.parallel_tool_calls is not None:
            extra["parallel_tool_calls"] = request.parallel_tool_calls
        return extra

    def _strategy_name(self, model: str) -> str:
        if model == self.policy:
            return PLAIN.name
        name = model.removeprefix(f"{self.policy}/")
        if name == DEFAULT:
            return self.settings.strategy
        if self._find(name, StrategyOptions()) is None:
            known = ", ".join(self.models())
            raise ApiError(
                404,
                f"there is no model {model[:100]!r}; choose from {known}",
                param="model",
                code="model_not_found",
            )
        return name

    def _find(self, name: str, options: StrategyOptions) -> Strategy | None:
        threshold = self.settings.threshold if options.threshold is None else options.threshold
        retries = self.settings.retries if options.retries is None else options.retries
        return strategy_of(name, threshold=threshold, retries=retries)

    def _conversation(self, sent: Sequence[ChatMessage]) -> tuple[str, str | tuple[Message, ...]]:
        messages = [_message(message) for message in sent]
        users = [message.content for message in messages if message.role == "user" and message.content]
        problem = users[-1] if users else ""
        if not problem.strip():
            raise ApiError(400, "messages: there is no user message with text", param="messages")
        return problem, self.prompt_of(messages, problem)

    def _plan(self, request: GenerationRequest, problem: str, prompt: str | tuple[Message, ...]) -> Plan:
        options, settings = request.surefoot or StrategyOptions(), self.settings
        strategy = self.strategy(request.model, options)
        if options.abstain_below is not None and strategy is PLAIN:
            message = "abstain_below: the plain strategy computes no scores; choose another"
            raise ApiError(400, message, param="abstain_below", code="unsupported")
        n = request.n or 1
        self.require_few(n, strategy)
        max_tokens = self.max_tokens(request.max_tokens, "max_tokens")
        sampling = Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            top_p=settings.top_p if request.top_p is None else request.top_p,
            max_tokens=max_tokens,
        )
        return Plan(
            problem=Problem(text=options.problem or problem),
            strategy=strategy,
            steps=self.steps(prompt, sampling, options),
            max_tokens=max_tokens,
            n=n,
            seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
            stop=request.stops,
            aggregation=options.aggregation or settings.aggregation or self.aggregation,
            abstain_below=settings.abstain_below if options.abstain_below is None else options.abstain_below,
        )

    def require_few(self, n: int, strategy: Strategy) -> None:
        """Raises :class:`ApiError` for more choices or candidates than the limits allow."""
        if n > self.limits.max_n:
            raise ApiError(400, f"n: is {n}, at most {self.limits.max_n} here", param="n")
        if n * strategy.draws > self.limits.max_candidates:
            message = (
                f"{n} times {strategy.name!r} draws {n * strategy.draws} at once, at most "
                f"{self.limits.max_candidates} here"
            )
            raise ApiError(400, message, param="strategy", code="too_many_candidates")

    def max_tokens(self, requested: int | None, param: str) -> int:
        """The bound of a request. Raises :class:`ApiError` for one above the limit."""
        if requested is None:
            return min(self.limits.default_tokens, self.limits.max_tokens)
        if requested > self.limits.max_tokens:
            raise ApiError(
                400, f"{param}: is {requested}, at most {self.limits.max_tokens} here", param=param
            )
        return requested


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
