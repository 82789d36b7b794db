"""Settings of the policy loss; importable without torch. :mod:`surefoot.rl.loss` has the formulas."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mean = Literal["token", "sequence", "constant"]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KL(_Settings):
    """Penalty on leaving the reference policy, which is the policy that training started from."""

    coefficient: float = Field(
        default=0.04, ge=0, description="Penalty per nat; DeepSeekMath and Math-Shepherd use 0.04."
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="Estimator of the KL of a token: k1 in the reward, k2 or k3 in the loss."
    )
    where: Literal["loss", "reward"] = Field(
        default="loss", description="Whether the penalty is added to the loss or subtracted from the reward."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError(
                "'estimator' k1 averages to a zero gradient in the loss: use k2 or k3, or set 'where' to "
                "reward"
            )
        if self.where == "reward" and self.estimator != "k1":
            raise ValueError(
                f"'estimator' must be k1 (the log-ratio of the sampled tokens) with 'where' reward, not "
                f"{self.estimator}"
            )
        return self


class Objective(_Settings):
    """The policy loss; :mod:`surefoot.rl.loss` has the formulas."""

    clip_low: float = Field(
        default=0.2, gt=0, le=1, description="The probability ratio is clipped below 1 - clip_low."
    )
    clip_high: float = Field(
        default=0.2, gt=0, description="The probability ratio is clipped above 1 + clip_high."
    )
    surrogate: Literal["clip", "cispo"] = Field(
        default="clip",
        description="clip (PPO): tokens beyond the bounds get no gradient. cispo: every token gets one, "
        "weighted by the clipped ratio.",
    )
    ratio: Literal["token", "sequence"] = Field(
        default="token",
        description="Probability ratio of each token, or the geometric mean over its response (GSPO).",
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="Tokens with a negative advantage A cost at most -dual_clip A, however large the ratio; "
        "3 in the paper.",
    )
    sampler_cap: float | None = Field(
        default=None,
        gt=0,
        description="Truncated importance sampling of rollouts that a server samples: each token weighs "
        "min(pi_old / pi_server, sampler_cap).",
    )
    mean: Mean = Field(
        default="token",
        description="How the tokens of a minibatch are averaged: token, sequence (GRPO as published) or "
        "constant (Dr. GRPO).",
    )
    kl: KL | None = Field(default=None, description="KL penalty; none by default.")
    entropy: float = Field(default=0.0, ge=0, description="Entropy bonus per nat.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.surrogate == "cispo" and self.ratio == "sequence":
            raise ValueError("'surrogate' cispo clips the ratios of tokens: set 'ratio' to token")
        if self.surrogate == "cispo" and self.dual_clip is not None:
            raise ValueError(
                "'dual_clip' bounds the loss of the clip surrogate; with 'surrogate' cispo 'clip_high' does"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"'dual_clip' is {self.dual_clip:g}, but 'clip_high' lets the ratio grow to "
                f"{1 + self.clip_high:g}: set it above that"
            )
        return self
