"""Records of requests to the gateway."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from surefoot.guard import GuardDecision, Review
from surefoot.protocols import Completion, SampleResult
from surefoot.records import FrozenModel, Message, Problem, Record, StepScores, Tool, Trace, Usage
from surefoot.segment import segment_trace

RANDOM: Final = random.Random()
"""Draws ids and seeds of requests."""


def new_id(prefix: str) -> str:
    """A new id, such as that of an answer.

    It begins with the time, as UUIDs of version 7 do (RFC 9562): new rows are neighbours in an index.
    """
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{RANDOM.getrandbits(80):020x}"


class SessionTurn(FrozenModel):
    """A request's position in a session."""

    session: str = Field(min_length=1, max_length=200)
    """The client's name for it. Sessions of different keys are different sessions."""
    turn: int = Field(ge=0)
    """Answers before this one in the conversation."""
    messages: tuple[Message, ...]
    """The conversation before the answer."""
    tools: tuple[Tool, ...] = ()


class SampledTokens(FrozenModel):
    """A message's tokens, as the policy's server sampled them."""

    prompt_ids: tuple[int, ...] = ()
    """The prompt's tokens; empty if the server does not report them."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """log π of each of ``ids``, in nats and before the temperature; empty if not reported."""

    @classmethod
    def of(cls, completion: Completion, result: SampleResult) -> SampledTokens | None:
        """The tokens of a completion of ``result``; ``None`` if they are unknown."""
        # JSON cannot express infinity
        logprobs = completion.logprobs if all(map(math.isfinite, completion.logprobs)) else ()
        if not (completion.token_ids or logprobs):
            return None
        return cls(prompt_ids=result.prompt_token_ids, ids=completion.token_ids, logprobs=logprobs)


FlagName = Literal["first-bad-step", "instruction-to-verifier", "loophole"]
"""first-bad-step: the first step that scores below the threshold; instruction-to-verifier: words to whoever
scores the answer; loophole: tests edited, skipped or ended early, or a broken tool rule."""


class AnswerFlag(FrozenModel):
    """A named warning about an answer."""

    name: FlagName
    step: int | None = None
    """Counted from 0; ``None`` for the whole answer."""
    reason: str


class GatewayCandidate(FrozenModel):
    """A solution that the strategy considered."""

    trace: Trace
    chosen: bool
    """Whether it became an answer."""
    choice: int = Field(default=0, ge=0)
    """The answer that it was considered for, counted from 0."""
    weight: int = Field(default=1, ge=1)
    """How often it was sampled."""
    score: float | None = None
    """Aggregated score; ``None`` = not scored."""
    scores: StepScores | None = None
    reason: str | None = None
    """Why it was rejected, cut or withheld, e.g. ``step 3 below 0.5``."""
    flags: tuple[AnswerFlag, ...] = ()
    """Warnings about an answer."""
    tokens: SampledTokens | None = None
    """Tokens of a message that was sampled whole in a session; ``None`` if it was joined from steps or cut at
    a stop text."""

    def solution(self) -> tuple[Trace, StepScores | None] | None:
        """The trace with steps, and its scores if they are of these steps; ``None`` without anything to
        label."""
        trace = self.trace
        if not trace.steps and (trace.text or "").strip():
            trace = segment_trace(trace)
        fits = self.scores is not None and self.scores.trace_id == trace.id
        return (trace, self.scores if fits else None) if trace.steps else None

    @property
    def first_step(self) -> int:
        """Number of the first step of the last message; earlier steps came with the request."""
        last = len(self.trace.messages) - 1 if self.trace.text is None else None
        return sum(step.message != last for step in self.trace.steps)

    @property
    def new_scores(self) -> tuple[float | None, ...]:
        """Scores of the steps from ``first_step``; empty without a reward model."""
        return self.scores.scores[self.first_step :] if self.scores else ()


class GatewayRecord(Record):
    """One request to the gateway, answered or failed."""

    request_id: str = Field(min_length=1, max_length=200)
    """Unique id, equal to the answer's. Writing the same id again changes nothing."""
    created: datetime
    endpoint: str
    """``/v1/chat/completions`` …"""
    model: str
    """The model that the client named."""
    strategy: str
    """``best-of-n``, ``beam:width=8`` …: a search with the settings that differ from its defaults."""
    policy: str | None = None
    """The model that wrote the candidates."""
    scorer: str | None = None
    """The model that scored them, if any."""
    status: int
    """HTTP status of the answer; 499 = the client disconnected."""
    error: str | None = None
    latency_ms: float = Field(ge=0)
    usage: Usage = Usage()
    key_id: int | None = None
    project_id: int | None = None
    """The key's project."""
    problem: Problem | None = None
    """The prompt as a problem."""
    candidates: tuple[GatewayCandidate, ...] = ()
    session: SessionTurn | None = None
    """Position in a session that the client named."""
    guard: dict[int, tuple[GuardDecision, ...]] = Field(default_factory=dict)
    """The guard's decisions about messages with tool calls, in order of sampling, by answer."""
    request: dict[str, Any] = Field(default_factory=dict)
    """The parameters of the request (n, temperature, seed …), without the messages."""


class HeldCall(FrozenModel):
    """A message whose calls wait, or waited, for a person's decision."""

    request_id: str
    """The request that it answers."""
    choice: int = Field(default=0, ge=0)
    created: datetime
    key_id: int | None = None
    """The key of the request."""
    run: tuple[Message, ...]
    """The conversation before the message."""
    reply: Message
    """The message with the calls."""
    decision: GuardDecision
    """The guard's decision."""
    review: Review | None = None
    """The person's decision; ``None`` until there is one."""


@dataclass(frozen=True, kw_only=True)
class GoldResult:
    """What people say of an answer that was chosen at random."""

    sample: int
    """Rises with each sample."""
    request_id: str
    proxy: float
    right: bool
    """Whether they found no wrong step."""
    weight: float
    """1 / (the chance of being chosen)."""
    labelled: datetime
