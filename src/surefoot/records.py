"""What crosses a boundary: problems, traces, steps, labels, scores, usage.

Every record is a frozen pydantic model with a ``schema_version``; identities are content hashes.
Free-form ``meta`` is written as a JSON string, so that every line of a file has the same columns and
``datasets.load_dataset`` reads JSON Lines and Parquet alike.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

SCHEMA_VERSION: Final = 1

LabelKind = Literal["correctness", "value", "advantage"]
"""correctness: is this step valid; value: chance of the right answer from here; advantage: did it help."""


def content_id(*parts: object) -> str:
    """Hash ``parts`` (rendered as JSON) into 16 hexadecimal characters."""

    def as_json(value: object) -> object:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)

    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=as_json)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def now() -> datetime:
    """Current time in UTC; ``SOURCE_DATE_EPOCH`` fixes it, so that runs can be compared byte by byte."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return moment.replace(microsecond=0)


def _number_as_text(value: object) -> object:
    """A JSON number as its text: ``7`` is the answer ``"7"``."""
    return json.dumps(value) if isinstance(value, int | float) else value


Answer = Annotated[str | None, BeforeValidator(_number_as_text)]


def _meta_from_text(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


Meta = Annotated[
    dict[str, Any],
    BeforeValidator(_meta_from_text),
    PlainSerializer(lambda meta: json.dumps(meta, ensure_ascii=False, sort_keys=True), when_used="json"),
]


class Record(BaseModel):
    """Base of all records: frozen, no unknown fields, versioned."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    schema_version: Literal[1] = SCHEMA_VERSION

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class Usage(BaseModel):
    """Tokens spent. Policy and verifier are kept apart; ``+`` adds field by field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: int = 0
    """Tokens the policy read; a prompt shared by n samples counts once."""
    completion_tokens: int = 0
    """Tokens the policy wrote."""
    verifier_tokens: int = 0
    """Tokens pushed through a reward model or judge."""
    calls: int = 0
    """Requests made (batched in process, or over the network)."""

    @property
    def tokens(self) -> int:
        """All tokens, read or written, by policy or verifier."""
        return self.prompt_tokens + self.completion_tokens + self.verifier_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            verifier_tokens=self.verifier_tokens + other.verifier_tokens,
            calls=self.calls + other.calls,
        )


class Problem(Record):
    """A task given to a policy. ``id`` defaults to the hash of text and answer."""

    id: str = ""
    text: str = Field(min_length=1)
    answer: Answer = None
    """Reference final answer, if known; a number is read as its text."""
    source: str | None = None
    """Data set it came from."""
    meta: Meta = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fill_id(self) -> Self:
        if not self.id:
            object.__setattr__(self, "id", content_id("problem", self.text, self.answer))
        return self

    def __str__(self) -> str:
        answer = "" if self.answer is None else f" (answer {_short(self.answer)})"
        return f"{self.id}: {_short(self.text)}{answer}"


class ToolCall(BaseModel):
    """A tool call of an assistant message; ``arguments`` is JSON text, as the model wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    name: str
    arguments: str = "{}"


class Message(BaseModel):
    """One chat message in the OpenAI shape."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Step(BaseModel):
    """A span ``[start, end)`` in characters of the trace's text, or of one message's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    end: int = Field(ge=0)
    message: int | None = Field(default=None, ge=0)
    """Index into ``Trace.messages``; ``None`` for a text trace."""


class Trace(Record):
    """One solution (``text``) or agent run (``messages``), with its steps as spans of the original.

    ``id`` defaults to the hash of problem, policy, seed, sample number and content, so two equal texts
    sampled twice stay two traces.
    """

    id: str = ""
    problem_id: str
    text: str | None = None
    messages: tuple[Message, ...] = ()
    steps: tuple[Step, ...] = ()
    answer: Answer = None
    """Final answer as extracted; ``None`` = none found."""
    outcome: bool | None = None
    """Whether the final answer is right; ``None`` = not judged."""
    policy: str | None = None
    seed: int | None = None
    sample: int = 0
    """Number of this sample among those of the same problem, policy and seed."""
    finish_reason: str | None = None
    error: str | None = None
    """What went wrong while it was written, named for the boundary; such a trace is kept and counted."""
    usage: Usage = Usage()
    meta: Meta = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.text is None) == (not self.messages):
            raise ValueError("give either 'text' or a non-empty 'messages', not both and not neither")
        previous = (-1, 0)
        for number, step in enumerate(self.steps):
            where = -1 if step.message is None else step.message
            if (step.message is None) != (self.text is not None):
                raise ValueError(f"steps[{number}].message must be set for 'messages' and absent for 'text'")
            if where >= len(self.messages):
                raise ValueError(
                    f"steps[{number}].message={where}, but there are {len(self.messages)} messages"
                )
            if step.end < step.start or step.end > len(self._content(step.message)):
                raise ValueError(f"steps[{number}] spans [{step.start}, {step.end}) outside its text")
            if where == previous[0] and step.start < previous[1]:
                raise ValueError(f"steps[{number}] starts at {step.start}, inside the step before it")
            if where < previous[0]:
                raise ValueError(f"steps[{number}] goes back to message {where}")
            previous = (where, step.end)
        if not self.id:
            content = self.text if self.text is not None else [m.model_dump() for m in self.messages]
            parts = (self.problem_id, self.policy, self.seed, self.sample, content)
            object.__setattr__(self, "id", content_id("trace", *parts))
        return self

    def __str__(self) -> str:
        outcome = {True: "correct", False: "incorrect", None: "not graded"}[self.outcome]
        answer = "no answer" if self.answer is None else f"answer {_short(self.answer)}"
        writer = "" if self.policy is None else f" by {self.policy}"
        return f"{self.id}{writer}: {len(self.steps)} steps, {answer}, {outcome}"

    def _content(self, message: int | None) -> str:
        if message is None:
            return self.text or ""
        return self.messages[message].content or ""

    def step_text(self, index: int) -> str:
        """Exact characters of step ``index``."""
        step = self.steps[index]
        return self._content(step.message)[step.start : step.end]

    def prefix(self, steps: int) -> str:
        """Text up to and including the first ``steps`` steps (0 = the text before the first step).

        Raises ``ValueError`` for a chat trace, whose prefix is a list of messages.
        """
        if self.text is None:
            raise ValueError("a chat trace has no text prefix; cut its messages at the step's message index")
        if not self.steps:
            return ""
        return self.text[: self.steps[steps - 1].end] if steps else self.text[: self.steps[0].start]


class Evidence(BaseModel):
    """What a label rests on; fields that do not apply stay ``None``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    successes: int | None = None
    trials: int | None = None
    interval: tuple[float, float] | None = None
    """Bounds on the success rate (Wilson, 95 %), where the label rests on trials."""
    usage: Usage = Usage()
    """What this label cost; nothing where it reuses work done for another."""
    rater: str | None = None
    """Annotator (pseudonym), judge model or prover."""
    message: str | None = None
    """The verifier's reason or the judge's text."""


class StepLabel(Record):
    """Supervision for one step. An unknown value is ``None`` with a ``reason``, never 0."""

    trace_id: str
    step: int = Field(ge=0)
    kind: LabelKind
    value: float | None
    """correctness in {-1, 0, +1}; value in [0, 1]; advantage in [-1, 1]."""
    reason: str | None = None
    source: str
    evidence: Evidence = Evidence()
    created: datetime = Field(default_factory=now)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value is None:
            if not self.reason:
                raise ValueError("a label without a value needs a 'reason'")
            return self
        if self.kind == "correctness" and self.value not in (-1.0, 0.0, 1.0):
            raise ValueError(f"a correctness label is -1, 0 or 1, not {self.value}")
        low = 0.0 if self.kind == "value" else -1.0
        if not low <= self.value <= 1.0:
            raise ValueError(f"a label of kind '{self.kind}' lies in [{low:g}, 1], not {self.value}")
        return self

    def __str__(self) -> str:
        value = f"unknown ({self.reason})" if self.value is None else f"{self.value:g}"
        return f"{self.trace_id} step {self.step}: {self.kind} {value}, from {self.source}"


class StepPair(Record):
    """Two rival steps after one prefix, with their values: a preference for pairwise training."""

    problem_id: str
    prefix: str
    """Text of the solution before either step; empty at its beginning."""
    better: str
    worse: str
    better_value: float = Field(ge=0, le=1)
    worse_value: float = Field(ge=0, le=1)
    source: str

    @property
    def preference(self) -> float:
        """Chance that the better step is the better one, ½ (1 + p - q) (OmegaPRM, arXiv 2406.06592)."""
        return (1 + self.better_value - self.worse_value) / 2

    def __str__(self) -> str:
        better, worse = _short(self.better.strip()), _short(self.worse.strip())
        return f"{self.problem_id}: {better!r} ({self.better_value:g}) over {worse!r} ({self.worse_value:g})"


class StepScores(Record):
    """A reward model's output for one trace: one score a step, ``None`` where there is none."""

    trace_id: str
    scorer: str
    scores: tuple[float | None, ...]
    """In [0, 1] for probabilities; same length as the trace's steps."""
    unscored_reason: str | None = None
    """Why some scores are ``None``, e.g. the trace is longer than the model's context."""
    usage: Usage = Usage()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if None in self.scores and not self.unscored_reason:
            raise ValueError("a missing score needs an 'unscored_reason'")
        return self

    def __str__(self) -> str:
        values = " ".join("n/a" if value is None else f"{value:.3f}" for value in self.scores)
        return f"{self.trace_id} by {self.scorer}: {values}"


def _short(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
