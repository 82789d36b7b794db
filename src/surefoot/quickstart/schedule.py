"""Which stage of a run is under way, and how long the rest of the run takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from surefoot.quickstart.config import QuickstartConfig
from surefoot.work.progress import Progress, clock_time


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
