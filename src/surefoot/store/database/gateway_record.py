"""What the gateway writes down of each request, and the protocol it writes through. No database in it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from surefoot.records import Problem, Record, StepScores, Trace, Usage


class GatewayCandidate(BaseModel):
    """One solution that the strategy considered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace: Trace
    chosen: bool
    """Whether the client got it (a choice of the answer)."""
    score: float | None = None
    """What the strategy ranked it by; ``None`` = not scored."""
    scores: StepScores | None = None
    reason: str | None = None
    """Why it was rejected or cut, e.g. ``step 3 below 0.5``."""


class GatewayRecord(Record):
    """One request to the gateway, answered or failed."""

    request_id: str = Field(min_length=1, max_length=200)
    """Unique. A second write with the same id changes nothing."""
    created: datetime
    endpoint: str
    """``/v1/chat/completions`` …"""
    model: str
    strategy: str
    """``best-of-16``, ``beam-4x4`` …; the empty text where none applies."""
    status: int
    """HTTP status that was answered; 499 = the client left."""
    error: str | None = None
    latency_ms: float = Field(ge=0)
    policy_ms: float | None = None
    """Of that, waited for the policy and the verifier."""
    usage: Usage = Usage()
    key_id: int | None = None
    project_id: int | None = None
    problem: Problem | None = None
    """The prompt as a problem; ``None`` if the request never got that far."""
    candidates: tuple[GatewayCandidate, ...] = ()
    request: dict[str, Any] = Field(default_factory=dict)
    """The parameters asked for (n, temperature, seed …), without the messages."""


class GatewayLog(Protocol):
    """Where the gateway writes. ``Database.gateway`` is one; a list in a test is another."""

    def write(self, record: GatewayRecord) -> None:
        """Keep ``record``: it is on disk when this returns. Blocks; call it in a thread."""
        ...
