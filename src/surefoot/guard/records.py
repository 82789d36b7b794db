"""What a guard says of tool calls, as it is recorded."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.guard.settings import Blocked
from surefoot.records import ToolCall, Usage

Action = Literal["release", Blocked]
Stage = Literal["schema", "rule", "score"]
Finding = Literal["pass", "fail", "unknown", "error"]
"""unknown: the stage cannot judge this call; error: it failed or took too long."""


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
    """What becomes of one message with calls: they are released together, or none is."""

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
