"""One-method protocols that the packages share, and their arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, get_args, runtime_checkable

from pydantic import Field, JsonValue

from surefoot.errors import MissingExtraError, SandboxError
from surefoot.printable import writable
from surefoot.records import (
    Ended,
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

    A ``str`` prompt is sent unchanged; a tuple of messages goes through the chat template, and ``prefix`` is
    then the beginning of the assistant's reply.
    """

    prompt: str | tuple[Message, ...]
    prefix: str = ""
    n: int = 1
    first: int = 0
    """Number of the first sample. Requests for samples 0-1 and 2-7 give the same texts as one for 0-7."""
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: bool = False
    """Ask for ``Completion.logprobs``, which some policies can return."""
    alternatives: int = 0
    """Ask for ``Completion.positions`` with so many tokens each, which servers can return."""


STOP_UNKNOWN = "stop_unknown"
"""``Completion.finish_reason`` of a server that does not distinguish end of sequence from a stop text."""


@dataclass(frozen=True, kw_only=True)
class TokenPosition:
    """A sampled token and the most probable tokens in its place."""

    token: str
    logprobs: Mapping[str, float]
    """log π by the text of the token, in nats."""


@dataclass(frozen=True, kw_only=True)
class Completion(Ended):
    """New text only: neither the prompt nor the prefix is repeated."""

    text: str
    finish_reason: str
    """Why the text ended, in the server's own word."""
    tokens: int
    """Tokens generated."""
    tool_calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    """The sampled tokens, end of sequence included; empty if the policy does not return them."""
    logprobs: tuple[float, ...] = ()
    """log π of each of ``token_ids``, in nats and before the temperature; empty if not requested or not
    returned."""
    positions: tuple[TokenPosition, ...] = ()
    """The tokens of ``text`` with their alternatives; empty if not requested or not returned."""
    reasoning: Reasoning | None = None
    """Reasoning that is separate from the text; ``tokens`` counts its tokens, too."""

    @property
    def whole_text(self) -> str:
        """The text after its visible reasoning in ``<think>`` tags, as models write it."""
        if self.reasoning is None or self.reasoning.visibility != "visible" or not self.reasoning.text:
            return self.text
        return f"<think>\n{self.reasoning.text}\n</think>\n\n{self.text}"


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Answer to one request. After a failure ``error`` names the boundary, and ``completions`` holds the
    completions before it, often none."""

    completions: tuple[Completion, ...]
    usage: Usage
    error: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the policy read it, prefix included; empty if the policy does not return it."""


@runtime_checkable
class Policy(Protocol):
    """A language model that writes completions: one result per request, in order, failures included.

    If calls may overlap, as at a server, it has an attribute ``overlaps = True``; otherwise calls are made
    one after another, in large batches. A method ``capabilities()`` describes it
    (:class:`surefoot.policies.Capabilities`). Without one nothing is known, so no prefix is sent to it: a
    policy that begins a new answer would make every step look as good as the first.
    """

    @property
    def name(self) -> str: ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]: ...


@runtime_checkable
class StreamsText(Protocol):
    """A policy that can stream text. Not all can: check with ``isinstance``."""

    async def stream(self, request: SampleRequest, show: Callable[[int, str], None]) -> SampleResult:
        """Like ``sample``, but ``show`` is called with a sample's number and its new text.

        Samples are numbered from 0, and their texts may interleave. The texts shown for a sample, joined, are
        a prefix of its final text; the stop text may be missing. If an error follows, it is in the result,
        and the sample is not among the completions.
        """
        ...


@runtime_checkable
class TakesExtraBody(Protocol):
    """A policy that can send extra fields with its requests, such as ``tools``; see ``OpenAIPolicy``."""

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> Policy:
        """The same policy with these fields in every request."""
        ...


@runtime_checkable
class Segmenter(Protocol):
    """Cuts text into consecutive spans ``(start, end)`` that cover all of it."""

    def segment(self, text: str) -> list[tuple[int, int]]: ...


TraceChannel = Literal["reasoning", "text", "calls", "observations", "answer"]
"""A part of a trace: hidden reasoning (its own field, or between ``<think>`` and ``</think>``), visible text,
tool calls, what environments and users say, and the extracted final answer."""

ALL_CHANNELS: frozenset[TraceChannel] = frozenset(get_args(TraceChannel))
SOLUTION_CHANNELS: frozenset[TraceChannel] = frozenset({"reasoning", "text"})
"""All of a text."""
RUN_CHANNELS: frozenset[TraceChannel] = ALL_CHANNELS - {"answer"}
"""All of an agent's messages. Judges declare theirs in an attribute ``reads``."""


@dataclass(frozen=True, kw_only=True)
class ProblemTrace:
    """A trace with its problem: the input of labellers and scorers."""

    problem: Problem
    trace: Trace


@runtime_checkable
class Labeller(Protocol):
    """Labels traces: one list per item, one label per step of that item's trace."""

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]: ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A deterministic verifier's result for one step."""

    value: Literal[-1, 0, 1] | None
    """+1 correct and useful, 0 correct without progress, -1 wrong, ``None`` = cannot be checked."""
    reason: str
    execution: Execution | None = None
    """The program run that the verdict is based on, if any."""
    clause: str | None = None
    """Id of the clause of a specification that the step cites."""
    failed: bool = False
    """The verifier raised, so nothing was checked."""

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


def verify_each(verifier: StepVerifier, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
    """One list per item, one verdict per step; everything that asks a verifier does so here.

    An item fails alone: where ``verify`` raises or does not give one verdict per step, the steps of that item
    are ``failed`` with the reason. What this machine lacks (``SandboxError``, ``MissingExtraError``) is no
    item's failure, and is raised.
    """
    try:
        verdicts = verifier.verify(items)
        if [len(row) for row in verdicts] == [len(item.trace.steps) for item in items]:
            return verdicts
        problem = (
            f"{verifier.name} gave {sum(map(len, verdicts))} verdicts in {len(verdicts)} lists; "
            "'verify' must return one list per trace, with one verdict per step"
        )
    except (SandboxError, MissingExtraError):
        raise
    except Exception as error:
        problem = f"{verifier.name} failed: {type(error).__name__}: {error}"[:_REASON_CHARACTERS]
    if len(items) > 1:
        half = len(items) // 2
        return verify_each(verifier, items[:half]) + verify_each(verifier, items[half:])
    return [[Verdict(value=None, reason=problem, failed=True)] * len(item.trace.steps) for item in items]


_REASON_CHARACTERS = 500
"""Of a verifier's error that are shown."""


@runtime_checkable
class StepScorer(Protocol):
    """Scores steps; every kind of reward model implements it."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]: ...


@dataclass(frozen=True, kw_only=True)
class Observation:
    """An environment's answer to an action."""

    text: str
    """A tool's result, or the user's next message after a text to the user; may be empty."""
    error: bool = False
    """Whether the tool failed."""
    done: bool = False
    """Whether the episode is over."""

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
        """The tools, with JSON schemas."""
        ...

    def reset(self, problem: Problem, seed: int = 0) -> tuple[Message, ...]:
        """Begin an episode and return its first messages, such as the rules and the request.

        Raises ``RecordError`` if the problem belongs to another environment.
        """
        ...

    def step(self, action: ToolCall | str) -> Observation:
        """Take a tool call, or a text to the user. An agent's mistake, such as an unknown tool or argument,
        raises nothing: the observation has ``error`` set."""
        ...

    def outcome(self) -> bool | None:
        """Whether the current state solves the task; ``None`` if it cannot be determined."""
        ...


@runtime_checkable
class RestorableEnvironment(Environment, Protocol):
    """An environment whose state can be compared and restored. Check with ``isinstance``."""

    def state(self) -> JsonValue:
        """The mutable state as JSON data: equal data are equal states. Counters and reads are not part of
        it."""
        ...

    def snapshot(self) -> object:
        """Data for :meth:`restore`, which later steps do not change."""
        ...

    def restore(self, snapshot: object) -> None:
        """Return to a ``snapshot`` of this environment or of another one with the same settings; a snapshot
        can be restored several times."""
        ...


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A solution's data for a selector."""

    answer: str | None
    """Canonical final answer; equal strings are equal answers; ``None`` = no answer."""
    score: float | None
    """Aggregated score; ``None`` = not scored."""
    refuted: bool = False
    """Whether a check found a step wrong: chosen only if this holds of all candidates."""


@runtime_checkable
class Selector(Protocol):
    """Selects one of a problem's candidates and returns its index."""

    def select(self, candidates: Sequence[Candidate]) -> int: ...


@dataclass(frozen=True, kw_only=True)
class LabelledTrace(ProblemTrace):
    """A trace with its problem and the labels of its steps; a step may have none or several."""

    labels: tuple[StepLabel, ...]
