"""What ``/v1/verify`` is sent and what it answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from surefoot.annotation.database.gateway_record import Decision
from surefoot.gateway.extension import Extension, TokenUsage, Told
from surefoot.gateway.given import Given
from surefoot.gateway.schemas import Options


class VerifyRequest(Given):
    """Body of ``/v1/verify``."""

    model: str | None = Field(default=None, max_length=300)
    threshold: float | None = Field(default=None, ge=0, le=1)
    """A step below it is bad; ``null`` = the server's."""
    resample: bool = False
    """Write a rejected solution anew from its first bad step; ``surefoot.strategy`` says how."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of what is written anew."""
    surefoot: Options | None = None


class Resampled(Told):
    """The solution that was written anew."""

    solution: str
    """All of it, the steps that were kept among it."""
    kept_steps: int
    answer: str | None
    value: float | None
    finish_reason: str
    surefoot: Extension


class VerifyAnswer(Told):
    """Answer of ``/v1/verify``."""

    id: str
    object: Literal["surefoot.verification"] = "surefoot.verification"
    created: int
    model: str
    decision: Decision
    """unscored: no step is known to be bad, but not all have a score."""
    first_bad_step: int | None
    """Counted from 0."""
    threshold: float
    steps: list[str]
    scores: list[float | None]
    value: float | None
    unscored_reason: str | None
    resampled: Resampled | None
    usage: TokenUsage
