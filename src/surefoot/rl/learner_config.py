"""Settings of the models that learn beside the policy: the online implicit reward model and the critic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class OnlinePRMConfig(BaseModel):
    """How an implicit reward model is updated (:mod:`surefoot.rl.online_prm`). Defaults suit the lab's.

    PRIME (7B) has a learning rate of 1e-6, twice the policy's, and the other values as here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=3e-4, gt=0, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    beta: float = Field(
        default=0.05,
        gt=0,
        description="Log odds of a correct outcome per nat of log-ratio; token rewards are not scaled by it.",
    )
    max_grad_norm: float = Field(
        default=10.0, gt=0, description="Gradients with a larger norm are scaled down to this one."
    )
    epochs: int = Field(
        default=1, ge=1, description="Optimiser steps per round, each over all of its rollouts."
    )


class CriticConfig(BaseModel):
    """How the value model is updated (:mod:`surefoot.rl.critic`). Defaults suit the lab's models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    value_clip: float | None = Field(
        default=0.2,
        gt=0,
        # PPO's own code has 0.2, for returns of about 1
        description="Bound on how far a value may move from that of the rollout before its loss is clipped; "
        "none: plain squared error.",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients with a larger norm are scaled down to this one."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of a round.")
    minibatches: int = Field(default=4, ge=1, description="Optimiser steps per epoch.")
