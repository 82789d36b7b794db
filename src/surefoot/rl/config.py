"""Settings of reinforcement learning, imitation and expert iteration, and published methods by name.

Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from surefoot.errors import RunError, unknown
from surefoot.models.lora import Lora
from surefoot.protocols import Sampling
from surefoot.records import FrozenModel
from surefoot.rl.advantage import ADVANTAGES, Advantage, Gae, Group, LeaveOneOut, Reinforce
from surefoot.rl.credit import (
    CREDITS,
    AnchorState,
    Credit,
    Effective,
    Implicit,
    MinForm,
    Mixed,
    Outcome,
    Summed,
)
from surefoot.rl.log import Guards
from surefoot.spec import method_words
from surefoot.training.config import OptimiserSettings, SFTConfig

Mean = Literal["token", "sequence", "constant"]

NOT_DECISIVE = (
    "batch_size", "microbatch_tokens", "gradient_checkpointing", "checkpoint_every", "keep_samples",
    "report_to",
)  # fmt: skip
"""Settings of memory use and of logging: they change results by rounding at most."""


class KL(FrozenModel):
    """Penalty on leaving the reference policy, which is the policy that training started from."""

    coefficient: float = Field(
        default=0.04, ge=0, description="Penalty per nat; DeepSeekMath and Math-Shepherd use 0.04."
    )
    where: Literal["loss", "reward"] = Field(
        default="loss",
        description="Whether the penalty is added to the loss (k3) or subtracted from the reward (k1).",
    )


class Objective(FrozenModel):
    """The policy loss; :mod:`surefoot.rl.learners` has the formulas."""

    clip_low: float = Field(
        default=0.2, gt=0, le=1, description="The probability ratio is clipped below 1 - clip_low."
    )
    clip_high: float = Field(
        default=0.2, gt=0, description="The probability ratio is clipped above 1 + clip_high."
    )
    mean: Mean = Field(
        default="token",
        description="How the tokens of a minibatch are averaged: token, sequence (GRPO as published) or "
        "constant (Dr. GRPO).",
    )
    kl: KL | None = Field(default=None, description="KL penalty; none by default.")


class OnlinePRMConfig(OptimiserSettings):
    """How an implicit reward model is updated (:mod:`surefoot.rl.learners`). Defaults suit the lab's.

    PRIME (7B) has a learning rate of 1e-6, twice the policy's, and the other values as here.
    """

    learning_rate: float = Field(default=3e-4, gt=0, description="Learning rate.")
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


class CriticConfig(OptimiserSettings):
    """How the value model is updated (:mod:`surefoot.rl.learners`). Defaults suit the lab's models."""

    learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate.")
    value_clip: float | None = Field(
        default=0.2,
        gt=0,
        # PPO's own code has 0.2, for returns of about 1
        description="Bound on the change of a value since the rollout before the loss is clipped; "
        "none: plain squared error.",
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of a round.")
    minibatches: int = Field(default=4, ge=1, description="Optimiser steps per epoch.")


_DEEPSEEK_MATH = {
    "mean": "sequence", "kl": {"coefficient": 0.04, "where": "loss"}
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3
    "grpo": {"credit": Outcome(), "advantage": Group(), "objective": _DEEPSEEK_MATH},
    "process-grpo": {"credit": Summed(), "advantage": Group(), "objective": _DEEPSEEK_MATH},
    "step-ppo": {"credit": Summed(), "advantage": Gae()},  # Math-Shepherd, arXiv 2312.08935
    "pure": {  # arXiv 2504.15275, and its script train_pure.sh
        "credit": Mixed(of=MinForm()),
        "advantage": LeaveOneOut(baseline="token", whiten=True, mask_ends=True),
        "objective": {"mean": "sequence", "kl": {"coefficient": 0.001, "where": "reward"}},
    },
    "prime": {  # arXiv 2502.01456
        "credit": Mixed(of=Implicit()),
        "advantage": LeaveOneOut(baseline="prime", whiten=True),
        "accuracy_band": (0.2, 0.8),
    },
    # GiGPO, arXiv 2505.10978, without division by the standard deviation
    "gigpo": {"credit": AnchorState(), "advantage": Group(scale=False)},
    "pav": {"credit": Effective(), "advantage": Reinforce()},  # arXiv 2410.08146
}
"""Settings of the published methods by name."""


class RolloutSettings(FrozenModel):
    """How a policy in training is sampled: what reinforcement learning and expert iteration share."""

    max_tokens: int = Field(default=96, ge=1, description="Maximum tokens of a response.")
    samples: int = Field(default=8, ge=1, description="Samples per problem and round: the group.")
    evaluation_samples: int = Field(default=1, ge=1, description="Samples per held-out problem.")
    batch_size: int = Field(
        default=256,
        ge=1,
        description="Samples decoded together in this process, in rollouts and evaluations; a server does "
        "its own batching.",
    )
    seed: int = Field(default=0, description="Seed of problems, samples and updates.")


class RLConfig(OptimiserSettings, RolloutSettings):
    """How to train a policy. The defaults suit the lab's policy; large models need a much smaller rate."""

    credit: Credit = Field(
        default=Outcome(),
        description="Credit rule: which rewards a token's return is made of; with a weight `outcome` or "
        "`process`, mixed with the outcome. Or a published method, which also sets estimator and loss: "
        f"{', '.join(PRESETS)}.",
    )
    advantage: Advantage = Field(
        default=LeaveOneOut(),
        description="Advantage estimator: which baseline is subtracted from the returns.",
    )
    objective: Objective = Field(default=Objective(), description="The policy loss.")
    guards: Guards = Field(default=Guards(), description="Alarms for reward hacking, and which end the run.")
    online_prm: OnlinePRMConfig = Field(
        default=OnlinePRMConfig(),
        description="The implicit reward model that is trained with the policy; for credit that reads "
        "log-ratios.",
    )
    critic: CriticConfig = Field(
        default=CriticConfig(), description="The value model; for the advantage estimator gae."
    )

    updates: int = Field(
        default=100,
        ge=1,
        description="Rounds of sampling; each is followed by epochs × minibatches optimizer steps.",
    )
    problems: int = Field(default=16, ge=1, description="Problems per round.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature of the rollouts.")
    accuracy_band: tuple[float, float] | None = Field(
        default=None,
        description="Train only on problems whose share of correct samples is in [low, high]; PRIME uses "
        "[0.2, 0.8].",
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of a round.")
    minibatches: int = Field(default=1, ge=1, description="Optimizer steps per epoch.")
    learning_rate: float = Field(
        default=1e-4, gt=0, description="1e-4 suits the lab's policy, 1e-6 a policy of 7B parameters."
    )
    warmup: int = Field(
        default=10, ge=0, description="Updates over which the learning rate rises; then it is constant."
    )
    microbatch_tokens: int = Field(
        default=8_192, ge=1, description="Maximum tokens, including padding, of a forward and backward pass."
    )
    lora: Lora | None = Field(default=None, description="Train a LoRA adapter instead of the whole model.")
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass: less memory, more time."
    )
    bf16: bool = Field(default=False, description="Compute in bfloat16; weights stay in float32.")

    evaluate_every: int = Field(
        default=10, ge=1, description="Updates between evaluations on held-out problems."
    )
    evaluation_temperature: float | None = Field(
        default=None,
        ge=0,
        description="Sampling temperature of evaluations, 0 = greedy. Default: the training "
        "temperature, where part of a gain can be mere sharpening.",
    )
    checkpoint_every: int = Field(default=10, ge=1, description="Updates between checkpoints.")
    keep_samples: int = Field(
        default=4,
        ge=0,
        description="Rollouts of each round written to samples/ for reading, with scores and advantages.",
    )
    report_to: tuple[str, ...] = Field(
        default=(),
        description="Trackers that also receive the curves, as accelerate names them: tensorboard, wandb, "
        "trackio ...",
    )

    @model_validator(mode="before")
    @classmethod
    def _methods(cls, settings: Any) -> Any:
        """A published method as ``credit.rule``, weights that mix a rule with the outcome, a KL of 0.

        A rule and an estimator may be texts with settings: ``min-form:temperature=0.2,outcome=1``.
        """
        if not isinstance(settings, dict):
            return settings
        settings = dict(settings)
        if (advantage := _table(settings.get("advantage"), "kind", ADVANTAGES)) is not None:
            settings["advantage"] = advantage
        methods = {name: type(preset["credit"]) for name, preset in PRESETS.items()}
        credit = _table(settings.get("credit"), "rule", CREDITS | methods, more=("process", "outcome"))
        if credit is not None:
            settings = _merged(method_settings(credit), {k: v for k, v in settings.items() if k != "credit"})
        objective = settings.get("objective")
        if isinstance(objective, dict) and isinstance(objective.get("kl"), dict):
            coefficient = objective["kl"].get("coefficient")
            if coefficient is not None and float(coefficient) == 0:
                settings["objective"] = {**objective, "kl": None}
        return settings

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.samples == 1 and self.advantage.compares:
            raise ValueError(
                f"'samples' must be 2 or more with advantage {self.advantage.kind!r}, which compares the "
                "samples of a problem"
            )
        if self.accuracy_band and not 0 <= self.accuracy_band[0] <= self.accuracy_band[1] <= 1:
            raise ValueError(
                f"'accuracy_band' is {self.accuracy_band}: give two shares between 0 and 1, the lower first"
            )
        kl, advantage = self.objective.kl, self.advantage
        if kl and kl.where == "reward" and isinstance(advantage, Group) and advantage.scale:
            raise ValueError(
                "'objective.kl.where' is reward, but advantage 'group' divides rewards by their standard "
                "deviation, so the KL coefficient would cancel: set it to loss, or set 'advantage.scale' to "
                "false"
            )
        return self

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that determine the result, as JSON; a run may resume with the others changed."""
        return self.model_dump(mode="json", exclude=set(NOT_DECISIVE))


def _table(
    given: Any, tag: str, kinds: Mapping[str, type[BaseModel]], *, more: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """The settings of one of ``kinds`` with its name as ``tag``, which may be a text with settings.

    ``None`` if they are an instance or not given. Raises ``RunError`` for settings that neither it has nor
    ``more``.
    """
    table: dict[str, Any] | None = {tag: given} if isinstance(given, str) else given
    if not isinstance(table, dict):
        return None
    if not isinstance(table.get(tag), str):
        return table
    name, settings = method_words(table[tag])
    table = {**table, tag: name}
    for setting, value in settings if name in kinds else ():
        first, *below = setting.replace("-", "_").split(".")
        choices = [field for field in (*kinds[name].model_fields, *more) if field != tag]
        if first not in choices:
            raise RunError(unknown(f"setting of {name}", setting, choices))
        if below:
            table[first] = {**(table.get(first) or {}), ".".join(below): value}
        else:
            table[first] = value
    return table


def method_settings(credit: dict[str, Any]) -> dict[str, Any]:
    """Settings of a configuration whose ``credit`` names a rule or a published method.

    ``process`` and ``outcome`` next to a rule other than ``mixed`` mix it with the outcome by these weights.
    """
    credit = dict(credit)
    settings: dict[str, Any] = {}
    if preset := PRESETS.get(credit.get("rule", "")):
        del credit["rule"]
        settings = dict(preset)
        credit = settings["credit"].model_dump() | credit
    weights: dict[str, Any] = {name: credit.pop(name) for name in ("process", "outcome") if name in credit}
    if weights and credit.get("rule") == "mixed":
        credit |= weights
    elif weights:
        credit = {"rule": "mixed", "of": credit, **weights}
    return {**settings, "credit": credit}


def _merged(method: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method, with those that are given in their place; tables field by field."""
    merged = dict(method)
    for name, value in given.items():
        default = merged.get(name)
        merged[name] = (
            _merged(default, value) if isinstance(default, dict) and isinstance(value, dict) else value
        )
    return merged


class RoundsConfig(RolloutSettings):
    """Settings of cloning and of expert iteration. The defaults suit the lab's policy, and are ReST-EM's: in
    each round from the first policy on the newest data."""

    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature of the policy.")
    training: SFTConfig = Field(
        default=SFTConfig(epochs=2),
        description="How to fine-tune in a round; its seed is ignored in favour of the run's.",
    )
    max_length: int | None = Field(
        default=None, ge=8, description="Maximum tokens of an example; by default the policy's context."
    )
    rounds: int = Field(default=3, ge=1, description="Rounds of sampling and fine-tuning.")
    problems: int | None = Field(
        default=None, ge=1, description="Problems per round, taken in turn; by default all in every round."
    )
    start: Literal["first", "last"] = Field(
        default="first",
        description="Fine-tune in each round from the policy that the run started with (first), or from the "
        "policy of the round before (last).",
    )
    keep_solutions: int = Field(
        default=4,
        ge=1,
        description="Maximum number of different solutions kept per problem and round, so that easy problems "
        "do not dominate (10 in ReST-EM); those with the highest minimum step score first, else the first "
        "sampled.",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Minimum score of every step of a solution; by default the answer alone decides.",
    )

    @property
    def sampling(self) -> Sampling:
        """How the policy is sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start == "last" and self.training.lora:
            raise ValueError(
                "'start' is last, which would stack an adapter on an adapter: set it to first, or leave out "
                "'training.lora'"
            )
        return self
