"""Settings of reinforcement learning."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.models.lora import Lora
from surefoot.rl.advantage import Advantage, Group, LeaveOneOut
from surefoot.rl.credit import Credit, Outcome
from surefoot.rl.guards import Guards
from surefoot.rl.learner_config import CriticConfig, OnlinePRMConfig

Mean = Literal["token", "sequence", "constant"]

_BESIDE = {
    "batch_size", "tokens_per_pass", "gradient_checkpointing", "checkpoint_every", "keep_samples", "report_to"
}  # fmt: skip
"""Settings of memory, and of what is kept and shown: they change results by rounding at most."""


class KL(BaseModel):
    """Penalty on leaving the reference policy, the one that training started from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    coefficient: float = Field(default=0.04, ge=0)
    """Nats count this much; DeepSeekMath and Math-Shepherd have 0.04."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError(
                "'k1' in the loss has no gradient on average: use k2 or k3, or put it in 'reward'"
            )
        if self.where == "reward" and self.estimator != "k1":
            raise ValueError(
                f"a KL reward is 'k1', the log-ratio of the tokens drawn, not {self.estimator!r}"
            )
        return self


class Objective(BaseModel):
    """The loss (:mod:`surefoot.rl.loss`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    mean: Mean = "token"
    """Over the tokens of a minibatch: token, sequence (GRPO as published) or constant (Dr. GRPO)."""
    kl: KL | None = None
    entropy: float = Field(default=0.0, ge=0)
    """Bonus for entropy, per nat."""


class RLConfig(BaseModel):
    """How to train a policy. Defaults suit the lab's; large models want a much smaller learning rate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    credit: Credit = Outcome()
    advantage: Advantage = LeaveOneOut()
    objective: Objective = Objective()
    guards: Guards = Guards()
    online_prm: OnlinePRMConfig = OnlinePRMConfig()
    """For credit that needs log-ratios."""
    critic: CriticConfig = CriticConfig()
    """For the advantage ``gae``."""

    updates: int = Field(default=100, ge=1)
    """Rounds of sampling; each is followed by ``epochs`` × ``minibatches`` steps of the optimiser."""
    problems: int = Field(default=16, ge=1)
    """Problems a round."""
    samples: int = Field(default=8, ge=1)
    """Rollouts a problem: the group."""
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=96, ge=1)
    """Longest response."""
    accuracy_band: tuple[float, float] | None = None
    """Keep only problems of whose samples a share in [low, high] is right: PRIME has (0.2, 0.8)."""
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup: int = Field(default=10, ge=0)
    """Updates in which the rate rises; then it stays."""
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    batch_size: int = Field(default=256, ge=1)
    """Samples decoded together, of rollouts and of evaluations; a server sees to that itself."""
    tokens_per_pass: int = Field(default=8_192, ge=1)
    """Most tokens, padding counted, of one forward and backward pass."""
    lora: Lora | None = None
    gradient_checkpointing: bool = False
    bf16: bool = False
    seed: int = 0

    evaluate_every: int = Field(default=10, ge=1)
    """Updates between evaluations on held-out problems."""
    evaluation_samples: int = Field(default=1, ge=1)
    """Samples a held-out problem; the policy is evaluated before the first update, too."""
    evaluation_temperature: float | None = Field(default=None, ge=0)
    """0 = greedy; ``None`` = that of training, at which much of a gain can be mere sharpening."""
    checkpoint_every: int = Field(default=10, ge=1)
    keep_samples: int = Field(default=4, ge=0)
    """Rollouts of each round written to ``samples/`` for reading, with scores and advantages."""
    report_to: tuple[str, ...] = ()
    """Trackers that get the curves too: tensorboard, wandb, trackio ... (those of accelerate)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.samples == 1 and self.advantage.compares:
            raise ValueError(
                f"'{self.advantage.kind}' compares the samples of a problem: 'samples' must be 2 or more"
            )
        if self.accuracy_band and not 0 <= self.accuracy_band[0] <= self.accuracy_band[1] <= 1:
            raise ValueError(f"'accuracy_band' is {self.accuracy_band}; give two shares, the lower first")
        kl, advantage = self.objective.kl, self.advantage
        if kl and kl.where == "reward" and isinstance(advantage, Group) and advantage.scale:
            raise ValueError(
                "'group' divides rewards by their deviation, and 'coefficient' of a KL reward drops out: put "
                "the KL into the 'loss', or turn 'scale' off"
            )
        return self

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that decide what a run comes to, as JSON; a run goes on with others changed."""
        return self.model_dump(mode="json", exclude=_BESIDE)
