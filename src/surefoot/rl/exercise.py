"""What rounds of imitation and expert iteration are told: who is trained on what, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.answers import Grader
from surefoot.errors import TrainingError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Labeller, Sampling, Segmenter
from surefoot.records import Problem
from surefoot.training.config import TrainingConfig


class RoundsConfig(BaseModel):
    """What every kind of rounds can be told. Defaults suit the lab's policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(default=3, ge=1)
    problems: int | None = Field(default=None, ge=1)
    """Problems a round, in turn; ``None`` = all of them in every round."""
    samples: int = Field(default=1, ge=1)
    """Solutions a problem and round."""
    temperature: float = Field(default=1.0, ge=0)
    max_tokens: int = Field(default=96, ge=1)
    """Longest solution."""
    start: Literal["first", "last"] = "first"
    """Fine-tune in each round from the policy that the run started with, or from the round before's."""
    data: Literal["all", "last"] = "all"
    """Fine-tune on what all rounds so far gathered, or on the newest."""
    training: TrainingConfig = TrainingConfig(epochs=2, batch_size=16, learning_rate=3e-4)
    """How to fine-tune in a round; its ``seed`` is not used, the run's is."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens of the longest example; ``None`` = the policy's context."""
    evaluation_samples: int = Field(default=1, ge=1)
    """Samples a held-out problem, at the same temperature."""
    keep: Literal["all", "last"] = "all"
    """Whether the weights of a round are deleted once those of the next are there."""
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> RoundsConfig:
        if self.start == "last" and self.training.lora:
            raise ValueError(
                "'start' last would put adapters upon adapters; train from the first, or without 'lora'"
            )
        return self

    @property
    def sampling(self) -> Sampling:
        """How the policy writes."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """Who is trained on which problems, and how solutions are read."""

    policy: str | Path
    """Checkpoint directory or hub name to start from."""
    problems: Sequence[Problem]
    held_out: Sequence[Problem] = ()
    """Evaluated before the first and after every round; nothing is evaluated without."""
    segmenter: Segmenter
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    gold: Labeller | None = None
    """Judges the steps of held-out solutions with right answers (trace error)."""
    batch_size: int = 256
    """Samples decoded together."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.problems:
            raise TrainingError("'problems' is empty; there is nothing to write solutions of")
        if shared := {problem.id for problem in self.problems} & {problem.id for problem in self.held_out}:
            raise TrainingError(
                f"{len(shared)} problems are both held out and trained on, first {min(shared)}; "
                "leave them out of one of the two"
            )
