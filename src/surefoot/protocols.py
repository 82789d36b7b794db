"""The seams of the package: one method each. Everything else meets through these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field, JsonValue

from surefoot.printable import writable
from surefoot.records import (
    Execution,
    Message,
    Problem,
    Reasoning,
    StepLabel,
    StepScores,
    Tool,
    ToolCall,
    Trace,
    Usage,
)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample tokens."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability."""
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest completion."""
    stop: tuple[str, ...] = ()
    """Generation ends right after the first of these texts, which stays in the completion."""


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """Ask for ``n`` completions of one prompt, each continuing ``prefix``.

    A ``str`` prompt is given to the model as it is; a tuple of messages goes through the chat template,
    and ``prefix`` is then the beginning of the assistant's reply.
    """

    prompt: str | tuple[Message, ...]
    prefix: str = ""
    n: int = 1
    first: int = 0
    """Number of the first sample. Asking for samples 0-1 and then for 2-7 gives what asking for 0-7 gives."""
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: bool = False
    """Ask for ``Completion.logprobs``, which a policy gives where it can."""


STOP_UNKNOWN = "stop_unknown"
"""``Completion.finish_reason`` where a server does not tell its end of sequence from a stop text."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """New text only: neither the prompt nor the prefix is repeated."""

    text: str
    finish_reason: str
    """``stop`` (end of sequence or stop text), ``length``, or what the server said."""
    tokens: int
    """Tokens generated."""
    tool_calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    """The tokens as they were drawn, end of sequence included; empty where the policy does not say."""
    logprobs: tuple[float, ...] = ()
    """log π of each of ``token_ids``, in nats and before the temperature; empty where it was not asked for or
    the policy does not say."""
    reasoning: Reasoning | None = None
    """Reasoning that came apart from the text; ``tokens`` counts its tokens too."""

    @property
    def whole_text(self) -> str:
        """The text with visible reasoning before it, in ``<think>`` tags, as models write it themselves."""
        if self.reasoning is None or self.reasoning.visibility != "visible" or not self.reasoning.text:
            return self.text
        return f"<think>\n{self.reasoning.text}\n</think>\n\n{self.text}"


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Answer to one request. On failure ``error`` names the boundary.

    ``completions`` then holds what came before the failure, often nothing.
    """

    completions: tuple[Completion, ...]
    usage: Usage
    error: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the policy read it, prefix included; empty where the policy does not say."""


@runtime_checkable
class Policy(Protocol):
    """Writes completions. Results come in the order of the requests, one each, failures included.

    One behind a server, of which calls may overlap, says so by an attribute ``overlaps = True``; the calls of
    others are made one after another, in large batches.
    """

    @property
    def name(self) -> str: ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]: ...


@runtime_checkable
class StreamsText(Protocol):
    """A policy that can show text while it is written. Few can: ask with ``isinstance``."""

    async def stream(self, request: SampleRequest, show: Callable[[int, str], None]) -> SampleResult:
        """What ``sample`` gives for this request; ``show`` is given the new text of a sample as it comes.

        Samples are numbered from 0, and theirs may come in turns. What is shown of a sample, joined, is what
        its text begins with; the stop text may be missing. Nothing that was shown is taken back: an error
        after it is the result's, and the sample is then not among the completions.
        """
        ...


@runtime_checkable
class TakesExtraBody(Protocol):
    """A policy that passes fields of a request on, such as ``tools``; see ``OpenAIPolicy``."""

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> Policy:
        """The same policy, which puts these fields into every request."""
        ...


@runtime_checkable
class Segmenter(Protocol):
    """Cuts text into spans ``(start, end)`` that tile it: joined, they give the text back."""

    def segment(self, text: str) -> list[tuple[int, int]]: ...


@dataclass(frozen=True, kw_only=True)
class ProblemTrace:
    """A trace with the problem it answers: the unit that labellers and scorers take."""

    problem: Problem
    trace: Trace


@runtime_checkable
class Labeller(Protocol):
    """Labels traces: one list per item, one label per step of that item's trace."""

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]: ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a deterministic verifier says of one step."""

    value: Literal[-1, 0, 1] | None
    """+1 right and a step forward, 0 right without progress, -1 wrong, ``None`` = cannot be checked."""
    reason: str
    execution: Execution | None = None
    """The run that it rests on, where there is one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", writable(self.reason))


@runtime_checkable
class StepVerifier(Protocol):
    """Checks steps by rule: arithmetic, a game's moves, code run against tests, tool calls.

    One list per item, one verdict per step of that item's trace. ``name`` is recorded in the labels.
    """

    @property
    def name(self) -> str: ...

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]: ...


@runtime_checkable
class StepScorer(Protocol):
    """The one way to a step score, for every kind of reward model."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]: ...


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an environment answers to an action."""

    text: str
    """A tool's result; after a text to the user, the user's next message. Empty where there is none."""
    error: bool = False
    """Whether the tool failed."""
    done: bool = False
    """Whether the episode is over: no further action is taken."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", writable(self.text))


@runtime_checkable
class Environment(Protocol):
    """A world in which an agent calls tools, one episode at a time. The same actions after the same ``reset``
    give the same observations, so that a run can be replayed."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What can be called, with JSON schemas."""
        ...

    def reset(self, problem: Problem, seed: int = 0) -> tuple[Message, ...]:
        """Begin an episode. Returns the messages that a run begins with, such as the rules and the request.

        Raises ``RecordError`` for a problem of another world.
        """
        ...

    def step(self, action: ToolCall | str) -> Observation:
        """Take a call, or a text to the user. What an agent can get wrong is an observation with ``error``,
        such as a tool or an argument that does not exist: nothing is raised for it."""
        ...

    def outcome(self) -> bool | None:
        """Whether the present state solves the task; ``None`` = that cannot be told."""
        ...


@runtime_checkable
class RestorableEnvironment(Environment, Protocol):
    """An environment whose state can be compared, and put back. Ask with ``isinstance``."""

    def state(self) -> JsonValue:
        """What can be changed, as JSON data: equal data are equal states. What was only read, or counted on
        the way, is no part of it."""
        ...

    def snapshot(self) -> object:
        """All that :meth:`restore` needs. Later steps do not change it."""
        ...

    def restore(self, snapshot: object) -> None:
        """Go back to the moment of a ``snapshot``, of this environment or of another one opened alike; it can
        be used again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One solution as a selector sees it."""

    answer: str | None
    """Canonical final answer; equal strings are equal answers; ``None`` = no answer."""
    score: float | None
    """Aggregated score; ``None`` = not scored."""


@runtime_checkable
class Selector(Protocol):
    """Chooses among the candidates of one problem; returns the index of the chosen one."""

    def select(self, candidates: Sequence[Candidate]) -> int: ...


@dataclass(frozen=True, kw_only=True)
class LabelledTrace:
    """A trace with its problem and the labels given to its steps; a step may have none or several."""

    problem: Problem
    trace: Trace
    labels: tuple[StepLabel, ...]
