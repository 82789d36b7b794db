"""Settings of the quickstart."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from surefoot.records import FrozenModel
from surefoot.training.config import TrainingConfig

FULL = {"train_problems": 750, "test_problems": 300, "test_samples": 64, "training_seeds": 5}
"""Sizes of the published figures."""


class QuickstartConfig(FrozenModel):
    """Sizes of the quickstart. The defaults take about two minutes on two cores, ``FULL`` up to an hour."""

    seed: int = Field(
        default=0, description="Seed of everything that is random; equal seeds give equal results."
    )
    test_seed: int = Field(
        default=1_000_000, description="Seed of the held-out problems, which are in no training set."
    )
    train_problems: int = Field(default=220, ge=1, description="Problems whose traces are labelled.")
    train_samples: int = Field(default=2, ge=1, description="Traces per training problem.")
    rollouts: int = Field(
        default=4, ge=1, description="Completions per step prefix for the Monte Carlo labels."
    )
    test_problems: int = Field(default=100, ge=1, description="Held-out problems.")
    test_samples: int = Field(default=16, ge=1, description="Traces per test problem.")
    training_seeds: int = Field(
        default=1,
        ge=1,
        description="Models of each kind, trained on the same labels from different seeds; with one, no "
        "difference between models is called real.",
    )
    max_tokens: int = Field(default=96, ge=1, description="Longest completion.")
    training: TrainingConfig = TrainingConfig(epochs=4, checkpoint_every=100)
    shard: int = Field(default=50, ge=1, description="Problems per piece of work.")

    def full(self) -> Self:
        """The sizes of the published figures, where no other size was given."""
        return self.model_copy(
            update={name: size for name, size in FULL.items() if name not in self.model_fields_set}
        )
