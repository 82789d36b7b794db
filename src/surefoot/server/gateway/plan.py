"""From a request to a plan: the strategy by its name, the prompt, and numbers within the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final

from pydantic import ValidationError

from surefoot.errors import RunError, unknown
from surefoot.messages import tool_fields
from surefoot.protocols import Sampling
from surefoot.records import Message, Problem, Tool, Usage, content_id, trusted_copy
from surefoot.scores import TraceRule
from surefoot.search.best_of_n_search import WholeSolutions
from surefoot.search.method import SearchMethod
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise
from surefoot.search.selection import FIRST, Rule
from surefoot.search.spec import SEARCHES, search_of
from surefoot.server.gateway.errors import ApiError, invalid
from surefoot.server.gateway.images import detached
from surefoot.server.gateway.schemas import ChatRequest, StrategyOptions, read_message
from surefoot.server.gateway.settings import GatewaySettings, ServerLimits
from surefoot.server.records import RANDOM
from surefoot.spec import dashed


class Plain(SearchMethod):
    """No search: the policy's completion is the answer."""

    method: ClassVar[str] = "plain"
    by_steps: ClassVar[bool] = False
    needs_scorer: ClassVar[bool] = False
    rule: Rule = FIRST
    draws: ClassVar[int] = 1


PLAIN = Plain()


@lru_cache(maxsize=1000)
def strategy_of(text: str) -> SearchMethod:
    """The strategy ``plain``, or a search with its settings such as ``beam:width=4,expand=4``.

    Raises :class:`ApiError`.
    """
    if text == PLAIN.method:
        return PLAIN
    try:
        return search_of(text)
    except RunError as error:
        raise ApiError(400, f"strategy {error}", param="strategy") from error


@lru_cache(maxsize=1000)
def strategy_name(strategy: SearchMethod) -> str:
    """Its name: a text that :func:`strategy_of` reads."""
    return strategy.name


def one_by_one(search: SearchMethod) -> bool:
    """Whether there is one solution, so that a stream sends each accepted step."""
    return isinstance(search, StepResampling) and search.n == 1


def writes_whole(strategy: SearchMethod) -> bool:
    """Whether it samples whole messages, which may contain calls, after messages that may contain images."""
    return isinstance(strategy, Plain | WholeSolutions) or one_by_one(strategy)


def is_strategy(text: str) -> bool:
    """Whether ``text`` names a method, whatever its settings."""
    return text == PLAIN.method or dashed(text.partition(":")[0]) in SEARCHES


NO_USAGE: Final = Usage()
_PROBLEM: Final = Problem(text="?")


@dataclass(kw_only=True, slots=True)
class Plan:
    """A request's plan: what to generate, and how."""

    problem: Problem
    """The problem that the reward model sees."""
    strategy: SearchMethod
    """How to get from the prompt to an answer."""
    prompt: str | tuple[Message, ...]
    sampling: Sampling
    """Of a whole answer."""
    n: int = 1
    seed: int = 0
    separator: str = "\n"
    """Ends a step."""
    step_tokens: int = 256
    max_steps: int = 40
    continues: bool = True
    """Whether the policy can continue a text; otherwise solutions are written in one piece."""
    opened: bool = False
    """Whether the policy's template opens the reasoning, so that its texts begin within it."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are passed on to the policy's server."""
    messages: tuple[Message, ...] = ()
    """The conversation so far, with hashes in place of images."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Data URLs of its images by hash, not checked."""
    tools: tuple[Tool, ...] = ()
    logprobs: bool = False
    """Whether to ask the policy for the log-probabilities of its tokens."""
    session: str | None = None
    """The client's name of the conversation; with one, the tokens of whole messages are recorded."""
    request: str = ""
    """Digest of the request, which is the same when a client sends it again."""
    aggregation: TraceRule = "min"
    abstain_below: float | None = None
    usage: Usage = NO_USAGE
    """Tokens and calls so far, whether the request succeeds or fails."""

    @property
    def threshold(self) -> float | None:
        """Lowest score of an accepted step, if the strategy accepts and rejects steps."""
        return self.strategy.threshold if isinstance(self.strategy, StepResampling | Revise) else None

    @property
    def tokens(self) -> int:
        """Tokens that may be sampled at once."""
        return self.n * self.strategy.draws * self.sampling.max_tokens


DEFAULT = "surefoot"
"""Model name of the server's default strategy."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes plans. ``aggregation`` applies if a request names none. All methods raise :class:`ApiError`."""

    policy: str
    takes_tools: bool
    scorer: str | None
    settings: GatewaySettings
    limits: ServerLimits
    aggregation: TraceRule = "min"
    continues: bool = True
    """Whether the policy can continue a text; otherwise solutions are written in one piece."""

    def chat(self, request: ChatRequest) -> Plan:
        """The plan for a conversation."""
        read = (read_message(number, row) for number, row in enumerate(request.messages))
        messages, images = detached(request.rows, read)
        users = [message.content for message in messages if message.role == "user" and message.content]
        question = users[-1] if users else "(no text: see the images)" if images else ""
        if not question.strip():
            raise ApiError(400, "messages: no user message with text", param="messages")
        options, settings, n = request.options, self.settings, request.n or 1
        strategy = self.strategy(request.model, options)
        if options.abstain_below is not None and strategy is PLAIN:
            message = "abstain_below: the plain strategy computes no scores; choose another"
            raise ApiError(400, message, param="abstain_below", code="unsupported")
        self._check_counts(n, strategy)
        if images and not writes_whole(strategy):
            message = f"images: {self._whole_messages(strategy, 'without images')}"
            raise ApiError(400, message, param=request.rows[0], code="unsupported")
        extra, task = self._tools(request, strategy), options.problem or question
        about = images or (None,)  # one text may ask about any image; None = no known answer
        fields = {"id": content_id("problem", task, *about), "text": task}
        return Plan(
            problem=trusted_copy(_PROBLEM, fields),
            strategy=strategy,
            prompt=self._prompt(messages, question),
            sampling=Sampling(
                temperature=settings.temperature if request.temperature is None else request.temperature,
                top_p=settings.top_p if request.top_p is None else request.top_p,
                max_tokens=self._max_tokens(request),
                stop=request.stops,
            ),
            n=n,
            seed=RANDOM.getrandbits(31) if request.seed is None else request.seed,
            separator=options.separator or settings.separator or "\n",
            step_tokens=options.step_tokens or settings.step_tokens,
            max_steps=options.max_steps or settings.max_steps,
            continues=self.continues,
            opened=settings.reasoning_opened,
            messages=messages,
            images=images,
            extra_body=extra,
            tools=_tools_of(extra["tools"]) if extra else (),
            aggregation=options.aggregation or self.aggregation,
            abstain_below=settings.abstain_below if options.abstain_below is None else options.abstain_below,
        )

    def strategy(self, model: str, options: StrategyOptions) -> SearchMethod:
        """The strategy that a request asks for."""
        name = options.strategy or self._strategy_name(model)
        strategy = self._find(name)
        if strategy.needs_scorer and self.scorer is None:
            message = f"strategy {name!r} needs a reward model, and this server has none"
            raise ApiError(400, message, param="strategy", code="no_scorer")
        if not self._may_check_steps(strategy):
            message = (
                f"strategy {name!r} scores no steps, and this server withholds answers without step scores "
                "(gateway.flags.withhold has first-bad-step); choose another strategy"
            )
            raise ApiError(400, message, param="strategy", code="unsupported")
        return strategy

    def models(self) -> list[str]:
        """Names that a client may use as the model."""
        usable = [
            name
            for name in self.settings.strategies
            if (search := self._find(name)) is not PLAIN
            and (self.scorer is not None or not search.needs_scorer)
            and (self.continues or not search.by_steps)
            and self._may_check_steps(search)
        ]
        return [*([self.policy] if self._may_check_steps(PLAIN) else []), DEFAULT, *usable]

    def _may_check_steps(self, strategy: SearchMethod) -> bool:
        """Whether it scores the steps of answers, if they are withheld otherwise."""
        return strategy.needs_scorer or "first-bad-step" not in self.settings.flags.withhold

    def check_names(self) -> None:
        """Refuse reserved names of strategies, and names without a strategy."""
        for name in self.settings.strategies:
            if name in (self.policy, DEFAULT) or is_strategy(name):
                raise ApiError(400, f"strategies: {name!r} is a reserved name; choose another")
            self._find(name)

    def _prompt(self, messages: Sequence[Message], problem: str) -> str | tuple[Message, ...]:
        """The policy's prompt. Without a chat template only a single user message is possible."""
        if self.settings.chat:
            return tuple(messages)
        if len(messages) != 1 or messages[0].role != "user" or messages[0].attachments:
            message = (
                "this server puts one question into a prompt: send a single user message (a new chat "
                "without a system prompt or images), or start the server with --chat"
            )
            raise ApiError(400, message, param="messages", code="no_chat_template")
        return self.settings.template.replace("{problem}", problem)

    def _tools(self, request: ChatRequest, strategy: SearchMethod) -> dict[str, Any]:
        """Fields that are passed on to the policy. Tools are refused if they cannot have an effect."""
        if not request.tools or request.tool_choice == "none":
            return {}
        if not (writes_whole(strategy) and self.takes_tools):
            if self.settings.ignore_tools:
                return {}
            message = f"policy {self.policy!r} does not support tools"
            if self.takes_tools:
                message = self._whole_messages(strategy, "which a message with calls cannot be")
            message += "; turn them off in the client, or start the server with --ignore-tools"
            raise ApiError(400, message, param="tools", code="unsupported")
        choice = request.tool_choice
        fields = {
            "tools": [_known(tool, _TOOL_FIELDS) for tool in request.tools],
            "tool_choice": _known(choice, ("name",)) if isinstance(choice, dict) else choice,
            "parallel_tool_calls": request.parallel_tool_calls,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _whole_messages(self, strategy: SearchMethod, why: str) -> str:
        return (
            f"{strategy.name!r} continues texts step by step, {why}; use best-of-n, majority, resample:n=1, "
            f"or the model {self.policy!r}"
        )

    def _strategy_name(self, model: str) -> str:
        if model == self.policy:
            return PLAIN.method
        name = model.removeprefix(f"{self.policy}/")
        if name == DEFAULT:
            return self.settings.strategy
        if name not in self.settings.strategies and not is_strategy(name):
            message = (
                f"model {model[:100]!r} does not exist; choose from {', '.join(self.models())}, or a search "
                "such as beam:width=4,expand=4"
            )
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    def _find(self, name: str) -> SearchMethod:
        text = self.settings.strategies.get(name, name)
        if not is_strategy(text):
            choices = [*self.settings.strategies, PLAIN.method, *SEARCHES]
            raise ApiError(400, unknown("strategy", text[:100], choices), param="strategy")
        return strategy_of(text)

    def _check_counts(self, n: int, strategy: SearchMethod) -> None:
        if n > self.limits.max_n:
            raise ApiError(400, f"n: must be at most {self.limits.max_n}, not {n}", param="n")
        if n * strategy.draws > self.limits.max_candidates:
            message = (
                f"{n} times {strategy.name!r} draws {n * strategy.draws}, at most "
                f"{self.limits.max_candidates} here"
            )
            raise ApiError(400, message, param="strategy", code="too_many_candidates")

    def _max_tokens(self, request: ChatRequest) -> int:
        limit = self.limits.max_tokens
        max_tokens = min(self.limits.default_tokens, limit)
        for name in ("max_tokens", "max_completion_tokens"):
            requested = getattr(request, name, None)
            if requested is None:
                continue
            if requested > limit:
                raise ApiError(400, f"{name}: must be at most {limit}, not {requested}", param=name)
            max_tokens = requested
        return max_tokens


_TOOL_FIELDS = ("name", "description", "parameters", "strict")


def _known(value: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A tool or tool choice to forward, without other fields, which the policy's server might interpret."""
    function = value.get("function")
    if value.get("type", "function") != "function" or not isinstance(function, dict):
        message = "tools and tool_choice: only functions are supported, {'type': 'function', 'function': {…}}"
        raise ApiError(400, message, param="tools", code="unsupported")
    fields = {name: function[name] for name in names if function.get(name) is not None}
    return {"type": "function", "function": fields}


def _tools_of(tools: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    try:
        return tuple(Tool(**tool_fields(tool)) for tool in tools)
    except ValidationError as error:
        raise ApiError(400, f"tools: {invalid(error.errors()).message}", param="tools") from error
