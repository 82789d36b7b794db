"""From a request to a plan: strategy (by its name), prompt and numbers, held to the limits."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from surefoot.guard import GuardDecision
from surefoot.messages import tool_fields
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Message, Problem, Reasoning, Tool, ToolCall, Usage
from surefoot.scores import Aggregator
from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search, SearchMethod, SearchResult
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise
from surefoot.search.saved_tree import SavedTree
from surefoot.search.space import Steps
from surefoot.server.gateway.errors import ApiError, invalid
from surefoot.server.gateway.records import DrawnTokens
from surefoot.server.gateway.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    SamplingRequest,
    StrategyOptions,
)
from surefoot.server.gateway.settings import GatewaySettings, Limits

StreamMode = Literal["end", "chain", "common"]
"""When a stream sends text. end: when everything is done; chain: there is one solution, and the prefix of a
request for its next step has been accepted; common: what all solutions still possible begin with."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way from a prompt to an answer."""

    name: str
    search: Search | None
    """``None`` = what the policy writes is the answer."""
    draws: int
    """Solutions, or next steps of a round, that are drawn at once."""
    needs_scorer: bool
    stream_mode: StreamMode = "end"

    @property
    def family(self) -> str:
        """The name without its numbers: a metric's label, so there must be few, whatever clients send."""
        return _NUMBERS.sub("", self.name)

    @property
    def threshold(self) -> float | None:
        """Lowest score of an accepted step, for a strategy that accepts steps."""
        return self.search.threshold if isinstance(self.search, StepResampling | Revise) else None

    @property
    def takes_tools(self) -> bool:
        """Whether it draws whole messages, so that tool calls can be among what it chooses from."""
        return isinstance(self.search, BestOfNSearch | StepResampling | None)

    @property
    def attempts(self) -> int:
        """How often a step, or a whole solution, may be drawn."""
        if isinstance(self.search, Revise):
            return 1 + self.search.rounds
        return 1 + self.search.retries if isinstance(self.search, StepResampling) else 1


PLAIN = Strategy(name="plain", search=None, draws=1, needs_scorer=False)
_NUMBERS = re.compile("-[0-9]+(?:x[0-9]+)?$")
# one spelling per strategy: names are recorded, and another spelling would count as another strategy
_NAME = re.compile("([a-z-]+?)-(?:(0|[1-9][0-9]{0,3})|(0|[1-9][0-9]{0,2})x(0|[1-9][0-9]{0,2}))")
_SAMPLED: dict[str, Callable[[str, int], SearchMethod]] = {
    "best-of": lambda name, n: BestOfNSearch(n=n, rule="best_of_n", name=name),
    "majority": lambda name, n: BestOfNSearch(n=n, rule="majority", name=name),
    "weighted-vote": lambda name, n: BestOfNSearch(n=n, rule="weighted_vote", name=name),
    "rebase": lambda name, n: Rebase(n=n, name=name),
    "particle": lambda name, n: ParticleFilter(n=n, name=name),
    "mcts": lambda name, n: MCTS(paths=n, name=name),
}
_BEAMS: dict[str, Callable[[str, int, int], SearchMethod]] = {
    "beam": lambda name, width, expand: BeamSearch(width=width, expand=expand, name=name),
    "dvts": lambda name, trees, expand: DVTS(n=trees * expand, expand=expand, name=name),
}


def strategy_of(name: str, *, threshold: float, retries: int) -> Strategy | None:
    """A strategy from its name, such as ``best-of-16``, ``beam-4x4`` (width x expand) or ``dvts-4x4`` (trees
    x expand); ``None`` = not the name of a strategy. Raises :class:`ApiError` for impossible numbers.
    """
    if name == PLAIN.name:
        return PLAIN
    if name == "accept-reject":
        accept = StepResampling(n=1, threshold=threshold, retries=retries, rule="first", name=name)
        return Strategy(name=name, search=accept, draws=1, needs_scorer=True, stream_mode="chain")
    if not (match := _NAME.fullmatch(name)):
        return None
    kind, n, width, expand = match.groups()
    try:
        if n and kind == "revise":
            revise = Revise(rounds=int(n), threshold=threshold, name=name)
            return Strategy(name=name, search=revise, draws=1, needs_scorer=True)
        if n and kind in _SAMPLED:
            search = _SAMPLED[kind](name, int(n))
            return Strategy(name=name, search=search, draws=int(n), needs_scorer=kind != "majority")
        if width and kind in _BEAMS:
            search, draws = _BEAMS[kind](name, int(width), int(expand)), int(width) * int(expand)
            return Strategy(name=name, search=search, draws=draws, needs_scorer=True, stream_mode="common")
    except ValidationError as error:
        problem = invalid(error.errors()).message
        raise ApiError(400, f"strategy {name!r}: {problem}", param="strategy") from error
    return None


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
    messages: tuple[Message, ...] = ()
    """The conversation so far; empty for a prompt."""
    tools: tuple[Tool, ...] = ()
    logprobs: bool = False
    """Whether the policy is asked for the log-probabilities of what it draws."""
    aggregation: Aggregator = "min"
    abstain_below: float | None = None
    caller: str = ""
    """Who asks, for a fair share of what requests wait for."""
    meter: UsageMeter = field(default_factory=UsageMeter)


CONTENT_FILTER = "content_filter"
"""Finish reason of a choice without a text: it was withheld, or there is no solution."""


@dataclass(frozen=True, kw_only=True)
class GeneratedChoice:
    """One answer."""

    result: SearchResult
    text: str
    finish_reason: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    """Reasoning that the policy shows apart from the text."""
    withheld: str | None = None
    """Why the text must not be shown, or why there is none."""
    tree: SavedTree | None = None
    """All steps that were drawn, if some were dropped."""
    dropped: tuple[int, ...] = ()
    """Nodes of the tree that were dropped: no candidate goes through them."""
    first_step: int = 0
    """The chosen candidate's first step that was generated; those before it came with the request."""
    decisions: tuple[GuardDecision, ...] = ()
    """Of the guard, one for each message with calls that was drawn."""
    guarded: bool = False
    """Whether a guard checks tool calls, so that no other candidates' calls may be shown."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Why the guard held candidates back, by their index."""
    tokens: Mapping[int, DrawnTokens] = field(default_factory=dict)
    """What candidates were drawn as, by their index."""

    @property
    def value(self) -> float | None:
        """Aggregated score of the chosen candidate."""
        return None if self.result.chosen is None else self.result.values[self.result.chosen]

    @property
    def blocked(self) -> bool:
        """Whether the guard released no message."""
        return bool(self.decisions) and self.reasons.get(self.result.chosen or 0) is not None

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
"""Called with the number of a choice, and what its text is certain to begin with."""


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
    """Makes plans. ``aggregation`` applies where a request names none."""

    policy: str
    takes_tools: bool
    scorer: str | None
    settings: GatewaySettings
    limits: Limits
    aggregation: Aggregator = "min"

    def chat(self, request: ChatRequest) -> Plan:
        """The plan for a conversation. Raises :class:`ApiError`."""
        messages = tuple(_message(message) for message in request.messages)
        plan = self._plan(request, *self._conversation(messages), messages=messages)
        if request.max_completion_tokens is not None:
            max_tokens = self.max_tokens(request.max_completion_tokens, "max_completion_tokens")
            sampling = replace(plan.steps.sampling, max_tokens=max_tokens)
            plan = replace(plan, max_tokens=max_tokens, steps=replace(plan.steps, sampling=sampling))
        extra = self._tools(request, plan.strategy)
        if not extra:
            return plan
        return replace(plan, extra_body=extra, tools=_tools_of(extra["tools"]))

    def completion(self, request: CompletionRequest) -> Plan:
        """The plan for a prompt. Raises :class:`ApiError`."""
        if not request.prompt.strip():
            raise ApiError(400, "prompt: is empty", param="prompt")
        return self._plan(request, request.prompt, request.prompt)

    def strategy(self, model: str, options: StrategyOptions) -> Strategy:
        """The strategy that a request asks for. Raises :class:`ApiError`."""
        name = options.strategy or self._strategy_name(model)
        strategy = self._find(name, options)
        if strategy is None:
            message = (
                f"there is no strategy {name[:100]!r}; choose from best-of-N, majority-N, weighted-vote-N, "
                "beam-WxE, dvts-TxE, rebase-N, particle-N, mcts-N, revise-N, accept-reject, plain"
            )
            raise ApiError(400, message, param="strategy")
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
        if not (strategy.takes_tools and self.takes_tools):
            if self.settings.ignore_tools:
                return {}
            message = f"policy {self.policy!r} does not support tools"
            if self.takes_tools:
                message = (
                    f"{strategy.name!r} continues texts step by step, which a message with calls cannot be; "
                    f"use best-of-N, majority-N, weighted-vote-N, accept-reject, or the model {self.policy!r}"
                )
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

    def _conversation(self, messages: Sequence[Message]) -> tuple[str, str | tuple[Message, ...]]:
        users = [message.content for message in messages if message.role == "user" and message.content]
        problem = users[-1] if users else ""
        if not problem.strip():
            raise ApiError(400, "messages: there is no user message with text", param="messages")
        return problem, self.prompt_of(messages, problem)

    def _plan(
        self,
        request: GenerationRequest,
        problem: str,
        prompt: str | tuple[Message, ...],
        messages: tuple[Message, ...] = (),
    ) -> Plan:
        options, settings = request.options, self.settings
        strategy = self.strategy(request.model, options)
        if options.abstain_below is not None and strategy is PLAIN:
            message = "abstain_below: the plain strategy computes no scores; choose another"
            raise ApiError(400, message, param="abstain_below", code="unsupported")
        return self.plan(
            request,
            options,
            strategy,
            problem=Problem(text=options.problem or problem),
            prompt=prompt,
            messages=messages,
            n=request.n or 1,
            stop=request.stops,
            abstain_below=settings.abstain_below if options.abstain_below is None else options.abstain_below,
        )

    def plan(
        self,
        request: SamplingRequest,
        options: StrategyOptions,
        strategy: Strategy,
        *,
        problem: Problem,
        prompt: str | tuple[Message, ...],
        n: int = 1,
        **more: Any,
    ) -> Plan:
        """The plan for ``problem``, which ``prompt`` puts to the policy; ``more`` are other fields of it.

        Raises :class:`ApiError` for numbers beyond the limits.
        """
        settings = self.settings
        self._require_few(n, strategy)
        max_tokens = self.max_tokens(request.max_tokens, "max_tokens")
        sampling = Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            top_p=settings.top_p if request.top_p is None else request.top_p,
            max_tokens=max_tokens,
        )
        steps = Steps(
            separator=options.separator or settings.separator or "\n",
            step_tokens=options.step_tokens or settings.step_tokens,
            max_steps=options.max_steps or settings.max_steps,
            sampling=sampling,
            prompt=FixedPrompt(prompt=prompt),
        )
        return Plan(
            problem=problem,
            strategy=strategy,
            steps=steps,
            max_tokens=max_tokens,
            n=n,
            seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
            aggregation=options.aggregation or self.aggregation,
            **more,
        )

    def _require_few(self, n: int, strategy: Strategy) -> None:
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
        reasoning=Reasoning(text=sent.reasoning_content) if sent.reasoning_content else None,
    )


def _tools_of(sent: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    """The tools of a request as records. Raises :class:`ApiError` for what is none."""
    try:
        return tuple(Tool(**tool_fields(one)) for one in sent)
    except ValidationError as error:
        raise ApiError(400, f"tools: {invalid(error.errors()).message}", param="tools") from error
