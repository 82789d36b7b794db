"""Settings of the quickstart, and how long a run with them takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from pydantic import Field

from surefoot.records import FrozenModel
from surefoot.training.config import TrainingConfig
from surefoot.work.progress import Progress, clock_time

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


def expected_seconds(config: QuickstartConfig) -> dict[str, float]:
    """Stage → seconds on two idle cores, as measured; in the order of the run."""
    train, test = config.train_problems * config.train_samples, config.test_problems * config.test_samples
    models = config.training_seeds
    fit = 3 + 0.004 * train * config.training.epochs * models
    score = 2 + 0.0007 * test * models
    return {
        "train-traces": 6 + 0.008 * train,
        "train-labels": 6 + 0.033 * train * config.rollouts,
        "train orm": fit,
        "train prm": fit,
        "train prm_gold": fit,
        "test-traces": 6 + 0.001 * test,
        "scores-orm": score,
        "scores-prm": score,
        "scores-prm_gold": score,
        "compare": 5 + 0.0025 * test * models,
    }


class Schedule:
    """Numbers the stages for ``progress``, and announces each with an estimate of the time that is left.

    The estimate begins with :func:`expected_seconds` and follows the pace of the stages that are done.
    """

    def __init__(
        self,
        config: QuickstartConfig,
        progress: Progress,
        announce: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected, self._progress, self._announce = expected_seconds(config), progress, announce
        self._clock, self._start = clock, clock()
        self._seen: list[str] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        number, stages = list(self._expected).index(stage) + 1, len(self._expected)
        if stage not in self._seen:
            self._announce(f"stage {number} of {stages}, {stage}: {self._time_left(stage)}")
            self._seen.append(stage)
        self._progress(f"stage {number} of {stages}, {stage}", done, total)

    def _time_left(self, stage: str) -> str:
        names = list(self._expected)
        remaining = sum(self._expected[name] for name in names[names.index(stage) :])
        if not self._seen:
            return f"about {clock_time(remaining)} of work on two idle cores"
        elapsed = self._clock() - self._start
        # as if thirty seconds had gone as expected: the first stage alone says little
        pace = (elapsed + 30) / (sum(self._expected[name] for name in self._seen) + 30)
        return f"{clock_time(elapsed)} so far, about {clock_time(pace * remaining)} left"
