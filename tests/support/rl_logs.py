"""Made-up logs of training runs, for tests of guards and reports."""

from __future__ import annotations

from surefoot.rl.log import EvaluationRow, RLLog, Shape, UpdateRow
from surefoot.stats.intervals import Interval


def update_row(
    number: int,
    *,
    tokens: float | None = 40.0,
    steps: float | None = 6.0,
    finished: float | None = 1.0,
    entropy: float | None = 0.5,
) -> UpdateRow:
    shape = Shape(traces=8, tokens=tokens, steps=steps, finished=finished)
    return UpdateRow(
        update=number,
        samples=8 * number,
        outcome=0.5,
        proxy=0.6,
        reward=1.5,
        advantage_mean=0.0,
        advantage_std=1.0,
        loss=-0.01,
        kl=0.001 * number,
        clipped=0.1,
        entropy=entropy,
        gradient_norm=0.3,
        learning_rate=1e-4,
        shape=shape,
        seconds={"generation": 2.0, "scoring": 1.0, "update": 1.0},
    )


def evaluation_row(
    number: int,
    accuracy: float,
    proxy: float | None = None,
    *,
    half: float = 0.05,
    error: float | None = None,
) -> EvaluationRow:
    """Intervals reach ``half`` to each side."""

    def around(value: float | None) -> Interval | None:
        return None if value is None else Interval(value=value, low=value - half, high=value + half)

    return EvaluationRow(
        update=number,
        samples=8 * number,
        accuracy=Interval(value=accuracy, low=accuracy - half, high=accuracy + half),
        proxy=around(proxy),
        trace_error=around(error),
        problems=100,
    )


def healthy_log() -> RLLog:
    """Accuracy and proxy rise together; entropy falls to a third, length wavers."""
    return RLLog(
        updates=[update_row(n, tokens=40 + n % 3, entropy=0.6 - 0.02 * n) for n in range(1, 21)],
        evaluations=[
            evaluation_row(n, 0.3 + 0.02 * n, 0.5 + 0.02 * n, error=0.3 - 0.01 * n) for n in range(0, 21, 5)
        ],
    )
