"""Settings of the quickstart."""

from __future__ import annotations

from pydantic import Field

from surefoot.records import FrozenModel
from surefoot.training.config import TrainingConfig


class QuickstartConfig(FrozenModel):
    """Sizes of the quickstart. The defaults take some minutes on two cores."""

    seed: int = Field(
        default=0, description="Seed of everything that is random; equal seeds give equal results."
    )
    train_problems: int = Field(default=750, ge=1, description="Problems whose traces are labelled.")
    train_samples: int = Field(default=2, ge=1, description="Traces per training problem.")
    rollouts: int = Field(
        default=4, ge=1, description="Completions per step prefix for the Monte Carlo labels."
    )
    test_problems: int = Field(default=300, ge=1, description="Held-out problems.")
    test_samples: int = Field(default=64, ge=1, description="Traces per test problem.")
    max_tokens: int = Field(default=96, ge=1, description="Longest completion.")
    training: TrainingConfig = TrainingConfig(epochs=4, checkpoint_every=100)
    shard: int = Field(default=50, ge=1, description="Problems per piece of work.")
