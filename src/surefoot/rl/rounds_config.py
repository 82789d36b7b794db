"""Settings of imitation and expert iteration."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.protocols import Sampling
from surefoot.training.config import SFTConfig

After = Literal["until_error", "all"]


class RoundsConfig(BaseModel):
    """Settings that imitation and expert iteration share. The defaults suit the lab's policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(default=3, ge=1, description="Rounds of sampling and fine-tuning.")
    problems: int | None = Field(
        default=None, ge=1, description="Problems per round, taken in turn; by default all in every round."
    )
    samples: int = Field(default=1, ge=1, description="Solutions per problem and round.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature of the policy.")
    max_tokens: int = Field(default=96, ge=1, description="Maximum tokens of a solution.")
    start: Literal["first", "last"] = Field(
        default="first",
        description="Fine-tune in each round from the policy that the run started with (first), or from that "
        "of the round before (last).",
    )
    data: Literal["all", "last"] = Field(
        default="all", description="Fine-tune on the data of all rounds so far, or of the last round alone."
    )
    training: SFTConfig = Field(
        default=SFTConfig(epochs=2),
        description="How to fine-tune in a round; its seed is ignored in favour of the run's.",
    )
    max_length: int | None = Field(
        default=None, ge=8, description="Maximum tokens of an example; by default the policy's context."
    )
    evaluation_samples: int = Field(
        default=1, ge=1, description="Samples per held-out problem, at the same temperature."
    )
    fall: float | None = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="End the run if the held-out accuracy falls below the best earlier round by this "
        "much and beyond chance; none: never.",
    )
    patience: int = Field(default=1, ge=1, description="Consecutive rounds for which the fall must hold.")
    keep: Literal["all", "best"] = Field(
        default="all",
        description="Keep the weights of all rounds, or only of the best one, which is `policy`.",
    )
    batch_size: int = Field(default=256, ge=1, description="Samples decoded together in this process.")
    seed: int = Field(default=0, description="Seed of problems, samples and fine-tuning.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start == "last" and self.training.lora:
            raise ValueError(
                "'start' is last, which would stack an adapter on an adapter: set it to first, or leave out "
                "'training.lora'"
            )
        return self

    @property
    def sampling(self) -> Sampling:
        """How the policy is sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that determine the result, as JSON; a run may resume with the others changed."""
        return self.model_dump(mode="json", exclude={"batch_size"})


class ImitationConfig(RoundsConfig):
    """Settings of behaviour cloning and DAgger."""

    patience: int = Field(
        # the round that clones may fall behind the first policy before the expert's corrections come
        default=2,
        ge=1,
        description="Consecutive rounds for which the fall must hold.",
    )

    after: After = Field(
        default="until_error",
        description="Whether the expert is asked about states after the policy's first error. until_error: "
        "no, since the solution is wrong from there on. all: yes, so that the policy learns to carry on "
        "after an error; this needs an expert that can.",
    )
    match: Literal["exact", "numbers", "tolerance"] = Field(
        default="exact",
        description="When a step in other words still counts as the expert's, for until_error: never "
        "(exact), with the same numbers, or with similar text (tolerance). The expert's words are learned in "
        "any case.",
    )
    beta: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="In round n, a share beta^n of the problems is solved by the expert. (Ross et al. mix "
        "step by step; their first round, the expert's alone, is behaviour cloning.)",
    )


class ExpertIterationConfig(RoundsConfig):
    """Settings of expert iteration. The defaults are ReST-EM's: newest data, from the first policy."""

    samples: int = Field(
        default=8,
        ge=1,
        description="Solutions per problem and round; ReST-EM samples 32 (MATH) and 64 (APPS).",
    )
    data: Literal["all", "last"] = Field(
        default="last", description="Fine-tune on the data of all rounds so far, or of the last round alone."
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

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                "'samples' is more than 1 at 'temperature' 0, where all samples are equal: raise the "
                "temperature"
            )
        return self
