"""Settings of a guard, and the records of its decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.records import ToolCall, Usage

Blocked = Literal["resample", "reject", "hold"]
"""What happens to a call that is not released. resample: the policy samples again without an explanation;
reject: the policy sees the reason and answers again; hold: a person decides."""
Protocol = Literal["trusted-monitoring", "defer-to-resample", "hold"]
"""A control protocol: what follows when the scorer, the monitor of an untrusted policy, suspects a call."""
Channel = Literal["reasoning", "results"]
"""What may persuade a scorer (an assistant's reasoning) or carry instructions to it (tools' results)."""


class GuardSettings(BaseModel):
    """What a :class:`surefoot.guard.Guard` does with a call that one of its stages finds wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Lowest score of a call that is released; without it, calls are not scored.",
    )
    on_schema: Blocked = Field(
        default="resample", description="For a call of an unknown tool, or with arguments that do not fit."
    )
    on_rule: Blocked = Field(default="reject", description="For a call that a rule finds wrong.")
    protocol: Protocol = Field(
        default="defer-to-resample",
        description="For a call that scores below the threshold. trusted-monitoring: it is rejected; "
        "defer-to-resample: the policy samples again; hold: a person decides.",
    )
    monitor_sees: tuple[Channel, ...] = Field(
        default=(),
        description="What the scorer sees besides instructions, users' messages, and assistants' contents "
        "and calls: `reasoning`, tools' `results`. A reward model trained on whole runs needs both.",
    )
    resamples: int = Field(
        default=2, ge=0, le=20, description="Draws after the first that one answer may take."
    )
    after_resamples: Literal["reject", "hold"] = Field(
        default="reject", description="Action when the resamples are used up."
    )
    rejections: int = Field(
        default=1,
        ge=0,
        le=20,
        description="How often the policy sees why a call was rejected and answers again; then the answer "
        "is withheld.",
    )
    fail: Literal["open", "closed"] = Field(
        default="closed",
        description="For a call that a stage could not check, as it failed or took too long. closed: it is "
        "rejected; open: the next stage decides.",
    )
    timeout_s: float = Field(default=10.0, gt=0, description="Seconds for a stage.")
    max_calls: int = Field(default=64, ge=1, le=1000, description="Calls of one message.")
    max_argument_bytes: int = Field(
        default=2**20, ge=2, le=2**24, description="Bytes of all arguments of one message."
    )
    remember_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds for which a released call counts that the messages of its conversation do not "
        "show.",
    )


Action = Literal["release", Blocked]
Stage = Literal["schema", "rule", "score"]
Finding = Literal["pass", "fail", "ask", "unknown", "error"]
"""ask: a person must agree; unknown: the stage cannot judge this call; error: it failed or took too long."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StageVerdict(_Frozen):
    """What one checker found of one call, and on what grounds."""

    stage: Stage
    checker: str
    """``schema``, or the name of the verifier or reward model."""
    finding: Finding
    reason: str = ""
    score: float | None = None
    threshold: float | None = None
    latency_ms: float = Field(ge=0)
    """Of the checker for all calls of the message."""


class CallVerdict(_Frozen):
    """One call with the verdicts of all stages that it came to."""

    call: ToolCall
    """With canonical arguments if they are readable."""
    action: Action
    reason: str = ""
    """Why it is not released."""
    stages: tuple[StageVerdict, ...]


class Review(_Frozen):
    """A person's decision about calls that were held."""

    approved: bool
    comment: str = ""
    by: str = ""


class GuardDecision(_Frozen):
    """What becomes of one message with calls: they are released together, or none is. It is about exactly
    these calls, and :meth:`surefoot.guard.Guard.redeem` gives them out once."""

    id: str = ""
    action: Action
    reason: str = ""
    calls: tuple[CallVerdict, ...]
    latency_ms: float = Field(ge=0)
    """Time of all stages, without people's."""
    usage: Usage = Usage()
    """Tokens of the reward model."""
    held: str | None = None
    """Number of the entry in the queue of calls that people decide about."""
    review: Review | None = None
    """The person who decided, if any; ``action`` is the result."""

    @property
    def by_stage(self) -> Stage | None:
        """The stage for which a call was not released."""
        for verdict in self.calls:
            if verdict.action != "release":
                return verdict.stages[-1].stage
        return None
