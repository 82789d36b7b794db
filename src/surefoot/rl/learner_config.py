"""Settings of the models that learn beside the policy: the online implicit reward model and the critic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class OnlinePRMConfig(BaseModel):
    """How an implicit reward model is updated (:mod:`surefoot.rl.online_prm`). Defaults suit the lab's.

    PRIME (7B) has a learning rate of 1e-6, twice the policy's, and the other values as here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.05, gt=0)
    """Log odds of a right outcome per nat of log-ratio. The rewards of tokens are not scaled by it."""
    clip: float = Field(default=10.0, gt=0)
    """Largest norm of the gradient."""
    epochs: int = Field(default=1, ge=1)
    """Steps of the optimiser a round, each over all its rollouts."""


class CriticConfig(BaseModel):
    """How the value model is updated (:mod:`surefoot.rl.critic`). Defaults suit the lab's models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    """A value that moved further than this from what it was in the rollout counts by its bounded self where
    that is worse (PPO's own code has 0.2, for returns of about 1); ``None`` = plain squares."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=4, ge=1)
    """Steps of the optimiser an epoch, each over its share of the rollouts."""
