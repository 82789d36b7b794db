"""Settings of a guard."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Blocked = Literal["resample", "reject", "hold"]
"""What happens to a call that is not released. resample: the policy samples again without an explanation;
reject: the policy sees the reason and answers again; hold: a person decides."""


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
    on_score: Blocked = Field(default="resample", description="For a call that scores below the threshold.")
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
